//! Scenarios on a fitted step model: they need no hardware from the catalog, take limits from the profile, scale to other
//! layouts, and say when they leave what was fitted.

use std::path::Path;

use hwmodels::fitted::param;
use hwmodels::{Basis, Evidence, Profile};
use sim::record::RunRecord;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

const SCENARIO: &str = r#"
[hardware]
step_profile = "endpoint.toml"
[engine]
kind = "vllm_v1"
[[workload]]
arrival = { kind = "closed", concurrency = 4 }
prompt = 64
output = 32
[run]
requests = 40
"#;

fn profile() -> Profile {
    let mut p = Profile {
        name: "endpoint".into(),
        accelerator: "*".into(),
        basis: Some(Basis {
            model: "tiny".into(),
            layers: 8,
            hidden: 512,
            threads: 2,
            cores: 2,
            ..Basis::default()
        }),
        ..Profile::default()
    };
    for (name, value) in [
        ("step.fixed_s", 2e-4),
        ("step.weights_s", 3e-3),
        ("step.token_s", 4e-4),
        ("step.context_s", 1e-6),
        ("host.request_in_s", 1e-3),
        ("host.token_out_s", 5e-4),
        ("limits.kv_blocks", 256.0),
        ("limits.block_size", 8.0),
        ("limits.max_num_seqs", 8.0),
        ("limits.max_num_batched_tokens", 128.0),
        ("limits.async_scheduling", 0.0),
    ] {
        let entry = param(name, value, None, Evidence::Measured).expect("in bounds");
        p.params.insert(name.into(), entry);
    }
    p.validity.insert("sequences".into(), [1.0, 8.0]);
    p
}

fn scenario(dir: &Path, profile: &Profile, overrides: &[&str]) -> Scenario {
    let text = toml::to_string_pretty(profile).expect("writes");
    std::fs::write(dir.join("endpoint.toml"), text).expect("writes");
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_string()).collect();
    let origin = dir.join("s.toml").display().to_string();
    Scenario::parse(SCENARIO, &origin, &overrides).expect("reads")
}

fn run(profile: &Profile, overrides: &[&str]) -> RunRecord {
    let dir = tempfile::tempdir().expect("a folder");
    scenario(dir.path(), profile, overrides)
        .run(&RunOptions::default())
        .expect("runs")
}

fn refused(profile: &Profile, overrides: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    match scenario(dir.path(), profile, overrides).build() {
        Ok(_) => panic!("built: {overrides:?}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_fitted_profile_runs_without_hardware_and_brings_its_limits() {
    let dir = tempfile::tempdir().expect("a folder");
    let built = scenario(dir.path(), &profile(), &[])
        .build()
        .expect("builds");
    assert_eq!(built.info.replicas[0].kv_blocks, 256);
    assert_eq!(built.info.replicas[0].block_tokens, 8);
    assert_eq!(built.decided["max_num_seqs"].as_integer(), Some(8));
    assert_eq!(built.decided["async_scheduling"].as_bool(), Some(false));
    assert_eq!(built.info.usd_per_hour, None);
    let record = built.run(&RunOptions::default()).expect("runs");
    assert_eq!(record.counts.finished, 40);
    assert!(
        record.info.warnings.is_empty(),
        "{:?}",
        record.info.warnings
    );
    assert_eq!(record.info.profiles.len(), 1);
    assert!(!record.info.profiles[0].trusted);
    // The scenario's own limits come first.
    let built = scenario(
        dir.path(),
        &profile(),
        &["engine.max_num_seqs=2", "engine.block_size=16"],
    )
    .build()
    .expect("builds");
    assert_eq!(built.decided["max_num_seqs"].as_integer(), Some(2));
    assert_eq!(built.info.replicas[0].block_tokens, 16);
}

#[test]
fn one_request_alone_takes_what_the_parameters_say() {
    let record = run(
        &profile(),
        &[
            "run.requests=1",
            "workload[0].prompt=1",
            "workload[0].output=1",
        ],
    );
    let row = record.request_rows.expect("kept")[0];
    // One token: delays in and out, fixed time, and the p-norm of weights and one token.
    let linear = (3e-3_f64.powi(4) + 4e-4_f64.powi(4)).powf(0.25);
    let want = 1e-3 + 2e-4 + linear + 5e-4;
    let got = row.end.since(row.arrival).0 as f64 * 1e-9;
    assert!((got - want).abs() < 1e-8, "{got}, not {want}");
}

#[test]
fn outside_the_fitted_ranges_the_report_says_so_and_by_how_much() {
    let record = run(
        &profile(),
        &[
            "workload[0].arrival.concurrency=20",
            "engine.max_num_seqs=16",
            "run.requests=60",
        ],
    );
    let w = record.info.warnings.join("\n");
    assert!(
        w.contains("sequences in a step: up to 16") && w.contains("fitted on 1 to 8"),
        "{w}"
    );
}

#[test]
fn another_number_of_slots_than_was_fitted_is_warned_of() {
    let mut p = profile();
    if let Some(basis) = &mut p.basis {
        basis.engine = hwmodels::EngineKind::LlamaCpp;
    }
    let warnings = |slots: u32| {
        let engine =
            format!("engine={{ kind = \"llama_cpp\", n_parallel = {slots}, kv_blocks = 4096 }}");
        run(&p, &[&engine]).info.warnings.join("\n")
    };
    assert_eq!(warnings(8), "");
    let w = warnings(6);
    assert!(w.contains("8 slots, n_parallel is 6"), "{w}");
}

#[test]
fn what_is_shown_runs_to_the_same_record() {
    let dir = tempfile::tempdir().expect("a folder");
    let s = scenario(
        dir.path(),
        &profile(),
        &[
            "hardware.params={ \"step.token_s\" = 0.0005 }",
            "hardware.price=\"1 USD/h\"",
        ],
    );
    let origin = dir.path().join("s.toml").display().to_string();
    let shown = Scenario::parse(&s.show(), &origin, &[]).expect("reads");
    assert_eq!(shown, s);
    let a = s.run(&RunOptions::default()).expect("runs");
    let b = shown.run(&RunOptions::default()).expect("runs");
    assert_eq!(a.fingerprint, b.fingerprint);
    // The resolved scenario in the record holds the profile's limits, and runs to the same record too.
    let c = Scenario::parse(&a.info.config, &origin, &[])
        .expect("reads")
        .run(&RunOptions::default())
        .expect("runs");
    assert_eq!(a.fingerprint, c.fingerprint);
    assert_eq!(a.info.usd_per_hour, Some(1.0));
}

#[test]
fn other_layouts_are_scaled_by_mechanism_and_say_what_is_not_measured() {
    let one = run(&profile(), &[]);
    let two = run(&profile(), &["layout.tp=2"]);
    // Two ranks of one thread on the same two cores: nearly as fast, the collectives slower.
    let ratio = two.end.0 as f64 / one.end.0 as f64;
    assert!((0.95..1.5).contains(&ratio), "{ratio}");
    assert!(
        two.info
            .warnings
            .iter()
            .any(|w| w.contains("all-reduce times are priors"))
    );
    let stages = run(&profile(), &["layout.pp=2"]);
    assert_eq!(stages.counts.finished, 40);
    let replicas = run(&profile(), &["layout.replicas=2"]);
    assert_eq!(replicas.replicas.len(), 2);
}

#[test]
fn what_a_fitted_profile_cannot_answer_is_refused() {
    let mut no_limit = profile();
    no_limit.params.remove("limits.kv_blocks");
    assert!(refused(&no_limit, &[]).contains("engine.kv_blocks"));
    let mut no_layers = profile();
    no_layers.basis = Some(Basis {
        layers: 0,
        ..no_layers.basis.clone().expect("has one")
    });
    assert!(refused(&no_layers, &["layout.tp=2"]).contains("basis.layers"));
    let e = refused(&profile(), &["model.name=\"llama-2-7b\""]);
    assert!(e.contains("was fitted on a model with 8"), "{e}");
    let e = refused(&profile(), &["hardware.params={ \"step.tokens_s\" = 1 }"]);
    assert!(e.contains("did you mean `step.token"), "{e}");
    let mut plain = profile();
    plain.basis = None;
    let e = refused(&plain, &[]);
    assert!(
        e.contains("hardware.step_profile") && e.contains("no fitted step model"),
        "{e}"
    );
    let dir = tempfile::tempdir().expect("a folder");
    let origin = dir.path().join("s.toml").display().to_string();
    let both = Scenario::parse(
        SCENARIO,
        &origin,
        &["hardware.instance=\"g5.2xlarge\"".into()],
    );
    assert!(both.is_err_and(|e| {
        e.to_string()
            .contains("does not go together with step_profile")
    }));
    let missing = Scenario::parse(SCENARIO, &origin, &[])
        .expect("reads")
        .build();
    assert!(missing.is_err_and(|e| e.to_string().contains("endpoint.toml")));
}

/// Standard deviation of the logarithm of the requests' latencies.
fn spread(record: &RunRecord) -> f64 {
    let logs: Vec<f64> = (record.request_rows.iter().flatten())
        .map(|r| r.end.since(r.arrival).as_secs().ln())
        .collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt()
}

#[test]
fn requests_on_a_machine_that_drifts_spread_as_averages_of_its_speed_over_their_time_do() {
    let alone = [
        "workload[0].arrival.concurrency=1",
        "run.requests=4000",
        "hardware.params={ \"host.request_in_s\" = 0, \"host.token_out_s\" = 0 }",
    ];
    let mut p = profile();
    assert!(spread(&run(&p, &alone)) < 1e-9);
    let (ratio, time) = (0.1, 0.2);
    for (name, value) in [("noise.drift_ratio", ratio), ("noise.drift_s", time)] {
        let entry = param(name, value, None, Evidence::Fitted).expect("in bounds");
        p.params.insert(name.into(), entry);
    }
    let record = run(&p, &alone);
    let e2e = record.request_rows.as_ref().expect("rows")[0];
    let l = e2e.end.since(e2e.arrival).as_secs() / time;
    // Variance of the average of an Ornstein-Uhlenbeck process over l of its correlation times.
    let expected = ratio * (2.0 / l * (1.0 - (1.0 - (-l).exp()) / l)).sqrt();
    let found = spread(&record);
    assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
}
