//! Saturated offline throughput of TensorRT-LLM 1.0 at 1000 / 1000 tokens, FP8, on H100 and H200.
//!
//! `trtllm_max_throughput.csv`, from the TensorRT-LLM performance overview: the vendor's best settings on all GPUs of one
//! engine. Nothing is fitted. Replayed as that page says it was measured: 3000 requests at once, models on PyTorch with
//! its overlap scheduler and CUDA graphs, experts of mixtures spread over the ranks. What is lost while the last requests
//! drain counts in. The KV cache is FP8, the batch limit that of the release. Attention in data-parallel ranks, which the
//! page turns on for mixtures, is not modelled: theirs is tensor-parallel here.

use serde::Deserialize;

use super::case::{Case, Measured, SetError, Source};

/// Name of the data file.
pub const FILE: &str = "trtllm_max_throughput.csv";

/// Requests of the burst.
const REQUESTS: u32 = 3000;

#[derive(Debug, Deserialize)]
struct Raw {
    model: String,
    accelerator: String,
    precision: String,
    tp: u32,
    pp: u32,
    input_tokens: u32,
    output_tokens: u32,
    output_tok_s: f64,
}

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for raw in source.read::<Raw>(FILE)? {
        let instance = if raw.accelerator.starts_with("H200") {
            "p5en.48xlarge"
        } else {
            "p5.48xlarge"
        };
        let (model, mixture) = match raw.model.as_str() {
            "Llama-4-Scout-17B-16E" => ("llama-4-scout", true),
            "Llama-4-Maverick-17B-128E" => ("llama-4-maverick", true),
            "Qwen3-235B-A22B" => ("qwen3-235b-a22b", true),
            "Llama-3.3-70B" => ("llama-3.3-70b", false),
            "Llama-3.1-405B" => ("llama-3.1-405b", false),
            "Llama-3.1-8B" => ("llama-3.1-8b", false),
            other => return Err(SetError::new(FILE, format!("unknown model `{other}`"))),
        };
        let precision = raw.precision.to_lowercase();
        let scenario = format!(
            "[model]\nname = \"{model}\"\nweights = \"{precision}\"\nkv_cache = \"{precision}\"\n\
             [hardware]\ninstance = \"{instance}\"\n[layout]\ntp = {}\npp = {}\nep = {}\n\
             [engine]\nkind = \"trt_llm\"\nmax_batch_size = 2048\nmax_num_tokens = 8192\nmax_seq_len = {}\noverlap_scheduler = true\ncuda_graphs = true\n\
             [[workload]]\narrival = {{ kind = \"burst\", requests = {REQUESTS} }}\nprompt = {}\noutput = {}\n\
             [run]\nrequests = {REQUESTS}\n",
            raw.tp,
            raw.pp,
            if mixture { raw.tp } else { 1 },
            raw.input_tokens + raw.output_tokens,
            raw.input_tokens,
            raw.output_tokens,
        );
        out.push(Case {
            set: "trtllm_max_throughput",
            name: format!("{model} {} tp{}", raw.accelerator, raw.tp),
            knobs: vec![
                model.to_owned(),
                raw.accelerator.clone(),
                raw.tp.to_string(),
            ],
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: vec![Measured {
                metric: "output_tok_s",
                path: "throughput.output_tokens_per_s",
                value: raw.output_tok_s,
                fitted: false,
            }],
        });
    }
    Ok(out)
}
