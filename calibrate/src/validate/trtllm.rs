//! Saturated offline throughput of TensorRT-LLM 1.0, FP8, on H100 and H200.
//!
//! From the TensorRT-LLM performance overview of release 1.0: the vendor's settings on all GPUs of one engine.
//! `trtllm_max_throughput.csv` has its rows of 1000 / 1000 tokens; `trtllm_overview.csv`, which the binary carries, all other lengths, as the
//! sets `trtllm_overview` (dense models) and `trtllm_overview_moe`. Nothing is fitted.
//!
//! Replayed as that page says it was measured: so many requests at once, models on PyTorch with its overlap scheduler and CUDA
//! graphs, experts of mixtures spread over the ranks, 95 % of free memory for KV. What is lost while the last requests drain counts in. The KV
//! cache is FP8, the batch limit that of the release, and a step holds the longest prompt beside a full batch. Attention in data-parallel
//! ranks, which the page turns on for mixtures, is not modelled: theirs is tensor-parallel here.

use serde::Deserialize;

use super::case::{Case, Measured, SetError, Source};

/// Name of the data file with 1000 / 1000 tokens.
pub const FILE: &str = "trtllm_max_throughput.csv";
/// Name of the data file with all other lengths.
pub const OVERVIEW: &str = "trtllm_overview.csv";

/// Requests of the burst where a row does not say (the page's number for 1000 / 1000 tokens).
const REQUESTS: u32 = 3000;

/// Requests of a batch.
const BATCH: u32 = 2048;

#[derive(Debug, Deserialize)]
struct Raw {
    model: String,
    accelerator: String,
    precision: String,
    tp: u32,
    pp: u32,
    input_tokens: u32,
    output_tokens: u32,
    #[serde(default)]
    requests: Option<u32>,
    output_tok_s: f64,
}

/// The cases of 1000 / 1000 tokens.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    (source.read::<Raw>(FILE)?.iter())
        .map(|raw| case("trtllm_max_throughput", FILE, raw))
        .collect()
}

/// The cases of dense models at other lengths.
///
/// # Errors
/// The file is malformed.
pub fn overview_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    overview(source, "trtllm_overview", false)
}

/// The cases of mixtures of experts at other lengths.
///
/// # Errors
/// The file is malformed.
pub fn overview_moe_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    overview(source, "trtllm_overview_moe", true)
}

fn overview(source: &Source, set: &'static str, mixtures: bool) -> Result<Vec<Case>, SetError> {
    let rows: Vec<Raw> = source.read_or_published(OVERVIEW)?;
    let mut out = Vec::new();
    for raw in &rows {
        if model(&raw.model, OVERVIEW)?.1 == mixtures {
            out.push(case(set, OVERVIEW, raw)?);
        }
    }
    Ok(out)
}

/// Catalog name of a model as the page names it, and whether it is a mixture of experts.
fn model(name: &str, file: &str) -> Result<(&'static str, bool), SetError> {
    match name {
        "Llama-4-Scout-17B-16E" => Ok(("llama-4-scout", true)),
        "Llama-4-Maverick-17B-128E" => Ok(("llama-4-maverick", true)),
        "Qwen3-235B-A22B" => Ok(("qwen3-235b-a22b", true)),
        "Llama-3.3-70B" => Ok(("llama-3.3-70b", false)),
        "Llama-3.1-405B" => Ok(("llama-3.1-405b", false)),
        "Llama-3.1-8B" => Ok(("llama-3.1-8b", false)),
        other => Err(SetError::new(file, format!("unknown model `{other}`"))),
    }
}

fn case(set: &'static str, file: &str, raw: &Raw) -> Result<Case, SetError> {
    let h200 = raw.accelerator.starts_with("H200");
    let instance = if h200 { "p5en.48xlarge" } else { "p5.48xlarge" };
    let (model, mixture) = model(&raw.model, file)?;
    let precision = raw.precision.to_lowercase();
    let requests = raw.requests.unwrap_or(REQUESTS);
    let (input, output) = (raw.input_tokens, raw.output_tokens);
    let scenario = format!(
        "[model]\nname = \"{model}\"\nweights = \"{precision}\"\nkv_cache = \"{precision}\"\n\
         [hardware]\ninstance = \"{instance}\"\n[layout]\ntp = {}\npp = {}\nep = {}\n\
         [engine]\nkind = \"trt_llm\"\nmax_batch_size = {BATCH}\nmax_num_tokens = {}\nmax_seq_len = {}\n\
         overlap_scheduler = true\ncuda_graphs = true\nkv_cache_free_gpu_mem_fraction = 0.95\n\
         [[workload]]\narrival = {{ kind = \"burst\", requests = {requests} }}\nprompt = {input}\noutput = {output}\n\
         [run]\nrequests = {requests}\n",
        raw.tp,
        raw.pp,
        if mixture { raw.tp } else { 1 },
        input.saturating_add(BATCH).max(8192),
        input.saturating_add(output),
    );
    Ok(Case {
        set,
        name: format!("{model} {} tp{} {input}/{output}", raw.accelerator, raw.tp),
        knobs: vec![
            model.to_owned(),
            raw.accelerator.clone(),
            raw.tp.to_string(),
            input.to_string(),
            output.to_string(),
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
    })
}
