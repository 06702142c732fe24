//! From a scenario file to a record: the one place where commands meet the simulator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use clap::ValueEnum;
use hwmodels::profile::Param;
use sim::metrics::RecordOptions;
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::draws::draw;
use sim::scenario::Scenario;
use sim::scenario::ScenarioRunError;
use sim::scenario::built::Built;
use sim::simulation::{self, RunError, RunOptions};

use crate::bad_input::BadInput;
use crate::output;

/// Step rows kept where a trace or a table of steps is wanted; a trace of more does not open any more.
const MAX_STEP_ROWS: usize = 2_000_000;

/// A scenario file and what the command line changes in it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ScenarioArgs {
    /// Scenario file (TOML; docs/scenario.md).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Override a value, e.g. 'workload[0].arrival.rate=2.5 req/s'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed of all randomness, in place of the scenario's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Folder of catalog files that add to or replace the built-in ones, in place of the scenario's.
    #[arg(long, value_name = "DIR")]
    pub catalog: Option<PathBuf>,
}

/// How steps are advanced; leaves no trace in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// The fast path where it applies.
    #[default]
    Auto,
    /// Step by step.
    Reference,
    /// The fast path, or an error that says why it does not apply.
    Fast,
}

impl From<Path> for simulation::Path {
    fn from(path: Path) -> simulation::Path {
        match path {
            Path::Auto => simulation::Path::Auto,
            Path::Reference => simulation::Path::Reference,
            Path::Fast => simulation::Path::Fast,
        }
    }
}

/// What of a run is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Request rows, for exact percentiles.
    Requests,
    /// Request and step rows.
    Everything,
}

/// Where the randomness of a run comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// Of the requests: when they arrive, how long they are, what they share.
    pub load: u64,
    /// Of the cluster: the router's draws, the course of the machines' speed.
    pub cluster: u64,
}

impl From<u64> for Seeds {
    /// One seed for all of it.
    fn from(seed: u64) -> Seeds {
        Seeds {
            load: seed,
            cluster: seed,
        }
    }
}

/// A finished run.
pub struct Simulated {
    /// Its record.
    pub record: RunRecord,
    /// How long the simulation took [s].
    pub wall_s: f64,
}

impl ScenarioArgs {
    /// Reads the scenario with its overrides.
    ///
    /// # Errors
    /// [`BadInput`] with everything that is wrong.
    pub fn load(&self) -> anyhow::Result<Scenario> {
        let mut set = self.set.clone();
        if let Some(seed) = self.seed {
            set.push(format!("seed={seed}"));
        }
        output::reads([&self.file]);
        let mut scenario = Scenario::load(&self.file, &set).map_err(|e| BadInput(e.to_string()))?;
        if let Some(dir) = &self.catalog {
            // The scenario's paths are relative to its file; this one is relative to where the user is.
            let dir = std::path::absolute(dir)?;
            match &mut scenario.hardware {
                Some(hardware) => hardware.catalog = Some(dir),
                None => {
                    return Err(BadInput(
                        "--catalog has no effect: the scenario has no [hardware]".into(),
                    )
                    .into());
                }
            }
        }
        output::reads(scenario.inputs());
        Ok(scenario)
    }
}

/// Builds and runs `scenario` with `seeds` in place of its own.
///
/// # Errors
/// [`BadInput`] where the scenario cannot be built; the simulator's own errors.
pub fn simulate(
    scenario: &Scenario,
    seeds: impl Into<Seeds>,
    keep: Keep,
    path: Path,
    progress: Option<&Arc<AtomicU64>>,
) -> anyhow::Result<Simulated> {
    let built = built(scenario, seeds.into())?;
    let start = Instant::now();
    let record = built
        .run(&options(keep, path, progress))
        .map_err(in_words)?;
    Ok(Simulated {
        record,
        wall_s: start.elapsed().as_secs_f64(),
    })
}

/// The same, with what a record file holds.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_recorded(
    scenario: &Scenario,
    keep: Keep,
    path: Path,
    progress: Option<&Arc<AtomicU64>>,
) -> anyhow::Result<(Simulated, store::Record)> {
    let built = built(scenario, scenario.seed.into())?;
    let start = Instant::now();
    let options = options(keep, path, progress);
    let wall_s = || start.elapsed().as_secs_f64();
    let (record, stored) =
        store::run(built, &options, store::Limits::default(), wall_s).map_err(in_words)?;
    let wall_s = stored.report.stats.wall_s;
    Ok((Simulated { record, wall_s }, stored))
}

/// Gives `report`, that of a run of `scenario` with `seeds`, the ranges that its load makes.
///
/// # Errors
/// As [`simulate`].
pub fn give_ranges(
    scenario: &Scenario,
    seeds: impl Into<Seeds>,
    path: Path,
    report: &mut RunReport,
) -> anyhow::Result<()> {
    let seeds = seeds.into();
    let mut scenario = scenario.clone();
    scenario.seed = seeds.load;
    let options = options(Keep::Requests, path, None);
    (scenario.give_ranges(report, &options, Some(seeds.cluster))).map_err(in_words)
}

fn built(scenario: &Scenario, seeds: Seeds) -> anyhow::Result<Built> {
    let mut scenario = scenario.clone();
    scenario.seed = seeds.load;
    let mut built = scenario.build().map_err(|e| BadInput(e.to_string()))?;
    built.simulation.seed = seeds.cluster;
    Ok(built)
}

fn options(keep: Keep, path: Path, progress: Option<&Arc<AtomicU64>>) -> RunOptions {
    RunOptions {
        path: path.into(),
        progress: progress.cloned(),
        record: RecordOptions {
            max_step_rows: match keep {
                Keep::Requests => 0,
                Keep::Everything => MAX_STEP_ROWS,
            },
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    }
}

fn in_words(error: ScenarioRunError) -> anyhow::Error {
    match error {
        ScenarioRunError::Scenario(e) => BadInput(e.to_string()).into(),
        ScenarioRunError::Run(e @ (RunError::NotFast { .. } | RunError::TooManyRequests)) => {
            BadInput(e.to_string()).into()
        }
        e => anyhow::Error::from(e),
    }
}

/// `scenario` with the `i`-th draw of the parameters of its step times that are known within a standard error only
/// (`uncertain`). The same `seed`, draw and parameter always give the same value, in every scenario.
pub fn drawn(
    scenario: &Scenario,
    uncertain: &BTreeMap<String, Param>,
    seed: u64,
    i: u64,
) -> Scenario {
    let mut scenario = scenario.clone();
    let values = draw(uncertain, seed, i);
    if let Some(hardware) = &mut scenario.hardware {
        hardware.params.extend(values);
    } else if let Some(fitted) = &mut scenario.fitted {
        fitted.params.extend(values);
    }
    scenario
}

/// Builds the scenario without running it, and says what came out.
///
/// # Errors
/// [`BadInput`] where it cannot be built.
pub fn check(scenario: &Scenario) -> anyhow::Result<String> {
    let built = scenario.build().map_err(|e| BadInput(e.to_string()))?;
    let info = &built.info;
    let mut text = format!(
        "{}: ok\n  {}\n  {}\n",
        info.name, info.deployment, info.load
    );
    if let Some(replica) = info.replicas.first() {
        text += &format!(
            "  each replica: {} KV blocks of {} tokens\n",
            replica.kv_blocks, replica.block_tokens
        );
    }
    for warning in &info.warnings {
        text += &format!("  warning: {warning}\n");
    }
    Ok(text)
}
