//! What the first screen of a plan says, and what its winner keeps.

use planner::plan::{Answer, Options, Question, answer};
use sim::report::RunReport;
use sim::scenario::Scenario;

/// A question among `instances`, with `more` keys of `[plan]`.
fn question(instances: &str, more: &str) -> Question {
    let text = format!(
        "slo = [\"ttft.p95 < 1 s\", \"tpot.p95 < 60 ms\"]\n[plan]\nmax_instances = 12\n{more}\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \
         [{instances}]\n[engine]\nkind = \"vllm\"\nmax_num_seqs = [64, 128]\nmax_num_batched_tokens = 4096\n[[workload]]\narrival = {{ kind = \"poisson\", rate = \
         12 }}\nprompt = 800\noutput = 150\n[run]\nrequests = 900\nwarmup = \"5 s\"\n"
    );
    Question::parse_in(&crate::short_runs(), &text, "q.toml", &[]).unwrap()
}

fn answered(q: &Question) -> Answer {
    let options = Options {
        exhaustive: false,
        draws: 2,
    };
    answer(q, options, &|_| {}).unwrap()
}

/// The text without its line breaks.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_winner_keeps_its_objectives_and_a_run_judges_by_them() {
    let found = answered(&question("\"g6e.xlarge\"", ""));
    let scenario = Scenario::parse(&found.scenario.unwrap(), "won.toml", &[]).unwrap();
    let texts: Vec<&str> = (scenario.slo.objectives.iter().map(|o| o.text.as_str())).collect();
    assert_eq!(texts, ["ttft.p95 < 1 s", "tpot.p95 < 60 ms"]);
    let report = RunReport::new(&scenario.run(&Default::default()).unwrap(), 0.0);
    assert_eq!(report.slo.holds, Some(true));
    let conditions = planner::capacity::own_conditions(&scenario).unwrap();
    assert_eq!(conditions, scenario.slo.objectives);
}

#[test]
fn the_first_lines_say_what_breaks_it_and_what_does_not() {
    let report = answered(&question("\"p5.4xlarge\", \"g6e.xlarge\"", "")).report;
    let w = report.winner.as_ref().unwrap();
    assert_eq!(
        (w.provider.as_deref(), w.region.as_deref()),
        (Some("AWS"), Some("us-east-1"))
    );
    let s = report.sturdier.as_ref().unwrap();
    let choice = s.choice.as_ref().unwrap();
    // Computed, not guessed: it holds under the load and the loss that the line names.
    assert!(choice.standing.holds && s.growth_ratio == 0.25 && s.lost == "1 replica");
    assert!(choice.usd_per_hour >= w.usd_per_hour);
    assert_eq!(
        s.is_winner,
        (choice.label.as_str(), choice.replicas) == (w.label.as_str(), w.replicas)
    );
    let text = in_one_line(&report.render());
    let first = format!(
        "{} x {} (",
        w.devices,
        w.accelerator.split('-').next().unwrap()
    );
    let price = text.find(" USD/month HOLDS").unwrap_or(usize::MAX);
    assert!(text.find(&first).is_some_and(|at| at < price), "{text}");
    assert!(
        text.contains("survives +25 % traffic with 1 replica lost"),
        "{text}"
    );
    assert!(text.contains("trust: "), "{text}");
    assert_eq!(report.detail.unwrap().range_90_ms.len(), 2);
}

#[test]
fn what_was_never_measured_says_so_first_and_can_be_left_out() {
    let report = answered(&question("\"g6e.xlarge\"", "")).report;
    let w = report.winner.as_ref().unwrap();
    assert!(!w.measured && report.trust.is_none());
    let text = in_one_line(&report.render());
    assert!(text.starts_with("trust: NONE: "), "{text}");
    assert!(
        text.contains("HOLDS by a model that was never checked there"),
        "{text}"
    );
    // The evidence stands before what the draws say.
    let evidence = text.find("was ever compared with a prediction. Of 2 draws");
    assert!(evidence.is_some(), "{text}");

    let q = question("\"g6e.xlarge\", \"p5.4xlarge\"", "measured_only = true");
    let report = answered(&q).report;
    assert!(
        report
            .choices()
            .all(|c| c.measured && c.accelerator.starts_with("H100"))
    );
    assert!(
        report
            .trust
            .as_ref()
            .unwrap()
            .contains("held-out runs of vLLM on H100")
    );
    assert!(in_one_line(&report.render()).contains("were never compared with a measured run"));
    let q = question("\"g6e.xlarge\"", "measured_only = true");
    let options = Options {
        exhaustive: false,
        draws: 0,
    };
    let e = answer(&q, options, &|_| {}).err().unwrap();
    assert!(e.to_string().contains("no run of such an engine"), "{e}");
}
