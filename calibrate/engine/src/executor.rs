//! The contract between the engine's loop and whatever computes a forward pass.

/// One sequence's share of a step, ready to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqInput {
    /// New tokens to run, in order; at least one.
    pub tokens: Vec<u32>,
    /// Tokens of the sequence whose KV exists already [tokens]; the new ones take positions `context..`.
    pub context: u32,
    /// Its KV blocks in order, new tokens included: position `p` lies in `blocks[p / block_size]` at `p % block_size`.
    pub blocks: Vec<u32>,
    /// Whether the logits after its last new token are wanted.
    pub sample: bool,
}

/// Where a step's wall time went, as far as it was measured. What no field names is host time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Matrix products of the layers [s].
    pub linear: f64,
    /// The LM head's product, from hidden states to logits; it is computed for sampled rows alone [s].
    pub lm_head: f64,
    /// Attention over the paged KV cache, writes into it included [s].
    pub attention: f64,
    /// Norms, rotary embedding, activations, embedding look-ups [s].
    pub elementwise: f64,
    /// All-reduce between tensor-parallel ranks and sends between pipeline stages, waiting included [s].
    pub communication: f64,
    /// From the start of the step's first stage to the end of its last [s].
    pub total: f64,
    /// Slept after that, where steps have a least time ([`crate::pace::Paced`]) [s].
    pub paced: f64,
}

impl StepTimes {
    /// Its parts together [s]: the total less what the host did in between.
    pub fn named(&self) -> f64 {
        self.linear + self.lm_head + self.attention + self.elementwise + self.communication
    }
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Logits, `[sampled sequences][vocabulary]` row by row, in the order of the inputs with `sample`.
    pub logits: Vec<f32>,
    /// Where its time went.
    pub times: StepTimes,
}

/// Why a step could not be computed. The engine fails the step's requests and goes on.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// An input does not fit the model or the cache: a defect of the caller.
    #[error("bad step input: {0}")]
    Input(String),
    /// A worker is gone.
    #[error("a worker of the engine stopped: {0}")]
    Worker(String),
}

/// Computes forward passes of one replica over its own paged KV cache.
///
/// Steps end in the order they were submitted. At most [`Executor::depth`] may be in flight.
pub trait Executor: Send {
    /// Takes in a step. With depth 1 it may compute it at once.
    fn submit(&mut self, step: Vec<SeqInput>) -> Result<(), ExecutorError>;

    /// Waits for the oldest step in flight.
    fn collect(&mut self) -> Result<StepOutput, ExecutorError>;

    /// Steps that may be in flight at once: the number of pipeline stages.
    fn depth(&self) -> usize;

    /// Size of the vocabulary: the length of a row of logits.
    fn vocab(&self) -> usize;
}
