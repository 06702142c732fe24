//! How far from the truth a run's figures may be: the range in which nine of ten such deployments would be measured.
//!
//! The width comes from the errors of predictions on measured runs like this one that nothing was fitted on ([`hwmodels::doubt`]):
//! of the same engine, of mixtures or dense models, and wider where the accelerator is known by its data sheet alone. A profile that was
//! calibrated on the user's own deployment brings its own held-out errors; then the width is 2.8 times their median, between a normal
//! (2.4) and a Laplace distribution (3.3). Where requests waited for replicas that were starting, TTFT is less sure by what starts may be off
//! ([`super::starts`]). `servetwin validate` counts how many measured rows lie inside the ranges that the other sets give.

use hwmodels::doubt::{START_ERROR, half_width, shipped};

use crate::report::figures::secs;
use crate::report::starts::StartWaits;
use crate::report::summary::RunReport;

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
    let of_serving = match (calibrated(r, figure), r.like) {
        (Some(known), _) => known,
        (None, Some(kind)) => half_width(shipped(), kind, figure, left_out),
        (None, None) => UNKNOWN,
    };
    match figure {
        // Starts and steps are predicted by models that know nothing of each other.
        Figure::Ttft => of_serving.hypot(of_starts(r)),
        Figure::Tpot | Figure::Throughput => of_serving,
    }
}

/// What starts of replicas add to the half width of TTFT [ln]; nothing where nobody waited for one, or where that is not known.
fn of_starts(r: &RunReport) -> f64 {
    let error = start_waits(r).and_then(|w| w.ttft_error_ms);
    match (error, r.ttft_ms.mean) {
        (Some(error), Some(mean)) if mean > 0.0 => (1.0 + error / mean).ln(),
        _ => 0.0,
    }
}

fn start_waits(r: &RunReport) -> Option<&StartWaits> {
    r.cluster.as_ref()?.start_waits.as_ref()
}

/// Half width that starts add to TTFT from which on the report says so [ln].
const NAMED: f64 = 0.01;

/// What is to be said of starts beside the ranges, where they add `widening` to the half width of TTFT.
fn starts_in_words(w: &StartWaits, widening: f64) -> String {
    match w.waited_ratio {
        None => " That replicas may take longer to start is not in the range of TTFT, since rows of requests were not kept or prefill and decode are apart.".into(),
        Some(share) if widening >= NAMED => format!(
            " For TTFT starts count too: {:.1} % of the requests waited for replicas that were starting, and starts may be off by {:.0} %.",
            100.0 * share,
            100.0 * START_ERROR
        ),
        Some(_) => String::new(),
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
    let starts = start_waits(r).map_or(String::new(), |w| starts_in_words(w, of_starts(r)));
    format!(
        "mean {} in 9 of 10 such deployments.{starts}",
        parts.join("; ")
    )
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
