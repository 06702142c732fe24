//! `servetwin demo`, from the outside: loads that do not work.

use crate::common::{servetwin, stderr, stdout};

#[test]
fn a_load_that_does_not_work_is_named_and_the_report_comes_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("UTF-8");
    // The engine of this load cannot write its step log: a folder has its name.
    std::fs::create_dir(dir.path().join("users-6.0.steps.csv")).expect("made");
    let arguments = [
        "demo",
        "--seconds",
        "2",
        "--repeats",
        "1",
        "--params",
        "4M",
        "--only",
        "users-6",
        "--only",
        "max-seqs-4",
        "--json",
        "--out",
        out,
    ];
    let output = servetwin(&arguments);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let table: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let names = |key: &str| -> Vec<String> {
        let all = table[key].as_array().expect(key);
        let name = |v: &serde_json::Value| v["name"].as_str().expect("a name").to_owned();
        all.iter().map(name).collect()
    };
    assert_eq!(names("failed"), ["users-6"], "{table:#}");
    let loads = names("loads");
    assert!(loads.contains(&"max-seqs-4".to_owned()), "{loads:?}");
    assert!(!loads.contains(&"users-6".to_owned()), "{loads:?}");
    assert!(stderr(&output).contains("loads to measure: about"));
    assert!(dir.path().join("demo.svg").is_file());
}
