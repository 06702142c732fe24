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

/// The head and the body of what `GET path` gives.
fn get(address: &str, path: &str, accepts: &str) -> (String, Vec<u8>) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept-Encoding: {accepts}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    (head.to_lowercase(), all[end + 4..].to_vec())
}

#[test]
fn the_page_of_the_viewer_is_served_with_the_file_that_is_named() {
    use std::io::BufRead as _;
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page");
    let folder = page.to_str().unwrap();
    let refused = servetwin(&["view", "--web", "--files", folder]);
    assert_refused(&refused, "there is no index.html");
    assert_refused(&refused, "viewer/web/build.sh");
    std::fs::create_dir(&page).unwrap();
    for name in ["index.html", "viewer.js", "viewer_bg.wasm", "worker.js"] {
        std::fs::write(page.join(name), name).unwrap();
    }
    std::fs::write(page.join("viewer.js.gz"), "squeezed").unwrap();
    let record = dir.path().join("a run.servetwin");
    std::fs::write(&record, "rows").unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["view", "--web", "--files", folder, record.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufReader::new(out).read_line(&mut line).unwrap();
    let (address, query) = line
        .trim()
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
        .expect("it prints its address");
    assert_eq!(query, "?file=open/a%2520run.servetwin");
    let is = |path: &str, accepts: &str, kind: &str, body: &str| {
        let (head, bytes) = get(address, path, accepts);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {kind}")), "{head}");
        assert_eq!(String::from_utf8(bytes).unwrap(), body, "{path}");
        head
    };
    is("/", "", "text/html", "index.html");
    is(
        "/viewer_bg.wasm",
        "gzip",
        "application/wasm",
        "viewer_bg.wasm",
    );
    let head = is("/viewer.js", "gzip, br", "text/javascript", "squeezed");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    is("/viewer.js", "", "text/javascript", "viewer.js");
    let file = "/open/a%20run.servetwin";
    is(file, "", "application/octet-stream", "rows");
    for path in ["/open/other", "/../Cargo.toml", "/page/index.html"] {
        assert!(
            get(address, path, "").0.starts_with("http/1.1 404"),
            "{path}"
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
