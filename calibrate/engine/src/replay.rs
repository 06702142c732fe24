//! A step log through the simulator: the same requests at the same instants and the measured step times must give the same
//! schedule, step by step and request by request. The scheduler then contributes nothing to the error of a prediction.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hwmodels::{BatchStats, EngineKind, StepCost, StepModel};
use serde::Deserialize;
use sim::cluster::router::RouterConfig;
use sim::engines::EngineParams;
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::{Given, Load, Scheduler, SeqParams, StepPlan};
use sim::record::RunInfo;
use sim::report::csv::parse_instant;
use sim::request::{RejectReason, ReqId, RequestSpec};
use sim::simulation::MakeScheduler;
use sim::simulation::{self, EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::Workload;

use crate::policy::Policy;
use crate::step_log::{LogEntry, LogOutcome, LogRequest, engine_path, requests_path};

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{file}: {message}")]
    Format {
        /// The file.
        file: String,
        /// Where and what.
        message: String,
    },
    /// The simulator refused.
    #[error("the simulator stopped: {0}")]
    Run(#[from] simulation::RunError),
}

/// A step as the log or the replay has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it was planned.
    pub start: SimTime,
    /// When its tokens were known.
    pub end: SimTime,
    /// What it held, in order.
    pub entries: Vec<LogEntry>,
}

/// The log of one replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaLog {
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// Its requests, in the order in which its scheduler got them.
    pub requests: Vec<LogRequest>,
}

/// A step log.
pub struct Log {
    /// The policy that made it.
    pub policy: Policy,
    /// By replica.
    pub replicas: Vec<ReplicaLog>,
}

/// What a replay of one replica found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Comparison {
    /// The replica.
    pub replica: u32,
    /// Steps in the log.
    pub steps: usize,
    /// Requests in the log.
    pub requests: usize,
    /// Tokens computed in the log's steps [tokens].
    pub tokens: u64,
    /// The first step that differs, and how. None: the schedules are the same.
    pub difference: Option<String>,
}

#[derive(Deserialize)]
struct EngineFile {
    model_max_tokens: u32,
    engine: toml::Table,
    layout: LayoutFile,
}

#[derive(Deserialize)]
struct LayoutFile {
    pp: u32,
    replicas: usize,
}

/// Reads the step log at `path` with the files beside it.
///
/// # Errors
/// See [`ReplayError`].
pub fn read(path: &Path) -> Result<Log, ReplayError> {
    let (policy, replicas) = read_policy(&engine_path(path))?;
    let mut replicas = vec![ReplicaLog::default(); replicas];
    read_table(path, |row| {
        let replica = replica(&mut replicas, row)?;
        replica.steps.push(Step {
            start: instant(row, "start_s")?,
            end: instant(row, "end_s")?,
            entries: row
                .text("entries")?
                .split_ascii_whitespace()
                .map(|e| entry(e).ok_or_else(|| format!("entries: `{e}` is not id:tokens:context")))
                .collect::<Result<_, _>>()?,
        });
        Ok(())
    })?;
    read_table(&requests_path(path), |row| {
        let request = LogRequest {
            id: row.number("id")?,
            replica: row.number("replica")?,
            added: SimTime(row.number("added_ns")?),
            ended: SimTime(row.number("ended_ns")?),
            outcome: LogOutcome::ALL
                .into_iter()
                .find(|o| row.text("outcome") == Ok(o.name()))
                .ok_or("outcome: not finished, cancelled, failed, dropped or rejected")?,
            prompt_tokens: row.number("prompt_tokens")?,
            max_tokens: row.number("max_tokens")?,
            output_tokens: row.number("output_tokens")?,
            priority: row.number("priority")?,
            cached_tokens: row.number("cached_tokens")?,
            preemptions: row.number("preemptions")?,
            block_hashes: row
                .text("block_hashes")?
                .split_ascii_whitespace()
                .map(|h| h.parse().map_err(|e| format!("block_hashes: `{h}`: {e}")))
                .collect::<Result<_, _>>()?,
        };
        if request.ended < request.added {
            return Err("ended_ns: before added_ns".into());
        }
        replica(&mut replicas, row)?.requests.push(request);
        Ok(())
    })?;
    for r in &mut replicas {
        // The order in which the scheduler got them: rows are written as requests end.
        r.requests.sort_by_key(|q| (q.added, q.id));
    }
    Ok(Log { policy, replicas })
}

fn read_policy(file: &Path) -> Result<(Policy, usize), ReplayError> {
    let name = file.display().to_string();
    let wrong = |message: String| ReplayError::Format {
        file: name.clone(),
        message,
    };
    let text = std::fs::read_to_string(file).map_err(|source| ReplayError::Io {
        file: name.clone(),
        source,
    })?;
    let read: EngineFile = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let mut keys = read.engine;
    let kind = keys
        .remove("kind")
        .ok_or_else(|| wrong("engine.kind: missing".into()))?;
    let kind = EngineKind::deserialize(kind).map_err(|e| wrong(format!("engine.kind: {e}")))?;
    let blocks = keys
        .remove("kv_blocks")
        .and_then(|v| v.as_integer())
        .and_then(|n| u64::try_from(n).ok())
        .ok_or_else(|| wrong("engine.kv_blocks: must be a number of blocks".into()))?;
    let params = EngineParams::read(kind, keys).map_err(|e| wrong(e.to_string()))?;
    let policy = Policy::start(&params, blocks, read.model_max_tokens, read.layout.pp)
        .map_err(|e| wrong(e.to_string()))?;
    Ok((policy, read.layout.replicas))
}

/// A row of a table, its fields by the names of the columns.
struct Row<'a> {
    columns: &'a csv::StringRecord,
    record: &'a csv::StringRecord,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Result<&str, String> {
        self.columns
            .iter()
            .position(|c| c == column)
            .and_then(|i| self.record.get(i))
            .ok_or_else(|| format!("no column `{column}`"))
    }

    fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, String> {
        let text = self.text(column)?;
        text.parse()
            .map_err(|_| format!("{column}: `{text}` is not a number in range"))
    }
}

fn instant(row: &Row<'_>, column: &str) -> Result<SimTime, String> {
    let text = row.text(column)?;
    parse_instant(text)
        .filter(|t| *t != SimTime::NEVER)
        .ok_or_else(|| format!("{column}: `{text}` is not seconds with at most nine decimals"))
}

fn entry(text: &str) -> Option<LogEntry> {
    let mut parts = text.split(':');
    let e = LogEntry {
        id: parts.next()?.parse().ok()?,
        tokens: parts.next()?.parse().ok()?,
        context: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(e)
}

fn replica<'a>(
    replicas: &'a mut [ReplicaLog],
    row: &Row<'_>,
) -> Result<&'a mut ReplicaLog, String> {
    let count = replicas.len();
    let index: usize = row.number("replica")?;
    replicas
        .get_mut(index)
        .ok_or_else(|| format!("replica: {index}, but there are {count}"))
}

fn read_table(
    path: &Path,
    mut take: impl FnMut(&Row<'_>) -> Result<(), String>,
) -> Result<(), ReplayError> {
    let file = path.display().to_string();
    let wrong = |message: String| ReplayError::Format {
        file: file.clone(),
        message,
    };
    let mut reader = csv::Reader::from_path(path).map_err(|e| wrong(e.to_string()))?;
    let columns = reader.headers().map_err(|e| wrong(e.to_string()))?.clone();
    for record in reader.records() {
        let record = record.map_err(|e| wrong(e.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        take(&Row {
            columns: &columns,
            record: &record,
        })
        .map_err(|e| wrong(format!("line {line}: {e}")))?;
    }
    Ok(())
}

/// Replays every replica.
///
/// # Errors
/// When the simulator cannot run the log's requests.
pub fn replay(log: &Log) -> Result<Vec<Comparison>, ReplayError> {
    (0u32..)
        .zip(&log.replicas)
        .map(|(i, r)| {
            let simulated = simulate(&log.policy, r)?;
            Ok(Comparison {
                replica: i,
                steps: r.steps.len(),
                requests: r.requests.len(),
                tokens: r
                    .steps
                    .iter()
                    .flat_map(|s| &s.entries)
                    .map(|e| u64::from(e.tokens))
                    .sum(),
                difference: difference(&r.steps, &simulated),
            })
        })
        .collect()
}

fn difference(logged: &[Step], simulated: &[Step]) -> Option<String> {
    let unequal = logged.iter().zip(simulated).position(|(a, b)| a != b);
    let Some(i) = unequal else {
        let (a, b) = (logged.len(), simulated.len());
        return (a != b).then(|| format!("{a} steps were logged, {b} simulated"));
    };
    let (a, b) = (&logged[i], &simulated[i]);
    Some(if a.entries == b.entries {
        format!(
            "step {i}: logged from {} to {} ns, simulated from {} to {} ns",
            a.start.0, a.end.0, b.start.0, b.end.0
        )
    } else {
        let only = |x: &Step, y: &Step| -> Vec<String> {
            let differs = x.entries.iter().filter(|e| !y.entries.contains(e));
            differs
                .take(5)
                .map(|e| format!("{}:{}:{}", e.id, e.tokens, e.context))
                .collect()
        };
        format!(
            "step {i} at {} ns: only in the log {:?}, only in the simulation {:?}",
            a.start.0,
            only(a, b),
            only(b, a)
        )
    })
}

/// The steps that the simulator makes of a replica's requests and step times.
///
/// # Errors
/// When the simulator refuses.
pub fn simulate(policy: &Policy, log: &ReplicaLog) -> Result<Vec<Step>, ReplayError> {
    let watched: Arc<Mutex<Vec<Step>>> = Arc::default();
    let requests: Arc<[LogRequest]> = log.requests.clone().into();
    let make: MakeScheduler = {
        let (inner, watched, requests) = (policy.make.clone(), watched.clone(), requests.clone());
        Arc::new(move |_| {
            Box::new(Watched {
                inner: inner(true),
                steps: watched.clone(),
                requests: requests.clone(),
                added: 0,
                numbers: Vec::new(),
            })
        })
    };
    let durations: Vec<SimDuration> = log.steps.iter().map(|s| s.end.since(s.start)).collect();
    let simulation = Simulation {
        serving: Default::default(),
        replicas: vec![ReplicaSpec {
            engine: EngineSpec::Policy {
                make,
                // The watcher tells the logged hashes.
                hash_block: None,
            },
            step: Arc::new(Measured {
                durations,
                next: AtomicUsize::new(0),
            }),
            drift: None,
            input_delay: SimDuration::ZERO,
            front_end: FrontEnd::default(),
            output_delay: SimDuration::ZERO,
        }],
        router: RouterConfig::RoundRobin,
        scrape_period: None,
        request_timeout: None,
        seed: 0,
    };
    let mut workload = Logged { requests, next: 0 };
    let options = RunOptions {
        path: simulation::Path::Reference,
        ..RunOptions::default()
    };
    simulation.run(&mut workload, &options, RunInfo::default())?;
    let mut steps = std::mem::take(&mut *watched.lock().unwrap_or_else(PoisonError::into_inner));
    for (step, logged) in steps.iter_mut().zip(&log.steps) {
        step.end = step.start + logged.end.since(logged.start);
    }
    Ok(steps)
}

/// The logged step times, in order.
struct Measured {
    durations: Vec<SimDuration>,
    next: AtomicUsize,
}

impl StepModel for Measured {
    fn step(&self, _: &BatchStats) -> StepCost {
        // Beyond the log the schedules differ already; time still has to pass.
        let beyond = SimDuration(1_000_000);
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        StepCost {
            latency: self.durations.get(i).unwrap_or(&beyond).as_secs(),
            ..StepCost::default()
        }
    }
}

/// The logged requests.
struct Logged {
    requests: Arc<[LogRequest]>,
    next: usize,
}

impl Workload for Logged {
    fn peek(&self) -> Option<SimTime> {
        self.requests.get(self.next).map(|r| r.added)
    }

    fn pop(&mut self, _: ReqId, out: &mut RequestSpec) {
        let Some(r) = self.requests.get(self.next) else {
            return;
        };
        self.next += 1;
        let finished = r.outcome == LogOutcome::Finished;
        *out = RequestSpec {
            arrival: r.added,
            prompt_tokens: r.prompt_tokens,
            output_tokens: if finished {
                r.output_tokens
            } else {
                // It would have gone on.
                r.max_tokens
            },
            max_tokens: r.max_tokens,
            priority: r.priority,
            timeout: matches!(r.outcome, LogOutcome::Cancelled | LogOutcome::Failed)
                .then(|| r.ended.since(r.added)),
            ..RequestSpec::default()
        };
    }
}

/// A scheduler that is told the logged hashes and whose plans are noted down.
struct Watched {
    inner: Box<dyn Scheduler>,
    steps: Arc<Mutex<Vec<Step>>>,
    requests: Arc<[LogRequest]>,
    /// Requests it was given.
    added: usize,
    /// The engine's number of the request under each id.
    numbers: Vec<u64>,
}

impl Scheduler for Watched {
    fn add(&mut self, id: ReqId, mut params: SeqParams) -> Result<(), RejectReason> {
        if let Some(r) = self.requests.get(self.added) {
            params.block_hashes = r.block_hashes.clone();
            let i = id as usize;
            if self.numbers.len() <= i {
                self.numbers.resize(i + 1, u64::MAX);
            }
            self.numbers[i] = r.id;
        }
        self.added += 1;
        self.inner.add(id, params)
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        let runs = self.inner.plan(now, plan);
        if runs {
            let entries = plan.entries.iter().map(|e| LogEntry {
                id: self.numbers[e.id as usize],
                tokens: e.tokens,
                context: e.context,
            });
            let step = Step {
                start: now,
                end: now,
                entries: entries.collect(),
            };
            self.steps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(step);
        }
        runs
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        self.inner.complete(plan, given);
    }

    fn cancel(&mut self, id: ReqId) {
        self.inner.cancel(id);
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        self.inner.take_failed(out);
    }

    fn next_wake(&self) -> Option<SimTime> {
        self.inner.next_wake()
    }

    fn load(&self) -> Load {
        self.inner.load()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }
}
