//! All that happens at one instant, class by class, and the changes of the fleet among it.

use super::Run;
use crate::cluster::events::Class;
use crate::cluster::replica::Lifecycle;
use crate::kernel::time::SimTime;
use crate::observer::FleetEvent;
use crate::run::options::RunError;
use crate::run::plans::Change;
use crate::run::view::Pace;

impl Run<'_> {
    /// All that happens at `now`, class by class (the table of [`crate::cluster`]).
    pub(super) fn instant(&mut self, now: SimTime) -> Result<(), RunError> {
        self.now = now;
        self.scrape_now(now);
        self.find_due(now);
        for k in 0..self.due.len() {
            let i = self.due[k];
            let (replica, books) = self.fleet.get(i);
            replica.complete(now, books);
            self.tell(i);
        }
        self.end_transfers(now);
        for class in [Class::Deliver, Class::TimeOut] {
            for k in 0..self.due.len() {
                let i = self.due[k];
                let (replica, books) = self.fleet.get(i);
                replica.happen(now, class, books);
                self.tell(i);
            }
        }
        self.time_out_held(now);
        for change in self.plans.take(now) {
            self.change(change)?;
        }
        self.act_in_cluster(now)?;
        if self.limit.is_some() {
            self.release();
        }
        self.take_back(now);
        self.send_on(now);
        self.send_again(now);
        self.arrivals(now)?;
        let mut k = 0;
        while let Some(&i) = self.due.get(k) {
            let (replica, books) = self.fleet.get(i);
            if replica.happen_once(now, Class::Enter, books) {
                // A refusal may make its client send again at once.
                self.tell(i);
                self.send_again(now);
                self.arrivals(now)?;
            } else {
                k += 1;
            }
        }
        self.let_go(now);
        self.start_steps(now);
        self.begin_transfers(now);
        // A step that was chosen may have shown that KV is not wanted any more.
        while self.due_again(now) {
            self.start_steps(now);
            self.begin_transfers(now);
        }
        if self.check {
            self.check(now);
        }
        Ok(())
    }

    /// Starts steps at the replicas at which something has happened: class 5.
    fn start_steps(&mut self, now: SimTime) {
        self.due.sort_unstable();
        self.due.dedup();
        for k in 0..self.due.len() {
            let i = self.due[k];
            let (replica, books) = self.fleet.get(i);
            replica.start(now, books);
            if self.pace != Pace::Ahead {
                let next = replica.next_at();
                self.clocks.set(i, next);
            }
            self.tell(i);
        }
    }

    /// Whether KV has become free since steps were started, so that its replicas are due again.
    fn due_again(&mut self, now: SimTime) -> bool {
        if self.handovers.is_none() {
            return false;
        }
        self.due.clear();
        self.let_go(now)
    }

    /// Lists the replicas at which something happens at `now`, lowest first.
    pub(super) fn find_due(&mut self, now: SimTime) {
        self.due.clear();
        if self.pace == Pace::Ahead {
            self.fleet.due(now, &mut self.due);
            return;
        }
        while let (at, i) = self.clocks.first()
            && at <= now
        {
            // Its clock is set again when it has started.
            self.clocks.set(i, SimTime::NEVER);
            self.due.push(i);
        }
    }

    /// Something has happened at replica `i`: the router sees its state, where it looks, and router and workload are told which of its
    /// requests have ended.
    #[inline]
    pub(super) fn tell(&mut self, i: u32) {
        let (replica, books) = self.fleet.get(i);
        if self.scrape_period.is_none() && self.services.see_loads() {
            self.services.of(i).seen(i, replica.load());
        }
        let drained = replica.has_drained();
        if !books.ends.is_empty() {
            let mut ends = std::mem::take(&mut books.ends);
            for (i, end) in ends.drain(..) {
                self.services.ended(i);
                self.under_way = self.under_way.saturating_sub(1);
                self.end_handover(end.id);
                self.note_answer(i, end.id, end.outcome);
                if self.pace == Pace::Instants {
                    self.workload.on_end(&end);
                }
            }
            self.fleet.get(i).1.ends = ends;
        }
        self.note_prefilled(i);
        self.judge(i);
        if drained {
            self.tell_fleet(i, FleetEvent::Drained);
        }
    }

    pub(super) fn tell_fleet(&mut self, i: u32, event: FleetEvent) {
        let at = self.now.max(self.reached);
        if let Some(observer) = self.fleet.get(i).1.recorder.observer() {
            observer.fleet(at, i, event);
        }
    }

    /// A change that was planned for now.
    pub(super) fn change(&mut self, change: Change) -> Result<(), RunError> {
        match change {
            Change::Add(spec) => {
                let i = self.add(&spec)?;
                self.change(Change::Ready(i))?;
            }
            Change::Ready(i) => {
                let replica = self.fleet.get(i).0;
                if replica.lifecycle != Lifecycle::Starting {
                    return Ok(());
                }
                replica.lifecycle = Lifecycle::Ready;
                let load = replica.load();
                self.services.of(i).join(i, load);
                self.tell_fleet(i, FleetEvent::Ready);
                self.release();
            }
            Change::Drain(i) => {
                self.services.of(i).leave(i);
                self.forget_replica(i);
                self.tell_fleet(i, FleetEvent::Draining);
                let now = self.now;
                self.fleet.get(i).0.drain(now);
                self.tell(i);
            }
            Change::Kill(i) => {
                self.services.of(i).leave(i);
                self.forget_replica(i);
                let now = self.now;
                let (replica, books) = self.fleet.get(i);
                if replica.lifecycle == Lifecycle::Gone {
                    return Ok(());
                }
                replica.kill(now, books);
                self.clocks.set(i, SimTime::NEVER);
                self.tell_fleet(i, FleetEvent::Killed);
                self.tell(i);
                self.lose_kv_of(i);
            }
            Change::CutOff(i, connect_timeout) => {
                let now = self.now;
                let (replica, books) = self.fleet.get(i);
                if replica.lifecycle == Lifecycle::Gone {
                    return Ok(());
                }
                replica.cut_off(now, connect_timeout, books);
                self.due.push(i);
                self.tell(i);
            }
            Change::Reach(i) => self.fleet.get(i).0.reach(),
        }
        Ok(())
    }
}
