//! What a caller sends.

use std::collections::BTreeMap;

use hwmodels::files::Bundle;
use planner::World;
use planner::plan::quick::Quick;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{Code, Problem};

/// Longest text of a scenario or a planning question [bytes]; what is long about them are files.
const MOST_TEXT_BYTES: usize = 1 << 20;
/// Most overrides of a request: each is looked up in the whole document.
pub const MOST_OVERRIDES: usize = 1000;

/// A scenario or a planning question: the text of a TOML file, or the same as a JSON object.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Document {
    /// The text of a TOML file.
    Toml(String),
    /// The same keys as an object.
    Object(serde_json::Map<String, Value>),
}

impl Document {
    /// The text; `field` is where it stands in the body.
    ///
    /// # Errors
    /// An object that TOML cannot say: it has no null; a document that is too long.
    pub fn text(&self, field: &str) -> Result<String, Problem> {
        let text = match self {
            Document::Toml(text) => text.clone(),
            Document::Object(map) => toml::to_string(map).map_err(|e| {
                let why = format!("cannot be written as TOML, which has no null: {e}");
                Problem::new(Code::BadRequest, "the document cannot be read", why).at(field)
            })?,
        };
        if text.len() > MOST_TEXT_BYTES {
            let why = format!(
                "it has {} bytes; at most {MOST_TEXT_BYTES} are read: give what is long as `files`",
                text.len()
            );
            return Err(Problem::new(Code::BadInput, "the document is too long", why).at(field));
        }
        Ok(text)
    }
}

/// `POST /v1/run`.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The scenario (docs/scenario.md).
    pub scenario: Document,
    /// Overrides such as `layout.replicas=3` or `workload.rate=2x`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Files that the scenario names (traces, profiles, a model's config.json), by that name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// `POST /v1/whatif`.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhatIfRequest {
    /// The scenario (docs/scenario.md).
    pub scenario: Document,
    /// Overrides such as `layout.replicas=3` or `workload.rate=2x`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Files that the scenario names, by that name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// `POST /v1/capacity`.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacityRequest {
    /// The scenario (docs/scenario.md).
    pub scenario: Document,
    /// Overrides such as `layout.replicas=3` or `workload.rate=2x`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Files that the scenario names, by that name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Objectives such as `ttft.p99 < 500 ms`; empty: the scenario's own.
    #[serde(default)]
    pub slo: Vec<String>,
    /// Multiples of the load; empty: 0.25 to 8.
    #[serde(default)]
    pub scales: Vec<f64>,
}

/// `POST /v1/plan`.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The planning question (docs/planning.md); in its place `quick`.
    pub question: Option<Document>,
    /// The question in a few words.
    pub quick: Option<QuickRequest>,
    /// Overrides of the question such as `plan.budget=20 USD/h`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Files that the question names, by that name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Simulate every candidate under the whole load instead of racing.
    #[serde(default)]
    pub exhaustive: bool,
    /// Draws of what the profiles do not know; null: 16.
    pub draws: Option<u64>,
}

/// A planning question in a few words.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuickRequest {
    /// Model in the catalog.
    pub model: String,
    /// Rate of the requests, e.g. `40 req/s`.
    pub rate: String,
    /// Prompt length: tokens, or a distribution such as `{"kind": "lognormal", "mean": 1000, "std": 800}`.
    pub prompt: Value,
    /// Output length, likewise.
    pub output: Value,
    /// Objectives such as `ttft.p99 < 500 ms`.
    pub slo: Vec<String>,
    /// Instance types that are allowed; * stands for any text. Empty: all with a price.
    #[serde(default)]
    pub instances: Vec<String>,
    /// Most that it may cost, e.g. `20 USD/h`.
    pub budget: Option<String>,
    /// What may be lost while the objectives hold: `none`, `n+1`, `n+1 instance`.
    pub redundancy: Option<String>,
    /// Leave out engines on accelerators of which no run was measured.
    #[serde(default)]
    pub measured_only: bool,
}

impl QuickRequest {
    /// As the planner takes it.
    ///
    /// # Errors
    /// Lengths that TOML cannot say.
    pub fn quick(&self) -> Result<Quick, Problem> {
        let length = |value: &Value, field: &str| {
            let written = toml::Value::try_from(value).map_err(|e| {
                Problem::new(Code::BadRequest, "a length cannot be read", e.to_string()).at(field)
            });
            written.map(|v| v.to_string())
        };
        Ok(Quick {
            model: self.model.clone(),
            rate: self.rate.clone(),
            prompt: length(&self.prompt, "quick.prompt")?,
            output: length(&self.output, "quick.output")?,
            slo: self.slo.clone(),
            instances: self.instances.clone(),
            budget: self.budget.clone(),
            redundancy: self.redundancy.clone(),
            measured_only: self.measured_only,
            ..Quick::default()
        })
    }
}

/// The files of a request, and no others.
pub fn world(files: &BTreeMap<String, String>) -> World {
    let bundle = (files.iter())
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect::<Bundle>();
    World::of(bundle)
}
