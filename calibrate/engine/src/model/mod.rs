//! Models: from a Hugging Face folder, or random ones, to something that computes steps.
//!
//! Start with [`load`]. It gives an [`Executor`] over the model's
//! weights and KV cache, the tokenizer, and the [`ModelFacts`] that a server needs.

pub mod config;
mod error;
pub mod init;
pub mod tokenizer;
pub mod weights;

mod collective;
mod forward;
mod layer;
mod ranks;

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::executor::Executor;
use config::Config;
pub use error::ModelError;
use kernels::dtype::WeightDtype;
use tokenizer::TextTokenizer;
use weights::{SafetensorsFiles, TensorSource};

/// How a model is laid out and computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Format of weights and KV cache in memory; none: that of the file.
    pub dtype: Option<WeightDtype>,
    /// Threads per rank, at least 1.
    pub threads: usize,
    /// Tensor-parallel ranks per pipeline stage; divides the KV heads.
    pub tp: usize,
    /// Pipeline stages; at most one per layer.
    pub pp: usize,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks.
    pub num_blocks: u32,
}

impl Default for ModelOptions {
    fn default() -> ModelOptions {
        ModelOptions {
            dtype: None,
            threads: 1,
            tp: 1,
            pp: 1,
            block_size: 16,
            num_blocks: 1024,
        }
    }
}

/// What a server must know about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    /// Name of the folder, or of the built-in model.
    pub name: String,
    /// Architecture.
    pub config: Config,
    /// Format of weights and KV cache in memory.
    pub dtype: WeightDtype,
    /// Parameters.
    pub parameters: u64,
    /// Weights in memory, all ranks together, the embedding once [bytes].
    pub weight_bytes: u64,
    /// KV cache of one token over all layers and ranks [bytes].
    pub kv_bytes_per_token: u64,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text: `generation_config.json` before `config.json`.
    pub eos: Vec<u32>,
    /// Jinja template that makes a prompt of chat messages.
    pub chat_template: Option<String>,
    /// The template's `bos_token`.
    pub bos_token: Option<String>,
    /// The template's `eos_token`.
    pub eos_token: Option<String>,
}

/// A model ready to compute.
pub struct LoadedModel {
    /// Computes steps.
    pub executor: Box<dyn Executor>,
    /// Text to tokens and back.
    pub tokenizer: Arc<TextTokenizer>,
    /// What a server must know.
    pub facts: ModelFacts,
}

/// Loads the model in `dir`, or the built-in random one ([`init::DEFAULT_PARAMETERS`], [`init::DEFAULT_SEED`]).
///
/// # Errors
/// Files are missing or damaged, the architecture is not computed, or the options do not fit the model.
pub fn load(dir: Option<&Path>, options: &ModelOptions) -> Result<LoadedModel, ModelError> {
    let (facts, source, tokenizer) = open(dir, options.dtype)?;
    let executor = ranks::start(&facts.config, source.as_ref(), facts.dtype, options)?;
    Ok(LoadedModel {
        executor,
        tokenizer: Arc::new(tokenizer),
        facts,
    })
}

/// What [`load`] would say about the model, without its weights.
///
/// # Errors
/// As [`load`].
pub fn inspect(dir: Option<&Path>, dtype: Option<WeightDtype>) -> Result<ModelFacts, ModelError> {
    open(dir, dtype).map(|(facts, _, _)| facts)
}

/// The model's tokenizer.
///
/// # Errors
/// As [`load`].
pub fn tokenizer(
    dir: Option<&Path>,
    dtype: Option<WeightDtype>,
) -> Result<TextTokenizer, ModelError> {
    open(dir, dtype).map(|(_, _, tokenizer)| tokenizer)
}

type Opened = (ModelFacts, Box<dyn TensorSource>, TextTokenizer);

fn open(dir: Option<&Path>, dtype: Option<WeightDtype>) -> Result<Opened, ModelError> {
    match dir {
        Some(dir) => open_folder(dir, dtype),
        None => open_random(init::DEFAULT_PARAMETERS, init::DEFAULT_SEED, dtype),
    }
}

fn open_random(
    parameters: u64,
    seed: u64,
    dtype: Option<WeightDtype>,
) -> Result<Opened, ModelError> {
    let config = init::shape(parameters)?;
    let source = init::RandomModel::new(&config, seed);
    let tokenizer = TextTokenizer::from_bytes(init::tokenizer_json().to_string().as_bytes())
        .map_err(ModelError::Options)?;
    let template = init::tokenizer_config_json(&config);
    let name = format!("random-{}m", parameters / 1_000_000);
    let facts = facts(
        name,
        config,
        dtype.unwrap_or(WeightDtype::Bf16),
        &template,
        None,
    );
    Ok((facts, Box::new(source), tokenizer))
}

fn open_folder(dir: &Path, dtype: Option<WeightDtype>) -> Result<Opened, ModelError> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|source| ModelError::Io {
        path: path.clone(),
        source,
    })?;
    let config =
        Config::from_json(&text).map_err(|message| ModelError::Config { path, message })?;
    let source = SafetensorsFiles::open(dir)?;
    let stored = source.tensor("model.embed_tokens.weight")?.dtype;
    let tokenizer = TextTokenizer::from_file(&dir.join("tokenizer.json"))?;
    let mut template = optional_json(&dir.join("tokenizer_config.json"))?.unwrap_or(Value::Null);
    // Newer folders keep the template in a file of its own.
    let jinja = dir.join("chat_template.jinja");
    if jinja.is_file() {
        let text = std::fs::read_to_string(&jinja).map_err(|source| ModelError::Io {
            path: jinja,
            source,
        })?;
        template["chat_template"] = Value::String(text);
    }
    let generation = optional_json(&dir.join("generation_config.json"))?;
    let name = dir
        .canonicalize()
        .ok()
        .and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "model".to_owned());
    let facts = facts(
        name,
        config,
        dtype.unwrap_or(stored),
        &template,
        generation.as_ref(),
    );
    Ok((facts, Box::new(source), tokenizer))
}

fn optional_json(path: &Path) -> Result<Option<Value>, ModelError> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|source| ModelError::Io {
        path: path.to_owned(),
        source,
    })?;
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err("a JSON object is expected at the top".to_owned()),
        Err(e) => Err(format!("no valid JSON: {e}")),
    }
    .map_err(|message| ModelError::Config {
        path: path.to_owned(),
        message,
    })
}

fn facts(
    name: String,
    config: Config,
    dtype: WeightDtype,
    tokenizer_config: &Value,
    generation: Option<&Value>,
) -> ModelFacts {
    let parameters = config.parameters();
    let kv = 2 * config.layers * config.kv_heads * config.head_dim * dtype.bytes();
    // A special token is a string, or an object that holds it.
    let token = |key: &str| {
        let value = tokenizer_config.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        Some(text.to_owned())
    };
    // Several templates may be given by name; the one for plain chat is called default.
    let template = match tokenizer_config.get("chat_template") {
        Some(Value::Array(list)) => list
            .iter()
            .find(|t| t.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|t| t.get("template"))
            .and_then(Value::as_str),
        other => other.and_then(Value::as_str),
    };
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let eos = match generation.and_then(|g| g.get("eos_token_id")) {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(v) => id(v).into_iter().collect(),
        None => Vec::new(),
    };
    ModelFacts {
        name,
        dtype,
        parameters,
        weight_bytes: parameters * dtype.bytes() as u64,
        kv_bytes_per_token: kv as u64,
        bos: config.bos,
        eos: if eos.is_empty() {
            config.eos.clone()
        } else {
            eos
        },
        chat_template: template.map(str::to_owned),
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        config,
    }
}
