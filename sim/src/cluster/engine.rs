//! One replica as the cluster sees it, whichever path advances it.

use super::requests::{Requests, Slot};
use super::stepped::SteppedReplica;
pub use super::surroundings::{KvNews, Out, Surroundings};
use crate::fast::FastVllm;
use crate::kernel::time::SimTime;
use crate::policy::Load;
use crate::request::RejectReason;

/// A replica on the reference path or on the fast path; both give the same record.
pub enum Engine {
    /// Any policy, step by step.
    Stepped(Box<SteppedReplica>),
    /// vLLM V1 with decodes in lockstep.
    Fast(Box<FastVllm>),
    /// What is left of a replica that has ended: nothing happens here any more.
    Gone,
}

macro_rules! forward {
    ($self:ident, $e:ident => $body:expr, $gone:expr) => {
        match $self {
            Engine::Stepped($e) => $body,
            Engine::Fast($e) => $body,
            Engine::Gone => $gone,
        }
    };
}

impl Engine {
    /// Takes in the request of `slot`, or refuses it.
    ///
    /// # Errors
    /// The reason the named system would give.
    pub fn enter(
        &mut self,
        now: SimTime,
        slot: Slot,
        requests: &mut Requests,
    ) -> Result<(), RejectReason> {
        forward!(self, e => e.enter(now, slot, requests), Err(RejectReason::QueueFull))
    }

    /// Drops a request that its client has left; `local` is its id in this engine.
    pub fn cancel(&mut self, local: u32, requests: &mut Requests) {
        forward!(self, e => e.cancel(local, requests), ());
    }

    /// The KV of `local`, which has been handed over, has been fetched or is not wanted any more.
    pub fn sent(&mut self, local: u32) {
        if let Engine::Stepped(e) = self {
            e.sent(local);
        }
    }

    /// The KV that `local` asked for is there.
    pub fn received(&mut self, local: u32) {
        if let Engine::Stepped(e) = self {
            e.received(local);
        }
    }

    /// The KV that `local` waits for will not come; false: it cannot go on without.
    pub fn kv_lost(&mut self, local: u32) -> bool {
        match self {
            Engine::Stepped(e) => e.kv_lost(local),
            Engine::Fast(_) | Engine::Gone => false,
        }
    }

    /// When it must be looked at next, as of its last `start`.
    #[inline]
    pub fn next(&self) -> SimTime {
        forward!(self, e => e.next(), SimTime::NEVER)
    }

    /// Ends the steps that are due at `now`.
    #[inline]
    pub fn complete(&mut self, now: SimTime, out: &mut Out) {
        forward!(self, e => e.complete(now, out), ());
    }

    /// Starts what can be started at `now`.
    #[inline]
    pub fn start(&mut self, now: SimTime, out: &mut Out) {
        forward!(self, e => e.start(now, out), ());
    }

    /// Records what is under way when the run ends at `now`.
    pub fn close(&mut self, now: SimTime, out: &mut Out) {
        forward!(self, e => e.close(now, out), ());
    }

    /// What can be seen from outside.
    pub fn load(&self) -> Load {
        forward!(self, e => e.load(), Load::default())
    }

    /// Checks what must always hold after `start`, for tests.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self, now: SimTime) {
        let load = self.load();
        assert!(
            load.kv_used_blocks <= load.kv_total_blocks,
            "KV blocks in use exceed those there are: {load:?}"
        );
        assert!(self.next() >= now, "time went back");
        forward!(self, e => e.check(), ());
    }
}
