//! Serving policies: state machines that decide what each step holds.
//!
//! A policy knows nothing of time passing or of how long a step takes. The simulator drives it with a
//! predicted step time and a virtual clock; a real engine drives the same code with a real forward pass.
//! One policy per file, named after the system it reproduces and configured by that system's parameters;
//! section numbers in the files are those of `docs/serving-policies.md`.

pub mod check;
pub mod data_parallel;
pub mod llama_cpp;
pub mod sglang;
pub mod static_batch;
#[cfg(test)]
pub(crate) mod testkit;
pub mod tgi;
pub mod tgi_neuron;
pub mod trt_llm;
pub mod vllm_v1;

use hwmodels::BatchStats;

use crate::kernel::time::SimTime;
use crate::kv::KvManager;
use crate::request::{RejectReason, ReqId};

/// What a scheduler is told about a request on arrival.
#[derive(Clone, Debug)]
pub struct SeqParams {
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// `max_tokens` of the call [tokens].
    pub max_tokens: u32,
    /// Priority, lower is more urgent.
    pub priority: i32,
    /// When it reached the engine.
    pub arrival: SimTime,
    /// Chained hashes of the full KV blocks of prompt and output, for prefix caching: hash `i` names tokens
    /// `[i * block, (i + 1) * block)` and all before them. Empty: nothing shareable in this run, the cache only counts.
    /// What lies beyond the tokens that exist is an identity, not knowledge: look up at most what exists.
    pub block_hashes: Vec<u64>,
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The request.
    pub id: ReqId,
    /// New tokens computed in this step [tokens].
    pub tokens: u32,
    /// Tokens whose KV existed before the step, cached ones included [tokens].
    pub context: u32,
    /// Whether the step yields a token for it.
    pub samples: bool,
    /// Whether it is a decode (one token of an already started output, and drafts of those after it) rather than a prefill chunk.
    pub decode: bool,
}

impl Scheduled {
    /// Tokens that it may get: one where it samples, and one for each draft that it verifies [tokens].
    #[inline]
    pub fn tokens_at_most(&self) -> u32 {
        match (self.samples, self.decode) {
            (false, _) => 0,
            (true, true) => self.tokens,
            (true, false) => 1,
        }
    }
}

/// What kept waiting requests out of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// Nothing: none was left waiting, or only because of a rule not listed here.
    #[default]
    Nothing,
    /// No free KV blocks (or budget of KV tokens).
    KvFull,
    /// As many sequences as the engine allows (`max_num_seqs`, slots).
    MaxSeqs,
    /// The step's token budget was spent.
    TokenBudget,
}

impl Blocked {
    /// The causes, in the order in which records keep their time.
    pub const CAUSES: [Blocked; 3] = [Blocked::KvFull, Blocked::MaxSeqs, Blocked::TokenBudget];
}

/// KV that moves in or out beside a step: offloaded to host memory, or sent between prefill and decode replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvMove {
    /// The sequence whose KV it is.
    pub id: ReqId,
    /// How much of it [tokens].
    pub tokens: u32,
    /// Whether it comes into device memory, or leaves it.
    pub inwards: bool,
}

/// KV that another replica has made of a request (disaggregated prefill and decode, serving-policies 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKv {
    /// Leading tokens whose KV it has made [tokens].
    pub tokens: u32,
    /// Output tokens that it has made [tokens].
    pub outputs: u32,
}

/// What a step gave its sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Tokens that each entry of the plan got, in the order of the entries: none, one, or several (speculation). Empty: one for each
    /// entry that [`Scheduled::samples`].
    pub tokens: &'a [u32],
    /// Requests that have had their last token.
    pub stopped: &'a [ReqId],
    /// Those that had their last token here and go on elsewhere: their KV stays until [`Scheduler::sent`]. Not among `stopped`.
    pub kept: &'a [ReqId],
}

impl<'a> Given<'a> {
    /// One token for each entry that samples; `stopped` have had their last.
    pub fn one_each(stopped: &'a [ReqId]) -> Given<'a> {
        Given {
            tokens: &[],
            stopped,
            kept: &[],
        }
    }

    /// Tokens that entry `i` of the plan got [tokens].
    #[inline]
    pub fn to(&self, i: usize, entry: &Scheduled) -> u32 {
        match self.tokens.get(i) {
            Some(tokens) => *tokens,
            None => u32::from(entry.samples),
        }
    }
}

/// One step: what to run, and what the scheduler did while choosing it. Reused between steps.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Sequences of the step.
    pub entries: Vec<Scheduled>,
    /// Their sufficient statistics. Static engines count their padding here: it costs real time.
    pub stats: BatchStats,
    /// The parts of the batch that the engine computes one after another, each a forward pass of its own; empty: the whole
    /// batch is one pass.
    pub passes: Vec<BatchStats>,
    /// The batches of data-parallel ranks, which run at the same time and end the step together, empty ones too; empty: one rank.
    pub ranks: Vec<BatchStats>,
    /// Requests scheduled for the first time in this step.
    pub admitted: Vec<ReqId>,
    /// Requests that lost their KV while this step was chosen.
    pub preempted: Vec<ReqId>,
    /// KV that moves while the step runs; the driver adds what that takes.
    pub moves: Vec<KvMove>,
    /// Prompt tokens found in the prefix cache by the requests admitted in this step [tokens].
    pub cached_tokens: u64,
    /// What kept the head of the waiting queue out of this step.
    pub blocked: Blocked,
}

impl StepPlan {
    /// Empties the plan, keeping its memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.stats = BatchStats::default();
        self.passes.clear();
        self.ranks.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.moves.clear();
        self.cached_tokens = 0;
        self.blocked = Blocked::Nothing;
    }
}

/// What a router or an exporter can read off a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests holding KV or a slot.
    pub running: u32,
    /// Requests waiting to be scheduled, preempted ones included.
    pub waiting: u32,
    /// KV blocks in use by running requests (cached but free blocks do not count).
    pub kv_used_blocks: u64,
    /// KV blocks there are.
    pub kv_total_blocks: u64,
}

impl Load {
    /// Share of KV blocks in use [ratio].
    pub fn kv_use(&self) -> f64 {
        self.kv_used_blocks as f64 / self.kv_total_blocks.max(1) as f64
    }
}

/// A serving policy with its KV-block accounting.
///
/// The driver's loop: `add` on arrival; when idle or done, `plan`; run the step; `complete` with the tokens that it gave and the
/// requests that stopped (on their last token); repeat. With several steps in flight, `plan` may be called again before
/// `complete`; steps complete in the order they were planned.
///
/// The ids a scheduler sees are its driver's slots: small and dense, reused once their request has stopped, failed or been
/// cancelled *and* no step in flight names them any more. So state per request belongs into a `Vec` indexed by id.
/// A step in flight may name a request that has stopped or been cancelled since: `complete` skips it.
pub trait Scheduler: Send {
    /// Takes in a request, or refuses it as the named system would.
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason>;

    /// Chooses the next step into `plan` (cleared first). False: nothing can run now.
    /// Requests that can never run are dropped and told by [`Scheduler::take_failed`].
    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool;

    /// Ends the oldest step in flight: each entry has as many more tokens as it was given, and those that stopped have had their last
    /// one and free what they hold.
    fn complete(&mut self, plan: &StepPlan, given: Given<'_>);

    /// Removes a request wherever it is (client gone).
    fn cancel(&mut self, id: ReqId);

    /// Requests dropped since the last call because they can never be served.
    fn take_failed(&mut self, out: &mut Vec<ReqId>);

    /// After `plan` said no: when to ask again even if nothing else happens (a batch that waits only so long for
    /// company). None: only an arrival, a completion or a cancellation can change the answer.
    fn next_wake(&self) -> Option<SimTime> {
        None
    }

    /// What can be seen from outside.
    fn load(&self) -> Load;

    /// The KV blocks it accounts for, where it keeps its accounts in blocks: an engine that computes reads from here where
    /// a sequence's KV lies. None: rows or slots, whose storage is the driver's.
    fn kv_manager(&self) -> Option<&KvManager> {
        None
    }

    /// As [`Scheduler::kv_manager`], to set it up before the first request.
    fn kv_manager_mut(&mut self) -> Option<&mut KvManager> {
        None
    }

    /// Tells the content of the next full blocks of `id` as its output becomes known, before the [`Scheduler::complete`]
    /// of the step that made it. Drivers that know the output beforehand tell it in [`SeqParams::block_hashes`].
    fn extend_content(&mut self, id: ReqId, hashes: &[u64]) {
        if let Some(kv) = self.kv_manager_mut() {
            kv.extend_content(id, hashes);
        }
    }

    /// The KV of `id`, which was just added, comes from another replica. A plan says in [`StepPlan::moves`], inwards, when its blocks are
    /// set aside and the KV may come. Called only where [`Scheduler::takes_part_in_transfers`].
    fn expect_kv(&mut self, id: ReqId, remote: RemoteKv) {
        let _ = (id, remote);
    }

    /// The KV that a plan asked for is there.
    fn received(&mut self, id: ReqId) {
        let _ = id;
    }

    /// The KV that `id` waits for will not come. True: it computes its prompt here. False: it cannot, and its driver cancels it.
    fn kv_lost(&mut self, id: ReqId) -> bool {
        let _ = id;
        false
    }

    /// The KV of `id`, which stopped among [`Given::kept`], is no longer needed here: its blocks are free.
    fn sent(&mut self, id: ReqId) {
        let _ = id;
    }

    /// Whether it can keep KV for another replica and take in KV that another has made.
    fn takes_part_in_transfers(&self) -> bool {
        false
    }

    /// How likely drafts are accepted where it lets decodes verify some: of each draft, given that those before it are [probability]. A decode of several
    /// tokens verifies all but the first; its driver draws how many tokens it gets: one, and one for each draft before the first that is refused.
    /// Empty: nothing is drafted.
    fn acceptance(&self) -> &[f64] {
        &[]
    }

    /// Steps that may be in flight at once (1; the number of pipeline stages; 2 with asynchronous scheduling).
    fn depth(&self) -> u32 {
        1
    }
}
