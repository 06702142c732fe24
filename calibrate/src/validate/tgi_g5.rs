//! TGI 1.1 behind SageMaker on A10Gs, January 2024: Llama-2-13B with TP 4 and 8, Mistral-7B with TP 1, one to eight users, short and long prompts.
//!
//! `serving2/tgi_g5.csv`, runs of aws-samples/foundation-model-benchmarking-tool (FMBench). Fitted: nothing.
//!
//! How it measures is said by its notebook `3_run_inference.ipynb`: it cuts the prompts into chunks of as many as there are users, sends a chunk's
//! requests at once (`asyncio.to_thread`, `gather`) and waits for all before the next chunk; a row is the mean over its chunks. Latencies begin when a thread
//! sends, so they do not hold the wait for one. Python gives as many threads as the client has processors and four more; the
//! notebook names ml.t3.medium, which has two, so six requests are under way at most. The rows show it: of eight, the last two answers come as late after
//! the others as two users take. SageMaker's own way to the container is not modelled.
//!
//! The limits of the Mistral endpoint are printed in that notebook. Llama's are those of its context, with TGI's default of 4096 prompt tokens a prefill. Outputs end at 100 tokens (`max_new_tokens`), which the
//! client's tokenizer counts as 102; the count of the table is replayed.

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file.
pub const FILE: &str = "serving2/tgi_g5.csv";

#[derive(Debug, Deserialize)]
struct Raw {
    model_by_name: String,
    instance_type: String,
    num_accel: u32,
    concurrency: u32,
    input_tokens_mean: f64,
    output_tokens_corrected: f64,
    e2e_mean_s: f64,
}

/// Threads of the client: two processors and four.
const CLIENT_THREADS: u32 = 6;

/// Catalog name of a model, and the longest sequence and the prefill budget that its endpoint was started with [tokens].
fn endpoint(published: &str) -> Option<(&'static str, u32, u32)> {
    Some(match published {
        "llama2-7b" => ("llama-2-7b", 4096, 4096),
        "llama2-13b" => ("llama-2-13b", 4096, 4096),
        "llama2-70b" => ("llama-2-70b", 4096, 4096),
        "mistral-7b" => ("mistral-7b", 8192, 8191),
        _ => return None,
    })
}

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed, or names a model that is not known here.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for raw in source.read::<Raw>(FILE)? {
        let (model, total, budget) = endpoint(&raw.model_by_name)
            .ok_or_else(|| SetError::new(FILE, format!("unknown model `{}`", raw.model_by_name)))?;
        let instance = raw.instance_type.trim_start_matches("ml.");
        let (tp, users) = (raw.num_accel, raw.concurrency);
        let prompt = raw.input_tokens_mean.round();
        // One chunk is the whole run: the next one begins after it as from the start.
        let scenario = format!(
            "[model]\nname = \"{model}\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"{instance}\"\n[layout]\ntp = {tp}\n\
             [engine]\nkind = \"tgi\"\nversion = \"v2\"\nmax_input_tokens = {}\nmax_total_tokens = {total}\n\
             max_batch_prefill_tokens = {budget}\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {} }}\n\
             prompt = {prompt}\noutput = {}\n[run]\nrequests = {users}\n",
            total - 1,
            users.min(CLIENT_THREADS),
            raw.output_tokens_corrected.round(),
        );
        out.push(Case {
            set: "tgi_g5",
            name: format!("{model} {instance} tp{tp} prompt={prompt} c={users}"),
            knobs: vec![
                model.to_owned(),
                instance.to_owned(),
                tp.to_string(),
                prompt.to_string(),
                users.to_string(),
            ],
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: vec![Measured::unseen(
                "e2e_mean_ms",
                "e2e_ms.mean",
                raw.e2e_mean_s * 1e3,
            )],
        });
    }
    Ok(out)
}
