//! `--step-log`: what each step held and where its time went, and beside it each request as the scheduler got it.
//!
//! Three files: `steps.csv` (the name given), `steps.requests.csv` and `steps.engine.toml` (the policy, as a scenario's
//! `[engine]`, and what a fit must know of model and machine). They are complete enough to run the same schedule again ([`crate::replay`]): a step starts at the instant
//! that was handed to the scheduler and ends when its tokens were known and handed out; requests are stamped when the
//! scheduler got them. `docs/engine.md` describes each column. A thread of its own writes the files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sim::kernel::time::SimTime;
use sim::record::StepRow;
use sim::report::csv::{STEP_COLUMNS, step_fields};

use crate::executor::StepTimes;
use crate::model::ModelFacts;

/// Columns of the step log that a simulated step does not have.
pub const TIME_COLUMNS: [&str; 9] = [
    "linear_s",
    "lm_head_s",
    "attention_s",
    "elementwise_s",
    "communication_s",
    "sample_s",
    "host_s",
    "forward_s",
    "paced_s",
];

/// Columns of the request log.
pub const REQUEST_LOG_COLUMNS: [&str; 12] = [
    "id",
    "replica",
    "added_ns",
    "ended_ns",
    "outcome",
    "prompt_tokens",
    "max_tokens",
    "output_tokens",
    "priority",
    "cached_tokens",
    "preemptions",
    "block_hashes",
];

/// Where a step's wall time went [s].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogTimes {
    /// Matrix products of the layers.
    pub linear: f64,
    /// The LM head's product.
    pub lm_head: f64,
    /// Attention.
    pub attention: f64,
    /// Norms, rotary embedding, activations, look-ups.
    pub elementwise: f64,
    /// All-reduce and sends, waiting included.
    pub communication: f64,
    /// Choosing tokens from logits.
    pub sample: f64,
    /// Everything on the host that no other field names: scheduling, building the batch, text, sending, and what of
    /// the forward pass its own parts leave.
    pub host: f64,
    /// The forward pass as a whole, its parts included.
    pub forward: f64,
    /// Slept, where steps have a least time.
    pub paced: f64,
}

impl LogTimes {
    /// A forward pass, with what was spent on choosing tokens and by the host.
    pub fn new(t: &StepTimes, sample: f64, host: f64) -> LogTimes {
        LogTimes {
            linear: t.linear,
            lm_head: t.lm_head,
            attention: t.attention,
            elementwise: t.elementwise,
            communication: t.communication,
            sample,
            host: host.max(0.0),
            forward: t.total,
            paced: t.paced,
        }
    }
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The engine's number of the request.
    pub id: u64,
    /// New tokens computed [tokens].
    pub tokens: u32,
    /// Tokens whose KV existed before [tokens].
    pub context: u32,
}

/// One row of the step log.
#[derive(Clone, Debug)]
pub struct LogStep {
    /// What a simulated step has too.
    pub row: StepRow,
    /// Where its time went.
    pub times: LogTimes,
    /// Requests that lost their KV while it was chosen.
    pub preempted: Vec<u64>,
    /// What it held, in the scheduler's order.
    pub entries: Vec<LogEntry>,
}

/// How a request left the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOutcome {
    /// It had its last token.
    Finished,
    /// Its client left.
    Cancelled,
    /// Its step failed.
    Failed,
    /// The policy dropped it: it can never run.
    Dropped,
    /// The policy refused it.
    Rejected,
}

impl LogOutcome {
    /// All of them.
    pub const ALL: [LogOutcome; 5] = [
        LogOutcome::Finished,
        LogOutcome::Cancelled,
        LogOutcome::Failed,
        LogOutcome::Dropped,
        LogOutcome::Rejected,
    ];

    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            LogOutcome::Finished => "finished",
            LogOutcome::Cancelled => "cancelled",
            LogOutcome::Failed => "failed",
            LogOutcome::Dropped => "dropped",
            LogOutcome::Rejected => "rejected",
        }
    }
}

/// One row of the request log, written when the request has left the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// The engine's number of the request, in the order of submission.
    pub id: u64,
    /// Replica that got it.
    pub replica: u32,
    /// When the scheduler got it.
    pub added: SimTime,
    /// When the scheduler was told that it has ended, or refused it.
    pub ended: SimTime,
    /// How.
    pub outcome: LogOutcome,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Limit on the output [tokens].
    pub max_tokens: u32,
    /// Tokens produced [tokens].
    pub output_tokens: u32,
    /// Priority, lower is more urgent.
    pub priority: i32,
    /// Prompt tokens that the prefix cache held at first scheduling [tokens].
    pub cached_tokens: u32,
    /// Times it lost its KV.
    pub preemptions: u32,
    /// Chained content hashes of the full blocks of prompt and output; empty without a prefix cache.
    pub block_hashes: Vec<u64>,
}

enum Message {
    Step(Box<LogStep>),
    Request(Box<LogRequest>),
}

/// The writing end of a step log; clones write to the same files.
#[derive(Clone)]
pub struct StepLogWriter {
    messages: Sender<Message>,
}

impl StepLogWriter {
    /// Writes a step.
    pub fn step(&self, step: LogStep) {
        // The writer is gone after an I/O error, which it has reported; the engine goes on without a log.
        let _ = self.messages.send(Message::Step(Box::new(step)));
    }

    /// Writes a request.
    pub fn request(&self, request: LogRequest) {
        let _ = self.messages.send(Message::Request(Box::new(request)));
    }
}

/// What a fit of the log must know of model and machine beyond its rows ([`engine_file`]); 0: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFacts {
    /// Name of the model.
    pub model: String,
    /// Its layers.
    pub layers: u32,
    /// Its hidden size.
    pub hidden: u32,
    /// Tensor-parallel ranks of a replica.
    pub tp: u32,
    /// Pipeline stages of a replica.
    pub pp: u32,
    /// Replicas on the machine.
    pub replicas: u32,
    /// Threads of each rank.
    pub threads: u32,
    /// Cores of the machine, which all ranks share.
    pub cores: u32,
    /// Least time of a step.
    pub min_step: Duration,
}

impl LogFacts {
    /// Facts on `model`, computed by `threads` of each rank on this machine.
    pub fn here(model: &ModelFacts, threads: usize) -> LogFacts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        LogFacts {
            model: model.name.clone(),
            layers: count(model.config.layers),
            hidden: count(model.config.hidden),
            tp: 1,
            pp: 1,
            replicas: 1,
            threads: count(threads),
            cores: std::thread::available_parallelism().map_or(0, |n| count(n.get())),
            min_step: Duration::ZERO,
        }
    }
}

/// The file beside a step log as far as `facts` go, for [`StepLog::create`].
pub fn engine_file(facts: &LogFacts) -> toml::Table {
    let known = |fields: &[(&str, u32)]| -> toml::Table {
        let known = fields.iter().filter(|(_, n)| *n > 0);
        known
            .map(|(key, n)| (key.to_string(), i64::from(*n).into()))
            .collect()
    };
    let mut root = known(&[("layers", facts.layers), ("hidden", facts.hidden)]);
    root.insert("model".into(), facts.model.clone().into());
    let layout = known(&[
        ("tp", facts.tp),
        ("pp", facts.pp),
        ("replicas", facts.replicas),
        ("threads", facts.threads),
        ("cores", facts.cores),
    ]);
    root.insert("layout".into(), layout.into());
    let min_step_s = facts.min_step.as_secs_f64();
    root.insert("min_step_s".into(), min_step_s.into());
    root
}

/// The files of a step log and the thread that writes them.
pub struct StepLog {
    thread: JoinHandle<io::Result<()>>,
}

/// The file of requests beside the step log `steps`.
pub fn requests_path(steps: &Path) -> PathBuf {
    steps.with_extension("requests.csv")
}

/// The file with the policy beside the step log `steps`.
pub fn engine_path(steps: &Path) -> PathBuf {
    steps.with_extension("engine.toml")
}

impl StepLog {
    /// Creates the files; `engine` is the file beside it ([`engine_file`]).
    ///
    /// # Errors
    /// When one of them cannot be created.
    pub fn create(path: &Path, engine: &toml::Table) -> io::Result<(StepLog, StepLogWriter)> {
        let named = |path: PathBuf| {
            move |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
        };
        std::fs::write(engine_path(path), engine.to_string()).map_err(named(engine_path(path)))?;
        let mut steps = BufWriter::new(File::create(path).map_err(named(path.into()))?);
        let mut requests =
            BufWriter::new(File::create(requests_path(path)).map_err(named(requests_path(path)))?);
        let columns = STEP_COLUMNS.iter().chain(&TIME_COLUMNS);
        let columns: Vec<&str> = columns.copied().chain(["preempted", "entries"]).collect();
        writeln!(steps, "{}", columns.join(","))?;
        writeln!(requests, "{}", REQUEST_LOG_COLUMNS.join(","))?;
        steps.flush()?;
        requests.flush()?;
        let (messages, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("step-log".into())
            .spawn(move || write_all(&receiver, &mut steps, &mut requests))?;
        Ok((StepLog { thread }, StepLogWriter { messages }))
    }

    /// Waits until all is written, once every [`StepLogWriter`] is dropped.
    ///
    /// # Errors
    /// When it could not be.
    pub fn finish(self) -> io::Result<()> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the writer of the step log stopped")))
    }
}

fn write_all(
    messages: &Receiver<Message>,
    steps: &mut impl Write,
    requests: &mut impl Write,
) -> io::Result<()> {
    let mut flush = false;
    loop {
        let message = match messages.try_recv() {
            Ok(m) => m,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                if std::mem::take(&mut flush) {
                    steps.flush()?;
                    requests.flush()?;
                }
                match messages.recv() {
                    Ok(m) => m,
                    Err(_) => break,
                }
            }
        };
        flush = true;
        match message {
            Message::Step(s) => write_step(steps, &s)?,
            Message::Request(r) => write_request(requests, &r)?,
        }
    }
    steps.flush()?;
    requests.flush()
}

fn write_step(out: &mut impl Write, s: &LogStep) -> io::Result<()> {
    let t = &s.times;
    write!(out, "{}", step_fields(&s.row).join(","))?;
    for part in [
        t.linear,
        t.lm_head,
        t.attention,
        t.elementwise,
        t.communication,
        t.sample,
        t.host,
        t.forward,
        t.paced,
    ] {
        write!(out, ",{part:.9}")?;
    }
    write!(out, ",{},", Joined(&s.preempted))?;
    for (i, e) in s.entries.iter().enumerate() {
        let space = if i > 0 { " " } else { "" };
        write!(out, "{space}{}:{}:{}", e.id, e.tokens, e.context)?;
    }
    writeln!(out)
}

fn write_request(out: &mut impl Write, r: &LogRequest) -> io::Result<()> {
    writeln!(
        out,
        "{},{},{},{},{},{},{},{},{},{},{},{}",
        r.id,
        r.replica,
        r.added.0,
        r.ended.0,
        r.outcome.name(),
        r.prompt_tokens,
        r.max_tokens,
        r.output_tokens,
        r.priority,
        r.cached_tokens,
        r.preemptions,
        Joined(&r.block_hashes),
    )
}

/// Numbers with spaces between them.
struct Joined<'a>(&'a [u64]);

impl std::fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, n) in self.0.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{n}")?;
        }
        Ok(())
    }
}
