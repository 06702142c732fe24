//! From the keys as written to a checked [`Scenario`] with every default filled in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hwmodels::units::{PerSec, Secs, plain};
use hwmodels::{EngineKind, Layout};
use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Document, join};
use super::engine::{EngineCommon, EngineParams, VllmRelease, memory_key};
use super::error::ScenarioError;
use super::file::{
    ArrivalFile, ArrivalKind, HardwareFile, LengthFile, LengthKind, ModelFile, RetriesFile,
    RetryOn, SamplingFile, ScenarioFile, SessionsFile, StepFile, StreamFile,
};
use super::schema;
use super::{
    ConstantStep, EngineChoice, FittedChoice, HardwareChoice, Machine, ModelChoice, ModelSource,
    OWN_MACHINE, RouterChoice, Scenario, SloChoice,
};
use crate::workload::spec::{
    Arrival, Cancel, DEFAULT_MAX_TOKENS, Length, Lengths, Limits, MAX_TOKENS, Prefix, Retries,
    SamplingSpec, Sessions, StreamSpec, check_rate,
};

/// Most replicas of a scenario.
pub const MAX_REPLICAS: u32 = 100_000;

/// Most KV blocks of a replica: a prefix cache keeps a record of each.
const MAX_KV_BLOCKS: u64 = 1 << 24;

/// Most devices along one axis of a layout.
const MAX_RANKS: u32 = 4096;

/// Most requests of a run: as many as there are request ids.
const MAX_REQUESTS: u64 = u32::MAX as u64 - 1;

/// Longest duration of anything [s]: virtual time counts nanoseconds in 64 bits, which end after 584 years.
const MAX_SECS: f64 = 100.0 * 366.0 * 86_400.0;

type Result<T> = std::result::Result<T, ScenarioError>;

/// Checks a document and fills in its defaults. `origin` is the file it came from.
pub fn resolve(document: &Document<'_>, origin: &str) -> Result<Scenario> {
    let kind = schema::engine_kind(document)?;
    schema::check_names(document, kind)?;
    let (rest, engine) = split_engine(document);
    let file: ScenarioFile = document.read("", rest)?;
    let checker = Checker { document };
    let engine = checker.engine(kind, engine)?;
    checker.scenario(&file, engine, origin)
}

/// The tree without `[engine]`, and `[engine]`.
fn split_engine<'a>(document: &Document<'a>) -> (Spanned<DeTable<'a>>, Spanned<DeTable<'a>>) {
    let mut root = document.root().clone();
    let engine = match root.remove("engine") {
        Some(v) => {
            let span = v.span();
            match v.into_inner() {
                DeValue::Table(t) => Spanned::new(span, t),
                _ => Spanned::new(span, DeTable::new()),
            }
        }
        None => Spanned::new(0..0, DeTable::new()),
    };
    (Spanned::new(document.root_span(), root), engine)
}

struct Checker<'d, 't> {
    document: &'d Document<'t>,
}

impl Checker<'_, '_> {
    fn fail<T>(&self, path: &str, message: impl Into<String>) -> Result<T> {
        Err(self.document.error(path, message))
    }

    /// A value that must be there.
    fn need<T: Clone>(
        &self,
        value: &Option<T>,
        table: &str,
        key: &str,
        example: &str,
    ) -> Result<T> {
        match value {
            Some(v) => Ok(v.clone()),
            None => self.fail(
                table,
                format!("`{key}` is missing; write e.g. {key} = {example}"),
            ),
        }
    }

    fn whole(&self, value: u32, min: u32, max: u32, path: &str) -> Result<u32> {
        if (min..=max).contains(&value) {
            Ok(value)
        } else if value < min {
            self.fail(path, format!("must be >= {min}, got {value}"))
        } else {
            self.fail(path, format!("must be <= {max}, got {value}"))
        }
    }

    fn count(&self, value: u64, path: &str) -> Result<u64> {
        if value == 0 {
            return self.fail(path, "must be >= 1, got 0");
        }
        if value > MAX_REQUESTS {
            return self.fail(path, format!("must be <= {MAX_REQUESTS}, got {value}"));
        }
        Ok(value)
    }

    fn number(&self, value: f64, min: f64, max: f64, path: &str) -> Result<f64> {
        if (min..=max).contains(&value) {
            // Adding zero turns -0 into 0.
            return Ok(value + 0.0);
        }
        let got = plain(value);
        self.fail(path, format!("must be from {min} to {max}, got {got}"))
    }

    fn secs(&self, value: Secs, path: &str) -> Result<Secs> {
        if value.secs() > MAX_SECS {
            return self.fail(path, format!("must be at most 100 years, got {value}"));
        }
        Ok(value)
    }

    fn secs_or(&self, value: Option<Secs>, default: f64, path: &str) -> Result<Secs> {
        match value {
            Some(v) => self.secs(v, path),
            None => Secs::new(default).map_err(|e| self.document.error(path, e.to_string())),
        }
    }

    fn optional_secs(&self, value: Option<Secs>, path: &str) -> Result<Option<Secs>> {
        value.map(|v| self.positive_secs(v, path)).transpose()
    }

    fn positive_secs(&self, value: Secs, path: &str) -> Result<Secs> {
        if value.secs() <= 0.0 {
            return self.fail(path, format!("must be above zero, got {value}"));
        }
        self.secs(value, path)
    }

    fn rate(&self, value: PerSec, zero: bool, path: &str) -> Result<PerSec> {
        if zero && value.per_sec() == 0.0 {
            return Ok(value);
        }
        check_rate(value.per_sec()).map_err(|message| {
            let or_zero = if zero { ", or 0 req/s" } else { "" };
            self.document.error(path, format!("{message}{or_zero}"))
        })
    }

    fn text(&self, value: String, path: &str) -> Result<String> {
        if value.is_empty() || value.len() > 200 || value.chars().any(char::is_control) {
            return self.fail(path, "must be 1 to 200 characters without line breaks");
        }
        Ok(value)
    }

    fn path(&self, value: &str, path: &str) -> Result<PathBuf> {
        if value.is_empty() || value.len() > 4096 || value.contains('\0') {
            return self.fail(path, "is no file name");
        }
        Ok(PathBuf::from(value))
    }

    /// Refuses keys that the table's `kind` does not use.
    fn only<T: Serialize>(
        &self,
        table: &T,
        kind: &str,
        allowed: &[&str],
        path: &str,
    ) -> Result<()> {
        let written =
            toml::Table::try_from(table).map_err(|e| self.document.error(path, e.to_string()))?;
        for key in written.keys() {
            if key != "kind" && !allowed.contains(&key.as_str()) {
                return self.fail(
                    &join(path, key),
                    format!(
                        "is not used by kind \"{kind}\"; its keys are {}",
                        allowed.join(", ")
                    ),
                );
            }
        }
        Ok(())
    }

    fn engine(&self, kind: EngineKind, table: Spanned<DeTable<'_>>) -> Result<EngineChoice> {
        let span = table.span();
        let common_keys = schema::common_engine_keys();
        let (mut common, mut own) = (DeTable::new(), DeTable::new());
        let mut newest = false;
        for (key, value) in table.into_inner() {
            let name: &str = key.get_ref();
            if name == memory_key(kind) {
                common.insert(Spanned::new(key.span(), "memory_fraction".into()), value);
            } else if common_keys.iter().any(|k| k == name) {
                common.insert(key, value);
            } else if name == "kind" {
                newest = value.get_ref().as_str() == Some(schema::NEWEST_VLLM);
            } else {
                own.insert(key, value);
            }
        }
        let common: EngineCommon = self
            .document
            .read("engine", Spanned::new(span.clone(), common))?;
        if let Some(n) = common.kv_blocks
            && !(2..=MAX_KV_BLOCKS).contains(&n)
        {
            return self.fail(
                "engine.kv_blocks",
                format!("must be from 2 to {MAX_KV_BLOCKS}, got {n}"),
            );
        }
        let released = own.contains_key("version");
        let mut params =
            EngineParams::read(kind, toml::de::Deserializer::from(Spanned::new(span, own)))
                .map_err(|e| self.document.serde_error(&e, "engine"))?;
        if let EngineParams::VllmV1(p) = &mut params
            && newest
            && !released
        {
            p.version = VllmRelease::NEWEST;
        }
        self.finite_numbers(&params.to_table(), "engine")?;
        Ok(EngineChoice { params, common })
    }

    /// Refuses NaN and infinite values, which TOML can spell.
    fn finite_numbers(&self, table: &toml::Table, path: &str) -> Result<()> {
        for (key, value) in table {
            if let toml::Value::Float(x) = value
                && !x.is_finite()
            {
                return self.fail(
                    &join(path, key),
                    format!("must be a finite number, got {x}"),
                );
            }
        }
        Ok(())
    }

    fn scenario(
        &self,
        file: &ScenarioFile,
        engine: EngineChoice,
        origin: &str,
    ) -> Result<Scenario> {
        let origin = Path::new(origin);
        let stem = origin
            .file_stem()
            .map_or("scenario".into(), |s| s.to_string_lossy());
        let name = file.name.clone().unwrap_or_else(|| stem.into_owned());
        let seed = file.seed.unwrap_or(1);
        if seed > i64::MAX as u64 {
            return self.fail("seed", format!("must be at most {}, got {seed}", i64::MAX));
        }
        let description = file.description.clone().unwrap_or_default();
        if description.len() > 10_000 {
            return self.fail("description", "must be at most 10000 characters");
        }
        let step = file.step.as_ref().map(|s| self.step(s)).transpose()?;
        let fitted = match &file.hardware {
            Some(h) => self.fitted(h)?,
            None => None,
        };
        if fitted.is_some() && step.is_some() {
            return self.fail(
                "step",
                "and hardware.step_profile both say how long a step takes; give one of them",
            );
        }
        let (model, hardware) = match (&file.model, &file.hardware) {
            (model, _) if fitted.is_some() => {
                (model.as_ref().map(|m| self.model(m)).transpose()?, None)
            }
            (None, None) if step.is_some() => {
                if engine.common.kv_blocks.is_none() {
                    return self.fail(
                        "step",
                        "without model and hardware there is no memory plan; give engine.kv_blocks",
                    );
                }
                (None, None)
            }
            (model, hardware) => {
                if step.is_some() {
                    return self.fail(
                        "step",
                        "stands in place of [model] and [hardware]; give one or the other",
                    );
                }
                let Some(model) = model else {
                    return self.fail(
                        "",
                        "[model] is missing; write e.g. [model] and name = \"llama-2-7b\"",
                    );
                };
                let Some(hardware) = hardware else {
                    return self.fail(
                        "",
                        "[hardware] is missing; write e.g. [hardware] and instance = \"g5.2xlarge\", or accelerator = \"H100\" and \
                         count = 8 for a machine of your own",
                    );
                };
                (Some(self.model(model)?), Some(self.hardware(hardware)?))
            }
        };
        let layout = file.layout.clone().unwrap_or_default();
        let router = file.router.clone().unwrap_or_default();
        let run = file.run.clone().unwrap_or_default();
        let slo = file.slo.clone().unwrap_or_default();
        if file.workload.is_empty() {
            return self.fail(
                "workload",
                "no requests: write at least one [[workload]] with arrival, prompt and output",
            );
        }
        if file.workload.len() > 1000 {
            return self.fail(
                "workload",
                format!("must be at most 1000 streams, got {}", file.workload.len()),
            );
        }
        let mut streams: Vec<StreamSpec> = Vec::with_capacity(file.workload.len());
        for (i, s) in file.workload.iter().enumerate() {
            let path = format!("workload[{i}]");
            let stream = self.stream(s, i, &path)?;
            if streams.iter().any(|o| o.name == stream.name) {
                return self.fail(
                    &path,
                    format!(
                        "there are two streams named `{}`; names are unique",
                        stream.name
                    ),
                );
            }
            streams.push(stream);
        }
        let limits = Limits {
            requests: run
                .requests
                .map(|n| self.count(n, "run.requests"))
                .transpose()?,
            duration: self.optional_secs(run.duration, "run.duration")?,
        };
        if limits.requests.is_none()
            && limits.duration.is_none()
            && let Some(endless) = streams.iter().find(|s| !ends_by_itself(s))
        {
            return self.fail(
                    "run",
                    format!(
                        "stream `{}` never ends: write e.g. requests = 1000 or duration = \"10 min\" below [run]",
                        endless.name
                    ),
                );
        }
        let drain = run.drain.unwrap_or(true);
        if !drain && limits.duration.is_none() {
            return self.fail("run.drain", "false needs `duration`: the run stops there");
        }
        let warmup = self.secs_or(run.warmup, 0.0, "run.warmup")?;
        if let Some(d) = limits.duration
            && warmup >= d
        {
            return self.fail(
                "run.warmup",
                format!(
                    "must be less than `duration` ({d}), got {warmup}: nothing would be measured"
                ),
            );
        }
        if slo.itl.is_some() && slo.tpot.is_some() {
            return self.fail(
                "slo.itl",
                "is a request's mean gap between tokens, which is tpot; give one of them",
            );
        }
        let tpot_key = if slo.itl.is_some() {
            "slo.itl"
        } else {
            "slo.tpot"
        };
        Ok(Scenario {
            name: self.text(name, "name")?,
            description,
            seed,
            model,
            hardware,
            step,
            fitted,
            layout: self.layout(&layout, engine.params.kind())?,
            replicas: self.whole(
                layout.replicas.unwrap_or(1),
                1,
                MAX_REPLICAS,
                "layout.replicas",
            )?,
            engine,
            router: RouterChoice {
                policy: router.policy.unwrap_or_default(),
                timeout: self.optional_secs(router.timeout, "router.timeout")?,
                overhead: self.secs_or(router.overhead, 0.0, "router.overhead")?,
                scrape_period: self.secs_or(router.scrape_period, 0.05, "router.scrape_period")?,
            },
            workload: streams,
            limits,
            drain,
            warmup,
            slo: SloChoice {
                ttft: self.optional_secs(slo.ttft, "slo.ttft")?,
                tpot: self.optional_secs(slo.itl.or(slo.tpot), tpot_key)?,
                e2e: self.optional_secs(slo.e2e, "slo.e2e")?,
            },
            base: origin.parent().map(Path::to_path_buf).unwrap_or_default(),
            places: self.document.places(),
        })
    }

    fn step(&self, s: &StepFile) -> Result<ConstantStep> {
        let step = ConstantStep {
            base: self.secs_or(s.base, 0.0, "step.base")?,
            per_token: self.secs_or(s.per_token, 0.0, "step.per_token")?,
            per_context_token: self.secs_or(s.per_context_token, 0.0, "step.per_context_token")?,
            per_pair: self.secs_or(s.per_pair, 0.0, "step.per_pair")?,
        };
        // A step that takes no time would let a run go on for ever at one instant.
        if step.base.secs() < 1e-9 && step.per_token.secs() < 1e-9 {
            return self.fail(
                "step",
                "a step must take time: give base or per_token of at least 1 ns",
            );
        }
        Ok(step)
    }

    fn model(&self, m: &ModelFile) -> Result<ModelChoice> {
        let source = match (&m.name, &m.config) {
            (Some(name), None) => ModelSource::Catalog(self.text(name.clone(), "model.name")?),
            (None, Some(config)) => ModelSource::Config(self.path(config, "model.config")?),
            (Some(_), Some(_)) => {
                return self.fail("model", "give `name` or `config`, not both");
            }
            (None, None) => {
                return self.fail(
                    "model",
                    "`name` is missing; write e.g. name = \"llama-2-7b\"",
                );
            }
        };
        let kv_cache = m.kv_cache.unwrap_or(hwmodels::Dtype::Bf16);
        if matches!(kv_cache, hwmodels::Dtype::Int4 | hwmodels::Dtype::Mxfp4) {
            return self.fail(
                "model.kv_cache",
                "4-bit formats hold weights only; use bf16, fp8 or int8",
            );
        }
        let expert_skew = m.expert_skew.unwrap_or(0.0);
        Ok(ModelChoice {
            expert_skew: self.number(expert_skew, 0.0, 3.0, "model.expert_skew")?,
            source,
            weights: m.weights,
            kv_cache,
        })
    }

    fn hardware(&self, h: &HardwareFile) -> Result<HardwareChoice> {
        if let Some(date) = &h.price_date {
            let digits = |r: std::ops::Range<usize>| {
                date.get(r)
                    .is_some_and(|s| s.bytes().all(|b| b.is_ascii_digit()))
            };
            let shaped = date.len() == 10
                && digits(0..4)
                && digits(5..7)
                && digits(8..10)
                && date.as_bytes()[4] == b'-'
                && date.as_bytes()[7] == b'-';
            if !shaped {
                return self.fail(
                    "hardware.price_date",
                    format!("must be a date like \"2026-07-20\", got \"{date}\""),
                );
            }
        }
        let machine = self.machine(h)?;
        let instance = match &machine {
            Some(_) => OWN_MACHINE.to_owned(),
            None => self.text(
                self.need(&h.instance, "hardware", "instance", "\"g5.2xlarge\"")?,
                "hardware.instance",
            )?,
        };
        Ok(HardwareChoice {
            instance,
            machine,
            price_date: h.price_date.clone(),
            price: h.price,
            profile: self.text(
                h.profile.clone().unwrap_or("auto".into()),
                "hardware.profile",
            )?,
            params: self.profile_params(h)?,
            catalog: h
                .catalog
                .as_ref()
                .map(|c| self.path(c, "hardware.catalog"))
                .transpose()?,
        })
    }

    /// The machine of one's own, where `accelerator` gives one.
    fn machine(&self, h: &HardwareFile) -> Result<Option<Machine>> {
        let Some(accelerator) = &h.accelerator else {
            if h.count.is_some() {
                return self.fail(
                    "hardware.count",
                    "counts the devices of `accelerator`, which is missing; an instance type has its own number",
                );
            }
            return Ok(None);
        };
        for (key, given) in [
            ("instance", h.instance.is_some()),
            ("price_date", h.price_date.is_some()),
        ] {
            if given {
                return self.fail(
                    &join("hardware", key),
                    "does not go together with accelerator, which describes a machine that is in no catalog",
                );
            }
        }
        Ok(Some(Machine {
            accelerator: self.text(accelerator.clone(), "hardware.accelerator")?,
            count: self.whole(h.count.unwrap_or(1), 1, 1024, "hardware.count")?,
        }))
    }

    fn fitted(&self, h: &HardwareFile) -> Result<Option<FittedChoice>> {
        let Some(profile) = &h.step_profile else {
            return Ok(None);
        };
        for (key, given) in [
            ("instance", h.instance.is_some()),
            ("accelerator", h.accelerator.is_some()),
            ("count", h.count.is_some()),
            ("price_date", h.price_date.is_some()),
            ("profile", h.profile.is_some()),
            ("catalog", h.catalog.is_some()),
        ] {
            if given {
                return self.fail(
                    &join("hardware", key),
                    "does not go together with step_profile, which needs no hardware from the catalog",
                );
            }
        }
        Ok(Some(FittedChoice {
            profile: self.path(profile, "hardware.step_profile")?,
            params: self.profile_params(h)?,
            price: h.price,
        }))
    }

    fn profile_params(&self, h: &HardwareFile) -> Result<BTreeMap<String, f64>> {
        let params = h.params.clone().unwrap_or_default();
        for (name, value) in &params {
            if !value.is_finite() {
                return self.fail(
                    "hardware.params",
                    format!("{name}: must be a finite number, got {value}"),
                );
            }
        }
        Ok(params)
    }

    fn layout(&self, l: &super::file::LayoutFile, engine: EngineKind) -> Result<Layout> {
        let layout = Layout {
            tp: self.whole(l.tp.unwrap_or(1), 1, MAX_RANKS, "layout.tp")?,
            pp: self.whole(l.pp.unwrap_or(1), 1, MAX_RANKS, "layout.pp")?,
            dp: self.whole(l.dp.unwrap_or(1), 1, MAX_RANKS, "layout.dp")?,
            ep: self.whole(l.ep.unwrap_or(1), 1, MAX_RANKS, "layout.ep")?,
        };
        if let Err(message) = layout.check_attention_ranks(engine) {
            return self.fail("layout.dp", message);
        }
        let ranks = layout.stage_ranks();
        let whose = if layout.dp > 1 { "dp x tp" } else { "tp" };
        // TensorRT-LLM splits experts both ways (`moe_tensor_parallel_size` x `moe_expert_parallel_size`); vLLM has one switch.
        let wrong = match engine {
            EngineKind::TrtLlm if !ranks.is_multiple_of(layout.ep) => "must divide",
            EngineKind::TrtLlm => "",
            _ if layout.ep != 1 && layout.ep != ranks => "must be 1 or equal to",
            _ => "",
        };
        if !wrong.is_empty() {
            return self.fail(
                "layout.ep",
                format!("{wrong} {whose} ({ranks}), got {}", layout.ep),
            );
        }
        Ok(layout)
    }

    fn stream(&self, s: &StreamFile, index: usize, path: &str) -> Result<StreamSpec> {
        let at = |key: &str| join(path, key);
        let arrival_file = self.need(
            &s.arrival,
            path,
            "arrival",
            "{ kind = \"poisson\", rate = \"2.5 req/s\" }",
        )?;
        let arrival = self.arrival(&arrival_file, &at("arrival"))?;
        let is_trace = matches!(arrival, Arrival::Trace { .. });
        let lengths = match (&s.prompt, &s.output, &s.lengths) {
            (None, None, None) if is_trace => Lengths::OfTrace,
            (p, o, l) if is_trace => {
                let key = if p.is_some() {
                    "prompt"
                } else if o.is_some() {
                    "output"
                } else {
                    debug_assert!(l.is_some());
                    "lengths"
                };
                return self.fail(&at(key), "a trace brings its own lengths; leave this out");
            }
            (None, None, Some(pairs)) => Lengths::Pairs {
                file: self.path(&pairs.file, &at("lengths.file"))?,
                prompt_column: pairs.prompt_column.clone().unwrap_or("input_tokens".into()),
                output_column: pairs
                    .output_column
                    .clone()
                    .unwrap_or("output_tokens".into()),
            },
            (p, o, None) => Lengths::Separate {
                prompt: self.length(&self.need(p, path, "prompt", "256")?, &at("prompt"))?,
                output: self.length(&self.need(o, path, "output", "256")?, &at("output"))?,
            },
            (_, _, Some(_)) => {
                return self.fail(
                    &at("lengths"),
                    "give `lengths`, or `prompt` and `output`, not both",
                );
            }
        };
        if is_trace {
            for (given, key) in [
                (s.prefix.is_some(), "prefix"),
                (s.sessions.is_some(), "sessions"),
            ] {
                if given {
                    return self.fail(
                        &at(key),
                        "a trace says itself what its requests share; leave this out",
                    );
                }
            }
        }
        let prefix = match &s.prefix {
            Some(p) => {
                let prefix = Prefix {
                    tokens: self.whole(
                        self.need(&p.tokens, &at("prefix"), "tokens", "1024")?,
                        1,
                        MAX_TOKENS,
                        &at("prefix.tokens"),
                    )?,
                    groups: self.whole(
                        p.groups.unwrap_or(1),
                        1,
                        1_000_000,
                        &at("prefix.groups"),
                    )?,
                    zipf: self.number(p.zipf.unwrap_or(0.0), 0.0, 10.0, &at("prefix.zipf"))?,
                };
                Some(prefix)
            }
            None => None,
        };
        let cancel = match &s.cancel {
            Some(c) => Some(Cancel {
                fraction: self.need(&c.fraction, &at("cancel"), "fraction", "0.1")?,
                after: self.positive_secs(
                    self.need(&c.after, &at("cancel"), "after", "\"5 s\"")?,
                    &at("cancel.after"),
                )?,
            }),
            None => None,
        };
        Ok(StreamSpec {
            name: self.text(
                s.name.clone().unwrap_or(format!("stream-{index}")),
                &at("name"),
            )?,
            arrival,
            lengths,
            max_tokens: s
                .max_tokens
                .map(|n| self.whole(n, 1, MAX_TOKENS, &at("max_tokens")))
                .transpose()?,
            prefix,
            sessions: s
                .sessions
                .as_ref()
                .map(|x| self.sessions(x, &at("sessions")))
                .transpose()?,
            timeout: self.optional_secs(s.timeout, &at("timeout"))?,
            cancel,
            retries: s
                .retries
                .as_ref()
                .map(|x| self.retries(x, &at("retries")))
                .transpose()?,
            priority: s.priority.unwrap_or(0),
            sampling: match &s.sampling {
                Some(x) => self.sampling(x, &at("sampling"))?,
                None => SamplingSpec::default(),
            },
            requests: s
                .requests
                .map(|n| self.count(n, &at("requests")))
                .transpose()?,
        })
    }

    fn sampling(&self, s: &SamplingFile, path: &str) -> Result<SamplingSpec> {
        let at = |key: &str| join(path, key);
        let temperature = s.temperature.unwrap_or(1.0);
        Ok(SamplingSpec {
            temperature: self.number(temperature, 0.0, 100.0, &at("temperature"))?,
            top_k: self.whole(s.top_k.unwrap_or(0), 0, MAX_TOKENS, &at("top_k"))?,
            top_p: s
                .top_p
                .map(|p| self.number(p, 1e-9, 1.0, &at("top_p")))
                .transpose()?,
            penalties: s.penalties.unwrap_or(false),
            logprobs: self.whole(s.logprobs.unwrap_or(0), 0, MAX_TOKENS, &at("logprobs"))?,
        })
    }

    fn sessions(&self, s: &SessionsFile, path: &str) -> Result<Sessions> {
        let at = |key: &str| join(path, key);
        Ok(Sessions {
            turns: self.length(&self.need(&s.turns, path, "turns", "5")?, &at("turns"))?,
            think: self.secs_or(s.think, 0.0, &at("think"))?,
            think_cv: self.number(s.think_cv.unwrap_or(1.0), 0.0, 100.0, &at("think_cv"))?,
            max_context: self.whole(
                s.max_context.unwrap_or(DEFAULT_MAX_TOKENS),
                1,
                MAX_TOKENS,
                &at("max_context"),
            )?,
        })
    }

    fn retries(&self, r: &RetriesFile, path: &str) -> Result<Retries> {
        let at = |key: &str| join(path, key);
        let on =
            r.on.clone()
                .unwrap_or(vec![RetryOn::Rejected, RetryOn::Failed]);
        if on.is_empty() {
            return self.fail(
                &at("on"),
                "is empty; name rejected, timed_out or failed, or leave retries out",
            );
        }
        let backoff = self.secs_or(r.backoff, 1.0, &at("backoff"))?;
        let factor = self.number(r.factor.unwrap_or(2.0), 1.0, 100.0, &at("factor"))?;
        let max = self.whole(self.need(&r.max, path, "max", "3")?, 1, 100, &at("max"))?;
        if backoff.secs() * factor.powi(max as i32 - 1) > MAX_SECS {
            return self.fail(
                &at("factor"),
                format!(
                    "the last of {max} pauses would be longer than 100 years; lower factor or max"
                ),
            );
        }
        Ok(Retries {
            max,
            backoff,
            factor,
            jitter: r.jitter.unwrap_or_default(),
            on_rejected: on.contains(&RetryOn::Rejected),
            on_timed_out: on.contains(&RetryOn::TimedOut),
            on_failed: on.contains(&RetryOn::Failed),
        })
    }

    fn arrival(&self, a: &ArrivalFile, path: &str) -> Result<Arrival> {
        let at = |key: &str| join(path, key);
        let (kind, keys): (&str, &[&str]) = match a.kind {
            ArrivalKind::Poisson => ("poisson", &["rate"]),
            ArrivalKind::Gamma => ("gamma", &["rate", "cv"]),
            ArrivalKind::Constant => ("constant", &["rate"]),
            ArrivalKind::Steps => ("steps", &["steps", "cv", "repeat"]),
            ArrivalKind::Ramp => ("ramp", &["from", "to", "over", "cv"]),
            ArrivalKind::RateTable => (
                "rate_table",
                &[
                    "file",
                    "time_column",
                    "rate_column",
                    "scale",
                    "cv",
                    "repeat",
                ],
            ),
            ArrivalKind::Closed => (
                "closed",
                &[
                    "concurrency",
                    "stagger",
                    "think",
                    "think_cv",
                    "refused_pause",
                ],
            ),
            ArrivalKind::Burst => ("burst", &["requests", "max_in_flight", "refused_pause"]),
            ArrivalKind::Trace => ("trace", &["file", "format", "columns", "time_scale"]),
        };
        self.only(a, kind, keys, path)?;
        let rate = || -> Result<PerSec> {
            let rate = self.need(&a.rate, path, "rate", "\"2.5 req/s\"")?;
            self.rate(rate, false, &at("rate"))
        };
        let cv = |default: f64| self.number(a.cv.unwrap_or(default), 0.0, 100.0, &at("cv"));
        let refused_pause = || -> Result<Secs> {
            let pause = self.secs_or(a.refused_pause, 0.1, &at("refused_pause"))?;
            if pause.secs() < 1e-6 {
                return self.fail(
                    &at("refused_pause"),
                    "must be at least 1 us: a user refused at once would send for ever at one instant",
                );
            }
            Ok(pause)
        };
        let file = |example: &str| -> Result<PathBuf> {
            self.path(&self.need(&a.file, path, "file", example)?, &at("file"))
        };
        let scale =
            |value: Option<f64>, key: &str| self.number(value.unwrap_or(1.0), 1e-6, 1e6, &at(key));
        Ok(match a.kind {
            ArrivalKind::Poisson => Arrival::Poisson { rate: rate()? },
            ArrivalKind::Constant => Arrival::Constant { rate: rate()? },
            ArrivalKind::Gamma => {
                self.need(&a.cv, path, "cv", "2.0")?;
                Arrival::Gamma {
                    rate: rate()?,
                    cv: cv(1.0)?,
                }
            }
            ArrivalKind::Steps => {
                let steps = self.need(
                    &a.steps,
                    path,
                    "steps",
                    "[{ rate = \"2 req/s\", duration = \"5 min\" }]",
                )?;
                let mut out = Vec::with_capacity(steps.len());
                for (i, s) in steps.iter().enumerate() {
                    let p = format!("{}[{i}]", at("steps"));
                    out.push((
                        self.rate(s.rate, true, &join(&p, "rate"))?,
                        self.positive_secs(s.duration, &join(&p, "duration"))?,
                    ));
                }
                let expected: f64 = out.iter().map(|(r, d)| r.per_sec() * d.secs()).sum();
                if expected <= 0.0 {
                    return self.fail(
                        &at("steps"),
                        "all rates are zero, so no request would ever be sent",
                    );
                }
                Arrival::Steps {
                    steps: out,
                    cv: cv(1.0)?,
                    repeat: a.repeat.unwrap_or(false),
                }
            }
            ArrivalKind::Ramp => Arrival::Ramp {
                from: self.rate(
                    self.need(&a.from, path, "from", "\"1 req/s\"")?,
                    true,
                    &at("from"),
                )?,
                to: self.rate(
                    self.need(&a.to, path, "to", "\"20 req/s\"")?,
                    false,
                    &at("to"),
                )?,
                over: self
                    .positive_secs(self.need(&a.over, path, "over", "\"10 min\"")?, &at("over"))?,
                cv: cv(1.0)?,
            },
            ArrivalKind::RateTable => Arrival::RateTable {
                file: file("\"day.csv\"")?,
                time_column: a.time_column.clone().unwrap_or("t_s".into()),
                rate_column: a.rate_column.clone().unwrap_or("rate_rps".into()),
                scale: scale(a.scale, "scale")?,
                cv: cv(1.0)?,
                repeat: a.repeat.unwrap_or(false),
            },
            ArrivalKind::Closed => Arrival::Closed {
                concurrency: self.whole(
                    self.need(&a.concurrency, path, "concurrency", "16")?,
                    1,
                    10_000_000,
                    &at("concurrency"),
                )?,
                stagger: self.secs_or(a.stagger, 0.0, &at("stagger"))?,
                think: self.secs_or(a.think, 0.0, &at("think"))?,
                think_cv: self.number(a.think_cv.unwrap_or(0.0), 0.0, 100.0, &at("think_cv"))?,
                refused_pause: refused_pause()?,
            },
            ArrivalKind::Burst => Arrival::Burst {
                requests: self.count(
                    self.need(&a.requests, path, "requests", "1000")?,
                    &at("requests"),
                )?,
                max_in_flight: a
                    .max_in_flight
                    .map(|n| self.whole(n, 1, 10_000_000, &at("max_in_flight")))
                    .transpose()?,
                refused_pause: refused_pause()?,
            },
            ArrivalKind::Trace => Arrival::Trace {
                file: file("\"trace.csv\"")?,
                format: match (a.format, &a.columns) {
                    (Some(_), Some(_)) => {
                        return self.fail(
                            &at("columns"),
                            "stands in place of format; give one of them",
                        );
                    }
                    (format, _) => format.unwrap_or_default(),
                },
                columns: a.columns.clone(),
                time_scale: scale(a.time_scale, "time_scale")?,
            },
        })
    }

    fn length(&self, file: &LengthFile, path: &str) -> Result<Length> {
        let l = &file.0;
        let at = |key: &str| join(path, key);
        let (kind, keys): (&str, &[&str]) = match l.kind {
            LengthKind::Fixed => ("fixed", &["tokens"]),
            LengthKind::Uniform => ("uniform", &["min", "max"]),
            LengthKind::Normal => ("normal", &["mean", "std", "min", "max"]),
            LengthKind::Lognormal => (
                "lognormal",
                &["mean", "std", "median", "sigma", "min", "max"],
            ),
            LengthKind::Exponential => ("exponential", &["mean", "min", "max"]),
            LengthKind::Quantiles => ("quantiles", &["points"]),
            LengthKind::Empirical => ("empirical", &["file", "column", "order"]),
        };
        self.only(l, kind, keys, path)?;
        let limits = || -> Result<(u32, u32)> {
            let min = self.whole(l.min.unwrap_or(1), 1, MAX_TOKENS, &at("min"))?;
            let max = l.max.unwrap_or(DEFAULT_MAX_TOKENS.max(min));
            let max = self.whole(max, 1, MAX_TOKENS, &at("max"))?;
            if min > max {
                return self.fail(
                    &at("min"),
                    format!("must be at most max ({max}), got {min}"),
                );
            }
            Ok((min, max))
        };
        let most = f64::from(MAX_TOKENS);
        let mean = || -> Result<f64> {
            self.number(
                self.need(&l.mean, path, "mean", "512")?,
                1e-3,
                most,
                &at("mean"),
            )
        };
        let std = || -> Result<f64> {
            self.number(self.need(&l.std, path, "std", "64")?, 0.0, most, &at("std"))
        };
        Ok(match l.kind {
            LengthKind::Fixed => Length::Fixed(self.whole(
                self.need(&l.tokens, path, "tokens", "256")?,
                1,
                MAX_TOKENS,
                &self.tokens_path(path),
            )?),
            LengthKind::Uniform => {
                self.need(&l.min, path, "min", "128")?;
                self.need(&l.max, path, "max", "512")?;
                let (min, max) = limits()?;
                Length::Uniform { min, max }
            }
            LengthKind::Normal => {
                let (min, max) = limits()?;
                Length::Normal {
                    mean: mean()?,
                    std: std()?,
                    min,
                    max,
                }
            }
            LengthKind::Lognormal => {
                let (min, max) = limits()?;
                match (l.mean, l.std, l.median, l.sigma) {
                    (Some(_), Some(_), None, None) => Length::Lognormal {
                        mean: mean()?,
                        std: std()?,
                        min,
                        max,
                    },
                    (None, None, Some(median), Some(sigma)) => Length::LognormalMedian {
                        median: self.number(median, 1e-3, most, &at("median"))?,
                        sigma: self.number(sigma, 0.0, 10.0, &at("sigma"))?,
                        min,
                        max,
                    },
                    _ => {
                        return self.fail(
                            path,
                            "lognormal needs `mean` and `std`, or `median` and `sigma`",
                        );
                    }
                }
            }
            LengthKind::Exponential => {
                let (min, max) = limits()?;
                Length::Exponential {
                    mean: mean()?,
                    min,
                    max,
                }
            }
            LengthKind::Quantiles => {
                let points =
                    self.need(&l.points, path, "points", "[[0, 4], [0.5, 120], [1, 4000]]")?;
                self.quantiles(&points, &at("points"))?;
                Length::Quantiles(points)
            }
            LengthKind::Empirical => Length::Empirical {
                file: self.path(
                    &self.need(&l.file, path, "file", "\"lengths.csv\"")?,
                    &at("file"),
                )?,
                column: self.need(&l.column, path, "column", "\"input_tokens\"")?,
                order: l.order.unwrap_or_default(),
            },
        })
    }

    /// Where a fixed length was written: as a number, or in a table.
    fn tokens_path(&self, path: &str) -> String {
        let inner = join(path, "tokens");
        if self.document.has(&inner) {
            inner
        } else {
            path.to_string()
        }
    }

    fn quantiles(&self, points: &[[f64; 2]], path: &str) -> Result<()> {
        if points.len() < 2 || points.len() > 10_000 {
            return self.fail(
                path,
                format!("must be 2 to 10000 points, got {}", points.len()),
            );
        }
        for (i, [share, tokens]) in points.iter().enumerate() {
            let p = format!("{path}[{i}]");
            self.number(*share, 0.0, 1.0, &p)?;
            self.number(*tokens, 1.0, f64::from(MAX_TOKENS), &p)?;
            if i > 0 && (*share < points[i - 1][0] || *tokens < points[i - 1][1]) {
                return self.fail(&p, "shares and tokens must rise from point to point");
            }
        }
        if points[0][0] != 0.0 || points[points.len() - 1][0] != 1.0 {
            return self.fail(path, "must start at share 0 and end at share 1");
        }
        Ok(())
    }
}

/// Whether a stream stops without a limit of the run.
fn ends_by_itself(s: &StreamSpec) -> bool {
    s.requests.is_some()
        || match &s.arrival {
            Arrival::Burst { .. } | Arrival::Trace { .. } => true,
            Arrival::Steps { repeat, .. } | Arrival::RateTable { repeat, .. } => !repeat,
            _ => false,
        }
}
