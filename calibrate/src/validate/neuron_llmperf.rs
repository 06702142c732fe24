//! Llama-3-70B on Inferentia2 under TGI, as llmperf measured it: one to 512 users, four compiled rows. Nothing of it is fitted.
//!
//! `serving2/neuron_llmperf.csv`: huggingface/optimum-neuron, `benchmark/text-generation-inference/`, two versions of the software; the rows do
//! not say which. What the figures mean is what its `benchmark.sh` and `generate_csv.py` and ray-project/llmperf say:
//!
//! - `RequestsLauncher.get_next_ready` waits for all requests that run before the next are sent. So a run is eight bursts of as
//!   many requests as users, one after another. Where they are few, several bursts with other lengths are averaged.
//! - "average latency" is the median over requests of the whole latency over the answer's tokens: llmperf counts the time to the first token
//!   among the gaps.
//! - Lengths are drawn around 1500 and 245 tokens, with 150 and 20 of standard deviation. They are counted with another tokenizer than the
//!   model's, and an answer may end early. What the rows say of it: 249 tokens an answer (58.7 tokens/s, 17.0 s for four requests of a long burst).
//! - No temperature is sent, so TGI takes the most likely token.
//! - Models with continuous batching were compiled for one length of prompts and of decodes, that of the rows (optimum-neuron,
//!   `optimum/exporters/neuron`, `context_length_estimate`), and chose tokens on the host (TGI's `generator.py` of 2024).

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file.
pub const FILE: &str = "serving2/neuron_llmperf.csv";

/// Bursts of a run.
const BURSTS: u64 = 8;
/// Most requests of all bursts of a case that are simulated: with more of them one burst is as good.
const REQUESTS: u64 = 64;

#[derive(Debug, Deserialize)]
struct Raw {
    model_id: String,
    instance: String,
    tp_cores: u32,
    max_batch: u32,
    seq_len: u32,
    concurrency: u32,
    input_tokens: u32,
    output_tokens: u32,
    output_tok_s: Option<f64>,
    ttft_p50_s: Option<f64>,
    itl_mean_ms: Option<f64>,
    blob: String,
}

/// One case per row.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let rows: Vec<Raw> = source.read(FILE)?;
    Ok(rows
        .iter()
        .filter(|r| r.model_id.ends_with("Meta-Llama-3-70B-Instruct"))
        .map(case)
        .collect())
}

fn case(r: &Raw) -> Case {
    let scenario = format!(
        "[model]\nname = \"llama-3.1-70b\"\nweights = \"bf16\"\n\
         [hardware]\ninstance = \"{}\"\n[layout]\ntp = {}\n\
         [engine]\nkind = \"tgi_neuron\"\nbatch_size = {}\nsequence_length = {}\non_device_sampling = false\n\
         max_concurrent_requests = 512\n\
         [[workload]]\narrival = {{ kind = \"burst\", requests = {} }}\n\
         prompt = {{ kind = \"normal\", mean = {}, std = 150, max = {} }}\n\
         output = {{ kind = \"normal\", mean = {}, std = 20 }}\n",
        r.instance,
        r.tp_cores,
        r.max_batch,
        r.seq_len,
        r.concurrency,
        r.input_tokens,
        r.seq_len / 2,
        r.output_tokens,
    );
    let measured = [
        (
            "output_tok_s",
            "throughput_with_drain.output_tokens_per_s",
            r.output_tok_s,
        ),
        ("ttft_p50_ms", "ttft_ms.p50", r.ttft_p50_s.map(|s| s * 1e3)),
        ("latency_ms_per_token", "normalised_ms.p50", r.itl_mean_ms),
    ];
    Case {
        set: "neuron_llmperf",
        name: format!(
            "llama-3-70b {} tp{} c={} {}",
            r.instance, r.tp_cores, r.concurrency, r.blob
        ),
        // One version of the software is compared with itself alone.
        knobs: vec![r.blob.clone(), r.concurrency.to_string()],
        scenario,
        files: Vec::new(),
        runs: (REQUESTS / u64::from(r.concurrency.max(1))).clamp(1, BURSTS),
        measured: measured
            .into_iter()
            .filter_map(|(metric, path, value)| Some(Measured::unseen(metric, path, value?)))
            .collect(),
    }
}
