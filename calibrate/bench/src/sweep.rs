//! A sweep of loads as GuideLLM makes it: one request at a time, then as many as go, then rates between the two.

use std::fmt::Write as _;

use hwmodels::units::{PerSec, Secs};
use serde::{Deserialize, Serialize};
use sim::metrics::Metric;
use sim::report::text::figure;
use sim::scenario::Scenario;
use sim::workload::Arrival;

use crate::report::BenchReport;
use crate::session::Bench;

/// How a sweep is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepOptions {
    /// Loads in all, at least two.
    pub points: u32,
    /// Requests under way when as many as go are sent.
    pub most_in_flight: u32,
}

/// One load of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// `synchronous`, `throughput` or `constant`.
    pub strategy: String,
    /// Rate that was asked for [req/s]; none where the endpoint set the pace.
    pub rate: Option<f64>,
    /// What was measured.
    pub report: BenchReport,
}

/// Name of the load of one request at a time.
pub const SYNCHRONOUS: &str = "synchronous";

impl SweepPoint {
    /// Its name, with the rate where one was asked for.
    pub fn name(&self) -> String {
        name(&self.strategy, self.rate)
    }
}

fn name(strategy: &str, rate: Option<f64>) -> String {
    match rate {
        Some(r) => format!("{strategy} {r:.3} req/s"),
        None => strategy.to_string(),
    }
}

/// A sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Its loads in the order of running.
    pub points: Vec<SweepPoint>,
}

impl Sweep {
    /// Makes a sweep of the load of `scenario`, whose arrivals are replaced. `run` runs one load; it is told its name.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn run<E>(
        scenario: &Scenario,
        options: &SweepOptions,
        mut run: impl FnMut(&str, &Scenario) -> Result<Bench, E>,
    ) -> Result<Sweep, E> {
        let mut sweep = Sweep::default();
        let mut point = |strategy: &str, rate: Option<f64>, arrival: Arrival| -> Result<f64, E> {
            let mut at = scenario.clone();
            for s in &mut at.workload {
                s.arrival = arrival.clone();
            }
            let bench = run(&name(strategy, rate), &at)?;
            let report = bench.report();
            let reached = report.run.throughput.requests_per_s;
            sweep.points.push(SweepPoint {
                strategy: strategy.into(),
                rate,
                report,
            });
            Ok(reached)
        };
        let zero = Secs::default();
        let closed = |concurrency| Arrival::Closed {
            concurrency,
            stagger: zero,
            think: zero,
            think_cv: 0.0,
            refused_pause: Secs::new(0.1).unwrap_or_default(),
        };
        let low = point(SYNCHRONOUS, None, closed(1))?;
        let high = point("throughput", None, closed(options.most_in_flight.max(1)))?;
        let between = options.points.saturating_sub(2);
        for i in 1..=between {
            let rate = low + (high - low) * f64::from(i) / f64::from(between + 1);
            if let Ok(r) = PerSec::new(rate)
                && rate > 0.0
            {
                point("constant", Some(rate), Arrival::Constant { rate: r })?;
            }
        }
        Ok(sweep)
    }

    /// The sweep as a table; times in milliseconds.
    pub fn render(&self) -> String {
        let mut out = String::from(
            "strategy       rate    req/s  tokens/s  TTFT mean       p99  TPOT mean       p99   E2E mean       p99  failed  late p99\n",
        );
        for p in &self.points {
            let r = &p.report.run;
            let number = |v: Option<f64>| v.map_or("-".into(), figure);
            let latency = |m: Metric| {
                let l = r.latency(m);
                format!("{:>10} {:>9}", number(l.mean), number(l.p99))
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{:<11} {:>7} {:>8} {:>9} {} {} {} {:>7} {:>9}",
                p.strategy,
                number(p.rate),
                figure(r.throughput.requests_per_s),
                figure(r.throughput.output_tokens_per_s),
                latency(Metric::Ttft),
                latency(Metric::Tpot),
                latency(Metric::E2e),
                r.requests.offered - r.requests.finished,
                figure(p.report.client.lateness_ms.p99),
            );
        }
        out
    }
}
