//! `servetwin trace`: statistics of a trace, and synthetic traces with given statistics.

use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use hwmodels::files::Disk;
use sim::workload::TraceFormat;
use sim::workload::synth::{self, Synthesizer};
use sim::workload::trace::{self, TraceColumns, TraceReader};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, Stdout, print, write_file};

/// Checks, describes and imitates request traces.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: servetwin trace synth azure-conv --requests 1000 --out conv.csv")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads a whole trace and says what it holds; the first fault is the error.
    #[command(
        after_help = "Examples:\n  servetwin trace check scenarios/traces/azure-conv-synthetic.csv\n  \
                      servetwin trace check log.csv --columns arrival=ts,prompt=in,output=out,time=ms"
    )]
    Check(Input),
    /// Prints the statistics of a trace as TOML, which `trace synth` can draw from.
    #[command(
        after_help = "Example:\n  servetwin trace stats scenarios/traces/azure-conv-synthetic.csv > mine.toml"
    )]
    Stats(Input),
    /// Writes a synthetic trace.
    Synth {
        /// `azure-conv`, `mooncake`, or a file of statistics (.toml).
        stats: String,
        /// Requests to write.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=trace::MAX_TRACE_ROWS))]
        requests: u64,
        /// Seed; the same seed gives the same trace.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// File to write; standard output if absent.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

/// A trace to read.
#[derive(Debug, clap::Args)]
struct Input {
    /// The trace; may be gzip-compressed. docs/scenario.md lists the formats.
    file: PathBuf,
    /// Its format.
    #[arg(long, value_enum, default_value_t = Format::Auto, conflicts_with = "columns")]
    format: Format,
    /// Columns of a CSV file, or keys of JSON lines: arrival=NAME,prompt=NAME,output=NAME, and optionally max_tokens=NAME,
    /// session=NAME, time=auto|s|ms|us|ns|date.
    #[arg(long, value_name = "KEY=NAME,...", value_parser = TraceColumns::parse)]
    columns: Option<TraceColumns>,
}

impl Input {
    fn open(&self) -> Result<TraceReader, BadInput> {
        TraceReader::open(&Disk, &self.file, self.format.into(), self.columns.as_ref())
            .map_err(BadInput)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Auto,
    Azure,
    Mooncake,
    BurstGpt,
    Csv,
    Records,
    Vidur,
    Servegen,
    Splitwise,
    Aiperf,
    VllmBench,
    Guidellm,
}

impl From<Format> for TraceFormat {
    fn from(f: Format) -> TraceFormat {
        match f {
            Format::Auto => TraceFormat::Auto,
            Format::Azure => TraceFormat::Azure,
            Format::Mooncake => TraceFormat::Mooncake,
            Format::BurstGpt => TraceFormat::BurstGpt,
            Format::Csv => TraceFormat::Csv,
            Format::Records => TraceFormat::Records,
            Format::Vidur => TraceFormat::Vidur,
            Format::Servegen => TraceFormat::Servegen,
            Format::Splitwise => TraceFormat::Splitwise,
            Format::Aiperf => TraceFormat::Aiperf,
            Format::VllmBench => TraceFormat::VllmBench,
            Format::Guidellm => TraceFormat::Guidellm,
        }
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        Command::Check(input) => {
            let s = trace::check_reader(input.open()?).map_err(BadInput)?;
            print(&format!(
                "requests        {}\n\
                 span            {:.3} s\n\
                 prompt tokens   {} ({:.1} per request)\n\
                 output tokens   {} ({:.1} per request)\n\
                 failed, skipped {}\n\
                 shares content  {}\n",
                s.rows,
                s.span_s,
                s.prompt_tokens,
                s.prompt_tokens as f64 / s.rows as f64,
                s.output_tokens,
                s.output_tokens as f64 / s.rows as f64,
                s.skipped,
                if s.shares_content { "yes" } else { "no" }
            ))?;
        }
        Command::Stats(input) => {
            let stats = synth::stats_of(input.open()?).map_err(BadInput)?;
            print(&synth::to_toml(&stats))?;
        }
        Command::Synth {
            stats,
            requests,
            seed,
            out,
        } => {
            output::reads([&stats]);
            if let Some(path) = &out {
                output::check(path)?;
            }
            let stats = synth::load(&Disk, &stats).map_err(BadInput)?;
            let mut synthesizer = Synthesizer::new(stats, seed).map_err(BadInput)?;
            match out {
                Some(path) => write_file(&path, |out| synthesizer.write(requests, out))?,
                None => {
                    let mut out = BufWriter::new(Stdout);
                    synthesizer.write(requests, &mut out)?;
                    out.flush()?;
                }
            }
        }
    }
    Ok(exit_code::OK)
}
