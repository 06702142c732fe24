//! The latency-throughput curve of a deployment: one run per load, the knee, and what saturates.

use serde::{Deserialize, Serialize};

use crate::report::diagnosis::{Diagnosis, Regime};
use crate::report::summary::{CONTRACT, RunReport};
use crate::report::text::figure;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadAxis {
    /// Requests sent per second [req/s].
    Rate,
    /// Requests kept under way by a closed loop.
    Concurrency,
}

impl LoadAxis {
    /// Heading of the load column.
    pub fn label(self) -> &'static str {
        match self {
            LoadAxis::Rate => "rate [req/s]",
            LoadAxis::Concurrency => "concurrency",
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
    /// Highest throughput of any point [req/s].
    pub max_requests_per_s: f64,
    /// Load of the knee: where throughput per E2E latency (Kleinrock's power) is largest.
    pub knee_load: Option<f64>,
    /// Highest load at which at least 99 % of the finished requests met the objective and none were lost; null
    /// without an objective or where none did.
    pub slo_load: Option<f64>,
    /// What saturates: the diagnosis of the highest load.
    pub saturation: Option<Diagnosis>,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CurvePoint {
    /// The load, in the axis's unit.
    pub load: f64,
    /// The run.
    pub report: RunReport,
}

/// Share of requests that must meet the objective at the load called `slo_load`.
const ATTAINMENT: f64 = 0.99;

impl Curve {
    /// Puts runs in order and finds the knee.
    pub fn new(axis: LoadAxis, mut points: Vec<CurvePoint>) -> Curve {
        points.sort_by(|a, b| a.load.total_cmp(&b.load));
        let power = |p: &CurvePoint| {
            let e2e = p.report.e2e_ms.mean.filter(|e| *e > 0.0)?;
            Some(p.report.throughput.requests_per_s / e2e)
        };
        let mut knee: Option<(f64, f64)> = None;
        for p in &points {
            if let Some(power) = power(p)
                && knee.is_none_or(|(best, _)| power > best)
            {
                knee = Some((power, p.load));
            }
        }
        let meets = |p: &&CurvePoint| {
            let q = &p.report.requests;
            q.rejected + q.timed_out + q.failed == 0
                && p.report
                    .slo
                    .attainment_ratio
                    .is_some_and(|a| a >= ATTAINMENT)
        };
        Curve {
            contract: CONTRACT,
            name: points
                .first()
                .map_or(String::new(), |p| p.report.name.clone()),
            axis,
            max_requests_per_s: points
                .iter()
                .map(|p| p.report.throughput.requests_per_s)
                .fold(0.0, f64::max),
            knee_load: knee.map(|(_, load)| load),
            slo_load: points.iter().filter(meets).map(|p| p.load).next_back(),
            saturation: points.last().map(|p| p.report.diagnosis.clone()),
            points,
        }
    }

    /// The table on the terminal.
    pub fn render(&self) -> String {
        let mut out = format!(
            "{}\n\n{:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7} {:>8}  {}\n",
            self.name,
            self.axis.label(),
            "req/s",
            "tokens/s",
            "TTFT p50",
            "TTFT p99",
            "TPOT p50",
            "E2E p50",
            "KV peak",
            "busy",
            "n",
            "regime"
        );
        let ms = |v: Option<f64>| v.map_or("-".into(), figure);
        for p in &self.points {
            let r = &p.report;
            let knee = if Some(p.load) == self.knee_load {
                " <- knee"
            } else {
                ""
            };
            out += &format!(
                "{:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6.1}% {:>6.1}% {:>8}  {}{knee}\n",
                figure(p.load),
                figure(r.throughput.requests_per_s),
                figure(r.throughput.output_tokens_per_s),
                ms(r.ttft_ms.p50),
                ms(r.ttft_ms.p99),
                ms(r.tpot_ms.p50),
                ms(r.e2e_ms.p50),
                100.0 * r.kv.peak_ratio,
                100.0 * r.replicas.busy_ratio,
                r.e2e_ms.n,
                regime_name(r.diagnosis.regime),
            );
        }
        out += &format!(
            "\nlatencies in ms; at most {} req/s",
            figure(self.max_requests_per_s)
        );
        if let Some(knee) = self.knee_load {
            out += &format!("; knee (largest throughput / latency) at {}", figure(knee));
        }
        if let Some(load) = self.slo_load {
            out += &format!("; objective met up to {}", figure(load));
        }
        out += "\n";
        if let Some(d) = &self.saturation {
            out += &format!("at the highest load: {}\n", d.text);
        }
        out
    }
}

/// A regime in a word.
pub fn regime_name(regime: Regime) -> &'static str {
    match regime {
        Regime::Unknown => "-",
        Regime::LatencyBound => "below knee",
        Regime::KvFull => "KV-full",
        Regime::SlotsFull => "slots full",
        Regime::PrefillBound => "prefill-bound",
        Regime::ComputeBound => "compute-bound",
        Regime::KvReadBound => "KV-read-bound",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(load: f64, throughput: f64, e2e: f64, attainment: Option<f64>) -> CurvePoint {
        let mut report = RunReport::empty();
        report.throughput.requests_per_s = throughput;
        report.e2e_ms.mean = Some(e2e);
        report.slo.attainment_ratio = attainment;
        CurvePoint { load, report }
    }

    #[test]
    fn the_knee_is_where_throughput_per_latency_is_largest() {
        // M/M/1 of unit service: E2E = 1 / (1 - load), power = load (1 - load), largest at one half.
        let loads = [0.9, 0.1, 0.3, 0.5, 0.7];
        let points = loads.map(|l| point(l, l, 1.0 / (1.0 - l), None));
        let curve = Curve::new(LoadAxis::Rate, points.to_vec());
        assert_eq!(curve.knee_load, Some(0.5));
        assert_eq!(curve.slo_load, None);
        assert_eq!(curve.points[0].load, 0.1);
        assert!((curve.max_requests_per_s - 0.9).abs() < 1e-12);
        assert_eq!(curve.render().matches("<- knee").count(), 1);
    }

    #[test]
    fn the_objective_holds_up_to_the_last_load_that_meets_it() {
        let points = vec![
            point(1.0, 1.0, 10.0, Some(1.0)),
            point(2.0, 2.0, 11.0, Some(0.995)),
            point(3.0, 2.5, 90.0, Some(0.4)),
        ];
        assert_eq!(Curve::new(LoadAxis::Rate, points).slo_load, Some(2.0));
    }
}
