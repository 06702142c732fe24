//! What clients get: completions and chat completions, whole or as server-sent events.
//!
//! As vLLM writes them: an event for each token, with empty text when nothing can be shown yet, the reason of the end on
//! the last token's event, usage in an event of its own without choices. vLLM puts what has come meanwhile into one event
//! when it falls behind; here each token keeps its event, so that clients which count events count tokens.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Value, json};

use crate::engine::Ticket;
use crate::http::body::Delivery;
use crate::http::error::ApiError;
use crate::request::{Ended, Event, Failure, StopReason, Token};
use crate::text::Text;

/// Which of the two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// What stays the same over one answer.
#[derive(Clone, Debug)]
pub struct Frame {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    delivery: Delivery,
    prompt: Vec<u32>,
    skip_special: bool,
}

/// Output that goes into one event or one whole answer.
#[derive(Clone, Debug, Default)]
struct Piece {
    text: String,
    tokens: Vec<Token>,
    cached: u32,
    ended: Option<Ended>,
}

impl Piece {
    fn add(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Output {
                token,
                text,
                cached_tokens,
                ended,
            } => {
                self.text.push_str(&text);
                self.tokens.push(token);
                self.cached = cached_tokens;
                self.ended = ended;
                Ok(())
            }
            Event::Failed(failure) => Err(failure),
        }
    }
}

impl Frame {
    /// The frame of the answer to the request of `ticket`.
    pub fn new(
        kind: Kind,
        ticket: &Ticket,
        model: &str,
        delivery: Delivery,
        prompt: Vec<u32>,
        skip_special: bool,
    ) -> Frame {
        let prefix = match kind {
            Kind::Completion => "cmpl",
            Kind::Chat => "chatcmpl",
        };
        Frame {
            kind,
            id: format!("{prefix}-{}", ticket.id()),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            model: model.to_string(),
            delivery,
            prompt,
            skip_special,
        }
    }

    fn usage(&self, made: usize, cached: u32) -> Value {
        json!({
            "prompt_tokens": self.prompt.len(),
            "total_tokens": self.prompt.len() + made,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    fn envelope(&self, stream: bool, choices: Value) -> Value {
        let object = match (self.kind, stream) {
            (Kind::Completion, _) => "text_completion",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&self, piece: &Piece, stream: bool, offset: usize, text: &Text) -> Value {
        let logprobs = self.logprobs(piece, offset, text);
        let mut choice = match (self.kind, stream) {
            (Kind::Completion, _) => json!({"index": 0, "text": piece.text}),
            (Kind::Chat, true) => json!({"index": 0, "delta": {"content": piece.text}}),
            (Kind::Chat, false) => json!({
                "index": 0,
                "message": {"role": "assistant", "content": piece.text},
            }),
        };
        choice["logprobs"] = logprobs;
        choice["finish_reason"] = json!(piece.ended.as_ref().map(|e| e.finish.name()));
        choice["stop_reason"] = match piece.ended.as_ref().and_then(|e| e.stop_reason.as_ref()) {
            None => Value::Null,
            Some(StopReason::Text(s)) => json!(s),
            Some(StopReason::Token(t)) => json!(t),
        };
        if self.delivery.token_ids {
            let ids: Vec<u32> = piece.tokens.iter().map(|t| t.id).collect();
            choice["token_ids"] = json!(ids);
            if offset == 0 {
                choice["prompt_token_ids"] = json!(self.prompt);
            }
        }
        choice
    }

    /// Log probabilities in the form of each interface; `offset`: tokens before.
    fn logprobs(&self, piece: &Piece, offset: usize, text: &Text) -> Value {
        let wanted = |t: &Token| t.logprobs.clone().map(|l| (t.id, l));
        let all: Option<Vec<_>> = piece.tokens.iter().map(wanted).collect();
        let Some(all) = all.filter(|a| !a.is_empty()) else {
            return Value::Null;
        };
        // JSON has no infinities; vLLM writes this for them too.
        let finite = |x: f32| x.max(-9999.0);
        if self.kind == Kind::Chat {
            let one = |id: u32, p: f32| {
                json!({
                    "token": text.token_text(id),
                    "logprob": finite(p),
                    "bytes": text.token_bytes(id),
                })
            };
            let content: Vec<Value> = all
                .iter()
                .map(|(id, l)| {
                    let mut v = one(*id, l.chosen);
                    v["top_logprobs"] = l.top.iter().map(|&(t, p)| one(t, p)).collect();
                    v
                })
                .collect();
            return json!({"content": content});
        }
        let mut at = offset;
        let mut offsets = Vec::new();
        for (id, _) in &all {
            offsets.push(at);
            if !(self.skip_special && text.is_special(*id)) {
                at += text.token_text(*id).chars().count();
            }
        }
        let top: Vec<Value> = all
            .iter()
            .map(|(id, l)| {
                let mut map = serde_json::Map::new();
                for &(t, p) in l.top.iter().chain(&[(*id, l.chosen)]) {
                    map.insert(text.token_text(t), json!(finite(p)));
                }
                Value::Object(map)
            })
            .collect();
        json!({
            "text_offset": offsets,
            "token_logprobs": all.iter().map(|(_, l)| finite(l.chosen)).collect::<Vec<_>>(),
            "tokens": all.iter().map(|(id, _)| text.token_text(*id)).collect::<Vec<_>>(),
            "top_logprobs": top,
        })
    }
}

/// Waits for the whole output.
///
/// # Errors
/// The status of a request that was not served.
pub async fn whole(
    frame: Frame,
    mut ticket: Ticket,
    engine_text: &Text,
) -> Result<Value, ApiError> {
    let mut piece = Piece::default();
    while piece.ended.is_none() {
        match ticket.next().await {
            Some(event) => piece.add(event).map_err(ApiError::from)?,
            None => return Err(Failure::ShuttingDown.into()),
        }
    }
    let mut answer = frame.envelope(false, json!([frame.choice(&piece, false, 0, engine_text)]));
    answer["usage"] = frame.usage(piece.tokens.len(), piece.cached);
    Ok(answer)
}

/// An answer as server-sent events.
pub struct EventStream {
    frame: Frame,
    ticket: Option<Ticket>,
    text: std::sync::Arc<Text>,
    /// The event that was awaited before the stream began.
    first: Option<Event>,
    made: usize,
    characters: usize,
    cached: u32,
    ready: VecDeque<Bytes>,
}

impl EventStream {
    /// Waits for the first event, so that a request that is refused gets its status.
    ///
    /// # Errors
    /// The status of a request that was not served.
    pub async fn begin(
        frame: Frame,
        mut ticket: Ticket,
        text: std::sync::Arc<Text>,
    ) -> Result<EventStream, ApiError> {
        let first = match ticket.next().await {
            Some(Event::Failed(failure)) => return Err(failure.into()),
            None => return Err(Failure::ShuttingDown.into()),
            first => first,
        };
        let mut stream = EventStream {
            frame,
            ticket: Some(ticket),
            text,
            first,
            made: 0,
            characters: 0,
            cached: 0,
            ready: VecDeque::new(),
        };
        if stream.frame.kind == Kind::Chat {
            let choice = json!([{
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": null,
                "finish_reason": null,
            }]);
            let chunk = stream.frame.envelope(true, choice);
            stream.send(chunk, true);
        }
        Ok(stream)
    }

    /// Queues an event; `usage`: whether it may carry the usage so far.
    fn send(&mut self, mut chunk: Value, usage: bool) {
        if usage && self.frame.delivery.continuous_usage {
            chunk["usage"] = self.frame.usage(self.made, self.cached);
        }
        self.ready
            .push_back(Bytes::from(format!("data: {chunk}\n\n")));
    }

    /// Queues what `event` amounts to; none: the engine has gone.
    fn take(&mut self, event: Option<Event>) {
        let mut piece = Piece::default();
        let failure = event
            .ok_or(Failure::ShuttingDown)
            .and_then(|e| piece.add(e))
            .err();
        if !piece.tokens.is_empty() {
            let choice = self.frame.choice(&piece, true, self.characters, &self.text);
            self.made += piece.tokens.len();
            self.characters += piece.text.chars().count();
            self.cached = piece.cached;
            let chunk = self.frame.envelope(true, json!([choice]));
            self.send(chunk, true);
        }
        if let Some(failure) = failure {
            self.send(ApiError::from(failure).body(), false);
        } else if piece.ended.is_none() {
            return;
        } else if self.frame.delivery.include_usage {
            let mut chunk = self.frame.envelope(true, json!([]));
            chunk["usage"] = self.frame.usage(self.made, self.cached);
            self.send(chunk, false);
        }
        self.ready
            .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ticket = None;
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            self.take(Some(first));
        }
        if self.ready.is_empty() {
            let Some(ticket) = &mut self.ticket else {
                return Poll::Ready(None);
            };
            match ticket.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => self.take(event),
            }
        }
        Poll::Ready(self.ready.pop_front().map(Ok))
    }
}
