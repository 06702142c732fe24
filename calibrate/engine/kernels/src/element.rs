//! Stored numbers as kernels read them.

use half::{bf16, f16};

use crate::isa::{LANES, Machine};
use crate::widen::{widen_bf16, widen_f16};

/// A stored weight or cached value.
pub(super) trait Element: Copy + Send + Sync {
    /// As a single, exactly.
    fn widen(self) -> f32;

    /// Sixteen of them, exactly.
    fn load<M: Machine>(machine: M, values: &[Self; LANES]) -> M::Vector;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn load<M: Machine>(machine: M, values: &[f32; LANES]) -> M::Vector {
        machine.load(values)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_bf16(self)
    }

    #[inline(always)]
    fn load<M: Machine>(machine: M, values: &[bf16; LANES]) -> M::Vector {
        machine.load_bf16(values)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_f16(self)
    }

    #[inline(always)]
    fn load<M: Machine>(machine: M, values: &[f16; LANES]) -> M::Vector {
        machine.load_f16(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(half.widen().to_bits(), half.to_f32().to_bits());
            }
            let brain = bf16::from_bits(bits);
            if !brain.is_nan() {
                assert_eq!(brain.widen().to_bits(), brain.to_f32().to_bits());
            }
        }
    }
}
