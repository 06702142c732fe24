//! The HTTP interface over loopback, with a toy forward pass: what clients get, and what they cannot break.

use std::sync::Arc;
use std::time::Duration;

use crate::testkit::server::*;
use crate::testkit::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn whole_and_streamed_completions_are_the_toys_words_with_exact_usage() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let prompt = "Say something.";
    let ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let words = text().decode(&expected(&ids, 12), true);
    let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
    let (status, a) = post(&r, "/v1/completions", &body).await;
    assert_eq!((status, &a["choices"][0]["text"]), (200, &json!(words)));
    assert_eq!(a["choices"][0]["finish_reason"], "length");
    assert_eq!(
        (
            &a["usage"]["prompt_tokens"],
            &a["usage"]["completion_tokens"]
        ),
        (&json!(14), &json!(12))
    );
    let by_ids = json!({"prompt": ids, "max_tokens": 12, "temperature": 0});
    assert_eq!(
        post(&r, "/v1/completions", &by_ids).await.1["choices"][0]["text"],
        a["choices"][0]["text"]
    );
    for options in [
        json!({"include_usage": true}),
        json!({"include_usage": true, "continuous_usage_stats": true}),
    ] {
        let continuous = options.get("continuous_usage_stats").is_some();
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "stream": true,
            "stream_options": options, "return_token_ids": true});
        let s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
        let (status, head, body) = answer(s).await;
        assert_eq!(status, 200);
        assert!(head.contains("text/event-stream"), "{head}");
        assert!(body.ends_with("data: [DONE]\n\n"));
        let mut all = events(&body);
        let usage = all.pop().unwrap();
        assert_eq!(
            (&usage["choices"], &usage["usage"]["completion_tokens"]),
            (&json!([]), &json!(12))
        );
        let said: String = all
            .iter()
            .filter_map(|e| e["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(said, words);
        let tokens: usize = all
            .iter()
            .map(|e| e["choices"][0]["token_ids"].as_array().unwrap().len())
            .sum();
        assert_eq!(tokens, 12);
        assert_eq!(all.last().unwrap()["choices"][0]["finish_reason"], "length");
        assert_eq!(all[0].get("usage").is_some(), continuous);
    }
    assert_empty(&r.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_go_through_the_template_and_begin_with_a_role() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let (_, t) = post(&r, "/tokenize", &json!({"messages": messages})).await;
    assert_eq!(t["count"], "[user] hi\n".len());
    let ids: Vec<u32> = "[user] hi\n".bytes().map(u32::from).collect();
    let words = text().decode(&expected(&ids, 6), true);
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 2});
    let (status, a) = post(&r, "/v1/chat/completions", &body).await;
    assert_eq!(
        (status, &a["choices"][0]["message"]["content"]),
        (200, &json!(words))
    );
    let logprobs = a["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(
        (
            logprobs.len(),
            logprobs[0]["top_logprobs"].as_array().unwrap().len()
        ),
        (6, 2)
    );
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "stream": true});
    let (_, _, body) =
        answer(send(&r, "POST", "/v1/chat/completions", "", &body.to_string()).await).await;
    let all = events(&body);
    assert_eq!(
        all[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let said: String = all
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(said, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_has_an_event_of_its_own_also_when_nothing_can_be_shown_yet() {
    let r = serve(Duration::ZERO, |_| {}).await;
    const TOKENS: usize = 400;
    // Every second letter may begin a stop string that never comes; some bytes are no characters.
    let stops: Vec<String> = ('A'..='Z')
        .step_by(2)
        .map(|c| format!("{c}\u{1}"))
        .collect();
    for (path, ask) in [
        ("/v1/completions", json!({"prompt": "Say something."})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "Say."}]}),
        ),
    ] {
        let chat = path.contains("chat");
        let (_, asked) = post(&r, "/tokenize", &ask).await;
        let ids: Vec<u32> = serde_json::from_value(asked["tokens"].clone()).unwrap();
        let tokens = expected(&ids, TOKENS);
        let words = text().decode(&tokens, true);
        assert!(words.contains('\u{fffd}'), "broken UTF-8 is among them");
        let mut body = json!({"max_tokens": TOKENS, "temperature": 0, "stream": true, "ignore_eos": true,
            "stop": stops, "stream_options": {"include_usage": true}, "return_token_ids": true});
        let fields = body.as_object_mut().unwrap();
        fields.extend(ask.as_object().unwrap().clone());
        let (status, _, body) = answer(send(&r, "POST", path, "", &body.to_string()).await).await;
        assert_eq!(status, 200, "{body}");
        let mut all = events(&body);
        let usage = all.pop().unwrap();
        assert_eq!(usage["usage"]["completion_tokens"], TOKENS);
        if chat {
            assert_eq!(all.remove(0)["choices"][0]["delta"]["role"], "assistant");
        }
        let choices: Vec<&Value> = all.iter().map(|e| &e["choices"][0]).collect();
        let got: Vec<Value> = choices.iter().map(|c| c["token_ids"].clone()).collect();
        let want: Vec<Value> = tokens.iter().map(|t| json!([t])).collect();
        assert_eq!(got, want, "one token an event, in order");
        let said: Vec<&str> = choices
            .iter()
            .map(|c| {
                if chat {
                    &c["delta"]["content"]
                } else {
                    &c["text"]
                }
            })
            .map(|t| t.as_str().unwrap())
            .collect();
        assert!(said.contains(&""), "some had nothing to show");
        assert_eq!(said.concat(), words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_gets_its_status_and_says_why() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let long = json!({"prompt": "x".repeat(5000), "max_tokens": 5}).to_string();
    let huge = json!({"prompt": "x".repeat(200_000)}).to_string();
    for (path, body, status, word) in [
        ("/v1/completions", "{", 400, "JSON"),
        ("/v1/completions", "\u{fffd}\u{0}", 400, "JSON"),
        ("/v1/completions", "{}", 400, "prompt"),
        ("/v1/completions", r#"{"prompt": ""}"#, 400, "empty"),
        (
            "/v1/completions",
            r#"{"prompt": [999999]}"#,
            400,
            "vocabulary",
        ),
        (
            "/v1/completions",
            r#"{"prompt": [1, -2]}"#,
            400,
            "token ids",
        ),
        (
            "/v1/completions",
            r#"{"prompt": ["a", 5]}"#,
            400,
            "list of either",
        ),
        (
            "/v1/completions",
            r#"{"prompt": ["a", "b"], "n": 100, "max_tokens": 4096}"#,
            400,
            "maximum context length",
        ),
        ("/tokenize", r#"{"prompt": ["a", "b"]}"#, 400, "one prompt"),
        (
            "/v1/completions",
            r#"{"prompt": "a", "max_tokens": 0}"#,
            400,
            "max_tokens",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "max_tokens": 99999}"#,
            400,
            "maximum context length",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "model": "other"}"#,
            404,
            "other",
        ),
        (
            "/v1/completions",
            long.as_str(),
            400,
            "maximum context length",
        ),
        ("/v1/completions", huge.as_str(), 413, "at most"),
        (
            "/v1/chat/completions",
            r#"{"messages": []}"#,
            400,
            "messages",
        ),
        ("/v1/nothing", "{}", 404, "/v1/nothing"),
        ("/health", "{}", 405, "POST"),
    ] {
        let (got, _, text) = answer(send(&r, "POST", path, "", body).await).await;
        let short: String = body.chars().take(40).collect();
        assert_eq!(got, status, "{path} {short}: {text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{path} {short}: {message}");
        assert_eq!(error["error"]["code"], status);
    }
    assert_empty(&r.engine).await;
    assert_eq!(r.engine.under_way(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_guards_the_interface_but_not_health_and_metrics() {
    let r = serve_with(
        Duration::ZERO,
        Some("secret".into()),
        Duration::from_secs(20),
        |_| {},
    )
    .await;
    for (headers, status) in [
        ("", 401),
        ("authorization: Bearer wrong!\r\n", 401),
        ("authorization: Bearer secret\r\n", 200),
    ] {
        let (got, _, _) = answer(send(&r, "GET", "/v1/models", headers, "").await).await;
        assert_eq!(got, status, "{headers}");
    }
    for path in ["/health", "/metrics"] {
        assert_eq!(answer(send(&r, "GET", path, "", "").await).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_at_once_are_all_answered_though_clients_vanish_and_dawdle() {
    let r = Arc::new(serve(Duration::from_micros(200), |_| {}).await);
    let mut tasks = Vec::new();
    for i in 0..1000u32 {
        let r = r.clone();
        tasks.push(tokio::spawn(async move {
            let stream = i % 2 == 0;
            let body = json!({"prompt": [i % 250, 2, 3], "max_tokens": 10 + i % 20, "temperature": 0,
                "stream": stream, "stream_options": stream.then(|| json!({"include_usage": true}))});
            let mut s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
            match i % 10 {
                // Vanishes at once, or in the middle.
                0 => drop(s),
                1 | 2 => {
                    let mut some = [0; 50];
                    let _ = tokio::time::timeout(Duration::from_millis(30), s.read(&mut some)).await;
                }
                kind => {
                    if kind == 3 {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    let (status, _, text) = answer(s).await;
                    assert_eq!(status, 200, "{text}");
                    let made = if stream {
                        events(&text).pop().unwrap()["usage"]["completion_tokens"].clone()
                    } else {
                        serde_json::from_str::<Value>(&text).unwrap()["usage"]["completion_tokens"].clone()
                    };
                    assert_eq!(made, 10 + i % 20);
                    return 1u64;
                }
            }
            0
        }));
    }
    let mut answered = 0;
    for t in tasks {
        answered += t.await.unwrap();
    }
    assert_eq!(answered, 700);
    assert_empty(&r.engine).await;
    let ends = r.engine.metrics()[0].ends();
    // Those that vanished before their request was read were never requests.
    assert!(ends[1] >= 700 && ends[3] == 0, "{ends:?}");
    assert!(ends.iter().sum::<u64>() <= 1000, "{ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_place_also_before_its_first_token() {
    let r = serve(Duration::from_millis(5), |_| {}).await;
    for stream in [true, false] {
        let body = json!({"prompt": "abc", "max_tokens": 3000, "stream": stream});
        let s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
        while r.engine.under_way() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(s);
        assert_empty(&r.engine).await;
    }
    assert_eq!(r.engine.metrics()[0].ends()[2], 2, "both count as aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_holds_up_nobody() {
    let r = serve(Duration::from_micros(100), |_| {}).await;
    let stuck = json!({"prompt": "abc", "max_tokens": 3000, "stream": true, "logprobs": 20, "ignore_eos": true});
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(send(&r, "POST", "/v1/completions", "", &stuck.to_string()).await);
    }
    let (status, _) = post(
        &r,
        "/v1/completions",
        &json!({"prompt": "x", "max_tokens": 50}),
    )
    .await;
    assert_eq!(status, 200);
    // The engine finishes them although nobody reads.
    assert_empty(&r.engine).await;
    let (status, _, body) = answer(held.remove(0)).await;
    assert_eq!(status, 200);
    assert!(body.ends_with("data: [DONE]\n\n"), "all of it was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_429_with_a_time_to_try_again() {
    let r = serve(Duration::from_millis(200), |s| s.queue_limit = 1).await;
    let body = json!({"prompt": "abc", "max_tokens": 2}).to_string();
    // One can wait while a step of 200 ms runs, and ten come.
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(send(&r, "POST", "/v1/completions", "", &body).await);
    }
    let mut refused = 0;
    for s in open {
        let (status, head, text) = answer(s).await;
        if status == 429 {
            refused += 1;
            assert!(head.contains("retry-after"), "{head}");
        } else {
            assert_eq!(status, 200, "{text}");
        }
    }
    assert!((1..10).contains(&refused), "{refused} of 10 refused");
    let counted = format!("reason=\"max_num_queued_reqs\"}} {refused}");
    assert!(r.engine.metrics_text().contains(&counted));
}

/// What vLLM's router 0.1.17 adds to every request, and what it does not.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_ignored_and_counted_and_those_that_change_the_answer_refused() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let body = json!({"prompt": "abc", "max_tokens": 2, "no_stop_trim": false, "return_hidden_states": false,
        "separate_reasoning": true, "regex": null, "strange \"name\"": 1});
    for _ in 0..2 {
        let (status, answer) = post(&r, "/v1/completions", &body).await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, _, page) = answer(send(&r, "GET", "/metrics", "", "").await).await;
    assert_eq!(status, 200);
    let name = "servetwin:ignored_request_fields_total";
    for (field, n) in [("separate_reasoning", 2), ("other", 2)] {
        let line = format!("{name}{{field=\"{field}\"}} {n}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
    assert!(
        !page.contains("no_stop_trim") && !page.contains("strange"),
        "{page}"
    );
    for (field, value) in [
        ("return_hidden_states", json!(true)),
        ("no_stop_trim", json!(true)),
        ("regex", json!("a+")),
        ("lora_path", json!("x")),
        ("prompt_embeds", json!("x")),
    ] {
        let body = json!({"prompt": "abc", "max_tokens": 2, field: value});
        let (status, answer) = post(&r, "/v1/completions", &body).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(field)),
            "{answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_under_load_finishes_what_runs_and_refuses_what_comes() {
    let mut r = serve(Duration::from_millis(4), |_| {}).await;
    let body = json!({"prompt": "abc", "max_tokens": 100, "ignore_eos": true}).to_string();
    let mut running = Vec::new();
    for _ in 0..20 {
        running.push(send(&r, "POST", "/v1/completions", "", &body).await);
    }
    while r.engine.under_way() < 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    r.stop.take().unwrap().send(()).unwrap();
    while !r.engine.is_draining() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(
        answer(send(&r, "GET", "/health", "", "").await).await.0,
        503
    );
    let (status, head, _) = answer(send(&r, "POST", "/v1/completions", "", &body).await).await;
    assert_eq!(status, 503);
    assert!(head.contains("retry-after"), "{head}");
    for s in running {
        let (status, _, text) = answer(s).await;
        assert_eq!(status, 200, "{text}");
        let a: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(a["usage"]["completion_tokens"], 100);
    }
    let drained = r.served.await.unwrap();
    assert_eq!(drained.cut, 0, "nothing was cut off");
    assert!(drained.finished <= 20);
    assert_empty(&r.engine).await;
    r.engine.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_announced_as_too_large_is_refused_before_any_of_it_comes() {
    let r = serve(Duration::ZERO, |_| {}).await;
    for length in ["100000000000000", "100001"] {
        let mut s = TcpStream::connect(r.address).await.unwrap();
        let head =
            format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        s.write_all(head.as_bytes()).await.unwrap();
        // Nothing of the body is sent: a server that waits for it never answers.
        let mut bytes = [0; 1024];
        let read = tokio::time::timeout(Duration::from_secs(30), s.read(&mut bytes)).await;
        let n = read.expect("answered at once").unwrap();
        let text = String::from_utf8_lossy(&bytes[..n]);
        assert!(text.starts_with("HTTP/1.1 413"), "{text}");
        assert!(text.contains("at most 100000"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_off_at_shutdown_is_counted_and_its_clients_are_told() {
    let mut r = serve_with(
        Duration::from_millis(10),
        None,
        Duration::from_millis(300),
        |_| {},
    )
    .await;
    // Each needs 40 s at least.
    let ask = |stream: bool| {
        json!({"prompt": "abc", "max_tokens": 4000, "ignore_eos": true, "stream": stream})
            .to_string()
    };
    let long = send(&r, "POST", "/v1/completions", "", &ask(false)).await;
    let streamed = send(&r, "POST", "/v1/completions", "", &ask(true)).await;
    while r.engine.under_way() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    r.stop.take().unwrap().send(()).unwrap();
    let drained = r.served.await.unwrap();
    assert_eq!((drained.finished, drained.cut), (0, 2));
    let (status, _, text) = answer(long).await;
    assert!(status == 503 && text.contains("shutting down"), "{text}");
    let (status, _, text) = answer(streamed).await;
    let last = events(&text).pop().unwrap();
    assert_eq!(
        (status, &last["error"]["code"]),
        (200, &json!(503)),
        "{text}"
    );
    r.engine.stop().unwrap();
}
