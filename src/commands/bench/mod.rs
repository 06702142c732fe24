//! `servetwin bench`: puts a load on a live endpoint and reports what its clients saw.

mod endpoint_args;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bench::driver::until::Until;
use bench::driver::{Caps, Options, Progress, Stopped};
use bench::formats;
use bench::self_test;
use bench::session::{Bench, BenchError, Preparation, Session};
use bench::sweep::{SYNCHRONOUS, Sweep, SweepOptions};
use bench::{client_csv, report};
use clap::Subcommand;
use hwmodels::units::{PerSec, UnitError};
use sim::report::{Expectation, RunReport, csv};
use sim::scenario::Scenario;

pub use endpoint_args::{EndpointArgs, TlsArgs};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, FileSet, print, print_json, write_file};
use crate::progress;

/// What `--csv` writes.
const TABLES: [&str; 4] = [
    "requests.csv",
    "client.csv",
    "summary.json",
    "scenario.toml",
];
/// Headings of the help.
const LIMITS: &str = "Limits";
const RESULT: &str = "Result";

/// Put a load on a live endpoint and report what its clients saw.
///
/// The load is the workload section of a scenario file, or is given by --rate, --concurrency or --burst with lengths. Sends never
/// wait for answers in an open loop, and how late each was is reported.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = exit_code::help("Examples:
  servetwin serve --port 8000 &
  servetwin bench http://localhost:8000 --rate 2 --requests 200 --prompt-tokens 128 --output-tokens 64
  servetwin bench http://127.0.0.1:8000 --scenario scenarios/llama2-7b-g5.2xlarge-tgi.toml --expect 'ttft.p99 < 2 s'
  servetwin bench http://127.0.0.1:8000 --concurrency 8 --duration 60 --until 'ttft.mean +-3%'
  servetwin bench http://127.0.0.1:8000 --sweep 6 --duration 20
  servetwin bench import results.json
  servetwin bench --self-test

Every run sends prompts that no earlier run sent, so that the server's prefix cache does not answer; --prompt-salt (or --seed) repeats them.", &[exit_code::EXPECTATION_NOT_MET], &[(exit_code::FAILURE, "failure, too many failed requests or none that finished")]))]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Address of the endpoint, e.g. http://127.0.0.1:8000.
    #[arg(value_name = "URL", required_unless_present = "self_test")]
    url: Option<String>,
    #[command(flatten)]
    endpoint: EndpointArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Stop when a figure is known well enough, e.g. 'ttft.mean +-3%'. Repeatable: all must be.
    #[arg(long, value_name = "RULE", help_heading = LIMITS)]
    until: Vec<String>,
    /// Never send more than this, e.g. '20 req/s'.
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = LIMITS)]
    max_rate: Option<PerSec>,
    /// Never keep more than this under way.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = LIMITS)]
    max_concurrency: Option<u32>,
    /// Never ask for more than this, prompts and outputs together [tokens].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = LIMITS)]
    max_total_tokens: Option<u64>,
    /// Stop and give up what is under way after this many failed requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = LIMITS)]
    max_errors: Option<u64>,
    /// Exit code 1 when a larger share of the requests failed, e.g. 0.05 or 5%.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share, help_heading = LIMITS)]
    max_error_rate: f64,
    /// Stop when nothing but failed requests came for this long; 0: never [s].
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = not_negative, help_heading = LIMITS)]
    give_up_after: f64,
    /// Find the range of loads first: one request at a time, then as many as go, then N-2 rates between.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100), conflicts_with_all = ["rate", "concurrency", "burst"])]
    sweep: Option<u32>,
    /// Measure the harness itself against a built-in server that streams on schedule.
    #[arg(long, conflicts_with = "url")]
    self_test: bool,
    /// Print one JSON object (docs/bench.md).
    #[arg(long, help_heading = RESULT)]
    json: bool,
    /// Write requests.csv, client.csv, summary.json and scenario.toml into DIR.
    #[arg(long, value_name = "DIR", conflicts_with = "sweep", help_heading = RESULT)]
    csv: Option<PathBuf>,
    /// Write the result as GuideLLM does.
    #[arg(long, value_name = "FILE", conflicts_with = "sweep", help_heading = RESULT)]
    write_guidellm: Option<PathBuf>,
    /// Write the result as `vllm bench serve --save-detailed` does.
    #[arg(long, value_name = "FILE", conflicts_with = "sweep", help_heading = RESULT)]
    write_vllm: Option<PathBuf>,
    /// A condition such as 'ttft.p99 < 500 ms'; exit code 3 when one is not met. Repeatable.
    #[arg(long, value_name = "CONDITION", conflicts_with = "sweep", help_heading = RESULT)]
    expect: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Action {
    Import(ImportArgs),
}

/// Read the result file of another benchmark (GuideLLM, vLLM bench serve, AIPerf/GenAI-Perf, inference-perf) and report it in the
/// same words as ours.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  servetwin bench import benchmarks.json --json")]
struct ImportArgs {
    /// The file: JSON, or JSON lines (AIPerf's profile_export.jsonl, inference-perf's per-request file).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON: a list with an object for each benchmark of the file.
    #[arg(long)]
    json: bool,
    /// Write requests.csv and summary.json into DIR.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// A condition such as 'ttft.p99 < 500 ms'; exit code 3 when one is not met. Repeatable.
    #[arg(long, value_name = "CONDITION")]
    expect: Vec<String>,
}

/// The load.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Scenario file whose workload, run limits and objective are used.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "concurrency", "burst", "prompt_tokens", "output_tokens"])]
    scenario: Option<PathBuf>,
    /// Override a value of the scenario, e.g. 'workload[0].arrival.rate=2.5 req/s'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Seed of all randomness, prompts included. Default: that of the scenario for arrivals and lengths, and new prompts every time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Send the prompts of an earlier run again: the number is in its report.
    #[arg(long, value_name = "N")]
    prompt_salt: Option<u64>,
    /// Open loop, Poisson arrivals: '20 req/s', or 20.
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with_all = ["concurrency", "burst"])]
    rate: Option<PerSec>,
    /// Equal gaps in place of Poisson ones.
    #[arg(long, requires = "rate")]
    constant: bool,
    /// Closed loop: this many requests under way.
    #[arg(long, value_name = "N", conflicts_with = "burst")]
    concurrency: Option<u32>,
    /// This many requests at once.
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
    /// Requests to send.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Send for this long [s].
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    /// Leave requests sent before this out of the statistics [s].
    #[arg(long, value_name = "S")]
    warmup: Option<f64>,
    /// Prompt length: tokens, or a distribution such as '{ kind = "lognormal", mean = 1000, std = 800 }'.
    #[arg(long, alias = "prompt", value_name = "LENGTH", default_value = "128")]
    prompt_tokens: String,
    /// Output length, likewise.
    #[arg(long, alias = "output", value_name = "LENGTH", default_value = "64")]
    output_tokens: String,
}

impl LoadArgs {
    /// Salt of the prompts, where they are to be the same in every run.
    fn prompt_salt(&self, scenario: &Scenario) -> Option<u64> {
        let set = |s: &String| {
            s.split_once('=')
                .is_some_and(|(key, _)| key.trim() == "seed")
        };
        let seed_given = self.seed.is_some() || self.set.iter().any(set);
        self.prompt_salt.or(seed_given.then_some(scenario.seed))
    }

    fn scenario(&self, sweep: bool) -> anyhow::Result<Scenario> {
        let mut set = self.set.clone();
        if let Some(seed) = self.seed {
            set.push(format!("seed={seed}"));
        }
        for (key, value) in [("duration", self.duration), ("warmup", self.warmup)] {
            if let Some(s) = value {
                set.push(format!("run.{key}={s} s"));
            }
        }
        if let Some(n) = self.requests {
            set.push(format!("run.requests={n}"));
        }
        if let Some(file) = &self.scenario {
            return Scenario::load(file, &set).map_err(|e| BadInput(e.to_string()).into());
        }
        let arrival = match (self.rate, self.concurrency, self.burst) {
            (Some(rate), _, _) => {
                let kind = if self.constant { "constant" } else { "poisson" };
                format!("{{ kind = \"{kind}\", rate = \"{rate}\" }}")
            }
            (_, Some(n), _) => format!("{{ kind = \"closed\", concurrency = {n} }}"),
            (_, _, Some(n)) => format!("{{ kind = \"burst\", requests = {n} }}"),
            // The sweep decides.
            _ if sweep => "{ kind = \"closed\", concurrency = 1 }".into(),
            _ => {
                return Err(BadInput(
                    "no load: give --scenario, or one of --rate, --concurrency, --burst and --sweep".into(),
                )
                .into());
            }
        };
        if self.requests.is_none() && self.duration.is_none() && self.burst.is_none() {
            return Err(BadInput("no end: give --requests or --duration".into()).into());
        }
        let text = format!(
            "name = \"bench\"\n\
             # The deployment is that of the endpoint; a step time stands in so that the file is complete.\n\
             [step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 100000\n\
             [[workload]]\nname = \"bench\"\narrival = {arrival}\nprompt = {}\noutput = {}\n",
            length("prompt-tokens", &self.prompt_tokens)?,
            length("output-tokens", &self.output_tokens)?
        );
        Scenario::parse(&text, "bench", &set).map_err(|e| BadInput(e.to_string()).into())
    }
}

/// A share of one: `0.05` or `5%`.
fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim(), 0.01),
        None => (text.trim(), 1.0),
    };
    let value = number.parse::<f64>().map(|n| n * scale);
    value
        .ok()
        .filter(|v| (0.0..=1.0).contains(v))
        .ok_or_else(|| "write a share such as 0.05 or 5%, at most 1 or 100%".into())
}

fn rate(text: &str) -> Result<PerSec, String> {
    let rate: PerSec = text.parse().map_err(|e: UnitError| e.to_string())?;
    (rate.per_sec() > 0.0)
        .then_some(rate)
        .ok_or_else(|| "must be above 0".into())
}

/// A length as the scenario of the load writes it.
fn length(flag: &str, text: &str) -> anyhow::Result<String> {
    Ok(planner::plan::quick::length(text, flag)?.to_string())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok();
    value
        .filter(|v| v.is_finite() && *v >= 0.0)
        .ok_or_else(|| "must be a number of at least 0".into())
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(Action::Import(import)) = &args.action {
        return self::import(import);
    }
    if args.self_test {
        return self_test_command(&args);
    }
    let expectations = expectations(&args.expect)?;
    let until = args
        .until
        .iter()
        .map(|text| text.parse::<Until>().map_err(|e| BadInput(e.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    let scenario = args.load.scenario(args.sweep.is_some())?;
    check_outputs(&args, &scenario)?;
    let endpoint = args.endpoint.endpoint(args.url.as_deref().unwrap_or(""))?;
    let sessions = scenario.workload.iter().any(|s| s.sessions.is_some());
    let preparation = Preparation {
        prompt_salt: args.load.prompt_salt(&scenario),
        ..args.endpoint.preparation(sessions)
    };
    let session = Session::prepare(endpoint, &preparation).map_err(bad_input)?;
    let stop = Arc::new(AtomicBool::new(false));
    on_interrupt(&stop);
    let options = Options {
        caps: Caps {
            rate: args.max_rate.map(PerSec::per_sec),
            concurrency: args.max_concurrency,
            total_tokens: args.max_total_tokens,
            errors: args.max_errors,
            ..Caps::default()
        },
        until,
        stop,
        give_up_after: (args.give_up_after > 0.0)
            .then(|| Duration::from_secs_f64(args.give_up_after.min(1e9))),
        ..Options::default()
    };
    if let Some(points) = args.sweep {
        return sweep(&args, &session, &scenario, options, points);
    }
    let bench = watched(&session, &scenario, &options, "requests")?;
    let report = bench.report();
    if let Some(dir) = &args.csv {
        write_csv(dir, &bench)?;
    }
    if let Some(file) = &args.write_guidellm {
        let value = formats::guidellm::write(&bench);
        write_file(file, |out| Ok(serde_json::to_writer_pretty(out, &value)?))?;
    }
    if let Some(file) = &args.write_vllm {
        let value = formats::vllm::write(&bench);
        write_file(file, |out| Ok(serde_json::to_writer(out, &value)?))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report::render(&report))?;
    }
    let met = check(&expectations, &bench.record, &report.run);
    if args.json
        && let Some(warning) = bench.client.cache.warning()
    {
        note!("warning: {warning}");
    }
    match complaint(&bench, args.max_error_rate) {
        Some(text) => anyhow::bail!(text),
        None => Ok(met),
    }
}

/// Why a run fails though it could be made, when a share of `allowed` of its requests may fail; `None`: it does not.
fn complaint(bench: &Bench, allowed: f64) -> Option<String> {
    let client = &bench.client;
    let complaint = client.complaint(allowed);
    match bench.raw.stopped {
        Stopped::Errors(_) | Stopped::Failing(_) => {
            let more = complaint.map_or(String::new(), |text| format!("; {text}"));
            Some(format!("stopped: {}{more}", client.stopped))
        }
        _ => complaint,
    }
}

/// No load is sent whose record could not be written.
fn check_outputs(args: &Args, scenario: &Scenario) -> anyhow::Result<()> {
    output::reads(args.load.scenario.iter().chain(&args.endpoint.tokenizer));
    output::reads(scenario.inputs());
    if let Some(dir) = &args.csv {
        output::check_dir(dir, &TABLES)?;
    }
    let mut files = args.write_guidellm.iter().chain(&args.write_vllm);
    files.try_for_each(|file| output::check(file))
}

/// Wrong input ends with the code for it.
fn bad_input(e: BenchError) -> anyhow::Error {
    match e {
        BenchError::Endpoint(_)
        | BenchError::Prompt(bench::prompts::PromptError::Tokenizer { .. })
        | BenchError::Scenario(_) => BadInput(e.to_string()).into(),
        e => e.into(),
    }
}

fn expectations(texts: &[String]) -> anyhow::Result<Vec<Expectation>> {
    texts
        .iter()
        .map(|text| Expectation::parse(text).map_err(|e| BadInput(e.to_string()).into()))
        .collect()
}

fn check(expectations: &[Expectation], record: &sim::record::RunRecord, report: &RunReport) -> u8 {
    let mut code = exit_code::OK;
    for e in expectations {
        let verdict = e.check(record, report);
        if verdict.met {
            note!("{}", verdict.line);
        } else {
            complain!("{}", verdict.line);
            code = exit_code::EXPECTATION_NOT_MET;
        }
    }
    code
}

/// Runs with a bar that shows what is measured.
fn watched(
    session: &Session,
    scenario: &Scenario,
    options: &Options,
    what: &str,
) -> anyhow::Result<Bench> {
    let live = Arc::new(Progress::default());
    let options = Options {
        progress: Some(Arc::clone(&live)),
        ..options.clone()
    };
    let what = what.to_string();
    let bar = progress::live(scenario.limits.requests, move |elapsed_s| {
        let get = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        let (sent, finished, failed) = (get(&live.sent), get(&live.finished), get(&live.failed));
        let mean_ms = |us: u64| us as f64 / 1e3 / finished.max(1) as f64;
        let line = format!(
            "{what}: {} under way, {failed} failed, TTFT {:.0} ms, E2E {:.0} ms, {:.0} tokens/s",
            sent.saturating_sub(finished + failed),
            mean_ms(get(&live.ttft_us)),
            mean_ms(get(&live.e2e_us)),
            get(&live.output_tokens) as f64 / elapsed_s.max(1e-3),
        );
        (finished + failed, line)
    });
    let bench = session.run(scenario, &options);
    bar.finish();
    bench.map_err(bad_input)
}

/// The first interrupt ends the run and reports what there is; the second ends the process.
fn on_interrupt(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        else {
            return;
        };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.store(true, Ordering::Relaxed);
                note!("stopping; once more to end at once");
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    });
}

fn sweep(
    args: &Args,
    session: &Session,
    scenario: &Scenario,
    options: Options,
    points: u32,
) -> anyhow::Result<u8> {
    let sweep = Sweep::run(
        scenario,
        &SweepOptions {
            points,
            most_in_flight: args.max_concurrency.unwrap_or(128),
        },
        |what, scenario| {
            let bench = watched(session, scenario, &options, what)?;
            // Against an endpoint that answers not even single requests, the other loads say nothing.
            match complaint(&bench, args.max_error_rate) {
                Some(text) if bench.client.failures.finished == 0 && what == SYNCHRONOUS => {
                    anyhow::bail!("load `{what}`: {text}")
                }
                _ => Ok(bench),
            }
        },
    )?;
    if args.json {
        print_json(&sweep)?;
    } else {
        print(&sweep.render())?;
    }
    let complaints: Vec<String> = sweep
        .points
        .iter()
        .map(|p| (p, &p.report.client))
        // Loads after an interrupt send nothing.
        .filter(|(_, client)| client.failures.sent > 0)
        .filter_map(|(p, client)| {
            let text = client.complaint(args.max_error_rate)?;
            Some(format!("load `{}`: {text}", p.name()))
        })
        .collect();
    if !complaints.is_empty() {
        anyhow::bail!(complaints.join("\n"));
    }
    Ok(exit_code::OK)
}

fn self_test_command(args: &Args) -> anyhow::Result<u8> {
    if !args.json {
        print(self_test::HEAD)?;
    }
    let seconds = args.load.duration.unwrap_or(2.0).clamp(0.1, 60.0);
    let result = self_test::run(seconds, |step| {
        if !args.json {
            // A closed pipe ends the process at the last print.
            let _ = print(&format!("{}\n", self_test::row(step)));
        }
    })
    .map_err(bad_input)?;
    if args.json {
        print_json(&result)?;
    } else {
        let honest = result.highest_honest_rate.map_or("none".into(), |r| {
            format!(
                "{r:.0} req/s ({:.0} tokens/s)",
                r * f64::from(result.output_tokens)
            )
        });
        print(&format!(
            "\nhighest honest rate: {honest}, with sends at most {} ms late and time stamps at most {} ms after the write at p99\n\
             (the built-in server shares this machine's cores, so this is a lower bound)\n",
            result.lateness_bound_ms, result.stamp_bound_ms
        ))?;
    }
    Ok(exit_code::OK)
}

fn import(args: &ImportArgs) -> anyhow::Result<u8> {
    let expectations = expectations(&args.expect)?;
    output::reads([&args.file]);
    let all = formats::import(&args.file).map_err(|e| BadInput(e.to_string()))?;
    let reports: Vec<RunReport> = all.iter().map(|i| RunReport::new(&i.record, 0.0)).collect();
    let summaries: Vec<_> = all
        .iter()
        .zip(&reports)
        .map(|(i, r)| i.summary(r))
        .collect();
    if let Some(dir) = &args.csv {
        let mut files = FileSet::new();
        for (i, imported) in all.iter().enumerate() {
            // A folder each where the file holds several.
            let dir = if all.len() > 1 {
                dir.join(i.to_string())
            } else {
                dir.clone()
            };
            std::fs::create_dir_all(&dir)
                .with_context(|| format!("cannot create {}", dir.display()))?;
            if let Some(rows) = &imported.record.request_rows {
                files.write(&dir.join("requests.csv"), |out| {
                    csv::write_requests(out, rows)
                })?;
            }
            files.write(&dir.join("summary.json"), |out| {
                Ok(serde_json::to_writer_pretty(out, &summaries[i])?)
            })?;
        }
        files.commit()?;
    }
    if args.json {
        print_json(&summaries)?;
    } else {
        let text: Vec<String> = all.iter().zip(&reports).map(|(i, r)| i.render(r)).collect();
        print(&text.join("\n"))?;
    }
    let codes = all
        .iter()
        .zip(&reports)
        .map(|(i, r)| check(&expectations, &i.record, r));
    Ok(codes.max().unwrap_or(exit_code::OK))
}

fn write_csv(dir: &Path, bench: &Bench) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let [requests, client, summary, scenario] = TABLES.map(|name| dir.join(name));
    let mut files = FileSet::new();
    if let Some(rows) = &bench.record.request_rows {
        files.write(&requests, |out| csv::write_requests(out, rows))?;
    }
    files.write(&client, |out| client_csv::write(out, &bench.raw))?;
    files.write(&summary, |out| {
        Ok(serde_json::to_writer_pretty(out, &bench.report())?)
    })?;
    files.write(&scenario, |out| {
        std::io::Write::write_all(out, bench.record.info.config.as_bytes())
    })?;
    files.commit()
}
