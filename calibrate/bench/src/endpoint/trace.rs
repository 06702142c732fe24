//! When each token of a request came, and how many tokens a chunk holds.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::printable::printable;

/// Why a count is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageFault {
    /// It is negative, a fraction, no number, or beyond any model.
    NotACount,
    /// More output tokens than were asked for, and than chunks with text came.
    AboveMaxTokens,
    /// Fewer output tokens than chunks with text came.
    BelowChunks,
    /// A prompt of no token, or of far more than its text can have.
    PromptTokens,
    /// More prompt tokens from the prefix cache than the prompt has.
    CachedTokens,
}

impl UsageFault {
    /// Its name in `bench --json`.
    pub fn name(self) -> &'static str {
        match self {
            UsageFault::NotACount => "not_a_count",
            UsageFault::AboveMaxTokens => "above_max_tokens",
            UsageFault::BelowChunks => "below_chunks",
            UsageFault::PromptTokens => "prompt_tokens",
            UsageFault::CachedTokens => "cached_tokens",
        }
    }
}

/// Token counts as the server gives them; those that cannot be true are left out ([`UsageFault`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt [tokens].
    pub prompt_tokens: Option<u32>,
    /// Output [tokens].
    pub completion_tokens: Option<u32>,
    /// Prompt tokens found in the prefix cache [tokens].
    pub cached_tokens: Option<u32>,
}

/// Times that llama-server took itself (`timings` of its last chunk).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerTimings {
    /// Prompt tokens that were processed [tokens].
    pub prompt_tokens: u32,
    /// Prompt tokens found in its cache, where it says so [tokens].
    pub cached_tokens: Option<u32>,
    /// Time they took [s].
    pub prompt_s: f64,
    /// Tokens generated [tokens].
    pub predicted_tokens: u32,
    /// Time they took [s].
    pub predicted_s: f64,
}

/// One chunk that brought tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// When its bytes were read, after [`RequestTrace::start`] [ns].
    pub at_ns: u64,
    /// Tokens in it, at least one.
    pub tokens: u32,
}

/// How the tokens of chunks were counted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// The server said it with each chunk: running usage, token ids, or one event for each token by the API's rules.
    #[default]
    PerChunk,
    /// One token for each chunk, and the final usage agrees.
    Confirmed,
    /// The final usage says another number of tokens than there are chunks: spread over the chunks by the length of their
    /// text.
    Spread,
    /// One token for each chunk; nothing confirms it.
    Unconfirmed,
}

/// What went wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// No connection.
    Connect,
    /// The connection broke before the answer was complete.
    Disconnected,
    /// Not answered in time.
    Timeout,
    /// Answered with another status than 2xx.
    Status(u16),
    /// The stream is not what the API answers, or it ended without its end.
    BadStream,
    /// The server reported a failure within the stream.
    Server,
    /// The caller stopped waiting.
    Cancelled,
    /// The request could not be written down for this API.
    Request,
}

impl ErrorKind {
    /// Its name in reports, e.g. `timeout` or `status_429`.
    pub fn name(self) -> String {
        match self {
            ErrorKind::Connect => "connect".into(),
            ErrorKind::Disconnected => "disconnected".into(),
            ErrorKind::Timeout => "timeout".into(),
            ErrorKind::Status(code) => format!("status_{code}"),
            ErrorKind::BadStream => "bad_stream".into(),
            ErrorKind::Server => "server".into(),
            ErrorKind::Cancelled => "cancelled".into(),
            ErrorKind::Request => "request".into(),
        }
    }
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What happened, fit for a terminal.
    pub message: String,
}

impl RequestError {
    /// An error of `kind`; `message` may hold text from a server.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> RequestError {
        RequestError {
            kind,
            message: printable(&message.into()).into_owned(),
        }
    }
}

/// One request as its client saw it. Times are after [`RequestTrace::start`] [ns].
#[derive(Clone, Debug)]
pub struct RequestTrace {
    /// The client turned to the endpoint; connecting comes after it.
    pub start: Instant,
    /// The connection stood, if it came to that.
    pub connected_ns: Option<u64>,
    /// It went over a connection used before.
    pub reused: bool,
    /// It was sent once more because a kept connection broke before a byte of answer.
    pub stale_retry: bool,
    /// It was sent once more without a field that the server refused.
    pub resent: u32,
    /// Status of the answer.
    pub status: Option<u16>,
    /// The answer's head was there.
    pub headers_ns: Option<u64>,
    /// Chunks with tokens, in order.
    pub chunks: Vec<Chunk>,
    /// How their tokens were counted.
    pub counted: CountSource,
    /// The answer was complete, or the failure was known.
    pub end_ns: u64,
    /// Token counts of the server, where it gave any.
    pub usage: Option<Usage>,
    /// Why counts of the server were not believed.
    pub usage_faults: Vec<UsageFault>,
    /// Times of the server, where it gave any.
    pub timings: Option<ServerTimings>,
    /// Why the generation ended, where the server said.
    pub finish_reason: Option<String>,
    /// Fewer tokens than asked for though all went well.
    pub short: bool,
    /// Generated text, where it was to be kept.
    pub text: Option<String>,
    /// Generated token ids, where they were to be kept and the server gave them.
    pub token_ids: Option<Vec<u32>>,
    /// The failure, if there was one.
    pub error: Option<RequestError>,
}

impl RequestTrace {
    pub(crate) fn new(start: Instant) -> RequestTrace {
        RequestTrace {
            start,
            connected_ns: None,
            reused: false,
            stale_retry: false,
            resent: 0,
            status: None,
            headers_ns: None,
            chunks: Vec::new(),
            counted: CountSource::PerChunk,
            end_ns: 0,
            usage: None,
            usage_faults: Vec::new(),
            timings: None,
            finish_reason: None,
            short: false,
            text: None,
            token_ids: None,
            error: None,
        }
    }

    /// A request whose end is not known yet.
    pub(crate) fn pending() -> RequestTrace {
        RequestTrace::new(Instant::now())
    }

    /// Whether it was answered in full.
    pub fn ok(&self) -> bool {
        self.error.is_none()
    }

    /// Tokens that came [tokens].
    pub fn output_tokens(&self) -> u32 {
        self.chunks.iter().map(|c| c.tokens).sum()
    }

    /// First token, after the start [ns].
    pub fn first_token_ns(&self) -> Option<u64> {
        self.chunks.first().map(|c| c.at_ns)
    }

    /// Last token, after the start [ns].
    pub fn last_token_ns(&self) -> Option<u64> {
        self.chunks.last().map(|c| c.at_ns)
    }

    /// Chunks that brought several tokens.
    pub fn multi_token_chunks(&self) -> usize {
        self.chunks.iter().filter(|c| c.tokens > 1).count()
    }

    /// Gaps between consecutive tokens as `(instant after the start, gap) [ns]` and their number: tokens of one chunk
    /// come together, so all but the first of them have no gap.
    pub fn gaps(&self) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        let within = self
            .chunks
            .iter()
            .filter(|c| c.tokens > 1)
            .map(|c| (c.at_ns, 0, c.tokens - 1));
        let between = self
            .chunks
            .windows(2)
            .map(|w| (w[1].at_ns, w[1].at_ns.saturating_sub(w[0].at_ns), 1));
        within.chain(between)
    }
}

/// A chunk before its tokens are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawChunk {
    pub at_ns: u64,
    /// Length of its text [bytes].
    pub text_bytes: u32,
    /// Tokens that the server says are in it.
    pub tokens: Option<u32>,
    /// Tokens so far, by running usage.
    pub so_far: Option<u32>,
    /// It names the speaker's role.
    pub role: bool,
    /// It ends the generation.
    pub last: bool,
}

/// Counts the tokens of chunks; `total` is what the server says in the end.
///
/// A chunk is a token's arrival also when its text is empty: vLLM sends such where a character is not complete yet or a
/// stop string may be beginning. No arrivals are a first chunk of chat that gives only a role, and, unless `total` needs
/// it, a last one that gives only a reason (vLLM puts the reason on the last token's chunk, llama-server on one more).
pub(super) fn count(raw: &[RawChunk], total: Option<u32>) -> (Vec<Chunk>, CountSource) {
    let chunk = |r: &RawChunk, tokens: u32| Chunk {
        at_ns: r.at_ns,
        tokens,
    };
    // A usage in the last chunk alone is a total and says nothing of the chunks before it.
    let running = raw.iter().any(|r| r.so_far.is_some())
        && raw.iter().all(|r| r.so_far.is_some() || r.text_bytes == 0);
    if running {
        let mut before = 0;
        let mut chunks = Vec::with_capacity(raw.len());
        for r in raw {
            let Some(now) = r.so_far else { continue };
            if now > before {
                chunks.push(chunk(r, now - before));
                before = now;
            }
        }
        return (chunks, CountSource::PerChunk);
    }
    if raw.iter().any(|r| r.tokens.is_some()) {
        let counted = raw
            .iter()
            .filter_map(|r| r.tokens.filter(|n| *n > 0).map(|n| chunk(r, n)));
        return (counted.collect(), CountSource::PerChunk);
    }
    let ones = |rs: &[&RawChunk]| rs.iter().map(|r| chunk(r, 1)).collect::<Vec<_>>();
    let empty = |r: &&RawChunk| r.text_bytes == 0;
    let all: Vec<&RawChunk> = raw.iter().collect();
    let role = all.first().is_some_and(|r| r.role && empty(r));
    let spoken = &all[usize::from(role)..];
    // Triton's last chunk may be empty and has no mark; nor does it say a total.
    let reason = |r: &&RawChunk| empty(r) && (r.last || total.is_none());
    let reason = spoken.last().is_some_and(reason);
    let inner = &spoken[..spoken.len() - usize::from(reason)];
    let Some(total) = total.filter(|t| *t > 0) else {
        return (ones(inner), CountSource::Unconfirmed);
    };
    let with_text: Vec<&RawChunk> = inner.iter().copied().filter(|r| !empty(r)).collect();
    // A first chunk without text may be a role that is not called so.
    let later = &inner[usize::from(inner.first().is_some_and(empty))..];
    for arrivals in [&with_text, spoken, inner, &all, later] {
        if arrivals.len() as u32 == total {
            return (ones(arrivals), CountSource::Confirmed);
        }
    }
    let spread_over = if with_text.len() as u32 > total {
        // More pieces of text than tokens: the first pieces are taken as the tokens' arrivals.
        return (ones(&with_text[..total as usize]), CountSource::Spread);
    } else if inner.len() as u32 > total {
        &with_text
    } else {
        inner
    };
    (spread(spread_over, total), CountSource::Spread)
}

/// `total` tokens over at most as many chunks, one each and the rest by the length of their text.
fn spread(chunks: &[&RawChunk], total: u32) -> Vec<Chunk> {
    let rest = u64::from(total) - chunks.len() as u64;
    let silent = chunks.iter().all(|r| r.text_bytes == 0);
    let weight = |r: &RawChunk| if silent { 1 } else { u64::from(r.text_bytes) };
    let whole: u64 = chunks.iter().map(|r| weight(r)).sum();
    let mut given = 0u64;
    let mut seen = 0u64;
    chunks
        .iter()
        .map(|r| {
            seen += weight(r);
            // Cumulative rounding: the parts add up to the whole.
            let due = (rest * seen + whole / 2) / whole;
            let extra = due - given;
            given = due;
            Chunk {
                at_ns: r.at_ns,
                tokens: 1 + extra as u32,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(text_bytes: u32) -> RawChunk {
        RawChunk {
            at_ns: 0,
            text_bytes,
            tokens: None,
            so_far: None,
            role: false,
            last: false,
        }
    }

    fn role() -> RawChunk {
        RawChunk {
            role: true,
            ..raw(0)
        }
    }

    fn last(text_bytes: u32) -> RawChunk {
        RawChunk {
            last: true,
            ..raw(text_bytes)
        }
    }

    /// Which of `chunks` are arrivals, by index.
    fn arrivals(mut chunks: Vec<RawChunk>, total: Option<u32>) -> (Vec<u64>, CountSource) {
        for (i, c) in chunks.iter_mut().enumerate() {
            c.at_ns = i as u64;
        }
        let (counted, source) = count(&chunks, total);
        (counted.iter().map(|c| c.at_ns).collect(), source)
    }

    #[test]
    fn the_rest_is_spread_by_the_length_of_the_text() {
        let chunks = [raw(2), raw(10), raw(4)];
        let (counted, source) = count(&chunks, Some(8));
        assert_eq!(source, CountSource::Spread);
        assert_eq!(
            counted.iter().map(|c| c.tokens).collect::<Vec<_>>(),
            [2, 4, 2]
        );
    }

    #[test]
    fn a_chunk_without_text_is_a_token_unless_it_is_a_role_or_a_reason_alone() {
        use CountSource::{Confirmed, Unconfirmed};
        // llama-server's last chunk, vLLM's first token and its last one, each in chat and in completions.
        let llama = vec![role(), raw(1), raw(3), last(0)];
        assert_eq!(arrivals(llama.clone(), Some(2)), (vec![1, 2], Confirmed));
        assert_eq!(arrivals(llama, None), (vec![1, 2], Unconfirmed));
        let vllm = vec![role(), raw(0), raw(3), last(0)];
        assert_eq!(arrivals(vllm.clone(), Some(3)), (vec![1, 2, 3], Confirmed));
        assert_eq!(arrivals(vllm, None), (vec![1, 2], Unconfirmed));
        let vllm = vec![raw(0), raw(0), raw(3), last(0)];
        assert_eq!(
            arrivals(vllm.clone(), Some(4)),
            (vec![0, 1, 2, 3], Confirmed)
        );
        assert_eq!(arrivals(vllm, None), (vec![0, 1, 2], Unconfirmed));
        // A role that is not called so, and chunks that are none of the tokens.
        let nameless = vec![raw(0), raw(1), raw(0), raw(3), last(0)];
        assert_eq!(
            arrivals(nameless.clone(), Some(3)),
            (vec![1, 2, 3], Confirmed)
        );
        assert_eq!(arrivals(nameless, Some(2)), (vec![1, 3], Confirmed));
    }

    #[test]
    fn the_first_token_keeps_its_time_when_others_share_chunks() {
        let chunks = vec![role(), raw(0), raw(2), raw(6), last(0)];
        let (at, source) = arrivals(chunks.clone(), Some(7));
        assert_eq!((at, source), (vec![1, 2, 3], CountSource::Spread));
        let tokens: Vec<u32> = count(&chunks, Some(7)).0.iter().map(|c| c.tokens).collect();
        assert_eq!(tokens, [1, 2, 4]);
        // Nothing to weigh by.
        let tokens = count(&[raw(0), raw(0)], Some(5)).0;
        assert_eq!(tokens.iter().map(|c| c.tokens).sum::<u32>(), 5);
        assert!(count(&[], Some(5)).0.is_empty());
    }

    #[test]
    fn gaps_of_tokens_that_come_together_are_zero_and_the_sum_is_the_decode_time() {
        let mut trace = RequestTrace::new(Instant::now());
        trace.chunks = vec![
            Chunk {
                at_ns: 100,
                tokens: 2,
            },
            Chunk {
                at_ns: 400,
                tokens: 1,
            },
            Chunk {
                at_ns: 500,
                tokens: 3,
            },
        ];
        let gaps: Vec<_> = trace.gaps().collect();
        assert_eq!(
            gaps.iter().map(|g| g.2).sum::<u32>(),
            trace.output_tokens() - 1
        );
        assert_eq!(gaps.iter().map(|g| g.1 * u64::from(g.2)).sum::<u64>(), 400);
        assert_eq!(trace.multi_token_chunks(), 2);
    }

    proptest! {
        #[test]
        fn spread_tokens_add_up(lengths in prop::collection::vec(0u32..50, 1..40), more in 0u32..100) {
            let chunks: Vec<RawChunk> = lengths.iter().map(|l| raw(*l)).collect();
            let total = chunks.len() as u32 + more;
            let (counted, _) = count(&chunks, Some(total));
            prop_assert_eq!(counted.iter().map(|c| c.tokens).sum::<u32>(), total);
            prop_assert!(counted.iter().all(|c| c.tokens > 0));
        }
    }
}
