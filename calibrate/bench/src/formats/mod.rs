//! Result files of other benchmarks, read into records and written from ours.
//!
//! The same word means different things in them (`docs/bench.md`), so reading goes through what was observed (instants and
//! counts of each request) wherever a file has that, and our definitions are applied to it. The figures that a file states itself
//! are kept beside, under the file's own names, so that the two can be compared.

pub mod aiperf;
pub mod guidellm;
pub mod inference_perf;
#[cfg(test)]
mod tests;
pub mod vllm;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::RecordOptions;
use sim::record::{RequestRow, RunInfo, RunRecord};
use sim::report::RunReport;
use sim::report::text::{field, figure};
use sim::request::Outcome;

use crate::driver::collect::{self, Measured};
use crate::printable::printable;

/// Largest file that is read [bytes].
const MAX_BYTES: u64 = 2 << 30;

/// A result file that was read.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Whose file it is.
    pub format: &'static str,
    /// What it says of single requests; empty where it has only summaries.
    pub record: RunRecord,
    /// Figures that the file states itself, under its own names, in its own units.
    pub stated: BTreeMap<String, Stated>,
    /// What was converted, and what is missing.
    pub notes: Vec<String>,
}

/// A figure as a file states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stated {
    /// Mean, or the figure itself.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

impl Stated {
    /// A single number.
    pub fn one(value: f64) -> Stated {
        Stated {
            mean: Some(value),
            ..Stated::default()
        }
    }
}

/// An import as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ImportSummary<'a> {
    /// Whose file it is.
    pub format: &'a str,
    /// The figures by our definitions; empty where the file has only summaries.
    pub run: &'a RunReport,
    /// The figures that the file states, under its own names.
    pub stated: &'a BTreeMap<String, Stated>,
    /// What was converted, and what is missing.
    pub notes: &'a [String],
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be opened, or is too long.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// It is none of the known formats, or not as its format should be.
    #[error(
        "{file}: {problem}; known are GuideLLM's benchmarks.json, the JSON of vllm bench serve, AIPerf's profile_export_aiperf.json and \
         profile_export.jsonl, and inference-perf's summary and per-request files"
    )]
    Format {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
}

impl Imported {
    /// As JSON, with the report on its record.
    pub fn summary<'a>(&'a self, report: &'a RunReport) -> ImportSummary<'a> {
        ImportSummary {
            format: self.format,
            run: report,
            stated: &self.stated,
            notes: &self.notes,
        }
    }

    /// For the terminal: our figures where there are requests, then the file's own.
    pub fn render(&self, report: &RunReport) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out, report);
        out
    }

    fn write(&self, out: &mut String, r: &RunReport) -> std::fmt::Result {
        writeln!(out, "{} ({})\n", r.name, self.format)?;
        if r.requests.offered > 0 {
            let q = &r.requests;
            field(
                out,
                "requests",
                &format!(
                    "{} sent, {} finished, {} failed, {} unfinished in {:.3} s",
                    q.offered,
                    q.finished,
                    q.rejected + q.timed_out + q.failed,
                    q.in_flight,
                    r.duration_s
                ),
            )?;
            writeln!(out, "\n{}", sim::report::text::LATENCY_HEAD)?;
            for (label, l) in [
                ("TTFT", &r.ttft_ms),
                ("ITL (pooled)", &r.itl_ms),
                ("TPOT", &r.tpot_ms),
                ("E2E", &r.e2e_ms),
                (sim::report::text::NORMALISED, &r.normalised_ms),
            ] {
                sim::report::text::latency_line(out, label, l)?;
            }
            writeln!(out)?;
            // Until the last request ended, as the tools whose files these are count.
            let t = &r.throughput_with_drain;
            field(
                out,
                "throughput",
                &format!(
                    "{} req/s, {} output tokens/s, {} tokens/s in all",
                    figure(t.requests_per_s),
                    figure(t.output_tokens_per_s),
                    figure(t.total_tokens_per_s)
                ),
            )?;
        }
        if !self.stated.is_empty() {
            writeln!(
                out,
                "\n  the file's own figures, by its own definitions and units\n  {:<40} {:>10} {:>10} {:>10} {:>10}",
                "", "mean", "p50", "p90", "p99"
            )?;
            for (name, s) in &self.stated {
                let cell = |v: Option<f64>| v.map_or("-".into(), figure);
                writeln!(
                    out,
                    "  {name:<40} {:>10} {:>10} {:>10} {:>10}",
                    cell(s.mean),
                    cell(s.p50),
                    cell(s.p90),
                    cell(s.p99)
                )?;
            }
            writeln!(out)?;
        }
        for note in &self.notes {
            field(out, "note", note)?;
        }
        Ok(())
    }
}

/// Reads a result file; a file with several benchmarks gives several.
///
/// # Errors
/// When it cannot be read, or is none of the known formats.
pub fn import(path: &Path) -> Result<Vec<Imported>, ImportError> {
    let file = path.display().to_string();
    let problem = |problem: String| ImportError::File {
        file: file.clone(),
        problem,
    };
    let length = std::fs::metadata(path)
        .map_err(|e| problem(e.to_string()))?
        .len();
    if length > MAX_BYTES {
        return Err(problem(format!(
            "it has {length} bytes; at most {MAX_BYTES} are read"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|e| problem(e.to_string()))?;
    let name = path
        .file_stem()
        .map_or("import".into(), |s| s.to_string_lossy().into_owned());
    parse(&text, &name).map_err(|problem| ImportError::Format { file, problem })
}

/// Reads the text of a result file called `name`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str, name: &str) -> Result<Vec<Imported>, String> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => {
            if value.get("benchmarks").is_some_and(Value::is_array) {
                guidellm::read(&value, name)
            } else if value.get("load_summary").is_some() || value.get("successes").is_some() {
                inference_perf::read_summary(&value, name).map(|i| vec![i])
            } else if is_per_request(&value) {
                inference_perf::read_requests(value.as_array().map_or(&[][..], |v| v), name)
                    .map(|i| vec![i])
            } else if value.get("mean_ttft_ms").is_some() || value.get("ttfts").is_some() {
                vllm::read(&value, name).map(|i| vec![i])
            } else if value.pointer("/request_latency/unit").is_some()
                || value.pointer("/request_throughput/unit").is_some()
            {
                aiperf::read_summary(&value, name).map(|i| vec![i])
            } else if value.get("metrics").is_some() && value.get("metadata").is_some() {
                aiperf::read_lines(&[value], name).map(|i| vec![i])
            } else {
                Err("the JSON is of no known benchmark".into())
            }
        }
        Err(whole) => {
            let lines: Result<Vec<Value>, String> = text
                .lines()
                .enumerate()
                .filter(|(_, l)| !l.trim().is_empty())
                .map(|(i, l)| serde_json::from_str(l).map_err(|e| format!("line {}: {e}", i + 1)))
                .collect();
            // A file of one broken JSON value is better told by that value's fault.
            let lines = lines.map_err(|e| {
                if text.lines().count() > 1 {
                    e
                } else {
                    whole.to_string()
                }
            })?;
            let Some(first) = lines.first() else {
                return Err("it is empty".into());
            };
            if first.get("metrics").is_some() && first.get("metadata").is_some() {
                aiperf::read_lines(&lines, name).map(|i| vec![i])
            } else if first.get("ttfts").is_some() || first.get("mean_ttft_ms").is_some() {
                // `vllm bench serve --append-result` writes one object per line.
                lines.iter().map(|v| vllm::read(v, name)).collect()
            } else if first.get("start_time").is_some() {
                inference_perf::read_requests(&lines, name).map(|i| vec![i])
            } else {
                Err("the JSON lines are of no known benchmark".into())
            }
        }
    }
}

fn is_per_request(value: &Value) -> bool {
    value
        .as_array()
        .and_then(|a| a.first())
        .is_some_and(|r| r.get("start_time").is_some() && r.get("info").is_some())
}

/// One request as a file describes it; times in seconds of the file's own clock.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    start_s: f64,
    first_token_s: Option<f64>,
    last_token_s: Option<f64>,
    end_s: f64,
    prompt_tokens: u32,
    cached_tokens: u32,
    output_tokens: u32,
    /// Gaps between chunks [s]; `None`: the file has only their mean.
    gaps_s: Option<Vec<f64>>,
    outcome: Outcome,
}

/// Requests become a record whose clock starts with the first of them.
fn record(
    requests: &[Request],
    name: &str,
    deployment: String,
    load: String,
    notes: &mut Vec<String>,
) -> Result<RunRecord, String> {
    let zero = requests
        .iter()
        .map(|r| r.start_s)
        .filter(|s| s.is_finite())
        .fold(f64::INFINITY, f64::min);
    let at = |s: f64| SimTime::from_secs((s - zero).max(0.0));
    let mut end = SimTime::ZERO;
    let mut means_only = 0usize;
    let mut measured = Vec::with_capacity(requests.len());
    for (i, r) in requests.iter().enumerate() {
        let id = u32::try_from(i).map_err(|_| "more requests than can be counted".to_string())?;
        if !(r.start_s.is_finite() && r.end_s.is_finite()) || r.end_s < r.start_s {
            return Err(format!("request {i} ends before it starts, or at no time"));
        }
        let last = r.last_token_s.unwrap_or(r.end_s);
        let row_end = if r.outcome == Outcome::Finished {
            at(last)
        } else {
            at(r.end_s)
        };
        end = end.max(at(r.end_s));
        let mut gaps = Vec::new();
        if let Some(first) = r.first_token_s {
            match &r.gaps_s {
                Some(list) => {
                    let mut now = first;
                    for gap in list {
                        now += gap.max(0.0);
                        gaps.push((at(now).0, SimDuration::from_secs(*gap).0, 1));
                    }
                    // Tokens that came with others have no gap of their own.
                    let shared = r
                        .output_tokens
                        .saturating_sub(1 + u32::try_from(list.len()).unwrap_or(u32::MAX));
                    if shared > 0 {
                        gaps.push((at(now).0, 0, shared));
                    }
                }
                None if r.output_tokens > 1 => {
                    means_only += 1;
                    let n = r.output_tokens - 1;
                    let gap = (last - first).max(0.0) / f64::from(n);
                    gaps.push((at(last).0, SimDuration::from_secs(gap).0, n));
                }
                None => {}
            }
        }
        measured.push(Measured {
            row: RequestRow {
                id,
                stream: 0,
                replica: 0,
                prompt_tokens: r.prompt_tokens,
                cached_tokens: r.cached_tokens,
                output_tokens: r.output_tokens,
                preemptions: 0,
                arrival: at(r.start_s),
                first_scheduled: SimTime::NEVER,
                first_token: r.first_token_s.map_or(SimTime::NEVER, at),
                end: if r.outcome == Outcome::InFlight {
                    SimTime::NEVER
                } else {
                    row_end
                },
                outcome: r.outcome,
            },
            gaps,
        });
    }
    if means_only > 0 {
        notes.push(format!(
            "the file has no single gaps of {means_only} requests: each counts with its mean gap, so percentiles of ITL are of means"
        ));
    }
    let info = RunInfo {
        name: name.to_string(),
        deployment,
        load,
        streams: vec!["imported".into()],
        ..RunInfo::default()
    };
    let options = RecordOptions {
        series_bins: 0,
        ..RecordOptions::default()
    };
    collect::record(&measured, end, &options, info).map_err(|e| e.to_string())
}

/// A number at `pointer`.
fn number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer).and_then(Value::as_f64)
}

/// A token count at `pointer`; whatever is no count is zero.
fn tokens(value: &Value, pointer: &str) -> u32 {
    number(value, pointer)
        .filter(|n| *n >= 0.0)
        .map_or(0, |n| n.min(f64::from(u32::MAX)) as u32)
}

/// A text at `pointer`, fit for a terminal; empty where there is none.
fn text_at(value: &Value, pointer: &str) -> String {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .map(|text| printable(text).into_owned())
        .unwrap_or_default()
}
