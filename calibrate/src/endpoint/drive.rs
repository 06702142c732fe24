//! Sends a planned load to an endpoint, within the budget, and notes when tokens came.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::endpoint::{
    Client, CountSource, EndpointError, ErrorKind, GenerateRequest, Prompt, RequestTrace,
};
use bench::printable::printable;
use rand::RngExt;
use sim::kernel::rng::Stream;
use sim::kernel::time::SimDuration;
use sim::metrics::Distribution;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::budget::{Ledger, Refusal};
use super::load::{Load, LoadError, Pacing, Request, Role, gap_quantiles};

/// Lengths of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Prompt [tokens].
    pub prompt: u32,
    /// Output [tokens].
    pub output: u32,
}

/// A load to be measured.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Users that each have one request under way, or requests per second of a Poisson process.
    pub senders: Senders,
    /// Lengths of its requests, in order; at most so many are sent.
    pub requests: Vec<Lengths>,
    /// No request is sent after this long.
    pub time: Duration,
    /// Fewer requests than this are not worth keeping.
    pub least: usize,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Senders {
    /// So many users, each sending when answered.
    Users(u32),
    /// A Poisson process of this rate [req/s], with its random stream's number.
    Rate(f64, u64),
}

/// Why a measurement ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The endpoint cannot be used as described.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// It does not answer.
    #[error(transparent)]
    Probe(#[from] bench::probe::ProbeError),
    /// Too many requests failed.
    #[error(
        "stopped: {failed} of {requests} requests failed (limit {limit:.0} %); last: {last}; no profile was written"
    )]
    Errors {
        /// Failed.
        failed: u64,
        /// Sent.
        requests: u64,
        /// Share allowed [%].
        limit: f64,
        /// The last failure.
        last: String,
    },
    /// The budget is too small for what a fit needs.
    #[error("the budget is too small: {missing}; {needed}")]
    Budget {
        /// What is missing, or how slow the endpoint is.
        missing: String,
        /// What would have been enough.
        needed: String,
    },
    /// A load cannot be kept.
    #[error("{0}")]
    Keep(String),
    /// A load came out empty.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Makes prompts of a wanted length whose content nothing has seen before.
pub struct Prompts {
    rng: Stream,
    /// Token ids are taken.
    tokens: bool,
    /// Tokens per word of text, and those that every prompt has on top.
    per_word: f64,
    extra: f64,
}

/// Token ids that are plain characters or bytes in every vocabulary seen so far.
const IDS: std::ops::Range<u32> = 33..126;

impl Prompts {
    /// Prompts as token ids, or as words that count as one token each until [`Prompts::learn`] knows better. `seed` must differ from
    /// run to run, or the endpoint's prefix cache will know the prompts.
    pub fn new(tokens: bool, seed: u64) -> Prompts {
        Prompts {
            rng: sim::kernel::rng::stream(seed, "prompts"),
            tokens,
            per_word: 1.0,
            extra: 0.0,
        }
    }

    /// A prompt of about `tokens` tokens.
    pub fn make(&mut self, tokens: u32) -> Prompt {
        if self.tokens {
            let ids = (0..tokens.max(1)).map(|_| self.rng.random_range(IDS));
            return Prompt::Tokens(ids.collect());
        }
        let words = (f64::from(tokens) - self.extra) / self.per_word;
        self.words((words.round() as usize).max(1))
    }

    /// A prompt of `words` random words.
    pub fn words(&mut self, words: usize) -> Prompt {
        let mut text = String::with_capacity(4 * words);
        for i in 0..words {
            if i > 0 {
                text.push(' ');
            }
            for _ in 0..3 {
                text.push(char::from(self.rng.random_range(b'a'..=b'z')));
            }
        }
        Prompt::Text(text)
    }

    /// Takes in that `words` gave `tokens` tokens, for two different numbers of words.
    pub fn learn(&mut self, few: (usize, u32), many: (usize, u32)) {
        let words = many.0.saturating_sub(few.0).max(1) as f64;
        let per_word = (f64::from(many.1) - f64::from(few.1)) / words;
        if per_word > 0.1 {
            self.per_word = per_word;
            self.extra = (f64::from(few.1) - per_word * few.0 as f64).max(0.0);
        }
    }
}

/// A measuring stand: an endpoint, the books, and what was seen of failures.
pub struct Stand {
    /// The client.
    pub client: Client,
    /// The books.
    pub ledger: Ledger,
    prompts: Mutex<Prompts>,
    last_error: std::sync::Mutex<Option<String>>,
}

/// Tokens by which a prompt may be longer than wanted: those that the server puts in front, and words that split unexpectedly.
fn margin(prompt: u32) -> u64 {
    u64::from(prompt / 16 + 4)
}

struct Sent {
    /// When it was sent, after the start of the load [s].
    at: f64,
    asked: Lengths,
    trace: RequestTrace,
}

impl Stand {
    /// A stand for `client` with the budget of `ledger`.
    pub fn new(client: Client, ledger: Ledger, prompts: Prompts) -> Arc<Stand> {
        Arc::new(Stand {
            client,
            ledger,
            prompts: Mutex::new(prompts),
            last_error: std::sync::Mutex::new(None),
        })
    }

    /// The error to give up with, if it is time to.
    pub fn failure(&self) -> Option<MeasureError> {
        let s = self.ledger.spent();
        self.ledger.too_many_errors().then(|| MeasureError::Errors {
            failed: s.failed,
            requests: s.requests,
            limit: 100.0 * self.ledger.budget().max_errors,
            last: self.last_error(),
        })
    }

    /// The last failure of a request, fit for a terminal.
    pub fn last_error(&self) -> String {
        let last = self.last_error.lock().unwrap_or_else(|e| e.into_inner());
        last.clone().unwrap_or_else(|| "none".into())
    }

    /// Learns how many tokens words have, where prompts are text and the endpoint counts tokens.
    pub async fn learn_words(&self) {
        let mut seen = Vec::new();
        for words in [20, 120] {
            let prompt = self.prompts.lock().await.words(words);
            if let Some(n) = self.send_prompt(prompt, 8 * words as u32, 1).await
                && let Some(tokens) = n.usage.and_then(|u| u.prompt_tokens)
            {
                seen.push((words, tokens));
            }
        }
        if let [few, many] = seen[..] {
            self.prompts.lock().await.learn(few, many);
        }
    }

    /// Sends `prompt`, which counts as `tokens` tokens at most; none if the budget does not allow it.
    pub async fn send_prompt(
        &self,
        prompt: Prompt,
        tokens: u32,
        output: u32,
    ) -> Option<RequestTrace> {
        let leave = self
            .ledger
            .leave(u64::from(tokens) + u64::from(output))
            .await
            .ok()?;
        let trace = self.exchange(prompt, output).await;
        let used = trace.usage.and_then(|u| u.prompt_tokens);
        leave.settle(
            used.map(|p| u64::from(p) + u64::from(trace.output_tokens())),
            trace.ok(),
        );
        Some(trace)
    }

    /// A prompt of `tokens` tokens.
    pub async fn prompt(&self, tokens: u32) -> Prompt {
        self.prompts.lock().await.make(tokens)
    }

    async fn exchange(&self, prompt: Prompt, output: u32) -> RequestTrace {
        let request = GenerateRequest::new(prompt, output);
        let stop = tokio::time::sleep(self.ledger.time_left());
        let trace = self.client.send_until(&request, stop).await;
        if let Some(e) = &trace.error {
            let mut last = self.last_error.lock().unwrap_or_else(|e| e.into_inner());
            *last = Some(printable(&e.message).into_owned());
        }
        trace
    }

    /// One request of a load that began at `start`; none if the budget does not allow it.
    async fn one(&self, asked: Lengths, start: Instant) -> Result<Sent, Refusal> {
        let prompt = self.prompt(asked.prompt).await;
        let most = u64::from(asked.prompt) + margin(asked.prompt) + u64::from(asked.output);
        let leave = self.ledger.leave(most).await?;
        let trace = self.exchange(prompt, asked.output).await;
        let prompt = trace
            .usage
            .and_then(|u| u.prompt_tokens)
            .unwrap_or(asked.prompt);
        // Giving up at the end of the time is no failure of the endpoint.
        let cut = trace
            .error
            .as_ref()
            .is_some_and(|e| e.kind == ErrorKind::Cancelled);
        let used = u64::from(prompt) + u64::from(trace.output_tokens());
        leave.settle(Some(used), trace.ok() || cut);
        Ok(Sent {
            at: trace.start.saturating_duration_since(start).as_secs_f64(),
            asked,
            trace,
        })
    }

    /// Measures `planned`. None if the budget ended it before there was enough to keep.
    ///
    /// # Errors
    /// Too many requests failed.
    pub async fn measure(
        self: &Arc<Self>,
        planned: &Planned,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<Load>, MeasureError> {
        let start = Instant::now();
        let until = (start + planned.time).min(self.ledger.deadline());
        let sent = match planned.senders {
            Senders::Users(n) => self.users(planned, n, start, until, progress).await,
            Senders::Rate(rate, seed) => {
                self.schedule(planned, (rate, seed), start, until, progress)
                    .await
            }
        };
        if let Some(e) = self.failure() {
            return Err(e);
        }
        Ok(load_of(planned, sent)?)
    }

    async fn users(
        self: &Arc<Self>,
        planned: &Planned,
        users: u32,
        start: Instant,
        until: Instant,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Vec<Sent> {
        let mut left = planned.requests.iter().copied();
        let mut tasks: JoinSet<Result<Sent, Refusal>> = JoinSet::new();
        let mut send = |tasks: &mut JoinSet<Result<Sent, Refusal>>| {
            if Instant::now() < until
                && !self.ledger.too_many_errors()
                && let Some(asked) = left.next()
            {
                let stand = Arc::clone(self);
                tasks.spawn(async move { stand.one(asked, start).await });
            }
        };
        for _ in 0..users.min(self.ledger.budget().max_concurrency) {
            send(&mut tasks);
        }
        let mut all = Vec::new();
        while let Some(done) = tasks.join_next().await {
            if let Ok(Ok(sent)) = done {
                all.push(sent);
                progress(self.ledger.spent().requests);
                send(&mut tasks);
            }
        }
        all
    }

    async fn schedule(
        self: &Arc<Self>,
        planned: &Planned,
        (rate, seed): (f64, u64),
        start: Instant,
        until: Instant,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Vec<Sent> {
        let mut rng = sim::kernel::rng::stream(seed, "arrivals of a probe");
        let mut tasks: JoinSet<Result<Sent, Refusal>> = JoinSet::new();
        let mut all = Vec::new();
        let mut at = start;
        for &asked in &planned.requests {
            let gap = -f64::ln(1.0 - rng.random::<f64>()) / rate.max(1e-6);
            at += Duration::from_secs_f64(gap.min(3600.0));
            if at >= until || self.ledger.too_many_errors() {
                break;
            }
            tokio::time::sleep_until(at.into()).await;
            while let Some(done) = tasks.try_join_next() {
                if let Ok(Ok(sent)) = done {
                    all.push(sent);
                    progress(self.ledger.spent().requests);
                }
            }
            let stand = Arc::clone(self);
            tasks.spawn(async move { stand.one(asked, start).await });
        }
        while let Some(done) = tasks.join_next().await {
            if let Ok(Ok(sent)) = done {
                all.push(sent);
                progress(self.ledger.spent().requests);
            }
        }
        all
    }
}

/// Cached prompt tokens below which a prompt counts as new: servers count their own first token.
const HARDLY_CACHED: u32 = 8;

fn load_of(planned: &Planned, sent: Vec<Sent>) -> Result<Option<Load>, LoadError> {
    let offered = sent.len() as u64;
    let mut gaps = Distribution::default();
    let mut countable = true;
    let mut requests: Vec<Request> = sent
        .iter()
        .filter(|s| s.trace.ok())
        .filter_map(|s| {
            let t = &s.trace;
            let first = s.at + t.first_token_ns()? as f64 * 1e-9;
            let end = s.at + t.last_token_ns()? as f64 * 1e-9;
            for (_, gap, n) in t.gaps() {
                gaps.add(SimDuration(gap), n.into());
            }
            countable &= t.counted != CountSource::Spread && t.multi_token_chunks() == 0;
            let usage = t.usage.unwrap_or_default();
            let prompt = usage.prompt_tokens.unwrap_or(s.asked.prompt).max(1);
            let cached = usage.cached_tokens.filter(|&c| c >= HARDLY_CACHED);
            Some(Request {
                sent: s.at,
                first,
                end,
                prompt,
                output: t.output_tokens(),
                cached: cached.unwrap_or(0).min(prompt - 1),
            })
        })
        .filter(|r| r.output > 0 && r.end > r.sent)
        .collect();
    if requests.len() < planned.least.max(1) {
        return Ok(None);
    }
    requests.sort_by(|a, b| a.sent.total_cmp(&b.sent));
    let gaps = gap_quantiles(&gaps).filter(|_| countable);
    let mut load = Load::new(&planned.name, planned.role, requests, offered, gaps)?;
    // Who sent is known here and need not be guessed.
    load.pacing = match planned.senders {
        Senders::Users(_) => Pacing::Users,
        Senders::Rate(..) => Pacing::Schedule,
    };
    Ok(Some(load))
}
