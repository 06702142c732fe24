//! The measuring side against a server that counts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench::endpoint::{Client, Endpoint};
use bench::probe::Probe;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::drive::MeasureError;
use super::*;

#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    tokens: u64,
    under_way: u32,
    most_under_way: u32,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// How a server answers.
#[derive(Clone, Copy, Debug)]
struct Habit {
    /// From this request on it answers 500.
    fails_from: u64,
    /// It answers more output tokens with 500 [tokens].
    most_output: u64,
    /// Time per token.
    token: Duration,
}

/// A completions server that streams and keeps count.
struct Counting {
    url: String,
    counts: Arc<Mutex<Counts>>,
}

impl Default for Habit {
    /// A token a millisecond, and no failure.
    fn default() -> Habit {
        Habit {
            fails_from: u64::MAX,
            most_output: u64::MAX,
            token: Duration::from_millis(1),
        }
    }
}

async fn start(fails_from: u64) -> Counting {
    start_with(Habit {
        fails_from,
        ..Habit::default()
    })
    .await
}

async fn start_with(habit: Habit) -> Counting {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counts = Arc::new(Mutex::new(Counts::default()));
    let shared = Arc::clone(&counts);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&shared), habit));
        }
    });
    Counting { url, counts }
}

async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 16_384];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|l| l.split_once(':'))
                .find(|(k, _)| k.eq_ignore_ascii_case("content-length"))
                .and_then(|(_, v)| v.trim().parse().ok())
                .unwrap_or(0);
            if body.len() >= length {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        match stream.read(&mut buffer).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&buffer[..n]),
            _ => return None,
        }
    }
}

async fn answer(mut stream: TcpStream, counts: Arc<Mutex<Counts>>, habit: Habit) {
    let Some((head, body)) = read_request(&mut stream).await else {
        return;
    };
    let plain = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    if !head.starts_with("POST /v1/completions") {
        let text = if head.starts_with("GET /health") {
            plain("200 OK", "{}")
        } else if head.starts_with("GET /v1/models") {
            plain(
                "200 OK",
                r#"{"data":[{"id":"counted","max_model_len":600}]}"#,
            )
        } else {
            plain("404 Not Found", "{}")
        };
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let prompt = body["prompt"].as_array().map_or_else(
        || body["prompt"].as_str().unwrap_or("").split(' ').count(),
        Vec::len,
    );
    let output = body["max_tokens"].as_u64().unwrap();
    let failing = {
        let mut c = counts.lock().unwrap();
        c.requests += 1;
        c.tokens += prompt as u64 + output;
        c.under_way += 1;
        c.most_under_way = c.most_under_way.max(c.under_way);
        let now = Instant::now();
        c.first.get_or_insert(now);
        c.last = Some(now);
        c.requests > habit.fails_from || output > habit.most_output
    };
    if failing {
        let _ = stream
            .write_all(plain("500 Internal Server Error", r#"{"error":"broken"}"#).as_bytes())
            .await;
    } else {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes()).await;
        for i in 1..=output {
            tokio::time::sleep(habit.token).await;
            let reason = if i == output { "\"length\"" } else { "null" };
            let event = format!(
                "data: {{\"choices\":[{{\"text\":\"x\",\"finish_reason\":{reason}}}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{i}}}}}\n\n"
            );
            sent = sent.and(stream.write_all(event.as_bytes()).await);
            if sent.is_err() {
                break;
            }
        }
        let _ = stream.write_all(b"data: [DONE]\n\n").await;
    }
    counts.lock().unwrap().under_way -= 1;
}

/// What a measurement says and keeps.
#[derive(Debug, Default)]
struct Notes {
    said: Mutex<Vec<String>>,
    kept: Mutex<Vec<Load>>,
    facts: Mutex<Option<facts::Facts>>,
}

impl Watch for Notes {
    fn say(&self, text: &str) {
        self.said.lock().unwrap().push(text.into());
    }

    fn keep(&self, _: usize, load: &Load, facts: &facts::Facts) -> Result<(), String> {
        self.kept.lock().unwrap().push(load.clone());
        *self.facts.lock().unwrap() = Some(facts.clone());
        Ok(())
    }
}

async fn measured(server: &Counting, budget: Budget) -> Result<Measured, MeasureError> {
    going_on(server, budget, Before::default(), &Notes::default()).await
}

async fn going_on(
    server: &Counting,
    budget: Budget,
    before: Before,
    notes: &Notes,
) -> Result<Measured, MeasureError> {
    let mut endpoint = Endpoint::new(&server.url).unwrap();
    let probe = Probe::run(&endpoint).await.unwrap();
    endpoint.model = probe.models.first().cloned();
    let options = Options {
        budget,
        longest_prompt: 200,
        seed: 7,
    };
    let client = Client::new(endpoint).unwrap();
    measure(client, &probe, options, before, notes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_never_exceeds_tokens_concurrency_or_rate() {
    let server = start(u64::MAX).await;
    let budget = Budget {
        time: Duration::from_secs(6),
        max_rate: 60.0,
        max_concurrency: 5,
        max_tokens: 20_000,
        max_errors: 0.1,
    };
    let found = measured(&server, budget).await.unwrap();
    let c = server.counts.lock().unwrap();
    assert!(c.tokens <= budget.max_tokens, "{c:?}");
    assert!(c.most_under_way <= budget.max_concurrency, "{c:?}");
    let span = (c.last.unwrap() - c.first.unwrap()).as_secs_f64();
    // The three questions of the probe are sent before the measurement.
    assert!(
        c.requests as f64 <= 4.0 + budget.max_rate * span,
        "{c:?} in {span} s"
    );
    assert!(found.loads.iter().any(|l| l.role == Role::HoldOut));
    assert!(found.loads.iter().filter(|l| l.role == Role::Fit).count() >= 3);
    assert_eq!(found.facts.server.max_model_len, Known::read(600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_stops_when_requests_fail() {
    let server = start(20).await;
    let budget = Budget {
        time: Duration::from_secs(60),
        ..Budget::default()
    };
    let error = measured(&server, budget).await.unwrap_err();
    assert!(matches!(error, MeasureError::Errors { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("500") && message.contains("no profile was written"),
        "{message}"
    );
    // A tenth of what went well before, and what was under way.
    let c = server.counts.lock().unwrap();
    assert!(c.requests < 20 + 8 + 32, "{c:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_is_too_small_is_said_to_be() {
    let server = start(u64::MAX).await;
    let budget = Budget {
        time: Duration::from_secs(5),
        max_tokens: 700,
        ..Budget::default()
    };
    let error = measured(&server, budget).await.unwrap_err();
    assert!(matches!(error, MeasureError::Budget { .. }), "{error}");
    assert!(server.counts.lock().unwrap().tokens <= 700);
    assert!(error.to_string().contains("--max-tokens"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_slow_for_the_budget_is_said_to_be_after_the_first_requests() {
    let server = start_with(Habit {
        token: Duration::from_millis(100),
        ..Habit::default()
    })
    .await;
    let budget = Budget {
        time: Duration::from_secs(8),
        ..Budget::default()
    };
    let error = measured(&server, budget).await.unwrap_err();
    assert!(matches!(error, MeasureError::Budget { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("the smallest plan that makes a profile needs --budget"),
        "{message}"
    );
    // The probe's questions, and the two that show how fast it is.
    assert!(server.counts.lock().unwrap().requests <= 3 + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_gets_a_smaller_plan_that_still_makes_a_profile() {
    let server = start_with(Habit {
        token: Duration::from_millis(15),
        ..Habit::default()
    })
    .await;
    let budget = Budget {
        time: Duration::from_secs(12),
        ..Budget::default()
    };
    let notes = Notes::default();
    let found = going_on(&server, budget, Before::default(), &notes)
        .await
        .unwrap();
    let said = notes.said.lock().unwrap().join("\n");
    assert!(said.contains("the whole plan of"), "{said}");
    assert!(said.contains("does not fit: it needs --budget"), "{said}");
    let held = found.loads.iter().filter(|l| l.role == Role::HoldOut);
    assert!(held.count() >= 1);
    assert!(found.loads.iter().filter(|l| l.role == Role::Fit).count() >= 3);
    assert_eq!(*notes.kept.lock().unwrap(), found.loads);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_that_broke_off_is_gone_on_with() {
    // The first loads ask for no more than 64 tokens.
    let broken = start_with(Habit {
        most_output: 64,
        ..Habit::default()
    })
    .await;
    let budget = Budget {
        time: Duration::from_secs(10),
        max_concurrency: 4,
        max_errors: 0.0,
        ..Budget::default()
    };
    let notes = Notes::default();
    let error = going_on(&broken, budget, Before::default(), &notes).await;
    assert!(
        matches!(error, Err(MeasureError::Errors { .. })),
        "{error:?}"
    );
    let before = Before {
        loads: std::mem::take(&mut *notes.kept.lock().unwrap()),
        facts: notes.facts.lock().unwrap().take(),
    };
    let left: Vec<String> = before.loads.iter().map(|l| l.name.clone()).collect();
    assert!(left.contains(&"prompts one by one".to_owned()), "{left:?}");
    let healthy = start(u64::MAX).await;
    let found = going_on(&healthy, budget, before.clone(), &notes)
        .await
        .unwrap();
    assert_eq!(found.loads[..left.len()], before.loads);
    let new = notes.kept.lock().unwrap();
    assert!(!new.is_empty());
    assert!(new.iter().all(|l| !left.contains(&l.name)), "{new:?}");
    let said = notes.said.lock().unwrap().join("\n");
    assert!(said.contains("of the parts are there already"), "{said}");
}
