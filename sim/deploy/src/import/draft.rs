//! The scenario that grows as files are read: what each says, where, and what none says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sim::policy::sglang::SglangRelease;
use toml::Value;

use crate::place::{Error, Fault, Place, shown};
use crate::report::{Default as Assumed, Fate, Report};

/// Where a value comes from: a key of a file, or an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// File and line.
    pub place: Place,
    /// The key as it is written.
    pub key: String,
    /// The value as it is written.
    pub raw: String,
}

impl Origin {
    /// A key and its value.
    pub fn new(place: Place, key: impl Into<String>, raw: impl Into<String>) -> Origin {
        Origin {
            place,
            key: key.into(),
            raw: raw.into(),
        }
    }

    /// What is wrong with the value.
    pub fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.place.clone(), self.key.clone(), message)
    }
}

/// A value with its origin, or with the reason why it was assumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    value: Value,
    origin: Result<Origin, String>,
}

/// A `[[pool]]`: its keys, deeper ones with dots.
#[derive(Clone, Debug, PartialEq)]
struct PoolKeys {
    /// What it comes from.
    from: Origin,
    values: BTreeMap<String, Said>,
}

/// A stream of requests: its keys, the deeper ones as tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Keys of `[[workload]]`.
    pub keys: toml::Table,
    /// What it comes from, for a comment.
    pub from: String,
}

/// An autoscaler as files say it, until the scenario around it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scaler {
    /// `hpa` or `keda`.
    pub section: &'static str,
    /// Keys of that section, with their values.
    pub keys: Vec<(&'static str, Value, Origin)>,
    /// Every value that was read.
    pub leaves: Vec<Origin>,
}

/// What files say that is only of use together with other files.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The model as the engine is told of it.
    pub model: Option<(String, Origin)>,
    /// A Hugging Face `config.json`, by the name that the scenario gives it.
    pub config: Option<(String, Origin)>,
    /// What multiplies to the number of replicas.
    pub replicas: Vec<(i64, Origin)>,
    /// The autoscaler.
    pub scaler: Option<Scaler>,
    /// The fewest replicas that an autoscaler leaves.
    pub least_replicas: Option<(i64, Origin)>,
    /// Replicas by the number of servers behind a proxy.
    pub servers: Option<(i64, Origin)>,
    /// Devices that a pod or container asks for.
    pub pod_devices: Option<(i64, Origin)>,
    /// Pods of one replica (LeaderWorkerSet).
    pub group_size: Option<(i64, Origin)>,
    /// The accelerator's product name, e.g. `NVIDIA-A10G`.
    pub product: Option<(String, Origin)>,
    /// vLLM's release, 15 for 0.15, as a script installs it.
    pub vllm_release: Option<(u32, Origin)>,
    /// SGLang's release, as a script installs it.
    pub sglang_release: Option<(SglangRelease, Origin)>,
    /// Data-parallel ranks.
    pub data_parallel: Option<(i64, Origin)>,
    /// Whether those are copies that have nothing in common (SGLang without --enable-dp-attention).
    pub copies: bool,
    /// Whether prefill and decode are apart, before either side is read.
    pub is_apart: bool,
    /// The replicas that prefill, where the others decode alone.
    pub prefill: Option<Side>,
    /// Whether every GPU is an attention rank of its own (TensorRT-LLM).
    pub attention_dp: Option<Origin>,
    /// Whether experts are spread whole over the ranks.
    pub expert_parallel: Option<Origin>,
    /// What the engine was told of prefill and decode apart.
    pub mode: Option<(Mode, Origin)>,
    /// Pods or machines that hold one replica, as the engine was told (`--nnodes`).
    pub machines: Option<(i64, Origin)>,
    /// Whether replicas are groups of pods (LeaderWorkerSet), and no pods.
    pub is_grouped: bool,
    /// Devices of a replica in pods beside those of its engine, and how many pods that is (Ray's workers).
    pub more_devices: i64,
    /// As above.
    pub more_pods: i64,
    /// Whether this is a further machine of a replica whose first one stands elsewhere (`--node-rank 1`).
    pub is_further: bool,
    /// Whether the engine takes all devices of its pod, where it is not told how many.
    pub fills_pod: bool,
    /// Keys of `[cluster.pod]` that the workload says.
    pub pod: Vec<(&'static str, Value, Origin)>,
    /// Files of ConfigMaps, which a container may read: key is their name.
    pub mounted: Vec<Origin>,
    /// Variables that the platform gives to every container.
    pub given: Vec<(String, String)>,
    /// The machines that a pool of nodes may have, where the workload says none: label, values.
    pub node_pool: Option<(String, Vec<String>, Origin)>,
}

/// What an engine was told of prefill and decode apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It prefills alone.
    Prefill,
    /// It decodes alone.
    Decode,
    /// It has a connector, and does either.
    Either,
}

/// What is one side's own where prefill and decode are apart: keys of `[layout]` and `[engine]`, and what settles them.
#[derive(Clone, Debug, Default)]
pub struct Side {
    values: BTreeMap<String, Said>,
    replicas: Vec<(i64, Origin)>,
    pod_devices: Option<(i64, Origin)>,
    group_size: Option<(i64, Origin)>,
    machines: Option<(i64, Origin)>,
    data_parallel: Option<(i64, Origin)>,
    expert_parallel: Option<Origin>,
}

impl Side {
    /// Its keys of a section, without the section's name.
    pub fn section(&self, name: &str) -> BTreeMap<String, Value> {
        let own = |path: &str| Some(path.strip_prefix(name)?.strip_prefix('.')?.to_owned());
        let pairs = self.values.iter();
        pairs
            .filter_map(|(path, said)| Some((own(path)?, said.value.clone())))
            .collect()
    }

    /// Drops every key but those that start with `start` and that `is_kept` says.
    pub fn keep(&mut self, start: &str, is_kept: impl Fn(&str) -> bool) {
        self.values
            .retain(|path, _| path.starts_with(start) && is_kept(path));
    }

    /// Where one of its keys was said.
    pub fn origin(&self) -> Option<&Origin> {
        self.values.values().find_map(|s| s.origin.as_ref().ok())
    }
}

/// The scenario as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    values: BTreeMap<String, Said>,
    streams: Vec<Stream>,
    pools: Vec<PoolKeys>,
    /// What needs other files.
    pub facts: Facts,
    /// What became of the keys.
    pub report: Report,
    faults: Vec<Fault>,
    /// Defaults that hold unless a file says otherwise.
    later: Vec<(String, Value, String)>,
    /// Keys that were reported: file, line, key.
    seen: BTreeSet<Seen>,
    /// As above, with what became of them.
    told: BTreeSet<(Seen, Fate, String)>,
}

/// A key that was reported: file, line, key.
type Seen = (String, u32, String);

impl Draft {
    /// A key of the scenario as a file says it.
    pub fn set(&mut self, path: &str, value: impl Into<Value>, origin: &Origin) {
        let value = value.into();
        if let Some(Said {
            value: other,
            origin: Ok(from),
        }) = self.values.get(path)
            && *other != value
        {
            let message = format!(
                "says {path} = {value}, but {} ({}) says {other}; import one deployment at a time",
                from.place,
                shown(&from.key)
            );
            self.faults.push(origin.fault(message));
            return;
        }
        self.used(origin, format!("{path} = {}", shown(&value.to_string())));
        let said = Said {
            value,
            origin: Ok(origin.clone()),
        };
        self.values.insert(path.to_owned(), said);
    }

    /// A key of the scenario that no file says.
    pub fn assume(&mut self, path: &str, value: impl Into<Value>, why: &str) {
        if self.values.contains_key(path) {
            return;
        }
        let value = value.into();
        let assumed = Assumed {
            key: path.to_owned(),
            value: value.to_string(),
            note: why.to_owned(),
        };
        // Both sides of a deployment may take the same.
        if !self.report.defaults.contains(&assumed) {
            self.report.defaults.push(assumed);
        }
        let said = Said {
            value,
            origin: Err(why.to_owned()),
        };
        self.values.insert(path.to_owned(), said);
    }

    /// The value of a key.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.values.get(path).map(|s| &s.value)
    }

    /// The value of a key that is a whole number, or another.
    pub fn whole(&self, path: &str, otherwise: i64) -> i64 {
        self.get(path)
            .and_then(Value::as_integer)
            .unwrap_or(otherwise)
    }

    /// Whether there is a key that starts so.
    pub fn has_section(&self, name: &str) -> bool {
        let start = format!("{name}.");
        self.values.keys().any(|k| k.starts_with(&start))
    }

    /// Takes a key away, with where it was said.
    pub fn take(&mut self, path: &str) -> Option<(Value, Option<Origin>)> {
        self.values.remove(path).map(|s| (s.value, s.origin.ok()))
    }

    /// The keys that start so.
    pub fn keys(&self, start: &str) -> Vec<String> {
        let all = self.values.keys().filter(|k| k.starts_with(start));
        all.cloned().collect()
    }

    /// A key as it was said.
    pub fn said(&self, path: &str) -> Option<Said> {
        self.values.get(path).cloned()
    }

    /// A key as another draft said it, where this one has none.
    pub fn say(&mut self, path: &str, said: Said) {
        self.values.entry(path.to_owned()).or_insert(said);
    }

    /// Takes all keys away.
    pub fn take_all(&mut self) -> BTreeMap<String, Said> {
        std::mem::take(&mut self.values)
    }

    /// Adds what was reported to the draft of the pool `name`, what is wrong there, and its streams.
    pub fn absorb(&mut self, name: &str, other: &mut Draft) {
        for key in std::mem::take(&mut other.report.keys) {
            let seen = (key.file.clone(), key.line, key.key.clone());
            if (self.told).insert((seen.clone(), key.fate, key.note.clone())) {
                self.seen.insert(seen);
                self.report.keys.push(key);
            }
        }
        for text in std::mem::take(&mut other.report.warnings) {
            if !self.report.warnings.contains(&text) {
                self.report.warnings.push(text);
            }
        }
        for mut default in std::mem::take(&mut other.report.defaults) {
            if !self.values.contains_key(&default.key) {
                default.key = format!("{} of pool {name}", default.key);
            }
            if !self.report.defaults.contains(&default) {
                self.report.defaults.push(default);
            }
        }
        self.faults.append(&mut other.faults);
        self.streams.append(&mut other.streams);
    }

    /// A `[[pool]]` called `name`.
    pub fn pool(&mut self, name: &str, from: &Origin, mut values: BTreeMap<String, Said>) {
        let said = Said {
            value: name.into(),
            origin: Ok(from.clone()),
        };
        values.insert("name".to_owned(), said);
        self.pools.push(PoolKeys {
            from: from.clone(),
            values,
        });
    }

    /// A key of pool `i`, with its origin or why it was assumed.
    pub fn set_in_pool(
        &mut self,
        i: usize,
        path: &str,
        value: Value,
        origin: Result<Origin, String>,
    ) {
        if let Err(why) = &origin {
            let name = self.pool_name(i);
            self.report.defaults.push(Assumed {
                key: format!("{path} of pool {name}"),
                value: value.to_string(),
                note: why.clone(),
            });
        }
        let said = Said { value, origin };
        self.pools[i].values.insert(path.to_owned(), said);
    }

    /// Name of pool `i`.
    pub fn pool_name(&self, i: usize) -> String {
        let said = self.pools.get(i).and_then(|p| p.values.get("name"));
        said.and_then(|s| s.value.as_str()).unwrap_or("").to_owned()
    }

    /// A stream of requests.
    pub fn stream(&mut self, stream: Stream) {
        self.streams.push(stream);
    }

    /// The streams so far.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Changes places with another side: what is said from here on is its own.
    pub fn swap(&mut self, side: &mut Side) {
        let own = |path: &String| path.starts_with("layout.") || path.starts_with("engine.");
        let (mine, rest) = std::mem::take(&mut self.values)
            .into_iter()
            .partition(|(path, _)| own(path));
        self.values = rest;
        self.values
            .extend(std::mem::replace(&mut side.values, mine));
        let facts = &mut self.facts;
        std::mem::swap(&mut facts.replicas, &mut side.replicas);
        std::mem::swap(&mut facts.pod_devices, &mut side.pod_devices);
        std::mem::swap(&mut facts.group_size, &mut side.group_size);
        std::mem::swap(&mut facts.machines, &mut side.machines);
        std::mem::swap(&mut facts.data_parallel, &mut side.data_parallel);
        std::mem::swap(&mut facts.expert_parallel, &mut side.expert_parallel);
    }

    /// Imports with `read` what prefills alone.
    pub fn prefill<T>(&mut self, read: impl FnOnce(&mut Draft) -> T) -> T {
        let mut side = self.facts.prefill.take().unwrap_or_default();
        self.swap(&mut side);
        let others = std::mem::take(&mut self.later);
        let out = read(self);
        // What holds unless a file says otherwise is this side's own too.
        self.settle();
        self.later = others;
        self.swap(&mut side);
        self.facts.prefill = Some(side);
        out
    }

    /// Reports a key that was used.
    pub fn used(&mut self, origin: &Origin, note: impl Into<String>) {
        self.fate(origin, Fate::Used, note);
    }

    /// A default that holds unless a file, maybe a later one, says otherwise.
    pub fn later(&mut self, path: &str, value: Value, why: &str) {
        self.later.push((path.to_owned(), value, why.to_owned()));
    }

    /// Fills in what [`Draft::later`] was told and no file has said; `kind` is the engine's.
    pub fn settle(&mut self) {
        for (path, value, why) in std::mem::take(&mut self.later) {
            self.assume(&path, value, &why);
        }
    }

    /// The model as a file names it to its engine.
    pub fn model(&mut self, id: String, origin: Origin) {
        match self.facts.model.clone() {
            Some((other, from)) if other != id => {
                let message = format!(
                    "serves `{}`, but {} ({}) serves `{}`; import one deployment at a time",
                    shown(&id),
                    from.place,
                    shown(&from.key),
                    shown(&other)
                );
                self.faults.push(origin.fault(message));
            }
            Some(_) => self.used(&origin, "the same model"),
            None => self.facts.model = Some((id, origin)),
        }
    }

    /// Whether the key of this file and line was reported.
    pub fn has_seen(&self, origin: &Origin) -> bool {
        let place = &origin.place;
        (self.seen).contains(&(place.file.to_string(), place.line, origin.key.clone()))
    }

    /// Takes a key for reported, since its fate is told later.
    pub fn later_told(&mut self, origin: &Origin) {
        let place = &origin.place;
        (self.seen).insert((place.file.to_string(), place.line, origin.key.clone()));
    }

    /// Reports a key.
    pub fn fate(&mut self, origin: &Origin, fate: Fate, note: impl Into<String>) {
        let (place, note) = (&origin.place, note.into());
        let key = (place.file.to_string(), place.line, origin.key.clone());
        // What several services or documents share is reported once.
        if !self.told.insert((key.clone(), fate, note.clone())) {
            return;
        }
        self.seen.insert(key);
        (self.report).add(&origin.place, &origin.key, &origin.raw, fate, note);
    }

    /// Something that is wrong; the import goes on to find the rest and fails then.
    pub fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Whether something is wrong so far.
    pub fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Something that does not fit together.
    pub fn warn(&mut self, text: impl Into<String>) {
        self.report.warnings.push(text.into());
    }

    /// All that is wrong, if anything is.
    pub fn into_error(self) -> Option<Error> {
        (!self.faults.is_empty()).then_some(Error {
            faults: self.faults,
        })
    }

    /// Where a key was said, for a complaint about it; the nearest key around it otherwise.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        let of_pool = path.strip_prefix("pool[").and_then(|rest| {
            let (i, own) = rest.split_once(']')?;
            let pool = self.pools.get(i.parse::<usize>().ok()?)?;
            Some((pool, own.trim_start_matches('.')))
        });
        let (values, mut path) = match of_pool {
            Some((pool, own)) => (&pool.values, own),
            None => (&self.values, path),
        };
        loop {
            if let Some(Said {
                origin: Ok(origin), ..
            }) = values.get(path)
            {
                return Some(origin);
            }
            let Some((around, _)) = path.rsplit_once('.') else {
                return of_pool.map(|(pool, _)| &pool.from);
            };
            path = around;
        }
    }

    /// The scenario as TOML, each value with where it comes from.
    pub fn text(&self, heading: &[String]) -> String {
        let mut out = String::new();
        for line in heading {
            let _ = writeln!(out, "# {}", crate::place::printable(line));
        }
        let known = [
            "", "model", "hardware", "step", "layout", "engine", "router",
        ];
        let last = ["run", "slo"];
        let mut sections: BTreeMap<&str, Vec<(&str, &Said)>> = BTreeMap::new();
        for (path, said) in &self.values {
            let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
            sections.entry(section).or_default().push((key, said));
        }
        let others: Vec<&str> = sections
            .keys()
            .copied()
            .filter(|s| !known.contains(s) && !last.contains(s))
            .collect();
        for name in known.into_iter().chain(others) {
            section(&mut out, name, sections.get(name));
        }
        for pool in &self.pools {
            let kind = &pool.from.key;
            let _ = writeln!(out, "\n[[pool]]  # {} {}", pool.from.place, shown(kind));
            let keys: Vec<(&str, &Said)> =
                pool.values.iter().map(|(k, s)| (k.as_str(), s)).collect();
            lines(&mut out, keys);
        }
        for stream in &self.streams {
            let _ = writeln!(
                out,
                "\n[[workload]]  # {}",
                crate::place::printable(&stream.from)
            );
            for (key, value) in &stream.keys {
                let _ = writeln!(out, "{key} = {value}");
            }
        }
        for name in last {
            section(&mut out, name, sections.get(name));
        }
        out
    }
}

fn section(out: &mut String, name: &str, keys: Option<&Vec<(&str, &Said)>>) {
    let Some(keys) = keys else { return };
    if !name.is_empty() {
        let _ = writeln!(out, "\n[{name}]");
    }
    lines(out, keys.clone());
}

/// The keys of a table with where each comes from.
fn lines(out: &mut String, mut keys: Vec<(&str, &Said)>) {
    // What a table is comes first: kind, name.
    let first = |key: &str| !matches!(key, "kind" | "name");
    keys.sort_by_key(|(key, _)| (first(key), *key));
    for (key, said) in keys {
        let from = match &said.origin {
            Ok(origin) => format!("{} {}", origin.place, shown(&origin.key)),
            Err(why) => format!("default: {}", crate::place::printable(why)),
        };
        let _ = writeln!(out, "{key} = {}  # {}", said.value, from.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(line: u32, key: &str) -> Origin {
        Origin::new(
            Place {
                file: "a\nb.sh".into(),
                line,
            },
            key,
            "x",
        )
    }

    #[test]
    fn the_text_is_toml_and_says_where_values_come_from() {
        let mut draft = Draft::default();
        draft.set("engine.max_num_seqs", 8, &origin(3, "--max-num-seqs"));
        draft.set("engine.kind", "vllm_v1", &origin(1, "vllm serve"));
        draft.assume("run.requests", 10, "why");
        let text = draft.text(&["one\ntwo".into()]);
        let expected = "# one two\n\n[engine]\nkind = \"vllm_v1\"  # a b.sh:1 vllm serve\nmax_num_seqs = 8  # a b.sh:3 --max-num-seqs\n\n[run]\nrequests = 10  # default: why\n";
        assert_eq!(text, expected);
        assert!(text.parse::<toml::Table>().is_ok());
    }

    #[test]
    fn files_that_contradict_each_other_are_refused() {
        let mut draft = Draft::default();
        draft.set("layout.tp", 2, &origin(1, "a"));
        draft.set("layout.tp", 2, &origin(2, "b"));
        assert!(!draft.has_faults());
        draft.set("layout.tp", 4, &origin(3, "c"));
        let error = draft.into_error().unwrap().to_string();
        assert!(
            error.contains("layout.tp = 4") && error.contains(":2"),
            "{error}"
        );
    }
}
