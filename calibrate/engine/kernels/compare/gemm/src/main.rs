//! Compares the engine's linear layers with the `gemm` crate, by rows of the batch: why `linear.rs` exists.
//!
//! `cargo run --release --manifest-path calibrate/engine/kernels/compare/gemm/Cargo.toml` prints GFLOP/s of one thread; `gemm` has its weights in f32.

use std::time::Instant;

use kernels::Isa;
use kernels::linear::Linear;
use kernels::pool::Threads;
use kernels::dtype::{Values, WeightDtype, append, empty};

fn noise(len: usize) -> Vec<f32> {
    let mut state = 1_u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Processor time of this thread [s], which other programs disturb less than they do the wall clock; where the system does
/// not tell, the wall clock.
fn processor_time(start: Instant) -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns * 1e-9)
}

/// Best rate of several runs over enough copies that the weights come from memory [GFLOP/s].
fn rate(m: usize, n: usize, k: usize, copies: usize, mut run: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    let best = (0..5)
        .map(|_| {
            let begin = processor_time(start);
            (0..copies).for_each(&mut run);
            processor_time(start) - begin
        })
        .fold(f64::INFINITY, f64::min);
    2.0 * (m * n * k * copies) as f64 / best / 1e9
}

fn main() {
    let isa = Isa::detect();
    println!("{isa}");
    println!(
        "{:>5} {:>5} {:>5} {:>9} {:>9} {:>9} {:>9}",
        "m", "n", "k", "gemm f32", "f32", "bf16", "f16"
    );
    for (n, k, copies) in [(3712, 512, 16), (512, 1856, 16)] {
        let w = noise(n * k);
        let bytes: Vec<u8> = w.iter().flat_map(|x| x.to_le_bytes()).collect();
        let linears: Vec<Vec<Linear>> = [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16]
            .into_iter()
            .map(|dtype| {
                let copy = |_| {
                    let mut values: Values = empty(dtype, n * k);
                    append(&mut values, WeightDtype::F32, &bytes);
                    Linear::new(n, k, &values, None)
                };
                (0..copies).map(copy).collect()
            })
            .collect();
        let plain: Vec<Vec<f32>> = (0..copies).map(|_| w.clone()).collect();
        for m in [1, 2, 4, 8, 16, 64, 128, 512] {
            let x = noise(m * k);
            let mut y = vec![0.0_f32; m * n];
            let library = rate(m, n, k, copies, |i| {
                // SAFETY: the buffers have m x k, n x k and m x n values, row by row.
                #[allow(unsafe_code)]
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        y.as_mut_ptr(),
                        1,
                        n as isize,
                        false,
                        x.as_ptr(),
                        1,
                        k as isize,
                        plain[i].as_ptr(),
                        k as isize,
                        1,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::None,
                    );
                }
            });
            let ours: Vec<f64> = linears
                .iter()
                .map(|l| rate(m, n, k, copies, |i| l[i].apply(isa, Threads(1), &x, &mut y)))
                .collect();
            println!(
                "{m:>5} {n:>5} {k:>5} {library:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                ours[0], ours[1], ours[2]
            );
        }
    }
}
