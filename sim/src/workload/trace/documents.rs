//! Results of benchmarks as traces: AIPerf's records, and the JSON documents of `vllm bench` and GuideLLM.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{TraceFormat, TraceRow};
use crate::workload::input::Lines;
use crate::workload::tokens::whole_tokens;

/// The document format that a file begins like, if it is one.
pub(super) fn detect(head: &[u8]) -> Option<TraceFormat> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    if !text.starts_with('{') {
        return None;
    }
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    if has("input_lens") {
        Some(TraceFormat::VllmBench)
    } else if has("benchmarks") {
        Some(TraceFormat::Guidellm)
    } else {
        None
    }
}

/// The requests of a document in the order in which it has them, and how many of them failed.
pub(super) fn read(lines: &mut Lines, format: TraceFormat) -> Result<(Vec<TraceRow>, u64), String> {
    let read = match format {
        TraceFormat::VllmBench => vllm_bench(&lines.document()?),
        _ => guidellm(&lines.document()?),
    };
    read.map_err(|m| format!("{}: {m}", lines.name()))
}

/// What `vllm bench serve --save-result --save-detailed` writes.
#[derive(Deserialize)]
struct VllmBench {
    input_lens: Vec<f64>,
    #[serde(default)]
    output_lens: Vec<f64>,
    #[serde(default)]
    start_times: Vec<f64>,
    #[serde(default)]
    errors: Vec<Option<String>>,
}

fn vllm_bench(file: &VllmBench) -> Result<(Vec<TraceRow>, u64), String> {
    let n = file.input_lens.len();
    if file.start_times.is_empty() {
        return Err(
            "has no start_times, which say when requests were sent; `vllm bench serve` writes them with --save-detailed".to_owned(),
        );
    }
    if file.output_lens.len() != n || file.start_times.len() != n {
        return Err(format!(
            "input_lens has {n} requests, output_lens {} and start_times {}",
            file.output_lens.len(),
            file.start_times.len()
        ));
    }
    let mut rows = Vec::with_capacity(n);
    let mut failed = 0;
    for i in 0..n {
        let error = file.errors.get(i).and_then(|e| e.as_deref()).unwrap_or("");
        if !error.is_empty() || file.output_lens[i] == 0.0 {
            failed += 1;
            continue;
        }
        rows.push(TraceRow {
            id: i as u64,
            arrival_s: file.start_times[i],
            prompt_tokens: whole_tokens(file.input_lens[i], "input_lens")?,
            output_tokens: whole_tokens(file.output_lens[i], "output_lens")?,
            ..TraceRow::default()
        });
    }
    Ok((rows, failed))
}

/// GuideLLM's report.
#[derive(Deserialize)]
struct Guidellm {
    benchmarks: Vec<Benchmark>,
}

#[derive(Deserialize)]
struct Benchmark {
    requests: Requests,
}

#[derive(Deserialize)]
struct Requests {
    #[serde(default)]
    successful: Vec<GuidellmRequest>,
    #[serde(default)]
    errored: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    incomplete: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct GuidellmRequest {
    prompt_tokens: Option<f64>,
    output_tokens: Option<f64>,
    input_metrics: Option<TextTokens>,
    output_metrics: Option<TextTokens>,
    info: Option<Info>,
    request_start_time: Option<f64>,
    start_time: Option<f64>,
}

#[derive(Deserialize)]
struct TextTokens {
    text_tokens: Option<f64>,
}

#[derive(Deserialize)]
struct Info {
    timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Timings {
    request_start: Option<f64>,
}

fn guidellm(file: &Guidellm) -> Result<(Vec<TraceRow>, u64), String> {
    let [benchmark] = file.benchmarks.as_slice() else {
        return Err(format!(
            "has {} benchmarks, and a trace is the load of one; take it out, e.g. jq '.benchmarks |= [.[0]]' FILE",
            file.benchmarks.len()
        ));
    };
    let requests = &benchmark.requests;
    let mut rows = Vec::with_capacity(requests.successful.len());
    for (i, r) in requests.successful.iter().enumerate() {
        let at = |m: &str| format!("request {}: {m}", i + 1);
        let timings = r.info.as_ref().and_then(|i| i.timings.as_ref());
        let start = timings
            .and_then(|t| t.request_start)
            .or(r.request_start_time)
            .or(r.start_time)
            .ok_or_else(|| at("no start of the request (info.timings.request_start)"))?;
        let tokens = |count: Option<f64>, metrics: &Option<TextTokens>, what: &str| {
            let inner = || metrics.as_ref().and_then(|m| m.text_tokens);
            let n = count
                .or_else(inner)
                .ok_or_else(|| at(&format!("no {what}")))?;
            whole_tokens(n, what).map_err(|m| at(&m))
        };
        rows.push(TraceRow {
            id: i as u64,
            arrival_s: start,
            prompt_tokens: tokens(r.prompt_tokens, &r.input_metrics, "prompt_tokens")?,
            output_tokens: tokens(r.output_tokens, &r.output_metrics, "output_tokens")?,
            ..TraceRow::default()
        });
    }
    let count = |list: &Option<Vec<IgnoredAny>>| list.as_ref().map_or(0, Vec::len) as u64;
    Ok((rows, count(&requests.errored) + count(&requests.incomplete)))
}

/// A line of AIPerf's `profile_export.jsonl`.
#[derive(Deserialize)]
struct AiperfRecord {
    metadata: AiperfMetadata,
    #[serde(default)]
    metrics: AiperfMetrics,
}

#[derive(Deserialize)]
struct AiperfMetadata {
    request_start_ns: f64,
    benchmark_phase: Option<String>,
}

#[derive(Default, Deserialize)]
struct AiperfMetrics {
    input_sequence_length: Option<Metric>,
    output_sequence_length: Option<Metric>,
}

#[derive(Deserialize)]
struct Metric {
    value: f64,
}

/// Reads a record of AIPerf into `row`. True: the request is no load, since it failed or belongs to the warm-up.
pub(super) fn aiperf_record(line: &str, row: &mut TraceRow) -> Result<bool, String> {
    let record: AiperfRecord =
        serde_json::from_str(line).map_err(|e| format!("not a record of AIPerf ({e})"))?;
    *row = TraceRow {
        arrival_s: record.metadata.request_start_ns / 1e9,
        ..TraceRow::default()
    };
    let metrics = &record.metrics;
    let (Some(input), Some(output)) = (
        &metrics.input_sequence_length,
        &metrics.output_sequence_length,
    ) else {
        return Ok(true);
    };
    row.prompt_tokens = whole_tokens(input.value, "input_sequence_length")?;
    row.output_tokens = whole_tokens(output.value, "output_sequence_length")?;
    let warm_up = record.metadata.benchmark_phase.as_deref() == Some("warmup");
    Ok(warm_up || output.value == 0.0)
}
