//! One replica: a scheduler of the simulator and a forward pass, driven by the wall clock on a thread of its own.
//!
//! The loop goes from tick to tick. A tick is one instant: the end of a step, or, when nothing runs, a request, a
//! cancellation or the scheduler's own wake-up. At a tick the ended step is completed, then cancellations and new requests
//! reach the scheduler, then steps are planned and submitted while there is room in flight: the order that the simulator
//! keeps at equal instants. All of it carries the same stamp, so a step follows the one before without a gap, and its
//! duration holds everything from its planning until its tokens have been handed out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sim::kernel::time::SimTime;
use sim::kv::chain;
use sim::policy::{Load, Scheduler, SeqParams, StepPlan};
use sim::record::StepRow;
use sim::request::ReqId;
use tokio::sync::mpsc::UnboundedSender;

use crate::executor::{Executor, ExecutorError, SeqInput, StepOutput, StepTimes};
use crate::metrics::{EndReason, ReplicaMetrics, RequestTimes};
use crate::pages::PageTable;
use crate::policy::Policy;
use crate::request::{Ended, Event, Failure, Finish, GenerateRequest, StopReason, Token};
use crate::sampling::{Sampler, logprobs};
use crate::step_log::{LogEntry, LogOutcome, LogRequest, LogStep, LogTimes, StepLogWriter};
use crate::text::{StopMatcher, Text, Utf8Stream};

/// Seed of every chain of content hashes.
const HASH_ROOT: u64 = 0x656e_6769_6e65_0001;

/// What every replica needs to know.
pub struct ReplicaSpec {
    /// Its index.
    pub index: u32,
    /// The policy it runs.
    pub policy: Policy,
    /// Turns tokens into text.
    pub text: Arc<Text>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The start of the engine: instant zero of every stamp.
    pub epoch: Instant,
    /// Requests not yet scheduled for the first time, of all replicas.
    pub queued: Arc<AtomicU64>,
    /// Where steps and requests are logged.
    pub log: Option<StepLogWriter>,
}

/// A request on its way into a replica.
pub struct Submission {
    /// The engine's number of it.
    pub id: u64,
    /// What is asked.
    pub request: GenerateRequest,
    /// Where its tokens go.
    pub events: UnboundedSender<Event>,
    /// When it reached the engine [ns since its start].
    pub submitted: SimTime,
}

enum Command {
    Add(Box<Submission>),
    Cancel(u64),
    Stop,
}

/// What of a replica can be seen from other threads.
#[derive(Default)]
struct Shared {
    metrics: Mutex<ReplicaMetrics>,
    /// The forward pass is broken for good.
    broken: AtomicBool,
}

/// A running replica.
pub struct Replica {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counters stay meaningful whatever panicked while it held them.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replica {
    /// Starts a replica on `executor`, whose cache has [`Policy::cache_blocks`] blocks of [`Policy::block_size`] tokens.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(spec: ReplicaSpec, executor: Box<dyn Executor>) -> std::io::Result<Replica> {
        let (commands, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let driver = Driver::new(spec, executor, receiver, shared.clone());
        lock(&shared.metrics).load = driver.scheduler.load();
        let thread = std::thread::Builder::new()
            .name(format!("replica-{}", driver.spec.index))
            .spawn(move || driver.run())?;
        Ok(Replica {
            commands,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands in a request. False: the replica has stopped.
    pub fn submit(&self, submission: Submission) -> bool {
        self.commands
            .send(Command::Add(Box::new(submission)))
            .is_ok()
    }

    /// Drops a request whose client has left; one that has ended is ignored.
    pub fn cancel(&self, id: u64) {
        // A stopped replica holds no requests.
        let _ = self.commands.send(Command::Cancel(id));
    }

    /// What its scheduler showed at the last tick.
    pub fn load(&self) -> Load {
        lock(&self.shared.metrics).load
    }

    /// Its series.
    pub fn metrics(&self) -> ReplicaMetrics {
        lock(&self.shared.metrics).clone()
    }

    /// Whether its forward pass is broken for good.
    pub fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed)
    }

    /// Cancels what is left, and waits until the thread has ended.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            self.shared.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A sequence under the id that the scheduler knows it by.
struct Seq {
    live: bool,
    id: u64,
    request: GenerateRequest,
    events: UnboundedSender<Event>,
    /// Prompt and output.
    tokens: Vec<u32>,
    sampler: Sampler,
    utf8: Utf8Stream,
    stops: StopMatcher,
    hashes: Hashes,
    submitted: SimTime,
    added: SimTime,
    first_scheduled: Option<SimTime>,
    first_token: Option<SimTime>,
    last_token: SimTime,
    cached: u32,
    preemptions: u32,
}

impl Seq {
    fn output(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }
}

/// Chained content hashes of a sequence's full blocks, as far as its tokens are known.
#[derive(Clone, Debug)]
struct Hashes {
    /// Tokens per block; 0: none wanted.
    block: usize,
    running: u64,
    hashed: usize,
    full: Vec<u64>,
}

impl Hashes {
    fn new(block: Option<u32>) -> Hashes {
        Hashes {
            block: block.unwrap_or(0) as usize,
            running: HASH_ROOT,
            hashed: 0,
            full: Vec::new(),
        }
    }

    /// Takes in the tokens that are new in `tokens`, and returns the hashes of the blocks that they fill.
    fn extend(&mut self, tokens: &[u32]) -> &[u64] {
        let before = self.full.len();
        if self.block > 0 {
            for &t in &tokens[self.hashed..] {
                self.running = chain(self.running, u64::from(t));
                self.hashed += 1;
                if self.hashed.is_multiple_of(self.block) {
                    self.full.push(self.running);
                }
            }
        }
        &self.full[before..]
    }
}

struct InFlight {
    plan: StepPlan,
    row: StepRow,
    preempted: Vec<u64>,
    entries: Vec<LogEntry>,
    /// Time spent on planning and building it [s].
    prepared: f64,
    /// Time spent on handing out its tokens [s].
    handed_out: f64,
    /// It was not even taken in, or a step before it has failed.
    failed: Option<String>,
    submitted: bool,
}

/// The oldest step, with its tokens handed out.
struct Collected {
    step: InFlight,
    times: StepTimes,
    sample: f64,
    stopped: Vec<ReqId>,
    /// How those ended, in the same order.
    finishes: Vec<Finish>,
    failure: Option<String>,
    /// Sequences whose output makes no sense.
    broken: Vec<ReqId>,
}

struct Driver {
    spec: ReplicaSpec,
    executor: Box<dyn Executor>,
    scheduler: Box<dyn Scheduler>,
    /// Storage of policies that name no blocks.
    pages: Option<PageTable>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    depth: usize,
    in_flight: VecDeque<InFlight>,
    seqs: Vec<Option<Box<Seq>>>,
    by_id: HashMap<u64, ReqId>,
    free_ids: Vec<ReqId>,
    /// Ids that steps in flight may still name, with the number of steps that must complete first.
    resting: VecDeque<(u64, ReqId)>,
    planned: u64,
    completed: u64,
    last_tick: SimTime,
    /// Something has changed since the scheduler last had nothing to run.
    ask: bool,
    wake: SimTime,
    stopping: bool,
}

impl Driver {
    fn new(
        spec: ReplicaSpec,
        executor: Box<dyn Executor>,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Driver {
        let mut scheduler = (spec.policy.make)(true);
        let pages = match scheduler.kv_manager_mut() {
            Some(kv) => {
                kv.name_blocks();
                None
            }
            None => Some(PageTable::new(
                spec.policy.cache_blocks,
                spec.policy.block_size,
            )),
        };
        Driver {
            depth: (scheduler.depth().max(1) as usize).min(executor.depth().max(1)),
            spec,
            executor,
            scheduler,
            pages,
            commands,
            shared,
            in_flight: VecDeque::new(),
            seqs: Vec::new(),
            by_id: HashMap::new(),
            free_ids: Vec::new(),
            resting: VecDeque::new(),
            planned: 0,
            completed: 0,
            last_tick: SimTime::ZERO,
            ask: false,
            wake: SimTime::NEVER,
            stopping: false,
        }
    }

    fn clock(&self) -> SimTime {
        SimTime(u64::try_from(self.spec.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    fn run(mut self) {
        loop {
            let mut commands = Vec::new();
            let mut now = None;
            let collected = if self.in_flight.is_empty() {
                match self.await_command() {
                    Awaited::Command(c) => commands.push(c),
                    Awaited::Wake(at) => now = Some(at),
                    Awaited::Gone => return,
                }
                None
            } else {
                self.collect()
            };
            // Ticks are told apart, also by a coarse clock.
            let now = now.unwrap_or_else(|| self.clock().max(SimTime(self.last_tick.0 + 1)));
            self.last_tick = now;
            let woken = self.wake <= now;
            if let Some(c) = collected {
                self.complete(now, c);
            }
            // A wake-up is an instant of its own, which may lie a little back: what has come since comes after it.
            if !woken || !commands.is_empty() {
                commands.extend(self.commands.try_iter());
            }
            self.obey(now, commands);
            self.ask |= woken;
            self.start_steps(now);
            let load = self.scheduler.load();
            lock(&self.shared.metrics).load = load;
            if self.stopping && self.in_flight.is_empty() {
                return;
            }
        }
    }

    /// Waits for something to happen while nothing runs.
    fn await_command(&mut self) -> Awaited {
        if self.wake == SimTime::NEVER {
            return self.commands.recv().map_or(Awaited::Gone, Awaited::Command);
        }
        let left = self.wake.since(self.clock());
        match self.commands.recv_timeout(Duration::from_nanos(left.0)) {
            Ok(c) => Awaited::Command(c),
            Err(RecvTimeoutError::Timeout) => Awaited::Wake(self.wake),
            Err(RecvTimeoutError::Disconnected) => Awaited::Gone,
        }
    }

    /// Carries out commands: cancellations of what the scheduler has, in the order of arrival as in the simulator; then new
    /// requests, but for those that have been cancelled since.
    fn obey(&mut self, now: SimTime, commands: Vec<Command>) {
        let mut cancels: Vec<u64> = Vec::new();
        let mut adds = Vec::new();
        for c in commands {
            match c {
                Command::Add(s) => adds.push(s),
                Command::Cancel(id) => cancels.push(id),
                Command::Stop => self.stopping = true,
            }
        }
        if self.stopping {
            cancels.extend(self.seqs.iter().flatten().filter(|s| s.live).map(|s| s.id));
        }
        cancels.sort_unstable();
        cancels.dedup();
        let mut leaving: Vec<(SimTime, u64, ReqId)> = cancels
            .iter()
            .filter_map(|id| {
                let slot = *self.by_id.get(id)?;
                Some((self.seqs[slot as usize].as_deref()?.added, *id, slot))
            })
            .collect();
        leaving.sort_unstable();
        for (_, _, slot) in leaving {
            self.cancel(now, slot);
        }
        // Several callers hand in requests: the numbers they got say who was first.
        adds.sort_unstable_by_key(|s| s.id);
        for s in adds {
            if cancels.binary_search(&s.id).is_ok() {
                self.spec.queued.fetch_sub(1, Ordering::Relaxed);
                self.count_end(EndReason::Abort, s.submitted, now, &s.request);
            } else if self.stopping {
                self.refuse(now, &s, Failure::ShuttingDown);
            } else {
                self.add(now, s);
            }
        }
    }

    fn add(&mut self, now: SimTime, s: Box<Submission>) {
        while let Some(&(step, id)) = self.resting.front() {
            if step > self.completed {
                break;
            }
            self.resting.pop_front();
            self.free_ids.push(id);
        }
        let slot = self.free_ids.pop().unwrap_or_else(|| {
            self.seqs.push(None);
            self.seqs.len() as ReqId - 1
        });
        let r = &s.request;
        let mut hashes = Hashes::new(self.spec.policy.hash_block);
        let block_hashes = hashes.extend(&r.prompt).to_vec();
        let prompt_tokens = u32::try_from(r.prompt.len()).unwrap_or(u32::MAX);
        let params = SeqParams {
            prompt_tokens,
            max_tokens: r.max_tokens,
            priority: r.priority,
            arrival: now,
            block_hashes,
        };
        if let Err(reason) = self.scheduler.add(slot, params) {
            self.free_ids.push(slot);
            if let Some(log) = &self.spec.log {
                log.request(LogRequest {
                    id: s.id,
                    replica: self.spec.index,
                    added: now,
                    ended: now,
                    outcome: LogOutcome::Rejected,
                    prompt_tokens,
                    max_tokens: r.max_tokens,
                    output_tokens: 0,
                    priority: r.priority,
                    cached_tokens: 0,
                    preemptions: 0,
                    block_hashes: hashes.full,
                });
            }
            self.refuse(now, &s, Failure::Rejected(reason));
            return;
        }
        self.ask = true;
        self.by_id.insert(s.id, slot);
        let Submission {
            id,
            request,
            events,
            submitted,
        } = *s;
        let mut tokens = Vec::with_capacity(request.prompt.len() + 64);
        tokens.extend_from_slice(&request.prompt);
        self.seqs[slot as usize] = Some(Box::new(Seq {
            live: true,
            id,
            tokens,
            sampler: Sampler::new(request.sampling.clone(), id),
            utf8: Utf8Stream::default(),
            stops: StopMatcher::new(&request.stop),
            hashes,
            submitted,
            added: now,
            first_scheduled: None,
            first_token: None,
            last_token: now,
            cached: 0,
            preemptions: 0,
            request,
            events,
        }));
    }

    /// Answers a request that the scheduler does not have.
    fn refuse(&mut self, now: SimTime, s: &Submission, failure: Failure) {
        self.spec.queued.fetch_sub(1, Ordering::Relaxed);
        self.count_end(EndReason::Error, s.submitted, now, &s.request);
        let _ = s.events.send(Event::Failed(failure));
    }

    fn count_end(&self, reason: EndReason, submitted: SimTime, now: SimTime, r: &GenerateRequest) {
        lock(&self.shared.metrics).ended(
            reason,
            &RequestTimes {
                first_scheduled: None,
                first_token: None,
                end: now.since(submitted).as_secs(),
                prompt_tokens: r.prompt.len() as u32,
                output_tokens: 0,
                max_tokens: r.max_tokens,
            },
        );
    }

    fn cancel(&mut self, now: SimTime, slot: ReqId) {
        self.scheduler.cancel(slot);
        self.ask = true;
        self.retire(now, slot, LogOutcome::Cancelled, EndReason::Abort);
    }

    /// The scheduler is done with `slot`, or has been told to be.
    fn retire(&mut self, now: SimTime, slot: ReqId, outcome: LogOutcome, reason: EndReason) {
        let Some(seq) = self.seqs[slot as usize].as_deref_mut() else {
            return;
        };
        if !seq.live {
            return;
        }
        seq.live = false;
        self.by_id.remove(&seq.id);
        self.resting.push_back((self.planned, slot));
        if let Some(pages) = &mut self.pages {
            // Steps in flight that still write here end before any that gets these blocks next.
            pages.release(slot);
        }
        if seq.first_scheduled.is_none() {
            self.spec.queued.fetch_sub(1, Ordering::Relaxed);
        }
        let since = |t: SimTime| t.since(seq.submitted).as_secs();
        let times = RequestTimes {
            first_scheduled: seq.first_scheduled.map(since),
            first_token: seq.first_token.map(since),
            end: since(now),
            prompt_tokens: seq.request.prompt.len() as u32,
            output_tokens: seq.output().len() as u32,
            max_tokens: seq.request.max_tokens,
        };
        lock(&self.shared.metrics).ended(reason, &times);
        if let Some(log) = &self.spec.log {
            log.request(LogRequest {
                id: seq.id,
                replica: self.spec.index,
                added: seq.added,
                ended: now,
                outcome,
                prompt_tokens: times.prompt_tokens,
                max_tokens: seq.request.max_tokens,
                output_tokens: times.output_tokens,
                priority: seq.request.priority,
                cached_tokens: seq.cached,
                preemptions: seq.preemptions,
                block_hashes: std::mem::take(&mut seq.hashes.full),
            });
        }
        self.seqs[slot as usize] = None;
    }

    /// Plans and submits steps while there is room in flight.
    fn start_steps(&mut self, now: SimTime) {
        while self.ask && self.in_flight.len() < self.depth {
            let began = Instant::now();
            let mut plan = StepPlan::default();
            let runs = self.scheduler.plan(now, &mut plan);
            let preempted = self.note_plan(now, &plan);
            if !runs {
                self.ask = false;
                self.wake = self
                    .scheduler
                    .next_wake()
                    .filter(|&t| t > now)
                    .unwrap_or(SimTime::NEVER);
                return;
            }
            self.wake = SimTime::NEVER;
            self.planned += 1;
            let load = self.scheduler.load();
            let entries = self.log_entries(&plan);
            let (inputs, failed) = match self.inputs(&plan) {
                Ok(inputs) => (inputs, None),
                Err(e) => (Vec::new(), Some(e)),
            };
            let prepared = began.elapsed().as_secs_f64();
            let mut step = InFlight {
                row: StepRow {
                    replica: self.spec.index,
                    start: now,
                    end: now,
                    stats: plan.stats,
                    parts: hwmodels::Parts::default(),
                    running: load.running,
                    waiting: load.waiting,
                    kv_used_blocks: load.kv_used_blocks,
                    blocked: plan.blocked,
                },
                plan,
                preempted,
                entries,
                prepared,
                handed_out: 0.0,
                failed,
                submitted: false,
            };
            if step.failed.is_none() {
                match self.executor.submit(inputs) {
                    Ok(()) => step.submitted = true,
                    Err(e) => step.failed = Some(self.broken(&e)),
                }
            }
            self.in_flight.push_back(step);
        }
    }

    /// Notes first schedulings, preemptions and drops; returns the numbers of the preempted.
    fn note_plan(&mut self, now: SimTime, plan: &StepPlan) -> Vec<u64> {
        if !plan.admitted.is_empty() {
            let mut metrics = lock(&self.shared.metrics);
            for &id in &plan.admitted {
                let Some(seq) = self.seqs[id as usize].as_deref_mut() else {
                    continue;
                };
                if seq.first_scheduled.is_some() {
                    continue;
                }
                seq.first_scheduled = Some(now);
                self.spec.queued.fetch_sub(1, Ordering::Relaxed);
                let prompt = seq.request.prompt.len() as u32;
                let context = plan.entries.iter().find(|e| e.id == id);
                seq.cached = context.map_or(0, |e| e.context).min(prompt);
                metrics.first_scheduled(prompt, seq.cached);
            }
        }
        let mut preempted = Vec::new();
        for &id in &plan.preempted {
            if let Some(seq) = self.seqs[id as usize].as_deref_mut() {
                seq.preemptions += 1;
                preempted.push(seq.id);
            }
        }
        let mut failed = Vec::new();
        self.scheduler.take_failed(&mut failed);
        for id in failed.into_iter().rev() {
            self.fail(now, id, LogOutcome::Dropped, Failure::NeverRuns);
        }
        preempted
    }

    fn log_entries(&self, plan: &StepPlan) -> Vec<LogEntry> {
        if self.spec.log.is_none() {
            return Vec::new();
        }
        let number = |id: ReqId| self.seqs[id as usize].as_ref().map_or(u64::MAX, |s| s.id);
        plan.entries
            .iter()
            .map(|e| LogEntry {
                id: number(e.id),
                tokens: e.tokens,
                context: e.context,
            })
            .collect()
    }

    /// What the forward pass is to compute, in the plan's order.
    fn inputs(&mut self, plan: &StepPlan) -> Result<Vec<SeqInput>, String> {
        let block = self.spec.policy.block_size;
        let mut inputs = Vec::with_capacity(plan.entries.len());
        for e in &plan.entries {
            let seq = self.seqs[e.id as usize]
                .as_deref()
                .ok_or_else(|| format!("the scheduler planned {e:?}, which is not there"))?;
            let (from, to) = (e.context as usize, (e.context + e.tokens) as usize);
            let tokens = seq
                .tokens
                .get(from..to)
                .filter(|t| !t.is_empty())
                .ok_or_else(|| format!("{e:?}, but {} tokens are known", seq.tokens.len()))?
                .to_vec();
            let table = match (&mut self.pages, self.scheduler.kv_manager()) {
                (Some(pages), _) => {
                    pages.grow(e.id, to as u32);
                    pages.table(e.id)
                }
                (None, Some(kv)) => kv.table(e.id),
                (None, None) => &[],
            };
            let blocks = table
                .get(..to.div_ceil(block as usize))
                .ok_or_else(|| format!("{e:?} holds only {} KV blocks", table.len()))?
                .to_vec();
            inputs.push(SeqInput {
                tokens,
                context: e.context,
                blocks,
                sample: e.samples,
            });
        }
        Ok(inputs)
    }

    fn broken(&self, e: &ExecutorError) -> String {
        if matches!(e, ExecutorError::Worker(_)) {
            self.shared.broken.store(true, Ordering::Relaxed);
        }
        e.to_string()
    }

    /// Waits for the oldest step in flight, chooses its tokens and hands them out.
    fn collect(&mut self) -> Option<Collected> {
        let step = self.in_flight.pop_front()?;
        let mut failure = step.failed.clone();
        let mut output = StepOutput::default();
        if step.submitted {
            match self.executor.collect() {
                Ok(o) => output = o,
                Err(e) => failure = failure.or(Some(self.broken(&e))),
            }
        }
        let arrived = Instant::now();
        let mut c = Collected {
            step,
            times: output.times,
            sample: 0.0,
            stopped: Vec::new(),
            finishes: Vec::new(),
            failure,
            broken: Vec::new(),
        };
        if c.failure.is_none() {
            let vocab = self.executor.vocab();
            let rows = c.step.plan.entries.iter().filter(|e| e.samples).count();
            if output.logits.len() == rows * vocab && vocab > 0 {
                self.hand_out(&mut c, &mut output.logits, vocab);
            } else {
                c.failure = Some(format!(
                    "the forward pass gave {} logits for {rows} tokens of {vocab}",
                    output.logits.len()
                ));
            }
        }
        c.step.handed_out = arrived.elapsed().as_secs_f64() - c.sample;
        Some(c)
    }

    fn hand_out(&mut self, c: &mut Collected, logits: &mut [f32], vocab: usize) {
        let mut rows = logits.chunks_exact_mut(vocab);
        let began = Instant::now();
        let mut chosen = Vec::new();
        for e in c.step.plan.entries.iter().filter(|e| e.samples) {
            let Some(row) = rows.next() else { break };
            let Some(seq) = self.seqs[e.id as usize].as_deref_mut().filter(|s| s.live) else {
                continue;
            };
            match choose(seq, row, &self.spec.eos) {
                Some(token) => chosen.push((e.id, token)),
                None => c.broken.push(e.id),
            }
        }
        c.sample = began.elapsed().as_secs_f64();
        let now = self.clock();
        let mut metrics = lock(&self.shared.metrics);
        for (id, token) in chosen {
            let Some(seq) = self.seqs[id as usize].as_deref_mut() else {
                continue;
            };
            match seq.first_token {
                None => {
                    seq.first_token = Some(now);
                    let prompt = seq.request.prompt.len() as u32;
                    metrics.first_token(now.since(seq.submitted).as_secs(), prompt);
                }
                Some(_) => metrics.token(now.since(seq.last_token).as_secs()),
            }
            seq.last_token = now;
            let (text, ended) = take_token(seq, &token, &self.spec.text, &self.spec.eos);
            if let Some(e) = &ended {
                c.stopped.push(id);
                c.finishes.push(e.finish);
            }
            // A reader that has gone is about to be cancelled.
            let _ = seq.events.send(Event::Output {
                token,
                text,
                cached_tokens: seq.cached,
                ended,
            });
        }
    }

    /// Ends the step in the scheduler's books and in ours.
    fn complete(&mut self, now: SimTime, c: Collected) {
        self.completed += 1;
        self.ask = true;
        let entries = &c.step.plan.entries;
        if let Some(message) = c.failure {
            // What the step was to compute is not in its blocks, and steps in flight behind it may have read them.
            for later in &mut self.in_flight {
                later.failed.get_or_insert_with(|| message.clone());
            }
            let failed = entries.len();
            for e in entries {
                self.fail_step(now, e.id, &message);
            }
            self.scheduler.complete(&c.step.plan, &[]);
            self.log_step(now, c.step, c.times, c.sample);
            eprintln!(
                "error: replica {}: step {} failed, and with it {} requests: {message}",
                self.spec.index, self.completed, failed
            );
            return;
        }
        for &id in &c.broken {
            self.fail_step(now, id, "the model's logits are no numbers");
        }
        for e in entries.iter().filter(|e| e.samples) {
            if let Some(seq) = self.seqs[e.id as usize].as_deref_mut() {
                let new = seq.hashes.extend(&seq.tokens);
                if !new.is_empty() {
                    self.scheduler.extend_content(e.id, new);
                }
            }
        }
        self.scheduler.complete(&c.step.plan, &c.stopped);
        lock(&self.shared.metrics).step(c.step.plan.stats.tokens(), c.step.preempted.len());
        for (&id, &finish) in c.stopped.iter().zip(&c.finishes).rev() {
            self.retire(now, id, LogOutcome::Finished, EndReason::Finished(finish));
        }
        self.log_step(now, c.step, c.times, c.sample);
    }

    fn log_step(&self, now: SimTime, step: InFlight, t: StepTimes, sample: f64) {
        let Some(log) = &self.spec.log else {
            return;
        };
        // With one step in flight its time has no other part; with several they overlap, and the rest is waiting.
        let host = if self.depth == 1 {
            now.since(step.row.start).as_secs() - t.named() - sample
        } else {
            step.prepared + step.handed_out + (t.total - t.named())
        };
        log.step(LogStep {
            row: StepRow {
                end: now,
                ..step.row
            },
            times: LogTimes::new(&t, sample, host),
            preempted: step.preempted,
            entries: step.entries,
        });
    }

    /// Fails a request whose forward pass did; nobody finds its blocks in the prefix cache.
    fn fail_step(&mut self, now: SimTime, slot: ReqId, message: &str) {
        if !self.seqs[slot as usize].as_deref().is_some_and(|s| s.live) {
            return;
        }
        if let Some(kv) = self.scheduler.kv_manager_mut() {
            kv.forget_content(slot);
        }
        self.scheduler.cancel(slot);
        self.fail(
            now,
            slot,
            LogOutcome::Failed,
            Failure::Executor(message.to_string()),
        );
    }

    fn fail(&mut self, now: SimTime, slot: ReqId, outcome: LogOutcome, failure: Failure) {
        if let Some(seq) = self.seqs[slot as usize].as_deref() {
            let _ = seq.events.send(Event::Failed(failure));
        }
        self.retire(now, slot, outcome, EndReason::Error);
    }
}

enum Awaited {
    Command(Command),
    Wake(SimTime),
    /// Nobody can send commands any more.
    Gone,
}

/// Chooses the next token of `seq` and adds it to its tokens.
fn choose(seq: &mut Seq, row: &mut [f32], eos: &[u32]) -> Option<Token> {
    let prompt = seq.request.prompt.len();
    let r = &seq.request;
    let raw = r.logprobs.map(|_| row.to_vec());
    let mut banned: Vec<u32> = Vec::new();
    if ((seq.tokens.len() - prompt) as u32) < r.min_tokens {
        banned.extend(eos.iter().filter(|_| !r.ignore_eos));
        banned.extend(&r.stop_token_ids);
    }
    let (p, o) = seq.tokens.split_at(prompt);
    let id = seq.sampler.choose(row, &banned, p, o)?;
    seq.tokens.push(id);
    Some(Token {
        id,
        logprobs: raw
            .zip(r.logprobs)
            .map(|(raw, top)| logprobs(&raw, id, top as usize)),
    })
}

/// The text that `token`, the last of `seq`, makes certain, and whether the output ends with it.
fn take_token(seq: &mut Seq, token: &Token, text: &Text, eos: &[u32]) -> (String, Option<Ended>) {
    let made = seq.output().len() as u32;
    let r = &seq.request;
    let is_eos = !r.ignore_eos && eos.contains(&token.id);
    let is_stop = r.stop_token_ids.contains(&token.id);
    let mut fresh = String::new();
    let hidden = r.skip_special_tokens && text.is_special(token.id);
    // vLLM shows a stop token only when asked to include stop strings.
    if !hidden && !((is_eos || is_stop) && !r.include_stop_str_in_output) {
        seq.utf8.push(text.token_bytes(token.id), &mut fresh);
    }
    let last = made >= r.max_tokens || is_eos || is_stop;
    if last {
        seq.utf8.finish(&mut fresh);
    }
    // Stop strings count from `min_tokens` on.
    let (mut out, found) = if made >= r.min_tokens {
        seq.stops.push(&fresh, r.include_stop_str_in_output)
    } else {
        (fresh, None)
    };
    let ended = if let Some(stop) = found {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: Some(StopReason::Text(stop)),
        })
    } else if is_eos {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: None,
        })
    } else if is_stop {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: Some(StopReason::Token(token.id)),
        })
    } else if made >= r.max_tokens {
        Some(Ended {
            finish: Finish::Length,
            stop_reason: None,
        })
    } else {
        None
    };
    if ended
        .as_ref()
        .is_some_and(|e| !matches!(e.stop_reason, Some(StopReason::Text(_))))
    {
        out.push_str(&seq.stops.finish());
    }
    (out, ended)
}
