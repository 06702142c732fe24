//! Stored numbers as kernels read them.

use half::{bf16, f16};

use crate::isa::{LANES, Machine};

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
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn load<M: Machine>(machine: M, values: &[bf16; LANES]) -> M::Vector {
        machine.load_bf16(values)
    }
}

impl Element for f16 {
    /// Exponent and fraction shifted into place are the value times 2^-112, subnormals included; infinities become
    /// 65536. Plain arithmetic, so that loops over it vectorise, which calls of `f16::to_f32` do not.
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits(0x7780_0000);
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
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
