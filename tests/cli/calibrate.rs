//! `servetwin calibrate`, from the outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

fn calibrate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .arg("calibrate")
        .args(arguments)
        .env_remove("SERVETWIN_MEASURED")
        .output()
        .expect("runs")
}

#[test]
fn a_folder_without_the_tables_is_bad_input_and_the_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let folder = folder.path().to_str().expect("utf-8");
    let out = calibrate(&["collectives", "--data", folder]);
    assert_eq!(out.status.code(), Some(2));
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(
        message.contains("engine_and_nccl_allreduce.csv.gz"),
        "{message}"
    );
    assert!(out.stdout.is_empty());
}

#[test]
fn the_shipped_collective_profile_is_what_the_command_makes() {
    let Some(folder) = std::env::var_os("SERVETWIN_MEASURED") else {
        // Past the test harness, which keeps what passing tests print to itself.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIPPED, no measurements (SERVETWIN_MEASURED): the_shipped_collective_profile_is_what_the_command_makes\n",
        );
        return;
    };
    let folder = folder.to_str().expect("utf-8").to_owned();
    let out = tempfile::NamedTempFile::new().expect("file");
    let path = out.path().to_str().expect("utf-8");
    let result = calibrate(&["collectives", "--data", &folder, "--out", path]);
    assert_eq!(result.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&result.stdout).contains("all devices"));
    let made = std::fs::read_to_string(path).expect("profile");
    let shipped = include_str!("../../hwmodels/data/profiles/collectives.toml");
    assert!(
        made == shipped,
        "run the command in the profile's provenance"
    );
}

#[test]
fn an_endpoint_or_records_that_are_not_there_are_said_so_and_subcommands_still_work() {
    for (arguments, says) in [
        (vec!["--records", "/nonexistent"], "/nonexistent"),
        (vec!["--endpoint", "ftp://host"], "ftp://host"),
        (
            vec![
                "--endpoint",
                "http://127.0.0.1:9",
                "--budget",
                "five minutes",
            ],
            "five minutes",
        ),
    ] {
        let out = calibrate(&arguments);
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(says), "{message}");
        assert!(out.stdout.is_empty());
    }
    assert_eq!(calibrate(&["steps", "--help"]).status.code(), Some(0));
}

#[test]
fn where_the_results_of_a_long_measurement_go_is_made_before_it_begins() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    let inside = |name: &str| file.join(name).to_str().expect("utf-8").to_owned();
    for (flag, path) in [
        ("--out", inside("profile.toml")),
        ("--keep", inside("loads")),
    ] {
        // Nobody listens there: the folder is looked at first.
        let out = calibrate(&["--endpoint", "http://127.0.0.1:9", flag, &path]);
        assert_eq!(out.status.code(), Some(2), "{flag}");
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(
            message.contains(&format!("{flag}: cannot make the folder")),
            "{message}"
        );
    }
    let new = folder.path().join("new");
    let path = new.join("profile.toml");
    let out = calibrate(&[
        "--endpoint",
        "http://127.0.0.1:9",
        "--out",
        path.to_str().expect("utf-8"),
    ]);
    assert_ne!(out.status.code(), Some(0), "nobody listens");
    assert!(new.is_dir());
}

/// A server that streams a token each 2 ms, and refuses more than 64 of them with an escape sequence.
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

/// The method's line and the body of one request.
fn request(stream: &TcpStream) -> Option<(String, serde_json::Value)> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
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
    Some((first, serde_json::from_slice(&body).unwrap_or_default()))
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let (first, body) = request(&stream)?;
    let plain = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let models = r#"{"data":[{"id":"m","max_model_len":600}]}"#;
    let text = match first.split_whitespace().nth(1)? {
        "/health" => plain("200 OK", "{}"),
        "/v1/models" => plain("200 OK", models),
        "/v1/completions" if body["max_tokens"].as_u64()? <= 64 => {
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).ok()?;
            let prompt = body["prompt"].as_array().map_or(1, Vec::len);
            let output = body["max_tokens"].as_u64()?;
            for i in 1..=output {
                std::thread::sleep(Duration::from_millis(2));
                let reason = if i == output { "\"length\"" } else { "null" };
                let event = format!(
                    "data: {{\"choices\":[{{\"text\":\"x\",\"finish_reason\":{reason}}}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{i}}}}}\n\n"
                );
                stream.write_all(event.as_bytes()).ok()?;
            }
            "data: [DONE]\n\n".to_owned()
        }
        "/v1/completions" => plain("500 Internal Server Error", "{\"error\":\"\u{1b}[2Jgone\"}"),
        _ => plain("404 Not Found", "{}"),
    };
    stream.write_all(text.as_bytes()).ok()
}

#[test]
fn a_measurement_that_fails_keeps_its_loads_and_says_where_and_how_to_go_on() {
    let folder = tempfile::tempdir().expect("folder");
    let kept = folder.path().join("kept");
    let url = server();
    let keep = kept.to_str().expect("utf-8");
    let arguments = [
        "--endpoint",
        &url,
        "--budget",
        "12 s",
        "--max-concurrency",
        "4",
        "--max-errors",
        "0",
    ];
    let out = calibrate(&[&arguments[..], &["--keep", keep]].concat());
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{message}");
    assert!(message.contains("parts are measured, in"), "{message}");
    assert!(message.contains(&format!("--records {keep}")), "{message}");
    assert!(!message.contains('\u{1b}'), "{message}");
    assert!(out.stdout.is_empty());
    for file in [
        "unfinished",
        "endpoint.json",
        "00-prompts-one-by-one/requests.csv",
    ] {
        assert!(kept.join(file).is_file(), "{file}");
    }
    // Another measurement into the same folder would mix with it.
    let again = calibrate(&[&arguments[..], &["--keep", keep]].concat());
    let message = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{message}");
    assert!(message.contains(&format!("--records {keep}")), "{message}");
    // Going on meets the server that fails, and loses nothing.
    let on = calibrate(&[&arguments[..], &["--records", keep]].concat());
    assert_eq!(on.status.code(), Some(1));
    assert!(kept.join("00-prompts-one-by-one/requests.csv").is_file());

    let spare = folder.path().join("spare");
    std::fs::create_dir(&spare).expect("made");
    let url = server();
    let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["calibrate", "--endpoint", &url])
        .args([
            "--budget",
            "12 s",
            "--max-concurrency",
            "4",
            "--max-errors",
            "0",
        ])
        .env("TMPDIR", &spare)
        .output()
        .expect("runs");
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{message}");
    let folders: Vec<_> = std::fs::read_dir(&spare)
        .expect("there")
        .flatten()
        .collect();
    assert_eq!(folders.len(), 1, "{message}");
    let made = folders[0].path();
    assert!(message.contains(&made.display().to_string()), "{message}");
    assert!(made.join("00-prompts-one-by-one/requests.csv").is_file());
}
