//! Saturated offline throughput of TensorRT-LLM 1.0, FP8, on H100 and H200.
//!
//! From the TensorRT-LLM performance overview of release 1.0: the vendor's settings on all GPUs of one engine.
//! `trtllm_max_throughput.csv` has its rows of 1000 / 1000 tokens; `trtllm_overview.csv`, which the binary carries, all other lengths, as the
//! sets `trtllm_overview` (dense models) and `trtllm_overview_moe`. `trtllm_per_gpu.csv` has the rows of H100 and H200 of the page that
//! came after it. Nothing is fitted.
//!
//! Replayed as that page says it was measured: so many requests at once, models on PyTorch with its overlap scheduler and CUDA
//! graphs of the listed sizes, 95 % of free memory for KV; mixtures of experts but Scout with attention in data-parallel ranks, and the experts of all spread over
//! them. What is lost while the last requests drain counts in. The KV cache is FP8. The limits of a batch are those that `trtllm-bench` works out
//! from model, memory and lengths.
//!
//! The page's prompts are random token ids, which routers spread less evenly than text: Gini coefficients of experts' loads of 0.29 to 0.38
//! have been measured on such prompts, 0.11 to 0.29 on text (arXiv:2605.20982). A popularity that falls with the rank to the power `a` has
//! `a / (2 - a)`: 0.5 gives 0.33.

use hwmodels::model::AttentionKind;
use hwmodels::{Catalog, Dtype};
use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file with 1000 / 1000 tokens.
pub const FILE: &str = "trtllm_max_throughput.csv";
/// Name of the data file with all other lengths.
pub const OVERVIEW: &str = "trtllm_overview.csv";
/// Name of the data file with the later page's throughput per GPU.
pub const PER_GPU: &str = "trtllm_per_gpu.csv";

/// Requests of the burst where a row does not say (the page's number for 1000 / 1000 tokens).
const REQUESTS: u32 = 3000;

/// Most requests of a batch that `trtllm-bench` plans for.
const MOST_REQUESTS: f64 = 4096.0;
/// Most tokens of a step that it plans for, but for a prompt that needs more [tokens].
const MOST_TOKENS: f64 = 32_768.0;
/// Share of the memory beside the weights that it counts on for KV.
const KV_SHARE: f64 = 0.95;

/// Decode graphs that the page captures [sequences].
const GRAPHS: [u32; 15] = [
    1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192,
];

/// The mixture whose attention release 1.0 ran in one tensor-parallel group: its own recipe of that release says `enable_attention_dp: false`, and the
/// page of measurements puts the key that would turn it on for mixtures under `cuda_graph_config`, where nothing reads it.
const SCOUT: &str = "llama-4-scout";

/// Skew of the experts' popularity under random token ids.
const SKEW: f64 = 0.5;

/// A row of release 1.0's page.
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

/// A row of the later page.
#[derive(Debug, Deserialize)]
struct PerGpu {
    model: String,
    accelerator: String,
    precision: String,
    kv_cache: String,
    gpus: u32,
    attention_dp: bool,
    input_tokens: u32,
    output_tokens: u32,
    requests: u32,
    output_tok_s_gpu: f64,
}

/// A measured run of either page.
struct Run {
    model: &'static str,
    accelerator: String,
    weights: String,
    kv_cache: String,
    /// GPUs of a pipeline stage.
    gpus: u32,
    pp: u32,
    /// Attention in as many data-parallel ranks as there are GPUs, rather than tensor-parallel.
    attention_dp: bool,
    mixture: bool,
    input: u32,
    output: u32,
    requests: u32,
    output_tok_s: f64,
}

impl Raw {
    fn run(&self, file: &str) -> Result<Run, SetError> {
        let (model, mixture) = model(&self.model, file)?;
        Ok(Run {
            model,
            accelerator: self.accelerator.clone(),
            weights: self.precision.to_lowercase(),
            kv_cache: self.precision.to_lowercase(),
            gpus: self.tp,
            pp: self.pp,
            attention_dp: mixture && model != SCOUT,
            mixture,
            input: self.input_tokens,
            output: self.output_tokens,
            requests: self.requests.unwrap_or(REQUESTS),
            output_tok_s: self.output_tok_s,
        })
    }
}

impl PerGpu {
    fn run(&self) -> Result<Run, SetError> {
        let (model, mixture) = model(&self.model, PER_GPU)?;
        Ok(Run {
            model,
            accelerator: self.accelerator.clone(),
            weights: self.precision.to_lowercase(),
            kv_cache: self.kv_cache.to_lowercase(),
            gpus: self.gpus,
            pp: 1,
            attention_dp: self.attention_dp,
            mixture,
            input: self.input_tokens,
            output: self.output_tokens,
            requests: self.requests,
            output_tok_s: self.output_tok_s_gpu * f64::from(self.gpus),
        })
    }
}

/// The cases of 1000 / 1000 tokens.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    (source.read::<Raw>(FILE)?.iter())
        .map(|raw| case("trtllm_max_throughput", FILE, &raw.run(FILE)?))
        .collect()
}

/// The cases of the later page.
///
/// # Errors
/// The file is malformed.
pub fn per_gpu_cases(source: &Source) -> Result<Vec<Case>, SetError> {
    (source.read_or_published::<PerGpu>(PER_GPU)?.iter())
        .map(|raw| case("trtllm_per_gpu", PER_GPU, &raw.run()?))
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
        let run = raw.run(OVERVIEW)?;
        if run.mixture == mixtures {
            out.push(case(set, OVERVIEW, &run)?);
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
        "DeepSeek-R1" => Ok(("deepseek-v3", true)),
        "GPT-OSS-120B" => Ok(("gpt-oss-120b", true)),
        "GPT-OSS-20B" => Ok(("gpt-oss-20b", true)),
        "Llama-3.3-70B" => Ok(("llama-3.3-70b", false)),
        "Llama-3.1-405B" => Ok(("llama-3.1-405b", false)),
        "Llama-3.1-8B" => Ok(("llama-3.1-8b", false)),
        other => Err(SetError::new(file, format!("unknown model `{other}`"))),
    }
}

/// Requests of a batch and tokens of a step that `trtllm-bench` sets where it is not told (`tensorrt_llm/bench/build/tuning.py`): as many
/// requests as their KV has room for in all memory beside 8-bit weights, the decodes and, in proportion, prompts of so many; both rounded up.
fn limits(run: &Run, instance: &str, file: &str) -> Result<(u32, u32), SetError> {
    let unknown = |e: hwmodels::error::Error| SetError::new(file, e.to_string());
    let catalog = Catalog::builtin();
    let m = catalog.model(run.model).map_err(unknown)?;
    let instance = catalog.instance(instance).map_err(unknown)?;
    let chip = catalog
        .accelerator(&instance.accelerator)
        .map_err(unknown)?;
    let (input, output) = (f64::from(run.input), f64::from(run.output));
    // It knows no latent attention: the size of a head is that of the residual stream over the heads.
    let head = match m.attention {
        AttentionKind::Gqa => m.head_dim,
        AttentionKind::Mla { .. } => m.hidden / m.heads,
    };
    let kv_bytes = if run.kv_cache == "fp8" { 1.0 } else { 2.0 };
    let heads = f64::from(m.kv_heads.max(run.gpus));
    let kv_token = 2.0 * f64::from(m.layers) * heads * f64::from(head) * kv_bytes;
    let weights = match run.weights.as_str() {
        "fp8" => Dtype::Fp8,
        "mxfp4" => Dtype::Mxfp4,
        other => return Err(SetError::new(file, format!("unknown precision `{other}`"))),
    };
    let memory = f64::from(run.gpus) * f64::from(run.pp) * chip.usable_bytes as f64;
    let free = memory - m.parameters() as f64 * weights.bytes();
    let requests = KV_SHARE * free / (kv_token * (input + output));
    let requests = requests.clamp(1.0, MOST_REQUESTS) / f64::from(run.pp.max(1));
    let up = |x: f64, to: f64| to * (x / to).ceil();
    let batch = match requests {
        r if r < 256.0 => up(r, 32.0).max(64.0),
        r if r < 1024.0 => up(r, 128.0),
        r => up(r, 256.0),
    };
    let tokens = match (requests * (1.0 + input / output)).min(MOST_TOKENS) {
        t if t < 4096.0 => up(t, 256.0).max(2048.0),
        t if t < 8192.0 => up(t, 512.0),
        t => up(t, 1024.0),
    };
    // A prompt is not split over steps, so one must fit beside a full batch.
    Ok((batch as u32, tokens.max(input + batch) as u32))
}

fn case(set: &'static str, file: &str, run: &Run) -> Result<Case, SetError> {
    let h200 = run.accelerator.starts_with("H200");
    let instance = if h200 { "p5en.48xlarge" } else { "p5.48xlarge" };
    let Run {
        model,
        weights,
        kv_cache,
        gpus,
        pp,
        input,
        output,
        requests,
        ..
    } = run;
    let (batch, tokens) = limits(run, instance, file)?;
    let skew = if run.mixture { SKEW } else { 0.0 };
    let layout = match (run.attention_dp, run.mixture) {
        (true, _) => format!("tp = 1\ndp = {gpus}\nep = {gpus}"),
        (false, true) => format!("tp = {gpus}\nep = {gpus}"),
        (false, false) => format!("tp = {gpus}"),
    };
    // The later page balances DeepSeek's ranks, and no other model's.
    let balance = if set == "trtllm_per_gpu" && *model == "deepseek-v3" {
        "attention_dp_config = { enable_balance = true, timeout_iters = 60, batching_wait_iters = 0 }\n"
    } else {
        ""
    };
    let scenario = format!(
        "[model]\nname = \"{model}\"\nweights = \"{weights}\"\nkv_cache = \"{kv_cache}\"\nexpert_skew = {skew}\n\
         [hardware]\ninstance = \"{instance}\"\n[layout]\n{layout}\npp = {pp}\n\
         [engine]\nkind = \"trt_llm\"\nmax_batch_size = {batch}\nmax_num_tokens = {tokens}\nmax_seq_len = {}\n\
         overlap_scheduler = true\ncuda_graph_batch_sizes = {GRAPHS:?}\nkv_cache_free_gpu_mem_fraction = 0.95\n{balance}\
         [[workload]]\narrival = {{ kind = \"burst\", requests = {requests} }}\nprompt = {input}\noutput = {output}\n\
         [run]\nrequests = {requests}\n",
        input.saturating_add(*output),
    );
    let lay = if set == "trtllm_per_gpu" && run.attention_dp {
        "dep"
    } else {
        "tp"
    };
    Ok(Case {
        set,
        name: format!("{model} {} {lay}{gpus} {input}/{output}", run.accelerator),
        knobs: vec![
            (*model).to_owned(),
            run.accelerator.clone(),
            gpus.to_string(),
            input.to_string(),
            output.to_string(),
        ],
        scenario,
        files: Vec::new(),
        runs: 1,
        measured: vec![Measured {
            metric: "output_tok_s",
            path: "throughput_with_drain.output_tokens_per_s",
            value: run.output_tok_s,
            fitted: false,
        }],
    })
}
