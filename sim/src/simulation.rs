//! A run: workload -> gateway and router -> replicas -> record.
//!
//! Virtual time jumps from one instant at which something happens to the next; the order within an instant is that of
//! [`crate::cluster`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hwmodels::StepModel;

use crate::cluster::drift::{Drift, SpeedDrift, StepTimes};
use crate::cluster::engine::{Engine, Out, Surroundings};
use crate::cluster::events::{Class, Events};
use crate::cluster::requests::{Requests, Slot, Stage};
use crate::cluster::router::{Router, RouterConfig};
use crate::cluster::stepped::SteppedReplica;
use crate::fast::{self, FastVllm};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kernel::tournament::Tournament;
use crate::kv::content::block_hashes;
use crate::metrics::{RecordOptions, Recorder};
use crate::policy::vllm_v1::{VllmV1, VllmV1Params};
use crate::policy::{Load, Scheduler};
use crate::record::{RecordError, RunInfo, RunRecord};
use crate::request::{Outcome, RejectReason, ReqId, RequestSpec};
use crate::workload::Workload;

/// Makes a policy; told whether requests of the run can share prompt content.
pub type MakeScheduler = Arc<dyn Fn(bool) -> Box<dyn Scheduler> + Send + Sync>;

/// The serving engine of a replica.
#[derive(Clone)]
pub enum EngineSpec {
    /// vLLM V1; `shared_content` is set from the workload.
    VllmV1(VllmV1Params),
    /// Any other policy.
    Policy {
        /// Makes one.
        make: MakeScheduler,
        /// Tokens per KV block, if it has a prefix cache that wants block hashes [tokens].
        hash_block: Option<u32>,
    },
}

/// One replica.
#[derive(Clone)]
pub struct ReplicaSpec {
    /// What runs on it.
    pub engine: EngineSpec,
    /// How long its steps take.
    pub step: Arc<dyn StepModel>,
    /// How the speed of its machine drifts; `None`: not at all.
    pub drift: Option<SpeedDrift>,
    /// From the gateway to the front end: network, and what is done there for any number of requests at once.
    pub input_delay: SimDuration,
    /// From there to the engine's queue.
    pub front_end: FrontEnd,
    /// From the end of a step until its tokens reach the client: detokenizer, HTTP, network.
    pub output_delay: SimDuration,
}

/// What takes requests in, in the order in which they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontEnd {
    /// Requests that it works on at once; 0: any number.
    pub workers: u32,
    /// How long it works on each request (HTTP, validation, ...) ...
    pub per_request: SimDuration,
    /// ... and on each token of its prompt (tokenizer).
    pub per_prompt_token: SimDuration,
}

/// Which code advances the replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// The fast path where it applies, the reference path elsewhere.
    #[default]
    Auto,
    /// Step by step, sequence by sequence.
    Reference,
    /// The fast path, or an error that says why it does not apply.
    Fast,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which code advances the replicas. Leaves no trace in the record.
    pub path: Path,
    /// What to keep.
    pub record: RecordOptions,
    /// The run ends here even if requests are under way; `None`: when all have ended.
    pub until: Option<SimTime>,
    /// Raised by one with each request that ends, for progress bars.
    pub progress: Option<Arc<AtomicU64>>,
    /// Checks what must always hold at every instant (slow; panics when it does not). For tests.
    pub check: bool,
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Nothing to send requests to.
    #[error("the deployment has no replica: give at least one")]
    NoReplica,
    /// The fast path was demanded.
    #[error("replica {replica} cannot take the fast path: {reason}; use the automatic choice")]
    NotFast {
        /// Index of the replica.
        replica: u32,
        /// What stands in the way.
        reason: &'static str,
    },
    /// A workload announced a request for an instant that had passed.
    #[error(
        "the workload announced a request at {announced:?} when the clock already showed {now:?}"
    )]
    WorkloadWentBack {
        /// What it said.
        announced: SimTime,
        /// The clock.
        now: SimTime,
    },
    /// Request ids are 32 bits wide.
    #[error("the workload offers more than {} requests in one run", u32::MAX)]
    TooManyRequests,
    /// The books do not balance: a defect of the simulator.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A deployment under simulation.
#[derive(Clone)]
pub struct Simulation {
    /// The replicas behind the router.
    pub replicas: Vec<ReplicaSpec>,
    /// The routing rule.
    pub router: RouterConfig,
    /// How old the engine state may be that the router sees: it is read every so often; `None`: always fresh.
    pub scrape_period: Option<SimDuration>,
    /// Longest time the gateway gives a request (a SageMaker endpoint: 60 s), as if its client gave up then.
    pub request_timeout: Option<SimDuration>,
    /// Seed of every random stream.
    pub seed: u64,
}

impl Simulation {
    /// Runs `workload` to its end, or to that of the options.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(
        &self,
        workload: &mut dyn Workload,
        options: &RunOptions,
        info: RunInfo,
    ) -> Result<RunRecord, RunError> {
        Run::new(self, workload, options)?.finish(info)
    }

    fn engine(&self, index: usize, shared: bool, path: Path) -> Result<Engine, RunError> {
        let spec = &self.replicas[index];
        let around = Surroundings {
            replica: index as u32,
            step: StepTimes::new(
                spec.step.clone(),
                spec.drift.map(|d| Drift::new(d, self.seed)),
            ),
            output_delay: spec.output_delay,
        };
        let stepped =
            |around, scheduler| Engine::Stepped(Box::new(SteppedReplica::new(around, scheduler)));
        let not_fast = |reason| RunError::NotFast {
            replica: index as u32,
            reason,
        };
        match &spec.engine {
            EngineSpec::VllmV1(params) => {
                let params = VllmV1Params {
                    shared_content: shared && params.enable_prefix_caching,
                    ..*params
                };
                match (path, fast::applies(&params)) {
                    (Path::Fast, Err(reason)) => Err(not_fast(reason)),
                    (Path::Auto | Path::Fast, Ok(())) => {
                        Ok(Engine::Fast(Box::new(FastVllm::new(params, around))))
                    }
                    _ => Ok(stepped(around, Box::new(VllmV1::new(params)))),
                }
            }
            EngineSpec::Policy { make, .. } => match path {
                Path::Fast => Err(not_fast("only vLLM V1 without data-parallel ranks has one")),
                _ => Ok(stepped(around, make(shared))),
            },
        }
    }
}

struct Run<'a> {
    sim: &'a Simulation,
    options: &'a RunOptions,
    workload: &'a mut dyn Workload,
    now: SimTime,
    until: SimTime,
    engines: Vec<Engine>,
    /// Tokens per block of the hashes each replica wants; 0: none.
    hash_blocks: Vec<u32>,
    clocks: Tournament,
    /// Replicas to start at this instant, in order once sorted.
    dirty: Vec<u32>,
    router: Router,
    scraped: Vec<Load>,
    front_ends: Vec<FrontDesk>,
    next_scrape: SimTime,
    requests: Requests,
    events: Events,
    recorder: Recorder,
    spec: RequestSpec,
    done: Vec<(Slot, bool)>,
    offered: u64,
    ended: u64,
}

/// The front end of a replica at work.
struct FrontDesk {
    /// When each worker has done its last request.
    free: Vec<SimTime>,
    /// How long all of them have worked.
    worked: SimDuration,
}

/// Share of its time from which on a front end at work is worth a warning.
const BUSY_FRONT_END: f64 = 0.8;

impl<'a> Run<'a> {
    fn new(
        sim: &'a Simulation,
        workload: &'a mut dyn Workload,
        options: &'a RunOptions,
    ) -> Result<Run<'a>, RunError> {
        let n = sim.replicas.len();
        if n == 0 {
            return Err(RunError::NoReplica);
        }
        let shared = workload.shares_content();
        let engines = (0..n)
            .map(|i| sim.engine(i, shared, options.path))
            .collect::<Result<Vec<_>, _>>()?;
        let hash_blocks = sim
            .replicas
            .iter()
            .map(|r| match &r.engine {
                EngineSpec::VllmV1(p) if shared && p.enable_prefix_caching => p.block_size,
                EngineSpec::Policy {
                    hash_block: Some(b),
                    ..
                } if shared => *b,
                _ => 0,
            })
            .collect();
        Ok(Run {
            workload,
            now: SimTime::ZERO,
            until: options.until.unwrap_or(SimTime::NEVER),
            clocks: Tournament::new(n),
            dirty: Vec::new(),
            router: Router::new(sim.router, n as u32, sim.seed),
            scraped: engines.iter().map(Engine::load).collect(),
            front_ends: sim
                .replicas
                .iter()
                .map(|r| FrontDesk {
                    free: vec![SimTime::ZERO; r.front_end.workers as usize],
                    worked: SimDuration::ZERO,
                })
                .collect(),
            next_scrape: SimTime::ZERO,
            requests: Requests::default(),
            events: Events::default(),
            recorder: Recorder::new(&options.record),
            spec: RequestSpec::default(),
            done: Vec::new(),
            offered: 0,
            ended: 0,
            engines,
            hash_blocks,
            sim,
            options,
        })
    }

    fn finish(mut self, mut info: RunInfo) -> Result<RunRecord, RunError> {
        loop {
            let next = self
                .clocks
                .first()
                .0
                .min(self.events.next())
                .min(self.workload.peek().unwrap_or(SimTime::NEVER));
            if next == SimTime::NEVER || next > self.until {
                break;
            }
            if next < self.now {
                return Err(RunError::WorkloadWentBack {
                    announced: next,
                    now: self.now,
                });
            }
            self.now = next;
            self.scrape();
            while self.one_class()? {}
            self.start_steps();
            if self.options.check {
                self.check();
            }
        }
        let end = self.options.until.unwrap_or(self.now);
        self.close(end);
        info.warnings.extend(self.busy_front_end(end));
        Ok(self.recorder.finish(end, info)?)
    }

    /// Says that requests waited where the engine does not see them, of the busiest front end.
    fn busy_front_end(&self, end: SimTime) -> Option<String> {
        let share = |desk: &FrontDesk| {
            let time = end.as_secs() * desk.free.len() as f64;
            if time > 0.0 {
                // The last requests may be worked on beyond the end.
                (desk.worked.as_secs() / time).min(1.0)
            } else {
                0.0
            }
        };
        let (replica, busiest) = (self.front_ends.iter().map(share).enumerate())
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|b| b.1 >= BUSY_FRONT_END)?;
        Some(format!(
            "the front end of replica {replica} had work for {:.0} % of the run: requests wait there before the engine sees them \
             (vLLM: `engine.api_server_count`)",
            100.0 * busiest
        ))
    }

    /// The first class that has something at this instant; false: none has.
    fn one_class(&mut self) -> Result<bool, RunError> {
        let now = self.now;
        if self.clocks.first().0 <= now {
            self.complete_steps();
            return Ok(true);
        }
        if let Some(e) = self.events.pop(now, Class::TimeOut) {
            if self.requests.is(e.slot, e.generation) {
                match e.class {
                    Class::Deliver => self.end(e.slot, Outcome::Finished),
                    _ => self.time_out(e.slot),
                }
            }
            return Ok(true);
        }
        if let Some(announced) = self.workload.peek().filter(|&t| t <= now) {
            if announced < now {
                return Err(RunError::WorkloadWentBack { announced, now });
            }
            self.arrive()?;
            return Ok(true);
        }
        if let Some(e) = self.events.pop(now, Class::Enter) {
            if self.requests.is(e.slot, e.generation) {
                self.enter(e.slot);
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn complete_steps(&mut self) {
        while let (at, replica) = self.clocks.first()
            && at <= self.now
        {
            // Its clock is set again when it has started.
            self.clocks.set(replica, SimTime::NEVER);
            self.dirty.push(replica);
            self.engines[replica as usize].complete(
                self.now,
                &mut Out {
                    requests: &mut self.requests,
                    recorder: &mut self.recorder,
                    done: &mut self.done,
                },
            );
            self.leave(replica);
        }
    }

    /// Sends what `replica` is done with to the clients.
    fn leave(&mut self, replica: u32) {
        let delay = self.sim.replicas[replica as usize].output_delay;
        for i in 0..self.done.len() {
            let (slot, finished) = self.done[i];
            if !finished {
                self.end(slot, Outcome::Failed);
            } else if delay == SimDuration::ZERO {
                self.end(slot, Outcome::Finished);
            } else {
                let r = self.requests.get_mut(slot);
                r.stage = Stage::Leaving;
                let generation = r.generation;
                self.events
                    .push(self.now + delay, Class::Deliver, slot, generation);
            }
        }
        self.done.clear();
    }

    fn start_steps(&mut self) {
        if self.dirty.len() > 1 {
            self.dirty.sort_unstable();
            self.dirty.dedup();
        }
        for i in 0..self.dirty.len() {
            let replica = self.dirty[i];
            let engine = &mut self.engines[replica as usize];
            engine.start(
                self.now,
                &mut Out {
                    requests: &mut self.requests,
                    recorder: &mut self.recorder,
                    done: &mut self.done,
                },
            );
            self.clocks.set(replica, engine.next());
            if !self.done.is_empty() {
                self.leave(replica);
            }
        }
        self.dirty.clear();
    }

    fn arrive(&mut self) -> Result<(), RunError> {
        let id = ReqId::try_from(self.offered).map_err(|_| RunError::TooManyRequests)?;
        self.workload.pop(id, &mut self.spec);
        self.offered += 1;
        self.recorder.offered(self.now);
        let (engines, scraped) = (&self.engines, &self.scraped);
        let fresh = self.sim.scrape_period.is_none();
        let replica = self.router.route(&self.spec, |i| {
            if fresh {
                engines[i as usize].load()
            } else {
                scraped[i as usize]
            }
        });
        self.spec.arrival = self.now;
        let slot = self.requests.open(id, &self.spec, replica);
        let r = self.requests.get_mut(slot);
        let block = self.hash_blocks[replica as usize];
        if block > 0 {
            block_hashes(&self.spec, id, block, &mut r.block_hashes);
        }
        let patience = match (self.spec.timeout, self.sim.request_timeout) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if let Some(patience) = patience {
            self.events
                .push(self.now + patience, Class::TimeOut, slot, r.generation);
        }
        let to = &self.sim.replicas[replica as usize];
        let tokens = u64::from(self.spec.prompt_tokens);
        let front_end = to.front_end;
        let tokenising = SimDuration(front_end.per_prompt_token.0.saturating_mul(tokens));
        let work = front_end.per_request + tokenising;
        let mut at = self.now + to.input_delay;
        let desk = &mut self.front_ends[replica as usize];
        match desk.free.iter_mut().min() {
            Some(free) => {
                at = at.max(*free) + work;
                *free = at;
                desk.worked = desk.worked + work;
            }
            None => at += work,
        }
        if at == self.now {
            self.enter(slot);
        } else {
            self.events.push(at, Class::Enter, slot, r.generation);
        }
        Ok(())
    }

    fn enter(&mut self, slot: Slot) {
        let replica = self.requests.get(slot).replica;
        let engine = &mut self.engines[replica as usize];
        match engine.enter(self.now, slot, &mut self.requests) {
            // A busy engine sees it when its step ends.
            Ok(()) => self.dirty.push(replica),
            Err(reason) => self.refuse(slot, reason),
        }
    }

    fn refuse(&mut self, slot: Slot, reason: RejectReason) {
        self.end(slot, Outcome::Rejected(reason));
    }

    fn time_out(&mut self, slot: Slot) {
        let r = self.requests.get(slot);
        let replica = r.replica;
        if let Stage::Engine(local) = r.stage {
            self.engines[replica as usize].cancel(local, &mut self.requests);
            self.dirty.push(replica);
        }
        self.end(slot, Outcome::TimedOut);
    }

    /// Closes the books on a request and tells everybody.
    fn end(&mut self, slot: Slot, outcome: Outcome) {
        let r = self.requests.get(slot);
        let row = r.row(outcome, self.now);
        let end = r.end(&row);
        self.recorder.request(&row);
        self.requests.close(slot);
        self.router.ended(row.replica);
        self.ended += 1;
        if let Some(progress) = &self.options.progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        self.workload.on_end(&end);
    }

    /// Before anything happens at this instant: what was true until now is what a scrape since the last instant has seen.
    fn scrape(&mut self) {
        let Some(period) = self.sim.scrape_period else {
            return;
        };
        if !self.sim.router.sees_loads() || self.now < self.next_scrape {
            return;
        }
        for (seen, engine) in self.scraped.iter_mut().zip(&self.engines) {
            *seen = engine.load();
        }
        let period = period.0.max(1);
        self.next_scrape = SimTime((self.now.0 / period + 1).saturating_mul(period));
    }

    fn close(&mut self, end: SimTime) {
        for engine in &mut self.engines {
            engine.close(
                end,
                &mut Out {
                    requests: &mut self.requests,
                    recorder: &mut self.recorder,
                    done: &mut self.done,
                },
            );
        }
        for slot in self.requests.in_use() {
            let row = self.requests.get(slot).row(Outcome::InFlight, end);
            self.recorder.request(&row);
        }
    }

    fn check(&self) {
        assert_eq!(
            self.offered,
            self.ended + self.requests.under_way() as u64,
            "requests are conserved"
        );
        for engine in &self.engines {
            engine.check(self.now);
        }
    }
}
