//! Device parameters of Inferentia2 and Trainium1, fitted on published batch-1 latencies.
//!
//! `neuron_decoder_batch1.csv` (AWS Neuron documentation) lists time to first token and per output token of static
//! models at batch 1. Host time cannot be told apart from the fixed time per layer there, so the fit takes it all as
//! the latter; engines that add host time (TGI) are calibrated on top.
//!
//! Fitted: Llama-2 and CodeLlama on inf2. Only predicted: Llama-3 and Mistral, and everything on trn1.

use std::path::Path;

use hwmodels::catalog::Catalog;
use hwmodels::neuron::{NeuronModel, NeuronParams, SPECS};
use hwmodels::profile::{Param, Profile, Provenance, Validation};
use hwmodels::profiles::{Choice, resolve};
use hwmodels::{BatchStats, Dtype, EngineCost, EngineKind, Evidence, Layout, StepModel};
use serde::Deserialize;

use crate::fit::{Bound, Loss, Options, bounded};
use crate::validate::report::Errors;
use crate::validate::row::Row;

/// Name of the data file.
pub const FILE: &str = "neuron_decoder_batch1.csv";
/// Name of the set in reports.
pub const SET: &str = "neuron_batch1";

/// Largest median error at which the profile counts as validated [%].
const TOLERANCE: f64 = 15.0;

#[derive(Debug, Deserialize)]
struct Raw {
    #[serde(rename = "Model")]
    model: String,
    instance: String,
    tp: u32,
    batch: u32,
    seq_len: u32,
    input_tokens: u32,
    output_tokens: u32,
    weight_dtype: String,
    ttft_p50_ms: Option<f64>,
    tpot_p50_ms: Option<f64>,
}

/// One latency of one case.
#[derive(Clone, Debug)]
struct Point {
    case: String,
    model: &'static str,
    instance: String,
    tp: u32,
    weights: Dtype,
    batch: BatchStats,
    metric: &'static str,
    seconds: f64,
    fitted: bool,
}

/// Catalog name of a published model name.
fn catalog_name(published: &str) -> Option<&'static str> {
    Some(match published {
        "CodeLlama-13b-hf" => "codellama-13b",
        "Llama-2-7b" => "llama-2-7b",
        "Llama-2-13b" => "llama-2-13b",
        "Llama-2-70b" => "llama-2-70b",
        "Llama-3-8B" => "llama-3.1-8b",
        "Llama-3-70B" => "llama-3.1-70b",
        "Mistral-7B-Instruct-v0.2" => "mistral-7b-v0.2",
        _ => return None,
    })
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NeuronError {
    /// The file cannot be read or has other columns.
    #[error("{FILE}: {0}")]
    Csv(#[from] csv::Error),
    /// The fit failed.
    #[error("fit of the Neuron parameters: {0}")]
    Fit(#[from] crate::fit::FitError),
    /// A model or instance is missing from the catalog.
    #[error(transparent)]
    Catalog(#[from] hwmodels::error::Error),
}

fn points(dir: &Path) -> Result<Vec<Point>, NeuronError> {
    let mut reader = csv::Reader::from_path(dir.join(FILE))?;
    let mut out: Vec<Point> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for raw in reader.deserialize() {
        let raw: Raw = raw?;
        let Some(model) = catalog_name(&raw.model) else {
            continue;
        };
        let weights = if raw.weight_dtype == "int8" {
            Dtype::Int8
        } else {
            Dtype::Bf16
        };
        let case = format!(
            "{model} {} tp{} {}+{}",
            raw.instance.to_lowercase(),
            raw.tp,
            raw.input_tokens,
            raw.output_tokens
        );
        // The table lists some rows twice, with and without the weights' format.
        if !seen.insert(case.clone()) {
            continue;
        }
        let inf2 = raw.instance.to_lowercase().starts_with("inf2");
        let fitted = inf2 && (model.starts_with("llama-2") || model.starts_with("codellama"));
        let mut decode = BatchStats::default();
        for _ in 0..raw.batch {
            decode.add_decode(raw.seq_len);
        }
        let mut prefill = BatchStats::default();
        // Prompts run in buckets of powers of two.
        prefill.add_prefill(raw.input_tokens.next_power_of_two(), 0, true);
        for (metric, batch, ms) in [
            ("tpot_ms", decode, raw.tpot_p50_ms),
            ("ttft_ms", prefill, raw.ttft_p50_ms),
        ] {
            if let Some(ms) = ms.filter(|v| *v > 0.0) {
                out.push(Point {
                    case: case.clone(),
                    model,
                    instance: raw.instance.to_lowercase(),
                    tp: raw.tp,
                    weights,
                    batch,
                    metric,
                    seconds: ms * 1e-3,
                    fitted,
                });
            }
        }
    }
    Ok(out)
}

fn predict(catalog: &Catalog, p: &Point, params: NeuronParams) -> Result<f64, NeuronError> {
    let model = catalog.model(p.model)?;
    let instance = catalog.instance(&p.instance)?;
    let chip = catalog.accelerator(&instance.accelerator)?;
    let mut cost = EngineCost::prior(EngineKind::TgiNeuron);
    cost.step_host = 0.0;
    cost.seq_host = 0.0;
    cost.prompt_token_host = 0.0;
    let step = NeuronModel::new(
        chip,
        chip.ranks_per_device,
        model,
        Layout {
            tp: p.tp,
            pp: 1,
            dp: 1,
            ep: 1,
        },
        p.weights,
        Dtype::Bf16,
        (model.parameters() as f64, model.active_parameters() as f64),
        params,
        cost,
    );
    Ok(step.step(&p.batch).latency)
}

/// Fits the device parameters on `dir`'s table; returns the profile and every row with its prediction.
///
/// # Errors
/// The table is missing or malformed, or the fit fails.
pub fn fit(dir: &Path) -> Result<(Profile, Vec<Row>), NeuronError> {
    let catalog = Catalog::builtin();
    let points = points(dir)?;
    let fitted: Vec<&Point> = points.iter().filter(|p| p.fitted).collect();
    for p in &points {
        predict(
            &catalog,
            p,
            NeuronParams::from_values(SPECS.map(|s| s.prior)),
        )?;
    }
    let bounds: Vec<Bound> = SPECS
        .iter()
        .map(|s| Bound::new(s.name, s.prior, s.min, s.max))
        .collect();
    let as_params = |v: &[f64]| NeuronParams::from_values(std::array::from_fn(|i| v[i]));
    let result = bounded(
        |v| {
            fitted
                .iter()
                .map(|p| {
                    predict(&catalog, p, as_params(v)).map_or(f64::NAN, |t| (t / p.seconds).ln())
                })
                .collect()
        },
        &bounds,
        &Options {
            loss: Loss::SoftL1(0.1),
            starts: 4,
            ..Options::default()
        },
    )?;
    let rows = rows(&catalog, &points, as_params(&result.values))?;
    let mut profile = Profile {
        name: "inferentia2".into(),
        accelerator: "Inferentia2, Trainium1".into(),
        description: "Inferentia2 and Trainium1 devices from published batch-1 latencies".into(),
        provenance: Provenance {
            command: "servetwin calibrate neuron --data DIR --out FILE".into(),
            fitted_on: vec![format!(
                "{FILE} (AWS Neuron documentation): Llama-2 and CodeLlama on inf2.48xlarge"
            )],
            software: vec!["transformers-neuronx, Neuron SDK 2.18".into()],
            rows: fitted.len() as u64,
            notes: vec![
                "fixed time per layer includes the host's, which batch-1 data cannot tell apart"
                    .into(),
            ],
        },
        ..Profile::default()
    };
    for (i, s) in SPECS.iter().enumerate() {
        profile.params.insert(
            format!("neuron.{}", s.name),
            Param {
                value: result.values[i],
                std_error: result.std_errors[i],
                min: s.min,
                max: s.max,
                unit: s.unit.into(),
                evidence: Evidence::Fitted,
            },
        );
    }
    for metric in ["tpot_ms", "ttft_ms"] {
        let errors: Vec<f64> = rows
            .iter()
            .filter(|r| !r.fitted && r.metric == metric)
            .filter_map(Row::error)
            .collect();
        if let Some(e) = Errors::of(&errors) {
            profile.validations.push(Validation {
                set: SET.into(),
                metric: metric.into(),
                n: e.n as u64,
                median_ape: e.median_ape,
                tolerance: TOLERANCE,
            });
        }
    }
    Ok((profile, rows))
}

/// Every row of `dir`'s table predicted with the shipped profile.
///
/// # Errors
/// As [`fit`].
pub fn validate(dir: &Path) -> Result<Vec<Row>, NeuronError> {
    let shipped = resolve("Inferentia2", None, EngineKind::TgiNeuron, &Choice::Auto)?;
    let params = NeuronParams::from_profile(&shipped.profile);
    rows(&Catalog::builtin(), &points(dir)?, params)
}

fn rows(
    catalog: &Catalog,
    points: &[Point],
    params: NeuronParams,
) -> Result<Vec<Row>, NeuronError> {
    points
        .iter()
        .map(|p| {
            Ok(Row {
                set: SET.into(),
                case: p.case.clone(),
                metric: p.metric.into(),
                measured: p.seconds * 1e3,
                predicted: Some(predict(catalog, p, params)? * 1e3),
                baseline: None,
                range: None,
                kind: None,
                accelerator: None,
                fitted: p.fitted,
                note: String::new(),
            })
        })
        .collect()
}
