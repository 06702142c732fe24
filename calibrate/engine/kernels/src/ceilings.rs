//! What this machine can do at most, and how long products take on it: the figures that kernels are judged by.

use std::hint::black_box;
use std::time::Instant;

use crate::dtype::{Values, WeightDtype, append, empty};
use crate::isa::{Isa, LANES, Machine, Work};
use crate::linear::Linear;
use crate::pool::Threads;

/// Read in one go: more than caches hold [bytes].
const STREAM_BYTES: usize = 256 << 20;
/// Most sums of [`Machine::SUMS`].
const MOST_SUMS: usize = 24;
/// Steps of a loop of multiply-adds: some milliseconds.
const STEPS: usize = 1 << 20;

/// Shortest of several runs of `work` [s]: at least three of them, and as many as fit into `budget_s` [s].
pub fn shortest(budget_s: f64, mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 3 || begin.elapsed().as_secs_f64() < budget_s {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// All lanes of `sums` together: what is computed is used, or the compiler would leave it out.
#[inline(always)]
fn total<M: Machine>(machine: M, sums: &[M::Vector]) -> f32 {
    let mut total = 0.0;
    for sum in sums {
        let mut lanes = [0.0; LANES];
        machine.store(*sum, &mut lanes);
        total += lanes.iter().sum::<f32>();
    }
    total
}

struct Read<'a>(&'a [f32]);

impl Work for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<M: Machine>(self, machine: M) -> f32 {
        let one = machine.splat(1.0);
        let mut sums = [machine.splat(0.0); 4];
        for vectors in self.0.as_chunks::<LANES>().0.as_chunks::<4>().0 {
            for i in 0..4 {
                sums[i] = machine.multiply_add(machine.load(&vectors[i]), one, sums[i]);
            }
        }
        total(machine, &sums)
    }
}

/// Rate at which `threads` threads together read memory from front to back [bytes/s].
#[must_use]
pub fn read_rate(isa: Isa, threads: Threads, budget_s: f64) -> f64 {
    let buffer = vec![1.0_f32; STREAM_BYTES / size_of::<f32>()];
    let each = buffer.len().div_ceil(threads.0);
    let seconds = shortest(budget_s, || {
        threads.each(threads.0, |t| {
            let end = ((t + 1) * each).min(buffer.len());
            black_box(isa.run(Read(&buffer[t * each..end])));
        });
    });
    STREAM_BYTES as f64 / seconds
}

struct MultiplyAdds {
    factor: f32,
    term: f32,
    /// Not known to the compiler, which would make one sum of equal ones.
    starts: [f32; MOST_SUMS],
}

impl MultiplyAdds {
    /// Half of a sum and one, which comes to rest at two: no sum overflows.
    const TO_TWO: MultiplyAdds = MultiplyAdds {
        factor: 0.5,
        term: 1.0,
        starts: [1.0; MOST_SUMS],
    };
}

impl Work for MultiplyAdds {
    type Output = f32;

    #[inline(always)]
    fn run<M: Machine>(self, machine: M) -> f32 {
        let (factor, term) = (machine.splat(self.factor), machine.splat(self.term));
        let mut sums = self.starts.map(|s| machine.splat(s));
        for _ in 0..STEPS {
            for sum in sums.iter_mut().take(M::SUMS) {
                *sum = machine.multiply_add(*sum, factor, term);
            }
        }
        total(machine, &sums)
    }
}

/// Multiply-adds in singles that `threads` threads together do, all operands in registers, as two operations each
/// [FLOP/s].
#[must_use]
pub fn arithmetic_rate(isa: Isa, threads: Threads, budget_s: f64) -> f64 {
    struct Operations;
    impl Work for Operations {
        type Output = usize;

        #[inline(always)]
        fn run<M: Machine>(self, _: M) -> usize {
            2 * LANES * M::SUMS * STEPS
        }
    }
    let seconds = shortest(budget_s, || {
        threads.each(threads.0, |_| {
            black_box(isa.run(black_box(MultiplyAdds::TO_TWO)));
        });
    });
    (isa.run(Operations) * threads.0) as f64 / seconds
}

/// Matrices of noise, in the order in which they are multiplied.
pub struct Products {
    matrices: Vec<Linear>,
}

impl Products {
    /// `layers` times matrices of these `(outputs, inputs)`.
    #[must_use]
    pub fn new(dtype: WeightDtype, shapes: &[(usize, usize)], layers: usize) -> Products {
        let matrix = |&(rows, cols): &(usize, usize)| {
            let bytes: Vec<u8> = noise(rows * cols).flat_map(|x| x.to_le_bytes()).collect();
            let mut values: Values = empty(dtype, rows * cols);
            append(&mut values, WeightDtype::F32, &bytes);
            values
        };
        let layer: Vec<Values> = shapes.iter().map(matrix).collect();
        let copy = |_| {
            shapes
                .iter()
                .zip(&layer)
                .map(|(&(rows, cols), values)| Linear::new(rows, cols, values, None))
        };
        Products {
            matrices: (0..layers).flat_map(copy).collect(),
        }
    }

    /// Weights of all matrices.
    #[must_use]
    pub fn weights(&self) -> usize {
        self.matrices.iter().map(|m| m.rows * m.cols).sum()
    }

    /// Time of all products of `tokens` rows, one matrix after the other [s].
    #[must_use]
    pub fn time(&self, isa: Isa, threads: Threads, tokens: usize, budget_s: f64) -> f64 {
        let widest = |get: fn(&Linear) -> usize| self.matrices.iter().map(get).max().unwrap_or(0);
        let x: Vec<f32> = noise(tokens * widest(|m| m.cols)).collect();
        let mut y = vec![0.0; tokens * widest(|m| m.rows)];
        shortest(budget_s, || {
            for m in &self.matrices {
                let (x, y) = (&x[..tokens * m.cols], &mut y[..tokens * m.rows]);
                m.apply(isa, threads, x, y);
            }
            black_box(&y);
        })
    }
}

/// Numbers from -1 to 1 without an order that matters.
fn noise(count: usize) -> impl Iterator<Item = f32> {
    let mut state = 1_u32;
    (0..count).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_is_computed() {
        for isa in Isa::available() {
            let buffer = vec![0.5; 64 * 7];
            assert_eq!(isa.run(Read(&buffer)), 0.5 * 64.0 * 7.0, "{isa}");
            // Sums that are not used stay at one.
            let total = isa.run(MultiplyAdds::TO_TWO);
            let lanes = LANES as f32;
            let sums = (total / lanes - MOST_SUMS as f32).round();
            assert!(sums >= 2.0 && sums <= MOST_SUMS as f32, "{isa}: {sums}");
        }
    }

    #[test]
    fn rates_are_counts_over_times() {
        let isa = Isa::detect();
        for rate in [
            read_rate(isa, Threads(1), 0.0),
            arithmetic_rate(isa, Threads(1), 0.0),
        ] {
            assert!(rate.is_finite() && rate > 0.0);
        }
        let products = Products::new(WeightDtype::F16, &[(40, 24), (24, 20)], 3);
        assert_eq!(products.weights(), 3 * (40 * 24 + 24 * 20));
        assert!(products.time(isa, Threads(1), 5, 0.0) > 0.0);
    }
}
