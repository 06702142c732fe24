//! `PlannerConfig`: keys under their real names, with the planner's defaults.

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

/// `mode`: which pools the planner has.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Prefill and decode apart.
    #[default]
    Disagg,
    /// The prefill pool alone.
    Prefill,
    /// The decode pool alone.
    Decode,
    /// Workers that do both.
    Agg,
}

/// `optimization_target`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OptimizationTarget {
    /// Fixed thresholds; the fast loop alone.
    #[default]
    Throughput,
    /// Lower thresholds; the fast loop alone.
    Latency,
    /// `ttft` and `itl`.
    Sla,
}

/// `load_predictor`. ARIMA, the planner's default, and Prophet are not modelled.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LoadPredictor {
    /// The next interval is as the last.
    #[default]
    Constant,
    /// A level and a trend, filtered.
    Kalman,
}

/// The planner's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlannerConfig {
    /// `mode`.
    pub mode: Mode,
    /// `optimization_target`.
    pub optimization_target: OptimizationTarget,
    /// `enable_throughput_scaling`: the slow loop.
    pub enable_throughput_scaling: bool,
    /// `enable_load_scaling`: the fast loop.
    pub enable_load_scaling: bool,
    /// `throughput_adjustment_interval`.
    pub throughput_adjustment_interval: Secs,
    /// `load_adjustment_interval`.
    pub load_adjustment_interval: Secs,
    /// `max_gpu_budget`; below 0: none.
    pub max_gpu_budget: i32,
    /// `min_endpoint`: fewest workers of each pool.
    pub min_endpoint: u32,
    /// `ttft` [ms].
    pub ttft: f64,
    /// `itl` [ms].
    pub itl: f64,
    /// `load_scaling_down_sensitivity`: share of the target below which one worker less must keep, in percent.
    pub load_scaling_down_sensitivity: f64,
    /// `load_predictor`; `arima` there.
    pub load_predictor: LoadPredictor,
    /// `load_predictor_log1p`: predicts logarithms.
    pub load_predictor_log1p: bool,
    /// `kalman_q_level`.
    pub kalman_q_level: f64,
    /// `kalman_q_trend`.
    pub kalman_q_trend: f64,
    /// `kalman_r`.
    pub kalman_r: f64,
    /// `kalman_min_points`: until then the last value is the prediction.
    pub kalman_min_points: u32,
}

impl Default for PlannerConfig {
    fn default() -> Self {
        let secs = |s| Secs::new(s).unwrap_or_default();
        PlannerConfig {
            mode: Mode::Disagg,
            optimization_target: OptimizationTarget::Throughput,
            enable_throughput_scaling: true,
            enable_load_scaling: false,
            throughput_adjustment_interval: secs(180.0),
            load_adjustment_interval: secs(5.0),
            max_gpu_budget: 8,
            min_endpoint: 1,
            ttft: 500.0,
            itl: 50.0,
            load_scaling_down_sensitivity: 80.0,
            load_predictor: LoadPredictor::Constant,
            load_predictor_log1p: false,
            kalman_q_level: 1.0,
            kalman_q_trend: 0.1,
            kalman_r: 10.0,
            kalman_min_points: 5,
        }
    }
}

impl PlannerConfig {
    /// What the planner makes of it: targets without an SLA have the fast loop alone.
    ///
    /// # Errors
    /// The key that is wrong, by its real name.
    pub fn resolved(mut self) -> Result<PlannerConfig, String> {
        if self.optimization_target != OptimizationTarget::Sla {
            self.enable_load_scaling = true;
            self.enable_throughput_scaling = false;
        }
        if !self.enable_load_scaling && !self.enable_throughput_scaling {
            return Err(
                "enable_throughput_scaling, enable_load_scaling: at least one must be true"
                    .to_owned(),
            );
        }
        let (fast, slow) = (
            self.load_adjustment_interval.secs(),
            self.throughput_adjustment_interval.secs(),
        );
        if fast <= 0.0 || slow <= 0.0 {
            return Err(
                "load_adjustment_interval, throughput_adjustment_interval: must be above 0"
                    .to_owned(),
            );
        }
        if self.enable_load_scaling && self.enable_throughput_scaling && fast >= slow {
            return Err(format!(
                "load_adjustment_interval ({fast} s): must be shorter than throughput_adjustment_interval ({slow} s)"
            ));
        }
        for (key, value) in [
            ("ttft", self.ttft),
            ("itl", self.itl),
            ("kalman_r", self.kalman_r),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{key}: must be above 0, got {value}"));
            }
        }
        if !(0.0..=100.0).contains(&self.load_scaling_down_sensitivity) {
            return Err(format!(
                "load_scaling_down_sensitivity: must be from 0 to 100, got {}",
                self.load_scaling_down_sensitivity
            ));
        }
        if !(self.kalman_q_level >= 0.0 && self.kalman_q_trend >= 0.0) {
            return Err("kalman_q_level, kalman_q_trend: must be at least 0".to_owned());
        }
        Ok(self)
    }
}
