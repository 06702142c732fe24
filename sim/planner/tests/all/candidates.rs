//! What a plan's candidates are: accelerators in place of instances, types without a price, engines of each accelerator's own, users in place of a rate,
//! and the winner under an autoscaler.

use planner::conditions::Standing;
use planner::plan::space::Space;
use planner::plan::{Options, PlanReport, Question, answer};
use planner::{Error, World};
use sim::report::RunReport;
use sim::scenario::Scenario;

const NO_DRAWS: Options = Options {
    exhaustive: false,
    draws: 0,
};

/// A question of Llama 3.1 8B with `plan`, `hardware` and `more` as written, under `load`.
fn text(plan: &str, hardware: &str, load: &str, more: &str) -> String {
    format!(
        "slo = [\"ttft.p95 < 1 s\", \"tpot.p95 < 40 ms\"]\n[plan]\n{plan}\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\n{hardware}\n[[workload]]\n\
         arrival = {load}\nprompt = 800\noutput = 150\n[run]\nrequests = 600\nwarmup = \"3 s\"\n{more}"
    )
}

const VLLM: &str =
    "[engine]\nkind = \"vllm\"\nmax_num_seqs = [64, 128]\nmax_num_batched_tokens = 4096\n";

fn poisson(rate: f64) -> String {
    format!("{{ kind = \"poisson\", rate = \"{rate} req/s\" }}")
}

fn parsed(text: &str) -> Result<Question, Error> {
    Question::parse_in(&crate::short_runs(), text, "q.toml", &[])
}

fn answered(text: &str) -> (PlanReport, Option<Scenario>) {
    let found = answer(&parsed(text).unwrap(), NO_DRAWS, &|_| {}).unwrap();
    let scenario = found
        .scenario
        .map(|s| Scenario::parse(&s, "winner.toml", &[]).unwrap());
    (found.report, scenario)
}

/// The scenario of the winner runs, gives the plan's figures and costs what the plan says.
fn is_what_it_says(text: &str, report: &PlanReport, scenario: &Scenario) {
    let q = parsed(text).unwrap();
    let record = scenario.run(&Default::default()).unwrap();
    let standing = Standing::of(&record, &q.conditions, q.steady);
    assert_eq!(Some(&standing), report.detail.as_ref().map(|d| &d.standing));
    let winner = report.winner.as_ref().unwrap();
    let own = RunReport::new(&record, 0.0).cost.usd_per_hour;
    match (own, winner.usd_per_hour) {
        (Some(own), Some(plan)) => assert!((own - plan).abs() < 1e-9 * plan, "{own} {plan}"),
        other => assert_eq!(other, (None, None)),
    }
}

#[test]
fn a_plan_by_accelerator_pays_for_those_of_its_replicas_alone() {
    let by_gpu = text("", "accelerator = \"H100\"", &poisson(30.0), VLLM);
    let (report, scenario) = answered(&by_gpu);
    let w = report.winner.clone().unwrap();
    assert!(
        w.by_accelerator && w.accelerator == "H100-SXM5-80GB",
        "{w:?}"
    );
    assert_eq!(w.devices, w.replicas * w.devices_per_replica);
    assert_eq!(w.instances, w.devices);
    // An eighth of the cheapest instance with it, and that is said.
    let each = w.usd_per_hour.unwrap() / f64::from(w.devices);
    assert!((each - 31.92 / 8.0).abs() < 1e-9, "{each}");
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("1/8 of gpu_8x_h100_sxm5's 31.92 USD/h")),
        "{:?}",
        report.notes
    );
    is_what_it_says(&by_gpu, &report, &scenario.unwrap());
    // The same in whole instances is no smaller and no cheaper.
    let whole = text("", "instance = \"gpu_8x_h100_sxm5\"", &poisson(30.0), VLLM);
    let (whole, _) = answered(&whole);
    let of_whole = whole.winner.unwrap();
    assert!(!of_whole.by_accelerator && of_whole.devices == 8);
    assert!(w.devices < 8 && w.usd_per_hour < of_whole.usd_per_hour);
    // Why this layout is on the first screen.
    let told = report
        .notes
        .iter()
        .find(|n| n.starts_with("of the layouts"));
    assert!(
        told.is_some_and(|n| n.contains("TP 8") || n.contains("TP 2")),
        "{:?}",
        report.notes
    );
}

#[test]
fn prices_of_accelerators_are_the_questions_or_its_files() {
    let price = |text: &str, world: &World| {
        let q = Question::parse_in(world, text, "q.toml", &[]).unwrap();
        let o = q.offers.list[0].clone();
        (o.usd_per_hour, o.region)
    };
    let own = text(
        "gpu_price = \"2.5 USD/h\"",
        "accelerator = [\"h100\"]",
        &poisson(1.0),
        VLLM,
    );
    assert_eq!(price(&own, &World::default()), (Some(2.5), None));
    let prices =
        "instance,region,usd_per_h,multiplier\nH100,north,2.1,\nH100,south,1.9,\n*,south,,2\n";
    let bundle = hwmodels::files::Bundle::default().with("prices.csv", prices.as_bytes());
    let world = World::of(bundle);
    let of_file = text(
        "prices = \"prices.csv\"",
        "accelerator = \"H100\"",
        &poisson(1.0),
        VLLM,
    );
    assert_eq!(price(&of_file, &world), (Some(1.9), Some("south".into())));
    // One that the file does not name is a share of an instance that it does.
    let h200 = of_file.replace("H100", "H200");
    assert_eq!(
        price(&h200, &world),
        (Some(2.0 * 50.44 / 8.0), Some("south".into()))
    );
}

#[test]
fn questions_by_accelerator_that_contradict_themselves_say_where() {
    let fails = |plan: &str, hardware: &str, because: &str| {
        let e = parsed(&text(plan, hardware, &poisson(1.0), VLLM))
            .and_then(|q| Space::of(&q).map(|_| ()))
            .unwrap_err();
        assert!(
            e.is_input() && e.to_string().contains(because),
            "`{because}` not in: {e}"
        );
    };
    fails(
        "gpu_price = \"2 USD/h\"",
        "instance = \"g5.2xlarge\"",
        "plan.gpu_price",
    );
    fails(
        "",
        "instance = \"g5.12xlarge\"\ncount = 4",
        "hardware.count",
    );
    fails("", "accelerator = \"H100\"\ncount = 0", "from 1 to 1024");
    fails(
        "",
        "accelerator = \"H100\"\nprice = \"3 USD/h\"",
        "plan.gpu_price",
    );
    fails("", "accelerator = \"H1000\"", "hardware.accelerator");
    fails(
        "budget = \"9 USD/h\"",
        "accelerator = \"MI300X\"",
        "plan.budget",
    );
    fails(
        "",
        "accelerator = \"H100\"\ncount = 4\n[layout]\ntp = 8",
        "raise hardware.count",
    );
}

#[test]
fn slices_of_an_instance_stand_beside_it() {
    let asked = text(
        "slices = true",
        "instance = \"g6e.12xlarge\"",
        &poisson(2.0),
        VLLM,
    );
    let q = parsed(&asked).unwrap();
    let names: Vec<(&str, bool)> = (q.offers.list.iter())
        .map(|o| (o.name.as_str(), o.is_slice))
        .collect();
    assert_eq!(names, [("g6e.12xlarge", false), ("L40S-48GB", true)]);
    assert_eq!(q.offers.list[1].usd_per_hour, Some(10.49264 / 4.0));
    let (report, scenario) = answered(&asked);
    let w = report.winner.as_ref().unwrap();
    assert!(w.by_accelerator && w.devices < 4, "{}", report.render());
    assert_eq!(
        scenario.unwrap().hardware.unwrap().machine.unwrap().count,
        w.devices_per_replica
    );
}

#[test]
fn losing_a_machine_takes_all_slices_that_may_share_it() {
    let of = |redundancy: &str| {
        let plan = format!("redundancy = \"{redundancy}\"");
        let (report, _) = answered(&text(
            &plan,
            "accelerator = \"L40S\"\ncount = 4",
            &poisson(12.0),
            &VLLM.replace("[engine]", "[layout]\ntp = 1\n[engine]"),
        ));
        let w = report.winner.unwrap();
        w.replicas - w.replicas_needed
    };
    assert_eq!((of("none"), of("n+1"), of("n+1 instance")), (0, 1, 4));
}

#[test]
fn without_a_price_deployments_are_ranked_by_their_accelerators() {
    let asked = text(
        "",
        "instance = [\"p5e.48xlarge\", \"p5.4xlarge\"]",
        &poisson(3.0),
        VLLM,
    );
    let (report, scenario) = answered(&asked);
    let w = report.winner.clone().unwrap();
    assert_eq!((w.instance.as_str(), w.devices), ("p5.4xlarge", 1));
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("no price of p5e.48xlarge"))
    );
    assert!(
        report
            .choices()
            .any(|c| c.instance == "p5e.48xlarge" && c.usd_per_hour.is_none())
    );
    is_what_it_says(&asked, &report, &scenario.unwrap());
    let gpus = text("", "accelerator = \"MI300X\"", &poisson(3.0), VLLM);
    let (report, _) = answered(&gpus);
    let w = report.winner.unwrap();
    assert!(w.usd_per_hour.is_none() && w.devices == w.replicas * w.devices_per_replica);
}

#[test]
fn an_accelerators_name_means_all_instance_types_with_it() {
    let q = parsed(&text("", "instance = \"L40S\"", &poisson(1.0), VLLM)).unwrap();
    let names: Vec<&str> = q.offers.list.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["g6e.12xlarge", "g6e.48xlarge", "g6e.xlarge"]);
    assert!(
        q.offers
            .list
            .iter()
            .all(|o| o.accelerator == "L40S-48GB" && !o.is_slice)
    );
}

#[test]
fn each_accelerator_gets_the_engines_that_it_runs() {
    let asked = text(
        "",
        "instance = [\"inf2.xlarge\", \"inf2.8xlarge\", \"g6e.xlarge\"]",
        &poisson(0.5),
        "",
    );
    let space = Space::of(&parsed(&asked).unwrap()).unwrap();
    let kinds = |of: &str| -> Vec<String> {
        let these = space
            .candidates
            .iter()
            .filter(|c| c.instance.starts_with(of));
        let kinds = these.flat_map(|c| {
            c.settings
                .iter()
                .filter(|(k, _)| k == "kind" || k == "server")
        });
        let mut all: Vec<String> = kinds.map(|(_, v)| v.clone()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(kinds("g6e"), ["vllm"]);
    assert_eq!(kinds("inf2"), ["optimum_vllm", "tgi", "tgi_neuron"]);
    // A question of Inferentia alone is answered without a word about engines. Those on inf2.xlarge come near the objectives in a short run, and miss them
    // with any number of replicas: what they cost does not keep others from being looked at.
    let of_two = "instance = [\"inf2.xlarge\", \"inf2.24xlarge\"]\n[layout]\ntp = [2, 8]";
    let (report, _) = answered(&text("", of_two, &poisson(0.5), ""));
    let w = report.winner.as_ref();
    let w = w.unwrap_or_else(|| panic!("{}", report.render()));
    assert_eq!(
        (w.instance.as_str(), w.layout.as_str()),
        ("inf2.24xlarge", "TP 8")
    );
    // One that names vLLM is told what runs there.
    let named = text("", "instance = \"inf2.xlarge\"", &poisson(0.5), VLLM);
    let e = Space::of(&parsed(&named).unwrap())
        .err()
        .unwrap()
        .to_string();
    assert!(
        e.contains("tgi_neuron runs there") && e.contains("optimum_vllm"),
        "{e}"
    );
}

fn users(n: u32, think: &str) -> String {
    format!(
        "{{ kind = \"closed\", concurrency = {n}, think = \"{think}\", think_cv = 1, stagger = \"{} s\" }}",
        8.0 / f64::from(n)
    )
}

fn of_users(n: u32) -> String {
    text("", "instance = \"g6e.xlarge\"", &users(n, "2 s"), VLLM)
        .replace("requests = 600", "requests = 2000")
        .replace("warmup = \"3 s\"", "warmup = \"8 s\"")
}

#[test]
fn users_in_place_of_a_rate_are_a_demand() {
    let asked = of_users(120);
    let (report, scenario) = answered(&asked);
    let w = report.winner.clone().unwrap();
    assert!(w.replicas > 1, "{}", report.render());
    assert_eq!(report.requests_per_s, None);
    is_what_it_says(&asked, &report, &scenario.clone().unwrap());
    // All users are there, and one replica less does not hold.
    let one_less = Scenario {
        replicas: w.replicas - 1,
        ..scenario.unwrap()
    };
    let q = parsed(&asked).unwrap();
    let record = one_less.run(&Default::default()).unwrap();
    assert!(!Standing::of(&record, &q.conditions, q.steady).holds);
    // Users wait no longer than the objectives allow, so they send at least as often as Little's law says.
    let served = record.counts.finished as f64 / record.end.as_secs();
    assert!(q.least_per_s().unwrap() < 1.2 * served);
    assert!((q.cycle_s().unwrap() - (1.0 + 149.0 * 0.04 + 2.0)).abs() < 1e-9);
    // Twice the users take more.
    let (twice, _) = answered(&of_users(240));
    assert!(twice.winner.unwrap().replicas > w.replicas);
}

#[test]
fn the_race_of_users_names_the_winner_of_exhaustive_simulation() {
    let q = parsed(&of_users(60)).unwrap();
    let with = |exhaustive: bool, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let options = Options {
            exhaustive,
            draws: 0,
        };
        let run = || answer(&q, options, &|_| {}).unwrap().report;
        pool.build().unwrap().install(run).winner.unwrap()
    };
    let raced = with(false, 1);
    let all = with(true, 2);
    assert_eq!((&raced.label, raced.replicas), (&all.label, all.replicas));
    assert_eq!(raced, with(false, 3));
}

#[test]
fn users_without_a_number_of_requests_are_refused() {
    let e = parsed(&of_users(8).replace("requests = 2000", "duration = \"60 s\""));
    assert!(e.err().unwrap().to_string().contains("run.requests"));
}

#[test]
fn the_winner_under_an_autoscaler_is_a_scenario_that_runs() {
    let asked = text(
        "autoscaled = true",
        "instance = \"g6e.xlarge\"",
        &poisson(8.0),
        "[engine]\nkind = \"vllm\"\nmax_num_seqs = 32\nmax_num_batched_tokens = 4096\n",
    );
    let (report, scenario) = answered(&asked);
    let a = report.autoscaled.as_ref().unwrap();
    let w = report.winner.as_ref().unwrap();
    // A load that does not change may grow, and its run is long enough for the controller to act.
    assert_eq!((a.min_replicas, a.max_replicas), (1, 2 * w.replicas));
    assert!(a.hours > 0.45, "{}", a.hours);
    // No replica ever runs more than 32 at once, so a target of 30 and its tolerance would never act.
    assert!(!a.trials.is_empty());
    assert!(
        a.trials
            .iter()
            .all(|t| f64::from(t.target_running) * 1.1 < 32.0),
        "{a:?}"
    );
    let scenario = scenario.unwrap();
    let cluster = scenario.cluster.as_ref().unwrap();
    let hpa = cluster
        .autoscaler
        .as_ref()
        .and_then(|a| a.hpa.as_ref())
        .unwrap();
    assert_eq!(
        hpa.metrics[0].metric.as_deref(),
        Some("vllm:num_requests_running")
    );
    assert_eq!(cluster.cluster.node_group.len(), 1);
    let record = scenario.run(&Default::default()).unwrap();
    let best = a.trials.iter().find(|t| {
        let own = Standing::of(&record, &parsed(&asked).unwrap().conditions, false);
        t.standing == own
    });
    assert!(best.is_some(), "{a:?}");
    // Where the weights come from is on the first screen.
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("ebs_gp3") && n.contains("NVMe")),
        "{:?}",
        report.notes
    );
}
