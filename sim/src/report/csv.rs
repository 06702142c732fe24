//! Tables of a record: requests, steps and the time series; and reading requests back.
//!
//! Instants are seconds with nine decimals, so no nanosecond is lost; what a request never reached is empty.

use std::io::{self, Read, Write};

use crate::cluster::requests::NO_REPLICA;
use crate::kernel::time::SimTime;
use crate::kube::record::ClusterRecord;
use crate::metrics::definition::Metric;
use crate::policy::Blocked;
use crate::record::{RequestRow, RunRecord, StepRow};
use crate::request::{Outcome, RejectReason};

/// Columns of `requests.csv`.
pub const REQUEST_COLUMNS: [&str; 17] = [
    "id",
    "stream",
    "replica",
    "outcome",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "end_s",
    "queue_ms",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "normalised_ms",
];

/// Why a table of requests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// The text is not a table, or cannot be read at all.
    #[error("{0}")]
    Table(#[from] csv::Error),
    /// A column is missing.
    #[error("no column `{0}`; a table of requests has: {columns}", columns = REQUEST_COLUMNS[..12].join(", "))]
    NoColumn(&'static str),
    /// A field does not hold what its column says.
    #[error("line {line}: {column}: `{value}` is not {wanted}")]
    Field {
        /// Line of the file, from 1.
        line: u64,
        /// Column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        wanted: &'static str,
    },
    /// Instants out of order.
    #[error("line {line}: the request ends or is served before it is sent")]
    Order {
        /// Line of the file, from 1.
        line: u64,
    },
}

/// An instant in seconds, exactly; empty for one that never came.
pub(super) fn instant(t: SimTime) -> String {
    if t == SimTime::NEVER {
        String::new()
    } else {
        format!("{}.{:09}", t.0 / 1_000_000_000, t.0 % 1_000_000_000)
    }
}

/// Reads an instant in seconds with at most nine decimals; empty is [`SimTime::NEVER`].
pub fn parse_instant(text: &str) -> Option<SimTime> {
    if text.is_empty() {
        return Some(SimTime::NEVER);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let ns = whole.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    (ns != u64::MAX).then_some(SimTime(ns))
}

/// The name of an outcome in tables: `finished`, `rejected:queue_full`, ...
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "finished",
        Outcome::TimedOut => "timed_out",
        Outcome::Failed => "failed",
        Outcome::InFlight => "in_flight",
        Outcome::Rejected(RejectReason::Overloaded) => "rejected:overloaded",
        Outcome::Rejected(RejectReason::QueueFull) => "rejected:queue_full",
        Outcome::Rejected(RejectReason::TooLong) => "rejected:too_long",
        Outcome::Rejected(RejectReason::NeverFits) => "rejected:never_fits",
        Outcome::Rejected(RejectReason::NoEndpoint) => "rejected:no_endpoint",
    }
}

fn parse_outcome(name: &str) -> Option<Outcome> {
    [
        Outcome::Finished,
        Outcome::TimedOut,
        Outcome::Failed,
        Outcome::InFlight,
        Outcome::Rejected(RejectReason::Overloaded),
        Outcome::Rejected(RejectReason::QueueFull),
        Outcome::Rejected(RejectReason::TooLong),
        Outcome::Rejected(RejectReason::NeverFits),
        Outcome::Rejected(RejectReason::NoEndpoint),
    ]
    .into_iter()
    .find(|o| outcome_name(*o) == name)
}

/// Writes a row per request, in the order of their ends.
///
/// # Errors
/// Those of the writer.
pub fn write_requests(out: impl Write, rows: &[RequestRow]) -> io::Result<()> {
    write_served(out, rows, None)
}

/// The same; of a run in a cluster with the pod that served each request last, and the number of its container's start: both name a row of `pods.csv`.
///
/// # Errors
/// Those of the writer.
pub fn write_served(
    out: impl Write,
    rows: &[RequestRow],
    cluster: Option<&ClusterRecord>,
) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    let mut columns = REQUEST_COLUMNS.to_vec();
    let engines = (rows.iter().map(|r| r.replica))
        .filter(|r| *r != NO_REPLICA)
        .max();
    let pods = cluster.map(|c| (c, c.engine_pods(engines.map_or(0, |n| n as usize + 1))));
    if pods.is_some() {
        columns.extend(["pod", "start"]);
    }
    w.write_record(columns)?;
    for row in rows {
        let ms = |m: Metric| {
            m.of(row)
                .map_or(String::new(), |d| format!("{:.6}", d.as_millis()))
        };
        let mut fields = vec![
            row.id.to_string(),
            row.stream.to_string(),
            row.replica.to_string(),
            outcome_name(row.outcome).to_string(),
            row.prompt_tokens.to_string(),
            row.cached_tokens.to_string(),
            row.output_tokens.to_string(),
            row.preemptions.to_string(),
            instant(row.arrival),
            instant(row.first_scheduled),
            instant(row.first_token),
            instant(row.end),
            ms(Metric::Queue),
            ms(Metric::Ttft),
            ms(Metric::Tpot),
            ms(Metric::E2e),
            ms(Metric::Normalised),
        ];
        if let Some((c, pods)) = &pods {
            let of = pods.get(row.replica as usize).copied().flatten();
            fields.extend(match of {
                Some((pod, start)) => [c.pods[pod].name.clone(), start.to_string()],
                None => [String::new(), String::new()],
            });
        }
        w.write_record(&fields)?;
    }
    w.flush()
}

/// Reads what [`write_requests`] wrote; the derived latencies are recomputed, not read.
///
/// # Errors
/// When the text is no such table; names line and column.
pub fn read_requests(input: impl Read) -> Result<Vec<RequestRow>, CsvError> {
    let mut reader = csv::Reader::from_reader(input);
    let headers = reader.headers()?.clone();
    let mut at = [0; 12];
    for (at, name) in at.iter_mut().zip(REQUEST_COLUMNS) {
        *at = headers
            .iter()
            .position(|h| h.trim() == name)
            .ok_or(CsvError::NoColumn(name))?;
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = |column: usize| record.get(at[column]).unwrap_or("").trim();
        let wrong = |column: usize, wanted: &'static str| CsvError::Field {
            line,
            column: REQUEST_COLUMNS[column],
            value: text(column).chars().take(60).collect(),
            wanted,
        };
        let count = |column: usize| {
            text(column)
                .parse::<u32>()
                .map_err(|_| wrong(column, "a whole number from 0 to 4294967295"))
        };
        let time = |column: usize| {
            parse_instant(text(column))
                .ok_or_else(|| wrong(column, "seconds with at most nine decimals"))
        };
        let row = RequestRow {
            id: count(0)?,
            stream: text(1)
                .parse()
                .map_err(|_| wrong(1, "a whole number from 0 to 65535"))?,
            replica: count(2)?,
            outcome: parse_outcome(text(3)).ok_or_else(|| wrong(3, "an outcome"))?,
            prompt_tokens: count(4)?,
            cached_tokens: count(5)?,
            output_tokens: count(6)?,
            preemptions: count(7)?,
            arrival: time(8)?,
            first_scheduled: time(9)?,
            first_token: time(10)?,
            end: time(11)?,
        };
        if row.arrival == SimTime::NEVER {
            return Err(wrong(8, "an instant"));
        }
        let reached = [row.first_scheduled, row.first_token, row.end];
        if reached.iter().any(|t| *t < row.arrival) {
            return Err(CsvError::Order { line });
        }
        rows.push(row);
    }
    Ok(rows)
}

fn blocked_name(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::Nothing => "",
        Blocked::KvFull => "kv_full",
        Blocked::MaxSeqs => "max_seqs",
        Blocked::TokenBudget => "token_budget",
    }
}

/// Columns of `steps.csv` that a simulated and a measured step have in common.
pub const STEP_COLUMNS: [&str; 14] = [
    "replica",
    "start_s",
    "end_s",
    "running",
    "waiting",
    "kv_used_blocks",
    "blocked_by",
    "decode_seqs",
    "decode_tokens",
    "decode_ctx_sum",
    "prefill_seqs",
    "prefill_tokens",
    "prefill_pairs",
    "sampled_seqs",
];

/// The fields of a step under [`STEP_COLUMNS`].
pub fn step_fields(row: &StepRow) -> [String; 14] {
    let s = &row.stats;
    [
        row.replica.to_string(),
        instant(row.start),
        instant(row.end),
        row.running.to_string(),
        row.waiting.to_string(),
        row.kv_used_blocks.to_string(),
        blocked_name(row.blocked).to_string(),
        s.decode_seqs.to_string(),
        s.decode_tokens.to_string(),
        s.decode_ctx_sum.to_string(),
        s.prefill_seqs.to_string(),
        s.prefill_tokens.to_string(),
        s.prefill_pairs.to_string(),
        s.sampled_seqs.to_string(),
    ]
}

/// Writes a row per step; nothing but the header where steps were not kept. The parts of a step are never negative and add up to its
/// time; `overlap_ms` is what kernels that ran beside each other saved, and not in that sum.
///
/// # Errors
/// Those of the writer.
pub fn write_steps(out: impl Write, record: &RunRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    let parts = hwmodels::Parts::NAMES.map(|n| format!("{n}_ms"));
    w.write_record(
        STEP_COLUMNS
            .iter()
            .copied()
            .chain(parts.iter().map(String::as_str))
            .chain(["overlap_ms"]),
    )?;
    let ms = |seconds: f64| format!("{:.6}", seconds * 1e3);
    for row in record.step_rows.iter().flatten() {
        let parts = row.parts.as_array().map(ms);
        let overlap = [ms(row.parts.overlap)];
        w.write_record(step_fields(row).iter().chain(&parts).chain(&overlap))?;
    }
    w.flush()
}

/// Writes the time series: time-weighted means over bins, summed over replicas.
///
/// # Errors
/// Those of the writer.
pub fn write_series(out: impl Write, record: &RunRecord) -> io::Result<()> {
    let blocks: u64 = record.info.replicas.iter().map(|r| r.kv_blocks).sum();
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "start_s",
        "width_s",
        "running",
        "waiting",
        "kv_blocks",
        "kv_used_ratio",
    ])?;
    for p in record.series.points(record.end) {
        let ratio = if blocks > 0 {
            format!("{:.6}", p.kv_blocks / blocks as f64)
        } else {
            String::new()
        };
        w.write_record([
            instant(p.start),
            instant(SimTime(p.width.0)),
            format!("{:.4}", p.running),
            format!("{:.4}", p.waiting),
            format!("{:.2}", p.kv_blocks),
            ratio,
        ])?;
    }
    w.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "id,stream,replica,outcome,prompt_tokens,cached_tokens,output_tokens,preemptions,\
                          arrival_s,first_scheduled_s,first_token_s,end_s\n";

    fn error(text: &str) -> String {
        read_requests(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn wrong_tables_are_refused_with_line_and_column() {
        assert!(error("a,b\n1,2\n").contains("no column `id`"));
        let e = error(&format!("{HEADER}0,0,0,finished,x,0,1,0,0,0,0,1\n"));
        assert!(e.contains("line 2: prompt_tokens: `x`"), "{e}");
        let e = error(&format!("{HEADER}0,0,0,lost,1,0,1,0,0,0,0,1\n"));
        assert!(e.contains("outcome: `lost`"), "{e}");
        let e = error(&format!("{HEADER}0,0,0,finished,1,0,1,0,-1,0,0,1\n"));
        assert!(e.contains("arrival_s: `-1`"), "{e}");
        let e = error(&format!("{HEADER}0,0,0,finished,1,0,1,0,2,0,0,1\n"));
        assert!(e.contains("before it is sent"), "{e}");
        assert!(read_requests(&b"id\n\xff\xfe\n"[..]).is_err());
        let e = error(&format!("{HEADER}0,0,0,finished,1,0,1,0,1e999,0,0,1\n"));
        assert!(e.contains("seconds"), "{e}");
        assert!(read_requests(&b""[..]).is_err());
    }

    fn rows() -> impl Strategy<Value = RequestRow> {
        let instants = (0u64..1 << 50, 0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40);
        let counts = (
            any::<u32>(),
            any::<u16>(),
            any::<u32>(),
            1u32..99_999,
            0u32..9,
        );
        let outcome = prop::sample::select(vec![
            Outcome::Finished,
            Outcome::TimedOut,
            Outcome::InFlight,
            Outcome::Rejected(RejectReason::NeverFits),
        ]);
        (instants, counts, outcome).prop_map(
            |((a, b, c, d), (id, stream, replica, n, p), outcome)| {
                let served = outcome == Outcome::Finished;
                let at = |t: u64| if served { SimTime(t) } else { SimTime::NEVER };
                RequestRow {
                    id,
                    stream,
                    replica,
                    prompt_tokens: n,
                    cached_tokens: n / 2,
                    output_tokens: n,
                    preemptions: p,
                    arrival: SimTime(a),
                    first_scheduled: at(a + b),
                    first_token: at(a + b + c),
                    end: SimTime(a + b + c + d),
                    outcome,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn requests_written_are_read_back_to_the_nanosecond(rows in prop::collection::vec(rows(), 0..20)) {
            let mut bytes = Vec::new();
            write_requests(&mut bytes, &rows).unwrap();
            prop_assert_eq!(read_requests(bytes.as_slice()).unwrap(), rows);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,200}") {
            let _ = read_requests(format!("{HEADER}{text}").as_bytes());
        }
    }
}
