//! What clients send: the fields of OpenAI's interface and of vLLM's extensions to it, each checked by itself. `fields.rs` tells
//! which there may be.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::request::{GenerateRequest, Sampling};
use crate::sampling::GREEDY_BELOW;

/// Most stop strings of a request.
const MAX_STOPS: usize = 32;
/// Longest stop string [bytes].
const MAX_STOP_BYTES: usize = 1024;
/// Most choices for one prompt.
const MAX_CHOICES: u32 = 128;
/// Most words that a text must not have.
const MAX_BAD_WORDS: usize = 1000;
/// Most log probabilities for each token.
pub const MAX_LOGPROBS: u32 = 20;

/// A JSON object whose fields are read by name. `null` counts as absent.
pub struct Fields {
    map: Map<String, Value>,
}

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 when it is no JSON object.
    pub fn parse(body: &Bytes) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields { map }),
            Ok(_) => Err(ApiError::bad("", "the body must be a JSON object")),
            Err(e) => Err(ApiError::bad("", format!("the body is no valid JSON: {e}"))),
        }
    }

    /// The field called `name`.
    ///
    /// # Errors
    /// 400 when it has another type.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        match self.map.get(name) {
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

    /// The fields that are there and not `null`.
    pub fn set(&self) -> impl Iterator<Item = (&str, &Value)> {
        let set = self.map.iter().filter(|(_, v)| !v.is_null());
        set.map(|(k, v)| (k.as_str(), v))
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
    /// With tokens beside log probabilities as `token_id:5` instead of their text.
    pub tokens_as_ids: bool,
}

/// What a body asks for, before its prompt is known.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request without prompt; `max_tokens` is 0 where the body leaves it open.
    pub request: GenerateRequest,
    /// How its answer is sent.
    pub delivery: Delivery,
    /// Choices for each prompt.
    pub n: u32,
    /// Words that the text must not have.
    pub bad_words: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

/// How tokens are drawn for `n` choices from `vocab` tokens.
fn sampling(f: &Fields, n: u32, vocab: usize) -> Result<Sampling, ApiError> {
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
    let temperature = f
        .number("temperature", 0.0, 2.0)?
        .unwrap_or(default.temperature);
    if n > 1 && temperature < GREEDY_BELOW {
        return Err(ApiError::bad(
            "n",
            format!(
                "`n` must be 1 where `temperature` is 0, got {n}: all choices would be the same"
            ),
        ));
    }
    let top_p = f.number("top_p", 0.0, 1.0)?.unwrap_or(default.top_p);
    if top_p == 0.0 {
        return Err(ApiError::bad(
            "top_p",
            "`top_p` must be above 0 and at most 1, got 0",
        ));
    }
    Ok(Sampling {
        temperature,
        top_k,
        top_p,
        min_p: f.number("min_p", 0.0, 1.0)?.unwrap_or(default.min_p),
        presence_penalty: f.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: f.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        repetition_penalty: f
            .number("repetition_penalty", 0.01, 100.0)?
            .unwrap_or(default.repetition_penalty),
        // -1 asks for any seed, as with vLLM.
        seed: f.get::<i64>("seed")?.filter(|&s| s != -1).map(|s| s as u64),
        allowed_token_ids: allowed_token_ids(f, vocab)?,
        // The words are told apart from tokens once they are tokenised.
        bad_words: Arc::default(),
    })
}

/// Texts at which the output ends.
fn stops(f: &Fields) -> Result<Vec<String>, ApiError> {
    let stop: Vec<String> = match f.get("stop")? {
        None => Vec::new(),
        Some(OneOrMore::One(s)) => vec![s],
        Some(OneOrMore::More(s)) => s,
    };
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
    Ok(stop)
}

/// Reads everything but prompt and length; `vocab`: tokens of the model.
///
/// # Errors
/// 400 that names the field.
pub fn asked(f: &Fields, vocab: usize) -> Result<Asked, ApiError> {
    let n: u32 = f.get("n")?.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(ApiError::bad(
            "n",
            format!("`n` must be from 1 to {MAX_CHOICES}, got {n}"),
        ));
    }
    let sampling = sampling(f, n, vocab)?;
    let bad_words: Vec<String> = f.get("bad_words")?.unwrap_or_default();
    if bad_words.len() > MAX_BAD_WORDS || bad_words.iter().any(|w| w.trim_start().is_empty()) {
        return Err(ApiError::bad(
            "bad_words",
            format!("`bad_words` takes at most {MAX_BAD_WORDS} words, none of them empty"),
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
        .find_map(|k| f.map.get(*k).and_then(Value::as_str))
        .map(session_of);
    Ok(Asked {
        request: GenerateRequest {
            min_tokens: f.get("min_tokens")?.unwrap_or(0),
            ignore_eos: f.get("ignore_eos")?.unwrap_or(false),
            stop: stops(f)?,
            stop_token_ids: f.get("stop_token_ids")?.unwrap_or_default(),
            include_stop_str_in_output: f.get("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: f.get("skip_special_tokens")?.unwrap_or(true),
            sampling,
            cache_salt: f.get("cache_salt")?.map_or(0, |s: String| session_of(&s)),
            priority: f.get("priority")?.unwrap_or(0),
            session,
            ..GenerateRequest::default()
        },
        delivery: Delivery {
            stream,
            include_usage,
            continuous_usage: include_usage && option("continuous_usage_stats"),
            token_ids: f.get("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: f.get("return_tokens_as_token_ids")?.unwrap_or(false),
        },
        n,
        bad_words,
    })
}

/// A token's number that is in the vocabulary.
fn token(name: &str, id: Option<u64>, vocab: usize) -> Result<u32, ApiError> {
    let id = id.filter(|&id| id < vocab as u64);
    id.and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
        ApiError::bad(
            name,
            format!(
                "`{name}` must name token ids, which go from 0 to {}",
                vocab.saturating_sub(1)
            ),
        )
    })
}

fn allowed_token_ids(f: &Fields, vocab: usize) -> Result<Option<Arc<[u32]>>, ApiError> {
    let name = "allowed_token_ids";
    let Some(ids) = f.get::<Vec<Value>>(name)? else {
        return Ok(None);
    };
    if ids.is_empty() {
        return Err(ApiError::bad(name, format!("`{name}` must not be empty")));
    }
    let mut ids = ids
        .iter()
        .map(|id| token(name, id.as_u64(), vocab))
        .collect::<Result<Vec<u32>, _>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids.into()))
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
        asked(&Fields::parse(&body.to_string().into())?, 100)
    }

    #[test]
    fn wrong_fields_are_named() {
        for (body, param) in [
            (r#"{"n": 0}"#, "n"),
            (r#"{"n": 129}"#, "n"),
            (r#"{"n": 2, "temperature": 0}"#, "n"),
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"temperature": 2.1}"#, "temperature"),
            (r#"{"allowed_token_ids": []}"#, "allowed_token_ids"),
            (r#"{"allowed_token_ids": [-1]}"#, "allowed_token_ids"),
            (r#"{"bad_words": ["a", " "]}"#, "bad_words"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 2}"#, "top_p"),
            (r#"{"top_k": -5}"#, "top_k"),
            (r#"{"stop": 5}"#, "stop"),
            (r#"{"stop": [""]}"#, "stop"),
            (r#"{"min_tokens": -1}"#, "min_tokens"),
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
        let a = read(r#"{"temperature": null, "n": null}"#).unwrap();
        assert_eq!(a.request.sampling, Sampling::default());
        assert!(a.request.skip_special_tokens && !a.delivery.stream);
        let a = read(r#"{"stop": "x", "top_k": -1, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}}"#).unwrap();
        assert_eq!(a.request.stop, ["x"]);
        assert!(a.delivery.include_usage && a.delivery.continuous_usage);
        let a = read(r#"{"n": 3, "seed": -1, "allowed_token_ids": [9, 7, 9]}"#).unwrap();
        let s = &a.request.sampling;
        assert_eq!((a.n, s.seed), (3, None));
        assert_eq!(s.allowed_token_ids.as_deref(), Some(&[7, 9][..]));
    }
}
