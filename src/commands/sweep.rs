//! `servetwin sweep`: a scenario over axes of its keys.

use std::path::PathBuf;

use planner::sweep::{self, Shard, Sweep, SweepResult};

use crate::commands::shard::ShardArgs;
use crate::exit_code;
use crate::output::{self, FileSet, print, print_json};
use crate::progress;

/// Run a scenario over axes of its keys, on all cores; go on where a kill left off.
///
/// A sweep file names a scenario and its axes: lists, ranges, or a Latin hypercube (docs/planning.md). What is done stands in a journal in --out; the same
/// command makes the rest. When all is done, results.csv, results.parquet and results.json are written there, in the order of the points, and the table is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin sweep plans/sweep-limits.toml --out limits
  servetwin sweep plans/sweep-limits.toml --out limits --shard 1/2 && servetwin sweep plans/sweep-limits.toml --out limits --shard 2/2
  servetwin merge plans/sweep-limits.toml limits

In a job array of Slurm or Kubernetes: servetwin sweep FILE --out DIR --shards 8, which reads SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX.", &[exit_code::INCOMPLETE], &[(exit_code::INCOMPLETE, "some points could not be run: their rows say why")]))]
pub struct Args {
    /// Sweep file (TOML; docs/planning.md).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Override a value of the scenario at every point. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Folder of the journal and the results.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    shard: ShardArgs,
    /// Print one JSON object (docs/machine-contracts.md) instead of CSV.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    output::reads([&args.file]);
    let sweep = Sweep::load(&args.file, &args.set)?;
    output::reads([&sweep.scenario]);
    let shard = args.shard.part()?.unwrap_or(Shard::WHOLE);
    let bar = progress::runs(sweep.runs(), "runs");
    let progress = |done: u64, of: u64| {
        bar.set_length(of);
        bar.set_position(done);
    };
    let say = |what: &str| note!("warning: {what}");
    let rows = sweep::run(&sweep, shard, &args.out, &progress, &say)?;
    bar.finish_and_clear();
    if shard != Shard::WHOLE {
        let failed = rows.iter().filter(|r| r.error.is_some()).count();
        print(&format!(
            "shard {}/{}: {} of the sweep's {} runs are done\n",
            shard.index,
            shard.count,
            rows.len(),
            sweep.runs()
        ))?;
        return Ok(code(failed));
    }
    finish(&SweepResult::new(&sweep, rows), &args.out, args.json)
}

/// Writes the results of a whole sweep into `dir`, and prints them.
pub fn finish(result: &SweepResult, dir: &std::path::Path, json: bool) -> anyhow::Result<u8> {
    let csv = result.csv()?;
    let mut files = FileSet::new();
    files.write(&dir.join("results.csv"), |out| {
        std::io::Write::write_all(out, csv.as_bytes())
    })?;
    let parquet = result.parquet()?;
    files.write(&dir.join("results.parquet"), |out| {
        std::io::Write::write_all(out, &parquet)
    })?;
    files.write(&dir.join("results.json"), |out| {
        serde_json::to_writer_pretty(&mut *out, result)?;
        std::io::Write::write_all(out, b"\n")
    })?;
    files.commit()?;
    if json {
        print_json(result)?;
    } else {
        print(&csv)?;
    }
    let failed = result.failed();
    if failed > 0 {
        note!(
            "warning: {failed} of {} runs could not be made; the column `error` says why",
            result.runs.len()
        );
    }
    Ok(code(failed))
}

fn code(failed: usize) -> u8 {
    if failed > 0 {
        exit_code::INCOMPLETE
    } else {
        exit_code::OK
    }
}
