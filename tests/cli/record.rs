//! Record files: `run --record`, `report`, `compare` of records, `view`.

use crate::common::{SMALL, assert_refused, json, scenario, servetwin, stderr, stdout};

/// A folder with the small scenario and its record.
fn recorded() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL).display().to_string();
    let record = dir.path().join("run.servetwin").display().to_string();
    let out = servetwin(&["run", &file, "--record", &record]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    (dir, file, record)
}

#[test]
fn a_record_gives_the_report_of_its_run() {
    let (_dir, file, record) = recorded();
    let plain = servetwin(&["run", &file]);
    let report = servetwin(&["report", &record]);
    assert_eq!(report.status.code(), Some(0), "{}", stderr(&report));
    assert_eq!(stdout(&plain), stdout(&report));
    let (mut a, mut b) = (
        json(&servetwin(&["run", &file, "--json"])),
        json(&servetwin(&["report", &record, "--json"])),
    );
    a["stats"].take();
    b["stats"].take();
    assert_eq!(a, b);
    // The scenario in it runs, and gives the same run.
    let shown = stdout(&servetwin(&["report", &record, "--scenario"]));
    let again = scenario(&_dir, "again.toml", &shown);
    let again = json(&servetwin(&["run", again.to_str().unwrap(), "--json"]));
    assert_eq!(again["fingerprint"], a["fingerprint"]);
}

#[test]
fn the_page_holds_all_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let text = SMALL.replace("A replica of", "</script><b>& a replica of");
    let file = scenario(&dir, "small.toml", &text).display().to_string();
    let record = dir.path().join("run.servetwin").display().to_string();
    servetwin(&["run", &file, "--record", &record]);
    let page = dir.path().join("report.html");
    let out = servetwin(&["report", &record, "--html", page.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let html = std::fs::read_to_string(&page).unwrap();
    assert_eq!(
        html.matches("</script>").count(),
        2,
        "its own two scripts end"
    );
    assert!(html.contains("&lt;/script&gt;&lt;b&gt;&amp; a replica of"));
    for part in [
        "TTFT",
        "KV cache use",
        "limit 200 ms",
        "kv_blocks = 1000",
        "uPlot",
        "servetwin run scenario.toml",
    ] {
        assert!(html.contains(part), "{part}");
    }
    for outside in ["src=\"http", "href=\"http", "@import", "fetch("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_refused(
        &servetwin(&["report", &record, "--html", &record]),
        "would be written over",
    );
}

#[test]
fn records_are_compared_as_they_were_run() {
    let (dir, file, record) = recorded();
    let faster = dir.path().join("faster.servetwin").display().to_string();
    let set = "step.base=5 ms";
    servetwin(&["run", &file, "--set", set, "--record", &faster]);
    let compared = json(&servetwin(&["compare", &record, &faster, "--json"]));
    let keys = compared["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(keys[0]["key"], "step.base");
    let figures = compared["figures"].as_array().unwrap();
    let tpot = figures
        .iter()
        .find(|f| f["path"] == "tpot_ms.mean")
        .unwrap();
    assert!(
        tpot["difference"]["mean"].as_f64().unwrap() < -3.0,
        "{tpot}"
    );
    assert_refused(&servetwin(&["compare", &record, &file]), "--record");
    assert_refused(
        &servetwin(&["compare", &record, &faster, "--seeds", "3"]),
        "as they were run",
    );
}

#[test]
fn strange_records_are_refused_with_their_name() {
    let (dir, file, record) = recorded();
    assert_refused(&servetwin(&["report", &file]), "no record file");
    assert_refused(&servetwin(&["report", "/no/such.servetwin"]), "cannot read");
    let bytes = std::fs::read(&record).unwrap();
    let half = dir.path().join("half.servetwin");
    std::fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    assert_refused(
        &servetwin(&["report", half.to_str().unwrap()]),
        "half.servetwin",
    );
    // The record is never written over what is read.
    assert_refused(
        &servetwin(&["run", &file, "--record", &file]),
        "would be written over",
    );
}

#[test]
fn without_the_viewer_view_says_how_to_get_it() {
    let dir = tempfile::tempdir().unwrap();
    // The program alone, in a folder of its own.
    let program = dir.path().join("servetwin");
    std::fs::copy(env!("CARGO_BIN_EXE_servetwin"), &program).unwrap();
    let run = |path: &std::path::Path| {
        let mut command = std::process::Command::new(&program);
        command.arg("view").env("PATH", path).output().unwrap()
    };
    let out = run(dir.path());
    assert_eq!(out.status.code(), Some(1));
    let said = stderr(&out);
    assert!(
        said.contains("not installed") && said.contains("cargo install --path viewer"),
        "{said}"
    );
    // One on PATH is started, and its exit code handed on.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let viewer = bin.join("servetwin-viewer");
    std::fs::write(&viewer, "#!/bin/sh\nexit 2\n").unwrap();
    std::fs::set_permissions(&viewer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(run(&bin).status.code(), Some(2));
    assert_refused(&servetwin(&["view", "/no/such/file"]), "is not there");
}
