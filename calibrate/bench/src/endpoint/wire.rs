//! What each API wants to be sent, and what its chunks say.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::trace::{ServerTimings, Usage};
use super::{ApiKind, Endpoint, GenerateRequest, Prompt};

/// Fields of a request that some servers refuse; what was refused is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Optional {
    /// `ignore_eos`.
    IgnoreEos,
    /// `min_tokens`.
    MinTokens,
    /// `stream_options`.
    StreamOptions,
    /// `continuous_usage_stats`.
    ContinuousUsage,
    /// `return_token_ids`.
    TokenIds,
    /// `priority`.
    Priority,
    /// `max_tokens` of the chat API, which `max_completion_tokens` replaces.
    MaxTokens,
}

impl Optional {
    /// All of them. The order matters where one name is part of a message about another.
    pub const ALL: [Optional; 7] = [
        Optional::IgnoreEos,
        Optional::MinTokens,
        Optional::ContinuousUsage,
        Optional::StreamOptions,
        Optional::TokenIds,
        Optional::Priority,
        Optional::MaxTokens,
    ];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Optional::IgnoreEos => "ignore_eos",
            Optional::MinTokens => "min_tokens",
            Optional::StreamOptions => "stream_options",
            Optional::ContinuousUsage => "continuous_usage_stats",
            Optional::TokenIds => "return_token_ids",
            Optional::Priority => "priority",
            Optional::MaxTokens => "max_tokens",
        }
    }

    /// What goes without it.
    pub fn consequence(self) -> &'static str {
        match self {
            Optional::IgnoreEos => "outputs may end before the asked length",
            Optional::MinTokens => "outputs may be shorter than asked",
            Optional::StreamOptions => "token counts come from the chunks alone",
            Optional::ContinuousUsage => {
                "chunks are taken as one token unless the final usage says otherwise"
            }
            Optional::TokenIds => {
                "answers are sent back in later turns as other text of the same length"
            }
            Optional::Priority => "priorities are not sent",
            Optional::MaxTokens => "max_completion_tokens is sent in its place",
        }
    }

    /// Bit in a set of these.
    pub(super) fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of fields that the server refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused(pub(super) u32);

impl Refused {
    /// Whether `field` was refused.
    pub fn has(self, field: Optional) -> bool {
        self.0 & field.bit() != 0
    }
}

/// Which optional field the server's refusal is about: one that was sent and that it names.
pub fn refused_field(
    endpoint: &Endpoint,
    body: &[u8],
    message: &str,
    already: Refused,
) -> Option<Optional> {
    let sent = |field: Optional| {
        let quoted = format!("\"{}\":", field.name());
        body.windows(quoted.len()).any(|w| w == quoted.as_bytes())
    };
    Optional::ALL.into_iter().find(|field| {
        let named = match field {
            Optional::MaxTokens => {
                endpoint.api == ApiKind::Chat && message.contains("max_completion_tokens")
            }
            Optional::Priority => message.to_ascii_lowercase().contains("priority"),
            field => message.contains(field.name()),
        };
        named && !already.has(*field) && sent(*field)
    })
}

/// The body of a request.
///
/// # Errors
/// When the API does not take such a prompt; says which does.
pub fn body(
    endpoint: &Endpoint,
    request: &GenerateRequest,
    refused: Refused,
) -> Result<Vec<u8>, String> {
    let max_tokens = Value::from(request.max_tokens);
    let mut fields = Map::new();
    let prompt_key;
    match endpoint.api {
        ApiKind::Completions | ApiKind::Chat => {
            prompt_key = "prompt";
            if let Some(model) = &endpoint.model {
                fields.insert("model".into(), model.as_str().into());
            }
            let max_key = if refused.has(Optional::MaxTokens) {
                "max_completion_tokens"
            } else {
                "max_tokens"
            };
            fields.insert(max_key.into(), max_tokens);
            fields.insert("temperature".into(), 0.into());
            fields.insert("stream".into(), true.into());
            if !refused.has(Optional::StreamOptions) {
                let mut options = Map::new();
                options.insert("include_usage".into(), true.into());
                if endpoint.continuous_usage && !refused.has(Optional::ContinuousUsage) {
                    options.insert("continuous_usage_stats".into(), true.into());
                }
                fields.insert("stream_options".into(), options.into());
            }
            if request.exact && !refused.has(Optional::IgnoreEos) {
                fields.insert("ignore_eos".into(), true.into());
            }
            if request.exact && !refused.has(Optional::MinTokens) {
                fields.insert("min_tokens".into(), request.max_tokens.into());
            }
            if endpoint.token_ids && !refused.has(Optional::TokenIds) {
                fields.insert("return_token_ids".into(), true.into());
            }
            if let Some(priority) = request.priority
                && !refused.has(Optional::Priority)
            {
                fields.insert("priority".into(), priority.into());
            }
        }
        ApiKind::Tgi => {
            prompt_key = "inputs";
            let mut parameters = Map::new();
            parameters.insert("max_new_tokens".into(), max_tokens);
            parameters.insert("do_sample".into(), false.into());
            parameters.insert("details".into(), true.into());
            parameters.extend(request.extra.clone());
            fields.insert("parameters".into(), parameters.into());
        }
        ApiKind::Triton => {
            prompt_key = "text_input";
            fields.insert("max_tokens".into(), max_tokens);
            fields.insert("stream".into(), true.into());
            fields.insert("bad_words".into(), "".into());
            fields.insert("stop_words".into(), "".into());
        }
    }
    if endpoint.api != ApiKind::Tgi {
        fields.extend(request.extra.clone());
    }
    if matches!(request.prompt, Prompt::Tokens(_)) && endpoint.api != ApiKind::Completions {
        return Err(format!(
            "the {} API takes text only; token ids go to the completions API",
            endpoint.api.name()
        ));
    }
    let body = Body {
        prompt_key,
        chat: endpoint.api == ApiKind::Chat,
        prompt: &request.prompt,
        fields: &fields,
    };
    serde_json::to_vec(&body).map_err(|e| e.to_string())
}

struct Body<'a> {
    prompt_key: &'static str,
    chat: bool,
    prompt: &'a Prompt,
    fields: &'a Map<String, Value>,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        match self.prompt {
            Prompt::Text(text) if self.chat => {
                #[derive(Serialize)]
                struct Message<'a> {
                    role: &'static str,
                    content: &'a str,
                }
                let message = Message {
                    role: "user",
                    content: text,
                };
                map.serialize_entry("messages", &[message])?;
            }
            Prompt::Text(text) => map.serialize_entry(self.prompt_key, text)?,
            Prompt::Tokens(ids) => map.serialize_entry(self.prompt_key, ids)?,
        }
        for (key, value) in self.fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// What one event of a stream says.
#[derive(Debug, Default)]
pub struct Event<'a> {
    /// It has a choice, or is a token's own event.
    pub choice: bool,
    /// Generated text in it.
    pub text: Cow<'a, str>,
    /// Generated token ids in it, where the server gives them.
    pub token_ids: Option<Vec<u32>>,
    /// It names the speaker's role.
    pub role: bool,
    /// The generation ended with this reason.
    pub finish: Option<String>,
    /// Token counts so far.
    pub usage: Option<Usage>,
    /// One of the counts is no count, and is left out.
    pub no_count: bool,
    /// Times that the server took itself.
    pub timings: Option<ServerTimings>,
    /// Tokens generated in all, as a final event says.
    pub generated_tokens: Option<u32>,
    /// Exactly this many tokens, by the API's own rules.
    pub tokens: Option<u32>,
    /// The server reports a failure.
    pub error: Option<String>,
    /// The stream says that it is over.
    pub done: bool,
}

#[derive(Deserialize)]
struct Str<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct OpenAiChunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<UsageJson>,
    #[serde(default)]
    timings: Option<TimingsJson>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    text: Option<Str<'a>>,
    #[serde(borrow, default)]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    message: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Str<'a>>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow, default)]
    role: Option<Str<'a>>,
    #[serde(borrow, default)]
    content: Option<Str<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Str<'a>>,
    #[serde(borrow, default)]
    reasoning: Option<Str<'a>>,
}

#[derive(Deserialize)]
struct UsageJson {
    #[serde(default)]
    prompt_tokens: Option<Value>,
    #[serde(default)]
    completion_tokens: Option<Value>,
    #[serde(default)]
    prompt_tokens_details: Option<DetailsJson>,
}

#[derive(Deserialize)]
struct DetailsJson {
    #[serde(default)]
    cached_tokens: Option<Value>,
}

#[derive(Deserialize)]
struct TimingsJson {
    #[serde(default)]
    cache_n: Option<f64>,
    #[serde(default)]
    prompt_n: Option<f64>,
    #[serde(default)]
    prompt_ms: Option<f64>,
    #[serde(default)]
    predicted_n: Option<f64>,
    #[serde(default)]
    predicted_ms: Option<f64>,
}

#[derive(Deserialize)]
struct TgiChunk<'a> {
    #[serde(borrow, default)]
    token: Option<TgiToken<'a>>,
    #[serde(default)]
    details: Option<TgiDetails>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct TgiToken<'a> {
    #[serde(default)]
    id: Option<u32>,
    #[serde(borrow, default)]
    text: Option<Str<'a>>,
}

#[derive(Deserialize)]
struct TgiDetails {
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    generated_tokens: Option<Value>,
    #[serde(default)]
    input_length: Option<Value>,
}

#[derive(Deserialize)]
struct TritonChunk<'a> {
    #[serde(borrow, default)]
    text_output: Option<Str<'a>>,
    #[serde(default)]
    error: Option<Value>,
}

/// Reads one event.
///
/// # Errors
/// When it is not what the API answers; holds the beginning of what came.
pub fn event(api: ApiKind, data: &[u8]) -> Result<Event<'_>, String> {
    if data == b"[DONE]" {
        return Ok(Event {
            done: true,
            ..Event::default()
        });
    }
    let bad = |e: serde_json::Error| {
        let head = String::from_utf8_lossy(&data[..data.len().min(200)]).into_owned();
        format!(
            "an event is not the JSON of the {} API ({e}): {head}",
            api.name()
        )
    };
    match api {
        ApiKind::Completions | ApiKind::Chat => serde_json::from_slice::<OpenAiChunk<'_>>(data)
            .map_err(bad)
            .map(open_ai),
        ApiKind::Tgi => serde_json::from_slice::<TgiChunk<'_>>(data)
            .map_err(bad)
            .map(tgi),
        ApiKind::Triton => {
            let chunk: TritonChunk<'_> = serde_json::from_slice(data).map_err(bad)?;
            Ok(Event {
                choice: chunk.text_output.is_some(),
                text: chunk.text_output.map_or(Cow::Borrowed(""), |s| s.0),
                error: chunk.error.map(message),
                ..Event::default()
            })
        }
    }
}

/// A count as a server wrote it; `no_count` is raised where there is something else in its place.
fn token_count(value: Option<Value>, no_count: &mut bool) -> Option<u32> {
    let value = value?;
    let whole = |f: &f64| f.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(f);
    // Some servers write counts as 5.0.
    let n = value.as_f64().filter(whole).map(|f| f as u32);
    *no_count |= n.is_none();
    n
}

fn open_ai(chunk: OpenAiChunk<'_>) -> Event<'_> {
    let mut no_count = false;
    let mut count = |value| token_count(value, &mut no_count);
    let usage = chunk.usage.map(|u| Usage {
        prompt_tokens: count(u.prompt_tokens),
        completion_tokens: count(u.completion_tokens),
        cached_tokens: count(u.prompt_tokens_details.and_then(|d| d.cached_tokens)),
    });
    let mut event = Event {
        usage,
        no_count,
        timings: chunk.timings.map(|t| ServerTimings {
            prompt_tokens: t.prompt_n.unwrap_or(0.0).max(0.0) as u32,
            cached_tokens: t.cache_n.filter(|n| *n >= 0.0).map(|n| n as u32),
            prompt_s: t.prompt_ms.unwrap_or(0.0) * 1e-3,
            predicted_tokens: t.predicted_n.unwrap_or(0.0).max(0.0) as u32,
            predicted_s: t.predicted_ms.unwrap_or(0.0) * 1e-3,
        }),
        error: chunk.error.map(message),
        ..Event::default()
    };
    // One choice is asked for; its index is not looked at, since some servers count tokens in it.
    if let Some(choice) = chunk.choices.and_then(|c| c.into_iter().next()) {
        event.choice = true;
        let mut text = choice.text.map(|s| s.0);
        for delta in [choice.delta, choice.message].into_iter().flatten() {
            event.role |= delta.role.is_some();
            for part in [delta.content, delta.reasoning_content, delta.reasoning]
                .into_iter()
                .flatten()
            {
                if text.as_ref().is_none_or(|t| t.is_empty()) {
                    text = Some(part.0);
                }
            }
        }
        event.text = text.unwrap_or_default();
        event.finish = choice.finish_reason.map(|s| s.0.into_owned());
        event.token_ids = choice.token_ids;
    }
    event
}

fn tgi(chunk: TgiChunk<'_>) -> Event<'_> {
    let mut event = Event {
        error: chunk.error.map(message),
        ..Event::default()
    };
    if let Some(token) = chunk.token {
        event.choice = true;
        event.tokens = Some(1);
        event.text = token.text.map_or(Cow::Borrowed(""), |s| s.0);
        event.token_ids = token.id.map(|id| vec![id]);
    }
    if let Some(details) = chunk.details {
        event.finish = details.finish_reason.or(Some(String::new()));
        event.generated_tokens = token_count(details.generated_tokens, &mut event.no_count);
        event.usage = Some(Usage {
            prompt_tokens: token_count(details.input_length, &mut event.no_count),
            completion_tokens: event.generated_tokens,
            cached_tokens: None,
        });
    }
    event
}

/// The words of an error object, or of an error that is only words.
pub fn message(error: Value) -> String {
    match error {
        Value::String(text) => text,
        Value::Object(map) => match ["message", "detail", "error"]
            .iter()
            .find_map(|k| map.get(*k))
        {
            Some(inner) => message(inner.clone()),
            None => Value::Object(map).to_string(),
        },
        other => other.to_string(),
    }
}
