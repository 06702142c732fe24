//! Profiles: calibrated parameters in a small file, with their uncertainty and provenance.
//!
//! A profile holds numbers by dotted name (`gemm.bf16.compute_efficiency`). The operator models
//! read theirs by name and keep their own prior where the profile is silent, so an empty profile
//! is the purely analytic model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::evidence::Evidence;
use crate::ops::known::KnownShapes;
use crate::ops::surface::Surface;

/// One calibrated number.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// The value, in `unit`.
    pub value: f64,
    /// Standard error [same unit], where the fit gives one.
    pub std_error: Option<f64>,
    /// Smallest value that physics allows.
    pub min: f64,
    /// Largest value that physics allows.
    pub max: f64,
    /// Unit, e.g. `ratio`, `s`, `bytes/s`.
    pub unit: String,
    /// How the value is known.
    pub evidence: Evidence,
}

/// What a profile was made from, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The command that made the file.
    pub command: String,
    /// Data sets it was fitted on, with their source.
    pub fitted_on: Vec<String>,
    /// Software the data were measured with, e.g. `vLLM 0.24.0`.
    #[serde(default)]
    pub software: Vec<String>,
    /// Rows used by the fit.
    #[serde(default)]
    pub rows: u64,
    /// Anything a user must know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What a fitted step model ([`crate::fitted`]) was measured on: where its scaling to other layouts starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Basis {
    /// The engine whose scheduling it had.
    pub engine: EngineKind,
    /// The model, for the reader.
    #[serde(default)]
    pub model: String,
    /// Layers of the model; 0: not known, then the model of the scenario says it.
    #[serde(default)]
    pub layers: u32,
    /// Its hidden size; 0: not known.
    #[serde(default)]
    pub hidden: u32,
    /// Tensor-parallel ranks.
    #[serde(default = "one")]
    pub tp: u32,
    /// Pipeline stages.
    #[serde(default = "one")]
    pub pp: u32,
    /// Threads of one rank; 0: every rank has a device of its own.
    #[serde(default)]
    pub threads: u32,
    /// Cores of the machine that ranks, replicas and front end share; 0: every rank has a device of its own.
    #[serde(default)]
    pub cores: u32,
}

fn one() -> u32 {
    1
}

impl Default for Basis {
    fn default() -> Basis {
        Basis {
            engine: EngineKind::VllmV1,
            model: String::new(),
            layers: 0,
            hidden: 0,
            tp: 1,
            pp: 1,
            threads: 0,
            cores: 0,
        }
    }
}

/// A validation that the profile was put to, on data that it was not fitted on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Data set.
    pub set: String,
    /// Metric.
    pub metric: String,
    /// Rows predicted.
    pub n: u64,
    /// Median absolute percentage error [%].
    pub median_ape: f64,
    /// Largest median error that passes [%].
    pub tolerance: f64,
}

/// What the runs of a validation set were measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOn {
    /// The serving engine.
    pub engine: EngineKind,
    /// Catalog names of the accelerators.
    pub accelerators: Vec<String>,
}

/// Calibrated parameters of one accelerator under one family of software.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name that scenarios use.
    pub name: String,
    /// Accelerators it holds for (catalog names, separated by commas), or `*`.
    pub accelerator: String,
    /// Engines whose kernels it is about; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineKind>,
    /// One line on what it is.
    pub description: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Closed ranges the data covered, by quantity (e.g. `tokens`).
    #[serde(default)]
    pub validity: BTreeMap<String, [f64; 2]>,
    /// Validations on data that was not fitted. Untrusted until there is one and all pass.
    #[serde(default)]
    pub validations: Vec<Validation>,
    /// Of the sets that `validations` name: what those were measured on, where they are whole serving runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured_on: BTreeMap<String, MeasuredOn>,
    /// Of a fitted step model: what it was measured on.
    pub basis: Option<Basis>,
    /// The numbers, by dotted name.
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// What measured kernels take over what the formulas with these numbers say, by operator and format.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub surfaces: BTreeMap<String, Surface>,
    /// The same for each shape of experts that was measured itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shapes: BTreeMap<String, KnownShapes>,
}

impl Profile {
    /// The value of `name`, or `prior` where the profile is silent.
    pub fn get(&self, name: &str, prior: f64) -> f64 {
        self.params.get(name).map_or(prior, |p| p.value)
    }

    /// Validations on whole serving runs of `engine` on `accelerator` (catalog name).
    pub fn runs_on<'a>(
        &'a self,
        engine: EngineKind,
        accelerator: &'a str,
    ) -> impl Iterator<Item = &'a Validation> {
        self.validations.iter().filter(move |v| {
            self.measured_on.get(&v.set).is_some_and(|on| {
                on.engine == engine && on.accelerators.iter().any(|a| a == accelerator)
            })
        })
    }

    /// True once at least one validation on unfitted data exists and all pass their tolerance.
    pub fn trusted(&self) -> bool {
        !self.validations.is_empty() && self.validations.iter().all(|v| v.median_ape <= v.tolerance)
    }
}
