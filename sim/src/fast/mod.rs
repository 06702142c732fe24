//! The fast path: the same record as the reference path, without looking at every sequence of every step.
//!
//! Between two changes of the batch all decoding sequences move in lockstep, one token per step. So a sequence that joins the
//! decodes is described by what does not change any more: its *anchor* (computed tokens minus the step counter), hence its
//! place in its current KV block, and the number of the step that gives its last token. A step then costs the same
//! whatever the batch size:
//! - block crossings: a count of decodes per anchor modulo block size, one of which crosses in each step;
//! - finishes: a wheel of lists keyed by step number;
//! - the batch's sufficient statistics: advanced in closed form ([`hwmodels::BatchStats::advance_decodes`]).
//!
//! Prefill chunks, admissions, finishes and preemptions are handled one by one, exactly as the reference does.

mod vllm_v1;
mod wheel;

pub use vllm_v1::{FastVllm, applies};
