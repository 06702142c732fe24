//! GuideLLM's `benchmarks.json` (0.8, metadata version 2).

use serde_json::{Map, Value, json};
use sim::metrics::distribution::quantile_of_sorted;
use sim::request::Outcome;

use super::{Imported, Request, Stated, number, record, text_at, tokens};
use crate::driver::Sample;
use crate::session::Bench;

/// Metrics whose own figures are kept.
const METRICS: [&str; 8] = [
    "time_to_first_token_ms",
    "inter_token_latency_ms",
    "time_per_output_token_ms",
    "request_latency",
    "requests_per_second",
    "request_concurrency",
    "output_tokens_per_second",
    "tokens_per_second",
];

/// Reads every benchmark of a file.
///
/// # Errors
/// What is missing.
pub fn read(file: &Value, name: &str) -> Result<Vec<Imported>, String> {
    let list = file["benchmarks"].as_array().map_or(&[][..], |v| v);
    if list.is_empty() {
        return Err("it has no benchmarks".into());
    }
    list.iter()
        .enumerate()
        .map(|(i, b)| {
            let name = if list.len() > 1 {
                format!("{name}[{i}]")
            } else {
                name.to_string()
            };
            one(b, &name).map_err(|e| format!("benchmarks[{i}]: {e}"))
        })
        .collect()
}

fn one(b: &Value, name: &str) -> Result<Imported, String> {
    let mut requests = Vec::new();
    let mut notes = vec![
        "GuideLLM's time_per_output_token includes the first token and counts from the request's start; TPOT here leaves it out".to_string(),
        "E2E ends with the last token; GuideLLM's request_latency with the end of the stream".to_string(),
    ];
    for (kind, outcome) in [
        ("successful", Outcome::Finished),
        ("errored", Outcome::Failed),
        ("incomplete", Outcome::InFlight),
    ] {
        let list = b["requests"][kind].as_array().map_or(&[][..], |v| v);
        notes.extend(sampled(b, kind, list.len()));
        for (i, r) in list.iter().enumerate() {
            match request(r, outcome) {
                Some(r) => requests.push(r),
                // What never started was never sent.
                None if outcome != Outcome::Finished => {}
                None => {
                    return Err(format!(
                        "requests.successful[{i}] has no start or end in info.timings"
                    ));
                }
            }
        }
    }
    let stated = METRICS
        .iter()
        .filter_map(|m| {
            let at = |tail: &str| number(b, &format!("/metrics/{m}/successful/{tail}"));
            let mean = at("mean")?;
            let stated = Stated {
                mean: Some(mean),
                p50: at("median"),
                p90: at("percentiles/p90"),
                p99: at("percentiles/p99"),
            };
            Some(((*m).to_string(), stated))
        })
        .collect();
    let strategy = ["/config/strategy/type_", "/scheduler_metrics/strategy_type"]
        .iter()
        .map(|p| text_at(b, p))
        .find(|s| !s.is_empty())
        .unwrap_or_default();
    Ok(Imported {
        format: "GuideLLM",
        record: record(
            &requests,
            name,
            text_at(b, "/config/backend/target"),
            strategy,
            &mut notes,
        )?,
        stated,
        notes,
    })
}

/// A note where the file lists fewer requests of a kind than it counts: `--sample-requests` keeps some at random, and the file's own
/// figures are of all.
fn sampled(b: &Value, kind: &str, listed: usize) -> Option<String> {
    // What was queued and never sent is counted among the incomplete, but no request.
    if kind == "incomplete" {
        return None;
    }
    let all = [
        "/metrics/request_totals",
        "/scheduler_metrics/requests_made",
    ]
    .iter()
    .find_map(|p| number(b, &format!("{p}/{kind}")))?;
    (all > listed as f64).then(|| {
        format!(
            "the file lists {listed} of {all} {kind} requests, a sample: counts and rates here are those of the sample, \
             so too low; the file's own figures are of all"
        )
    })
}

fn request(r: &Value, outcome: Outcome) -> Option<Request> {
    let time = |key: &str| number(r, &format!("/info/timings/{key}"));
    let start_s = time("request_start").or_else(|| number(r, "/request_start_time"))?;
    let end_s = time("request_end")
        .or_else(|| time("resolve_end"))
        .or_else(|| number(r, "/request_end_time"))?;
    let count = |computed: &str, side: &str| {
        let n = tokens(r, &format!("/{computed}"));
        if n > 0 {
            n
        } else {
            tokens(r, &format!("/{side}/text_tokens"))
        }
    };
    Some(Request {
        start_s,
        first_token_s: time("first_token_iteration"),
        last_token_s: time("last_token_iteration"),
        end_s,
        prompt_tokens: count("prompt_tokens", "input_metrics"),
        cached_tokens: tokens(r, "/cached_tokens"),
        output_tokens: count("output_tokens", "output_metrics"),
        gaps_s: None,
        outcome,
    })
}

/// Distributions and rates of the requests that succeeded, over `duration` seconds.
fn metrics(successful: &[&Sample], duration: f64) -> Map<String, Value> {
    let rate = |amount: f64| {
        if duration > 0.0 {
            amount / duration
        } else {
            0.0
        }
    };
    let tokens_out: f64 = successful
        .iter()
        .map(|s| f64::from(s.trace.output_tokens()))
        .sum();
    let tokens_in: f64 = successful.iter().map(|s| f64::from(prompt(s))).sum();
    let busy: f64 = successful
        .iter()
        .map(|s| s.trace.end_ns as f64 * 1e-9)
        .sum();
    let per_request = |f: fn(&Sample) -> Option<f64>| {
        distribution(successful.iter().filter_map(|s| f(s)).collect())
    };
    let mut metrics = Map::new();
    for (name, d) in [
        (
            "request_latency",
            per_request(|s| Some(s.trace.end_ns as f64 * 1e-9)),
        ),
        (
            "time_to_first_token_ms",
            per_request(|s| Some(s.trace.first_token_ns()? as f64 / 1e6)),
        ),
        ("inter_token_latency_ms", per_request(itl_ms)),
        (
            "time_per_output_token_ms",
            per_request(|s| {
                let n = s.trace.output_tokens();
                Some(s.trace.last_token_ns()? as f64 / 1e6 / f64::from(n.max(1)))
            }),
        ),
        (
            "prompt_token_count",
            per_request(|s| Some(f64::from(prompt(s)))),
        ),
        (
            "output_token_count",
            per_request(|s| Some(f64::from(s.trace.output_tokens()))),
        ),
        (
            "requests_per_second",
            distribution(vec![rate(successful.len() as f64)]),
        ),
        ("request_concurrency", distribution(vec![rate(busy)])),
        (
            "output_tokens_per_second",
            distribution(vec![rate(tokens_out)]),
        ),
        (
            "prompt_tokens_per_second",
            distribution(vec![rate(tokens_in)]),
        ),
        (
            "tokens_per_second",
            distribution(vec![rate(tokens_in + tokens_out)]),
        ),
    ] {
        metrics.insert(
            name.into(),
            json!({ "successful": d, "errored": null, "incomplete": null, "total": d }),
        );
    }
    metrics
}

/// A benchmark as GuideLLM would write it: the fields that tools read, by GuideLLM's definitions. Requests of the warm-up are
/// left out, as GuideLLM leaves them out.
pub fn write(bench: &Bench) -> Value {
    let zero = bench.raw.started_unix_s;
    let warmup = bench.record.warmup.0;
    let measured: Vec<&Sample> = bench
        .raw
        .samples
        .iter()
        .filter(|s| s.sent_ns >= warmup)
        .collect();
    let of = |wanted: fn(&Sample) -> bool| -> Vec<&Sample> {
        measured.iter().copied().filter(|s| wanted(s)).collect()
    };
    let successful = of(|s| s.trace.ok());
    let incomplete = of(|s| s.outcome() == Outcome::InFlight);
    let errored = of(|s| !s.trace.ok() && s.outcome() != Outcome::InFlight);
    let start = measured.iter().map(|s| s.sent_ns).min().unwrap_or(0);
    let end = measured
        .iter()
        .map(|s| s.sent_ns + s.trace.end_ns)
        .max()
        .unwrap_or(start);
    let duration = (end - start) as f64 * 1e-9;
    let mut metrics = metrics(&successful, duration);
    let totals = json!({
        "successful": successful.len(), "errored": errored.len(), "incomplete": incomplete.len(), "total": measured.len()
    });
    metrics.insert("request_totals".into(), totals.clone());
    let list =
        |samples: &[&Sample]| -> Vec<Value> { samples.iter().map(|s| row(s, zero)).collect() };
    json!({
        "metadata": { "version": 2, "guidellm_version": "0.8", "written_by": format!("servetwin {}", bench.record.version) },
        "config": {},
        "benchmarks": [{
            "type_": "generative_benchmark",
            "config": {
                "strategy": { "type_": bench.record.info.load },
                "backend": { "target": bench.client.url },
                "seed": bench.record.info.seed,
            },
            "scheduler_metrics": {
                "start_time": zero + start as f64 * 1e-9,
                "end_time": zero + end as f64 * 1e-9,
                "requests_made": totals,
                "strategy_type": bench.record.info.load,
            },
            "metrics": metrics,
            "requests": { "successful": list(&successful), "errored": list(&errored), "incomplete": list(&incomplete) },
            "start_time": zero + start as f64 * 1e-9,
            "end_time": zero + end as f64 * 1e-9,
            "duration": duration,
        }],
        "conclusions": [],
    })
}

fn prompt(s: &Sample) -> u32 {
    s.trace
        .usage
        .and_then(|u| u.prompt_tokens)
        .unwrap_or(s.spec.prompt_tokens)
}

/// GuideLLM's inter-token latency of a request [ms].
fn itl_ms(s: &Sample) -> Option<f64> {
    let n = s.trace.output_tokens();
    let span = s
        .trace
        .last_token_ns()?
        .saturating_sub(s.trace.first_token_ns()?);
    (n > 1).then(|| span as f64 / 1e6 / f64::from(n - 1))
}

fn row(s: &Sample, zero: f64) -> Value {
    let t = &s.trace;
    let at = |ns: u64| zero + (s.sent_ns + ns) as f64 * 1e-9;
    json!({
        "type_": "generative_request_stats",
        "prompt_tokens": prompt(s),
        "output_tokens": t.output_tokens(),
        "cached_tokens": t.usage.and_then(|u| u.cached_tokens),
        "request_latency": t.end_ns as f64 * 1e-9,
        "time_to_first_token_ms": t.first_token_ns().map(|ns| ns as f64 / 1e6),
        "inter_token_latency_ms": itl_ms(s),
        "info": {
            "status": if t.ok() { "completed" } else { "errored" },
            "error": t.error.as_ref().map(|e| e.message.clone()),
            "timings": {
                "targeted_start": zero + s.planned_ns as f64 * 1e-9,
                "queued": zero + s.planned_ns as f64 * 1e-9,
                "resolve_start": at(0),
                "request_start": at(0),
                "first_token_iteration": t.first_token_ns().map(at),
                "last_token_iteration": t.last_token_ns().map(at),
                "token_iterations": t.chunks.len(),
                "request_end": at(t.end_ns),
                "resolve_end": at(t.end_ns),
            }
        }
    })
}

/// GuideLLM's summary of a distribution; `null` of nothing.
fn distribution(values: Vec<f64>) -> Value {
    let n = values.len() as f64;
    if values.is_empty() {
        return Value::Null;
    }
    let sum: f64 = values.iter().sum();
    let mean = sum / n;
    let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    // Order statistics on an integer scale that loses nothing that matters: a billionth of the unit.
    let mut scaled: Vec<u64> = values.iter().map(|v| (v.max(0.0) * 1e9) as u64).collect();
    scaled.sort_unstable();
    let p = |q: f64| quantile_of_sorted(&scaled, q).unwrap_or(0.0) / 1e9;
    json!({
        "mean": mean, "median": p(0.5), "mode": p(0.5), "variance": variance, "std_dev": variance.sqrt(),
        "min": p(0.0), "max": p(1.0), "count": values.len(), "total_sum": sum,
        "percentiles": {
            "p001": p(0.001), "p01": p(0.01), "p05": p(0.05), "p10": p(0.1), "p25": p(0.25), "p50": p(0.5), "p75": p(0.75),
            "p90": p(0.9), "p95": p(0.95), "p99": p(0.99), "p999": p(0.999)
        }
    })
}
