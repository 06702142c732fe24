//! One measured figure beside its prediction.

use hwmodels::doubt::Kind;
use serde::Serialize;

use super::plain::PlainFigures;

/// Where a load is against what the deployment can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadPlace {
    /// Users wait for their answers.
    Follows,
    /// All requests come at once.
    AtOnce,
    /// Requests come at times of their own, below the knee; a single user too, who meets nobody.
    Below,
    /// The same, where steps that are as much longer as they may be make a queue that grows, or TTFT twice as much longer.
    Near,
    /// More come than end.
    Beyond,
}

impl LoadPlace {
    /// In the words of tables.
    pub fn name(self) -> &'static str {
        match self {
            LoadPlace::Follows => "closed loop",
            LoadPlace::AtOnce => "all at once",
            LoadPlace::Below => "open, below the knee",
            LoadPlace::Near => "open, near the knee",
            LoadPlace::Beyond => "open, beyond the knee",
        }
    }
}

/// One measured figure and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Data set, e.g. `jumpstart`.
    pub set: String,
    /// Case within it, e.g. `llama-2-7b g5.2xlarge tp1 c=16`.
    pub case: String,
    /// Metric with its unit, e.g. `tpot_ms`.
    pub metric: String,
    /// Measured value.
    pub measured: f64,
    /// Predicted value; `None` where nothing could be predicted (see `note`).
    pub predicted: Option<f64>,
    /// Prediction of the baseline (roofline times one factor plus one constant), where it applies.
    pub baseline: Option<f64>,
    /// Where the prediction says that nine of ten measurements would lie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// What the run is like, as far as errors depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Where its load is against what the deployment can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<LoadPlace>,
    /// How many times as much the figure changes as steps do, with `[shorter, longer]` ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<[f64; 2]>,
    /// What plain scenarios predict, where they were run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<PlainFigures>,
    /// Accelerator that was measured, by its name in the catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// True if parameters of the prediction were fitted on this row.
    pub fitted: bool,
    /// Anything a reader must know about this row.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Row {
    /// Signed percentage error of the prediction [%].
    pub fn error(&self) -> Option<f64> {
        self.predicted.map(|p| percentage(p, self.measured))
    }
}

/// How far `predicted` is from `measured` [%].
pub(super) fn percentage(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted - measured) / measured
}
