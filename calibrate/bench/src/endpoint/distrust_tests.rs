//! Servers whose counts, words and refusals are not to be taken as they come.

use super::*;
use crate::testing::{Answer, Server};

fn request(max_tokens: u32) -> GenerateRequest {
    GenerateRequest::new(Prompt::Text("Hello".into()), max_tokens)
}

fn client(server: &Server, api: ApiKind) -> Client {
    Client::new(Endpoint {
        api,
        ..Endpoint::new(&server.url).unwrap()
    })
    .unwrap()
}

/// A request for `max_tokens` tokens that is answered by `chunks` chunks of text and `usage`.
async fn told(max_tokens: u32, chunks: u32, usage: &str) -> RequestTrace {
    let mut events: Vec<String> = (0..chunks)
        .map(|i| format!(r#"{{"choices":[{{"text":" w{i}","finish_reason":null}}]}}"#))
        .collect();
    events.push(format!(
        r#"{{"choices":[{{"text":"","finish_reason":"length"}}],"usage":{usage}}}"#
    ));
    events.push("[DONE]".into());
    let server = Server::start(move |_, _| {
        Answer::events(&events.iter().map(String::as_str).collect::<Vec<_>>())
    })
    .await;
    client(&server, ApiKind::Completions)
        .send(&request(max_tokens))
        .await
}

#[tokio::test]
async fn counts_that_cannot_be_true_are_not_believed_and_the_chunks_are_counted() {
    use UsageFault::{AboveMaxTokens, BelowChunks, CachedTokens, NotACount, PromptTokens};
    for (usage, fault) in [
        (
            r#"{"prompt_tokens":2,"completion_tokens":5000}"#,
            AboveMaxTokens,
        ),
        (
            r#"{"prompt_tokens":2,"completion_tokens":5}"#,
            AboveMaxTokens,
        ),
        (r#"{"prompt_tokens":2,"completion_tokens":3}"#, BelowChunks),
        (r#"{"prompt_tokens":2,"completion_tokens":0}"#, BelowChunks),
        (r#"{"prompt_tokens":2,"completion_tokens":-4}"#, NotACount),
        (r#"{"prompt_tokens":2,"completion_tokens":4.5}"#, NotACount),
        (r#"{"prompt_tokens":2,"completion_tokens":"4"}"#, NotACount),
        (
            r#"{"prompt_tokens":2,"completion_tokens":99999999999999999999}"#,
            NotACount,
        ),
        (
            r#"{"prompt_tokens":4000000,"completion_tokens":4}"#,
            PromptTokens,
        ),
        (r#"{"prompt_tokens":0,"completion_tokens":4}"#, PromptTokens),
        (
            r#"{"prompt_tokens":2,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":9}}"#,
            CachedTokens,
        ),
    ] {
        let trace = told(4, 4, usage).await;
        assert_eq!(trace.error, None, "{usage}");
        assert_eq!(trace.usage_faults, [fault], "{usage}");
        assert_eq!(trace.output_tokens(), 4, "{usage}");
        let left = trace.usage.unwrap();
        match fault {
            PromptTokens => assert_eq!(left.prompt_tokens, None),
            CachedTokens => assert_eq!(left.cached_tokens, None),
            _ => assert_eq!(
                (left.completion_tokens, trace.counted),
                (None, CountSource::Unconfirmed),
                "{usage}"
            ),
        }
    }
}

#[tokio::test]
async fn counts_that_can_be_true_are_believed() {
    for (max_tokens, chunks, usage, tokens) in [
        (8, 4, r#"{"prompt_tokens":2,"completion_tokens":8}"#, 8),
        (8, 4, r#"{"prompt_tokens":2.0,"completion_tokens":4.0}"#, 4),
        (8, 4, r#"{"prompt_tokens":1500,"completion_tokens":5}"#, 5),
        (8, 4, r#"{"prompt_tokens":2,"completion_tokens":null}"#, 4),
        // A server that takes no notice of max_tokens.
        (2, 4, r#"{"prompt_tokens":2,"completion_tokens":4}"#, 4),
    ] {
        let trace = told(max_tokens, chunks, usage).await;
        assert_eq!(trace.usage_faults, [], "{usage}");
        assert_eq!(trace.output_tokens(), tokens, "{usage}");
    }
}

#[tokio::test]
async fn running_counts_that_cannot_be_true_are_not_believed_either() {
    let server = Server::start(|i, _| {
        let so_far = [[900, 1800, 2700], [1, 1, 1]][i];
        let events: Vec<String> = (0..3)
            .map(|k| {
                let reason = if k == 2 { "\"length\"" } else { "null" };
                format!(
                    r#"{{"choices":[{{"text":" w","finish_reason":{reason}}}],"usage":{{"prompt_tokens":2,"completion_tokens":{}}}}}"#,
                    so_far[k]
                )
            })
            .collect();
        Answer::events(&events.iter().map(String::as_str).collect::<Vec<_>>())
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    for fault in [UsageFault::AboveMaxTokens, UsageFault::BelowChunks] {
        let trace = client.send(&request(3)).await;
        assert_eq!(trace.usage_faults, [fault]);
        assert_eq!((trace.output_tokens(), trace.chunks.len()), (3, 3));
    }
}

#[tokio::test]
async fn tgi_may_not_count_what_no_model_can_generate() {
    let server = Server::start(|_, _| {
        Answer::events(&[
            r#"{"token":{"id":5,"text":" a","special":false}}"#,
            r#"{"token":{"id":6,"text":" b","special":false},"generated_text":" a b","details":{"finish_reason":"length","generated_tokens":-2,"input_length":3}}"#,
        ])
    })
    .await;
    let trace = client(&server, ApiKind::Tgi).send(&request(2)).await;
    assert_eq!(trace.error, None);
    assert_eq!(trace.usage_faults, [UsageFault::NotACount]);
    assert_eq!(trace.output_tokens(), 2);
    assert_eq!(trace.usage.unwrap().prompt_tokens, Some(3));
}

#[tokio::test]
async fn the_prompt_tokens_that_llama_server_cached_are_read_from_its_timings() {
    let server = Server::start(|_, _| {
        Answer::events(&[
            r#"{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":40,"completion_tokens":1},"timings":{"cache_n":32,"prompt_n":8,"prompt_ms":1.0,"predicted_n":1,"predicted_ms":1.0}}"#,
        ])
    })
    .await;
    let trace = client(&server, ApiKind::Completions)
        .send(&request(1))
        .await;
    assert_eq!(trace.usage.unwrap().cached_tokens, Some(32));
}

#[tokio::test]
async fn refused_requests_leave_their_connection_to_the_next() {
    let server = Server::start(|_, _| {
        Answer::json("500 Internal Server Error", r#"{"error":"engine dead"}"#)
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    for _ in 0..5 {
        let error = client.send(&request(2)).await.error.unwrap();
        assert_eq!(error.kind, ErrorKind::Status(500));
    }
    let counts = client.connections();
    assert_eq!((counts.opened, counts.reused), (1, 4));
}

#[tokio::test]
async fn what_a_server_says_cannot_act_on_a_terminal() {
    let server = Server::start(|i, _| match i {
        0 => Answer::json(
            "500 Internal Server Error",
            &format!("\u{1b}]0;owned\u{7}\r\n\u{202e}{}", "x".repeat(5000)),
        ),
        1 => Answer::events(&["{\"error\":{\"message\":\"\\u001b[2Jgone\"}}"]),
        _ => Answer::events(&["\u{1b}[31mnot json"]),
    })
    .await;
    let client = client(&server, ApiKind::Completions);
    for escaped in [
        "\\u{1b}]0;owned\\u{7}\\r\\n\\u{202e}x",
        "\\u{1b}[2Jgone",
        "\\u{1b}[31mnot",
    ] {
        let message = client.send(&request(2)).await.error.unwrap().message;
        assert!(message.contains(escaped), "{message}");
        assert!(!message.contains(|c: char| c.is_control() || c == '\u{202e}'));
        assert!(message.chars().count() < 520, "{}", message.len());
    }
}

#[tokio::test]
async fn localhost_is_this_machine_whatever_the_resolver_says() {
    let server = Server::start(|_, _| {
        Answer::events(&[r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#])
    })
    .await;
    let port = server.url.rsplit(':').next().unwrap();
    for host in ["localhost", "LocalHost", "localhost.", "engine.localhost"] {
        for url in [format!("http://{host}:{port}"), format!("{host}:{port}/v1")] {
            let client = Client::new(Endpoint::new(&url).unwrap()).unwrap();
            let trace = client.send(&request(1)).await;
            assert_eq!(trace.error, None, "{url}");
        }
    }
    // A name that only looks like it goes to the resolver.
    assert_eq!(connection::loopback("localhost.example", 80), None);
    assert_eq!(connection::loopback("notlocalhost", 80), None);
}
