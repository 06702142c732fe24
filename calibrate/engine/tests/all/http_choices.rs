//! Several answers to several prompts, what their text must keep to, and which fields are refused.

use std::time::Duration;

use crate::testkit::server::*;
use crate::testkit::*;
use serde_json::{Value, json};

fn ids(prompt: &str) -> Vec<u32> {
    prompt.bytes().map(u32::from).collect()
}

fn words(prompt: &str, tokens: usize) -> String {
    text().decode(&expected(&ids(prompt), tokens), true)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_prompts_is_answered_in_its_order_whole_and_streamed() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let prompts = ["first", "second one", "3"];
    let by_ids: Vec<Vec<u32>> = prompts.iter().map(|p| ids(p)).collect();
    for prompt in [json!(prompts), json!(by_ids)] {
        let body = json!({"prompt": prompt, "max_tokens": 7, "temperature": 0});
        let (status, a) = post(&r, "/v1/completions", &body).await;
        assert_eq!(status, 200, "{a}");
        let choices = a["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 3);
        for (i, (c, p)) in choices.iter().zip(prompts).enumerate() {
            assert_eq!((&c["index"], &c["text"]), (&json!(i), &json!(words(p, 7))));
        }
        assert_eq!(a["usage"]["prompt_tokens"], 5 + 10 + 1);
        assert_eq!(a["usage"]["completion_tokens"], 21);
    }
    let body = json!({"prompt": prompts, "max_tokens": 7, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    let s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
    let (_, _, body) = answer(s).await;
    let mut all = events(&body);
    assert_eq!(all.pop().unwrap()["usage"]["completion_tokens"], 21);
    assert_eq!(all.len(), 21, "an event a token");
    for (i, p) in prompts.iter().enumerate() {
        let own = all
            .iter()
            .map(|e| &e["choices"][0])
            .filter(|c| c["index"] == i);
        let said: String = own.clone().filter_map(|c| c["text"].as_str()).collect();
        assert_eq!(said, words(p, 7));
        let ends: Vec<&Value> = own
            .map(|c| &c["finish_reason"])
            .filter(|f| !f.is_null())
            .collect();
        assert_eq!(ends, [&json!("length")]);
    }
    assert_empty(&r.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n_choices_share_a_prompt_which_the_prefix_cache_serves() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let prompt = "x".repeat(64);
    // So cold that the likeliest token is drawn each time.
    let body = json!({"prompt": [prompt, "y"], "max_tokens": 9, "temperature": 0.01, "n": 3});
    let (status, a) = post(&r, "/v1/completions", &body).await;
    assert_eq!(status, 200, "{a}");
    let choices = a["choices"].as_array().unwrap();
    let indices: Vec<&Value> = choices.iter().map(|c| &c["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    for (i, c) in choices.iter().enumerate() {
        let p = if i < 3 { prompt.as_str() } else { "y" };
        assert_eq!(c["text"], json!(words(p, 9)));
    }
    assert_eq!(a["usage"]["prompt_tokens"], 65, "each prompt counts once");
    assert_eq!(a["usage"]["completion_tokens"], 54);
    assert_empty(&r.engine).await;
    let m = r.engine.metrics_text();
    for line in [
        "vllm:request_params_n_sum{engine=\"0\",model_name=\"toy\"} 6",
        "vllm:request_params_n_count{engine=\"0\",model_name=\"toy\"} 2",
        // Of the long prompt's four blocks all but the last token's are found twice.
        "vllm:prompt_tokens_cached_total{engine=\"0\",model_name=\"toy\"} 96",
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"toy\",source=\"local_cache_hit\"} 96",
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"toy\",source=\"local_compute\"} 99",
    ] {
        assert!(m.lines().any(|l| l == line), "no `{line}` in\n{m}");
    }
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "n": 2, "seed": 5, "temperature": 2,
        "stream": true});
    let s = send(&r, "POST", "/v1/chat/completions", "", &body.to_string()).await;
    let (_, _, text) = answer(s).await;
    let all = events(&text);
    let of = |i: usize| {
        let own = all
            .iter()
            .map(|e| &e["choices"][0])
            .filter(move |c| c["index"] == i);
        own.map(|c| c["delta"].clone()).collect::<Vec<_>>()
    };
    for i in [0, 1] {
        assert_eq!(of(i)[0], json!({"role": "assistant", "content": ""}));
        assert_eq!(of(i).len(), 31);
    }
    assert_ne!(of(0), of(1), "each draws by itself");
    assert_empty(&r.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_takes_all_its_choices_along() {
    let r = serve(Duration::from_millis(3), |_| {}).await;
    let body = json!({"prompt": ["a", "b"], "n": 3, "max_tokens": 3000, "ignore_eos": true, "stream": true});
    let s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
    while r.engine.under_way() < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(s);
    assert_empty(&r.engine).await;
    assert_eq!(r.engine.metrics()[0].ends()[2], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_finds_room_for_all_its_choices_or_none() {
    let r = serve(Duration::from_millis(20), |s| s.queue_limit = 5).await;
    let ask = |n: u32| json!({"prompt": "abc", "max_tokens": 2, "n": n});
    let (status, a) = post(&r, "/v1/completions", &ask(6)).await;
    assert_eq!((status, &a["error"]["param"]), (400, &json!("n")), "{a}");
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(send(&r, "POST", "/v1/completions", "", &ask(5).to_string()).await);
    }
    let mut served = 0;
    for s in open {
        let (status, _, text) = answer(s).await;
        if status == 200 {
            let a: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(a["choices"].as_array().unwrap().len(), 5);
            served += 1;
        } else {
            assert_eq!(status, 429, "{text}");
        }
    }
    assert!((1..8).contains(&served), "{served} of 8 served");
    assert_empty(&r.engine).await;
    assert_eq!(r.engine.metrics()[0].ends()[1], served * 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn bans_and_allowed_tokens_are_kept_to() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let ask = |more: Value| {
        let mut body = json!({"prompt": "abc", "max_tokens": 12, "temperature": 0});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let said = |a: &Value| {
        a["choices"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{a}"))
            .to_string()
    };
    let (_, a) = post(
        &r,
        "/v1/completions",
        &ask(json!({"allowed_token_ids": [97, 98]})),
    )
    .await;
    assert!(said(&a).chars().all(|c| "ab".contains(c)), "{a}");
    // Neither may come twice in a row.
    let more = json!({"allowed_token_ids": [120, 121], "bad_words": ["xx", "yy"]});
    let (_, a) = post(&r, "/v1/completions", &ask(more)).await;
    assert!(["xy".repeat(6), "yx".repeat(6)].contains(&said(&a)), "{a}");
    let (status, a) = post(
        &r,
        "/v1/completions",
        &ask(json!({"allowed_token_ids": [97], "bad_words": ["a"]})),
    )
    .await;
    assert_eq!(status, 400, "{a}");
    assert!(
        a["error"]["message"].as_str().unwrap().contains("no token"),
        "{a}"
    );
    assert_empty(&r.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_would_change_the_answer_is_refused_by_name_and_others_are_taken() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    for (chat, field, value) in [
        (true, "tools", tool.clone()),
        (true, "tool_choice", json!("required")),
        (true, "functions", json!([{"name": "f"}])),
        (true, "echo", json!(true)),
        (false, "echo", json!(true)),
        (false, "guided_json", json!({"type": "object"})),
        (false, "logit_bias", json!({"120": 1})),
        (false, "structured_outputs", json!({"choice": ["red"]})),
        (true, "response_format", json!({"type": "json_object"})),
        (true, "continue_final_message", json!(true)),
        (false, "guided_grammar", json!("root ::= x")),
        (false, "suffix", json!("x")),
        (false, "use_beam_search", json!(true)),
        (false, "prompt_logprobs", json!(1)),
        (false, "truncate_prompt_tokens", json!(5)),
        (false, "best_of", json!(2)),
    ] {
        let (path, mut body) = if chat {
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "a"}]}),
            )
        } else {
            ("/v1/completions", json!({"prompt": "a"}))
        };
        body["max_tokens"] = json!(1);
        body[field] = value;
        let (status, a) = post(&r, path, &body).await;
        assert_eq!((status, &a["error"]["param"]), (400, &json!(field)), "{a}");
        assert!(
            a["error"]["message"].as_str().unwrap().contains(field),
            "{a}"
        );
        body[field] = Value::Null;
        assert_eq!(
            post(&r, path, &body).await.0,
            200,
            "`{field}` as null asks for nothing"
        );
    }
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "user": "u", "store": false,
        "metadata": {"a": "b"}, "service_tier": "auto", "tools": tool, "tool_choice": "none", "parallel_tool_calls": true,
        "reasoning_effort": "low", "logit_bias": {}, "stop": [], "response_format": {"type": "text"}, "no_such_field": 1});
    let (status, a) = post(&r, "/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{a}");
    assert_empty(&r.engine).await;
}
