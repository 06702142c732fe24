//! Whether the figures of a run are those of a steady state, or would grow with the length of the run.
//!
//! The test looks at arrivals against completions while requests are sent. Let `x_j` be the arrivals less the completions of stretch `j`, the
//! last of which ends with the last arrival. Where the queue is stationary, the `x_j` sum to what the queue happens to differ by between two
//! instants, and lean against each other; at a load of exactly the capacity they are close to independent, of mean zero
//! (a random walk: Asmussen, Applied Probability and Queues, ch. X); beyond it their mean is the growth. So a one-sided t-test on their mean has at most
//! its nominal significance anywhere up to the capacity, and far less below it. The first third of the run is left out: there the batch fills.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::kernel::time::SimTime;
use crate::metrics::flow::Stretch;
use crate::record::RunRecord;
use crate::report::figures::{figure, secs};

/// Chance of calling a queue growing that is not [probability].
pub const SIGNIFICANCE: f64 = 1e-4;
/// Stretches that the tested part is divided into.
const BATCHES: usize = 16;
/// Requests that the tested part must have at least.
const MIN_REQUESTS: u64 = 100;

/// What the test says.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No growth beyond chance.
    Stationary,
    /// More requests came than ended, beyond chance: the latencies grow with the length of the run.
    Growing,
    /// Nothing to test: too few requests, or all sent at once.
    #[default]
    Unknown,
}

/// Whether the latencies of a run are those of a steady state. Rates are over the tested part: the last two thirds of the requests sent, or those
/// sent after the warm-up where these are fewer; null where the verdict is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Stationarity {
    /// What the test says.
    pub verdict: Verdict,
    /// Requests sent in the tested part.
    pub requests: u64,
    /// Requests sent per second.
    pub arrivals_per_s: Option<f64>,
    /// Requests that ended per second, however.
    pub completions_per_s: Option<f64>,
    /// Growth of the requests under way: arrivals less completions [requests/s].
    pub growth_per_s: Option<f64>,
    /// Growth of the requests that have not been scheduled yet [requests/s]; null where that is not known (measured runs).
    pub waiting_growth_per_s: Option<f64>,
    /// What each further second of this load adds to the wait for the first token [s/s]; null unless growing.
    pub ttft_growth_ratio: Option<f64>,
    /// Chance of as much growth without overload (one-sided t-test over the stretches of the tested part).
    pub p_value: Option<f64>,
    /// Largest `p_value` that counts as growing.
    pub significance: f64,
}

impl Stationarity {
    /// Tests `record`.
    pub fn of(record: &RunRecord) -> Stationarity {
        let flow = &record.flow;
        let all = flow.stretches();
        let warm = SimTime::ZERO + record.warmup;
        let first = all
            .partition_point(|s| s.until < warm)
            .max(all.len().div_ceil(3));
        let per_batch = (all.len() - first.min(all.len())) / BATCHES;
        let tested = per_batch * BATCHES;
        let requests = tested as u64 * flow.arrivals();
        let unknown = Stationarity {
            requests,
            significance: SIGNIFICANCE,
            ..Stationarity::default()
        };
        // The tested part starts with a mark, so that its length is known.
        let start = all.len() - tested;
        if requests < MIN_REQUESTS || start == 0 {
            return unknown;
        }
        let length = all[all.len() - 1]
            .until
            .since(all[start - 1].until)
            .as_secs();
        if length <= 0.0 {
            return unknown;
        }
        let sent = per_batch as f64 * flow.arrivals() as f64;
        let growth = |left: fn(&Stretch) -> u64| -> Vec<f64> {
            let batches = all[start..].chunks_exact(per_batch);
            batches
                .map(|b| sent - b.iter().map(left).sum::<u64>() as f64)
                .collect()
        };
        let under_way = growth(|s| s.ended);
        let p = p_of_growth(&under_way);
        let rate = |x: &[f64]| x.iter().sum::<f64>() / length;
        let arrivals = requests as f64 / length;
        let growing = p < SIGNIFICANCE;
        let waiting = flow
            .scheduled_known()
            .then(|| rate(&growth(|s| s.dequeued)));
        // A request waits for all before it, which leave the queue at the rate at which requests are scheduled.
        let wait = waiting.map(|w| w / (arrivals - w));
        Stationarity {
            verdict: if growing {
                Verdict::Growing
            } else {
                Verdict::Stationary
            },
            arrivals_per_s: Some(arrivals),
            completions_per_s: Some(arrivals - rate(&under_way)),
            growth_per_s: Some(rate(&under_way)),
            waiting_growth_per_s: waiting,
            ttft_growth_ratio: wait.filter(|w| growing && *w > 0.0 && w.is_finite()),
            p_value: Some(p),
            ..unknown
        }
    }

    /// Whether requests came faster than they ended.
    pub fn growing(&self) -> bool {
        self.verdict == Verdict::Growing
    }

    /// What a reader of the latencies must know, where they are not those of a steady state; `offered` is the number of requests of the run.
    pub fn warning(&self, offered: u64) -> Option<String> {
        let (arrivals, completions, growth) = match (
            self.arrivals_per_s,
            self.completions_per_s,
            self.growth_per_s,
        ) {
            (Some(a), Some(c), Some(g)) if self.growing() => (a, c, g),
            _ => return None,
        };
        let waiting = self.waiting_growth_per_s.filter(|w| *w >= 0.5 * growth);
        let (grows, further) = match (waiting, self.ttft_growth_ratio) {
            (Some(w), Some(t)) => (
                format!("{} more are waiting after each second", figure(w)),
                format!(
                    "each further minute of this load adds about {} to TTFT",
                    secs(60.0 * t)
                ),
            ),
            _ => (
                format!("{} more are under way after each second", figure(growth)),
                "a longer run has longer ones".to_string(),
            ),
        };
        Some(format!(
            "not stationary: these latencies are those of the first {offered} requests. {} requests came and {} ended per second while \
             requests were sent, {grows}; {further} (chance of this in a steady state: below {} %)",
            figure(arrivals),
            figure(completions),
            100.0 * SIGNIFICANCE,
        ))
    }
}

/// The chance of a mean as large as that of `x`, or larger, where the true mean is zero (one-sided t-test).
fn p_of_growth(x: &[f64]) -> f64 {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    if mean <= 0.0 {
        return 1.0;
    }
    if variance == 0.0 {
        return 0.0;
    }
    let t = mean / (variance / n).sqrt();
    StudentsT::new(0.0, 1.0, n - 1.0).map_or(1.0, |d| d.sf(t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::RecordOptions;
    use crate::scenario::Scenario;
    use crate::simulation::RunOptions;

    /// A server of 10 ms per request under Poisson (or other) arrivals.
    fn queue(arrival: &str, requests: u32, seed: u64) -> Stationarity {
        let text = format!(
            "seed = {seed}\n[step]\nbase = \"10 ms\"\n[engine]\nkind = \"static\"\nmax_batch_size = 1\nkv_blocks = 1000\n\
             [[workload]]\narrival = {arrival}\nprompt = 1\noutput = 1\n[run]\nrequests = {requests}\n"
        );
        let scenario = Scenario::parse(&text, "q.toml", &[]).unwrap();
        let record = scenario
            .run(&RunOptions {
                record: RecordOptions {
                    max_request_rows: 0,
                    series_bins: 0,
                    ..RecordOptions::default()
                },
                ..RunOptions::default()
            })
            .unwrap();
        Stationarity::of(&record)
    }

    fn poisson(rate: f64) -> String {
        format!("{{ kind = \"poisson\", rate = \"{rate} req/s\" }}")
    }

    #[test]
    fn a_stationary_queue_at_nine_tenths_of_its_capacity_is_never_called_growing() {
        for requests in [300, 2_000, 20_000] {
            for seed in 0..if requests > 10_000 { 30 } else { 300 } {
                let s = queue(&poisson(90.0), requests, seed);
                assert_eq!(s.verdict, Verdict::Stationary, "{requests} {seed}: {s:?}");
                assert_eq!(s.warning(1), None);
            }
        }
    }

    #[test]
    fn at_the_capacity_itself_the_test_keeps_its_significance() {
        // The hardest case of no overload: a random walk. 3 or more of 500 by chance: about 2e-5.
        let called = (0..500)
            .filter(|seed| queue(&poisson(100.0), 1_000, *seed).growing())
            .count();
        assert!(called <= 2, "{called} of 500");
    }

    #[test]
    fn an_overloaded_queue_is_called_growing_and_its_growth_is_the_excess() {
        for seed in 0..100 {
            let s = queue(&poisson(125.0), 4_000, seed);
            assert!(s.growing(), "{seed}: {s:?}");
            // 125 come and 100 are served a second. Arrivals of 2667 requests vary by 2 %.
            assert!((s.completions_per_s.unwrap() - 100.0).abs() < 0.5, "{s:?}");
            assert!((s.growth_per_s.unwrap() - 25.0).abs() < 10.0, "{s:?}");
            // Every second adds a quarter of a second to the wait.
            assert!((s.ttft_growth_ratio.unwrap() - 0.25).abs() < 0.1, "{s:?}");
        }
        let warning = queue(&poisson(125.0), 4_000, 1).warning(4_000).unwrap();
        assert!(
            warning
                .contains("not stationary: these latencies are those of the first 4000 requests")
                && warning.contains("to TTFT"),
            "{warning}"
        );
    }

    #[test]
    fn a_gross_overload_shows_in_few_requests() {
        for seed in 0..100 {
            assert!(queue(&poisson(300.0), 400, seed).growing(), "{seed}");
        }
        let constant = queue("{ kind = \"constant\", rate = \"200 req/s\" }", 400, 1);
        assert!(
            constant.growing() && constant.p_value == Some(0.0),
            "{constant:?}"
        );
    }

    #[test]
    fn closed_loops_do_not_grow_and_bursts_cannot_be_tested() {
        let closed = queue("{ kind = \"closed\", concurrency = 20 }", 2_000, 1);
        assert_eq!(closed.verdict, Verdict::Stationary, "{closed:?}");
        let burst = queue("{ kind = \"burst\", requests = 2000 }", 2_000, 1);
        assert_eq!(burst.verdict, Verdict::Unknown, "{burst:?}");
        let few = queue(&poisson(300.0), 60, 1);
        assert_eq!(few.verdict, Verdict::Unknown, "{few:?}");
    }
}
