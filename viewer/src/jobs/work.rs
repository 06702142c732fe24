//! The work itself, wherever it is done.

use std::sync::atomic::Ordering;

use sim::kernel::time::SimTime;
use sim::observer::{FleetEvent, Observer};
use sim::record::{RequestRow, StepRow};
use sim::report::{RunReport, trace};
use sim::scenario::ScenarioRunError;
use sim::simulation::{RunError, RunOptions};
use store::{Collector, Limits, Record};
use web_time::Instant;

use super::open::{Opened, opened};
use super::{Doc, Done, KneePoint, Signals, Task};
use crate::source::Source;

/// Requests after which a run tells how far it is.
const TELL_EVERY: u64 = 512;

/// Most steps of a run that is written as a trace.
const MOST_STEPS: usize = 2_000_000;

/// Loads of a sweep, relative to the scenario's.
const LOADS: [f64; 8] = [0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6];

/// Does `task`.
pub(super) fn work(task: Task, signals: &Signals) -> Done {
    let opened = match task {
        Task::Run(source) => return run(source, signals),
        Task::Knee { source, keys } => return knee(&source, &keys, signals),
        Task::Perfetto(source) => {
            return match perfetto(&source, signals) {
                Ok((name, bytes)) => Done::File(name, bytes),
                Err(done) => done,
            };
        }
        Task::Bytes(name, bytes) => opened(&name, bytes),
        #[cfg(not(target_arch = "wasm32"))]
        Task::Open(path) => super::open::open(&path),
        #[cfg(target_arch = "wasm32")]
        Task::Open(path) => Err(format!(
            "a page cannot read {}: drop the file on it, or press Open file",
            path.display()
        )),
    };
    match opened {
        Ok(Opened::Scenario(source)) => run(source, signals),
        Ok(Opened::Other(done)) => done,
        Err(e) => Done::Failed(e),
    }
}

fn options(signals: &Signals) -> RunOptions {
    RunOptions {
        progress: Some(signals.ended.clone()),
        cancel: Some(signals.cancel.clone()),
        ..RunOptions::default()
    }
}

/// Takes in what happens, and tells how far the run is.
struct Watcher {
    collector: Collector,
    signals: Signals,
    ended: u64,
}

impl Observer for Watcher {
    fn step(&mut self, row: &StepRow) {
        self.collector.step(row);
    }

    fn request(&mut self, row: &RequestRow) {
        self.collector.request(row);
        self.ended += 1;
        if self.ended.is_multiple_of(TELL_EVERY) {
            self.signals.tell();
        }
    }

    fn fleet(&mut self, at: SimTime, replica: u32, event: FleetEvent) {
        self.collector.fleet(at, replica, event);
    }
}

/// Runs a scenario and records it.
pub(super) fn record(source: &Source, signals: &Signals) -> Result<Record, Done> {
    let scenario = source.scenario().map_err(Done::Failed)?;
    if let Some(n) = scenario.limits.requests {
        signals.total.store(n, Ordering::Relaxed);
    }
    let start = Instant::now();
    let built = scenario.build().map_err(|e| Done::Failed(e.to_string()))?;
    let collector = Collector::new(Limits::default());
    let watcher = Watcher {
        collector: collector.clone(),
        signals: signals.clone(),
        ended: 0,
    };
    match built.run_watched(&options(signals), Some(Box::new(watcher))) {
        Ok(run) => {
            let mut report = RunReport::new(&run, start.elapsed().as_secs_f64());
            match scenario.give_ranges(&mut report, &options(signals), None) {
                Ok(()) => {}
                Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => {
                    return Err(Done::Cancelled);
                }
                Err(e) => return Err(Done::Failed(e.to_string())),
            }
            Ok(Record::new(&run, report, collector.take()))
        }
        Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => Err(Done::Cancelled),
        Err(e) => Err(Done::Failed(e.to_string())),
    }
}

/// Runs a scenario again, every step kept, and writes the start of the run as a trace.
pub(super) fn perfetto(source: &Source, signals: &Signals) -> Result<(String, Vec<u8>), Done> {
    if source.text.is_empty() {
        let why = "what was measured has no scenario to run; a trace for Perfetto is of a run";
        return Err(Done::Failed(why.to_owned()));
    }
    let failed = |e: &dyn std::fmt::Display| Done::Failed(e.to_string());
    let scenario = source.scenario().map_err(Done::Failed)?;
    if let Some(n) = scenario.limits.requests {
        signals.total.store(n, Ordering::Relaxed);
    }
    let mut options = options(signals);
    options.record.max_step_rows = MOST_STEPS;
    let built = scenario.build().map_err(|e| failed(&e))?;
    let run = match built.run_watched(&options, None) {
        Ok(run) => run,
        Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => return Err(Done::Cancelled),
        Err(e) => return Err(failed(&e)),
    };
    let mut bytes = Vec::new();
    trace::write_gzip(&mut bytes, &run, trace::Limit::DEFAULT).map_err(|e| failed(&e))?;
    let name = scenario.name.replace(['/', ' '], "-");
    Ok((format!("{name}.trace.json.gz"), bytes))
}

fn run(source: Source, signals: &Signals) -> Done {
    match record(&source, signals) {
        Ok(record) => Done::Doc(Box::new(Doc::of(record, source))),
        Err(done) => done,
    }
}

/// The scenario at several loads, one after the other.
fn knee(source: &Source, keys: &[(String, f64)], signals: &Signals) -> Done {
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
            let total = n * LOADS.len() as u64;
            signals.total.store(total, Ordering::Relaxed);
        }
        match scenario.run(&options(signals)) {
            Ok(record) => points.push(KneePoint {
                factor,
                report: RunReport::new(&record, 0.0),
            }),
            Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => return Done::Cancelled,
            Err(e) => return Done::Failed(e.to_string()),
        }
        if signals.cancelled() {
            return Done::Cancelled;
        }
        let ended = each * points.len() as u64;
        signals.ended.store(ended, Ordering::Relaxed);
        signals.tell();
    }
    Done::Knee(points)
}
