//! Tables of requests as runs: what `servetwin bench --csv` measured at a live endpoint, or `servetwin run --csv` wrote.
//!
//! What only the engine knows is not there: the timeline has requests and no steps.

use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{RecordOptions, Recorder, Slo};
use sim::observer::Observer as _;
use sim::record::{RequestRow, RunInfo};
use sim::report::RunReport;
use sim::report::csv::read_requests;
use store::{Collector, Info, Limits, Record, Replica};

/// Most replicas that a table may name.
const MAX_REPLICAS: usize = 4096;

/// What replicas are called of which nothing is known but their answers.
const ENDPOINT: &str = "endpoint";

/// The tables of a folder.
pub struct Tables<'a> {
    /// `requests.csv`.
    pub requests: &'a [u8],
    /// `summary.json`: the report of the benchmark or run.
    pub summary: Option<&'a str>,
    /// `scenario.toml`: what was sent.
    pub scenario: Option<&'a str>,
}

/// The run that the tables of `name` are of.
///
/// # Errors
/// In words: what is wrong with them, and where.
pub fn record(name: &str, tables: &Tables<'_>) -> Result<Record, String> {
    let mut rows = read_requests(tables.requests).map_err(|e| format!("{name}: {e}"))?;
    if rows.is_empty() {
        return Err(format!("{name} has no request"));
    }
    rows.sort_by_key(|r| (r.end, r.id));
    let served = rows.iter().map(|r| r.replica).filter(|r| *r != u32::MAX);
    let replicas = served.max().map_or(1, |r| r as usize + 1);
    if replicas > MAX_REPLICAS {
        return Err(format!(
            "{name} names replica {}; at most {MAX_REPLICAS} are shown",
            replicas - 1
        ));
    }
    let end = (rows.iter())
        .flat_map(|r| [r.arrival, r.end])
        .filter(|t| *t != SimTime::NEVER)
        .max()
        .unwrap_or_default();
    let (report, simulated) = match tables.summary {
        Some(text) => summary(text).map_err(|e| format!("{name}: summary.json: {e}"))?,
        None => (counted(name, &rows, end)?, false),
    };
    let pool = if simulated { "replica" } else { ENDPOINT };
    let mut collector = Collector::new(Limits::default());
    for row in &rows {
        collector.request(row);
    }
    let collected = collector.take();
    let streams = rows.iter().map(|r| r.stream).max().unwrap_or(0);
    let limit = |ms: Option<f64>| ms.map(|ms| (ms * 1e6) as u64);
    let info = Info {
        format: store::FORMAT,
        version: report.version.clone(),
        scenario: tables.scenario.unwrap_or_default().to_owned(),
        streams: (0..=streams).map(|i| format!("stream {i}")).collect(),
        replicas: (0..replicas).map(|i| replica(pool, i)).collect(),
        end: end.0,
        warmup: (report.warmup_s * 1e9) as u64,
        slo: store::SloLimits {
            ttft: limit(report.slo.ttft_ms),
            tpot: limit(report.slo.tpot_ms),
            e2e: limit(report.slo.e2e_ms),
        },
        requests: rows.len() as u64,
        request_rows: collected.requests.len() as u64,
        request_stride: collected.request_stride,
        step_merge: 1,
        bin_width: collected.rates.width,
        ..Info::default()
    };
    Ok(Record {
        info,
        report,
        requests: collected.requests,
        steps: collected.steps,
        transfers: store::Packed::default(),
        rates: collected.rates,
        cluster: None,
    })
}

/// What served the requests: nothing is known of it.
fn replica(pool: &str, i: usize) -> Replica {
    Replica {
        name: format!("{pool}/{i}"),
        devices: 0,
        stages: 1,
        kv_blocks: 0,
        block_tokens: 0,
    }
}

/// Whether what `record` is of was measured, not simulated.
pub fn is_measured(record: &Record) -> bool {
    let replicas = &record.info.replicas;
    !replicas.is_empty()
        && replicas
            .iter()
            .all(|r| r.devices == 0 && r.pool() == ENDPOINT)
}

/// The report in `summary.json`, that of a run, or of a benchmark, which has it under `run`; and whether it is a run's.
fn summary(text: &str) -> Result<(RunReport, bool), serde_json::Error> {
    let mut all: serde_json::Value = serde_json::from_str(text)?;
    let bench = all.get_mut("run").map(serde_json::Value::take);
    let simulated = bench.is_none();
    Ok((serde_json::from_value(bench.unwrap_or(all))?, simulated))
}

/// The report of the rows alone.
fn counted(name: &str, rows: &[RequestRow], end: SimTime) -> Result<RunReport, String> {
    let mut recorder = Recorder::new(&RecordOptions {
        warmup: SimDuration::ZERO,
        slo: Slo::default(),
        ..RecordOptions::default()
    });
    let mut arrivals: Vec<SimTime> = rows.iter().map(|r| r.arrival).collect();
    arrivals.sort_unstable();
    for at in arrivals {
        recorder.offered(at);
    }
    for row in rows {
        recorder.request(row);
    }
    let info = RunInfo {
        name: name.to_owned(),
        ..RunInfo::default()
    };
    let run = recorder
        .finish(end, info)
        .map_err(|e| format!("{name}: {e}"))?;
    Ok(RunReport::new(&run, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::RunData;
    use crate::run_data::tests::small;

    fn table(run: &RunData) -> Vec<u8> {
        let mut out = Vec::new();
        let rows: Vec<_> = run.record.requests.iter().collect();
        sim::report::csv::write_requests(&mut out, &rows).unwrap();
        out
    }

    #[test]
    fn a_table_of_requests_becomes_a_run_with_the_same_latencies() {
        let run = small();
        let requests = table(&run);
        let summary = serde_json::to_string(&run.record.report).unwrap();
        let bench = format!("{{\"run\": {summary}}}");
        assert!(!is_measured(&run.record));
        for (summary, measured) in [
            (None, true),
            (Some(summary.as_str()), false),
            (Some(bench.as_str()), true),
        ] {
            let tables = Tables {
                requests: &requests,
                summary,
                scenario: None,
            };
            let read = RunData::new(record("bench", &tables).unwrap());
            assert_eq!(read.replicas(), 2);
            assert_eq!(is_measured(&read.record), measured);
            let (a, b) = (&run.record.report, &read.record.report);
            assert_eq!(a.ttft_ms.p99, b.ttft_ms.p99);
            assert_eq!(a.requests, b.requests);
            let ttft = sim::metrics::Metric::Ttft;
            assert_eq!(run.values(ttft), read.values(ttft));
        }
    }

    #[test]
    fn strange_tables_are_refused_in_words() {
        let refused = |text: &str, summary| {
            let tables = Tables {
                requests: text.as_bytes(),
                summary,
                scenario: None,
            };
            record("r.csv", &tables).unwrap_err()
        };
        assert!(refused("a,b\n1,2\n", None).contains("no column `id`"));
        let head = sim::report::csv::REQUEST_COLUMNS.join(",");
        assert!(refused(&format!("{head}\n"), None).contains("has no request"));
        let row = format!("{head}\n0,0,99999,finished,1,0,1,0,0.0,0.0,0.1,0.2,,,,,\n");
        assert!(refused(&row, None).contains("replica 99999"));
        let row = format!("{head}\n0,0,0,finished,1,0,1,0,0.0,0.0,0.1,0.2,,,,,\n");
        assert!(refused(&row, Some("{}")).contains("summary.json"));
    }
}
