//! Work in the background, with progress and cancel: on a thread of its own, or in a web worker where the application is a page.

mod open;
#[cfg(target_arch = "wasm32")]
pub mod page;
mod work;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sim::report::RunReport;
use store::Record;

use crate::candidates::Candidates;
use crate::live::Looks;
use crate::run_data::RunData;
use crate::source::Source;

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

impl Doc {
    /// A record with what was run.
    pub fn of(record: Record, source: Source) -> Doc {
        Doc {
            title: record.report.name.clone(),
            data: Arc::new(RunData::new(record)),
            source,
        }
    }
}

/// A load and what came of it.
#[derive(Clone, Debug)]
pub struct KneePoint {
    /// Rate, relative to the scenario's.
    pub factor: f64,
    /// The figures.
    pub report: RunReport,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run a scenario.
    Run(Source),
    /// Open a file or a folder.
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
    /// Run a scenario, and write what happened as a trace that Perfetto opens.
    Perfetto(Source),
}

/// What came of it.
pub enum Done {
    /// A file: its name, and what is in it.
    File(String, Vec<u8>),
    /// A run.
    Doc(Box<Doc>),
    /// A load sweep.
    Knee(Vec<KneePoint>),
    /// The result of a plan or a sweep.
    Candidates(Box<Candidates>),
    /// What a twin wrote.
    Looks(Box<Looks>),
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
    /// A file to be written.
    Export,
    /// A picture on the first screen.
    Thumb,
}

/// What work and those who wait for it tell each other.
#[derive(Clone, Default)]
struct Signals {
    /// It is to stop.
    cancel: Arc<AtomicBool>,
    /// Requests that have ended.
    ended: Arc<AtomicU64>,
    /// Requests that there will be; 0: not known.
    total: Arc<AtomicU64>,
    /// Is called now and then with both, where nobody can look at them.
    tell: Option<fn(u64, u64)>,
}

impl Signals {
    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn tell(&self) {
        if let Some(tell) = self.tell {
            let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
            tell(of(&self.ended), of(&self.total));
        }
    }
}

/// Where the outcome is put.
type Outcome = Arc<Mutex<Option<Done>>>;

fn put(outcome: &Outcome, done: Done) {
    *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
}

/// A task under way.
pub struct Job {
    /// What it was started for.
    pub purpose: Purpose,
    /// What it is called.
    pub label: String,
    signals: Signals,
    outcome: Outcome,
    #[cfg(target_arch = "wasm32")]
    running: Option<page::Running>,
}

impl Job {
    /// Starts `task`; `wake` is called when it is done.
    pub fn start(
        task: Task,
        purpose: Purpose,
        label: impl Into<String>,
        wake: impl Fn() + Send + 'static,
    ) -> Job {
        let (signals, outcome) = (Signals::default(), Outcome::default());
        #[cfg(target_arch = "wasm32")]
        let running = page::start(task, &signals, &outcome, wake);
        #[cfg(not(target_arch = "wasm32"))]
        {
            let (signals, outcome) = (signals.clone(), outcome.clone());
            std::thread::spawn(move || {
                let done = work::work(task, &signals);
                let data = match &done {
                    Done::Doc(doc) => Some(doc.data.clone()),
                    _ => None,
                };
                put(&outcome, done);
                wake();
                // It is shown meanwhile; what views ask for first they make themselves.
                if let Some(data) = data {
                    data.prepare();
                }
            });
        }
        Job {
            purpose,
            label: label.into(),
            signals,
            outcome,
            #[cfg(target_arch = "wasm32")]
            running,
        }
    }

    /// What came of it, once.
    pub fn take(&self) -> Option<Done> {
        self.outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Asks it to stop.
    pub fn cancel(&self) {
        self.signals.cancel.store(true, Ordering::Relaxed);
        #[cfg(target_arch = "wasm32")]
        if let Some(running) = &self.running {
            running.stop();
            put(&self.outcome, Done::Cancelled);
        }
    }

    /// How much of it is done [0, 1]; none where that is not known.
    pub fn progress(&self) -> Option<f32> {
        let total = self.signals.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.ended() as f32 / total as f32).min(1.0))
    }

    /// Requests that have ended.
    pub fn ended(&self) -> u64 {
        self.signals.ended.load(Ordering::Relaxed)
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
        assert!(
            e.contains("x.txt is not") && e.contains("a scenario"),
            "{e}"
        );
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
