//! `servetwin bench`, end to end against the built-in echo server, and without any.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{assert_refused, json, servetwin, stderr, stdout};
use bench::echo::{EchoServer, Schedule};

/// What a scripted server answers to a completion: status and body.
type Script = Arc<dyn Fn(usize, &serde_json::Value) -> (&'static str, String) + Send + Sync>;

/// A server of completions that answers as `script` says, by the number of the request that asks for text; ends with the process.
/// Returns its port.
fn scripted(
    script: impl Fn(usize, &serde_json::Value) -> (&'static str, String) + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script: Script = Arc::new(script);
    let asked = Arc::new(Mutex::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (script, asked) = (Arc::clone(&script), Arc::clone(&asked));
            // A client that goes away is part of some tests.
            std::thread::spawn(move || serve(stream, &script, &asked));
        }
    });
    port
}

fn serve(mut stream: TcpStream, script: &Script, asked: &Mutex<usize>) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let mut piece = [0u8; 4096];
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                n => buffer.extend_from_slice(&piece[..n]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length:"))
            .map_or(0, |v| v.trim().parse().unwrap());
        while buffer.len() < head_end + length {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                n => buffer.extend_from_slice(&piece[..n]),
            }
        }
        let body = serde_json::from_slice(&buffer[head_end..head_end + length]).unwrap_or_default();
        buffer.drain(..head_end + length);
        let (status, text) = if head.starts_with("post /v1/completions") {
            let index = {
                let mut asked = asked.lock().unwrap();
                *asked += 1;
                *asked - 1
            };
            script(index, &body)
        } else {
            ("404 Not Found", "{}".into())
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )?;
    }
}

/// The answer of a server that is well: as many tokens as asked, one a chunk, and a usage.
fn well(body: &serde_json::Value, cached: usize) -> (&'static str, String) {
    let tokens = body["max_tokens"].as_u64().unwrap();
    let prompt = match &body["prompt"] {
        serde_json::Value::Array(ids) => ids.len(),
        text => text.as_str().unwrap_or("").split_whitespace().count(),
    };
    let mut out = String::new();
    for i in 1..=tokens {
        let reason = if i == tokens { "\"length\"" } else { "null" };
        out +=
            &format!("data: {{\"choices\":[{{\"text\":\" w\",\"finish_reason\":{reason}}}]}}\n\n");
    }
    out += &format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\ndata: [DONE]\n\n"
    );
    ("200 OK", out)
}

/// Requests that `bench` sends to find out what such a server is, before the load.
const QUESTIONS: usize = 2;

/// `bench` of a closed loop of two users.
fn closed(port: u16, requests: &str, more: &[&str]) -> std::process::Output {
    let url = format!("http://localhost:{port}");
    let mut args = vec![
        "bench",
        &url,
        "--concurrency",
        "2",
        "--requests",
        requests,
        "--prompt-tokens",
        "200",
        "--output-tokens",
        "3",
    ];
    args.extend(more);
    servetwin(&args)
}

#[test]
fn failed_requests_set_the_exit_code_and_their_words_are_escaped() {
    let broken = |good: usize| {
        scripted(move |i, body| {
            if i < QUESTIONS + good {
                well(body, 0)
            } else {
                ("500 Internal Server Error", "\u{1b}[2Jboom\u{202e}".into())
            }
        })
    };
    let out = closed(broken(0), "4", &[]);
    assert_eq!(out.status.code(), Some(1));
    let told = stderr(&out);
    assert!(
        told.contains("none of the 4 requests finished: 4 x status_500")
            && told.contains("\\u{1b}[2Jboom\\u{202e}"),
        "{told}"
    );
    for text in [stdout(&out), told] {
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }
    // The report of what finished is there all the same.
    let out = closed(broken(10), "14", &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        stdout(&out).contains("14 sent, 10 finished"),
        "{}",
        stdout(&out)
    );
    assert!(
        stderr(&out).contains("4 of 14 requests failed (28.6 %), more than the 1 %"),
        "{}",
        stderr(&out)
    );
    let out = closed(broken(10), "14", &["--max-error-rate", "30%"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let report = json(&closed(
        broken(10),
        "14",
        &["--max-error-rate", "0.3", "--json"],
    ));
    assert_eq!(report["client"]["failures"]["failed"], 4);
}

#[test]
fn a_server_that_dies_is_told_however_long_it_lived() {
    let port = scripted(|i, body| {
        // Twelve of the last requests fail, give or take: how many questions come before the load depends on the prompts.
        if i < QUESTIONS + 1988 {
            well(body, 0)
        } else {
            ("500 Internal Server Error", "dead".into())
        }
    });
    let out = closed(port, "2000", &[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(
        stderr(&out).contains("requests all failed"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn an_endpoint_that_refuses_the_first_request_is_not_called_silent() {
    let port = scripted(|_, _| ("404 Not Found", "{\"error\":\"no such model\"}".into()));
    let out = closed(port, "4", &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        stderr(&out).contains("no such model") && stderr(&out).contains("--model"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn a_usage_that_cannot_be_true_is_not_believed() {
    let port = scripted(|i, body| {
        let (status, text) = well(body, 0);
        if i < QUESTIONS {
            return (status, text);
        }
        (
            status,
            text.replace("\"completion_tokens\":3", "\"completion_tokens\":90000"),
        )
    });
    let report = json(&closed(port, "6", &["--json"]));
    assert_eq!(report["run"]["tokens"]["output"], 18);
    assert_eq!(
        report["client"]["usage_not_believed"]["above_max_tokens"],
        6
    );
    let warnings = report["run"]["warnings"].to_string();
    assert!(
        warnings.contains("were not believed (6 x above_max_tokens"),
        "{warnings}"
    );
}

#[test]
fn a_second_run_does_not_measure_the_prefix_cache_and_says_so_where_it_must() {
    // A prefix cache without a limit.
    let met: Mutex<HashSet<String>> = Mutex::default();
    let port = scripted(move |_, body| {
        let prompt = body["prompt"].to_string();
        let known = !met.lock().unwrap().insert(prompt);
        well(body, if known { 192 } else { 0 })
    });
    let bench = |more: &[&str]| closed(port, "5", more);
    let loud = "PREFIX CACHE: ";
    for _ in 0..2 {
        let out = bench(&[]);
        assert!(!stdout(&out).contains(loud), "{}", stdout(&out));
    }
    let first = bench(&["--json"]);
    let report = json(&first);
    assert!(!stderr(&first).contains(loud));
    assert_eq!(report["client"]["cache"]["unplanned_tokens"], 0);
    // The salt in the report sends the same prompts again.
    let salt = report["client"]["prompt_salt"].to_string();
    let again = bench(&["--prompt-salt", &salt, "--json"]);
    assert!(stderr(&again).contains(loud), "{}", stderr(&again));
    assert_eq!(json(&again)["client"]["cache"]["unplanned_tokens"], 5 * 184);
    let again = bench(&["--prompt-salt", &salt]);
    assert!(stdout(&again).contains(loud), "{}", stdout(&again));
    assert!(stdout(&again).contains(&format!("--prompt-salt {salt}")));
    // A seed makes a run repeatable, prompts included.
    for told in [false, true] {
        let out = bench(&["--seed", "7"]);
        assert_eq!(stdout(&out).contains(loud), told, "{}", stdout(&out));
    }
}

fn server() -> EchoServer {
    EchoServer::start(Schedule {
        first: Duration::from_millis(5),
        gap: Duration::from_millis(1),
    })
    .unwrap()
}

#[test]
fn a_load_given_by_flags_is_measured_and_written_in_every_form() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (csv, guidellm, vllm) = (at("csv"), at("g.json"), at("v.json"));
    let report = json(&servetwin(&[
        "bench",
        &server.url(),
        "--rate",
        "200",
        "--requests",
        "25",
        "--prompt-tokens",
        "30",
        "--output-tokens",
        "5",
        "--json",
        "--csv",
        &csv,
        "--write-guidellm",
        &guidellm,
        "--write-vllm",
        &vllm,
        "--expect",
        "requests.finished == 25",
    ]));
    assert_eq!(report["run"]["requests"]["finished"], 25);
    assert_eq!(report["run"]["tokens"]["prompt"], 750);
    assert_eq!(report["run"]["tokens"]["output"], 125);
    assert!(report["run"]["ttft_ms"]["p50"].as_f64().unwrap() >= 5.0);
    assert!(report["client"]["lateness_ms"]["p99"].is_number());
    for file in ["requests.csv", "client.csv"] {
        let text = std::fs::read_to_string(dir.path().join("csv").join(file)).unwrap();
        assert_eq!(text.lines().count(), 26, "{file}");
    }
    for file in [&guidellm, &vllm] {
        let imported = json(&servetwin(&["bench", "import", file, "--json"]));
        assert_eq!(imported[0]["run"]["requests"]["finished"], 25, "{file}");
    }
    let text = stdout(&servetwin(&["bench", "import", &guidellm]));
    assert!(
        text.contains("GuideLLM") && text.contains("time_to_first_token_ms"),
        "{text}"
    );
}

#[test]
fn the_workload_of_a_scenario_file_is_sent_and_an_unmet_expectation_ends_with_code_3() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let file = crate::common::scenario(&dir, "small.toml", crate::common::SMALL);
    let out = servetwin(&[
        "bench",
        &server.url(),
        "--scenario",
        file.to_str().unwrap(),
        "--set",
        "run.requests=20",
        "--set",
        "workload[0].arrival.rate=100 req/s",
        "--expect",
        "ttft.p50 < 1 us",
    ]);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    assert!(
        stdout(&out).contains("20 sent, 20 finished"),
        "{}",
        stdout(&out)
    );
}

#[test]
fn a_sweep_finds_its_own_range() {
    let server = server();
    let sweep = json(&servetwin(&[
        "bench",
        &server.url(),
        "--sweep",
        "3",
        "--requests",
        "40",
        "--prompt-tokens",
        "10",
        "--output-tokens",
        "5",
        "--max-concurrency",
        "8",
        "--json",
    ]));
    let points = sweep["points"].as_array().unwrap();
    let strategies: Vec<&str> = points
        .iter()
        .map(|p| p["strategy"].as_str().unwrap())
        .collect();
    assert_eq!(strategies, ["synchronous", "throughput", "constant"]);
    let reached = |i: usize| {
        points[i]["report"]["run"]["throughput"]["requests_per_s"]
            .as_f64()
            .unwrap()
    };
    let rate = points[2]["rate"].as_f64().unwrap();
    assert!(rate > reached(0) && rate < reached(1), "{rate}");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let refused = |args: &[&str], because: &str| assert_refused(&servetwin(args), because);
    refused(
        &["bench", "ftp://x", "--rate", "1", "--requests", "1"],
        "http or https",
    );
    refused(&["bench", "http://127.0.0.1:1"], "no load");
    refused(&["bench", "http://127.0.0.1:1", "--rate", "1"], "no end");
    refused(
        &[
            "bench",
            "http://127.0.0.1:1",
            "--rate",
            "1",
            "--requests",
            "1",
            "--until",
            "x",
        ],
        "--until",
    );
    refused(&["bench", "import", "Cargo.toml"], "known are");
    for (flag, value, because) in [
        ("--max-error-rate", "5", "5%"),
        ("--max-concurrency", "0", "0 is not in"),
        ("--max-rate", "0", "above 0"),
        ("--give-up-after", "-1", "at least 0"),
        ("--sweep", "3", "cannot be used with"),
    ] {
        let flag = format!("{flag}={value}");
        refused(
            &[
                "bench",
                "http://127.0.0.1:1",
                "--rate",
                "1",
                "--requests",
                "1",
                &flag,
            ],
            because,
        );
    }
    let out = servetwin(&[
        "bench",
        "http://127.0.0.1:1",
        "--rate",
        "1",
        "--requests",
        "1",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("does not answer"), "{}", stderr(&out));
}
