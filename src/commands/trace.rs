//! `servetwin trace`: statistics of a trace, and synthetic traces with given statistics.

use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use sim::workload::TraceFormat;
use sim::workload::synth::{self, Synthesizer};
use sim::workload::trace;

use super::BadInput;
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
    Check {
        /// The trace: Azure, Mooncake, BurstGPT, plain CSV, or request rows of a run; may be gzip-compressed.
        file: PathBuf,
        /// Its format.
        #[arg(long, value_enum, default_value_t = Format::Auto)]
        format: Format,
    },
    /// Prints the statistics of a trace as TOML, which `trace synth` can draw from.
    Stats {
        /// The trace.
        file: PathBuf,
        /// Its format.
        #[arg(long, value_enum, default_value_t = Format::Auto)]
        format: Format,
    },
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Auto,
    Azure,
    Mooncake,
    BurstGpt,
    Csv,
    Records,
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
        }
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        Command::Check { file, format } => {
            let s = trace::check(&file, format.into()).map_err(BadInput)?;
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
        Command::Stats { file, format } => {
            let stats = synth::stats(&file, format.into()).map_err(BadInput)?;
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
            let stats = synth::load(&stats).map_err(BadInput)?;
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
