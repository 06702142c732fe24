//! Models of random weights, of any size: enough for everything about serving except what the text says.
//!
//! A model is determined by its shape and its seed alone, on every machine. It lies in memory, or in the files that
//! a model hub would hold.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use files::{Files, WriteError};
use half::bf16;
use serde_json::{Value, json};

use super::ModelError;
use super::config::{Config, RopeScaling};
use super::weights::{Stored, TensorSource};
use kernels::dtype::WeightDtype;

/// Bytes 0 to 255, then the special tokens.
const SPECIAL: [&str; 4] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
];
const BOS: u32 = 256;
const EOS: u32 = 257;
const IM_END: u32 = 259;
/// Size of the vocabulary of random models.
pub const VOCAB: usize = 256 + SPECIAL.len();

/// Parameters of the model that `serve` uses when it is given none.
pub const DEFAULT_PARAMETERS: u64 = 30_000_000;
/// Seed of that model.
pub const DEFAULT_SEED: u64 = 1;

/// Chat template of random models: ChatML.
const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A Llama shape with about `parameters` parameters.
///
/// Width and depth grow together (width 64 per layer, as in published Llama-like models of this size); the
/// feed-forward's width makes up the difference. Heads are 64 wide (32 below width 256), two query heads to a KV head.
///
/// # Errors
/// Fewer than 100 thousand or more than 20 billion parameters are asked for.
pub fn shape(parameters: u64) -> Result<Config, ModelError> {
    if !(100_000..=20_000_000_000).contains(&parameters) {
        return Err(ModelError::Options(format!(
            "parameters must be from 100 thousand to 20 billion, got {parameters}"
        )));
    }
    let with = |units: usize, intermediate: usize| -> Config {
        let hidden = 64 * units;
        let head_dim = if hidden < 256 { 32 } else { 64 };
        let heads = hidden / head_dim;
        Config {
            family: "llama".to_owned(),
            hidden,
            layers: units,
            heads,
            kv_heads: if heads.is_multiple_of(2) {
                heads / 2
            } else {
                heads
            },
            head_dim,
            intermediate,
            vocab: VOCAB,
            max_position: 8192,
            rms_eps: 1e-5,
            rope_theta: 500_000.0,
            rope_scaling: RopeScaling::None,
            tied: false,
            qk_norm: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            windows: vec![None; units],
            bos: Some(BOS),
            eos: vec![EOS, IM_END],
        }
    };
    // Among widths of an even number of heads, the one whose feed-forward comes nearest to 3.5 widths.
    let fitted = |units: usize| {
        let rest = with(units, 0).parameters();
        let per = (3 * 64 * units * units) as f64;
        let width = (parameters as f64 - rest as f64) / per;
        with(units, ((width / 32.0).round().max(1.0) as usize) * 32)
    };
    let distance = |c: &Config| (c.intermediate as f64 / c.hidden as f64 - 3.5).abs();
    Ok((1..=128)
        .filter(|u| *u <= 3 || u % 2 == 0)
        .map(fitted)
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap_or_else(|| fitted(2)))
}

/// Names and shapes of a model's tensors, in the order of the forward pass.
fn tensors(c: &Config) -> Vec<(String, Vec<usize>)> {
    let (h, i) = (c.hidden, c.intermediate);
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let mut list = vec![("model.embed_tokens.weight".to_owned(), vec![c.vocab, h])];
    for l in 0..c.layers {
        for (name, shape) in [
            ("input_layernorm", vec![h]),
            ("self_attn.q_proj", vec![q, h]),
            ("self_attn.k_proj", vec![kv, h]),
            ("self_attn.v_proj", vec![kv, h]),
            ("self_attn.o_proj", vec![h, q]),
            ("post_attention_layernorm", vec![h]),
            ("mlp.gate_proj", vec![i, h]),
            ("mlp.up_proj", vec![i, h]),
            ("mlp.down_proj", vec![h, i]),
        ] {
            list.push((format!("model.layers.{l}.{name}.weight"), shape));
        }
    }
    list.push(("model.norm.weight".to_owned(), vec![h]));
    if !c.tied {
        list.push(("lm_head.weight".to_owned(), vec![c.vocab, h]));
    }
    list
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Values of one tensor, as bf16: ones for norms; otherwise uniform with a deviation that keeps activations near 1
/// (`1 / sqrt(fan-in)`), twice that for the LM head so that some tokens are likelier than others.
fn values(seed: u64, name: &str, shape: &[usize]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    if shape.len() == 1 {
        return bf16::ONE.to_le_bytes().repeat(count);
    }
    // One stream per tensor (FNV-1a of its name), so that a model's depth leaves its first layers alone.
    let mut state = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    }) ^ seed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let deviation = match name {
        "model.embed_tokens.weight" => 1.0,
        "lm_head.weight" => 2.0 / (shape[1] as f32).sqrt(),
        _ => 1.0 / (shape[1] as f32).sqrt(),
    };
    // A uniform value in [-1, 1) has deviation 1 / sqrt(3).
    let scale = deviation * 3.0_f32.sqrt() / (1_u32 << 23) as f32;
    let mut bytes = Vec::with_capacity(count * 2);
    for pair in 0..count.div_ceil(2) {
        let bits = split_mix(&mut state);
        for (half, bits) in [bits >> 40, (bits >> 8) & 0xFF_FFFF]
            .into_iter()
            .enumerate()
        {
            if pair * 2 + half < count {
                let value = (bits as f32 - (1_u32 << 23) as f32) * scale;
                bytes.extend(bf16::from_f32(value).to_le_bytes());
            }
        }
    }
    bytes
}

/// A random model in memory. Tensors are made when they are asked for.
pub struct RandomModel {
    seed: u64,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl RandomModel {
    /// The model of this shape and seed.
    #[must_use]
    pub fn new(config: &Config, seed: u64) -> RandomModel {
        RandomModel {
            seed,
            shapes: tensors(config).into_iter().collect(),
        }
    }
}

impl TensorSource for RandomModel {
    fn tensor(&self, name: &str) -> Result<Stored<'_>, ModelError> {
        let shape = self
            .shapes
            .get(name)
            .ok_or_else(|| ModelError::Options(format!("a random model has no tensor `{name}`")))?;
        Ok(Stored {
            dtype: WeightDtype::Bf16,
            shape: shape.clone(),
            bytes: Cow::Owned(values(self.seed, name, shape)),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.shapes.contains_key(name)
    }
}

/// The `config.json` of a random model.
fn config_json(c: &Config) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": c.family,
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": null,
        "tie_word_embeddings": c.tied,
        "attention_bias": false,
        "mlp_bias": false,
        "hidden_act": "silu",
        "bos_token_id": BOS,
        "eos_token_id": [EOS, IM_END],
        "torch_dtype": "bfloat16",
    })
}

/// The character that stands for a byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
fn byte_characters() -> Vec<char> {
    let printable = |b: u32| {
        (0x21..=0x7E).contains(&b) || (0xA1..=0xAC).contains(&b) || (0xAE..=0xFF).contains(&b)
    };
    let mut next = 256;
    (0..256_u32)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap_or('?')
        })
        .collect()
}

/// The `tokenizer.json` of random models: a token per byte, and the special tokens.
pub(super) fn tokenizer_json() -> Value {
    let vocab: serde_json::Map<String, Value> = byte_characters()
        .iter()
        .enumerate()
        .map(|(id, c)| (c.to_string(), json!(id)))
        .collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(i, content)| {
            json!({
                "id": 256 + i, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

/// The `tokenizer_config.json` of random models.
pub(super) fn tokenizer_config_json(c: &Config) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "model_max_length": c.max_position,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// Writes a random model: `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
/// `model.safetensors` (bf16). `progress` is told the fraction done, from 0 to 1. Returns its configuration.
///
/// # Errors
/// The size is out of range, or the folder cannot be written.
pub fn write(
    dir: &Path,
    parameters: u64,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<Config, ModelError> {
    let config = shape(parameters)?;
    std::fs::create_dir_all(dir).map_err(|source| ModelError::Io {
        path: dir.to_owned(),
        source,
    })?;
    let io = |e: WriteError| ModelError::Io {
        path: e.path,
        source: e.source,
    };
    // A folder that holds a configuration holds the whole model, so the configuration comes last.
    let mut files = Files::new();
    files
        .write(&dir.join("model.safetensors"), |out| {
            write_safetensors(out, &config, seed, progress)
        })
        .map_err(io)?;
    let generation = json!({"bos_token_id": BOS, "eos_token_id": [EOS, IM_END], "do_sample": true});
    for (name, value) in [
        ("generation_config.json", generation),
        ("tokenizer.json", tokenizer_json()),
        ("tokenizer_config.json", tokenizer_config_json(&config)),
        ("config.json", config_json(&config)),
    ] {
        let path = dir.join(name);
        let text = serde_json::to_string_pretty(&value).unwrap_or_default() + "\n";
        files
            .write(&path, |out| out.write_all(text.as_bytes()))
            .map_err(io)?;
    }
    files.commit().map_err(io)?;
    Ok(config)
}

/// Tensor by tensor, so that a large model needs no more memory than its largest one. Format:
/// <https://huggingface.co/docs/safetensors/index#format>.
fn write_safetensors(
    out: &mut impl Write,
    config: &Config,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> std::io::Result<()> {
    let list = tensors(config);
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0_usize;
    for (name, shape) in &list {
        let start = end;
        end += shape.iter().product::<usize>() * 2;
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let mut text = Value::Object(header).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())?;
    let mut done = 0;
    for (name, shape) in &list {
        let bytes = values(seed, name, shape);
        out.write_all(&bytes)?;
        done += bytes.len();
        progress(done as f64 / end as f64);
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tokenizer::TextTokenizer;

    #[test]
    fn shapes_come_within_two_percent_of_the_parameters_asked_for() {
        for asked in [
            1_000_000,
            10_000_000,
            30_000_000,
            100_000_000,
            1_000_000_000_u64,
        ] {
            let c = shape(asked).unwrap();
            let off = c.parameters() as f64 / asked as f64 - 1.0;
            assert!(off.abs() < 0.02, "{asked}: {} ({c:?})", c.parameters());
            assert!(
                c.intermediate >= c.hidden && c.intermediate <= 6 * c.hidden,
                "{c:?}"
            );
        }
        assert!(shape(10).is_err());
    }

    #[test]
    fn a_written_configuration_reads_back_as_it_was() {
        let c = shape(1_000_000).unwrap();
        assert_eq!(Config::from_json(&config_json(&c).to_string()).unwrap(), c);
    }

    #[test]
    fn every_text_is_its_bytes_as_tokens_and_comes_back() {
        let t = TextTokenizer::from_bytes(tokenizer_json().to_string().as_bytes()).unwrap();
        for text in [
            "plain",
            "two  spaces\nand a line",
            "Grüße, 世界 🦀",
            "\u{0}\u{7f}",
        ] {
            let tokens = t.encode(text, true).unwrap();
            let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
            assert_eq!(tokens, bytes);
            assert_eq!(t.decode(&tokens, true).unwrap(), text);
        }
        assert_eq!(t.encode("<|im_start|>a", false).unwrap(), [258, 97]);
        assert_eq!(t.decode(&[97, IM_END, 98], true).unwrap(), "ab");
    }

    #[test]
    fn weights_depend_on_seed_and_name_and_on_nothing_else() {
        let a = values(1, "x.weight", &[3, 5]);
        assert_eq!(a, values(1, "x.weight", &[3, 5]));
        assert_ne!(a, values(2, "x.weight", &[3, 5]));
        assert_ne!(a, values(1, "y.weight", &[3, 5]));
        assert_eq!(a.len(), 30);
        // The first four values, computed by another program: a change would change every random model.
        assert_eq!(a[..8], [172, 62, 59, 63, 255, 189, 150, 61]);
    }
}
