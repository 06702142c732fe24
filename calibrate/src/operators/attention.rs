//! Fits of attention: decodes and prefills.

use std::path::Path;

use hwmodels::Dtype;
use hwmodels::ops::{Device, attention};

use super::error::Error;
use super::systems::System;
use super::tables::{AttentionRow, layer_attention};
use super::task::{Collect, KERNEL_TOLERANCE, Task, array};

/// Largest head size of the kernels that are fitted; larger ones take another kernel.
const MAX_HEAD_DIM: u32 = 256;

/// Bandwidth of one unit over an even share, where the table does not show it: as fitted on A100.
const UNIT_BANDWIDTH_SHARE: f64 = 1.5;

/// Parameters that need several head sizes to show, where the table has one: as fitted on H100.
const CTA_DIMS: f64 = 1.2e-6;

const SOFTMAX_DIMS: f64 = 45.0;

fn several_head_dims(rows: &[AttentionRow]) -> bool {
    rows.iter().any(|r| r.head_dim != rows[0].head_dim)
}

/// Fits decodes over 16-bit and over 8-bit KV.
pub(super) fn fit_decodes(
    all: &mut Collect<'_>,
    system: &System,
    device: &Device,
    rows: &[AttentionRow],
    data: &Path,
) -> Result<(), Error> {
    for (op, dtype, kv) in [
        ("decode kv16", "bfloat16", Dtype::Bf16),
        ("decode kv8", "fp8", Dtype::Fp8),
    ] {
        let (main, wide): (Vec<AttentionRow>, Vec<AttentionRow>) = rows
            .iter()
            .filter(|r| r.kv_cache_dtype == dtype)
            .cloned()
            .partition(|r| r.head_dim <= MAX_HEAD_DIM);
        if main.is_empty() {
            continue;
        }
        let splits = main[0].splits_ungrouped().unwrap_or(system.flash3);
        let mut given = vec![("splits_ungrouped", f64::from(u8::from(splits)))];
        if splits {
            given.push(("group_copy", 0.0));
            // Every kernel of the table is split over all units, so one unit's share does not show;
            // the prior is what kernels without split reach on A100.
            given.push(("unit_bandwidth_share", UNIT_BANDWIDTH_SHARE));
        }
        if !several_head_dims(&main) {
            given.push(("cta_dims", CTA_DIMS));
        }
        let task = Task {
            op,
            prefix: attention::decode_prefix(kv),
            specs: &attention::DECODE_SPECS,
            given: &given,
            unused: &[],
            rows: &main,
            regimes: &[
                ("head 128, no window", &|r| {
                    r.head_dim == 128 && r.window_size == 0
                }),
                ("batch 1..8", &|r| r.batch_size <= 8),
                ("batch 9..64", &|r| (9..=64).contains(&r.batch_size)),
                ("batch 65..256", &|r| (65..=256).contains(&r.batch_size)),
                ("batch above 256", &|r| r.batch_size > 256),
                ("uneven contexts", &|r| r.ctx_sq_sum > 0),
            ],
            predict: &|v, r| {
                attention::decode_time(
                    &attention::DecodeParams::from_values(&array(v)),
                    device,
                    &r.decode_shape(kv),
                    &r.decodes(),
                    r.cache(),
                )
                .seconds
            },
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system.name, all.start)?;
        all.add(&outcome);
        if !wide.is_empty() {
            all.rows
                .push(task.only_predicted(&outcome.values, &wide, "head 512 (another kernel)"));
        }
        all.range(
            format!("{}.head_dim", attention::decode_prefix(kv)),
            main.iter().map(|r| r.head_dim),
        );
        if kv == Dtype::Bf16 {
            let others: Vec<AttentionRow> = layer_attention(data, system.name)?
                .iter()
                .filter_map(|r| r.decode_row())
                .collect();
            if !others.is_empty() {
                all.rows.push(task.only_predicted(
                    &outcome.values,
                    &others,
                    "Llama-2-70B layer (vidur)",
                ));
            }
        }
    }
    Ok(())
}

/// Fits prefills over 16-bit and over 8-bit KV.
pub(super) fn fit_prefills(
    all: &mut Collect<'_>,
    system: &System,
    device: &Device,
    rows: &[AttentionRow],
    data: &Path,
) -> Result<(), Error> {
    for (op, dtype, kv) in [
        ("prefill kv16", "bfloat16", Dtype::Bf16),
        ("prefill kv8", "fp8", Dtype::Fp8),
    ] {
        let mut main: Vec<AttentionRow> = Vec::new();
        let mut single: Vec<AttentionRow> = Vec::new();
        let mut wide: Vec<AttentionRow> = Vec::new();
        for r in rows.iter().filter(|r| r.kv_cache_dtype == dtype) {
            let part = if r.head_dim > MAX_HEAD_DIM {
                &mut wide
            } else if r.isl == 1 {
                &mut single
            } else {
                &mut main
            };
            part.push(r.clone());
        }
        if main.is_empty() {
            continue;
        }
        let packs = main[0].packs_groups().unwrap_or(system.flash3);
        let mut given = vec![("packs_groups", f64::from(u8::from(packs)))];
        if !packs {
            given.push(("cta_group", 0.0));
        }
        if !several_head_dims(&main) {
            given.push(("softmax_dims", SOFTMAX_DIMS));
            given.push(("wide_heads", 0.0));
        }
        let task = Task {
            op,
            prefix: attention::prefill_prefix(kv),
            specs: &attention::PREFILL_SPECS,
            given: &given,
            unused: &[],
            rows: &main,
            regimes: &[
                ("head 128, no window", &|r| {
                    r.head_dim == 128 && r.window_size == 0
                }),
                ("16..128 new tokens", &|r| r.isl <= 128),
                ("129..1024 new tokens", &|r| (129..=1024).contains(&r.isl)),
                ("above 1024 new tokens", &|r| r.isl > 1024),
                ("on earlier context", &|r| r.step > 0),
            ],
            predict: &|v, r| {
                attention::prefill_time(
                    &attention::PrefillParams::from_values(&array(v)),
                    device,
                    &r.prefill_shape(kv),
                    &r.chunks(),
                )
                .seconds
            },
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system.name, all.start)?;
        all.add(&outcome);
        all.rows
            .push(task.only_predicted(&outcome.values, &single, "1 new token"));
        if !wide.is_empty() {
            all.rows
                .push(task.only_predicted(&outcome.values, &wide, "head 512 (another kernel)"));
        }
        all.range(
            format!("{}.new_tokens", attention::prefill_prefix(kv)),
            main.iter().map(|r| r.isl),
        );
        if kv == Dtype::Bf16 {
            let others = layer_attention(data, system.name)?;
            for (name, earlier) in [
                ("Llama-2-70B (vidur), no context", false),
                ("Llama-2-70B (vidur), on context", true),
            ] {
                let rows: Vec<AttentionRow> = others
                    .iter()
                    .filter_map(|r| r.prefill_row())
                    .filter(|r| (r.step > 0) == earlier)
                    .collect();
                if !rows.is_empty() {
                    all.rows
                        .push(task.only_predicted(&outcome.values, &rows, name));
                }
            }
        }
    }
    Ok(())
}
