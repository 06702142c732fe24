//! The latency-throughput curve of a deployment: one run per load, its capacity, the knee, the limit that the objective sets, and what saturates.

mod render;
pub mod search;

use serde::{Deserialize, Serialize};

pub use crate::report::diagnosis::regime_name;
pub use search::Estimate;

use crate::report::diagnosis::Diagnosis;
use crate::report::doubt::{self, Figure, LoadPart};
use crate::report::summary::{CONTRACT, RunReport};

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadAxis {
    /// Requests sent per second [req/s].
    Rate,
    /// Requests kept under way by a closed loop.
    Concurrency,
    /// Multiples of the scenario's own load: rates times it, times of a trace divided by it, users times it.
    Scale,
}

impl LoadAxis {
    /// Heading of the load column.
    pub fn label(self) -> &'static str {
        match self {
            LoadAxis::Rate => "rate [req/s]",
            LoadAxis::Concurrency => "concurrency",
            LoadAxis::Scale => "load [x]",
        }
    }

    /// What follows a load's number.
    pub fn unit(self) -> &'static str {
        match self {
            LoadAxis::Rate => " req/s",
            LoadAxis::Concurrency => " requests under way",
            LoadAxis::Scale => " times the scenario's load",
        }
    }
}

/// A load sweep (`curve FILE --json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Curve {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// What was varied.
    pub axis: LoadAxis,
    /// The runs in ascending order of load.
    pub points: Vec<CurvePoint>,
    /// The capacity where it was found, else the highest throughput of any point [req/s].
    pub max_requests_per_s: f64,
    /// Throughput of the saturated deployment in steady state, by seed [req/s]; null where no load saturated it.
    pub capacity: Option<Estimate>,
    /// Where nine of ten such deployments would have `max_requests_per_s`, where the capacity was found [req/s]; null where nothing is known of such runs.
    #[serde(default)]
    pub capacity_range: Option<[f64; 2]>,
    /// Load of the knee: where throughput per mean E2E latency (Kleinrock's power) is largest; null where the loads do not enclose it.
    pub knee_load: Option<f64>,
    /// The same with its uncertainty.
    pub knee: Option<Estimate>,
    /// Highest load at which at least 99 % of the finished requests met the objective, none were lost, and the queue did not grow; null
    /// without an objective, where none did, or where the loads do not enclose it.
    pub slo_load: Option<f64>,
    /// The same with its uncertainty.
    pub slo_limit: Option<Estimate>,
    /// What saturates: the diagnosis of the highest load.
    pub saturation: Option<Diagnosis>,
    /// What the reader must know to judge the figures.
    pub notes: Vec<String>,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CurvePoint {
    /// The load, in the axis's unit.
    pub load: f64,
    /// Relative change of the throughput when the run was doubled the last time [ratio]; null where it was not doubled.
    pub throughput_change_ratio: Option<f64>,
    /// The same of the mean E2E latency; null too where it grows with the length of the run.
    pub e2e_change_ratio: Option<f64>,
    /// Interval of the share of requests that meet the objective in a run without end [ratio]; null without an objective.
    pub attainment_interval: Option<(f64, f64)>,
    /// The run.
    pub report: RunReport,
}

/// What searches between the points found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Throughput of the saturated deployment [req/s].
    pub capacity: Option<Estimate>,
    /// Load of the knee.
    pub knee: Option<Estimate>,
    /// Highest load that meets the objective.
    pub slo_limit: Option<Estimate>,
    /// What the reader must know to judge them.
    pub notes: Vec<String>,
}

/// Share of requests that must meet the objective at the load called `slo_load`.
pub const ATTAINMENT: f64 = 0.99;

/// Kleinrock's power of a run: throughput per mean E2E latency. None where the queue grows: that latency is one of the run's length.
pub fn power(report: &RunReport) -> Option<f64> {
    let e2e = report.e2e_ms.mean.filter(|e| *e > 0.0)?;
    (!report.stationarity.growing()).then(|| report.throughput.requests_per_s / e2e)
}

/// Whether a run met its objectives: all of those listed, or at least 99 % of the finished requests kept the limits; none were lost, and the queue did not
/// grow.
pub fn meets(report: &RunReport) -> bool {
    let q = &report.requests;
    let met = match report.slo.objectives.is_empty() {
        true => report.slo.attainment_ratio.is_some_and(|a| a >= ATTAINMENT),
        false => report.slo.holds == Some(true),
    };
    q.rejected + q.timed_out + q.failed == 0 && met && !report.stationarity.growing()
}

impl Curve {
    /// Puts runs in order beside what was found between them.
    pub fn new(axis: LoadAxis, mut points: Vec<CurvePoint>, findings: Findings) -> Curve {
        points.sort_by(|a, b| a.load.total_cmp(&b.load));
        let highest = points
            .iter()
            .map(|p| p.report.throughput.requests_per_s)
            .fold(0.0, f64::max);
        let range = |of: Estimate| {
            let saturated = &points.last()?.report;
            saturated
                .ranges
                .as_ref()
                .filter(|r| r.load != LoadPart::Unknown)?;
            let factor = doubt::spread(saturated, Figure::Throughput, None).exp();
            Some([of.value / factor, of.value * factor])
        };
        Curve {
            capacity_range: findings.capacity.and_then(range),
            contract: CONTRACT,
            name: points
                .first()
                .map_or(String::new(), |p| p.report.name.clone()),
            axis,
            max_requests_per_s: findings.capacity.map_or(highest, |c| c.value),
            capacity: findings.capacity,
            knee_load: findings.knee.map(|k| k.value),
            knee: findings.knee,
            slo_load: findings.slo_limit.map(|s| s.value),
            slo_limit: findings.slo_limit,
            saturation: points.last().map(|p| p.report.diagnosis.clone()),
            notes: findings.notes,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::stationarity::Verdict;

    fn point(load: f64, throughput: f64, e2e: f64, attainment: Option<f64>) -> CurvePoint {
        let mut report = RunReport::empty();
        report.throughput.requests_per_s = throughput;
        report.e2e_ms.mean = Some(e2e);
        report.slo.attainment_ratio = attainment;
        CurvePoint {
            load,
            throughput_change_ratio: None,
            e2e_change_ratio: None,
            attainment_interval: None,
            report,
        }
    }

    #[test]
    fn a_growing_queue_has_no_power_and_meets_no_objective() {
        let mut p = point(1.0, 2.0, 10.0, Some(1.0));
        assert_eq!(power(&p.report), Some(0.2));
        assert!(meets(&p.report));
        p.report.stationarity.verdict = Verdict::Growing;
        assert_eq!(power(&p.report), None);
        assert!(!meets(&p.report));
        assert!(!meets(&point(1.0, 2.0, 10.0, Some(0.98)).report));
        assert!(!meets(&point(1.0, 2.0, 10.0, None).report));
    }

    #[test]
    fn a_curve_is_in_order_of_load_and_marks_the_point_nearest_its_knee() {
        let points = [0.9, 0.1, 0.3, 0.5, 0.7].map(|l| point(l, l, 1.0 / (1.0 - l), None));
        let estimate = |value: f64| {
            Some(Estimate {
                value,
                low: value - 0.02,
                high: value + 0.02,
                seeds: 3,
            })
        };
        let findings = Findings {
            capacity: estimate(1.0),
            knee: estimate(0.52),
            slo_limit: None,
            notes: vec!["a note".into()],
        };
        let curve = Curve::new(LoadAxis::Rate, points.to_vec(), findings);
        assert_eq!(curve.points[0].load, 0.1);
        assert_eq!(curve.max_requests_per_s, 1.0);
        assert_eq!((curve.knee_load, curve.slo_load), (Some(0.52), None));
        let text = curve.render();
        assert_eq!(text.matches("<- knee").count(), 1, "{text}");
        let line = text.lines().find(|l| l.contains("<- knee")).unwrap();
        assert!(line.trim_start().starts_with("0.500"), "{line}");
        assert!(text.contains("0.520 req/s (0.500 to 0.540)"), "{text}");
        assert!(text.contains("a note"), "{text}");
    }

    #[test]
    fn a_growing_point_says_so_in_its_row() {
        let mut p = point(3.0, 2.0, 90.0, None);
        p.report.stationarity.verdict = Verdict::Growing;
        p.report.stationarity.growth_per_s = Some(1.0);
        let text = Curve::new(LoadAxis::Rate, vec![p], Findings::default()).render();
        assert!(text.contains("not stationary: +1.000 req/s"), "{text}");
    }
}
