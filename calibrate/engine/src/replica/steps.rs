//! A step's way: planned by the scheduler, submitted to the forward pass, collected, completed.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sim::kernel::time::SimTime;
use sim::policy::{Given, StepPlan};
use sim::record::StepRow;
use sim::request::ReqId;

use super::in_flight::{Collected, InFlight};
use super::{Driver, lock};
use crate::executor::{ExecutorError, SeqInput, StepOutput};
use crate::metrics::EndReason;
use crate::request::Failure;
use crate::step_log::LogOutcome;

impl Driver {
    /// Plans and submits steps while there is room in flight.
    pub(super) fn start_steps(&mut self, now: SimTime) {
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
    pub(super) fn collect(&mut self) -> Option<Collected> {
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

    /// Ends the step in the scheduler's books and in ours.
    pub(super) fn complete(&mut self, now: SimTime, c: Collected) {
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
                self.fail_step(now, e.id, Failure::Executor(message.clone()));
            }
            self.scheduler.complete(&c.step.plan, Given::default());
            self.log_step(now, c.step, c.times, c.sample);
            // A closed standard error must not end the replica.
            let _ = writeln!(
                std::io::stderr(),
                "error: replica {}: step {} failed, and with it {} requests: {message}",
                self.spec.index,
                self.completed,
                failed
            );
            return;
        }
        for (id, failure) in c.broken {
            self.fail_step(now, id, failure);
        }
        for e in entries.iter().filter(|e| e.samples) {
            if let Some(seq) = self.seqs[e.id as usize].as_deref_mut() {
                let new = seq.hashes.extend(&seq.tokens);
                if !new.is_empty() {
                    self.scheduler.extend_content(e.id, new);
                }
            }
        }
        self.scheduler
            .complete(&c.step.plan, Given::one_each(&c.stopped));
        lock(&self.shared.metrics).step(c.step.plan.stats.tokens(), c.step.preempted.len());
        for (&id, &finish) in c.stopped.iter().zip(&c.finishes).rev() {
            self.retire(now, id, LogOutcome::Finished, EndReason::Finished(finish));
        }
        self.log_step(now, c.step, c.times, c.sample);
    }

    /// Fails a request whose forward pass did; nobody finds its blocks in the prefix cache.
    fn fail_step(&mut self, now: SimTime, slot: ReqId, failure: Failure) {
        if self.seqs[slot as usize].is_none() {
            return;
        }
        if let Some(kv) = self.scheduler.kv_manager_mut() {
            kv.forget_content(slot);
        }
        self.scheduler.cancel(slot);
        self.fail(now, slot, LogOutcome::Failed, failure);
    }
}
