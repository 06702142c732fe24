//! `servetwin autoscale`: settings of a scenario's autoscaler tried against its load.

mod kinds;

use anyhow::Context as _;
use rayon::prelude::*;
use sim::report::autoscale::{AutoscaleReport, RunOf, Trial};
use sim::scenario::built::most_running;
use sim::scenario::cluster_file::{AutoscalerFile, QuantityFile};
use sim::scenario::hpa_file::{BehaviorFile, ScalingRulesFile};
use sim::scenario::{Scenario, running_metric, runs_more_than};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;
use crate::simulate::{Keep, Path, ScenarioArgs, simulate};

/// Most runs of one command.
const MAX_RUNS: usize = 10_000;

/// Try settings of a scenario's autoscaler, and show cost against the share of requests within the objective.
///
/// Every setting sees the same requests, boots and failures. Without options the target is halved and doubled, one and two replicas are
/// added to the minimum, and the window before scaling down is 1, 5 and 10 minutes. With --kinds other kinds of autoscalers are tried instead.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin autoscale scenarios/cluster-flash-crowd.toml
  servetwin autoscale scenarios/cluster-flash-crowd.toml --target 2,4,8 --min 2,3,4 --window 300 --attainment 0.95
  servetwin autoscale scenarios/cluster-flash-crowd.toml --kinds --target 8
  servetwin autoscale scenarios/cluster-pd-flash-crowd.toml --pool prefill --target 1,2 --min 2 --window 300
  servetwin autoscale scenarios/cluster-flash-crowd.toml --metric tgi_queue_size --metric tgi_batch_current_size --seeds 3 --json", &[], &[]))]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Try kinds of autoscalers side by side, within the scenario's bounds: HPA, KEDA, the endpoint picker's signals, llm-d's variant autoscaler, SageMaker's target
    /// tracking and step scaling, Dynamo's planner, and Karpenter for the nodes. --target: requests in hand for each replica [default: 16].
    #[arg(long, conflicts_with_all = ["metric", "min", "window"])]
    kinds: bool,
    /// The pool whose autoscaler's settings are tried, where there are several; those of the others stay as they are.
    #[arg(long, value_name = "NAME", conflicts_with = "kinds")]
    pool: Option<String>,
    /// Metric to scale by, in place of the scenario's first. Repeatable.
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Targets of that metric for each replica (KEDA: threshold).
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    target: Vec<f64>,
    /// Fewest replicas (minReplicas, minReplicaCount): warm spares.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    min: Vec<i32>,
    /// Windows before scaling down [s] (behavior.scaleDown.stabilizationWindowSeconds).
    #[arg(long, value_name = "S,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=3600))]
    window: Vec<u32>,
    /// Share of the requests that are to meet the objective, 0 to 1 [default: the lowest percentile of the scenario's objectives; 0.99 of `[slo]`].
    #[arg(long, value_name = "SHARE")]
    attainment: Option<f64>,
    /// Runs of each setting, with seeds counting up from the scenario's.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
}

/// One setting; what is `None` stays as the scenario has it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Setting {
    metric: Option<String>,
    target: Option<f64>,
    min: Option<i32>,
    window: Option<u32>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let attainment = args.attainment.unwrap_or(scenario.slo.required());
    if !(0.0..=1.0).contains(&attainment) {
        return Err(BadInput(format!(
            "--attainment: must be from 0 to 1, got {attainment}"
        ))
        .into());
    }
    let variants = match args.kinds {
        true => of_kinds(&args, &scenario)?,
        false => of_settings(&args, &scenario)?,
    };
    let runs = variants.len() * args.seeds as usize;
    if runs > MAX_RUNS {
        return Err(BadInput(format!(
            "{} settings with {} seeds each are {runs} runs, more than {MAX_RUNS}; name fewer values",
            variants.len(),
            args.seeds
        ))
        .into());
    }
    let seeds: Vec<u64> = (0..args.seeds)
        .map(|i| scenario.seed.wrapping_add(i))
        .collect();
    let bar = progress::runs(runs as u64, "runs");
    // In the order of settings and seeds, whatever the threads do.
    let done = (0..runs)
        .into_par_iter()
        .map(|i| {
            let (setting, seed) = (i / seeds.len(), seeds[i % seeds.len()]);
            let done = simulate(
                &variants[setting].scenario,
                seed,
                Keep::Requests,
                Path::Auto,
                None,
            )?;
            bar.inc(1);
            if let Some(why) = planner::judge::too_few(&done.record) {
                return Err(BadInput(why).into());
            }
            RunOf::of(&done.record).context("the run had no cluster")
        })
        .collect::<anyhow::Result<Vec<RunOf>>>()?;
    bar.finish_and_clear();
    let trials = variants
        .into_iter()
        .zip(done.chunks(seeds.len()))
        .map(|(v, runs)| Trial::new(v.words, v.is_present, runs));
    let report = AutoscaleReport::new(&scenario.name, attainment, seeds, trials.collect());
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.render())?;
    }
    Ok(exit_code::OK)
}

/// What is tried.
struct Variant {
    words: Vec<String>,
    is_present: bool,
    scenario: Scenario,
}

/// Settings of the scenario's own autoscaler; refused before anything runs.
fn of_settings(args: &Args, scenario: &Scenario) -> anyhow::Result<Vec<Variant>> {
    let pool = pool(args, scenario)?;
    let present = present(scenario, pool)?;
    let running = running(scenario, pool)?;
    let mut all = Vec::new();
    for setting in settings(args, &present) {
        if let (Some((metric, most)), Some(target)) = (running, setting.target)
            && setting.metric.as_deref() == Some(metric)
            && !runs_more_than(target, most)
            && setting != present
        {
            note!(
                "left out: {}: a replica runs at most {most} requests, so none is ever above that target",
                in_words(&setting).join(", ")
            );
            continue;
        }
        let scenario = applied(scenario, &setting, pool);
        scenario.build().map_err(|e| BadInput(e.to_string()))?;
        all.push(Variant {
            words: in_words(&setting),
            is_present: is_present(&setting, &present),
            scenario,
        });
    }
    Ok(all)
}

/// The metric that shows the requests which a replica runs, and how many that are at most; `None`: no limit, or no such metric.
fn running(
    scenario: &Scenario,
    pool: Option<usize>,
) -> anyhow::Result<Option<(&'static str, u32)>> {
    let decided = scenario
        .build()
        .map_err(|e| BadInput(e.to_string()))?
        .decided;
    let (engine, most) = match pool.and_then(|i| scenario.pools.get(i)) {
        None => (&scenario.engine, most_running(&decided)),
        Some(pool) => {
            let own = decided.get(&pool.name).and_then(toml::Value::as_table);
            (&pool.engine, own.and_then(most_running))
        }
    };
    Ok(running_metric(engine.params.kind()).zip(most))
}

/// Kinds of autoscalers beside the scenario as it stands; one that the scenario cannot have is left out, and that is said.
fn of_kinds(args: &Args, scenario: &Scenario) -> anyhow::Result<Vec<Variant>> {
    if scenario.cluster.is_none() {
        let message = "the scenario has no [cluster] whose replicas an autoscaler could change";
        return Err(BadInput(message.to_owned()).into());
    }
    if !scenario.pools.is_empty() {
        let message = "--kinds tries one autoscaler for all replicas, and each pool has its own; --pool tries the settings of one of them";
        return Err(BadInput(message.to_owned()).into());
    }
    has_objective(scenario)?;
    let most = running(scenario, None)?.map(|(_, most)| most);
    let mut all = vec![Variant {
        words: Vec::new(),
        is_present: true,
        scenario: scenario.clone(),
    }];
    let (min, max) = kinds::bounds(scenario);
    let targets = match args.target.is_empty() {
        true => vec![16.0],
        false => args.target.clone(),
    };
    for target in targets {
        let common = kinds::Common {
            min,
            max,
            target,
            most,
        };
        for (name, scenario) in kinds::kinds(scenario, common) {
            let words = vec![name];
            if all.iter().any(|v| v.words == words) {
                continue;
            }
            match scenario.build() {
                Ok(_) => all.push(Variant {
                    words,
                    is_present: false,
                    scenario,
                }),
                Err(e) => note!("left out: {}: {e}", words[0]),
            }
        }
    }
    Ok(all)
}

fn has_objective(scenario: &Scenario) -> anyhow::Result<()> {
    if scenario.slo == sim::scenario::SloChoice::default() {
        let message = "settings are held against an objective, and the scenario has none; write slo = [\"ttft.p95 < 1 s\"]";
        return Err(BadInput(message.to_owned()).into());
    }
    Ok(())
}

/// The pool whose autoscaler is meant, by its index; `None`: there are no pools.
fn pool(args: &Args, scenario: &Scenario) -> anyhow::Result<Option<usize>> {
    let names: Vec<&str> = scenario.pools.iter().map(|p| p.name.as_str()).collect();
    let wrong = |message: String| Err(BadInput(message).into());
    match (&args.pool, names.is_empty()) {
        (None, true) => Ok(None),
        (None, false) => wrong(format!(
            "each pool has an autoscaler of its own; say whose settings are to be tried: --pool with one of {}",
            names.join(", ")
        )),
        (Some(_), true) => wrong("--pool: the scenario has no pools; leave it out".to_owned()),
        (Some(name), false) => match names.iter().position(|n| n == name) {
            Some(i) => Ok(Some(i)),
            None => wrong(format!(
                "--pool: must be one of {}, got `{name}`",
                names.join(", ")
            )),
        },
    }
}

/// What the scenario has.
fn present(scenario: &Scenario, pool: Option<usize>) -> anyhow::Result<Setting> {
    let bad = |what: &str| anyhow::Error::from(BadInput(what.to_owned()));
    has_objective(scenario)?;
    let autoscaler = match pool {
        Some(i) => (scenario.pools[i].on_cluster.as_ref()).and_then(|o| o.autoscaler.as_ref()),
        None => (scenario.cluster.as_ref()).and_then(|c| c.autoscaler.as_ref()),
    };
    let behavior = |b: &Option<BehaviorFile>| {
        let down = b.as_ref().and_then(|b| b.scale_down.as_ref());
        down.and_then(|d| d.stabilization_window_seconds)
            .unwrap_or(300)
    };
    if let Some(hpa) = autoscaler.and_then(|a| a.hpa.as_ref()) {
        let first = hpa
            .metrics
            .first()
            .ok_or_else(|| bad("[autoscaler.hpa] has no metric"))?;
        let target = first.average_value.as_ref().or(first.value.as_ref());
        return Ok(Setting {
            metric: first.metric.clone(),
            target: target.map(|q| q.milli as f64 / 1000.0),
            min: hpa.min_replicas,
            window: Some(behavior(&hpa.behavior)),
        });
    }
    if let Some(keda) = autoscaler.and_then(|a| a.keda.as_ref()) {
        let first = keda
            .triggers
            .first()
            .ok_or_else(|| bad("[autoscaler.keda] has no trigger"))?;
        return Ok(Setting {
            metric: first.metric.clone(),
            target: first.threshold,
            min: keda.min_replica_count,
            window: Some(behavior(&keda.behavior)),
        });
    }
    Err(bad(match pool {
        Some(_) => {
            "the pool has no autoscaler.hpa or autoscaler.keda whose settings could be tried"
        }
        None => {
            "the scenario has no [autoscaler.hpa] or [autoscaler.keda] whose settings could be tried; --kinds tries other autoscalers"
        }
    }))
}

/// Every combination of what is to be tried.
fn settings(args: &Args, present: &Setting) -> Vec<Setting> {
    let min = present.min.unwrap_or(1);
    let factors = [0.5, 1.0, 2.0];
    let targets: Vec<Option<f64>> = match (args.target.is_empty(), present.target) {
        (false, _) => args.target.iter().map(|t| Some(*t)).collect(),
        (true, Some(t)) => factors.iter().map(|f| Some(f * t)).collect(),
        (true, None) => vec![None],
    };
    let mins: Vec<i32> = match args.min.is_empty() {
        false => args.min.clone(),
        true => vec![min, min + 1, min + 2],
    };
    let windows: Vec<u32> = match args.window.is_empty() {
        false => args.window.clone(),
        true => vec![60, 300, 600],
    };
    let metrics: Vec<Option<String>> = match args.metric.is_empty() {
        false => args.metric.iter().map(|m| Some(m.clone())).collect(),
        true => vec![present.metric.clone()],
    };
    let mut all = Vec::new();
    for metric in &metrics {
        for target in &targets {
            for min in &mins {
                for window in &windows {
                    all.push(Setting {
                        metric: metric.clone(),
                        target: *target,
                        min: Some(*min),
                        window: Some(*window),
                    });
                }
            }
        }
    }
    if !all.contains(present) {
        all.push(present.clone());
    }
    all
}

fn is_present(setting: &Setting, present: &Setting) -> bool {
    setting == present
}

fn in_words(s: &Setting) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(target) = s.target {
        let metric = s.metric.as_deref().unwrap_or("listLength");
        out.push(format!("{metric} {target}"));
    }
    out.extend(s.min.map(|min| format!("min {min}")));
    out.extend(s.window.map(|w| format!("window {w} s")));
    out
}

/// The scenario with a setting.
fn applied(scenario: &Scenario, s: &Setting, pool: Option<usize>) -> Scenario {
    let mut out = scenario.clone();
    // Warm spares are there from the start.
    let least = s.min.and_then(|min| u32::try_from(min).ok()).unwrap_or(0);
    let autoscaler = match (pool, &mut out.cluster) {
        (Some(i), _) => {
            let pool = &mut out.pools[i];
            pool.replicas = pool.replicas.max(least);
            pool.on_cluster.as_mut().and_then(|o| o.autoscaler.as_mut())
        }
        (None, Some(cluster)) => {
            let own = &mut cluster.cluster.replicas;
            *own = own.map(|n| n.max(least));
            cluster.autoscaler.as_mut()
        }
        (None, None) => None,
    };
    if let Some(autoscaler) = autoscaler {
        set(autoscaler, s);
    }
    out
}

/// An autoscaler gets a setting.
fn set(autoscaler: &mut AutoscalerFile, s: &Setting) {
    let wait = |behavior: &mut Option<BehaviorFile>| {
        if s.window.is_some() {
            let down = behavior
                .get_or_insert_default()
                .scale_down
                .get_or_insert_with(ScalingRulesFile::default);
            down.stabilization_window_seconds = s.window;
        }
    };
    if let Some(hpa) = &mut autoscaler.hpa {
        hpa.min_replicas = s.min.or(hpa.min_replicas);
        let has_own = hpa.behavior.is_some();
        // The default window needs no behavior, which has rates of its own.
        if has_own || s.window != Some(300) {
            wait(&mut hpa.behavior);
        }
        if let Some(first) = hpa.metrics.first_mut() {
            first.metric = s.metric.clone().or(first.metric.take());
            if let Some(target) = s.target {
                let quantity = Some(QuantityFile {
                    text: target.to_string(),
                    milli: (target * 1000.0).ceil() as i64,
                });
                match first.value.is_some() {
                    true => first.value = quantity,
                    false => first.average_value = quantity,
                }
            }
        }
    }
    if let Some(keda) = &mut autoscaler.keda {
        keda.min_replica_count = s.min.or(keda.min_replica_count);
        let has_own = keda.behavior.is_some();
        if has_own || s.window != Some(300) {
            wait(&mut keda.behavior);
        }
        if let Some(first) = keda.triggers.first_mut() {
            first.metric = s.metric.clone().or(first.metric.take());
            first.threshold = s.target.or(first.threshold);
        }
    }
}
