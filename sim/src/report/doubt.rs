//! How far from the truth a run's figures may be: the range in which nine of ten such deployments would be measured.
//!
//! The width comes from the errors of predictions on measured runs like this one that nothing was fitted on ([`hwmodels::doubt`]):
//! of the same engine, of mixtures or dense models, and wider where the accelerator is known by its data sheet alone. A profile that was
//! calibrated on the user's own deployment brings its own held-out errors; then the width is 2.8 times their median, between a normal
//! (2.4) and a Laplace distribution (3.3). `servetwin validate` counts how many measured rows lie inside the ranges that the other sets give.

use hwmodels::doubt::{half_width, shipped};

use crate::report::summary::RunReport;
use crate::report::text::secs;

pub use hwmodels::doubt::Figure;

/// What a measured set's metric is about.
pub fn figure_of(metric: &str) -> Figure {
    if metric.contains("ttft") {
        Figure::Ttft
    } else if metric.contains("throughput") || metric.contains("tok_s") {
        Figure::Throughput
    } else {
        Figure::Tpot
    }
}

/// Half width of a 90 % range over the median error of a calibration: see the module.
const WIDTH: f64 = 2.8;
/// No calibrated figure is surer than that [ln].
const LEAST: f64 = 0.05;
/// Half width where nothing at all is known of a run's kind [ln].
const UNKNOWN: f64 = 0.7;

/// Half width from the held-out errors of a profile of the user's own.
fn calibrated(r: &RunReport, figure: Figure) -> Option<f64> {
    let own = |a: &&crate::record::MeasuredError| {
        figure_of(&a.metric) == figure && shipped().iter().all(|s| s.set != a.set)
    };
    let (mut n, mut sum) = (0.0, 0.0);
    for a in r.accuracy.iter().filter(own) {
        n += a.n as f64;
        sum += a.n as f64 * a.median_error_ratio;
    }
    (n > 0.0).then(|| (1.0 + WIDTH * sum / n).ln().max(LEAST))
}

/// Half the width of the 90 % range of a figure, as a natural logarithm: the truth lies between the figure over `exp` of it and the figure times that.
/// `left_out` names a measured set that is not to count.
pub fn spread(r: &RunReport, figure: Figure, left_out: Option<&str>) -> f64 {
    if let Some(known) = calibrated(r, figure) {
        return known;
    }
    match r.like {
        Some(kind) => half_width(shipped(), kind, figure, left_out),
        None => UNKNOWN,
    }
}

/// The range of `value`.
pub fn range(r: &RunReport, figure: Figure, value: f64, left_out: Option<&str>) -> [f64; 2] {
    let factor = spread(r, figure, left_out).exp();
    [value / factor, value * factor]
}

/// The ranges of a run's means, in words; empty where nothing was served.
pub fn in_words(r: &RunReport) -> String {
    let mut parts = Vec::new();
    for (name, figure, mean_ms) in [
        ("TTFT", Figure::Ttft, r.ttft_ms.mean),
        ("TPOT", Figure::Tpot, r.tpot_ms.mean),
    ] {
        if let Some(mean_ms) = mean_ms.filter(|m| *m > 0.0) {
            let [low, high] = range(r, figure, mean_ms / 1e3, None);
            parts.push(format!(
                "{name} {}, {} to {}",
                secs(mean_ms / 1e3),
                secs(low),
                secs(high)
            ));
        }
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("mean {} in 9 of 10 such deployments.", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MeasuredError;

    fn known(metric: &str, n: u64, median_error_ratio: f64) -> MeasuredError {
        MeasuredError {
            set: "s".into(),
            metric: metric.into(),
            n,
            median_error_ratio,
            load: None,
        }
    }

    #[test]
    fn ranges_come_from_runs_of_the_kind_and_from_a_calibration_of_ones_own() {
        let mut r = RunReport::empty();
        assert_eq!(spread(&r, Figure::Tpot, None), UNKNOWN);
        let kind = hwmodels::doubt::Kind {
            engine: hwmodels::EngineKind::VllmV1,
            experts: false,
            measured_chip: true,
            load: hwmodels::doubt::Load::Open,
        };
        r.like = Some(kind);
        let dense = spread(&r, Figure::Tpot, None);
        assert!(dense < UNKNOWN, "{dense}");
        assert!(spread(&r, Figure::Ttft, None) > dense);
        r.like = Some(hwmodels::doubt::Kind {
            measured_chip: false,
            ..kind
        });
        assert!(spread(&r, Figure::Tpot, None) > dense);
        r.accuracy = vec![known("tpot_ms", 75, 0.05), known("tpot_mean_ms", 25, 0.09)];
        assert!((spread(&r, Figure::Tpot, None) - 1.168_f64.ln()).abs() < 1e-9);
        r.accuracy = vec![known("tpot_ms", 75, 0.001)];
        assert_eq!(spread(&r, Figure::Tpot, None), LEAST);
        let [low, high] = range(&r, Figure::Tpot, 10.0, None);
        assert!((low * high - 100.0).abs() < 1e-9 && low < 10.0);
    }

    #[test]
    fn metrics_are_sorted_by_what_they_are_about() {
        assert_eq!(figure_of("output_tok_s"), Figure::Throughput);
        assert_eq!(figure_of("ttft_p99_ms"), Figure::Ttft);
        assert_eq!(figure_of("latency_ms_per_token"), Figure::Tpot);
    }
}
