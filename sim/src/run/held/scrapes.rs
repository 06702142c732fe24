//! What a router that reads the engines' state sees of it, and when.

use super::Run;
use crate::kernel::time::SimTime;
use crate::run::view::Pace;

impl Run<'_> {
    /// Before anything happens at this instant: what was true until now is what a scrape since the last instant has seen.
    pub(super) fn scrape_now(&mut self, now: SimTime) {
        if self.pace == Pace::Instants && self.scrape_is_due(now) {
            self.scrape(now);
        }
    }

    /// The same before an arrival at `at`, for replicas whose clocks lag behind.
    pub(super) fn scrape_lagging(&mut self, at: SimTime) {
        if let Some(instant) = self.scrape_before(at) {
            self.advance_due(instant);
            self.scrape(at);
        }
    }

    /// The same while requests are drawn ahead.
    pub(super) fn scrape_ahead(&mut self, at: SimTime) {
        if let Some(instant) = self.scrape_before(at) {
            self.advance_groups(instant, usize::MAX);
            self.scrape(at);
        }
    }

    pub(super) fn scrape_is_due(&self, at: SimTime) -> bool {
        self.scrape_period.is_some() && self.services.see_loads() && at >= self.next_scrape
    }

    /// The last scrape at or before `at`, if the router has not seen it.
    pub(super) fn scrape_before(&self, at: SimTime) -> Option<SimTime> {
        let period = self.scrape_period?.0.max(1);
        self.scrape_is_due(at)
            .then(|| SimTime(at.0 / period * period))
    }

    pub(super) fn scrape(&mut self, at: SimTime) {
        for i in 0..self.fleet.len() {
            self.services.of(i).seen(i, self.fleet.peek(i).load());
        }
        let period = self.scrape_period.map_or(1, |p| p.0.max(1));
        self.next_scrape = SimTime((at.0 / period + 1).saturating_mul(period));
    }
}
