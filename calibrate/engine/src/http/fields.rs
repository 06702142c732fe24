//! Which fields a body may have. A field that would change the answer and cannot be honoured is refused by its name: a client
//! that asks for a tool call and gets prose must learn why. Fields that change nothing here are taken. Fields that nobody here knows are ignored, as vLLM
//! does, since routers add theirs to what clients send; they are counted by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use super::answer::Kind;
use super::body::Fields;
use super::error::ApiError;

/// Fields that both interfaces read.
const READ: [&str; 36] = [
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logprobs",
    "max_tokens",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "seed",
    "session_id",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "top_k",
    "top_p",
    "user",
    // Taken for what they mean to other servers, and of no effect on the answer.
    "guided_decoding_backend",
    "length_penalty",
    "metadata",
    "request_id",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
];

/// Fields that completions read beside those.
const READ_COMPLETION: [&str; 1] = ["prompt"];

/// Fields that chats read beside those.
const READ_CHAT: [&str; 13] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "max_completion_tokens",
    "messages",
    "reasoning_effort",
    "tool_choice",
    "tools",
    "top_logprobs",
    // Of no effect on the answer.
    "include_reasoning",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
];

/// Names of ignored fields that are counted one by one, and the longest of them [bytes]: clients choose them.
const MOST_NAMES: usize = 50;
const MOST_NAME_BYTES: usize = 64;
/// What all others are counted as.
const OTHER: &str = "other";

/// How often fields came that nobody here knows.
#[derive(Debug, Default)]
pub struct Ignored(Mutex<BTreeMap<String, u64>>);

impl Ignored {
    fn held(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, name: &str) {
        let mut counts = self.held();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let is_named = name.len() <= MOST_NAME_BYTES && name.chars().all(plain);
        let has_room = counts.contains_key(name) || counts.len() < MOST_NAMES;
        let name = if is_named && has_room { name } else { OTHER };
        *counts.entry(name.to_owned()).or_default() += 1;
    }

    /// The names, with how many requests had each.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.held().clone()
    }

    /// The same as a scrape gets it.
    pub fn metrics_text(&self) -> String {
        let name = "servetwin:ignored_request_fields_total";
        let mut out = format!(
            "# HELP {name} Requests with a field that this server does not know and ignored, by field.\n# TYPE {name} counter\n"
        );
        for (field, n) in self.held().iter() {
            let _ = writeln!(out, "{name}{{field=\"{field}\"}} {n}");
        }
        out
    }
}

/// Fields with a value that asks for nothing; any other is refused.
fn neutral(name: &str) -> Option<Vec<Value>> {
    Some(match name {
        "echo"
        | "use_beam_search"
        | "continue_final_message"
        | "watermarking"
        | "return_weight_versions"
        | "return_token_offsets"
        | "return_prompt_text"
        // SGLang's, which vLLM's router sends on.
        | "no_stop_trim"
        | "return_hidden_states" => vec![json!(false)],
        "suffix" => vec![json!("")],
        "best_of" | "stream_interval" => vec![json!(1)],
        "response_format" => vec![json!({"type": "text"})],
        "thinking_token_budget" => vec![json!(-1)],
        "routed_experts_prompt_start" => vec![json!(0)],
        "function_call" => vec![json!("none")],
        "modalities" => vec![json!(["text"])],
        "functions" | "documents" | "logprob_token_ids" => vec![json!([])],
        "kv_transfer_params"
        | "logit_bias"
        | "ec_transfer_params"
        | "vllm_xargs"
        | "repetition_detection"
        | "media_io_kwargs"
        | "mm_processor_kwargs" => vec![json!({})],
        "mm_payload" => vec![json!("tensors"), json!("none")],
        "audio"
        | "chat_template"
        | "ebnf"
        | "guided_choice"
        | "guided_grammar"
        | "guided_json"
        | "guided_regex"
        | "guided_whitespace_pattern"
        | "json_schema"
        | "lora_path"
        | "prediction"
        | "prompt_embeds"
        | "prompt_logprobs"
        | "regex"
        | "session_params"
        | "stop_regex"
        | "structural_tag"
        | "structured_outputs"
        | "truncate_prompt_tokens"
        | "truncation_side"
        | "verbosity"
        | "web_search_options" => Vec::new(),
        _ => return None,
    })
}

/// Refuses a body with a field that cannot be honoured, and counts those that nobody knows.
///
/// # Errors
/// 400 that names the field.
pub fn check(f: &Fields, kind: Kind, ignored: &Ignored) -> Result<(), ApiError> {
    let own: &[&str] = match kind {
        Kind::Completion => &READ_COMPLETION,
        Kind::Chat => &READ_CHAT,
    };
    for (name, value) in f.set() {
        if READ.contains(&name) || own.contains(&name) {
            continue;
        }
        match neutral(name) {
            Some(values) if values.contains(value) => {}
            Some(values) => {
                let but = match values.first() {
                    Some(v) => format!("; only {v} is"),
                    None => String::new(),
                };
                return Err(ApiError::bad(
                    name,
                    format!("`{name}` is not supported{but}"),
                ));
            }
            None => ignored.count(name),
        }
    }
    Ok(())
}

/// The tools that a chat's template may show, where none is to be called.
///
/// # Errors
/// 400 when the model is to call one.
pub fn tools(f: &Fields) -> Result<Option<Value>, ApiError> {
    let tools: Option<Vec<Map<String, Value>>> = f.get("tools")?;
    let tools = tools.filter(|t| !t.is_empty());
    let choice: Option<Value> = f.get("tool_choice")?;
    match (&tools, &choice) {
        (_, Some(c)) if c == "none" => Ok(tools.map(|t| json!(t))),
        (None, None) => Ok(None),
        (None, Some(c)) if c == "auto" => Ok(None),
        (None, Some(_)) => Err(ApiError::bad(
            "tool_choice",
            "`tool_choice` needs `tools`, and this server does not parse tool calls: leave it out, or send \"none\"",
        )),
        (Some(_), _) => Err(ApiError::bad(
            "tools",
            "`tools` are not supported: this server does not parse tool calls; leave them out, or send `tool_choice`: \
             \"none\" to show them to the model only",
        )),
    }
}
