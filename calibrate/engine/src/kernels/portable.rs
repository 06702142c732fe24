//! Linear layers in plain Rust: the reference, and what runs where there is no AVX-512.

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use super::linear::{Job, Weights};

/// A stored weight or cached value.
pub(super) trait Element: Copy + Send + Sync {
    /// As a single, exactly.
    fn widen(self) -> f32;
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
}

/// `a b + c`, in one rounding where the machine has an instruction for it: the library's function is slow elsewhere.
#[inline(always)]
pub(super) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

pub(super) fn products(job: &Job, weights: Weights) {
    match weights {
        Weights::F32(w) => all::<f32, false>(job, w),
        Weights::Bf16(w) => all::<bf16, false>(job, w.reinterpret_cast()),
        Weights::F16(w) => all::<f16, false>(job, w.reinterpret_cast()),
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn products_avx2(job: &Job, weights: Weights) {
    #[target_feature(enable = "avx2,fma")]
    fn run(job: &Job, weights: Weights) {
        match weights {
            Weights::F32(w) => all::<f32, true>(job, w),
            Weights::Bf16(w) => all::<bf16, true>(job, w.reinterpret_cast()),
            Weights::F16(w) => all::<f16, true>(job, w.reinterpret_cast()),
        }
    }
    // SAFETY: called for `Isa::Avx2` alone, which is chosen where these instructions are found.
    #[allow(unsafe_code)]
    unsafe {
        run(job, weights);
    }
}

#[inline(always)]
fn all<E: Element, const FMA: bool>(job: &Job, w: &[E]) {
    let (m, n, k) = (job.m(), job.n(), job.k);
    let mut column = 0;
    while column + 4 <= n {
        let w = &w[column * k..(column + 4) * k];
        let mut row = 0;
        while row + 2 <= m {
            tile::<E, 4, 2, FMA>(job, w, row, column);
            row += 2;
        }
        if row < m {
            tile::<E, 4, 1, FMA>(job, w, row, column);
        }
        column += 4;
    }
    for column in column..n {
        for row in 0..m {
            tile::<E, 1, 1, FMA>(job, &w[column * k..(column + 1) * k], row, column);
        }
    }
}

/// Products of `N` rows of weights with `M` rows of `x`, each in eight partial sums.
#[inline(always)]
fn tile<E: Element, const N: usize, const M: usize, const FMA: bool>(
    job: &Job,
    w: &[E],
    row: usize,
    column: usize,
) {
    const LANES: usize = 8;
    let k = job.k;
    let w: [&[E]; N] = std::array::from_fn(|i| &w[i * k..(i + 1) * k]);
    let x: [&[f32]; M] = std::array::from_fn(|i| &job.x[(row + i) * k..(row + i + 1) * k]);
    let mut sums = [[[0.0_f32; LANES]; N]; M];
    let whole = k / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        for i in 0..N {
            let values: [f32; LANES] = std::array::from_fn(|l| w[i][at + l].widen());
            for j in 0..M {
                for l in 0..LANES {
                    sums[j][i][l] = multiply_add::<FMA>(values[l], x[j][at + l], sums[j][i][l]);
                }
            }
        }
    }
    for j in 0..M {
        let mut out = [0.0; N];
        for i in 0..N {
            let s = &sums[j][i];
            let mut total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            for at in whole..k {
                total = multiply_add::<FMA>(w[i][at].widen(), x[j][at], total);
            }
            out[i] = total;
        }
        job.store(row + j, column, &out);
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
