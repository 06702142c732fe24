//! The HTTP interface: OpenAI's completions and chat completions with vLLM's extensions, `/tokenize`, `/health`, `/metrics`.

pub mod answer;
pub mod body;
pub mod chat;
pub mod error;
mod fields;
pub mod server;

use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;

use crate::engine::Engine;
use crate::request::GenerateRequest;
use crate::text::Text;
use answer::{EventStream, Frame, Kind, Tickets, whole};
use body::{Asked, Fields, MAX_LOGPROBS, asked, session_of};
use chat::ChatTemplate;
use error::ApiError;
pub use fields::Ignored;

/// `max_tokens` of a completion that names none (OpenAI's and vLLM's default) [tokens].
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Most sequences of one request: choices times prompts.
const MAX_SEQUENCES: usize = 1024;
/// Texts longer than this are tokenised on a thread of their own [bytes].
const LONG_TEXT: usize = 32 << 10;

/// What the interface serves.
pub struct Service {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Its tokenizer.
    pub text: Arc<Text>,
    /// How messages become a prompt; none: the model has no template.
    pub chat: Option<ChatTemplate>,
    /// The key that callers of `/v1` and the tokenizer must show.
    pub api_key: Option<String>,
    /// Largest body [bytes].
    pub max_body_bytes: usize,
    /// When the server started, as `created` of its model [s since 1970].
    pub created: u64,
    /// Fields of requests that nobody here knows.
    pub ignored: Ignored,
}

type Shared = State<Arc<Service>>;

/// The routes.
pub fn routes(service: Arc<Service>) -> Router {
    let keyed = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .layer(from_fn_with_state(service.clone(), check_key));
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .merge(keyed)
        .fallback(|request: Request| async move {
            let what = format!("there is no {}", request.uri().path());
            ApiError::new(StatusCode::NOT_FOUND, what)
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let what = format!(
                "{} does not take {}",
                request.uri().path(),
                request.method()
            );
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, what)
        })
        .layer(DefaultBodyLimit::max(service.max_body_bytes))
        .layer(from_fn_with_state(service.clone(), check_length))
        .with_state(service)
}

async fn check_key(State(s): Shared, request: Request, next: Next) -> Response {
    if let Some(key) = &s.api_key {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer "));
        // In a time that does not tell where the two differ.
        if !given.is_some_and(|g| bool::from(g.trim().as_bytes().ct_eq(key.as_bytes()))) {
            return ApiError::new(
                StatusCode::UNAUTHORIZED,
                "send the server's key as `Authorization: Bearer KEY`",
            )
            .into_response();
        }
    }
    next.run(request).await
}

/// Refuses a body by the length that is announced, before any of it is read.
async fn check_length(State(s): Shared, request: Request, next: Next) -> Response {
    let announced = request.body().size_hint().lower();
    if announced > s.max_body_bytes as u64 {
        let what = format!(
            "the body has {announced} bytes; this server takes at most {}",
            s.max_body_bytes
        );
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, what).into_response();
    }
    next.run(request).await
}

async fn health(State(s): Shared) -> Response {
    if s.engine.is_healthy() {
        StatusCode::OK.into_response()
    } else {
        let what = if s.engine.is_draining() {
            "the server is shutting down"
        } else {
            "a worker of the engine has stopped"
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, what).into_response()
    }
}

async fn metrics(State(s): Shared) -> impl IntoResponse {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, s.engine.metrics_text() + &s.ignored.metrics_text())
}

async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "server": "servetwin"}))
}

async fn models(State(s): Shared) -> Json<Value> {
    Json(json!({"object": "list", "data": [{
        "id": s.engine.model(),
        "object": "model",
        "created": s.created,
        "owned_by": "servetwin",
        "root": s.engine.model(),
        "parent": null,
        "max_model_len": s.engine.max_model_len(),
    }]}))
}

type RawBody = Result<Bytes, BytesRejection>;

fn fields(body: RawBody) -> Result<Fields, ApiError> {
    let body = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    Fields::parse(&body)
}

async fn completions(
    State(s): Shared,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let f = fields(body)?;
    s.check_model(&f)?;
    fields::check(&f, Kind::Completion, &s.ignored)?;
    let mut asked = asked(&f, s.text.vocab())?;
    asked.request.logprobs = logprobs(&f, "logprobs")?;
    let prompts = s.prompts(&f).await?;
    let max_tokens = f.get("max_tokens")?.unwrap_or(DEFAULT_MAX_TOKENS);
    s.answer(Kind::Completion, asked, prompts, Some(max_tokens), &headers)
        .await
}

async fn chat_completions(
    State(s): Shared,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let f = fields(body)?;
    s.check_model(&f)?;
    fields::check(&f, Kind::Chat, &s.ignored)?;
    let mut asked = asked(&f, s.text.vocab())?;
    if f.get("logprobs")?.unwrap_or(false) {
        asked.request.logprobs = Some(logprobs(&f, "top_logprobs")?.unwrap_or(0));
    }
    let prompt = s.chat_prompt(&f).await?;
    let max_tokens = match f.get("max_completion_tokens")? {
        None => f.get("max_tokens")?,
        given => given,
    };
    s.answer(Kind::Chat, asked, vec![prompt], max_tokens, &headers)
        .await
}

/// How many log probabilities are wanted.
fn logprobs(f: &Fields, name: &str) -> Result<Option<u32>, ApiError> {
    match f.get::<u32>(name)? {
        Some(n) if n > MAX_LOGPROBS => Err(ApiError::bad(
            name,
            format!("`{name}` must be at most {MAX_LOGPROBS}, got {n}"),
        )),
        n => Ok(n),
    }
}

impl Service {
    fn check_model(&self, f: &Fields) -> Result<(), ApiError> {
        match f.get::<String>("model")? {
            Some(model) if !model.is_empty() && model != self.engine.model() => Err(ApiError {
                param: Some("model".into()),
                ..ApiError::new(
                    StatusCode::NOT_FOUND,
                    format!(
                        "the model `{model}` does not exist here; this server has `{}`",
                        self.engine.model()
                    ),
                )
            }),
            _ => Ok(()),
        }
    }

    /// Tokens of a text.
    async fn encode(&self, text: String, add_special: bool) -> Result<Vec<u32>, ApiError> {
        let done = if text.len() > LONG_TEXT {
            let tokenizer = self.text.clone();
            tokio::task::spawn_blocking(move || tokenizer.encode(&text, add_special))
                .await
                .unwrap_or_else(|e| Err(e.to_string()))
        } else {
            self.text.encode(&text, add_special)
        };
        done.map_err(|e| ApiError::bad("prompt", format!("the text cannot be tokenised: {e}")))
    }

    /// Tokens of the prompts of a completion: a text, token ids, or a list of either.
    async fn prompts(&self, f: &Fields) -> Result<Vec<Vec<u32>>, ApiError> {
        let add_special = f.get("add_special_tokens")?.unwrap_or(true);
        let list = match f.need::<Value>("prompt")? {
            Value::Array(list) if list.first().is_some_and(|v| v.is_string() || v.is_array()) => {
                list
            }
            one => vec![one],
        };
        if list.len() > MAX_SEQUENCES {
            let what = format!(
                "`prompt` may have {MAX_SEQUENCES} prompts, got {}",
                list.len()
            );
            return Err(ApiError::bad("prompt", what));
        }
        let mut prompts = Vec::with_capacity(list.len());
        for prompt in list {
            prompts.push(match prompt {
                Value::String(text) => self.encode(text, add_special).await?,
                Value::Array(ids) => {
                    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
                    let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
                    ids.ok_or_else(|| {
                        ApiError::bad("prompt", "`prompt` as a list must hold token ids")
                    })?
                }
                _ => {
                    return Err(ApiError::bad(
                        "prompt",
                        "`prompt` must be a string, a list of token ids, or a list of either",
                    ));
                }
            });
        }
        Ok(prompts)
    }

    /// The prompt of a dialogue.
    async fn chat_prompt(&self, f: &Fields) -> Result<Vec<u32>, ApiError> {
        let messages: Vec<Value> = f.need("messages")?;
        let template = self.chat.as_ref().ok_or_else(|| {
            ApiError::bad(
                "messages",
                "this model has no chat template; use /v1/completions",
            )
        })?;
        let mut extra: Map<String, Value> = f.get("chat_template_kwargs")?.unwrap_or_default();
        // Templates that know them show them to the model.
        let effort: Option<Value> = f.get("reasoning_effort")?;
        for (name, value) in [("tools", fields::tools(f)?), ("reasoning_effort", effort)] {
            if let Some(value) = value {
                extra.entry(name).or_insert(value);
            }
        }
        let add_prompt = f.get("add_generation_prompt")?.unwrap_or(true);
        let text = template.render(&messages, add_prompt, &extra)?;
        let add_special = f.get("add_special_tokens")?.unwrap_or(false);
        self.encode(text, add_special).await
    }

    /// Checks lengths, hands the sequences in, and sends what comes of them.
    async fn answer(
        &self,
        kind: Kind,
        mut asked: Asked,
        prompts: Vec<Vec<u32>>,
        max_tokens: Option<u32>,
        headers: &HeaderMap,
    ) -> Result<Response, ApiError> {
        let n = asked.n as usize;
        let sequences = n * prompts.len();
        let most =
            MAX_SEQUENCES.min(usize::try_from(self.engine.queue_limit()).unwrap_or(MAX_SEQUENCES));
        if sequences > most {
            return Err(ApiError::bad(
                if n > most { "n" } else { "prompt" },
                format!(
                    "{n} choices for each of {} prompts are {sequences} sequences; one request may have {most}",
                    prompts.len()
                ),
            ));
        }
        let delivery = asked.delivery;
        if let Some(name) = headers.get("x-session-id").and_then(|v| v.to_str().ok()) {
            asked.request.session = Some(session_of(name));
        }
        self.ban_words(&mut asked)?;
        let mut requests = Vec::with_capacity(sequences);
        for prompt in &prompts {
            let mut request = asked.request.clone();
            request.prompt.clone_from(prompt);
            self.check_lengths(&mut request, max_tokens)?;
            for i in 0..asked.n {
                let mut request = request.clone();
                // Each choice draws by itself, as vLLM has it.
                let seed = &mut request.sampling.seed;
                *seed = seed.map(|s| s.wrapping_add(u64::from(i)));
                requests.push(request);
            }
        }
        let frame = Frame {
            kind,
            model: self.engine.model().to_string(),
            delivery,
            prompts,
            n,
            skip_special: asked.request.skip_special_tokens,
            created: Frame::now(),
        };
        let tickets = Tickets::new(self.engine.submit_all(requests, n)?);
        if !delivery.stream {
            return Ok(Json(whole(frame, tickets, &self.text).await?).into_response());
        }
        let events = EventStream::begin(frame, tickets, self.text.clone()).await?;
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
            // Proxies that buffer would undo the streaming.
            (header::HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        Ok((headers, Body::from_stream(events)).into_response())
    }

    /// Works out the tokens of bad words.
    fn ban_words(&self, asked: &mut Asked) -> Result<(), ApiError> {
        let mut bad_words = Vec::new();
        for word in &asked.bad_words {
            let bad = self.text.bad_word(word);
            bad_words
                .extend(bad.map_err(|e| ApiError::bad("bad_words", format!("`{word}`: {e}")))?);
        }
        asked.request.sampling.bad_words = bad_words.into();
        Ok(())
    }

    fn check_lengths(
        &self,
        request: &mut GenerateRequest,
        max_tokens: Option<u32>,
    ) -> Result<(), ApiError> {
        let longest = self.engine.max_model_len();
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(ApiError::bad("prompt", "the prompt is empty"));
        }
        if let Some(&id) = request
            .prompt
            .iter()
            .find(|&&id| id as usize >= self.text.vocab())
        {
            return Err(ApiError::bad(
                "prompt",
                format!(
                    "token id {id} is out of vocabulary ({} tokens)",
                    self.text.vocab()
                ),
            ));
        }
        let left = u32::try_from(prompt)
            .ok()
            .and_then(|p| longest.checked_sub(p))
            .unwrap_or(0);
        if left == 0 || max_tokens.is_some_and(|m| m > left) {
            return Err(ApiError::bad(
                if left == 0 { "prompt" } else { "max_tokens" },
                format!(
                    "This model's maximum context length is {longest} tokens. However, you requested {} tokens \
                     ({prompt} in the prompt, {} for the completion). Please reduce the length of either.",
                    prompt as u64 + u64::from(max_tokens.unwrap_or(1)),
                    max_tokens.unwrap_or(1)
                ),
            ));
        }
        request.max_tokens = max_tokens.unwrap_or(left);
        if request.max_tokens == 0 {
            return Err(ApiError::bad(
                "max_tokens",
                "`max_tokens` must be at least 1",
            ));
        }
        if request.min_tokens > request.max_tokens {
            return Err(ApiError::bad(
                "min_tokens",
                format!(
                    "`min_tokens` ({}) must be at most `max_tokens` ({})",
                    request.min_tokens, request.max_tokens
                ),
            ));
        }
        Ok(())
    }
}

async fn tokenize(State(s): Shared, body: RawBody) -> Result<Json<Value>, ApiError> {
    let f = fields(body)?;
    s.check_model(&f)?;
    let tokens = if f.get::<Value>("messages")?.is_some() {
        s.chat_prompt(&f).await?
    } else {
        let mut prompts = s.prompts(&f).await?;
        if prompts.len() > 1 {
            let what = format!("`prompt` must be one prompt here, got {}", prompts.len());
            return Err(ApiError::bad("prompt", what));
        }
        prompts.pop().unwrap_or_default()
    };
    let mut answer = json!({
        "count": tokens.len(),
        "max_model_len": s.engine.max_model_len(),
        "tokens": tokens,
    });
    if f.get("return_token_strs")?.unwrap_or(false) {
        let texts: Vec<String> = tokens.iter().map(|&t| s.text.token_text(t)).collect();
        answer["token_strs"] = json!(texts);
    }
    Ok(Json(answer))
}

async fn detokenize(State(s): Shared, body: RawBody) -> Result<Json<Value>, ApiError> {
    let f = fields(body)?;
    s.check_model(&f)?;
    let tokens: Vec<u32> = f.need("tokens")?;
    Ok(Json(json!({"prompt": s.text.decode(&tokens, false)})))
}
