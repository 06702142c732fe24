//! The answer to a planning question (`plan --json`; `docs/schema/plan.schema.json`).

use serde::{Deserialize, Serialize};
use sim::record::MeasuredError;
use sim::report::diagnosis::{BoundBy, Regime};
use sim::report::doubt::Ranges;
use sim::report::summary::CONTRACT;

use crate::conditions::Standing;

/// Hours of a month, as cloud price lists count them.
pub const HOURS_PER_MONTH: f64 = 730.0;

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlanReport {
    /// Version of this contract.
    pub contract: u32,
    /// Version of servetwin.
    pub version: String,
    /// Name of the question.
    pub name: String,
    /// What it asks.
    pub description: String,
    /// The load in words.
    pub load: String,
    /// Requests that were drawn from it.
    pub requests: u64,
    /// Mean rate of the load [req/s]; null where all come at once.
    pub requests_per_s: Option<f64>,
    /// The objectives.
    pub slo: Vec<String>,
    /// What may be lost while they hold.
    pub redundancy: String,
    /// Most that it may cost [USD/h]; null: no limit.
    pub budget_usd_per_hour: Option<f64>,
    /// The cheapest deployment that holds; null where none does.
    pub winner: Option<Choice>,
    /// More about the winner.
    pub detail: Option<Detail>,
    /// What survives more than the question asks; null without a winner.
    #[serde(default)]
    pub sturdier: Option<Sturdier>,
    /// How far predictions of the winner's engine on its accelerator were from measured runs, in words; null where none was measured.
    #[serde(default)]
    pub trust: Option<String>,
    /// Price of the cheapest alternative over the winner's [ratio]; null without one.
    #[serde(default)]
    pub next_price_ratio: Option<f64>,
    /// How sure that is; null without a winner or draws.
    pub doubt: Option<Doubt>,
    /// The load in two pools by prompt length; null where the question does not ask, or no split holds.
    pub split: Option<Split>,
    /// The winner under an autoscaler; null where the question does not ask, or none can be tried.
    pub autoscaled: Option<Autoscaled>,
    /// Other deployments that hold, cheapest first.
    pub alternatives: Vec<Choice>,
    /// The deployments above of which no other is both cheaper and faster in every objective: indices, the winner's is 0.
    pub pareto: Vec<u64>,
    /// What was set aside, by reason.
    pub rejected: Vec<Rejection>,
    /// How the search went.
    pub search: SearchCounts,
    /// What the reader must know to judge the answer.
    pub notes: Vec<String>,
}

/// A deployment that holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Choice {
    /// In words.
    pub label: String,
    /// Instance type.
    pub instance: String,
    /// Instances.
    pub instances: u32,
    /// Who rents them out; null where the catalog does not say.
    #[serde(default)]
    pub provider: Option<String>,
    /// Region that the price is of; null where the catalog does not say.
    #[serde(default)]
    pub region: Option<String>,
    /// Whether predictions of this engine on this accelerator, with such a model, were compared with measured runs.
    #[serde(default)]
    pub measured: bool,
    /// Layout of a replica; where prefill and decode are apart, what an instance or the smallest group of them holds.
    pub layout: String,
    /// The two kinds of replicas; null where each prefills and decodes.
    pub apart: Option<PrefillDecode>,
    /// Replicas on them.
    pub replicas: u32,
    /// Accelerators of a replica; of one that prefills where prefill and decode are apart.
    pub devices_per_replica: u32,
    /// The accelerator's name in the catalog.
    #[serde(default)]
    pub accelerator: String,
    /// Accelerators of all instances.
    #[serde(default)]
    pub devices: u32,
    /// Whether they are rented one by one, in place of whole instances: `instance` is then the accelerator, and `instances` their number.
    #[serde(default)]
    pub by_accelerator: bool,
    /// Replicas that must be there for the objectives to hold: the others are spare, or fill the instances.
    pub replicas_needed: u32,
    /// Settings that the question left open.
    pub settings: Vec<(String, String)>,
    /// Price [USD/h]; null where nobody says.
    pub usd_per_hour: Option<f64>,
    /// Price of 730 hours [USD]; null likewise.
    pub usd_per_month: Option<f64>,
    /// Price per million output tokens of the load [USD]; null where it has no rate, or no price is known.
    pub usd_per_million_output_tokens: Option<f64>,
    /// How the deployment stands when what may be lost is lost.
    pub standing: Standing,
    /// Whether that is in steady state, by the judge that the winner has: of every row that is listed.
    pub whole_load: bool,
    /// Largest multiple of the load, of those that ranked it among equal prices, at which it holds when what may be lost is lost; null where there was
    /// nothing to rank.
    #[serde(default)]
    pub room_ratio: Option<f64>,
    /// Most requests per second that the replicas finish by the bound of their step model and memory.
    pub bound_requests_per_s: f64,
}

/// Replicas that prefill and replicas that decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PrefillDecode {
    /// Replicas that prefill.
    pub prefill_replicas: u32,
    /// Layout of one of them.
    pub prefill_layout: String,
    /// Replicas that decode.
    pub decode_replicas: u32,
    /// Layout of one of them.
    pub decode_layout: String,
    /// What a replica can send or receive of KV, the smaller of both kinds [bytes/s].
    pub link_bytes_per_s: f64,
    /// KV of a token [bytes].
    pub kv_bytes_per_token: f64,
    /// Which of the three allows no more requests than `bound_requests_per_s`: the replicas that prefill, those that decode, or the link.
    pub bound_by: String,
}

/// What survives a growth of the load while a replica is lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sturdier {
    /// The growth [ratio].
    pub growth_ratio: f64,
    /// What is lost at the same time: `1 replica`, `1 instance`.
    pub lost: String,
    /// Whether the winner itself survives that.
    pub is_winner: bool,
    /// The cheapest deployment that does, of those looked at; null: none. It stands as under that load and with that loss.
    pub choice: Option<Choice>,
}

/// What the winner does, and where it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Detail {
    /// Values of the objectives with all replicas there.
    pub standing: Standing,
    /// The range of each of those values in which nine of ten such deployments would be measured [ms].
    #[serde(default)]
    pub range_90_ms: Vec<Option<(f64, f64)>>,
    /// Where on the latency-throughput curve it is.
    pub regime: Regime,
    /// Which side of the knee, in words.
    pub knee: String,
    /// What limits it, in words.
    pub limit: String,
    /// Shares of the replicas' time by what bound it.
    pub bound_by: BoundBy,
    /// Largest part of the busy time, in words.
    pub bound: String,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// Most KV blocks in use on any replica [ratio].
    pub kv_peak_ratio: f64,
    /// Multiple of the load up to which the objectives hold when what may be lost is lost; null where they hold at 8 times.
    pub headroom: Option<f64>,
    /// Under twice the load.
    pub at_twice: Standing,
    /// With one replica less; null where there is but one.
    pub one_lost: Option<Standing>,
    /// Errors on measured runs of the same engine and accelerator that nothing was fitted on.
    pub accuracy: Vec<MeasuredError>,
    /// Where nine of ten such deployments would be measured; null where no step was made.
    #[serde(default)]
    pub ranges: Option<Ranges>,
    /// Profiles that step times came from.
    pub profiles: Vec<String>,
    /// What start-up decides: limits, KV blocks.
    pub decided: Vec<(String, String)>,
    /// Power and energy, analytic; null where the accelerator's power is not known.
    pub energy: Option<Energy>,
}

/// Power and energy of the accelerators, bounds from their thermal design power (analytic).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Energy {
    /// The accelerator.
    pub accelerator: String,
    /// How many the instances hold.
    pub devices: u32,
    /// Thermal design power of one [W].
    pub tdp_w: f64,
    /// Power of all at most [W].
    pub watts_most: f64,
    /// Output tokens per joule at least.
    pub output_tokens_per_joule_least: f64,
    /// What power caps cost.
    pub caps: Vec<PowerCap>,
}

/// A power cap (analytic): the clock falls with the cube root of the power.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PowerCap {
    /// The cap as a share of the thermal design power [ratio].
    pub cap_ratio: f64,
    /// Power of all at most [W].
    pub watts_most: f64,
    /// How much longer steps take [ratio].
    pub slowdown_ratio: f64,
    /// How the winner stands under it when what may be lost is lost.
    pub standing: Standing,
}

/// The load in two pools by prompt length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Split {
    /// Longest prompt of the first pool [tokens].
    pub boundary_tokens: u32,
    /// Share of the requests in the first pool [ratio].
    pub short_ratio: f64,
    /// Price of both [USD/h].
    pub usd_per_hour: f64,
    /// That less the winner's price; negative: the split is cheaper [USD/h].
    pub more_usd_per_hour: f64,
    /// The pool of short prompts.
    pub short: Pool,
    /// The pool of long prompts.
    pub long: Pool,
}

/// One of two pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Pool {
    /// In words.
    pub label: String,
    /// Instances.
    pub instances: u32,
    /// Replicas on them.
    pub replicas: u32,
    /// Price [USD/h].
    pub usd_per_hour: f64,
    /// How it stands under its part of the load when what may be lost is lost.
    pub standing: Standing,
}

/// The winner's replicas under a HorizontalPodAutoscaler on running requests, at several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Autoscaled {
    /// The metric.
    pub metric: String,
    /// Fewest replicas.
    pub min_replicas: u32,
    /// Most replicas: the winner's.
    pub max_replicas: u32,
    /// Length of the load [h].
    pub hours: f64,
    /// The trials, by target.
    pub trials: Vec<ScaledTrial>,
    /// The cheapest trial that holds and costs less than the fixed fleet; null: none.
    pub chosen: Option<u64>,
}

/// A target of the autoscaler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScaledTrial {
    /// Running requests per replica that it aims at.
    pub target_running: u32,
    /// Price of the run [USD].
    pub usd: f64,
    /// Price of the fixed fleet over the same time [USD].
    pub fixed_usd: f64,
    /// Ready replicas on average.
    pub mean_ready: f64,
    /// Changes of the number of replicas.
    pub changes: u64,
    /// How it stands.
    pub standing: Standing,
}

/// How sure the answer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Doubt {
    /// Times that the profiles' parameters were drawn within their standard errors, and the load where it is random.
    pub draws: u64,
    /// Requests of each run.
    pub requests: u64,
    /// Share of the draws in which the winner, as it is, holds [ratio].
    pub holds_ratio: f64,
    /// Share of the draws in which it holds and no other finalist holds for less [ratio].
    pub cheapest_ratio: f64,
    /// Chance that one more draw lies in an interval below [ratio]: 0.9 from 19 draws on, (n - 1) / (n + 1) of fewer.
    pub coverage_ratio: f64,
    /// Price of the cheapest finalist that holds: the interval in which one more draw lies with that chance [USD/h]; null where in a draw none held.
    pub usd_per_hour: Option<(f64, f64)>,
    /// Value of each objective's statistic on the winner: the interval in which one more draw lies with that chance [ms].
    pub values_ms: Vec<Option<(f64, f64)>>,
    /// Deployments that were compared.
    pub finalists: Vec<Finalist>,
    /// Parameters that move the winner's smallest margin most, largest first.
    pub sensitive: Vec<Sensitivity>,
    /// Parameters that no profile gives a standard error for are not drawn: what is missing, in words.
    pub notes: Vec<String>,
}

/// A deployment in the comparison of the draws.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Finalist {
    /// In words.
    pub label: String,
    /// Price with the profile's own values [USD/h]; null where nobody says.
    pub usd_per_hour: Option<f64>,
    /// Share of the draws in which it is the cheapest that holds [ratio].
    pub cheapest_ratio: f64,
}

/// A parameter, and what its standard error does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sensitivity {
    /// Dotted name.
    pub parameter: String,
    /// The winner's smallest margin with the parameter one standard error lower and higher [ratio].
    pub margin_ratio: (f64, f64),
    /// Whether the winner misses an objective at one of them.
    pub flips: bool,
    /// The measurement that would narrow it.
    pub measure: String,
}

/// What was set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rejection {
    /// What kind of reason it is.
    pub kind: Aside,
    /// Instance type, and layout where that matters.
    pub what: String,
    /// Why.
    pub reason: String,
    /// Candidates.
    pub candidates: u64,
}

/// Kinds of reasons to set candidates aside, in the order in which they are told.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Aside {
    /// They may hold, but another costs less or has more room.
    Beaten,
    /// They cost more than the best even at their best.
    Dear,
    /// They miss the objectives for the price of the best.
    MissAtPrice,
    /// They miss the objectives with any number of replicas.
    Miss,
    /// They are too slow even alone on a replica, or have no room for a request.
    Slow,
    /// They cannot carry the load with the instances that are allowed.
    Small,
    /// They do not start on their hardware.
    Start,
    /// They cannot be placed.
    Place,
    /// Another instance type has the same accelerators for less.
    Dominated,
    /// The question wants measured engines and accelerators only, and these are not.
    Unmeasured,
}

impl Aside {
    /// In words, as a heading.
    pub fn heading(self) -> &'static str {
        match self {
            Aside::Beaten => "may hold, but another costs less or has more room",
            Aside::Dear => "cost more than the best even at their best",
            Aside::MissAtPrice => "miss the objectives for the price of the best",
            Aside::Miss => "miss the objectives with any number of replicas",
            Aside::Slow => "are too slow, or too small, even for one request",
            Aside::Small => "cannot carry the load with the instances that are allowed",
            Aside::Start => "do not start on their hardware",
            Aside::Place => "cannot be placed",
            Aside::Dominated => "instance types with accelerators that another has for less",
            Aside::Unmeasured => {
                "were never compared with a measured run, which plan.measured_only asks for"
            }
        }
    }
}

impl Rejection {
    /// Adds `n` candidates called `what`, set aside for `reason`.
    pub fn count(all: &mut Vec<Rejection>, kind: Aside, what: &str, reason: &str, n: usize) {
        match all
            .iter_mut()
            .find(|r| r.kind == kind && r.what == what && r.reason == reason)
        {
            Some(r) => r.candidates += n as u64,
            None => all.push(Rejection {
                kind,
                what: what.into(),
                reason: reason.into(),
                candidates: n as u64,
            }),
        }
    }

    /// In words.
    pub fn in_words(&self) -> String {
        let many = if self.candidates > 1 {
            format!(" ({} candidates)", self.candidates)
        } else {
            String::new()
        };
        format!("{}: {}{many}", self.what, self.reason)
    }
}

/// How many candidates were where.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct SearchCounts {
    /// Combinations of the question's alternatives.
    pub combinations: u64,
    /// Of those, what starts on its hardware.
    pub candidates: u64,
    /// Set aside by bounds, without a run.
    pub by_bounds: u64,
    /// Looked at in short runs of one replica.
    pub scouted: u64,
    /// Settled by the judge of the steady state.
    pub settled: u64,
    /// Runs of the simulator.
    pub simulations: u64,
    /// Requests of those runs.
    pub requests: u64,
    /// Whether every candidate was settled.
    pub exhaustive: bool,
}

impl SearchCounts {
    /// Both together.
    pub fn plus(&self, o: &SearchCounts) -> SearchCounts {
        SearchCounts {
            combinations: self.combinations + o.combinations,
            candidates: self.candidates + o.candidates,
            by_bounds: self.by_bounds + o.by_bounds,
            scouted: self.scouted + o.scouted,
            settled: self.settled + o.settled,
            simulations: self.simulations + o.simulations,
            requests: self.requests + o.requests,
            exhaustive: self.exhaustive || o.exhaustive,
        }
    }
}

impl PlanReport {
    /// Version of the contract.
    pub const CONTRACT: u32 = CONTRACT;

    /// The winner and the alternatives, in their order.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.winner.iter().chain(&self.alternatives)
    }
}

/// An accelerator without memory and form: `H100` of `H100-SXM5-80GB`.
pub fn short_name(accelerator: &str) -> &str {
    accelerator.split('-').next().unwrap_or(accelerator)
}

/// Indices of `choices` of which no other is at most as dear (or as large, where a price is missing) and as slow in every objective, and better in one.
pub fn pareto(choices: &[&Choice]) -> Vec<u64> {
    // Prices are compared where all have one.
    let is_priced = choices.iter().all(|c| c.usd_per_hour.is_some());
    let figures = |c: &Choice| {
        let devices = f64::from(c.devices);
        let mut all = vec![c.usd_per_hour.filter(|_| is_priced).unwrap_or(devices)];
        all.extend(c.standing.values_ms.iter().map(|v| v.unwrap_or(0.0)));
        all
    };
    let all: Vec<Vec<f64>> = choices.iter().map(|c| figures(c)).collect();
    let dominates = |a: &[f64], b: &[f64]| {
        a.iter().zip(b).all(|(x, y)| x <= y) && a.iter().zip(b).any(|(x, y)| x < y)
    };
    (0..all.len())
        .filter(|i| !all.iter().any(|other| dominates(other, &all[*i])))
        .map(|i| i as u64)
        .collect()
}
