//! A request while a replica has it: its tokens, what it needs to choose more of them, and its instants.

use sim::kernel::time::SimTime;
use sim::kv::chain;
use tokio::sync::mpsc::UnboundedSender;

use std::sync::Arc;

use crate::metrics::Family;
use crate::request::{Event, GenerateRequest};
use crate::sampling::Sampler;
use crate::text::{StopMatcher, Utf8Stream};

/// Seed of every chain of content hashes.
const HASH_ROOT: u64 = 0x656e_6769_6e65_0001;

/// A request on its way into a replica.
pub struct Submission {
    /// The engine's number of it.
    pub id: u64,
    /// What is asked.
    pub request: GenerateRequest,
    /// Where its tokens go.
    pub events: UnboundedSender<Event>,
    /// When it reached the engine [ns since its start].
    pub submitted: SimTime,
    /// The sequences that were asked for together with this one.
    pub family: Arc<Family>,
}

/// A sequence under the id that the scheduler knows it by.
pub(super) struct Seq {
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) events: UnboundedSender<Event>,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    pub(super) sampler: Sampler,
    /// The sequences that were asked for together with this one.
    pub(super) family: Arc<Family>,
    pub(super) utf8: Utf8Stream,
    pub(super) stops: StopMatcher,
    pub(super) hashes: Hashes,
    /// When it reached the engine, and when the scheduler got it.
    pub(super) submitted: SimTime,
    pub(super) added: SimTime,
    pub(super) first_scheduled: Option<SimTime>,
    pub(super) first_token: Option<SimTime>,
    pub(super) last_token: SimTime,
    /// Prompt tokens that the prefix cache held at first scheduling.
    pub(super) cached: u32,
    pub(super) preemptions: u32,
}

impl Seq {
    /// A request that the scheduler got at `added`; `hashes` have taken in its prompt.
    pub(super) fn new(s: Submission, hashes: Hashes, added: SimTime) -> Seq {
        let prompt = &s.request.prompt;
        let mut tokens = Vec::with_capacity(prompt.len() + 64);
        tokens.extend_from_slice(prompt);
        Seq {
            id: s.id,
            tokens,
            sampler: Sampler::new(s.request.sampling.clone(), s.id),
            family: s.family,
            utf8: Utf8Stream::default(),
            stops: StopMatcher::new(&s.request.stop),
            hashes,
            submitted: s.submitted,
            added,
            first_scheduled: None,
            first_token: None,
            last_token: added,
            cached: 0,
            preemptions: 0,
            request: s.request,
            events: s.events,
        }
    }

    /// The tokens beyond the prompt.
    pub(super) fn output(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }
}

/// Chained content hashes of a sequence's full blocks, as far as its tokens are known.
#[derive(Clone, Debug)]
pub(super) struct Hashes {
    /// Tokens per block; 0: none wanted.
    block: usize,
    running: u64,
    hashed: usize,
    pub(super) full: Vec<u64>,
}

impl Hashes {
    /// Of a sequence without tokens; `block`: tokens per block, none where nothing is to be hashed. Sequences with unequal
    /// `salt` share no hash.
    pub(super) fn new(block: Option<u32>, salt: u64) -> Hashes {
        Hashes {
            block: block.unwrap_or(0) as usize,
            running: match salt {
                0 => HASH_ROOT,
                salt => chain(HASH_ROOT, salt),
            },
            hashed: 0,
            full: Vec::new(),
        }
    }

    /// Takes in the tokens that are new in `tokens`, and returns the hashes of the blocks that they fill.
    pub(super) fn extend(&mut self, tokens: &[u32]) -> &[u64] {
        let before = self.full.len();
        if self.block > 0 {
            for &t in &tokens[self.hashed..] {
                self.running = chain(self.running, u64::from(t));
                self.hashed += 1;
                if self.hashed.is_multiple_of(self.block) {
                    self.full.push(self.running);
                }
            }
        }
        &self.full[before..]
    }
}
