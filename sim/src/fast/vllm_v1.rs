//! vLLM V1 with decodes in lockstep: the rules of [`crate::policy::vllm_v1`], section by section, at a cost per step that
//! does not depend on the batch size.

use std::collections::VecDeque;

use hwmodels::BatchStats;

use super::wheel::Wheel;
use crate::cluster::engine::{Out, Surroundings};
use crate::cluster::requests::{Requests, Slot, Stage};
use crate::cluster::stepped::cut;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kv::counting::{CountingPool, Left};
use crate::policy::vllm_v1::{SchedulingPolicy, VllmV1Params, VllmVersion};
use crate::policy::{Blocked, Load};
use crate::record::StepRow;
use crate::request::RejectReason;

/// No sequence.
const NIL: u32 = u32::MAX;

/// Whether the fast path covers this configuration.
///
/// # Errors
/// What stands in the way.
pub fn applies(p: &VllmV1Params) -> Result<(), &'static str> {
    if p.scheduling_policy != SchedulingPolicy::Fcfs {
        return Err("requests are scheduled by priority");
    }
    if p.depth() > 1 {
        return Err("several steps are in flight");
    }
    if p.shared_content {
        return Err("requests share prompt content");
    }
    if p.long_prefill_token_threshold > 0 {
        return Err("long_prefill_token_threshold is set");
    }
    if p.budget() < p.max_num_seqs {
        return Err("a step's token budget can be too small for all decodes");
    }
    if p.block_size == 0 {
        return Err("KV blocks hold no token");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    /// Running, prompt (or recomputed prefix) not complete.
    Prefill,
    /// Running, in lockstep.
    Decode,
}

#[derive(Clone, Copy, Debug)]
struct Seq {
    slot: Slot,
    state: State,
    /// Marks this use of the id among entries of `waiting`.
    ticket: u32,
    prompt: u32,
    /// Tokens it will produce.
    output: u32,
    /// Tokens produced; of a decode: when it joined the lockstep.
    outputs: u32,
    /// Tokens whose KV exists (not of a decode: there it follows from `anchor`).
    computed: u32,
    started: bool,
    /// Computed tokens minus the step counter, of a decode.
    anchor: i64,
    /// Step counter when it joined the decodes.
    joined: u64,
    /// Place in the order of admission; neighbours in it.
    order: u64,
    prev: u32,
    next: u32,
    /// What it left in the free queue when preempted.
    left: Left,
    left_visible: u32,
}

impl Default for Seq {
    fn default() -> Self {
        Seq {
            slot: 0,
            state: State::Gone,
            ticket: 0,
            prompt: 0,
            output: 0,
            outputs: 0,
            computed: 0,
            started: false,
            anchor: 0,
            joined: 0,
            order: 0,
            prev: NIL,
            next: NIL,
            left: Left::default(),
            left_visible: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    id: u32,
    samples: bool,
}

/// One vLLM V1 engine on the fast path.
pub struct FastVllm {
    around: Surroundings,
    params: VllmV1Params,
    budget: u32,
    block: u32,
    watermark: u64,
    reserves_full_prompt: bool,
    usable: u64,
    pool: CountingPool,

    seqs: Vec<Seq>,
    free_ids: Vec<u32>,
    tickets: u32,
    waiting: VecDeque<(u32, u32)>,
    waiting_count: u32,
    waiting_tokens: u64,
    set_aside: Vec<u32>,

    /// Running sequences in order of admission.
    head: u32,
    tail: u32,
    running: u32,
    admissions: u64,
    /// The running sequence whose prompt is not complete. Chunks are cut only when the budget is spent, so there is at most
    /// one between steps, and nobody was admitted after it.
    partial: u32,

    /// Steps started so far: the number of the next one.
    steps: u64,
    /// What the decodes will be in the next step.
    decodes: BatchStats,
    /// Decodes by anchor modulo block size.
    phases: Vec<u32>,
    wheel: Wheel,

    /// The step in flight: its row, its chunks, its decodes that have not been cancelled since.
    in_flight: Option<StepRow>,
    chunks: Vec<Chunk>,
    decoding: u32,
    /// When the last step ended: the instant of every decode's latest token.
    last_end: SimTime,
    /// Ids that end with the step being completed.
    ending: Vec<u32>,
}

impl FastVllm {
    /// An empty engine, for parameters to which the fast path [`applies`].
    pub fn new(params: VllmV1Params, around: Surroundings) -> FastVllm {
        debug_assert_eq!(applies(&params), Ok(()));
        let kv = params.kv();
        let usable = kv.blocks.saturating_sub(kv.reserved);
        FastVllm {
            around,
            budget: params.budget(),
            block: params.block_size,
            watermark: params.watermark_blocks(),
            reserves_full_prompt: params.reserves_full_prompt(),
            usable,
            pool: CountingPool::new(usable),
            seqs: Vec::new(),
            free_ids: Vec::new(),
            tickets: 0,
            waiting: VecDeque::new(),
            waiting_count: 0,
            waiting_tokens: 0,
            set_aside: Vec::new(),
            head: NIL,
            tail: NIL,
            running: 0,
            admissions: 0,
            partial: NIL,
            steps: 0,
            decodes: BatchStats::default(),
            phases: vec![0; params.block_size as usize],
            wheel: Wheel::new(),
            in_flight: None,
            chunks: Vec::new(),
            decoding: 0,
            last_end: SimTime::ZERO,
            ending: Vec::new(),
            params,
        }
    }

    pub(crate) fn enter(
        &mut self,
        _now: SimTime,
        slot: Slot,
        requests: &mut Requests,
    ) -> Result<(), RejectReason> {
        let r = requests.get_mut(slot);
        self.params.accepts(r.prompt_tokens, r.max_tokens)?;
        let p = &self.params;
        if p.max_num_queued_reqs
            .is_some_and(|most| self.waiting_count >= most)
            || p.max_num_queued_tokens
                .is_some_and(|most| self.waiting_tokens + u64::from(r.prompt_tokens) > most)
        {
            return Err(RejectReason::QueueFull);
        }
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.seqs.push(Seq::default());
            self.seqs.len() as u32 - 1
        });
        self.tickets = self.tickets.wrapping_add(1);
        self.seqs[id as usize] = Seq {
            slot,
            state: State::Waiting,
            ticket: self.tickets,
            prompt: r.prompt_tokens,
            output: r.output_tokens,
            ..Seq::default()
        };
        r.stage = Stage::Engine(id);
        self.waiting.push_back((id, self.tickets));
        self.waiting_count += 1;
        self.waiting_tokens += u64::from(r.prompt_tokens);
        Ok(())
    }

    pub(crate) fn cancel(&mut self, id: u32, requests: &mut Requests) {
        let seq = self.seqs[id as usize];
        requests.get_mut(seq.slot).produced = self.produced(&seq);
        match seq.state {
            State::Gone => return,
            State::Waiting => {
                self.waiting_count -= 1;
                if !seq.started {
                    self.waiting_tokens -= u64::from(seq.prompt);
                }
            }
            State::Prefill => {
                self.chunks.retain(|c| c.id != id);
                if self.partial == id {
                    self.partial = NIL;
                }
                self.stop_running(id);
            }
            State::Decode => {
                let in_step = self.in_flight.is_some() && seq.joined < self.steps;
                self.decoding -= u32::from(in_step);
                self.leave_lockstep(id);
                self.stop_running(id);
            }
        }
        self.forget(id);
    }

    #[inline]
    pub(crate) fn next(&self) -> SimTime {
        self.in_flight.as_ref().map_or(SimTime::NEVER, |s| s.end)
    }

    #[inline]
    pub(crate) fn complete(&mut self, now: SimTime, out: &mut Out) {
        let Some(row) = self.in_flight.take_if(|s| s.end <= now) else {
            return;
        };
        out.recorder.step(&row);
        let at_client = now + self.around.output_delay;
        if self.decoding > 0 {
            out.recorder
                .gaps(at_client, now - self.last_end, self.decoding);
        }
        self.wheel.due(self.steps - 1, &mut self.ending);
        for i in 0..self.ending.len() {
            self.leave_lockstep(self.ending[i]);
        }
        for i in 0..self.chunks.len() {
            let chunk = self.chunks[i];
            if chunk.samples {
                self.end_prefill(chunk.id, now, at_client, out);
            }
        }
        self.chunks.clear();
        self.last_end = now;
        if self.ending.is_empty() {
            return;
        }
        let seqs = &self.seqs;
        self.ending
            .sort_unstable_by_key(|&id| seqs[id as usize].order);
        for i in 0..self.ending.len() {
            let id = self.ending[i];
            let Seq { slot, output, .. } = self.seqs[id as usize];
            out.requests.get_mut(slot).produced = output;
            out.done.push((slot, true));
            self.stop_running(id);
            self.forget(id);
        }
        self.ending.clear();
    }

    /// A prompt, or the recomputed prefix of a preempted request, is complete and has given a token.
    fn end_prefill(&mut self, id: u32, now: SimTime, at_client: SimTime, out: &mut Out) {
        let seq = &mut self.seqs[id as usize];
        seq.outputs += 1;
        let r = out.requests.get_mut(seq.slot);
        if seq.outputs == 1 {
            r.first_token = at_client;
        } else {
            out.recorder.gaps(at_client, now - r.last_token, 1);
        }
        if seq.outputs == seq.output {
            self.ending.push(id);
            return;
        }
        seq.state = State::Decode;
        seq.joined = self.steps;
        seq.anchor = i64::from(seq.computed) - self.steps as i64;
        let last_step = self.steps + u64::from(seq.output - seq.outputs) - 1;
        self.decodes.add_decode(seq.computed + 1);
        let phase = seq.anchor.rem_euclid(i64::from(self.block));
        self.phases[phase as usize] += 1;
        self.wheel.insert(id, last_step);
    }

    /// Takes a decode out of the lockstep; it keeps its place in `running`.
    fn leave_lockstep(&mut self, id: u32) {
        self.wheel.remove(id);
        let produced = self.produced(&self.seqs[id as usize]);
        let seq = &mut self.seqs[id as usize];
        seq.computed = (seq.anchor + self.steps as i64) as u32;
        seq.outputs = produced;
        seq.state = State::Prefill;
        let context = u64::from(seq.computed) + 1;
        let d = &mut self.decodes;
        d.decode_seqs -= 1;
        d.decode_tokens -= 1;
        d.sampled_seqs -= 1;
        d.decode_ctx_sum -= context;
        d.decode_ctx_sq_sum -= context * context;
        let phase = seq.anchor.rem_euclid(i64::from(self.block));
        self.phases[phase as usize] -= 1;
    }

    /// Tokens that `seq` has produced by the last completed step.
    fn produced(&self, seq: &Seq) -> u32 {
        if seq.state != State::Decode {
            return seq.outputs;
        }
        let completed = self.steps - u64::from(self.in_flight.is_some());
        seq.outputs + completed.saturating_sub(seq.joined) as u32
    }

    /// Takes a sequence out of `running` and its blocks back.
    fn stop_running(&mut self, id: u32) {
        let block = self.block;
        let seq = &mut self.seqs[id as usize];
        let (prev, next) = (seq.prev, seq.next);
        seq.left = self.pool.give(seq.computed.div_ceil(block));
        seq.left_visible = seq.computed / block;
        match prev {
            NIL => self.head = next,
            p => self.seqs[p as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            n => self.seqs[n as usize].prev = prev,
        }
        self.running -= 1;
    }

    fn forget(&mut self, id: u32) {
        self.seqs[id as usize].state = State::Gone;
        self.free_ids.push(id);
    }

    /// 1.2 A 5: preemption of the last admitted. Returns whom.
    fn preempt_last(&mut self, out: &mut Out) -> u32 {
        let id = self.tail;
        if self.seqs[id as usize].state == State::Decode {
            self.leave_lockstep(id);
            let slot = self.seqs[id as usize].slot;
            out.requests.get_mut(slot).last_token = self.last_end;
        } else {
            self.partial = NIL;
        }
        self.stop_running(id);
        let seq = &mut self.seqs[id as usize];
        seq.computed = 0;
        seq.state = State::Waiting;
        out.requests.get_mut(seq.slot).preemptions += 1;
        self.waiting.push_front((id, seq.ticket));
        self.waiting_count += 1;
        id
    }

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
        self.partial = if samples { NIL } else { id };
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
        if self.in_flight.is_some() || (self.running == 0 && self.waiting_count == 0) {
            return;
        }
        let decodes_served = self.serve_decodes(out);
        let mut stats = self.decodes;
        let mut budget = self.budget - stats.decode_seqs;
        self.decoding = stats.decode_seqs;
        let mut blocked = Blocked::Nothing;
        let partial_served = self.serve_partial(&mut budget, &mut stats, out);
        if !decodes_served
            || !partial_served
            || self.waiting_count > 0 && self.admit_waiting(now, &mut budget, &mut stats, out)
        {
            blocked = Blocked::KvFull;
        } else if self.waiting_count > 0 {
            blocked = if self.running >= self.params.max_num_seqs {
                Blocked::MaxSeqs
            } else {
                Blocked::TokenBudget
            };
        }
        if stats.is_empty() {
            return;
        }
        self.steps += 1;
        self.decodes.advance_decodes();
        let cost = self.around.step.step(&stats);
        self.in_flight = Some(StepRow {
            replica: self.around.replica,
            start: now,
            end: now + SimDuration::from_secs(cost.latency),
            stats,
            parts: cost.parts,
            running: self.running,
            waiting: self.waiting_count,
            kv_used_blocks: self.usable - self.pool.free(),
            blocked,
        });
    }

    pub(crate) fn close(&mut self, now: SimTime, out: &mut Out) {
        if let Some(row) = self.in_flight {
            out.recorder.step(&cut(row, now));
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
                State::Prefill => seq.computed,
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
            running + waiting == 0 || self.in_flight.is_some(),
            "idle with runnable work"
        );
    }
}
