//! The micro-batch scheduler: which requests that own KV run now, and with how many tokens (serving-policies 3.3).

use super::{Blocked, ContextChunkingPolicy, ReqId, State, TrtLlm};

impl TrtLlm {
    /// The micro-batch scheduler (3.3): fills `contexts` (with their chunks) and `generations` from `fitting`.
    pub(super) fn choose_micro_batch(&mut self) {
        self.contexts.clear();
        self.generations.clear();
        let p = &self.config.params;
        let (budget, overlap) = (p.max_num_tokens, self.config.overlaps());
        let (mut tokens, mut context_tokens, mut size) = (0u32, 0u64, 0u32);
        for k in 0..self.fitting.len() {
            let id = self.fitting[k];
            let s = &self.seqs[id as usize];
            if s.held_back(overlap) {
                continue;
            }
            if s.generating() {
                if tokens + 1 > budget {
                    self.blocked = Blocked::TokenBudget;
                    break;
                }
                tokens += 1;
                self.generations.push(id);
            } else {
                let cached = if s.state == State::Started {
                    s.done
                } else {
                    self.kv.hits(id, s.context) * p.tokens_per_block
                };
                let rest = s.context - cached;
                if !p.enable_chunked_context {
                    // A paused request may have outgrown the budget: it then runs alone (3.2).
                    let alone = rest > budget && self.contexts.is_empty() && tokens == 0;
                    if u64::from(tokens) + u64::from(rest) > u64::from(budget) && !alone {
                        self.blocked = Blocked::TokenBudget;
                        break;
                    }
                    tokens = tokens.saturating_add(rest);
                } else {
                    context_tokens += u64::from(rest);
                }
                let s = &mut self.seqs[id as usize];
                s.chunk = rest;
                if s.state != State::Started {
                    s.done = cached;
                }
                self.contexts.push(id);
            }
            size += 1;
            if size >= p.max_batch_size {
                self.blocked = Blocked::MaxSeqs;
                break;
            }
        }
        let room = budget.saturating_sub(tokens);
        if p.enable_chunked_context && context_tokens > u64::from(room) {
            self.blocked = Blocked::TokenBudget;
            self.split_budget(room);
        }
        let seqs = &self.seqs;
        self.contexts.retain(|&id| seqs[id as usize].chunk > 0);
    }

    /// Chunk sizes when the contexts exceed `room` tokens together (3.3).
    fn split_budget(&mut self, mut room: u32) {
        let unit = self.config.params.tokens_per_block;
        match self.config.params.context_chunking_policy {
            ContextChunkingPolicy::FirstComeFirstServed => {
                for &id in &self.contexts {
                    let s = &mut self.seqs[id as usize];
                    if s.chunk > room {
                        s.chunk = room / unit * unit;
                    }
                    room -= s.chunk;
                }
            }
            ContextChunkingPolicy::EqualProgress => {
                let rests: Vec<u32> = self
                    .contexts
                    .iter()
                    .map(|&id| std::mem::take(&mut self.seqs[id as usize].chunk))
                    .collect();
                loop {
                    let mut progress = false;
                    for (&id, &rest) in self.contexts.iter().zip(&rests) {
                        let s = &mut self.seqs[id as usize];
                        let more = unit.min(rest - s.chunk);
                        if more > 0 && more <= room {
                            s.chunk += more;
                            room -= more;
                            progress = true;
                        }
                    }
                    if !progress || room == 0 {
                        break;
                    }
                }
            }
        }
    }

    /// Leaves the contexts of the chosen step for a later one while they are to wait for more (3.3, `PyExecutor._waiting_requests`).
    pub(super) fn wait_for_more(&mut self) {
        let p = &self.config.params;
        if p.batch_wait_timeout_iters == 0
            || self.contexts.is_empty()
            || self.generations.is_empty()
        {
            return;
        }
        let of = |id: &ReqId| u64::from(self.seqs[*id as usize].context);
        let tokens = self.contexts.iter().map(of).sum::<u64>() + self.generations.len() as u64;
        let enough = p.batch_wait_max_tokens_ratio * f64::from(p.max_num_tokens);
        if self.waited < p.batch_wait_timeout_iters && (tokens as f64) < enough {
            self.waited += 1;
            self.leave_contexts_out();
        } else {
            self.waited = 0;
        }
    }
}
