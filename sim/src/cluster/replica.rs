//! One replica as a run holds it: what it has been sent, its front end, its engine, and what is still to happen to its requests.
//!
//! Nothing here knows of other replicas, so a replica can be advanced on its own until something from outside can reach it.

mod handover;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::engine::{Engine, KvNews, Out};
use super::events::{Class, Events};
use super::requests::{Requests, Slot, Stage};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::{Totals, Vitals};
use crate::kv::content::block_hashes;
use crate::metrics::Recorder;
use crate::policy::Load;
use crate::record::RequestRow;
use crate::request::{Outcome, ReqId, RequestSpec};
use crate::simulation::{FrontEnd, ReplicaSpec};
use crate::workload::RequestEnd;

/// Where a replica stands between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// It is there, but the router does not know of it.
    Starting,
    /// The router may choose it.
    Ready,
    /// It is sent nothing more and ends with its last request.
    Draining,
    /// It has ended.
    Gone,
}

/// What replicas that are advanced together write to.
pub struct Books {
    /// The record of their requests and steps.
    pub recorder: Recorder,
    /// Requests that have ended: on which replica, and what its workload is told. Empty unless `listed`.
    pub ends: Vec<(u32, RequestEnd)>,
    /// Whether anybody wants to know of each end.
    pub listed: bool,
    /// Requests whose prefill is done and that go on elsewhere: replica and slot.
    pub prefilled: Vec<(u32, Slot)>,
    /// Requests that so many tokens of KV may come for: replica, slot, tokens.
    pub wanted: Vec<(u32, Slot, u32)>,
    /// Requests whose try has failed, for the gateway to judge: replica, the row of one that ends so, what its workload is told then.
    pub undecided: Vec<(u32, RequestRow, RequestEnd)>,
    /// Requests that have ended.
    pub ended: u64,
    /// Raised by one with each request that ends.
    pub progress: Option<Arc<AtomicU64>>,
    /// Set by whoever wants the run to stop.
    pub cancel: Option<Arc<AtomicBool>>,
    /// Check what must always hold after every instant (slow).
    pub check: bool,
}

impl Books {
    /// Whether the run is to stop.
    #[inline]
    pub fn cancelled(&self) -> bool {
        self.cancel
            .as_ref()
            .is_some_and(|c| c.load(Ordering::Relaxed))
    }
}

/// When a request that was prefilled elsewhere was sent to the replica that decodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// At this instant: it still has the front end before it.
    At(SimTime),
    /// To both replicas at once (SGLang's routers): its tokens are known here already.
    BeforePrefill,
}

/// A request on its way to the replica.
struct Coming {
    id: ReqId,
    spec: RequestSpec,
    patience: Option<SimDuration>,
}

/// The front end of a replica at work.
struct FrontDesk {
    /// When each worker has done its last request.
    free: Vec<SimTime>,
    /// How long all of them have worked.
    worked: SimDuration,
}

/// A replica under way.
pub struct Replica {
    index: u32,
    engine: Engine,
    input_delay: SimDuration,
    output_delay: SimDuration,
    front_end: FrontEnd,
    desk: FrontDesk,
    /// Tokens per block of the hashes that the engine wants; 0: none.
    hash_block: u32,
    /// Since when it is there.
    since: SimTime,
    pub(crate) lifecycle: Lifecycle,
    requests: Requests,
    agenda: Events,
    /// Sent ahead of its clock, in the order of arrival.
    inbox: VecDeque<Coming>,
    /// Something has changed at this instant: steps may start at its end.
    touched: bool,
    /// What the engine has held since when.
    held: (SimTime, Load),
    done: Vec<(Slot, bool)>,
    kv: KvNews,
    /// Whether requests end here with their first token and go on elsewhere.
    pub(crate) prefills: bool,
    /// The gateway judges tries that fail here.
    pub(crate) is_judged: bool,
    /// How long one try may take.
    pub(crate) per_try: Option<SimDuration>,
    /// For how long the gateway tries to connect, while it does not reach the replica.
    cut_off: Option<SimDuration>,
    /// Requests that have been handed over and whose KV is still here.
    handed: usize,
    drained: bool,
    totals: Totals,
    /// When something last happened here.
    last: SimTime,
}

impl Replica {
    /// A replica that is there from `since` on, with nothing to do.
    pub fn new(
        index: u32,
        spec: &ReplicaSpec,
        engine: Engine,
        hash_block: u32,
        since: SimTime,
    ) -> Replica {
        Replica {
            index,
            held: (since, engine.load()),
            engine,
            input_delay: spec.input_delay,
            output_delay: spec.output_delay,
            front_end: spec.front_end,
            desk: FrontDesk {
                free: vec![since; spec.front_end.workers as usize],
                worked: SimDuration::ZERO,
            },
            hash_block,
            since,
            lifecycle: Lifecycle::Starting,
            requests: Requests::default(),
            agenda: Events::default(),
            inbox: VecDeque::new(),
            touched: false,
            done: Vec::new(),
            kv: KvNews::default(),
            prefills: false,
            is_judged: false,
            per_try: None,
            cut_off: None,
            handed: 0,
            drained: false,
            totals: Totals::default(),
            last: SimTime::ZERO,
        }
    }

    /// When something happens here next, as far as it was sent.
    #[inline]
    pub fn next_at(&mut self) -> SimTime {
        let sent = self
            .inbox
            .front()
            .map_or(SimTime::NEVER, |s| s.spec.arrival);
        self.engine
            .next()
            .min(self.agenda.next(&self.requests))
            .min(sent)
    }

    /// When something last happened here.
    pub fn last(&self) -> SimTime {
        self.last
    }

    /// What can be seen of its engine from outside.
    #[inline]
    pub fn load(&self) -> Load {
        self.engine.load()
    }

    /// What the cluster around it sees.
    pub fn vitals(&self) -> Vitals {
        Vitals {
            load: self.load(),
            totals: self.totals,
            outstanding: self.outstanding() as u32,
            gone: (self.lifecycle == Lifecycle::Gone).then_some(self.last),
        }
    }

    /// Requests that were sent to it and have not ended.
    pub fn outstanding(&self) -> usize {
        self.requests.under_way() - self.handed + self.inbox.len()
    }

    /// Share of its time until `end` for which its front end had work [0, 1].
    pub fn front_end_share(&self, end: SimTime) -> f64 {
        let time = end.since(self.since).as_secs() * self.desk.free.len() as f64;
        if time > 0.0 {
            // The last requests may be worked on beyond the end.
            (self.desk.worked.as_secs() / time).min(1.0)
        } else {
            0.0
        }
    }

    /// Sends it a request for an instant that its clock has not reached.
    pub fn send(&mut self, id: ReqId, spec: RequestSpec, patience: Option<SimDuration>) {
        self.inbox.push_back(Coming { id, spec, patience });
    }

    /// Does all that happens here before `until`.
    pub fn advance(&mut self, until: SimTime, books: &mut Books) {
        loop {
            let now = self.next_at();
            if now >= until || books.cancelled() {
                return;
            }
            self.complete(now, books);
            self.happen(now, Class::TimeOut, books);
            while let Some(sent) = self.inbox.front()
                && sent.spec.arrival <= now
            {
                if let Some(Coming { id, spec, patience }) = self.inbox.pop_front() {
                    self.accept(now, id, &spec, patience, books);
                    self.happen(now, Class::TimeOut, books);
                }
            }
            self.happen(now, Class::Enter, books);
            self.start(now, books);
            if books.check {
                self.engine.check(now);
            }
        }
    }

    /// Ends the steps that are due at `now`: class 0 of [`crate::cluster`].
    #[inline]
    pub fn complete(&mut self, now: SimTime, books: &mut Books) {
        self.last = now;
        if self.engine.next() > now {
            return;
        }
        self.touched = true;
        self.engine.complete(
            now,
            &mut Out {
                requests: &mut self.requests,
                recorder: &mut books.recorder,
                done: &mut self.done,
                kv: &mut self.kv,
            },
        );
        self.leave(now, books);
        if !self.kv.prefilled.is_empty() {
            let i = self.index;
            (books.prefilled).extend(self.kv.prefilled.drain(..).map(|slot| (i, slot)));
        }
    }

    /// What was set for `now` in classes up to `class`: answers reach their clients, clients give up, requests reach the engine.
    #[inline]
    pub fn happen(&mut self, now: SimTime, class: Class, books: &mut Books) {
        while self.happen_once(now, class, books) {}
    }

    /// The first of what was set for `now` in classes up to `class`; false: there is nothing.
    pub fn happen_once(&mut self, now: SimTime, class: Class, books: &mut Books) -> bool {
        while let Some(e) = self.agenda.pop(now, class) {
            if !self.requests.is(e.slot, e.generation) {
                continue;
            }
            self.last = now;
            match e.class {
                Class::Deliver => self.end(e.slot, Outcome::Finished, now, books),
                Class::TimeOut => self.time_out(e.slot, now, books),
                Class::Enter => self.enter(e.slot, now, books),
            }
            return true;
        }
        false
    }

    /// A client's request arrives, and its client gives up after `patience`: class 3.
    pub fn accept(
        &mut self,
        now: SimTime,
        id: ReqId,
        spec: &RequestSpec,
        patience: Option<SimDuration>,
        books: &mut Books,
    ) {
        let slot = self.requests.open(id, spec, self.index);
        let r = self.requests.get_mut(slot);
        if self.prefills && spec.output_tokens > 1 {
            (r.hands_over, r.output_tokens, r.max_tokens) = (true, 1, 1);
        }
        self.take_in(now, slot, spec, patience, Sent::At(now), books);
    }

    /// The request of `slot` reaches the front end, `input_delay` after it was `sent`; its client gives up after `patience`.
    fn take_in(
        &mut self,
        now: SimTime,
        slot: Slot,
        spec: &RequestSpec,
        patience: Option<SimDuration>,
        sent: Sent,
        books: &mut Books,
    ) {
        self.last = now;
        let r = self.requests.get_mut(slot);
        if self.hash_block > 0 {
            block_hashes(spec, r.id, self.hash_block, &mut r.block_hashes);
        }
        let generation = r.generation;
        if let Some(patience) = patience {
            // A request that waited at the gateway has been patient since it was sent.
            r.deadline = spec.arrival + patience;
            let at = r.deadline.max(now);
            self.agenda.push(at, Class::TimeOut, slot, generation);
        }
        if let Some(patience) = self.per_try {
            let at = now + patience;
            self.agenda.push(at, Class::TimeOut, slot, generation);
        }
        if let Some(connect_timeout) = self.cut_off {
            let at = now + connect_timeout;
            self.requests.get_mut(slot).unreached = at;
            self.agenda.push(at, Class::TimeOut, slot, generation);
            return;
        }
        let Sent::At(sent) = sent else {
            return self.enter(slot, now, books);
        };
        let front_end = self.front_end;
        let tokens = u64::from(spec.prompt_tokens);
        let tokenising = SimDuration(front_end.per_prompt_token.0.saturating_mul(tokens));
        let work = front_end.per_request + tokenising;
        let mut at = sent + self.input_delay;
        match self.desk.free.iter_mut().min() {
            Some(free) => {
                at = at.max(*free) + work;
                *free = at;
                self.desk.worked = self.desk.worked + work;
            }
            None => at += work,
        }
        if at == now {
            self.enter(slot, now, books);
        } else {
            self.agenda.push(at, Class::Enter, slot, generation);
        }
    }

    /// Starts what can be started at `now`: class 5.
    #[inline]
    pub fn start(&mut self, now: SimTime, books: &mut Books) {
        if !std::mem::take(&mut self.touched) {
            return;
        }
        self.engine.start(
            now,
            &mut Out {
                requests: &mut self.requests,
                recorder: &mut books.recorder,
                done: &mut self.done,
                kv: &mut self.kv,
            },
        );
        let (since, load) = &mut self.held;
        books.recorder.held(self.index, *since, now, load);
        (*since, *load) = (now, self.engine.load());
        if !self.done.is_empty() {
            self.leave(now, books);
        }
        if !self.kv.wanted.is_empty() {
            let i = self.index;
            let wanted = self.kv.wanted.drain(..);
            books.wanted.extend(wanted.map(|(slot, n)| (i, slot, n)));
        }
    }

    /// Sends what the engine is done with to the clients.
    fn leave(&mut self, now: SimTime, books: &mut Books) {
        for i in 0..self.done.len() {
            let (slot, finished) = self.done[i];
            if !finished {
                self.end(slot, Outcome::Failed, now, books);
            } else if self.output_delay == SimDuration::ZERO {
                self.end(slot, Outcome::Finished, now, books);
            } else {
                let r = self.requests.get_mut(slot);
                r.stage = Stage::Leaving;
                let generation = r.generation;
                let at = now + self.output_delay;
                self.agenda.push(at, Class::Deliver, slot, generation);
            }
        }
        self.done.clear();
    }

    fn enter(&mut self, slot: Slot, now: SimTime, books: &mut Books) {
        self.requests.get_mut(slot).entered = now;
        match self.engine.enter(now, slot, &mut self.requests) {
            // A busy engine sees it when its step ends.
            Ok(()) => {
                self.touched = true;
                if self.requests.get(slot).lost {
                    self.kv_lost(slot, now, books);
                }
            }
            Err(reason) => self.end(slot, Outcome::Rejected(reason), now, books),
        }
    }

    fn time_out(&mut self, slot: Slot, now: SimTime, books: &mut Books) {
        let is_unreached = self.requests.get(slot).unreached <= now;
        let outcome = match is_unreached {
            true => Outcome::Failed,
            false => Outcome::TimedOut,
        };
        self.break_off(slot, outcome, now, books);
    }

    /// A request ends before its time, in the engine too.
    fn break_off(&mut self, slot: Slot, outcome: Outcome, now: SimTime, books: &mut Books) {
        if let Stage::Engine(local) = self.requests.get(slot).stage {
            self.engine.cancel(local, &mut self.requests);
            self.touched = true;
        }
        self.end(slot, outcome, now, books);
    }

    /// Closes the books on a request.
    fn end(&mut self, slot: Slot, outcome: Outcome, now: SimTime, books: &mut Books) {
        let r = self.requests.get(slot);
        let row = r.row(outcome, now);
        let has_failed = match outcome {
            Outcome::Rejected(_) | Outcome::Failed => true,
            // A try takes too long before its client's patience is at an end.
            Outcome::TimedOut => now < r.deadline,
            Outcome::Finished | Outcome::InFlight => false,
        };
        if has_failed && self.is_judged {
            books.undecided.push((self.index, row, r.end(&row)));
            self.requests.close(slot);
            return self.end_if_drained(now);
        }
        if outcome == Outcome::Finished {
            let t = &mut self.totals;
            t.finished += 1;
            t.queue_ns += r.entered.since(r.arrival).0;
            t.compute_ns += now.since(r.entered).0;
            t.prompt_tokens += u64::from(row.prompt_tokens);
            t.output_tokens += u64::from(row.output_tokens);
        }
        if books.listed {
            books.ends.push((self.index, r.end(&row)));
        }
        books.recorder.request(&row);
        books.ended += 1;
        if let Some(progress) = &books.progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        self.requests.close(slot);
        self.end_if_drained(now);
    }

    /// It is sent nothing more and ends with its last request.
    pub fn drain(&mut self, now: SimTime) {
        if matches!(self.lifecycle, Lifecycle::Starting | Lifecycle::Ready) {
            self.lifecycle = Lifecycle::Draining;
            self.end_if_drained(now);
        }
    }

    #[inline]
    fn end_if_drained(&mut self, now: SimTime) {
        if self.lifecycle == Lifecycle::Draining && self.outstanding() + self.handed == 0 {
            self.lifecycle = Lifecycle::Gone;
            self.drained = true;
            self.last = now;
        }
    }

    /// Whether it has drained since this was last asked.
    #[inline]
    pub fn has_drained(&mut self) -> bool {
        std::mem::take(&mut self.drained)
    }

    /// The gateway does not reach it any more: what it serves fails, and what is sent to it from now on once a connection was tried for
    /// `connect_timeout`.
    pub fn cut_off(&mut self, now: SimTime, connect_timeout: SimDuration, books: &mut Books) {
        self.last = now;
        for slot in self.requests.in_use() {
            self.break_off(slot, Outcome::Failed, now, books);
        }
        self.cut_off = Some(connect_timeout);
    }

    /// The gateway reaches it again.
    pub fn reach(&mut self) {
        self.cut_off = None;
    }

    /// It is gone at `now`, and the requests that it held with it.
    pub fn kill(&mut self, now: SimTime, books: &mut Books) {
        self.record_until(now, books);
        for slot in self.requests.in_use() {
            self.end(slot, Outcome::Failed, now, books);
        }
        for slot in self.requests.handed_over() {
            self.requests.close(slot);
        }
        self.engine = Engine::Gone;
        self.handed = 0;
        self.held = (now, Load::default());
        self.lifecycle = Lifecycle::Gone;
        self.last = now;
    }

    /// Records what is under way when the run ends at `end`.
    pub fn close(&mut self, end: SimTime, books: &mut Books) {
        if self.lifecycle == Lifecycle::Gone {
            return;
        }
        self.record_until(end, books);
        for slot in self.requests.in_use() {
            let row = self.requests.get(slot).row(Outcome::InFlight, end);
            books.recorder.request(&row);
        }
    }

    /// What it holds and the steps under way, up to `end`.
    fn record_until(&mut self, end: SimTime, books: &mut Books) {
        let (since, load) = &self.held;
        books.recorder.held(self.index, *since, end, load);
        self.engine.close(
            end,
            &mut Out {
                requests: &mut self.requests,
                recorder: &mut books.recorder,
                done: &mut self.done,
                kv: &mut self.kv,
            },
        );
    }

    /// Checks what must always hold after an instant, for tests.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self, now: SimTime) {
        self.engine.check(now);
    }
}
