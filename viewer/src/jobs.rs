//! Runs in the background, with progress and cancel.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hwmodels::files::{Disk, Files};
use sim::report::RunReport;
use sim::scenario::Scenario;
use sim::scenario::ScenarioRunError;
use sim::simulation::{RunError, RunOptions};
use store::Limits;

use crate::run_data::RunData;

/// Largest file that is opened [bytes].
const MAX_FILE: u64 = 4 << 30;

/// A scenario and what is changed in it: everything to run it again.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it comes from: a path, or the name of a shipped scenario.
    pub origin: String,
    /// Its text.
    pub text: String,
    /// The files that it names.
    pub files: Arc<dyn Files>,
    /// What is changed in it, as `--set` takes it.
    pub overrides: Vec<String>,
}

impl Source {
    /// The scenario, checked.
    ///
    /// # Errors
    /// Everything that is wrong with it, in words.
    pub fn scenario(&self) -> Result<Scenario, String> {
        Scenario::parse_from(
            self.files.clone(),
            &self.text,
            &self.origin,
            &self.overrides,
        )
        .map_err(|e| e.to_string())
    }
}

/// A run that was opened.
#[derive(Clone, Debug)]
pub struct Doc {
    /// What happened.
    pub data: Arc<RunData>,
    /// What was run.
    pub source: Source,
    /// What it is called.
    pub title: String,
}

/// A load and what came of it.
#[derive(Clone, Debug)]
pub struct KneePoint {
    /// The load, relative to the scenario's.
    pub factor: f64,
    /// The figures.
    pub report: RunReport,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run a scenario.
    Run(Source),
    /// Open a scenario or a record.
    Open(PathBuf),
    /// Open the bytes of a file, of this name.
    Bytes(String, Vec<u8>),
    /// Run a scenario at several loads; `keys` are the rates with their values [req/s].
    Knee {
        /// The scenario.
        source: Source,
        /// Keys of rates and their values [req/s].
        keys: Vec<(String, f64)>,
    },
}

/// What came of it.
pub enum Done {
    /// A run.
    Doc(Box<Doc>),
    /// A load sweep.
    Knee(Vec<KneePoint>),
    /// Nothing: why not.
    Failed(String),
    /// Nothing: somebody cancelled.
    Cancelled,
}

/// What a job was started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be shown.
    Show,
    /// To be shown in place of the one that is shown, as its variation.
    WhatIf,
    /// To be compared with the one that is shown.
    Compare,
    /// A load sweep.
    Knee,
}

/// A task under way.
pub struct Job {
    /// What it was started for.
    pub purpose: Purpose,
    /// What it is called.
    pub label: String,
    cancel: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    done: Arc<Mutex<Option<Done>>>,
}

impl Job {
    /// Starts `task`; `wake` is called when it is done.
    pub fn start(
        task: Task,
        purpose: Purpose,
        label: impl Into<String>,
        wake: impl FnOnce() + Send + 'static,
    ) -> Job {
        let job = Job {
            purpose,
            label: label.into(),
            cancel: Arc::default(),
            progress: Arc::default(),
            total: Arc::default(),
            done: Arc::default(),
        };
        let (cancel, progress) = (job.cancel.clone(), job.progress.clone());
        let (total, done) = (job.total.clone(), job.done.clone());
        let work = move || {
            let worker = Worker {
                cancel,
                progress,
                total,
            };
            let result = worker.work(task);
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            wake();
        };
        std::thread::spawn(work);
        job
    }

    /// What came of it, once.
    pub fn take(&self) -> Option<Done> {
        self.done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Asks it to stop.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// How much of it is done [0, 1]; none where that is not known.
    pub fn progress(&self) -> Option<f32> {
        let total = self.total.load(Ordering::Relaxed);
        let n = self.progress.load(Ordering::Relaxed);
        (total > 0).then(|| (n as f32 / total as f32).min(1.0))
    }

    /// Requests that have ended.
    pub fn ended(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

struct Worker {
    cancel: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

/// Loads of a sweep, relative to the scenario's.
const LOADS: [f64; 8] = [0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6];

impl Worker {
    fn work(&self, task: Task) -> Done {
        let failed = Done::Failed;
        match task {
            Task::Run(source) => self.run(source),
            Task::Open(path) => match open(&path) {
                Ok(Opened::Scenario(source)) => self.run(source),
                Ok(Opened::Record(doc)) => Done::Doc(doc),
                Err(e) => failed(e),
            },
            Task::Bytes(name, bytes) => match opened(&name, bytes) {
                Ok(Opened::Scenario(source)) => self.run(source),
                Ok(Opened::Record(doc)) => Done::Doc(doc),
                Err(e) => failed(e),
            },
            Task::Knee { source, keys } => self.knee(&source, &keys),
        }
    }

    fn options(&self) -> RunOptions {
        RunOptions {
            progress: Some(self.progress.clone()),
            cancel: Some(self.cancel.clone()),
            ..RunOptions::default()
        }
    }

    fn run(&self, source: Source) -> Done {
        let scenario = match source.scenario() {
            Ok(s) => s,
            Err(e) => return Done::Failed(e),
        };
        if let Some(n) = scenario.limits.requests {
            self.total.store(n, Ordering::Relaxed);
        }
        let start = std::time::Instant::now();
        let seconds = || start.elapsed().as_secs_f64();
        let built = match scenario.build() {
            Ok(b) => b,
            Err(e) => return Done::Failed(e.to_string()),
        };
        match store::run(built, &self.options(), Limits::default(), seconds) {
            Ok((_, record)) => Done::Doc(Box::new(Doc {
                title: record.report.name.clone(),
                data: Arc::new(RunData::new(record)),
                source,
            })),
            Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => Done::Cancelled,
            Err(e) => Done::Failed(e.to_string()),
        }
    }

    /// The scenario at several loads, one after the other.
    fn knee(&self, source: &Source, keys: &[(String, f64)]) -> Done {
        let mut points = Vec::new();
        let mut each = 0;
        for factor in LOADS {
            let mut at = source.clone();
            for (key, rate) in keys {
                at.overrides.push(format!("{key}={} req/s", rate * factor));
            }
            let scenario = match at.scenario() {
                Ok(s) => s,
                Err(e) => return Done::Failed(e),
            };
            if let Some(n) = scenario.limits.requests {
                each = n;
                self.total.store(n * LOADS.len() as u64, Ordering::Relaxed);
            }
            match scenario.run(&self.options()) {
                Ok(record) => points.push(KneePoint {
                    factor,
                    report: RunReport::new(&record, 0.0),
                }),
                Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => return Done::Cancelled,
                Err(e) => return Done::Failed(e.to_string()),
            }
            self.progress
                .store(each * points.len() as u64, Ordering::Relaxed);
        }
        Done::Knee(points)
    }
}

enum Opened {
    Scenario(Source),
    Record(Box<Doc>),
}

fn open(path: &Path) -> Result<Opened, String> {
    let name = path.display().to_string();
    let reading = |e: std::io::Error| format!("cannot read {name}: {e}");
    let meta = std::fs::metadata(path).map_err(reading)?;
    if meta.is_dir() {
        return Err(format!(
            "{name} is a folder; open a scenario (.toml) or a record (.servetwin)"
        ));
    }
    if meta.len() > MAX_FILE {
        return Err(format!(
            "{name} has {} bytes; at most {MAX_FILE} are read",
            meta.len()
        ));
    }
    opened(&name, std::fs::read(path).map_err(reading)?)
}

fn opened(name: &str, bytes: Vec<u8>) -> Result<Opened, String> {
    if store::is_record(&bytes) {
        let record = store::read(Cursor::new(bytes)).map_err(|e| format!("{name}: {e}"))?;
        let source = Source {
            origin: name.to_owned(),
            text: record.info.scenario.clone(),
            files: Arc::new(Disk),
            overrides: Vec::new(),
        };
        return Ok(Opened::Record(Box::new(Doc {
            title: record.report.name.clone(),
            data: Arc::new(RunData::new(record)),
            source,
        })));
    }
    let toml = Path::new(name).extension().is_some_and(|e| e == "toml");
    match String::from_utf8(bytes) {
        Ok(text) if toml => Ok(Opened::Scenario(Source {
            origin: name.to_owned(),
            text,
            files: Arc::new(Disk),
            overrides: Vec::new(),
        })),
        _ => Err(format!(
            "{name} is neither a scenario (.toml) nor a record (.servetwin, written by `servetwin run FILE --record OUT.servetwin`), or it was cut off"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(job: &Job) -> Done {
        loop {
            if let Some(done) = job.take() {
                return done;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn words(task: Task) -> String {
        match done(&Job::start(task, Purpose::Show, "test", || {})) {
            Done::Failed(words) => words,
            _ => panic!("it went well"),
        }
    }

    #[test]
    fn strange_files_are_refused_in_words() {
        let e = words(Task::Bytes(
            "x.servetwin".into(),
            b"PK\x03\x04 cut".to_vec(),
        ));
        assert!(
            e.contains("x.servetwin") && e.contains("no record file"),
            "{e}"
        );
        let e = words(Task::Bytes("x.txt".into(), b"hello".to_vec()));
        assert!(e.contains("neither a scenario"), "{e}");
        let e = words(Task::Bytes("x.toml".into(), b"[engine".to_vec()));
        assert!(e.contains("x.toml"), "{e}");
        let e = words(Task::Open("/no/such/file.toml".into()));
        assert!(e.contains("cannot read /no/such/file.toml"), "{e}");
    }

    #[test]
    fn a_job_that_is_cancelled_says_so() {
        let source = Source {
            origin: crate::gallery::origin(0),
            text: crate::gallery::SHIPPED[0].1.to_owned(),
            files: crate::gallery::bundle(),
            overrides: vec!["run.requests=2000000".to_owned()],
        };
        let job = Job::start(Task::Run(source), Purpose::Show, "test", || {});
        job.cancel();
        assert!(matches!(done(&job), Done::Cancelled));
    }
}
