//! `servetwin demo`: the closed loop on this machine. Engine up, loads measured, a step model fitted on some, the others predicted.

mod autoscale;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bench::driver::Options;
use bench::endpoint::Endpoint;
use bench::printable::printable;
use bench::session::{Preparation, Session};
use calibrate::demo::cases::Pace;
use calibrate::demo::{BUSY, CASES, Case, Failed, Figures, Measured, Paces, Table, order, way};
use calibrate::drift::COURSES;
use calibrate::endpoint::plan::words;
use calibrate::statistics::median;
use calibrate::steps;
use hwmodels::{Evidence, Profile};
use sim::record::RunRecord;
use sim::report::csv;
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json, write_file};
use crate::simulate::{Keep, Path as SimPath, Seeds, simulate};
use crate::{message, plot, progress};

/// KV blocks of each replica; the demo never fills them, so that one number holds for all.
const KV_BLOCKS: u64 = 4096;
/// Threads of each rank: one, so that a machine of two cores has one left for the client.
const THREADS: u32 = 1;
/// Layouts (ranks, stages) whose communication is timed without a load.
const LAYOUTS: [[u32; 2]; 2] = [[2, 1], [1, 2]];
/// How long an engine may take to come up or to go.
const PATIENCE: Duration = Duration::from_secs(60);
/// What starting and stopping an engine takes, before it was seen [s].
const AROUND_S: f64 = 2.0;

/// Measure the bundled engine, fit a step model on three loads, predict eleven others, and print how far off it was.
///
/// The loads are measured in rounds, each of them once a round, fitted and held-out ones in turns and every other round
/// backwards, so that a machine whose speed drifts disturbs all alike. What ranks and stages take to communicate comes from steps timed without a load (`servetwin model time`).
///
/// A load that does not work is left out; the report then names it and says why, and the exit code is 4.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin demo
  servetwin demo --seconds 4 --repeats 1 --out demo/
  servetwin demo --autoscale
  servetwin demo --autoscale=keda

Needs a machine with little else to do: what others take of its cores is measured as the engine's time.")]
pub struct Args {
    /// Folder for records, logs, scenarios, the profile and the plot. Default: servetwin-demo in the folder for temporary files.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How long each load is sent [s].
    #[arg(long, value_name = "S", default_value_t = 8.0)]
    seconds: f64,
    /// Rounds: runs of each load. Two or more show the run-to-run noise.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    repeats: u32,
    /// Parameters of the random-weight model, e.g. 30M.
    #[arg(long, value_name = "N", default_value = "30M")]
    params: String,
    /// Only the held-out loads with these names (and the fitted ones). Repeatable.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Scale the engine's replicas by the autoscaler instead, beside the simulation of it: replicas, decisions and TTFT, measured and predicted.
    #[arg(long, value_name = "SCALER", num_args = 0..=1, require_equals = true, default_missing_value = "hpa", conflicts_with_all = ["only", "repeats", "params"])]
    autoscale: Option<autoscale::Scaler>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if !(args.seconds.is_finite() && (2.0..=3600.0).contains(&args.seconds)) {
        return Err(BadInput(format!(
            "--seconds: {} must lie between 2 and 3600",
            args.seconds
        ))
        .into());
    }
    for name in &args.only {
        if !CASES.iter().any(|c| c.name == name && !c.fitted) {
            let names: Vec<&str> = CASES.iter().filter(|c| !c.fitted).map(|c| c.name).collect();
            return Err(BadInput(format!(
                "--only: no held-out load `{name}`; there are: {}",
                names.join(", ")
            ))
            .into());
        }
    }
    if let Some(scaler) = args.autoscale {
        return autoscale::run(&args, scaler);
    }
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join("servetwin-demo"));
    let lab = Lab::new(out, &args.params)?;

    let cases: Vec<&Case> = CASES
        .iter()
        .filter(|c| c.fitted || args.only.is_empty() || args.only.iter().any(|n| n == c.name))
        .collect();
    let mut failed = Vec::new();
    let (runs, paces) = lab.measure_all(&cases, &args, &mut failed);
    let spinner = progress::spinner("fitting the step model and predicting the loads");
    let profile = match lab.fit(&runs, &LAYOUTS, &mut failed) {
        Ok(profile) => Some(profile),
        Err(e) => {
            failed.push(failure("step model", &e));
            None
        }
    };
    let mut loads = Vec::new();
    for (case, records) in &runs {
        if records.is_empty() {
            // It has been named already.
            continue;
        }
        let compared = match profile {
            Some(_) => lab.compare(case, records, &mut failed),
            None => Err(anyhow!(
                "measured, and not predicted: there is no step model"
            )),
        };
        match compared {
            Ok(load) => loads.push(load),
            Err(e) => failed.push(failure(case.name, &e)),
        }
    }
    spinner.finish_and_clear();
    let table = Table::new(loads, failed);
    if !table.loads.is_empty() {
        let text = plot::demo_svg(&table)?;
        write_file(&lab.out.join("demo.svg"), |w| {
            std::io::Write::write_all(w, text.as_bytes())
        })?;
    }
    write_file(&lab.out.join("demo.json"), |w| {
        serde_json::to_writer_pretty(&mut *w, &table)?;
        std::io::Write::write_all(w, b"\n")
    })?;
    if args.json {
        print_json(&table)?;
    } else {
        if let Some(profile) = &profile {
            print(&heading(profile, &paces))?;
        }
        print(&table.render())?;
    }
    note!(
        "records, step logs, scenarios, profile and plot are in {}",
        lab.out.display()
    );
    if table.failed.is_empty() {
        Ok(exit_code::OK)
    } else {
        Ok(exit_code::INCOMPLETE)
    }
}

/// What did not work, with all its causes.
fn failure(name: &str, error: &anyhow::Error) -> Failed {
    Failed {
        name: name.into(),
        why: printable(&format!("{error:#}")).into_owned(),
    }
}

fn heading(profile: &Profile, paces: &Paces) -> String {
    let mut out = String::new();
    if paces.busy_per_s.is_finite() {
        out += &format!("16 users are served at {:.2} req/s. ", paces.busy_per_s);
    }
    out += "Step model fitted on the step logs of the loads below, comm.* on steps timed without load:\n";
    for (name, p) in &profile.params {
        out += &format!("  {name:<28} {:>12.4e} {}", p.value, p.unit);
        if let Some(e) = p.std_error {
            out += &format!("  +- {e:.1e}");
        }
        out += "\n";
    }
    out + "\n"
}

/// A load, measured.
struct Run {
    round: usize,
    record: RunRecord,
    /// Processor time of engine and client together [s]; none where the system does not tell.
    processor_s: Option<f64>,
}

/// Processor time that process `id` has taken so far [s]; none where the system does not tell.
fn processor_s(id: u32) -> Option<f64> {
    /// Clock ticks in Linux's process files, the same on all its machines [1/s].
    const TICKS_PER_S: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The command's name, in brackets, may hold spaces; user and system time are fields 14 and 15 of all.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

/// Processor time that server and client take per token beside the forward pass [s], of the loads called [`BUSY`] among the fitted ones
/// with their logs. None where the system does not tell.
fn shared_token_s(fitted: &[(&Case, &Run)], logs: &[steps::Log]) -> Option<f64> {
    let (mut seconds, mut tokens) = (0.0, 0.0);
    let busy = |case: &Case| case.name == BUSY;
    for ((_, run), log) in fitted.iter().zip(logs).filter(|((c, _), _)| busy(c)) {
        seconds += run.processor_s?;
        for step in &log.steps {
            seconds -= step.seconds - step.paced;
            tokens += f64::from(step.stats.sampled_seqs);
        }
    }
    (tokens > 0.0).then(|| seconds / tokens)
}

/// Where everything lies, and how long a load is.
struct Lab {
    out: PathBuf,
    model: String,
    params: String,
}

impl Lab {
    /// Sets up in `out`, with a random model of `params` parameters.
    fn new(out: PathBuf, params: &str) -> anyhow::Result<Lab> {
        std::fs::create_dir_all(&out)
            .with_context(|| format!("cannot create {}", out.display()))?;
        let lab = Lab {
            out,
            model: format!("model-{params}-seed1"),
            params: params.to_owned(),
        };
        lab.make_model()?;
        Ok(lab)
    }

    fn path(&self, case: &Case, repeat: usize, what: &str) -> PathBuf {
        self.out.join(format!("{}.{repeat}.{what}", case.name))
    }

    /// The model's folder: named by what it is made of, so that one that is there already is the same.
    fn make_model(&self) -> anyhow::Result<()> {
        let dir = self.out.join(&self.model);
        if dir.join("config.json").exists() {
            return Ok(());
        }
        let params = self.params.as_str();
        let made = Command::new(std::env::current_exe()?)
            .args(["model", "init", "--params", params, "--seed", "1"])
            .arg(&dir)
            .stdout(Stdio::null())
            .output()?;
        if !made.status.success() {
            let text = String::from_utf8_lossy(&made.stderr);
            return Err(BadInput(format!("no model of {params}: {}", text.trim())).into());
        }
        Ok(())
    }

    fn scenario(&self, case: &Case, paces: &Paces) -> anyhow::Result<Scenario> {
        let file = self.out.join(format!("{}.toml", case.name));
        let text = case.scenario(
            &format!("{}/config.json", self.model),
            "profile.toml",
            KV_BLOCKS,
            paces,
            1,
        );
        write_file(&file, |w| std::io::Write::write_all(w, text.as_bytes()))?;
        Ok(Scenario::load(&file, &[])?)
    }

    /// Measures all loads, round after round; what did not work goes to `failed`.
    fn measure_all<'c>(
        &self,
        cases: &[&'c Case],
        args: &Args,
        failed: &mut Vec<Failed>,
    ) -> (Vec<(&'c Case, Vec<Run>)>, Paces) {
        let rounds = args.repeats as usize;
        let mut paces = Paces {
            busy_per_s: f64::INFINITY,
            seconds: args.seconds,
        };
        let mut runs: Vec<(&Case, Vec<Run>)> = cases.iter().map(|c| (*c, Vec::new())).collect();
        let mut todo: Vec<(usize, usize)> = (0..rounds)
            .flat_map(|round| order(cases, round).into_iter().map(move |i| (round, i)))
            .collect();
        todo.reverse();
        let bar = progress::runs(todo.len() as u64, "loads");
        let (start, mut sent_s, mut done) = (Instant::now(), 0.0, 0u32);
        while let Some((round, i)) = todo.pop() {
            let case = cases[i];
            // What is around a load is as long as it was around those before.
            let around = match done {
                0 => AROUND_S,
                n => (start.elapsed().as_secs_f64() - sent_s) / f64::from(n),
            };
            let rest = todo.iter().map(|(_, i)| cases[*i]).chain([case]);
            let left: f64 = rest.map(|c| c.seconds(&paces) + around).sum();
            bar.set_message(format!("{}, about {} left", case.name, words(left)));
            if done <= 1 {
                // Before the first load, and once it has shown how fast the engine is.
                bar.suspend(|| {
                    note!("{} loads to measure: about {}", todo.len() + 1, words(left));
                });
            }
            let measured = if case.paced(&paces) {
                self.measure(case, &paces, round)
            } else {
                Err(anyhow!(
                    "its rate is a share of what `{BUSY}` reaches, which is not known"
                ))
            };
            done += 1;
            sent_s += case.seconds(&paces);
            bar.inc(1);
            match measured {
                Ok(run) => {
                    if round == 0 && case.name == BUSY {
                        paces = Paces::of(&run.record, args.seconds).unwrap_or(paces);
                    }
                    runs[i].1.push(run);
                }
                Err(e) => failed.push(failure(case.name, &e)),
            }
        }
        bar.finish_and_clear();
        (runs, paces)
    }

    /// Starts an engine for `case`, puts the load on it, and stops it.
    fn measure(&self, case: &Case, paces: &Paces, repeat: usize) -> anyhow::Result<Run> {
        let scenario = self.scenario(case, paces)?;
        let mut engine = Engine::start(
            &self.out.join(&self.model),
            &case.flags(),
            &self.path(case, repeat, "steps.csv"),
        )?;
        let endpoint = Endpoint::new(&engine.url)?;
        let session = Session::prepare(endpoint, &Preparation::default())?;
        let options = Options {
            end: Some(Duration::from_secs_f64(case.seconds(paces)) + PATIENCE),
            ..Options::default()
        };
        let processor = || Some(processor_s(engine.child.id())? + processor_s(std::process::id())?);
        let before = processor();
        let bench = session
            .run(&scenario, &options)
            .with_context(|| format!("load `{}`", case.name))?;
        let processor_s = processor()
            .zip(before)
            .map(|(after, before)| after - before);
        engine.stop()?;
        if let Some(rows) = &bench.record.request_rows {
            write_file(&self.path(case, repeat, "requests.csv"), |w| {
                csv::write_requests(w, rows)
            })?;
        }
        Ok(Run {
            round: repeat,
            record: bench.record,
            processor_s,
        })
    }

    /// Fits the step model on the step logs of the fitted loads and of `layouts` timed without a load, and the way of a request in on their
    /// records. Logs that cannot be used go to `failed`.
    fn fit(
        &self,
        runs: &[(&Case, Vec<Run>)],
        layouts: &[[u32; 2]],
        failed: &mut Vec<Failed>,
    ) -> anyhow::Result<Profile> {
        let (mut fitted, mut logs) = (Vec::new(), Vec::new());
        for (case, records) in runs.iter().filter(|(case, _)| case.fitted) {
            for run in records {
                match steps::log::read(&self.path(case, run.round, "steps.csv")) {
                    Ok(log) => {
                        fitted.push((*case, run));
                        logs.push(log);
                    }
                    Err(e) => failed.push(failure(case.name, &e.into())),
                }
            }
        }
        if logs.is_empty() {
            return Err(anyhow!(
                "none of the loads that it is fitted on was measured"
            ));
        }
        for &[tp, pp] in layouts {
            let timed = self.time([tp, pp]);
            match timed.and_then(|path| Ok(steps::log::read(&path)?)) {
                Ok(log) => logs.push(log),
                Err(e) => failed.push(failure(&format!("steps of TP {tp}, PP {pp}"), &e)),
            }
        }
        let setup = steps::Setup {
            name: "demo".into(),
            command: "servetwin demo".into(),
            facts: steps::log::Facts::default(),
        };
        let shared = shared_token_s(&fitted, &logs);
        let outcome = steps::fit(&logs, &[], &setup)?;
        for warning in &outcome.report.steadiness.warnings {
            note!("warning: {warning}");
        }
        let mut profile = outcome.profile;
        // What a request spends outside of steps: one user waits for nothing else. Half of it is taken as the way in.
        let mut ways = Vec::new();
        for (case, run) in fitted
            .iter()
            .filter(|(case, _)| case.pace == Pace::Users(1))
        {
            let log = self.path(case, run.round, "steps.csv");
            let requests = self.path(case, run.round, "steps.requests.csv");
            match way::engine_ttft(&log, &requests) {
                Ok(engine) => ways.extend(way::ways(&run.record, &engine)),
                Err(e) => failed.push(failure(&format!("way in of {}", case.name), &e.into())),
            }
        }
        let half = median(ways).map(|way| way / 2.0);
        for (name, value) in [
            ("host.request_in_s", half),
            ("host.token_out_s", half),
            ("host.shared_token_s", shared),
        ] {
            if let Some(value) = value {
                let param =
                    hwmodels::fitted::param(name, value.max(0.0), None, Evidence::Measured)?;
                profile.params.insert(name.into(), param);
            }
        }
        self.write_profile(&profile)?;
        Ok(profile)
    }

    /// Times steps of the model on a layout without any load; the log of them.
    fn time(&self, [tp, pp]: [u32; 2]) -> anyhow::Result<PathBuf> {
        let log = self.out.join(format!("time-tp{tp}-pp{pp}.csv"));
        let made = Command::new(std::env::current_exe()?)
            .args(["model", "time"])
            .arg(self.out.join(&self.model))
            .args(["--tp", &tp.to_string(), "--pp", &pp.to_string()])
            .args(["--threads", &THREADS.to_string()])
            .args(["--prompts", "16,64,128,256", "--rounds", "25", "--step-log"])
            .arg(&log)
            .output()?;
        if !made.status.success() {
            let text = String::from_utf8_lossy(&made.stderr);
            return Err(anyhow!(
                "steps with TP {tp}, PP {pp} cannot be timed: {}",
                text.trim()
            ));
        }
        Ok(log)
    }

    fn write_profile(&self, profile: &Profile) -> anyhow::Result<()> {
        let text = toml::to_string_pretty(profile)?;
        write_file(&self.out.join("profile.toml"), |w| {
            std::io::Write::write_all(w, text.as_bytes())
        })
    }

    /// The load on several courses of the machine's speed.
    fn predict(&self, case: &Case) -> anyhow::Result<Vec<RunRecord>> {
        let scenario = Scenario::load(&self.out.join(format!("{}.toml", case.name)), &[])?;
        let load = scenario.seed;
        (0..COURSES)
            .map(|cluster| {
                let seeds = Seeds { load, cluster };
                let run = simulate(&scenario, seeds, Keep::Requests, SimPath::Auto, None)?;
                Ok(run.record)
            })
            .collect()
    }

    /// Measured beside predicted. Runs of which nothing can be said go to `failed`.
    fn compare(
        &self,
        case: &Case,
        runs: &[Run],
        failed: &mut Vec<Failed>,
    ) -> anyhow::Result<Measured> {
        let mut records: Vec<&RunRecord> = Vec::new();
        let (mut measured, mut empty) = (Vec::new(), Vec::new());
        for run in runs {
            match Figures::of(&run.record) {
                Some(figures) => {
                    records.push(&run.record);
                    measured.push(figures);
                }
                None => empty.push(format!(
                    "run {}: none of its {} requests arrived after the warm-up and finished with two tokens or more in the {:.0} s after it; a larger --seconds may do",
                    run.round + 1,
                    run.record.counts.offered,
                    run.record.window.length.as_secs()
                )),
            }
        }
        if measured.is_empty() {
            return Err(anyhow!(empty.join("; ")));
        }
        failed.extend(empty.into_iter().map(|why| Failed {
            name: case.name.into(),
            why,
        }));
        let predicted = self.predict(case)?;
        let courses: Option<Vec<Figures>> = predicted.iter().map(Figures::of).collect();
        let courses = courses.ok_or_else(|| anyhow!("no request was predicted to finish"))?;
        Ok(Measured {
            name: case.name.into(),
            shows: case.shows.into(),
            fitted: case.fitted,
            requests: records.iter().map(|r| r.window.finished).collect(),
            unfinished: records
                .iter()
                .map(|r| r.counts.offered - r.counts.finished)
                .sum(),
            runs: measured,
            predicted: Figures::mean_of(&courses),
            warnings: (predicted.into_iter().next()).map_or_else(Vec::new, |r| r.info.warnings),
        })
    }
}

/// A running `servetwin serve`; killed when dropped.
struct Engine {
    child: Child,
    url: String,
}

impl Engine {
    /// Starts it on a free port, with one thread per rank, and waits until it listens.
    fn start(model: &Path, flags: &[String], log: &Path) -> anyhow::Result<Engine> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(model)
            .args(["--port", "0", "--threads", &THREADS.to_string()])
            .args(["--num-kv-blocks", &KV_BLOCKS.to_string()])
            .arg("--step-log")
            .arg(log)
            .args(flags)
            .args(message::is_quiet().then_some("--quiet"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start the engine")?;
        let stdout = child.stdout.take();
        let mut engine = Engine {
            child,
            url: String::new(),
        };
        for line in stdout.into_iter().flat_map(|s| BufReader::new(s).lines()) {
            let line = line?;
            if let Some(at) = line.find("http://") {
                let url = line[at..].split_whitespace().next().unwrap_or_default();
                engine.url = url.trim_end_matches(['/', ',', '.']).to_string();
                return Ok(engine);
            }
        }
        let status = engine.child.wait()?;
        Err(anyhow!("the engine ended before it listened: {status}"))
    }

    /// Asks it to drain, and waits until its log is written.
    fn stop(&mut self) -> anyhow::Result<()> {
        // There is no portable way in the standard library to send a signal other than to kill.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(anyhow!("the engine did not drain within {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Already gone after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
