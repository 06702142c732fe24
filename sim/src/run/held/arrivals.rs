//! Requests that clients send, where they go, and those that wait at the gateway.

use std::sync::atomic::Ordering;

use super::Run;
use crate::cluster::events::Class;
use crate::cluster::requests::never_served;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::spec::HoldSpec;
use crate::record::RequestRow;
use crate::request::{Outcome, RejectReason, ReqId};
use crate::run::gateway::WhoGivesUp;
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
        let service = self.services.entry(&self.spec)?;
        if self.must_wait(service) {
            return None;
        }
        self.services.router(service).route(&self.spec)
    }

    /// Whether the drawn request waits at the gateway though `service` may have a replica for it.
    #[inline]
    fn must_wait(&self, service: usize) -> bool {
        // Without a cluster the replicas that decode do not come back.
        self.is_full(service)
            || self.is_in_cluster && self.services.lacks_decode(service, &self.spec)
    }

    /// Whether the choice for the drawn request depends on which requests have ended by now.
    #[inline]
    pub(super) fn needs_state(&mut self) -> bool {
        (self.services.entry(&self.spec))
            .is_some_and(|s| self.services.router(s).needs_state(&self.spec))
    }

    /// Whether every ready replica of `service` has as many requests as it may have.
    #[inline]
    fn is_full(&self, service: usize) -> bool {
        (self.limit).is_some_and(|limit| self.services.is_full(service, limit))
    }

    /// Requests that clients send at `now`.
    pub(super) fn arrivals(&mut self, now: SimTime) -> Result<(), RunError> {
        while let Some(at) = self.announced().filter(|at| *at <= now) {
            let id = self.draw(at)?;
            let patience = self.patience();
            if self.pace == Pace::Ahead && self.needs_state() {
                self.look_at_replicas();
            }
            let Some(service) = self.services.entry(&self.spec) else {
                self.refuse(id, RejectReason::TooLong, now);
                continue;
            };
            self.services.offer(service);
            if self.overflows() {
                self.overflow(id, now);
                continue;
            }
            match self.route() {
                Some(i) => self.accept(i, now, id, patience),
                None => {
                    self.hold(id, patience);
                    self.call(now);
                }
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
        self.services.sent(i);
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
        let Some(service) = self.services.entry(&self.spec) else {
            let at = self.now;
            return self.refuse(id, RejectReason::TooLong, at);
        };
        self.services.offer(service);
        let patience = self.patience();
        match self.route() {
            Some(i) => {
                let spec = std::mem::take(&mut self.spec);
                self.fleet.get(i).0.send(id, spec, patience);
            }
            None => self.hold(id, patience),
        }
    }

    /// Keeps the drawn request until a replica is ready, or refuses it where the gateway does not do that.
    pub(super) fn hold(&mut self, id: ReqId, patience: Option<SimDuration>) {
        let service = self.services.entry(&self.spec).unwrap_or(0);
        let is_queued = self.services.router(service).ready() > 0 && self.is_full(service);
        let rule = match self.holds {
            // What all replicas are too busy for waits in the list that they take it from.
            _ if is_queued => HoldSpec::default(),
            None => return self.give_back(id),
            Some(rule) => rule,
        };
        let here = self.gateway.len_of(service) as u64;
        if rule.limit.is_some_and(|limit| here >= limit) {
            return self.give_back(id);
        }
        let spec = std::mem::take(&mut self.spec);
        (self.gateway).hold(service, id, spec, patience, rule.timeout);
    }

    /// The gateway has no endpoint for the drawn request.
    fn give_back(&mut self, id: ReqId) {
        self.forget_try(id);
        self.refuse(id, RejectReason::NoEndpoint, self.now);
    }

    /// A request waits: models that are loaded on demand are looked at, at this instant.
    pub(super) fn call(&mut self, now: SimTime) {
        if let Some((cluster, _)) = &mut self.cluster {
            self.called |= cluster.call(now);
        }
    }

    /// A replica is ready: what was held goes on its way, of each service in the order in which it was sent.
    pub(super) fn release(&mut self) {
        if self.gateway.len() == 0 {
            return;
        }
        let drawn = std::mem::take(&mut self.spec);
        for service in 0..self.services.len() {
            while !self.is_full(service)
                && let Some((id, spec)) = self.gateway.take(service)
            {
                self.spec = spec;
                let patience = self.patience();
                match self.route() {
                    Some(i) => self.accept(i, self.now, id, patience),
                    None => {
                        // Those behind it find none either.
                        self.hold(id, patience);
                        break;
                    }
                }
            }
        }
        self.spec = drawn;
    }

    /// Clients of held requests give up, or the gateway does.
    pub(super) fn time_out_held(&mut self, now: SimTime) {
        while let Some((id, spec, who)) = self.gateway.timed_out(now) {
            let outcome = match who {
                WhoGivesUp::Client => Outcome::TimedOut,
                WhoGivesUp::Gateway => Outcome::Rejected(RejectReason::NoEndpoint),
            };
            let (row, end) = never_served(id, &spec, outcome, now);
            self.forget_try(id);
            self.end_outside(&row, &end);
        }
    }
}
