//! `servetwin hpa check`: the simulator's Horizontal Pod Autoscaler against files of test vectors.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sim::control::hpa::spec::Settings;
use sim::control::vectors::{self, Report, RowReport};
use sim::kernel::time::SimDuration;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};

/// The simulator's autoscaling controllers, alone.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(CheckArgs),
}

/// Work out files of test vectors with the simulator's own Horizontal Pod Autoscaler; print the rows that differ and a summary.
///
/// A file is CSV of one of five kinds, told apart by its header: replica calculator, pod grouping, bounds and rates, bounds without
/// behavior, stabilization. docs/autoscaling.md describes the columns.
#[derive(Debug, clap::Args)]
#[command(
    after_help = exit_code::help("Example:\n  servetwin hpa check sim/tests/hpa/*.csv", &[], &[(exit_code::OK, "all rows agree"), (exit_code::FAILURE, "a row differs")])
)]
struct CheckArgs {
    /// Files of test vectors.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Time after a pod's start in which its CPU samples are taken with care [s].
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    cpu_initialization_period: SimDuration,
    /// A pod that became unready within this time of its start was never ready [s].
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    initial_readiness_delay: SimDuration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Seconds, with or without `s`.
fn seconds(text: &str) -> Result<SimDuration, String> {
    match text.strip_suffix('s').unwrap_or(text).trim_end().parse() {
        Ok(secs) if secs >= 0.0 => Ok(SimDuration::from_secs(secs)),
        _ => Err("write a number of seconds of at least 0, as 120 or 120s".to_owned()),
    }
}

/// Runs the chosen subcommand.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        Command::Check(args) => check(args),
    }
}

fn check(args: CheckArgs) -> anyhow::Result<u8> {
    let settings = Settings {
        cpu_initialization_period: args.cpu_initialization_period,
        initial_readiness_delay: args.initial_readiness_delay,
        ..vectors::default_settings()
    };
    let mut reports = Vec::new();
    let mut faults = Vec::new();
    for file in &args.files {
        match read(file, &settings) {
            Ok(report) => reports.push((file, report)),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        return Err(BadInput(faults.join("\n")).into());
    }
    if args.json {
        print_json(&as_json(&reports))?;
    } else {
        print(&in_words(&reports))?;
    }
    let differs = reports
        .iter()
        .any(|(_, report)| report.differing().next().is_some());
    Ok(if differs {
        exit_code::FAILURE
    } else {
        exit_code::OK
    })
}

fn read(file: &Path, settings: &Settings) -> Result<Report, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
    vectors::check(&text, settings).map_err(|e| match e.line {
        Some(line) => format!("{name}:{line}: {}", e.message),
        None => format!("{name}: {}", e.message),
    })
}

/// Counts of each file and of all, and the rows that differ (docs/machine-contracts.md).
fn as_json(reports: &[(&PathBuf, Report)]) -> Value {
    let row = |r: &RowReport| {
        let differences: Vec<Value> = r
            .differences
            .iter()
            .map(|d| json!({ "column": d.column, "expected": d.expected, "got": d.got }))
            .collect();
        json!({ "line": r.line, "case": r.case, "differences": differences, "why": r.why })
    };
    let counts = |rows: usize, differ: usize| json!({ "rows": rows, "agree": rows - differ, "differ": differ });
    let (mut rows, mut differ) = (0, 0);
    let files: Vec<Value> = reports
        .iter()
        .map(|(file, report)| {
            let differing: Vec<Value> = report.differing().map(row).collect();
            rows += report.rows.len();
            differ += differing.len();
            json!({
                "file": file,
                "kind": report.kind.to_string(),
                "counts": counts(report.rows.len(), differing.len()),
                "differing": differing,
            })
        })
        .collect();
    json!({ "counts": counts(rows, differ), "files": files })
}

/// The rows that differ, a line a file, a line for all.
fn in_words(reports: &[(&PathBuf, Report)]) -> String {
    let mut text = String::new();
    for (file, report) in reports {
        for row in report.differing() {
            let _ = writeln!(text, "{}:{}: {row}", file.display(), row.line);
        }
    }
    let (mut rows, mut differ) = (0, 0);
    for (file, report) in reports {
        let differing = report.differing().count();
        let _ = writeln!(
            text,
            "{}: {}: {}",
            file.display(),
            report.kind,
            counts(report.rows.len(), differing)
        );
        rows += report.rows.len();
        differ += differing;
    }
    if reports.len() > 1 {
        let _ = writeln!(text, "all: {}", counts(rows, differ));
    }
    text
}

fn counts(rows: usize, differ: usize) -> String {
    let rows_word = if rows == 1 { "row" } else { "rows" };
    let differ_word = if differ == 1 { "differs" } else { "differ" };
    format!(
        "{rows} {rows_word}, {} agree, {differ} {differ_word}",
        rows - differ
    )
}
