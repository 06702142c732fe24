//! vLLM on one or two H100, open loop, request by request: logs replayed at their own arrival times.
//!
//! `vllm_h100_requests/` (vLLM 0.15, Llama-2-7B TP1 and CodeLlama-34B TP2, 33 600 requests; after the first round every
//! prompt is a full prefix hit), `vllm_h100_requests2/` (the same of Mixtral-8x7B, TP2) and `vllm_h100_rate_sweep/` (vLLM 0.23, Qwen3-14B, distinct prompts, 2 and 8 req/s).
//! Fitted: Llama-2-7B. Only predicted: CodeLlama-34B, Mixtral-8x7B and the rate sweep.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Folder of the log of a mixture of experts.
pub const MIXTURE: &str = "vllm_h100_requests2";
/// Folder of the request logs.
pub const REQUESTS: &str = "vllm_h100_requests";
/// Folder of the rate sweep.
pub const SWEEP: &str = "vllm_h100_rate_sweep";

#[derive(Debug, Deserialize)]
struct Experiment {
    experiment: String,
    model: String,
    tp: u32,
    max_model_len: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    kv_blocks_gpu: u64,
    output_len: u32,
}

#[derive(Debug, Deserialize)]
struct Request {
    experiment: String,
    arrival_us: u64,
    input_tokens: u32,
    ttft_s: f64,
    e2e_s: f64,
}

#[derive(Debug, Deserialize)]
struct SweepRequest {
    cell: String,
    arrival_us: u64,
    server_input_tokens: u32,
    output_tokens: u32,
    status: String,
    ttft_ms: f64,
    e2e_ms: f64,
}

/// Mean and 99th percentile (linear interpolation) of `values`, which must not be empty.
fn mean_p99(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let h = 0.99 * (values.len() - 1) as f64;
    let (lo, hi) = (values[h.floor() as usize], values[h.ceil() as usize]);
    (
        values.iter().sum::<f64>() / values.len() as f64,
        lo + (hi - lo) * h.fract(),
    )
}

/// The cases of the request logs.
///
/// # Errors
/// A file is missing or malformed.
pub fn request_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    logs(source, REQUESTS, "vllm_requests")
}

/// The cases of the log of a mixture of experts.
///
/// # Errors
/// A file is missing or malformed.
pub fn mixture_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    logs(source, MIXTURE, "vllm_requests_moe")
}

/// Catalog name of a model as the logs name it, and what they say of the load.
fn model_and_load(model: &str, folder: &str) -> Result<(&'static str, &'static str), SetError> {
    if model.contains("Llama-2-7b") {
        Ok(("llama-2-7b", "8 then 20 req/s"))
    } else if model.contains("CodeLlama-34b") {
        Ok(("codellama-34b", "8 then 20 req/s"))
    } else if model.contains("Mixtral-8x7B") {
        Ok(("mixtral-8x7b", "5 then 10 req/s"))
    } else {
        Err(SetError::new(folder, format!("unknown model `{model}`")))
    }
}

fn logs(source: &Source, folder: &str, set: &'static str) -> Result<Vec<Case>, SetError> {
    let experiments: Vec<Experiment> = source.read(&format!("{folder}/experiments.csv"))?;
    let requests: Vec<Request> = source.read(&format!("{folder}/requests.csv.gz"))?;
    let mut out = Vec::new();
    for e in &experiments {
        let (model, load) = model_and_load(&e.model, folder)?;
        let fitted = model == "llama-2-7b";
        let log: Vec<&Request> = requests
            .iter()
            .filter(|r| r.experiment == e.experiment)
            .collect();
        if log.is_empty() {
            return Err(SetError::new(
                folder,
                format!("no requests of {}", e.experiment),
            ));
        }
        // The prompts are 44 to 50 distinct ones, told apart by their length; their blocks carry one identity
        // each, in the trace's blocks of 512 tokens.
        let mut trace = String::new();
        for r in &log {
            let blocks = r.input_tokens.div_ceil(512);
            let ids: Vec<String> = (0..blocks)
                .map(|b| (u64::from(r.input_tokens) * 64 + u64::from(b)).to_string())
                .collect();
            let _ = writeln!(
                trace,
                "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}",
                r.arrival_us / 1000,
                r.input_tokens,
                e.output_len,
                ids.join(", ")
            );
        }
        let scenario = format!(
            "[model]\nname = \"{model}\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = {}\n\
             [engine]\nkind = \"vllm_v1\"\nversion = \"0.11\"\nasync_scheduling = true\nmax_model_len = {}\nmax_num_seqs = {}\n\
             max_num_batched_tokens = {}\nkv_blocks = {}\n\
             [[workload]]\narrival = {{ kind = \"trace\", file = \"{{dir}}/trace.jsonl\" }}\n",
            e.tp, e.max_model_len, e.max_num_seqs, e.max_num_batched_tokens, e.kv_blocks_gpu
        );
        let (ttft, ttft_p99) = mean_p99(log.iter().map(|r| r.ttft_s * 1e3).collect());
        let (e2e, _) = mean_p99(log.iter().map(|r| r.e2e_s * 1e3).collect());
        out.push(Case {
            set,
            name: format!("{model} tp{} {load}", e.tp),
            knobs: vec![model.to_owned()],
            scenario,
            files: vec![("trace.jsonl".to_owned(), trace)],
            runs: 1,
            measured: vec![
                Measured {
                    metric: "e2e_mean_ms",
                    path: "e2e_ms.mean",
                    value: e2e,
                    fitted,
                },
                Measured {
                    metric: "ttft_mean_ms",
                    path: "ttft_ms.mean",
                    value: ttft,
                    fitted,
                },
                Measured {
                    metric: "ttft_p99_ms",
                    path: "ttft_ms.p99",
                    value: ttft_p99,
                    fitted,
                },
            ],
        });
    }
    Ok(out)
}

/// The cases of the rate sweep.
///
/// # Errors
/// A file is missing or malformed.
pub fn sweep_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let requests: Vec<SweepRequest> = source.read(&format!("{SWEEP}/requests.csv.gz"))?;
    let mut cells: BTreeMap<&str, Vec<&SweepRequest>> = BTreeMap::new();
    for r in requests.iter().filter(|r| r.status == "ok") {
        cells.entry(&r.cell).or_default().push(r);
    }
    let mut out = Vec::new();
    for (cell, mut log) in cells {
        log.sort_by_key(|r| r.arrival_us);
        let mut trace = String::from("arrival_s,input_tokens,output_tokens\n");
        for r in &log {
            let _ = writeln!(
                trace,
                "{},{},{}",
                r.arrival_us as f64 * 1e-6,
                r.server_input_tokens,
                r.output_tokens
            );
        }
        let scenario = "[model]\nname = \"qwen3-14b\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"p5.4xlarge\"\n\
             [engine]\nkind = \"vllm_v1\"\nversion = \"0.11\"\nasync_scheduling = true\nmax_num_seqs = 256\n\
             max_num_batched_tokens = 8192\nkv_blocks = 18038\n\
             [[workload]]\narrival = { kind = \"trace\", file = \"{dir}/trace.csv\" }\n"
            .to_owned();
        let tpot = mean_p99(
            log.iter()
                .map(|r| (r.e2e_ms - r.ttft_ms) / f64::from(r.output_tokens.max(2) - 1))
                .collect(),
        );
        let ttft = mean_p99(log.iter().map(|r| r.ttft_ms).collect());
        let e2e = mean_p99(log.iter().map(|r| r.e2e_ms).collect());
        out.push(Case {
            set: "vllm_rate_sweep",
            name: format!("qwen3-14b {cell}"),
            knobs: vec![cell.to_owned()],
            scenario,
            files: vec![("trace.csv".to_owned(), trace)],
            runs: 1,
            measured: vec![
                Measured::unseen("tpot_mean_ms", "tpot_ms.mean", tpot.0),
                Measured::unseen("ttft_mean_ms", "ttft_ms.mean", ttft.0),
                Measured::unseen("ttft_p99_ms", "ttft_ms.p99", ttft.1),
                Measured::unseen("e2e_mean_ms", "e2e_ms.mean", e2e.0),
            ],
        });
    }
    Ok(out)
}
