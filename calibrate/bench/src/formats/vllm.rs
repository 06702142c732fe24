//! The JSON of `vllm bench serve`, with and without `--save-detailed`.

use serde_json::{Map, Value, json};
use sim::metrics::distribution::quantile_of_sorted;
use sim::request::Outcome;

use super::{Imported, Request, Stated, number, record, text_at};
use crate::driver::Sample;
use crate::session::Bench;

/// Single numbers that a file states.
const NUMBERS: [&str; 11] = [
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
];

/// Reads a result.
///
/// # Errors
/// When its lists do not fit each other.
pub fn read(file: &Value, name: &str) -> Result<Imported, String> {
    let mut stated = std::collections::BTreeMap::new();
    for metric in ["ttft", "tpot", "itl", "e2el"] {
        let at = |prefix: &str| number(file, &format!("/{prefix}_{metric}_ms"));
        if let Some(mean) = at("mean") {
            let s = Stated {
                mean: Some(mean),
                p50: at("median").or_else(|| at("p50")),
                p90: at("p90"),
                p99: at("p99"),
            };
            stated.insert(format!("{metric}_ms"), s);
        }
    }
    for key in NUMBERS {
        if let Some(v) = number(file, &format!("/{key}")) {
            stated.insert(key.to_string(), Stated::one(v));
        }
    }
    let mut notes = Vec::new();
    let requests = match file["ttfts"].as_array() {
        Some(_) => detailed(file, &mut notes)?,
        None => {
            notes.push("the file has no single requests (--save-detailed writes them): only its own summary can be given".into());
            Vec::new()
        }
    };
    let load = match number(file, "/request_rate") {
        Some(rate) => format!(
            "{rate} req/s, burstiness {}",
            number(file, "/burstiness").unwrap_or(1.0)
        ),
        None => format!("request rate {}", text_at(file, "/request_rate")),
    };
    Ok(Imported {
        format: "vllm bench serve",
        record: record(
            &requests,
            name,
            text_at(file, "/model_id"),
            load,
            &mut notes,
        )?,
        stated,
        notes,
    })
}

fn detailed(file: &Value, notes: &mut Vec<String>) -> Result<Vec<Request>, String> {
    let list = |key: &str| -> Result<&Vec<Value>, String> {
        file[key]
            .as_array()
            .ok_or_else(|| format!("`{key}` is no list"))
    };
    let (ttfts, itls, inputs, outputs) = (
        list("ttfts")?,
        list("itls")?,
        list("input_lens")?,
        list("output_lens")?,
    );
    let n = ttfts.len();
    for (key, have) in [
        ("itls", itls.len()),
        ("input_lens", inputs.len()),
        ("output_lens", outputs.len()),
    ] {
        if have != n {
            return Err(format!("`ttfts` has {n} entries and `{key}` {have}"));
        }
    }
    let starts = file["start_times"].as_array().filter(|s| s.len() == n);
    if starts.is_none() {
        notes.push("the file has no start times: all requests count from zero, so throughput and the order of requests are lost".into());
    }
    let errors = file["errors"].as_array();
    let latencies = file["latencies"].as_array();
    let mut more_gaps = 0usize;
    let count = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let mut requests = Vec::with_capacity(n);
    for i in 0..n {
        let start_s = starts.and_then(|s| s[i].as_f64()).unwrap_or(0.0);
        let ttft = ttfts[i].as_f64().unwrap_or(0.0);
        let mut gaps: Vec<f64> = itls[i]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect();
        let failed = errors
            .and_then(|e| e.get(i))
            .and_then(Value::as_str)
            .is_some_and(|e| !e.is_empty());
        let output_tokens = count(&outputs[i]);
        // vLLM's client takes a last chunk without text for a token; its gap is no gap between tokens.
        let most = output_tokens.saturating_sub(1) as usize;
        if !failed && gaps.len() > most {
            more_gaps += 1;
            gaps.truncate(most);
        }
        let last = start_s + ttft + gaps.iter().sum::<f64>();
        let end_s = latencies
            .and_then(|l| l.get(i))
            .and_then(Value::as_f64)
            .map_or(last, |l| start_s + l);
        requests.push(Request {
            start_s,
            first_token_s: (ttft > 0.0).then_some(start_s + ttft),
            last_token_s: (ttft > 0.0).then_some(last),
            end_s: end_s.max(last),
            prompt_tokens: count(&inputs[i]),
            cached_tokens: 0,
            output_tokens,
            gaps_s: Some(gaps),
            outcome: if failed || ttft <= 0.0 {
                Outcome::Failed
            } else {
                Outcome::Finished
            },
        });
    }
    if more_gaps > 0 {
        notes.push(format!(
            "{more_gaps} requests have more gaps than tokens: their last chunk held no token, and its gap is left out here but not in the file's own figures"
        ));
    }
    notes.push("output_lens may be re-tokenised text where the server's usage came with its last choice; TPOT then differs from the server's".into());
    Ok(requests)
}

fn secs(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// Pauses between the chunks of an answer [s].
fn gaps(s: &Sample) -> Vec<f64> {
    s.trace
        .chunks
        .windows(2)
        .map(|w| secs(w[1].at_ns.saturating_sub(w[0].at_ns)))
        .collect()
}

/// When the last token came, after sending [ns].
fn last(s: &Sample) -> u64 {
    s.trace.last_token_ns().unwrap_or(s.trace.end_ns)
}

/// Latencies of the requests that succeeded, by the name that they have in the file [ns].
fn times(ok: &[&Sample]) -> [(&'static str, Vec<u64>); 4] {
    [
        (
            "ttft",
            ok.iter()
                .filter_map(|s| s.trace.first_token_ns())
                .collect::<Vec<u64>>(),
        ),
        (
            "tpot",
            ok.iter()
                .filter_map(|s| {
                    let n = s.trace.output_tokens();
                    let span = last(s).checked_sub(s.trace.first_token_ns()?)?;
                    (n > 1).then(|| span / u64::from(n - 1))
                })
                .collect(),
        ),
        (
            "itl",
            ok.iter()
                .flat_map(|s| gaps(s))
                .map(|g| (g * 1e9) as u64)
                .collect(),
        ),
        ("e2el", ok.iter().map(|s| last(s)).collect()),
    ]
}

/// A benchmark as `vllm bench serve --save-result --save-detailed` would write it, by vLLM's definitions. Requests of the
/// warm-up are left out.
pub fn write(bench: &Bench) -> Value {
    let warmup = bench.record.warmup.0;
    let measured: Vec<&Sample> = bench
        .raw
        .samples
        .iter()
        .filter(|s| s.sent_ns >= warmup)
        .collect();
    let ok: Vec<&Sample> = measured.iter().copied().filter(|s| s.trace.ok()).collect();
    let start = measured.iter().map(|s| s.sent_ns).min().unwrap_or(0);
    let end = measured
        .iter()
        .map(|s| s.sent_ns + s.trace.end_ns)
        .max()
        .unwrap_or(start);
    let duration = (end - start) as f64 * 1e-9;
    let rate = |amount: f64| {
        if duration > 0.0 {
            amount / duration
        } else {
            0.0
        }
    };
    let prompt = |s: &Sample| {
        s.trace
            .usage
            .and_then(|u| u.prompt_tokens)
            .unwrap_or(s.spec.prompt_tokens)
    };
    let tokens_in: f64 = ok.iter().map(|s| f64::from(prompt(s))).sum();
    let tokens_out: f64 = ok.iter().map(|s| f64::from(s.trace.output_tokens())).sum();
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        out.insert(key.to_string(), value);
    };
    put("backend", bench.client.api.clone().into());
    put("model_id", bench.record.info.deployment.clone().into());
    put("num_prompts", measured.len().into());
    put("request_rate", bench.record.info.load.clone().into());
    put("duration", duration.into());
    put("completed", ok.len().into());
    put("failed", (measured.len() - ok.len()).into());
    put("total_input_tokens", tokens_in.into());
    put("total_output_tokens", tokens_out.into());
    put("request_throughput", rate(ok.len() as f64).into());
    put("output_throughput", rate(tokens_out).into());
    put(
        "total_token_throughput",
        rate(tokens_in + tokens_out).into(),
    );
    for (name, values) in times(&ok) {
        for (prefix, value) in statistics_ms(values) {
            put(&format!("{prefix}_{name}_ms"), value.into());
        }
    }
    let list = |f: &dyn Fn(&Sample) -> Value| -> Value {
        measured.iter().map(|s| f(s)).collect::<Vec<_>>().into()
    };
    put(
        "ttfts",
        list(&|s| s.trace.first_token_ns().map_or(0.0, secs).into()),
    );
    put("itls", list(&|s| gaps(s).into()));
    put("latencies", list(&|s| secs(last(s)).into()));
    put("start_times", list(&|s| secs(s.sent_ns).into()));
    put("input_lens", list(&|s| prompt(s).into()));
    put("output_lens", list(&|s| s.trace.output_tokens().into()));
    put(
        "errors",
        list(&|s| json!(s.trace.error.as_ref().map_or("", |e| e.message.as_str()))),
    );
    Value::Object(out)
}

fn statistics_ms(mut ns: Vec<u64>) -> Vec<(&'static str, f64)> {
    ns.sort_unstable();
    let n = ns.len() as f64;
    let mean = if ns.is_empty() {
        0.0
    } else {
        ns.iter().map(|v| *v as f64).sum::<f64>() / n
    };
    let variance = ns.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / n.max(1.0);
    let p = |q: f64| quantile_of_sorted(&ns, q).unwrap_or(0.0) / 1e6;
    vec![
        ("mean", mean / 1e6),
        ("median", p(0.5)),
        ("std", variance.sqrt() / 1e6),
        ("p50", p(0.5)),
        ("p90", p(0.9)),
        ("p95", p(0.95)),
        ("p99", p(0.99)),
    ]
}
