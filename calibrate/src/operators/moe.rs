//! Fits of routed experts.

use hwmodels::Dtype;
use hwmodels::ops::{Arithmetic, Device, Experts, moe};

use super::error::Error;
use super::tables::MoeRow;
use super::task::{COARSE_TOLERANCE, Collect, Task, array};

/// Fits the kernels of each format.
pub(super) fn fit_experts(
    all: &mut Collect<'_>,
    system: &str,
    device: &Device,
    rows: &[MoeRow],
) -> Result<(), Error> {
    let (triton, cutlass) = (Experts::Triton, Experts::Cutlass);
    // Published 8-bit expert weights carry block scales.
    let block = "fp8_block";
    for (op, dtype, weights, arithmetic, experts) in [
        (
            "moe bf16",
            "bfloat16",
            Dtype::Bf16,
            Arithmetic::Bf16,
            triton,
        ),
        ("moe fp8", block, Dtype::Fp8, Arithmetic::Fp8, triton),
        (
            "moe fp8 cutlass",
            block,
            Dtype::Fp8,
            Arithmetic::Fp8,
            cutlass,
        ),
    ] {
        let main: Vec<MoeRow> = rows
            .iter()
            .filter(|r| r.moe_dtype == dtype && r.experts() == experts)
            .cloned()
            .collect();
        if main.is_empty() {
            continue;
        }
        let task = Task {
            op,
            prefix: moe::prefix(arithmetic, experts),
            specs: &moe::SPECS,
            given: &[],
            unused: &[],
            rows: &main,
            regimes: &[
                ("tokens 1..16", &|r| r.num_tokens <= 16),
                ("tokens 17..256", &|r| (17..=256).contains(&r.num_tokens)),
                ("tokens above 256", &|r| r.num_tokens > 256),
                ("balanced", &|r| r.distribution == "balanced"),
                ("power law", &|r| r.distribution != "balanced"),
                ("experts on one rank", &|r| r.moe_ep_size == 1),
                ("experts over ranks", &|r| r.moe_ep_size > 1),
            ],
            predict: &|v, r| {
                moe::time(
                    &moe::MoeParams::from_values(&array(v), experts),
                    device,
                    &r.moe_shape(weights),
                    arithmetic,
                    f64::from(r.num_tokens),
                    r.routing(),
                )
                .seconds
            },
            tolerance: COARSE_TOLERANCE,
        };
        let outcome = task.run(system, all.start)?;
        all.add(&outcome);
    }
    Ok(())
}
