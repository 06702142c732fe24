//! From the keys as written to a checked [`Scenario`] with every default filled in.

mod arrival;
mod deployment;
mod gateway;
mod length;
mod pools;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hwmodels::EngineKind;
use hwmodels::files::Bundle;
use hwmodels::units::{PerSec, Secs, plain};
use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Document, join};
use super::error::ScenarioError;
use super::file::{RunFile, ScenarioFile};
use super::schema;
use super::slo::SloKeys;
use super::{EngineChoice, HardwareChoice, ModelChoice, Scenario, SloChoice};
use crate::cluster::pools::Role;
use crate::engines::{EngineCommon, EngineParams, VllmRelease, memory_key};
use crate::workload::spec::{Limits, StreamSpec, check_rate};

/// Most replicas of a scenario.
pub const MAX_REPLICAS: u32 = 100_000;

/// Most KV blocks of a replica: a prefix cache keeps a record of each.
const MAX_KV_BLOCKS: u64 = 1 << 24;

/// Most requests of a run: as many as there are request ids.
const MAX_REQUESTS: u64 = u32::MAX as u64 - 1;

/// Longest duration of anything [s]: virtual time counts nanoseconds in 64 bits, which end after 584 years.
const MAX_SECS: f64 = 100.0 * 366.0 * 86_400.0;

type Result<T> = std::result::Result<T, ScenarioError>;

/// Checks a document and fills in its defaults. `origin` is the file it came from.
pub fn resolve(document: &Document<'_>, origin: &str) -> Result<Scenario> {
    let kind = schema::engine_kind(document)?;
    schema::check_names(document, kind)?;
    let (rest, engine, of_pools) = split_engine(document);
    let mut file: ScenarioFile = document.read("", rest)?;
    if !file.pool.is_empty() && file.step.is_none() {
        // Where every pool has its own, the first one's stand at the top.
        let mut pools = file.pool.iter();
        file.model = (file.model).or_else(|| pools.clone().find_map(|p| p.model.clone()));
        file.hardware = (file.hardware).or_else(|| pools.find_map(|p| p.hardware.clone()));
    }
    let checker = Checker { document };
    let base = engine.clone();
    let engine = checker.engine(kind, engine)?;
    let mut scenario = checker.scenario(&file, engine, origin)?;
    checker.add_pools(&mut scenario, &file, &base, &of_pools)?;
    Ok(scenario)
}

/// The tree without `[engine]`, `[engine]`, and that of each pool.
fn split_engine<'a>(
    document: &Document<'a>,
) -> (
    pools::Table<'a>,
    pools::Table<'a>,
    Vec<Option<pools::Table<'a>>>,
) {
    let mut root = document.root().clone();
    let of_pools = pools::take_engines(&mut root);
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
    (Spanned::new(document.root_span(), root), engine, of_pools)
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
        let mut eager = None;
        for (key, value) in table.into_inner() {
            let name: &str = key.get_ref();
            if name == memory_key(kind) {
                common.insert(Spanned::new(key.span(), "memory_fraction".into()), value);
            } else if name == schema::EAGER && schema::has_eager(kind) {
                let Some(is_eager) = value.get_ref().as_bool() else {
                    return self.fail("engine.enforce_eager", "must be true or false");
                };
                eager = Some(is_eager);
            } else if common_keys.iter().any(|k| k == name) {
                common.insert(key, value);
            } else if name == "kind" {
                newest = value.get_ref().as_str() == Some(schema::NEWEST_VLLM);
            } else {
                own.insert(key, value);
            }
        }
        let mut common: EngineCommon = self
            .document
            .read("engine", Spanned::new(span.clone(), common))?;
        if let Some(is_eager) = eager {
            if common.cuda_graphs.is_some() {
                let message = "says the opposite of cuda_graphs; leave one of them out";
                return self.fail("engine.enforce_eager", message);
            }
            common.cuda_graphs = Some(!is_eager);
        }
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

    /// What stands under `[model]` and `[hardware]`, where step times do not come from elsewhere.
    fn model_and_hardware(
        &self,
        file: &ScenarioFile,
        engine: &EngineChoice,
        has_step: bool,
        has_fitted: bool,
    ) -> Result<(Option<ModelChoice>, Option<HardwareChoice>)> {
        Ok(match (&file.model, &file.hardware) {
            (model, _) if has_fitted => (model.as_ref().map(|m| self.model(m)).transpose()?, None),
            (None, None) if has_step => {
                if engine.common.kv_blocks.is_none() {
                    return self.fail(
                        "step",
                        "without model and hardware there is no memory plan; give engine.kv_blocks",
                    );
                }
                (None, None)
            }
            (model, hardware) => {
                if has_step {
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
        })
    }

    fn streams(&self, file: &ScenarioFile) -> Result<Vec<StreamSpec>> {
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
        Ok(streams)
    }

    /// What ends the sending, whether the run waits for what is under way then, and its warm-up.
    fn limits(&self, run: &RunFile, streams: &[StreamSpec]) -> Result<(Limits, bool, Secs)> {
        let limits = Limits {
            requests: run
                .requests
                .map(|n| self.count(n, "run.requests"))
                .transpose()?,
            duration: self.optional_secs(run.duration, "run.duration")?,
        };
        if limits.requests.is_none()
            && limits.duration.is_none()
            && let Some(endless) = streams.iter().find(|s| !stream::ends_by_itself(s))
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
        Ok((limits, drain, warmup))
    }

    fn slo(&self, slo: Option<&SloKeys>) -> Result<SloChoice> {
        let Some(keys) = slo else {
            return Ok(SloChoice::default());
        };
        let found = keys.resolve().or_else(|(path, why)| self.fail(path, why))?;
        let tpot = match self.document.has("slo.itl") {
            true => "slo.itl",
            false => "slo.tpot",
        };
        for (limit, key) in [
            (found.ttft, "slo.ttft"),
            (found.tpot, tpot),
            (found.e2e, "slo.e2e"),
        ] {
            self.optional_secs(limit, key)?;
        }
        Ok(found)
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
        let (model, hardware) =
            self.model_and_hardware(file, &engine, step.is_some(), fitted.is_some())?;
        let layout = file.layout.clone().unwrap_or_default();
        let router = file.router.clone().unwrap_or_default();
        let run = file.run.clone().unwrap_or_default();
        let streams = self.streams(file)?;
        let (limits, drain, warmup) = self.limits(&run, &streams)?;
        let replicas = layout.replicas.unwrap_or(1);
        let cluster = super::cluster::filled(file, engine.params.kind(), replicas)
            .or_else(|(path, message)| self.fail(path, message))?;
        Ok(Scenario {
            name: self.text(name, "name")?,
            description,
            seed,
            model,
            hardware,
            step,
            fitted,
            layout: self.layout(&layout, engine.params.kind())?,
            replicas: self.whole(replicas, 1, MAX_REPLICAS, "layout.replicas")?,
            pools: Vec::new(),
            kv_transfer: None,
            cluster,
            engine,
            serves: Role::default(),
            router: self.router(&router)?,
            workload: streams,
            limits,
            drain,
            warmup,
            slo: self.slo(file.slo.as_ref())?,
            base: origin.parent().map(Path::to_path_buf).unwrap_or_default(),
            files: Arc::new(Bundle::default()),
            places: self.document.places(),
        })
    }
}
