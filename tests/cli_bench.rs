//! `servetwin bench`, end to end against the built-in echo server, and without any.

mod common;

use std::time::Duration;

use bench::echo::{EchoServer, Schedule};
use common::{assert_refused, json, servetwin, stderr, stdout};

fn server() -> EchoServer {
    EchoServer::start(Schedule {
        first: Duration::from_millis(5),
        gap: Duration::from_millis(1),
    })
    .unwrap()
}

#[test]
fn a_load_given_by_flags_is_measured_and_written_in_every_form() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (csv, guidellm, vllm) = (at("csv"), at("g.json"), at("v.json"));
    let report = json(&servetwin(&[
        "bench",
        &server.url(),
        "--rate",
        "200",
        "--requests",
        "25",
        "--prompt-tokens",
        "30",
        "--output-tokens",
        "5",
        "--json",
        "--csv",
        &csv,
        "--write-guidellm",
        &guidellm,
        "--write-vllm",
        &vllm,
        "--expect",
        "requests.finished == 25",
    ]));
    assert_eq!(report["run"]["requests"]["finished"], 25);
    assert_eq!(report["run"]["tokens"]["prompt"], 750);
    assert_eq!(report["run"]["tokens"]["output"], 125);
    assert!(report["run"]["ttft_ms"]["p50"].as_f64().unwrap() >= 5.0);
    assert!(report["client"]["lateness_ms"]["p99"].is_number());
    for file in ["requests.csv", "client.csv"] {
        let text = std::fs::read_to_string(dir.path().join("csv").join(file)).unwrap();
        assert_eq!(text.lines().count(), 26, "{file}");
    }
    for file in [&guidellm, &vllm] {
        let imported = json(&servetwin(&["bench", "import", file, "--json"]));
        assert_eq!(imported[0]["run"]["requests"]["finished"], 25, "{file}");
    }
    let text = stdout(&servetwin(&["bench", "import", &guidellm]));
    assert!(
        text.contains("GuideLLM") && text.contains("time_to_first_token_ms"),
        "{text}"
    );
}

#[test]
fn the_workload_of_a_scenario_file_is_sent_and_an_unmet_expectation_ends_with_code_3() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let file = common::scenario(&dir, "small.toml", common::SMALL);
    let out = servetwin(&[
        "bench",
        &server.url(),
        "--scenario",
        file.to_str().unwrap(),
        "--set",
        "run.requests=20",
        "--set",
        "workload[0].arrival.rate=100 req/s",
        "--expect",
        "ttft.p50 < 1 us",
    ]);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    assert!(
        stdout(&out).contains("20 sent, 20 finished"),
        "{}",
        stdout(&out)
    );
}

#[test]
fn a_sweep_finds_its_own_range() {
    let server = server();
    let sweep = json(&servetwin(&[
        "bench",
        &server.url(),
        "--sweep",
        "3",
        "--requests",
        "40",
        "--prompt-tokens",
        "10",
        "--output-tokens",
        "5",
        "--max-concurrency",
        "8",
        "--json",
    ]));
    let points = sweep["points"].as_array().unwrap();
    let strategies: Vec<&str> = points
        .iter()
        .map(|p| p["strategy"].as_str().unwrap())
        .collect();
    assert_eq!(strategies, ["synchronous", "throughput", "constant"]);
    let reached = |i: usize| {
        points[i]["report"]["run"]["throughput"]["requests_per_s"]
            .as_f64()
            .unwrap()
    };
    let rate = points[2]["rate"].as_f64().unwrap();
    assert!(rate > reached(0) && rate < reached(1), "{rate}");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let refused = |args: &[&str], because: &str| assert_refused(&servetwin(args), because);
    refused(
        &["bench", "ftp://x", "--rate", "1", "--requests", "1"],
        "http or https",
    );
    refused(&["bench", "http://127.0.0.1:1"], "no load");
    refused(&["bench", "http://127.0.0.1:1", "--rate", "1"], "no end");
    refused(
        &[
            "bench",
            "http://127.0.0.1:1",
            "--rate",
            "1",
            "--requests",
            "1",
            "--until",
            "x",
        ],
        "--until",
    );
    refused(&["bench", "import", "Cargo.toml"], "known are");
    let out = servetwin(&[
        "bench",
        "http://127.0.0.1:1",
        "--rate",
        "1",
        "--requests",
        "1",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("does not answer"), "{}", stderr(&out));
}
