//! Requests that are prefilled on one replica and decoded on another: where they go, and the KV that goes with them.

use super::Run;
use crate::cluster::events::Class;
use crate::cluster::replica::Sent;
use crate::cluster::requests::end_on_the_way;
use crate::kernel::time::{SimDuration, SimTime};
use crate::record::TransferRow;
use crate::request::{Outcome, ReqId};

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
            self.services.ended(i);
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
        let service = self.services.decode(&handover.spec);
        let chosen = service.and_then(|s| self.services.router(s).route(&handover.spec));
        let (Some(service), Some(d)) = (service, chosen) else {
            return self.fail_on_the_way(id, now);
        };
        self.services.offer(service);
        let (spec, patience) = (handover.spec.clone(), handover.patience);
        let (source, from) = (handover.source, handover.from);
        let remote = h.remote(spec.prompt_tokens);
        let sent = match h.relays() {
            true => Sent::BeforePrefill,
            false => Sent::At(now.max(carried.first_token)),
        };
        let (replica, books) = self.fleet.get(d);
        let slot = replica.receive(
            now,
            &carried,
            &spec,
            (remote, source.is_none()),
            (patience, sent),
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

    /// Request `id`, which has been prefilled, can go nowhere: its try has failed.
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
        let produced = h.delivered(handover.spec.prompt_tokens);
        h.unwanted
            .extend(handover.source.map(|slot| (handover.from, slot)));
        let outcome = Outcome::Failed;
        let (row, end) = end_on_the_way(&handover.spec, &carried, produced, outcome, now);
        self.under_way = self.under_way.saturating_sub(1);
        if !self.tries_again(&row) {
            self.end_try(&row, &end);
        }
    }
}
