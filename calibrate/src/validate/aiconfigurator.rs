//! TTFT and TPOT by concurrency, lengths and TP on H100: AIConfigurator's sample of measured points (Apache-2.0), engines other than [`super::qwen3`]'s.
//!
//! `serving2/trtllm_llama31_8b_h100.csv` (TensorRT-LLM 1.0, Llama-3.1-8B, TP 1 and 4) and `serving2/vllm_gpt_oss_120b_h100.csv` (vLLM 0.18,
//! GPT-OSS-120B in MXFP4, TP 4). Nothing of them is fitted.
//!
//! Replayed as AIConfigurator's evaluation measures ([`super::qwen3`]): ten requests a user, all users at once, lengths drawn evenly between 0.8 and 1.0 of
//! those asked for. TensorRT-LLM with a budget of 8192 tokens, overlap scheduler and graphs up to the concurrency. Some of its runs had
//! `batch_wait_timeout_iters` set, and the table does not say which: TTFT of eight users grows with the output length, which is prompts waiting for others;
//! so TTFT is predicted for what no row has, an executor that does not wait, and TPOT is what to look at.
//! At a concurrency of 512 the table shows about 90 requests running, with a limit that it does not tell: those rows are left out.

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// The tables.
const TRTLLM: &str = "serving2/trtllm_llama31_8b_h100.csv";
const GPT_OSS: &str = "serving2/vllm_gpt_oss_120b_h100.csv";

/// Measured requests per user of a run.
const ROUNDS: u32 = 10;
/// Concurrency from which an untold limit was at work.
const LIMITED: u32 = 512;

#[derive(Debug, Deserialize)]
struct Raw {
    mode: String,
    isl: u32,
    osl: u32,
    concurrency: f64,
    tp_size: f64,
    silicon_ttft_ms: f64,
    silicon_tpot_ms: f64,
}

/// Lengths between 0.8 and 1.0 of `tokens`.
fn drawn(tokens: u32) -> String {
    format!(
        "{{ kind = \"uniform\", min = {}, max = {tokens} }}",
        (f64::from(tokens) * 0.8).round()
    )
}

fn cases(
    source: &Source,
    file: &str,
    set: &'static str,
    model: &str,
    sampling: &str,
    engine: impl Fn(u32) -> String,
) -> Result<Vec<Case>, SetError> {
    let mut out: Vec<Case> = Vec::new();
    for raw in source.read::<Raw>(file)? {
        let (tp, users) = (raw.tp_size as u32, raw.concurrency as u32);
        let Raw { isl, osl, .. } = raw;
        let name = format!("{model} tp{tp} isl={isl} osl={osl} c={users}");
        if raw.mode != "agg" || users >= LIMITED || out.iter().any(|c| c.name == name) {
            continue;
        }
        let scenario = format!(
            "[model]\nname = \"{model}\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = {tp}\n[engine]\n{}\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\nprompt = {}\noutput = {}\n{sampling}\
             [run]\nrequests = {}\n",
            engine(users),
            drawn(isl),
            drawn(osl),
            users.saturating_mul(ROUNDS),
        );
        let measured = |metric, path, value| Measured {
            metric,
            path,
            value,
            fitted: false,
        };
        out.push(Case {
            set,
            name,
            knobs: [tp, isl, osl, users].map(|k| k.to_string()).to_vec(),
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: vec![
                measured("ttft_ms", "ttft_ms.mean", raw.silicon_ttft_ms),
                measured("tpot_ms", "tpot_ms.mean", raw.silicon_tpot_ms),
            ],
        });
    }
    Ok(out)
}

/// TensorRT-LLM 1.0, Llama-3.1-8B.
///
/// # Errors
/// The file is missing or malformed.
pub fn trtllm_llama31_8b(source: &Source) -> Result<Vec<Case>, SetError> {
    let engine = |users: u32| {
        format!(
            "kind = \"trt_llm\"\nmax_batch_size = {users}\nmax_num_tokens = 8192\noverlap_scheduler = true\ncuda_graphs = true"
        )
    };
    let set = "trtllm_llama31_8b";
    cases(source, TRTLLM, set, "llama-3.1-8b", "", engine)
}

/// vLLM 0.18, GPT-OSS-120B.
///
/// # Errors
/// The file is missing or malformed.
pub fn vllm_gpt_oss(source: &Source) -> Result<Vec<Case>, SetError> {
    let engine =
        |_| "kind = \"vllm_v1\"\nversion = \"0.18\"\nenable_prefix_caching = false".to_owned();
    // No filter is in the model's `generation_config.json`, and vLLM's own temperature is 1.
    let sampling = "sampling = { temperature = 1 }\n";
    let set = "vllm_gpt_oss";
    cases(source, GPT_OSS, set, "gpt-oss-120b", sampling, engine)
}
