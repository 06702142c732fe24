//! Puts a workload on an endpoint and records what its clients see.
//!
//! Two threads: the one that calls [`run`] keeps the schedule (it sleeps until the next request is due, writes its prompt, hands
//! it over, and never waits for an answer before a send that is due), the other one, a single-threaded runtime, owns all
//! connections and does nothing but send, read and take timestamps.
//!
//! - [`until`] when enough has been measured
//! - [`backoff`] how long a client waits after a failure
//! - [`collect`] from request traces to a [`RunRecord`](sim::record::RunRecord)
//! - [`cpu`] processor time of a thread

pub mod backoff;
pub mod collect;
pub mod cpu;
mod sample;
#[cfg(test)]
mod tests;
pub mod until;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sim::kernel::time::SimTime;
use sim::request::{Outcome, RequestSpec};
use sim::workload::{RequestEnd, Workload};
use tokio::sync::{mpsc, watch};

use crate::endpoint::connection::ConnectionCounts;
use crate::endpoint::{Client, Endpoint, EndpointError, GenerateRequest, RequestTrace};
use crate::prompts::Prompts;
use backoff::Backoff;
use until::Until;

pub use sample::Sample;

/// From the call until the clock starts: time for the threads to be there.
const HEAD_START: Duration = Duration::from_millis(20);
/// Longest sleep while nothing is due: how soon a stop is noticed.
const NAP: Duration = Duration::from_millis(100);
/// How often the stopping rules are looked at.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// Limits that a load never exceeds, whatever the workload says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Caps {
    /// Requests per second: sends are at least the inverse apart.
    pub rate: Option<f64>,
    /// Requests under way. A due request waits for a place, which makes an open loop a closed one: it is said.
    pub concurrency: Option<u32>,
    /// Prompt and output tokens of all requests together [tokens]; the sending ends before the request that would exceed it.
    pub total_tokens: Option<u64>,
    /// Requests.
    pub requests: Option<u64>,
    /// Sending ends after this long.
    pub duration: Option<Duration>,
    /// Sending ends, and what is under way is given up, after this many failed requests.
    pub errors: Option<u64>,
}

/// How a load is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Hard limits.
    pub caps: Caps,
    /// Sending ends when all of these are known well enough; none: the workload's end decides.
    pub until: Vec<Until>,
    /// Requests sent before this are left out of the stopping rules, as they are of the statistics.
    pub warmup: Duration,
    /// When the run stops though requests are under way.
    pub end: Option<Duration>,
    /// Raised by whoever wants the run to end now.
    pub stop: Arc<AtomicBool>,
    /// Live figures for whoever watches.
    pub progress: Option<Arc<Progress>>,
    /// Sending ends when nothing but failures (refusals and time-outs are none) came for this long; `None`: it goes on.
    pub give_up_after: Option<Duration>,
    /// Seed of the pauses after failures.
    pub backoff_seed: u64,
    /// Streams of the workload whose clients send failed requests again after a pause of their own, so that none is added.
    pub retrying: Vec<u16>,
    /// Keep text and ids of the answers in the traces.
    pub keep_output: bool,
    /// Further fields of every request's body.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// Live figures of a run.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests sent.
    pub sent: AtomicU64,
    /// Requests answered in full.
    pub finished: AtomicU64,
    /// Requests that ended otherwise.
    pub failed: AtomicU64,
    /// Output tokens of ended requests [tokens].
    pub output_tokens: AtomicU64,
    /// Sum of the TTFT of finished requests [us].
    pub ttft_us: AtomicU64,
    /// Sum of the E2E latency of finished requests [us].
    pub e2e_us: AtomicU64,
}

/// Why the sending ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Stopped {
    /// The workload had no more.
    Done,
    /// Every stopping rule was met.
    Known,
    /// A hard limit was reached: which.
    Cap(String),
    /// Too many requests failed.
    Errors(u64),
    /// Every request failed, for this long.
    Failing(Duration),
    /// Somebody asked for it.
    Asked,
}

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct RawRun {
    /// Every request, in the order of sending.
    pub samples: Vec<Sample>,
    /// End of the run, after its start [ns].
    pub end_ns: u64,
    /// The clock's zero as seconds since 1970 [s].
    pub started_unix_s: f64,
    /// Why the sending ended.
    pub stopped: Stopped,
    /// What became of connections.
    pub connections: ConnectionCounts,
    /// Processor time of both threads over the run [s], where the system tells.
    pub cpu_s: Option<f64>,
    /// Requests that waited for a place under the concurrency limit.
    pub held_back: u64,
    /// What the server made the client do differently.
    pub notes: Vec<String>,
}

/// Why a load could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The endpoint's description is wrong.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The runtime could not be started.
    #[error("the client's runtime cannot be started")]
    Runtime(#[from] std::io::Error),
    /// The client's thread ended before its time: a defect.
    #[error(
        "the client's thread stopped unexpectedly; this is a defect of servetwin, please report it"
    )]
    Client,
}

struct Job {
    id: u32,
    request: GenerateRequest,
}

struct Done {
    id: u32,
    trace: RequestTrace,
}

/// What the client's thread says when it ends.
struct Leaving {
    connections: ConnectionCounts,
    notes: Vec<String>,
    cpu_s: Option<f64>,
}

/// Runs `workload` against `endpoint`. Blocks until the last answer is there or given up. `known` is a client that has met the
/// endpoint before: fields that it was refused are not tried again.
///
/// # Errors
/// When the client cannot be made; failed requests are part of the result.
pub fn run(
    endpoint: &Endpoint,
    known: Option<&Client>,
    workload: &mut dyn Workload,
    prompts: &mut Prompts,
    options: &Options,
) -> Result<RawRun, DriveError> {
    let client = Client::new(endpoint.clone())?;
    if let Some(known) = known {
        client.adopt(known);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (jobs, inbox) = mpsc::unbounded_channel::<Job>();
    let (cancel, cancelled) = watch::channel(false);
    let (done, ends) = channel::<Done>();
    let thread = std::thread::Builder::new()
        .name("bench-client".into())
        .spawn(move || client_thread(&runtime, client, inbox, &done, &cancelled))?;
    let mut pacer = Pacer {
        options,
        prompts,
        samples: Vec::new(),
        in_flight: 0,
        ended: 0,
        failed: 0,
        tokens: 0,
        held_back: 0,
        backoff: Backoff::new(options.backoff_seed),
        last_end: SimTime::ZERO,
        next_by_rate: None,
        origin: Instant::now() + HEAD_START,
        jobs,
    };
    let cpu = cpu::thread_cpu_s();
    let started_unix_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
        + HEAD_START.as_secs_f64();
    let stopped = pacer.run(workload, &ends, &cancel)?;
    let end_ns = pacer.now();
    let own_cpu_s = cpu::thread_cpu_s().zip(cpu).map(|(b, a)| b - a);
    let Pacer {
        jobs,
        samples,
        held_back,
        ..
    } = pacer;
    drop(jobs);
    let leaving = thread.join().map_err(|_| DriveError::Client)?;
    Ok(RawRun {
        end_ns: samples
            .iter()
            .map(|s| s.sent_ns + s.trace.end_ns)
            .max()
            .unwrap_or(end_ns),
        samples,
        started_unix_s,
        stopped,
        connections: leaving.connections,
        cpu_s: own_cpu_s.zip(leaving.cpu_s).map(|(a, b)| a + b),
        held_back,
        notes: leaving.notes,
    })
}

fn client_thread(
    runtime: &tokio::runtime::Runtime,
    client: Client,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    done: &std::sync::mpsc::Sender<Done>,
    cancelled: &watch::Receiver<bool>,
) -> Leaving {
    let client = Arc::new(client);
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(runtime, async {
        while let Some(job) = inbox.recv().await {
            let (client, done) = (Arc::clone(&client), done.clone());
            let mut cancelled = cancelled.clone();
            tokio::task::spawn_local(async move {
                let stop = async move {
                    if cancelled.wait_for(|c| *c).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                let trace = client.send_until(&job.request, stop).await;
                // The other side goes only when it has every answer.
                let _ = done.send(Done { id: job.id, trace });
            });
        }
    });
    Leaving {
        connections: client.connections(),
        notes: client.notes(),
        cpu_s: cpu::thread_cpu_s(),
    }
}

/// Keeps the schedule.
struct Pacer<'a> {
    options: &'a Options,
    prompts: &'a mut Prompts,
    /// By id.
    samples: Vec<Sample>,
    in_flight: u32,
    ended: u64,
    failed: u64,
    tokens: u64,
    held_back: u64,
    backoff: Backoff,
    last_end: SimTime,
    /// Under a rate limit, no send before this.
    next_by_rate: Option<Instant>,
    origin: Instant,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Pacer<'_> {
    /// Now, after the start [ns].
    fn now(&self) -> u64 {
        u64::try_from(
            Instant::now()
                .saturating_duration_since(self.origin)
                .as_nanos(),
        )
        .unwrap_or(u64::MAX)
    }

    fn run(
        &mut self,
        workload: &mut dyn Workload,
        ends: &Receiver<Done>,
        cancel: &watch::Sender<bool>,
    ) -> Result<Stopped, DriveError> {
        let mut spec = RequestSpec::default();
        let mut stopped: Option<Stopped> = None;
        let mut next_check = self.origin + CHECK_EVERY;
        let mut waited_for: Option<SimTime> = None;
        loop {
            while let Ok(done) = ends.try_recv() {
                self.take(done, workload);
            }
            let now = Instant::now();
            if stopped.is_none() && (now >= next_check || self.options.stop.load(Ordering::Relaxed))
            {
                next_check = now + CHECK_EVERY;
                stopped = self.enough();
                if matches!(
                    stopped,
                    Some(Stopped::Errors(_) | Stopped::Failing(_) | Stopped::Asked)
                ) {
                    // Nobody waits any more: the traces say so.
                    let _ = cancel.send(true);
                }
            }
            if self.options.end.is_some_and(|end| now >= self.origin + end) {
                stopped.get_or_insert(Stopped::Done);
                let _ = cancel.send(true);
            }
            let due = if stopped.is_some() {
                None
            } else {
                workload.peek()
            };
            let Some(at) = due else {
                if self.in_flight == 0 {
                    return Ok(stopped.unwrap_or(Stopped::Done));
                }
                self.wait(ends, NAP, workload)?;
                continue;
            };
            if let Some(cap) = self.capped(at) {
                stopped = Some(cap);
                continue;
            }
            if self
                .options
                .caps
                .concurrency
                .is_some_and(|most| self.in_flight >= most)
            {
                if now >= self.origin + Duration::from_nanos(at.0) && waited_for != Some(at) {
                    waited_for = Some(at);
                    self.held_back += 1;
                }
                self.wait(ends, NAP, workload)?;
                continue;
            }
            let mut when = self.origin + Duration::from_nanos(at.0);
            if let Some(earliest) = self.next_by_rate {
                when = when.max(earliest);
            }
            if when > now {
                self.wait(ends, (when - now).min(NAP), workload)?;
                continue;
            }
            let id = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            workload.pop(id, &mut spec);
            let cost = u64::from(spec.prompt_tokens) + u64::from(spec.output_tokens);
            if let Some(most) = self.options.caps.total_tokens
                && self.tokens + cost > most
            {
                stopped = Some(Stopped::Cap(format!("the limit of {most} tokens in all")));
                continue;
            }
            self.tokens += cost;
            self.send(id, &spec)?;
        }
    }

    /// A hard limit that the request at `at` would exceed.
    fn capped(&self, at: SimTime) -> Option<Stopped> {
        let caps = &self.options.caps;
        if caps
            .requests
            .is_some_and(|most| self.samples.len() as u64 >= most)
        {
            return Some(Stopped::Cap(format!(
                "the limit of {} requests",
                self.samples.len()
            )));
        }
        caps.duration
            .filter(|most| {
                Duration::from_nanos(at.0) > *most || Duration::from_nanos(self.now()) > *most
            })
            .map(|most| Stopped::Cap(format!("the limit of {} s", most.as_secs_f64())))
    }

    fn enough(&self) -> Option<Stopped> {
        if self.options.stop.load(Ordering::Relaxed) {
            return Some(Stopped::Asked);
        }
        if self
            .options
            .caps
            .errors
            .is_some_and(|most| self.failed >= most.max(1))
        {
            return Some(Stopped::Errors(self.failed));
        }
        // What is under way may still be answered.
        if self.in_flight == 0
            && let Some(most) = self.options.give_up_after
            && let Some(failing) = self.backoff.failing_for(self.now())
            && failing >= most
        {
            return Some(Stopped::Failing(failing));
        }
        let until = &self.options.until;
        if !until.is_empty() {
            let warmup = u64::try_from(self.options.warmup.as_nanos()).unwrap_or(u64::MAX);
            let ended: Vec<&Sample> = self
                .samples
                .iter()
                .filter(|s| s.trace.end_ns > 0 && s.trace.ok() && s.sent_ns >= warmup)
                .collect();
            if until.iter().all(|u| u.met(&ended)) {
                return Some(Stopped::Known);
            }
        }
        None
    }

    fn send(&mut self, id: u32, spec: &RequestSpec) -> Result<(), DriveError> {
        let request = GenerateRequest {
            prompt: self.prompts.write(id, spec),
            max_tokens: spec.output_tokens,
            exact: true,
            priority: (spec.priority != 0).then_some(spec.priority),
            timeout: spec.timeout.map(|t| Duration::from_nanos(t.0)),
            keep_output: self.options.keep_output || spec.output_content != 0,
            extra: self.options.extra.clone(),
        };
        if let Some(rate) = self.options.caps.rate.filter(|r| *r > 0.0) {
            let from = self
                .next_by_rate
                .unwrap_or_else(Instant::now)
                .max(Instant::now());
            self.next_by_rate = Some(from + Duration::from_secs_f64(1.0 / rate));
        }
        self.samples.push(Sample {
            spec: spec.clone(),
            planned_ns: spec.arrival.0,
            sent_ns: 0,
            trace: RequestTrace::pending(),
        });
        self.in_flight += 1;
        if let Some(p) = &self.options.progress {
            p.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.jobs
            .send(Job { id, request })
            .map_err(|_| DriveError::Client)
    }

    fn wait(
        &mut self,
        ends: &Receiver<Done>,
        most: Duration,
        workload: &mut dyn Workload,
    ) -> Result<(), DriveError> {
        match ends.recv_timeout(most) {
            Ok(done) => {
                self.take(done, workload);
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(DriveError::Client),
        }
    }

    /// A request has ended.
    fn take(&mut self, done: Done, workload: &mut dyn Workload) {
        let Some(sample) = self.samples.get_mut(done.id as usize) else {
            return;
        };
        sample.sent_ns = u64::try_from(
            done.trace
                .start
                .saturating_duration_since(self.origin)
                .as_nanos(),
        )
        .unwrap_or(u64::MAX);
        sample.trace = done.trace;
        let outcome = sample.outcome();
        let at = SimTime(sample.sent_ns + sample.trace.end_ns).max(self.last_end);
        self.last_end = at;
        let pause_ns = match outcome {
            Outcome::Finished => {
                self.backoff.answered();
                0
            }
            Outcome::Failed => {
                let pause_ns = self.backoff.failed(sample.sent_ns, at.0);
                if self.options.retrying.contains(&sample.spec.stream) {
                    0
                } else {
                    pause_ns
                }
            }
            _ => 0,
        };
        let end = RequestEnd {
            id: done.id,
            tag: sample.spec.tag,
            stream: sample.spec.stream,
            session: sample.spec.session,
            outcome,
            // When its client goes on.
            at: SimTime(at.0.saturating_add(pause_ns)),
            output_tokens: sample.trace.output_tokens(),
        };
        self.prompts
            .answered(sample.spec.output_content, &sample.trace);
        self.in_flight -= 1;
        self.ended += 1;
        let ok = sample.trace.ok();
        self.failed += u64::from(!ok && outcome != Outcome::InFlight);
        if let Some(p) = &self.options.progress {
            p.output_tokens
                .fetch_add(u64::from(end.output_tokens), Ordering::Relaxed);
            if ok {
                p.finished.fetch_add(1, Ordering::Relaxed);
                p.ttft_us.fetch_add(
                    sample.trace.first_token_ns().unwrap_or(0) / 1000,
                    Ordering::Relaxed,
                );
                p.e2e_us
                    .fetch_add(sample.trace.end_ns / 1000, Ordering::Relaxed);
            } else {
                p.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if outcome != Outcome::InFlight {
            workload.on_end(&end);
        }
    }
}
