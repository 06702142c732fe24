//! `servetwin catalog` and the manners of the command line as a whole.

use std::process::{Command, Output, Stdio};

fn servetwin(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(args)
        .output()
        .expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn list_names_every_kind() {
    let out = servetwin(&["catalog", "list"]);
    assert_eq!(out.status.code(), Some(0));
    let text = stdout(&out);
    for name in ["A10G-24GB", "g5.2xlarge", "llama-2-7b"] {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn list_as_json_holds_only_the_kind_asked_for() {
    let out = servetwin(&["catalog", "list", "models", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(json["models"].as_array().unwrap().len() > 10);
    assert!(json.get("instances").is_none());
}

#[test]
fn show_finds_aliases_and_gives_the_source() {
    let out = servetwin(&["catalog", "show", "A10g"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(stdout(&out).contains("source"));
}

#[test]
fn figures_of_the_catalog_have_units() {
    let text = stdout(&servetwin(&["catalog", "show", "H100-SXM5-80GB"]));
    let value = |key: &str| {
        let line = text.lines().find(|l| l.trim_start().starts_with(key));
        line.unwrap_or_else(|| panic!("{key}:\n{text}")).to_string()
    };
    assert!(value("bf16_flops").ends_with("989 TFLOP/s"), "{text}");
    assert!(value("memory_bandwidth").ends_with("TB/s"), "{text}");
    assert!(value("memory_bytes").contains("iB"), "{text}");
    assert!(!text.contains("0000000"), "{text}");
    let link = stdout(&servetwin(&["catalog", "show", "NVLink4"]));
    assert!(
        !link.contains("latency") || link.contains(" us") || link.contains(" ns"),
        "{link}"
    );
}

#[test]
fn an_unknown_name_is_bad_input_with_the_nearest_one() {
    let out = servetwin(&["catalog", "show", "lama-2-7b"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stdout(&out).is_empty());
    let text = stderr(&out);
    assert!(text.contains("did you mean model `llama-2-7b`?"), "{text}");
    assert_eq!(text.matches("error:").count(), 1, "{text}");
}

#[test]
fn wrong_usage_is_bad_input() {
    for args in [&["no-such-command"][..], &[], &["catalog", "list", "cars"]] {
        assert_eq!(servetwin(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_names_the_exit_codes() {
    let out = servetwin(&["--help"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(stdout(&out).contains("5 no request finished"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["catalog", "list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stderr(&out).is_empty(), "{}", stderr(&out));
}

#[test]
fn one_bad_file_of_a_folder_is_a_warning_until_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("bad.toml"),
        "[[instance]]\nname = \"my-node\"\ndevices = \"eight\"\n",
    )
    .unwrap();
    let folder = dir.path().display().to_string();
    let out = servetwin(&["catalog", "list", "instances", "--catalog", &folder]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("p5.48xlarge"));
    assert!(stderr(&out).contains("left out") && stderr(&out).contains("bad.toml"));
    let scenario = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/scenarios/llama2-7b-g5.2xlarge-tgi.toml"
    );
    let check = |instance: &str| {
        let set = format!("hardware.instance={instance}");
        servetwin(&[
            "scenario",
            "show",
            scenario,
            "--catalog",
            &folder,
            "--set",
            &set,
        ])
    };
    assert!(stdout(&check("g5.2xlarge")).contains("Decided at start-up"));
    let text = stdout(&check("my-node"));
    assert!(
        text.contains("cannot start") && text.contains("bad.toml"),
        "{text}"
    );
}

#[test]
fn traces_of_any_columns_are_checked_and_described() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log.csv");
    std::fs::write(&file, "ts,in,out\n1000,10,4\n3000,30,6\n").unwrap();
    let file = file.display().to_string();
    let columns = "arrival=ts,prompt=in,output=out,time=ms";
    let out = servetwin(&["trace", "check", &file, "--columns", columns]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(
        text.contains("requests        2") && text.contains("span            2.000 s"),
        "{text}"
    );
    let out = servetwin(&["trace", "check", &file]);
    assert_eq!(out.status.code(), Some(2));
    assert!(
        stderr(&out).contains("columns = { arrival"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn a_rate_beyond_every_clock_is_refused_by_a_curve_as_by_a_scenario() {
    let scenario = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/scenarios/llama2-7b-g5.2xlarge-tgi.toml"
    );
    for rate in ["1e99", "1e-300"] {
        let out = servetwin(&["curve", scenario, "--rates", rate]);
        assert_eq!(out.status.code(), Some(2));
        let text = stderr(&out);
        assert!(
            text.contains("must be from 1e-9 to 1e9 req/s") && text.contains(rate),
            "{text}"
        );
        assert!(text.len() < 300, "{text}");
    }
}
