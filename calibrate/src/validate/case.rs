//! One measured run as a scenario, and the figures it is held against.

use std::path::PathBuf;

use hwmodels::catalog::Catalog;
use hwmodels::doubt::{Figure, Kind, Load};
use serde::de::DeserializeOwned;
use sim::report::{RunReport, doubt};
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

use super::error::SetError;
use super::input;
use super::row::LoadPlace;

/// A measured figure and where the prediction's report has its counterpart.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name in reports, with its unit.
    pub metric: &'static str,
    /// Path in `run --json`, e.g. `ttft_ms.mean`.
    pub path: &'static str,
    /// The measured value.
    pub value: f64,
    /// Whether parameters were fitted on it.
    pub fitted: bool,
}

impl Measured {
    /// A figure that no parameter was fitted on.
    pub fn unseen(metric: &'static str, path: &'static str, value: f64) -> Measured {
        Measured {
            metric,
            path,
            value,
            fitted: false,
        }
    }
}

/// One measured run, described as a scenario anyone could write.
#[derive(Clone, Debug)]
pub struct Case {
    /// Data set.
    pub set: &'static str,
    /// Name within the set.
    pub name: String,
    /// One-knob coordinates; empty: not compared with others.
    pub knobs: Vec<String>,
    /// Scenario text; `{dir}` stands for the folder of `files`.
    pub scenario: String,
    /// Files that the scenario reads: name and text.
    pub files: Vec<(String, String)>,
    /// Runs with seeds from 1 on whose figures are averaged, where chance decides what was not reported.
    pub runs: u64,
    /// What was measured.
    pub measured: Vec<Measured>,
}

/// What the simulator says of a case.
#[derive(Clone, Debug)]
pub struct Prediction {
    runs: Vec<RunReport>,
    /// Of each run that the load does not follow: the same with shorter and with longer steps ([`doubt::bracket`]).
    brackets: Vec<[RunReport; 2]>,
}

impl Prediction {
    /// What the runs are like, as far as errors depend on it.
    pub fn kind(&self) -> Option<Kind> {
        self.runs.first()?.like
    }

    /// The figure at `path` of `run --json`, the mean over the runs.
    pub fn number(&self, path: &str) -> Option<f64> {
        mean(self.runs.iter(), path)
    }

    /// How many times as much the figure at `path` changes as steps do, with `[shorter, longer]` ones; once where the load follows.
    pub fn responses(&self, path: &str) -> [f64; 2] {
        let (Some(value), Some(r)) = (self.number(path), self.runs.first()) else {
            return [1.0; 2];
        };
        let pace = doubt::spread(r, Figure::Tpot, None);
        [0, 1].map(|side| {
            let other = mean(self.brackets.iter().map(|b| &b[side]), path);
            other.map_or(1.0, |other| doubt::response(value, other, pace))
        })
    }

    /// Where the load is against what the deployment can do.
    pub fn place(&self) -> Option<LoadPlace> {
        Some(match self.kind()?.load {
            Load::Closed => LoadPlace::Follows,
            Load::Saturated => LoadPlace::AtOnce,
            Load::Open if self.brackets.is_empty() => LoadPlace::Below,
            Load::Open if self.runs.iter().any(|r| r.stationarity.growing()) => LoadPlace::Beyond,
            Load::Open => {
                let overloaded = self.brackets.iter().any(|b| b[1].stationarity.growing());
                let [_, longer] = self.responses("ttft_ms.mean");
                match overloaded || longer >= AT_KNEE {
                    true => LoadPlace::Near,
                    false => LoadPlace::Below,
                }
            }
        })
    }
}

/// Times as much as steps that TTFT grows by near the knee: the queue makes as much of it as the steps.
const AT_KNEE: f64 = 2.0;

/// The mean of the figure at `path` over `runs`; none where one of them lacks it, or there are none.
fn mean<'a>(runs: impl Iterator<Item = &'a RunReport>, path: &str) -> Option<f64> {
    let figures: Vec<f64> = runs
        .map(|r| sim::report::expect::number(r, path))
        .collect::<Option<_>>()?;
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// Where measurements are read from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A folder.
    Folder(PathBuf),
    /// The published tables that the binary carries (`calibrate/data/published/`).
    Published,
}

/// The embedded tables by file name.
const PUBLISHED: [(&str, &str); 4] = [
    (
        "jumpstart_tgi.csv",
        include_str!("../../data/published/jumpstart_tgi.csv"),
    ),
    (
        "serving_points.csv",
        include_str!("../../data/published/serving_points.csv"),
    ),
    (
        "trtllm_overview.csv",
        include_str!("../../data/published/trtllm_overview.csv"),
    ),
    (
        "trtllm_per_gpu.csv",
        include_str!("../../data/published/trtllm_per_gpu.csv"),
    ),
];

impl Source {
    /// Reads `name` as [`Source::read`] does, from the published tables where a folder lacks it.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read_or_published<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, SetError> {
        match self.read(name) {
            Err(e) if e.missing => Source::Published.read(name),
            other => other,
        }
    }

    /// Reads the CSV file `name`, a path within the source; `.gz` is unpacked.
    ///
    /// # Errors
    /// The file is missing or has no rows, or a row does not have the expected columns or has a measurement that is none.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, SetError> {
        match self {
            Source::Published => match PUBLISHED.iter().find(|(n, _)| *n == name) {
                Some((_, text)) => input::parse(text.as_bytes(), name, name),
                None => Err(SetError {
                    file: name.to_owned(),
                    message: "is not among the published tables; name a folder that holds it"
                        .into(),
                    missing: true,
                }),
            },
            Source::Folder(dir) => {
                let path = dir.join(name);
                let shown = path.display().to_string();
                let file = std::fs::File::open(&path).map_err(|e| SetError {
                    file: shown.clone(),
                    message: e.to_string(),
                    missing: e.kind() == std::io::ErrorKind::NotFound,
                })?;
                if name.ends_with(".gz") {
                    input::parse(flate2::read::MultiGzDecoder::new(file), name, &shown)
                } else {
                    input::parse(file, name, &shown)
                }
            }
        }
    }
}

impl Case {
    /// Catalog name of the accelerator that the case runs on; none where that cannot be told.
    pub fn accelerator(&self) -> Option<String> {
        let scenario = Scenario::parse(&self.scenario, self.set, &[]).ok()?;
        let catalog = Catalog::builtin();
        let hardware = scenario.hardware?;
        if let Some(machine) = hardware.machine {
            let chip = catalog.accelerator(&machine.accelerator).ok()?;
            return Some(chip.name.clone());
        }
        let instance = catalog.instance(&hardware.instance).ok()?;
        Some(instance.accelerator.clone())
    }

    /// Runs the case as often as it says, with `params` laid over its profile.
    ///
    /// # Errors
    /// In words: the scenario does not parse, the deployment does not fit, or the run fails.
    pub fn run(&self, params: &[(String, f64)]) -> Result<Prediction, String> {
        self.predict(params, false)
    }

    /// The same, and where that is `wanted` with the runs that say what the load makes of longer steps.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub fn predict(&self, params: &[(String, f64)], wanted: bool) -> Result<Prediction, String> {
        let dir = Scratch::with(&self.files)?;
        let text = self
            .scenario
            .replace("{dir}", &dir.path.display().to_string());
        let mut overrides = Vec::new();
        if !params.is_empty() {
            let table: Vec<String> = params
                .iter()
                .map(|(name, value)| format!("\"{name}\" = {value:e}"))
                .collect();
            overrides.push(format!("hardware.params={{{}}}", table.join(", ")));
        }
        let origin = format!("{} {}", self.set, self.name);
        let run = |seed: u64| {
            let mut overrides = overrides.clone();
            overrides.push(format!("seed={seed}"));
            let scenario =
                Scenario::parse(&text, &origin, &overrides).map_err(|e| e.to_string())?;
            let options = RunOptions::default();
            let report = (scenario.paced(&options, 1.0)).map_err(|e| e.to_string())?;
            let paced = |factor: f64| scenario.paced(&options, factor);
            let bracket = match wanted {
                true => doubt::bracket(&report, scenario.load_follows(), paced)
                    .map_err(|e| e.to_string())?,
                false => None,
            };
            Ok((report, bracket))
        };
        let done: Vec<_> = (1..=self.runs).map(run).collect::<Result<_, String>>()?;
        let (runs, brackets): (_, Vec<_>) = done.into_iter().unzip();
        let brackets = brackets.into_iter().flatten().collect();
        Ok(Prediction { runs, brackets })
    }
}

/// A folder for a case's files, removed when dropped.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn with(files: &[(String, String)]) -> Result<Scratch, String> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = std::env::temp_dir().join(format!(
            "servetwin-validate-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        let scratch = Scratch { path };
        if files.is_empty() {
            return Ok(scratch);
        }
        let io = |e: std::io::Error| format!("cannot write {}: {e}", scratch.path.display());
        std::fs::create_dir_all(&scratch.path).map_err(io)?;
        for (name, text) in files {
            std::fs::write(scratch.path.join(name), text).map_err(io)?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-over files in the system's folder for temporary files do no harm.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
