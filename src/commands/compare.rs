//! `servetwin compare`: two scenarios under the same seeds.

use std::path::PathBuf;

use rayon::prelude::*;
use sim::report::RunReport;
use sim::report::compare::Comparison;

use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;
use crate::simulate::{Keep, Path as SimPath, ScenarioArgs, simulate};

/// Run two scenarios under the same seeds and show the differences with their confidence intervals.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin compare scenarios/llama2-7b-g5.2xlarge-tgi.toml scenarios/llama2-7b-g5.12xlarge-tgi.toml
  servetwin compare scenarios/llama2-7b-g5.2xlarge-tgi.toml scenarios/llama2-7b-g5.2xlarge-tgi.toml \\
    --set-b 'workload[0].arrival.rate=1 req/s'")]
pub struct Args {
    /// First scenario file.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Second scenario file.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Override a value of both, e.g. 'run.requests=500'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Override a value of A. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set_a: Vec<String>,
    /// Override a value of B. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set_b: Vec<String>,
    /// Paired runs; the seeds count up from A's.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let load = |file: PathBuf, own: &[String]| {
        let set = args.set.iter().chain(own).cloned().collect();
        ScenarioArgs {
            file,
            set,
            ..ScenarioArgs::default()
        }
        .load()
    };
    let a = load(args.a.clone(), &args.set_a)?;
    let b = load(args.b.clone(), &args.set_b)?;
    let first = a.seed;
    let bar = progress::runs(2 * args.seeds, "runs");
    let reports = (0..2 * args.seeds)
        .into_par_iter()
        .map(|i| {
            let scenario = if i % 2 == 0 { &a } else { &b };
            let seed = first.wrapping_add(i / 2);
            let done = simulate(scenario, seed, Keep::Requests, SimPath::Auto, None)?;
            bar.inc(1);
            Ok(RunReport::new(&done.record, done.wall_s))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let (mut runs_a, mut runs_b) = (Vec::new(), Vec::new());
    for (i, report) in reports.into_iter().enumerate() {
        if i % 2 == 0 {
            runs_a.push(report);
        } else {
            runs_b.push(report);
        }
    }
    let comparison = Comparison::new(runs_a, runs_b);
    if args.json {
        print_json(&comparison)?;
    } else {
        print(&comparison.render())?;
    }
    Ok(exit_code::OK)
}
