//! `servetwin plan`: from a model, a load and objectives to a deployment.
//!
//! - [`question`]: what is asked ([`quick`]: in a few words); [`space`]: the candidates; [`ready`]: candidates that start on their hardware
//! - [`bounds`]: what a replica can do at best; [`search`]: the race among candidates
//! - [`detail`]: what binds the winner, and where it ends; [`doubt`]: how sure the answer is
//! - [`report`]: the answer; [`render`]: as advice on a terminal; [`table`]: as CSV

pub mod bounds;
pub mod detail;
pub mod doubt;
pub mod question;
pub mod quick;
pub mod ready;
pub mod render;
pub mod report;
pub mod search;
pub mod space;
pub mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sim::scenario::{ModelSource, Scenario};
use sim::workload::{Arrival, Length, Lengths};

pub use question::Question;
pub use report::PlanReport;

use crate::Error;
use ready::{Ready, start_all};
use report::{Choice, SearchCounts, pareto};
use search::{Found, Search, Settled};
use space::Space;

/// Alternatives that are listed.
const MOST_ALTERNATIVES: usize = 20;

/// How to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Simulate every candidate under the whole load.
    pub exhaustive: bool,
    /// Draws of the profiles' parameters; 0: the doubt is not looked at.
    pub draws: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            exhaustive: false,
            draws: 16,
        }
    }
}

/// An answer, and the scenario of its winner.
pub struct Answer {
    /// The answer.
    pub report: PlanReport,
    /// The winner as a scenario file that runs; none where nothing holds.
    pub scenario: Option<String>,
}

/// Answers `question`; `progress` is told what is under way.
///
/// # Errors
/// What is wrong with the question; the simulator's own errors.
pub fn answer(
    question: &Question,
    options: Options,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Answer, Error> {
    progress("starting candidates");
    let Space {
        candidates,
        mut rejected,
        combinations,
    } = Space::of(question)?;
    let ready = start_all(question, &candidates, &mut rejected);
    if ready.is_empty() {
        let why: Vec<String> = rejected
            .iter()
            .take(5)
            .map(report::Rejection::in_words)
            .collect();
        return Err(Error::input(format!(
            "no candidate starts: {}",
            why.join("; ")
        )));
    }
    let search = Search::new(question, &ready, progress);
    let found = if options.exhaustive {
        search.exhaust()?
    } else {
        search.run()?
    };
    let affordable = |s: &Settled| question.budget.is_none_or(|b| s.cost <= b * (1.0 + 1e-9));
    let mut notes = question.notes.clone();
    let winner = found.settled.iter().find(|s| affordable(s)).cloned();
    if winner.is_none()
        && let (Some(best), Some(budget)) = (found.settled.first(), question.budget)
    {
        notes.push(format!(
            "nothing holds within the budget of {} USD/h; the cheapest that holds costs {} USD/h",
            sim::report::text::figure(budget),
            sim::report::text::figure(best.cost)
        ));
    }
    let (mut detail, mut doubt, mut scenario) = (None, None, None);
    if let Some(w) = &winner {
        progress("the winner in detail");
        detail = Some(detail::detail(question, &ready[w.at], w)?);
        if options.draws > 0 {
            progress("drawing the profiles' parameters");
            doubt = Some(doubt::doubt(question, &ready, &found, w, options.draws)?);
        }
        scenario = Some(scenario_of(question, &ready[w.at], w)?);
    }
    rejected.extend(found.rejected.iter().cloned());
    let alternatives = alternatives(question, &ready, &found, winner.as_ref());
    let winner = winner.map(|w| choice(question, &ready, &found, &w, true));
    let mut report = PlanReport {
        contract: PlanReport::CONTRACT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: question.name.clone(),
        description: question.description.clone(),
        load: question.load.clone(),
        requests: question.requests.len() as u64,
        requests_per_s: question.moments.per_s,
        slo: question.conditions.iter().map(|c| c.text.clone()).collect(),
        redundancy: question.redundancy.name().to_owned(),
        budget_usd_per_hour: question.budget,
        winner,
        detail,
        doubt,
        alternatives,
        pareto: Vec::new(),
        rejected,
        search: SearchCounts {
            combinations: combinations as u64,
            exhaustive: options.exhaustive,
            ..found.counts
        },
        notes,
    };
    report.pareto = pareto(&report.choices().collect::<Vec<_>>());
    Ok(Answer { report, scenario })
}

/// What else holds: the best of each instance type and layout, cheapest first.
fn alternatives(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    winner: Option<&Settled>,
) -> Vec<Choice> {
    let mut seen: BTreeMap<(String, String), ()> = BTreeMap::new();
    let shape = |s: &Settled| {
        let c = &ready[s.at].candidate;
        (c.instance.clone(), c.layout.to_string())
    };
    if let Some(w) = winner {
        seen.insert(shape(w), ());
    }
    let mut out: Vec<Choice> = Vec::new();
    let whole = found.settled.iter().map(|s| (s, true));
    for (s, whole) in whole.chain(found.others.iter().map(|s| (s, false))) {
        if seen.insert(shape(s), ()).is_none() {
            out.push(choice(question, ready, found, s, whole));
        }
    }
    out.sort_by(|a, b| a.usd_per_hour.total_cmp(&b.usd_per_hour));
    out.truncate(MOST_ALTERNATIVES);
    out
}

fn choice(question: &Question, ready: &[Ready], found: &Found, s: &Settled, whole: bool) -> Choice {
    let r = &ready[s.at];
    let c = &r.candidate;
    let replicas = c.replicas(s.units);
    let tokens_per_h = question
        .moments
        .per_s
        .map(|rate| rate * question.moments.output * 3600.0);
    Choice {
        label: c.label(),
        instance: c.instance.clone(),
        instances: c.instances(s.units),
        layout: c.layout.to_string(),
        replicas,
        devices_per_replica: c.devices,
        replicas_needed: c.surviving(s.units, question),
        settings: c.settings.clone(),
        usd_per_hour: s.cost,
        usd_per_month: s.cost * report::HOURS_PER_MONTH,
        usd_per_million_output_tokens: tokens_per_h.map(|t| s.cost / t * 1e6),
        standing: s.standing.clone(),
        whole_load: whole,
        bound_requests_per_s: found.bounds[s.at].requests_per_s * f64::from(replicas),
    }
}

/// The winner as a scenario file: every default visible, the objectives as comments and as `--expect`.
fn scenario_of(question: &Question, ready: &Ready, winner: &Settled) -> Result<String, Error> {
    let replicas = ready.candidate.replicas(winner.units);
    let mut scenario = ready.candidate.scenario(question, replicas)?;
    scenario.description = format!(
        "{} on {} x {}, {replicas} replicas of {}: the answer to the planning question {}.",
        question::model_name(&scenario),
        ready.candidate.instances(winner.units),
        ready.candidate.instance,
        ready.candidate.layout,
        question.name
    );
    absolute_files(&mut scenario)?;
    let expects: Vec<String> = question
        .conditions
        .iter()
        .map(|c| format!("--expect '{}'", c.text))
        .collect();
    Ok(format!(
        "# servetwin run THIS {}\n{}",
        expects.join(" "),
        scenario.show()
    ))
}

/// Makes the names of the files that `scenario` reads independent of the folder it is written to.
fn absolute_files(scenario: &mut Scenario) -> Result<(), Error> {
    // An empty folder is the one that the process is in.
    let base = std::path::absolute(Path::new(".").join(&scenario.base))
        .map_err(|e| Error::Failed(e.to_string()))?;
    let whole = |file: &mut PathBuf| *file = base.join(&*file);
    let length = |l: &mut Length| {
        if let Length::Empirical { file, .. } = l {
            whole(file);
        }
    };
    for stream in &mut scenario.workload {
        if let Arrival::RateTable { file, .. } | Arrival::Trace { file, .. } = &mut stream.arrival {
            whole(file);
        }
        match &mut stream.lengths {
            Lengths::Separate { prompt, output } => {
                length(prompt);
                length(output);
            }
            Lengths::Pairs { file, .. } => whole(file),
            Lengths::OfTrace => {}
        }
        if let Some(sessions) = &mut stream.sessions {
            length(&mut sessions.turns);
        }
    }
    if let Some(ModelSource::Config(file)) = scenario.model.as_mut().map(|m| &mut m.source) {
        whole(file);
    }
    if let Some(hardware) = &mut scenario.hardware {
        hardware.catalog.iter_mut().for_each(whole);
        if hardware.profile.ends_with(".toml") {
            hardware.profile = base.join(&hardware.profile).display().to_string();
        }
    }
    Ok(())
}
