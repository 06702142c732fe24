//! Linear layers with AVX-512. Intrinsics, because the compiler does not keep a tile of this size in registers by itself.

use std::arch::x86_64::*;

use super::linear::{Job, Weights};

/// Weights as sixteen singles.
trait Load: Copy {
    /// Sixteen values from `at` on, or the first of them that `mask` tells; the others are 0.
    ///
    /// # Safety
    /// Those values must be readable.
    #[allow(unsafe_code)]
    unsafe fn load(at: *const Self, mask: __mmask16) -> __m512;
}

impl Load for f32 {
    #[allow(unsafe_code)]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(at: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's; masked values are not touched.
        unsafe {
            if mask == !0 {
                _mm512_loadu_ps(at)
            } else {
                _mm512_maskz_loadu_ps(mask, at)
            }
        }
    }
}

#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_bits(at: *const u16, mask: __mmask16) -> __m256i {
    // SAFETY: the caller's; masked values are not touched.
    unsafe {
        if mask == !0 {
            _mm256_loadu_si256(at.cast())
        } else {
            _mm256_maskz_loadu_epi16(mask, at.cast())
        }
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bf16(#[allow(dead_code)] u16);

impl Load for Bf16 {
    #[allow(unsafe_code)]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(at: *const Bf16, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's.
        let bits = unsafe { load_bits(at.cast(), mask) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct F16(#[allow(dead_code)] u16);

impl Load for F16 {
    #[allow(unsafe_code)]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(at: *const F16, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's.
        _mm512_cvtph_ps(unsafe { load_bits(at.cast(), mask) })
    }
}

/// The job's products. Called for `Isa::Avx512` alone.
pub(super) fn products(job: &Job, weights: Weights) {
    let len = job.n() * job.k;
    // SAFETY: that instruction set is chosen where its instructions are found; the weights are `n` rows of `k`.
    #[allow(unsafe_code)]
    unsafe {
        match weights {
            Weights::F32(w) => {
                assert_eq!(w.len(), len);
                all::<f32>(job, w.as_ptr());
            }
            Weights::Bf16(w) => {
                assert_eq!(w.len(), len);
                all::<Bf16>(job, w.as_ptr().cast());
            }
            Weights::F16(w) => {
                assert_eq!(w.len(), len);
                all::<F16>(job, w.as_ptr().cast());
            }
        }
    }
}

/// # Safety
/// `w` has `job.n()` rows of `job.k` values.
#[allow(unsafe_code)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn all<E: Load>(job: &Job, w: *const E) {
    let (m, n, k) = (job.m(), job.n(), job.k);
    let mut column = 0;
    // SAFETY: rows and columns stay below m and n.
    unsafe {
        if m == 1 {
            // More rows of weights at once: the sums of four would wait for each other.
            while column + 8 <= n {
                tile::<E, 8, 1>(job, w.add(column * k), 0, column);
                column += 8;
            }
        }
        while column + 4 <= n {
            let w = w.add(column * k);
            let mut row = 0;
            while row + 6 <= m {
                tile::<E, 4, 6>(job, w, row, column);
                row += 6;
            }
            match m - row {
                0 => {}
                1 => tile::<E, 4, 1>(job, w, row, column),
                2 => tile::<E, 4, 2>(job, w, row, column),
                3 => tile::<E, 4, 3>(job, w, row, column),
                4 => tile::<E, 4, 4>(job, w, row, column),
                _ => tile::<E, 4, 5>(job, w, row, column),
            }
            column += 4;
        }
        for column in column..n {
            for row in 0..m {
                tile::<E, 1, 1>(job, w.add(column * k), row, column);
            }
        }
    }
}

/// Products of `N` rows of weights with `M` rows of `x`, each in sixteen partial sums.
///
/// # Safety
/// `w` has `N` rows of `job.k` values; `row + M` is at most `job.m()`.
#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn tile<E: Load, const N: usize, const M: usize>(
    job: &Job,
    w: *const E,
    row: usize,
    column: usize,
) {
    let k = job.k;
    let x = job.x[row * k..(row + M) * k].as_ptr();
    let mut sums = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: `at + 16 <= k`, or the mask leaves out what lies beyond k.
    unsafe {
        let mut at = 0;
        while at + 16 <= k {
            step::<E, N, M>(&mut sums, w.add(at), x.add(at), k, !0);
            at += 16;
        }
        if at < k {
            let mask = (1_u16 << (k - at)) - 1;
            step::<E, N, M>(&mut sums, w.add(at), x.add(at), k, mask);
        }
    }
    for (j, sums) in sums.iter().enumerate() {
        let mut out = [0.0; N];
        if N.is_multiple_of(4) {
            for (sums, out) in sums
                .as_chunks::<4>()
                .0
                .iter()
                .zip(out.as_chunks_mut::<4>().0)
            {
                *out = horizontal(sums);
            }
        } else {
            for (sum, out) in sums.iter().zip(&mut out) {
                let zero = _mm512_setzero_ps();
                *out = horizontal(&[*sum, zero, zero, zero])[0];
            }
        }
        job.store(row + j, column, &out);
    }
}

/// One step of sixteen along the summed dimension.
///
/// # Safety
/// As [`tile`]; the values that `mask` tells are readable in every row.
#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn step<E: Load, const N: usize, const M: usize>(
    sums: &mut [[__m512; N]; M],
    w: *const E,
    x: *const f32,
    k: usize,
    mask: __mmask16,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut weights = [_mm512_setzero_ps(); N];
        for (i, value) in weights.iter_mut().enumerate() {
            *value = E::load(w.add(i * k), mask);
        }
        for (j, sums) in sums.iter_mut().enumerate() {
            let x = f32::load(x.add(j * k), mask);
            for (sum, w) in sums.iter_mut().zip(&weights) {
                *sum = _mm512_fmadd_ps(*w, x, *sum);
            }
        }
    }
}

/// The sums of four vectors, by halves, each in the same order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn horizontal(v: &[__m512; 4]) -> [f32; 4] {
    let ab = _mm512_add_ps(
        _mm512_unpacklo_ps(v[0], v[1]),
        _mm512_unpackhi_ps(v[0], v[1]),
    );
    let cd = _mm512_add_ps(
        _mm512_unpacklo_ps(v[2], v[3]),
        _mm512_unpackhi_ps(v[2], v[3]),
    );
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
    let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
    let all = _mm512_add_ps(low, high);
    let half = _mm256_add_ps(
        _mm512_castps512_ps256(all),
        _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all))),
    );
    let quarter = _mm_add_ps(
        _mm256_castps256_ps128(half),
        _mm256_extractf128_ps::<1>(half),
    );
    let mut out = [0.0; 4];
    // SAFETY: the array has room for four.
    #[allow(unsafe_code)]
    unsafe {
        _mm_storeu_ps(out.as_mut_ptr(), quarter);
    }
    out
}
