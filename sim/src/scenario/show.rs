//! A scenario back as TOML, with every default visible.

use super::file::{
    ArrivalFile, ArrivalKind, CancelFile, HardwareFile, LayoutFile, LengthFile, LengthKind,
    LengthTable, ModelFile, PairsFile, PrefixFile, RateStepFile, RetriesFile, RetryOn, RouterFile,
    RunFile, SamplingFile, ScenarioFile, SessionsFile, StepFile, StreamFile,
};
use super::gateway_file::{GatewayRetriesFile, OutlierFile};
use super::pools_file::{KvTransferFile, PoolFile};
use super::slo::SloKeys;
use super::{
    ConstantStep, EngineChoice, HardwareChoice, ModelChoice, ModelSource, PoolChoice, Scenario,
};
use crate::engines::memory_key;
use crate::workload::spec::{Arrival, Length, Lengths, SamplingSpec, StreamSpec};
use hwmodels::Layout;

/// The scenario as TOML.
pub fn show(s: &Scenario) -> String {
    let file = written(s);
    let mut root = match toml::Table::try_from(&file) {
        Ok(t) => t,
        Err(e) => return format!("# cannot be shown: {e}\n"),
    };
    let mut of_engine = engine(&s.engine);
    if s.fitted.is_some() {
        // What was left out is the profile's to say; written out it would be the scenario's.
        for key in super::fitted::PROFILE_KEYS {
            if !s.places.has(&format!("engine.{key}")) {
                of_engine.remove(key);
            }
        }
    }
    // Plain keys come before tables in TOML, and the engine before the load on it.
    let workload = root.remove("workload");
    let mut out = String::new();
    let scalars: toml::Table = ["name", "description", "seed"]
        .into_iter()
        .filter_map(|k| Some((k.to_string(), root.remove(k)?)))
        .collect();
    out.push_str(&scalars.to_string());
    if let Some(list) = root.get("slo").filter(|s| s.is_array()) {
        out.push_str(&format!("slo = {list}\n"));
    }
    for key in ["model", "hardware", "step", "layout"] {
        section(&mut out, key, root.remove(key));
    }
    section(&mut out, "engine", Some(of_engine.into()));
    let pools = root.remove("pool");
    let pools = pools.as_ref().and_then(toml::Value::as_array);
    for (item, choice) in pools.into_iter().flatten().zip(&s.pools) {
        out.push_str("\n[[pool]]\n");
        lines(&mut out, item);
        let of_pool: toml::Value = engine(&choice.engine).into();
        out.push_str(&format!("engine = {of_pool}\n"));
    }
    section(&mut out, "kv_transfer", root.remove("kv_transfer"));
    section(&mut out, "router", root.remove("router"));
    for key in ["cluster", "autoscaler"] {
        section(&mut out, key, root.remove(key));
    }
    for key in ["fault", "change"] {
        for item in root
            .remove(key)
            .as_ref()
            .and_then(|v| v.as_array())
            .into_iter()
            .flatten()
        {
            out.push_str(&format!("\n[[{key}]]\n"));
            lines(&mut out, item);
        }
    }
    for stream in workload
        .as_ref()
        .and_then(|w| w.as_array())
        .into_iter()
        .flatten()
    {
        out.push_str("\n[[workload]]\n");
        lines(&mut out, stream);
    }
    for key in ["run", "slo"] {
        section(&mut out, key, root.remove(key));
    }
    out
}

fn section(out: &mut String, name: &str, value: Option<toml::Value>) {
    if let Some(value) = value
        && value.as_table().is_some_and(|t| !t.is_empty())
    {
        out.push_str(&format!("\n[{name}]\n"));
        lines(out, &value);
    }
}

/// `key = value` per line, tables inline.
fn lines(out: &mut String, value: &toml::Value) {
    for (k, v) in value.as_table().into_iter().flatten() {
        out.push_str(&format!("{k} = {v}\n"));
    }
}

/// The resolved scenario in the words of a file.
fn written(s: &Scenario) -> ScenarioFile {
    ScenarioFile {
        name: Some(s.name.clone()),
        description: Some(s.description.clone()),
        seed: Some(s.seed),
        model: s.model.as_ref().map(model),
        hardware: match (&s.hardware, &s.fitted) {
            (Some(h), _) => Some(hardware(h)),
            (None, Some(f)) => Some(HardwareFile {
                step_profile: Some(f.profile.display().to_string()),
                price: f.price,
                params: (!f.params.is_empty()).then(|| f.params.clone()),
                ..HardwareFile::default()
            }),
            (None, None) => None,
        },
        layout: Some(LayoutFile {
            replicas: s.pools.is_empty().then_some(s.replicas),
            ..layout(s.layout)
        }),
        step: s.step.map(step),
        pool: s.pools.iter().map(pool).collect(),
        kv_transfer: s.kv_transfer.map(|t| KvTransferFile {
            bandwidth: t.bandwidth,
            latency: t.latency,
            fabric_bandwidth: t.fabric_bandwidth,
            bytes_per_token: t.bytes_per_token,
            layerwise: Some(t.layerwise),
            first_token: Some(t.first_token),
        }),
        router: Some(RouterFile {
            policy: Some(s.router.policy),
            timeout: s.router.timeout,
            overhead: Some(s.router.overhead),
            scrape_period: Some(s.router.scrape_period),
            max_requests: s.router.gateway.max_requests,
            retries: (s.router.gateway.retries.as_ref()).map(GatewayRetriesFile::of),
            outlier_detection: (s.router.gateway.outliers.as_ref()).map(OutlierFile::of),
        }),
        cluster: s.cluster.as_ref().map(|c| c.cluster.clone()),
        autoscaler: s.cluster.as_ref().and_then(|c| c.autoscaler.clone()),
        fault: s.cluster.as_ref().map_or(Vec::new(), |c| c.faults.clone()),
        change: s.cluster.as_ref().map_or(Vec::new(), |c| c.changes.clone()),
        workload: s.workload.iter().map(stream).collect(),
        run: Some(RunFile {
            requests: s.limits.requests,
            duration: s.limits.duration,
            drain: Some(s.drain),
            warmup: Some(s.warmup),
        }),
        slo: Some(SloKeys::from(&s.slo)),
    }
}

fn model(m: &ModelChoice) -> ModelFile {
    let (name, config) = match &m.source {
        ModelSource::Catalog(name) => (Some(name.clone()), None),
        ModelSource::Config(path) => (None, Some(path.display().to_string())),
    };
    ModelFile {
        name,
        config,
        weights: m.weights,
        kv_cache: Some(m.kv_cache),
        expert_skew: Some(m.expert_skew),
    }
}

fn hardware(h: &HardwareChoice) -> HardwareFile {
    HardwareFile {
        instance: h.machine.is_none().then(|| h.instance.clone()),
        accelerator: h.machine.as_ref().map(|m| m.accelerator.clone()),
        count: h.machine.as_ref().map(|m| m.count),
        host_path: h.machine.as_ref().and_then(|m| m.host_path),
        mig: h.mig.clone(),
        price_date: h.price_date.clone(),
        price: h.price,
        profile: Some(h.profile.clone()),
        step_profile: None,
        catalog: h.catalog.as_ref().map(|c| c.display().to_string()),
        params: (!h.params.is_empty()).then(|| h.params.clone()),
    }
}

fn layout(l: Layout) -> LayoutFile {
    LayoutFile {
        tp: Some(l.tp),
        pp: Some(l.pp),
        dp: Some(l.dp),
        ep: Some(l.ep),
        replicas: None,
    }
}

fn step(t: ConstantStep) -> StepFile {
    StepFile {
        base: Some(t.base),
        per_token: Some(t.per_token),
        per_context_token: Some(t.per_context_token),
        per_pair: Some(t.per_pair),
    }
}

/// A pool without its engine, which is shown apart.
fn pool(p: &PoolChoice) -> PoolFile {
    PoolFile {
        name: Some(p.name.clone()),
        role: Some(p.role),
        replicas: Some(p.replicas),
        min_prompt: p.min_prompt,
        max_prompt: p.max_prompt,
        router: Some(p.router),
        model: p.model.as_ref().map(model),
        hardware: p.hardware.as_ref().map(hardware),
        layout: Some(layout(p.layout)),
        step: p.step.map(step),
        pod: p.on_cluster.as_ref().map(|o| o.pod.clone()),
        autoscaler: p.on_cluster.as_ref().and_then(|o| o.autoscaler.clone()),
        node_groups: (p.on_cluster.as_ref())
            .map(|o| o.node_groups.clone())
            .filter(|names| !names.is_empty()),
    }
}

/// The engine in the words of a file.
fn engine(e: &EngineChoice) -> toml::Table {
    let mut engine = toml::Table::new();
    engine.insert("kind".into(), e.params.kind().name().into());
    if let Ok(mut common) = toml::Table::try_from(e.common) {
        if let Some(fraction) = common.remove("memory_fraction") {
            engine.insert(memory_key(e.params.kind()).into(), fraction);
        }
        engine.extend(common);
    }
    engine.extend(e.params.to_table());
    engine
}

fn stream(s: &StreamSpec) -> StreamFile {
    let mut file = StreamFile {
        name: Some(s.name.clone()),
        model: s.model.clone(),
        arrival: Some(arrival(&s.arrival)),
        max_tokens: s.max_tokens,
        prefix: s.prefix.map(|p| PrefixFile {
            tokens: Some(p.tokens),
            groups: Some(p.groups),
            zipf: Some(p.zipf),
        }),
        sessions: s.sessions.as_ref().map(|x| SessionsFile {
            turns: Some(length(&x.turns)),
            think: Some(x.think),
            think_cv: Some(x.think_cv),
            max_context: Some(x.max_context),
        }),
        timeout: s.timeout,
        cancel: s.cancel.map(|c| CancelFile {
            fraction: Some(c.fraction),
            after: Some(c.after),
        }),
        retries: s.retries.map(|r| RetriesFile {
            max: Some(r.max),
            backoff: Some(r.backoff),
            factor: Some(r.factor),
            jitter: Some(r.jitter),
            on: Some(
                [
                    (r.on_rejected, RetryOn::Rejected),
                    (r.on_timed_out, RetryOn::TimedOut),
                    (r.on_failed, RetryOn::Failed),
                ]
                .into_iter()
                .filter_map(|(on, what)| on.then_some(what))
                .collect(),
            ),
        }),
        priority: Some(s.priority),
        sampling: (s.sampling != SamplingSpec::default()).then_some(SamplingFile {
            temperature: Some(s.sampling.temperature),
            top_k: Some(s.sampling.top_k),
            top_p: s.sampling.top_p,
            penalties: Some(s.sampling.penalties),
            logprobs: Some(s.sampling.logprobs),
        }),
        requests: s.requests,
        ..StreamFile::default()
    };
    match &s.lengths {
        Lengths::Separate { prompt, output } => {
            file.prompt = Some(length(prompt));
            file.output = Some(length(output));
        }
        Lengths::Pairs {
            file: path,
            prompt_column,
            output_column,
        } => {
            file.lengths = Some(PairsFile {
                file: path.display().to_string(),
                prompt_column: Some(prompt_column.clone()),
                output_column: Some(output_column.clone()),
            });
        }
        Lengths::OfTrace => {}
    }
    file
}

fn arrival(a: &Arrival) -> ArrivalFile {
    let mut f = ArrivalFile::default();
    match a {
        Arrival::Poisson { rate } => {
            f.kind = ArrivalKind::Poisson;
            f.rate = Some(*rate);
        }
        Arrival::Gamma { rate, cv } => {
            f.kind = ArrivalKind::Gamma;
            f.rate = Some(*rate);
            f.cv = Some(*cv);
        }
        Arrival::Constant { rate } => {
            f.kind = ArrivalKind::Constant;
            f.rate = Some(*rate);
        }
        Arrival::Steps { steps, cv, repeat } => {
            f.kind = ArrivalKind::Steps;
            let step = |&(rate, duration): &_| RateStepFile { rate, duration };
            f.steps = Some(steps.iter().map(step).collect());
            f.cv = Some(*cv);
            f.repeat = Some(*repeat);
        }
        Arrival::Ramp { from, to, over, cv } => {
            f.kind = ArrivalKind::Ramp;
            f.from = Some(*from);
            f.to = Some(*to);
            f.over = Some(*over);
            f.cv = Some(*cv);
        }
        Arrival::RateTable {
            file,
            time_column,
            rate_column,
            scale,
            cv,
            repeat,
        } => {
            f.kind = ArrivalKind::RateTable;
            f.file = Some(file.display().to_string());
            f.time_column = Some(time_column.clone());
            f.rate_column = Some(rate_column.clone());
            f.scale = Some(*scale);
            f.cv = Some(*cv);
            f.repeat = Some(*repeat);
        }
        Arrival::Closed {
            concurrency,
            stagger,
            think,
            think_cv,
            refused_pause,
        } => {
            f.kind = ArrivalKind::Closed;
            f.concurrency = Some(*concurrency);
            f.stagger = Some(*stagger);
            f.think = Some(*think);
            f.think_cv = Some(*think_cv);
            f.refused_pause = Some(*refused_pause);
        }
        Arrival::Burst {
            requests,
            max_in_flight,
            refused_pause,
        } => {
            f.kind = ArrivalKind::Burst;
            f.requests = Some(*requests);
            f.max_in_flight = *max_in_flight;
            f.refused_pause = Some(*refused_pause);
        }
        Arrival::Trace {
            file,
            format,
            columns,
            time_scale,
        } => {
            f.kind = ArrivalKind::Trace;
            f.file = Some(file.display().to_string());
            f.format = columns.is_none().then_some(*format);
            f.columns = columns.clone();
            f.time_scale = Some(*time_scale);
        }
    }
    f
}

fn length(l: &Length) -> LengthFile {
    let mut t = LengthTable::default();
    let mut limits = |min: u32, max: u32| (t.min, t.max) = (Some(min), Some(max));
    match l {
        Length::Fixed(n) => t.tokens = Some(*n),
        Length::Uniform { min, max } => {
            limits(*min, *max);
            t.kind = LengthKind::Uniform;
        }
        Length::Normal {
            mean,
            std,
            min,
            max,
        } => {
            limits(*min, *max);
            t.kind = LengthKind::Normal;
            (t.mean, t.std) = (Some(*mean), Some(*std));
        }
        Length::Lognormal {
            mean,
            std,
            min,
            max,
        } => {
            limits(*min, *max);
            t.kind = LengthKind::Lognormal;
            (t.mean, t.std) = (Some(*mean), Some(*std));
        }
        Length::LognormalMedian {
            median,
            sigma,
            min,
            max,
        } => {
            limits(*min, *max);
            t.kind = LengthKind::Lognormal;
            (t.median, t.sigma) = (Some(*median), Some(*sigma));
        }
        Length::Exponential { mean, min, max } => {
            limits(*min, *max);
            t.kind = LengthKind::Exponential;
            t.mean = Some(*mean);
        }
        Length::Quantiles(points) => {
            t.kind = LengthKind::Quantiles;
            t.points = Some(points.clone());
        }
        Length::Empirical {
            file,
            column,
            order,
        } => {
            t.kind = LengthKind::Empirical;
            t.order = Some(*order);
            t.file = Some(file.display().to_string());
            t.column = Some(column.clone());
        }
    }
    LengthFile(t)
}
