//! Linear layers: `y = x W^T` with `W` in 32 or 16 bits.
//!
//! Weights are packed once, when they are loaded: sixteen outputs side by side for each input. A tile of a few rows of `x`
//! by four such panels then stays in registers while the inputs pass by. `W` is read once per step, front to back, at the
//! width it is stored in, and each output is one sum over the inputs in order, whatever the number of rows.
//!
//! The library crate `gemm` has none of that: it packs on every call, wants 32-bit operands, its speed for 1 to 8 rows is
//! a fraction of the memory's, and its sums change with the batch. `compare/gemm` measures both.

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use crate::dtype::{Values, WeightDtype};

use super::Isa;
use super::element::{Element, multiply_add};
use super::pool::{Parts, Threads};

/// Steps along a row that are taken at once.
const UNROLL: usize = 4;

/// Outputs of a panel: a vector of AVX-512.
const LANES: usize = 16;

/// A weight matrix, `rows` outputs by `cols` inputs, with an optional bias.
pub struct Linear {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `[panel][input][lane]`; the last panel is filled up with zeros.
    packed: Values,
    bias: Option<Vec<f32>>,
}

/// Sorts a matrix into panels.
fn pack<T: Copy + Default>(values: &[T], rows: usize, cols: usize) -> Vec<T> {
    let mut packed = vec![T::default(); rows.div_ceil(LANES) * LANES * cols];
    for (row, values) in values.chunks_exact(cols).enumerate() {
        let start = row / LANES * LANES * cols + row % LANES;
        for (out, value) in packed[start..].iter_mut().step_by(LANES).zip(values) {
            *out = *value;
        }
    }
    packed
}

impl Linear {
    /// A matrix of these values, row by row.
    ///
    /// # Panics
    /// The counts do not fit: a defect of the caller.
    #[must_use]
    pub fn new(rows: usize, cols: usize, values: &Values, bias: Option<Vec<f32>>) -> Linear {
        assert_eq!(values.len(), rows * cols);
        assert!(bias.as_ref().is_none_or(|b| b.len() == rows));
        let packed = match values {
            Values::F32(v) => Values::F32(pack(v, rows, cols)),
            Values::Bf16(v) => Values::Bf16(pack(v, rows, cols)),
            Values::F16(v) => Values::F16(pack(v, rows, cols)),
        };
        Linear {
            rows,
            cols,
            packed,
            bias,
        }
    }

    /// Format of the values.
    #[must_use]
    pub fn dtype(&self) -> WeightDtype {
        self.packed.dtype()
    }

    /// Writes `x W^T + bias` to `y`, both row by row; `x` has `cols` values per row, `y` has `rows`.
    ///
    /// # Panics
    /// The counts do not fit: a defect of the caller.
    pub fn apply(&self, isa: Isa, threads: Threads, x: &[f32], y: &mut [f32]) {
        let (n, k) = (self.rows, self.cols);
        let m = x.len() / k;
        assert!(x.len() == m * k && y.len() == m * n);
        if m == 0 || n == 0 {
            return;
        }
        // A few tasks per thread, so that a thread that is late leaves work to the others; whole tiles each.
        let tasks = if threads.0 == 1 { 1 } else { threads.0 * 4 };
        let panels = n.div_ceil(LANES);
        let per = panels.div_ceil(tasks).next_multiple_of(4);
        let y = Parts::new(y);
        threads.each(panels.div_ceil(per), |task| {
            let job = Job {
                x,
                k,
                m,
                n,
                panels: task * per..((task + 1) * per).min(panels),
                y: &y,
            };
            job.dispatch(isa, &self.packed);
            if let Some(bias) = &self.bias {
                job.add_bias(bias);
            }
        });
    }
}

/// One task's share: all rows of `x` times some panels.
struct Job<'a> {
    x: &'a [f32],
    k: usize,
    m: usize,
    n: usize,
    panels: std::ops::Range<usize>,
    y: &'a Parts<'a>,
}

impl Job<'_> {
    fn dispatch(&self, isa: Isa, packed: &Values) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
        fn with_avx512(job: &Job, packed: &Values) {
            // 24 of 32 registers hold sums.
            job.run::<6, 4, true, true>(packed);
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(job: &Job, packed: &Values) {
            // 12 of 16 registers, two to a panel.
            job.run::<6, 1, true, false>(packed);
        }
        match isa {
            // SAFETY: these sets are chosen where their instructions are found.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx512 => unsafe { with_avx512(self, packed) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx2 => unsafe { with_avx2(self, packed) },
            _ => self.run::<2, 1, false, false>(packed),
        }
    }

    #[inline(always)]
    fn run<const M: usize, const P: usize, const FMA: bool, const AVX512: bool>(
        &self,
        packed: &Values,
    ) {
        match packed {
            Values::F32(v) => self.all::<f32, M, P, FMA, AVX512>(v),
            Values::Bf16(v) => self.all::<bf16, M, P, FMA, AVX512>(v.reinterpret_cast()),
            Values::F16(v) => self.all::<f16, M, P, FMA, AVX512>(v.reinterpret_cast()),
        }
    }

    /// In tiles of `M` rows by `P` panels.
    #[inline(always)]
    fn all<E: Element, const M: usize, const P: usize, const FMA: bool, const AVX512: bool>(
        &self,
        w: &[E],
    ) {
        let w = w.as_chunks::<LANES>().0;
        let mut panel = self.panels.start;
        while panel + P <= self.panels.end && (panel + P) * LANES <= self.n {
            self.down::<E, M, P, true, FMA, AVX512>(w, panel);
            panel += P;
        }
        for panel in panel..self.panels.end {
            if (panel + 1) * LANES <= self.n {
                self.down::<E, M, 1, true, FMA, AVX512>(w, panel);
            } else {
                self.down::<E, M, 1, false, FMA, AVX512>(w, panel);
            }
        }
    }

    /// All rows by `P` panels, which are whole or one that is not: where the length of what is stored is not known to the
    /// compiler, the sums live in memory.
    #[inline(always)]
    fn down<
        E: Element,
        const M: usize,
        const P: usize,
        const WHOLE: bool,
        const FMA: bool,
        const AVX512: bool,
    >(
        &self,
        w: &[[E; LANES]],
        panel: usize,
    ) {
        let mut row = 0;
        while row + M <= self.m {
            self.tile::<E, M, P, WHOLE, FMA, AVX512>(w, panel, row);
            row += M;
        }
        // A remainder is below M, so that the compiler leaves out what cannot be.
        match self.m - row {
            5 if M > 5 => self.tile::<E, 5, P, WHOLE, FMA, AVX512>(w, panel, row),
            4 if M > 4 => self.tile::<E, 4, P, WHOLE, FMA, AVX512>(w, panel, row),
            3 if M > 3 => self.tile::<E, 3, P, WHOLE, FMA, AVX512>(w, panel, row),
            2 if M > 2 => self.tile::<E, 2, P, WHOLE, FMA, AVX512>(w, panel, row),
            1 => self.tile::<E, 1, P, WHOLE, FMA, AVX512>(w, panel, row),
            _ => {}
        }
    }

    // Indices keep the loops in the form that vectorises.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    fn tile<
        E: Element,
        const M: usize,
        const P: usize,
        const WHOLE: bool,
        const FMA: bool,
        const AVX512: bool,
    >(
        &self,
        w: &[[E; LANES]],
        panel: usize,
        row: usize,
    ) {
        let k = self.k;
        // Slices of length k exactly, so that the loop has no checks: they would keep the sums in memory.
        let w: [&[[E; LANES]]; P] = std::array::from_fn(|p| &w[(panel + p) * k..][..k]);
        let x: [&[f32]; M] = std::array::from_fn(|r| &self.x[(row + r) * k..][..k]);
        let mut sums = [[[0.0_f32; LANES]; P]; M];
        // With few rows memory is what holds up: a few steps in a row have more loads on their way at once.
        let blocks = if M <= 2 { k / UNROLL } else { 0 };
        let (w_blocks, x_blocks) = (
            w.map(|w| &w.as_chunks::<UNROLL>().0[..blocks]),
            x.map(|x| &x.as_chunks::<UNROLL>().0[..blocks]),
        );
        for b in 0..blocks {
            for u in 0..UNROLL {
                accumulate::<E, M, P, FMA, AVX512>(
                    std::array::from_fn(|p| &w_blocks[p][b][u]),
                    std::array::from_fn(|r| x_blocks[r][b][u]),
                    &mut sums,
                );
            }
        }
        for i in blocks * UNROLL..k {
            accumulate::<E, M, P, FMA, AVX512>(
                std::array::from_fn(|p| &w[p][i]),
                std::array::from_fn(|r| x[r][i]),
                &mut sums,
            );
        }
        for r in 0..M {
            for p in 0..P {
                let column = (panel + p) * LANES;
                let count = if WHOLE { LANES } else { self.n - column };
                let start = (row + r) * self.n + column;
                // SAFETY: a panel belongs to one task, and a task writes one part at a time.
                #[allow(unsafe_code)]
                let out = unsafe { self.y.part(start..start + count) };
                out.copy_from_slice(&sums[r][p][..count]);
            }
        }
    }

    fn add_bias(&self, bias: &[f32]) {
        let columns = self.panels.start * LANES..(self.panels.end * LANES).min(self.n);
        for row in 0..self.m {
            let start = row * self.n;
            // SAFETY: as in `tile`.
            #[allow(unsafe_code)]
            let out = unsafe { self.y.part(start + columns.start..start + columns.end) };
            super::elementwise::add(out, &bias[columns.clone()]);
        }
    }
}

/// Adds to each sum a weight times its row's value.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn accumulate<E: Element, const M: usize, const P: usize, const FMA: bool, const AVX512: bool>(
    w: [&[E; LANES]; P],
    x: [f32; M],
    sums: &mut [[[f32; LANES]; P]; M],
) {
    let mut weights = [[0.0_f32; LANES]; P];
    for p in 0..P {
        weights[p] = E::widen_all::<AVX512>(w[p]);
    }
    for r in 0..M {
        for p in 0..P {
            for l in 0..LANES {
                sums[r][p][l] = multiply_add::<FMA>(x[r], weights[p][l], sums[r][p][l]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{append, empty};

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn isas() -> Vec<Isa> {
        let all = [Isa::Portable, Isa::Avx2, Isa::Avx512];
        let widest = Isa::detect();
        let count = all.iter().position(|i| *i == widest).unwrap() + 1;
        all[..count].to_vec()
    }

    fn matrix(dtype: WeightDtype, n: usize, k: usize) -> (Linear, Vec<f32>) {
        let bytes: Vec<u8> = noise(7, n * k)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let mut values = empty(dtype, n * k);
        append(&mut values, WeightDtype::F32, &bytes);
        let mut exact = vec![0.0; n * k];
        values.read(0, &mut exact);
        (Linear::new(n, k, &values, Some(noise(9, n))), exact)
    }

    #[test]
    fn every_kernel_agrees_with_sums_in_double_precision_for_every_shape() {
        for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16] {
            for (n, k) in [(1, 1), (13, 17), (24, 64), (31, 200)] {
                let (linear, w) = matrix(dtype, n, k);
                for m in [1, 2, 3, 4, 5, 6, 7, 8, 13, 50] {
                    let x = noise(m as u32, m * k);
                    for isa in isas() {
                        let mut y = vec![f32::NAN; m * n];
                        linear.apply(isa, Threads(1), &x, &mut y);
                        for (i, y) in y.iter().enumerate() {
                            let (row, column) = (i / n, i % n);
                            let exact: f64 = (0..k)
                                .map(|j| f64::from(x[row * k + j]) * f64::from(w[column * k + j]))
                                .sum::<f64>()
                                + f64::from(linear.bias.as_ref().unwrap()[column]);
                            assert!(
                                (f64::from(*y) - exact).abs() < 1e-5 * (k as f64).sqrt() + 1e-6,
                                "{isa:?} {dtype} {m}x{n}x{k} at {i}: {y}, exactly {exact}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_alone_and_in_any_batch() {
        let (n, k) = (37, 100);
        for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16] {
            let (linear, _) = matrix(dtype, n, k);
            let x = noise(3, 61 * k);
            for isa in isas() {
                let mut together = vec![0.0; 61 * n];
                linear.apply(isa, Threads(1), &x, &mut together);
                for row in 0..61 {
                    let mut alone = vec![0.0; n];
                    linear.apply(isa, Threads(1), &x[row * k..(row + 1) * k], &mut alone);
                    assert_eq!(
                        alone,
                        together[row * n..(row + 1) * n],
                        "{isa:?} {dtype} row {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn threads_give_the_bits_of_one_thread() {
        let (linear, _) = matrix(WeightDtype::Bf16, 203, 96);
        let x = noise(3, 5 * 96);
        let isa = Isa::detect();
        let (mut one, mut three) = (vec![0.0; 5 * 203], vec![0.0; 5 * 203]);
        linear.apply(isa, Threads(1), &x, &mut one);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .build()
            .unwrap();
        pool.install(|| linear.apply(isa, Threads(3), &x, &mut three));
        assert_eq!(one, three);
    }
}
