//! Requests that clients send, where they go, and those that wait at the gateway.

use std::sync::atomic::Ordering;

use super::Run;
use crate::cluster::events::Class;
use crate::cluster::requests::never_served;
use crate::kernel::time::{SimDuration, SimTime};
use crate::record::RequestRow;
use crate::request::{Outcome, RejectReason, ReqId};
use crate::run::options::RunError;
use crate::run::view::Pace;
use crate::workload::RequestEnd;

impl Run<'_> {
    /// When the next request is sent, the drawn one included.
    #[inline]
    pub(super) fn announced(&self) -> Option<SimTime> {
        match self.drawn {
            Some(_) => Some(self.spec.arrival),
            None => self.workload.peek(),
        }
    }

    /// Draws the next request into `spec`.
    pub(super) fn draw(&mut self, at: SimTime) -> Result<ReqId, RunError> {
        if at < self.now {
            return Err(RunError::WorkloadWentBack {
                announced: at,
                now: self.now,
            });
        }
        if let Some(id) = self.drawn.take() {
            return Ok(id);
        }
        let id = ReqId::try_from(self.offered).map_err(|_| RunError::TooManyRequests)?;
        self.workload.pop(id, &mut self.spec);
        self.spec.arrival = at;
        self.offered += 1;
        self.fleet.groups[0].books.recorder.offered(at);
        if self.fleet.groups.len() > 1 {
            self.sent.push(at);
        }
        Ok(id)
    }

    /// The instant at which the drawn request's client gives up, from when it was sent.
    pub(super) fn patience(&self) -> Option<SimDuration> {
        match (self.spec.timeout, self.request_timeout) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The replica for the drawn request; `None`: none is ready.
    #[inline]
    pub(super) fn route(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.services.entry(&self.spec)?.route(&self.spec)
    }

    /// Whether the choice for the drawn request depends on which requests have ended by now.
    #[inline]
    pub(super) fn needs_state(&mut self) -> bool {
        self.services
            .entry(&self.spec)
            .is_some_and(|r| r.needs_state(&self.spec))
    }

    /// Whether every ready replica has as many requests as it may have.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let most = |limit: u32| u64::from(limit).saturating_mul(self.services.ready() as u64);
        self.limit
            .is_some_and(|limit| self.under_way >= most(limit))
    }

    /// Requests that clients send at `now`.
    pub(super) fn arrivals(&mut self, now: SimTime) -> Result<(), RunError> {
        while let Some(at) = self.announced().filter(|at| *at <= now) {
            let id = self.draw(at)?;
            let patience = self.patience();
            if self.pace == Pace::Ahead && self.needs_state() {
                self.look_at_replicas();
            }
            if self.services.entry(&self.spec).is_none() {
                self.refuse(id, RejectReason::TooLong, now);
                continue;
            }
            if self.overflows() {
                self.overflow(id, now);
                continue;
            }
            match self.route() {
                Some(i) => self.accept(i, now, id, patience),
                None => self.hold(id, patience),
            }
        }
        Ok(())
    }

    /// The drawn request reaches replica `i`.
    pub(super) fn accept(
        &mut self,
        i: u32,
        now: SimTime,
        id: ReqId,
        patience: Option<SimDuration>,
    ) {
        self.under_way += 1;
        self.note_try(id);
        if let Some(h) = &mut self.handovers
            && self.spec.output_tokens > 1
            && self.fleet.peek(i).prefills
        {
            h.expect(id, &self.spec, patience, i);
        }
        let (replica, books) = self.fleet.get(i);
        replica.accept(now, id, &self.spec, patience, books);
        replica.happen(now, Class::TimeOut, books);
        self.due.push(i);
        self.tell(i);
    }

    /// The gateway refuses the drawn request.
    pub(super) fn refuse(&mut self, id: ReqId, reason: RejectReason, now: SimTime) {
        let outcome = Outcome::Rejected(reason);
        let (row, end) = never_served(id, &self.spec, outcome, now);
        self.end_outside(&row, &end);
    }

    /// A request ends at the gateway, not at a replica.
    pub(super) fn end_outside(&mut self, row: &RequestRow, end: &RequestEnd) {
        let books = &mut self.fleet.groups[0].books;
        books.recorder.request(row);
        if let Some(progress) = &books.progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        self.ended += 1;
        if self.pace == Pace::Instants {
            self.workload.on_end(end);
        }
    }

    /// Hands the drawn request to its replica, whose clock is behind.
    pub(super) fn send_ahead(&mut self, id: ReqId) {
        if self.services.entry(&self.spec).is_none() {
            let at = self.now;
            return self.refuse(id, RejectReason::TooLong, at);
        }
        let patience = self.patience();
        match self.route() {
            Some(i) => {
                let spec = std::mem::take(&mut self.spec);
                self.fleet.get(i).0.send(id, spec, patience);
            }
            None => self.hold(id, patience),
        }
    }

    /// Keeps the drawn request until a replica is ready.
    pub(super) fn hold(&mut self, id: ReqId, patience: Option<SimDuration>) {
        let spec = std::mem::take(&mut self.spec);
        self.gateway.hold(id, spec, patience);
    }

    /// A replica is ready: what was held goes on its way, in the order in which it was sent.
    pub(super) fn release(&mut self) {
        let drawn = std::mem::take(&mut self.spec);
        for id in self.gateway.ids() {
            if self.is_full() {
                break;
            }
            let Some(spec) = self.gateway.remove(id) else {
                continue;
            };
            self.spec = spec;
            let patience = self.patience();
            match self.route() {
                Some(i) => self.accept(i, self.now, id, patience),
                None => self.hold(id, patience),
            }
        }
        self.spec = drawn;
    }

    /// Clients of held requests give up.
    pub(super) fn time_out_held(&mut self, now: SimTime) {
        while let Some((id, spec)) = self.gateway.timed_out(now) {
            let (row, end) = never_served(id, &spec, Outcome::TimedOut, now);
            self.forget_try(id);
            self.end_outside(&row, &end);
        }
    }
}
