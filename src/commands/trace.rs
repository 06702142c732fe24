//! `servetwin trace`: statistics of a trace, and synthetic traces with given statistics.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use sim::workload::TraceFormat;
use sim::workload::synth::{self, Synthesizer};
use sim::workload::trace;

use super::BadInput;
use crate::exit_code;

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
            println!("requests        {}", s.rows);
            println!("span            {:.3} s", s.span_s);
            println!(
                "prompt tokens   {} ({:.1} per request)",
                s.prompt_tokens,
                s.prompt_tokens as f64 / s.rows as f64
            );
            println!(
                "output tokens   {} ({:.1} per request)",
                s.output_tokens,
                s.output_tokens as f64 / s.rows as f64
            );
            println!("failed, skipped {}", s.skipped);
            println!(
                "shares content  {}",
                if s.shares_content { "yes" } else { "no" }
            );
        }
        Command::Stats { file, format } => {
            let stats = synth::stats(&file, format.into()).map_err(BadInput)?;
            io::stdout().write_all(synth::to_toml(&stats).as_bytes())?;
        }
        Command::Synth {
            stats,
            requests,
            seed,
            out,
        } => {
            let stats = synth::load(&stats).map_err(BadInput)?;
            let mut synthesizer = Synthesizer::new(stats, seed).map_err(BadInput)?;
            match out {
                Some(path) => {
                    let file = File::create(&path)
                        .map_err(|e| anyhow::anyhow!("cannot write {}: {e}", path.display()))?;
                    synthesizer.write(requests, &mut BufWriter::new(file))?;
                }
                None => synthesizer.write(requests, &mut BufWriter::new(io::stdout().lock()))?,
            }
        }
    }
    Ok(exit_code::OK)
}
