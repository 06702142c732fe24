//! 16-bit numbers as singles, exactly.

use half::{bf16, f16};

/// The upper half of a single.
#[inline(always)]
pub(crate) fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Exponent and fraction shifted into place are the value times 2^-112, subnormals included; infinities become
/// 65536. Plain arithmetic, so that loops over it vectorise, which calls of `f16::to_f32` do not.
#[inline(always)]
pub(crate) fn widen_f16(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}
