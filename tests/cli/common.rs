//! Running the binary, and a small scenario to run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `servetwin` in the repository's root.
pub fn servetwin<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(args)
        .current_dir(root())
        .output()
        .expect("the binary runs")
}

/// What it printed.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// What it said.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Standard output as JSON, of a command that succeeded.
#[track_caller]
pub fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Checks that the caller's input was refused: code 2, one error, no panic, nothing on standard output.
#[track_caller]
pub fn assert_refused(output: &Output, because: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(because), "`{because}` not in: {text}");
    assert_eq!(text.matches("error:").count(), 1, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(output.stdout.is_empty(), "{}", stdout(output));
}

/// A deployment of constant step times: a chat on one replica of vLLM, near 60 % of its capacity.
pub const SMALL: &str = r#"
name = "small"
description = "A replica of constant step times."
[step]
base = "10 ms"
per_token = "20 us"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
[[workload]]
name = "chat"
arrival = { kind = "poisson", rate = "5 req/s" }
prompt = { kind = "uniform", min = 50, max = 150 }
output = { kind = "uniform", min = 1, max = 40 }
[run]
requests = 200
[slo]
ttft = "200 ms"
"#;

/// Writes `text` as a scenario into `dir`.
pub fn scenario(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("the folder is writable");
    path
}
