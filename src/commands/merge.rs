//! `servetwin merge`: the shards of a sweep or of a plan as one.

use std::path::{Path, PathBuf};

use hwmodels::files::Disk;
use planner::sweep::{self, Sweep};
use sim::scenario::document;

use crate::bad_input::BadInput;
use crate::commands::plan;
use crate::commands::sweep::finish;
use crate::output;

/// Put the shards of a sweep or of a plan together.
///
/// Of a sweep: results.csv, results.parquet and results.json as one process would have written them. Of a plan: the answer, as servetwin plan prints it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin merge plans/sweep-limits.toml limits
  servetwin merge plans/chat.toml parts --scenario winner.toml

The results of a sweep are written into the first folder. Runs or parts that are missing are an error that says which.")]
pub struct Args {
    /// Sweep file or planning question.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folders of the shards' journals or parts.
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Override a value of the scenario at every point, or of the question, as the shards did. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    output: plan::Output,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    output::reads([&args.file]);
    if is_question(&args.file)? {
        return plan::merge(&args.file, &args.set, &args.dirs, &args.output);
    }
    if args.output.has_files() {
        let why = "--csv, --plot and --scenario are of a plan; the results of a sweep go into the first folder";
        return Err(BadInput(why.into()).into());
    }
    let sweep = Sweep::load(&args.file, &args.set)?;
    let dirs: Vec<&Path> = args.dirs.iter().map(PathBuf::as_path).collect();
    let result = sweep::merge(&sweep, &dirs)?;
    finish(&result, &args.dirs[0], args.output.is_json())
}

/// Whether a file is a planning question: it has objectives, and a sweep has axes. What is no TOML is said when it is read as a sweep.
///
/// # Errors
/// A file that cannot be read, or is too long.
fn is_question(file: &Path) -> anyhow::Result<bool> {
    let text = document::read_text(&Disk, file, "the sweep or planning question")
        .map_err(planner::Error::from)?;
    let table = text.parse::<toml::Table>();
    Ok(table.is_ok_and(|t| t.contains_key("slo") && !t.contains_key("axis")))
}
