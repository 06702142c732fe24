//! `servetwin startup`.

use crate::common::{assert_refused, json, servetwin, stdout};

#[test]
fn phases_are_printed_with_ranges_and_sources_and_add_up() {
    let args = [
        "startup",
        "--model",
        "llama-3.1-8b",
        "--instance",
        "g5.2xlarge",
    ];
    let text = stdout(&servetwin(&args));
    for part in [
        "node_boot",
        "image_pull",
        "weights_load",
        "torch_compile",
        "readiness",
        "total",
        "limited by volume ebs_gp3",
    ] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
    let report = json(&servetwin(&[args.as_slice(), &["--json"]].concat()));
    let phases = report["phases"].as_array().unwrap();
    let mean: f64 = phases.iter().map(|p| p["mean_s"].as_f64().unwrap()).sum();
    assert!((report["total"]["mean_s"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
    for p in phases {
        let of = |k: &str| p[k].as_f64().unwrap();
        assert!(
            of("p10_s") <= of("typical_s") && of("typical_s") <= of("p90_s"),
            "{p}"
        );
        assert!(
            !p["source"].as_str().unwrap().is_empty() && p["evidence"].is_string(),
            "{p}"
        );
    }
}

#[test]
fn replicas_that_start_together_share_the_file_system_and_a_node_reads_its_stages() {
    let load = |together: &str| {
        let args = [
            "startup",
            "--model",
            "llama-3.1-405b",
            "--instance",
            "p5.48xlarge",
            "--tp",
            "8",
            "--pp",
            "2",
            "--storage",
            "efs",
            "--json",
            "--together",
            together,
        ];
        json(&servetwin(&args))
    };
    let (one, many) = (load("1"), load("40"));
    assert_eq!(one["nodes"], 2);
    // 405 billion parameters in 16 bits, over two nodes; EFS gives a node 1.5 GB/s and all nodes 20 GB/s.
    let bytes = one["load"]["bytes_per_node"].as_f64().unwrap();
    assert!((bytes / 405e9 - 1.0).abs() < 0.03, "{bytes}");
    let seconds = |r: &serde_json::Value| r["load"]["together_s"].as_f64().unwrap();
    assert!((seconds(&one) - bytes / 1.5e9).abs() < 1.0, "{one}");
    assert!((seconds(&many) - 80.0 * bytes / 20e9).abs() < 1.0, "{many}");
}

#[test]
fn what_is_wrong_is_told_with_what_would_be_right() {
    let refused = |more: &[&str], because: &str| {
        let args = [
            &[
                "startup",
                "--model",
                "llama-3.1-8b",
                "--instance",
                "g5.2xlarge",
            ],
            more,
        ]
        .concat();
        assert_refused(&servetwin(&args), because);
    };
    refused(
        &["--storage", "tape"],
        "unknown storage `tape`; known: s3, efs",
    );
    refused(&["--engine", "vlm"], "engines are vllm");
    refused(&["--capacity", "1000"], "needs a unit");
    refused(&["--capacity", "0 MB/s"], "never come");
    refused(&["--host", "mainframe"], "unknown host");
    refused(&["--tp", "3"], "TP 3");
    let args = [
        "startup",
        "--model",
        "llama-3.1-405b",
        "--instance",
        "g5.xlarge",
    ];
    assert_refused(&servetwin(&args), "--tp and --pp");
    assert_refused(
        &servetwin(&["startup", "--fit", "docs"]),
        "vllm_startup_warm.csv",
    );
    assert_refused(
        &servetwin(&["startup", "--instance", "g5.xlarge"]),
        "--model",
    );
}
