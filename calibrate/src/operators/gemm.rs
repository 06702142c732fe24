//! Fits of matrix products.

use hwmodels::ops::{Arithmetic, Device, Kernels, gemm};

use super::error::Error;
use super::report::{ReportRow, errors_of};
use super::tables::{COARSE, GemmRow, LayerRow};
use super::task::{Collect, KERNEL_TOLERANCE, Task, array};

/// Fits both formats, and predicts GEMMs of other kinds.
pub(super) fn fit_gemms(
    all: &mut Collect<'_>,
    system: &str,
    device: &Device,
    rows: &[GemmRow],
    layers: &[LayerRow],
) -> Result<(), Error> {
    let formats = [
        ("gemm bf16", "bfloat16", Arithmetic::Bf16, 2.0),
        ("gemm fp8", "fp8", Arithmetic::Fp8, 1.0),
    ];
    for (op, dtype, arithmetic, bytes) in formats {
        let of_format = |r: &&GemmRow| r.gemm_dtype == dtype;
        let (main, odd): (Vec<GemmRow>, Vec<GemmRow>) = rows
            .iter()
            .filter(of_format)
            .cloned()
            .partition(GemmRow::model_like);
        if main.is_empty() {
            continue;
        }
        let time = |v: &[f64], m: u32, n: u32, k: u32| {
            gemm::time(
                &gemm::GemmParams::from_values(&array(v)),
                device,
                &Kernels::default(),
                gemm::Product {
                    arithmetic,
                    weight_bytes: bytes,
                    m: f64::from(m),
                    n: f64::from(n),
                    k: f64::from(k),
                },
            )
            .seconds
        };
        let unused: &[&str] = if arithmetic.quantises() {
            &[]
        } else {
            &["quantise_row", "quantise_efficiency"]
        };
        let task = Task {
            op,
            prefix: arithmetic.prefix(),
            specs: &gemm::SPECS,
            given: &[],
            unused,
            rows: &main,
            regimes: &[
                ("m 1..16", &|r| r.m <= 16),
                ("m 17..256", &|r| (17..=256).contains(&r.m)),
                ("m 257..8192", &|r| (257..=8192).contains(&r.m)),
                ("m above 8192", &|r| r.m > 8192),
            ],
            predict: &|v, r| time(v, r.m, r.n, r.k),
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system, all.start)?;
        all.add(&outcome);
        all.rows
            .push(task.only_predicted(&outcome.values, &odd, "n or k small, or k over 20 000"));
        for (name, f) in [
            ("m", (|r: &GemmRow| r.m) as fn(&GemmRow) -> u32),
            ("n", |r| r.n),
            ("k", |r| r.k),
        ] {
            all.range(
                format!("{}.{name}", arithmetic.prefix()),
                main.iter().map(f),
            );
        }
        if arithmetic == Arithmetic::Bf16 {
            layer_gemms(all, layers, &|m, n, k| time(&outcome.values, m, n, k));
        }
    }
    Ok(())
}

/// GEMMs of whole layers, timed by another tool in another year: predicted only.
fn layer_gemms(all: &mut Collect<'_>, layers: &[LayerRow], time: &dyn Fn(u32, u32, u32) -> f64) {
    let mut pairs: [Vec<(f64, f64)>; 3] = Default::default();
    for r in layers {
        let tp = r.num_tensor_parallel_workers.max(1);
        let dim = r.n_embd / r.n_head.max(1);
        let kv = (r.n_kv_head / tp).max(1);
        let m = r.num_tokens;
        for (ms, n, k) in [
            (r.qkv, (r.n_head / tp + 2 * kv) * dim, r.n_embd),
            (r.out, r.n_embd, r.n_embd / tp),
            (r.up, 2 * r.n_expanded_embd / tp, r.n_embd),
            (r.down, r.n_embd, r.n_expanded_embd / tp),
        ] {
            if ms * 1e-3 >= COARSE {
                let regime = match m {
                    0..=16 => 0,
                    17..=256 => 1,
                    _ => 2,
                };
                pairs[regime].push((time(m, n, k), ms * 1e-3));
            }
        }
    }
    for (name, p) in ["m 1..16", "m 17..256", "m above 256"].iter().zip(&pairs) {
        if !p.is_empty() {
            all.rows.push(ReportRow {
                op: "gemm bf16".to_owned(),
                regime: format!("Llama layers (vidur), {name}"),
                fitted: None,
                held_out: errors_of(p),
            });
        }
    }
}
