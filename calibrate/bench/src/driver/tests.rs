//! The driver against scripted servers and against the echo server.

use std::time::Duration;

use sim::record::RunRecord;
use sim::scenario::Scenario;

use super::*;
use crate::echo::{EchoServer, Schedule};
use crate::prompts::{SAFE_IDS, Writing};
use crate::session::{Bench, Preparation, Session};
use crate::testing::{Answer, Server};

const SCHEDULE: Schedule = Schedule {
    first: Duration::from_millis(5),
    gap: Duration::from_millis(2),
};

fn scenario(workload: &str, run: &str) -> Scenario {
    let text = format!(
        "seed = 7\n[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 1000\n[[workload]]\n{workload}\n[run]\n{run}\n"
    );
    Scenario::parse(&text, "test", &[]).unwrap()
}

fn drive(url: &str, scenario: &Scenario, options: &Options) -> RawRun {
    let mut prompts = Prompts::new(Writing::Ids(SAFE_IDS.0, SAFE_IDS.1), "ids", true);
    let mut workload = scenario.mix().unwrap();
    run(
        &Endpoint::new(url).unwrap(),
        None,
        &mut workload,
        &mut prompts,
        options,
    )
    .unwrap()
}

fn bench(url: &str, scenario: &Scenario, options: &Options) -> Bench {
    let session = Session::prepare(Endpoint::new(url).unwrap(), &Preparation::default()).unwrap();
    session.run(scenario, options).unwrap()
}

fn conserved(record: &RunRecord) {
    assert!(record.counts.conserved(), "{:?}", record.counts);
}

#[test]
fn an_open_loop_sends_what_the_workload_says_and_never_waits_for_answers() {
    // Answers take far longer than the gaps between sends.
    let slow = Schedule {
        first: Duration::from_millis(300),
        gap: Duration::from_millis(1),
    };
    let server = EchoServer::start(slow).unwrap();
    let s = scenario(
        "arrival = { kind = \"constant\", rate = \"100 req/s\" }\nprompt = { kind = \"uniform\", min = 5, max = 50 }\noutput = 3",
        "requests = 30",
    );
    let raw = drive(&server.url(), &s, &Options::default());
    assert_eq!(raw.samples.len(), 30);
    assert_eq!(raw.stopped, Stopped::Done);
    for (i, sample) in raw.samples.iter().enumerate() {
        assert_eq!(sample.trace.error, None);
        assert_eq!(sample.planned_ns, i as u64 * 10_000_000);
        assert!(sample.sent_ns >= sample.planned_ns, "never early");
        assert_eq!(sample.trace.output_tokens(), 3);
        assert_eq!(
            sample.trace.usage.unwrap().prompt_tokens,
            Some(sample.spec.prompt_tokens)
        );
    }
    // All were under way at once before the first was answered.
    let first_end = raw
        .samples
        .iter()
        .map(|s| s.sent_ns + s.trace.end_ns)
        .min()
        .unwrap();
    let sent_before = raw.samples.iter().filter(|s| s.sent_ns < first_end).count();
    assert!(sent_before > 15, "{sent_before}");
    // Same seed, same requests.
    let again = drive(&server.url(), &s, &Options::default());
    let lengths = |r: &RawRun| {
        r.samples
            .iter()
            .map(|s| s.spec.prompt_tokens)
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&raw), lengths(&again));
}

#[test]
fn a_closed_loop_keeps_its_users_busy_and_no_more() {
    let server = EchoServer::start(SCHEDULE).unwrap();
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 3 }\nprompt = 8\noutput = 4",
        "requests = 24",
    );
    let raw = drive(&server.url(), &s, &Options::default());
    assert_eq!(raw.samples.len(), 24);
    let most = raw
        .samples
        .iter()
        .map(|a| {
            raw.samples
                .iter()
                .filter(|b| b.sent_ns <= a.sent_ns && b.sent_ns + b.trace.end_ns > a.sent_ns)
                .count()
        })
        .max()
        .unwrap();
    assert_eq!(most, 3);
    assert_eq!(raw.connections.opened, 3);
}

#[test]
fn the_record_of_a_benchmark_is_that_of_a_run() {
    let server = EchoServer::start(SCHEDULE).unwrap();
    let s = scenario(
        "arrival = { kind = \"poisson\", rate = \"200 req/s\" }\nprompt = 20\noutput = 6",
        "requests = 60\nwarmup = \"50 ms\"\n[slo]\nttft = \"60 s\"",
    );
    let b = bench(&server.url(), &s, &Options::default());
    conserved(&b.record);
    assert_eq!(b.record.counts.finished, 60);
    assert_eq!(b.record.tokens.output, 360);
    assert_eq!(b.record.tokens.prompt, 1200);
    assert!(b.record.window.offered < 60, "the warm-up is left out");
    assert_eq!(b.record.latencies.ttft.count(), b.record.window.offered);
    let report = b.report();
    assert_eq!(report.run.slo.attainment_ratio, Some(1.0));
    // The schedule is a lower bound of what is measured.
    assert!(report.run.ttft_ms.p50.unwrap() >= 5.0);
    assert!(report.run.tpot_ms.mean.unwrap() >= 1.0);
    assert_eq!(report.client.token_counts.get("confirmed"), Some(&60));
    let text = crate::report::render(&report);
    assert!(
        text.contains("60 sent, 60 finished") && text.contains("sent late"),
        "{text}"
    );
    assert!(!text.contains("NaN"), "{text}");
    // And it survives its JSON.
    let json = serde_json::to_string(&report).unwrap();
    let back: crate::report::BenchReport = serde_json::from_str(&json).unwrap();
    assert_eq!(back.client.url, report.client.url);
}

#[test]
fn hard_limits_hold_whatever_the_workload_says() {
    let server = EchoServer::start(SCHEDULE).unwrap();
    let s = scenario(
        "arrival = { kind = \"burst\", requests = 40 }\nprompt = 10\noutput = 5",
        "requests = 40",
    );
    let caps = |caps: Caps| Options {
        caps,
        ..Options::default()
    };
    let raw = drive(
        &server.url(),
        &s,
        &caps(Caps {
            concurrency: Some(2),
            requests: Some(12),
            ..Caps::default()
        }),
    );
    assert_eq!(raw.samples.len(), 12);
    assert!(matches!(raw.stopped, Stopped::Cap(_)));
    assert!(raw.connections.opened <= 2 && raw.held_back > 0, "{raw:?}");
    let raw = drive(
        &server.url(),
        &s,
        &caps(Caps {
            total_tokens: Some(100),
            ..Caps::default()
        }),
    );
    assert_eq!(raw.samples.len(), 6, "15 tokens each");
    let raw = drive(
        &server.url(),
        &s,
        &caps(Caps {
            rate: Some(100.0),
            requests: Some(6),
            ..Caps::default()
        }),
    );
    let sent: Vec<u64> = raw.samples.iter().map(|s| s.sent_ns).collect();
    // Sends are handed over at least 10 ms apart; the client may take the last of them up a little sooner after its hand-over.
    assert!(sent[5] - sent[0] > 45_000_000, "{sent:?}");
}

#[test]
fn enough_errors_end_the_run_and_every_request_has_an_outcome() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(|_, _| {
        Answer::json("503 Service Unavailable", r#"{"error":"full"}"#)
    }));
    let s = scenario(
        "arrival = { kind = \"constant\", rate = \"50 req/s\" }\nprompt = 10\noutput = 5",
        "duration = \"20 s\"",
    );
    let options = Options {
        caps: Caps {
            errors: Some(5),
            ..Caps::default()
        },
        ..Options::default()
    };
    let raw = drive(&server.url, &s, &options);
    assert!(matches!(raw.stopped, Stopped::Errors(n) if n >= 5));
    assert!(raw.samples.len() < 500);
    let rows = collect::measured(&raw);
    let record = collect::record(
        &rows,
        SimTime(raw.end_ns),
        &sim::metrics::RecordOptions::default(),
        sim::record::RunInfo::default(),
    )
    .unwrap();
    conserved(&record);
    assert_eq!(
        record.counts.rejected + record.counts.in_flight,
        raw.samples.len() as u64
    );
    assert_eq!(record.latencies.ttft.count(), 0);
}

#[test]
fn a_run_without_drain_ends_on_time_and_says_what_was_under_way() {
    let server = EchoServer::start(Schedule {
        first: Duration::from_secs(30),
        gap: Duration::ZERO,
    })
    .unwrap();
    let s = scenario(
        "arrival = { kind = \"constant\", rate = \"20 req/s\" }\nprompt = 10\noutput = 5",
        "duration = \"300 ms\"\ndrain = false",
    );
    let began = Instant::now();
    let b = {
        let mut prompts = Prompts::new(Writing::Ids(32, 200), "ids", true);
        let options = Options {
            end: Some(Duration::from_millis(300)),
            ..Options::default()
        };
        run(
            &Endpoint::new(&server.url()).unwrap(),
            None,
            &mut s.mix().unwrap(),
            &mut prompts,
            &options,
        )
        .unwrap()
    };
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(b.samples.len() >= 5);
    assert!(b.samples.iter().all(|s| s.outcome() == Outcome::InFlight));
}

#[test]
fn a_client_that_gives_up_is_timed_out_and_its_workload_hears_of_it() {
    let server = EchoServer::start(Schedule {
        first: Duration::from_millis(5),
        gap: Duration::from_millis(100),
    })
    .unwrap();
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 2 }\nprompt = 10\noutput = 50\ntimeout = \"150 ms\"",
        "requests = 6",
    );
    let raw = drive(&server.url(), &s, &Options::default());
    assert_eq!(raw.samples.len(), 6, "a user goes on after giving up");
    assert!(raw.samples.iter().all(|s| s.outcome() == Outcome::TimedOut));
    assert!(raw.samples.iter().any(|s| s.trace.output_tokens() > 0));
}

#[test]
fn a_stopping_rule_ends_the_sending_once_the_figure_is_known() {
    let server = EchoServer::start(SCHEDULE).unwrap();
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 8 }\nprompt = 10\noutput = 3",
        "duration = \"30 s\"",
    );
    let options = Options {
        // As wide as the figure itself: met as soon as there are batches.
        until: vec!["e2e.mean +-100%".parse().unwrap()],
        ..Options::default()
    };
    let raw = drive(&server.url(), &s, &options);
    assert_eq!(raw.stopped, Stopped::Known);
    assert!(raw.samples.len() >= 100);
}

#[test]
fn dialogues_send_back_what_was_answered() {
    // Each turn's prompt holds the one before it and the ids that were answered.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(|_, _| {
        Answer::events(&[
            r#"{"choices":[{"text":"ab","token_ids":[901,902],"finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":2}}"#,
            "[DONE]",
        ])
    }));
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 1 }\nprompt = 10\noutput = 2\nsessions = { turns = 3 }",
        "requests = 3",
    );
    let endpoint = Endpoint {
        token_ids: true,
        ..Endpoint::new(&server.url).unwrap()
    };
    let mut prompts = Prompts::new(Writing::Ids(32, 200), "ids", true);
    let raw = run(
        &endpoint,
        None,
        &mut s.mix().unwrap(),
        &mut prompts,
        &Options::default(),
    )
    .unwrap();
    assert_eq!(raw.samples.len(), 3);
    let sent: Vec<Vec<u32>> = server
        .requests()
        .iter()
        .map(|r| {
            let body: serde_json::Value = serde_json::from_str(&r.body).unwrap();
            serde_json::from_value(body["prompt"].clone()).unwrap()
        })
        .collect();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [10, 22, 34]);
    assert_eq!(sent[1][..10], sent[0][..]);
    assert_eq!(sent[1][10..12], [901, 902]);
    assert_eq!(sent[2][..22], sent[1][..]);
    assert_eq!(prompts.replaced_answers, 0);
}

/// A server that answers `answer` to every request after the first `good` ones that ask for text.
fn failing_after(good: usize, answer: fn() -> Answer) -> (tokio::runtime::Runtime, Server) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(move |i, _| {
        if i < good {
            Answer::events(&[
                r#"{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":1}}"#,
                "[DONE]",
            ])
        } else {
            answer()
        }
    }));
    (runtime, server)
}

fn internal_error() -> Answer {
    Answer::json("500 Internal Server Error", r#"{"error":"engine dead"}"#)
}

#[test]
fn users_of_a_closed_loop_pause_after_failures_and_keep_their_connections() {
    let (_runtime, server) = failing_after(0, internal_error);
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 4 }\nprompt = 10\noutput = 1",
        "duration = \"1500 ms\"",
    );
    let raw = drive(&server.url, &s, &Options::default());
    // Pauses of at least 50, 100, 200, 400 and 800 ms: without any, thousands of requests go out.
    assert!(
        (8..=4 * 6).contains(&raw.samples.len()),
        "{}",
        raw.samples.len()
    );
    // A user that pauses leaves its connection to the next.
    assert!(
        (1..=4).contains(&raw.connections.opened),
        "{:?}",
        raw.connections
    );
}

#[test]
fn refused_connections_are_not_tried_again_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 4 }\nprompt = 10\noutput = 1",
        "duration = \"1500 ms\"",
    );
    let raw = drive(&format!("http://127.0.0.1:{port}"), &s, &Options::default());
    assert!(raw.samples.len() <= 4 * 6, "{}", raw.samples.len());
    assert!(raw.samples.iter().all(|s| s.outcome() == Outcome::Failed));
}

#[test]
fn an_open_loop_keeps_its_schedule_whatever_fails() {
    let (_runtime, server) = failing_after(0, internal_error);
    let s = scenario(
        "arrival = { kind = \"constant\", rate = \"100 req/s\" }\nprompt = 10\noutput = 1",
        "requests = 30",
    );
    let raw = drive(&server.url, &s, &Options::default());
    let planned: Vec<u64> = raw.samples.iter().map(|s| s.planned_ns).collect();
    assert_eq!(planned, (0..30).map(|i| i * 10_000_000).collect::<Vec<_>>());
}

#[test]
fn an_endpoint_that_fails_every_request_is_given_up() {
    let (_runtime, server) = failing_after(3, internal_error);
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 2 }\nprompt = 10\noutput = 1",
        "requests = 100000",
    );
    let options = Options {
        give_up_after: Some(Duration::from_millis(10)),
        ..Options::default()
    };
    let raw = drive(&server.url, &s, &options);
    assert!(
        matches!(raw.stopped, Stopped::Failing(_)),
        "{:?}",
        raw.stopped
    );
    assert!(raw.samples.len() < 40, "{}", raw.samples.len());
}

#[test]
fn clients_that_retry_by_themselves_are_not_slowed_down() {
    let (_runtime, server) = failing_after(0, internal_error);
    let s = scenario(
        "arrival = { kind = \"burst\", requests = 1 }\nprompt = 10\noutput = 1\n\
         retries = { max = 20, backoff = \"1 ms\", factor = 1.0, jitter = 0.0, on = [\"failed\"] }",
        "requests = 1",
    );
    let options = Options {
        retrying: vec![0],
        ..Options::default()
    };
    let raw = drive(&server.url, &s, &options);
    assert_eq!(raw.samples.len(), 21);
    let gaps = raw
        .samples
        .windows(2)
        .map(|w| w[1].planned_ns - w[0].planned_ns);
    let shortest = gaps.min().unwrap();
    assert!(shortest < 50_000_000, "{shortest}");
}

#[test]
fn every_run_sends_new_prompts_unless_it_is_told_which() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(|_, _| {
        Answer::events(&[
            r#"{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":40,"completion_tokens":1}}"#,
            "[DONE]",
        ])
    }));
    let s = scenario(
        "arrival = { kind = \"closed\", concurrency = 1 }\nprompt = 20\noutput = 1\nprefix = { tokens = 20 }",
        "requests = 2",
    );
    let sent = |salt: Option<u64>, runs: usize| -> (u64, Vec<String>) {
        let preparation = Preparation {
            prompt_salt: salt,
            ..Preparation::default()
        };
        let session = Session::prepare(Endpoint::new(&server.url).unwrap(), &preparation).unwrap();
        let before = server.requests().len();
        let mut first_salt = None;
        for _ in 0..runs {
            let bench = session.run(&s, &Options::default()).unwrap();
            first_salt.get_or_insert(bench.client.prompt_salt);
        }
        let bodies = server.requests().split_off(before);
        let bodies = bodies.iter().filter(|r| r.head.starts_with("POST"));
        let prompt = |body: &str| {
            serde_json::from_str::<serde_json::Value>(body).unwrap()["prompt"].to_string()
        };
        (
            first_salt.unwrap(),
            bodies.map(|r| prompt(&r.body)).collect(),
        )
    };
    let (salt, first) = sent(None, 1);
    let (_, second) = sent(None, 1);
    let (_, again) = sent(Some(salt), 2);
    assert_eq!((first.len(), again.len()), (2, 4));
    let head = |prompt: &String| {
        prompt
            .split([' ', ','])
            .take(8)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        head(&first[0]),
        head(&first[1]),
        "the prefix is shared within a run"
    );
    assert_ne!(head(&first[0]), head(&second[0]), "and with no other run");
    assert_eq!(first[..], again[..2], "unless the salt is given");
    assert_ne!(
        again[..2],
        again[2..],
        "nor between two loads of one session"
    );
}

#[test]
fn rates_count_from_the_first_request() {
    // Five requests a tenth of a second apart, the first of them ten seconds after the start; each takes a second.
    let at = |ms: u64| SimTime(ms * 1_000_000);
    let rows: Vec<collect::Measured> = (0..5)
        .map(|i| collect::Measured {
            row: sim::record::RequestRow {
                id: i,
                stream: 0,
                replica: 0,
                prompt_tokens: 10,
                cached_tokens: 0,
                output_tokens: 7,
                preemptions: 0,
                arrival: at(10_000 + 100 * u64::from(i)),
                first_scheduled: SimTime::NEVER,
                first_token: at(10_500 + 100 * u64::from(i)),
                end: at(11_000 + 100 * u64::from(i)),
                outcome: Outcome::Finished,
            },
            gaps: Vec::new(),
        })
        .collect();
    let throughput = |warmup_ms: u64| {
        let options = sim::metrics::RecordOptions {
            warmup: sim::kernel::time::SimDuration(warmup_ms * 1_000_000),
            ..Default::default()
        };
        let info = sim::record::RunInfo::default();
        let record = collect::record(&rows, at(11_400), &options, info).unwrap();
        sim::report::RunReport::new(&record, 0.0).throughput
    };
    let t = throughput(0);
    assert!((t.requests_per_s - 5.0 / 1.4).abs() < 1e-9, "{t:?}");
    assert!((t.output_tokens_per_s - 25.0).abs() < 1e-9, "{t:?}");
    assert!((t.offered_per_s - 10.0).abs() < 1e-9, "{t:?}");
    // A warm-up that is over later decides.
    let t = throughput(11_050);
    assert!((t.requests_per_s - 4.0 / 0.35).abs() < 1e-9, "{t:?}");
}
