//! `servetwin import` and `servetwin export`.

use crate::common::{assert_refused, json, root, servetwin, stderr, stdout};

fn files(names: &[&str]) -> Vec<String> {
    names
        .iter()
        .map(|n| format!("sim/deploy/tests/files/{n}"))
        .collect()
}

#[test]
fn the_405b_guide_is_imported_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("scenario.toml").display().to_string();
    let mut args = vec!["import".to_owned()];
    args.extend(files(&[
        "eks-triton/values.yaml",
        "eks-triton/build.sh",
        "eks-triton/config.pbtxt",
        "eks-triton/bench.sh",
    ]));
    args.extend(["--instance", "p5.48xlarge", "-o", &scenario].map(str::to_owned));
    let out = servetwin(&args);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("Used ("), "{}", stdout(&out));
    let run = servetwin(&[
        "run",
        &scenario,
        "--json",
        "--set",
        "workload[0].requests=20",
    ]);
    assert_eq!(json(&run)["requests"]["finished"], 20);
}

#[test]
fn the_scenario_goes_to_standard_output_and_the_report_to_standard_error() {
    let mut args = vec!["import".to_owned()];
    args.extend(files(&["vllm/deployment.yaml"]));
    let out = servetwin(&args);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(
        stdout(&out).contains("[engine]\nkind = \"vllm_v1\""),
        "{}",
        stdout(&out)
    );
    assert!(
        stderr(&out).contains("Not in the files"),
        "{}",
        stderr(&out)
    );
    args.extend(["--report".to_owned(), "json".to_owned()]);
    let report = json(&servetwin(&args));
    assert_eq!(report["files"][0]["kind"], "kubernetes");
    let keys = report["keys"].as_array().unwrap();
    assert!(
        keys.iter()
            .any(|k| k["key"] == "spec.maxReplicas" && k["fate"] == "used" && k["line"].is_u64())
    );
    assert!(
        report["scenario"]
            .as_str()
            .unwrap()
            .contains("[[workload]]")
    );
}

#[test]
fn what_is_missing_or_wrong_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("scenario.toml");
    let at = scenario.display().to_string();
    let serve = files(&["vllm/serve.sh"]).remove(0);
    assert_refused(
        &servetwin(&["import", &serve, "-o", &at]),
        "--instance TYPE",
    );
    assert_refused(
        &servetwin(&[
            "import",
            &serve,
            "--instance",
            "p5.4xlarge",
            "-o",
            &at,
            "--strict",
        ]),
        "--max-nun-seqs",
    );
    assert_refused(
        &servetwin(&["import", "no-such-file.yaml"]),
        "cannot read no-such-file.yaml",
    );
    assert_refused(
        &servetwin(&["import", &serve, "--instance", "p5.4xlarge", "-o", &serve]),
        "which this command reads",
    );
    assert!(!scenario.exists());
}

#[test]
fn a_model_that_does_not_fit_is_told() {
    let serve = files(&["vllm/serve.sh"]).remove(0);
    let out = servetwin(&["import", &serve, "--instance", "g5.2xlarge"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stderr(&out).contains("would not start"), "{}", stderr(&out));
}

#[test]
fn a_scenario_is_exported_and_imported_again() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("files").display().to_string();
    let name = "scenarios/llama2-7b-p4d-tgi-tp1x8.toml";
    let out = servetwin(&["export", name, "--to", "tgi-compose", "-o", &to]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(
        stderr(&out).contains("import with --instance p4d.24xlarge"),
        "{}",
        stderr(&out)
    );
    let path = |file: &str| format!("{to}/{file}");
    let args = [
        "import".to_owned(),
        path("compose.yaml"),
        path("tgi.env"),
        path("nginx.conf"),
        path("bench.sh"),
        "--instance".to_owned(),
        "p4d.24xlarge".to_owned(),
        "--strict".to_owned(),
    ];
    let back = servetwin(&args);
    assert_eq!(back.status.code(), Some(0), "{}", stderr(&back));
    for line in [
        "policy = \"least_outstanding\"",
        "replicas = 8",
        "max_concurrent_requests = 512",
    ] {
        assert!(stdout(&back).contains(line), "{line}: {}", stdout(&back));
    }
    assert_refused(
        &servetwin(&["export", name, "--to", "vllm"]),
        "the target vllm runs vllm_v1",
    );
    assert!(root().join(name).exists());
}
