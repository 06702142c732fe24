//! A token for every running request: `update_running_batch`, and retraction when the KV cache has no room for them (serving-policies 7.4).

use super::params::{DisaggregationMode, RETRACT_DECODE_STEPS};
use super::{ReqId, Sglang, State, StepPlan};
use crate::policy::Blocked;

impl Sglang {
    /// Plans a decode step; false: nothing runs.
    pub(super) fn plan_decode(&mut self, plan: &mut StepPlan) -> bool {
        // Now the batch is looked through.
        if std::mem::take(&mut self.ended) > 0 || self.running.is_empty() {
            self.full = None;
        }
        if self.running.is_empty() {
            return false;
        }
        if self.kv.free() < self.pages_for_step(&self.running) {
            self.retract(plan);
            self.full = None;
            plan.blocked = Blocked::KvFull;
        } else {
            self.new_token_ratio = (self.new_token_ratio - self.config.new_token_ratio_decay)
                .max(self.config.min_new_token_ratio);
        }
        self.decode_all(plan);
        !plan.entries.is_empty()
    }

    /// With mixed chunks: the running requests join the step of prompts.
    pub(super) fn decode_beside(&mut self, plan: &mut StepPlan) {
        self.ended = 0;
        self.decode_all(plan);
    }

    fn decode_all(&mut self, plan: &mut StepPlan) {
        for i in 0..self.running.len() {
            let id = self.running[i];
            let tokens = self.config.verified;
            let grown = self.kv.grow(id, self.seqs[id as usize].done + tokens);
            debug_assert!(grown, "room was made for {id}");
            if grown {
                self.schedule(id, tokens, true, plan);
            }
        }
    }

    /// Pages that `ids` lack for their next tokens.
    fn pages_for_step(&self, ids: &[ReqId]) -> u64 {
        if self.config.page_size == 1 && self.config.verified == 1 {
            return ids.len() as u64;
        }
        ids.iter()
            .map(|&id| {
                let after = self.seqs[id as usize].done + self.config.verified;
                self.kv.blocks_for(after).saturating_sub(self.kv.held(id))
            })
            .sum()
    }

    /// Whether the rest of the batch has the room that a retraction is to make.
    fn has_room(&self) -> bool {
        let steps = u64::from(self.config.retract_steps);
        let page = u64::from(self.config.page_size);
        match steps {
            1 => self.kv.free() >= self.pages_for_step(&self.running),
            _ => self.kv.free() * page >= self.running.len() as u64 * steps,
        }
    }

    /// Takes the KV from those with the fewest outputs, of them first from those with the longest prompts, until the others have room. They wait
    /// behind everybody else and compute prompt and outputs again, but for what the cache still holds of the prompt. A server of decodes keeps what they
    /// computed in the host's memory.
    pub(super) fn retract(&mut self, plan: &mut StepPlan) {
        let seqs = &self.seqs;
        let order = |id: &ReqId| {
            let s = &seqs[*id as usize];
            (std::cmp::Reverse(s.generated), s.prompt)
        };
        self.running.sort_by_key(order);
        loop {
            // The last one always fits, unless half a prompt lies beside it.
            if self.running.len() < 2 && self.chunked.is_none() {
                break;
            }
            let Some(id) = self.running.pop() else { break };
            self.kv.release(id);
            let s = &mut self.seqs[id as usize];
            if self.config.disaggregation_mode == DisaggregationMode::Decode {
                s.state = State::Parked;
                self.transfers.parked.push_back(id);
            } else {
                s.state = State::Waiting;
                s.done = 0;
                self.waiting.push_back(id);
            }
            plan.preempted.push(id);
            if self.has_room() {
                break;
            }
        }
        let sum = |f: &dyn Fn(ReqId) -> u32| -> u64 {
            self.running.iter().map(|&id| u64::from(f(id))).sum()
        };
        let made = sum(&|id| self.seqs[id as usize].generated);
        let ahead = u64::from(RETRACT_DECODE_STEPS) * self.running.len() as u64;
        let most = sum(&|id| self.seqs[id as usize].max_new);
        self.new_token_ratio = ((made + ahead) as f64 / (most + 1) as f64).min(1.0);
    }
}
