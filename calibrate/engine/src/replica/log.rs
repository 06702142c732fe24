//! What a replica writes into the step log: a row for each step, and one for each request that has ended.

use sim::kernel::time::SimTime;
use sim::policy::StepPlan;
use sim::record::StepRow;
use sim::request::ReqId;

use super::in_flight::InFlight;
use super::sequence::Seq;
use super::{Driver, Submission};
use crate::executor::StepTimes;
use crate::step_log::{LogEntry, LogOutcome, LogRequest, LogStep, LogTimes};

impl Driver {
    /// A request that the policy refused.
    pub(super) fn log_rejected(&self, now: SimTime, s: &Submission, block_hashes: Vec<u64>) {
        if let Some(log) = &self.spec.log {
            log.request(LogRequest {
                id: s.id,
                replica: self.spec.index,
                added: now,
                ended: now,
                outcome: LogOutcome::Rejected,
                prompt_tokens: u32::try_from(s.request.prompt.len()).unwrap_or(u32::MAX),
                max_tokens: s.request.max_tokens,
                output_tokens: 0,
                priority: s.request.priority,
                cached_tokens: 0,
                preemptions: 0,
                block_hashes,
            });
        }
    }

    /// A request that has left the scheduler.
    pub(super) fn log_ended(&self, now: SimTime, seq: Seq, outcome: LogOutcome) {
        if let Some(log) = &self.spec.log {
            log.request(LogRequest {
                id: seq.id,
                replica: self.spec.index,
                added: seq.added,
                ended: now,
                outcome,
                prompt_tokens: seq.request.prompt.len() as u32,
                max_tokens: seq.request.max_tokens,
                output_tokens: seq.output().len() as u32,
                priority: seq.request.priority,
                cached_tokens: seq.cached,
                preemptions: seq.preemptions,
                block_hashes: seq.hashes.full,
            });
        }
    }

    /// What a step is to hold, for [`Driver::log_step`].
    pub(super) fn log_entries(&self, plan: &StepPlan) -> Vec<LogEntry> {
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

    /// A step that has ended, with what of its time went into the forward pass (`t`) and into choosing tokens.
    pub(super) fn log_step(&self, now: SimTime, step: InFlight, t: StepTimes, sample: f64) {
        let Some(log) = &self.spec.log else {
            return;
        };
        // With one step in flight its time has no other part; with several they overlap, and the rest is waiting.
        let host = if self.depth == 1 {
            now.since(step.row.start).as_secs() - t.named() - t.paced - sample
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
}
