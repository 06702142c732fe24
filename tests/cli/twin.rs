//! `servetwin twin`, from the outside: beside a small server that streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{SMALL, assert_refused, json, scenario, servetwin, stdout};

/// A server that answers every completion with four tokens, 5 ms apart; it has no metrics.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    format!("http://{address}")
}

fn answer(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                length = n.trim().parse().ok()?;
            }
            if first.is_empty() {
                first = line;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if !first.contains("/v1/completions") {
            stream
                .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                .ok()?;
            continue;
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .ok()?;
        for i in 0..4 {
            let usage = if i == 3 {
                r#","usage":{"prompt_tokens":7,"completion_tokens":4}"#
            } else {
                ""
            };
            let event = format!("data: {{\"choices\":[{{\"text\":\"t\"}}]{usage}}}\n\n");
            std::thread::sleep(Duration::from_millis(5));
            stream
                .write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())
                .ok()?;
        }
        stream.write_all(b"0\r\n\r\n").ok()?;
    }
}

#[test]
fn traffic_through_the_proxy_is_recorded_replayed_and_asked_about() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = scenario(&dir, "s.toml", SMALL);
    let windows = dir.path().join("windows");
    let lines = dir.path().join("looks.jsonl");
    let mut twin = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["twin", "--endpoint", &server(), "--proxy", "127.0.0.1:0"])
        .args(["--window", "60 s", "--every", "300 ms", "--duration", "2 s"])
        .arg("--scenario")
        .arg(&file)
        .arg("--windows")
        .arg(&windows)
        .arg("--jsonl")
        .arg(&lines)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut said = BufReader::new(twin.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says where it listens");
    let address = line
        .split("http://")
        .nth(1)
        .and_then(|s| s.split_whitespace().next())
        .unwrap_or_else(|| panic!("no address in {line}"))
        .to_owned();
    for i in 0..30 {
        let mut client = TcpStream::connect(&address).expect("the proxy listens");
        let body = format!(r#"{{"prompt":"request {i}","max_tokens":4,"stream":true}}"#);
        let ask = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(ask.as_bytes()).expect("written");
        let mut got = String::new();
        client.read_to_string(&mut got).expect("an answer");
        assert_eq!(got.matches("\"text\":\"t\"").count(), 4, "{got}");
    }
    std::thread::spawn(move || said.read_to_string(&mut String::new()));
    let out = twin.wait_with_output().expect("it ends by itself");
    assert_eq!(out.status.code(), Some(0));
    assert!(stdout(&out).contains("ttft_p50 [ms]"), "{}", stdout(&out));
    let looks = std::fs::read_to_string(&lines).expect("JSON lines");
    let last: serde_json::Value =
        serde_json::from_str(looks.lines().last().expect("a look")).expect("JSON");
    assert_eq!(last["comparison"]["compared"], 30, "{last}");
    assert_eq!(last["traffic"]["dropped_events"], 0);
    let mut files: Vec<_> = std::fs::read_dir(&windows)
        .expect("windows were written")
        .flatten()
        .map(|e| e.path())
        .collect();
    files.sort();
    let newest = files.last().expect("a window");
    let text = std::fs::read_to_string(newest).expect("text");
    assert!(!text.contains("request 1"), "prompts are not kept");

    let on = |words: &[&str]| {
        let mut args: Vec<std::ffi::OsString> = vec!["twin".into()];
        args.extend(words.iter().map(Into::into));
        args.extend(["--window-file".into(), newest.into()]);
        args.extend(["--scenario".into(), file.clone().into()]);
        servetwin(&args)
    };
    let replayed = json(&on(&["replay", "--json"]));
    assert_eq!(replayed["compared"], 30);
    let answer = json(&on(&["ask", "rate x2, replicas 2", "--json"]));
    let e2e = |f: &&serde_json::Value| f["name"] == "e2e_mean";
    let figures = answer["figures"].as_array().expect("figures");
    assert!(figures.iter().find(e2e).expect("e2e")["what_if"].is_number());
    assert!(stdout(&on(&["ask", "output x2"])).contains("what if"));
    assert_refused(&on(&["ask", "replica 2"]), "did you mean `replicas 3`");
    assert_refused(&on(&["ask", "router nearest"]), "router.policy");
}

#[test]
fn bad_input_is_refused_with_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = scenario(&dir, "s.toml", SMALL);
    let file = file.to_str().expect("UTF-8");
    let window = dir.path().join("w.jsonl");
    std::fs::write(&window, "{}\n").expect("written");
    let window = window.to_str().expect("UTF-8");
    let on = ["--window-file", window, "--scenario", file];
    assert_refused(
        &servetwin(&[&["twin", "replay"], &on[..]].concat()),
        "line 1",
    );
    let nowhere = ["--window-file", "no-such", "--scenario", file];
    assert_refused(
        &servetwin(&[&["twin", "replay"], &nowhere[..]].concat()),
        "no-such",
    );
    let endpoint = server();
    assert_refused(
        &servetwin(&["twin", "--endpoint", &endpoint, "--scenario", file]),
        "without --proxy",
    );
    assert_refused(
        &servetwin(&["twin", "--endpoint", "https://h", "--ca", window]),
        "holds no certificate",
    );
    assert_refused(
        &servetwin(&["twin", "--endpoint", &endpoint, "--window", "1 ms"]),
        "--window",
    );
}
