//! Each single change worth trying, ranked by its effect on price and objectives.

use hwmodels::{Dtype, ModelArch};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sim::report::RunReport;
use sim::report::summary::CONTRACT;
use sim::report::text::figure;
use sim::scenario::{ModelSource, RouterPolicy, Scenario};
use sim::workload::Workload as _;

use crate::capacity::own_conditions;
use crate::conditions::Standing;
use crate::{Error, World, judge};

/// Instance types beside the scenario's own that are tried.
const MOST_INSTANCES: usize = 8;
/// Prices of instances that are tried, as multiples of the scenario's own.
const PRICES: (f64, f64) = (0.2, 5.0);
/// Numbers of `[engine]` that are doubled and halved.
const LIMITS: [&str; 9] = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_batch_size",
    "max_num_tokens",
    "max_batch_prefill_tokens",
    "max_concurrent_requests",
    "max_batch_total_tokens",
    "n_parallel",
    "n_batch",
];
/// Switches of `[engine]` that are turned, with their defaults.
const SWITCHES: [(&str, bool); 5] = [
    ("enable_chunked_prefill", true),
    ("enable_prefix_caching", true),
    ("enable_chunked_context", false),
    ("enable_kv_cache_reuse", true),
    ("cuda_graphs", true),
];

/// The answer (`whatif --json`; `docs/schema/whatif.schema.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WhatIf {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// What is deployed as it stands, in words.
    pub deployment: String,
    /// The scenario as it stands.
    pub base: Outcome,
    /// The changes, best first: those with which the objectives hold, cheapest first, then by margin; then the others by margin.
    pub changes: Vec<Change>,
    /// Changes that cannot be made, and why.
    pub impossible: Vec<Impossible>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Change {
    /// As overrides (`--set`).
    pub set: Vec<String>,
    /// The scenario with it.
    pub outcome: Outcome,
    /// Its price less that of the scenario as it stands [USD/h]; null where not known.
    pub usd_per_hour_more: Option<f64>,
}

/// A change that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Impossible {
    /// As overrides (`--set`).
    pub set: Vec<String>,
    /// Why.
    pub reason: String,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Outcome {
    /// Price [USD/h]; null where not known.
    pub usd_per_hour: Option<f64>,
    /// Whether the objectives hold; null without any.
    pub holds: Option<bool>,
    /// Smallest margin of any objective's limit against the 99th percentile in steady state [ratio]; null without any.
    pub margin_ratio: Option<f64>,
    /// Time to first token, 99th percentile [ms].
    pub ttft_p99_ms: Option<f64>,
    /// Time per output token, 99th percentile [ms].
    pub tpot_p99_ms: Option<f64>,
    /// End-to-end latency, mean [ms].
    pub e2e_mean_ms: Option<f64>,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// Price per million output tokens [USD]; null where not known.
    pub usd_per_million_output_tokens: Option<f64>,
    /// Requests that were rejected, timed out or failed.
    pub lost: u64,
    /// How the objectives stand in steady state, each as the 99th percentile of its metric; null without any.
    #[serde(default)]
    pub standing: Option<Standing>,
}

impl Outcome {
    fn of(r: &RunReport, standing: Option<Standing>) -> Outcome {
        Outcome {
            usd_per_hour: r.cost.usd_per_hour,
            holds: standing.as_ref().map(|s| s.holds),
            margin_ratio: standing.as_ref().map(|s| s.margin_ratio),
            ttft_p99_ms: r.ttft_ms.p99,
            tpot_p99_ms: r.tpot_ms.p99,
            e2e_mean_ms: r.e2e_ms.mean,
            output_tokens_per_s: r.throughput.output_tokens_per_s,
            usd_per_million_output_tokens: r.cost.usd_per_million_output_tokens,
            lost: r.requests.lost(),
            standing,
        }
    }
}

/// Tries every change of the scenario in `text`, whose files are those of `world`; `overrides` are laid over it first; `progress` is told how many of how many are tried.
///
/// # Errors
/// A scenario that cannot be built; the simulator's own errors.
pub fn whatif(
    world: &World,
    text: &str,
    origin: &str,
    overrides: &[String],
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<WhatIf, Error> {
    let base = world.scenario(text, origin, overrides)?;
    let built = base.build()?;
    let (report, own) = simulate(world, &base)?;
    let changes = changes(&base, &built.decided, built.workload.shares_content());
    let total = changes.len() as u64;
    let done = std::sync::atomic::AtomicU64::new(0);
    let tried = changes
        .into_par_iter()
        .map(|set| {
            let mut all = overrides.to_vec();
            all.extend(set.iter().cloned());
            let outcome = (world.scenario(text, origin, &all))
                .map_err(Error::from)
                .and_then(|s| simulate(world, &s));
            let n = 1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            progress(n, total);
            match outcome {
                Ok((_, outcome)) => Ok((set, Ok(outcome))),
                Err(e) => Ok((set, Err(e.into_reason()?))),
            }
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let mut changes = Vec::new();
    let mut impossible = Vec::new();
    for (set, result) in tried {
        match result {
            Ok(outcome) => {
                let more = outcome
                    .usd_per_hour
                    .zip(own.usd_per_hour)
                    .map(|(a, b)| a - b);
                changes.push(Change {
                    set,
                    outcome,
                    usd_per_hour_more: more,
                });
            }
            Err(why) => impossible.push(Impossible {
                set,
                reason: without_place(&why),
            }),
        }
    }
    changes.sort_by(|a, b| {
        rank(&a.outcome)
            .partial_cmp(&rank(&b.outcome))
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(a.set.cmp(&b.set))
    });
    Ok(WhatIf {
        contract: CONTRACT,
        name: report.name.clone(),
        deployment: report.deployment.clone(),
        base: own,
        changes,
        impossible,
    })
}

/// What kept a scenario from running, without where.
fn without_place(why: &str) -> String {
    let line = why.lines().next().unwrap_or_default();
    let parts: Vec<&str> = line.splitn(3, ": ").collect();
    parts.last().map_or_else(String::new, |s| (*s).to_owned())
}

/// Smaller is better: holding before missing, then price, then margin, then latency.
fn rank(o: &Outcome) -> (bool, f64, f64, f64) {
    let misses = o.holds == Some(false) || o.lost > 0;
    let price = if misses {
        0.0
    } else {
        o.usd_per_hour.unwrap_or(0.0)
    };
    (
        misses,
        price,
        -o.margin_ratio.unwrap_or(0.0),
        o.e2e_mean_ms.unwrap_or(f64::MAX),
    )
}

fn simulate(world: &World, scenario: &Scenario) -> Result<(RunReport, Outcome), Error> {
    let conditions = own_conditions(scenario).unwrap_or_default();
    let judged = judge::scenario(world, scenario, &conditions)?;
    let report = RunReport::new(&judged.record, 0.0);
    let standing = Some(judged.standing).filter(|_| !conditions.is_empty());
    let outcome = Outcome::of(&report, standing);
    Ok((report, outcome))
}

/// The changes worth trying.
fn changes(s: &Scenario, decided: &toml::Table, shares: bool) -> Vec<Vec<String>> {
    let mut out: Vec<Vec<String>> = Vec::new();
    let mut one = |o: String| out.push(vec![o]);
    let n = s.replicas;
    one(format!("layout.replicas={}", n + 1));
    if n > 1 {
        one(format!("layout.replicas={}", n - 1));
    }
    one(format!("layout.replicas={}", n.saturating_mul(2)));
    let tp = s.layout.tp;
    one(format!("layout.tp={}", tp * 2));
    if tp > 1 && tp.is_multiple_of(2) {
        one(format!("layout.tp={}", tp / 2));
    }
    for key in LIMITS {
        let now = decided
            .get(key)
            .and_then(toml::Value::as_integer)
            .filter(|v| *v > 1);
        if let Some(now) = now {
            one(format!("engine.{key}={}", now * 2));
            one(format!("engine.{key}={}", now / 2));
        }
    }
    let engine = s.engine.params.to_table();
    for (key, default) in SWITCHES {
        let now = engine.get(key).and_then(toml::Value::as_bool);
        let now = if key == "cuda_graphs" {
            s.engine.common.cuda_graphs.or(Some(default))
        } else {
            now
        };
        if let Some(now) = now {
            one(format!("engine.{key}={}", !now));
        }
    }
    if n > 1 {
        for (name, policy) in [
            ("round_robin", RouterPolicy::RoundRobin),
            ("least_outstanding", RouterPolicy::LeastOutstanding),
            ("power_of_two", RouterPolicy::PowerOfTwo),
            ("least_kv", RouterPolicy::LeastKv),
            ("prefix_aware", RouterPolicy::PrefixAware),
        ] {
            if s.router.policy != policy && (shares || name != "prefix_aware") {
                one(format!("router.policy=\"{name}\""));
            }
        }
    }
    hardware(s, &mut out);
    // The same devices cut up otherwise: two changes that are one decision.
    if n > 1 && n.is_multiple_of(2) {
        out.push(vec![
            format!("layout.tp={}", tp * 2),
            format!("layout.replicas={}", n / 2),
        ]);
    }
    if tp > 1 && tp.is_multiple_of(2) {
        out.push(vec![
            format!("layout.tp={}", tp / 2),
            format!("layout.replicas={}", n * 2),
        ]);
    }
    out
}

/// Dtypes and instance types.
fn hardware(s: &Scenario, out: &mut Vec<Vec<String>>) {
    let (Some(model), Some(hardware)) = (&s.model, &s.hardware) else {
        return;
    };
    let Ok(mut catalog) = s.catalog() else {
        return;
    };
    let name = match &model.source {
        ModelSource::Catalog(name) => name.clone(),
        ModelSource::Config(_) => match s.add_model(model, &mut catalog) {
            Ok(name) => name,
            Err(_) => return,
        },
    };
    let native = catalog.model(&name).map(|m: &ModelArch| m.native_dtype);
    if let Ok(native) = native
        && model.weights.unwrap_or(native) == Dtype::Bf16
    {
        out.push(vec!["model.weights=\"fp8\"".into()]);
    }
    if model.kv_cache == Dtype::Bf16 {
        out.push(vec!["model.kv_cache=\"fp8\"".into()]);
    }
    if hardware.machine.is_some() || hardware.price.is_some() {
        return;
    }
    let usd = |i: &hwmodels::instance::Instance| i.price().map(|p| p.usd.usd_per_hour());
    let Some((own, own_usd)) = catalog
        .instance(&hardware.instance)
        .ok()
        .and_then(|i| Some((i, usd(i)?)))
    else {
        return;
    };
    let mut others: Vec<(f64, &hwmodels::instance::Instance)> = catalog
        .instances()
        .filter(|i| (&i.accelerator, i.devices) != (&own.accelerator, own.devices))
        .filter_map(|i| Some((usd(i)?, i)))
        .filter(|(p, _)| (PRICES.0..=PRICES.1).contains(&(p / own_usd)))
        .collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.name.cmp(&b.1.name)));
    // Of the same accelerators the cheapest; of all those nearest in price.
    let mut unique: Vec<(f64, &hwmodels::instance::Instance)> = Vec::new();
    for (p, i) in others {
        if !unique
            .iter()
            .any(|(_, u)| (&u.accelerator, u.devices) == (&i.accelerator, i.devices))
        {
            unique.push((p, i));
        }
    }
    unique.sort_by(|a, b| {
        (a.0 / own_usd)
            .ln()
            .abs()
            .total_cmp(&(b.0 / own_usd).ln().abs())
            .then(a.1.name.cmp(&b.1.name))
    });
    unique.truncate(MOST_INSTANCES);
    out.extend(
        unique
            .iter()
            .map(|(_, i)| vec![format!("hardware.instance=\"{}\"", i.name)]),
    );
}

impl WhatIf {
    /// The table on the terminal; lines end in `\n`.
    pub fn render(&self) -> String {
        let mut out = format!("{}\n  {}\n\n", self.name, self.deployment);
        out += &format!(
            "  {:>9} {:>9} {:>7} {:>7} {:>11} {:>11} {:>10} {:>10}  change\n",
            "USD/h", "more", "SLO", "margin", "TTFT p99", "TPOT p99", "tokens/s", "USD/Mtok"
        );
        out += &row(&self.base, None, "as it stands");
        for c in &self.changes {
            out += &row(&c.outcome, c.usd_per_hour_more, &c.set.join(" "));
        }
        out += "\n  latencies in ms; with an SLO that holds first, cheapest first, then by margin; a change is what --set takes\n";
        if !self.impossible.is_empty() {
            out += "\nnot possible\n";
            for i in &self.impossible {
                out += &format!("  {}: {}\n", i.set.join(" "), i.reason);
            }
        }
        out
    }
}

fn row(o: &Outcome, more: Option<f64>, what: &str) -> String {
    let number = |v: Option<f64>| v.map_or("-".into(), figure);
    let signed = |v: f64| {
        if v == 0.0 {
            "same".to_owned()
        } else {
            format!("{}{}", if v > 0.0 { "+" } else { "" }, figure(v))
        }
    };
    let slo = match o.holds {
        Some(true) if o.lost == 0 => "holds",
        Some(_) => "MISSED",
        None => "-",
    };
    let lost = if o.lost > 0 {
        format!(" ({} requests lost)", o.lost)
    } else {
        String::new()
    };
    format!(
        "  {:>9} {:>9} {slo:>7} {:>7} {:>11} {:>11} {:>10} {:>10}  {what}{lost}\n",
        number(o.usd_per_hour),
        more.map_or("-".into(), signed),
        o.margin_ratio
            .map_or("-".into(), |m| format!("{:.0} %", 100.0 * m)),
        number(o.ttft_p99_ms),
        number(o.tpot_p99_ms),
        figure(o.output_tokens_per_s),
        number(o.usd_per_million_output_tokens),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[model]\nname = \"llama-2-7b\"\n[hardware]\ninstance = \"g5.2xlarge\"\n[engine]\nkind = \"vllm_v1\"\nmax_model_len = \
        4096\nmax_num_seqs = 2\n[[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\nprompt = 200\noutput = 100\n[run]\nrequests = \
        60\n[slo]\nttft = \"1 s\"\n";

    #[test]
    fn the_change_that_lifts_the_limit_is_found() {
        let answer = whatif(&World::default(), TEXT, "s.toml", &[], &|_, _| {}).unwrap();
        assert_eq!(answer.base.holds, Some(false));
        let doubled = answer
            .changes
            .iter()
            .find(|c| c.set == ["engine.max_num_seqs=4"])
            .unwrap();
        assert!(
            doubled.outcome.margin_ratio > answer.base.margin_ratio,
            "{}",
            answer.render()
        );
        assert_eq!(doubled.usd_per_hour_more, Some(0.0));
        // Holding ones come first.
        let holds: Vec<bool> = answer
            .changes
            .iter()
            .map(|c| c.outcome.holds == Some(true))
            .collect();
        assert!(
            holds.windows(2).all(|w| w[0] || !w[1]),
            "{}",
            answer.render()
        );
        // A second device is on a second node.
        let two = (answer.changes.iter())
            .find(|c| c.set == ["layout.tp=2"])
            .unwrap();
        assert!(
            two.usd_per_hour_more.is_some_and(|more| more > 0.0),
            "{}",
            answer.render()
        );
    }

    #[test]
    fn what_an_engine_cannot_do_is_said_with_its_reason() {
        let tgi = TEXT.replace("vllm_v1", "tgi").replace(
            "max_model_len = 4096\nmax_num_seqs = 2",
            "max_concurrent_requests = 64",
        );
        let answer = whatif(&World::default(), &tgi, "s.toml", &[], &|_, _| {}).unwrap();
        // Its shards share a node, and one of a single A10G has no second device.
        let not = (answer.impossible.iter())
            .find(|i| i.set == ["layout.tp=2"])
            .unwrap();
        assert!(not.reason.contains("g5.2xlarge"), "{}", not.reason);
    }
}
