//! `servetwin curve`: the latency-throughput curve of a deployment.

mod explore;
mod loads;
mod steady;

use std::path::PathBuf;

use sim::report::curve::{Curve, LoadAxis};
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::picture;
use crate::plot;
use crate::simulate::ScenarioArgs;

use explore::Explorer;
use loads::Loads;

/// Most points of a curve.
const MAX_POINTS: u32 = 1000;
/// Most seeds: each searches by itself.
const MAX_SEEDS: u64 = 100;

/// Sweep the load on a deployment: latency against throughput, capacity, the knee, and what saturates.
///
/// Every load is measured in steady state: a third of each run is left out, and runs are doubled until throughput changes by less than 2 % and mean
/// E2E latency by less than 5 %. Knee and objective are searched between the loads, once per seed.
///
/// Without --rates, --concurrency or --scales the loads are chosen: streams of one rate get rates from 10 to 120 % of their capacity, a closed loop
/// concurrencies that double until throughput stops growing. Traces, day curves and mixes with closed loops get multiples of the scenario's load:
/// traces are sped up, rates and users multiplied, and each run is as long as the scenario says.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --plot curve.svg
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --rates 0.5,1,1.5,2
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --concurrency 1,2,4,8,16,32,64
  servetwin curve scenarios/llama3.1-8b-h100-vllm-day.toml --scales 0.5,1,1.5,2")]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Rates to run [req/s], comma-separated; closed loops become Poisson arrivals.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "R,...",
        conflicts_with_all = ["concurrency", "scales"]
    )]
    rates: Vec<f64>,
    /// Requests kept under way, comma-separated; open loops become closed ones.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,...",
        conflicts_with = "scales"
    )]
    concurrency: Vec<u32>,
    /// Multiples of the scenario's load, comma-separated: for traces, day curves and mixes.
    #[arg(long, value_delimiter = ',', value_name = "X,...")]
    scales: Vec<f64>,
    /// Points of a chosen range of loads.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_POINTS)))]
    points: u32,
    /// Seeds that capacity, knee and objective are searched with, counting up from the scenario's; their spread is in the intervals.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_SEEDS))]
    seeds: u64,
    /// Write the curve as a picture: .svg or .png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    if let Some(file) = &args.plot {
        picture::check(file)?;
    }
    let curve = curve(&args, &scenario)?;
    if let Some(file) = &args.plot {
        picture::write(file, &plot::curve_svg(&curve)?)?;
    }
    if args.json {
        print_json(&curve)?;
    } else {
        print(&curve.render())?;
    }
    Ok(exit_code::OK)
}

fn curve(args: &Args, scenario: &Scenario) -> anyhow::Result<Curve> {
    let users: Vec<f64> = args.concurrency.iter().map(|n| f64::from(*n)).collect();
    let (axis, given) = if !args.rates.is_empty() {
        (LoadAxis::Rate, &args.rates)
    } else if !args.concurrency.is_empty() {
        (LoadAxis::Concurrency, &users)
    } else if !args.scales.is_empty() {
        (LoadAxis::Scale, &args.scales)
    } else {
        let loads = Loads::new(scenario, loads::natural_axis(scenario))?;
        return Explorer::new(&loads, args.seeds).chosen(args.points);
    };
    if given.len() > MAX_POINTS as usize {
        return Err(BadInput(format!(
            "{} loads; at most {MAX_POINTS} make a curve",
            given.len()
        ))
        .into());
    }
    let mut given = given.clone();
    given.sort_by(f64::total_cmp);
    given.dedup();
    let loads = Loads::new(scenario, axis)?;
    Explorer::new(&loads, args.seeds).given(&given)
}
