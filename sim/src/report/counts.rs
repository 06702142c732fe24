//! How many requests ended how, and why some were refused.

use serde::{Deserialize, Serialize};

use crate::record::{Counts, RunRecord};
use crate::request::{Outcome, RejectReason};

/// Requests by outcome.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct RequestCounts {
    /// Sent by clients.
    pub offered: u64,
    /// Answered in full.
    pub finished: u64,
    /// Refused.
    pub rejected: u64,
    /// Given up by their client.
    pub timed_out: u64,
    /// Accepted but not served.
    pub failed: u64,
    /// Still under way when the run ended.
    pub in_flight: u64,
}

impl RequestCounts {
    /// Counts one more request.
    pub(crate) fn count(&mut self, outcome: Outcome) {
        self.offered += 1;
        match outcome {
            Outcome::Finished => self.finished += 1,
            Outcome::Rejected(_) => self.rejected += 1,
            Outcome::TimedOut => self.timed_out += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::InFlight => self.in_flight += 1,
        }
    }

    /// Requests that ended without an answer in full: rejected, timed out or failed.
    pub fn lost(&self) -> u64 {
        self.rejected + self.timed_out + self.failed
    }

    /// Share of the offered requests that finished [0, 1]; none where none was offered.
    pub fn finished_ratio(&self) -> Option<f64> {
        (self.offered > 0).then(|| self.finished as f64 / self.offered as f64)
    }

    /// The outcomes other than finished, as far as there are any: `750 rejected, 3 timed out`.
    pub fn unfinished_in_words(&self) -> String {
        [
            (self.rejected, "rejected"),
            (self.timed_out, "timed out"),
            (self.failed, "failed"),
            (self.in_flight, "in flight at the end"),
        ]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect::<Vec<_>>()
        .join(", ")
    }

    /// All outcomes: `1000 offered, 250 finished, 750 rejected`.
    pub fn in_words(&self) -> String {
        let rest = self.unfinished_in_words();
        let comma = if rest.is_empty() { "" } else { ", " };
        format!(
            "{} offered, {} finished{comma}{rest}",
            self.offered, self.finished
        )
    }
}

impl From<Counts> for RequestCounts {
    fn from(c: Counts) -> RequestCounts {
        RequestCounts {
            offered: c.offered,
            finished: c.finished,
            rejected: c.rejected,
            timed_out: c.timed_out,
            failed: c.failed,
            in_flight: c.in_flight,
        }
    }
}

/// Rejected requests by reason.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Rejections {
    /// The engine had as many requests as it takes at once.
    pub overloaded: u64,
    /// The engine's waiting queue was full.
    pub queue_full: u64,
    /// Longer than the engine accepts.
    pub too_long: u64,
    /// Larger than the whole KV cache.
    pub never_fits: u64,
    /// No replica was ready, or none within the time for which the gateway holds requests.
    #[serde(default)]
    pub no_endpoint: u64,
}

impl Rejections {
    /// Counts those of `record`; none where request rows are not kept.
    pub(crate) fn of(record: &RunRecord) -> Option<Rejections> {
        let mut r = Rejections::default();
        for row in record.request_rows.as_ref()? {
            match row.outcome {
                Outcome::Rejected(RejectReason::Overloaded) => r.overloaded += 1,
                Outcome::Rejected(RejectReason::QueueFull) => r.queue_full += 1,
                Outcome::Rejected(RejectReason::TooLong) => r.too_long += 1,
                Outcome::Rejected(RejectReason::NeverFits) => r.never_fits += 1,
                Outcome::Rejected(RejectReason::NoEndpoint) => r.no_endpoint += 1,
                _ => {}
            }
        }
        Some(r)
    }

    /// The reasons there are, with their counts where there are several.
    pub fn in_words(&self) -> String {
        let reasons: Vec<(u64, &str)> = [
            (
                self.overloaded,
                "the engine had as many requests as it takes at once",
            ),
            (self.queue_full, "the engine's waiting queue was full"),
            (self.too_long, "longer than the engine accepts"),
            (self.never_fits, "larger than the whole KV cache"),
            (self.no_endpoint, "no replica was ready"),
        ]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .collect();
        match reasons.as_slice() {
            [(_, only)] => (*only).to_string(),
            several => several
                .iter()
                .map(|(n, why)| format!("{n} {why}"))
                .collect::<Vec<_>>()
                .join(", "),
        }
    }
}

/// What the reader of a run's figures must know about requests that did not finish; none where all but few did.
pub(crate) fn warning(counts: &RequestCounts, why: Option<&Rejections>) -> Option<String> {
    if counts.lost() * 100 <= counts.offered {
        return None;
    }
    let reasons = why.map_or(String::new(), Rejections::in_words);
    let reasons = if reasons.is_empty() {
        reasons
    } else {
        format!(" ({reasons})")
    };
    let lost = RequestCounts {
        in_flight: 0,
        ..*counts
    };
    Some(format!(
        "of {} requests {}{reasons}: latencies but ITL are those of the {} that finished alone, and look better than what clients saw",
        counts.offered,
        lost.unfinished_in_words(),
        counts.finished
    ))
}
