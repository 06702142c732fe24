//! A window of recorded requests: what a live deployment was asked and when it answered.
//!
//! A file of it is JSON lines: the first line is the [`Meta`], every other a [`Row`] in the order of arrival.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{RecordOptions, Recorder};
use sim::record::{RecordError, RequestRow, RunInfo, RunRecord};
use sim::request::{Outcome, RejectReason};

use super::api::Api;
use super::prefix::{ID_BLOCK_TOKENS, TEXT_BLOCK_BYTES};

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// Most rows of a window that is read from a file.
const MAX_ROWS: usize = 5_000_000;

/// Bytes of text per token where the window itself does not say [bytes]: a common figure for English.
pub const BYTES_PER_TOKEN: f64 = 4.0;

/// How a token count is known, from the best on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// The server said it.
    Usage,
    /// The prompt came as token ids.
    Ids,
    /// A tokenizer of the model counted it.
    Tokenizer,
    /// One per chunk of the stream.
    Chunks,
    /// From the length of the text.
    #[default]
    Estimate,
}

/// How a request ended, as seen from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// Answered in full.
    Finished,
    /// Refused: status 400 and above.
    Refused,
    /// Its client went away.
    Cancelled,
    /// The server broke off, or sent an error in place of tokens.
    Failed,
    /// Not yet ended.
    #[default]
    InFlight,
}

/// One recorded request. Instants are on the twin's clock [ns].
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The request, counted from the twin's start.
    pub id: u64,
    /// Its API.
    pub api: Api,
    /// Whether its answer was streamed.
    pub stream: bool,
    /// When its head came in.
    pub arrival_ns: u64,
    /// When its first token came back; none where the answer was not streamed or had no token yet.
    pub first_ns: Option<u64>,
    /// When its last token came back, or when it ended otherwise; none while in flight.
    pub end_ns: Option<u64>,
    /// HTTP status; 0 before there was one.
    pub status: u16,
    /// How it ended.
    pub outcome: Seen,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// How that is known.
    pub prompt_counted: Counted,
    /// Length of the prompt's text [bytes]; 0 where it came as token ids.
    #[serde(default)]
    pub prompt_bytes: u64,
    /// Prompt tokens found in the prefix cache, where the server said it [tokens].
    pub cached_tokens: Option<u32>,
    /// Output so far [tokens].
    pub output_tokens: u32,
    /// How that is known.
    pub output_counted: Counted,
    /// `max_tokens` of the call, where given [tokens].
    pub max_tokens: Option<u32>,
    /// Chunks with output.
    pub chunks: u32,
    /// Sequences that the engine ran for it.
    pub sequences: u32,
    /// Events of it were lost: it counts as load, its times are not compared.
    #[serde(default)]
    pub lossy: bool,
    /// Chained hashes of the prompt's blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<u64>,
    /// Gaps between chunks with output [us].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps_us: Vec<u32>,
}

impl Row {
    /// Whether the engine worked on it: it was not refused.
    pub fn served(&self) -> bool {
        self.outcome != Seen::Refused
    }

    /// Whether its times can be held against a simulated request's.
    pub fn comparable(&self) -> bool {
        !self.lossy && self.sequences == 1
    }

    /// Length of a prompt block [tokens], where blocks are of token ids.
    pub fn ids_per_block(&self) -> Option<usize> {
        (self.prompt_bytes == 0).then_some(ID_BLOCK_TOKENS)
    }
}

/// What a window is of.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// [`FORMAT`].
    pub servetwin_window: u32,
    /// The deployment.
    pub endpoint: String,
    /// When the twin's clock was at zero [s since 1970].
    pub unix_origin_s: f64,
    /// Requests that arrived from here on are compared [ns].
    pub start_ns: u64,
    /// The end of the recording [ns].
    pub end_ns: u64,
    /// Rows reach back at least to here, so that the replay has warmed up by the window's start [ns].
    pub from_ns: u64,
    /// Means of what the server's own metrics said over the window, where they were read.
    pub server: Option<ServerMeans>,
    /// What a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Means over a window of what a server's `/metrics` said.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerMeans {
    /// Readings.
    pub samples: u64,
    /// Running requests.
    pub running: Option<f64>,
    /// Waiting requests.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use [0, 1].
    pub kv_ratio: Option<f64>,
}

/// A window of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// What it is of.
    pub meta: Meta,
    /// The requests in the order of arrival: all that were under way at some time from `from_ns` on.
    pub rows: Vec<Row>,
}

/// Why a window could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// The file cannot be read.
    #[error("cannot read the window: {0}")]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line}: {problem}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The requests do not make a record.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Window {
    /// Writes the window.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, &self.meta)?;
        out.write_all(b"\n")?;
        for row in &self.rows {
            serde_json::to_writer(&mut out, row)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Reads what [`Window::write`] wrote.
    ///
    /// # Errors
    /// A line that is no meta or row, rows out of order, times that run backwards, more than five million rows.
    pub fn read(input: impl BufRead) -> Result<Window, WindowError> {
        let bad = |line: usize, problem: String| WindowError::Line { line, problem };
        let mut lines = input.lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let meta: Meta = serde_json::from_str(&first).map_err(|e| {
            bad(1, format!("not the head of a window file ({e}); `servetwin twin --windows DIR` writes them"))
        })?;
        if meta.servetwin_window != FORMAT {
            let problem = format!(
                "format {}, this version reads {FORMAT}",
                meta.servetwin_window
            );
            return Err(bad(1, problem));
        }
        if !(meta.from_ns <= meta.start_ns && meta.start_ns < meta.end_ns) {
            return Err(bad(1, "from_ns <= start_ns < end_ns must hold".into()));
        }
        let mut rows: Vec<Row> = Vec::new();
        for (i, text) in lines.enumerate() {
            let (line, text) = (i + 2, text?);
            if text.trim().is_empty() {
                continue;
            }
            let row: Row = serde_json::from_str(&text).map_err(|e| bad(line, e.to_string()))?;
            let last = rows.last().map_or(0, |r| r.arrival_ns);
            let instants = [row.first_ns, row.end_ns];
            if row.arrival_ns < last {
                return Err(bad(line, "the rows are not in the order of arrival".into()));
            }
            if instants.iter().flatten().any(|t| *t < row.arrival_ns) {
                return Err(bad(line, "it has an instant before its arrival".into()));
            }
            if rows.len() == MAX_ROWS {
                return Err(bad(
                    line,
                    format!("more than {MAX_ROWS} requests; take a part"),
                ));
            }
            rows.push(row);
        }
        Ok(Window { meta, rows })
    }

    /// Length of the compared part [s].
    pub fn seconds(&self) -> f64 {
        (self.meta.end_ns - self.meta.start_ns) as f64 * 1e-9
    }

    /// Rows that arrived in the compared part.
    pub fn compared(&self) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(|r| r.arrival_ns >= self.meta.start_ns)
    }

    /// The first instant of the replay: the window's, or the arrival of what was under way then [ns].
    pub fn origin_ns(&self) -> u64 {
        let first = self.rows.first().map_or(u64::MAX, |r| r.arrival_ns);
        first.min(self.meta.from_ns)
    }

    /// Gives prompts of unknown length an estimate: bytes per token as the others of the window have it.
    pub fn estimate_prompts(&mut self) {
        let ratio = self.bytes_per_token();
        for row in &mut self.rows {
            if row.prompt_counted == Counted::Estimate {
                let tokens = (row.prompt_bytes as f64 / ratio).round();
                row.prompt_tokens = (tokens as u32).max(1);
            }
        }
    }

    /// Bytes of prompt text per token, over the prompts of which both are known [bytes].
    pub fn bytes_per_token(&self) -> f64 {
        let (mut bytes, mut tokens) = (0u64, 0u64);
        for row in &self.rows {
            if row.prompt_bytes > 0 && row.prompt_counted < Counted::Estimate {
                bytes += row.prompt_bytes;
                tokens += u64::from(row.prompt_tokens);
            }
        }
        if tokens == 0 {
            BYTES_PER_TOKEN
        } else {
            (bytes as f64 / tokens as f64).max(0.25)
        }
    }

    /// Chunks per output token where both are known: 1 where each chunk holds one token.
    pub fn chunks_per_token(&self) -> Option<f64> {
        let (mut chunks, mut tokens) = (0u64, 0u64);
        for row in &self.rows {
            if row.output_counted == Counted::Usage && row.chunks > 0 {
                chunks += u64::from(row.chunks);
                tokens += u64::from(row.output_tokens);
            }
        }
        (tokens > 0).then(|| chunks as f64 / tokens as f64)
    }

    /// How the prompts' lengths are known, for the reader.
    pub fn counted_in_words(&self) -> String {
        let mut by = std::collections::BTreeMap::new();
        for row in self.rows.iter().filter(|r| r.served()) {
            *by.entry(row.prompt_counted).or_insert(0u64) += 1;
        }
        let words: Vec<String> = by
            .iter()
            .map(|(how, n)| {
                let how = match how {
                    Counted::Usage => "by the server's usage",
                    Counted::Ids => "as token ids",
                    Counted::Tokenizer => "by the tokenizer",
                    Counted::Chunks => "by chunks",
                    Counted::Estimate => "estimated from their bytes",
                };
                format!("{n} {how}")
            })
            .collect();
        words.join(", ")
    }

    /// The window as a record like any run's, its time counted from [`Window::origin_ns`], its warm-up ending where
    /// the compared part begins. Ids are places in the order of arrival. Requests that a request of several sequences
    /// stands for are one row.
    ///
    /// # Errors
    /// When the rows contradict each other: a defect.
    pub fn record(&self) -> Result<RunRecord, RecordError> {
        let origin = self.origin_ns();
        let at = |ns: u64| SimTime(ns.saturating_sub(origin));
        let mut recorder = Recorder::new(&RecordOptions {
            warmup: SimDuration(self.meta.start_ns.saturating_sub(origin)),
            ..RecordOptions::default()
        });
        for row in &self.rows {
            recorder.offered(at(row.arrival_ns));
        }
        for (i, row) in self.rows.iter().enumerate() {
            let mut now = row.first_ns.unwrap_or(0);
            for gap in &row.gaps_us {
                now += u64::from(*gap) * 1_000;
                recorder.gaps(at(now), SimDuration(u64::from(*gap) * 1_000), 1);
            }
            recorder.request(&RequestRow {
                id: u32::try_from(i).unwrap_or(u32::MAX),
                stream: 0,
                replica: 0,
                prompt_tokens: row.prompt_tokens,
                cached_tokens: row.cached_tokens.unwrap_or(0),
                output_tokens: row.output_tokens,
                preemptions: 0,
                arrival: at(row.arrival_ns),
                first_scheduled: SimTime::NEVER,
                first_token: row.first_ns.map_or(SimTime::NEVER, at),
                end: at(row.end_ns.unwrap_or(self.meta.end_ns)),
                outcome: match row.outcome {
                    Seen::Finished => Outcome::Finished,
                    Seen::Refused => Outcome::Rejected(match row.status {
                        429 => RejectReason::Overloaded,
                        503 => RejectReason::QueueFull,
                        _ => RejectReason::TooLong,
                    }),
                    Seen::Cancelled => Outcome::TimedOut,
                    Seen::Failed => Outcome::Failed,
                    Seen::InFlight => Outcome::InFlight,
                },
            });
        }
        recorder.finish(
            at(self.meta.end_ns),
            RunInfo {
                name: self.meta.endpoint.clone(),
                load: format!("{} recorded requests", self.rows.len()),
                ..RunInfo::default()
            },
        )
    }

    /// Makes a window of a run's request rows, as if they had been recorded: from `start` to `end`, everything before
    /// as its lead-in. Requests that had not ended by `end` are in flight; gaps between tokens are even.
    pub fn from_rows(rows: &[RequestRow], start: SimTime, end: SimTime) -> Window {
        let mut out: Vec<Row> = rows
            .iter()
            .filter(|r| r.arrival < end)
            .map(|r| {
                let over = r.end <= end && r.outcome != Outcome::InFlight;
                let first = (r.first_token != SimTime::NEVER && r.first_token <= end)
                    .then_some(r.first_token.0);
                let stop = r.end.min(end);
                // Tokens come evenly between the first and the last.
                let output = match (first, over) {
                    (None, _) => 0,
                    (Some(_), true) => r.output_tokens,
                    (Some(first), false) => {
                        let span = r.end.0.saturating_sub(first).max(1);
                        let share = (end.0 - first) as f64 / span as f64;
                        1 + (f64::from(r.output_tokens.saturating_sub(1)) * share) as u32
                    }
                };
                let gaps = u64::from(output.saturating_sub(1));
                let gap = first.map_or(0, |f| (stop.0 - f).checked_div(gaps).unwrap_or(0));
                Row {
                    id: u64::from(r.id),
                    api: Api::Completions,
                    stream: true,
                    arrival_ns: r.arrival.0,
                    first_ns: first,
                    end_ns: over.then_some(r.end.0),
                    status: match r.outcome {
                        Outcome::Rejected(reason) if over => reason.http_status(),
                        _ => 200,
                    },
                    outcome: match r.outcome {
                        _ if !over => Seen::InFlight,
                        Outcome::Finished => Seen::Finished,
                        Outcome::Rejected(_) => Seen::Refused,
                        Outcome::TimedOut => Seen::Cancelled,
                        Outcome::Failed => Seen::Failed,
                        Outcome::InFlight => Seen::InFlight,
                    },
                    prompt_tokens: r.prompt_tokens,
                    prompt_counted: Counted::Usage,
                    prompt_bytes: u64::from(r.prompt_tokens) * (TEXT_BLOCK_BYTES / 16) as u64,
                    cached_tokens: Some(r.cached_tokens),
                    output_tokens: output,
                    output_counted: Counted::Usage,
                    max_tokens: Some(r.output_tokens.max(1)),
                    chunks: output,
                    sequences: 1,
                    lossy: false,
                    blocks: Vec::new(),
                    gaps_us: vec![u32::try_from(gap / 1_000).unwrap_or(u32::MAX); gaps as usize],
                }
            })
            .collect();
        out.sort_by_key(|r| (r.arrival_ns, r.id));
        Window {
            meta: Meta {
                servetwin_window: FORMAT,
                endpoint: "simulated".into(),
                unix_origin_s: 0.0,
                start_ns: start.0,
                end_ns: end.0,
                from_ns: 0,
                server: None,
                notes: Vec::new(),
            },
            rows: out,
        }
    }
}
