//! A fleet under an autoscaler, measured and predicted: ready replicas second by second, decisions, TTFT over time.

use std::fmt::Write as _;

use serde::Serialize;
use sim::kernel::time::SimTime;
use sim::kube::record::{ClusterRecord, Controller};
use sim::record::RequestRow;
use sim::request::Outcome;

use crate::statistics::median;

/// TTFT is compared in bins of this width [s].
pub const BIN_S: f64 = 10.0;
/// Requests that a bin must have on both sides for its median to mean something.
const LEAST: usize = 5;

/// A decision that changed how many replicas were wanted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// When [s].
    pub at_s: f64,
    /// Replicas wanted before.
    pub from: i64,
    /// Replicas wanted from then on.
    pub to: i64,
}

/// What a fleet did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Course {
    /// Ready replicas in the middle of each second.
    pub ready: Vec<u32>,
    /// Changes of the replicas wanted, in their order.
    pub decisions: Vec<Step>,
    /// Median TTFT of the requests sent in each ten seconds [ms].
    pub ttft_p50_ms: Vec<Option<f64>>,
}

impl Course {
    /// The first `seconds` of a fleet that answered the requests `rows`, which were sent from `sent` on.
    pub fn new(
        cluster: &ClusterRecord,
        rows: &[RequestRow],
        sent: SimTime,
        seconds: f64,
    ) -> Course {
        let count = seconds.max(0.0).ceil() as usize;
        let ready = (0..count)
            .map(|s| {
                let at = SimTime(s as u64 * 1_000_000_000 + 500_000_000);
                let serves = |(_, from, to): &(u32, SimTime, SimTime)| *from <= at && at < *to;
                let all = cluster.replicas.iter().flat_map(|r| &r.served);
                all.filter(|served| serves(served)).count() as u32
            })
            .collect();
        let decisions = (cluster.decisions.iter())
            .filter(|d| matches!(d.controller, Controller::Hpa | Controller::Keda))
            .filter(|d| d.from != d.to && d.at.as_secs() <= seconds)
            .map(|d| Step {
                at_s: d.at.as_secs(),
                from: d.from,
                to: d.to,
            })
            .collect();
        let mut bins: Vec<Vec<f64>> = vec![Vec::new(); (seconds / BIN_S).ceil() as usize];
        for row in rows.iter().filter(|r| r.outcome == Outcome::Finished) {
            let at = row.arrival.as_secs() + sent.as_secs();
            if let Some(bin) = bins.get_mut((at / BIN_S) as usize) {
                bin.push(row.first_token.since(row.arrival).as_secs() * 1e3);
            }
        }
        let ttft_p50_ms = bins
            .into_iter()
            .map(|bin| median(bin.clone()).filter(|_| bin.len() >= LEAST))
            .collect();
        Course {
            ready,
            decisions,
            ttft_p50_ms,
        }
    }
}

/// How well a prediction agrees.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Share of the seconds with equal numbers of ready replicas [0, 1].
    pub ready_share: f64,
    /// Decisions, measured and predicted together.
    pub decisions: usize,
    /// Those with one to the same number on the other side, within one period of the controller.
    pub decisions_met: usize,
    /// Median of the absolute errors of TTFT p50 over the bins [%]; `None`: no bin has enough requests.
    pub ttft_error: Option<f64>,
    /// Bins that it is the median of.
    pub ttft_bins: usize,
}

/// Holds `predicted` against `measured`; `period_s` is that of the controller.
pub fn agreement(measured: &Course, predicted: &Course, period_s: f64) -> Agreement {
    let seconds = measured.ready.len().min(predicted.ready.len());
    let equal = (measured.ready.iter().zip(&predicted.ready))
        .filter(|(a, b)| a == b)
        .count();
    let met = |one: &[Step], other: &[Step]| {
        let near =
            |a: &Step| (other.iter()).any(|b| b.to == a.to && (b.at_s - a.at_s).abs() <= period_s);
        one.iter().filter(|a| near(a)).count()
    };
    let errors: Vec<f64> = (measured.ttft_p50_ms.iter().zip(&predicted.ttft_p50_ms))
        .filter_map(|(m, p)| Some(100.0 * ((*p)? / (*m)? - 1.0).abs()))
        .collect();
    Agreement {
        ready_share: equal as f64 / seconds.max(1) as f64,
        decisions: measured.decisions.len() + predicted.decisions.len(),
        decisions_met: met(&measured.decisions, &predicted.decisions)
            + met(&predicted.decisions, &measured.decisions),
        ttft_bins: errors.len(),
        ttft_error: median(errors),
    }
}

/// Both courses beside each other, and how well they agree.
pub fn render(measured: &Course, predicted: &Course, agreement: &Agreement) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{:>8}  {:>15} {:>15}  {:>16} {:>16} {:>8}",
        "time [s]", "ready, measured", "predicted", "TTFT p50 [ms]", "predicted", "error"
    );
    let ms = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.1}"));
    for bin in 0..measured.ttft_p50_ms.len() {
        let mean = |course: &Course| {
            let from = bin * BIN_S as usize;
            let seconds = course.ready.get(from..).unwrap_or_default();
            let seconds = &seconds[..seconds.len().min(BIN_S as usize)];
            let sum: f64 = seconds.iter().map(|n| f64::from(*n)).sum();
            sum / seconds.len().max(1) as f64
        };
        let (m, p) = (
            measured.ttft_p50_ms[bin],
            predicted.ttft_p50_ms.get(bin).copied().flatten(),
        );
        let error = (m.zip(p)).map_or("-".to_owned(), |(m, p)| {
            format!("{:+.1} %", 100.0 * (p / m - 1.0))
        });
        let _ = writeln!(
            out,
            "{:>8.0}  {:>15.1} {:>15.1}  {:>16} {:>16} {:>8}",
            bin as f64 * BIN_S,
            mean(measured),
            mean(predicted),
            ms(m),
            ms(p),
            error
        );
    }
    for (who, course) in [("measured", measured), ("predicted", predicted)] {
        let steps: Vec<String> = (course.decisions.iter())
            .map(|d| format!("{} -> {} at {:.1} s", d.from, d.to, d.at_s))
            .collect();
        let _ = writeln!(out, "decisions, {who}: {}", steps.join(", "));
    }
    let _ = writeln!(
        out,
        "ready replicas agree in {:.1} % of the seconds; {} of {} decisions have their like within one period; TTFT p50 of ten seconds: \
         median error {} over {} bins",
        100.0 * agreement.ready_share,
        agreement.decisions_met,
        agreement.decisions,
        (agreement.ttft_error).map_or("-".to_owned(), |e| format!("{e:.1} %")),
        agreement.ttft_bins
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(ready: &[u32], decisions: &[(f64, i64, i64)], ttft: &[Option<f64>]) -> Course {
        Course {
            ready: ready.to_vec(),
            decisions: (decisions.iter())
                .map(|&(at_s, from, to)| Step { at_s, from, to })
                .collect(),
            ttft_p50_ms: ttft.to_vec(),
        }
    }

    #[test]
    fn seconds_decisions_and_bins_are_counted_one_by_one() {
        let measured = course(
            &[1, 1, 2, 2],
            &[(3.0, 1, 2), (9.0, 2, 3)],
            &[Some(100.0), None, Some(50.0)],
        );
        let predicted = course(
            &[1, 1, 1, 2],
            &[(4.5, 1, 2), (20.0, 2, 3)],
            &[Some(110.0), Some(5.0), Some(40.0)],
        );
        let a = agreement(&measured, &predicted, 2.0);
        assert_eq!(a.ready_share, 0.75);
        // Both of the first pair are within 2 s; those of the second are 11 s apart.
        assert_eq!((a.decisions, a.decisions_met), (4, 2));
        assert_eq!(a.ttft_bins, 2);
        assert!((a.ttft_error.unwrap() - 15.0).abs() < 1e-9, "{a:?}");
        let text = render(&measured, &predicted, &a);
        assert!(
            text.contains("agree in 75.0 % of the seconds; 2 of 4"),
            "{text}"
        );
    }

    #[test]
    fn a_replica_counts_while_it_serves_and_a_bin_needs_five_requests() {
        let mut cluster = ClusterRecord::default();
        let s = |x: f64| SimTime((x * 1e9) as u64);
        cluster.replicas.push(sim::kube::record::ReplicaRow {
            deployment: 0,
            name: "server-0".into(),
            pods: Vec::new(),
            created: SimTime::ZERO,
            served: vec![(0, s(0.0), s(1.2)), (1, s(2.6), SimTime::NEVER)],
            draining: SimTime::NEVER,
            gone: SimTime::NEVER,
            why_gone: String::new(),
        });
        let course = Course::new(&cluster, &[], SimTime::ZERO, 4.0);
        assert_eq!(course.ready, [1, 0, 0, 1]);
        assert_eq!(course.ttft_p50_ms, [None]);
    }
}
