//! Qwen3-32B under vLLM 0.12 on H100, closed loop: TTFT and TPOT by concurrency, lengths and TP.
//!
//! `h100_qwen3_32b_vllm.csv`, AIConfigurator's sample of measured points. Fitted: TPOT of TP 2 with 1024 prompt
//! tokens. Only predicted: everything else, every TTFT among it. Rows that give a batch size in place of a concurrency
//! (FP8, another protocol) and disaggregated rows are left out.
//!
//! The table does not say how it was measured; AIConfigurator's own evaluation (public source, 2025) does it so:
//! GenAI-Perf, ten requests per user after two to warm up, which end before the measured ones begin, so all users start
//! at once; vLLM by its generator's rules for benchmarks: `max_batch_size` is the concurrency (as the table's column
//! says), `max_num_tokens = max_batch_size + isl + 1500`, `max_seq_len = isl + osl + 1500`, no prefix caching. (One of
//! its templates for vLLM 0.12 leaves the token budget to vLLM.) With equal lengths, TTFT keeps the pattern of the start
//! and of the steps' budget through the whole run. Dynamo stands before vLLM there (`tools/automation/launch_eval.sh`).
//! GenAI-Perf sends no sampling parameters, so vLLM will have taken those of the model's `generation_config.json` (its default from 0.8 on; pull request
//! 12622): temperature 0.6, top-k 20, top-p 0.95.

use super::case::{Case, Source};
use super::error::SetError;
use super::sample::{ROUNDS, Sample};

/// Name of the data file.
pub const FILE: &str = "h100_qwen3_32b_vllm.csv";

/// What the generator's rules add to a prompt for the token budget of a step, and to a sequence [tokens].
const SPARE_TOKENS: u32 = 1500;

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for raw in source.read::<Sample>(FILE)? {
        let Some([tp, users]) = raw.aggregated() else {
            continue;
        };
        let fitted = tp == 2 && raw.isl == 1024;
        let (isl, osl) = (raw.isl, raw.osl);
        let scenario = format!(
            "[model]\nname = \"qwen3-32b\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = {tp}\n\
             [engine]\nkind = \"vllm_v1\"\nversion = \"0.12\"\nfront_end = \"dynamo\"\nenable_prefix_caching = false\n\
             max_num_seqs = {users}\nmax_num_batched_tokens = {}\nmax_model_len = {}\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\n\
             prompt = {isl}\noutput = {osl}\nsampling = {{ temperature = 0.6, top_k = 20, top_p = 0.95 }}\n\
             [run]\nrequests = {}\n",
            users.saturating_add(isl).saturating_add(SPARE_TOKENS),
            isl.saturating_add(osl).saturating_add(SPARE_TOKENS),
            users.saturating_mul(ROUNDS),
        );
        out.push(Case {
            set: "qwen3_32b",
            name: format!("qwen3-32b tp{tp} isl={isl} osl={osl} c={users}"),
            knobs: [tp, isl, osl, users].map(|k| k.to_string()).to_vec(),
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: raw.measured(|metric| fitted && metric == "tpot_ms"),
        });
    }
    Ok(out)
}
