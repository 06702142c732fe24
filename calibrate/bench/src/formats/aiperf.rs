//! AIPerf (and GenAI-Perf, whose successor it is): `profile_export_aiperf.json` and `profile_export.jsonl`.

use std::collections::BTreeMap;

use serde_json::Value;
use sim::request::Outcome;

use super::{Imported, Request, Stated, number, record, text_at, tokens};
use crate::printable::printable;

/// Reads the summary: its own figures, since it holds no single requests.
///
/// # Errors
/// None so far; a summary of nothing is a summary.
pub fn read_summary(file: &Value, name: &str) -> Result<Imported, String> {
    let mut stated = BTreeMap::new();
    for (key, value) in file.as_object().into_iter().flatten() {
        if let (Some(unit), Some(mean)) = (value["unit"].as_str(), value["avg"].as_f64()) {
            let s = Stated {
                mean: Some(mean),
                p50: number(value, "/p50"),
                p90: number(value, "/p90"),
                p99: number(value, "/p99"),
            };
            stated.insert(printable(&format!("{key} [{unit}]")).into_owned(), s);
        }
    }
    let mut notes = vec!["the file has no single requests (profile_export.jsonl does): only its own summary can be given".to_string()];
    Ok(Imported {
        format: "AIPerf",
        record: record(
            &[],
            name,
            text_at(file, "/input_config/endpoint/url"),
            String::new(),
            &mut notes,
        )?,
        stated,
        notes,
    })
}

/// Reads the records of single requests.
///
/// # Errors
/// The record that has no start or end.
pub fn read_lines(lines: &[Value], name: &str) -> Result<Imported, String> {
    let mut requests = Vec::with_capacity(lines.len());
    let mut left_out = 0;
    let mut counted_by_client = 0usize;
    for (i, line) in lines.iter().enumerate() {
        let phase = text_at(line, "/metadata/benchmark_phase");
        if phase == "warmup" {
            left_out += 1;
            continue;
        }
        let request = request(line).map_err(|e| format!("record {}: {e}", i + 1))?;
        let by_server = count(line, "usage_completion_tokens") > 0;
        counted_by_client += usize::from(request.output_tokens > 0 && !by_server);
        requests.push(request);
    }
    let mut notes = vec![
        "AIPerf's inter_token_latency is (latency - TTFT)/(tokens - tokens in the first chunk) of a request; ITL here is pooled over the gaps between chunks"
            .to_string(),
    ];
    if counted_by_client > 0 {
        notes.push(format!(
            "tokens of {counted_by_client} answers are those that AIPerf counted in their text with its own tokenizer: their records have no usage_completion_tokens"
        ));
    }
    if left_out > 0 {
        notes.push(format!("{left_out} requests of the warm-up are left out"));
    }
    Ok(Imported {
        format: "AIPerf",
        record: record(&requests, name, String::new(), String::new(), &mut notes)?,
        stated: BTreeMap::new(),
        notes,
    })
}

/// A metric's value in seconds.
fn seconds(line: &Value, metric: &str) -> Option<f64> {
    let value = number(line, &format!("/metrics/{metric}/value"))?;
    Some(value * scale(line, metric))
}

fn scale(line: &Value, metric: &str) -> f64 {
    match text_at(line, &format!("/metrics/{metric}/unit")).as_str() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "sec" | "s" => 1.0,
        _ => 1e-3,
    }
}

/// A metric that counts tokens; zero where there is none [tokens].
fn count(line: &Value, metric: &str) -> u32 {
    tokens(line, &format!("/metrics/{metric}/value"))
}

/// The first of several counts that a record has: the server's own stands before the client's [tokens].
fn first_count(line: &Value, metrics: &[&str]) -> u32 {
    let counts = metrics.iter().map(|m| count(line, m));
    counts.into_iter().find(|n| *n > 0).unwrap_or(0)
}

fn request(line: &Value) -> Result<Request, String> {
    let at = |key: &str| number(line, &format!("/metadata/{key}")).map(|ns| ns * 1e-9);
    let start_s = at("request_start_ns").ok_or("no metadata.request_start_ns")?;
    let latency = seconds(line, "request_latency");
    let end_s = latency
        .map(|l| start_s + l)
        .or_else(|| at("request_end_ns"))
        .ok_or("neither request_latency nor metadata.request_end_ns")?;
    let ttft = seconds(line, "time_to_first_token");
    let failed = !line["error"].is_null();
    let cancelled = line
        .pointer("/metadata/was_cancelled")
        .and_then(Value::as_bool)
        == Some(true);
    let gap_scale = scale(line, "inter_chunk_latency");
    let gaps_s = line
        .pointer("/metrics/inter_chunk_latency/value")
        .and_then(Value::as_array)
        .map(|list| {
            list.iter()
                .filter_map(Value::as_f64)
                .map(|g| g * gap_scale)
                .collect::<Vec<f64>>()
        });
    Ok(Request {
        start_s,
        first_token_s: ttft.map(|t| start_s + t),
        // AIPerf's latency ends with the last response that has content.
        last_token_s: latency.map(|l| start_s + l),
        end_s,
        prompt_tokens: first_count(line, &["usage_prompt_tokens", "input_sequence_length"]),
        cached_tokens: count(line, "usage_prompt_cache_read_tokens"),
        output_tokens: first_count(
            line,
            &[
                "usage_completion_tokens",
                "output_sequence_length",
                "output_token_count",
            ],
        ),
        gaps_s,
        outcome: if cancelled {
            Outcome::TimedOut
        } else if failed {
            Outcome::Failed
        } else {
            Outcome::Finished
        },
    })
}
