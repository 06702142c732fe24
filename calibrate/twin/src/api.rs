//! What requests and answers of the known APIs say: prompt, limits, tokens, usage.
//!
//! OpenAI completions and chat completions, TGI `generate` and `generate_stream`, Triton `generate` and
//! `generate_stream`. Readers take what is there and never fail: a field of an unexpected type counts as absent.

use serde_json::Value;

use super::prefix::{Blocks, Salt};

/// The API of a request.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// TGI's `/`, `/generate` and `/generate_stream`.
    Tgi,
    /// Triton's `/v2/models/MODEL/generate` and `generate_stream`.
    Triton,
}

impl Api {
    /// The API that `path` belongs to, if it is one that produces tokens.
    pub fn of_path(path: &str) -> Option<Api> {
        let path = path.trim_end_matches('/');
        if path.ends_with("/chat/completions") {
            Some(Api::Chat)
        } else if path.ends_with("/completions") {
            Some(Api::Completions)
        } else if path.starts_with("/v2/models/")
            && (path.ends_with("/generate") || path.ends_with("/generate_stream"))
        {
            Some(Api::Triton)
        } else if path.is_empty() || path == "/generate" || path == "/generate_stream" {
            Some(Api::Tgi)
        } else {
            None
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Most output tokens [tokens], where said.
    pub max_tokens: Option<u32>,
    /// Sequences that the engine runs for it: prompts times `n`.
    pub sequences: u32,
    /// Length of the prompt's text [bytes]; 0 where the prompt is token ids.
    pub text_bytes: u64,
    /// Length of a prompt of token ids [tokens].
    pub prompt_ids: Option<u32>,
    /// Chained hashes of the prompt's blocks.
    pub blocks: Vec<u64>,
    /// The prompt's text, for a tokenizer; kept only if asked for, and never stored.
    pub text: Option<String>,
}

/// Reads a request's body.
pub fn read_request(
    api: Api,
    path: &str,
    body: &[u8],
    salt: Salt,
    keep_text: bool,
) -> Option<Asked> {
    let json: Value = serde_json::from_slice(body).ok()?;
    let parameters = json.get("parameters").unwrap_or(&Value::Null);
    let first = |names: &[&str]| {
        names.iter().find_map(|n| {
            let v = json.get(n).or_else(|| parameters.get(n))?;
            v.as_u64().and_then(|v| u32::try_from(v).ok())
        })
    };
    let mut asked = Asked {
        stream: json.get("stream").and_then(Value::as_bool).unwrap_or(false)
            || path.trim_end_matches('/').ends_with("generate_stream"),
        max_tokens: match api {
            Api::Chat => first(&["max_completion_tokens", "max_tokens"]),
            Api::Tgi => first(&["max_new_tokens", "max_tokens"]),
            _ => first(&["max_tokens", "max_new_tokens"]),
        },
        sequences: first(&["n"]).unwrap_or(1).max(1),
        ..Asked::default()
    };
    let mut text = Text {
        blocks: Blocks::of_text(salt),
        bytes: 0,
        kept: keep_text.then(String::new),
    };
    match api {
        Api::Completions => {
            let prompt = json.get("prompt").unwrap_or(&Value::Null);
            match prompt {
                Value::Array(items) if items.first().is_some_and(Value::is_u64) => {
                    read_ids(items, salt, &mut asked);
                    return Some(asked);
                }
                Value::Array(items) => {
                    let several = u32::try_from(items.len()).unwrap_or(u32::MAX).max(1);
                    asked.sequences = asked.sequences.saturating_mul(several);
                    if let [Value::Array(ids)] = items.as_slice() {
                        read_ids(ids, salt, &mut asked);
                        return Some(asked);
                    }
                    for item in items {
                        match item {
                            Value::String(s) => text.feed(s),
                            Value::Array(ids) => {
                                let n = u32::try_from(ids.len()).unwrap_or(u32::MAX);
                                asked.prompt_ids =
                                    Some(asked.prompt_ids.unwrap_or(0).saturating_add(n));
                            }
                            _ => {}
                        }
                    }
                }
                Value::String(s) => text.feed(s),
                _ => {}
            }
        }
        Api::Chat => {
            let messages = json.get("messages").and_then(Value::as_array);
            for message in messages.into_iter().flatten() {
                text.feed(message.get("role").and_then(Value::as_str).unwrap_or(""));
                match message.get("content").unwrap_or(&Value::Null) {
                    Value::String(s) => text.feed(s),
                    Value::Array(parts) => {
                        for part in parts {
                            match part.get("text").and_then(Value::as_str) {
                                Some(s) => text.feed(s),
                                // Images and the like: their identity counts, their length in tokens is not known.
                                None => text.blocks.feed(part.to_string().as_bytes()),
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        Api::Tgi => text.feed(json.get("inputs").and_then(Value::as_str).unwrap_or("")),
        Api::Triton => text.feed(json.get("text_input").and_then(Value::as_str).unwrap_or("")),
    }
    asked.text_bytes = text.bytes;
    asked.text = text.kept;
    asked.blocks = if asked.sequences == 1 {
        text.blocks.finish()
    } else {
        Vec::new()
    };
    Some(asked)
}

fn read_ids(ids: &[Value], salt: Salt, asked: &mut Asked) {
    let mut blocks = Blocks::of_ids(salt);
    for id in ids {
        let id = u32::try_from(id.as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
        blocks.feed(&id.to_le_bytes());
    }
    asked.prompt_ids = Some(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    asked.blocks = blocks.finish();
}

struct Text {
    blocks: Blocks,
    bytes: u64,
    kept: Option<String>,
}

impl Text {
    fn feed(&mut self, s: &str) {
        self.blocks.feed(s.as_bytes());
        self.bytes += s.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.push_str(s);
        }
    }
}

/// Token counts that a server states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt [tokens].
    pub prompt: Option<u32>,
    /// Prompt tokens found in the prefix cache [tokens].
    pub cached: Option<u32>,
    /// Output [tokens].
    pub output: Option<u32>,
}

impl Usage {
    /// Takes over what `later` says.
    pub fn update(&mut self, later: Usage) {
        self.prompt = later.prompt.or(self.prompt);
        self.cached = later.cached.or(self.cached);
        self.output = later.output.or(self.output);
    }
}

/// What a piece of an answer (a server-sent event, or a whole JSON body) says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Whether it holds output.
    pub output: bool,
    /// Tokens that it holds, where it says so [tokens].
    pub tokens: Option<u32>,
    /// Counts that it states.
    pub usage: Usage,
    /// Whether it is an error in place of an answer.
    pub error: bool,
}

/// Reads the data of a server-sent event, or a body that is not streamed. `None`: not JSON, such as `[DONE]`.
pub fn read_piece(api: Api, data: &[u8]) -> Option<Piece> {
    let json: Value = serde_json::from_slice(data).ok()?;
    // TGI answers a list where a batch was asked for.
    let json = match &json {
        Value::Array(items) => items.first()?,
        other => other,
    };
    let count = |v: Option<&Value>| {
        v.and_then(Value::as_u64)
            .and_then(|v| u32::try_from(v).ok())
    };
    let mut piece = Piece {
        error: json.get("error").is_some_and(|e| !e.is_null()),
        ..Piece::default()
    };
    match api {
        Api::Completions | Api::Chat => {
            if let Some(usage) = json.get("usage").filter(|u| u.is_object()) {
                piece.usage = Usage {
                    prompt: count(usage.get("prompt_tokens")),
                    cached: count(
                        usage
                            .get("prompt_tokens_details")
                            .and_then(|d| d.get("cached_tokens")),
                    ),
                    output: count(usage.get("completion_tokens")),
                };
            }
            let choices = json.get("choices").and_then(Value::as_array);
            for choice in choices.into_iter().flatten() {
                piece.output |= choice_has_output(choice);
                let ids = choice.get("token_ids").and_then(Value::as_array);
                let logged = choice
                    .get("logprobs")
                    .and_then(|l| l.get("tokens").or_else(|| l.get("content")))
                    .and_then(Value::as_array);
                if let Some(list) = ids.or(logged).filter(|l| !l.is_empty()) {
                    let n = u32::try_from(list.len()).unwrap_or(u32::MAX);
                    piece.tokens = Some(piece.tokens.unwrap_or(0).saturating_add(n));
                    piece.output = true;
                }
            }
        }
        Api::Tgi => {
            if json.get("token").is_some_and(Value::is_object) {
                piece.output = true;
                piece.tokens = Some(1);
            } else {
                piece.output = filled(json.get("generated_text"));
            }
            if let Some(details) = json.get("details").filter(|d| d.is_object()) {
                piece.usage.output = count(details.get("generated_tokens"));
                piece.usage.prompt = count(details.get("input_length")).or_else(|| {
                    let prefill = details.get("prefill").and_then(Value::as_array)?;
                    u32::try_from(prefill.len()).ok().filter(|n| *n > 0)
                });
            }
        }
        Api::Triton => piece.output = filled(json.get("text_output")),
    }
    Some(piece)
}

/// Whether a choice holds a token. An empty text is one whose text is held back (vLLM: a character that is not complete
/// yet, a stop string that may be beginning), unless it is the first chat chunk, which has a role (content `""` of vLLM,
/// `null` of llama.cpp), or has a reason to finish and maybe nothing else.
fn choice_has_output(choice: &Value) -> bool {
    let body = choice
        .get("delta")
        .or_else(|| choice.get("message"))
        .unwrap_or(choice);
    let alone = body.get("role").is_none()
        && choice
            .get("finish_reason")
            .is_none_or(|reason| reason.is_null());
    ["text", "content", "reasoning_content", "reasoning"]
        .iter()
        .filter_map(|k| body.get(*k).and_then(Value::as_str))
        .any(|text| alone || !text.is_empty())
        || body
            .get("tool_calls")
            .and_then(Value::as_array)
            .is_some_and(|l| !l.is_empty())
}

fn filled(v: Option<&Value>) -> bool {
    v.and_then(Value::as_str).is_some_and(|s| !s.is_empty())
}

/// Splits a byte stream into server-sent events (WHATWG HTML 9.2.6): the `data` lines of each, joined by newlines.
#[derive(Clone, Debug, Default)]
pub struct SseReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    overflow: bool,
}

/// Longest event that is read [bytes]; longer ones are passed over.
const MAX_EVENT_BYTES: usize = 4 << 20;

impl SseReader {
    /// Takes in `bytes` and hands each event that they complete to `event`.
    pub fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) {
        for &b in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, b == b'\r');
            match b {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => self.end_line(&mut event),
                _ if self.line.len() + self.data.len() < MAX_EVENT_BYTES => self.line.push(b),
                _ => self.overflow = true,
            }
        }
    }

    fn end_line(&mut self, event: &mut impl FnMut(&[u8])) {
        if self.line.is_empty() {
            if self.has_data && !self.overflow {
                event(&self.data);
            }
            self.data.clear();
            self.has_data = false;
            self.overflow = false;
            return;
        }
        if let Some(value) = self.line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            let value = value.strip_prefix(b" ").unwrap_or(value);
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(api: Api, path: &str, body: &str) -> Asked {
        read_request(api, path, body.as_bytes(), Salt::fixed(1), false).expect("it is JSON")
    }

    #[test]
    fn paths_that_produce_tokens_are_known_and_others_are_not() {
        for (path, api) in [
            ("/v1/completions", Some(Api::Completions)),
            ("/v1/chat/completions/", Some(Api::Chat)),
            ("/generate_stream", Some(Api::Tgi)),
            ("/", Some(Api::Tgi)),
            ("/v2/models/ensemble/generate_stream", Some(Api::Triton)),
            ("/v1/models", None),
            ("/metrics", None),
            ("/v1/embeddings", None),
        ] {
            assert_eq!(Api::of_path(path), api, "{path}");
        }
    }

    #[test]
    fn requests_of_each_api_are_read() {
        let a = request(
            Api::Completions,
            "/v1/completions",
            r#"{"prompt":"Once upon","max_tokens":7,"stream":true,"n":2}"#,
        );
        assert_eq!(
            (a.stream, a.max_tokens, a.sequences, a.text_bytes),
            (true, Some(7), 2, 9)
        );
        let a = request(Api::Completions, "/v1/completions", r#"{"prompt":[5,6,7]}"#);
        assert_eq!((a.prompt_ids, a.stream, a.sequences), (Some(3), false, 1));
        let a = request(
            Api::Completions,
            "/v1/completions",
            r#"{"prompt":["a","b"]}"#,
        );
        assert_eq!(a.sequences, 2);
        let a = request(
            Api::Chat,
            "/v1/chat/completions",
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}],"max_completion_tokens":9,"max_tokens":1}"#,
        );
        assert_eq!((a.max_tokens, a.text_bytes), (Some(9), 9));
        let a = request(
            Api::Tgi,
            "/generate_stream",
            r#"{"inputs":"abc","parameters":{"max_new_tokens":4}}"#,
        );
        assert_eq!((a.stream, a.max_tokens, a.text_bytes), (true, Some(4), 3));
        let a = request(
            Api::Triton,
            "/v2/models/m/generate",
            r#"{"text_input":"abcd","max_tokens":4}"#,
        );
        assert_eq!((a.stream, a.max_tokens, a.text_bytes), (false, Some(4), 4));
    }

    #[test]
    fn a_role_or_a_reason_alone_is_no_token_and_text_that_is_held_back_is_one() {
        for (api, data, output) in [
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                false,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#,
                false,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"content":"x"}}]}"#,
                true,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"reasoning_content":"x"}}]}"#,
                true,
            ),
            (
                Api::Completions,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
                false,
            ),
            (Api::Completions, r#"{"choices":[{"text":"x"}]}"#, true),
            (
                Api::Completions,
                r#"{"choices":[{"text":"","finish_reason":null}]}"#,
                true,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"content":""},"finish_reason":null}]}"#,
                true,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
                false,
            ),
            (
                Api::Tgi,
                r#"{"token":{"id":3,"text":""},"generated_text":null}"#,
                true,
            ),
            (Api::Triton, r#"{"text_output":"x"}"#, true),
        ] {
            let piece = read_piece(api, data.as_bytes()).expect("it is JSON");
            assert_eq!(piece.output, output, "{data}");
        }
        assert_eq!(read_piece(Api::Chat, b"[DONE]"), None);
    }

    #[test]
    fn usage_is_read_from_a_chunk_of_its_own_and_from_the_last_choice() {
        let own = br#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let with = br#"{"choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#;
        for (data, cached) in [(&own[..], Some(4)), (&with[..], None)] {
            let usage = read_piece(Api::Completions, data)
                .expect("it is JSON")
                .usage;
            assert_eq!(
                (usage.prompt, usage.output, usage.cached),
                (Some(5), Some(7), cached)
            );
        }
        let tgi = br#"{"token":{"id":1},"generated_text":"x","details":{"generated_tokens":3}}"#;
        assert_eq!(
            read_piece(Api::Tgi, tgi).expect("it is JSON").usage.output,
            Some(3)
        );
    }

    #[test]
    fn events_are_found_however_the_stream_is_cut_and_whatever_ends_its_lines() {
        let text = "data: one\n\n: comment\n\ndata: two\r\ndata: lines\r\n\r\nevent: x\ndata:three\r\rdata: open";
        for size in 1..text.len() {
            let mut reader = SseReader::default();
            let mut events = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                reader.feed(chunk, |e| {
                    events.push(String::from_utf8_lossy(e).into_owned())
                });
            }
            assert_eq!(
                events,
                ["one", "two\nlines", "three"],
                "cut every {size} bytes"
            );
        }
    }

    proptest! {
        #[test]
        fn no_body_and_no_stream_makes_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = SseReader::default();
            for api in [Api::Completions, Api::Chat, Api::Tgi, Api::Triton] {
                let _ = read_request(api, "/generate_stream", &bytes, Salt::fixed(1), true);
                reader.feed(&bytes, |e| { let _ = read_piece(api, e); });
            }
        }

        #[test]
        fn json_of_unexpected_types_is_read_as_absent(
            prompt in prop::sample::select(vec!["null", "7", "{}", "[[]]", "[null]", "[1,\"a\"]", "[[1],[2,3]]", "true"]),
            field in prop::sample::select(vec!["-1", "1e99", "\"x\"", "[]", "null"]),
        ) {
            let body = format!(
                r#"{{"prompt":{prompt},"messages":{prompt},"inputs":{prompt},"max_tokens":{field},"n":{field},"stream":{field},"parameters":{field}}}"#
            );
            for api in [Api::Completions, Api::Chat, Api::Tgi, Api::Triton] {
                let _ = read_request(api, "/", body.as_bytes(), Salt::fixed(1), true);
                let answer = format!(r#"{{"choices":{prompt},"usage":{prompt},"token":{prompt},"details":{prompt}}}"#);
                let _ = read_piece(api, answer.as_bytes());
            }
        }
    }
}
