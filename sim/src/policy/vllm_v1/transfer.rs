//! KV that another replica has made, or fetches (serving-policies 6.2).

use super::remote::Remote;
use super::{State, VllmV1};
use crate::policy::{Blocked, KvMove, RemoteKv, StepPlan};
use crate::request::ReqId;

impl VllmV1 {
    /// The KV of `id`, which was just added, comes from another replica.
    pub(super) fn wait_for_kv(&mut self, id: ReqId, remote: RemoteKv) {
        let seq = &mut self.seqs[id as usize];
        seq.outputs = remote.outputs;
        seq.remote = Remote::Wanted(remote.tokens);
    }

    /// Phase B begins with those whose KV has come: they hold their blocks, and nothing behind them may keep these from use (6.2).
    pub(super) fn admit_received(&mut self, budget: &mut u32, plan: &mut StepPlan) {
        let mut i = 0;
        while i < self.receiving.len()
            && *budget > 0
            && (self.running.len() as u32) < self.params.max_num_seqs
        {
            let id = self.receiving[i];
            let seq = &mut self.seqs[id as usize];
            let Remote::Here(tokens) = seq.remote else {
                i += 1;
                continue;
            };
            self.receiving.remove(i);
            seq.remote = Remote::No;
            seq.state = State::Running;
            seq.computed = tokens;
            let n = (seq.num_tokens() - tokens).min(*budget);
            self.waiting_count -= 1;
            self.running.push(id);
            // A preempted one, whose KV came from the host, has run before.
            if !std::mem::replace(&mut seq.started, true) {
                self.waiting_tokens -= u64::from(seq.prompt);
                plan.admitted.push(id);
            }
            self.schedule(id, n, plan);
            *budget -= n;
        }
    }

    /// Lets KV come that another replica has made (6.2). False: there are too few blocks for it.
    pub(super) fn receive(&mut self, id: ReqId, tokens: u32, plan: &mut StepPlan) -> bool {
        let Some(hits) = self.set_blocks_aside(id, tokens, plan) else {
            return false;
        };
        plan.moves.push(KvMove {
            id,
            tokens: tokens.saturating_sub(hits * self.params.block_size),
            inwards: true,
        });
        true
    }

    /// Sets blocks aside for the KV of `tokens` tokens that is to come from elsewhere. The blocks of them that are here; `None`: there are too few.
    pub(super) fn set_blocks_aside(
        &mut self,
        id: ReqId,
        tokens: u32,
        plan: &mut StepPlan,
    ) -> Option<u32> {
        let all = self.seqs[id as usize].num_tokens();
        let hits = self.kv.hits(id, all);
        let keep = if self.running.is_empty() {
            0
        } else {
            self.params.watermark_blocks()
        };
        if !self.kv.can_admit(id, all, hits, keep) || !self.kv.admit(id, all, hits) {
            plan.blocked = Blocked::KvFull;
            return None;
        }
        self.seqs[id as usize].remote = Remote::Coming(tokens);
        self.receiving.push(id);
        Some(hits)
    }

    /// The KV that `id` waited for is there.
    pub(super) fn end_reception(&mut self, id: ReqId) {
        let seq = &mut self.seqs[id as usize];
        if let Remote::Coming(tokens) = seq.remote {
            seq.remote = Remote::Here(tokens);
        }
    }

    /// The KV of `id` will not come: like a preempted request it computes prompt and outputs, from the head of the queue.
    pub(super) fn compute_again(&mut self, id: ReqId) {
        if matches!(self.seqs[id as usize].remote, Remote::Coming(_)) {
            self.kv.release(id);
            self.receiving.retain(|&r| r != id);
            self.waiting.push_front(id, &self.seqs[id as usize]);
        }
        self.seqs[id as usize].remote = Remote::No;
    }

    /// `kept` have had their last token here; their blocks stay.
    pub(super) fn keep_kv(&mut self, kept: &[ReqId]) {
        for &id in kept {
            let seq = &mut self.seqs[id as usize];
            if seq.state == State::Waiting {
                // Preempted while its last step was in flight: it has no blocks to keep.
                self.waiting_count -= 1;
            }
            seq.state = State::Sending;
        }
    }
}
