//! What an endpoint says of itself: limits that need no fit.

use bench::endpoint::Client;
use bench::printable::printable;
use bench::probe::{Probe, ServerKind, scrape};
use hwmodels::EngineKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sim::policy::llama_cpp::LlamaCppParams;

use super::server::{Known, MOST_SEATS, Server, Source};

/// The scheduler as far as the endpoint tells it, and how that was learnt, in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// What is known; the rest are defaults.
    pub server: Server,
    /// Its model's name.
    pub model: Option<String>,
    /// What it is, for a profile's provenance.
    pub software: String,
    /// Where each fact was read.
    pub notes: Vec<String>,
}

/// Reads `/metrics`, and of llama.cpp's server `/props`.
pub async fn read(client: &Client, probe: &Probe) -> Facts {
    let mut s = Server::default();
    let mut notes = Vec::new();
    let mut software = match probe.server {
        ServerKind::Vllm => "vLLM",
        ServerKind::Sglang => "SGLang",
        ServerKind::LlamaServer => "llama.cpp server",
        ServerKind::Tgi => "TGI",
        ServerKind::Triton => "Triton",
        ServerKind::Servetwin => "servetwin serve",
        ServerKind::Unknown => "unknown server",
    }
    .to_owned();
    match probe.server {
        ServerKind::Vllm | ServerKind::Servetwin => s.kind = Known::read(EngineKind::VllmV1),
        ServerKind::LlamaServer => {
            s.kind = Known::read(EngineKind::LlamaCpp);
            s.block_size = Known::read(1);
            if let Some(build) = props(client, &mut s, &mut notes).await {
                software = format!("{software} {build}");
            }
        }
        _ => {}
    }
    if let Some(n) = probe.max_model_len {
        s.max_model_len = Known::read(n);
        notes.push(format!(
            "longest sequence {n} tokens, from the list of models"
        ));
    }
    if let Some(m) = scrape(client).await
        && s.kv_tokens.source != Source::Read
        && let Some(blocks) = m.kv_blocks.filter(|b| *b >= 2.0)
    {
        let block = m.kv_block_tokens.filter(|b| *b >= 1.0).unwrap_or(16.0);
        s.block_size = Known::read(block as u32);
        // vLLM sets one block aside.
        s.kv_tokens = Known::read(((blocks - 1.0) * block) as u64);
        notes.push(format!(
            "{blocks} KV blocks of {block} tokens, from /metrics"
        ));
    }
    Facts {
        server: s,
        model: probe.models.first().cloned(),
        software,
        notes,
    }
}

/// Slots and context of llama.cpp's server; its build.
async fn props(client: &Client, s: &mut Server, notes: &mut Vec<String>) -> Option<String> {
    let answer = client
        .get("/props")
        .await
        .ok()
        .filter(|a| a.status == 200)?;
    let v: Value = serde_json::from_slice(&answer.body).ok()?;
    let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    if let Some(n) = number(&v["total_slots"]).filter(|n| (1..=MOST_SEATS).contains(n)) {
        s.max_num_seqs = Known::read(n);
        notes.push(format!("{n} slots, from /props"));
        if let Some(ctx) = number(&v["default_generation_settings"]["n_ctx"]).filter(|c| *c > 1) {
            s.max_model_len = Known::read(ctx);
            s.kv_tokens = Known::read(u64::from(ctx) * u64::from(n));
            // Whether slots share their cells /props does not say; the server's own number of slots, 4, comes with sharing.
            *s = s.with_kv_unified(Known::default_of(n == LlamaCppParams::default().n_parallel));
            notes.push(format!("{ctx} tokens of context per slot, from /props"));
        }
    }
    v["build_info"].as_str().map(|b| printable(b).into_owned())
}
