//! Requests that are prefilled on one replica and decoded on another: where they go, and the KV that goes with them.

use std::collections::BTreeMap;

use super::Run;
use crate::cluster::events::Class;
use crate::cluster::link::Transfers;
use crate::cluster::pools::{FirstToken, PoolSpec, TransferSpec};
use crate::cluster::replica::Carried;
use crate::cluster::requests::{Slot, end_on_the_way};
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::RemoteKv;
use crate::record::TransferRow;
use crate::request::{Outcome, ReqId, RequestSpec};

/// A request from when it is sent to a prefill replica until its KV is where it is decoded.
struct Handover {
    spec: RequestSpec,
    patience: Option<SimDuration>,
    /// Where it is prefilled.
    from: u32,
    /// What is known of it since its prefill is done.
    carried: Option<Carried>,
    /// Where its KV lies there; `None`: not yet, or not any more.
    source: Option<Slot>,
    /// Where it is decoded.
    to: Option<(u32, Slot)>,
    /// Since when its blocks are set aside there, for how many tokens and bytes.
    began: Option<(SimTime, u32, f64)>,
}

/// All of them, and the links between the replicas.
pub(super) struct Handovers {
    spec: TransferSpec,
    link: Transfers,
    pools: Vec<PoolSpec>,
    pool_of: Vec<usize>,
    by_id: BTreeMap<ReqId, Handover>,
    /// Those whose prefill is done, in the order in which they are to be sent on.
    ready: Vec<ReqId>,
    /// KV that is not wanted any more: replica and slot.
    unwanted: Vec<(u32, Slot)>,
}

impl Handovers {
    pub(super) fn new(spec: TransferSpec, pools: &[PoolSpec]) -> Handovers {
        Handovers {
            link: Transfers::new(spec.latency, spec.fabric),
            spec,
            pools: pools.to_vec(),
            pool_of: Vec::new(),
            by_id: BTreeMap::new(),
            ready: Vec::new(),
            unwanted: Vec::new(),
        }
    }

    /// The next replica belongs to `pool`.
    pub(super) fn add(&mut self, pool: usize) {
        let i = self.pool_of.len() as u32;
        self.pool_of.push(pool);
        self.link.set_port(i, self.pools[pool].kv_bandwidth);
    }

    /// When the link has something to do next.
    pub(super) fn next(&self) -> SimTime {
        self.link.next()
    }

    /// A request is sent to replica `from` to be prefilled there.
    pub(super) fn expect(
        &mut self,
        id: ReqId,
        spec: &RequestSpec,
        patience: Option<SimDuration>,
        from: u32,
    ) {
        let handover = Handover {
            spec: spec.clone(),
            patience,
            from,
            carried: None,
            source: None,
            to: None,
            began: None,
        };
        self.by_id.insert(id, handover);
    }

    /// What the receiver is told of a request of `prompt` tokens whose prefill is done.
    fn remote(&self, prompt: u32) -> RemoteKv {
        match self.spec.first_token {
            FirstToken::Prefill => RemoteKv {
                tokens: prompt,
                outputs: 1,
            },
            FirstToken::Decode => RemoteKv {
                tokens: prompt - 1,
                outputs: 0,
            },
        }
    }

    /// Bytes of `tokens` of KV that are still to go when the prefill, which took `prefill`, is done (sources 7.2): what a link of
    /// `bandwidth` [bytes/s] could not carry beside the layers before the last, and the last one's.
    fn bytes(&self, from: u32, tokens: u32, prefill: SimDuration, bandwidth: f64) -> f64 {
        let pool = &self.pools[self.pool_of[from as usize]];
        let all = f64::from(tokens) * pool.kv_bytes_per_token;
        if !self.spec.layerwise {
            return all;
        }
        let last = 1.0 / f64::from(pool.layers.max(1));
        let beside = bandwidth * prefill.as_secs() * (1.0 - last);
        ((all - beside).max(0.0) + all * last).min(all)
    }
}

impl Run<'_> {
    /// Takes requests off replica `i` whose prefill is done there: it knows them no longer, but for their KV.
    pub(super) fn note_prefilled(&mut self, i: u32) {
        let books = self.fleet.get(i).1;
        if books.prefilled.is_empty() {
            return;
        }
        let mut prefilled = std::mem::take(&mut books.prefilled);
        for (i, slot) in prefilled.drain(..) {
            let carried = self.fleet.get(i).0.hand_over(slot);
            self.services.of(i).ended(i);
            if let (Some(carried), Some(h)) = (carried, &mut self.handovers)
                && let Some(handover) = h.by_id.get_mut(&carried.id)
            {
                handover.carried = Some(carried);
                handover.source = Some(slot);
                h.ready.push(carried.id);
            }
        }
        self.fleet.get(i).1.prefilled = prefilled;
    }

    /// Sends on what has been prefilled: class 3 of [`crate::cluster`], before what clients send.
    pub(super) fn send_on(&mut self, now: SimTime) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        for id in std::mem::take(&mut h.ready) {
            self.hand_over(id, now);
        }
    }

    /// Chooses the decode replica of a request that has been prefilled, and sends it there; it fails where none is ready (503 of a proxy).
    fn hand_over(&mut self, id: ReqId, now: SimTime) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        let Some(handover) = h.by_id.get_mut(&id) else {
            return;
        };
        let Some(carried) = handover.carried else {
            return;
        };
        let chosen = (self.services.decode(&handover.spec)).and_then(|r| r.route(&handover.spec));
        let Some(d) = chosen else {
            return self.fail_on_the_way(id, now);
        };
        let (spec, patience) = (handover.spec.clone(), handover.patience);
        let (source, from) = (handover.source, handover.from);
        let remote = h.remote(spec.prompt_tokens);
        let (replica, books) = self.fleet.get(d);
        let slot = replica.receive(
            now,
            &carried,
            &spec,
            (remote, source.is_none()),
            (patience, now.max(carried.first_token)),
            books,
        );
        if remote.tokens == 0 || source.is_none() {
            h.by_id.remove(&id);
            h.unwanted.extend(source.map(|slot| (from, slot)));
        } else if let Some(handover) = h.by_id.get_mut(&id) {
            handover.to = Some((d, slot));
        }
        replica.happen(now, Class::TimeOut, books);
        self.due.push(d);
        self.tell(d);
    }

    /// Lets transfers begin whose receivers have set blocks aside.
    pub(super) fn begin_transfers(&mut self, now: SimTime) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        let wanted = std::mem::take(&mut self.fleet.groups[0].books.wanted);
        for (d, slot, tokens) in wanted {
            let id = self.fleet.peek(d).id_of(slot);
            let Some(handover) = h.by_id.get(&id) else {
                continue;
            };
            let from = handover.from;
            let prefill = (handover.carried)
                .map_or(SimDuration::ZERO, |c| c.prefilled.since(c.first_scheduled));
            let bytes = h.bytes(from, tokens, prefill, h.link.alone(from, d));
            h.link.start(now, id, from, d, bytes);
            if let Some(handover) = h.by_id.get_mut(&id) {
                handover.began = Some((now, tokens, bytes));
            }
        }
    }

    /// Ends the transfers that are due at `now`: the sender's blocks are free, the receiver's request can run.
    pub(super) fn end_transfers(&mut self, now: SimTime) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        for id in h.link.advance(now) {
            let Some(handover) = h.by_id.remove(&id) else {
                continue;
            };
            let (Some(source), Some((to, slot)), Some((began, tokens, bytes))) =
                (handover.source, handover.to, handover.began)
            else {
                continue;
            };
            let row = TransferRow {
                request: id,
                from: handover.from,
                to,
                tokens,
                held_tokens: handover.spec.prompt_tokens,
                bytes: bytes.round() as u64,
                prefilled: handover.carried.map_or(began, |c| c.prefilled),
                began,
                ended: now,
            };
            self.fleet.groups[0].books.recorder.transfer(&row);
            self.fleet.get(to).0.received(slot, now);
            self.due.push(to);
            h.unwanted.push((handover.from, source));
        }
        self.let_go(now);
    }

    /// Frees KV that is not wanted any more; whether there was any.
    pub(super) fn let_go(&mut self, now: SimTime) -> bool {
        let Some(h) = &mut self.handovers else {
            return false;
        };
        let unwanted = std::mem::take(&mut h.unwanted);
        for &(i, slot) in &unwanted {
            self.fleet.get(i).0.let_go(slot, now);
            self.due.push(i);
            self.tell(i);
        }
        !unwanted.is_empty()
    }

    /// Request `id` has ended at a replica: KV that waits for it is not wanted any more.
    pub(super) fn end_handover(&mut self, id: ReqId) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        let Some(handover) = h.by_id.remove(&id) else {
            return;
        };
        h.link.abort(self.now, id);
        if let Some(slot) = handover.source {
            h.unwanted.push((handover.from, slot));
            self.fleet.groups[0].books.recorder.transfers().broken_off += 1;
        }
    }

    /// Replica `i` has died: what it has prefilled is lost where it was not fetched.
    pub(super) fn lose_kv_of(&mut self, i: u32) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        let lost: Vec<ReqId> = (h.by_id.iter())
            .filter(|(_, handover)| handover.from == i && handover.source.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            let Some(h) = &mut self.handovers else {
                return;
            };
            h.link.abort(self.now, id);
            self.fleet.groups[0].books.recorder.transfers().broken_off += 1;
            let Some(handover) = h.by_id.get_mut(&id) else {
                continue;
            };
            handover.source = None;
            // One that is not on its way yet learns of it when it is.
            if let Some((d, slot)) = handover.to {
                h.by_id.remove(&id);
                let now = self.now;
                let (replica, books) = self.fleet.get(d);
                replica.kv_lost(slot, now, books);
                self.due.push(d);
                self.tell(d);
            }
        }
    }

    /// Request `id`, which has been prefilled, can go nowhere.
    fn fail_on_the_way(&mut self, id: ReqId, now: SimTime) {
        let Some(h) = &mut self.handovers else {
            return;
        };
        let Some(handover) = h.by_id.remove(&id) else {
            return;
        };
        let Some(carried) = handover.carried else {
            return;
        };
        let produced = h.remote(handover.spec.prompt_tokens).outputs;
        h.unwanted
            .extend(handover.source.map(|slot| (handover.from, slot)));
        let outcome = Outcome::Failed;
        let (row, end) = end_on_the_way(&handover.spec, &carried, produced, outcome, now);
        self.forget_try(id);
        self.end_outside(&row, &end);
    }
}
