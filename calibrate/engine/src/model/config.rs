//! What a model's `config.json` says that a forward pass needs.

use serde_json::{Map, Value};

/// How rotary frequencies are stretched beyond the length a model was first trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As computed from the base.
    None,
    /// All frequencies divided by a factor.
    Linear {
        /// Divisor, above 0.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided, short ones kept, those between blended
    /// (`_compute_llama3_parameters` in transformers' `modeling_rope_utils.py`).
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f32,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Length of the first training [tokens].
        original: f32,
    },
}

/// The shape and constants of a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `model_type`: llama, mistral, qwen2 or qwen3.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward's inner layer.
    pub intermediate: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Longest sequence [tokens].
    pub max_position: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Stretching of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether the LM head is the embedding.
    pub tied: bool,
    /// Whether queries and keys are normalised per head (Qwen3).
    pub qk_norm: bool,
    /// Whether query, key and value projections have biases (Qwen2, or `attention_bias`).
    pub qkv_bias: bool,
    /// Whether the projection after attention has a bias (`attention_bias` of Llama and Qwen3).
    pub o_bias: bool,
    /// Whether the feed-forward has biases (`mlp_bias`).
    pub mlp_bias: bool,
    /// Per layer: how many positions back attention reaches, its own included; none: to the beginning.
    pub windows: Vec<Option<usize>>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

impl Config {
    /// Parameters: embeddings, layers, final norm and, where it is not tied, the LM head.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let (h, d) = (self.hidden as u64, self.head_dim as u64);
        let (q, kv) = (self.heads as u64 * d, self.kv_heads as u64 * d);
        let i = self.intermediate as u64;
        let mut layer = h * (q + 2 * kv) + q * h + 3 * h * i + 2 * h;
        if self.qkv_bias {
            layer += q + 2 * kv;
        }
        if self.o_bias {
            layer += h;
        }
        if self.mlp_bias {
            layer += 2 * i + h;
        }
        if self.qk_norm {
            layer += 2 * d;
        }
        let tables = if self.tied { 1 } else { 2 };
        self.vocab as u64 * h * tables + self.layers as u64 * layer + h
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// A sentence that names the field: no JSON object, a field missing or out of range, an architecture that this
    /// engine does not compute.
    pub fn from_json(text: &str) -> Result<Config, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("no valid JSON: {e}"))?;
        let Value::Object(map) = value else {
            return Err("a JSON object is expected at the top".to_owned());
        };
        read(&Fields(&map))
    }

    /// Inverse wavelengths of the rotary embedding [rad/token], one per pair of dimensions.
    #[must_use]
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        (0..half)
            .map(|i| {
                let exponent = (2 * i) as f32 / self.head_dim as f32;
                let plain = 1.0 / self.rope_theta.powf(exponent);
                match self.rope_scaling {
                    RopeScaling::None => plain,
                    RopeScaling::Linear { factor } => plain / factor,
                    RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original,
                    } => {
                        let wavelength = 2.0 * std::f32::consts::PI / plain;
                        if wavelength > original / low_freq_factor {
                            plain / factor
                        } else if wavelength < original / high_freq_factor {
                            plain
                        } else {
                            let smooth = (original / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - smooth) * plain / factor + smooth * plain
                        }
                    }
                }
            })
            .collect()
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    fn opt_size(&self, key: &str) -> Result<Option<usize>, String> {
        match self.get(key) {
            None => Ok(None),
            // Far beyond any model, and small enough that products of two fit 64 bits.
            Some(v) => match v.as_u64() {
                Some(n) if (1..=1 << 30).contains(&n) => Ok(Some(n as usize)),
                _ => Err(format!("{key} must be an integer from 1 to 2^30, got {v}")),
            },
        }
    }

    fn size(&self, key: &str) -> Result<usize, String> {
        self.opt_size(key)?
            .ok_or_else(|| format!("`{key}` is missing"))
    }

    fn float(&self, key: &str, default: Option<f64>) -> Result<f32, String> {
        match self.get(key) {
            None => default
                .map(|d| d as f32)
                .ok_or_else(|| format!("`{key}` is missing")),
            Some(v) => match v.as_f64() {
                Some(x) if x > 0.0 && (x as f32).is_finite() => Ok(x as f32),
                _ => Err(format!("{key} must be a number above 0, got {v}")),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, String> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| format!("{key} must be true or false, got {v}")),
        }
    }

    fn tokens(&self, key: &str) -> Result<Vec<u32>, String> {
        let one = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| format!("{key} must be token ids, got {v}"))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(one).collect(),
            Some(v) => Ok(vec![one(v)?]),
        }
    }
}

fn read(f: &Fields) -> Result<Config, String> {
    let family = f
        .get("model_type")
        .and_then(Value::as_str)
        .ok_or("`model_type` is missing")?
        .to_owned();
    if !["llama", "mistral", "qwen2", "qwen3"].contains(&family.as_str()) {
        return Err(format!(
            "model_type `{family}` is not computed by this engine: llama, mistral, qwen2 and qwen3 are"
        ));
    }
    if let Some(quantization) = f.get("quantization_config") {
        return Err(format!(
            "quantised weights are not computed by this engine (quantization_config {quantization}); f32, f16 and bf16 are"
        ));
    }
    if let Some(act) = f.get("hidden_act").and_then(Value::as_str)
        && act != "silu"
    {
        return Err(format!("hidden_act must be silu, got {act}"));
    }
    let hidden = f.size("hidden_size")?;
    let layers = f.size("num_hidden_layers")?;
    if layers > 4096 {
        return Err(format!(
            "num_hidden_layers must be at most 4096, got {layers}"
        ));
    }
    let heads = f.size("num_attention_heads")?;
    let kv_heads = f.opt_size("num_key_value_heads")?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(format!(
            "num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        ));
    }
    let head_dim = match f.opt_size("head_dim")? {
        Some(d) => d,
        None if family == "qwen3" => 128,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            return Err(format!(
                "hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads}) where head_dim is not given"
            ));
        }
    };
    if head_dim % 2 != 0 || head_dim > 512 {
        return Err(format!(
            "head_dim must be even and at most 512, got {head_dim}"
        ));
    }
    if heads.saturating_mul(head_dim) > 1 << 24 || hidden > 1 << 24 {
        return Err(
            "hidden_size and num_attention_heads x head_dim must be at most 2^24".to_owned(),
        );
    }
    let attention_bias = f.flag("attention_bias", false)?;
    let llama_like = family == "llama" || family == "qwen3";
    let (rope_theta, rope_scaling) = rope(f)?;
    Ok(Config {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        intermediate: f.size("intermediate_size")?,
        vocab: f.size("vocab_size")?,
        max_position: f.opt_size("max_position_embeddings")?.unwrap_or(2048),
        rms_eps: f.float("rms_norm_eps", Some(1e-6))?,
        rope_theta,
        rope_scaling,
        tied: f.flag("tie_word_embeddings", false)?,
        qk_norm: family == "qwen3",
        qkv_bias: family == "qwen2" || (attention_bias && llama_like),
        o_bias: attention_bias && llama_like,
        mlp_bias: family == "llama" && f.flag("mlp_bias", false)?,
        windows: windows(f, &family, layers)?,
        bos: f.tokens("bos_token_id")?.first().copied(),
        eos: f.tokens("eos_token_id")?,
        family,
    })
}

/// Base and scaling; newer files hold both in `rope_parameters`.
fn rope(f: &Fields) -> Result<(f32, RopeScaling), String> {
    let parameters = f.get("rope_parameters").and_then(Value::as_object);
    let theta = match parameters.map(Fields) {
        Some(p) if p.get("rope_theta").is_some() => p.float("rope_theta", None)?,
        _ => f.float("rope_theta", Some(10_000.0))?,
    };
    let partial = f
        .get("partial_rotary_factor")
        .or_else(|| parameters.and_then(|p| p.get("partial_rotary_factor")));
    if partial.is_some_and(|p| p.as_f64() != Some(1.0)) {
        return Err("partial_rotary_factor other than 1 is not computed by this engine".to_owned());
    }
    let Some(scaling) = parameters.or_else(|| f.get("rope_scaling").and_then(Value::as_object))
    else {
        return Ok((theta, RopeScaling::None));
    };
    let s = Fields(scaling);
    let kind = s
        .get("rope_type")
        .or_else(|| s.get("type"))
        .and_then(Value::as_str)
        .unwrap_or("default");
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: s.float("factor", None)?,
        },
        "llama3" => {
            let (low, high) = (
                s.float("low_freq_factor", None)?,
                s.float("high_freq_factor", None)?,
            );
            if high <= low {
                return Err(format!(
                    "high_freq_factor ({high}) must be above low_freq_factor ({low})"
                ));
            }
            RopeScaling::Llama3 {
                factor: s.float("factor", None)?,
                low_freq_factor: low,
                high_freq_factor: high,
                original: s.float("original_max_position_embeddings", None)?,
            }
        }
        other => {
            return Err(format!(
                "rope_type `{other}` is not computed by this engine: default, linear and llama3 are"
            ));
        }
    };
    Ok((theta, scaling))
}

fn windows(f: &Fields, family: &str, layers: usize) -> Result<Vec<Option<usize>>, String> {
    let window = f.opt_size("sliding_window")?;
    let used = match family {
        "mistral" => window.is_some(),
        "qwen2" | "qwen3" => window.is_some() && f.flag("use_sliding_window", false)?,
        _ => false,
    };
    if !used {
        return Ok(vec![None; layers]);
    }
    if family == "mistral" {
        return Ok(vec![window; layers]);
    }
    if let Some(types) = f.get("layer_types").and_then(Value::as_array) {
        if types.len() != layers {
            return Err(format!(
                "layer_types has {} entries for {layers} layers",
                types.len()
            ));
        }
        return types
            .iter()
            .map(|t| match t.as_str() {
                Some("full_attention") => Ok(None),
                Some("sliding_attention") => Ok(window),
                _ => Err(format!(
                    "layer_types must hold full_attention or sliding_attention, got {t}"
                )),
            })
            .collect();
    }
    // Qwen: the first `max_window_layers` layers see everything.
    let full = f.opt_size("max_window_layers")?.unwrap_or(28);
    Ok((0..layers)
        .map(|l| if l >= full { window } else { None })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
        "num_key_value_heads":2,"intermediate_size":128,"vocab_size":300,"rope_theta":500000.0,"eos_token_id":[1,2],
        "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
        "original_max_position_embeddings":8192}}"#;

    #[test]
    fn both_spellings_of_the_rotary_parameters_read_the_same() {
        let old = Config::from_json(LLAMA).unwrap();
        let new = Config::from_json(&LLAMA.replace(
            "\"rope_scaling\":{",
            "\"rope_parameters\":{\"rope_theta\":500000.0,",
        ))
        .unwrap();
        assert_eq!(old, new);
        assert_eq!(old.head_dim, 16);
        assert_eq!(old.eos, [1, 2]);
        assert!(matches!(old.rope_scaling, RopeScaling::Llama3 { .. }));
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        for (from, to, word) in [
            ("\"llama\"", "\"mamba\"", "mamba"),
            ("\"vocab_size\":300", "\"vocab_size\":-3", "vocab_size"),
            ("\"intermediate_size\":128,", "", "intermediate_size"),
            (
                "\"num_key_value_heads\":2",
                "\"num_key_value_heads\":3",
                "multiple",
            ),
            ("llama3\"", "yarn\"", "yarn"),
        ] {
            let text = LLAMA.replace(from, to);
            assert_ne!(text, LLAMA);
            let message = Config::from_json(&text).unwrap_err();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn qwen_windows_start_after_the_full_layers() {
        let text = LLAMA.replace(
            "\"llama\"",
            "\"qwen2\",\"sliding_window\":7,\"use_sliding_window\":true,\"max_window_layers\":1",
        );
        let config = Config::from_json(&text).unwrap();
        assert_eq!(config.windows, [None, Some(7)]);
        assert!(config.qkv_bias && !config.o_bias);
    }
}
