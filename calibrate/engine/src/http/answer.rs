//! What clients get: completions and chat completions, whole or as server-sent events.
//!
//! As vLLM writes them: an event for each token, with empty text when nothing can be shown yet, the reason of the end on
//! the last token's event, usage in an event of its own without choices. vLLM puts what has come meanwhile into one event
//! when it falls behind; here each token keeps its event, so that clients which count events count tokens.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Value, json};

use crate::engine::Ticket;
use crate::http::body::Delivery;
use crate::http::error::ApiError;
use crate::request::{Ended, Event, Failure, StopReason, Token, TokenLogprobs};
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
    /// The interface.
    pub kind: Kind,
    /// Name of the model.
    pub model: String,
    /// How it is sent.
    pub delivery: Delivery,
    /// Tokens of the prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Choices for each prompt.
    pub n: usize,
    /// Whether special tokens are left out of the text.
    pub skip_special: bool,
    /// When the answer began [s since 1970].
    pub created: u64,
}

impl Frame {
    /// Now, for [`Frame::created`].
    pub fn now() -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs())
    }
}

/// The sequences of an answer, whose events come in any order.
pub struct Tickets {
    open: Vec<Option<Ticket>>,
    /// Who is asked first, so that none is kept waiting by the others.
    next: usize,
    id: u64,
}

impl Tickets {
    /// Those of one request, choice by choice.
    pub fn new(tickets: Vec<Ticket>) -> Tickets {
        Tickets {
            id: tickets.first().map_or(0, Ticket::id),
            open: tickets.into_iter().map(Some).collect(),
            next: 0,
        }
    }

    /// The next event with its choice; none for an engine that has stopped, and no choice once all have ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Option<Event>)>> {
        let count = self.open.len();
        let mut ended = true;
        for i in (self.next..count).chain(0..self.next) {
            let Some(ticket) = &mut self.open[i] else {
                continue;
            };
            ended = false;
            if let Poll::Ready(event) = ticket.poll_next(cx) {
                self.next = (i + 1) % count;
                return Poll::Ready(Some((i, event)));
            }
        }
        if ended {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// Choice `i` has ended. True: it was the last.
    fn end(&mut self, i: usize) -> bool {
        self.open[i] = None;
        self.open.iter().all(Option::is_none)
    }
}

/// One choice as far as it has come.
#[derive(Debug, Default)]
struct Choice {
    /// Tokens that have been made [tokens].
    made: usize,
    /// Characters of the tokens that have been told [characters].
    told: usize,
    /// Whether anything has been told.
    begun: bool,
    /// Prompt tokens that the prefix cache held [tokens].
    cached: u32,
}

/// Output that goes into one event or one whole answer.
#[derive(Debug, Default)]
struct Piece {
    text: String,
    tokens: Vec<Token>,
    ended: Option<Ended>,
}

impl Piece {
    /// Takes in what the engine tells of `choice`.
    fn add(&mut self, event: Option<Event>, choice: &mut Choice) -> Result<(), Failure> {
        match event.ok_or(Failure::ShuttingDown)? {
            Event::Output {
                token,
                text,
                cached_tokens,
                ended,
            } => {
                self.text.push_str(&text);
                self.tokens.push(token);
                self.ended = ended;
                choice.cached = cached_tokens;
                choice.made += 1;
            }
            Event::Failed(failure) => return Err(failure),
        }
        Ok(())
    }
}

impl Frame {
    fn usage_of(prompt: usize, made: usize, cached: u32) -> Value {
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    /// Usage of the whole answer: each prompt counts once.
    fn usage(&self, choices: &[Choice]) -> Value {
        let prompt = self.prompts.iter().map(Vec::len).sum();
        let made = choices.iter().map(|c| c.made).sum();
        let cached = choices
            .iter()
            .step_by(self.n.max(1))
            .map(|c| c.cached)
            .sum();
        Frame::usage_of(prompt, made, cached)
    }

    fn prompt(&self, choice: usize) -> &[u32] {
        &self.prompts[choice / self.n.max(1)]
    }

    fn envelope(&self, id: u64, stream: bool, choices: Value) -> Value {
        let (prefix, object) = match (self.kind, stream) {
            (Kind::Completion, _) => ("cmpl", "text_completion"),
            (Kind::Chat, false) => ("chatcmpl", "chat.completion"),
            (Kind::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
        };
        json!({
            "id": format!("{prefix}-{id}"),
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Tells a chat's prompt, which belongs to the answer and not to a choice.
    fn tell_chat_prompt(&self, answer: &mut Value) {
        if self.delivery.token_ids && self.kind == Kind::Chat {
            answer["prompt_token_ids"] = json!(self.prompts.first());
        }
    }

    /// What `piece` adds to choice `index`.
    fn choice(
        &self,
        index: usize,
        piece: Piece,
        c: &mut Choice,
        stream: bool,
        text: &Text,
    ) -> Value {
        let first = !std::mem::replace(&mut c.begun, true);
        let logprobs = self.logprobs(&piece, c, text);
        let said = piece.text;
        let mut choice = match (self.kind, stream) {
            (Kind::Completion, _) => json!({"index": index, "text": said}),
            (Kind::Chat, true) => json!({"index": index, "delta": {"content": said}}),
            (Kind::Chat, false) => json!({
                "index": index,
                "message": {"role": "assistant", "content": said},
            }),
        };
        choice["logprobs"] = logprobs;
        choice["finish_reason"] = json!(piece.ended.as_ref().map(|e| e.finish.name()));
        choice["stop_reason"] = match piece.ended.and_then(|e| e.stop_reason) {
            None => Value::Null,
            Some(StopReason::Text(s)) => json!(s),
            Some(StopReason::Token(t)) => json!(t),
        };
        if self.delivery.token_ids {
            let ids: Vec<u32> = piece.tokens.iter().map(|t| t.id).collect();
            choice["token_ids"] = json!(ids);
            if first && self.kind == Kind::Completion {
                choice["prompt_token_ids"] = json!(self.prompt(index));
            }
        }
        choice
    }

    /// A token beside its log probability.
    fn token(&self, id: u32, text: &Text) -> String {
        if self.delivery.tokens_as_ids {
            format!("token_id:{id}")
        } else {
            text.token_text(id)
        }
    }

    /// Log probabilities in the form of each interface.
    fn logprobs(&self, piece: &Piece, c: &mut Choice, text: &Text) -> Value {
        let all: Option<Vec<(u32, &TokenLogprobs)>> = (piece.tokens.iter())
            .map(|t| Some((t.id, t.logprobs.as_ref()?)))
            .collect();
        let Some(all) = all.filter(|all| !all.is_empty()) else {
            return Value::Null;
        };
        // JSON has no infinities; vLLM writes this for them too.
        let finite = |x: f32| x.max(-9999.0);
        if self.kind == Kind::Chat {
            let one = |id: u32, p: f32| {
                json!({
                    "token": self.token(id, text),
                    "logprob": finite(p),
                    "bytes": text.token_bytes(id),
                })
            };
            let content: Vec<Value> = (all.iter())
                .map(|&(id, l)| {
                    let mut v = one(id, l.chosen);
                    v["top_logprobs"] = l.top.iter().map(|&(t, p)| one(t, p)).collect();
                    v
                })
                .collect();
            return json!({"content": content});
        }
        let mut offsets = Vec::new();
        for &(id, _) in &all {
            offsets.push(c.told);
            if !(self.skip_special && text.is_special(id)) {
                c.told += text.token_text(id).chars().count();
            }
        }
        let top: Vec<Value> = all
            .iter()
            .map(|&(id, l)| {
                let mut map = serde_json::Map::new();
                for &(t, p) in l.top.iter().chain(&[(id, l.chosen)]) {
                    map.insert(self.token(t, text), json!(finite(p)));
                }
                Value::Object(map)
            })
            .collect();
        json!({
            "text_offset": offsets,
            "token_logprobs": all.iter().map(|(_, l)| finite(l.chosen)).collect::<Vec<_>>(),
            "tokens": all.iter().map(|(id, _)| self.token(*id, text)).collect::<Vec<_>>(),
            "top_logprobs": top,
        })
    }
}

/// Waits for the whole output.
///
/// # Errors
/// The status of a request that was not served, for one of its sequences.
pub async fn whole(frame: Frame, mut tickets: Tickets, text: &Text) -> Result<Value, ApiError> {
    let count = tickets.open.len();
    let mut pieces: Vec<Piece> = (0..count).map(|_| Piece::default()).collect();
    let mut states: Vec<Choice> = (0..count).map(|_| Choice::default()).collect();
    while let Some((i, event)) = poll_fn(|cx| tickets.poll(cx)).await {
        pieces[i].add(event, &mut states[i])?;
        if pieces[i].ended.is_some() {
            tickets.end(i);
        }
    }
    let choices: Vec<Value> = (pieces.into_iter().zip(&mut states).enumerate())
        .map(|(i, (piece, state))| frame.choice(i, piece, state, false, text))
        .collect();
    let mut answer = frame.envelope(tickets.id, false, json!(choices));
    answer["usage"] = frame.usage(&states);
    frame.tell_chat_prompt(&mut answer);
    Ok(answer)
}

/// An answer as server-sent events.
pub struct EventStream {
    frame: Frame,
    tickets: Tickets,
    text: Arc<Text>,
    choices: Vec<Choice>,
    /// The event that was awaited before the stream began.
    first: Option<(usize, Option<Event>)>,
    ready: VecDeque<Bytes>,
    ended: bool,
}

impl EventStream {
    /// Waits for the first event, so that a request that is refused gets its status.
    ///
    /// # Errors
    /// The status of a request that was not served.
    pub async fn begin(
        frame: Frame,
        mut tickets: Tickets,
        text: Arc<Text>,
    ) -> Result<EventStream, ApiError> {
        let first = poll_fn(|cx| tickets.poll(cx)).await;
        match &first {
            Some((_, Some(Event::Failed(failure)))) => return Err(failure.clone().into()),
            None | Some((_, None)) => return Err(Failure::ShuttingDown.into()),
            Some(_) => {}
        }
        let count = tickets.open.len();
        let mut stream = EventStream {
            frame,
            tickets,
            text,
            choices: (0..count).map(|_| Choice::default()).collect(),
            first,
            ready: VecDeque::new(),
            ended: false,
        };
        if stream.frame.kind == Kind::Chat {
            for i in 0..count {
                let choice = json!([{
                    "index": i,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": null,
                    "finish_reason": null,
                }]);
                stream.send(choice, Some(i));
            }
        }
        Ok(stream)
    }

    fn queue(&mut self, event: &Value) {
        self.ready
            .push_back(Bytes::from(format!("data: {event}\n\n")));
    }

    /// Queues an event with `choices`, of choice `i` where it may carry that one's usage so far.
    fn send(&mut self, choices: Value, i: Option<usize>) {
        let mut chunk = self.frame.envelope(self.tickets.id, true, choices);
        if i.is_some_and(|i| !self.choices[i].begun) {
            self.frame.tell_chat_prompt(&mut chunk);
        }
        if let Some(i) = i.filter(|_| self.frame.delivery.continuous_usage) {
            let c = &self.choices[i];
            let prompt = self.frame.prompt(i).len();
            chunk["usage"] = Frame::usage_of(prompt, c.made, c.cached);
        }
        self.queue(&chunk);
    }

    /// Queues what an event of choice `i` amounts to.
    fn take(&mut self, i: usize, event: Option<Event>) {
        let mut piece = Piece::default();
        if let Err(failure) = piece.add(event, &mut self.choices[i]) {
            self.queue(&ApiError::from(failure).body());
            return self.end();
        }
        let ended = piece.ended.is_some();
        if !piece.tokens.is_empty() {
            let state = &mut self.choices[i];
            let choice = self.frame.choice(i, piece, state, true, &self.text);
            self.send(json!([choice]), Some(i));
        }
        if !ended || !self.tickets.end(i) {
            return;
        }
        if self.frame.delivery.include_usage {
            let mut chunk = self.frame.envelope(self.tickets.id, true, json!([]));
            chunk["usage"] = self.frame.usage(&self.choices);
            self.queue(&chunk);
        }
        self.end();
    }

    fn end(&mut self) {
        self.ready
            .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        // What still runs is cancelled.
        self.tickets.open.clear();
        self.ended = true;
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((i, event)) = self.first.take() {
            self.take(i, event);
        }
        while self.ready.is_empty() && !self.ended {
            match self.tickets.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((i, event))) => self.take(i, event),
                Poll::Ready(None) => self.end(),
            }
        }
        Poll::Ready(self.ready.pop_front().map(Ok))
    }
}
