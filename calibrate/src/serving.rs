//! Engine and accelerator parameters fitted on whole serving runs, by simulating inside the fit.
//!
//! Each [`Plan`] names the parameters that the runs of a set can tell, with physical bounds; only the rows that the
//! set marks as fitted are used. Kernel times of accelerators with operator tables are not touched.

use std::collections::BTreeMap;

use hwmodels::Profile;
use hwmodels::evidence::Evidence;
use hwmodels::profile::{MeasuredOn, Param, Provenance, Validation};
use rayon::prelude::*;
use sim::scenario::Scenario;

use crate::fit::{Bound, FitError, FitResult, Loss, Options, bounded};
use crate::validate::{self, Case, Errors, Row, SetError, Source};

/// A number to fit and the parameters that take it.
struct Unknown {
    /// Dotted names that get the value.
    names: &'static [&'static str],
    init: f64,
    min: f64,
    max: f64,
    unit: &'static str,
    /// Name of the profile that keeps it.
    profile: &'static str,
}

/// A profile that a plan writes.
struct Output {
    name: &'static str,
    accelerator: &'static str,
    description: &'static str,
    software: &'static str,
}

/// Which sets to fit, and what.
pub struct Plan {
    /// Name on the command line.
    pub name: &'static str,
    /// Sets whose fitted rows are used.
    sets: &'static [&'static str],
    /// Metrics of those rows that it looks at; empty: all.
    metrics: &'static [&'static str],
    unknowns: &'static [Unknown],
    outputs: &'static [Output],
}

impl Plan {
    /// Whether it fits a figure of this kind, which counts as `fitted` in validation.
    fn fits(&self, metric: &str, fitted: bool) -> bool {
        fitted && (self.metrics.is_empty() || self.metrics.contains(&metric))
    }

    /// Those of `rows` that it was fitted on.
    pub fn fitted_rows<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
        rows.iter().filter(|r| self.fits(&r.metric, r.fitted))
    }
}

/// Median error up to which a profile counts as validated [%].
const TOLERANCE: f64 = 15.0;

/// Every plan.
pub const PLANS: [Plan; 4] = [
    Plan {
        name: "tgi",
        sets: &["jumpstart"],
        metrics: &[],
        unknowns: &[
            Unknown {
                names: &[
                    "gemm.bf16.bandwidth_efficiency",
                    "attn.decode.kv16.bandwidth_efficiency",
                ],
                init: 0.8,
                min: 0.3,
                max: 1.0,
                unit: "ratio",
                profile: "a10g",
            },
            Unknown {
                names: &[
                    "gemm.bf16.compute_efficiency",
                    "attn.prefill.kv16.efficiency",
                ],
                init: 0.7,
                min: 0.2,
                max: 1.0,
                unit: "ratio",
                profile: "a10g",
            },
            Unknown {
                names: &["engine.tgi.layer_launch"],
                init: 450e-6,
                min: 50e-6,
                max: 2e-3,
                unit: "s",
                profile: "tgi",
            },
            Unknown {
                names: &["engine.tgi.seq_host"],
                init: 100e-6,
                min: 0.0,
                max: 1e-3,
                unit: "s",
                profile: "tgi",
            },
            Unknown {
                names: &["engine.tgi.rank_seq_host"],
                init: 10e-6,
                min: 0.0,
                max: 1e-3,
                unit: "s",
                profile: "tgi",
            },
            Unknown {
                names: &["engine.tgi.rank_launch"],
                init: 15e-6,
                min: 0.0,
                max: 1e-3,
                unit: "s",
                profile: "tgi",
            },
        ],
        outputs: &[
            Output {
                name: "a10g",
                accelerator: "A10G-24GB",
                description: "A10G memory and arithmetic rates from serving runs of Llama-2-7B",
                software: "TGI, late 2023",
            },
            Output {
                name: "tgi",
                accelerator: "*",
                description: "Host time of TGI of late 2023 (eager launches, Python loop per request)",
                software: "TGI, late 2023",
            },
        ],
    },
    Plan {
        name: "vllm",
        sets: &["vllm_requests", "qwen3_32b"],
        metrics: &[],
        unknowns: &[
            Unknown {
                names: &["engine.vllm_v1.kernel_gap"],
                init: 0.0,
                min: -3e-6,
                max: 1e-5,
                unit: "s",
                profile: "vllm",
            },
            Unknown {
                names: &["engine.vllm_v1.step_host"],
                init: 1.5e-3,
                min: 0.0,
                max: 0.02,
                unit: "s",
                profile: "vllm",
            },
            Unknown {
                names: &["engine.vllm_v1.seq_host"],
                init: 10e-6,
                min: 0.0,
                max: 1e-3,
                unit: "s",
                profile: "vllm",
            },
            Unknown {
                names: &["engine.vllm_v1.request_in"],
                init: 5e-3,
                min: 0.0,
                max: 0.1,
                unit: "s",
                profile: "vllm",
            },
        ],
        outputs: &[Output {
            name: "vllm",
            accelerator: "*",
            description: "Host and front-end time of vLLM V1, and what CUDA graphs save between kernels",
            software: "vLLM 0.12 and 0.15",
        }],
    },
    Plan {
        name: "trtllm",
        sets: &["trtllm_llama31_8b"],
        // TTFT of eight users is what the slots were inferred from, not the launches.
        metrics: &["tpot_ms"],
        unknowns: &[Unknown {
            names: &["engine.trt_llm.context_launch"],
            init: 300e-6,
            min: 0.0,
            max: 2e-3,
            unit: "s",
            profile: "trtllm",
        }],
        outputs: &[Output {
            name: "trtllm",
            accelerator: "*",
            description: "Host time of TensorRT-LLM's PyTorch executor for steps with context",
            software: "TensorRT-LLM 1.0.0rc3",
        }],
    },
    Plan {
        name: "tgi-neuron",
        sets: &["inf2"],
        metrics: &[],
        unknowns: &[
            Unknown {
                names: &["engine.tgi_neuron.row_host"],
                init: 0.5e-3,
                min: 0.0,
                max: 2e-2,
                unit: "s",
                profile: "tgi-neuron",
            },
            Unknown {
                names: &["engine.tgi_neuron.seq_host"],
                init: 1e-3,
                min: 0.0,
                max: 2e-2,
                unit: "s",
                profile: "tgi-neuron",
            },
        ],
        outputs: &[Output {
            name: "tgi-neuron",
            accelerator: "*",
            description: "Host time on Neuron where the host chooses tokens: logits of all rows, then slot by slot",
            software: "TGI on Neuron, optimum-neuron (2025)",
        }],
    },
];

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// A data set cannot be used.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The fit failed.
    #[error("fit on serving runs: {0}")]
    Fit(#[from] FitError),
}

/// The profile of one accelerator or engine, from what was fitted for all.
fn profile(plan: &Plan, o: &Output, result: &FitResult, rows: &[Row], cases: &[Case]) -> Profile {
    let mut profile = Profile {
        name: o.name.into(),
        accelerator: o.accelerator.into(),
        description: o.description.into(),
        provenance: Provenance {
            command: format!(
                "servetwin calibrate serving {} --data DIR --out DIR",
                plan.name
            ),
            fitted_on: plan
                .sets
                .iter()
                .map(|s| format!("{s}: rows marked as fitted"))
                .collect(),
            software: vec![o.software.into()],
            rows: rows.iter().filter(|r| r.fitted).count() as u64,
            notes: Vec::new(),
        },
        ..Profile::default()
    };
    for (i, u) in plan
        .unknowns
        .iter()
        .enumerate()
        .filter(|(_, u)| u.profile == o.name)
    {
        for name in u.names {
            profile.params.insert(
                (*name).into(),
                Param {
                    value: result.values[i],
                    std_error: result.std_errors[i],
                    min: u.min,
                    max: u.max,
                    unit: u.unit.into(),
                    evidence: Evidence::Fitted,
                },
            );
        }
    }
    profile.validations = validations(rows);
    profile.measured_on = measured_on(cases);
    profile
}

/// Fits `plan` on the fitted rows of its sets; returns the profiles and every row with its prediction.
///
/// # Errors
/// A set is missing or malformed, or nothing can be fitted.
pub fn fit(
    plan: &Plan,
    source: &Source,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<(Vec<Profile>, Vec<Row>), ServingError> {
    let mut cases = Vec::new();
    for (name, load) in validate::SETS {
        if plan.sets.contains(&name) {
            cases.extend(load(source)?);
        }
    }
    let fitted: Vec<(&Case, String)> = cases
        .iter()
        .filter(|c| c.measured.iter().any(|m| plan.fits(m.metric, m.fitted)))
        .map(|c| (c, c.accelerator().unwrap_or_default()))
        .collect();
    let mut bounds: Vec<Bound> = plan
        .unknowns
        .iter()
        .map(|u| Bound::new(u.names[0], u.init, u.min, u.max))
        .collect();
    let evaluations = std::sync::atomic::AtomicUsize::new(0);
    let residuals = |values: &[f64]| -> Vec<f64> {
        let r = fitted
            .par_iter()
            .map(|(case, accelerator)| {
                let run = case.run(&parameters(plan, values, accelerator));
                case.measured
                    .iter()
                    .filter(|m| plan.fits(m.metric, m.fitted))
                    .map(|m| {
                        run.as_ref()
                            .ok()
                            .and_then(|r| r.number(m.path))
                            .map_or(f64::NAN, |p| (p / m.value).ln())
                    })
                    .collect::<Vec<f64>>()
            })
            .flatten()
            .collect();
        progress(evaluations.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
        r
    };
    let options = Options {
        loss: Loss::SoftL1(0.1),
        max_iterations: 15,
        tolerance: 1e-3,
        // Simulated figures move in small jumps: too small a step would measure those.
        step: 1e-2,
        ..Options::default()
    };
    if let [alone] = &mut bounds[..] {
        alone.init = scan(alone, &residuals);
    }
    let result = bounded(residuals, &bounds, &options)?;
    let rows: Vec<Row> = cases
        .par_iter()
        .flat_map(|c| {
            let params = parameters(plan, &result.values, &c.accelerator().unwrap_or_default());
            validate::rows(c, &params, None)
        })
        .collect();
    let profiles = (plan.outputs.iter())
        .map(|o| profile(plan, o, &result, &rows, &cases))
        .collect();
    Ok((profiles, rows))
}

/// The best of [`SCAN`] values within the bounds of a lone unknown, from which the descent begins: a host's time that hides behind the device's is
/// felt by no row, so a descent from there would find no way out.
fn scan(bound: &Bound, residuals: &impl Fn(&[f64]) -> Vec<f64>) -> f64 {
    let step = (bound.max - bound.min) / (SCAN - 1) as f64;
    let misfit = |value: f64| -> f64 { residuals(&[value]).iter().map(|r| r * r).sum() };
    (0..SCAN)
        .map(|k| bound.min + step * k as f64)
        .map(|value| (value, misfit(value)))
        .filter(|(_, misfit)| misfit.is_finite())
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map_or(bound.init, |best| best.0)
}

/// Values that [`scan`] tries.
const SCAN: usize = 13;

/// The parameters that `values` of `plan`'s unknowns stand for on `accelerator`.
fn parameters(plan: &Plan, values: &[f64], accelerator: &str) -> Vec<(String, f64)> {
    let holds = |u: &Unknown| {
        plan.outputs
            .iter()
            .any(|o| o.name == u.profile && (o.accelerator == "*" || o.accelerator == accelerator))
    };
    plan.unknowns
        .iter()
        .zip(values)
        .filter(|(u, _)| holds(u))
        .flat_map(|(u, v)| u.names.iter().map(move |n| ((*n).to_owned(), *v)))
        .collect()
}

/// What the cases with rows that were not fitted were measured on, by set.
fn measured_on(cases: &[Case]) -> BTreeMap<String, MeasuredOn> {
    let mut out: BTreeMap<String, MeasuredOn> = BTreeMap::new();
    for case in cases
        .iter()
        .filter(|c| c.measured.iter().any(|m| !m.fitted))
    {
        let Ok(scenario) = Scenario::parse(&case.scenario, case.set, &[]) else {
            continue;
        };
        let on = out
            .entry(case.set.to_owned())
            .or_insert_with(|| MeasuredOn {
                engine: scenario.engine.params.kind(),
                accelerators: Vec::new(),
            });
        let name = case.accelerator().unwrap_or_default();
        if let Err(at) = on.accelerators.binary_search(&name) {
            on.accelerators.insert(at, name);
        }
    }
    out
}

/// Median errors on the rows that were not fitted, by set and metric.
fn validations(rows: &[Row]) -> Vec<Validation> {
    let mut keys: Vec<(&str, &str)> = rows
        .iter()
        .filter(|r| !r.fitted)
        .map(|r| (r.set.as_str(), r.metric.as_str()))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter_map(|(set, metric)| {
            let errors: Vec<f64> = rows
                .iter()
                .filter(|r| !r.fitted && r.set == set && r.metric == metric)
                .filter_map(Row::error)
                .collect();
            let e = Errors::of(&errors)?;
            Some(Validation {
                set: set.into(),
                metric: metric.into(),
                n: e.n as u64,
                median_ape: (e.median_ape * 100.0).round() / 100.0,
                tolerance: TOLERANCE,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_unknown_is_found_from_where_no_row_feels_it() {
        // Below 0.6 another time is longer: nothing changes there.
        let felt = |v: &[f64]| vec![v[0].max(0.6) - 0.8];
        let bound = Bound::new("launch", 0.1, 0.0, 1.2);
        let found = scan(&bound, &felt);
        assert!((found - 0.8).abs() <= 0.05, "{found}");
    }

    #[test]
    fn the_shipped_profiles_say_what_their_validation_runs_were_measured_on() {
        let cases = validate::jumpstart::cases(&Source::Published).expect("the published table");
        let found = measured_on(&cases);
        for name in ["tgi", "a10g"] {
            let shipped = hwmodels::profiles::builtin()
                .find(|p| p.name == name)
                .expect("a built-in profile");
            assert_eq!(shipped.measured_on, found, "{name}");
        }
    }
}
