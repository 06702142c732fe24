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

/// A page that is served, until it is dropped.
struct Served {
    child: std::process::Child,
    address: String,
    query: String,
}

impl Served {
    /// Starts `command`, and reads the address that it prints.
    fn start(command: &mut std::process::Command) -> Served {
        use std::io::BufRead as _;
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufReader::new(out).read_line(&mut line).unwrap();
        let rest = line.trim().strip_prefix("http://");
        let (address, query) = rest
            .and_then(|rest| rest.split_once('/'))
            .expect("it prints its address");
        Served {
            child,
            address: address.to_owned(),
            query: query.to_owned(),
        }
    }

    /// Checks what a path gives; its head.
    fn gives(&self, path: &str, accepts: &str, kind: &str, body: &str) -> String {
        let (head, bytes) = get(&self.address, path, accepts);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {kind}")), "{head}");
        assert_eq!(String::from_utf8(bytes).unwrap(), body, "{path}");
        head
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with small files in place of the page's, in `dir`.
fn stand_in(dir: &std::path::Path) -> std::path::PathBuf {
    let page = dir.join("page");
    std::fs::create_dir(&page).unwrap();
    for name in ["index.html", "viewer.js", "viewer_bg.wasm", "worker.js"] {
        std::fs::write(page.join(name), name).unwrap();
    }
    std::fs::write(page.join("viewer.js.gz"), "squeezed").unwrap();
    page
}

#[test]
fn the_page_of_the_viewer_is_served_with_the_file_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("page");
    let refused = servetwin(&["view", "--web", "--files", missing.to_str().unwrap()]);
    assert_refused(&refused, "there is no index.html");
    assert_refused(&refused, "viewer/web/build.sh");
    let page = stand_in(dir.path());
    let record = dir.path().join("a run.servetwin");
    std::fs::write(&record, "rows").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_servetwin"));
    command.args(["view", "--web", "--files", page.to_str().unwrap()]);
    let served = Served::start(command.arg(&record));
    assert_eq!(served.query, "?file=open/a%2520run.servetwin");
    served.gives("/", "", "text/html", "index.html");
    let wasm = "viewer_bg.wasm";
    served.gives("/viewer_bg.wasm", "gzip", "application/wasm", wasm);
    let head = served.gives("/viewer.js", "gzip, br", "text/javascript", "squeezed");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    served.gives("/viewer.js", "", "text/javascript", "viewer.js");
    let file = "/open/a%20run.servetwin";
    served.gives(file, "", "application/octet-stream", "rows");
    for path in ["/open/other", "/../Cargo.toml", "/page/index.html"] {
        let (head, _) = get(&served.address, path, "");
        assert!(head.starts_with("http/1.1 404"), "{path}");
    }
}

#[test]
fn a_page_that_is_built_into_the_viewer_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let page = stand_in(dir.path());
    // The program alone, with a stand-in for the viewer on PATH.
    let program = dir.path().join("servetwin");
    std::fs::copy(env!("CARGO_BIN_EXE_servetwin"), &program).unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let view = || {
        let mut command = std::process::Command::new(&program);
        command.args(["view", "--web"]).env("PATH", &path);
        command
    };
    assert_refused(&view().output().unwrap(), "viewer/web/build.sh --program");
    let viewer = |script: &str| {
        let file = bin.join("servetwin-viewer");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    };
    viewer("echo 'error: built without the page' >&2; exit 1");
    let refused = view().output().unwrap();
    assert_refused(&refused, "no page to serve (built without the page)");
    assert_refused(&refused, "viewer/web/build.sh --program");
    viewer(&format!(
        "[ \"$1\" = --write-page ] && cp {}/* \"$2\"",
        page.display()
    ));
    let served = Served::start(&mut view());
    served.gives("/", "", "text/html", "index.html");
    let head = served.gives("/viewer.js", "gzip", "text/javascript", "squeezed");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    served.gives("/viewer.js", "", "text/javascript", "viewer.js");
    served.gives("/viewer_bg.wasm", "", "application/wasm", "viewer_bg.wasm");
}
