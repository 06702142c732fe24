//! An accelerator without kernel tables: one that has them is left out, and predicted from its data sheet and the others.
//!
//! No serving run was published of most accelerators that have kernel tables, so the reference is the time of decode steps with the
//! accelerator's own tables ([`SET`] counts it as measured), the prediction the same step by the data sheet and the priors that lie between
//! the fits of A100 and H100. For A100 the priors know it, so its error is a lower bound.

use std::collections::BTreeMap;

use hwmodels::catalog::Catalog;
use hwmodels::deployment::{DeploymentSpec, Graphs, deploy};
use hwmodels::ops::collective::HostPath;
use hwmodels::ops::{Kernels, Routing};
use hwmodels::profiles::Choice;
use hwmodels::{BatchStats, Dtype, EngineKind, Error, Layout};

use super::error::SetError;
use super::row::Row;

/// Name of the set.
pub const SET: &str = "chips_left_out";

/// Accelerators with kernel tables that are left out in turn, with the formats that their arithmetic has.
const CHIPS: [(&str, &[Dtype]); 3] = [
    ("A100-SXM4-80GB", &[Dtype::Bf16]),
    ("L40S-48GB", &[Dtype::Bf16, Dtype::Fp8]),
    ("B200-SXM-180GB", &[Dtype::Bf16, Dtype::Fp8]),
];
/// Models, each with its tensor-parallel ranks.
const MODELS: [(&str, u32); 3] = [("llama-3.1-8b", 1), ("qwen3-14b", 1), ("qwen3-32b", 4)];
/// Sequences of a step, and tokens of context that each has.
const BATCHES: [u32; 4] = [1, 8, 32, 128];
const CONTEXTS: [u32; 2] = [512, 4096];

/// Every step with the accelerator's own tables and without.
///
/// # Errors
/// Never while the built-in catalog holds what is named here.
pub fn rows() -> Result<Vec<Row>, SetError> {
    all().map_err(|e| SetError::new(SET, e.to_string()))
}

fn all() -> Result<Vec<Row>, Error> {
    let mut catalog = Catalog::builtin();
    let mut rows = Vec::new();
    for (chip, formats) in CHIPS {
        let sheet = format!("{chip} by its data sheet");
        catalog.add_unmeasured(chip, &sheet)?;
        let (own, bare) = (format!("8 x {chip}"), format!("8 x {sheet}"));
        catalog.add_machine(&own, chip, 8, Some(HostPath::Own))?;
        catalog.add_machine(&bare, &sheet, 8, Some(HostPath::Own))?;
        for engine in [EngineKind::VllmV1, EngineKind::TrtLlm] {
            for (model, tp) in MODELS {
                for weights in formats {
                    let at = |machine: &str| steps(&catalog, machine, engine, model, tp, *weights);
                    for ((name, measured), (_, predicted)) in at(&own)?.into_iter().zip(at(&bare)?)
                    {
                        rows.push(Row {
                            set: SET.to_owned(),
                            case: format!("{chip} {engine} {model} {weights:?} TP {tp} {name}"),
                            metric: format!("tpot_ms {chip}"),
                            measured,
                            predicted: Some(predicted),
                            baseline: None,
                            range: None,
                            kind: None,
                            place: None,
                            responses: None,
                            plain: None,
                            accelerator: None,
                            fitted: false,
                            note: String::new(),
                        });
                    }
                }
            }
        }
    }
    Ok(rows)
}

/// Decode steps [ms] by what they hold.
fn steps(
    catalog: &Catalog,
    machine: &str,
    engine: EngineKind,
    model: &str,
    tp: u32,
    weights: Dtype,
) -> Result<Vec<(String, f64)>, Error> {
    let deployment = deploy(&DeploymentSpec {
        catalog,
        instance: catalog.instance(machine)?,
        model: catalog.model(model)?,
        layout: Layout {
            tp,
            ..Layout::SINGLE
        },
        weights,
        kv_cache: Dtype::Bf16,
        engine,
        overlap: Some(true),
        graphs: Graphs::On,
        max_tokens: 8192,
        profile: Choice::Auto,
        params: &BTreeMap::new(),
        routing: Routing::Balanced,
        kernels: match engine {
            EngineKind::TrtLlm => Kernels::trt_llm(),
            _ => Kernels::default(),
        },
    })?;
    let mut out = Vec::new();
    for batch in BATCHES {
        for context in CONTEXTS {
            let mut step = BatchStats::default();
            for _ in 0..batch {
                step.add_decode(context);
            }
            let name = format!("{batch} x {context}");
            out.push((name, 1e3 * deployment.step.step(&step).latency));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::Errors;

    #[test]
    fn an_accelerator_without_tables_is_predicted_within_its_bar() {
        let rows = rows().expect("the built-in catalog");
        for (chip, _) in CHIPS {
            let errors: Vec<f64> = (rows.iter().filter(|r| r.metric.ends_with(chip)))
                .filter_map(Row::error)
                .collect();
            let e = Errors::of(&errors).expect("rows");
            assert!(e.n >= 48 && e.median_ape <= 15.0, "{chip}: {e:?}");
        }
    }
}
