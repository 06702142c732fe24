//! Latencies as a row of a report.

use std::fmt::Write as _;

use crate::report::figures::figure;
use crate::report::latency::LatencySummary;

/// Heads the columns of [`latency_line`].
pub const LATENCY_HEAD: &str =
    "  latency [ms]          mean        p50        p90        p95        p99          n";

/// One metric in a row.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn latency_line(out: &mut String, label: &str, s: &LatencySummary) -> std::fmt::Result {
    write!(out, "  {label:<16}")?;
    for value in [s.mean, s.p50, s.p90, s.p95, s.p99] {
        write!(out, " {:>10}", value.map_or("-".into(), figure))?;
    }
    writeln!(out, " {:>10}", s.n)
}
