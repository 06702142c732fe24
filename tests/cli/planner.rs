//! `plan`, `whatif`, `capacity`, `sweep` and `merge` on the command line.

use std::path::Path;
use std::process::Command;

use crate::common::{SMALL, assert_refused, json, root, scenario, servetwin, stderr, stdout};

/// A sweep of 24 short runs.
const SWEEP: &str = "scenario = \"small.toml\"\nseeds = 2\n[[axis]]\nkey = \"workload.chat.arrival.rate\"\nfrom = 1\nto = 9\nsteps = 3\nunit = \"req/s\"\n\
    [[axis]]\nkey = \"engine.max_num_seqs\"\nvalues = [2, 4, 8, 16]\n";

fn sweep(dir: &tempfile::TempDir) -> std::path::PathBuf {
    scenario(dir, "small.toml", SMALL);
    scenario(dir, "sweep.toml", SWEEP)
}

fn swept(file: &Path, out: &Path, more: &[&str]) -> std::process::Output {
    let mut args = vec![
        "sweep",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    args.extend(more);
    servetwin(&args)
}

fn results(out: &Path) -> [Vec<u8>; 3] {
    ["results.csv", "results.json", "results.parquet"]
        .map(|name| std::fs::read(out.join(name)).unwrap())
}

/// A device has no end: what is merged is read up to a limit, and not before it is known to be a question or a sweep.
#[test]
fn merge_reads_its_input_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let merge = servetwin(&["merge", "/dev/zero", dir.path().to_str().unwrap()]);
    assert_refused(&merge, "is longer than the");
}

#[test]
fn shards_merge_to_the_bytes_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = sweep(&dir);
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    swept(&file, &whole, &[]);
    let merge = || servetwin(&["merge", file.to_str().unwrap(), parts.to_str().unwrap()]);
    for shard in ["1/3", "3/3"] {
        assert_eq!(
            swept(&file, &parts, &["--shard", shard]).status.code(),
            Some(0)
        );
    }
    assert_refused(&merge(), "8 of 24 runs are missing");
    let job = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args([
            "sweep",
            file.to_str().unwrap(),
            "--out",
            parts.to_str().unwrap(),
            "--shards",
            "3",
        ])
        .env("JOB_COMPLETION_INDEX", "1")
        .output()
        .unwrap();
    assert!(
        stdout(&job).contains("shard 2/3: 8 of the sweep's 24 runs"),
        "{}",
        stdout(&job)
    );
    assert_eq!(merge().status.code(), Some(0));
    assert_eq!(results(&whole), results(&parts));
}

#[test]
fn a_point_that_cannot_be_run_is_a_row_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    scenario(&dir, "small.toml", SMALL);
    let text = "scenario = \"small.toml\"\n[[axis]]\nkey = \"engine.max_num_batched_tokens\"\nvalues = [0, 512]\n";
    let file = scenario(&dir, "sweep.toml", text);
    let output = swept(&file, &dir.path().join("out"), &[]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("must be >= 1"),
        "{}",
        stdout(&output)
    );
    let text = text.replace("engine.max_num_batched_tokens", "engine.max_num_batched");
    let file = scenario(&dir, "wrong.toml", &text);
    assert_refused(
        &swept(&file, &dir.path().join("other"), &[]),
        "max_num_batched",
    );
    assert!(!dir.path().join("other").exists());
}

#[test]
fn a_question_in_a_few_words_gets_an_answer_and_a_scenario_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let winner = dir.path().join("winner.toml");
    let (csv, plot) = (dir.path().join("r.csv"), dir.path().join("r.svg"));
    let args = [
        "plan",
        "--model",
        "llama-3.1-8b",
        "--rate",
        "2 req/s",
        "--prompt",
        "400",
        "--output",
        "60",
        "--slo",
        "ttft.p99 < 1 s",
        "--instance",
        "g5.2xlarge,g6e.xlarge",
        "--draws",
        "2",
        "--json",
        "--scenario",
        winner.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ];
    let report = json(&servetwin(&args));
    assert!(report["winner"]["usd_per_hour"].as_f64().unwrap() > 0.0);
    assert_eq!(report["winner"]["standing"]["holds"], true);
    assert_eq!(report["doubt"]["draws"], 2);
    let run = servetwin(&[
        "run",
        winner.to_str().unwrap(),
        "--expect",
        "ttft.p99 < 1 s",
    ]);
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
    assert!(
        std::fs::read_to_string(&csv)
            .unwrap()
            .starts_with("rank,pareto,usd_per_hour")
    );
    assert!(std::fs::read_to_string(&plot).unwrap().contains("</svg>"));
}

#[test]
fn show_prints_the_question_and_wrong_words_are_refused() {
    let words = [
        "plan",
        "--model",
        "llama-3.1-8b",
        "--rate",
        "2 req/s",
        "--prompt",
        "400",
        "--output",
        "60",
        "--slo",
        "ttft.p99 < 1 s",
    ];
    let shown = servetwin(&[&words[..], &["--show"]].concat());
    assert!(
        stdout(&shown).contains("[[workload]]"),
        "{}",
        stdout(&shown)
    );
    let mut wrong = words;
    wrong[4] = "fast";
    assert_refused(&servetwin(&wrong), "--rate fast");
    assert_refused(&servetwin(&["plan", "no-such.toml"]), "no-such.toml");
}

#[test]
fn capacity_and_whatif_answer_for_a_shipped_scenario() {
    let file = "scenarios/llama2-7b-g5.2xlarge-tgi.toml";
    let table = servetwin(&[
        "capacity",
        file,
        "--set",
        "run.requests=150",
        "--scales",
        "1,4",
        "--format",
        "markdown",
    ]);
    assert!(stdout(&table).contains("| 4.000 |"), "{}", stderr(&table));
    let answer = json(&servetwin(&[
        "whatif",
        file,
        "--set",
        "run.requests=40",
        "--json",
    ]));
    assert!(answer["changes"].as_array().unwrap().len() > 5);
    assert!(!answer["impossible"].as_array().unwrap().is_empty());
}

#[test]
fn a_relative_override_doubles_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let run = |set: &str| {
        json(&servetwin(&[
            "run",
            file.to_str().unwrap(),
            "--json",
            "--set",
            set,
        ]))
    };
    let (one, two) = (run("workload.rate=1x"), run("workload.rate=2x"));
    assert_eq!(one["requests"]["offered"], 200);
    assert_eq!(two["requests"]["offered"], 400);
    assert!(
        two["load"].as_str().unwrap().contains("10 req/s"),
        "{}",
        two["load"]
    );
}

#[test]
fn examples_of_the_help_name_files_that_exist() {
    for command in ["plan", "whatif", "capacity", "sweep", "merge"] {
        let help = stdout(&servetwin(&[command, "--help"]));
        let named: Vec<&str> = help
            .split_whitespace()
            .filter(|w| w.starts_with("plans/") || w.starts_with("scenarios/"))
            .collect();
        assert!(!named.is_empty(), "{command}");
        for name in named {
            assert!(root().join(name).is_file(), "{command}: {name}");
        }
    }
}

#[test]
fn the_parts_of_a_plan_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let text = "slo = [\"ttft.p99 < 2 s\"]\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = [\"g6e.xlarge\", \"g5.2xlarge\"]\n[engine]\nkind = \
                \"vllm\"\nmax_num_seqs = [32, 64]\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = { kind = \"poisson\", rate = \"3 req/s\" }\nprompt = \
                200\noutput = 50\n[run]\nrequests = 150\n";
    let file = scenario(&dir, "question.toml", text);
    let file = file.to_str().unwrap();
    let out = dir.path().join("parts");
    let out = out.to_str().unwrap();
    let options = ["--exhaustive", "--draws", "0"];
    let whole = servetwin(&[&["plan", file, "--json"][..], &options].concat());
    let merge = |more: &[&str]| servetwin(&[&["merge", file, out][..], more].concat());
    let first = servetwin(
        &[
            &["plan", file, "--shard", "1/2", "--out", out][..],
            &options,
        ]
        .concat(),
    );
    assert!(stdout(&first).contains("shard 1/2: "), "{}", stderr(&first));
    assert_refused(&merge(&[]), "1 of 2 parts are missing: 2");
    let job = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["plan", file, "--shards", "2", "--out", out])
        .args(options)
        .env("JOB_COMPLETION_INDEX", "1")
        .output()
        .unwrap();
    assert_eq!(job.status.code(), Some(0), "{}", stderr(&job));
    let winner = dir.path().join("winner.toml");
    let merged = merge(&["--json", "--scenario", winner.to_str().unwrap()]);
    assert_eq!(stdout(&merged), stdout(&whole));
    assert!(
        std::fs::read_to_string(winner)
            .unwrap()
            .contains("[hardware]")
    );
    assert_refused(&servetwin(&["plan", file, "--shard", "1/2"]), "--out");
    assert_refused(&servetwin(&["plan", file, "--out", out]), "--shard");
    assert_refused(
        &servetwin(&["plan", file, "--shard", "1/2", "--out", out, "--json"]),
        "merge",
    );
    std::fs::write(format!("{out}/plan-1-of-2.json"), "{}").unwrap();
    assert_refused(&merge(&[]), "plan-1-of-2.json");
}

#[test]
fn a_service_that_others_reach_takes_a_key() {
    assert_refused(
        &servetwin(&["api", "--host", "0.0.0.0", "--port", "0"]),
        "--api-key",
    );
    assert_refused(
        &servetwin(&["api", "--port", "0", "--api-key", " x"]),
        "--api-key",
    );
}

#[test]
fn the_service_answers_and_ends_when_told() {
    use std::io::{BufRead as _, Read as _, Write as _};
    let mut child = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["api", "--port", "0", "--json"])
        .env_remove("SERVETWIN_API_KEY")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = ready["url"].as_str().unwrap().trim_start_matches("http://");
    let mut s = std::net::TcpStream::connect(address).unwrap();
    write!(
        s,
        "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    s.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"ok\""),
        "{answer}"
    );
    let kill = format!("kill -TERM {}", child.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_plan_s_winner_is_exported_in_one_command_and_keeps_its_objectives() {
    let dir = tempfile::tempdir().unwrap();
    let won = dir.path().join("won.toml");
    let files = dir.path().join("deployment");
    let words = [
        "plan",
        "--model",
        "llama-3.1-8b",
        "--rate",
        "2",
        "--prompt",
        "400",
        "--output",
        "60",
        "--slo",
        "ttft.p95 < 1 s",
        "--instance",
        "g6e.xlarge",
        "--draws",
        "0",
        "--set",
        "run.requests=300",
    ];
    let more = [
        "--scenario",
        won.to_str().unwrap(),
        "--export",
        "k8s",
        "-o",
        files.to_str().unwrap(),
    ];
    let plan = servetwin(&[&words[..], &more].concat());
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    let text = stdout(&plan);
    assert!(text.starts_with("trust: NONE"), "{text}");
    assert!(text.contains("g6e.xlarge of AWS us-east-1"), "{text}");
    let written: Vec<_> = std::fs::read_dir(&files).unwrap().collect();
    assert!(!written.is_empty());
    assert!(stderr(&plan).contains("wrote "), "{}", stderr(&plan));
    let won = won.to_str().unwrap();
    let shown = stdout(&servetwin(&["scenario", "show", won]));
    assert!(shown.contains("slo = [\"ttft.p95 < 1 s\"]"), "{shown}");
    let run = stdout(&servetwin(&["run", won]));
    assert!(run.contains("Holds: TTFT p95 "), "{run}");
    let table = servetwin(&["capacity", won, "--scales", "1", "--format", "csv"]);
    assert!(
        stdout(&table).contains("ttft.p95 [ms]"),
        "{}",
        stderr(&table)
    );
    let answer = json(&servetwin(&[
        "whatif",
        won,
        "--json",
        "--set",
        "run.requests=100",
    ]));
    assert_eq!(answer["base"]["holds"], true);
    assert_refused(
        &servetwin(&[&words[..], &["--export", "k8s"]].concat()),
        "export-dir",
    );
    assert_refused(
        &servetwin(&[&words[..], &["--export", "none", "-o", "x"]].concat()),
        "one of vllm",
    );
}
