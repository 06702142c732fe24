//! `servetwin report`: the figures of a recorded run.

mod html;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sim::report::RunReport;
use sim::report::text::{self, Detail};
use store::StoreError;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, print};

/// Print the report of a record that `run --record` wrote.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin run scenarios/llama2-7b-g5.2xlarge-tgi.toml --record run.servetwin
  servetwin report run.servetwin
  servetwin report run.servetwin --html report.html   # open in a browser
  servetwin report run.servetwin --json | jq .ttft_ms.p99", &[], &[]))]
pub struct Args {
    /// Record file (docs/record.md).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object, that of `run --json` (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
    /// Write the report as a page that opens in a browser without a server or network: figures, charts, the scenario.
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["json", "scenario", "verbose"])]
    html: Option<PathBuf>,
    /// Print the resolved scenario that was run (TOML) in place of the figures.
    #[arg(long, conflicts_with = "json")]
    scenario: bool,
    /// Print also what the profiles were fitted on and how far predictions with each were from measurements.
    #[arg(long, short, conflicts_with_all = ["json", "scenario"])]
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let mut reader = open(&args.file)?;
    if let Some(page) = &args.html {
        output::check(page)?;
        let record = reader.all().map_err(|e| refused(&args.file, e))?;
        output::write_text(page, &html::page(&record)?)?;
        return Ok(exit_code::OK);
    }
    if args.scenario {
        print(&reader.info().scenario)?;
        return Ok(exit_code::OK);
    }
    if args.json {
        let json = reader.report_json().map_err(|e| refused(&args.file, e))?;
        print(&json)?;
        return Ok(exit_code::OK);
    }
    let report = reader.report().map_err(|e| refused(&args.file, e))?;
    let detail = if args.verbose {
        Detail::Verbose
    } else {
        Detail::Brief
    };
    print(&text::render(&report, detail))?;
    Ok(exit_code::OK)
}

/// Whether the name of `file` says that it is a record.
pub fn is_record(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == store::EXTENSION)
}

/// The report and the scenario of the record `file`.
///
/// # Errors
/// [`BadInput`] where it is no record; when it cannot be read.
pub fn read(file: &Path) -> anyhow::Result<(RunReport, String)> {
    let mut reader = open(file)?;
    let report = reader.report().map_err(|e| refused(file, e))?;
    Ok((report, reader.info().scenario.clone()))
}

fn open(file: &Path) -> anyhow::Result<store::Reader<BufReader<File>>> {
    output::reads([file]);
    let input = File::open(file).with_context(|| format!("cannot read {}", file.display()));
    let input = input.map_err(|e| BadInput(format!("{e:#}")))?;
    store::Reader::open(BufReader::new(input)).map_err(|e| refused(file, e))
}

fn refused(file: &Path, error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Io(e) => {
            anyhow::Error::from(e).context(format!("cannot read {}", file.display()))
        }
        e => BadInput(format!("{}: {e}", file.display())).into(),
    }
}
