//! Qwen3-32B under vLLM 0.12 on H100, closed loop: TTFT and TPOT by concurrency, lengths and TP.
//!
//! `h100_qwen3_32b_vllm.csv`, AIConfigurator's sample of measured points. Fitted: TPOT of TP 2 with 1024 prompt
//! tokens. Only predicted: everything else, every TTFT among it. The users send at once, ten times each: the table does
//! not say how its client started them, and with equal lengths TTFT keeps the pattern of the start through the whole
//! run. Rows that give a batch size in place of a concurrency (FP8, another protocol) and disaggregated rows are left
//! out.

use serde::Deserialize;

use super::case::{Case, Measured, SetError, Source};

/// Name of the data file.
pub const FILE: &str = "h100_qwen3_32b_vllm.csv";

#[derive(Debug, Deserialize)]
struct Raw {
    mode: String,
    isl: u32,
    osl: u32,
    concurrency: Option<f64>,
    tp_size: Option<f64>,
    silicon_ttft_ms: f64,
    silicon_tpot_ms: f64,
}

/// Requests per user of a run: a closed loop that starts with all users at once and ends after ten rounds.
const ROUNDS: u32 = 10;

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for raw in source.read::<Raw>(FILE)? {
        if raw.mode != "agg" {
            continue;
        }
        let Some(tp) = raw.tp_size else { continue };
        let Some(users) = raw.concurrency else {
            continue;
        };
        let (tp, users) = (tp as u32, users as u32);
        let fitted = tp == 2 && raw.isl == 1024;
        let (isl, osl) = (raw.isl, raw.osl);
        let scenario = format!(
            "[model]\nname = \"qwen3-32b\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = {tp}\n\
             [engine]\nkind = \"vllm_v1\"\nversion = \"0.11\"\nmax_num_batched_tokens = 8192\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\n\
             prompt = {isl}\noutput = {osl}\n\
             [run]\nrequests = {}\n",
            users * ROUNDS,
        );
        out.push(Case {
            set: "qwen3_32b",
            name: format!("qwen3-32b tp{tp} isl={isl} osl={osl} c={users}"),
            knobs: vec![
                tp.to_string(),
                isl.to_string(),
                osl.to_string(),
                users.to_string(),
            ],
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: vec![
                Measured {
                    metric: "ttft_ms",
                    path: "ttft_ms.mean",
                    value: raw.silicon_ttft_ms,
                    fitted: false,
                },
                Measured {
                    metric: "tpot_ms",
                    path: "tpot_ms.mean",
                    value: raw.silicon_tpot_ms,
                    fitted,
                },
            ],
        });
    }
    Ok(out)
}
