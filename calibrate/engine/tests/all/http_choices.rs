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
    let body = json!({"prompt": [prompt, "y"], "max_tokens": 9, "temperature": 0.01, "n": 3, "best_of": 3});
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
        "stream": true, "logit_bias": {"65": -100}});
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
async fn echo_tells_the_prompt_and_its_log_probabilities() {
    let r = serve(Duration::ZERO, |_| {}).await;
    // Half of it is what the toy says, so some log probabilities are high and some are low.
    let mut prompt = ids("Hello there, toy! ");
    prompt.extend(expected(&prompt, 20));
    let said = text().decode(&prompt, false);
    let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": true});
    let (_, a) = post(&r, "/v1/completions", &body).await;
    let made = expected(&prompt, 3);
    let both = format!("{said}{}", text().decode(&made, true));
    assert_eq!(a["choices"][0]["text"], json!(both));
    assert!(a["choices"][0]["logprobs"].is_null());
    for max_tokens in [0, 3] {
        // Twice: what the first leaves in the prefix cache must not keep the second from its log probabilities.
        for _ in 0..2 {
            let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "echo": true, "logprobs": 1});
            let (status, a) = post(&r, "/v1/completions", &body).await;
            assert_eq!(status, 200, "{a}");
            let c = &a["choices"][0];
            assert_eq!(
                c["text"],
                if max_tokens == 0 {
                    said.clone()
                } else {
                    both.clone()
                }
            );
            let told = c["logprobs"]["token_logprobs"].as_array().unwrap();
            assert_eq!(told.len(), prompt.len() + max_tokens);
            assert!(told[0].is_null(), "nothing comes before the first");
            let high = (f64::exp(10.0) / (f64::exp(10.0) + 256.0)).ln();
            for (i, p) in told.iter().enumerate().skip(1) {
                let follows = i >= 18 || prompt[i] == expected(&prompt[..i], 1)[0];
                let right = if follows { high } else { high - 10.0 };
                assert!((p.as_f64().unwrap() - right).abs() < 1e-3, "{i}: {p}");
            }
            assert_eq!(c["logprobs"]["text_offset"][1], 1);
            assert_eq!(a["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
    }
    let body = json!({"prompt": "abc", "max_tokens": 2, "temperature": 0, "echo": true, "stream": true, "logprobs": 0});
    let s = send(&r, "POST", "/v1/completions", "", &body.to_string()).await;
    let all = events(&answer(s).await.2);
    let text = |i: usize| all[i]["choices"][0]["text"].as_str().unwrap();
    assert_eq!((all.len(), &text(0)[..3]), (2, "abc"));
    assert_eq!(
        format!("{}{}", text(0), text(1)),
        format!("abc{}", words("abc", 2))
    );
    let first = &all[0]["choices"][0]["logprobs"]["tokens"];
    assert_eq!(first.as_array().unwrap().len(), 4);
    assert_empty(&r.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn biases_bans_and_allowed_tokens_are_kept_to() {
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
        &ask(json!({"logit_bias": {"120": 100}})),
    )
    .await;
    assert_eq!(said(&a), "x".repeat(12));
    let (_, a) = post(
        &r,
        "/v1/completions",
        &ask(json!({"allowed_token_ids": [97, 98]})),
    )
    .await;
    assert!(said(&a).chars().all(|c| "ab".contains(c)), "{a}");
    // Without the ban it would be all `xx`.
    let more = json!({"logit_bias": {"120": 50, "121": 20}, "bad_words": ["xx"]});
    let (_, a) = post(&r, "/v1/completions", &ask(more)).await;
    assert_eq!(said(&a), "xy".repeat(6));
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
async fn structured_output_keeps_to_what_is_asked() {
    let r = serve(Duration::ZERO, |_| {}).await;
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "p", "schema": schema}});
    let chat = json!([{"role": "user", "content": "Who?"}]);
    for more in [
        json!({"response_format": format}),
        json!({"structured_outputs": {"json": schema}}),
        json!({"guided_json": schema.to_string()}),
    ] {
        let mut body = json!({"messages": chat, "max_tokens": 200, "n": 3, "seed": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, a) = post(&r, "/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{a}");
        for c in a["choices"].as_array().unwrap() {
            assert_eq!(c["finish_reason"], "stop", "{c}");
            let v: Value = serde_json::from_str(c["message"]["content"].as_str().unwrap()).unwrap();
            assert!(v["name"].as_str().unwrap().chars().count() <= 5);
            assert!(v["age"].as_u64().unwrap() <= 99);
        }
    }
    for (more, good) in [
        (
            json!({"guided_choice": ["red", "green"]}),
            vec!["red", "green"],
        ),
        (
            json!({"structured_outputs": {"choice": ["red"]}}),
            vec!["red"],
        ),
        (json!({"guided_regex": "(ab){2}|c"}), vec!["abab", "c"]),
    ] {
        // `min_tokens` does not keep a text from ending that is complete.
        let mut body = json!({"prompt": "Which?", "max_tokens": 20, "min_tokens": 10});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (_, a) = post(&r, "/v1/completions", &body).await;
        let said = a["choices"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{a}"));
        assert!(good.contains(&said), "{said}");
    }
    let body = json!({"prompt": "x", "max_tokens": 40, "response_format": {"type": "json_object"}, "seed": 3});
    let (_, a) = post(&r, "/v1/completions", &body).await;
    assert!(
        a["choices"][0]["text"].as_str().unwrap().starts_with('{'),
        "{a}"
    );
    for (more, word) in [
        (
            json!({"guided_json": {"not": {}}}),
            "`not` is not supported",
        ),
        (json!({"guided_regex": "("}), "no regular expression"),
    ] {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, a) = post(&r, "/v1/completions", &body).await;
        assert_eq!(status, 400);
        assert!(
            a["error"]["message"].as_str().unwrap().contains(word),
            "{a}"
        );
    }
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
        (true, "continue_final_message", json!(true)),
        (true, "prompt", json!("x")),
        (false, "guided_grammar", json!("root ::= x")),
        (false, "suffix", json!("x")),
        (false, "use_beam_search", json!(true)),
        (false, "prompt_logprobs", json!(1)),
        (false, "truncate_prompt_tokens", json!(5)),
        (false, "tools", tool.clone()),
        (false, "best_of", json!(2)),
        (false, "no_such_field", json!(1)),
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
        "reasoning_effort": "low", "logit_bias": {}, "stop": [], "response_format": {"type": "text"}});
    let (status, a) = post(&r, "/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{a}");
    assert_empty(&r.engine).await;
}
