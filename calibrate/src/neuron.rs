//! Device parameters of Inferentia2 and Trainium1, fitted on published batch-1 latencies.
//!
//! `neuron_decoder_batch1.csv` and `serving2/neuron_decoder_batch4.csv` (AWS Neuron documentation) list time to first token and per output token of
//! static models. Host time cannot be told apart from the fixed time per layer there, so the fit takes it all as
//! the latter; engines that add host time (TGI) are calibrated on top.
//!
//! Fitted: Llama-2 and CodeLlama on inf2 at batch 1. Only predicted: Llama-3 and Mistral, everything on trn1, and everything at batch 4.
//!
//! transformers-neuronx compiles decodes for lengths that double from 128 up to the model's (`bucket.py`, `token_sizes`), and encodes the
//! prompts of a static batch in one run of its graph. A median time per token is that of the bucket of the median position.

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

/// The sets in reports, each with its data file.
pub const SETS: [(&str, &str); 2] = [
    ("neuron_batch1", "neuron_decoder_batch1.csv"),
    ("neuron_batch4", "serving2/neuron_decoder_batch4.csv"),
];

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
    output_tok_s: Option<f64>,
}

/// One figure of one case.
#[derive(Clone, Debug)]
struct Point {
    set: &'static str,
    case: String,
    model: &'static str,
    instance: String,
    tp: u32,
    weights: Dtype,
    shape: Shape,
    metric: Metric,
    /// The figure, as [`Metric`] says.
    measured: f64,
    fitted: bool,
}

/// What a static run computes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Rows.
    batch: u32,
    /// Compiled length of a row [tokens].
    length: u32,
    /// Tokens of each prompt.
    input: u32,
    /// Tokens that each row gets.
    output: u32,
}

/// A figure of a static run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    /// Time to the first tokens [ms].
    Ttft,
    /// Median time of a decode step [ms].
    Tpot,
    /// Tokens of all rows over the whole time [tokens/s].
    Throughput,
}

impl Metric {
    fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft_ms",
            Metric::Tpot => "tpot_ms",
            Metric::Throughput => "output_tok_s",
        }
    }
}

/// Shortest length for which a decode is compiled [tokens].
const SHORTEST_BUCKET: u32 = 128;

impl Shape {
    /// Length for which the decode that computes position `position` was compiled [tokens].
    fn bucket(self, position: u32) -> u32 {
        position
            .max(SHORTEST_BUCKET)
            .checked_next_power_of_two()
            .map_or(self.length, |length| length.min(self.length))
    }

    /// The decode of all rows in this bucket.
    fn decode(self, bucket: u32) -> BatchStats {
        let mut step = BatchStats::default();
        for _ in 0..self.batch {
            step.add_decode(bucket);
        }
        step
    }

    /// The encoding of all prompts: one run of the graph, each row padded to a power of two.
    fn prefill(self) -> BatchStats {
        let mut run = BatchStats::default();
        for _ in 0..self.batch {
            run.add_prefill(self.input.next_power_of_two(), 0, true);
        }
        BatchStats {
            prefill_seqs: 1,
            ..run
        }
    }

    /// The time of all steps after the first tokens, each in its bucket [s].
    fn decodes(self, step: &NeuronModel) -> f64 {
        let (mut at, end) = (self.input + 1, self.input + self.output);
        let mut seconds = 0.0;
        while at < end {
            let bucket = self.bucket(at);
            let next = end.min(bucket.max(at) + 1);
            seconds += f64::from(next - at) * step.step(&self.decode(bucket)).latency;
            at = next;
        }
        seconds
    }
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
    #[error("{0}: {1}")]
    Csv(&'static str, csv::Error),
    /// The fit failed.
    #[error("fit of the Neuron parameters: {0}")]
    Fit(#[from] crate::fit::FitError),
    /// A model or instance is missing from the catalog.
    #[error(transparent)]
    Catalog(#[from] hwmodels::error::Error),
}

/// The figures of one set.
fn points(
    dir: &Path,
    (set, file): (&'static str, &'static str),
) -> Result<Vec<Point>, NeuronError> {
    let csv_error = |e| NeuronError::Csv(file, e);
    let mut reader = csv::Reader::from_path(dir.join(file)).map_err(csv_error)?;
    let mut out: Vec<Point> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for raw in reader.deserialize() {
        let raw: Raw = raw.map_err(csv_error)?;
        let Some(model) = catalog_name(&raw.model) else {
            continue;
        };
        let rows = match raw.batch {
            1 => String::new(),
            n => format!(" b{n}"),
        };
        let instance = raw.instance.to_lowercase();
        let case = format!(
            "{model} {instance} tp{}{rows} {}+{}",
            raw.tp, raw.input_tokens, raw.output_tokens
        );
        // The table lists some rows twice, with and without the weights' format.
        if !seen.insert(case.clone()) {
            continue;
        }
        out.extend(figures(&raw, set, case, model, instance));
    }
    Ok(out)
}

/// What a row of the table measured.
fn figures(
    raw: &Raw,
    set: &'static str,
    case: String,
    model: &'static str,
    instance: String,
) -> Vec<Point> {
    let llama2 = model.starts_with("llama-2") || model.starts_with("codellama");
    let point = |metric, measured| Point {
        set,
        case: case.clone(),
        model,
        instance: instance.clone(),
        tp: raw.tp,
        weights: match raw.weight_dtype.as_str() {
            "int8" => Dtype::Int8,
            _ => Dtype::Bf16,
        },
        shape: Shape {
            batch: raw.batch,
            length: raw.seq_len,
            input: raw.input_tokens,
            output: raw.output_tokens,
        },
        metric,
        measured,
        fitted: raw.batch == 1 && instance.starts_with("inf2") && llama2,
    };
    let mut out = Vec::new();
    let mut add = |metric, value: Option<f64>| {
        out.extend(value.filter(|v| *v > 0.0).map(|v| point(metric, v)));
    };
    add(Metric::Tpot, raw.tpot_p50_ms);
    add(Metric::Ttft, raw.ttft_p50_ms);
    // At batch 1 it says what the two latencies say.
    if raw.batch > 1 {
        add(Metric::Throughput, raw.output_tok_s);
    }
    out
}

/// The figure that the model gives for `p`, in its unit.
fn predict(catalog: &Catalog, p: &Point, params: NeuronParams) -> Result<f64, NeuronError> {
    let model = catalog.model(p.model)?;
    let instance = catalog.instance(&p.instance)?;
    let chip = catalog.accelerator(&instance.accelerator)?;
    let mut cost = EngineCost::prior(EngineKind::TgiNeuron);
    cost.step_host = 0.0;
    cost.seq_host = 0.0;
    cost.row_host = 0.0;
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
    let shape = p.shape;
    let first = step.step(&shape.prefill()).latency;
    Ok(match p.metric {
        Metric::Ttft => first * 1e3,
        Metric::Tpot => {
            let median = shape.input + shape.output / 2 + 1;
            step.step(&shape.decode(shape.bucket(median))).latency * 1e3
        }
        Metric::Throughput => {
            let tokens = f64::from(shape.batch) * f64::from(shape.output);
            tokens / (first + shape.decodes(&step))
        }
    })
}

/// Fits the device parameters on `dir`'s table; returns the profile and every row with its prediction.
///
/// # Errors
/// The table is missing or malformed, or the fit fails.
pub fn fit(dir: &Path) -> Result<(Profile, Vec<Row>), NeuronError> {
    let catalog = Catalog::builtin();
    let points = points(dir, SETS[0])?;
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
                    predict(&catalog, p, as_params(v)).map_or(f64::NAN, |t| (t / p.measured).ln())
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
                "{} (AWS Neuron documentation): Llama-2 and CodeLlama on inf2.48xlarge",
                SETS[0].1
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
                set: SETS[0].0.into(),
                metric: metric.into(),
                n: e.n as u64,
                median_ape: e.median_ape,
                tolerance: TOLERANCE,
            });
        }
    }
    Ok((profile, rows))
}

/// Every row of the set's table in `dir`, predicted with the shipped profile.
///
/// # Errors
/// As [`fit`].
pub fn validate(dir: &Path, set: (&'static str, &'static str)) -> Result<Vec<Row>, NeuronError> {
    let shipped = resolve("Inferentia2", None, EngineKind::TgiNeuron, &Choice::Auto)?;
    let params = NeuronParams::from_profile(&shipped.profile);
    rows(&Catalog::builtin(), &points(dir, set)?, params)
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
                set: p.set.into(),
                case: p.case.clone(),
                metric: p.metric.name().into(),
                measured: p.measured,
                predicted: Some(predict(catalog, p, params)?),
                baseline: None,
                range: None,
                kind: None,
                place: None,
                responses: None,
                plain: None,
                accelerator: None,
                fitted: p.fitted,
                note: String::new(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_run_in_the_bucket_of_their_position() {
        let shape = Shape {
            batch: 4,
            length: 3072,
            input: 1024,
            output: 2048,
        };
        let buckets = [1, 128, 129, 2048, 2049, 3072].map(|position| shape.bucket(position));
        assert_eq!(buckets, [128, 128, 256, 2048, 3072, 3072]);
        let prompts = shape.prefill();
        assert_eq!((prompts.prefill_seqs, prompts.prefill_tokens), (1, 4096));
    }

    #[test]
    fn every_step_after_the_first_token_is_counted_once() {
        let catalog = Catalog::builtin();
        let point = |input: u32, output: u32, length: u32| Point {
            set: SETS[1].0,
            case: String::new(),
            model: "llama-2-13b",
            instance: "inf2.48xlarge".into(),
            tp: 24,
            weights: Dtype::Bf16,
            shape: Shape {
                batch: 4,
                length,
                input,
                output,
            },
            metric: Metric::Throughput,
            measured: 1.0,
            fitted: false,
        };
        let params = NeuronParams::from_values(SPECS.map(|s| s.prior));
        let of = |metric, input, output, length| {
            let p = Point {
                metric,
                ..point(input, output, length)
            };
            predict(&catalog, &p, params).unwrap()
        };
        // One bucket: the throughput is what the two latencies say.
        let seconds = (of(Metric::Ttft, 2048, 2048, 4096)
            + 2047.0 * of(Metric::Tpot, 2048, 2048, 4096))
            * 1e-3;
        let rate = of(Metric::Throughput, 2048, 2048, 4096);
        assert!((rate * seconds / 8192.0 - 1.0).abs() < 1e-9, "{rate}");
        // Three buckets lie between the steps of the shortest and of the longest.
        let long = of(Metric::Tpot, 2048, 2048, 4096);
        let short = of(Metric::Tpot, 128, 128, 4096);
        let mean = 4e3 / of(Metric::Throughput, 512, 3584, 4096);
        assert!(short < mean && mean < long, "{short} {mean} {long}");
    }
}
