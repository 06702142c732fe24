//! Instruction sets, chosen when the program runs, and the vector operations that kernels are made of on each of them.
//!
//! A value of [`Isa`] can only be had on a machine that has its instructions, so that whoever holds one may use them. All
//! vectors are of sixteen singles, in one register of AVX-512, two of AVX2 and four of any other machine.

use half::{bf16, f16};

use crate::widen::{widen_bf16, widen_f16};

/// Singles of a vector.
pub(crate) const LANES: usize = 16;

/// Instructions that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every machine has.
    Portable,
    /// AVX2 with FMA and F16C, on x86-64.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ and VL, on x86-64.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// Those that this machine has, the widest last.
    #[must_use]
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "other processors have the portable one alone")]
        let mut all = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::detect().map(Isa::Avx2));
            all.extend(Avx512::detect().map(Isa::Avx512));
        }
        all
    }

    /// The widest that this machine has.
    #[must_use]
    pub fn detect() -> Isa {
        *Isa::available().last().unwrap_or(&Isa::Portable)
    }

    /// Its name in tables: portable, avx2, avx512.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
        }
    }

    /// Runs `work`, compiled for these instructions.
    #[inline]
    pub(crate) fn run<W: Work>(self, work: W) -> W::Output {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_avx2<W: Work>(machine: Avx2, work: W) -> W::Output {
            work.run(machine)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        fn with_avx512<W: Work>(machine: Avx512, work: W) -> W::Output {
            work.run(machine)
        }
        match self {
            Isa::Portable => work.run(Portable),
            // SAFETY: an `Avx2` exists only where its instructions were found.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx2(machine) => unsafe { with_avx2(machine, work) },
            // SAFETY: an `Avx512` exists only where its instructions were found.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx512(machine) => unsafe { with_avx512(machine, work) },
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A loop that is compiled once for each instruction set. `run` must be `#[inline(always)]`, and so must be all that it
/// calls: a function of its own would be compiled without the instructions.
pub(crate) trait Work {
    /// What it gives.
    type Output;

    /// The loop.
    fn run<M: Machine>(self, machine: M) -> Self::Output;
}

/// Operations on vectors of sixteen singles.
pub(crate) trait Machine: Copy {
    /// Sixteen singles.
    type Vector: Copy;
    /// Vectors that fit into the registers as sums, beside what is added to them.
    const SUMS: usize;

    /// Sixteen times `value`.
    fn splat(self, value: f32) -> Self::Vector;
    /// Singles as they are.
    fn load(self, values: &[f32; LANES]) -> Self::Vector;
    /// Halves, exactly.
    fn load_f16(self, values: &[f16; LANES]) -> Self::Vector;
    /// Upper halves of singles, exactly.
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Vector;
    /// The singles of a vector.
    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]);
    /// `a b + c`; in one rounding where the machine has an instruction for it.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// As [`Machine::multiply_add`], of one value.
    fn multiply_add_one(self, a: f32, b: f32, c: f32) -> f32;
}

/// Any machine: loops that the compiler turns into whatever vectors it knows.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Machine for Portable {
    type Vector = [f32; LANES];
    const SUMS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> [f32; LANES] {
        *values
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> [f32; LANES] {
        one_by_one(values, widen_f16)
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> [f32; LANES] {
        one_by_one(values, widen_bf16)
    }

    #[inline(always)]
    fn store(self, vector: [f32; LANES], out: &mut [f32; LANES]) {
        *out = vector;
    }

    #[inline(always)]
    fn multiply_add(self, a: [f32; LANES], b: [f32; LANES], mut c: [f32; LANES]) -> [f32; LANES] {
        for l in 0..LANES {
            c[l] = self.multiply_add_one(a[l], b[l], c[l]);
        }
        c
    }

    /// In two roundings: where no instruction is known to do it in one, the library's function is slow.
    #[inline(always)]
    fn multiply_add_one(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[inline(always)]
fn one_by_one<T: Copy>(values: &[T; LANES], widen: impl Fn(T) -> f32) -> [f32; LANES] {
    let mut wide = [0.0; LANES];
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = widen(*value);
    }
    wide
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// Vectors by name rather than left to the compiler: what it makes of a loop over arrays has changed with the release
/// profile before, up to forty times slower.
#[cfg(target_arch = "x86_64")]
mod x86 {
    // SAFETY of all that follows: an `Avx2` or `Avx512` exists only where `detect` found the instructions, and the arrays
    // are as long as the vectors that are read from and written to them, which need not be aligned.
    #![allow(unsafe_code)]

    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::{LANES, Machine};

    /// Says that the machine has AVX2, FMA and F16C.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx2(());

    impl Avx2 {
        /// Where the machine has them.
        pub(super) fn detect() -> Option<Avx2> {
            let found = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            found.then_some(Avx2(()))
        }
    }

    impl Machine for Avx2 {
        type Vector = [__m256; 2];
        const SUMS: usize = 6;

        #[inline(always)]
        fn splat(self, value: f32) -> [__m256; 2] {
            [unsafe { _mm256_set1_ps(value) }; 2]
        }

        #[inline(always)]
        fn load(self, values: &[f32; LANES]) -> [__m256; 2] {
            let values = values.as_ptr();
            unsafe { [_mm256_loadu_ps(values), _mm256_loadu_ps(values.add(8))] }
        }

        #[inline(always)]
        fn load_f16(self, values: &[f16; LANES]) -> [__m256; 2] {
            let values = values.as_ptr().cast::<__m128i>();
            unsafe {
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(values)),
                    _mm256_cvtph_ps(_mm_loadu_si128(values.add(1))),
                ]
            }
        }

        #[inline(always)]
        fn load_bf16(self, values: &[bf16; LANES]) -> [__m256; 2] {
            let values = values.as_ptr().cast::<__m128i>();
            unsafe {
                let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(values));
                let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(values.add(1)));
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ]
            }
        }

        #[inline(always)]
        fn store(self, vector: [__m256; 2], out: &mut [f32; LANES]) {
            let out = out.as_mut_ptr();
            unsafe {
                _mm256_storeu_ps(out, vector[0]);
                _mm256_storeu_ps(out.add(8), vector[1]);
            }
        }

        #[inline(always)]
        fn multiply_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            unsafe {
                [
                    _mm256_fmadd_ps(a[0], b[0], c[0]),
                    _mm256_fmadd_ps(a[1], b[1], c[1]),
                ]
            }
        }

        #[inline(always)]
        fn multiply_add_one(self, a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }

    /// Says that the machine has AVX-512 F, BW, DQ and VL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx512(());

    impl Avx512 {
        /// Where the machine has them, and what comes before them.
        pub(super) fn detect() -> Option<Avx512> {
            let found = Avx2::detect().is_some()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            found.then_some(Avx512(()))
        }
    }

    impl Machine for Avx512 {
        type Vector = __m512;
        const SUMS: usize = 24;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, values: &[f32; LANES]) -> __m512 {
            unsafe { _mm512_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn load_f16(self, values: &[f16; LANES]) -> __m512 {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
        }

        #[inline(always)]
        fn load_bf16(self, values: &[bf16; LANES]) -> __m512 {
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }

        #[inline(always)]
        fn store(self, vector: __m512, out: &mut [f32; LANES]) {
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), vector) }
        }

        #[inline(always)]
        fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn multiply_add_one(self, a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;

    /// Loads and stores vectors: what comes out, as bits.
    struct Pass<'a, E>(&'a [E; LANES]);

    impl<E: Element> Work for Pass<'_, E> {
        type Output = [u32; LANES];

        #[inline(always)]
        fn run<M: Machine>(self, machine: M) -> [u32; LANES] {
            let mut out = [0.0; LANES];
            machine.store(E::load(machine, self.0), &mut out);
            out.map(f32::to_bits)
        }
    }

    #[test]
    fn sixteen_numbers_are_loaded_as_each_widens_on_every_instruction_set() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for isa in Isa::available() {
            for bits in all.as_chunks::<LANES>().0 {
                let halves = bits.map(f16::from_bits);
                if halves.iter().all(|h| h.is_finite()) {
                    let each = halves.map(|h| h.widen().to_bits());
                    assert_eq!(isa.run(Pass(&halves)), each, "{isa}");
                }
                let brains = bits.map(bf16::from_bits);
                let each = brains.map(|b| b.widen().to_bits());
                assert_eq!(isa.run(Pass(&brains)), each, "{isa}");
                let singles = bits.map(|b| f32::from(b) + 0.25);
                assert_eq!(isa.run(Pass(&singles)), singles.map(f32::to_bits), "{isa}");
            }
        }
    }

    #[test]
    fn the_widest_is_chosen_and_the_portable_one_is_always_there() {
        let all = Isa::available();
        assert_eq!((all[0], all.last()), (Isa::Portable, Some(&Isa::detect())));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            all.iter().any(|i| matches!(i, Isa::Avx2(_))),
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        );
    }
}
