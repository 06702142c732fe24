//! Each metric, defined once over the recorded instants of a request (`docs/metrics.md`).
//!
//! Latency metrics are those of **finished** requests; a request that was refused, timed out or failed is counted,
//! never averaged in. Inter-token latency (ITL) is pooled over all gaps between consecutive tokens as the client
//! sees them, and is fed to the recorder gap by gap.

use crate::kernel::time::{SimDuration, SimTime};
use crate::record::rows::RequestRow;
use crate::request::Outcome;

/// The latency metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Gap between consecutive tokens, pooled over requests.
    Itl,
    /// Time per output token after the first, one value per request.
    Tpot,
    /// End-to-end latency.
    E2e,
    /// Queue time.
    Queue,
    /// End-to-end latency per output token.
    Normalised,
}

impl Metric {
    /// All of them, in the order of reports.
    pub const ALL: [Metric; 6] = [
        Metric::Ttft,
        Metric::Itl,
        Metric::Tpot,
        Metric::E2e,
        Metric::Queue,
        Metric::Normalised,
    ];

    /// Its name in files and expectations.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Itl => "itl",
            Metric::Tpot => "tpot",
            Metric::E2e => "e2e",
            Metric::Queue => "queue",
            Metric::Normalised => "normalised",
        }
    }

    /// Its value for one request; none where the request has none, and for ITL, which has many.
    pub fn of(self, row: &RequestRow) -> Option<SimDuration> {
        match self {
            Metric::Ttft => ttft(row),
            Metric::Itl => None,
            Metric::Tpot => tpot(row),
            Metric::E2e => e2e(row),
            Metric::Queue => queue(row),
            Metric::Normalised => normalised(row),
        }
    }
}

/// Time to first token: sent until the first token reaches the client.
pub fn ttft(row: &RequestRow) -> Option<SimDuration> {
    (finished(row) && row.first_token != SimTime::NEVER).then(|| row.first_token.since(row.arrival))
}

/// Queue time: sent until first scheduled in a step.
pub fn queue(row: &RequestRow) -> Option<SimDuration> {
    (finished(row) && row.first_scheduled != SimTime::NEVER)
        .then(|| row.first_scheduled.since(row.arrival))
}

/// End-to-end latency: sent until the last token reaches the client.
pub fn e2e(row: &RequestRow) -> Option<SimDuration> {
    finished(row).then(|| row.end.since(row.arrival))
}

/// Time per output token: (E2E - TTFT) / (n - 1) to the nearest nanosecond, for requests of at least two tokens.
pub fn tpot(row: &RequestRow) -> Option<SimDuration> {
    let n = u64::from(row.output_tokens);
    if n < 2 {
        return None;
    }
    let decode = e2e(row)?.0.saturating_sub(ttft(row)?.0);
    Some(SimDuration((decode + (n - 1) / 2) / (n - 1)))
}

/// Normalised latency: E2E / n to the nearest nanosecond (Orca, vLLM paper).
pub fn normalised(row: &RequestRow) -> Option<SimDuration> {
    let n = u64::from(row.output_tokens);
    if n == 0 {
        return None;
    }
    Some(SimDuration((e2e(row)?.0 + n / 2) / n))
}

fn finished(row: &RequestRow) -> bool {
    row.outcome == Outcome::Finished
}

/// Service-level objective: limits that a good request meets, all of those given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Largest TTFT.
    pub ttft: Option<SimDuration>,
    /// Largest TPOT.
    pub tpot: Option<SimDuration>,
    /// Largest E2E latency.
    pub e2e: Option<SimDuration>,
}

impl Slo {
    /// Whether no limit is given: every finished request is good.
    pub fn is_empty(&self) -> bool {
        self.ttft.is_none() && self.tpot.is_none() && self.e2e.is_none()
    }

    /// Whether a request finished and met every given limit. A request of one token has no TPOT and meets any
    /// (as vLLM's benchmark, which counts it as zero).
    pub fn met_by(&self, row: &RequestRow) -> bool {
        let within = |value: Option<SimDuration>, limit: Option<SimDuration>| match (value, limit) {
            (_, None) => true,
            (Some(v), Some(l)) => v <= l,
            (None, Some(_)) => false,
        };
        finished(row)
            && within(ttft(row), self.ttft)
            && within(e2e(row), self.e2e)
            && (row.output_tokens < 2 || within(tpot(row), self.tpot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> RequestRow {
        RequestRow {
            id: 1,
            stream: 0,
            replica: 0,
            prompt_tokens: 100,
            cached_tokens: 0,
            output_tokens: 11,
            preemptions: 0,
            arrival: SimTime(1_000),
            first_scheduled: SimTime(1_500),
            first_token: SimTime(3_000),
            end: SimTime(13_000),
            outcome: Outcome::Finished,
        }
    }

    #[test]
    fn each_metric_is_the_difference_of_its_instants() {
        let r = row();
        assert_eq!(ttft(&r), Some(SimDuration(2_000)));
        assert_eq!(queue(&r), Some(SimDuration(500)));
        assert_eq!(e2e(&r), Some(SimDuration(12_000)));
        assert_eq!(tpot(&r), Some(SimDuration(1_000)));
        assert_eq!(normalised(&r), Some(SimDuration(1_091)));
    }

    #[test]
    fn requests_that_did_not_finish_have_no_latency() {
        let r = RequestRow {
            outcome: Outcome::TimedOut,
            ..row()
        };
        assert_eq!(
            (ttft(&r), e2e(&r), tpot(&r), queue(&r)),
            (None, None, None, None)
        );
        assert!(!Slo::default().met_by(&r));
    }

    #[test]
    fn a_single_token_has_no_tpot_and_meets_any_tpot_limit() {
        let r = RequestRow {
            output_tokens: 1,
            ..row()
        };
        let slo = Slo {
            tpot: Some(SimDuration(1)),
            ..Slo::default()
        };
        assert_eq!(tpot(&r), None);
        assert!(slo.met_by(&r));
        assert!(!slo.met_by(&row()));
    }
}
