//! Fits the host's share of a step: what an engine's Python spends per step and per sequence on
//! scheduling, preparing inputs, sampling and processing outputs.
//!
//! The table is of an engine of early 2024 in the manner of vLLM's first scheduler, on an A100 host
//! (microsoft/vidur, MIT). Each phase is `fixed + per_sequence x batch`; single-process runs (TP 1)
//! and runs with worker processes (TP 2, 4) are fitted apart, on three models, and predict three
//! others.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use hwmodels::engine_cost::SPECS;
use hwmodels::profile::{Param, Profile, Provenance, Validation};
use hwmodels::{EngineKind, Evidence};
use serde::Deserialize;

use crate::collectives::{Error, quantile, records};
use crate::fit::{Bound, Loss, Options, bounded};

/// Models whose rows are fitted; the others are predicted.
const FITTED_MODELS: [&str; 3] = [
    "meta-llama/Llama-2-7b-hf",
    "codellama/CodeLlama-34b-Instruct-hf",
    "meta-llama/Llama-2-70b-hf",
];

/// Largest median error that the profile's validations accept [%].
const TOLERANCE: f64 = 10.0;

#[derive(Clone, Debug, Deserialize)]
struct Row {
    model_name: String,
    batch_size: f64,
    tensor_parallel_degree: u32,
    schedule_median: f64,
    sampler_e2e_median: f64,
    prepare_inputs_e2e_median: f64,
    process_model_outputs_median: f64,
    ray_comm_time_mean: f64,
}

/// A column of the table [ms].
type Column = fn(&Row) -> f64;

/// Phases of a step on the host, with the column of each.
const PHASES: [(&str, Column); 5] = [
    ("schedule", |r| r.schedule_median),
    ("prepare inputs", |r| r.prepare_inputs_e2e_median),
    ("sample", |r| r.sampler_e2e_median),
    ("process outputs", |r| r.process_model_outputs_median),
    ("reach workers", |r| r.ray_comm_time_mean),
];

/// One phase's cost and how well it predicts.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Phase {
    /// `one process` (TP 1) or `worker processes` (TP 2 and 4).
    pub layout: String,
    /// Phase, or `step` for their sum.
    pub phase: String,
    /// Time per step [ms].
    pub fixed_ms: f64,
    /// Time per step and sequence [us].
    pub per_sequence_us: f64,
    /// Rows fitted.
    pub fitted: u64,
    /// Their median absolute error [%].
    pub fitted_median: f64,
    /// Rows of other models.
    pub held_out: u64,
    /// Their median absolute error [%].
    pub held_out_median: f64,
    /// Their 90th percentile [%].
    pub held_out_p90: f64,
    /// Their mean signed error [%].
    pub held_out_bias: f64,
}

/// The phases of both layouts.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Report {
    /// Phases, and their sum last, by layout.
    pub phases: Vec<Phase>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<17} {:<16} {:>9} {:>12} {:>4} {:>9} {:>9} {:>9} {:>7} {:>7}",
            "layout",
            "phase",
            "fixed ms",
            "us/sequence",
            "n",
            "median %",
            "held out",
            "median %",
            "p90 %",
            "bias %"
        )?;
        for p in &self.phases {
            writeln!(
                f,
                "{:<17} {:<16} {:>9.3} {:>12.2} {:>4} {:>9.1} {:>9} {:>9.1} {:>7.1} {:>+7.1}",
                p.layout,
                p.phase,
                p.fixed_ms,
                p.per_sequence_us,
                p.fitted,
                p.fitted_median,
                p.held_out,
                p.held_out_median,
                p.held_out_p90,
                p.held_out_bias
            )?;
        }
        Ok(())
    }
}

/// Fits the table under `folder`: a profile with the `vllm_v0` engine's host time per step and per
/// sequence (one process), and the phases that make it up.
///
/// # Errors
/// When the table is missing or malformed, or holds too few rows.
pub fn fit(folder: &Path) -> Result<(Profile, Report), Error> {
    let rows: Vec<Row> = records(&folder.join("vidur_profiles/a100_cpu_overheads.csv.gz"))?;
    let mut phases = Vec::new();
    for (layout, single) in [("one process", true), ("worker processes", false)] {
        let of_layout = |r: &&Row| (r.tensor_parallel_degree == 1) == single;
        let here: Vec<&Row> = rows.iter().filter(of_layout).collect();
        let mut sum = [0.0; 2];
        for (phase, column) in PHASES {
            let [fixed, slope] = line(&here, phase, column)?;
            sum = [sum[0] + fixed, sum[1] + slope];
            phases.push(judge(layout, phase, [fixed, slope], &here, &column));
        }
        let total = |r: &Row| PHASES.iter().map(|(_, column)| column(r)).sum();
        phases.push(judge(layout, "step", sum, &here, &total));
    }
    let report = Report { phases };
    let profile = profile(&report, &rows);
    Ok((profile, report))
}

/// `[fixed, per sequence]` of one phase over the fitted models [ms].
fn line(rows: &[&Row], phase: &str, column: Column) -> Result<[f64; 2], Error> {
    let points: Vec<(f64, f64)> = rows
        .iter()
        .filter(|r| fitted(r))
        .map(|r| (r.batch_size, column(r)))
        .collect();
    let bounds = [
        Bound::new("fixed", 0.3, 0.0, 50.0),
        Bound::new("per sequence", 0.01, 0.0, 1.0),
    ];
    let residuals = |p: &[f64]| -> Vec<f64> {
        let relative = |(b, ms): &(f64, f64)| (p[0] + p[1] * b) / ms - 1.0;
        points.iter().map(relative).collect()
    };
    let options = Options {
        loss: Loss::SoftL1(0.05),
        ..Options::default()
    };
    let fit = bounded(residuals, &bounds, &options).map_err(|source| Error::Fit {
        stage: format!("host {phase}"),
        source,
    })?;
    Ok([fit.values[0], fit.values[1]])
}

fn fitted(row: &Row) -> bool {
    FITTED_MODELS.contains(&row.model_name.as_str())
}

fn judge(
    layout: &str,
    phase: &str,
    [fixed, slope]: [f64; 2],
    rows: &[&Row],
    measured: &dyn Fn(&Row) -> f64,
) -> Phase {
    let errors = |of_fitted: bool| -> Vec<f64> {
        rows.iter()
            .filter(|r| fitted(r) == of_fitted)
            .map(|r| 100.0 * ((fixed + slope * r.batch_size) / measured(r) - 1.0))
            .collect()
    };
    let sizes = |signed: &[f64]| -> Vec<f64> {
        let mut sizes: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        sizes
    };
    let (inside, outside) = (errors(true), errors(false));
    let (inside_sizes, outside_sizes) = (sizes(&inside), sizes(&outside));
    Phase {
        layout: layout.to_owned(),
        phase: phase.to_owned(),
        fixed_ms: fixed,
        per_sequence_us: 1e3 * slope,
        fitted: inside.len() as u64,
        fitted_median: quantile(&inside_sizes, 0.5),
        held_out: outside.len() as u64,
        held_out_median: quantile(&outside_sizes, 0.5),
        held_out_p90: quantile(&outside_sizes, 0.9),
        held_out_bias: outside.iter().sum::<f64>() / outside.len().max(1) as f64,
    }
}

fn profile(report: &Report, rows: &[Row]) -> Profile {
    let steps = || report.phases.iter().filter(|p| p.phase == "step");
    let mut params = BTreeMap::new();
    if let Some(step) = steps().find(|p| p.layout == "one process") {
        for (name, seconds) in [
            ("step_host", step.fixed_ms * 1e-3),
            ("seq_host", step.per_sequence_us * 1e-6),
        ] {
            if let Some(spec) = SPECS.iter().find(|s| s.name == name) {
                let param = Param {
                    value: format!("{seconds:.3e}").parse().unwrap_or(seconds),
                    std_error: None,
                    min: spec.min,
                    max: spec.max,
                    unit: spec.unit.to_owned(),
                    evidence: Evidence::Fitted,
                };
                params.insert(format!("engine.{}.{name}", EngineKind::VllmV0), param);
            }
        }
    }
    let batches = rows.iter().map(|r| r.batch_size);
    let range = batches.fold([f64::INFINITY, 0.0], |[lo, hi], b| [lo.min(b), hi.max(b)]);
    Profile {
        name: "host-a100-2024".to_owned(),
        accelerator: "any".to_owned(),
        description: "Host time of a step of a Python engine of early 2024, one process".to_owned(),
        provenance: Provenance {
            command: "servetwin calibrate host --data DIR --out FILE".to_owned(),
            fitted_on: vec!["microsoft/vidur CPU overheads on A100 (MIT)".to_owned()],
            software: vec!["vLLM of early 2024, as forked for vidur".to_owned()],
            rows: rows.iter().filter(|r| fitted(r)).count() as u64,
            notes: vec![
                "newer engines spend much less per sequence: do not use it for them".to_owned(),
                "decode-only batches; launching the model's kernels is not in it".to_owned(),
            ],
        },
        validity: BTreeMap::from([("sequences".to_owned(), range)]),
        validations: steps()
            .map(|p| Validation {
                set: format!("other models, {}", p.layout),
                metric: "host time of a step".to_owned(),
                n: p.held_out,
                median_ape: (p.held_out_median * 10.0).round() / 10.0,
                tolerance: TOLERANCE,
            })
            .collect(),
        params,
        ..Profile::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(model: &str, tp: u32, batch: f64) -> Row {
        // Fixed times 0.1, 0.3, 0.5, 0.2 ms and 6 ms to reach workers; slopes 10, 4, 6, 12, 0 us.
        Row {
            model_name: model.to_owned(),
            batch_size: batch,
            tensor_parallel_degree: tp,
            schedule_median: 0.1 + 0.010 * batch,
            prepare_inputs_e2e_median: 0.3 + 0.004 * batch,
            sampler_e2e_median: 0.5 + 0.006 * batch,
            process_model_outputs_median: 0.2 + 0.012 * batch,
            ray_comm_time_mean: 6.0,
        }
    }

    #[test]
    fn fixed_and_per_sequence_times_are_recovered() {
        let rows: Vec<Row> = (1..=16)
            .map(|i| row(FITTED_MODELS[0], 1, 8.0 * f64::from(i)))
            .collect();
        let rows: Vec<&Row> = rows.iter().collect();
        for ((phase, column), want) in PHASES.into_iter().zip([
            [0.1, 0.010],
            [0.3, 0.004],
            [0.5, 0.006],
            [0.2, 0.012],
            [6.0, 0.0],
        ]) {
            let got = line(&rows, phase, column).expect("fits");
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() < 1e-4, "{phase}: {got:?}, not {want:?}");
            }
        }
    }

    #[test]
    fn a_measured_folder_gives_a_profile_that_the_engine_reads() {
        let Some(folder) = std::env::var_os("SERVETWIN_MEASURED") else {
            // Past the test harness, which keeps what passing tests print to itself.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED, no measurements (SERVETWIN_MEASURED): a_measured_folder_gives_a_profile_that_the_engine_reads\n",
            );
            return;
        };
        let (profile, report) = fit(Path::new(&folder)).expect("fit");
        assert_eq!(report.phases.len(), 2 * (PHASES.len() + 1));
        let cost = hwmodels::engine_cost::EngineCost::new(EngineKind::VllmV0, &profile);
        assert!(
            (0.5e-3..3e-3).contains(&cost.step_host),
            "{}",
            cost.step_host
        );
        assert!((20e-6..80e-6).contains(&cost.seq_host), "{}", cost.seq_host);
    }
}
