//! Stored numbers as kernels read them.

use half::{bf16, f16};

/// A stored weight or cached value.
pub(super) trait Element: Copy + Send + Sync {
    /// As a single, exactly.
    fn widen(self) -> f32;

    /// Sixteen of them, exactly. `AVX512` only where the machine has it.
    #[inline(always)]
    fn widen_all<const AVX512: bool>(values: &[Self; 16]) -> [f32; 16] {
        one_by_one(values)
    }
}

#[inline(always)]
fn one_by_one<E: Element>(values: &[E; 16]) -> [f32; 16] {
    let mut wide = [0.0; 16];
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = value.widen();
    }
    wide
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
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

    /// By the instruction for it: left to the compiler, tiles of four rows were not vectorised, forty times slower.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn widen_all<const AVX512: bool>(values: &[f16; 16]) -> [f32; 16] {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
        if !AVX512 {
            return one_by_one(values);
        }
        let mut wide = [0.0; 16];
        // SAFETY: the caller vouches for the instructions; source and target hold sixteen values each.
        #[allow(unsafe_code)]
        unsafe {
            let halves = _mm256_loadu_si256(values.as_ptr().cast());
            _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
        wide
    }
}

/// `a b + c`, in one rounding where the machine has an instruction for it: the library's function is slow elsewhere.
#[inline(always)]
pub(super) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

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

    #[test]
    fn sixteen_halves_widen_as_each_does() {
        let all: Vec<f16> = (0..=u16::MAX)
            .map(f16::from_bits)
            .filter(|h| h.is_finite())
            .collect();
        for values in all.as_chunks::<16>().0 {
            let each = values.map(|v| v.widen().to_bits());
            assert_eq!(f16::widen_all::<false>(values).map(f32::to_bits), each);
            if Isa::detect() == Isa::Avx512 {
                assert_eq!(f16::widen_all::<true>(values).map(f32::to_bits), each);
            }
        }
    }
}
