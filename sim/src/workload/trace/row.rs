//! One request of a trace.

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceRow {
    /// Its number in the run that wrote it, which settles the order of requests sent at one instant; else 0.
    pub id: u64,
    /// When it is sent, counted from the first row [s].
    pub arrival_s: f64,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Output length [tokens].
    pub output_tokens: u32,
    /// `max_tokens` of the call, where the trace has it [tokens].
    pub max_tokens: Option<u32>,
    /// Session, where the trace has it.
    pub session: Option<u64>,
    /// Mooncake's content hashes of the prompt's 512-token blocks.
    pub hash_ids: Vec<u64>,
}
