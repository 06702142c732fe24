//! What commands write: whole files or none, never over their inputs; pictures and traces; and what is said beside them. What they refuse to
//! read.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{SMALL, assert_refused, json, root, scenario, servetwin, stderr, stdout};
use serde_json::Value;

/// A folder with the small scenario in it.
fn lab() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let file = file.to_str().unwrap().to_owned();
    (dir, file)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_output_that_is_an_input_is_refused_before_anything_runs() {
    let (dir, file) = lab();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let link = at("link.png");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let refused = |args: &[&str]| assert_refused(&servetwin(args), "which this command reads");
    refused(&["run", &file, "--trace", &file]);
    refused(&["run", &file, "--trace", &link]);
    refused(&["curve", &file, "--plot", &link]);
    refused(&[
        "bench",
        "http://127.0.0.1:1",
        "--scenario",
        &file,
        "--write-vllm",
        &file,
    ]);
    refused(&[
        "twin",
        "--endpoint",
        "http://127.0.0.1:1",
        "--scenario",
        &file,
        "--jsonl",
        &file,
    ]);
    assert_eq!(fs::read_to_string(&file).unwrap(), SMALL);

    // A folder of tables whose scenario is run again, and whose requests are replayed.
    let tables = at("tables");
    let out = servetwin(&["run", &file, "--csv", &tables]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    refused(&["run", &at("tables/scenario.toml"), "--csv", &tables]);
    let replayed = SMALL.replace(
        "{ kind = \"poisson\", rate = \"5 req/s\" }\n",
        "{ kind = \"trace\", file = \"tables/requests.csv\" }\n",
    );
    let replayed: String = replayed
        .lines()
        .filter(|l| !l.starts_with("prompt") && !l.starts_with("output"))
        .map(|l| format!("{l}\n"))
        .collect();
    let replayed = scenario(&dir, "replayed.toml", &replayed);
    refused(&["run", replayed.to_str().unwrap(), "--csv", &tables]);

    let stats = at("stats.toml");
    fs::write(&stats, "x = 1\n").unwrap();
    refused(&["trace", "synth", &stats, "--out", &stats]);
    let log = at("log.csv");
    fs::write(&log, "a,b\n1,2\n").unwrap();
    refused(&["calibrate", "steps", &log, "--out", &log]);
    fs::create_dir(at("model")).unwrap();
    fs::write(at("model/config.json"), "{}").unwrap();
    refused(&[
        "serve",
        &at("model"),
        "--step-log",
        &at("model/config.json"),
    ]);
    refused(&[
        "model",
        "time",
        &at("model"),
        "--step-log",
        &at("model/config.json"),
    ]);
}

/// Runs `servetwin` under a limit on the size of files [blocks of 512 bytes]. The system kills a process that writes more, as a kill
/// would, or only says so where the signal is ignored, as a full disk does.
fn limited(blocks: u32, killed: bool, args: &[&str]) -> Output {
    let trap = if killed { "" } else { "trap '' XFSZ; " };
    let script = format!("ulimit -c 0; ulimit -f {blocks}; {trap}exec \"$@\"");
    Command::new("sh")
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_servetwin")])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let (dir, file) = lab();
    let tables = dir.path().join("tables");
    let trace = tables.join("trace.json");
    let args = ["run", &file, "--csv", tables.to_str().unwrap()];
    let traced = ["--trace", trace.to_str().unwrap()];
    let first = servetwin(&[&args[..], &traced].concat());
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let before = names(&tables);
    let content = |name: &String| fs::read(tables.join(name)).unwrap();
    let old: Vec<_> = before.iter().map(content).collect();
    // Another seed's tables would be other ones: requests.csv fits the limit, steps.csv does not.
    let again = [&args[..], &["--seed", "7"]].concat();
    let out = limited(60, false, &again);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(stderr(&out).contains("cannot write"), "{}", stderr(&out));
    assert!(stdout(&out).is_empty());
    let out = limited(60, true, &[&args[..2], &traced].concat());
    assert_eq!(out.status.code(), None, "it was not killed");
    let kept = names(&tables);
    assert_eq!(kept, before);
    let new: Vec<_> = kept.iter().map(content).collect();
    assert!(old == new, "a file changed");
    let out = servetwin(&["run", &file, "--trace", "/dev/full"]);
    assert_eq!(out.status.code(), Some(1));
    for part in ["/dev/full", "the disk is full", "bytes of it were written"] {
        assert!(stderr(&out).contains(part), "{}", stderr(&out));
    }
}

#[test]
fn a_killed_process_leaves_the_old_file_or_the_whole_new_one() {
    let (dir, file) = lab();
    let folder = dir.path().join("out");
    fs::create_dir(&folder).unwrap();
    let trace = folder.join("trace.json");
    fs::write(&trace, "{\"old\": true}").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args([
            "run",
            &file,
            "--set",
            "run.requests=5000",
            "--trace-limit",
            "none",
            "--trace",
        ])
        .arg(&trace)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    // A file of the folder that has no name yet.
    let open = format!("/proc/{}/fd", child.id());
    let begun = || {
        let files = fs::read_dir(&open).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|f| fs::read_link(f.path()).ok());
        targets.any(|t| t.starts_with(&folder))
    };
    while !begun() && child.try_wait().unwrap().is_none() {
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "nothing was written"
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&folder), ["trace.json"], "nothing lies beside it");
    let text = fs::read_to_string(&trace).unwrap();
    let value: Value = serde_json::from_str(&text).expect("whole");
    assert!(value["old"] == true || value["traceEvents"].is_array());
}

#[test]
fn a_trace_is_limited_unless_told_otherwise_and_says_what_it_left_out() {
    let (dir, file) = lab();
    let run = |name: &str, more: &[&str]| {
        let trace = dir.path().join(name);
        let args = ["run", &file, "--trace", trace.to_str().unwrap()];
        let out = servetwin(&[&args, more].concat());
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        (fs::read(&trace).unwrap(), stderr(&out))
    };
    let requests = |bytes: &[u8]| {
        let trace: Value = serde_json::from_slice(bytes).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        events
            .iter()
            .filter(|e| e["ph"] == "b" && e["name"] == "queue")
            .count()
    };
    let many = ["--set", "run.requests=2100"];
    let (default, said) = run("default.json", &many);
    assert_eq!(requests(&default), 2000);
    assert!(
        said.contains("holds 2000 of 2100 requests and ") && said.contains("--trace-limit 2000"),
        "{said}"
    );
    let (all, said) = run(
        "all.json",
        &[&many[..], &["--trace-limit", "none"]].concat(),
    );
    assert_eq!((requests(&all), said.as_str()), (2100, ""));
    let (few, _) = run("few.json", &["--trace-limit", "1/20"]);
    assert_eq!(requests(&few), 10);
    let (packed, _) = run("few.json.gz", &["--trace-limit", "1/20"]);
    let mut unpacked = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(packed.as_slice());
    std::io::Read::read_to_end(&mut reader, &mut unpacked).unwrap();
    assert!(unpacked == few);
    let out = servetwin(&["run", &file, "--trace", "t.json", "--trace-limit", "2/3"]);
    assert_refused(&out, "a share of them (1/20)");
}

#[test]
fn a_picture_has_the_format_of_its_name() {
    let (dir, file) = lab();
    let curve = |name: &str| {
        let picture = dir.path().join(name);
        let args = [
            "curve",
            &file,
            "--rates",
            "2,4",
            "--plot",
            picture.to_str().unwrap(),
        ];
        (servetwin(&args), picture)
    };
    let (out, svg) = curve("curve.svg");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    let (out, png) = curve("curve.png");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let bytes = fs::read(png).unwrap();
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 10_000);
    for name in ["curve.jpg", "curve", "curve.pdf"] {
        let (out, path) = curve(name);
        assert_refused(&out, "ends in .svg or .png");
        assert!(!path.exists());
    }
}

#[test]
fn quiet_says_nothing_but_errors() {
    let (dir, file) = lab();
    let trace = dir.path().join("t.json");
    let trace = trace.to_str().unwrap();
    let notes = [
        "run",
        &file,
        "--trace",
        trace,
        "--trace-limit",
        "5",
        "--expect",
        "ttft.p99 < 10 s",
    ];
    let said = stderr(&servetwin(&notes));
    assert!(
        said.contains("note: ") && said.contains("expectation met"),
        "{said}"
    );
    for quiet in [&["-q"][..], &["--quiet"]] {
        let out = servetwin(&[quiet, &notes].concat());
        assert_eq!((out.status.code(), stderr(&out)), (Some(0), String::new()));
        assert!(!stdout(&out).is_empty());
        // After the command as well.
        let out = servetwin(&[&notes, quiet].concat());
        assert_eq!((out.status.code(), stderr(&out)), (Some(0), String::new()));
    }
    let report = json(&servetwin(&["-q", "run", &file, "--json"]));
    assert_eq!(report["requests"]["finished"], 200);
    let out = servetwin(&["-q", "run", &file, "--expect", "ttft.p99 < 1 us"]);
    assert_eq!(out.status.code(), Some(3));
    assert!(
        stderr(&out).contains("expectation NOT met"),
        "{}",
        stderr(&out)
    );
    assert_refused(
        &servetwin(&["-q", "run", "no/such/file.toml"]),
        "no/such/file.toml",
    );
    let out = servetwin(&["bench", "-q", "import", "no/such/file.json"]);
    assert_refused(&out, "no/such/file.json");
}

#[test]
fn colours_follow_the_environment_and_progress_needs_a_terminal() {
    let (_dir, file) = lab();
    let help = |vars: &[(&str, &str)]| {
        let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .arg("--help")
            .env_remove("NO_COLOR")
            .envs(vars.iter().copied())
            .output()
            .unwrap();
        stdout(&out).contains('\x1b')
    };
    assert!(!help(&[]), "no terminal");
    assert!(help(&[("CLICOLOR_FORCE", "1")]));
    assert!(!help(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!help(&[("CLICOLOR", "0")]));
    let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["compare", &file, &file, "--seeds", "2"])
        .env("CLICOLOR_FORCE", "1")
        .output()
        .unwrap();
    assert_eq!(stderr(&out), "", "progress without a terminal");
}

#[test]
fn every_shell_gets_completions_and_every_command_a_page() {
    for (shell, mark) in [
        ("bash", "complete -F _servetwin"),
        ("zsh", "#compdef servetwin"),
        ("fish", "complete -c servetwin"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let text = stdout(&servetwin(&["completions", shell]));
        for want in [mark, "trace-limit", "validate"] {
            assert!(text.contains(want), "{shell}: {want}");
        }
    }
    assert_eq!(servetwin(&["completions", "cmd"]).status.code(), Some(2));
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    let out = servetwin(&["man", man.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let pages = names(&man);
    for page in [
        "servetwin.1",
        "servetwin-run.1",
        "servetwin-twin-ask.1",
        "servetwin-man.1",
    ] {
        assert!(pages.iter().any(|p| p == page), "{page}: {pages:?}");
    }
    let run = fs::read_to_string(man.join("servetwin-run.1")).unwrap();
    assert!(
        run.starts_with(".ie") && run.contains("trace\\-limit"),
        "{}",
        &run[..200]
    );
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_leaves_ends_every_command_quietly() {
    let (dir, file) = lab();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (trace, man, model, log) = (at("t.csv"), at("man"), at("model"), at("log.csv"));
    let out = servetwin(&[
        "trace",
        "synth",
        "azure-conv",
        "--requests",
        "50",
        "--out",
        &trace,
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let commands: &[&[&str]] = &[
        &["--help"],
        &["run", &file],
        &["run", &file, "--json"],
        &["run", &file, "--seeds", "2"],
        &["curve", &file, "--rates", "1,2"],
        &["compare", &file, &file, "--seeds", "2"],
        &["scenario", "show", &file],
        &["scenario", "check", &file],
        &["scenario", "schema"],
        &["catalog", "list"],
        &["catalog", "show", "g5.2xlarge"],
        &["trace", "check", &trace],
        &["trace", "stats", &trace],
        &["trace", "synth", "azure-conv", "--requests", "5000"],
        &["validate", "--set", "llama_405b", "--no-baseline"],
        &["completions", "bash"],
        &["man", &man],
        &["model", "init", "--params", "100K", &model],
        &[
            "model",
            "time",
            &model,
            "--prompts",
            "8",
            "--batches",
            "1",
            "--context",
            "8",
            "--rounds",
            "3",
            "--step-log",
            &log,
        ],
        &["serve", &model, "--port", "0"],
    ];
    for args in commands {
        let run = |out: Stdio, err: Stdio| {
            Command::new(env!("CARGO_BIN_EXE_servetwin"))
                .args(*args)
                .current_dir(root())
                .stdout(out)
                .stderr(err)
                .output()
                .unwrap()
        };
        let out = run(closed(), Stdio::piped());
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
        assert_eq!(stderr(&out), "", "{args:?}");
        // `2>&1 |` closes both.
        let out = run(closed(), closed());
        assert_eq!(out.status.code(), Some(0), "{args:?}");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["run", "no/such/file.toml"])
        .stderr(closed())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn measurements_that_are_none_and_folders_without_any_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    assert_refused(
        &servetwin(&["validate", folder]),
        "jumpstart_tgi.csv (jumpstart)",
    );
    assert_refused(
        &servetwin(&["validate", "--set", "kernels"]),
        "no set could be run",
    );
    let table = |value: &str| {
        format!(
            "table,model,instance,tp,concurrency,input_tokens,output_tokens,throughput_tok_s,latency_ms_per_token\n\
             A_7b,Llama-2-7B,ml.g5.2xlarge,1,1,512,64,20,{value}\n"
        )
    };
    for value in ["0", "-50", "inf", "NaN"] {
        fs::write(dir.path().join("jumpstart_tgi.csv"), table(value)).unwrap();
        assert_refused(
            &servetwin(&["validate", folder, "--no-baseline"]),
            "jumpstart_tgi.csv:2: latency_ms_per_token is ",
        );
    }
    fs::write(dir.path().join("jumpstart_tgi.csv"), table("50")).unwrap();
    let out = servetwin(&["validate", folder, "--no-baseline", "--set", "jumpstart"]);
    let text = stdout(&out);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(
        text.contains("| jumpstart | latency_ms_per_token | fitted | 1 |"),
        "{text}"
    );
}
