//! `servetwin compare`: scenarios under the same seeds, against the first of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hwmodels::profile::Param;
use indicatif::ProgressBar;
use rayon::prelude::*;
use sim::report::RunReport;
use sim::report::compare::{Comparison, MOST, Side};
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::commands::report;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;
use crate::simulate::{Keep, Path as SimPath, ScenarioArgs, Seeds, drawn, give_ranges, simulate};

/// Paired runs where neither --seeds nor --draws says how many.
const SEEDS: u64 = 5;

/// Run scenarios under the same seeds and show how they differ from the first, with confidence intervals.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin compare scenarios/llama2-7b-g5.2xlarge-tgi.toml scenarios/llama2-7b-g5.12xlarge-tgi.toml
  servetwin compare scenarios/llama2-7b-g5.2xlarge-tgi.toml scenarios/llama2-7b-g5.12xlarge-tgi.toml \\
    scenarios/llama2-7b-g5.48xlarge-tgi.toml --seeds 3
  servetwin compare scenarios/llama2-7b-g5.2xlarge-tgi.toml scenarios/llama2-7b-g5.2xlarge-tgi.toml \\
    --set-b 'workload[0].arrival.rate=1 req/s' --draws 20
  servetwin compare before.servetwin after.servetwin   # two records, as they were run", &[exit_code::NOTHING_FINISHED], &[]))]
pub struct Args {
    /// Scenario files or records (.servetwin, as they were run), at least two: the first (A) is the base that the others (B, C, ...)
    /// are held against.
    #[arg(value_name = "FILE", num_args = 2..=MOST, required = true)]
    files: Vec<PathBuf>,
    /// Override a value of all, e.g. 'run.requests=500'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Override a value of A. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set_a: Vec<String>,
    /// Override a value of B. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set_b: Vec<String>,
    /// Paired runs; the seeds count up from A's [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// The same requests in every pair: only the routers' draws and the course of the machines' speed differ.
    #[arg(long)]
    same_load: bool,
    /// One paired run, and N more with the profiles' parameters drawn within their standard errors, the same draw on all sides;
    /// gives the interval of 90 % of the differences.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=10_000), conflicts_with_all = ["seeds", "same_load"])]
    draws: Option<u64>,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// A run to do: of which side, with which seeds, with which draw.
struct Job {
    side: usize,
    seeds: Seeds,
    draw: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if args.files.iter().any(|f| report::is_record(f)) {
        return shown(recorded(&args)?, args.json);
    }
    let scenarios = load(&args)?;
    let uncertain = match args.draws {
        Some(_) => uncertain(&scenarios)?,
        None => Vec::new(),
    };
    let jobs = jobs(&args, scenarios.len(), scenarios[0].seed);
    let bar = progress::runs(jobs.len() as u64, "runs");
    // In the order of the jobs, whatever the threads do.
    let reports = jobs
        .par_iter()
        .map(|job| one(job, &scenarios, &uncertain, &bar))
        .collect::<anyhow::Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let mut sides: Vec<Side> = scenarios
        .iter()
        .map(|s| Side {
            config: s.show(),
            ..Side::default()
        })
        .collect();
    for (job, report) in jobs.iter().zip(reports) {
        let side = &mut sides[job.side];
        match job.draw {
            None => side.runs.push(report),
            Some(_) => side.draws.push(report),
        }
    }
    shown(sides, args.json)
}

/// The runs of records, as they are.
fn recorded(args: &Args) -> anyhow::Result<Vec<Side>> {
    if let Some(file) = args.files.iter().find(|f| !report::is_record(f)) {
        return Err(BadInput(format!(
            "{} is a scenario and others are records; record it too: servetwin run {} --record OUT.servetwin",
            file.display(),
            file.display()
        ))
        .into());
    }
    let overrides = [&args.set, &args.set_a, &args.set_b];
    if overrides.iter().any(|s| !s.is_empty())
        || args.seeds.is_some()
        || args.draws.is_some()
        || args.same_load
    {
        return Err(BadInput(
            "records are compared as they were run; --set, --seeds, --same-load and --draws are for scenarios".into(),
        )
        .into());
    }
    let side = |file: &PathBuf| -> anyhow::Result<Side> {
        let (report, config) = report::read(file)?;
        Ok(Side {
            config,
            runs: vec![report],
            ..Side::default()
        })
    };
    args.files.iter().map(side).collect()
}

/// Prints the comparison of `sides`.
fn shown(sides: Vec<Side>, json: bool) -> anyhow::Result<u8> {
    let mut sides = sides.into_iter();
    let (Some(a), Some(b)) = (sides.next(), sides.next()) else {
        return Err(BadInput("compare needs two scenarios at least".into()).into());
    };
    let comparison = Comparison::new(a, b, sides.collect());
    if json {
        print_json(&comparison)?;
    } else {
        print(&comparison.render())?;
    }
    if comparison.nothing_finished() {
        if json {
            note!("warning: a run finished nothing: there are no latencies to compare");
        }
        return Ok(exit_code::NOTHING_FINISHED);
    }
    Ok(exit_code::OK)
}

/// The scenarios with their overrides.
fn load(args: &Args) -> anyhow::Result<Vec<Scenario>> {
    let none = Vec::new();
    let of_each = [&args.set_a, &args.set_b];
    args.files
        .iter()
        .enumerate()
        .map(|(i, file)| {
            let own = of_each.get(i).copied().unwrap_or(&none);
            ScenarioArgs {
                file: file.clone(),
                set: args.set.iter().chain(own).cloned().collect(),
                ..ScenarioArgs::default()
            }
            .load()
        })
        .collect()
}

/// The parameters of each scenario that are known within a standard error only.
fn uncertain(scenarios: &[Scenario]) -> anyhow::Result<Vec<BTreeMap<String, Param>>> {
    let found = scenarios
        .iter()
        .map(|s| Ok(s.build().map_err(|e| BadInput(e.to_string()))?.uncertain))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if found.iter().all(BTreeMap::is_empty) {
        return Err(BadInput(
            "--draws has nothing to draw: no profile in use gives a parameter with a standard error (analytic or constant \
             step times, or hardware.params sets them all)"
                .into(),
        )
        .into());
    }
    Ok(found)
}

/// The runs of `sides` scenarios, each of which starts with seed `first`.
fn jobs(args: &Args, sides: usize, first: u64) -> Vec<Job> {
    let seeds = match args.draws {
        Some(_) => 1,
        None => args.seeds.unwrap_or(SEEDS),
    };
    let mut jobs = Vec::new();
    for i in 0..seeds {
        let cluster = first.wrapping_add(i);
        let load = if args.same_load { first } else { cluster };
        jobs.extend((0..sides).map(|side| Job {
            side,
            seeds: Seeds { load, cluster },
            draw: None,
        }));
    }
    for i in 0..args.draws.unwrap_or(0) {
        jobs.extend((0..sides).map(|side| Job {
            side,
            seeds: Seeds::from(first),
            draw: Some(i),
        }));
    }
    jobs
}

fn one(
    job: &Job,
    scenarios: &[Scenario],
    uncertain: &[BTreeMap<String, Param>],
    bar: &ProgressBar,
) -> anyhow::Result<RunReport> {
    let scenario = &scenarios[job.side];
    let drawn = job
        .draw
        // One seed for all sides: a parameter that two profiles share is drawn alike.
        .map(|i| drawn(scenario, &uncertain[job.side], scenarios[0].seed, i));
    let scenario = drawn.as_ref().unwrap_or(scenario);
    let done = simulate(scenario, job.seeds, Keep::Requests, SimPath::Auto, None)?;
    let mut report = RunReport::new(&done.record, done.wall_s);
    // Once for each scenario: the ranges are those of any of its runs.
    if job.draw.is_none() && job.seeds.cluster == scenarios[0].seed {
        give_ranges(scenario, job.seeds, SimPath::Auto, &mut report)?;
    }
    bar.inc(1);
    Ok(report)
}
