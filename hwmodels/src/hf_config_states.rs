//! Reads layers that keep a state: their shape, and which layers they are.

use serde_json::{Map, Value};

use super::{Fields, layers};
use crate::blocks::{Block, FeedForward, Mixer};
use crate::dtype::Dtype;
use crate::model::Moe;
use crate::recurrence::{Recurrence, Rule};

/// Tokens of a chunk of flash-linear-attention's kernels [tokens].
const DELTA_CHUNK: u32 = 64;
/// Mamba2's tokens of a chunk where nothing says them (transformers, `NemotronHConfig`, `GraniteMoeHybridConfig`) [tokens].
const MAMBA_CHUNK: u32 = 256;
/// The key that says which layers have Kimi delta attention.
pub(super) const KDA: &str = "linear_attn_config";
/// The key that writes Nemotron-H's layers as letters.
pub(super) const LETTERS: &str = "hybrid_override_pattern";
/// The key that writes them as words.
pub(super) const WORDS: &str = "layers_block_type";

/// How a configuration says that layers keep a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Kimi Linear: lists of layers.
    Kda,
    /// Nemotron-H: layers of one half each.
    NemotronH,
    /// Granite 4 hybrids: usual layers whose mixer is Mamba2 or attention.
    Granite,
}

impl Kind {
    /// What `config` says; `None` where it has no such layers, or none that are known.
    pub(super) fn of(config: &Map<String, Value>) -> Option<Kind> {
        let has = |key: &str| config.get(key).is_some_and(|v| !v.is_null());
        let listed =
            |v: &Value| v.get("kda_layers").is_some() && v.get("full_attn_layers").is_some();
        if config.get(KDA).is_some_and(listed) {
            return Some(Kind::Kda);
        }
        match config.get("model_type").and_then(Value::as_str) {
            Some("nemotron_h") if has(LETTERS) || has(WORDS) => Some(Kind::NemotronH),
            Some("granitemoehybrid") if is_mamba(config.get("layer_types")) => Some(Kind::Granite),
            _ => None,
        }
    }

    /// Whether `key` is one that such a configuration has.
    pub(super) fn has_key(self, key: &str) -> bool {
        match self {
            Kind::Kda => key == KDA,
            Kind::NemotronH => {
                matches!(key, LETTERS | WORDS | "ssm_state_size" | "mamba_num_heads")
            }
            Kind::Granite => matches!(key, "layer_types" | "mamba_d_state"),
        }
    }
}

fn is_mamba(kinds: Option<&Value>) -> bool {
    (kinds.and_then(Value::as_array))
        .is_some_and(|kinds| kinds.iter().any(|k| k.as_str() == Some("mamba")))
}

/// Shape and layers, where any layer keeps a state.
///
/// # Errors
/// Fields that are missing or do not go together, and kinds of layers that are not known.
pub(super) fn read(
    f: &Fields,
    n: u32,
    moe: Option<Moe>,
) -> Result<(Option<Recurrence>, Vec<Block>), String> {
    let Some(kind) = Kind::of(f.0) else {
        let Some(every) = layers::full_attention_interval(f.0, n)? else {
            return Ok((None, Vec::new()));
        };
        return gated_delta(f, n, moe, every);
    };
    let (recurrence, blocks) = match kind {
        Kind::Kda => kda(f, n, moe)?,
        Kind::NemotronH => (nemotron(f)?, nemotron_blocks(f)?),
        Kind::Granite => (granite(f)?, granite_blocks(f, moe)?),
    };
    if blocks.len() != n as usize {
        return Err(format!(
            "{} layers are described, num_hidden_layers says {n}",
            blocks.len()
        ));
    }
    // A configuration of such a family may have attention throughout.
    let states = blocks.iter().any(|b| b.mixer == Mixer::State);
    Ok((states.then_some(recurrence), blocks))
}

/// Layers whose mixer `mixer` chooses, with the feed-forward blocks that `moe` says.
fn whole(n: u32, moe: Option<Moe>, mixer: impl Fn(u32) -> Mixer) -> Vec<Block> {
    // A number of layers that no model has is refused later.
    (0..n.min(1_001))
        .map(|i| Block {
            mixer: mixer(i),
            feed_forward: moe.map_or(FeedForward::Dense, |m| m.feed_forward(i)),
        })
        .collect()
}

/// Format of the state, where the configuration says it.
fn state_format(f: &Fields) -> Option<Dtype> {
    let said = f
        .str("mamba_ssm_cache_dtype")
        .or(f.str("mamba_ssm_dtype"))?;
    match said {
        "float32" => Some(Dtype::Fp32),
        "auto" => None,
        _ => Some(Dtype::Bf16),
    }
}

/// The gated delta rule, in every layer but each `every`-th.
fn gated_delta(
    f: &Fields,
    n: u32,
    moe: Option<Moe>,
    every: u32,
) -> Result<(Option<Recurrence>, Vec<Block>), String> {
    let recurrence = Recurrence {
        rule: Rule::GatedDelta,
        key_heads: f.u32(&["linear_num_key_heads"])?,
        value_heads: f.u32(&["linear_num_value_heads"])?,
        key_dim: f.u32(&["linear_key_head_dim"])?,
        value_dim: f.u32(&["linear_value_head_dim"])?,
        conv_kernel: f.u32(&["linear_conv_kernel_dim"])?,
        chunk: DELTA_CHUNK,
        state: state_format(f),
    };
    if every > n {
        return Err(format!(
            "full_attention_interval ({every}) leaves none of the {n} layers with full attention"
        ));
    }
    let blocks = whole(n, moe, |i| {
        if (i + 1).is_multiple_of(every.max(1)) {
            Mixer::Attention
        } else {
            Mixer::State
        }
    });
    Ok((Some(recurrence), blocks))
}

/// Kimi delta attention in the layers of one list, attention in those of the other; both count from 1.
fn kda(f: &Fields, n: u32, moe: Option<Moe>) -> Result<(Recurrence, Vec<Block>), String> {
    let Some(Value::Object(config)) = f.0.get(KDA) else {
        return Err(format!("`{KDA}` must be an object"));
    };
    let own = Fields(config);
    let list = |key: &str| -> Result<Vec<u64>, String> {
        (config.get(key).and_then(Value::as_array))
            .and_then(|a| a.iter().map(Value::as_u64).collect())
            .ok_or_else(|| format!("`{KDA}.{key}` must be a list of whole numbers"))
    };
    let (states, attention) = (list("kda_layers")?, list("full_attn_layers")?);
    for layer in 1..=u64::from(n.min(1_001)) {
        if states.contains(&layer) == attention.contains(&layer) {
            return Err(format!(
                "`{KDA}`: layer {layer} of {n} must be in one of kda_layers and full_attn_layers, which count from 1"
            ));
        }
    }
    let heads = own.u32(&["num_heads"])?;
    let dim = own.u32(&["head_dim"])?;
    let recurrence = Recurrence {
        rule: Rule::Kda,
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        conv_kernel: own.u32(&["short_conv_kernel_size"])?,
        chunk: DELTA_CHUNK,
        state: state_format(f),
    };
    if own.bool("use_full_rank_gate", false)? {
        return Err(format!(
            "`{KDA}.use_full_rank_gate` says gates of full rank (Kimi-K3), which are not modelled"
        ));
    }
    let blocks = whole(n, moe, |i| {
        if states.contains(&u64::from(i + 1)) {
            Mixer::State
        } else {
            Mixer::Attention
        }
    });
    Ok((recurrence, blocks))
}

fn nemotron(f: &Fields) -> Result<Recurrence, String> {
    Ok(Recurrence {
        rule: Rule::Mamba2,
        key_heads: f.u32(&["n_groups", "mamba_n_groups"])?,
        value_heads: f.u32(&["mamba_num_heads"])?,
        key_dim: f.u32(&["ssm_state_size"])?,
        value_dim: f.u32(&["mamba_head_dim"])?,
        conv_kernel: f.u32(&["conv_kernel"])?,
        chunk: f.opt_u32(&["chunk_size"])?.unwrap_or(MAMBA_CHUNK),
        state: state_format(f),
    })
}

/// A layer of Nemotron-H by its letter, or by its word.
fn nemotron_block(kind: &str) -> Option<Block> {
    let (mixer, feed_forward) = match kind {
        "M" | "mamba" => (Mixer::State, FeedForward::None),
        "*" | "attention" => (Mixer::Attention, FeedForward::None),
        "-" | "mlp" => (Mixer::None, FeedForward::Dense),
        "E" | "moe" => (Mixer::None, FeedForward::Experts),
        _ => return None,
    };
    Some(Block {
        mixer,
        feed_forward,
    })
}

fn nemotron_blocks(f: &Fields) -> Result<Vec<Block>, String> {
    let unknown = |key: &str, kind: &str| {
        let short: String = kind.chars().take(60).collect();
        format!(
            "`{key}` has layers `{short}`: M or mamba, * or attention, - or mlp, and E or moe are known"
        )
    };
    if let Some(letters) = f.str(LETTERS) {
        return (letters.chars())
            .map(|c| {
                let kind = c.to_string();
                nemotron_block(&kind).ok_or_else(|| unknown(LETTERS, &kind))
            })
            .collect();
    }
    let words = f.0.get(WORDS).and_then(Value::as_array);
    let words = words.ok_or_else(|| format!("`{WORDS}` must be a list of words"))?;
    (words.iter())
        .map(|w| {
            let kind = w.as_str().unwrap_or_default();
            nemotron_block(kind).ok_or_else(|| unknown(WORDS, kind))
        })
        .collect()
}

fn granite(f: &Fields) -> Result<Recurrence, String> {
    Ok(Recurrence {
        rule: Rule::Mamba2,
        key_heads: f.u32(&["mamba_n_groups"])?,
        value_heads: f.u32(&["mamba_n_heads"])?,
        key_dim: f.u32(&["mamba_d_state"])?,
        value_dim: f.u32(&["mamba_d_head"])?,
        conv_kernel: f.u32(&["mamba_d_conv"])?,
        chunk: f.opt_u32(&["mamba_chunk_size"])?.unwrap_or(MAMBA_CHUNK),
        state: state_format(f),
    })
}

fn granite_blocks(f: &Fields, moe: Option<Moe>) -> Result<Vec<Block>, String> {
    let kinds = f.0.get("layer_types").and_then(Value::as_array);
    let kinds = kinds.ok_or("`layer_types` must be a list of words")?;
    let mut mixers = Vec::with_capacity(kinds.len().min(1_001));
    for kind in kinds {
        mixers.push(match kind.as_str() {
            Some("mamba") => Mixer::State,
            Some("attention") => Mixer::Attention,
            _ => {
                return Err(format!(
                    "`layer_types`: `mamba` and `attention` are known, got {kind}"
                ));
            }
        });
    }
    let n = u32::try_from(mixers.len()).unwrap_or(u32::MAX);
    Ok(whole(n, moe, |i| mixers[i as usize]))
}

#[cfg(test)]
mod tests {
    use super::super::from_json;
    use super::*;
    use crate::error::Error;
    use crate::model::ModelArch;

    const BASE: &str = r#""hidden_size":2048,"num_hidden_layers":4,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":128,
        "intermediate_size":8192,"vocab_size":131072,"max_position_embeddings":131072"#;
    const MAMBA: &str = r#""mamba_num_heads":64,"mamba_head_dim":64,"n_groups":8,"ssm_state_size":128,"conv_kernel":4"#;

    fn parse(family: &str, keys: &str) -> Result<ModelArch, Error> {
        let text = format!("{{\"model_type\":\"{family}\",{BASE},{keys}}}");
        from_json("test", &text).map(|p| p.arch)
    }

    fn mixers(arch: &ModelArch) -> Vec<Mixer> {
        (0..arch.layers).map(|i| arch.block(i).mixer).collect()
    }

    #[test]
    fn letters_and_words_say_the_same_of_nemotron_h() {
        let letters = format!(r#""hybrid_override_pattern":"M-M*",{MAMBA}"#);
        let words = format!(r#""layers_block_type":["mamba","mlp","mamba","attention"],{MAMBA}"#);
        let arch = parse("nemotron_h", &letters).unwrap();
        assert_eq!(arch, parse("nemotron_h", &words).unwrap());
        let found: Vec<_> = (0..4).map(|i| arch.block(i)).collect();
        let half = |mixer, feed_forward| Block {
            mixer,
            feed_forward,
        };
        assert_eq!(found[0], half(Mixer::State, FeedForward::None));
        assert_eq!(found[1], half(Mixer::None, FeedForward::Dense));
        assert_eq!(found[3], half(Mixer::Attention, FeedForward::None));
        assert_eq!(arch.whole_layers(), 2.0);
        assert!(!arch.gated && arch.rotary_dim == 0);
        let r = arch.recurrence.unwrap();
        assert_eq!(
            (r.rule, r.chunk, r.state),
            (Rule::Mamba2, MAMBA_CHUNK, None)
        );
        // Attention throughout is no hybrid.
        let none = parse(
            "nemotron_h",
            r#""hybrid_override_pattern":"*-*-","mamba_num_heads":64,"mamba_head_dim":64,"n_groups":8,"ssm_state_size":128,"conv_kernel":4"#,
        );
        assert_eq!(none.unwrap().recurrence, None);
    }

    #[test]
    fn lists_of_kimi_linear_count_from_one() {
        let lists = r#""linear_attn_config":{"kda_layers":[1,2,4],"full_attn_layers":[3],"num_heads":16,"head_dim":128,"short_conv_kernel_size":4},
            "mla_use_nope":true,"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128"#;
        let arch = parse("kimi_linear", lists).unwrap();
        let [state, attention] = [Mixer::State, Mixer::Attention];
        assert_eq!(mixers(&arch), [state, state, attention, state]);
        assert_eq!(arch.rotary_dim, 0);
        assert_eq!(arch.kv_layers(), 1);
    }

    #[test]
    fn layers_that_do_not_go_together_are_refused_with_what_is_wrong() {
        let kda = |lists: &str| {
            format!(
                r#""linear_attn_config":{{{lists},"num_heads":16,"head_dim":128,"short_conv_kernel_size":4}}"#
            )
        };
        let nemotron = |pattern: &str| format!(r#""hybrid_override_pattern":"{pattern}",{MAMBA}"#);
        let granite = |kinds: &str| {
            format!(
                r#""layer_types":{kinds},"mamba_n_heads":64,"mamba_d_head":64,"mamba_n_groups":1,"mamba_d_state":128,"mamba_d_conv":4"#
            )
        };
        for (family, keys, words) in [
            (
                "kimi_linear",
                kda(r#""kda_layers":[0,1,2],"full_attn_layers":[3]"#),
                "layer 4 of 4".to_owned(),
            ),
            (
                "kimi_linear",
                kda(r#""kda_layers":[1,2,3],"full_attn_layers":[3,4]"#),
                "layer 3 of 4".to_owned(),
            ),
            (
                "kimi_linear",
                kda(r#""kda_layers":"all","full_attn_layers":[4]"#),
                "`linear_attn_config.kda_layers` must be a list".to_owned(),
            ),
            (
                "kimi_linear",
                kda(r#""kda_layers":[1,2,3],"full_attn_layers":[4],"use_full_rank_gate":true"#),
                "use_full_rank_gate".to_owned(),
            ),
            (
                "nemotron_h",
                nemotron("M-M"),
                "3 layers are described, num_hidden_layers says 4".to_owned(),
            ),
            ("nemotron_h", nemotron("M-X*"), "layers `X`".to_owned()),
            (
                "nemotron_h",
                nemotron("M-M-"),
                "no layer has attention".to_owned(),
            ),
            (
                "nemotron_h",
                nemotron("ME*-"),
                "experts whose shape is not given".to_owned(),
            ),
            (
                "granitemoehybrid",
                granite(r#"["mamba","mamba","moe","attention"]"#),
                "`mamba` and `attention` are known".to_owned(),
            ),
            (
                "nemotron_h",
                format!(r#""sliding_window":4096,{}"#, nemotron("M-M*")),
                "beside windows".to_owned(),
            ),
            (
                "nemotron_h",
                nemotron("M-M*").replace("\"n_groups\":8", "\"n_groups\":7"),
                "multiple of the 7 key heads".to_owned(),
            ),
        ] {
            let e = parse(family, &keys).unwrap_err().to_string();
            assert!(
                e.contains(&words),
                "{family} {keys}: `{words}` is not in: {e}"
            );
        }
    }
}
