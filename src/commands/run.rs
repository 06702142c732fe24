//! `servetwin run`: one scenario, simulated and reported.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rayon::prelude::*;
use sim::record::RunRecord;
use sim::report::draws::Draws;
use sim::report::replications::Replications;
use sim::report::text::Detail;
use sim::report::trace::Limit;
use sim::report::{Expectation, RunReport, csv, outcomes, pools, text, trace};
use store::StoreError;

use crate::bad_input::BadInput;
use crate::cluster_plot;
use crate::cluster_tables;
use crate::exit_code;
use crate::output::{self, FileSet, print, print_json, write_file};
use crate::picture;
use crate::progress;
use crate::simulate::{
    Keep, Path as SimPath, ScenarioArgs, Seeds, Simulated, drawn, give_ranges, simulate,
    simulate_recorded,
};

/// Most replications: each keeps its report in memory.
const MAX_SEEDS: u64 = 10_000;

/// What `--csv` writes.
const TABLES: [&str; 5] = [
    "requests.csv",
    "steps.csv",
    "series.csv",
    "summary.json",
    "scenario.toml",
];

/// Simulate a scenario and report what its users and its owner would see.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin run scenarios/llama2-7b-g5.2xlarge-tgi.toml
  servetwin run scenarios/llama2-7b-g5.2xlarge-tgi.toml --set 'workload[0].arrival.rate=1 req/s' --expect 'ttft.p99 < 2 s'
  servetwin run scenarios/llama2-7b-g5.2xlarge-tgi.toml --trace trace.json   # open at https://ui.perfetto.dev
  servetwin run scenarios/llama2-7b-g5.2xlarge-tgi.toml --record run.servetwin   # open with servetwin view", &[exit_code::EXPECTATION_NOT_MET, exit_code::NOTHING_FINISHED], &[]))]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
    /// Write requests.csv, steps.csv, series.csv, summary.json and scenario.toml into DIR; of a run in a cluster also scaling.csv, pods.csv,
    /// nodes.csv and replicas.csv, of one with prefill and decode pools transfers.csv.
    #[arg(long, value_name = "DIR", conflicts_with = "seeds")]
    csv: Option<PathBuf>,
    /// Write a trace that Perfetto opens: lanes per replica and stage, requests, counters. A name that ends in .gz is compressed.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
    /// Plot demand and capacity of a run in a cluster over time, as .svg or .png.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "draws"])]
    plot: Option<PathBuf>,
    /// What of the run the trace shows: the first N requests and their steps, 1/N of both, what is under way in a stretch such as
    /// '60 s..90 s', or none: all of it.
    #[arg(long, value_name = "LIMIT", requires = "trace", default_value_t = Limit::DEFAULT)]
    trace_limit: Limit,
    /// Write the record of the run, which `servetwin view` and `servetwin report` open (docs/record.md): OUT.servetwin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "draws"])]
    record: Option<PathBuf>,
    /// A condition such as 'ttft.p99 < 500 ms'; exit code 3 when one is not met. Repeatable.
    #[arg(long, value_name = "CONDITION")]
    expect: Vec<String>,
    /// Run N replications with seeds counting up from the scenario's, and give 95 % intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_SEEDS))]
    seeds: Option<u64>,
    /// With --seeds: the same requests every time; only the router's draws and the course of the machines' speed differ.
    #[arg(long, requires = "seeds")]
    same_load: bool,
    /// Run N times with the profile's parameters drawn within their standard errors, and give the interval of 90 % of the runs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=MAX_SEEDS), conflicts_with_all = ["seeds", "csv", "trace", "expect", "stats"])]
    draws: Option<u64>,
    /// Print also what the profiles were fitted on and how far predictions with each were from measurements.
    #[arg(long, short, conflicts_with_all = ["json", "seeds", "draws"])]
    verbose: bool,
    /// Print how long the simulation took.
    #[arg(long)]
    stats: bool,
    /// How steps are advanced: reference is step by step, fast takes runs of decodes at once; same record.
    #[arg(long, value_enum, default_value = "auto")]
    path: SimPath,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let expectations = args
        .expect
        .iter()
        .map(|text| Expectation::parse(text).map_err(|e| BadInput(e.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    match (args.seeds, args.draws) {
        (Some(seeds), _) => replications(&args, seeds, &expectations),
        (None, Some(n)) => draws(&args, n),
        (None, None) => single(&args, &expectations),
    }
}

fn single(args: &Args, expectations: &[Expectation]) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    if let Some(dir) = &args.csv {
        output::check_dir(dir, &TABLES)?;
        output::check_dir(dir, &cluster_tables::TABLES)?;
        // The trace may go there too.
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if let Some(file) = &args.trace {
        output::check(file)?;
    }
    if let Some(file) = &args.record {
        output::check(file)?;
    }
    if let Some(file) = &args.plot {
        if scenario.cluster.is_none() {
            return Err(BadInput(
                "--plot shows a cluster, and the scenario has no [cluster]".into(),
            )
            .into());
        }
        picture::check(file)?;
    }
    let keep = if args.csv.is_some() || args.trace.is_some() {
        Keep::Everything
    } else {
        Keep::Requests
    };
    let (bar, ended) = progress::requests(scenario.limits.requests);
    let done = match &args.record {
        None => {
            simulate(&scenario, scenario.seed, keep, args.path, Some(&ended)).map(|d| (d, None))
        }
        Some(_) => simulate_recorded(&scenario, keep, args.path, Some(&ended))
            .map(|(done, stored)| (done, Some(stored))),
    };
    bar.finish();
    let (Simulated { record, wall_s }, mut stored) = done?;
    let mut report = RunReport::new(&record, wall_s);
    give_ranges(&scenario, scenario.seed, args.path, &mut report)?;
    if let Some(stored) = &mut stored {
        stored.report.ranges.clone_from(&report.ranges);
    }
    if let (Some(file), Some(stored)) = (&args.record, &stored) {
        write_record(file, stored)?;
    }
    if let Some(dir) = &args.csv {
        write_csv(dir, &record, &report)?;
    }
    if let Some(file) = &args.trace {
        if record.step_rows.is_none() || record.request_rows.is_none() {
            return Err(BadInput(format!(
                "a trace of {} requests and {} steps would not open any more; shorten the run, e.g. --set run.requests=1000",
                record.counts.offered, record.steps
            ))
            .into());
        }
        write_trace(file, &record, args.trace_limit)?;
    }
    if let (Some(file), Some(cluster)) = (&args.plot, &record.cluster) {
        let course = report.cluster.as_ref().map_or(&[][..], |c| &c.course);
        let svg = cluster_plot::svg(&record.info.name, cluster, course)?;
        picture::write(file, &svg)?;
    }
    let verdicts: Vec<_> = expectations
        .iter()
        .map(|e| e.check(&record, &report))
        .collect();
    if args.json {
        print_json(&report)?;
    } else {
        let detail = if args.verbose {
            Detail::Verbose
        } else {
            Detail::Brief
        };
        print(&text::render(&report, detail))?;
        if args.stats {
            print(&text::render_stats(&report))?;
        }
    }
    for verdict in &verdicts {
        if verdict.met {
            note!("{}", verdict.line);
        } else {
            complain!("{}", verdict.line);
        }
    }
    tell_nothing_finished(args.json, &report);
    let served = report.requests.finished > 0;
    Ok(code(verdicts.iter().all(|v| v.met), served))
}

fn replications(args: &Args, seeds: u64, expectations: &[Expectation]) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let first = scenario.seed;
    let bar = progress::runs(seeds, "replications");
    // In the order of the seeds, whatever the threads do.
    let runs = (0..seeds)
        .into_par_iter()
        .map(|i| {
            let cluster = first.wrapping_add(i);
            let load = if args.same_load { first } else { cluster };
            let done = simulate(
                &scenario,
                Seeds { load, cluster },
                Keep::Requests,
                args.path,
                None,
            )?;
            let report = RunReport::new(&done.record, done.wall_s);
            let met: Vec<bool> = expectations
                .iter()
                .map(|e| e.check(&done.record, &report).met)
                .collect();
            bar.inc(1);
            Ok((report, met))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let failed: Vec<(usize, usize)> = (0..expectations.len())
        .map(|e| (e, runs.iter().filter(|(_, met)| !met[e]).count()))
        .collect();
    let wall_s: f64 = runs.iter().map(|(r, _)| r.stats.wall_s).sum();
    let table = Replications::new(runs.into_iter().map(|(report, _)| report).collect());
    if args.json {
        print_json(&table)?;
    } else {
        print(&table.render())?;
        if args.stats {
            print(&format!(
                "\nsimulated {seeds} runs in {wall_s:.3} s of processor time\n"
            ))?;
        }
    }
    for (e, n) in &failed {
        let expectation = &expectations[*e];
        if *n == 0 {
            note!("expectation met: {expectation} (in all {seeds} runs)");
        } else {
            complain!("expectation NOT met: {expectation} (in {n} of {seeds} runs)");
        }
    }
    let empty = table.runs.iter().find(|r| r.requests.finished == 0);
    if let Some(run) = empty {
        tell_nothing_finished(args.json, run);
    }
    Ok(code(failed.iter().all(|(_, n)| *n == 0), empty.is_none()))
}

fn draws(args: &Args, n: u64) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let built = scenario.build().map_err(|e| BadInput(e.to_string()))?;
    let uncertain = built.uncertain;
    if uncertain.is_empty() {
        return Err(BadInput(
            "--draws has nothing to draw: no profile in use gives a parameter with a standard error (analytic or constant \
             step times, or hardware.params sets them all)"
                .into(),
        )
        .into());
    }
    let report = |scenario: &sim::scenario::Scenario| -> anyhow::Result<RunReport> {
        let done = simulate(scenario, scenario.seed, Keep::Requests, args.path, None)?;
        Ok(RunReport::new(&done.record, done.wall_s))
    };
    let nominal = report(&scenario)?;
    let bar = progress::runs(n, "draws");
    // In the order of the draws, whatever the threads do.
    let runs = (0..n)
        .into_par_iter()
        .map(|i| {
            let done = report(&drawn(&scenario, &uncertain, scenario.seed, i))?;
            bar.inc(1);
            Ok(done)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let table = Draws::new(&nominal, &runs, uncertain.into_keys().collect());
    if args.json {
        print_json(&table)?;
    } else {
        print(&table.render())?;
    }
    tell_nothing_finished(args.json, &nominal);
    Ok(code(true, nominal.requests.finished > 0))
}

/// Says on standard error that no request of a run finished, where the report is for machines; the others say it first.
fn tell_nothing_finished(json: bool, report: &RunReport) {
    if let Some(text) = outcomes::nothing_finished(report).filter(|_| json) {
        note!("warning: {text}");
    }
}

/// An expectation that was not met outweighs a run that finished nothing.
fn code(met: bool, served: bool) -> u8 {
    match (met, served) {
        (false, _) => exit_code::EXPECTATION_NOT_MET,
        (true, false) => exit_code::NOTHING_FINISHED,
        (true, true) => exit_code::OK,
    }
}

fn write_trace(file: &Path, record: &RunRecord, limit: Limit) -> anyhow::Result<()> {
    let mut written = None;
    write_file(file, |out| {
        let compressed = file.extension().is_some_and(|e| e == "gz");
        written = Some(if compressed {
            trace::write_gzip(out, record, limit)?
        } else {
            trace::write(out, record, limit)?
        });
        Ok(())
    })?;
    if let Some(shown) = written.and_then(|w| w.left_out()) {
        note!(
            "note: {} holds {shown}: --trace-limit {limit}; `none` writes all, '60 s..90 s' a stretch, 1/20 every 20th",
            file.display()
        );
    }
    Ok(())
}

fn write_record(file: &Path, record: &store::Record) -> anyhow::Result<()> {
    write_file(file, |out| {
        store::write(out, record).map_err(|e| match e {
            StoreError::Io(e) => e,
            e => std::io::Error::other(e),
        })
    })?;
    if let Some(thinned) = record.info.thinned() {
        note!("note: {} {thinned}", file.display());
    }
    Ok(())
}

fn write_csv(dir: &Path, record: &RunRecord, report: &RunReport) -> anyhow::Result<()> {
    let [requests, steps, series, summary, scenario] = TABLES.map(|name| dir.join(name));
    let mut files = FileSet::new();
    match &record.request_rows {
        Some(rows) => files.write(&requests, |out| {
            csv::write_served(out, rows, record.cluster.as_ref())
        })?,
        None => note!(
            "warning: no requests.csv: the run has more requests than a record keeps rows for"
        ),
    }
    if record.step_rows.is_some() {
        files.write(&steps, |out| csv::write_steps(out, record))?;
    } else {
        note!("warning: no steps.csv: the run has more steps than a record keeps rows for");
    }
    files.write(&series, |out| csv::write_series(out, record))?;
    files.write(&summary, |out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        out.write_all(b"\n")
    })?;
    files.write(&scenario, |out| {
        out.write_all(record.info.config.as_bytes())
    })?;
    if let Some(rows) = record.transfers.as_ref().and_then(|t| t.rows.as_ref()) {
        let transfers = dir.join("transfers.csv");
        files.write(&transfers, |out| pools::write_transfers(out, rows))?;
    }
    if let Some(cluster) = &record.cluster {
        cluster_tables::write(&mut files, dir, cluster)?;
    }
    files.commit()
}
