//! `servetwin calibrate --endpoint URL`: measures a live endpoint and fits what its requests show; `--records` does the fit alone.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use bench::endpoint::{ApiKind, Client, Endpoint};
use bench::printable::printable;
use bench::probe::{Probe, ServerKind};
use calibrate::endpoint::drive::MeasureError;
use calibrate::endpoint::facts::{self, Facts};
use calibrate::endpoint::output::{self, Origin};
use calibrate::endpoint::{
    self, Before, Budget, Effort, EndpointReport, Fitted, Known, Load, Options, Progress, Role,
    Server, Watch, plan, store,
};
use hwmodels::EngineKind;
use hwmodels::units::{PerSec, Secs};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self as files, FileSet, print, print_json};
use crate::progress;

/// Flags of `servetwin calibrate` without a subcommand.
#[derive(Debug, clap::Args)]
// Two flattened structs of one name would be one group.
#[group(skip)]
pub struct Args {
    /// Measure and fit this endpoint, e.g. http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Fit measured loads instead: folders with requests.csv, or folders of such folders. What the endpoint says of itself is then asked
    /// of --endpoint, if given, or read from where --keep left it. With --endpoint, a measurement that did not end goes on: what is missing
    /// is measured into its folder.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    records: Vec<PathBuf>,
    /// Hold out the loads whose folder's name holds this text; `none`: fit all. Default: as load.json says, else every third.
    #[arg(long, value_name = "TEXT", requires = "records")]
    hold_out: Vec<String>,
    /// Time for the whole measurement.
    #[arg(long, value_name = "TIME", default_value = "5 min")]
    budget: String,
    /// Most requests per second: '20 req/s', or 20.
    #[arg(long, value_name = "RATE", default_value = "100 req/s")]
    max_rate: PerSec,
    /// Most requests under way at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_concurrency: u32,
    /// Most prompt and output tokens of all requests together [tokens].
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    max_tokens: u64,
    /// Stop when more than this share of the requests fails [ratio].
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    max_errors: f64,
    /// Longest prompt to send [tokens].
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(16..))]
    longest_prompt: u32,
    /// API of the endpoint: completions, chat, tgi or triton.
    #[arg(long, value_name = "API", default_value = "completions")]
    api: String,
    /// Model name to ask for. Default: the first that the endpoint lists.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key, sent as a bearer token.
    #[arg(
        long,
        value_name = "KEY",
        env = "SERVETWIN_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// A further header, NAME: VALUE. Repeatable.
    #[arg(long, value_name = "HEADER")]
    header: Vec<String>,
    /// Scheduler that the endpoint has, where it does not say: vllm_v1 or llama_cpp. Default: as measured.
    #[arg(long, value_name = "KIND")]
    engine: Option<String>,
    /// Seed of prompts and arrivals. Default: the time, so that no run meets prompts of an earlier one in a cache.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the profile here, and beside it a scenario that reproduces the endpoint (NAME.scenario.toml).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Keep the measured loads in this folder, each as soon as it is measured, for --records.
    #[arg(long, value_name = "DIR", conflicts_with = "records")]
    keep: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether any work was asked for.
    pub fn asked(&self) -> bool {
        self.endpoint.is_some() || !self.records.is_empty()
    }
}

struct Loaded {
    loads: Vec<Load>,
    known: Server,
    origin: Origin,
    /// What the endpoint said of itself.
    facts: Facts,
}

/// Writes the profile to `path`, and a scenario that uses it beside it.
fn write(
    path: &Path,
    loads: &[Load],
    fitted: &Fitted,
    report: &EndpointReport,
    origin: &Origin,
) -> anyhow::Result<()> {
    let profile = output::profile(loads, fitted, report, origin)?;
    let file = path
        .file_name()
        .map_or("endpoint.toml".into(), |n| n.to_string_lossy().into_owned());
    let scenario = output::scenario(loads, fitted, origin, &file);
    let text = toml::to_string_pretty(&profile).context("writing the profile as TOML")?;
    let mut files = FileSet::new();
    files.write(path, |out| out.write_all(text.as_bytes()))?;
    files.write(&path.with_extension("scenario.toml"), |out| {
        out.write_all(scenario.as_bytes())
    })?;
    files.commit()?;
    if !profile.trusted() {
        let why = if loads.iter().any(|l| l.role == Role::HoldOut) {
            format!(
                "a median error on the held-out loads is above {} %",
                output::TOLERANCE
            )
        } else {
            "no load was held out".into()
        };
        note!("warning: {} stays untrusted: {why}", path.display());
    }
    Ok(())
}

/// Measures or reads loads, fits, reports, and writes profile and scenario.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let engine = engine(args.engine.as_deref())?;
    // Nothing is measured for minutes that could not be kept.
    let folders = [
        ("--out", args.out.as_deref().and_then(Path::parent)),
        ("--keep", args.keep.as_deref()),
    ];
    for (flag, folder) in folders {
        if let Some(folder) = folder.filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| {
                BadInput(format!(
                    "{flag}: cannot make the folder {}: {e}",
                    folder.display()
                ))
            })?;
        }
    }
    for record in &args.records {
        let folders = record.read_dir().into_iter().flatten();
        let inner = folders.filter_map(|f| Some(f.ok()?.path()));
        files::reads(
            inner.flat_map(|path| [path.join("requests.csv"), path.join("load.json"), path]),
        );
    }
    if let Some(path) = &args.out {
        files::check(path)?;
        files::check(&path.with_extension("scenario.toml"))?;
    }
    let unfinished = store::unfinished(&args.records).cloned();
    let mut loaded = match (&args.endpoint, unfinished) {
        (Some(url), None) if args.records.is_empty() => {
            if let Some(dir) = store::unfinished(args.keep.as_slice()) {
                return Err(BadInput(format!(
                    "--keep: {} holds a measurement that has not ended; go on with it by --records {}, or give another folder",
                    dir.display(),
                    dir.display()
                ))
                .into());
            }
            measure(&args, url, args.keep.clone(), Before::default())?
        }
        (Some(url), Some(dir)) => {
            let earlier = read(&args, false)?;
            let before = Before {
                loads: earlier.loads,
                facts: Some(earlier.facts),
            };
            measure(&args, url, Some(dir), before)?
        }
        _ => read(&args, args.endpoint.is_some())?,
    };
    if let Some(kind) = engine {
        loaded.known.kind = Known::read(kind);
    }
    let Loaded {
        loads,
        known,
        mut origin,
        ..
    } = loaded;
    let bar = progress::spinner(
        "fitting, until neither limits nor parameters come nearer: simulations of the measured loads",
    );
    let fitted = endpoint::fit(&loads, &known, Effort::default(), &|n| {
        bar.set_position(n as u64)
    })
    .map_err(|e| BadInput(e.to_string()))?;
    bar.finish_and_clear();
    let report = EndpointReport::new(&loads, &fitted, origin.notes.clone());
    if let Some(path) = &args.out {
        origin.name = path
            .file_stem()
            .map_or("endpoint".into(), |s| s.to_string_lossy().into_owned());
        write(path, &loads, &fitted, &report, &origin)?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    Ok(exit_code::OK)
}

fn engine(name: Option<&str>) -> Result<Option<EngineKind>, BadInput> {
    match name {
        None => Ok(None),
        Some("vllm_v1") => Ok(Some(EngineKind::VllmV1)),
        Some("llama_cpp") => Ok(Some(EngineKind::LlamaCpp)),
        Some(other) => Err(BadInput(format!(
            "--engine {other}: a black-box fit knows vllm_v1 and llama_cpp"
        ))),
    }
}

/// The loads of `--records`; `asked`: what the endpoint says of itself is asked again.
fn read(args: &Args, asked: bool) -> anyhow::Result<Loaded> {
    let bad = |e: store::StoreError| BadInput(e.to_string());
    let folders = store::folders(&args.records).map_err(bad)?;
    let mut loads = Vec::new();
    for (i, folder) in folders.iter().enumerate() {
        let third = folders.len() >= 3 && i % 3 == 2;
        let role = if third { Role::HoldOut } else { Role::Fit };
        let mut load = store::read(folder, role).map_err(bad)?;
        if !args.hold_out.is_empty() {
            let name = folder
                .file_name()
                .map_or(String::new(), |n| n.to_string_lossy().into_owned());
            let held = args
                .hold_out
                .iter()
                .filter(|t| *t != "none")
                .any(|t| name.contains(t.as_str()) || load.name.contains(t.as_str()));
            load.role = if held { Role::HoldOut } else { Role::Fit };
        }
        loads.push(load);
    }
    let folders: Vec<String> = args
        .records
        .iter()
        .map(|d| d.display().to_string())
        .collect();
    let held: String = args
        .hold_out
        .iter()
        .map(|t| format!(" --hold-out '{t}'"))
        .collect();
    let facts = match args.endpoint.as_ref().filter(|_| asked) {
        Some(url) => Some(ask(args, url)?),
        None => store::read_facts(&args.records).map_err(bad)?,
    };
    let facts = facts.unwrap_or_else(|| Facts {
        software: "not recorded".into(),
        ..Facts::default()
    });
    let asked = args.endpoint.as_ref().map_or("", |_| " --endpoint URL");
    Ok(Loaded {
        loads,
        known: facts.server,
        origin: Origin {
            name: String::new(),
            command: format!(
                "servetwin calibrate{asked} --records {}{held}",
                folders.join(" ")
            ),
            model: facts.model.clone().unwrap_or_default(),
            software: facts.software.clone(),
            notes: facts.notes.clone(),
        },
        facts,
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting the client")
}

/// What the endpoint says of itself.
fn ask(args: &Args, url: &str) -> anyhow::Result<Facts> {
    let endpoint = target(args, url)?;
    let facts = runtime()?.block_on(async {
        let probe = Probe::run(&endpoint).await?;
        let client = Client::new(endpoint)?;
        Ok::<_, MeasureError>(facts::read(&client, &probe).await)
    })?;
    Ok(facts)
}

fn target(args: &Args, url: &str) -> anyhow::Result<Endpoint> {
    let mut endpoint = Endpoint::new(url).map_err(|e| BadInput(e.to_string()))?;
    endpoint.api = [
        ApiKind::Completions,
        ApiKind::Chat,
        ApiKind::Tgi,
        ApiKind::Triton,
    ]
    .into_iter()
    .find(|a| a.name() == args.api)
    .ok_or_else(|| {
        BadInput(format!(
            "--api {}: must be completions, chat, tgi or triton",
            args.api
        ))
    })?;
    endpoint.model.clone_from(&args.model);
    endpoint.api_key.clone_from(&args.api_key);
    for header in &args.header {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| BadInput(format!("--header `{header}`: write NAME: VALUE")))?;
        endpoint
            .headers
            .push((name.trim().into(), value.trim().into()));
    }
    Ok(endpoint)
}

fn budget(args: &Args) -> anyhow::Result<Budget> {
    let time: Secs = args
        .budget
        .parse()
        .map_err(|e| BadInput(format!("--budget {}: {e}", args.budget)))?;
    let positive = |flag: &str, v: f64| {
        if v.is_finite() && v > 0.0 {
            Ok(v)
        } else {
            Err(BadInput(format!("{flag}: must be above 0, got {v}")))
        }
    };
    Ok(Budget {
        time: Duration::from_secs_f64(positive("--budget", time.secs())?.min(86_400.0)),
        max_rate: positive("--max-rate", args.max_rate.per_sec())?,
        max_concurrency: args.max_concurrency,
        max_tokens: args.max_tokens,
        max_errors: args.max_errors.clamp(0.0, 1.0),
    })
}

/// Shows how far a measurement is, and keeps its loads.
struct Keeper {
    bar: indicatif::ProgressBar,
    /// Where loads go at once.
    folder: Option<PathBuf>,
    /// Those measured, with their numbers, and what is known of the endpoint.
    kept: Mutex<(Vec<(usize, Load)>, Facts)>,
}

impl Keeper {
    fn kept(&self) -> std::sync::MutexGuard<'_, (Vec<(usize, Load)>, Facts)> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Writes `loads` into `dir`, marked as not ended.
    fn write(dir: &Path, loads: &[(usize, Load)], facts: &Facts) -> Result<(), store::StoreError> {
        store::mark(dir, true)?;
        store::write_facts(dir, facts)?;
        for (number, load) in loads {
            store::write(dir, *number, load)?;
        }
        Ok(())
    }

    /// The error with where to find what was measured before it, and how to go on from there.
    fn after(&self, error: &MeasureError) -> anyhow::Error {
        let kept = self.kept();
        let (loads, facts) = &*kept;
        if loads.is_empty() {
            return anyhow!("{error}");
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = format!("servetwin-calibrate-{}", since.map_or(0, |d| d.as_secs()));
        let spare = std::env::temp_dir().join(name);
        let (dir, written) = match &self.folder {
            Some(dir) => (dir, Ok(())),
            None => (&spare, Keeper::write(&spare, loads, facts)),
        };
        let n = loads.len();
        match written {
            Ok(()) => anyhow!(
                "{error}; the {n} load(s) measured until then are in {dir}: --endpoint URL --records {dir} goes on from them",
                dir = dir.display()
            ),
            Err(e) => anyhow!("{error}; the {n} load(s) measured until then are lost: {e}"),
        }
    }
}

impl Watch for Keeper {
    fn say(&self, text: &str) {
        self.bar.suspend(|| note!("{text}"));
    }

    fn at(&self, p: Progress<'_>) {
        let left = plan::words(p.left.as_secs_f64());
        self.bar.set_message(format!(
            "part {} of {}: {}; {} requests sent, at most {left} left",
            p.part[0], p.part[1], p.load, p.requests
        ));
        let elapsed = self.bar.elapsed().as_secs();
        let whole = self.bar.length().unwrap_or(elapsed);
        self.bar.set_position(elapsed.min(whole));
    }

    fn keep(&self, number: usize, load: &Load, facts: &Facts) -> Result<(), String> {
        let one = (number, load.clone());
        let written = match &self.folder {
            Some(dir) => Keeper::write(dir, std::slice::from_ref(&one), facts),
            None => Ok(()),
        };
        let mut kept = self.kept();
        kept.0.push(one);
        kept.1 = facts.clone();
        written.map_err(|e| e.to_string())
    }
}

/// Measures what `before` does not hold, into `folder` where there is one.
fn measure(
    args: &Args,
    url: &str,
    folder: Option<PathBuf>,
    before: Before,
) -> anyhow::Result<Loaded> {
    let mut endpoint = target(args, url)?;
    let budget = budget(args)?;
    let seed = args.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |d| d.as_nanos() as u64)
    });
    let runtime = runtime()?;
    let keeper = Keeper {
        bar: progress::runs(budget.time.as_secs(), "measuring"),
        folder,
        kept: Mutex::default(),
    };
    let measured = runtime.block_on(async {
        let probe = Probe::run(&endpoint).await?;
        if endpoint.model.is_none() {
            endpoint.model = probe.models.first().cloned();
        }
        let client = Client::new(endpoint.clone())?;
        let options = Options {
            budget,
            longest_prompt: args.longest_prompt,
            seed,
        };
        let found = endpoint::measure(client, &probe, options, before, &keeper).await?;
        Ok::<_, MeasureError>((probe, found))
    });
    keeper.bar.finish_and_clear();
    let (probe, found) = measured.map_err(|e| keeper.after(&e))?;
    if let Some(dir) = &keeper.folder {
        store::write_facts(dir, &found.facts)?;
        store::mark(dir, false)?;
    }
    let mut notes = found.facts.notes.clone();
    notes.extend(probe.notes.iter().map(|n| printable(n).into_owned()));
    notes.push(format!(
        "measured with {} requests and {} tokens; most under way {}",
        found.spent.requests, found.spent.tokens, found.spent.most_under_way
    ));
    if probe.server == ServerKind::Unknown {
        notes.push("the server does not say what it is: its rules were found by simulating".into());
    }
    Ok(Loaded {
        loads: found.loads,
        known: found.facts.server,
        origin: Origin {
            name: String::new(),
            command: format!(
                "servetwin calibrate --endpoint URL --budget '{}' --max-rate '{}' --max-concurrency {} --max-tokens {}",
                args.budget, args.max_rate, args.max_concurrency, args.max_tokens
            ),
            model: endpoint.model.unwrap_or_default(),
            software: found.facts.software.clone(),
            notes,
        },
        facts: found.facts,
    })
}
