//! The twin at work: every so often it takes the last window, replays it, judges the errors, and says what it found.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sim::scenario::{Scenario, ScenarioError};

use super::compare::{Comparison, compare};
use super::drift::{Drift, DriftConfig};
use super::observe::Observer;
use super::refit::{self, refit};
use super::replay::{Change, load_deployment, profile_file, replay};
use super::report::{Report, Traffic};
use super::scrape::{Scraper, means, stretch};
use super::tap::Counters;
use super::window::Window;

/// Draws of a window that is known from metrics only.
const DRAWS: u64 = 5;

/// The deployment that predictions are made for.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Scenario file.
    pub file: PathBuf,
    /// Overrides of its values.
    pub set: Vec<String>,
    scenario: Scenario,
}

impl Deployment {
    /// Reads it, and checks that it can be built.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(file: &Path, set: &[String]) -> Result<Deployment, ScenarioError> {
        let scenario = load_deployment(file, set)?;
        scenario.build()?;
        Ok(Deployment {
            file: file.to_owned(),
            set: set.to_vec(),
            scenario,
        })
    }

    /// The resolved scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }
}

/// What a twin is told to do.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// Name of the live deployment.
    pub endpoint: String,
    /// Length of the compared window.
    pub window: Duration,
    /// Replayed in front of it, not compared.
    pub lead: Duration,
    /// How drift is judged.
    pub drift: DriftConfig,
    /// Folder that windows are written to.
    pub windows: Option<PathBuf>,
    /// Whether drift makes a refit.
    pub refit_on_drift: bool,
}

/// A twin at work.
pub struct Live {
    config: LiveConfig,
    deployment: Option<Deployment>,
    observer: Option<(Observer, Arc<Counters>)>,
    scraper: Option<Arc<Scraper>>,
    unix_origin_s: f64,
    drift: Drift,
    refitted: u32,
}

impl Live {
    /// A twin that watches through `observer` (behind a proxy), `scraper`, or both.
    pub fn new(
        config: LiveConfig,
        deployment: Option<Deployment>,
        observer: Option<(Observer, Arc<Counters>)>,
        scraper: Option<Arc<Scraper>>,
        unix_origin_s: f64,
    ) -> Live {
        Live {
            drift: Drift::new(config.drift.clone()),
            config,
            deployment,
            observer,
            scraper,
            unix_origin_s,
            refitted: 0,
        }
    }

    /// Looks at the last window. Takes as long as its simulation; call it where blocking is fine.
    pub fn look(&mut self) -> Report {
        let traffic = match &self.observer {
            Some((observer, counters)) => Traffic::now(counters, observer.troubles()),
            None => Traffic::default(),
        };
        let mut report = Report {
            endpoint: self.config.endpoint.clone(),
            comparison: None,
            verdicts: Vec::new(),
            drift: self.drift.raised(),
            traffic,
            problem: None,
        };
        let looked = match self.observer.as_ref().map(|(o, _)| o.clone()) {
            Some(observer) => self.recorded(&observer, &mut report),
            None => self.scraped(&mut report),
        };
        if let Err(problem) = looked {
            report.problem = Some(problem);
        }
        if let Some(comparison) = &report.comparison {
            report.verdicts = self.drift.take(comparison);
            report.drift = self.drift.raised();
        }
        report
    }

    /// Compares the window that the proxy recorded.
    fn recorded(&mut self, observer: &Observer, report: &mut Report) -> Result<(), String> {
        let mut window = observer.window(self.config.window, self.config.lead);
        if let Some(scraper) = &self.scraper {
            window.meta.server = means(&scraper.since(window.meta.start_ns));
        }
        if window.rows.is_empty() {
            return Err("no request has come through the proxy yet".into());
        }
        if let Some(dir) = &self.config.windows {
            save(dir, &window)?;
        }
        let deployment = self.deployment.as_ref().ok_or(NO_SCENARIO)?;
        let replayed = replay(&window, deployment.scenario(), &Change::default()).map_err(text)?;
        let mut comparison = compare(&window, &replayed).map_err(text)?;
        comparison
            .notes
            .push(format!("prompt lengths: {}", window.counted_in_words()));
        // Drift of the windows before this one: a refit answers it with the newest data.
        if self.drift.raised() && self.config.refit_on_drift {
            let note = self.refit(&window);
            comparison.notes.push(note);
        }
        report.comparison = Some(comparison);
        Ok(())
    }

    /// Refits to `window` and goes on with the result; what came of it, in words.
    fn refit(&mut self, window: &Window) -> String {
        let Some(deployment) = self.deployment.clone() else {
            return NO_SCENARIO.into();
        };
        match refit_to(window, &deployment, None) {
            Err(e) => format!("drift, but no refit: {e}"),
            Ok((found, next)) => {
                self.refitted += 1;
                let note = format!(
                    "refit: steps take {:.3} times as long (+- {:.1} % by chance); from now on predicted with {}",
                    found.factor,
                    found.noise * 100.0,
                    next.written.display()
                );
                self.deployment = Some(next.deployment);
                self.drift.reset();
                note
            }
        }
    }

    /// Compares what the server's metrics say.
    fn scraped(&self, report: &mut Report) -> Result<(), String> {
        let scraper = self
            .scraper
            .as_ref()
            .ok_or("neither a proxy nor metrics to watch")?;
        let readings = scraper.since(0);
        let last = readings.last().ok_or("no metrics were read yet")?;
        let nanos = u64::try_from(self.config.window.as_nanos()).unwrap_or(u64::MAX);
        let readings = scraper.since(last.at_ns.saturating_sub(nanos));
        let stretch = stretch(&readings)
            .ok_or("too few readings yet, or the server does not count its requests")?;
        let windows: Vec<Window> = (0..DRAWS)
            .filter_map(|seed| stretch.drawn(&self.config.endpoint, self.unix_origin_s, seed))
            .collect();
        let first = windows
            .first()
            .ok_or("no request finished, or the metrics hold no lengths")?;
        if let Some(dir) = &self.config.windows {
            save(dir, first)?;
        }
        let deployment = self.deployment.as_ref().ok_or(NO_SCENARIO)?;
        let replays = windows
            .iter()
            .map(|w| replay(w, deployment.scenario(), &Change::default()).map_err(text))
            .collect::<Result<Vec<_>, _>>()?;
        report.comparison = stretch.compare(&windows, &replays);
        Ok(())
    }

    /// Whether drift is raised.
    pub fn drifted(&self) -> bool {
        self.drift.raised()
    }

    /// How often the twin has refitted itself.
    pub fn refits(&self) -> u32 {
        self.refitted
    }
}

const NO_SCENARIO: &str = "no --scenario: traffic is recorded, nothing is predicted";

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Writes `window` into `dir`, named after its end.
fn save(dir: &Path, window: &Window) -> Result<(), String> {
    let end = window.meta.unix_origin_s + window.meta.end_ns as f64 * 1e-9;
    let path = dir.join(format!("window-{end:.0}.jsonl"));
    files::write(&path, |out| window.write(out)).map_err(text)
}

/// A deployment after a refit.
#[derive(Clone, Debug)]
pub struct Refitted {
    /// The new file: a profile, or a scenario with its `[step]` scaled.
    pub written: PathBuf,
    /// The deployment with it.
    pub deployment: Deployment,
}

/// Refits `deployment` to `window` and writes the result to `out`, or beside the file that it replaces under a name
/// that is free.
///
/// # Errors
/// See [`refit::RefitError`]; also when the deployment cannot be built with the new file.
pub fn refit_to(
    window: &Window,
    deployment: &Deployment,
    out: Option<&Path>,
) -> Result<(refit::Refit, Refitted), String> {
    let found = refit(window, deployment.scenario()).map_err(text)?;
    let scenario = deployment.scenario();
    let profile = profile_file(scenario);
    let written = match out {
        Some(out) => out.to_owned(),
        None => free_name(profile.as_deref().unwrap_or(&deployment.file)),
    };
    refit::write(&found, scenario, &deployment.file, &written).map_err(text)?;
    let next = if profile.is_some() {
        let full = std::path::absolute(&written).map_err(text)?;
        let mut set = deployment.set.clone();
        let value = toml::Value::String(full.display().to_string());
        set.push(format!("hardware.step_profile={value}"));
        Deployment::load(&deployment.file, &set)
    } else {
        Deployment::load(&written, &deployment.set)
    };
    Ok((
        found,
        Refitted {
            written,
            deployment: next.map_err(text)?,
        },
    ))
}

/// `NAME-refit-1.toml`, or the first of that kind that does not exist.
fn free_name(of: &Path) -> PathBuf {
    let stem = of
        .file_stem()
        .map_or("profile".into(), |s| s.to_string_lossy().into_owned());
    let stem = match stem.rsplit_once("-refit-") {
        Some((stem, n)) if n.parse::<u32>().is_ok() => stem.to_owned(),
        _ => stem,
    };
    (1u32..)
        .map(|n| of.with_file_name(format!("{stem}-refit-{n}.toml")))
        .find(|p| !p.exists())
        .unwrap_or_else(|| of.with_extension("refit.toml"))
}

/// Compares a recorded window with its replay on `deployment`.
///
/// # Errors
/// In words.
pub fn replay_once(window: &Window, deployment: &Deployment) -> Result<Comparison, String> {
    let replayed = replay(window, deployment.scenario(), &Change::default()).map_err(text)?;
    compare(window, &replayed).map_err(text)
}
