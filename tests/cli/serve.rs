//! `servetwin serve`, end to end: who may reach it, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::common::{assert_refused, servetwin};

/// A server that has said where it listens.
struct Served {
    child: Child,
    address: String,
}

fn serve(args: &[&str]) -> Served {
    let mut child = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["serve", "--port", "0", "--json"])
        .args(args)
        .env_remove("SERVETWIN_API_KEY")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("a line");
    let ready: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let url = ready["url"].as_str().expect("an address");
    let port = url.rsplit(':').next().expect("a port");
    Served {
        child,
        address: format!("127.0.0.1:{port}"),
    }
}

impl Served {
    /// Ends it as an orchestrator does; what it said on standard error.
    fn terminate(mut self) -> String {
        let kill = format!("kill -TERM {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.expect("a shell").success());
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut text).expect("UTF-8");
        assert_eq!(self.child.wait().expect("ends").code(), Some(0), "{text}");
        text
    }
}

#[test]
fn a_port_that_others_reach_without_a_key_is_warned_of() {
    let text = serve(&["--host", "0.0.0.0"]).terminate();
    assert!(text.contains("warning: 0.0.0.0:"), "{text}");
    assert!(text.contains("--api-key"), "{text}");
    let text = serve(&["--host", "0.0.0.0", "--api-key", "secret"]).terminate();
    assert!(!text.contains("warning"), "{text}");
    let text = serve(&[]).terminate();
    assert!(!text.contains("warning"), "{text}");
    assert!(text.contains("0 finished, 0 were cut off"), "{text}");
}

#[test]
fn a_key_that_nobody_can_send_is_refused() {
    for key in ["", " secret"] {
        let out = servetwin(&["serve", "--port", "0", "--api-key", key]);
        assert_refused(&out, "--api-key");
    }
}

#[test]
fn what_is_cut_off_at_shutdown_is_told() {
    let served = serve(&["--drain-timeout", "0.1"]);
    let body = r#"{"prompt": "abc", "max_tokens": 8000, "ignore_eos": true, "stream": true}"#;
    let mut s = TcpStream::connect(&served.address).expect("it listens");
    write!(
        s,
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    let mut reader = BufReader::new(s.try_clone().expect("a second handle"));
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("an answer") > 0);
    }
    let text = served.terminate();
    assert!(
        text.contains("shutting down: 1 request under way"),
        "{text}"
    );
    assert!(text.contains("0 finished, 1 were cut off"), "{text}");
    let mut rest = String::new();
    let _ = reader.read_to_string(&mut rest);
    assert!(
        rest.contains("the server is shutting down"),
        "its client is told"
    );
}
