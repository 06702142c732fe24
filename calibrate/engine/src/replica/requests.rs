//! Requests as they come and go: into the scheduler, and out of it by their last token, a cancellation or a failure.

use std::sync::atomic::Ordering;

use sim::kernel::time::SimTime;
use sim::policy::SeqParams;
use sim::request::{RejectReason, ReqId};

use super::sequence::{Hashes, Seq};
use super::{Driver, Submission, lock};
use crate::metrics::{EndReason, RequestTimes};
use crate::request::{Event, Failure};
use crate::step_log::LogOutcome;

impl Driver {
    /// Offers a request to the scheduler, which may refuse it.
    pub(super) fn add(&mut self, now: SimTime, s: Submission) {
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
        let mut hashes = Hashes::new(self.spec.policy.hash_block, r.cache_salt);
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
            self.log_rejected(now, &s, hashes.full);
            self.refuse(now, &s, Failure::Rejected(reason));
            return;
        }
        self.ask = true;
        self.by_id.insert(s.id, slot);
        self.seqs[slot as usize] = Some(Box::new(Seq::new(s, hashes, now)));
    }

    /// Answers a request that the scheduler does not have.
    pub(super) fn refuse(&mut self, now: SimTime, s: &Submission, failure: Failure) {
        self.spec.queued.fetch_sub(1, Ordering::Relaxed);
        self.count_end(EndReason::Error, s, now);
        if failure == Failure::Rejected(RejectReason::QueueFull) {
            lock(&self.shared.metrics).kept_out();
        }
        let _ = s.events.send(Event::Failed(failure));
    }

    /// Counts the end of a request that never ran.
    pub(super) fn count_end(&self, reason: EndReason, s: &Submission, now: SimTime) {
        lock(&self.shared.metrics).ended(
            reason,
            &RequestTimes {
                first_scheduled: None,
                first_token: None,
                end: now.since(s.submitted).as_secs(),
                prompt_tokens: s.request.prompt.len() as u32,
                cached_tokens: 0,
                output_tokens: 0,
                max_tokens: s.request.max_tokens,
                preemptions: 0,
            },
            &s.family,
        );
    }

    /// Takes a request out of the scheduler whose client has left.
    pub(super) fn cancel(&mut self, now: SimTime, slot: ReqId) {
        self.scheduler.cancel(slot);
        self.ask = true;
        self.retire(now, slot, LogOutcome::Cancelled, EndReason::Abort);
    }

    /// The scheduler is done with `slot`, or has been told to be.
    pub(super) fn retire(
        &mut self,
        now: SimTime,
        slot: ReqId,
        outcome: LogOutcome,
        reason: EndReason,
    ) {
        let Some(seq) = self.seqs[slot as usize].take() else {
            return;
        };
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
            cached_tokens: seq.cached,
            output_tokens: seq.output().len() as u32,
            max_tokens: seq.request.max_tokens,
            preemptions: seq.preemptions,
        };
        lock(&self.shared.metrics).ended(reason, &times, &seq.family);
        self.log_ended(now, *seq, outcome);
    }

    /// Tells the client of a failure and retires the request, which the scheduler has let go.
    pub(super) fn fail(
        &mut self,
        now: SimTime,
        slot: ReqId,
        outcome: LogOutcome,
        failure: Failure,
    ) {
        if let Some(seq) = self.seqs[slot as usize].as_deref() {
            let _ = seq.events.send(Event::Failed(failure));
        }
        self.retire(now, slot, outcome, EndReason::Error);
    }
}
