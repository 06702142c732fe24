//! TGI behind SageMaker JumpStart, late 2023: Llama-2-7B on A10G and A100 at many concurrencies, and the minimum
//! latency of nine models.
//!
//! `jumpstart_tgi.csv`, from the AWS machine learning blog post "Benchmark and optimize endpoint deployment in
//! Amazon SageMaker JumpStart". The clients form a closed loop; latency per token is the whole latency over the output
//! tokens. Fitted: Llama-2-7B on one device (g5.2xlarge, and p4d with TP 1) and on p4d with TP 8. Only predicted: TP 4 on either, and the
//! other models.

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file.
pub const FILE: &str = "jumpstart_tgi.csv";

#[derive(Debug, Deserialize)]
struct Raw {
    table: String,
    model: String,
    instance: String,
    tp: u32,
    concurrency: u32,
    input_tokens: u32,
    output_tokens: u32,
    throughput_tok_s: Option<f64>,
    latency_ms_per_token: Option<f64>,
}

/// Catalog name of a published model name.
fn catalog_name(published: &str) -> Option<&'static str> {
    let base = published
        .trim_end_matches("-Chat")
        .trim_end_matches("-Instruct");
    Some(match base {
        "Llama-2-7B" => "llama-2-7b",
        "Llama-2-13B" => "llama-2-13b",
        "Llama-2-70B" => "llama-2-70b",
        "Mistral-7B" => "mistral-7b",
        "Mixtral-8x7B" => "mixtral-8x7b",
        "Falcon-7B" => "falcon-7b",
        "Falcon-40B" => "falcon-40b",
        "Falcon-180B" => "falcon-180b",
        _ => return None,
    })
}

/// The cases of the table.
///
/// # Errors
/// The file is missing or malformed, or names a model that the catalog lacks.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for raw in source.read::<Raw>(FILE)? {
        let minimum = raw.table.starts_with("B_");
        let model = catalog_name(&raw.model)
            .ok_or_else(|| SetError::new(FILE, format!("unknown model `{}`", raw.model)))?;
        let instance = raw.instance.trim_start_matches("ml.");
        // Minimum latencies of what table A holds at one user are the same measurement again.
        let repeats = model == "llama-2-7b"
            && ["g5.2xlarge", "g5.12xlarge", "p4d.24xlarge"].contains(&instance);
        if minimum && repeats {
            continue;
        }
        let fitted = !minimum && model == "llama-2-7b" && (raw.tp == 1 || raw.tp == 8);
        let requests = if minimum {
            3
        } else {
            (12 * raw.concurrency).max(20)
        };
        // Sharded replicas take the instance's devices; the others of the node stay idle in this benchmark.
        let scenario = format!(
            "[model]\nname = \"{model}\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"{instance}\"\n\
             [layout]\ntp = {}\n\
             [engine]\nkind = \"tgi\"\nversion = \"v2\"\nmax_concurrent_requests = 512\n\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {} }}\n\
             prompt = {}\noutput = {}\n[run]\nrequests = {requests}\n",
            raw.tp, raw.concurrency, raw.input_tokens, raw.output_tokens
        );
        let set = if minimum {
            "jumpstart_minimum_latency"
        } else {
            "jumpstart"
        };
        let mut measured = Vec::new();
        if let Some(v) = raw.latency_ms_per_token {
            measured.push(Measured {
                metric: "latency_ms_per_token",
                path: "normalised_ms.mean",
                value: v,
                fitted,
            });
        }
        if let Some(v) = raw.throughput_tok_s {
            measured.push(Measured {
                metric: "throughput_tok_s",
                path: "throughput_with_drain.output_tokens_per_s",
                value: v,
                fitted,
            });
        }
        out.push(Case {
            set,
            name: if minimum {
                format!("{} {instance} tp{}", raw.model, raw.tp)
            } else {
                format!("{model} {instance} tp{} c={}", raw.tp, raw.concurrency)
            },
            knobs: vec![
                raw.model.clone(),
                instance.to_owned(),
                raw.tp.to_string(),
                raw.concurrency.to_string(),
            ],
            scenario,
            files: Vec::new(),
            runs: 1,
            measured,
        });
    }
    Ok(out)
}
