//! Linear layers: `y = x W^T` with `W` in 32 or 16 bits, row by row as models store it.
//!
//! The product is computed as dot products in tiles of a few rows of `W` by a few rows of `x`, both of which lie along
//! the summed dimension in memory: nothing is packed, `W` is read once per step at the width it is stored in, and the
//! order of each sum does not depend on the number of rows. `gemm` (the library crate) has neither: it wants 32-bit
//! (or packs 16-bit) operands, its speed for 1 to 8 rows is a fraction of the memory's, and its sums change with the
//! batch. What both reach is measured by `examples/matmul.rs`.

use std::ops::Range;

use crate::model::dtype::{Values, WeightDtype};

use super::Isa;
use super::pool::{Parts, Threads};

/// A weight matrix, `rows` outputs by `cols` inputs, with an optional bias.
pub struct Linear {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    values: Values,
    bias: Option<Vec<f32>>,
}

/// Rows of `x` that are kept in the second-level cache while weights pass by.
const X_ROWS: usize = 48;

impl Linear {
    /// A matrix of these values, row by row.
    ///
    /// # Panics
    /// The counts do not fit: a defect of the caller.
    #[must_use]
    pub fn new(rows: usize, cols: usize, values: Values, bias: Option<Vec<f32>>) -> Linear {
        let len = match &values {
            Values::F32(v) => v.len(),
            Values::Bf16(v) | Values::F16(v) => v.len(),
        };
        assert_eq!(len, rows * cols);
        assert!(bias.as_ref().is_none_or(|b| b.len() == rows));
        Linear {
            rows,
            cols,
            values,
            bias,
        }
    }

    /// Format of the values.
    #[must_use]
    pub fn dtype(&self) -> WeightDtype {
        match self.values {
            Values::F32(_) => WeightDtype::F32,
            Values::Bf16(_) => WeightDtype::Bf16,
            Values::F16(_) => WeightDtype::F16,
        }
    }

    /// Copies a row as singles: an embedding look-up.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        self.values.read(row * self.cols, out);
    }

    /// Writes `x W^T + bias` to `y`, both row by row; `x` has `cols` values per row, `y` has `rows`.
    pub fn apply(&self, isa: Isa, threads: Threads, x: &[f32], y: &mut [f32]) {
        self.apply_rows(isa, threads, 0..self.rows, x, y);
    }

    /// As [`Linear::apply`], of some rows of `W`.
    pub fn apply_rows(
        &self,
        isa: Isa,
        threads: Threads,
        rows: Range<usize>,
        x: &[f32],
        y: &mut [f32],
    ) {
        let (count, k) = (rows.len(), self.cols);
        let m = x.len() / k;
        assert!(x.len() == m * k && y.len() == m * count && rows.end <= self.rows);
        if m == 0 || count == 0 {
            return;
        }
        // A few tasks per thread, so that a thread that is late leaves work to the others; multiples of the tile.
        let tasks = if threads.0 == 1 { 1 } else { threads.0 * 4 };
        let per = count.div_ceil(tasks).next_multiple_of(8);
        let parts = Parts::new(y);
        threads.each(count.div_ceil(per), |task| {
            let from = task * per;
            let to = (from + per).min(count);
            for first in (0..m).step_by(X_ROWS) {
                let last = (first + X_ROWS).min(m);
                let job = Job {
                    x: &x[first * k..last * k],
                    k,
                    y: &parts,
                    y_stride: count,
                    y_row: first,
                    columns: from..to,
                };
                let w = (rows.start + from) * k..(rows.start + to) * k;
                match &self.values {
                    Values::F32(v) => job.run(isa, Weights::F32(&v[w])),
                    Values::Bf16(v) => job.run(isa, Weights::Bf16(&v[w])),
                    Values::F16(v) => job.run(isa, Weights::F16(&v[w])),
                }
            }
            if let Some(bias) = &self.bias {
                for row in 0..m {
                    // SAFETY: as in `Job::store`: this task alone writes these columns.
                    #[allow(unsafe_code)]
                    let out = unsafe { parts.part(row * count + from..row * count + to) };
                    let bias = &bias[rows.start + from..rows.start + to];
                    super::elementwise::add(out, bias);
                }
            }
        });
    }
}

/// Rows of weights in one of the formats.
#[derive(Clone, Copy)]
pub(super) enum Weights<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    F16(&'a [u16]),
}

/// One task's share: some rows of `x` times some rows of `W`.
pub(super) struct Job<'a> {
    /// `k` values per row.
    pub x: &'a [f32],
    pub k: usize,
    y: &'a Parts<'a>,
    y_stride: usize,
    y_row: usize,
    columns: Range<usize>,
}

impl Job<'_> {
    fn run(&self, isa: Isa, weights: Weights) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::products(self, weights),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::portable::products_avx2(self, weights),
            _ => super::portable::products(self, weights),
        }
    }

    /// Rows of `x`.
    pub(super) fn m(&self) -> usize {
        self.x.len() / self.k
    }

    /// Rows of the weights.
    pub(super) fn n(&self) -> usize {
        self.columns.len()
    }

    /// Stores outputs `column..` of row `row`, both counted from the job's first.
    #[inline(always)]
    pub(super) fn store(&self, row: usize, column: usize, values: &[f32]) {
        let start = (self.y_row + row) * self.y_stride + self.columns.start + column;
        assert!(column + values.len() <= self.columns.len());
        // SAFETY: tasks have columns of their own, and a task writes one part at a time.
        #[allow(unsafe_code)]
        unsafe { self.y.part(start..start + values.len()) }.copy_from_slice(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dtype::{append, empty};

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
        (Linear::new(n, k, values, Some(noise(9, n))), exact)
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
