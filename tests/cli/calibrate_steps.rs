//! `servetwin calibrate steps`, from the outside: a simulated run's own steps are the log.

use crate::common::{SMALL, assert_refused, json, scenario, servetwin, stderr, stdout};

/// Runs `SMALL` at `rate` and gives the path of its step log.
fn log(dir: &tempfile::TempDir, name: &str, rate: &str) -> String {
    let scenario = scenario(dir, &format!("{name}.toml"), SMALL);
    let out = dir.path().join(name);
    let set = format!("workload[0].arrival.rate={rate}");
    let run = servetwin(&[
        "run",
        scenario.to_str().expect("UTF-8"),
        "--set",
        &set,
        "--csv",
        out.to_str().expect("UTF-8"),
    ]);
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
    out.join("steps.csv").to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_profile_fitted_to_a_run_predicts_another_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let slow = log(&dir, "slow", "\"2 req/s\"");
    let fast = log(&dir, "fast", "\"6 req/s\"");
    let other = log(&dir, "other", "\"4 req/s\"");
    let profile = dir.path().join("engine.toml");
    let plots = dir.path().join("plots");
    let fit = servetwin(&[
        "calibrate",
        "steps",
        &slow,
        &fast,
        "--hold-out",
        &other,
        "--out",
        profile.to_str().expect("UTF-8"),
        "--plot",
        plots.to_str().expect("UTF-8"),
        "--json",
    ]);
    let report = json(&fit);
    let errors = report["errors"].as_array().expect("errors");
    assert_eq!(errors.len(), 3);
    assert_eq!(errors[2]["used"], "held_out");
    // Steps of constant terms are fitted exactly.
    for e in errors {
        assert!(e["median_ape"].as_f64().expect("a number") < 0.5, "{e}");
    }
    let svg = std::fs::read_to_string(plots.join("residual-tokens.svg")).expect("a plot");
    assert!(svg.contains("tokens in the step"));

    // The scenario again, on the profile in place of its constant steps.
    let text = SMALL.replace(
        "[step]\nbase = \"10 ms\"\nper_token = \"20 us\"\n",
        "[hardware]\nstep_profile = \"engine.toml\"\n",
    );
    assert!(text.contains("step_profile"));
    let fitted = scenario(&dir, "fitted.toml", &text);
    let predicted = json(&servetwin(&[
        "run",
        fitted.to_str().expect("UTF-8"),
        "--json",
    ]));
    let plain = dir.path().join("slow.toml");
    let measured = json(&servetwin(&[
        "run",
        plain.to_str().expect("UTF-8"),
        "--json",
    ]));
    for figure in ["e2e_ms", "ttft_ms", "tpot_ms"] {
        let of = |r: &serde_json::Value| r[figure]["mean"].as_f64().expect("measured");
        let ratio = of(&predicted) / of(&measured);
        assert!((ratio - 1.0).abs() < 0.01, "{figure}: {ratio}");
    }
    assert_eq!(predicted["profiles"][0]["trusted"], true);
}

#[test]
fn what_the_engine_writes_beside_its_log_is_known_to_the_fit_and_flags_overrule_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (model, log, profile) = (path("tiny"), path("steps.csv"), path("fitted.toml"));
    let made = json(&servetwin(&[
        "model", "init", "--params", "1M", &model, "--json",
    ]));
    let timed = servetwin(&[
        "model",
        "time",
        &model,
        "--prompts",
        "4,8,16",
        "--batches",
        "1,2,4",
        "--context",
        "16",
        "--rounds",
        "8",
        "--step-log",
        &log,
    ]);
    assert_eq!(timed.status.code(), Some(0), "{}", stderr(&timed));
    let fit = |flags: &[&str]| -> toml::Table {
        let args = [&["calibrate", "steps", &log, "--out", &profile], flags].concat();
        let done = servetwin(&args);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let text = std::fs::read_to_string(&profile).expect("a profile");
        toml::from_str(&text).expect("TOML")
    };
    let count = |p: &toml::Table, key: &str| p["basis"][key].as_integer();
    let known = fit(&[]);
    assert_eq!(known["basis"]["model"].as_str(), Some("tiny"));
    assert_eq!(count(&known, "layers"), made["layers"].as_i64());
    assert_eq!(count(&known, "hidden"), made["hidden_size"].as_i64());
    assert_eq!(count(&known, "threads"), Some(1));
    assert!(count(&known, "cores") > Some(0));
    let told = fit(&["--threads", "3", "--cores", "96", "--model", "other"]);
    assert_eq!(
        (count(&told, "threads"), count(&told, "cores")),
        (Some(3), Some(96))
    );
    assert_eq!(told["basis"]["model"].as_str(), Some("other"));
}

#[test]
fn wrong_logs_are_refused_with_file_and_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "a,b\n1,2\n").expect("writes");
    let path = file.to_str().expect("UTF-8");
    let args = |more: &[&str]| {
        let all: Vec<String> = ["calibrate", "steps", path]
            .iter()
            .chain(more)
            .map(|s| (*s).to_string())
            .collect();
        servetwin(&all)
    };
    assert_refused(&args(&[]), "no column `start_s`");
    assert_refused(
        &servetwin(&["calibrate", "steps", "no-such.csv"]),
        "no-such.csv",
    );
    let log = log(&dir, "one", "\"5 req/s\"");
    assert_refused(
        &servetwin(&["calibrate", "steps", &log, "--hold-out", &log]),
        "given both to fit and to predict",
    );
    let help = servetwin(&["calibrate", "steps", "--help"]);
    assert!(stdout(&help).contains("Example:"));
}

#[test]
fn check_prints_predicted_over_measured_by_kind_of_step_and_refuses_what_was_fitted() {
    let dir = tempfile::tempdir().expect("a folder");
    let slow = log(&dir, "slow", "\"2 req/s\"");
    let fast = log(&dir, "fast", "\"6 req/s\"");
    let profile = dir.path().join("engine.toml");
    let profile = profile.to_str().expect("UTF-8");
    let report = json(&servetwin(&[
        "calibrate",
        "steps",
        &slow,
        "--check",
        &fast,
        "--out",
        profile,
        "--json",
    ]));
    let checks = report["checks"].as_array().expect("checks");
    let used: Vec<&str> = checks.iter().filter_map(|c| c["used"].as_str()).collect();
    assert_eq!(used, ["fitted", "held_out"]);
    let kinds = checks[1]["kinds"].as_array().expect("kinds");
    let number = |v: &serde_json::Value| v.as_f64().expect("a number");
    let measured: f64 = kinds.iter().map(|k| number(&k["measured_s"])).sum();
    assert!((measured / number(&checks[1]["all"]["measured_s"]) - 1.0).abs() < 1e-9);
    // Steps of constant terms are predicted exactly.
    for k in kinds {
        let ratio = number(&k["predicted_s"]) / number(&k["measured_s"]);
        assert!((ratio - 1.0).abs() < 0.01, "{k}");
    }
    // No validation: that is what --hold-out is for.
    let text = std::fs::read_to_string(profile).expect("a profile");
    assert!(!text.contains("[[validations]]"), "{text}");

    // The same profile again, without a fit.
    let alone = servetwin(&["calibrate", "steps", "--profile", profile, "--check", &fast]);
    let table = stdout(&alone);
    assert!(
        table.contains("decode 1 ") && table.contains("predicted/meas."),
        "{table}"
    );

    let twice = servetwin(&["calibrate", "steps", &slow, "--check", &slow]);
    assert_refused(&twice, "given both to fit and to predict");
}

#[test]
fn steps_that_no_memory_or_model_holds_are_refused_before_anything_is_allocated() {
    let time = |more: &[&str]| servetwin(&[&["model", "time"], more].concat());
    assert_refused(
        &time(&["--prompts", "65536"]),
        "sequences of more than the model's",
    );
    assert_refused(
        &time(&["--batches", "1024", "--context", "8000"]),
        "GiB of KV cache",
    );
    assert_refused(&time(&["--prompts", "0"]), "--prompts");
}
