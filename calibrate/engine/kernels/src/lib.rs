//! Computation on the CPU: linear layers, attention over paged KV, and the small operations between them.
//!
//! Kernels are written once over vectors of sixteen singles and compiled once for each instruction set ([`Isa`]): AVX-512,
//! AVX2 with FMA and F16C, and plain loops for any other machine. The program chooses among them when it runs.
//!
//! Every output value is a sum in an order of its own that does not depend on what else is in the step, so a
//! sequence's logits are the same bits alone, in any batch, and for any chunking of its prompt.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over a constant number of vectors, which indices show to be one"
)]

pub mod attention;
pub mod ceilings;
pub mod dtype;
pub mod elementwise;
pub mod linear;
pub mod pool;

mod element;
mod isa;
mod mix;
mod widen;

pub use isa::Isa;
