//! One replica: a scheduler of the simulator and a forward pass, driven by the wall clock on a thread of its own.
//!
//! The loop goes from tick to tick. A tick is one instant: the end of a step, or, when nothing runs, a request, a
//! cancellation or the scheduler's own wake-up. At a tick the ended step is completed, then cancellations and new requests
//! reach the scheduler, then steps are planned and submitted while there is room in flight: the order that the simulator
//! keeps at equal instants. All of it carries the same stamp, so a step follows the one before without a gap, and its
//! duration holds everything from its planning until its tokens have been handed out.
//!
//! Here are the handle that other threads have, and the loop. `requests.rs` takes requests in and lets them go, `steps.rs`
//! plans, submits and completes, `tokens.rs` chooses and sends, `log.rs` writes; `sequence.rs` is what a request is meanwhile.

mod in_flight;
mod log;
mod requests;
mod sequence;
mod steps;
mod tokens;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sim::kernel::time::SimTime;
use sim::policy::{Load, Scheduler};
use sim::request::ReqId;

use crate::executor::Executor;
use crate::metrics::{EndReason, ReplicaMetrics};
use crate::pages::PageTable;
use crate::policy::Policy;
use crate::request::Failure;
use crate::step_log::StepLogWriter;
use crate::text::Text;
use in_flight::InFlight;
use sequence::Seq;

pub use sequence::Submission;

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

enum Command {
    /// Sequences that reach the scheduler at one instant.
    Add(Vec<Submission>),
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

    /// Hands in requests that reach the scheduler at one instant. False: the replica has stopped.
    pub fn submit(&self, submissions: Vec<Submission>) -> bool {
        self.commands.send(Command::Add(submissions)).is_ok()
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

    /// Requests whose end its series count.
    pub fn counted(&self) -> u64 {
        lock(&self.shared.metrics).ends().iter().sum()
    }

    /// Whether its forward pass is broken for good.
    pub fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed)
    }

    /// Cancels what is left, without waiting for it.
    pub fn begin_stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Cancels what is left, and waits until the thread has ended.
    pub fn stop(&self) {
        self.begin_stop();
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

/// The loop, on the replica's own thread.
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
    /// Came together with a wake-up that was due before it.
    held: Option<Command>,
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
            held: None,
            stopping: false,
        }
    }

    fn clock(&self) -> SimTime {
        SimTime(u64::try_from(self.spec.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    /// The instant of a tick that begins now. Ticks are told apart, also by a coarse clock.
    fn tick(&self) -> SimTime {
        self.clock().max(SimTime(self.last_tick.0 + 1))
    }

    fn run(mut self) {
        loop {
            let mut commands = Vec::new();
            let mut now = None;
            let collected = if self.in_flight.is_empty() {
                match self.await_command() {
                    Awaited::Command(c) => {
                        let at = self.tick();
                        // A wake-up is an instant of its own, which may lie a little back: what has come since comes
                        // after it.
                        if self.wake < at {
                            self.held = Some(c);
                            now = Some(self.wake);
                        } else {
                            commands.push(c);
                            now = Some(at);
                        }
                    }
                    Awaited::Wake(at) => now = Some(at),
                    Awaited::Gone => return,
                }
                None
            } else {
                self.collect()
            };
            let now = now.unwrap_or_else(|| self.tick());
            self.last_tick = now;
            let woken = self.wake <= now;
            if let Some(c) = collected {
                self.complete(now, c);
            }
            if !woken || !commands.is_empty() {
                commands.extend(self.held.take().into_iter().chain(self.commands.try_iter()));
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
        if let Some(c) = self.held.take() {
            return Awaited::Command(c);
        }
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
                Command::Add(s) => adds.extend(s),
                Command::Cancel(id) => cancels.push(id),
                Command::Stop => self.stopping = true,
            }
        }
        if self.stopping {
            cancels.extend(self.seqs.iter().flatten().map(|s| s.id));
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
                self.count_end(EndReason::Abort, &s, now);
            } else if self.stopping {
                self.refuse(now, &s, Failure::ShuttingDown);
            } else {
                self.add(now, s);
            }
        }
    }
}

enum Awaited {
    Command(Command),
    Wake(SimTime),
    /// Nobody can send commands any more.
    Gone,
}
