//! What kinds of layers a configuration has: what cannot be modelled is refused, by the key that says so.
//!
//! A [`ModelArch`](crate::model::ModelArch) knows attention over everything, over a window and through one latent, and layers that keep a state by the
//! gated delta rule in all but each n-th layer (Qwen3-Next, Qwen3.5), by Kimi delta attention (Kimi Linear) or by Mamba2 (Nemotron-H, Granite 4 hybrids).
//! Other linear attention and state spaces keep a state of their own size: memory and step times of such models would be wrong, not rough.

use serde_json::{Map, Value};

use super::states;

/// The key that models of the gated delta rule alone have.
const GATED_DELTA: &str = "linear_num_key_heads";
/// The key that says how often a layer of full attention comes.
const INTERVAL: &str = "full_attention_interval";
/// What it is where nothing says it (transformers, `Qwen3NextConfig`).
const USUAL_INTERVAL: u32 = 4;

/// Keys that only configurations with such layers have, and what they stand for.
const KEYS: [(&str, &str); 22] = [
    ("linear_attn_config", "linear attention"),
    (GATED_DELTA, "linear attention"),
    (INTERVAL, "linear attention between"),
    ("attn_type_list", "linear attention"),
    ("mamba_d_state", "a state space (Mamba)"),
    ("mamba_d_ssm", "a state space (Mamba)"),
    ("mamba_num_heads", "a state space (Mamba)"),
    ("ssm_state_size", "a state space (Mamba)"),
    ("ssm_cfg", "a state space (Mamba)"),
    ("attn_layer_period", "a state space (Mamba)"),
    ("state_size", "a state space (Mamba)"),
    ("lru_width", "a linear recurrence"),
    ("conv_L_cache", "short convolutions"),
    ("attention_hidden_size", "a recurrence (RWKV)"),
    ("hybrid_layer_pattern", "attention of two shapes"),
    ("swa_num_key_value_heads", "attention of two shapes"),
    ("index_topk", "sparse attention with an indexer"),
    ("compress_ratios", "attention over compressed tokens"),
    ("is_encoder_decoder", "an encoder"),
    // Kimi-K3, Nemotron 3 Super and Ultra.
    (
        "attn_res_block_size",
        "attention over what earlier layers put out",
    ),
    (
        "routed_expert_hidden_size",
        "experts over a narrower stream",
    ),
    ("moe_latent_size", "experts over a narrower stream"),
];

/// Refuses layers that keep anything but KV of one shape.
///
/// # Errors
/// The key that says that there are such layers, with its value and what it means.
pub(super) fn check(config: &Map<String, Value>) -> Result<(), String> {
    let refuse = |key: &str, what: String| {
        Err(format!(
            "`{key}` says {what}: only layers of attention with a KV cache of one shape can be modelled"
        ))
    };
    let delta_rule = full_attention_interval(config, u32::MAX)?.is_some();
    let states = states::Kind::of(config);
    for key in ["layer_types", "layers_block_type"] {
        if delta_rule || states.is_some() {
            break;
        }
        let Some(kinds) = config.get(key).and_then(Value::as_array) else {
            continue;
        };
        let other = |v: &&Value| v.as_str().is_some_and(|kind| !is_attention(kind));
        if let Some(kind) = kinds.iter().find(other).and_then(Value::as_str) {
            let n = kinds.iter().filter(other).count();
            let short: String = kind.chars().take(60).collect();
            return refuse(key, format!("{n} of {} layers `{short}`", kinds.len()));
        }
        // Every layer is attention, whatever else the configuration can say.
        return Ok(());
    }
    if let Some(pattern) = config
        .get("hybrid_override_pattern")
        .filter(|_| states.is_none())
        .and_then(Value::as_str)
    {
        let n = pattern.chars().filter(|c| *c == 'M').count();
        if n > 0 {
            let layers = pattern.chars().count();
            return refuse(
                "hybrid_override_pattern",
                format!("{n} of {layers} layers Mamba (a state space)"),
            );
        }
    }
    for (key, what) in KEYS {
        match config.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(_) if delta_rule && matches!(key, GATED_DELTA | INTERVAL) => {}
            Some(_) if states.is_some_and(|s| s.has_key(key)) => {}
            // Over latents it is modelled.
            Some(_) if key == "index_topk" && config.contains_key("kv_lora_rank") => {}
            // One interval of one layer is attention throughout.
            Some(v) if key == INTERVAL && v.as_u64() == Some(1) => {}
            Some(Value::Array(kinds))
                if key == "attn_type_list" && kinds.iter().all(|k| k.as_u64() == Some(1)) => {}
            Some(_) => return refuse(key, what.to_owned()),
        }
    }
    Ok(())
}

/// How often a layer of full attention comes between those of the gated delta rule; `None`: there are none of those.
///
/// # Errors
/// Layers that come in no regular order, and an interval that is no number.
pub(super) fn full_attention_interval(
    config: &Map<String, Value>,
    layers: u32,
) -> Result<Option<u32>, String> {
    if config.get(GATED_DELTA).is_none_or(Value::is_null) {
        return Ok(None);
    }
    if let Some(kinds) = config.get("layer_types").and_then(Value::as_array) {
        let linear = |v: &Value| v.as_str() == Some("linear_attention");
        if !kinds.iter().any(linear) {
            return Ok(None);
        }
        let first = kinds.iter().position(|k| !linear(k)).map_or(0, |i| i + 1);
        let regular = first > 0
            && (kinds.iter().enumerate()).all(|(i, k)| linear(k) != (i + 1).is_multiple_of(first))
            && kinds
                .iter()
                .all(|k| linear(k) || k.as_str() == Some("full_attention"));
        let interval = u32::try_from(first).ok().filter(|_| regular);
        return interval.map(Some).ok_or_else(|| {
            "`layer_types`: layers of linear attention can be modelled where every n-th layer, from the n-th on, is `full_attention` and all others are \
             `linear_attention`"
                .to_owned()
        });
    }
    match config.get(INTERVAL) {
        None | Some(Value::Null) => Ok(Some(USUAL_INTERVAL.min(layers))),
        Some(v) => match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(1) => Ok(None),
            Some(n) => Ok(Some(n)),
            None => Err(format!("{INTERVAL} must be a whole number, got {v}")),
        },
    }
}

/// Whether a kind of layer, as `layer_types` names it, is attention with a KV cache.
fn is_attention(kind: &str) -> bool {
    let kind = kind.to_lowercase();
    kind.contains("attention") && !kind.contains("linear") && !kind.contains("sparse")
        || matches!(
            kind.as_str(),
            "full" | "sliding" | "chunked" | "global" | "local"
        )
}

/// What such a configuration leaves unsaid here.
pub(super) fn note(config: &Map<String, Value>, warnings: &mut Vec<String>) {
    let shares = |key: &str| match config.get(key) {
        Some(Value::Array(kinds)) => kinds.iter().any(|k| k != &kinds[0]),
        Some(v) => v.as_u64().is_some_and(|n| n > 1),
        None => false,
    };
    if let Some(key) = ["indexer_types", "index_topk_freq"]
        .into_iter()
        .find(|key| shares(key))
    {
        warnings.push(format!(
            "`{key}`: some layers take the choice of others, which is not modelled: its indexers' time and memory are upper bounds"
        ));
    }
    let shared = config.get("num_kv_shared_layers").and_then(Value::as_u64);
    if let Some(n) = shared.filter(|n| *n > 0) {
        warnings.push(format!(
            "`num_kv_shared_layers`: {n} layers use the KV of others, which is not modelled: its KV is an upper bound"
        ));
    }
    if config.get("global_head_dim").is_some_and(|v| !v.is_null()) {
        warnings.push(
            "`global_head_dim`: layers of full attention have heads of another size, which is not modelled".to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, from_json};
    use crate::error::Error;
    use crate::model::Window;

    fn parse(text: &str) -> Result<Parsed, Error> {
        from_json("test", text)
    }

    #[test]
    fn layers_that_are_no_attention_are_refused_by_the_key_that_says_so() {
        let base = r#""hidden_size":2048,"num_hidden_layers":4,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,
            "intermediate_size":5120,"vocab_size":151936,"max_position_embeddings":262144"#;
        for (model_type, keys, words) in [
            // Linear attention of another kind than the gated delta rule.
            (
                "kimi_linear",
                r#""linear_attn_config":{"kda_layers":[1,2,3]}"#,
                ["`linear_attn_config`", "linear attention"],
            ),
            (
                "other",
                r#""layer_types":["linear_attention","linear_attention","linear_attention","full_attention"]"#,
                ["`layer_types`", "3 of 4 layers `linear_attention`"],
            ),
            (
                "qwen3_5_text",
                r#""linear_num_key_heads":16,"layer_types":["linear_attention","full_attention","linear_attention","linear_attention"]"#,
                ["`layer_types`", "every n-th layer"],
            ),
            (
                "qwen3_next",
                r#""linear_num_key_heads":16,"full_attention_interval":4"#,
                ["`linear_num_value_heads`", "missing"],
            ),
            (
                "nemotron_h",
                r#""hybrid_override_pattern":"M-M*","ssm_state_size":128"#,
                ["`n_groups`", "missing"],
            ),
            // The same letters in a family whose layers are not known.
            (
                "other",
                r#""hybrid_override_pattern":"M-M*","ssm_state_size":128"#,
                ["`hybrid_override_pattern`", "2 of 4 layers Mamba"],
            ),
            (
                "nemotron_h",
                r#""hybrid_override_pattern":"MEM*","moe_latent_size":1024"#,
                ["`moe_latent_size`", "narrower stream"],
            ),
            (
                "kimi_linear",
                r#""linear_attn_config":{"kda_layers":[1,2,3],"full_attn_layers":[4]},"attn_res_block_size":12"#,
                ["`attn_res_block_size`", "earlier layers"],
            ),
            // Attention and Mamba side by side in each layer.
            (
                "falcon_h1",
                r#""mamba_d_ssm":3072,"mamba_n_heads":24"#,
                ["`mamba_d_ssm`", "state space"],
            ),
            (
                "jamba",
                r#""attn_layer_period":8,"attn_layer_offset":4,"mamba_d_state":16"#,
                ["`mamba_d_state`", "state space"],
            ),
            (
                "granitemoehybrid",
                r#""layer_types":["mamba","mamba","mamba","attention"],"mamba_d_state":128"#,
                ["`mamba_n_groups`", "missing"],
            ),
            (
                "zamba2",
                r#""layers_block_type":["mamba","mamba","mamba","hybrid"]"#,
                ["`layers_block_type`", "4 of 4 layers `mamba`"],
            ),
            (
                "minimax",
                r#""attn_type_list":[0,0,0,1]"#,
                ["`attn_type_list`", "linear attention"],
            ),
            // Sparse attention is modelled over latents with compressed queries, not over heads of keys, nor over compressed tokens.
            (
                "other",
                r#""index_topk":2048,"index_n_heads":64,"index_head_dim":128"#,
                ["`index_topk`", "sparse attention"],
            ),
            (
                "deepseek_v32",
                r#""kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"index_topk":2048,"index_n_heads":64,
                    "index_head_dim":128"#,
                ["`q_lora_rank`", "compressed queries"],
            ),
            (
                "deepseek_v4",
                r#""kv_lora_rank":512,"index_topk":512,"compress_ratios":[4,128]"#,
                ["`compress_ratios`", "compressed tokens"],
            ),
            (
                "t5",
                r#""is_encoder_decoder":true"#,
                ["`is_encoder_decoder`", "encoder"],
            ),
        ] {
            let e = parse(&format!(
                "{{\"model_type\":\"{model_type}\",{base},{keys}}}"
            ))
            .unwrap_err()
            .to_string();
            for w in words {
                assert!(e.contains(w), "{model_type}: `{w}` is not in: {e}");
            }
        }
        // The keys of a hybrid whose layers are all attention are no hindrance.
        let all = r#""layer_types":["full_attention","full_attention","sliding_attention","full_attention"],"sliding_window":1024,
            "linear_num_key_heads":16"#;
        let p = parse(&format!("{{\"model_type\":\"olmo3\",{base},{all}}}")).unwrap();
        let window = Window {
            tokens: 1024,
            layers: 1,
        };
        assert_eq!(p.arch.window, Some(window));
        // Inside of a multimodal configuration as well.
        let nested = format!(
            "{{\"model_type\":\"qwen3_5\",\"text_config\":{{\"model_type\":\"qwen3_5_text\",{base},\"layer_types\":[\"linear_attention\"]}}}}"
        );
        assert!(
            parse(&nested)
                .unwrap_err()
                .to_string()
                .contains("`layer_types`")
        );
    }

    #[test]
    fn mixes_of_windows_are_counted_whichever_way_they_are_written() {
        let base = r#""hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,
            "intermediate_size":14336,"vocab_size":102400,"max_position_embeddings":131072,"sliding_window":4096"#;
        for (keys, windowed) in [
            (
                r#""model_type":"exaone4","sliding_window_pattern":"LLLG""#,
                24,
            ),
            (r#""model_type":"cohere2","sliding_window_pattern":4"#, 24),
            (
                r#""model_type":"gemma3_text","_sliding_window_pattern":6"#,
                27,
            ),
            (r#""model_type":"gpt_oss""#, 16),
            (
                r#""model_type":"qwen2","use_sliding_window":true,"max_window_layers":28"#,
                4,
            ),
            (r#""model_type":"mistral""#, 32),
        ] {
            let p = parse(&format!("\u{feff}{{{base},{keys}}}")).unwrap();
            assert_eq!(p.arch.window.map(|w| w.layers), Some(windowed), "{keys}");
        }
    }
}
