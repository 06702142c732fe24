//! `servetwin curve`: the latency-throughput curve of a deployment.

use std::path::PathBuf;

use hwmodels::units::{PerSec, Secs};
use rayon::prelude::*;
use sim::report::RunReport;
use sim::report::curve::{Curve, CurvePoint, LoadAxis};
use sim::scenario::Scenario;
use sim::workload::Arrival;
use sim::workload::spec::check_rate;

use crate::commands::BadInput;
use crate::exit_code;
use crate::output::{print, print_json, write_file};
use crate::plot;
use crate::progress;
use crate::simulate::{Keep, Path as SimPath, ScenarioArgs, simulate};

/// Points below and beyond the capacity that a search found, as shares of it.
const SPREAD: (f64, f64) = (0.1, 1.2);
/// A rate counts as beyond capacity when less than this share of it is served.
const SERVED_SHARE: f64 = 0.9;
/// Growth of throughput per doubling of concurrency below which more users bring nothing [ratio].
const FLAT_GROWTH: f64 = 0.02;
/// Doublings of a search at most: from one request a day to a million a second.
const MAX_DOUBLINGS: u32 = 40;
/// Largest concurrency that the search tries.
const MAX_CONCURRENCY: u32 = 4096;
/// Most points of a curve.
const MAX_POINTS: u32 = 1000;

/// Sweep the load on a deployment: latency against throughput, the knee, and what saturates.
///
/// Without --rates or --concurrency the loads are chosen: an open loop gets rates from 10 to 120 % of its
/// capacity, a closed loop concurrencies that double until throughput stops growing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --plot curve.svg
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --rates 0.5,1,1.5,2
  servetwin curve scenarios/llama2-7b-g5.2xlarge-tgi.toml --concurrency 1,2,4,8,16,32,64")]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Rates to run [req/s], comma-separated; closed loops become Poisson arrivals.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "R,...",
        conflicts_with = "concurrency"
    )]
    rates: Vec<f64>,
    /// Requests kept under way, comma-separated; open loops become closed ones.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    concurrency: Vec<u32>,
    /// Points of a chosen range of rates.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_POINTS)))]
    points: u32,
    /// Write the curve as an SVG plot.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let (axis, runs) = if !args.rates.is_empty() {
        (LoadAxis::Rate, rates(&scenario, &args.rates)?)
    } else if !args.concurrency.is_empty() {
        (
            LoadAxis::Concurrency,
            concurrencies(&scenario, &args.concurrency)?,
        )
    } else if is_closed(&scenario) {
        (LoadAxis::Concurrency, search_concurrency(&scenario)?)
    } else {
        let capacity = capacity(&scenario)?;
        let n = args.points - 1;
        let list: Vec<f64> = (0..=n)
            .map(|i| capacity * (SPREAD.0 + (SPREAD.1 - SPREAD.0) * f64::from(i) / f64::from(n)))
            .collect();
        (LoadAxis::Rate, rates(&scenario, &list)?)
    };
    let curve = Curve::new(axis, runs);
    if let Some(file) = &args.plot {
        let svg = plot::curve_svg(&curve)?;
        write_file(file, |out| std::io::Write::write_all(out, svg.as_bytes()))?;
    }
    if args.json {
        print_json(&curve)?;
    } else {
        print(&curve.render())?;
    }
    Ok(exit_code::OK)
}

fn is_closed(scenario: &Scenario) -> bool {
    matches!(
        scenario.workload.first().map(|s| &s.arrival),
        Some(Arrival::Closed { .. } | Arrival::Burst { .. })
    )
}

/// One run per load, in parallel.
fn sweep<L: Copy + Sync + Into<f64>>(
    loads: &[L],
    at: impl Fn(L) -> anyhow::Result<Scenario> + Sync,
) -> anyhow::Result<Vec<CurvePoint>> {
    if loads.len() > MAX_POINTS as usize {
        return Err(BadInput(format!(
            "{} loads; at most {MAX_POINTS} make a curve",
            loads.len()
        ))
        .into());
    }
    let bar = progress::runs(loads.len() as u64, "loads");
    let points = loads
        .par_iter()
        .map(|load| {
            let report = report(&at(*load)?)?;
            bar.inc(1);
            Ok(CurvePoint {
                load: (*load).into(),
                report,
            })
        })
        .collect();
    bar.finish_and_clear();
    points
}

fn report(scenario: &Scenario) -> anyhow::Result<RunReport> {
    let done = simulate(scenario, scenario.seed, Keep::Requests, SimPath::Auto, None)?;
    Ok(RunReport::new(&done.record, done.wall_s))
}

fn rates(scenario: &Scenario, rates: &[f64]) -> anyhow::Result<Vec<CurvePoint>> {
    sweep(rates, |rate| at_rate(scenario, rate))
}

fn concurrencies(scenario: &Scenario, list: &[u32]) -> anyhow::Result<Vec<CurvePoint>> {
    sweep(list, |n| at_concurrency(scenario, n))
}

/// Mean rate of an open-loop stream; none for the others, whose rate is not one number.
fn rate_of(arrival: &Arrival) -> Option<f64> {
    match arrival {
        Arrival::Poisson { rate } | Arrival::Gamma { rate, .. } | Arrival::Constant { rate } => {
            Some(rate.per_sec())
        }
        _ => None,
    }
}

/// The scenario with its streams sending `rate` requests a second together, in their proportions.
fn at_rate(scenario: &Scenario, rate: f64) -> anyhow::Result<Scenario> {
    let mut scenario = scenario.clone();
    if let [only] = scenario.workload.as_mut_slice()
        && matches!(only.arrival, Arrival::Closed { .. } | Arrival::Burst { .. })
    {
        only.arrival = Arrival::Poisson {
            rate: per_sec(rate)?,
        };
        return Ok(scenario);
    }
    let total: Option<f64> = scenario.workload.iter().map(|s| rate_of(&s.arrival)).sum();
    let Some(total) = total else {
        return Err(no_rate(&scenario).into());
    };
    for stream in &mut scenario.workload {
        if let Arrival::Poisson { rate: r }
        | Arrival::Gamma { rate: r, .. }
        | Arrival::Constant { rate: r } = &mut stream.arrival
        {
            *r = per_sec(r.per_sec() / total * rate)?;
        }
    }
    Ok(scenario)
}

fn no_rate(scenario: &Scenario) -> BadInput {
    let names: Vec<&str> = scenario
        .workload
        .iter()
        .filter(|s| rate_of(&s.arrival).is_none())
        .map(|s| s.name.as_str())
        .collect();
    BadInput(format!(
        "the rate of stream {} cannot be swept: a curve needs arrivals of one rate (poisson, gamma, constant); \
         give it one, e.g. --set 'workload[0].arrival={{kind=\"poisson\", rate=\"1 req/s\"}}', or use --concurrency",
        names.join(", ")
    ))
}

fn per_sec(rate: f64) -> anyhow::Result<PerSec> {
    check_rate(rate).map_err(|e| BadInput(format!("a rate {e}")).into())
}

/// The scenario with its only stream as a closed loop of `users`.
fn at_concurrency(scenario: &Scenario, users: u32) -> anyhow::Result<Scenario> {
    if users == 0 {
        return Err(BadInput("a concurrency must be at least 1, got 0".into()).into());
    }
    let mut scenario = scenario.clone();
    let n = scenario.workload.len();
    let [only] = scenario.workload.as_mut_slice() else {
        return Err(BadInput(format!(
            "a concurrency can be swept for one stream only, the scenario has {n}; sweep --rates instead"
        ))
        .into());
    };
    match &mut only.arrival {
        Arrival::Closed { concurrency, .. } => *concurrency = users,
        Arrival::Trace { .. } => return Err(no_rate(&scenario).into()),
        other => {
            *other = Arrival::Closed {
                concurrency: users,
                stagger: Secs::default(),
                think: Secs::default(),
                think_cv: 0.0,
                refused_pause: Secs::new(1.0)?,
            };
        }
    }
    Ok(scenario)
}

/// Requests per second that the deployment serves when it is offered more: the rate doubles from the scenario's
/// until a good part is no longer served.
fn capacity(scenario: &Scenario) -> anyhow::Result<f64> {
    let total: Option<f64> = scenario.workload.iter().map(|s| rate_of(&s.arrival)).sum();
    let mut rate = total.ok_or_else(|| no_rate(scenario))?;
    let bar = progress::spinner("looking for the capacity");
    let mut best: f64 = 0.0;
    for _ in 0..MAX_DOUBLINGS {
        let served = report(&at_rate(scenario, rate)?)?.throughput.requests_per_s;
        // Short runs with their ramp and drain serve less than a long one, so the largest seen counts.
        let saturated = served < SERVED_SHARE * rate && served < 1.1 * best;
        best = best.max(served);
        if saturated {
            break;
        }
        rate *= 2.0;
    }
    bar.finish_and_clear();
    if best > 0.0 {
        Ok(best)
    } else {
        Err(BadInput(
            "no request was served, so there is no curve; look at `servetwin run` first".into(),
        )
        .into())
    }
}

/// Doubles the number of users until throughput stops growing.
fn search_concurrency(scenario: &Scenario) -> anyhow::Result<Vec<CurvePoint>> {
    let bar = progress::spinner("doubling the concurrency");
    let mut points: Vec<CurvePoint> = Vec::new();
    let mut users = 1;
    while users <= MAX_CONCURRENCY {
        let report = report(&at_concurrency(scenario, users)?)?;
        let now = report.throughput.requests_per_s;
        let before = points.last().map(|p| p.report.throughput.requests_per_s);
        points.push(CurvePoint {
            load: f64::from(users),
            report,
        });
        if before.is_some_and(|b| now < b * (1.0 + FLAT_GROWTH)) {
            break;
        }
        users *= 2;
    }
    bar.finish_and_clear();
    Ok(points)
}
