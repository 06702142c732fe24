//! Each way in which a known server breaks clients, against a scripted one.

use std::time::Duration;

use super::*;
use crate::testing::{Answer, Server};

fn request(max_tokens: u32) -> GenerateRequest {
    GenerateRequest::new(Prompt::Text("Hello".into()), max_tokens)
}

fn client(server: &Server, api: ApiKind) -> Client {
    Client::new(Endpoint {
        api,
        model: Some("m".into()),
        ..Endpoint::new(&server.url).unwrap()
    })
    .unwrap()
}

fn choice(text: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"text":"{text}","finish_reason":null}}]}}"#
    )
}

/// llama-server on /v1/completions: tokens, then a last choice chunk without text that carries usage and timings.
fn llama_events(tokens: u32) -> Vec<String> {
    let mut events: Vec<String> = (0..tokens).map(|i| choice(&format!(" w{i}"))).collect();
    events.push(format!(
        r#"{{"choices":[{{"text":"","index":0,"logprobs":null,"finish_reason":"length"}}],"created":1,"model":"m","object":"text_completion","usage":{{"completion_tokens":{tokens},"prompt_tokens":128,"total_tokens":{}}},"id":"chatcmpl-x","timings":{{"cache_n":0,"prompt_n":128,"prompt_ms":50.5,"prompt_per_token_ms":0.39,"predicted_n":{tokens},"predicted_ms":200.25,"predicted_per_second":31.9}}}}"#,
        tokens + 128
    ));
    events.push("[DONE]".into());
    events
}

fn answer(events: &[String]) -> Answer {
    Answer::events(&events.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_connection_closed_after_a_stream_in_spite_of_keep_alive_loses_no_request() {
    let server = Server::start(|_, _| Answer {
        close: true,
        ..answer(&llama_events(3))
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    for _ in 0..5 {
        let trace = client.send(&request(3)).await;
        assert_eq!(trace.error, None);
        assert_eq!(trace.output_tokens(), 3);
        // Time for the server's FIN to arrive.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let counts = client.connections();
    assert_eq!(counts.opened, 5, "{counts:?}");
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn a_kept_connection_that_swallows_a_request_costs_one_retry_and_says_so() {
    // The second request arrives on the kept connection and gets nothing; the retry comes on a fresh one.
    let server = Server::start(|i, _| Answer {
        silent: i == 1,
        ..answer(&llama_events(2))
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    assert!(client.send(&request(2)).await.ok());
    let trace = client.send(&request(2)).await;
    assert_eq!(trace.error, None);
    assert!(trace.stale_retry && !trace.reused);
    assert_eq!(trace.output_tokens(), 2);
    let counts = client.connections();
    assert_eq!(
        (counts.opened, counts.reused, counts.stale_retries),
        (2, 1, 1)
    );
    assert_eq!(server.requests()[2].connection, 1);
}

#[tokio::test]
async fn a_fresh_connection_that_breaks_is_an_error_and_not_tried_again() {
    let server = Server::start(|_, _| Answer {
        silent: true,
        ..Answer::events(&[])
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    let trace = client.send(&request(2)).await;
    assert_eq!(trace.error.unwrap().kind, ErrorKind::Disconnected);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn connections_of_a_server_that_keeps_them_are_used_again_unless_forbidden() {
    let server = Server::start(|_, _| answer(&llama_events(1))).await;
    let keeping = client(&server, ApiKind::Completions);
    let without = Client::new(Endpoint {
        keep_alive: false,
        ..Endpoint::new(&server.url).unwrap()
    })
    .unwrap();
    for _ in 0..3 {
        assert!(keeping.send(&request(1)).await.ok());
        assert!(without.send(&request(1)).await.ok());
    }
    assert_eq!(
        (keeping.connections().opened, keeping.connections().reused),
        (1, 2)
    );
    assert_eq!(
        (without.connections().opened, without.connections().reused),
        (3, 0)
    );
}

#[tokio::test]
async fn usage_in_the_last_choice_chunk_counts_and_the_chunk_is_no_token() {
    let server = Server::start(|_, _| answer(&llama_events(64))).await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(64))
        .await;
    assert_eq!(trace.error, None);
    assert_eq!(trace.chunks.len(), 64);
    assert_eq!(trace.output_tokens(), 64);
    assert_eq!(trace.counted, CountSource::Confirmed);
    assert_eq!(trace.gaps().map(|g| g.2).sum::<u32>(), 63);
    assert_eq!(trace.usage.unwrap().prompt_tokens, Some(128));
    assert_eq!(trace.finish_reason.as_deref(), Some("length"));
    let timings = trace.timings.unwrap();
    assert_eq!((timings.prompt_tokens, timings.predicted_tokens), (128, 64));
    assert!(
        (timings.prompt_s - 0.0505).abs() < 1e-12 && (timings.predicted_s - 0.20025).abs() < 1e-12
    );
    assert!(!trace.short);
}

#[tokio::test]
async fn a_null_or_empty_first_chat_delta_is_no_token_and_usage_may_come_in_a_chunk_of_its_own() {
    for first in ["null", "\"\""] {
        let role = format!(
            r#"{{"choices":[{{"index":0,"delta":{{"role":"assistant","content":{first}}},"finish_reason":null}}]}}"#
        );
        let token = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
        // vLLM puts the reason on the last token's chunk, llama-server on an extra empty one.
        for last in [
            vec![r#"{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}]}"#],
            vec![
                r#"{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}"#,
                r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#,
            ],
        ] {
            let mut events = vec![role.as_str(), token];
            events.extend(last);
            events.push(r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#);
            events.push("[DONE]");
            let script = Answer::events(&events);
            let server = Server::start(move |_, _| script.clone()).await;
            let trace = client(&server, ApiKind::Chat).send(&request(2)).await;
            assert_eq!(trace.error, None);
            assert_eq!(
                (trace.chunks.len(), trace.counted),
                (2, CountSource::Confirmed)
            );
            assert_eq!(trace.usage.unwrap().cached_tokens, Some(4));
            let body: serde_json::Value = serde_json::from_str(&server.requests()[0].body).unwrap();
            assert_eq!(body["messages"][0]["content"], "Hello");
        }
    }
}

#[tokio::test]
async fn a_token_whose_text_is_held_back_is_stamped_when_its_empty_chunk_comes() {
    // vLLM: two tokens of a broken character, its end, a stop string's beginning, and what it turned out to be.
    let pause = Duration::from_millis(15);
    let texts = ["", "", "\u{e9}", "", "<b"];
    for (api, with_usage) in [
        (ApiKind::Completions, true),
        (ApiKind::Completions, false),
        (ApiKind::Chat, true),
        (ApiKind::Chat, false),
    ] {
        let mut events = Vec::new();
        if api == ApiKind::Chat {
            events.push(
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#
                    .to_string(),
            );
        }
        for (i, text) in texts.iter().enumerate() {
            let reason = if i == 4 { "\"length\"" } else { "null" };
            let said = match api {
                ApiKind::Chat => format!(r#""delta":{{"content":"{text}"}}"#),
                _ => format!(r#""text":"{text}""#),
            };
            events.push(format!(
                r#"{{"choices":[{{"index":0,{said},"logprobs":null,"finish_reason":{reason}}}]}}"#
            ));
        }
        if with_usage {
            events.push(
                r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}"#.to_string(),
            );
        }
        events.push("[DONE]".to_string());
        let mut script = answer(&events).spaced(pause);
        // The role comes at once, as if the request then waited for its turn.
        if api == ApiKind::Chat {
            script.pieces[0].0 = Duration::ZERO;
        }
        let server = Server::start(move |_, _| script.clone()).await;
        let trace = client(&server, api).send(&request(5)).await;
        assert_eq!(trace.error, None);
        let source = if with_usage {
            CountSource::Confirmed
        } else {
            CountSource::Unconfirmed
        };
        assert_eq!(
            (trace.chunks.len(), trace.output_tokens(), trace.counted),
            (5, 5, source),
            "{api:?}"
        );
        // A busy machine makes these longer, never shorter: the role is no first token, the first empty chunk is.
        assert!(trace.first_token_ns().unwrap() >= pause.as_nanos() as u64);
        let span = trace.last_token_ns().unwrap() - trace.first_token_ns().unwrap();
        assert!(span >= 3 * pause.as_nanos() as u64, "{span}");
        assert_eq!(trace.gaps().map(|g| g.2).sum::<u32>(), 4);
    }
}

#[tokio::test]
async fn a_refused_field_is_dropped_with_a_note_and_the_request_sent_again() {
    let server = Server::start(|_, seen| {
        if seen.body.contains("ignore_eos") {
            Answer::json(
                "422 Unprocessable Entity",
                r#"{"detail":"Unexpected fields in the request: {'ignore_eos'}"}"#,
            )
        } else {
            answer(&llama_events(2))
        }
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    let trace = client.send(&request(4)).await;
    assert_eq!(trace.error, None);
    assert_eq!(trace.resent, 1);
    assert!(trace.short, "two of four tokens");
    assert!(client.send(&request(4)).await.ok());
    assert_eq!(
        server.requests().len(),
        3,
        "the second request does not try it again"
    );
    let notes = client.notes();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].contains("ignore_eos") && notes[0].contains("422"),
        "{notes:?}"
    );
}

#[tokio::test]
async fn a_refusal_that_names_no_optional_field_is_an_error_with_its_status() {
    for (status, code) in [
        ("422 Unprocessable Entity", 422),
        ("429 Too Many Requests", 429),
        ("503 Service Unavailable", 503),
    ] {
        let server = Server::start(move |_, _| {
            Answer::json(status, r#"{"error":{"message":"no room","type":"x"}}"#)
        })
        .await;
        let error = client(&server, ApiKind::Completions)
            .send(&request(2))
            .await
            .error
            .unwrap();
        assert_eq!(error.kind, ErrorKind::Status(code));
        assert!(error.message.contains("no room"), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn the_index_of_a_choice_may_count_tokens() {
    // guidellm's mock server does that.
    let events: Vec<String> = (0..5)
        .map(|i| format!(r#"{{"choices":[{{"index":{i},"text":"w ","finish_reason":null}}]}}"#))
        .chain([
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":5}}"#.into(),
            "[DONE]".into(),
        ])
        .collect();
    let server = Server::start(move |_, _| answer(&events)).await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(5))
        .await;
    assert_eq!((trace.error, trace.chunks.len()), (None, 5));
}

#[tokio::test]
async fn running_usage_counts_the_tokens_of_each_chunk() {
    // vLLM with continuous_usage_stats: two tokens in the second chunk, one without text in the third.
    let chunk = |text: &str, so_far: u32, reason: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":{reason}}}],"usage":{{"prompt_tokens":7,"total_tokens":9,"completion_tokens":{so_far}}}}}"#
        )
    };
    let events = vec![
        chunk("a", 1, "null"),
        chunk("bc", 3, "null"),
        chunk("", 4, "null"),
        chunk("d", 5, "\"length\""),
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#.to_string(),
        "[DONE]".to_string(),
    ];
    let server = Server::start(move |_, _| answer(&events)).await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(5))
        .await;
    assert_eq!(trace.counted, CountSource::PerChunk);
    assert_eq!(
        trace.chunks.iter().map(|c| c.tokens).collect::<Vec<_>>(),
        [1, 2, 1, 1]
    );
    assert_eq!(trace.multi_token_chunks(), 1);
    let body: serde_json::Value = serde_json::from_str(&server.requests()[0].body).unwrap();
    assert_eq!(body["stream_options"]["continuous_usage_stats"], true);
    assert_eq!(body["ignore_eos"], true);
    assert_eq!(body["min_tokens"], 5);
}

#[tokio::test]
async fn each_chunk_is_stamped_when_its_bytes_arrive() {
    let pause = Duration::from_millis(20);
    let mut script = answer(&llama_events(6)).spaced(pause);
    script.pieces.truncate(7);
    let server = Server::start(move |_, _| script.clone()).await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(6))
        .await;
    assert_eq!(trace.error, None);
    // A busy machine makes gaps longer, never shorter than the pause in the mean.
    let span = trace.last_token_ns().unwrap() - trace.first_token_ns().unwrap();
    assert!(span >= 4 * pause.as_nanos() as u64, "{span}");
    assert!(trace.chunks.windows(2).all(|w| w[0].at_ns <= w[1].at_ns));
}

#[tokio::test]
async fn events_that_are_cut_or_come_together_are_the_same_events() {
    let whole: String = llama_events(4)
        .iter()
        .map(|e| format!("data: {e}\n\n"))
        .collect();
    let (a, b) = whole.split_at(whole.len() / 3);
    let pieces = vec![
        (Duration::ZERO, a.to_string()),
        (Duration::from_millis(3), b.to_string()),
    ];
    let server = Server::start(move |_, _| Answer {
        pieces: pieces.clone(),
        ..Answer::events(&[])
    })
    .await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(4))
        .await;
    assert_eq!(trace.error, None);
    assert_eq!(trace.output_tokens(), 4);
}

#[tokio::test]
async fn a_stream_that_stops_in_the_middle_is_an_error_and_keeps_what_came() {
    let server = Server::start(|_, _| Answer {
        cut: true,
        ..answer(&llama_events(9)[..4])
    })
    .await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(9))
        .await;
    assert_eq!(trace.output_tokens(), 4);
    assert_eq!(trace.error.unwrap().kind, ErrorKind::Disconnected);
    // An orderly end without a mark of the end is no answer either.
    let server = Server::start(|_, _| answer(&llama_events(9)[..4])).await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(9))
        .await;
    assert_eq!(trace.error.unwrap().kind, ErrorKind::BadStream);
}

#[tokio::test]
async fn an_error_within_the_stream_and_bytes_that_are_no_json_are_told_apart() {
    let server = Server::start(|i, _| {
        Answer::events(&[
            &choice("a"),
            [
                r#"{"error":{"message":"engine died","code":500}}"#,
                "<html>",
            ][i],
        ])
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    let error = client.send(&request(3)).await.error.unwrap();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::Server, "engine died")
    );
    assert_eq!(
        client.send(&request(3)).await.error.unwrap().kind,
        ErrorKind::BadStream
    );
}

#[tokio::test]
async fn a_request_that_takes_too_long_or_is_given_up_keeps_the_tokens_it_got() {
    let server =
        Server::start(|_, _| answer(&llama_events(500)).spaced(Duration::from_millis(10))).await;
    let client = client(&server, ApiKind::Completions);
    let patient = GenerateRequest {
        timeout: Some(Duration::from_millis(300)),
        ..request(500)
    };
    let trace = client.send(&patient).await;
    assert_eq!(trace.error.as_ref().unwrap().kind, ErrorKind::Timeout);
    assert!(trace.output_tokens() > 0 && trace.output_tokens() < 500);
    let trace = client
        .send_until(
            &request(500),
            tokio::time::sleep(Duration::from_millis(300)),
        )
        .await;
    assert_eq!(trace.error.as_ref().unwrap().kind, ErrorKind::Cancelled);
    assert!(trace.output_tokens() > 0);
}

#[tokio::test]
async fn nobody_listening_is_a_connect_error() {
    let port = {
        let l = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        l.local_addr().unwrap().port()
    };
    let client = Client::new(Endpoint::new(&format!("127.0.0.1:{port}")).unwrap()).unwrap();
    let error = client.send(&request(1)).await.error.unwrap();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(error.message.contains(&port.to_string()), "{error}");
}

#[tokio::test]
async fn tgi_sends_one_token_an_event_and_its_count_with_the_last() {
    let events = vec![
        r#"{"index":1,"token":{"id":5,"text":" a","logprob":-1.0,"special":false},"generated_text":null,"details":null}"#.to_string(),
        r#"{"index":2,"token":{"id":6,"text":"","logprob":-1.0,"special":false},"generated_text":null,"details":null}"#.to_string(),
        r#"{"index":3,"token":{"id":7,"text":" c","logprob":-1.0,"special":false},"generated_text":" a c","details":{"finish_reason":"length","generated_tokens":3,"seed":null,"input_length":11}}"#.to_string(),
    ];
    let server = Server::start(move |_, _| answer(&events)).await;
    let trace = client(&server, ApiKind::Tgi)
        .send(&GenerateRequest {
            keep_output: true,
            ..request(3)
        })
        .await;
    assert_eq!(trace.error, None);
    assert_eq!(
        (trace.output_tokens(), trace.counted),
        (3, CountSource::PerChunk)
    );
    assert_eq!(trace.token_ids.as_deref(), Some(&[5, 6, 7][..]));
    assert_eq!(trace.text.as_deref(), Some(" a c"));
    assert_eq!(trace.usage.unwrap().prompt_tokens, Some(11));
    let seen = &server.requests()[0];
    assert!(
        seen.head.starts_with("POST /generate_stream "),
        "{}",
        seen.head
    );
    let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(
        (
            body["inputs"].as_str(),
            body["parameters"]["max_new_tokens"].as_u64()
        ),
        (Some("Hello"), Some(3))
    );
}

#[tokio::test]
async fn tritons_stream_ends_without_a_mark() {
    let events: Vec<String> = (0..4)
        .map(|i| format!(r#"{{"model_name":"ensemble","model_version":"1","sequence_end":false,"text_output":" w{i}"}}"#))
        .collect();
    let server = Server::start(move |_, _| answer(&events)).await;
    let trace = client(&server, ApiKind::Triton).send(&request(4)).await;
    assert_eq!(trace.error, None);
    assert_eq!(trace.output_tokens(), 4);
    assert_eq!(trace.counted, CountSource::Unconfirmed);
    assert!(
        server.requests()[0]
            .head
            .starts_with("POST /v2/models/m/generate_stream ")
    );
}

#[tokio::test]
async fn token_ids_go_to_the_completions_api_only() {
    let server = Server::start(|_, _| answer(&llama_events(1))).await;
    let ids = GenerateRequest::new(Prompt::Tokens(vec![3, 1, 2]), 1);
    assert!(client(&server, ApiKind::Completions).send(&ids).await.ok());
    let body: serde_json::Value = serde_json::from_str(&server.requests()[0].body).unwrap();
    assert_eq!(body["prompt"], serde_json::json!([3, 1, 2]));
    let error = client(&server, ApiKind::Chat)
        .send(&ids)
        .await
        .error
        .unwrap();
    assert_eq!(error.kind, ErrorKind::Request);
}

#[tokio::test]
async fn keys_and_headers_are_sent_and_bad_ones_refused_without_showing_the_key() {
    let server = Server::start(|_, _| answer(&llama_events(1))).await;
    let endpoint = Endpoint {
        api_key: Some("sk-1".into()),
        headers: vec![("X-Route".into(), "b".into())],
        ..Endpoint::new(&server.url).unwrap()
    };
    assert!(
        Client::new(endpoint.clone())
            .unwrap()
            .send(&request(1))
            .await
            .ok()
    );
    let head = server.requests()[0].head.to_ascii_lowercase();
    assert!(
        head.contains("authorization: bearer sk-1") && head.contains("x-route: b"),
        "{head}"
    );
    let bad = Client::new(Endpoint {
        api_key: Some("se\ncret".into()),
        ..endpoint
    });
    let message = bad.err().unwrap().to_string();
    assert!(!message.contains("cret"), "{message}");
}

#[test]
fn addresses_are_checked_and_v1_is_not_doubled() {
    for bad in ["", "ftp://x", "http://", "http://a b", "http://h/p?q=1"] {
        assert!(Endpoint::new(bad).is_err(), "{bad}");
    }
    let secret = Endpoint::new("http://me:secret@h").unwrap_err().to_string();
    assert!(
        secret.contains("Authorization") && !secret.contains("secret@"),
        "{secret}"
    );
    let path = |url: &str| Endpoint::new(url).unwrap().generate_path();
    assert_eq!(path("localhost:8000"), "/v1/completions");
    assert_eq!(path("http://h/v1/"), "/v1/completions");
    assert_eq!(path("https://h/models/a"), "/models/a/v1/completions");
    let v6 = Endpoint::new("https://[::1]").unwrap();
    assert_eq!((v6.host(), v6.port(), v6.is_tls()), ("::1", 443, true));
}

#[tokio::test]
async fn certificates_are_checked_against_the_given_authorities_unless_told_otherwise() {
    let server = Server::start_tls(|_, _| answer(&llama_events(2))).await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, include_bytes!("../testing/cert.pem")).unwrap();
    let with = |tls: TlsOptions| Endpoint {
        tls,
        ..Endpoint::new(&server.url).unwrap()
    };
    let unknown = Client::new(with(TlsOptions::default())).unwrap();
    let error = unknown.send(&request(2)).await.error.unwrap();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(error.message.contains("TLS"), "{error}");
    for tls in [
        TlsOptions {
            ca_file: Some(ca.clone()),
            insecure: false,
        },
        TlsOptions {
            ca_file: None,
            insecure: true,
        },
    ] {
        let trace = Client::new(with(tls)).unwrap().send(&request(2)).await;
        assert_eq!(trace.error, None);
        assert_eq!(trace.output_tokens(), 2);
    }
    std::fs::write(&ca, "no certificate").unwrap();
    let bad = Client::new(with(TlsOptions {
        ca_file: Some(ca),
        insecure: false,
    }));
    assert!(matches!(bad, Err(EndpointError::CaFile { .. })));
}
