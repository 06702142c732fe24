//! Planning questions: a scenario in which hardware, layout, engine, dtypes and router may be lists of alternatives.

use std::collections::BTreeMap;
use std::path::Path;

use hwmodels::catalog::Catalog;
use hwmodels::units::UsdPerHour;
use serde::{Deserialize, Serialize};
use sim::metrics::definition::Metric;
use sim::scenario::document::{self, Document};
use sim::scenario::slo::SloKeys;
use sim::scenario::{ModelSource, Scenario, ScenarioError, relative};
use sim::workload::Arrival;
use toml::{Spanned, Table, Value};

use super::offers::{Asked, Offers};
use super::prices::Prices;
use crate::conditions::Condition;
use crate::hash::fnv1a;
use crate::judge::Judge;
use crate::requests::{Moments, Requests};
use crate::{Error, World};

/// Most candidates of a question.
pub const MOST_CANDIDATES: usize = 200_000;

/// Most instances of a deployment, where the question says nothing.
const MOST_INSTANCES: u32 = 64;

/// One value or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            OneOrMany::One(t) => vec![t],
            OneOrMany::Many(all) => all,
        }
    }

    fn all(&self) -> &[T] {
        match self {
            OneOrMany::One(t) => std::slice::from_ref(t),
            OneOrMany::Many(all) => all,
        }
    }
}

/// What must still hold the load when it is lost.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// Nothing.
    #[default]
    None,
    /// One replica.
    #[serde(rename = "n+1")]
    Replica,
    /// One instance with all replicas on it.
    #[serde(rename = "n+1 instance")]
    Instance,
}

impl Redundancy {
    /// Replicas that may be lost, where an instance holds `per_instance` (0: a replica spans several).
    pub fn spare(self, per_instance: u32) -> u32 {
        match self {
            Redundancy::None => 0,
            Redundancy::Replica => 1,
            Redundancy::Instance => per_instance.max(1),
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::None => "none",
            Redundancy::Replica => "n+1 (one replica may be lost)",
            Redundancy::Instance => "n+1 instance (one instance may be lost)",
        }
    }
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionFile {
    name: Option<String>,
    description: Option<String>,
    seed: Option<u64>,
    slo: SloKeys,
    #[serde(default)]
    plan: PlanFile,
    model: Table,
    #[serde(default)]
    hardware: Table,
    #[serde(default)]
    layout: Table,
    engine: Option<OneOrMany<Table>>,
    #[serde(default)]
    router: Table,
    workload: Vec<Table>,
    #[serde(default)]
    run: Table,
    kv_transfer: Option<Table>,
}

/// What only a plan has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    budget: Option<UsdPerHour>,
    #[serde(default)]
    redundancy: Redundancy,
    max_instances: Option<u32>,
    prices: Option<String>,
    #[serde(default)]
    regions: Vec<String>,
    gpu_price: Option<UsdPerHour>,
    #[serde(default)]
    slices: bool,
    #[serde(default)]
    disaggregated: bool,
    #[serde(default)]
    pools_by_prompt: bool,
    #[serde(default)]
    autoscaled: bool,
    #[serde(default)]
    measured_only: bool,
}

/// A key of a scenario and the values to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Key path, e.g. `engine.max_num_seqs`.
    pub key: String,
    /// Its values, at least one.
    pub values: Vec<Value>,
}

/// A planning question, checked.
#[derive(Clone)]
pub struct Question {
    /// Its name.
    pub name: String,
    /// What it asks, in a sentence.
    pub description: String,
    /// The file that it came from; file names are relative to its folder.
    pub origin: String,
    /// Seed of the load and of the draws.
    pub seed: u64,
    /// The objectives, at least one.
    pub conditions: Vec<Condition>,
    /// Most that the deployment may cost [USD/h].
    pub budget: Option<f64>,
    /// What may be lost.
    pub redundancy: Redundancy,
    /// Most instances of a deployment.
    pub max_instances: u32,
    /// What is the same in every candidate, as a scenario's text.
    pub base: String,
    /// Model and hardware axes, then the layout's; each engine has axes of its own.
    pub axes: Vec<Axis>,
    /// Whether the layout's alternatives are the planner's own.
    pub own_layouts: bool,
    /// Alternatives of `[engine]`.
    pub engines: Vec<Vec<Axis>>,
    /// Whether the longest request that engines take is the planner's own.
    pub own_lengths: bool,
    /// Whether those are the planner's own, of which each accelerator takes those that run on it.
    pub own_engines: bool,
    /// What deployments can be made of, and what it costs.
    pub offers: Offers,
    /// Which of the catalog's prices.
    pub price_date: Option<String>,
    /// Whether deployments with prefill and decode apart are candidates too.
    pub disaggregated: bool,
    /// Keys of `[kv_transfer]`, the link between them, where the question says it.
    pub kv_transfer: Option<Table>,
    /// Whether two pools by prompt length are looked at.
    pub pools_by_prompt: bool,
    /// Whether the winner is tried under an autoscaler.
    pub autoscaled: bool,
    /// Whether engines on accelerators of which no run was measured are left out.
    pub measured_only: bool,
    /// Most candidates.
    pub most_candidates: usize,
    /// The catalog.
    pub catalog: Catalog,
    /// The requests.
    pub requests: Requests,
    /// Moments of the load.
    pub moments: Moments,
    /// Whether the load goes on as it is: rates that do not change, no trace.
    pub steady: bool,
    /// Whether another seed draws other requests.
    pub seeded: bool,
    /// The load in words.
    pub load: String,
    /// What the reader must know of the question.
    pub notes: Vec<String>,
    /// Where its files are, and who may stop the answer.
    pub world: World,
}

/// Keys of `[engine]` whose value is a list itself.
const LIST_KEYS: [&str; 2] = ["cudagraph_capture_sizes", "cuda_graph_batch_sizes"];

impl Question {
    /// Reads a question file and lays `overrides` (`key.path=value`) over it.
    ///
    /// # Errors
    /// Everything that is wrong with it, with file, line and key.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Question, Error> {
        let world = World::default();
        let text = document::read_text(&*world.files, path, "the planning question")?;
        Question::parse_in(&world, &text, &path.display().to_string(), overrides)
    }

    /// Reads a question from text; `origin` is the file it came from.
    ///
    /// # Errors
    /// As [`Question::load`].
    pub fn parse(text: &str, origin: &str, overrides: &[String]) -> Result<Question, Error> {
        Question::parse_in(&World::default(), text, origin, overrides)
    }

    /// [`Question::parse`], with the files of `world`.
    ///
    /// # Errors
    /// As [`Question::load`].
    pub fn parse_in(
        world: &World,
        text: &str,
        origin: &str,
        overrides: &[String],
    ) -> Result<Question, Error> {
        let overrides = relative::absolute(text, origin, overrides)?;
        let document = Document::parse(text, origin, &overrides)?;
        let root = Spanned::new(document.root_span(), document.root().clone());
        let file: QuestionFile = document.read("", root)?;
        let at = |path: &str, message: String| Error::from(document.error(path, message));
        let QuestionFile {
            name,
            description,
            seed,
            slo,
            plan,
            model,
            hardware,
            layout,
            engine,
            router,
            workload,
            run,
            kv_transfer,
        } = file;
        linked(&plan, kv_transfer.is_some()).map_err(|e| at("kv_transfer", e))?;
        let conditions = conditions(&slo).map_err(|(key, e)| at(key, e))?;
        let max_instances = plan.max_instances.unwrap_or(MOST_INSTANCES);
        if !(1..=4096).contains(&max_instances) {
            return Err(at(
                "plan.max_instances",
                format!("must be from 1 to 4096, got {max_instances}"),
            ));
        }
        let prices = prices(world, origin, &plan).map_err(|(key, e)| at(key, e.to_string()))?;
        let own_layouts = layout.is_empty();
        let own_engines = engine.is_none();
        let Fixed {
            table: fixed,
            axes,
            mut asked,
        } = fixed(model, hardware, layout, router, &plan).map_err(|(key, e)| at(&key, e))?;
        let name = name.unwrap_or_else(|| stem(origin));
        let base = base(fixed, &name, seed, (workload, run)).map_err(|e| at("seed", e))?;
        let date = asked.price_date.as_deref();
        let probe =
            probe(world, &base, origin, &axes, date).map_err(|e| replaced(&e, &document))?;
        let mut catalog = probe.catalog().map_err(|e| replaced(&e, &document))?;
        asked.price = (probe.hardware.as_ref().and_then(|h| h.price)).map(UsdPerHour::usd_per_hour);
        let offers = Offers::of(&asked, prices.as_ref(), &mut catalog)?;
        if offers.by_devices && plan.budget.is_some() {
            let why = "holds prices against it, and something that is asked for has none: leave it out, or give hardware.price, plan.gpu_price or plan.prices";
            return Err(at("plan.budget", why.to_owned()));
        }
        let requests = Requests::of(&probe, probe.seed)?;
        let moments = requests.moments();
        let mut notes = offers.notes.clone();
        if requests.cut {
            notes.push(format!(
                "the load has more than {} requests; the plan rests on the first of them",
                requests.len()
            ));
        }
        let gives_length = |t: &Table| t.contains_key("max_model_len");
        let own_lengths = !(engine.iter().flat_map(OneOrMany::all)).any(gives_length);
        let engines = engines(engine, &moments).map_err(|(key, message)| at(&key, message))?;
        Ok(Question {
            name,
            description: description.unwrap_or_default(),
            origin: origin.to_owned(),
            seed: probe.seed,
            conditions,
            budget: plan.budget.map(UsdPerHour::usd_per_hour),
            redundancy: plan.redundancy,
            max_instances,
            base,
            axes,
            own_layouts,
            engines,
            own_lengths,
            own_engines,
            offers,
            price_date: asked.price_date,
            disaggregated: plan.disaggregated,
            kv_transfer,
            pools_by_prompt: plan.pools_by_prompt,
            autoscaled: plan.autoscaled,
            measured_only: plan.measured_only,
            most_candidates: MOST_CANDIDATES,
            catalog,
            load: probe.load_in_words(),
            steady: requests.goes_on(),
            requests,
            moments,
            seeded: !(probe.workload.iter()).all(|s| matches!(s.arrival, Arrival::Trace { .. })),
            notes,
            world: world.clone(),
        })
    }
}

/// What is the same in every candidate as a scenario's text, or what is wrong with the seed.
fn base(
    mut fixed: Table,
    name: &str,
    seed: Option<u64>,
    (workload, run): (Vec<Table>, Table),
) -> Result<String, String> {
    fixed.insert("name".into(), Value::String(name.to_owned()));
    if let Some(seed) = seed {
        let seed = i64::try_from(seed).map_err(|_| "must be at most 2^63 - 1".to_owned())?;
        fixed.insert("seed".into(), Value::Integer(seed));
    }
    let workload = workload.into_iter().map(Value::Table).collect();
    fixed.insert("workload".into(), Value::Array(workload));
    if !run.is_empty() {
        fixed.insert("run".into(), Value::Table(run));
    }
    toml::to_string(&fixed).map_err(|e| e.to_string())
}

/// Refuses a link where nothing is to be joined.
fn linked(plan: &PlanFile, is_given: bool) -> Result<(), String> {
    if is_given && !plan.disaggregated {
        return Err("is the link between prefill and decode; write plan.disaggregated = true to have them apart".into());
    }
    Ok(())
}

/// The objectives as written, at least one; or the key at fault and why.
fn conditions(written: &SloKeys) -> Result<Vec<Condition>, (&'static str, String)> {
    let found = written.resolve()?.as_objectives();
    if found.is_empty() {
        let why = "give at least one, e.g. slo = [\"ttft.p99 < 500 ms\"]";
        return Err(("slo", why.into()));
    }
    Ok(found)
}

/// What is the same in every candidate, and what differs.
struct Fixed {
    table: Table,
    axes: Vec<Axis>,
    asked: Asked,
}

/// Parts the sections of a question, or the key at fault and why.
fn fixed(
    model: Table,
    mut hardware: Table,
    layout: Table,
    router: Table,
    plan: &PlanFile,
) -> Result<Fixed, (String, String)> {
    let asked = asked(&mut hardware, plan)?;
    if hardware.contains_key("step_profile") {
        return Err((
            "hardware.step_profile".into(),
            "a plan chooses among accelerators of the catalog; leave it out".into(),
        ));
    }
    if layout.contains_key("replicas") {
        return Err((
            "layout.replicas".into(),
            "is what a plan finds; leave it out".into(),
        ));
    }
    let mut table = Table::new();
    let mut axes = Vec::new();
    for (section, keys) in [
        ("model", model),
        ("hardware", hardware),
        ("layout", layout),
        (
            "router",
            with_default(router, "policy", "least_outstanding"),
        ),
    ] {
        let constant = split(section, keys, &mut axes)?;
        if !constant.is_empty() {
            table.insert(section.into(), Value::Table(constant));
        }
    }
    Ok(Fixed { table, axes, asked })
}

/// Takes what a question says of instance types, accelerators and prices out of its `[hardware]`.
fn asked(hardware: &mut Table, plan: &PlanFile) -> Result<Asked, (String, String)> {
    let wrong = |key: &str, why: &str| (key.to_owned(), why.to_owned());
    let mut list = |key: &str, why: &str| match hardware.remove(key) {
        None => Ok(Vec::new()),
        Some(v) => names(v).ok_or_else(|| wrong(&format!("hardware.{key}"), why)),
    };
    let instances = list(
        "instance",
        "must be instance types or accelerators, e.g. [\"g5.*\", \"p5.48xlarge\", \"H100\"]",
    )?;
    let accelerators = list(
        "accelerator",
        "must be accelerators of the catalog, e.g. [\"H100\", \"H200\"]",
    )?;
    let by_one = plan.slices || !accelerators.is_empty();
    let only_by_one = "is of accelerators that are rented one by one: name them in hardware.accelerator, or write plan.slices = true";
    if plan.gpu_price.is_some() && !by_one {
        return Err(wrong("plan.gpu_price", only_by_one));
    }
    if !accelerators.is_empty() && hardware.contains_key("price") {
        let why = "is of an instance type; write plan.gpu_price, the price of one accelerator";
        return Err(wrong("hardware.price", why));
    }
    let mut taken = |key: &str| hardware.remove(key);
    let (count, host_path, date) = (taken("count"), taken("host_path"), taken("price_date"));
    for (key, given) in [("count", &count), ("host_path", &host_path)] {
        if given.is_some() && !by_one {
            return Err(wrong(&format!("hardware.{key}"), only_by_one));
        }
    }
    let count = count.map(|v| {
        let n = v.as_integer().and_then(|n| u32::try_from(n).ok());
        n.filter(|n| (1..=1024).contains(n))
            .ok_or_else(|| wrong("hardware.count", "must be a whole number from 1 to 1024"))
    });
    let host_path = host_path.map(|v| {
        v.try_into()
            .map_err(|_| wrong("hardware.host_path", "must be \"own\" or \"shared\""))
    });
    let price_date = date.map(|v| {
        let text = v.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong("hardware.price_date", "must be a date like \"2026-07-20\""))
    });
    Ok(Asked {
        instances,
        accelerators,
        count: count.transpose()?,
        slices: plan.slices,
        gpu_price: plan.gpu_price.map(UsdPerHour::usd_per_hour),
        price: None,
        price_date: price_date.transpose()?,
        host_path: host_path.transpose()?,
    })
}

/// The prices that the question names, or the key at fault and why.
fn prices(
    world: &World,
    origin: &str,
    plan: &PlanFile,
) -> Result<Option<Prices>, (&'static str, Error)> {
    let Some(name) = &plan.prices else {
        if plan.regions.is_empty() {
            return Ok(None);
        }
        let why = "the catalog has one price of each instance type: give prices = \"prices.csv\" with those of the regions";
        return Err(("plan.regions", Error::input(why)));
    };
    let folder = Path::new(origin).parent().unwrap_or(Path::new(""));
    let text = document::read_text(&*world.files, &folder.join(name), "the prices")
        .map_err(|e| ("plan.prices", e.into()))?;
    let read = Prices::parse(&text, name, &plan.regions);
    read.map(Some).map_err(|e| ("plan.prices", e))
}

impl Question {
    /// The judge of its deployments under `factor` times the load.
    ///
    /// # Errors
    /// As [`Judge::new`].
    pub fn judge(&self, factor: f64) -> Result<Judge<'_>, Error> {
        Judge::new(
            &self.conditions,
            &self.requests,
            factor,
            self.world.most_requests,
        )
    }

    /// The same question of other requests.
    pub fn with(&self, requests: Requests) -> Question {
        Question {
            moments: requests.moments(),
            requests,
            ..self.clone()
        }
    }

    /// The rate that must at least be served for the objectives to hold [req/s]: the load's, or that of users who wait no longer than the objectives
    /// allow (Little's law: N users who each take a cycle of R + Z seconds send N / (R + Z)). None where neither is known.
    pub fn least_per_s(&self) -> Option<f64> {
        let m = &self.moments;
        m.per_s.or_else(|| Some(m.users? / self.cycle_s()?))
    }

    /// Longest mean cycle of a user that the objectives allow: answer and pause [s]; none where they set no limit on an answer's time, or nobody is such a user.
    pub fn cycle_s(&self) -> Option<f64> {
        // A low quantile may lie below the mean; it bounds nothing here.
        let high = |c: &&Condition| c.limit.quantile.is_none_or(|q| q >= 0.9);
        let lowest = |is: fn(&Metric) -> bool| {
            let limits = (self.conditions.iter().filter(high))
                .filter(|c| is(&c.limit.metric))
                .map(|c| c.limit.limit_ms / 1e3);
            limits.min_by(f64::total_cmp)
        };
        let e2e = lowest(|m| *m == Metric::E2e);
        let ttft = lowest(|m| *m == Metric::Ttft);
        let between = lowest(|m| matches!(m, Metric::Tpot | Metric::Itl));
        let summed = ttft.and_then(|t| Some(t + between? * (self.moments.output - 1.0).max(0.0)));
        let answer = match (e2e, summed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Some(answer? + self.moments.think_s?)
    }

    /// What tells this question from others: its text, its requests, and the version of servetwin.
    pub fn fingerprint(&self) -> String {
        let mut all = format!(
            "{}\n{}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{} {}\n{:?} {} {} {} {:?}\n",
            env!("CARGO_PKG_VERSION"),
            self.base,
            self.axes,
            self.engines,
            self.offers.list,
            self.conditions,
            self.budget,
            self.redundancy.name(),
            self.max_instances,
            self.price_date,
            self.pools_by_prompt,
            self.autoscaled,
            self.disaggregated,
            self.kv_transfer,
        );
        all += if self.measured_only {
            "measured only\n"
        } else {
            ""
        };
        all += &self.requests.fingerprint();
        format!("{:016x}", fnv1a(all.as_bytes()))
    }
}

/// The strings of a value that is one or a list of them.
fn names(v: Value) -> Option<Vec<String>> {
    match v {
        Value::String(s) => Some(vec![s]),
        Value::Array(all) if !all.is_empty() => all
            .into_iter()
            .map(|v| v.as_str().map(str::to_owned))
            .collect(),
        _ => None,
    }
}

fn with_default(mut table: Table, key: &str, value: &str) -> Table {
    table
        .entry(key)
        .or_insert_with(|| Value::String(value.into()));
    table
}

fn stem(origin: &str) -> String {
    let stem = Path::new(origin).file_stem();
    stem.map_or_else(|| "plan".into(), |s| s.to_string_lossy().into_owned())
}

/// Takes the lists out of a section as axes; what is left is the same for all candidates.
fn split(section: &str, table: Table, axes: &mut Vec<Axis>) -> Result<Table, (String, String)> {
    let mut constant = Table::new();
    for (key, value) in table {
        let nested = matches!(&value, Value::Array(a) if a.first().is_some_and(Value::is_array));
        let own_list = LIST_KEYS.contains(&key.as_str()) && !nested;
        match value {
            Value::Array(values) if !own_list => {
                let key = format!("{section}.{key}");
                if values.is_empty() {
                    return Err((key, "the list of alternatives is empty".into()));
                }
                axes.push(Axis { key, values });
            }
            value => {
                constant.insert(key, value);
            }
        }
    }
    Ok(constant)
}

/// A scenario of the question's load with the first alternative of each axis, on hardware that need not serve it.
fn probe(
    world: &World,
    base: &str,
    origin: &str,
    axes: &[Axis],
    price_date: Option<&str>,
) -> Result<Scenario, ScenarioError> {
    let mut overrides = vec![
        "hardware.instance=\"p5.48xlarge\"".to_owned(),
        "engine.kind=\"vllm\"".to_owned(),
    ];
    overrides.extend(price_date.map(|d| format!("hardware.price_date={}", Value::from(d))));
    overrides.extend(
        axes.iter()
            .filter(|a| !a.key.starts_with("layout."))
            .map(|a| format!("{}={}", a.key, a.values[0])),
    );
    world.scenario(base, origin, &overrides)
}

/// An error of a scenario made from the question, at the question's own places.
fn replaced(e: &ScenarioError, document: &Document) -> Error {
    let issues = e
        .issues()
        .iter()
        .map(|i| document.issue(&i.path, i.message.clone()))
        .collect();
    ScenarioError::from_issues(issues).into()
}

/// The engines to try, with the limits of each where the question gives none.
fn engines(
    given: Option<OneOrMany<Table>>,
    moments: &Moments,
) -> Result<Vec<Vec<Axis>>, (String, String)> {
    let of_kind = |kind: &str| with_default(Table::new(), "kind", kind);
    let given = match given {
        Some(all) => all.into_vec(),
        // One for GPUs, one for Inferentia and Trainium.
        None => vec![of_kind("vllm"), of_kind("tgi_neuron")],
    };
    let mut out = Vec::new();
    for mut table in given {
        let kind = table.get("kind").and_then(Value::as_str).map(str::to_owned);
        let Some(kind) = kind else {
            return Err((
                "engine".into(),
                "each alternative has one kind, e.g. kind = \"vllm\"; write [[engine]] for several"
                    .into(),
            ));
        };
        for (key, values) in defaults(&kind, moments.longest) {
            table.entry(key).or_insert_with(|| {
                let values: Vec<Value> = values
                    .iter()
                    .map(|n| Value::Integer(i64::from(*n)))
                    .collect();
                match values.as_slice() {
                    [one] => one.clone(),
                    _ => Value::Array(values),
                }
            });
        }
        if kind == "tgi_neuron" {
            // TGI, and optimum-neuron's plug-in for vLLM.
            let servers = ["tgi", "optimum_vllm"].map(Value::from).to_vec();
            table.entry("server").or_insert(Value::Array(servers));
        }
        let mut axes = Vec::new();
        let constant = split("engine", table, &mut axes)?;
        let mut fixed: Vec<Axis> = constant
            .into_iter()
            .map(|(key, value)| Axis {
                key: format!("engine.{key}"),
                values: vec![value],
            })
            .collect();
        fixed.append(&mut axes);
        out.push(fixed);
    }
    Ok(out)
}

/// Limits to try of an engine whose requests have at most `longest` tokens.
fn defaults(kind: &str, longest: u32) -> BTreeMap<&'static str, Vec<u32>> {
    let longest = longest.max(1024).div_ceil(1024).saturating_mul(1024);
    let seqs = vec![64, 128, 256, 512];
    let tokens = vec![2048, 4096, 8192, 16384];
    match kind {
        "vllm" | "vllm_v1" => BTreeMap::from([
            ("max_model_len", vec![longest]),
            ("max_num_seqs", seqs),
            ("max_num_batched_tokens", tokens),
        ]),
        "trt_llm" => BTreeMap::from([
            ("max_seq_len", vec![longest]),
            ("max_batch_size", seqs),
            ("max_num_tokens", tokens),
        ]),
        "tgi" => BTreeMap::from([
            ("max_input_tokens", vec![longest - 1]),
            ("max_total_tokens", vec![longest]),
            (
                "max_batch_prefill_tokens",
                tokens
                    .into_iter()
                    .filter(|t| *t >= longest)
                    .chain([longest])
                    .collect(),
            ),
            ("max_concurrent_requests", vec![512]),
        ]),
        // The shapes that the model is compiled for; a slot takes a whole request.
        "tgi_neuron" => BTreeMap::from([
            ("sequence_length", vec![longest]),
            ("max_input_tokens", vec![longest - 1]),
            ("batch_size", vec![1, 4, 8, 16, 32]),
            ("max_concurrent_requests", vec![512]),
        ]),
        _ => BTreeMap::new(),
    }
}

/// The catalog's name of the model of a scenario, without reading its file.
pub(super) fn model_name(scenario: &Scenario) -> String {
    match scenario.model.as_ref().map(|m| &m.source) {
        Some(ModelSource::Catalog(name)) => name.clone(),
        Some(ModelSource::Config(path)) => path.display().to_string(),
        None => "the model".into(),
    }
}
