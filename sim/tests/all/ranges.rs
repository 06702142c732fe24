//! The ranges of a run's figures: what the load makes of steps that are longer than predicted.

use sim::report::RunReport;
use sim::report::doubt::{LoadPart, Ranges};
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

/// vLLM on one H100 with few slots under this load, and its ranges.
fn ranges(arrival: &str, more: &[&str]) -> (RunReport, Ranges) {
    let text = format!(
        "[model]\nname = \"llama-3.1-8b\"\n[hardware]\naccelerator = \"H100-SXM5-80GB\"\ncount = 1\n\
         [engine]\nkind = \"vllm_v1\"\nmax_num_seqs = 16\n\
         [[workload]]\narrival = {arrival}\nprompt = 512\noutput = 128\n[run]\nrequests = 1500\nwarmup = \"10 s\"\n"
    );
    let overrides: Vec<String> = more.iter().map(|s| (*s).to_owned()).collect();
    let scenario = Scenario::parse(&text, "s.toml", &overrides).unwrap();
    let options = RunOptions::default();
    let mut report = scenario.paced(&options, 1.0).unwrap();
    scenario.give_ranges(&mut report, &options, None).unwrap();
    let ranges = report.ranges.clone().unwrap();
    (report, ranges)
}

fn poisson(rate: f64) -> String {
    format!("{{ kind = \"poisson\", rate = \"{rate} req/s\" }}")
}

/// Upper end over the figure.
fn above(value: Option<f64>, range: Option<[f64; 2]>) -> f64 {
    range.unwrap()[1] / value.unwrap()
}

#[test]
fn ranges_of_latencies_grow_towards_the_knee_and_that_of_a_rate_only_beyond_it() {
    let runs: Vec<(RunReport, Ranges)> = [2.0, 15.0, 40.0]
        .map(|rate| ranges(&poisson(rate), &[]))
        .into();
    let ttft: Vec<f64> = (runs.iter())
        .map(|(r, x)| above(r.ttft_ms.mean, x.ttft_ms.mean))
        .collect();
    let told: Vec<_> = runs
        .iter()
        .map(|(r, x)| (x.load, r.stationarity.verdict))
        .collect();
    assert!(ttft[1] > 1.5 * ttft[0], "{ttft:?} {told:?}");
    assert_eq!(runs[0].1.load, LoadPart::Replayed);
    assert!(runs[2].0.stationarity.growing(), "{told:?}");
    // Below the knee what is served is what is sent, however long steps are.
    let rate = |(r, x): &(RunReport, Ranges)| {
        let [low, high] = x.requests_per_s;
        (high / low, r.throughput.requests_per_s)
    };
    assert!(rate(&runs[0]).0 < 1.02, "{:?}", rate(&runs[0]));
    assert!(rate(&runs[2]).0 > 1.15, "{:?}", rate(&runs[2]));
    for (r, x) in &runs {
        for (s, x) in [
            (&r.ttft_ms, x.ttft_ms),
            (&r.tpot_ms, x.tpot_ms),
            (&r.e2e_ms, x.e2e_ms),
        ] {
            for (value, range) in [(s.mean, x.mean), (s.p50, x.p50), (s.p99, x.p99)] {
                let ([low, high], value) = (range.unwrap(), value.unwrap());
                assert!(low < value && value < high, "{low} {value} {high}");
            }
        }
    }
}

#[test]
fn a_run_with_steps_that_long_lies_inside_its_range() {
    let (report, x) = ranges(&poisson(12.0), &[]);
    let scaled = |factor: f64| {
        let (other, _) = ranges(&poisson(12.0 * factor), &[]);
        // Time is scaled: longer steps are the same as more requests in shorter times.
        other.ttft_ms.mean.unwrap() * factor
    };
    let longer = scaled(x.step_ratio);
    let [low, high] = x.ttft_ms.mean.unwrap();
    assert!(
        longer < high * 1.05 && longer > report.ttft_ms.mean.unwrap(),
        "{longer} {low} {high}"
    );
}

#[test]
fn loads_that_follow_are_not_run_again_and_say_what_the_start_of_users_does() {
    let users = "{ kind = \"closed\", concurrency = 8 }";
    let (report, x) = ranges(users, &["workload[0].prompt=4000", "run={ requests = 80 }"]);
    assert_eq!(x.load, LoadPart::Follows);
    // All prompts of a round share steps where users start at once; apart they have steps of their own.
    let apart = x.ttft_apart_ms.unwrap();
    let at_once = report.ttft_ms.mean.unwrap();
    assert!(apart < 0.9 * at_once, "{apart} {at_once}");
    let text = sim::report::doubt::in_words(&report);
    assert!(text.contains("TTFT hangs on how users start"), "{text}");
    let (_, burst) = ranges(
        "{ kind = \"burst\", requests = 40 }",
        &["run={ requests = 40 }"],
    );
    assert_eq!((burst.load, burst.ttft_apart_ms), (LoadPart::Follows, None));
}
