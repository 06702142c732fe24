//! Whether enough requests were answered for the figures to mean anything.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sim::request::Outcome;

use crate::driver::{RawRun, Sample};
use crate::endpoint::ErrorKind;

/// Kinds of errors that a complaint names.
const NAMED: usize = 3;

/// So many failures at the end of a run say that the endpoint died: with 1 % of errors, one run in 10 billion ends so by chance.
const DEAD_AFTER: u64 = 5;

/// How the requests of a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Sent.
    pub sent: u64,
    /// Answered in full.
    pub finished: u64,
    /// Refused, timed out, failed. What was under way at the end and what the workload says its clients give up is not among them.
    pub failed: u64,
    /// Failed of those that finished or failed [0, 1].
    pub ratio: f64,
    /// Requests at the end of the run, in the order of their ends, that all failed.
    pub last_in_a_row: u64,
}

impl Failures {
    /// Those of `run`; clients of the streams in `cancelling` give up as the workload says.
    pub fn of(run: &RawRun, cancelling: &[u16]) -> Failures {
        let mut f = Failures {
            sent: run.samples.len() as u64,
            ..Failures::default()
        };
        let mut by_end: Vec<&Sample> = run.samples.iter().collect();
        by_end.sort_by_key(|s| s.sent_ns.saturating_add(s.trace.end_ns));
        for s in by_end {
            let planned = s.spec.timeout.is_some()
                && cancelling.contains(&s.spec.stream)
                && s.trace
                    .error
                    .as_ref()
                    .is_some_and(|e| e.kind == ErrorKind::Timeout);
            match s.outcome() {
                Outcome::Finished => {
                    f.finished += 1;
                    f.last_in_a_row = 0;
                }
                Outcome::InFlight => {}
                _ if planned => {}
                _ => {
                    f.failed += 1;
                    f.last_in_a_row += 1;
                }
            }
        }
        let ended = f.finished + f.failed;
        f.ratio = if ended > 0 {
            f.failed as f64 / ended as f64
        } else {
            0.0
        };
        f
    }

    /// What is wrong with a run of which a share of `allowed` may fail; `None`: nothing. `errors` counts failures by kind, `examples` holds a
    /// message of each.
    pub fn complaint(
        &self,
        errors: &BTreeMap<String, u64>,
        examples: &BTreeMap<String, String>,
        allowed: f64,
    ) -> Option<String> {
        if self.sent == 0 {
            return Some("no request was sent".into());
        }
        let (sent, failed) = (self.sent, self.failed);
        let mut text = if self.finished == 0 {
            format!("none of the {sent} requests finished")
        } else if self.ratio > allowed {
            format!(
                "{failed} of {} requests failed ({:.1} %), more than the {} % that --max-error-rate allows",
                self.finished + failed,
                100.0 * self.ratio,
                100.0 * allowed
            )
        } else if self.last_in_a_row >= DEAD_AFTER && allowed < 1.0 {
            format!(
                "the last {} requests all failed: the endpoint seems to have died",
                self.last_in_a_row
            )
        } else {
            return None;
        };
        let mut kinds: Vec<(&String, &u64)> = errors
            .iter()
            .filter(|(kind, _)| *kind != "short_output")
            .collect();
        kinds.sort_by_key(|(kind, n)| (std::cmp::Reverse(**n), *kind));
        for (i, (kind, n)) in kinds.into_iter().take(NAMED).enumerate() {
            let example = examples.get(kind).map_or("", String::as_str);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "{} {n} x {kind}, e.g. {example}",
                if i == 0 { ":" } else { ";" }
            );
        }
        Some(text)
    }
}
