//! The capacity scheduler: which requests may own KV (serving-policies 3.2).

use std::cmp::Ordering;

use super::{BatchSchedulerPolicy, Blocked, ReqId, Seq, State, TrtLlm};

impl TrtLlm {
    /// Blocks that `id` still lacks to run to its end (3.2).
    pub(super) fn blocks_to_completion(&self, id: ReqId) -> u64 {
        let s = &self.seqs[id as usize];
        let all = self.kv.blocks_for(s.prompt.saturating_add(s.max_new));
        all.saturating_sub(self.kv.held(id))
    }

    /// Blocks that `id` lacks for its next step; two steps ahead with several micro-batches (3.2).
    pub(super) fn blocks_for_step(&self, id: ReqId) -> u64 {
        let s = &self.seqs[id as usize];
        let tokens = if s.generating() {
            let ahead = if self.config.micro_batches > 1 { 2 } else { 1 };
            s.done + ahead.min(s.max_new.saturating_sub(s.generated).max(1))
        } else {
            s.context
        };
        self.kv.blocks_for(tokens).saturating_sub(self.kv.held(id))
    }

    /// First full block of the context of `id` that nobody can reuse yet.
    fn new_block(&self, id: ReqId) -> Option<u64> {
        let s = &self.seqs[id as usize];
        let full = (s.context / self.config.params.tokens_per_block) as usize;
        // Blocks can be found when the whole context is there, so a started one has contributed none.
        let known = if s.state == State::Started {
            s.reused
        } else {
            self.kv.hits(id, s.context)
        };
        let hashes = &s.hashes[..full.min(s.hashes.len())];
        hashes.get(known as usize).copied()
    }

    /// Whether to leave `id` for a later round, because a scheduled request is producing the block it needs next (3.2).
    /// Otherwise its own next block counts as being produced.
    fn better_later(&mut self, id: ReqId) -> bool {
        if !self.config.params.enable_kv_cache_reuse
            || self.config.params.batch_scheduler_policy == BatchSchedulerPolicy::StaticBatch
        {
            return false;
        }
        match self.new_block(id) {
            Some(block) if self.producing.contains(&block) => true,
            Some(block) => {
                self.producing.push(block);
                false
            }
            None => false,
        }
    }

    /// Blocks that started contexts are producing.
    fn note_running_contexts(&mut self) {
        self.producing.clear();
        if !self.config.params.enable_kv_cache_reuse {
            return;
        }
        for i in 0..self.started.len() {
            let id = self.started[i];
            if !self.seqs[id as usize].generating()
                && let Some(block) = self.new_block(id)
            {
                self.producing.push(block);
            }
        }
    }

    /// The capacity scheduler (3.2): fills `fitting`, pauses into `paused`.
    pub(super) fn choose_owners(&mut self, paused: &mut Vec<ReqId>) {
        self.fitting.clear();
        self.blocked = Blocked::Nothing;
        self.note_running_contexts();
        match self.config.params.batch_scheduler_policy {
            BatchSchedulerPolicy::MaxUtilization => self.choose_max_utilization(paused),
            BatchSchedulerPolicy::GuaranteedNoEvict | BatchSchedulerPolicy::StaticBatch => {
                self.choose_no_evict();
            }
        }
    }

    /// Started requests behind `started[i]` that keep their place whatever an earlier one in the queue wants.
    fn places_kept(&self, i: usize, keeps: impl Fn(&Seq) -> bool) -> usize {
        let behind = self.started.get(i..).unwrap_or_default();
        (behind.iter())
            .filter(|&&id| keeps(&self.seqs[id as usize]))
            .count()
    }

    fn choose_no_evict(&mut self) {
        let max = self.config.max_requests();
        let mut available = self.kv.free();
        for &id in &self.started {
            if self.fitting.len() >= max {
                break;
            }
            if self.seqs[id as usize].generating() {
                self.fitting.push(id);
                available = available.saturating_sub(self.blocks_to_completion(id));
            }
        }
        let is_static =
            self.config.params.batch_scheduler_policy == BatchSchedulerPolicy::StaticBatch;
        if is_static && !self.fitting.is_empty() {
            self.blocked = Blocked::MaxSeqs;
            return;
        }
        let (mut i, mut j) = (0, 0);
        while self.fitting.len() < max {
            while i < self.started.len() && self.seqs[self.started[i] as usize].generating() {
                i += 1;
            }
            let Some((id, from_started)) = self.first_of(i, j) else {
                break;
            };
            if from_started {
                i += 1;
            } else {
                j += 1;
                if self.fitting.len() + self.places_kept(i, |s| !s.generating()) >= max {
                    // Contexts under way have the places that are left.
                    j = self.waiting.len();
                    continue;
                }
                if self.better_later(id) {
                    continue;
                }
            }
            let need = self.blocks_to_completion(id);
            if need > available {
                self.blocked = Blocked::KvFull;
                return;
            }
            available -= need;
            self.fitting.push(id);
        }
        if self.fitting.len() >= max {
            self.blocked = Blocked::MaxSeqs;
        }
    }

    fn choose_max_utilization(&mut self, paused: &mut Vec<ReqId>) {
        let max = self.config.max_requests();
        let mut needed = 0;
        let mut limit = None;
        let mut admissible = None;
        let (mut i, mut j) = (0, 0);
        while let Some((id, from_started)) = self.first_of(i, j) {
            if limit.is_some_and(|l| self.seqs[id as usize].key >= l) {
                break;
            }
            if !from_started && admissible != Some(id) {
                if self.better_later(id) {
                    j += 1;
                    continue;
                }
                admissible = Some(id);
            }
            let need = self.blocks_for_step(id);
            let taken = match from_started {
                true => 0,
                false => self.places_kept(i, |s| s.flights > 0),
            };
            if self.fitting.len() + taken < max && needed + need <= self.kv.free() {
                needed += need;
                self.fitting.push(id);
                if from_started {
                    i += 1;
                } else {
                    j += 1;
                }
                continue;
            }
            self.blocked = if self.fitting.len() + taken >= max {
                Blocked::MaxSeqs
            } else {
                Blocked::KvFull
            };
            // Pausing puts the victim behind everything looked at so far, so the cursors stay valid.
            let Some(&victim) = self.started[i..].last() else {
                break;
            };
            if self.seqs[victim as usize].flights > 0 {
                // Its blocks come free only when its step ends.
                self.seqs[victim as usize].pause_due = true;
                break;
            }
            limit = Some(self.seqs[victim as usize].key);
            self.pause(victim);
            paused.push(victim);
        }
    }

    /// The earlier in list order of `started[i]` and `waiting[j]`, and whether it is the former.
    fn first_of(&self, i: usize, j: usize) -> Option<(ReqId, bool)> {
        let started = self.started.get(i).copied();
        let waiting = self.waiting.get(j).copied();
        match (started, waiting) {
            (Some(s), Some(w)) => {
                let first = self.seqs[s as usize].key.cmp(&self.seqs[w as usize].key);
                Some(if first == Ordering::Less {
                    (s, true)
                } else {
                    (w, false)
                })
            }
            (Some(s), None) => Some((s, true)),
            (None, w) => w.map(|w| (w, false)),
        }
    }
}
