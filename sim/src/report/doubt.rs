//! How far from the truth a run's figures may be: the range in which nine of ten such deployments would be measured.
//!
//! The width comes from what is known of predictions of this kind. Where the profiles in use were held against measured runs of the same engine and
//! accelerator that nothing was fitted on, it is 2.8 times their median error: between a normal (2.4) and a Laplace distribution (3.3). Where they were not, it is
//! that of the measured sets that are predicted without any fit of theirs (docs/accuracy.md): narrower where kernels of the accelerator were measured,
//! wide where they were not. `servetwin validate` counts how many measured rows lie inside.

use crate::report::summary::RunReport;
use crate::report::text::secs;

/// What a range is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Time to first token, mean or quantile.
    Ttft,
    /// Time per output token and what is made of it: gaps between tokens, whole latencies.
    Tpot,
    /// Tokens per second.
    Throughput,
}

impl Figure {
    /// What a measured set's metric is about.
    pub fn of(metric: &str) -> Figure {
        if metric.contains("ttft") {
            Figure::Ttft
        } else if metric.contains("throughput") || metric.contains("tok_s") {
            Figure::Throughput
        } else {
            Figure::Tpot
        }
    }
}

/// Half width of a 90 % range over the median error: see the module.
const WIDTH: f64 = 2.8;
/// No figure is surer than that [ln].
const LEAST: f64 = 0.08;

/// Half the width of the 90 % range of a figure, as a natural logarithm: the truth lies between the figure over `exp` of it and the figure times that.
pub fn spread(r: &RunReport, figure: Figure) -> f64 {
    let of = |f: Figure| {
        let (mut n, mut sum) = (0.0, 0.0);
        for a in r.accuracy.iter().filter(|a| Figure::of(&a.metric) == f) {
            n += a.n as f64;
            sum += a.n as f64 * a.median_error_ratio;
        }
        (n > 0.0).then(|| (1.0 + WIDTH * sum / n).ln().max(LEAST))
    };
    if let Some(known) = of(figure) {
        return known;
    }
    // Throughput of a loaded engine is tokens over steps: as sure as they are.
    if let (Figure::Throughput, Some(steps)) = (figure, of(Figure::Tpot)) {
        return 1.5 * steps;
    }
    let measured_kernels = (r.profiles.iter())
        .any(|p| p.trusted && (p.name.ends_with(".kernels") || p.name.ends_with(".operators")));
    match (figure, measured_kernels) {
        (Figure::Tpot, true) => 0.25,
        (Figure::Throughput, true) => 0.30,
        (Figure::Ttft, true) => 0.50,
        (Figure::Tpot, false) => 0.45,
        (Figure::Throughput, false) => 0.50,
        (Figure::Ttft, false) => 0.70,
    }
}

/// The range of `value`.
pub fn range(r: &RunReport, figure: Figure, value: f64) -> [f64; 2] {
    let factor = spread(r, figure).exp();
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
            let [low, high] = range(r, figure, mean_ms / 1e3);
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
    use crate::report::summary::ProfileReport;

    fn known(metric: &str, n: u64, median_error_ratio: f64) -> MeasuredError {
        MeasuredError {
            set: "s".into(),
            metric: metric.into(),
            n,
            median_error_ratio,
        }
    }

    #[test]
    fn ranges_follow_the_errors_on_measured_runs_and_widen_without_them() {
        let mut r = RunReport::empty();
        assert_eq!(spread(&r, Figure::Tpot), 0.45);
        r.profiles = vec![ProfileReport {
            name: "h100_sxm.vllm.kernels".into(),
            trusted: true,
            note: String::new(),
        }];
        assert_eq!(spread(&r, Figure::Tpot), 0.25);
        r.accuracy = vec![known("tpot_ms", 75, 0.05), known("tpot_mean_ms", 25, 0.09)];
        assert!((spread(&r, Figure::Tpot) - 1.168_f64.ln()).abs() < 1e-9);
        assert_eq!(spread(&r, Figure::Ttft), 0.50);
        assert!(spread(&r, Figure::Throughput) > spread(&r, Figure::Tpot));
        r.accuracy = vec![known("tpot_ms", 75, 0.001)];
        assert_eq!(spread(&r, Figure::Tpot), LEAST);
        let [low, high] = range(&r, Figure::Tpot, 10.0);
        assert!((low * high - 100.0).abs() < 1e-9 && low < 10.0);
        assert_eq!(Figure::of("output_tok_s"), Figure::Throughput);
        assert_eq!(Figure::of("ttft_p99_ms"), Figure::Ttft);
        assert_eq!(Figure::of("latency_ms_per_token"), Figure::Tpot);
    }
}
