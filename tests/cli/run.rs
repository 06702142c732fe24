//! `servetwin run`, end to end.

use crate::common::{SMALL, assert_refused, json, scenario, servetwin, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// Runs the small scenario with further arguments.
fn run(args: &[&str]) -> std::process::Output {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let mut all = vec!["run", file.to_str().unwrap()];
    all.extend(args);
    servetwin(&all)
}

#[test]
fn json_has_every_field_of_the_contract_and_its_counts_add_up() {
    let report = json(&run(&["--json"]));
    let number = |path: &str| -> f64 {
        let value = path.split('.').try_fold(&report, |v, key| v.get(key));
        value
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("{path} is no number: {value:?}"))
    };
    let outcomes = ["finished", "rejected", "timed_out", "failed", "in_flight"];
    let sum: f64 = outcomes
        .iter()
        .map(|o| number(&format!("requests.{o}")))
        .sum();
    assert_eq!(number("requests.offered"), sum);
    assert_eq!(number("requests.finished"), 200.0);
    for metric in ["ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms"] {
        let p = ["p50", "p90", "p95", "p99"].map(|p| number(&format!("{metric}.{p}")));
        assert!(p.is_sorted(), "{metric}: {p:?}");
        assert!(number(&format!("{metric}.mean")) >= 0.0);
        assert!(number(&format!("{metric}.n")) > 0.0);
    }
    for path in [
        "throughput.requests_per_s",
        "throughput.output_tokens_per_s",
        "throughput.total_tokens_per_s",
        "throughput.goodput_per_s",
        "kv.blocks",
        "kv.capacity_tokens",
        "kv.peak_ratio",
        "stats.wall_s",
        "stats.steps",
        "stats.requests_per_wall_s",
    ] {
        assert!(number(path) > 0.0, "{path}");
    }
    let causes = [
        "weights",
        "kv",
        "compute",
        "communication",
        "host",
        "bubble",
        "idle",
    ];
    let shares: f64 = causes
        .iter()
        .map(|c| number(&format!("bound_by.{c}")))
        .sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert!(report["cost"].get("usd_per_hour").is_some());
    assert!(
        report["cost"]
            .get("usd_per_million_output_tokens")
            .is_some()
    );
    let fingerprint = report["fingerprint"].as_str().unwrap();
    assert_eq!(fingerprint.len(), 16);
    assert!(report["warnings"].is_array());
}

#[test]
fn the_same_run_gives_the_same_bytes_but_for_its_wall_time() {
    let once = || {
        let mut report = json(&run(&["--json"]));
        report["stats"] = Value::Null;
        report
    };
    assert_eq!(once(), once());
}

#[test]
fn another_seed_gives_another_run() {
    let of = |seed: &str| json(&run(&["--json", "--seed", seed]))["fingerprint"].clone();
    assert_ne!(of("1"), of("2"));
    assert_eq!(of("2"), of("2"));
}

#[test]
fn fast_and_reference_path_give_the_same_record() {
    let of = |path: &str| {
        // Without asynchronous scheduling, which puts two steps in flight, the fast path applies.
        let set = ["--set", "engine.async_scheduling=false"];
        let mut report = json(&run(&["--json", "--path", path, set[0], set[1]]));
        report["stats"] = Value::Null;
        report
    };
    assert_eq!(of("fast"), of("reference"));
    assert_eq!(of("auto"), of("reference"));
}

#[test]
fn the_report_says_what_was_run_and_why_it_is_as_fast_as_it_is() {
    let out = run(&["--stats"]);
    let text = stdout(&out);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    for want in [
        "small",
        "TTFT",
        "ITL (pooled)",
        "goodput",
        "bound by",
        "limited by",
        "seed 1",
        "simulated 200",
    ] {
        assert!(text.contains(want), "{want}:\n{text}");
    }
    assert!(stderr(&out).is_empty(), "{}", stderr(&out));
}

#[test]
fn expectations_decide_the_exit_code() {
    let met = run(&[
        "--expect",
        "ttft.p99 < 10 s",
        "--expect",
        "requests.rejected == 0",
    ]);
    assert_eq!(met.status.code(), Some(0), "{}", stderr(&met));
    assert_eq!(stderr(&met).matches("expectation met").count(), 2);
    let missed = run(&[
        "--expect",
        "ttft.p99 < 1 us",
        "--expect",
        "requests.rejected == 0",
    ]);
    assert_eq!(missed.status.code(), Some(3));
    let text = stderr(&missed);
    assert!(
        text.contains("expectation NOT met: ttft.p99 < 1 us (it is"),
        "{text}"
    );
    // The report is still there.
    assert!(stdout(&missed).contains("TTFT"));
    assert_refused(&run(&["--expect", "ttft.p99 < 500"]), "needs a unit");
    assert_refused(&run(&["--expect", "tfft.p99 < 5 ms"]), "did you mean");
}

#[test]
fn tables_are_written_and_the_resolved_scenario_reproduces_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tables");
    let first = json(&run(&["--json", "--csv", out.to_str().unwrap()]));
    for name in [
        "requests.csv",
        "steps.csv",
        "series.csv",
        "summary.json",
        "scenario.toml",
    ] {
        let text = std::fs::read_to_string(out.join(name)).unwrap();
        assert!(text.lines().count() > 1, "{name}");
    }
    let rows = std::fs::File::open(out.join("requests.csv")).unwrap();
    assert_eq!(sim::report::csv::read_requests(rows).unwrap().len(), 200);
    let again = json(&servetwin(&[
        Path::new("run"),
        &out.join("scenario.toml"),
        Path::new("--json"),
    ]));
    assert_eq!(first["fingerprint"], again["fingerprint"]);
}

#[test]
fn the_trace_is_json_of_balanced_events() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json");
    let out = run(&["--trace", file.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let trace: Value = serde_json::from_reader(std::fs::File::open(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert_eq!(count("b"), count("e"));
    assert_eq!(count("s"), 200);
    assert!(count("X") > 200);
}

#[test]
fn replications_have_intervals_and_do_not_depend_on_threads() {
    let of = |threads: &str| {
        let dir = tempfile::tempdir().unwrap();
        let file = scenario(&dir, "small.toml", SMALL);
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .args([Path::new("run"), &file])
            .args(["--seeds", "4", "--json"])
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .unwrap();
        let mut table = json(&out);
        for run in table["runs"].as_array_mut().unwrap() {
            run["stats"] = Value::Null;
        }
        table
    };
    let table = of("1");
    assert_eq!(table, of("4"));
    let seeds: Vec<_> = table["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["seed"].clone())
        .collect();
    assert_eq!(seeds, [1, 2, 3, 4]);
    let ttft = &table["figures"][0];
    assert_eq!(ttft["path"], "ttft_ms.mean");
    assert_eq!(ttft["n"], 4);
    assert!(ttft["half_width"].as_f64().unwrap() > 0.0);
}

#[test]
fn replications_of_one_load_differ_only_in_what_the_cluster_draws() {
    let e2e = |more: &[&str]| {
        let args = ["--seeds", "3", "--json", "--set", "layout.replicas=2"];
        let table = json(&run(&[&args, more].concat()));
        let figure = |f: &&Value| f["path"] == "e2e_ms.mean";
        let figures = table["figures"].as_array().unwrap().iter();
        figures.clone().find(figure).unwrap()["half_width"].as_f64()
    };
    let by = |policy| format!("router.policy={policy}");
    let (turns, random) = (by("round_robin"), by("random"));
    assert!(e2e(&["--set", &turns]) > Some(0.0));
    // Equal runs are no sample of anything.
    assert_eq!(e2e(&["--set", &turns, "--same-load"]), None);
    assert!(e2e(&["--set", &random, "--same-load"]) > Some(0.0));
    let text = stdout(&run(&["--seeds", "3", "--same-load"]));
    assert!(
        text.contains("3 replications of the load of seed 1"),
        "{text}"
    );
    assert_eq!(run(&["--same-load"]).status.code(), Some(2));
}

#[test]
fn draws_bracket_the_prediction_and_do_not_depend_on_threads() {
    let of = |threads: &str| {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/llama2-7b-g5.2xlarge-tgi.toml");
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .args([Path::new("run"), &file])
            .args([
                "--draws",
                "8",
                "--json",
                "--set",
                "run.requests=40",
                "--set",
                "run.warmup=0 s",
            ])
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .unwrap();
        json(&out)
    };
    let table = of("1");
    assert_eq!(table, of("4"));
    let figures = table["figures"].as_array().unwrap();
    let tpot = figures
        .iter()
        .find(|f| f["path"] == "tpot_ms.mean")
        .unwrap();
    let of = |key: &str| tpot[key].as_f64().unwrap();
    assert!(of("low") < of("high"), "{tpot}");
    // A narrow normal around the profile's values: the prediction cannot lie far outside its own draws.
    assert!(
        of("low") * 0.8 < of("value") && of("value") < of("high") * 1.2,
        "{tpot}"
    );
    assert!(!table["parameters"].as_array().unwrap().is_empty());
}

#[test]
fn draws_need_a_profile_that_says_what_it_does_not_know() {
    let out = run(&["--draws", "3"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr(&out).contains("nothing to draw"), "{}", stderr(&out));
}

#[test]
fn an_expectation_must_hold_in_every_replication() {
    let out = run(&["--seeds", "3", "--expect", "ttft.mean < 1 us"]);
    assert_eq!(out.status.code(), Some(3));
    assert!(stderr(&out).contains("in 3 of 3 runs"), "{}", stderr(&out));
}

/// A report without its line breaks.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Overrides with which most requests find the waiting queue full.
const REJECTING: [&str; 8] = [
    "--set",
    "engine.max_num_seqs=1",
    "--set",
    "engine.max_num_queued_reqs=1",
    "--set",
    "workload[0].arrival.rate=50 req/s",
    "--set",
    "run.requests=400",
];

#[test]
fn replications_carry_what_was_rejected_and_its_warning() {
    let args = [&["--seeds", "3"][..], &REJECTING].concat();
    let text = stdout(&run(&args));
    let table = json(&run(&[&args[..], &["--json"]].concat()));
    let rejected = table["requests"]["rejected"].as_u64().unwrap();
    assert!(rejected > 600, "{rejected}");
    assert!(
        text.contains(&format!("{rejected} rejected in all runs together")),
        "{text}"
    );
    assert!(text.contains("waiting queue was full"), "{text}");
    assert!(
        text.lines().any(|l| l.starts_with("    rejected")),
        "{text}"
    );
    let warnings = table["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|w| w["runs"] == 3), "{warnings:?}");
    let figures = table["figures"].as_array().unwrap();
    for path in [
        "offered",
        "finished",
        "rejected",
        "timed_out",
        "failed",
        "in_flight",
    ] {
        let path = format!("requests.{path}");
        assert!(figures.iter().any(|f| f["path"] == *path), "{path}");
    }
    assert!(
        table["runs"][0]["rejections"]["queue_full"]
            .as_u64()
            .unwrap()
            > 0
    );
}

#[test]
fn a_run_in_which_nothing_finished_says_so_first_and_fails() {
    // Every prompt is longer than the engine accepts.
    let set = ["--set", "engine.max_model_len=40"];
    let out = run(&set);
    assert_eq!(out.status.code(), Some(5), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(
        text.starts_with("NOTHING FINISHED: of 200 requests offered, 200 rejected (longer than the engine accepts)"),
        "{text}"
    );
    let machines = run(&[&set[..], &["--json"]].concat());
    assert_eq!(machines.status.code(), Some(5));
    assert!(stderr(&machines).contains("NOTHING FINISHED"));
    let report: Value = serde_json::from_slice(&machines.stdout).unwrap();
    assert_eq!(report["rejections"]["too_long"], 200);
    assert_eq!(report["slo"]["holds"], false);
    let several = run(&[&set[..], &["--seeds", "2"]].concat());
    assert_eq!(several.status.code(), Some(5));
    assert!(
        stdout(&several).starts_with("NOTHING FINISHED"),
        "{}",
        stdout(&several)
    );
    // What was asked for and not met comes before.
    let asked = run(&[&set[..], &["--expect", "ttft.p99 < 1 s"]].concat());
    assert_eq!(asked.status.code(), Some(3));
}

#[test]
fn seeds_that_change_nothing_give_no_interval() {
    let fixed = [
        "--set",
        "workload[0].arrival={kind=\"constant\", rate=\"5 req/s\"}",
        "--set",
        "workload[0].prompt=100",
        "--set",
        "workload[0].output=20",
        "--seeds",
        "3",
    ];
    let text = stdout(&run(&fixed));
    assert!(text.contains("The seeds change nothing"), "{text}");
    assert!(text.contains("--draws N"), "{text}");
    let table = json(&run(&[&fixed[..], &["--json"]].concat()));
    assert_eq!(table["seeds_vary"], false);
    for figure in table["figures"].as_array().unwrap() {
        assert!(figure["half_width"].is_null(), "{figure}");
    }
}

#[test]
fn the_first_screen_decides_and_provenance_comes_on_demand() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/llama2-7b-g5.2xlarge-tgi.toml");
    let with = |more: &[&str]| {
        let args = ["--set", "run.requests=60", "--set", "run.warmup=0 s"];
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .args([Path::new("run"), &file])
            .args(args)
            .args(more)
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        stdout(&out)
    };
    let text = with(&[]);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}:\n{text}"));
    let order = [
        "\n  SLO",
        "\n  knee",
        "\n  limited by",
        "\n  how sure",
        "\n  latency [ms]",
        "\n  cost",
    ];
    assert!(order.map(at).is_sorted(), "{text}");
    assert!(
        in_one_line(&text)
            .contains("normalised latency 5.1 % (7 runs of jumpstart, of users in a loop)"),
        "{text}"
    );
    assert!(!text.contains("memory and arithmetic rates"), "{text}");
    assert!(with(&["--verbose"]).contains("memory and arithmetic rates"));
    // Under an engine that the accelerator was never measured with, that is said.
    let other = with(&["--set", "hardware.profile=analytic"]);
    assert!(other.contains("how sure      Not known"), "{other}");
}

#[test]
fn every_engine_with_measured_runs_says_how_far_predictions_were_off() {
    for (scenario, set) in [
        ("qwen3-32b-h100-sglang", "sglang_qwen3_32b"),
        (
            "llama3.1-405b-2xp5.48xlarge-trtllm-1-user",
            "trtllm_llama31_8b",
        ),
    ] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{scenario}.toml"));
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .args([Path::new("run"), &file])
            .args(["--set", "run.requests=40", "--set", "run.warmup=0 s"])
            .output()
            .unwrap();
        let text = in_one_line(&stdout(&out));
        assert!(text.contains("how sure Median error"), "{text}");
        assert!(text.contains(&format!("runs of {set}")), "{text}");
    }
}

#[test]
fn overrides_change_the_run_and_are_checked() {
    let report = json(&run(&["--json", "--set", "run.requests=50"]));
    assert_eq!(report["requests"]["offered"], 50);
    assert_refused(
        &run(&["--set", "run.request=50"]),
        "did you mean `requests`",
    );
    assert_refused(
        &run(&["--set", "workload[0].arrival.rate=-1 req/s"]),
        "rate",
    );
    assert_refused(&run(&["--set", "nonsense"]), "--set nonsense");
}

#[test]
fn bad_scenarios_are_refused_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let with = |text: &str| {
        let file = scenario(&dir, "bad.toml", text);
        servetwin(&[Path::new("run"), &file])
    };
    assert_refused(&with("name = ["), "bad.toml:1");
    assert_refused(&with(""), "is empty");
    assert_refused(
        &with(&SMALL.replace("kind = \"vllm_v1\"", "kind = \"vlm_v1\"")),
        "vlm_v1",
    );
    assert_refused(
        &with(&SMALL.replace("rate = \"5 req/s\"", "rate = \"5 apples\"")),
        "rate",
    );
    assert_refused(
        &with(&SMALL.replace("kv_blocks = 1000", "kv_blocks = 0")),
        "kv_blocks",
    );
    assert_refused(&with(&SMALL.replace("max = 150", "max = 15")), "min");
    let file = dir.path().join("binary.toml");
    std::fs::write(&file, b"name = \"\xff\xfe\"\n").unwrap();
    assert_refused(&servetwin(&[Path::new("run"), &file]), "not UTF-8");
    assert_refused(&servetwin(&[Path::new("run"), dir.path()]), "folder");
    assert_refused(
        &servetwin(&["run", "no/such/file.toml"]),
        "no/such/file.toml",
    );
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure_not_bad_input() {
    let out = run(&["--trace", "/no/such/folder/trace.json"]);
    assert_eq!(out.status.code(), Some(1));
    let text = stderr(&out);
    assert!(
        text.contains("cannot write /no/such/folder/trace.json"),
        "{text}"
    );
}

#[test]
fn overload_is_said_and_a_load_that_is_served_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let report = |rate: &str| {
        let set = format!("workload[0].arrival.rate={rate} req/s");
        let args = ["--set", &set, "--set", "run.requests=2000"];
        let mut all = vec!["run", file.to_str().unwrap()];
        all.extend(args);
        let text = stdout(&servetwin(&all));
        all.push("--json");
        (text, json(&servetwin(&all)))
    };
    let (text, overloaded) = report("1000");
    assert!(text.contains("not stationary"), "{text}");
    let s = &overloaded["stationarity"];
    assert_eq!(s["verdict"], "growing");
    assert!(s["growth_per_s"].as_f64().unwrap() > 10.0, "{s}");
    assert!(s["ttft_growth_ratio"].as_f64().unwrap() > 0.1, "{s}");
    let warnings = overloaded["warnings"].to_string();
    assert!(
        warnings.contains("those of the first 2000 requests"),
        "{warnings}"
    );
    let (text, served) = report("20");
    assert!(!text.contains("not stationary"), "{text}");
    assert_eq!(served["stationarity"]["verdict"], "stationary");
}
