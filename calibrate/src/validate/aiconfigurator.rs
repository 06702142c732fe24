//! TTFT and TPOT by concurrency, lengths and TP on H100: AIConfigurator's sample of measured points (Apache-2.0), engines other than [`super::qwen3`]'s.
//!
//! `serving2/trtllm_llama31_8b_h100.csv` (TensorRT-LLM 1.0.0rc3, Llama-3.1-8B, TP 1 and 4) and `serving2/vllm_gpt_oss_120b_h100.csv` (vLLM 0.18,
//! GPT-OSS-120B in MXFP4, TP 4).
//!
//! Replayed as AIConfigurator's evaluation measures ([`super::qwen3`]): ten requests a user, all users at once, lengths drawn evenly between 0.8 and 1.0 of
//! those asked for. TensorRT-LLM with a budget of 8192 tokens, overlap scheduler and graphs up to the concurrency.
//!
//! TensorRT-LLM's rows were measured with 1.0.0rc3, which cannot wait for a batch to fill: `batch_wait_timeout_iters` came with pull request 7416, two
//! months later. Yet a request waits about as long as another one takes to end (1.1 to 1.2 of the mean gap between ends at 8 and 16 users, whatever the
//! lengths), and eight users decode as fast as seven would. So the rows are replayed with one slot fewer than users. That one is inferred from TTFT of
//! eight users, which counts as fitted. What takes the slot is not known. Nor is why at 64 and 128 users on TP 4 only some 45 and 90 ran.
//! TPOT of TP 4 with 1024 prompt and 128 output tokens and up to 32 users gave the host time of a step with context.
//!
//! GPT-OSS is replayed as the benchmark behind its rows starts vLLM: the file's lengths, concurrencies and date are those of InferenceX
//! (SemiAnalysisAI/InferenceX, `benchmarks/gptoss_fp4_h100.sh`), whose script sets `VLLM_MXFP4_USE_MARLIN=1`, `async-scheduling`, no prefix caching,
//! 8192 tokens a step, a model length of 10 240 and `max-num-seqs` equal to the concurrency, and sends ten requests a user.
//!
//! `serving2/sglang_qwen3_32b_h100.csv` (SGLang 0.5.1.post1, Qwen3-32B, TP 2 and 4) does not say how SGLang was started. It is replayed with SGLang's defaults, a
//! limit of running requests equal to the concurrency as in the other tables, Dynamo's front end, and equal lengths as in [`super::qwen3`]. That is a choice: lengths drawn as
//! above give a sixth of its TTFT, and what AIConfigurator's generator has since written for SGLang (`enable_mixed_chunk`) little more than half of it. It was made with
//! the errors of all rows in sight; those of TP 2 with 1024 prompt tokens, which decided it, count as fitted. No parameter was fitted.
//!
//! At a concurrency of 512 the table of GPT-OSS shows about 90 requests running, with a limit that it does not tell: those rows are left out.

use super::case::{Case, Source};
use super::error::SetError;
use super::sample::{ROUNDS, Sample, drawn};

/// The tables.
const TRTLLM: &str = "serving2/trtllm_llama31_8b_h100.csv";
const GPT_OSS: &str = "serving2/vllm_gpt_oss_120b_h100.csv";
const SGLANG: &str = "serving2/sglang_qwen3_32b_h100.csv";

/// Concurrency from which an untold limit was at work.
const LIMITED: u32 = 512;

/// Lengths that are all equal.
fn equal(tokens: u32) -> String {
    tokens.to_string()
}

/// How a set was measured.
struct Protocol {
    /// Lengths of prompts and outputs, by those asked for.
    lengths: fn(u32) -> String,
    /// How tokens are chosen.
    sampling: &'static str,
}

/// Whether parameters were fitted on a metric of a row.
type Fitted = fn(&Sample, &str) -> bool;

fn cases(
    source: &Source,
    file: &str,
    set: &'static str,
    model: &str,
    protocol: &Protocol,
    fitted: Fitted,
    engine: impl Fn(u32) -> String,
) -> Result<Vec<Case>, SetError> {
    let mut out: Vec<Case> = Vec::new();
    for raw in source.read::<Sample>(file)? {
        let Some([tp, users]) = raw.aggregated() else {
            continue;
        };
        let (isl, osl) = (raw.isl, raw.osl);
        let name = format!("{model} tp{tp} isl={isl} osl={osl} c={users}");
        if users >= LIMITED || out.iter().any(|c| c.name == name) {
            continue;
        }
        let scenario = format!(
            "[model]\nname = \"{model}\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = {tp}\n[engine]\n{}\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\nprompt = {}\noutput = {}\n{}\
             [run]\nrequests = {}\n",
            engine(users),
            (protocol.lengths)(isl),
            (protocol.lengths)(osl),
            protocol.sampling,
            users.saturating_mul(ROUNDS),
        );
        out.push(Case {
            set,
            name,
            knobs: [tp, isl, osl, users].map(|k| k.to_string()).to_vec(),
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: raw.measured(|metric| fitted(&raw, metric)),
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
        let slots = users.saturating_sub(1).max(1);
        format!(
            "kind = \"trt_llm\"\nmax_batch_size = {slots}\nmax_num_tokens = 8192\noverlap_scheduler = true\ncuda_graphs = true"
        )
    };
    let set = "trtllm_llama31_8b";
    let fitted: Fitted = |r, metric| match metric {
        "ttft_ms" => r.concurrency == Some(8.0),
        _ => {
            let few = r.concurrency.is_some_and(|users| users <= 32.0);
            r.tp_size == Some(4.0) && (r.isl, r.osl) == (1024, 128) && few
        }
    };
    let protocol = Protocol {
        lengths: drawn,
        sampling: "",
    };
    cases(
        source,
        TRTLLM,
        set,
        "llama-3.1-8b",
        &protocol,
        fitted,
        engine,
    )
}

/// SGLang 0.5.1, Qwen3-32B.
///
/// # Errors
/// The file is missing or malformed.
pub fn sglang_qwen3_32b(source: &Source) -> Result<Vec<Case>, SetError> {
    let engine = |users: u32| {
        format!(
            "kind = \"sglang\"\nversion = \"0.5.1\"\nfront_end = \"dynamo\"\nmax_running_requests = {users}"
        )
    };
    // The model's `generation_config.json`, which SGLang takes for requests that say nothing.
    let protocol = Protocol {
        lengths: equal,
        sampling: "sampling = { temperature = 0.6, top_k = 20, top_p = 0.95 }\n",
    };
    let fitted: Fitted = |r, _| r.tp_size == Some(2.0) && r.isl == 1024;
    let set = "sglang_qwen3_32b";
    cases(source, SGLANG, set, "qwen3-32b", &protocol, fitted, engine)
}

/// vLLM 0.18, GPT-OSS-120B.
///
/// # Errors
/// The file is missing or malformed.
pub fn vllm_gpt_oss(source: &Source) -> Result<Vec<Case>, SetError> {
    let engine = |users: u32| {
        format!(
            "kind = \"vllm_v1\"\nversion = \"0.18\"\nenable_prefix_caching = false\nasync_scheduling = true\nmoe_backend = \"marlin\"\n\
             max_num_batched_tokens = 8192\nmax_num_seqs = {users}\nmax_model_len = 10240"
        )
    };
    // No filter is in the model's `generation_config.json`, and vLLM's own temperature is 1.
    let protocol = Protocol {
        lengths: drawn,
        sampling: "sampling = { temperature = 1 }\n",
    };
    let set = "vllm_gpt_oss";
    cases(
        source,
        GPT_OSS,
        set,
        "gpt-oss-120b",
        &protocol,
        |_, _| false,
        engine,
    )
}
