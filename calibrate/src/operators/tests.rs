use std::path::Path;

use hwmodels::ops::{Arithmetic, Device, Kernels, gemm};

use super::tables::{GemmRow, Row};
use super::task::{Task, array, held_out};
use super::*;

#[test]
fn a_third_of_the_shapes_is_held_out_with_all_its_rows() {
    let row = |n, m| GemmRow {
        version: String::new(),
        gemm_dtype: "bfloat16".to_owned(),
        m,
        n,
        k: 64,
        latency: 1.0,
    };
    let rows: Vec<GemmRow> = (0..60).map(|i| row(64 * (1 + i % 6), 1 + i / 6)).collect();
    let out = held_out(&rows);
    let shapes: Vec<u32> = out.iter().map(|s| s[0]).collect();
    assert_eq!(shapes, [128, 320]);
    let held = rows.iter().filter(|r| out.contains(&r.shape())).count();
    assert_eq!(held, 20);
}

#[test]
fn a_fit_recovers_the_parameters_that_made_the_times() {
    let device = Device {
        bf16: 500e12,
        fp8: None,
        int8: None,
        fp4: false,
        bandwidth: 2e12,
        units: 100.0,
        cache: 50e6,
        cache_rate: None,
    };
    let truth: Vec<f64> = gemm::SPECS
        .iter()
        .map(|s| match s.name {
            "compute_efficiency" => 0.7,
            "bandwidth_efficiency" => 0.65,
            "fixed" => 5e-6,
            _ => s.prior,
        })
        .collect();
    let time = |v: &[f64], r: &GemmRow| {
        let (m, n, k) = (f64::from(r.m), f64::from(r.n), f64::from(r.k));
        let p = gemm::GemmParams::from_values(&array(v));
        let product = gemm::Product {
            arithmetic: Arithmetic::Bf16,
            weight_bytes: 2.0,
            m,
            n,
            k,
        };
        gemm::time(&p, &device, &Kernels::default(), product).seconds
    };
    let mut rows = Vec::new();
    for m in [1, 16, 64, 256, 1024, 4096] {
        for n in [1024, 3072, 4096, 8192] {
            for k in [1024, 2048, 4096] {
                let mut r = GemmRow {
                    version: String::new(),
                    gemm_dtype: "bfloat16".to_owned(),
                    m,
                    n,
                    k,
                    latency: 0.0,
                };
                r.latency = time(&truth, &r) * 1e3;
                rows.push(r);
            }
        }
    }
    let task = Task {
        op: "gemm bf16",
        prefix: "gemm.bf16",
        specs: &gemm::SPECS,
        given: &[],
        unused: &["quantise_row", "quantise_efficiency"],
        rows: &rows,
        regimes: &[],
        predict: &time,
        tolerance: 1.0,
    };
    let o = task.run("test", None).unwrap();
    let held_out = o.report[0].held_out.unwrap();
    assert_eq!(held_out.n, 24);
    assert!(held_out.median_ape < 1.0, "{held_out:?}");
    assert!((o.values[0] - 0.7).abs() < 0.02, "{:?}", o.values);
    assert!((o.values[1] - 0.65).abs() < 0.02, "{:?}", o.values);
}

#[test]
fn an_unknown_system_is_refused_with_the_known_ones() {
    let e = fit(Path::new("nowhere"), "tpu").unwrap_err();
    assert!(e.to_string().contains("h100_sxm, a100_sxm"), "{e}");
}

#[test]
fn a_missing_table_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let e = table::<GemmRow>(dir.path(), "h100_sxm", "gemm").unwrap_err();
    assert!(e.to_string().contains("h100_sxm_*_gemm_perf.csv"), "{e}");
}
