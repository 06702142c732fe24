//! Requests that are prefilled on one replica and decoded on another: what each of the two does with them.

use super::{Books, Replica, Sent};
use crate::cluster::requests::{Carried, Slot, Stage};
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::RemoteKv;
use crate::request::{Outcome, ReqId, RequestSpec};

impl Replica {
    /// Hands over the request of `slot`, whose prefill is done. Its KV stays here until [`Replica::let_go`].
    pub fn hand_over(&mut self, slot: Slot) -> Option<Carried> {
        let r = self.requests.get_mut(slot);
        let Stage::Engine(local) = r.stage else {
            return None;
        };
        r.stage = Stage::Handed(local);
        // Whatever was set for it, its client's patience above all, is set anew where it goes.
        r.generation = r.generation.wrapping_add(1);
        self.handed += 1;
        Some(Carried {
            id: r.id,
            cached_tokens: r.cached_tokens,
            preemptions: r.preemptions,
            first_scheduled: r.first_scheduled,
            first_token: r.first_token,
            prefilled: r.last_token,
        })
    }

    /// The request in `slot`.
    pub fn id_of(&self, slot: Slot) -> ReqId {
        self.requests.get(slot).id
    }

    /// The KV of `slot`, which has been handed over, has been fetched, or is not wanted any more.
    pub fn let_go(&mut self, slot: Slot, now: SimTime) {
        let Stage::Handed(local) = self.requests.get(slot).stage else {
            return;
        };
        self.last = now;
        self.engine.sent(local);
        self.touched = true;
        self.requests.close(slot);
        self.handed -= 1;
        self.end_if_drained(now);
    }

    /// A request arrives at `now` that has been prefilled elsewhere. `remote`: what was made of it, which may be lost by now. `sent`: when it was sent
    /// here; one that was sent before its prefill gets its first token here. Returns its slot.
    pub fn receive(
        &mut self,
        now: SimTime,
        carried: &Carried,
        spec: &RequestSpec,
        (remote, lost): (RemoteKv, bool),
        (patience, sent): (Option<SimDuration>, Sent),
        books: &mut Books,
    ) -> Slot {
        let slot = self.requests.open(carried.id, spec, self.index);
        let r = self.requests.get_mut(slot);
        r.cached_tokens = carried.cached_tokens;
        r.preemptions = carried.preemptions;
        r.first_scheduled = carried.first_scheduled;
        r.produced = remote.outputs;
        r.relays = sent == Sent::BeforePrefill && remote.outputs > 0;
        if remote.outputs > 0 && !r.relays {
            r.first_token = carried.first_token;
            r.last_token = carried.prefilled;
        }
        if remote.tokens > 0 {
            (r.remote, r.lost) = (Some(remote), lost);
        }
        self.take_in(now, slot, spec, patience, sent, books);
        slot
    }

    /// The KV that the request of `slot` asked for is there.
    pub fn received(&mut self, slot: Slot, now: SimTime) {
        if let Stage::Engine(local) = self.requests.get(slot).stage {
            self.last = now;
            self.engine.received(local);
            self.touched = true;
        }
    }

    /// The KV that the request of `slot` waits for will not come: it is computed here, or the request fails, as the engine does.
    pub fn kv_lost(&mut self, slot: Slot, now: SimTime, books: &mut Books) {
        let r = self.requests.get_mut(slot);
        let Stage::Engine(local) = r.stage else {
            // It goes without when it reaches the engine.
            r.lost = true;
            return;
        };
        self.last = now;
        self.touched = true;
        if !self.engine.kv_lost(local) {
            self.engine.cancel(local, &mut self.requests);
            self.end(slot, Outcome::Failed, now, books);
        }
    }
}
