//! The table of a sweep.

use serde::{Deserialize, Serialize};
use sim::report::RunReport;
use sim::report::expect::Numbers;
use sim::report::replications::FIGURES;
use sim::report::summary::CONTRACT;

use super::axes::Sweep;
use crate::Error;

/// One run, as the journal holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its number.
    pub run: u64,
    /// The figures, in the order of [`FIGURES`]; null where nothing was measured.
    #[serde(with = "exact")]
    pub figures: Vec<Option<f64>>,
    /// Fingerprint of the run; empty where there was none.
    pub fingerprint: String,
    /// Why there was none.
    pub error: Option<String>,
}

/// Numbers as text that reads back to the same bits: a JSON number may lose its last one on the way.
mod exact {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub fn serialize<S: Serializer>(figures: &[Option<f64>], s: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<Option<String>> = figures.iter().map(|f| f.map(|f| f.to_string())).collect();
        texts.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Option<f64>>, D::Error> {
        let texts = Vec::<Option<String>>::deserialize(d)?;
        let read = |t: String| t.parse::<f64>().map_err(D::Error::custom);
        texts.into_iter().map(|t| t.map(read).transpose()).collect()
    }
}

impl Row {
    /// The row of a run that ended.
    pub fn of(run: u64, report: &RunReport) -> Row {
        let numbers = Numbers::of(report);
        Row {
            run,
            figures: FIGURES.iter().map(|f| numbers.at(f.path)).collect(),
            fingerprint: report.fingerprint.clone(),
            error: None,
        }
    }

    /// The row of a point that cannot be run.
    pub fn failed(run: u64, error: String) -> Row {
        Row {
            run,
            figures: vec![None; FIGURES.len()],
            fingerprint: String::new(),
            error: Some(error),
        }
    }
}

/// A finished sweep (`sweep --json`; `docs/schema/sweep.schema.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SweepResult {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the sweep.
    pub name: String,
    /// Keys that were varied.
    pub keys: Vec<String>,
    /// Figures of each run, as paths of the run's report.
    pub figures: Vec<String>,
    /// The runs, point by point, each with every seed.
    pub runs: Vec<SweepRun>,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SweepRun {
    /// The point, from 0.
    pub point: u64,
    /// Seed of all randomness.
    pub seed: u64,
    /// The value of each key.
    pub values: Vec<String>,
    /// The figures; null where nothing was measured.
    pub figures: Vec<Option<f64>>,
    /// Fingerprint of the run; empty where it could not be made.
    pub fingerprint: String,
    /// Why it could not be made; null where it was.
    pub error: Option<String>,
}

impl SweepResult {
    /// The table of `rows`, which are all runs in any order.
    pub fn new(sweep: &Sweep, mut rows: Vec<Row>) -> SweepResult {
        rows.sort_by_key(|r| r.run);
        let runs = rows
            .into_iter()
            .map(|r| {
                let (point, seed) = sweep.run(r.run);
                SweepRun {
                    point: point as u64,
                    seed,
                    values: sweep.points[point].values.clone(),
                    figures: r.figures,
                    fingerprint: r.fingerprint,
                    error: r.error,
                }
            })
            .collect();
        SweepResult {
            contract: CONTRACT,
            name: sweep.name.clone(),
            keys: sweep.keys.clone(),
            figures: FIGURES.iter().map(|f| f.path.to_owned()).collect(),
            runs,
        }
    }

    /// The table as CSV, with a header.
    ///
    /// # Errors
    /// None that can come up: the table is written to memory.
    pub fn csv(&self) -> Result<String, Error> {
        let failed = |e: csv::Error| Error::Failed(e.to_string());
        let mut out = csv::Writer::from_writer(Vec::new());
        let own = ["point", "seed"].map(str::to_owned);
        let last = ["fingerprint", "error"].map(str::to_owned);
        let header = own
            .iter()
            .chain(&self.keys)
            .chain(&self.figures)
            .chain(&last);
        out.write_record(header).map_err(failed)?;
        for r in &self.runs {
            let mut row = vec![r.point.to_string(), r.seed.to_string()];
            row.extend(r.values.iter().cloned());
            row.extend(
                r.figures
                    .iter()
                    .map(|f| f.map_or(String::new(), |f| f.to_string())),
            );
            row.push(r.fingerprint.clone());
            row.push(r.error.clone().unwrap_or_default());
            out.write_record(&row).map_err(failed)?;
        }
        let bytes = out.into_inner().map_err(|e| Error::Failed(e.to_string()))?;
        String::from_utf8(bytes).map_err(|e| Error::Failed(e.to_string()))
    }

    /// Runs that could not be made.
    pub fn failed(&self) -> usize {
        self.runs.iter().filter(|r| r.error.is_some()).count()
    }
}
