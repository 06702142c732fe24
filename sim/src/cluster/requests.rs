//! The requests under way: one slot each, reused, so that memory follows what is in flight and not what was offered.

use crate::kernel::time::SimTime;
use crate::policy::RemoteKv;
use crate::record::RequestRow;
use crate::request::{Outcome, ReqId, RequestSpec};
use crate::workload::RequestEnd;

/// Index of a slot in [`Requests`].
pub type Slot = u32;

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The slot is free.
    #[default]
    Free,
    /// Between gateway and engine: HTTP, tokenizer.
    Entering,
    /// In the engine under this local id.
    Engine(u32),
    /// All tokens are made; the last ones are on their way to the client.
    Leaving,
    /// It goes on elsewhere; its KV stays in the engine under this local id until it has been fetched.
    Handed(u32),
}

/// What is known of a request when its prefill is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Its index in the run.
    pub id: ReqId,
    /// Prompt tokens that the prefill found in its cache [tokens].
    pub cached_tokens: u32,
    /// Times it lost its KV.
    pub preemptions: u32,
    /// First scheduled.
    pub first_scheduled: SimTime,
    /// Its first token reaches whoever sent it.
    pub first_token: SimTime,
    /// That token was known to the engine.
    pub prefilled: SimTime,
}

/// One request under way.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Counts the uses of the slot: tells late events about an earlier use apart.
    pub generation: u32,
    /// Where it is.
    pub stage: Stage,
    /// Its index in the run.
    pub id: ReqId,
    /// Replica it was sent to.
    pub replica: u32,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Tokens it will produce [tokens].
    pub output_tokens: u32,
    /// Limit of the call [tokens].
    pub max_tokens: u32,
    /// Tokens produced so far [tokens]; kept by the engine, exact when it reports the end.
    pub produced: u32,
    /// Prompt tokens found in the cache at first scheduling [tokens].
    pub cached_tokens: u32,
    /// Times it lost its KV.
    pub preemptions: u32,
    /// Priority, lower is more urgent.
    pub priority: i32,
    /// Workload stream.
    pub stream: u16,
    /// The source's mark.
    pub tag: u64,
    /// Session, if any.
    pub session: Option<u64>,
    /// Client sends.
    pub arrival: SimTime,
    /// It reached the engine.
    pub entered: SimTime,
    /// First scheduled.
    pub first_scheduled: SimTime,
    /// First token reaches the client.
    pub first_token: SimTime,
    /// Its client gives up.
    pub deadline: SimTime,
    /// The gateway gives up connecting to its replica, where it cannot.
    pub unreached: SimTime,
    /// Latest token is known to the engine.
    pub last_token: SimTime,
    /// It ends here with its first token and goes on elsewhere.
    pub hands_over: bool,
    /// Its first token was made elsewhere, and its client gets it when it joins a batch here.
    pub relays: bool,
    /// What another replica has made of it, until it reaches the engine.
    pub remote: Option<RemoteKv>,
    /// What was made of it is gone.
    pub lost: bool,
    /// Content of its KV blocks, between gateway and engine, where the run shares content.
    pub block_hashes: Vec<u64>,
}

/// The slots.
#[derive(Debug, Default)]
pub struct Requests {
    slots: Vec<Request>,
    free: Vec<Slot>,
}

impl Requests {
    /// Takes a free slot for `spec`, called `id` and sent to `replica`.
    pub fn open(&mut self, id: ReqId, spec: &RequestSpec, replica: u32) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Request::default());
            self.slots.len() as Slot - 1
        });
        let r = &mut self.slots[slot as usize];
        *r = Request {
            generation: r.generation,
            stage: Stage::Entering,
            id,
            replica,
            prompt_tokens: spec.prompt_tokens.max(1),
            output_tokens: spec.output_tokens.max(1),
            max_tokens: spec.max_tokens.max(spec.output_tokens).max(1),
            produced: 0,
            cached_tokens: 0,
            preemptions: 0,
            priority: spec.priority,
            stream: spec.stream,
            tag: spec.tag,
            session: spec.session,
            arrival: spec.arrival,
            entered: SimTime::NEVER,
            first_scheduled: SimTime::NEVER,
            first_token: SimTime::NEVER,
            deadline: SimTime::NEVER,
            unreached: SimTime::NEVER,
            last_token: SimTime::NEVER,
            hands_over: false,
            relays: false,
            remote: None,
            lost: false,
            block_hashes: std::mem::take(&mut r.block_hashes),
        };
        r.block_hashes.clear();
        slot
    }

    /// The request in `slot`.
    #[inline]
    pub fn get(&self, slot: Slot) -> &Request {
        &self.slots[slot as usize]
    }

    /// The request in `slot`.
    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> &mut Request {
        &mut self.slots[slot as usize]
    }

    /// Whether `slot` still holds what it held in `generation`.
    pub fn is(&self, slot: Slot, generation: u32) -> bool {
        let r = self.get(slot);
        r.generation == generation && r.stage != Stage::Free
    }

    /// Frees `slot`; late events about it become stale.
    pub fn close(&mut self, slot: Slot) {
        let r = self.get_mut(slot);
        r.stage = Stage::Free;
        r.generation = r.generation.wrapping_add(1);
        self.free.push(slot);
    }

    /// Slots of the requests that are here, in the order of their ids; not of those that have been handed over.
    pub fn in_use(&self) -> Vec<Slot> {
        let mut used: Vec<Slot> = (0..self.slots.len() as Slot)
            .filter(|&s| !matches!(self.get(s).stage, Stage::Free | Stage::Handed(_)))
            .collect();
        used.sort_by_key(|&s| self.get(s).id);
        used
    }

    /// Slots of the requests that have been handed over.
    pub fn handed_over(&self) -> Vec<Slot> {
        (0..self.slots.len() as Slot)
            .filter(|&s| matches!(self.get(s).stage, Stage::Handed(_)))
            .collect()
    }

    /// Number of slots in use, those of requests that have been handed over among them.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// The replica of a request that none was chosen for.
pub const NO_REPLICA: u32 = u32::MAX;

/// The row of request `id` that ended at `end` before a replica was chosen for it, and what its workload is told.
pub fn never_served(
    id: ReqId,
    spec: &RequestSpec,
    outcome: Outcome,
    end: SimTime,
) -> (RequestRow, RequestEnd) {
    let mut requests = Requests::default();
    let slot = requests.open(id, spec, NO_REPLICA);
    let request = requests.get(slot);
    let row = request.row(outcome, end);
    (row, request.end(&row))
}

/// The same of a request that has been prefilled, `produced` tokens of which the client got, and that no decode replica was chosen for.
pub fn end_on_the_way(
    spec: &RequestSpec,
    carried: &Carried,
    produced: u32,
    outcome: Outcome,
    end: SimTime,
) -> (RequestRow, RequestEnd) {
    let mut requests = Requests::default();
    let slot = requests.open(carried.id, spec, NO_REPLICA);
    let request = requests.get_mut(slot);
    request.cached_tokens = carried.cached_tokens;
    request.preemptions = carried.preemptions;
    request.first_scheduled = carried.first_scheduled;
    request.produced = produced;
    if produced > 0 {
        request.first_token = carried.first_token;
    }
    let row = request.row(outcome, end);
    (row, request.end(&row))
}

impl Request {
    /// The row of a request that ends at `end` with `outcome`. Tokens count from when they reach the client; a client that
    /// leaves before its first one got none.
    pub fn row(&self, outcome: Outcome, end: SimTime) -> RequestRow {
        let got_some = self.first_token <= end;
        RequestRow {
            id: self.id,
            stream: self.stream,
            replica: self.replica,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: if got_some { self.produced } else { 0 },
            preemptions: self.preemptions,
            arrival: self.arrival,
            first_scheduled: self.first_scheduled,
            first_token: if got_some {
                self.first_token
            } else {
                SimTime::NEVER
            },
            end,
            outcome,
        }
    }

    /// What the workload is told.
    pub fn end(&self, row: &RequestRow) -> RequestEnd {
        RequestEnd {
            id: self.id,
            tag: self.tag,
            stream: self.stream,
            session: self.session,
            outcome: row.outcome,
            at: row.end,
            output_tokens: row.output_tokens,
        }
    }
}
