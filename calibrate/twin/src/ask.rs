//! What-ifs: a small language of changes, applied to a recorded window and the deployment that served it.
//!
//! ```text
//! question  = change { "," change }
//! change    = "rate"   factor        the load comes that much faster: "rate x2"
//!           | "prompt" factor        prompts are that much longer
//!           | "output" factor        answers are that much longer
//!           | "replicas" whole       copies behind the router; also "tp", "pp", "ep"
//!           | "instance" name        node type of the catalog: "instance p5.48xlarge"
//!           | "accelerator" name     the smallest node type that has it and enough of it: "accelerator h100-sxm"
//!           | "router" policy        "router least-outstanding"
//!           | "weights" format       "weights fp8"; also "kv_cache"
//!           | engine-key value       any key of the scenario's engine: "max_num_seqs 128"
//! factor    = "x" number | number "x"
//! ```
//!
//! Words may be joined by `=` in place of a blank. Everything else of the deployment stays as the scenario has it.

use std::path::Path;

use std::fmt::Write as _;

use hwmodels::accelerator::Accelerator;
use hwmodels::catalog::Catalog;
use hwmodels::error::nearest;
use serde::Serialize;
use sim::record::RecordError;
use sim::scenario::{Scenario, ScenarioError};

use super::compare::compare;
use super::replay::{Change, ReplayError, load_deployment, profile_file, replay};
use super::window::Window;

/// Words that are no engine's keys.
const WORDS: [&str; 12] = [
    "rate",
    "prompt",
    "output",
    "replicas",
    "tp",
    "pp",
    "ep",
    "instance",
    "accelerator",
    "router",
    "weights",
    "kv_cache",
];

/// Factors lie between this and its inverse [ratio].
const LEAST_FACTOR: f64 = 0.01;

/// A question, read but not yet applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// As asked.
    pub text: String,
    /// Changes of the load.
    pub change: Change,
    /// Changes of the deployment, as scenario overrides.
    pub overrides: Vec<String>,
    /// A node type.
    pub instance: Option<String>,
    /// An accelerator to find a node type for.
    pub accelerator: Option<String>,
}

/// Why a question cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// A change that cannot be read.
    #[error("`{change}`: {problem}")]
    Change {
        /// The change.
        change: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The deployment with the changes cannot be.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The window cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The window's rows contradict each other.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// One figure, as it is and as it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerRow {
    /// What it is, e.g. `ttft_p50`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Measured in the window.
    pub measured: Option<f64>,
    /// Predicted for the window as it was.
    pub now: Option<f64>,
    /// now / measured - 1: how far to trust the next column [ratio].
    pub error_ratio: Option<f64>,
    /// Predicted with the changes.
    pub what_if: Option<f64>,
    /// what_if / now - 1 [ratio].
    pub change_ratio: Option<f64>,
}

/// A window as it was, and as it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The question.
    pub question: String,
    /// The deployment as it is, in words.
    pub deployment: String,
    /// ... and with the changes.
    pub changed_deployment: String,
    /// Requests of the compared part.
    pub requests: u64,
    /// Of those that were answered in full, requests that the changed deployment refuses or does not finish.
    pub lost: u64,
    /// The figures.
    pub figures: Vec<AnswerRow>,
    /// Price as it is [USD/h], where known.
    pub usd_per_hour: Option<f64>,
    /// ... and with the changes.
    pub changed_usd_per_hour: Option<f64>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

impl Answer {
    /// Answers `question` about `window` on the deployment of the scenario file at `path` with `set` overrides.
    ///
    /// # Errors
    /// When either deployment cannot be, or the window holds nothing to replay.
    pub fn of(
        question: &Question,
        window: &Window,
        path: &Path,
        set: &[String],
    ) -> Result<Answer, AskError> {
        let base = replay(window, &load_deployment(path, set)?, &Change::default())?;
        let (scenario, mut notes) = question.deployment(path, set)?;
        let changed = replay(window, &scenario, &question.change)?;
        let (now, then) = (compare(window, &base)?, compare(window, &changed)?);
        let figures = now
            .figures
            .iter()
            .map(|f| {
                let what_if = then.figure(&f.name).and_then(|t| t.predicted);
                let change = f.predicted.filter(|p| *p > 0.0).zip(what_if);
                AnswerRow {
                    name: f.name.clone(),
                    unit: f.unit.clone(),
                    measured: f.measured,
                    now: f.predicted,
                    error_ratio: f.error_ratio,
                    what_if,
                    change_ratio: change.map(|(now, then)| then / now - 1.0),
                }
            })
            .collect();
        if question.change.rate != 1.0 {
            let seconds = window.seconds() / question.change.rate;
            notes.push(format!(
                "the window's requests come within {seconds:.0} s; what builds up for longer is not seen"
            ));
        }
        notes.extend(then.notes.iter().cloned());
        Ok(Answer {
            question: question.text.clone(),
            deployment: base.record.info.deployment.clone(),
            changed_deployment: changed.record.info.deployment.clone(),
            requests: now.requests,
            lost: now.compared.saturating_sub(then.compared),
            figures,
            usd_per_hour: base.record.info.usd_per_hour,
            changed_usd_per_hour: changed.record.info.usd_per_hour,
            notes,
        })
    }

    /// As a table for people.
    pub fn render(&self) -> String {
        let number = |v: Option<f64>| match v.filter(|v| v.is_finite()) {
            None => "-".to_owned(),
            Some(v) if v.abs() >= 1000.0 => format!("{v:.0}"),
            Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
            Some(v) => format!("{v:.3}"),
        };
        let percent = |v: Option<f64>| {
            v.filter(|v| v.is_finite())
                .map_or("-".to_owned(), |v| format!("{:+.1} %", v * 100.0))
        };
        let mut out = format!("{}\n", self.question);
        let _ = writeln!(out, "now:     {}", self.deployment);
        let _ = writeln!(out, "what if: {}", self.changed_deployment);
        let _ = writeln!(
            out,
            "{:<22} {:>11} {:>11} {:>9} {:>11} {:>9}",
            "figure", "measured", "now", "error", "what if", "change"
        );
        for f in &self.figures {
            let name = match f.unit.as_str() {
                "" => f.name.clone(),
                unit => format!("{} [{unit}]", f.name),
            };
            let _ = writeln!(
                out,
                "{name:<22} {:>11} {:>11} {:>9} {:>11} {:>9}",
                number(f.measured),
                number(f.now),
                percent(f.error_ratio),
                number(f.what_if),
                percent(f.change_ratio),
            );
        }
        if let (Some(now), Some(then)) = (self.usd_per_hour, self.changed_usd_per_hour) {
            let _ = writeln!(out, "price [USD/h]          {now:>23.2} {then:>21.2}");
        }
        if self.lost > 0 {
            let _ = writeln!(
                out,
                "{} of the window's requests would be refused or not finish",
                self.lost
            );
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }
}

impl Question {
    /// Reads a question about a deployment whose engine has the keys `engine_keys`.
    ///
    /// # Errors
    /// The first change that is not understood, with the nearest word that would be.
    pub fn parse(text: &str, engine_keys: &[String]) -> Result<Question, AskError> {
        let mut question = Question {
            text: text.trim().to_owned(),
            change: Change::default(),
            overrides: Vec::new(),
            instance: None,
            accelerator: None,
        };
        for change in text.split(',').map(str::trim) {
            question
                .add(change, engine_keys)
                .map_err(|problem| AskError::Change {
                    change: change.to_owned(),
                    problem,
                })?;
        }
        Ok(question)
    }

    fn add(&mut self, change: &str, engine_keys: &[String]) -> Result<(), String> {
        let (word, value) = change
            .split_once(['=', ' ', '\t'])
            .map(|(w, v)| (w.trim(), v.trim().trim_start_matches('=').trim()))
            .unwrap_or((change, ""));
        if word.is_empty() {
            return Err("is empty; write e.g. rate x2, replicas 3".into());
        }
        let key = word.to_lowercase().replace('-', "_");
        let known = WORDS.contains(&key.as_str()) || engine_keys.contains(&key);
        if !known {
            return Err(unknown_word(word, engine_keys));
        }
        if value.is_empty() {
            return Err(format!("has no value; write e.g. {}", example(&key)));
        }
        match key.as_str() {
            "rate" => self.change.rate *= factor(&key, value)?,
            "prompt" => self.change.prompt *= factor(&key, value)?,
            "output" => self.change.output *= factor(&key, value)?,
            "replicas" | "tp" | "pp" | "ep" => {
                let n: u32 = value.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                    format!("`{value}` is no whole number above zero; write e.g. {key} 2")
                })?;
                self.set("layout", &key, &n.to_string());
            }
            "instance" => self.instance = Some(value.to_owned()),
            "accelerator" => self.accelerator = Some(value.to_owned()),
            "router" => {
                let policy = value.to_lowercase().replace('-', "_");
                self.set("router", "policy", &quoted(&policy));
            }
            "weights" | "kv_cache" => self.set("model", &key, &quoted(value)),
            _ => self.set("engine", &key, value),
        }
        Ok(())
    }

    fn set(&mut self, table: &str, key: &str, value: &str) {
        self.overrides.push(format!("{table}.{key}={value}"));
    }

    /// The deployment of the scenario file at `path` with `base` overrides and the question's changes; what the
    /// reader must know about it comes beside.
    ///
    /// # Errors
    /// When the deployment cannot be so, or no node type has the accelerator.
    pub fn deployment(
        &self,
        path: &Path,
        base: &[String],
    ) -> Result<(Scenario, Vec<String>), AskError> {
        let before = load_deployment(path, base)?;
        let mut set = base.to_vec();
        set.extend(self.overrides.iter().cloned());
        let mut notes = Vec::new();
        let Some(instance) = self.wanted_node(&before, path, &set, &mut notes)? else {
            return Ok((load_deployment(path, &set)?, notes));
        };
        let fail = |problem: &str| AskError::Change {
            change: format!("instance {instance}"),
            problem: problem.to_owned(),
        };
        if before.step.is_some() {
            return Err(fail("the scenario's [step] times know no hardware"));
        }
        if before.model.is_none() {
            return Err(fail(
                "the scenario has no [model], without which no other hardware can be predicted; add its name",
            ));
        }
        let profile = profile_file(&before);
        if before.fitted.is_some() {
            // The endpoint's own step times say nothing about other hardware: the catalog's models take their place.
            set.push(format!("hardware={{instance={}}}", quoted(&instance)));
        } else {
            set.push(format!("hardware.instance={}", quoted(&instance)));
            if profile.is_some() {
                set.push("hardware.profile=auto".into());
            }
        }
        let mut scenario = load_deployment(path, &set)?;
        if let Some(hardware) = &mut scenario.hardware {
            // They were those of the hardware before.
            (hardware.price, hardware.price_date) = (None, None);
            if profile.is_some() {
                hardware.params.clear();
            }
        }
        if let Some(profile) = profile {
            notes.push(format!(
                "{} was measured on this deployment and does not hold for {instance}: the built-in models predict \
                 \"what if\", so its change against \"now\" also holds their error",
                profile.display()
            ));
        }
        Ok((scenario, notes))
    }

    /// The node type that is asked for, if one is.
    fn wanted_node(
        &self,
        before: &Scenario,
        path: &Path,
        set: &[String],
        notes: &mut Vec<String>,
    ) -> Result<Option<String>, AskError> {
        let Some(wanted) = &self.accelerator else {
            return Ok(self.instance.clone());
        };
        let fail = |problem: String| AskError::Change {
            change: format!("accelerator {wanted}"),
            problem,
        };
        let own = before.hardware.as_ref().and_then(|h| h.catalog.as_ref());
        let catalog = match own {
            Some(dir) => Catalog::with_dir(&*before.files, &before.base.join(dir))
                .map_err(|e| fail(e.to_string()))?,
            None => Catalog::builtin(),
        };
        let name = accelerator(&catalog, wanted).map_err(fail)?;
        let devices = load_deployment(path, set)?.layout.devices();
        let node = smallest_node(&catalog, &name, devices).map_err(fail)?;
        notes.push(format!("{name}: taken as {node}"));
        Ok(Some(node))
    }
}

/// The keys of the engine that `scenario` has.
pub fn engine_keys(scenario: &Scenario) -> Vec<String> {
    let kind = scenario.engine.params.kind().name();
    let schema = sim::scenario::schema::schema();
    let engines = schema["properties"]["engine"]["oneOf"].as_array();
    engines
        .into_iter()
        .flatten()
        .filter(|e| sim::scenario::schema::kind_of(e) == Some(kind))
        .filter_map(|e| e["properties"].as_object())
        .flat_map(|p| p.keys().cloned())
        .filter(|k| k != "kind")
        .collect()
}

fn unknown_word(word: &str, engine_keys: &[String]) -> String {
    let all = || {
        WORDS
            .into_iter()
            .chain(engine_keys.iter().map(String::as_str))
    };
    match nearest(word, all()) {
        Some(meant) => format!("unknown word `{word}`; did you mean `{}`?", example(&meant)),
        None => format!(
            "unknown word `{word}`; known: {}, and the engine's keys: {}",
            WORDS.join(", "),
            engine_keys.join(", ")
        ),
    }
}

fn example(key: &str) -> String {
    let value = match key {
        "rate" => "x2",
        "prompt" => "x1.5",
        "output" => "x0.5",
        "instance" => "p5.48xlarge",
        "accelerator" => "h100-sxm",
        "router" => "least-outstanding",
        "weights" | "kv_cache" => "fp8",
        "replicas" => "3",
        "tp" | "pp" | "ep" => "2",
        _ => "VALUE",
    };
    format!("{key} {value}")
}

fn factor(key: &str, value: &str) -> Result<f64, String> {
    let lower = value.to_lowercase();
    let number = lower
        .strip_prefix(['x', '*'])
        .or_else(|| lower.strip_suffix('x'))
        .ok_or_else(|| format!("`{value}` is no factor; write e.g. {}", example(key)))?;
    let range = LEAST_FACTOR..=1.0 / LEAST_FACTOR;
    number
        .trim()
        .parse()
        .ok()
        .filter(|f| range.contains(f))
        .ok_or_else(|| {
            format!(
                "`{value}` is no factor from x0.01 to x100; write e.g. {}",
                example(key)
            )
        })
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Letters and digits only, in lower case: `h100-sxm` and `H100-SXM5-80GB` begin alike.
fn plain(name: &str) -> String {
    let keep = |c: &char| c.is_ascii_alphanumeric();
    name.to_lowercase().chars().filter(keep).collect()
}

/// The accelerator of the catalog that `wanted` means: its name, an alias, or the only one that begins so.
fn accelerator(catalog: &Catalog, wanted: &str) -> Result<String, String> {
    if let Ok(exact) = catalog.accelerator(wanted) {
        return Ok(exact.name.clone());
    }
    let names: Vec<&str> = catalog
        .accelerators()
        .map(|a: &Accelerator| a.name.as_str())
        .collect();
    let begins: Vec<&str> = names
        .iter()
        .copied()
        .filter(|n| plain(n).starts_with(&plain(wanted)))
        .collect();
    match begins.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(match nearest(wanted, names.iter().copied()) {
            Some(meant) => format!("unknown accelerator; did you mean `{meant}`?"),
            None => format!("unknown accelerator; known: {}", names.join(", ")),
        }),
        several => Err(format!("could be {}; say which", several.join(" or "))),
    }
}

/// The node type with the fewest devices that holds `devices` of `accelerator`, else the largest there is.
fn smallest_node(catalog: &Catalog, accelerator: &str, devices: u32) -> Result<String, String> {
    let mut nodes: Vec<(u32, &str)> = catalog
        .instances()
        .filter(|i| i.accelerator == accelerator)
        .map(|i| (i.devices, i.name.as_str()))
        .collect();
    nodes.sort_unstable();
    nodes
        .iter()
        .find(|(n, _)| *n >= devices)
        .or(nodes.last())
        .map(|(_, name)| (*name).to_owned())
        .ok_or_else(|| format!("the catalog has no node type with {accelerator}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<String> {
        ["max_num_seqs", "max_num_batched_tokens", "kv_blocks"]
            .map(String::from)
            .to_vec()
    }

    fn ask(text: &str) -> Question {
        Question::parse(text, &keys()).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn refused(text: &str, words: &[&str]) {
        let error = Question::parse(text, &keys()).expect_err(text).to_string();
        for word in words {
            assert!(error.contains(word), "{text}: `{word}` not in: {error}");
        }
    }

    #[test]
    fn changes_combine() {
        let q = ask(
            "rate x2, replicas 3, prompt x1.5,output=0.5x, max_num_seqs 128, router least-outstanding",
        );
        assert_eq!(
            q.change,
            Change {
                rate: 2.0,
                prompt: 1.5,
                output: 0.5,
                step_time: 1.0
            }
        );
        assert_eq!(
            q.overrides,
            [
                "layout.replicas=3",
                "engine.max_num_seqs=128",
                "router.policy=\"least_outstanding\""
            ]
        );
        assert_eq!(ask("rate x2, rate x2").change.rate, 4.0);
        let q = ask("instance p5.48xlarge, tp 2, weights fp8");
        assert_eq!(q.overrides, ["layout.tp=2", "model.weights=\"fp8\""]);
        assert_eq!(q.instance.as_deref(), Some("p5.48xlarge"));
        assert_eq!(
            ask("accelerator h100-sxm").accelerator.as_deref(),
            Some("h100-sxm")
        );
    }

    #[test]
    fn bad_words_are_refused_with_the_nearest_valid_one() {
        refused("rates x2", &["rates", "`rate x2`"]);
        refused("replica 3", &["`replicas 3`"]);
        refused("max_num_seq 3", &["max_num_seqs"]);
        refused(
            "zzz 3",
            &["unknown word `zzz`", "rate, prompt", "max_num_seqs"],
        );
        refused("rate 2", &["no factor", "rate x2"]);
        refused("rate x0", &["x0.01 to x100"]);
        refused("rate xNaN", &["no factor"]);
        refused("replicas 0", &["above zero"]);
        refused("tp two", &["whole number"]);
        refused("rate x2,, tp 2", &["is empty"]);
        refused("", &["is empty"]);
        refused("router", &["no value", "least-outstanding"]);
    }

    #[test]
    fn accelerators_are_found_by_the_beginning_of_their_names() {
        let catalog = Catalog::builtin();
        let name = accelerator(&catalog, "h100-sxm").expect("there is one");
        assert!(name.starts_with("H100-SXM"), "{name}");
        let node = smallest_node(&catalog, &name, 8).expect("there is one");
        let instance = catalog.instance(&node).expect("it is in the catalog");
        assert!(instance.devices >= 8 && instance.accelerator == name);
        assert!(
            accelerator(&catalog, "h100-smx")
                .expect_err("misspelt")
                .contains("did you mean")
        );
    }
}
