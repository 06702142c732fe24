//! `servetwin plan`: from a model, a load and objectives to a deployment.
//!
//! - [`question`]: what is asked ([`quick`]: in a few words); [`offers`]: what can be rented; [`space`]: the [`candidate`]s; [`ready`]: candidates that start on their hardware
//! - [`apart`]: candidates whose prefill and decode are apart
//! - [`bounds`]: what a replica can do at best; [`search`]: the race among candidates
//! - [`prices`]: prices by region; [`energy`]: power and what a cap costs; [`pools`]: two pools by prompt length; [`autoscaled`]: the winner under an HPA
//! - `room`: how far the load can grow, which ranks equal prices
//! - [`detail`]: what binds the winner, and where it ends; [`sturdier`]: what survives more; [`doubt`]: how sure the answer is
//! - [`part`]: the search cut up for many machines
//! - [`report`]: the answer; `headline`: in three lines; [`render`]: as advice on a terminal; `scatter`: as a picture there; [`table`]: as CSV

pub mod apart;
pub mod autoscaled;
pub mod bounds;
pub mod candidate;
pub mod detail;
pub mod doubt;
pub mod energy;
mod headline;
mod layouts;
mod lengths;
pub mod offers;
mod options;
pub mod part;
mod pattern;
pub mod pools;
pub mod prices;
pub mod question;
pub mod quick;
pub mod ready;
pub mod render;
pub mod report;
mod room;
mod scatter;
pub mod search;
pub mod space;
pub mod sturdier;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sim::scenario::{ModelSource, Scenario, SloChoice};
use sim::workload::{Arrival, Length, Lengths};

pub use options::Options;
pub use part::Part;
pub use question::Question;
pub use report::PlanReport;

use crate::{Error, World, judge};
use question::Redundancy;
use ready::{Ready, start_all};
use report::{Aside, Choice, PrefillDecode, Rejection, SearchCounts, Sturdier, pareto};
use search::{Found, Search, Settled, better};
use space::Space;

use crate::sweep::Shard;

/// Alternatives that are listed.
const MOST_ALTERNATIVES: usize = 20;

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
/// What is wrong with the question; the simulator's own errors; [`Error::Cancelled`].
pub fn answer(
    question: &Question,
    options: Options,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Answer, Error> {
    let Explored {
        ready,
        found,
        rejected,
        combinations,
    } = explore(question, options, Shard::WHOLE, progress)?;
    conclude(
        question,
        options,
        &ready,
        found,
        rejected,
        combinations,
        progress,
    )
}

/// Searches the candidates of `shard` only.
///
/// # Errors
/// As [`answer`].
pub fn part(
    question: &Question,
    options: Options,
    shard: Shard,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Part, Error> {
    let found = explore(question, options, shard, progress)?;
    let index = |at: usize| found.ready[at].candidate.index;
    Ok(Part::of(
        question,
        shard,
        options,
        &found.found,
        found.rejected,
        index,
    ))
}

/// The answer of all parts of `question`.
///
/// # Errors
/// Parts that are missing or belong to another question; as [`answer`].
pub fn merge(
    question: &Question,
    parts: &[Part],
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Answer, Error> {
    part::check(question, parts)?;
    let by_shard: BTreeMap<u64, &Part> = parts.iter().map(|p| (p.shard.0, p)).collect();
    let parts: Vec<&Part> = by_shard.into_values().collect();
    let space = Space::of(question)?;
    let mut wanted: BTreeSet<usize> = BTreeSet::new();
    let mut rejected = space.rejected;
    let mut counts = SearchCounts::default();
    for p in &parts {
        wanted.extend(p.settled.iter().map(|r| r.candidate));
        counts = counts.plus(&p.counts);
        for r in &p.rejected {
            Rejection::count(
                &mut rejected,
                r.kind,
                &r.what,
                &r.reason,
                r.candidates as usize,
            );
        }
    }
    let chosen: Vec<candidate::Candidate> = (space.candidates.into_iter())
        .filter(|c| wanted.contains(&c.index))
        .collect();
    let ready = start_all(question, &chosen, &mut Vec::new());
    let at: BTreeMap<usize, usize> = (ready.iter().enumerate())
        .map(|(at, r)| (r.candidate.index, at))
        .collect();
    let settle = |r: &part::Row| -> Result<Settled, Error> {
        let at = *at.get(&r.candidate).ok_or_else(|| {
            Error::input(
                "a part names a deployment that the question does not have; make the parts again",
            )
        })?;
        Ok(Settled {
            at,
            units: r.units,
            cost: ready[at].candidate.cost(r.units),
            standing: r.standing(),
            room: None,
        })
    };
    let rows = parts.iter().flat_map(|p| &p.settled);
    let mut settled = rows.map(settle).collect::<Result<Vec<Settled>, Error>>()?;
    settled.sort_by(better);
    let bounds = ready.iter().map(|r| bounds::bound(r, question)).collect();
    let found = Found {
        settled,
        bounds,
        rejected: Vec::new(),
        counts,
    };
    let options = Options {
        exhaustive: parts[0].exhaustive,
        draws: parts[0].draws,
    };
    conclude(
        question,
        options,
        &ready,
        found,
        rejected,
        space.combinations,
        progress,
    )
}

/// What a search found.
struct Explored {
    ready: Vec<Ready>,
    found: Found,
    rejected: Vec<Rejection>,
    combinations: usize,
}

fn explore(
    question: &Question,
    options: Options,
    shard: Shard,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Explored, Error> {
    progress("starting candidates");
    let Space {
        mut candidates,
        mut rejected,
        combinations,
    } = Space::of(question)?;
    let whole = shard == Shard::WHOLE;
    if !whole {
        candidates.retain(|c| shard.holds(c.index as u64));
        // Every part would tell of what is in none.
        rejected.clear();
    }
    let mut ready = start_all(question, &candidates, &mut rejected);
    if question.measured_only {
        leave_out_unmeasured(&mut ready, &mut rejected);
    }
    question.world.check()?;
    if ready.is_empty() && whole {
        let why: Vec<String> = (rejected.iter().take(5)).map(Rejection::in_words).collect();
        return Err(Error::input(format!(
            "no candidate starts: {}",
            why.join("; ")
        )));
    }
    let search = Search::new(question, &ready, progress)?;
    question.world.check()?;
    let mut found = if options.exhaustive {
        search.exhaust()?
    } else {
        search.run()?
    };
    rejected.append(&mut found.rejected);
    Ok(Explored {
        ready,
        found,
        rejected,
        combinations,
    })
}

/// Takes out what no measured run says anything of.
fn leave_out_unmeasured(ready: &mut Vec<Ready>, rejected: &mut Vec<Rejection>) {
    ready.retain(|r| {
        let is_measured = !r.fleet.info.accuracy.is_empty();
        if !is_measured {
            let why = "no run of such an engine, accelerator and model was measured";
            Rejection::count(rejected, Aside::Unmeasured, &r.candidate.instance, why, 1);
        }
        is_measured
    });
}

/// The answer from what was found.
fn conclude(
    question: &Question,
    options: Options,
    ready: &[Ready],
    mut found: Found,
    mut rejected: Vec<Rejection>,
    combinations: usize,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Answer, Error> {
    progress("ranking equal prices by their room");
    room::rank(question, ready, &mut found.settled)?;
    let found = &found;
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
    let (mut split, mut autoscaled, mut sturdier) = (None, None, None);
    if let Some(w) = &winner {
        // What the winner's own run would warn of.
        notes.extend(ready[w.at].fleet.info.warnings.iter().cloned());
        progress("the winner in detail");
        let (own, length) = detail::detail(question, &ready[w.at], w)?;
        detail = Some(own);
        progress("what survives more");
        sturdier = Some(survivor(question, ready, found, w, options.exhaustive)?);
        if options.draws > 0 {
            progress("drawing the profiles' parameters");
            doubt = Some(doubt::doubt(question, ready, found, w, options.draws)?);
        }
        notes.extend(layouts::in_words(question, ready, found, &rejected, w));
        let whole = !question.moments.shares && !question.requests.is_closed();
        if question.pools_by_prompt && whole && !question.offers.by_devices {
            split = pools::split(question, ready, found, w, progress)?;
        }
        let mut keys = Vec::new();
        if question.autoscaled {
            progress("the winner under an autoscaler");
            match autoscaled::trials(question, &ready[w.at], w)? {
                Ok((report, of_best, start)) => {
                    (autoscaled, keys) = (Some(report), of_best);
                    notes.push(start);
                }
                Err(why) => notes.push(format!("no autoscaler is tried: {why}")),
            }
        }
        scenario = Some(scenario_of(question, &ready[w.at], w, length, &keys)?);
    }
    let key = |r: &Rejection| (r.kind, r.what.clone(), r.reason.clone());
    rejected.sort_by_cached_key(key);
    let alternatives = alternatives(question, ready, found, winner.as_ref());
    let trust = (winner.as_ref()).and_then(|w| trust(question, &ready[w.at]));
    let winner = winner.map(|w| choice(question, ready, found, &w));
    let next_price_ratio = (alternatives.iter().filter_map(|c| c.usd_per_hour))
        .min_by(f64::total_cmp)
        .zip(winner.as_ref().and_then(|w| w.usd_per_hour))
        .map(|(next, own)| next / own);
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
        sturdier,
        trust,
        next_price_ratio,
        doubt,
        split,
        autoscaled,
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

/// What survives more than the question asks.
fn survivor(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    winner: &Settled,
    exhaustive: bool,
) -> Result<Sturdier, Error> {
    let best = sturdier::sturdier(question, ready, found, winner, exhaustive)?;
    let lost = match sturdier::lost(question) {
        Redundancy::Instance => "1 instance",
        Redundancy::Replica | Redundancy::None => "1 replica",
    };
    Ok(Sturdier {
        growth_ratio: sturdier::GROWTH,
        lost: lost.to_owned(),
        is_winner: (best.as_ref()).is_some_and(|s| (s.at, s.units) == (winner.at, winner.units)),
        choice: best.map(|s| choice(question, ready, found, &s)),
    })
}

/// How far predictions like those of `ready` were from measured runs.
fn trust(question: &Question, ready: &Ready) -> Option<String> {
    let info = &ready.fleet.info;
    let instance = question.catalog.instance(&ready.candidate.instance).ok()?;
    let chip = report::short_name(&instance.accelerator);
    let what = match info.like {
        Some(kind) => format!("{} on {chip}", kind.engine.title()),
        None => chip.to_owned(),
    };
    let model = (ready
        .candidate
        .scenario(question, &ready.candidate.counts(1))
        .ok())
    .map(|s| question::model_name(&s));
    let model = model.and_then(|m| question.catalog.model(&m).ok());
    sim::report::trust::in_words(&info.accuracy, &what, model)
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
        (c.instance.clone(), c.layouts())
    };
    if let Some(w) = winner {
        seen.insert(shape(w), ());
    }
    let mut out: Vec<Choice> = Vec::new();
    let mut accelerators = BTreeSet::new();
    // Cheapest first; beyond so many only the first of each accelerator.
    for s in &found.settled {
        let is_new = seen.insert(shape(s), ()).is_none();
        let is_first = accelerators.insert(search::accelerator(question, &ready[s.at]));
        if is_new && (is_first || out.len() < MOST_ALTERNATIVES) {
            out.push(choice(question, ready, found, s));
        }
    }
    out
}

fn choice(question: &Question, ready: &[Ready], found: &Found, s: &Settled) -> Choice {
    let r = &ready[s.at];
    let c = &r.candidate;
    let replicas = c.replicas(s.units);
    let instance = question.catalog.instance(&c.instance).ok();
    let of_prices = c.settings.iter().find(|(key, _)| key == "region");
    let tokens_per_h = question
        .moments
        .per_s
        .map(|rate| rate * question.moments.output * 3600.0);
    let usd = c.usd(s.units);
    Choice {
        label: c.label(),
        instance: c.instance.clone(),
        instances: c.instances(s.units),
        provider: instance.and_then(|i| i.provider.clone()),
        region: match of_prices {
            Some((_, region)) => Some(region.clone()),
            None => instance.and_then(|i| i.region.clone()),
        },
        measured: !r.fleet.info.accuracy.is_empty(),
        layout: c.layouts(),
        apart: prefill_decode(r, &found.bounds[s.at], s.units),
        replicas,
        devices_per_replica: c.devices,
        accelerator: c.accelerator.clone(),
        devices: c.accelerators(s.units),
        by_accelerator: c.per_machine.is_some(),
        replicas_needed: c.surviving(s.units, question),
        settings: c.settings.clone(),
        usd_per_hour: usd,
        usd_per_month: usd.map(|usd| usd * report::HOURS_PER_MONTH),
        usd_per_million_output_tokens: tokens_per_h.and_then(|t| Some(usd? / t * 1e6)),
        standing: s.standing.clone(),
        whole_load: true,
        room_ratio: s.room,
        bound_requests_per_s: found.bounds[s.at].requests_per_s * f64::from(c.cells(s.units)),
    }
}

/// The two kinds of replicas of a deployment whose prefill and decode are apart.
fn prefill_decode(ready: &Ready, bound: &bounds::Bound, units: u32) -> Option<PrefillDecode> {
    let c = &ready.candidate;
    let apart = c.apart.as_ref()?;
    let [prefill, decode] = apart.counts(c.cells(units));
    let one_cell = &ready.fleet.simulation.serving;
    let joined = match &ready.fleet.beyond {
        Some(beyond) if c.cells(units) > 1 => beyond,
        _ => one_cell,
    };
    let pool = |i: usize| joined.pools.get(i);
    Some(PrefillDecode {
        prefill_replicas: prefill,
        prefill_layout: c.layout.to_string(),
        decode_replicas: decode,
        decode_layout: apart.decode_layout.to_string(),
        link_bytes_per_s: pool(0)?.kv_bandwidth.min(pool(1)?.kv_bandwidth),
        kv_bytes_per_token: pool(0)?.kv_bytes_per_token,
        bound_by: bound.by.to_owned(),
    })
}

/// The winner as a scenario file with `keys` laid over: every default visible, the objectives as comments and as `--expect`. Without keys it is as long as the
/// run that its figures are of.
fn scenario_of(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
    length: Option<judge::Length>,
    keys: &[String],
) -> Result<String, Error> {
    let replicas = ready.candidate.replicas(winner.units);
    let counts = ready.candidate.counts(winner.units);
    let mut scenario = lengths::roomy(question, &ready.candidate, &counts, keys)?;
    scenario.description = format!(
        "{} on {} x {}, {replicas} replicas of {}: the answer to the planning question {}.",
        question::model_name(&scenario),
        ready.candidate.instances(winner.units),
        ready.candidate.instance,
        ready.candidate.layouts(),
        question.name
    );
    scenario.slo = SloChoice::of(question.conditions.clone());
    absolute_files(&mut scenario, &question.world)?;
    if let Some(length) = length.filter(|_| keys.is_empty()) {
        length.lay_over(&mut scenario)?;
    }
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
fn absolute_files(scenario: &mut Scenario, world: &World) -> Result<(), Error> {
    let base = world.folder(&scenario.base)?;
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
    let pools = scenario.pools.iter_mut();
    let of_pools = pools.map(|p| (p.model.as_mut(), p.hardware.as_mut()));
    let own = (scenario.model.as_mut(), scenario.hardware.as_mut());
    for (model, hardware) in of_pools.chain([own]) {
        if let Some(ModelSource::Config(file)) = model.map(|m| &mut m.source) {
            whole(file);
        }
        if let Some(hardware) = hardware {
            hardware.catalog.iter_mut().for_each(whole);
            if hardware.profile.ends_with(".toml") {
                hardware.profile = base.join(&hardware.profile).display().to_string();
            }
        }
    }
    Ok(())
}
