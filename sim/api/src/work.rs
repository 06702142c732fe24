//! The answer to a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use planner::World;
use planner::capacity::{MULTIPLES, own_conditions, table};
use planner::conditions::Condition;
use planner::plan::{Options, PlanReport, Question, answer};
use planner::whatif::whatif;
use serde::{Deserialize, Serialize};
use sim::metrics::RecordOptions;
use sim::report::RunReport;
use sim::scenario::{Scenario, ScenarioRunError};
use sim::simulation::{RunError, RunOptions};
use sim::workload::{Arrival, StreamSpec};

use crate::Limits;
use crate::problem::{Code, Problem};
use crate::request::{
    CapacityRequest, MOST_OVERRIDES, PlanRequest, RunRequest, WhatIfRequest, world,
};

/// Most loads of a capacity table.
const MOST_LOADS: usize = 64;
/// Most draws of a plan.
const MOST_DRAWS: u64 = 200;
/// What is so much more than the limit, on average, that it is no matter of chance.
const MUCH_MORE: f64 = 1.1;
/// KV blocks of all replicas together.
const MOST_KV_BLOCKS: u64 = 1 << 25;

/// What is to be answered.
#[derive(Clone, Debug)]
pub enum Task {
    /// `POST /v1/plan`.
    Plan(Box<PlanRequest>),
    /// `POST /v1/run`.
    Run(Box<RunRequest>),
    /// `POST /v1/whatif`.
    WhatIf(Box<WhatIfRequest>),
    /// `POST /v1/capacity`.
    Capacity(Box<CapacityRequest>),
}

/// Kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A planning question.
    Plan,
    /// A scenario.
    Run,
    /// Single changes of a scenario.
    WhatIf,
    /// Replicas for each load.
    Capacity,
}

/// The result of a plan.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct PlanResult {
    /// The answer, as `servetwin plan --json` prints it.
    pub report: PlanReport,
    /// The winner as a scenario file (TOML); null where nothing holds.
    pub scenario: Option<String>,
}

/// How far a job is.
#[derive(Debug, Default)]
pub struct Progress {
    stage: Mutex<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    fn say(&self, stage: &str) {
        let mut held = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.clone_into(&mut held);
    }

    fn count(&self, done: u64, total: u64) {
        self.done.fetch_max(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// As callers read it.
    pub fn view(&self) -> ProgressView {
        let total = self.total.load(Ordering::Relaxed);
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        ProgressView {
            stage: stage.clone(),
            done: (total > 0).then(|| self.done.load(Ordering::Relaxed).min(total)),
            total: (total > 0).then_some(total),
        }
    }
}

/// How far a job is, as callers read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProgressView {
    /// What is under way, in words.
    pub stage: String,
    /// Of that, what is done; null where it cannot be counted.
    pub done: Option<u64>,
    /// And how much there is.
    pub total: Option<u64>,
}

impl Task {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Task::Plan(_) => Kind::Plan,
            Task::Run(_) => Kind::Run,
            Task::WhatIf(_) => Kind::WhatIf,
            Task::Capacity(_) => Kind::Capacity,
        }
    }

    /// The result as JSON; stops when `cancel` is raised.
    ///
    /// # Errors
    /// What is wrong with the request; [`Code::Cancelled`].
    pub fn answer(
        &self,
        limits: &Limits,
        cancel: &std::sync::Arc<std::sync::atomic::AtomicBool>,
        progress: &Progress,
    ) -> Result<Vec<u8>, Problem> {
        let within = |files| {
            let mut world = world(files);
            world.cancel = Some(cancel.clone());
            world.most_requests = world.most_requests.min(limits.requests);
            world
        };
        match self {
            Task::Plan(r) => plan(r, &within(&r.files), limits, progress),
            Task::Run(r) => run(r, &within(&r.files), limits, progress),
            Task::WhatIf(r) => {
                let world = within(&r.files);
                let text = r.scenario.text("scenario")?;
                let checked = scenario(&world, &text, &r.set, limits)?;
                let mut set = r.set.clone();
                if checked.limits.requests > Some(limits.requests) {
                    set.push(format!("run.requests={}", limits.requests));
                }
                progress.say("trying changes");
                let found = whatif(&world, &text, SCENARIO, &set, &|done, of| {
                    progress.count(done, of)
                });
                json(&found.map_err(|e| Problem::of("the what-if has no answer", e))?)
            }
            Task::Capacity(r) => capacity(r, &within(&r.files), limits, progress),
        }
    }
}

/// What a scenario of a request is called in messages.
const SCENARIO: &str = "scenario.toml";

fn json(value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(value).map_err(|e| {
        Problem::new(
            Code::Internal,
            "the result cannot be written",
            e.to_string(),
        )
    })
}

/// The scenario of a request, if it takes no more than the limits allow.
fn scenario(
    world: &World,
    text: &str,
    set: &[String],
    limits: &Limits,
) -> Result<Scenario, Problem> {
    let wrong = "the scenario is wrong";
    few_overrides(set)?;
    let mut scenario =
        (world.scenario(text, SCENARIO, set)).map_err(|e| Problem::scenario(wrong, &e))?;
    let too_large = |place: &str, why: String| {
        Err(Problem::new(Code::BadInput, "the scenario is too large", why).at(place))
    };
    let most = limits.requests;
    match scenario.limits.requests {
        Some(n) if n > most => {
            return too_large(
                "run.requests",
                format!("{n} requests; at most {most} are simulated here"),
            );
        }
        None => {
            let about = offered(&scenario);
            if about > most as f64 * MUCH_MORE {
                let why = format!(
                    "it sends about {about:.0} requests; at most {most} are simulated here"
                );
                return too_large("run.duration", why);
            }
            // Its length in time decides; how many that are shows in the run.
            scenario.limits.requests = Some(most + 1);
        }
        Some(_) => {}
    }
    if scenario.replicas > limits.replicas {
        let (n, most) = (scenario.replicas, limits.replicas);
        return too_large(
            "layout.replicas",
            format!("{n} replicas; at most {most} are simulated here"),
        );
    }
    let built = scenario.build().map_err(|e| Problem::scenario(wrong, &e))?;
    let blocks = (built.info.replicas.iter()).fold(0u64, |n, r| n.saturating_add(r.kv_blocks));
    if blocks > MOST_KV_BLOCKS {
        return too_large(
            "layout.replicas",
            format!(
                "{blocks} KV blocks of all replicas; at most {MOST_KV_BLOCKS} are simulated here"
            ),
        );
    }
    Ok(scenario)
}

fn few_overrides(set: &[String]) -> Result<(), Problem> {
    if set.len() <= MOST_OVERRIDES {
        return Ok(());
    }
    let why = format!(
        "{} overrides; at most {MOST_OVERRIDES} are taken",
        set.len()
    );
    Err(Problem::new(Code::BadInput, "the request is too large", why).at("set"))
}

/// How many requests the streams with a rate of their own send on average; 0 where no duration is given.
fn offered(s: &Scenario) -> f64 {
    let Some(duration) = s.limits.duration else {
        return 0.0;
    };
    let of = |stream: &StreamSpec| match &stream.arrival {
        Arrival::Poisson { rate }
        | Arrival::Constant { rate, .. }
        | Arrival::Gamma { rate, .. } => {
            let all = rate.per_sec() * duration.secs();
            stream.requests.map_or(all, |n| all.min(n as f64))
        }
        _ => 0.0,
    };
    s.workload.iter().map(of).sum()
}

fn run(
    r: &RunRequest,
    world: &World,
    limits: &Limits,
    progress: &Progress,
) -> Result<Vec<u8>, Problem> {
    let text = r.scenario.text("scenario")?;
    let scenario = scenario(world, &text, &r.set, limits)?;
    progress.say("simulating");
    let ended = std::sync::Arc::new(AtomicU64::new(0));
    let options = RunOptions {
        record: RecordOptions::default(),
        progress: Some(ended.clone()),
        cancel: world.cancel.clone(),
        ..RunOptions::default()
    };
    let start = std::time::Instant::now();
    let total = scenario.limits.requests.filter(|n| *n <= limits.requests);
    let record = std::thread::scope(|s| {
        let run = s.spawn(|| scenario.run(&options));
        while !run.is_finished() {
            progress.count(ended.load(Ordering::Relaxed), total.unwrap_or(0));
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
        run.join()
    });
    let record = match record {
        Ok(Ok(record)) => record,
        Ok(Err(ScenarioRunError::Run(RunError::Cancelled { .. }))) => {
            return Err(Problem::cancelled());
        }
        Ok(Err(e)) => return Err(Problem::of("the scenario cannot be run", e.into())),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    if record.counts.offered > limits.requests {
        let why = format!(
            "it sends more than {} requests, the most that are simulated here",
            limits.requests
        );
        return Err(
            Problem::new(Code::BadInput, "the scenario is too large", why).at("run.duration"),
        );
    }
    let mut report = RunReport::new(&record, start.elapsed().as_secs_f64());
    match scenario.give_ranges(&mut report, &options, None) {
        Ok(()) => json(&report),
        Err(ScenarioRunError::Run(RunError::Cancelled { .. })) => Err(Problem::cancelled()),
        Err(e) => Err(Problem::of("the scenario cannot be run", e.into())),
    }
}

fn capacity(
    r: &CapacityRequest,
    world: &World,
    limits: &Limits,
    progress: &Progress,
) -> Result<Vec<u8>, Problem> {
    let what = "the table cannot be made";
    if r.scales.len() > MOST_LOADS {
        let why = format!(
            "{} loads; at most {MOST_LOADS} make a table",
            r.scales.len()
        );
        return Err(Problem::new(Code::BadInput, what, why).at("scales"));
    }
    let text = r.scenario.text("scenario")?;
    let scenario = scenario(world, &text, &r.set, limits)?;
    let conditions = if r.slo.is_empty() {
        own_conditions(&scenario)
    } else {
        (r.slo.iter()).map(|c| Ok(Condition::parse(c)?)).collect()
    };
    let conditions = conditions.map_err(|e| Problem::of(what, e).at("slo"))?;
    let scales: &[f64] = if r.scales.is_empty() {
        &MULTIPLES
    } else {
        &r.scales
    };
    progress.say("looking for the smallest number of replicas at each load");
    let found = table(world, &scenario, &conditions, scales, &|done, of| {
        progress.count(done, of)
    });
    json(&found.map_err(|e| Problem::of(what, e))?)
}

fn plan(
    r: &PlanRequest,
    world: &World,
    limits: &Limits,
    progress: &Progress,
) -> Result<Vec<u8>, Problem> {
    let what = "the plan has no answer";
    let text = match (&r.question, &r.quick) {
        (Some(question), None) => question.text("question")?,
        (None, Some(quick)) => {
            let text = quick.quick()?.to_toml();
            text.map_err(|e| Problem::of(what, e).at("quick"))?
        }
        _ => {
            let why = "give either `question` or `quick`";
            return Err(Problem::new(Code::BadRequest, "there is no question", why));
        }
    };
    let draws = r.draws.unwrap_or(Options::default().draws);
    if draws > MOST_DRAWS {
        let why = format!("{draws} draws; at most {MOST_DRAWS} are made here");
        return Err(Problem::new(Code::BadInput, what, why).at("draws"));
    }
    few_overrides(&r.set)?;
    let question = Question::parse_in(world, &text, "question.toml", &r.set);
    let mut question = question.map_err(|e| Problem::of("the question is wrong", e))?;
    question.most_candidates = question.most_candidates.min(limits.candidates);
    let options = Options {
        exhaustive: r.exhaustive,
        draws,
    };
    let found = answer(&question, options, &|stage: &str| progress.say(stage));
    let found = found.map_err(|e| Problem::of(what, e))?;
    json(&PlanResult {
        report: found.report,
        scenario: found.scenario,
    })
}
