//! `servetwin whatif`: each single change worth trying, ranked.

use std::path::PathBuf;

use hwmodels::files::Disk;
use planner::whatif::whatif;
use sim::scenario::document;

use crate::exit_code;
use crate::output::{self, print, print_json};
use crate::progress;

/// Try each single change worth trying, and rank them by their effect on price and objectives.
///
/// Replicas, TP degree, engine limits and switches, router, dtypes and instance types are changed one at a time; the load is the same each time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin whatif scenarios/llama2-7b-g5.2xlarge-tgi.toml
  servetwin whatif scenarios/llama2-7b-g5.2xlarge-tgi.toml --set workload.rate=2x --json")]
pub struct Args {
    /// Scenario file (TOML; docs/scenario.md).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Override a value, also a relative one such as workload.rate=2x. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    output::reads([&args.file]);
    let text =
        document::read_text(&Disk, &args.file, "the scenario").map_err(planner::Error::from)?;
    let bar = progress::runs(1, "changes");
    let answer = whatif(
        &planner::World::default(),
        &text,
        &args.file.display().to_string(),
        &args.set,
        &|done: u64, of: u64| {
            bar.set_length(of);
            bar.set_position(done);
        },
    )?;
    bar.finish_and_clear();
    if args.json {
        print_json(&answer)?;
    } else {
        print(&answer.render())?;
    }
    Ok(exit_code::OK)
}
