//! Planning a step: blocks for those that run, then admissions, as in the scheduler that it stands for.

use hwmodels::BatchStats;

use super::{Chunk, FastVllm, Flight, NIL, State};
use crate::cluster::surroundings::{Out, cut};
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::vllm_v1::VllmVersion;
use crate::policy::{Blocked, Load};
use crate::record::StepRow;

impl FastVllm {
    /// Phase A for the decodes: gives blocks to those that cross a boundary. False if somebody was preempted.
    fn serve_decodes(&mut self, out: &mut Out) -> bool {
        let block = i64::from(self.block);
        let crossing_phase = (-(self.steps as i64)).rem_euclid(block);
        let crossing = u64::from(self.phases[crossing_phase as usize]);
        if crossing <= self.pool.free() {
            self.pool.take(crossing);
            return true;
        }
        let mut at = self.head;
        while at != NIL {
            let seq = self.seqs[at as usize];
            let crosses =
                seq.state == State::Decode && seq.anchor.rem_euclid(block) == crossing_phase;
            if crosses {
                while self.pool.free() == 0 {
                    if self.preempt_last(out) == at {
                        return false;
                    }
                }
                self.pool.take(1);
            }
            // Those admitted after it may have gone.
            at = self.seqs[at as usize].next;
        }
        false
    }

    /// Phase A for the unfinished prompt, which is the last admitted. False if it had to be preempted.
    fn serve_partial(&mut self, budget: &mut u32, stats: &mut BatchStats, out: &mut Out) -> bool {
        let id = self.partial;
        if id == NIL || *budget == 0 {
            return true;
        }
        let seq = &self.seqs[id as usize];
        let n = (seq.prompt + seq.outputs - seq.computed).min(*budget);
        let held = seq.computed.div_ceil(self.block);
        let more = u64::from((seq.computed + n).div_ceil(self.block) - held);
        if more > self.pool.free() {
            self.preempt_last(out);
            return false;
        }
        self.pool.take(more);
        *budget -= n;
        self.schedule(id, n, stats);
        true
    }

    fn schedule(&mut self, id: u32, n: u32, stats: &mut BatchStats) {
        let seq = &mut self.seqs[id as usize];
        let before = seq.computed;
        seq.computed += n;
        let samples = seq.computed == seq.prompt + seq.outputs;
        if n == 1 && samples && before >= seq.prompt {
            stats.add_decode(before + 1);
        } else {
            stats.add_prefill(n, before, samples);
        }
        if samples {
            self.partial = NIL;
            seq.base = self.steps;
            seq.last = self.steps + u64::from(seq.planned - seq.outputs) - 1;
            seq.state = State::Last;
            let gives_last = self.steps + u64::from(seq.output - seq.outputs) - 1;
            self.wheel.insert(id, gives_last);
            if seq.last > self.steps {
                self.joining.push(id);
            }
        } else {
            self.partial = id;
        }
        self.chunks.push(Chunk { id, samples });
    }

    /// Phase B: admissions. True if KV blocks kept the head of the queue out.
    fn admit_waiting(
        &mut self,
        now: SimTime,
        budget: &mut u32,
        stats: &mut BatchStats,
        out: &mut Out,
    ) -> bool {
        let mut kv_full = false;
        while *budget > 0 && self.running < self.params.max_num_seqs {
            let Some(&(id, ticket)) = self.waiting.front() else {
                break;
            };
            let seq = self.seqs[id as usize];
            if seq.ticket != ticket || seq.state != State::Waiting {
                self.waiting.pop_front();
                continue;
            }
            // Preempted while a step of it was in flight: its token first.
            let in_flight = seq.pending;
            let tokens = seq.prompt + seq.outputs;
            let hits = if seq.left_visible == 0 || !self.params.enable_prefix_caching {
                0
            } else {
                ((tokens - 1) / self.block)
                    .min(seq.left_visible)
                    .min(self.pool.survivors(seq.left))
            };
            let cached = hits * self.block;
            let mut n = tokens - cached;
            if in_flight && (self.params.enable_chunked_prefill || n <= *budget) {
                break;
            }
            if n > *budget {
                if !self.params.enable_chunked_prefill {
                    if self.params.version >= VllmVersion::V0_33 {
                        break;
                    }
                    self.waiting.pop_front();
                    self.set_aside.push(id);
                    continue;
                }
                n = *budget;
            }
            let room_for = if self.reserves_full_prompt {
                tokens
            } else {
                cached + n
            };
            let keep = if self.running == 0 { 0 } else { self.watermark };
            let need = u64::from(room_for.div_ceil(self.block).saturating_sub(hits));
            if need.saturating_add(keep) > self.pool.free() - u64::from(hits) {
                kv_full = true;
                break;
            }
            self.waiting.pop_front();
            self.pool.retake(seq.left, hits);
            let blocks = (cached + n).div_ceil(self.block);
            self.pool.take(u64::from(blocks.saturating_sub(hits)));
            self.run(id, cached, now, out);
            *budget -= n;
            self.schedule(id, n, stats);
        }
        while let Some(id) = self.set_aside.pop() {
            self.waiting.push_front((id, self.seqs[id as usize].ticket));
        }
        kv_full
    }

    /// Moves an admitted sequence from waiting to the end of `running`.
    fn run(&mut self, id: u32, cached: u32, now: SimTime, out: &mut Out) {
        self.waiting_count -= 1;
        self.running += 1;
        self.admissions += 1;
        let tail = self.tail;
        let seq = &mut self.seqs[id as usize];
        seq.state = State::Prefill;
        seq.computed = cached;
        seq.left_visible = 0;
        seq.order = self.admissions;
        seq.prev = tail;
        seq.next = NIL;
        if !seq.started {
            seq.started = true;
            self.waiting_tokens -= u64::from(seq.prompt);
            out.requests.get_mut(seq.slot).first_scheduled = now;
        }
        match tail {
            NIL => self.head = id,
            t => self.seqs[t as usize].next = id,
        }
        self.tail = id;
    }

    pub(crate) fn start(&mut self, now: SimTime, out: &mut Out) {
        if self.awaits {
            return;
        }
        while self.in_flight.len() < self.depth
            && (self.running > 0 || self.waiting_count > 0)
            && self.plan(now, out)
        {}
        self.awaits = !self.in_flight.is_empty();
    }

    /// Plans a step and sends it off. False: there is nothing to run.
    #[inline]
    fn plan(&mut self, now: SimTime, out: &mut Out) -> bool {
        let mut blocked = Blocked::Nothing;
        let (stats, decoding) = loop {
            let decodes_served = self.serve_decodes(out);
            let mut stats = self.decodes;
            let decoding = stats.decode_seqs;
            let mut budget = self.budget - decoding;
            let served = self.serve_partial(&mut budget, &mut stats, out) && decodes_served;
            if !served
                || self.waiting_count > 0 && self.admit_waiting(now, &mut budget, &mut stats, out)
            {
                blocked = Blocked::KvFull;
            }
            // As in the reference: with nobody left to schedule after a preemption, vLLM's loop asks again at once.
            if served || !stats.is_empty() {
                break (stats, decoding);
            }
        };
        if stats.is_empty() {
            return false;
        }
        if blocked == Blocked::Nothing && self.waiting_count > 0 {
            blocked = if self.running >= self.params.max_num_seqs {
                Blocked::MaxSeqs
            } else {
                Blocked::TokenBudget
            };
        }
        self.advance_lockstep();

        let cost = self.around.step.of(now, std::slice::from_ref(&stats));
        let latency = SimDuration::from_secs(cost.latency);
        let mut end = now + latency;
        if !self.in_flight.is_empty() {
            end = end.max(self.planned_end + SimDuration::from_secs(cost.interval));
        }
        let start = SimTime(end.0 - latency.0).max(self.planned_start);
        (self.planned_start, self.planned_end) = (start, end);
        let spare = self.spare.pop().unwrap_or_default();
        self.in_flight.push_back(Flight {
            row: StepRow {
                replica: self.around.replica,
                start,
                end,
                stats,
                parts: cost.parts,
                running: self.running,
                waiting: self.waiting_count,
                kv_used_blocks: self.usable - self.pool.free(),
                blocked,
            },
            chunks: std::mem::replace(&mut self.chunks, spare),
            decoding,
        });
        true
    }

    /// The step is planned: everybody who decodes has one more token to come, those whose last step it is leave, and those
    /// whose prompt it completes join.
    #[inline]
    fn advance_lockstep(&mut self) {
        let step = self.steps;
        self.steps += 1;
        self.decodes.advance_decodes();
        self.wheel.due(step, &mut self.ending);
        if self.depth > 1 && step > 0 {
            // Not yet known to have had its last token by the step before.
            self.wheel.due(step - 1, &mut self.ending);
        }
        while let Some(id) = self.ending.pop() {
            let seq = &self.seqs[id as usize];
            if seq.state == State::Decode && seq.last == step {
                self.leave_lockstep(id);
            }
        }
        while let Some(id) = self.joining.pop() {
            self.join_lockstep(id);
        }
    }

    pub(crate) fn close(&mut self, now: SimTime, out: &mut Out) {
        for flight in &self.in_flight {
            out.recorder.step(&cut(flight.row, now));
        }
        for seq in &self.seqs {
            if seq.state != State::Gone {
                out.requests.get_mut(seq.slot).produced = self.produced(seq);
            }
        }
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            running: self.running,
            waiting: self.waiting_count,
            kv_used_blocks: self.usable - self.pool.free(),
            kv_total_blocks: self.usable,
        }
    }

    pub(crate) fn check(&self) {
        let mut held = 0;
        let (mut running, mut waiting) = (0, 0);
        let mut decodes = BatchStats::default();
        for seq in &self.seqs {
            let computed = match seq.state {
                State::Gone => continue,
                State::Waiting => {
                    waiting += 1;
                    continue;
                }
                State::Prefill | State::Last => seq.computed,
                State::Decode => {
                    let computed = (seq.anchor + self.steps as i64) as u32;
                    decodes.add_decode(computed + 1);
                    computed
                }
            };
            running += 1;
            held += u64::from(computed.div_ceil(self.block));
        }
        assert_eq!((running, waiting), (self.running, self.waiting_count));
        assert_eq!(decodes, self.decodes, "lockstep statistics");
        assert_eq!(
            held + self.pool.free(),
            self.usable,
            "KV blocks are conserved"
        );
        assert!(
            running + waiting == 0 || !self.in_flight.is_empty(),
            "idle with runnable work"
        );
    }
}
