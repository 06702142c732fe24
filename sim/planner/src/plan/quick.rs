//! A question from a few words: model, rate, lengths and objectives.

use hwmodels::units::{PerSec, UnitError};
use toml::{Table, Value};

use crate::Error;

/// What a question needs at least.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quick {
    /// Name in the catalog.
    pub model: String,
    /// Rate of Poisson arrivals, e.g. `40 req/s`.
    pub rate: String,
    /// Prompt length as a scenario writes it: a number of tokens, or a distribution `{ kind = ... }`.
    pub prompt: String,
    /// Output length, likewise.
    pub output: String,
    /// Objectives.
    pub slo: Vec<String>,
    /// Instance types; empty: all of the catalog with a price.
    pub instances: Vec<String>,
    /// Most that it may cost, e.g. `20 USD/h`.
    pub budget: Option<String>,
    /// What may be lost: `none`, `n+1`, `n+1 instance`.
    pub redundancy: Option<String>,
    /// Whether engines on accelerators of which no run was measured are left out.
    pub measured_only: bool,
}

/// Time that a run of a quick question covers, and what of it is left out [s].
const RUN_S: f64 = 180.0;
const WARMUP_S: f64 = 30.0;
/// Requests of its run at least and at most.
const REQUESTS: (f64, f64) = (2_000.0, 20_000.0);

impl Quick {
    /// The question as a file.
    ///
    /// # Errors
    /// A rate or length that cannot be read.
    pub fn to_toml(&self) -> Result<String, Error> {
        let rate = rate(&self.rate)?;
        let (per_s, rate) = (rate.per_sec(), rate.to_string());
        let requests = (per_s * RUN_S).clamp(REQUESTS.0, REQUESTS.1).round();
        let warmup = WARMUP_S.min(requests / per_s / 6.0);
        let text = |s: &str| Value::String(s.to_owned());
        let list = |all: &[String]| Value::Array(all.iter().map(|s| text(s)).collect());
        let table = |pairs: Vec<(&str, Value)>| {
            Value::Table(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
        };
        let mut root = Table::new();
        root.insert("name".into(), text(&format!("{} at {rate}", self.model)));
        root.insert("slo".into(), list(&self.slo));
        let mut plan = Vec::new();
        if let Some(b) = &self.budget {
            plan.push(("budget", text(b)));
        }
        if let Some(r) = &self.redundancy {
            plan.push(("redundancy", text(r)));
        }
        if self.measured_only {
            plan.push(("measured_only", Value::Boolean(true)));
        }
        if !plan.is_empty() {
            root.insert("plan".into(), table(plan));
        }
        root.insert("model".into(), table(vec![("name", text(&self.model))]));
        if !self.instances.is_empty() {
            root.insert(
                "hardware".into(),
                table(vec![("instance", list(&self.instances))]),
            );
        }
        let arrival = table(vec![("kind", text("poisson")), ("rate", text(&rate))]);
        let stream = table(vec![
            ("name", text("requests")),
            ("arrival", arrival),
            ("prompt", length(&self.prompt, "prompt")?),
            ("output", length(&self.output, "output")?),
        ]);
        root.insert("workload".into(), Value::Array(vec![stream]));
        root.insert(
            "run".into(),
            table(vec![
                ("requests", Value::Integer(requests as i64)),
                ("warmup", text(&format!("{warmup:.1} s"))),
            ]),
        );
        toml::to_string(&root).map_err(|e| Error::Failed(e.to_string()))
    }
}

/// A length as a scenario writes it from the `text` behind the flag `--what`: a number of tokens, or a distribution.
///
/// # Errors
/// A text that is neither.
pub fn length(text: &str, what: &str) -> Result<Value, Error> {
    let table: Table = toml::from_str(&format!("x = {text}")).map_err(|e| {
        Error::input(format!(
            "--{what} {text}: write tokens, e.g. 1000, or a distribution, e.g. '{{ kind = \"lognormal\", mean = 1000, std = 800 }}': {}",
            e.message()
        ))
    })?;
    table
        .get("x")
        .cloned()
        .ok_or_else(|| Error::input(format!("--{what} is empty")))
}

/// The rate in `text`.
fn rate(text: &str) -> Result<PerSec, Error> {
    let wrong = |why: String| Error::input(format!("--rate {text}: {why}"));
    let rate: PerSec = text.parse().map_err(|e: UnitError| wrong(e.to_string()))?;
    if rate.per_sec() > 0.0 {
        Ok(rate)
    } else {
        Err(wrong("must be above 0".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Question;

    #[test]
    fn a_few_words_make_a_question() {
        let quick = Quick {
            model: "llama-3.1-8b".into(),
            rate: "4 req/s".into(),
            prompt: "1000".into(),
            output: "{ kind = \"lognormal\", mean = 300, std = 100 }".into(),
            slo: vec!["ttft.p99 < 500 ms".into()],
            redundancy: Some("n+1".into()),
            ..Quick::default()
        };
        let q = Question::parse(&quick.to_toml().unwrap(), "command line", &[]).unwrap();
        assert_eq!(q.requests.len(), 2000);
        assert!((q.moments.per_s.unwrap() - 4.0).abs() < 0.5);
        assert_eq!(q.moments.prompt, 1000.0);
        let bare = Quick {
            rate: "4".into(),
            ..quick.clone()
        };
        let bare = Question::parse(&bare.to_toml().unwrap(), "command line", &[]).unwrap();
        assert_eq!(bare.requests.fingerprint(), q.requests.fingerprint());
        let wrong = Quick {
            rate: "fast".into(),
            ..quick.clone()
        };
        assert!(
            wrong
                .to_toml()
                .unwrap_err()
                .to_string()
                .contains("--rate fast")
        );
        let wrong = Quick {
            prompt: "many".into(),
            ..quick
        };
        assert!(
            wrong
                .to_toml()
                .unwrap_err()
                .to_string()
                .contains("--prompt many")
        );
    }
}
