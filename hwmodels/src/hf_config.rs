//! Reads a Hugging Face `config.json` into a [`ModelArch`].
//!
//! Known families are read by their own field names. An unknown `model_type` is accepted with a warning when it has
//! the fields of a Llama-like model, and refused with what is missing otherwise.

use serde_json::Value;

use crate::dtype::Dtype;
use crate::error::Error;
use crate::indexer::Indexer;
use crate::model::{AttentionKind, ModelArch, Moe, Window};

#[path = "hf_config_layers.rs"]
mod layers;
#[path = "hf_config_states.rs"]
mod states;

/// What was read, and what the reader should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The architecture.
    pub arch: ModelArch,
    /// Assumptions that were made.
    pub warnings: Vec<String>,
}

/// Reads the text of a `config.json`; `name` is used for the model and in messages.
///
/// # Errors
/// Text that is no JSON object, missing or impossible fields, architectures that this model cannot describe.
pub fn from_json(name: &str, text: &str) -> Result<Parsed, Error> {
    // A byte-order mark is no JSON.
    let text = text.trim_start_matches('\u{feff}');
    let value: Value = serde_json::from_str(text).map_err(|e| Error::ModelConfig {
        model: name.to_owned(),
        message: format!("no valid JSON: {e}"),
    })?;
    from_value(name, &value)
}

/// Reads a parsed configuration; `name` is used for the model and in messages.
///
/// # Errors
/// Missing or impossible fields, architectures that this model cannot describe.
pub fn from_value(name: &str, value: &Value) -> Result<Parsed, Error> {
    read(name, value).map_err(|message| Error::ModelConfig {
        model: name.to_owned(),
        message,
    })
}

/// Families whose layers are RMSNorm, gated feed-forward and grouped-query attention.
const LLAMA_LIKE: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt_oss",
    "llama4",
    "llama4_text",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "yi",
    "granite",
    "internlm2",
    "olmo2",
    "mistral3",
    "kimi_k2",
    "glm4_moe",
    "glm4_moe_lite",
    "minimax_m2",
    "glm4",
    "ministral",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "kimi_linear",
    "nemotron_h",
    "granitemoehybrid",
];

/// The fields of one configuration object.
struct Fields<'a>(&'a serde_json::Map<String, Value>);

impl Fields<'_> {
    /// The first of `names` that is present and not null.
    fn find(&self, names: &[&str]) -> Option<(&Value, String)> {
        names.iter().find_map(|n| {
            self.0
                .get(*n)
                .filter(|v| !v.is_null())
                .map(|v| (v, (*n).to_owned()))
        })
    }

    fn opt_u32(&self, names: &[&str]) -> Result<Option<u32>, String> {
        let Some((value, field)) = self.find(names) else {
            return Ok(None);
        };
        value
            .as_u64()
            .and_then(|v| u32::try_from(v).ok())
            .map(Some)
            .ok_or_else(|| {
                format!(
                    "{field} must be an integer from 0 to {}, got {value}",
                    u32::MAX
                )
            })
    }

    fn u32(&self, names: &[&str]) -> Result<u32, String> {
        self.opt_u32(names)?.ok_or_else(|| {
            let others = &names[1..];
            if others.is_empty() {
                format!("`{}` is missing", names[0])
            } else {
                format!("`{}` (or {}) is missing", names[0], others.join(", "))
            }
        })
    }

    fn bool(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.0.get(name).filter(|v| !v.is_null()) {
            None => Ok(default),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| format!("{name} must be true or false, got {v}")),
        }
    }

    fn str(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }
}

fn read(name: &str, value: &Value) -> Result<Parsed, String> {
    let Value::Object(outer) = value else {
        return Err("a JSON object is expected at the top".to_owned());
    };
    let mut warnings = Vec::new();
    // Multimodal configurations keep the decoder's shape in an object of its own.
    let inner = ["text_config", "llm_config", "language_config"]
        .iter()
        .find_map(|k| outer.get(*k).and_then(Value::as_object));
    if let Some(inner) = inner
        && !outer.contains_key("hidden_size")
    {
        let mut merged = inner.clone();
        for key in ["quantization_config", "torch_dtype", "dtype", "model_type"] {
            if let (false, Some(v)) = (merged.contains_key(key), outer.get(key)) {
                merged.insert(key.to_owned(), v.clone());
            }
        }
        warnings.push(
            "only the text decoder is counted: other parts (e.g. a vision tower) also take memory"
                .to_owned(),
        );
        return read_fields(name, &Fields(&merged), warnings);
    }
    read_fields(name, &Fields(outer), warnings)
}

/// What the model type decides beyond the figures.
struct Family<'a> {
    name: &'a str,
    falcon: bool,
    /// Ungated feed-forward with layer norm: Falcon, BLOOM, GPT-NeoX, OPT, GPT-2.
    classic: bool,
    /// Falcon's decoder of the 40B and 180B models.
    new_decoder: bool,
}

impl<'a> Family<'a> {
    fn read(f: &'a Fields) -> Result<Family<'a>, String> {
        let name = f.str("model_type").unwrap_or("");
        let falcon = matches!(name, "falcon" | "RefinedWeb" | "RefinedWebModel");
        Ok(Family {
            name,
            falcon,
            classic: falcon || matches!(name, "bloom" | "gpt_neox" | "opt" | "gpt2"),
            new_decoder: falcon && f.bool("new_decoder_architecture", name == "RefinedWeb")?,
        })
    }

    /// An unknown family is read as a Llama-like model where it has its fields.
    fn check(&self, f: &Fields, warnings: &mut Vec<String>) -> Result<(), String> {
        let family = self.name;
        if self.classic || LLAMA_LIKE.contains(&family) {
            return Ok(());
        }
        let missing: Vec<&str> = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "vocab_size",
        ]
        .into_iter()
        .filter(|k| f.find(&[k]).is_none())
        .collect();
        if !missing.is_empty() {
            return Err(format!(
                "model_type `{family}` is not known and these fields of a Llama-like model are missing: {}",
                missing.join(", ")
            ));
        }
        warnings.push(format!(
            "model_type `{family}` is not known; read as a Llama-like model (gated feed-forward, RMSNorm)"
        ));
        Ok(())
    }

    fn kv_heads(&self, f: &Fields, heads: u32) -> Result<u32, String> {
        let own = if !self.falcon {
            f.opt_u32(&["num_key_value_heads", "num_kv_heads"])?
        } else if self.new_decoder {
            f.opt_u32(&["num_kv_heads", "n_head_kv"])?
        } else {
            f.bool("multi_query", true)?.then_some(1)
        };
        Ok(own.unwrap_or(heads))
    }

    fn intermediate(&self, f: &Fields, hidden: u32, moe: Option<Moe>) -> Result<u32, String> {
        // Llama 4 keeps the dense size apart from the experts'.
        let names: &[&str] = if self.name.starts_with("llama4") {
            &["intermediate_size_mlp", "intermediate_size"]
        } else if self.name == "granitemoehybrid" {
            // Without experts the shared block is the only one.
            &["shared_intermediate_size", "intermediate_size"]
        } else {
            &["intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"]
        };
        match (f.opt_u32(names)?, moe) {
            (Some(v), _) => Ok(v),
            (None, _) if self.classic => Ok(hidden.saturating_mul(4)),
            (None, Some(m)) => Ok(m.expert_intermediate),
            (None, None) => Err("`intermediate_size` is missing".to_owned()),
        }
    }

    fn parallel_block(&self, f: &Fields) -> Result<bool, String> {
        match self.name {
            "gpt_neox" => f.bool("use_parallel_residual", true),
            _ if self.falcon => Ok(self.new_decoder || f.bool("parallel_attn", true)?),
            _ => Ok(false),
        }
    }

    fn norms_per_layer(&self, f: &Fields, parallel_block: bool) -> Result<u32, String> {
        Ok(match self.name {
            _ if self.new_decoder => f.opt_u32(&["num_ln_in_parallel_attn"])?.unwrap_or(2),
            _ if self.falcon && parallel_block => 1,
            "gemma2" | "gemma3" | "gemma3_text" => 4,
            // Its layers are halves of others'.
            "nemotron_h" => 1,
            _ => 2,
        })
    }

    /// Whether QKV has biases, and whether the other projections have.
    fn biases(&self, f: &Fields) -> Result<(bool, bool), String> {
        if self.falcon {
            let bias = f.bool("bias", false)?;
            return Ok((bias, bias));
        }
        let attention =
            || Ok::<_, String>(f.bool("attention_bias", false)? || f.bool("qkv_bias", false)?);
        Ok(match self.name {
            "bloom" | "gpt_neox" | "opt" | "gpt2" => (true, true),
            "qwen2" | "qwen2_moe" => (true, f.bool("mlp_bias", false)?),
            "gpt_oss" => (attention()?, true),
            _ => (attention()?, f.bool("mlp_bias", false)?),
        })
    }
}

fn read_attention(f: &Fields) -> Result<AttentionKind, String> {
    Ok(match f.opt_u32(&["kv_lora_rank"])? {
        Some(kv_lora_rank) => AttentionKind::Mla {
            q_lora_rank: f.opt_u32(&["q_lora_rank"])?.unwrap_or(0),
            kv_lora_rank,
            qk_rope_dim: f.u32(&["qk_rope_head_dim"])?,
            qk_nope_dim: f.u32(&["qk_nope_head_dim"])?,
            v_head_dim: f.u32(&["v_head_dim"])?,
        },
        None => AttentionKind::Gqa,
    })
}

/// Width of a query or key of one head.
fn read_head_dim(
    f: &Fields,
    attention: AttentionKind,
    hidden: u32,
    heads: u32,
) -> Result<u32, String> {
    let given = f.opt_u32(&["head_dim"])?;
    if let AttentionKind::Mla {
        qk_rope_dim,
        qk_nope_dim,
        ..
    } = attention
    {
        return Ok(qk_rope_dim.saturating_add(qk_nope_dim));
    }
    match given {
        Some(d) => Ok(d),
        None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(format!(
            "hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}) and head_dim is missing"
        )),
    }
}

/// The indexer of sparse latent attention.
fn read_indexer(f: &Fields) -> Result<Option<Indexer>, String> {
    let Some(top_k) = f.opt_u32(&["index_topk"])? else {
        return Ok(None);
    };
    Ok(Some(Indexer {
        heads: f.u32(&["index_n_heads"])?,
        head_dim: f.u32(&["index_head_dim"])?,
        top_k,
    }))
}

/// Dims of a head that are rotated by their position.
fn read_rotary_dim(
    f: &Fields,
    family: &str,
    attention: AttentionKind,
    head_dim: u32,
) -> Result<u32, String> {
    // Kimi Linear's attention, Nemotron-H's and Granite 4 hybrids' know positions by the layers between.
    let no_positions = f.bool("mla_use_nope", false)?
        || family == "nemotron_h"
        || f.str("position_embedding_type") == Some("nope");
    if no_positions {
        return Ok(0);
    }
    if let AttentionKind::Mla { qk_rope_dim, .. } = attention {
        return Ok(qk_rope_dim);
    }
    let usual = match family {
        // BLOOM adds a bias by distance instead.
        "bloom" | "opt" | "gpt2" => 0.0,
        "qwen3_next" | "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text" => 0.25,
        "glm4" | "glm4_moe" => 0.5,
        "gpt_neox" => 0.25,
        _ => 1.0,
    };
    let share = match f.find(&["partial_rotary_factor", "rotary_pct"]) {
        None => usual,
        Some((v, field)) => (v.as_f64())
            .filter(|share| (0.0..=1.0).contains(share))
            .ok_or_else(|| format!("{field} must be from 0 to 1, got {v}"))?,
    };
    Ok((f64::from(head_dim) * share) as u32)
}

/// Whether 8- and 4-bit checkpoints leave the attention matrices in 16 bits: where the quantisation says so itself (`ignore` of compressed-tensors,
/// `modules_to_not_convert`), and for Llama 4, whose published ones do (llm-compressor's recipes for it; Meta's Maverick in FP8).
fn leaves_attention_in_16_bits(f: &Fields, family: &str) -> bool {
    let Some((q, _)) = f.find(&["quantization_config"]) else {
        return family.starts_with("llama4");
    };
    ["ignore", "modules_to_not_convert"]
        .iter()
        .filter_map(|key| q.get(*key).and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
        .any(|module| module.contains("self_attn"))
}

fn read_fields(name: &str, f: &Fields, mut warnings: Vec<String>) -> Result<Parsed, String> {
    layers::check(f.0)?;
    layers::note(f.0, &mut warnings);
    let family = Family::read(f)?;
    family.check(f, &mut warnings)?;

    let hidden = f.u32(&["hidden_size", "n_embed", "n_embd", "d_model"])?;
    let layers = f.u32(&["num_hidden_layers", "n_layer", "num_layers"])?;
    let heads = f.u32(&["num_attention_heads", "n_head"])?;
    let vocab = f.u32(&["vocab_size"])?;
    if heads == 0 || layers == 0 {
        return Err("num_attention_heads and num_hidden_layers must be above zero".to_owned());
    }
    let attention = read_attention(f)?;
    let head_dim = read_head_dim(f, attention, hidden, heads)?;
    let moe = read_moe(f, layers)?;
    let (recurrence, blocks) = states::read(f, layers, moe)?;
    let parallel_block = family.parallel_block(f)?;
    let (qkv_bias, linear_bias) = family.biases(f)?;
    let tied = family.name.starts_with("gemma")
        || family.falcon
        || matches!(family.name, "bloom" | "opt" | "gpt2");
    let positions = f.opt_u32(&[
        "max_position_embeddings",
        "seq_length",
        "n_positions",
        "max_sequence_length",
        "model_max_length",
    ])?;
    let arch = ModelArch {
        name: name.to_owned(),
        aliases: Vec::new(),
        layers,
        hidden,
        heads,
        kv_heads: family.kv_heads(f, heads)?,
        head_dim,
        attention,
        window: read_window(f, family.name, layers)?,
        blocks,
        recurrence,
        indexer: read_indexer(f)?,
        rotary_dim: read_rotary_dim(f, family.name, attention, head_dim)?,
        attention_in_16_bits: leaves_attention_in_16_bits(f, family.name),
        // Qwen3-Next gates without saying so.
        attention_gate: f.bool("attn_output_gate", family.name == "qwen3_next")?,
        intermediate: family.intermediate(f, hidden, moe)?,
        // Nemotron-H squares what passes (`relu2`), experts too.
        gated: !family.classic && family.name != "nemotron_h",
        moe,
        vocab,
        tied_embeddings: f.bool("tie_word_embeddings", tied)?,
        parallel_block,
        qkv_bias,
        linear_bias,
        norms_per_layer: family.norms_per_layer(f, parallel_block)?,
        layer_norm: family.classic,
        qk_norm: f.bool(
            "use_qk_norm",
            family.name.starts_with("qwen3") || family.name.starts_with("gemma3"),
        )?,
        nextn_layers: f.opt_u32(&["num_nextn_predict_layers"])?.unwrap_or(0),
        other_parameters: 0,
        max_positions: positions.unwrap_or_else(|| {
            warnings.push("no max_position_embeddings: 2048 assumed".to_owned());
            2048
        }),
        native_dtype: read_dtype(f, &mut warnings)?,
        family: family.name.to_owned(),
    };
    arch.validate()?;
    Ok(Parsed { arch, warnings })
}

fn read_moe(f: &Fields, layers: u32) -> Result<Option<Moe>, String> {
    let experts = f.opt_u32(&[
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ])?;
    let Some(experts) = experts.filter(|e| *e > 1) else {
        return Ok(None);
    };
    let family = f.str("model_type").unwrap_or("");
    let top_k = f.u32(&[
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "top_k_experts",
    ])?;
    let expert_intermediate = f.u32(&["moe_intermediate_size", "intermediate_size"])?;
    let shared = f.opt_u32(&[
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ])?;
    let shared_intermediate = match shared {
        Some(s) => s,
        None if family.starts_with("llama4") => expert_intermediate,
        None => f
            .opt_u32(&["n_shared_experts", "num_shared_experts"])?
            .unwrap_or(0)
            .checked_mul(expert_intermediate)
            .ok_or("n_shared_experts is too large")?,
    };
    let moe_every = f
        .opt_u32(&[
            "interleave_moe_layer_step",
            "decoder_sparse_step",
            "moe_layer_freq",
        ])?
        .unwrap_or(1)
        .max(1);
    // Layers listed one by one as dense are taken for leading ones: their number is what matters.
    let listed = f
        .find(&["mlp_only_layers"])
        .and_then(|(v, _)| v.as_array().map(Vec::len))
        .unwrap_or(0);
    let dense_layers = match f.opt_u32(&["first_k_dense_replace"])? {
        Some(k) => k,
        None => u32::try_from(listed).unwrap_or(u32::MAX).min(layers),
    };
    Ok(Some(Moe {
        experts,
        top_k,
        expert_intermediate,
        shared_intermediate,
        dense_layers,
        moe_every,
    }))
}

fn read_window(f: &Fields, family: &str, layers: u32) -> Result<Option<Window>, String> {
    let chunk = f.opt_u32(&["attention_chunk_size"])?;
    let sliding = f.opt_u32(&["sliding_window"])?;
    // Qwen2 carries a window that is switched off.
    if chunk.is_none()
        && f.find(&["use_sliding_window"]).is_some()
        && !f.bool("use_sliding_window", true)?
    {
        return Ok(None);
    }
    let Some(tokens) = sliding.or(chunk).filter(|t| *t > 0) else {
        return Ok(None);
    };
    if family.starts_with("qwen") && !f.bool("use_sliding_window", false)? {
        return Ok(None);
    }
    let listed = f.find(&["layer_types"]).and_then(|(v, _)| {
        v.as_array().map(|a| {
            a.iter()
                .filter(|t| {
                    t.as_str()
                        .is_some_and(|t| t.contains("sliding") || t.contains("chunked"))
                })
                .count() as u32
        })
    });
    let rotary = f
        .find(&["no_rope_layers"])
        .and_then(|(v, _)| v.as_array())
        .filter(|a| !a.is_empty())
        .map(|a| a.iter().filter(|x| x.as_u64() == Some(1)).count() as u32);
    let windowed = match listed {
        Some(n) => n,
        None => match family {
            "gemma2" => layers.div_ceil(2),
            "gpt_oss" => layers / 2,
            "gemma3" | "gemma3_text" => {
                let pattern = f
                    .opt_u32(&["sliding_window_pattern", "_sliding_window_pattern"])?
                    .unwrap_or(6)
                    .max(1);
                layers - layers / pattern
            }
            // Qwen2 gives the window to the layers behind the first `max_window_layers`.
            _ if family.starts_with("qwen") => {
                layers.saturating_sub(f.opt_u32(&["max_window_layers"])?.unwrap_or(0))
            }
            // Layers with rotary positions (1) are the chunked ones; every fourth has none unless listed.
            _ if family.starts_with("llama4") => match rotary {
                Some(n) => n,
                None => {
                    let every = f.opt_u32(&["no_rope_layer_interval"])?.unwrap_or(4).max(1);
                    layers - layers / every
                }
            },
            // "LLLG" repeats: three layers with the window (local), one without; 4 says the same as a number.
            _ => match f.find(&["sliding_window_pattern"]) {
                Some((Value::String(pattern), _)) if !pattern.is_empty() => {
                    let local = |i: &u32| {
                        pattern.as_bytes()[*i as usize % pattern.len()].eq_ignore_ascii_case(&b'L')
                    };
                    (0..layers.min(1_000)).filter(local).count() as u32
                }
                Some(_) => {
                    let every = f.opt_u32(&["sliding_window_pattern"])?.unwrap_or(1);
                    if every > 1 {
                        layers - layers / every
                    } else {
                        layers
                    }
                }
                None => layers,
            },
        },
    };
    Ok((windowed > 0).then_some(Window {
        tokens,
        layers: windowed,
    }))
}

/// The format of the published weights: the quantisation's, else the torch type (32-bit weights are served in 16 bits).
fn read_dtype(f: &Fields, warnings: &mut Vec<String>) -> Result<Dtype, String> {
    if let Some((q, _)) = f.find(&["quantization_config"]) {
        let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("");
        let bits = q.get("bits").and_then(Value::as_u64);
        return match (method, bits) {
            ("fp8" | "fbgemm_fp8" | "modelopt", _) => Ok(Dtype::Fp8),
            ("mxfp4", _) => Ok(Dtype::Mxfp4),
            ("awq" | "gptq" | "awq_marlin" | "gptq_marlin", Some(4) | None) => Ok(Dtype::Int4),
            ("gptq", Some(8)) => Ok(Dtype::Int8),
            ("compressed-tensors", _) => {
                let text = q.to_string();
                if text.contains("\"num_bits\":4") {
                    Ok(Dtype::Int4)
                } else if text.contains("float") {
                    Ok(Dtype::Fp8)
                } else {
                    Ok(Dtype::Int8)
                }
            }
            (other, bits) => Err(format!(
                "quantization_config.quant_method `{other}`{} is not known; known: fp8, mxfp4, awq, gptq (4 or 8 bits), compressed-tensors",
                bits.map_or_else(String::new, |b| format!(" with {b} bits"))
            )),
        };
    }
    match f.str("torch_dtype").or_else(|| f.str("dtype")) {
        Some("float32") => {
            warnings.push(
                "float32 weights: served in 16 bits unless the scenario says otherwise".to_owned(),
            );
            Ok(Dtype::Bf16)
        }
        _ => Ok(Dtype::Bf16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Parsed, Error> {
        from_json("test", text)
    }

    #[test]
    fn an_unknown_family_with_llama_fields_is_accepted_with_a_warning() {
        let p = parse(
            r#"{"model_type":"newthing","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
                "intermediate_size":11008,"vocab_size":32000,"max_position_embeddings":4096}"#,
        )
        .unwrap();
        assert_eq!(p.arch.parameters(), 6_738_415_616);
        assert!(
            p.warnings.iter().any(|w| w.contains("newthing")),
            "{:?}",
            p.warnings
        );
    }

    #[test]
    fn an_unknown_family_without_them_is_refused_with_what_is_missing() {
        let e = parse(r#"{"model_type":"mamba","d_model":2560}"#)
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("mamba") && e.contains("num_attention_heads"),
            "{e}"
        );
    }

    #[test]
    fn falcon_variants_have_their_own_head_counts() {
        let base = r#""model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"vocab_size":65024"#;
        let mqa = parse(&format!("{{{base},\"multi_query\":true}}"))
            .unwrap()
            .arch;
        assert_eq!(
            (mqa.kv_heads, mqa.norms_per_layer, mqa.parallel_block),
            (1, 1, true)
        );
        let mha = parse(&format!(
            "{{{base},\"multi_query\":false,\"parallel_attn\":false}}"
        ))
        .unwrap()
        .arch;
        assert_eq!(
            (mha.kv_heads, mha.norms_per_layer, mha.parallel_block),
            (71, 2, false)
        );
    }

    #[test]
    fn a_window_that_is_switched_off_is_none() {
        let base = r#""hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
            "intermediate_size":18944,"vocab_size":152064,"max_position_embeddings":32768,"sliding_window":131072"#;
        let off = parse(&format!(
            "{{\"model_type\":\"qwen2\",\"use_sliding_window\":false,{base}}}"
        ))
        .unwrap();
        assert_eq!(off.arch.window, None);
        let on = parse(&format!("{{\"model_type\":\"mistral\",{base}}}")).unwrap();
        assert_eq!(
            on.arch.window,
            Some(Window {
                tokens: 131_072,
                layers: 28
            })
        );
    }

    #[test]
    fn a_multimodal_configuration_is_read_from_its_text_part() {
        let p = parse(
            r#"{"model_type":"mistral3","text_config":{"model_type":"mistral","hidden_size":5120,"num_hidden_layers":40,
                "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":32768,
                "vocab_size":131072,"max_position_embeddings":131072},"vision_config":{}}"#,
        )
        .unwrap();
        assert_eq!(p.arch.hidden, 5120);
        assert!(!p.warnings.is_empty());
    }

    #[test]
    fn what_a_quantisation_leaves_alone_is_read() {
        let base = r#""hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000"#;
        let left = |family: &str, quantisation: &str| {
            let text = format!("{{\"model_type\":\"{family}\",{base}{quantisation}}}");
            parse(&text).unwrap().arch.attention_in_16_bits
        };
        let fp8 =
            |keys: &str| format!(",\"quantization_config\":{{\"quant_method\":\"fp8\",{keys}}}");
        assert!(!left("llama", ""));
        assert!(left("llama4_text", ""));
        let ignored = fp8(r#""ignore":["re:.*lm_head","re:.*self_attn"]"#);
        assert!(left("llama", &ignored));
        let named = fp8(r#""modules_to_not_convert":["model.layers.0.self_attn.q_proj"]"#);
        assert!(left("qwen3", &named));
        let router = fp8(r#""ignore":["lm_head","re:.*mlp.gate$"]"#);
        assert!(!left("llama4_text", &router));
    }

    #[test]
    fn the_rotated_share_of_a_head_is_read() {
        let base = r#""hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000"#;
        let dims = |keys: &str| parse(&format!("{{{base},{keys}}}")).map(|p| p.arch.rotary_dim);
        assert_eq!(dims(r#""model_type":"llama""#).unwrap(), 128);
        assert_eq!(dims(r#""model_type":"glm4_moe""#).unwrap(), 64);
        let half = r#""model_type":"llama","partial_rotary_factor":0.5"#;
        assert_eq!(dims(half).unwrap(), 64);
        let wrong = dims(r#""model_type":"llama","rotary_pct":7"#).unwrap_err();
        assert!(wrong.to_string().contains("rotary_pct"), "{wrong}");
    }

    #[test]
    fn hostile_values_are_errors_and_never_panics() {
        for text in [
            "",
            "[]",
            "null",
            "{}",
            "{\"model_type\":7}",
            "\u{feff}{}",
            r#"{"model_type":"llama","hidden_size":-1,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":1,"vocab_size":1}"#,
            r#"{"model_type":"llama","hidden_size":1e9,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":1,"vocab_size":1}"#,
            r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":0,"num_attention_heads":0,"intermediate_size":1,"vocab_size":1}"#,
            r#"{"model_type":"llama","hidden_size":1048576,"num_hidden_layers":1000,"num_attention_heads":4096,"intermediate_size":4194304,"vocab_size":16777216,"num_local_experts":4096,"num_experts_per_tok":1}"#,
            r#"{"model_type":"falcon","hidden_size":4294967295,"num_hidden_layers":1,"num_attention_heads":1,"vocab_size":1}"#,
            r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":0,"intermediate_size":1,"vocab_size":1}"#,
            r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":1,"vocab_size":1,"num_experts":8,"num_experts_per_tok":9}"#,
            r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":1,"vocab_size":1,"quantization_config":{"quant_method":"magic"}}"#,
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains("`test`"), "{text}: {e}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_configuration_makes_the_reader_panic(
            family in proptest::sample::select(vec!["llama", "falcon", "bloom", "gpt_oss", "deepseek_v3", "qwen3_moe", "llama4", "gemma3", "gpt_neox", "odd", "kimi_linear", "nemotron_h", "granitemoehybrid"]),
            numbers in proptest::collection::vec(proptest::option::of(proptest::num::u64::ANY), 16),
            small in proptest::collection::vec(proptest::option::weighted(0.97, 1u64..300), 16),
            take_small: bool,
            state in proptest::sample::select(vec![0u64, 1, 64, 4_294_967_295, u64::MAX]),
        ) {
            let names = [
                "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
                "num_key_value_heads", "head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
                "n_shared_experts", "first_k_dense_replace", "sliding_window", "sliding_window_pattern",
                "kv_lora_rank", "max_position_embeddings",
            ];
            let values = if take_small { small } else { numbers };
            let mut map = serde_json::Map::new();
            map.insert("model_type".into(), family.into());
            for (name, value) in names.iter().zip(values) {
                if let Some(v) = value {
                    map.insert((*name).to_owned(), v.into());
                }
            }
            for name in ["qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"] {
                map.insert(name.to_owned(), 64.into());
            }
            match family {
                "kimi_linear" => {
                    let lists = serde_json::json!({"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": state, "head_dim": 64, "short_conv_kernel_size": 4});
                    map.insert("linear_attn_config".to_owned(), lists);
                }
                "nemotron_h" => {
                    map.insert("hybrid_override_pattern".to_owned(), "M-*E".into());
                }
                "granitemoehybrid" => {
                    map.insert("layer_types".to_owned(), serde_json::json!(["mamba", "attention"]));
                }
                _ => {}
            }
            for name in ["mamba_num_heads", "mamba_n_heads", "n_groups", "mamba_n_groups", "ssm_state_size", "mamba_d_state", "mamba_head_dim", "mamba_d_head", "conv_kernel", "mamba_d_conv"] {
                if family == "nemotron_h" || family == "granitemoehybrid" {
                    map.insert(name.to_owned(), state.into());
                }
            }
            if let Ok(p) = from_value("any", &Value::Object(map)) {
                let arch = p.arch;
                proptest::prop_assert!(arch.parameters() > 0);
                proptest::prop_assert!(arch.active_parameters() <= arch.parameters());
                proptest::prop_assert!(arch.kv_bytes_per_token(Dtype::Bf16) > 0.0);
                proptest::prop_assert!(arch.weight_bytes(Dtype::Int4) <= arch.weight_bytes(Dtype::Fp32));
            }
        }
    }
}
