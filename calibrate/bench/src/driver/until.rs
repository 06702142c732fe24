//! Stopping rules: measure until a figure is known well enough.
//!
//! A rule is `METRIC.STATISTIC +-WIDTH`, e.g. `ttft.mean +-3%` or `e2e.p90 +- 20 ms`: the half-width of the 95 % confidence
//! interval. Latencies of one run depend on each other (a busy second slows all that are in it), so the interval comes from the
//! means of consecutive batches of requests (batch means; Law, Simulation Modeling and Analysis, 9.5.3), not from single requests.

use sim::metrics::distribution::quantile_of_sorted;
use sim::metrics::interval::Interval;

use super::sample::Sample;

/// Batches that the requests are divided into.
const BATCHES: usize = 20;
/// Fewest requests in a batch; a percentile needs more.
const LEAST_PER_BATCH: usize = 5;
/// Confidence of the interval.
const CONFIDENCE: f64 = 0.95;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Ttft,
    Tpot,
    E2e,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Statistic {
    Mean,
    Quantile(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Width {
    /// Share of the value.
    Relative(f64),
    /// In nanoseconds.
    Absolute(f64),
}

/// A stopping rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Until {
    text: String,
    what: What,
    statistic: Statistic,
    width: Width,
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--until '{text}': {problem}; write e.g. 'ttft.mean +-3%' or 'e2e.p90 +-20 ms'")]
pub struct UntilError {
    text: String,
    problem: String,
}

impl std::fmt::Display for Until {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Until, UntilError> {
        parse(text).map_err(|problem| UntilError {
            text: text.to_string(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Until, String> {
    let (name, width) = text
        .split_once("+-")
        .or_else(|| text.split_once('\u{b1}'))
        .ok_or("no `+-`")?;
    let (metric, statistic) = name.trim().split_once('.').unwrap_or((name.trim(), "mean"));
    let what = match metric {
        "ttft" => What::Ttft,
        "tpot" => What::Tpot,
        "e2e" => What::E2e,
        other => return Err(format!("`{other}` is none of ttft, tpot, e2e")),
    };
    let statistic = match statistic {
        "mean" => Statistic::Mean,
        "median" => Statistic::Quantile(0.5),
        other => {
            let p: f64 = other
                .strip_prefix('p')
                .and_then(|p| p.parse().ok())
                .filter(|p| (0.0..=100.0).contains(p))
                .ok_or(format!(
                    "`{other}` is neither mean nor a percentile such as p90"
                ))?;
            Statistic::Quantile(p / 100.0)
        }
    };
    let width = width.trim();
    let end = width
        .find(|c: char| c.is_alphabetic() || c == '%')
        .unwrap_or(width.len());
    let number: f64 = width[..end]
        .trim()
        .parse()
        .map_err(|_| format!("`{width}` is no width"))?;
    if !(number > 0.0 && number.is_finite()) {
        return Err("the width must be above zero".into());
    }
    let width = match width[end..].trim() {
        "%" => Width::Relative(number / 100.0),
        "us" => Width::Absolute(number * 1e3),
        "ms" => Width::Absolute(number * 1e6),
        "s" => Width::Absolute(number * 1e9),
        other => return Err(format!("`{other}` is no unit (%, us, ms, s)")),
    };
    Ok(Until {
        text: text.trim().to_string(),
        what,
        statistic,
        width,
    })
}

impl Until {
    /// Whether the figure is known well enough from these finished requests, in the order of sending.
    pub fn met(&self, samples: &[&Sample]) -> bool {
        let values: Vec<f64> = samples.iter().filter_map(|s| self.value(s)).collect();
        self.interval(&values).is_some_and(|i| {
            let half = i.half_width.unwrap_or(f64::INFINITY);
            match self.width {
                Width::Relative(share) => half <= share * i.mean.abs(),
                Width::Absolute(ns) => half <= ns,
            }
        })
    }

    fn value(&self, s: &Sample) -> Option<f64> {
        let t = &s.trace;
        Some(match self.what {
            What::Ttft => t.first_token_ns()? as f64,
            What::E2e => t.last_token_ns()? as f64,
            What::Tpot => {
                let n = t.output_tokens();
                if n < 2 {
                    return None;
                }
                (t.last_token_ns()? - t.first_token_ns()?) as f64 / f64::from(n - 1)
            }
        })
    }

    /// The interval of the figure over batches; `None` while there are too few values.
    fn interval(&self, values: &[f64]) -> Option<Interval> {
        let least = match self.statistic {
            Statistic::Mean => LEAST_PER_BATCH,
            // So that about two values of a batch lie beyond the percentile.
            Statistic::Quantile(p) => {
                let rare = p.max(1.0 - p).min(0.999);
                LEAST_PER_BATCH.max((2.0 / (1.0 - rare)).ceil() as usize)
            }
        };
        let size = values.len() / BATCHES;
        if size < least {
            return None;
        }
        let batches: Vec<f64> = values
            .chunks_exact(size)
            .take(BATCHES)
            .map(|batch| match self.statistic {
                Statistic::Mean => batch.iter().sum::<f64>() / batch.len() as f64,
                Statistic::Quantile(p) => {
                    let mut sorted: Vec<u64> = batch.iter().map(|v| *v as u64).collect();
                    sorted.sort_unstable();
                    quantile_of_sorted(&sorted, p).unwrap_or(0.0)
                }
            })
            .collect();
        Interval::of(&batches, CONFIDENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_with_their_units() {
        let u: Until = "ttft.mean +-3%".parse().unwrap();
        assert_eq!(
            (u.what, u.statistic, u.width),
            (What::Ttft, Statistic::Mean, Width::Relative(0.03))
        );
        let u: Until = "e2e.p90 +- 20 ms".parse().unwrap();
        assert_eq!(
            (u.statistic, u.width),
            (Statistic::Quantile(0.9), Width::Absolute(20e6))
        );
        for bad in [
            "ttft.mean",
            "queue.mean +-3%",
            "ttft.p101 +-3%",
            "ttft.mean +-0%",
            "ttft.mean +-3",
            "ttft.mean +-x%",
        ] {
            assert!(bad.parse::<Until>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_is_met_when_the_interval_of_batch_means_is_narrow_and_not_before_there_are_batches() {
        let u: Until = "ttft.mean +-5%".parse().unwrap();
        // Values in slow waves: single values would seem to know the mean long before it is known.
        let wave = |n: usize, period: f64| -> Vec<f64> {
            (0..n)
                .map(|i| 100.0 + 50.0 * (i as f64 / period * std::f64::consts::TAU).sin())
                .collect()
        };
        assert!(u.interval(&wave(99, 10.0)).is_none());
        let quick = u.interval(&wave(4000, 10.0)).unwrap();
        assert!(quick.half_width.unwrap() < 5.0, "{quick:?}");
        let slow = u.interval(&wave(4000, 1000.0)).unwrap();
        assert!(slow.half_width.unwrap() > 5.0, "{slow:?}");
    }
}
