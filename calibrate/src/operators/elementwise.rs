//! Fits of element-wise kernels, and what the table says about sampling.

use hwmodels::ops::{Device, elementwise};

use super::error::Error;
use super::report::{ReportRow, errors_of};
use super::tables::{ElementwiseRow, ElementwiseTableRow, LayerRow};
use super::task::{COARSE_TOLERANCE, Collect, Task, array};

/// Kernel number of the residual addition.
const RESIDUAL: u32 = 3;

/// Fits norm, rotary and activation; the separate residual and sampling are only predicted.
pub(super) fn fit_elementwise(
    all: &mut Collect<'_>,
    system: &str,
    device: &Device,
    layers: &[LayerRow],
    own: &[ElementwiseTableRow],
) -> Result<(), Error> {
    let (sampling, own): (Vec<&ElementwiseTableRow>, Vec<&ElementwiseTableRow>) =
        own.iter().partition(|r| r.kernel.starts_with("sample_"));
    let mut rows: Vec<ElementwiseRow> = own.iter().filter_map(|r| r.row()).collect();
    for r in layers.iter().filter(|_| own.is_empty()) {
        let tp = r.num_tensor_parallel_workers.max(1);
        let (m, h) = (f64::from(r.num_tokens), f64::from(r.n_embd));
        let heads = f64::from(r.n_head / tp + (r.n_kv_head / tp).max(1));
        let dim = h / f64::from(r.n_head.max(1));
        let inner = f64::from(r.n_expanded_embd / tp);
        for (kernel, ms, bytes) in [
            // In and out; queries and keys in and out; two halves in, one out; two in, one out.
            (0, r.norm, 4.0 * m * h),
            (1, r.rotary, 4.0 * m * heads * dim),
            (2, r.activation, 6.0 * m * inner),
            (RESIDUAL, r.add, 6.0 * m * h),
        ] {
            // Below 3 us the resolution is the measurement.
            if ms >= 0.003 {
                rows.push(ElementwiseRow {
                    bytes,
                    seconds: ms * 1e-3,
                    hidden: r.n_expanded_embd,
                    tp,
                    kernel,
                });
            }
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    // Engines add the residual within the norm; the separate kernel is predicted only.
    let (adds, rows): (Vec<ElementwiseRow>, Vec<ElementwiseRow>) =
        rows.into_iter().partition(|r| r.kernel == RESIDUAL);
    let task = Task {
        op: "element-wise",
        prefix: elementwise::PREFIX,
        specs: &elementwise::SPECS,
        given: &[],
        unused: &["sampling_passes"],
        rows: &rows,
        regimes: &[
            ("norm", &|r| r.kernel == 0),
            ("rotary", &|r| r.kernel == 1),
            ("activation", &|r| r.kernel == 2),
        ],
        predict: &|v, r| {
            elementwise::time(
                &elementwise::ElementwiseParams::from_values(&array(v)),
                device,
                r.bytes,
                1.0,
            )
            .seconds
        },
        tolerance: COARSE_TOLERANCE,
    };
    let outcome = task.run(system, all.start)?;
    all.add(&outcome);
    if !adds.is_empty() {
        all.rows
            .push(task.only_predicted(&outcome.values, &adds, "separate residual"));
    }
    let params = elementwise::ElementwiseParams::from_values(&array(&outcome.values));
    for kernel in ["sample_greedy", "sample_top_k_top_p", "sample_softmax"] {
        let pairs: Vec<(f64, f64)> = sampling
            .iter()
            .filter(|r| r.kernel == kernel)
            .map(|r| {
                let predicted = elementwise::sampling_time(&params, device, r.tokens, r.width);
                (predicted.seconds, r.latency * 1e-3)
            })
            .collect();
        if !pairs.is_empty() {
            all.rows.push(ReportRow {
                op: "sampling (analytic)".to_owned(),
                regime: kernel.to_owned(),
                fitted: None,
                held_out: errors_of(&pairs),
            });
        }
    }
    Ok(())
}
