//! inference-perf: the summary of a stage, and the file of single requests. Everything is in seconds.

use std::collections::BTreeMap;

use serde_json::Value;
use sim::request::Outcome;

use super::{Imported, Request, Stated, number, record, tokens};

/// Reads a summary: its own figures, since it holds no single requests.
///
/// # Errors
/// When it has neither successes nor failures.
pub fn read_summary(file: &Value, name: &str) -> Result<Imported, String> {
    if !file["successes"].is_object() {
        return Err("`successes` is missing".into());
    }
    let mut stated = BTreeMap::new();
    for metric in [
        "request_latency",
        "time_to_first_token",
        "time_per_output_token",
        "normalized_time_per_output_token",
        "inter_token_latency",
    ] {
        let at = |tail: &str| number(file, &format!("/successes/latency/{metric}/{tail}"));
        if let Some(mean) = at("mean") {
            let s = Stated {
                mean: Some(mean),
                p50: at("median").or_else(|| at("p50")),
                p90: at("p90"),
                p99: at("p99"),
            };
            stated.insert(format!("{metric} [s]"), s);
        }
    }
    for (key, value) in file["successes"]["throughput"]
        .as_object()
        .into_iter()
        .flatten()
    {
        if let Some(v) = value.as_f64() {
            stated.insert(format!("throughput.{key}"), Stated::one(v));
        }
    }
    for (key, pointer) in [
        ("successes", "/successes/count"),
        ("failures", "/failures/count"),
        ("schedule_delay [s]", "/load_summary/schedule_delay/mean"),
    ] {
        if let Some(v) = number(file, pointer) {
            stated.insert(key.to_string(), Stated::one(v));
        }
    }
    let mut notes = vec![
        "the file has no single requests: only its own summary can be given".to_string(),
        "inference-perf counts output tokens with its own tokenizer by default".to_string(),
    ];
    Ok(Imported {
        format: "inference-perf",
        record: record(&[], name, String::new(), String::new(), &mut notes)?,
        stated,
        notes,
    })
}

/// Reads single requests.
///
/// # Errors
/// The request that has no start or end.
pub fn read_requests(list: &[Value], name: &str) -> Result<Imported, String> {
    let mut requests = Vec::with_capacity(list.len());
    for (i, r) in list.iter().enumerate() {
        requests.push(request(r).map_err(|e| format!("request {i}: {e}"))?);
    }
    let mut notes = vec![
        "tokens that share a chunk have a gap of zero, as here; output tokens are those that inference-perf counted".to_string(),
    ];
    Ok(Imported {
        format: "inference-perf",
        record: record(&requests, name, String::new(), String::new(), &mut notes)?,
        stated: BTreeMap::new(),
        notes,
    })
}

fn request(r: &Value) -> Result<Request, String> {
    let start_s = number(r, "/start_time").ok_or("no start_time")?;
    let end_s = number(r, "/end_time").ok_or("no end_time")?;
    // Newer files keep the counts one level deeper.
    let find = |key: &str| {
        [
            "/info",
            "/info/response_metrics",
            "/info/request_metrics/text",
            "/info/request_metrics",
        ]
        .iter()
        .map(|p| format!("{p}/{key}"))
        .find(|p| r.pointer(p).is_some_and(|v| !v.is_null()))
    };
    let times: Vec<f64> = find("output_token_times")
        .and_then(|p| r.pointer(&p))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64)
        .collect();
    let failed = !r["error"].is_null();
    Ok(Request {
        start_s,
        first_token_s: times.first().copied(),
        last_token_s: times.last().copied(),
        end_s,
        prompt_tokens: find("input_tokens").map_or(0, |p| tokens(r, &p)),
        cached_tokens: 0,
        output_tokens: find("output_tokens").map_or(0, |p| tokens(r, &p)),
        gaps_s: Some(times.windows(2).map(|w| w[1] - w[0]).collect()),
        outcome: if failed {
            Outcome::Failed
        } else {
            Outcome::Finished
        },
    })
}
