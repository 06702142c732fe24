//! vLLM V1 with decodes in lockstep: the rules of [`crate::policy::vllm_v1`], section by section, at a cost per step that
//! does not depend on the batch size.

mod schedule;

use std::collections::VecDeque;

use hwmodels::BatchStats;

use super::wheel::Wheel;
use crate::cluster::requests::{Requests, Slot, Stage};
use crate::cluster::surroundings::{Out, Surroundings};
use crate::kernel::time::SimTime;
use crate::kv::counting::{CountingPool, Left};
use crate::policy::vllm_v1::{SchedulingPolicy, VllmV1Params};
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
    if p.pipeline_parallel_size > 1 {
        return Err("pipeline stages split the running requests into micro-batches");
    }
    if p.shared_content {
        return Err("requests share prompt content");
    }
    if p.host_kv.is_some() {
        return Err("KV is kept in the host's memory, too");
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
    if p.state_blocks > 0 {
        return Err("sequences hold KV blocks beside those of their tokens");
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
    /// Running, in lockstep: it takes part in every step.
    Decode,
    /// Running, but in no further step: the one that gives its last token is under way.
    Last,
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
    /// Tokens for which steps are planned: under asynchronous scheduling one more than it will produce, unless
    /// `max_tokens` tells the engine before (1.4).
    planned: u32,
    /// Tokens produced; of a `Decode` or `Last`: before the step `base`.
    outputs: u32,
    /// Tokens whose KV exists or is being computed (not of a `Decode`: there it follows from `anchor`).
    computed: u32,
    started: bool,
    /// Preempted while a step in flight still gives it a token.
    pending: bool,
    /// Computed tokens minus the step counter, of a `Decode`.
    anchor: i64,
    /// The step that completed its prompt and gave the token after `outputs`; it decodes from the next one on.
    base: u64,
    /// The last step it takes part in.
    last: u64,
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
            planned: 0,
            outputs: 0,
            computed: 0,
            started: false,
            pending: false,
            anchor: 0,
            base: 0,
            last: 0,
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

/// A step in flight.
#[derive(Debug)]
struct Flight {
    row: StepRow,
    chunks: Vec<Chunk>,
    /// Its decodes whose clients still wait for the token.
    decoding: u32,
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

    /// Steps in flight, the oldest first; their chunks' memory is reused.
    in_flight: VecDeque<Flight>,
    depth: usize,
    /// The engine waits for the oldest step in flight, as in the reference.
    awaits: bool,
    /// Chunks of the step being planned.
    chunks: Vec<Chunk>,
    spare: Vec<Vec<Chunk>>,
    /// Sequences of the step being planned that decode from the next one on.
    joining: Vec<u32>,
    /// Preempted sequences with a token still to come from the step in flight.
    landing: Vec<u32>,
    /// When the last step ended: the instant of every decode's latest token.
    last_end: SimTime,
    /// When the last planned step starts and ends.
    planned_start: SimTime,
    planned_end: SimTime,
    /// Ids that end with the step being completed, or that leave the lockstep.
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
            in_flight: VecDeque::new(),
            depth: params.depth() as usize,
            awaits: false,
            chunks: Vec::new(),
            spare: Vec::new(),
            joining: Vec::new(),
            landing: Vec::new(),
            last_end: SimTime::ZERO,
            planned_start: SimTime::ZERO,
            planned_end: SimTime::ZERO,
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
            planned: if self.params.async_scheduling {
                r.max_tokens.min(r.output_tokens + 1)
            } else {
                r.output_tokens
            },
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
        self.withdraw(id);
        match seq.state {
            State::Gone => return,
            State::Waiting => {
                self.waiting_count -= 1;
                if !seq.started {
                    self.waiting_tokens -= u64::from(seq.prompt);
                }
            }
            State::Prefill => {
                self.partial = NIL;
                self.stop_running(id);
            }
            State::Decode => {
                self.wheel.remove(id);
                self.leave_lockstep(id);
                self.stop_running(id);
            }
            State::Last => {
                self.wheel.remove(id);
                self.stop_running(id);
            }
        }
        self.forget(id);
    }

    /// Takes a sequence out of the steps in flight: nobody waits for its tokens any more.
    fn withdraw(&mut self, id: u32) {
        let seq = &self.seqs[id as usize];
        let decodes = matches!(seq.state, State::Decode | State::Last) || seq.pending;
        let first = self.completed();
        for (step, flight) in (first..).zip(&mut self.in_flight) {
            if decodes && seq.base < step && step <= seq.last {
                flight.decoding -= 1;
            }
            flight.chunks.retain(|c| c.id != id);
        }
    }

    /// Steps completed so far: the number of the oldest in flight.
    #[inline]
    fn completed(&self) -> u64 {
        self.steps - self.in_flight.len() as u64
    }

    #[inline]
    pub(crate) fn next(&self) -> SimTime {
        self.in_flight.front().map_or(SimTime::NEVER, |s| s.row.end)
    }

    #[inline]
    pub(crate) fn complete(&mut self, now: SimTime, out: &mut Out) {
        while self.in_flight.front().is_some_and(|s| s.row.end <= now) {
            if let Some(flight) = self.in_flight.pop_front() {
                self.awaits = false;
                self.complete_step(now, flight, out);
            }
        }
    }

    #[inline]
    fn complete_step(&mut self, now: SimTime, mut flight: Flight, out: &mut Out) {
        out.recorder.step(&flight.row);
        let at_client = now + self.around.output_delay;
        if flight.decoding > 0 {
            out.recorder
                .gaps(at_client, now - self.last_end, flight.decoding);
        }
        for chunk in flight.chunks.drain(..).filter(|c| c.samples) {
            let seq = &self.seqs[chunk.id as usize];
            let r = out.requests.get_mut(seq.slot);
            if seq.outputs == 0 {
                r.first_token = at_client;
            } else {
                out.recorder.gaps(at_client, now - r.last_token, 1);
            }
        }
        self.spare.push(flight.chunks);
        let step = self.completed() - 1;
        self.wheel.due(step, &mut self.ending);
        self.land(now, out);
        self.last_end = now;
        if self.ending.is_empty() {
            return;
        }
        let seqs = &self.seqs;
        self.ending
            .sort_unstable_by_key(|&id| seqs[id as usize].order);
        for i in 0..self.ending.len() {
            let id = self.ending[i];
            let Seq {
                slot,
                output,
                state,
                ..
            } = self.seqs[id as usize];
            out.requests.get_mut(slot).produced = output;
            out.done.push((slot, true));
            if state == State::Waiting {
                self.waiting_count -= 1;
            } else {
                debug_assert_eq!(state, State::Last);
                self.wheel.remove(id);
                // 1.4: the result of a step beyond its last token is dropped.
                self.withdraw(id);
                self.stop_running(id);
            }
            self.forget(id);
        }
        self.ending.clear();
    }

    /// Preempted sequences get the token that was in flight; for some it is the last one.
    fn land(&mut self, now: SimTime, out: &mut Out) {
        for id in self.landing.drain(..) {
            let seq = &mut self.seqs[id as usize];
            if !seq.pending {
                continue;
            }
            seq.pending = false;
            seq.outputs += 1;
            out.requests.get_mut(seq.slot).last_token = now;
            if seq.outputs == seq.output {
                self.ending.push(id);
            }
        }
    }

    /// Takes a decode out of the lockstep; it keeps its place in `running` and in the wheel.
    fn leave_lockstep(&mut self, id: u32) {
        let seq = &mut self.seqs[id as usize];
        seq.computed = (seq.anchor + self.steps as i64) as u32;
        seq.state = State::Last;
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

    /// Puts a sequence whose prompt the step just planned completes into the lockstep of the next.
    fn join_lockstep(&mut self, id: u32) {
        let seq = &mut self.seqs[id as usize];
        seq.state = State::Decode;
        seq.anchor = i64::from(seq.computed) - self.steps as i64;
        self.decodes.add_decode(seq.computed + 1);
        let phase = seq.anchor.rem_euclid(i64::from(self.block));
        self.phases[phase as usize] += 1;
    }

    /// Tokens that `seq` has produced by the last completed step.
    fn produced(&self, seq: &Seq) -> u32 {
        match seq.state {
            State::Decode | State::Last => {
                seq.outputs + self.completed().saturating_sub(seq.base) as u32
            }
            _ => seq.outputs,
        }
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
        self.seqs[id as usize].pending = false;
        self.free_ids.push(id);
    }

    /// 1.2 A 5: preemption of the last admitted. Returns whom.
    fn preempt_last(&mut self, out: &mut Out) -> u32 {
        let id = self.tail;
        let state = self.seqs[id as usize].state;
        let produced = self.produced(&self.seqs[id as usize]);
        if state == State::Prefill {
            self.partial = NIL;
        } else {
            if state == State::Decode {
                self.leave_lockstep(id);
            }
            self.wheel.remove(id);
            let seq = &mut self.seqs[id as usize];
            seq.outputs = produced;
            if self.in_flight.is_empty() {
                out.requests.get_mut(seq.slot).last_token = self.last_end;
            } else {
                seq.pending = true;
                seq.last = seq.last.min(self.steps - 1);
                self.landing.push(id);
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_with_states_beside_kv_are_none_of_it() {
        let plain = VllmV1Params {
            enable_prefix_caching: false,
            ..VllmV1Params::default()
        };
        assert_eq!(applies(&plain), Ok(()));
        let states = VllmV1Params {
            state_blocks: 3,
            ..plain
        };
        assert!(applies(&states).is_err_and(|why| why.contains("beside those of their tokens")));
    }
}
