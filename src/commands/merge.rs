//! `servetwin merge`: the shards of a sweep as one table.

use std::path::{Path, PathBuf};

use planner::sweep::{self, Sweep};

use crate::commands::sweep::finish;
use crate::output;

/// Put the shards of a sweep together: results.csv and results.json as one process would have written them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  servetwin merge plans/sweep-limits.toml limits

The results are written into the first folder. Runs that are missing are an error that says how many, and which.")]
pub struct Args {
    /// Sweep file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folders of the shards' journals.
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Override a value of the scenario at every point, as the shards did. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object (docs/machine-contracts.md) instead of CSV.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    output::reads([&args.file]);
    let sweep = Sweep::load(&args.file, &args.set)?;
    let dirs: Vec<&Path> = args.dirs.iter().map(PathBuf::as_path).collect();
    let result = sweep::merge(&sweep, &dirs)?;
    finish(&result, &args.dirs[0], args.json)
}
