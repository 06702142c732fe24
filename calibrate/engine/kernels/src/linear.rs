//! Linear layers: `y = x W^T` with `W` in 32 or 16 bits.
//!
//! Weights are packed once, when they are loaded: sixteen outputs side by side for each input. A tile of a few rows of `x`
//! by up to four such panels then stays in registers while the inputs pass by. `W` is read once per step, front to back, at
//! the width it is stored in, and each output is one sum over the inputs in order, whatever the number of rows.
//!
//! The library crate `gemm` has none of that: it packs on every call, wants 32-bit operands, its speed for 1 to 8 rows is
//! a fraction of the memory's, and its sums change with the batch. `compare/gemm` measures both.

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use crate::dtype::{Values, WeightDtype};
use crate::element::Element;
use crate::isa::{Isa, LANES, Machine, Work};
use crate::pool::{Parts, Threads};

/// Most rows of a tile.
const ROWS: usize = 6;

/// Rows of `x` that are gone through with one panel after the other take about this much, so that they stay in the
/// second-level cache [bytes].
const ROWS_BYTES: usize = 256 << 10;

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
            isa.run(Product {
                job: &job,
                packed: &self.packed,
            });
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

/// What a task does, on the stored values.
struct Product<'a> {
    job: &'a Job<'a>,
    packed: &'a Values,
}

impl Work for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        match self.packed {
            Values::F32(v) => self.job.all::<M, f32>(machine, v),
            Values::Bf16(v) => self.job.all::<M, bf16>(machine, v.reinterpret_cast()),
            Values::F16(v) => self.job.all::<M, f16>(machine, v.reinterpret_cast()),
        }
    }
}

impl Job<'_> {
    /// In tiles of nearly equal numbers of rows, and of as many panels as their sums leave registers for: the sums of one
    /// row alone are too few to keep the multipliers busy.
    #[inline(always)]
    fn all<M: Machine, E: Element>(&self, machine: M, w: &[E]) {
        let w = w.as_chunks::<LANES>().0;
        let rows = Rows::of(self.m, self.k, M::SUMS.min(ROWS));
        match M::SUMS / rows.most() {
            4.. if const { M::SUMS >= 4 } => self.panels::<M, E, 4>(machine, w, &rows),
            2..4 if const { M::SUMS < 4 * ROWS } => self.panels::<M, E, 2>(machine, w, &rows),
            _ => self.panels::<M, E, 1>(machine, w, &rows),
        }
    }

    /// `P` panels at a time, and what is left of them one by one.
    #[inline(always)]
    fn panels<M: Machine, E: Element, const P: usize>(
        &self,
        machine: M,
        w: &[[E; LANES]],
        rows: &Rows,
    ) {
        for block in (0..rows.groups).step_by(rows.groups_each) {
            let groups = block..(block + rows.groups_each).min(rows.groups);
            let mut panel = self.panels.start;
            while panel < self.panels.end {
                let count = if panel + P <= self.panels.end { P } else { 1 };
                for (row, rows) in groups.clone().map(|g| rows.group(g)) {
                    if const { P > 1 } && count == 1 {
                        self.rows::<M, E, 1>(machine, w, panel, row, rows);
                    } else {
                        self.rows::<M, E, P>(machine, w, panel, row, rows);
                    }
                }
                panel += count;
            }
        }
    }

    /// A tile of `rows` rows by `P` panels. Sizes that have no room in registers are not compiled.
    #[inline(always)]
    fn rows<M: Machine, E: Element, const P: usize>(
        &self,
        machine: M,
        w: &[[E; LANES]],
        panel: usize,
        row: usize,
        rows: usize,
    ) {
        match rows {
            1 => self.tile::<M, E, 1, P>(machine, w, panel, row),
            2 if const { 2 * P <= M::SUMS } => self.tile::<M, E, 2, P>(machine, w, panel, row),
            3 if const { 3 * P <= M::SUMS } => self.tile::<M, E, 3, P>(machine, w, panel, row),
            4 if const { 4 * P <= M::SUMS } => self.tile::<M, E, 4, P>(machine, w, panel, row),
            5 if const { 5 * P <= M::SUMS } => self.tile::<M, E, 5, P>(machine, w, panel, row),
            6 if const { 6 * P <= M::SUMS } => self.tile::<M, E, 6, P>(machine, w, panel, row),
            _ => unreachable!("{rows} rows of {P} panels"),
        }
    }

    #[inline(always)]
    fn tile<M: Machine, E: Element, const R: usize, const P: usize>(
        &self,
        machine: M,
        w: &[[E; LANES]],
        panel: usize,
        row: usize,
    ) {
        let k = self.k;
        // Slices of length k exactly, so that the loop has no checks.
        let w: [&[[E; LANES]]; P] = std::array::from_fn(|p| &w[(panel + p) * k..][..k]);
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * k..][..k]);
        let mut sums = [[machine.splat(0.0); P]; R];
        for i in 0..k {
            let mut weights = [machine.splat(0.0); P];
            for p in 0..P {
                weights[p] = E::load(machine, &w[p][i]);
            }
            for r in 0..R {
                let value = machine.splat(x[r][i]);
                for p in 0..P {
                    sums[r][p] = machine.multiply_add(value, weights[p], sums[r][p]);
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                let column = (panel + p) * LANES;
                let count = LANES.min(self.n - column);
                let start = (row + r) * self.n + column;
                // SAFETY: a panel belongs to one task, and a task writes one part at a time.
                #[allow(unsafe_code)]
                let out = unsafe { self.y.part(start..start + count) };
                if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
                    machine.store(sums[r][p], out);
                } else {
                    let mut whole = [0.0; LANES];
                    machine.store(sums[r][p], &mut whole);
                    out.copy_from_slice(&whole[..count]);
                }
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

/// Rows in groups that are tiles high.
struct Rows {
    rows: usize,
    groups: usize,
    /// Groups that are gone through with one panel after the other.
    groups_each: usize,
}

impl Rows {
    /// `rows` of `k` values in groups of at most `most`.
    #[inline(always)]
    fn of(rows: usize, k: usize, most: usize) -> Rows {
        Rows {
            rows,
            groups: rows.div_ceil(most),
            groups_each: (ROWS_BYTES / (k * size_of::<f32>() * most)).max(4),
        }
    }

    /// Rows of the largest group.
    #[inline(always)]
    fn most(&self) -> usize {
        self.rows.div_ceil(self.groups)
    }

    /// First row of a group, and how many it has.
    #[inline(always)]
    fn group(&self, group: usize) -> (usize, usize) {
        let (each, more) = (self.rows / self.groups, self.rows % self.groups);
        (
            group * each + group.min(more),
            each + usize::from(group < more),
        )
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
                    for isa in Isa::available() {
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
                                "{isa} {dtype} {m}x{n}x{k} at {i}: {y}, exactly {exact}"
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
            for isa in Isa::available() {
                let mut together = vec![0.0; 61 * n];
                linear.apply(isa, Threads(1), &x, &mut together);
                for row in 0..61 {
                    let mut alone = vec![0.0; n];
                    linear.apply(isa, Threads(1), &x[row * k..(row + 1) * k], &mut alone);
                    assert_eq!(
                        alone,
                        together[row * n..(row + 1) * n],
                        "{isa} {dtype} row {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_into_caches_give_the_bits_of_each_alone() {
        let (n, k, m) = (70, 12_000, 26);
        let (linear, _) = matrix(WeightDtype::F16, n, k);
        let x = noise(3, m * k);
        for isa in Isa::available() {
            let (mut together, mut alone) = (vec![0.0; m * n], vec![0.0; m * n]);
            linear.apply(isa, Threads(1), &x, &mut together);
            for (x, y) in x.chunks_exact(k).zip(alone.chunks_exact_mut(n)) {
                linear.apply(isa, Threads(1), x, y);
            }
            assert_eq!(together, alone, "{isa}");
        }
    }

    #[test]
    fn rows_lie_in_groups_of_nearly_equal_size_one_after_the_other() {
        for (count, most) in [(1, 6), (6, 6), (7, 6), (8, 6), (16, 6), (61, 2), (512, 6)] {
            let rows = Rows::of(count, 100, most);
            let groups: Vec<_> = (0..rows.groups).map(|g| rows.group(g)).collect();
            let mut next = 0;
            for (row, size) in groups {
                assert_eq!(row, next);
                assert!(size <= rows.most() && size + 1 >= rows.most() && rows.most() <= most);
                next += size;
            }
            assert_eq!(next, count);
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
