//! What clients send: the fields of OpenAI's interface and of vLLM's extensions to it, each checked by itself.
//!
//! Fields that nothing here knows are ignored, as vLLM does; those it knows but cannot honour are refused.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::request::{GenerateRequest, Sampling};

/// Most stop strings of a request.
const MAX_STOPS: usize = 32;
/// Longest stop string [bytes].
const MAX_STOP_BYTES: usize = 1024;
/// Most log probabilities for each token.
pub const MAX_LOGPROBS: u32 = 20;

/// A JSON object whose fields are read by name. `null` counts as absent.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 when it is no JSON object.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(_) => Err(ApiError::bad("", "the body must be a JSON object")),
            Err(e) => Err(ApiError::bad("", format!("the body is no valid JSON: {e}"))),
        }
    }

    /// The field called `name`.
    ///
    /// # Errors
    /// 400 when it has another type.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value)
                .map(Some)
                .map_err(|e| ApiError::bad(name, format!("`{name}`: {e}"))),
        }
    }

    /// The field called `name`, which must be there.
    ///
    /// # Errors
    /// 400 when it is missing or has another type.
    pub fn need<T: DeserializeOwned>(&self, name: &str) -> Result<T, ApiError> {
        self.get(name)?
            .ok_or_else(|| ApiError::bad(name, format!("`{name}` is missing")))
    }

    /// A number within bounds.
    fn number(&self, name: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        match self.get::<f64>(name)? {
            Some(x) if !(least..=most).contains(&x) => Err(ApiError::bad(
                name,
                format!("`{name}` must be from {least} to {most}, got {x}"),
            )),
            x => Ok(x.map(|x| x as f32)),
        }
    }

    /// Refuses a field whose value is not the only one supported.
    fn only(&self, name: &str, supported: &Value) -> Result<(), ApiError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(()),
            Some(v) if v == supported => Ok(()),
            Some(v) => Err(ApiError::bad(
                name,
                format!("`{name}`: only {supported} is supported, got {}", short(v)),
            )),
        }
    }
}

fn short(v: &Value) -> String {
    let text = v.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// As server-sent events, token by token.
    pub stream: bool,
    /// With a last event that holds the usage and no choices.
    pub include_usage: bool,
    /// With the usage so far in every event.
    pub continuous_usage: bool,
    /// With the ids of prompt and output tokens.
    pub token_ids: bool,
}

/// What a body asks for, before its prompt is known.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request without prompt; `max_tokens` is 0 where the body leaves it open.
    pub request: GenerateRequest,
    /// How its answer is sent.
    pub delivery: Delivery,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

/// Reads everything but prompt and length.
///
/// # Errors
/// 400 that names the field.
pub fn asked(f: &Fields) -> Result<Asked, ApiError> {
    f.only("n", &Value::from(1))?;
    f.only("best_of", &Value::from(1))?;
    f.only("use_beam_search", &Value::from(false))?;
    f.only("echo", &Value::from(false))?;
    f.only("suffix", &Value::from(""))?;
    for unsupported in [
        "logit_bias",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "prompt_logprobs",
    ] {
        if f.0
            .get(unsupported)
            .is_some_and(|v| !v.is_null() && *v != Value::Object(Map::new()))
        {
            return Err(ApiError::bad(
                unsupported,
                format!("`{unsupported}` is not supported"),
            ));
        }
    }
    if let Some(format) = f.get::<Map<String, Value>>("response_format")?
        && format.get("type") != Some(&Value::from("text"))
    {
        return Err(ApiError::bad(
            "response_format",
            "`response_format`: only {\"type\": \"text\"} is supported",
        ));
    }
    let default = Sampling::default();
    let top_k = match f.get::<i64>("top_k")? {
        None | Some(-1 | 0) => 0,
        Some(k) => u32::try_from(k).map_err(|_| {
            ApiError::bad(
                "top_k",
                format!("`top_k` must be -1, 0 (all) or more, got {k}"),
            )
        })?,
    };
    let sampling = Sampling {
        temperature: f
            .number("temperature", 0.0, 100.0)?
            .unwrap_or(default.temperature),
        top_k,
        top_p: f.number("top_p", 0.0, 1.0)?.unwrap_or(default.top_p),
        min_p: f.number("min_p", 0.0, 1.0)?.unwrap_or(default.min_p),
        presence_penalty: f.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: f.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        repetition_penalty: f
            .number("repetition_penalty", 0.01, 100.0)?
            .unwrap_or(default.repetition_penalty),
        seed: f.get::<i64>("seed")?.map(|s| s as u64),
    };
    let stop = match f.get("stop")? {
        None => Vec::new(),
        Some(OneOrMore::One(s)) => vec![s],
        Some(OneOrMore::More(s)) => s,
    };
    let stop: Vec<String> = stop;
    if stop.len() > MAX_STOPS
        || stop
            .iter()
            .any(|s| s.len() > MAX_STOP_BYTES || s.is_empty())
    {
        return Err(ApiError::bad(
            "stop",
            format!("`stop` takes at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes"),
        ));
    }
    let options: Map<String, Value> = f.get("stream_options")?.unwrap_or_default();
    let option = |name: &str| options.get(name).and_then(Value::as_bool).unwrap_or(false);
    let stream = f.get("stream")?.unwrap_or(false);
    if !options.is_empty() && !stream {
        return Err(ApiError::bad(
            "stream_options",
            "`stream_options` needs `stream`: true",
        ));
    }
    let include_usage = option("include_usage");
    let session = ["session_id", "user"]
        .iter()
        .find_map(|k| f.0.get(*k).and_then(Value::as_str))
        .map(session_of);
    Ok(Asked {
        request: GenerateRequest {
            min_tokens: f.get("min_tokens")?.unwrap_or(0),
            ignore_eos: f.get("ignore_eos")?.unwrap_or(false),
            stop,
            stop_token_ids: f.get("stop_token_ids")?.unwrap_or_default(),
            include_stop_str_in_output: f.get("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: f.get("skip_special_tokens")?.unwrap_or(true),
            sampling,
            priority: f.get("priority")?.unwrap_or(0),
            session,
            ..GenerateRequest::default()
        },
        delivery: Delivery {
            stream,
            include_usage,
            continuous_usage: include_usage && option("continuous_usage_stats"),
            token_ids: f.get("return_token_ids")?.unwrap_or(false),
        },
    })
}

/// Number of a session's name (FNV-1a).
pub fn session_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Asked, ApiError> {
        asked(&Fields::parse(body.as_bytes())?)
    }

    #[test]
    fn wrong_fields_are_named() {
        for (body, param) in [
            (r#"{"n": 2}"#, "n"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 2}"#, "top_p"),
            (r#"{"top_k": -5}"#, "top_k"),
            (r#"{"stop": 5}"#, "stop"),
            (r#"{"stop": [""]}"#, "stop"),
            (r#"{"min_tokens": -1}"#, "min_tokens"),
            (r#"{"guided_json": {"a": 1}}"#, "guided_json"),
            (
                r#"{"stream_options": {"include_usage": true}}"#,
                "stream_options",
            ),
        ] {
            let e = read(body).unwrap_err();
            assert_eq!(e.param.as_deref(), Some(param), "{body}: {e:?}");
            assert_eq!(e.status, 400);
            assert!(e.message.contains(param), "{e:?}");
        }
        assert!(read("{").unwrap_err().message.contains("JSON"));
        assert!(read("[]").unwrap_err().message.contains("object"));
    }

    #[test]
    fn absent_and_null_fields_get_vllms_defaults() {
        let a = read(r#"{"temperature": null, "logit_bias": null, "unknown": 1}"#).unwrap();
        assert_eq!(a.request.sampling, Sampling::default());
        assert!(a.request.skip_special_tokens && !a.delivery.stream);
        let a = read(r#"{"stop": "x", "top_k": -1, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}}"#).unwrap();
        assert_eq!(a.request.stop, ["x"]);
        assert!(a.delivery.include_usage && a.delivery.continuous_usage);
    }
}
