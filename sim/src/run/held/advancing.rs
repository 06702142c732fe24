//! Who is advanced how far before the others look at it ([`Pace`]).

use rayon::prelude::*;

use super::Run;
use crate::kernel::time::SimTime;
use crate::kernel::tournament::Tournament;
use crate::run::group::Group;
use crate::run::options::RunError;
use crate::run::view::Pace;

/// Requests drawn ahead at a time, per replica: enough for a replica's state to stay in the caches while it works them off ...
const AHEAD_PER_REPLICA: usize = 128;
/// ... but in all at least and at most so many, for a batch to be worth its start, and for what was drawn not to fill the memory.
const AHEAD: (usize, usize) = (1 << 12, 1 << 18);
/// Large fleets draw at least so many per replica all the same.
const LEAST_AHEAD_PER_REPLICA: usize = 16;

/// Between two events of a cluster so few replicas with something to do are not worth other cores.
const FEW: usize = 32;

impl Run<'_> {
    /// Draws requests ahead, hands them to their replicas, and lets groups of replicas work them off on all cores: all before `to`.
    pub(super) fn run_ahead(&mut self, to: SimTime) -> Result<(), RunError> {
        let n = self.fleet.len() as usize;
        let batch = (AHEAD_PER_REPLICA * n)
            .clamp(AHEAD.0, AHEAD.1)
            .max(LEAST_AHEAD_PER_REPLICA * n);
        loop {
            if self.cancelled() {
                return Ok(());
            }
            let mut drawn = 0;
            let reached = loop {
                let Some(at) = self.announced().filter(|at| *at < to) else {
                    if to != SimTime::NEVER {
                        // The router may look later at what a scrape before `to` has seen.
                        self.scrape_ahead(SimTime(to.0 - 1));
                    }
                    break to;
                };
                if drawn == batch {
                    break at;
                }
                self.scrape_ahead(at);
                let id = self.draw(at)?;
                self.now = at;
                if self.needs_state() {
                    self.drawn = Some(id);
                    self.advance_groups(at, drawn);
                    self.look_at_replicas();
                    return self.run_arrivals(to);
                }
                drawn += 1;
                self.send_ahead(id);
            };
            self.advance_groups(reached, drawn);
            if reached == to {
                return Ok(());
            }
        }
    }

    /// Lets every group do all that happens before `to`, `drawn` requests having been handed to them.
    pub(super) fn advance_groups(&mut self, to: SimTime, drawn: usize) {
        let sent = &self.sent;
        let awake = self.fleet.awake();
        let is_small = awake < 2 || self.is_in_cluster && drawn == 0 && awake < FEW;
        let groups = &mut self.fleet.groups;
        let advance = |(g, group): (usize, &mut Group)| {
            group.advance(to, if g == 0 { &[] } else { sent });
        };
        match is_small {
            true => groups.iter_mut().enumerate().for_each(advance),
            false => groups.par_iter_mut().enumerate().for_each(advance),
        }
        self.sent.clear();
        self.limit_rows();
    }

    /// Tells the books of every group of what was sent, outside of [`Run::advance_groups`].
    pub(super) fn tell_sent(&mut self) {
        let (first, others) = self.fleet.groups.split_at_mut(1);
        debug_assert_eq!(first.len(), 1);
        for group in others {
            for &at in &self.sent {
                group.books.recorder.sent(at);
            }
        }
        self.sent.clear();
    }

    /// Drops the rows of requests once there are too many of them in all.
    pub(super) fn limit_rows(&mut self) {
        let groups = &mut self.fleet.groups;
        let kept: Option<usize> = groups.iter().map(|g| g.books.recorder.rows_kept()).sum();
        if kept.is_none_or(|n| n > self.max_request_rows) {
            for group in groups {
                group.books.recorder.drop_rows();
            }
        }
    }

    /// From here on the router has to look at replicas as they are.
    pub(super) fn look_at_replicas(&mut self) {
        self.pace = Pace::Arrivals;
        for group in &mut self.fleet.groups {
            group.books.listed = true;
        }
        let fleet = &self.fleet;
        self.services
            .recount(|i| fleet.peek(i).outstanding() as u32);
        self.reset_clocks();
    }

    pub(super) fn reset_clocks(&mut self) {
        let n = self.fleet.len();
        self.clocks = Tournament::new(n as usize);
        for i in 0..n {
            let next = self.fleet.get(i).0.next_at();
            self.clocks.set(i, next);
        }
    }

    /// All that happens before `to`: replicas that have something to do are advanced to each arrival in turn.
    pub(super) fn run_arrivals(&mut self, to: SimTime) -> Result<(), RunError> {
        while let Some(at) = self.announced().filter(|at| *at < to) {
            if self.cancelled() {
                return Ok(());
            }
            self.tell_sent();
            self.scrape_lagging(at);
            self.advance_due(at);
            self.instant(at)?;
        }
        if to != SimTime::NEVER {
            // The router may look later at what a scrape before `to` has seen.
            self.scrape_lagging(SimTime(to.0 - 1));
        }
        self.tell_sent();
        self.advance_due(to);
        Ok(())
    }

    /// Advances the replicas at which something happens before `to`, each to there.
    pub(super) fn advance_due(&mut self, to: SimTime) {
        loop {
            let (at, i) = self.clocks.first();
            if at >= to || self.cancelled() {
                return;
            }
            let (replica, books) = self.fleet.get(i);
            replica.advance(to, books);
            let next = replica.next_at();
            self.clocks.set(i, next);
            self.tell(i);
        }
    }

    /// All that happens before `to`, instant by instant.
    pub(super) fn run_instants(&mut self, to: SimTime) -> Result<(), RunError> {
        loop {
            let mut next = self
                .clocks
                .first()
                .0
                .min(self.announced().unwrap_or(SimTime::NEVER))
                .min(self.handovers.as_ref().map_or(SimTime::NEVER, |h| h.next()));
            if let Some(gate) = &self.gate {
                next = next.min(gate.next_retry());
                // Whoever is ejected comes back as long as there is something to come back to.
                if next < SimTime::NEVER || self.gateway.len() > 0 {
                    next = next.min(gate.next_return());
                }
            }
            if next >= to || self.cancelled() {
                return Ok(());
            }
            self.instant(next)?;
            if std::mem::take(&mut self.called) && self.next_own() < to {
                return Ok(());
            }
        }
    }
}
