//! What the gateway does with tries that fail: it sends requests again, and stops sending to replicas that fail.

use super::Run;
use crate::cluster::replica::Lifecycle;
use crate::cluster::requests::never_served;
use crate::kernel::time::SimTime;
use crate::record::RequestRow;
use crate::request::{Outcome, RejectReason, ReqId};
use crate::run::retries::Verdict;
use crate::workload::RequestEnd;

/// The status that a client of the replica sees is one of a server's fault (5xx).
fn is_server_fault(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Rejected(reason) => reason.http_status() >= 500,
        Outcome::Failed | Outcome::TimedOut => true,
        Outcome::Finished | Outcome::InFlight => false,
    }
}

impl Run<'_> {
    /// Whether the drawn request is one more than the gateway takes.
    pub(super) fn overflows(&self) -> bool {
        let Some(gate) = &self.gate else {
            return false;
        };
        let here = self.under_way + (self.gateway.len() + gate.waiting()) as u64;
        (gate.spec.max_requests).is_some_and(|most| here >= u64::from(most))
    }

    /// The gateway refuses the drawn request, of which it has too many.
    pub(super) fn overflow(&mut self, id: ReqId, now: SimTime) {
        if let Some(gate) = &mut self.gate {
            gate.record.overflowed += 1;
        }
        self.refuse(id, RejectReason::QueueFull, now);
    }

    /// The drawn request is sent to a replica.
    pub(super) fn note_try(&mut self, id: ReqId) {
        let patience = self.patience();
        if let Some(gate) = &mut self.gate
            && let Some(retries) = &mut gate.retries
        {
            retries.sent(id, &self.spec, patience);
        }
    }

    /// Replica `i` has answered request `id`.
    pub(super) fn note_answer(&mut self, i: u32, id: ReqId, outcome: Outcome) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        if let Some(outliers) = &mut gate.outliers
            && outcome == Outcome::Finished
        {
            outliers.succeeded(i);
        }
        self.forget_try(id);
    }

    /// Request `id` has ended.
    pub(super) fn forget_try(&mut self, id: ReqId) {
        if let Some(gate) = &mut self.gate
            && let Some(retries) = &mut gate.retries
        {
            retries.ended(id);
        }
    }

    /// Judges the tries that have failed at replica `i`.
    pub(super) fn judge(&mut self, i: u32) {
        let books = self.fleet.get(i).1;
        if books.undecided.is_empty() {
            return;
        }
        let mut undecided = std::mem::take(&mut books.undecided);
        for (i, row, end) in undecided.drain(..) {
            self.services.ended(i);
            self.under_way = self.under_way.saturating_sub(1);
            self.end_handover(row.id);
            if is_server_fault(row.outcome) {
                self.note_failure(i);
            }
            if !self.tries_again(&row) {
                self.end_try(&row, &end);
            }
        }
        self.fleet.get(i).1.undecided = undecided;
    }

    /// A try at replica `i` has failed: it may be ejected.
    fn note_failure(&mut self, i: u32) {
        let ready = self.services.of(i).ready();
        let now = self.now;
        let Some(gate) = &mut self.gate else {
            return;
        };
        let is_ready = self.fleet.peek(i).lifecycle == Lifecycle::Ready;
        if let Some(outliers) = &mut gate.outliers
            && is_ready
            && outliers.failed(i, now, ready)
        {
            gate.record.ejections += 1;
            self.services.of(i).leave(i);
        }
    }

    /// Whether the request of `row`, whose try has failed, is sent again.
    pub(super) fn tries_again(&mut self, row: &RequestRow) -> bool {
        let now = self.now;
        let Some(gate) = &mut self.gate else {
            return false;
        };
        let (Some(retries), Some(spec)) = (&mut gate.retries, gate.spec.retries) else {
            return false;
        };
        let is_wanted = match row.outcome {
            Outcome::Rejected(RejectReason::Overloaded | RejectReason::QueueFull) => {
                spec.on_refused
            }
            Outcome::Failed => spec.on_failed,
            Outcome::TimedOut => spec.on_timeout,
            _ => false,
        };
        // What the client has got cannot be taken back.
        if !is_wanted || row.output_tokens > 0 {
            return false;
        }
        let again = retries.failed(row.id, now) != Verdict::Ends;
        gate.record.retries += u64::from(again);
        again
    }

    /// A request ends as its last try did.
    pub(super) fn end_try(&mut self, row: &RequestRow, end: &RequestEnd) {
        self.forget_try(row.id);
        self.end_outside(row, end);
    }

    /// Sends again what is due at `now`: class 3 of [`crate::cluster`], before what clients send.
    pub(super) fn send_again(&mut self, now: SimTime) {
        while let Some(gate) = &mut self.gate
            && let Some(retries) = &mut gate.retries
            && let Some((id, spec, patience)) = retries.due(now)
        {
            if patience.is_some_and(|p| spec.arrival + p <= now) {
                let (row, end) = never_served(id, &spec, Outcome::TimedOut, now);
                self.end_try(&row, &end);
                continue;
            }
            let drawn = std::mem::replace(&mut self.spec, spec);
            match self.route() {
                Some(i) => self.accept(i, now, id, patience),
                None => {
                    self.hold(id, patience);
                    self.call(now);
                }
            }
            self.spec = drawn;
        }
    }

    /// Takes back replicas whose ejection is over.
    pub(super) fn take_back(&mut self, now: SimTime) {
        let Some(outliers) = self.gate.as_mut().and_then(|g| g.outliers.as_mut()) else {
            return;
        };
        if outliers.next() > now {
            return;
        }
        for i in outliers.back(now) {
            let replica = self.fleet.get(i).0;
            if replica.lifecycle == Lifecycle::Ready {
                let load = replica.load();
                self.services.of(i).join(i, load);
            }
        }
        self.release();
    }

    /// Replica `i` drains or is gone: it does not come back from an ejection.
    pub(super) fn forget_replica(&mut self, i: u32) {
        if let Some(outliers) = self.gate.as_mut().and_then(|g| g.outliers.as_mut()) {
            outliers.forget(i);
        }
    }

    /// Records what waits to be sent again when the run ends.
    pub(super) fn close_retries(&mut self, end: SimTime) {
        let Some(retries) = self.gate.as_mut().and_then(|g| g.retries.as_mut()) else {
            return;
        };
        for (id, spec) in retries.drain() {
            let (row, _) = never_served(id, &spec, Outcome::InFlight, end);
            self.fleet.groups[0].books.recorder.request(&row);
        }
    }
}
