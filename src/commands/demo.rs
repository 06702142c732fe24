//! `servetwin demo`: the closed loop on this machine. Engine up, loads measured, a step model fitted on some, the others predicted.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bench::driver::Options;
use bench::endpoint::Endpoint;
use bench::session::{Preparation, Session};
use calibrate::demo::{BUSY, CASES, Case, Figures, Measured, Paces, Table, order, way};
use calibrate::drift::COURSES;
use calibrate::statistics::median;
use calibrate::steps;
use hwmodels::{Evidence, Profile};
use sim::record::RunRecord;
use sim::report::csv;
use sim::scenario::Scenario;

use super::BadInput;
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

/// Measure the bundled engine, fit a step model on three loads, predict eleven others, and print how far off it was.
///
/// The loads are measured in rounds, each of them once a round, fitted and held-out ones in turns and every other round
/// backwards, so that a machine whose speed drifts disturbs all alike. What ranks and stages take to communicate comes from steps timed without a load (`servetwin model time`).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin demo
  servetwin demo --seconds 4 --repeats 1 --out demo/

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
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join("servetwin-demo"));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let lab = Lab {
        out,
        model: format!("model-{}-seed1", args.params),
        params: args.params.clone(),
    };
    lab.make_model()?;

    let cases: Vec<&Case> = CASES
        .iter()
        .filter(|c| c.fitted || args.only.is_empty() || args.only.iter().any(|n| n == c.name))
        .collect();
    let repeats = args.repeats as usize;
    let bar = progress::runs((cases.len() * repeats) as u64, "loads");
    let mut paces = Paces {
        busy_per_s: f64::INFINITY,
        seconds: args.seconds,
    };
    let mut runs: Vec<(&Case, Vec<Run>)> = cases.iter().map(|c| (*c, Vec::new())).collect();
    for round in 0..repeats {
        for i in order(&cases, round) {
            let (case, records) = &mut runs[i];
            bar.set_message(case.name);
            let run = lab.measure(case, &paces, round)?;
            if round == 0 && case.name == BUSY {
                paces = Paces::of(&run.record, args.seconds).ok_or_else(|| {
                    anyhow!(
                        "no request of `{}` finished in {} s",
                        case.name,
                        args.seconds
                    )
                })?;
            }
            records.push(run);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let profile = lab.fit(&runs)?;

    let mut loads = Vec::new();
    for (case, records) in &runs {
        loads.push(lab.compare(case, records)?);
    }
    let table = Table::new(loads);
    let svg = lab.out.join("demo.svg");
    let text = plot::demo_svg(&table)?;
    write_file(&svg, |w| std::io::Write::write_all(w, text.as_bytes()))?;
    write_file(&lab.out.join("demo.json"), |w| {
        serde_json::to_writer_pretty(&mut *w, &table)?;
        std::io::Write::write_all(w, b"\n")
    })?;
    if args.json {
        print_json(&table)?;
    } else {
        print(&heading(&profile, &paces))?;
        print(&table.render())?;
    }
    note!(
        "records, step logs, scenarios, profile and plot are in {}",
        lab.out.display()
    );
    Ok(exit_code::OK)
}

fn heading(profile: &Profile, paces: &Paces) -> String {
    let mut out = format!(
        "16 users are served at {:.2} req/s. Step model fitted on the step logs of three loads, comm.* on steps timed without load:\n",
        paces.busy_per_s
    );
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

/// Processor time that server and client take per token beside the forward pass [s], of the loads called [`BUSY`]; `logs` are
/// those of the fitted loads, in the order of `runs`. None where the system does not tell.
fn shared_token_s(runs: &[(&Case, Vec<Run>)], logs: &[steps::Log]) -> Option<f64> {
    let fitted = runs.iter().filter(|(case, _)| case.fitted);
    let each = fitted.flat_map(|(case, runs)| runs.iter().map(|r| (case.name, r)));
    let (mut seconds, mut tokens) = (0.0, 0.0);
    for ((_, run), log) in each.zip(logs).filter(|((name, _), _)| *name == BUSY) {
        seconds += run.processor_s?;
        for step in &log.steps {
            seconds -= step.seconds;
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
            record: bench.record,
            processor_s,
        })
    }

    /// Fits the step model on the step logs of the fitted loads and the way of a request in on their records.
    fn fit(&self, runs: &[(&Case, Vec<Run>)]) -> anyhow::Result<Profile> {
        let mut logs = Vec::new();
        for (case, records) in runs.iter().filter(|(case, _)| case.fitted) {
            for round in 0..records.len() {
                logs.push(steps::log::read(&self.path(case, round, "steps.csv"))?);
            }
        }
        for layout in LAYOUTS {
            logs.push(steps::log::read(&self.time(layout)?)?);
        }
        let setup = steps::Setup {
            name: "demo".into(),
            command: "servetwin demo".into(),
            facts: steps::log::Facts::default(),
        };
        let shared = shared_token_s(runs, &logs);
        let outcome = steps::fit(&logs, &[], &setup)?;
        for warning in &outcome.report.steadiness.warnings {
            note!("warning: {warning}");
        }
        let mut profile = outcome.profile;
        // What a request spends outside of steps: one user waits for nothing else. Half of it is taken as the way in.
        let (case, records) = &runs[0];
        let mut ways = Vec::new();
        for (round, run) in records.iter().enumerate() {
            let log = self.path(case, round, "steps.csv");
            let engine = way::engine_ttft(&log, &self.path(case, round, "steps.requests.csv"))?;
            ways.extend(way::ways(&run.record, &engine));
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

    fn compare(&self, case: &Case, runs: &[Run]) -> anyhow::Result<Measured> {
        let records: Vec<&RunRecord> = runs.iter().map(|r| &r.record).collect();
        let none = |what: &str| anyhow!("load `{}`: no request was {what}", case.name);
        let predicted = self.predict(case)?;
        let figures = |records: &[&RunRecord], what: &str| {
            let each = records.iter().map(|r| Figures::of(r));
            each.collect::<Option<Vec<_>>>().ok_or_else(|| none(what))
        };
        let runs = figures(&records, "measured")?;
        let courses = figures(&predicted.iter().collect::<Vec<_>>(), "predicted")?;
        Ok(Measured {
            name: case.name.into(),
            shows: case.shows.into(),
            fitted: case.fitted,
            requests: records.iter().map(|r| r.window.finished).collect(),
            unfinished: records
                .iter()
                .map(|r| r.counts.offered - r.counts.finished)
                .sum(),
            runs,
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
