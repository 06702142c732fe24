//! Computation on the CPU: linear layers, attention over paged KV, and the small operations between them.
//!
//! Kernels are plain loops over arrays, written so that the compiler keeps them in registers and turns them into vector
//! code; the same source is compiled once per instruction set.
//!
//! Every output value is a sum in an order of its own that does not depend on what else is in the step, so a
//! sequence's logits are the same bits alone, in any batch, and for any chunking of its prompt.

pub mod attention;
pub mod dtype;
pub mod elementwise;
pub mod linear;
pub mod pool;

mod element;

/// Instructions that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every machine has.
    Portable,
    /// AVX2 with FMA, on x86-64.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, on x86-64.
    Avx512,
}

impl Isa {
    /// The widest that this machine has.
    #[must_use]
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }
}
