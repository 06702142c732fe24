//! Attention over the KV cache: decode (one new token per sequence), prefill (chunks of a prompt) and
//! latent attention (MLA).

mod decode;
mod prefill;
mod span;
pub mod sparse;

pub use decode::{
    Cache, DECODE_SPECS, DecodeParams, DecodeShape, MlaShape, XQA_PREFIX, decode_prefix,
    decode_quantities, decode_time, mla_decode_quantities, mla_decode_time,
};
pub use prefill::{
    PREFILL_SPECS, PrefillParams, PrefillShape, PrefillWork, prefill_prefix, prefill_quantities,
    prefill_time,
};
pub use span::Span;
pub use sparse::{SparseKernels, SparseShape};
