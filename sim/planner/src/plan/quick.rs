//! A question from a few words: model, rate, lengths and objectives.

use hwmodels::units::{PerSec, UnitError};
use toml::{Table, Value};

use super::Question;
use crate::Error;

/// What a question needs at least.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quick {
    /// Name in the catalog.
    pub model: String,
    /// Rate of Poisson arrivals, e.g. `40 req/s`; empty where `users` send.
    pub rate: String,
    /// Users in place of a rate, each of whom sends when the last answer has come.
    pub users: Option<u32>,
    /// Their mean pause between an answer and the next request, e.g. `20 s`; exponential. Default: none.
    pub think_time: Option<String>,
    /// Prompt length as a scenario writes it: a number of tokens, or a distribution `{ kind = ... }`.
    pub prompt: String,
    /// Output length, likewise.
    pub output: String,
    /// Objectives.
    pub slo: Vec<String>,
    /// Instance types, or accelerators for all types with them; empty: all of the catalog with a price.
    pub instances: Vec<String>,
    /// Accelerators that are rented one by one, in place of instances.
    pub gpus: Vec<String>,
    /// Price of one of these, e.g. `2.5 USD/h`.
    pub gpu_price: Option<String>,
    /// Engines, e.g. `vllm`, `sglang`, `trt_llm`; empty: those that the accelerators run by default.
    pub engines: Vec<String>,
    /// Format of the weights, e.g. `fp8`.
    pub weights: Option<String>,
    /// Whether the winner is tried under an autoscaler.
    pub autoscaled: bool,
    /// Most that it may cost, e.g. `20 USD/h`.
    pub budget: Option<String>,
    /// What may be lost: `none`, `n+1`, `n+1 instance`.
    pub redundancy: Option<String>,
    /// Whether engines on accelerators of which no run was measured are left out.
    pub measured_only: bool,
}

/// Keys with their values.
type Pairs = Vec<(&'static str, Value)>;

/// Time that a run of a quick question covers, and what of it is left out [s].
const RUN_S: f64 = 180.0;
const WARMUP_S: f64 = 30.0;
/// Requests of its run at least and at most.
const REQUESTS: (f64, f64) = (2_000.0, 20_000.0);
/// Requests of each user in a run.
const ROUNDS: f64 = 30.0;
/// Cycle of a user where the objectives set no limit on the time of an answer: that of one which is read as it comes [s].
const READING_S: f64 = 20.0;

impl Quick {
    /// The question as a file.
    ///
    /// # Errors
    /// A rate or length that cannot be read.
    pub fn to_toml(&self) -> Result<String, Error> {
        let (arrival, name, (requests, warmup)) = self.load()?;
        let text = self.of_load(arrival, &name, requests, warmup)?;
        let (Some(users), true) = (self.users, warmup == 0.0) else {
            return Ok(text);
        };
        // Users come one after another within the longest cycle that the objectives allow, which is left out.
        let asked = Question::parse(&text, "command line", &[])?;
        let cycle = asked.cycle_s().unwrap_or(READING_S);
        let stagger = cycle / f64::from(users.max(1));
        let arrival = self.closed(users, Some(stagger));
        self.of_load(arrival, &name, requests, cycle)
    }

    /// What sends, in words, requests of a run, and what of it is left out [s]: 0 where that is not known yet.
    fn load(&self) -> Result<(Pairs, String, (f64, f64)), Error> {
        if let Some(users) = self.users {
            let requests = (ROUNDS * f64::from(users)).clamp(REQUESTS.0, REQUESTS.1);
            let name = format!("{} for {users} users", self.model);
            return Ok((self.closed(users, None), name, (requests, 0.0)));
        }
        let rate = rate(&self.rate)?;
        let (per_s, rate) = (rate.per_sec(), rate.to_string());
        let requests = (per_s * RUN_S).clamp(REQUESTS.0, REQUESTS.1).round();
        let warmup = WARMUP_S.min(requests / per_s / 6.0);
        let arrival = vec![
            ("kind", Value::from("poisson")),
            ("rate", Value::from(rate.as_str())),
        ];
        let name = format!("{} at {rate}", self.model);
        Ok((arrival, name, (requests, warmup)))
    }

    /// The arrivals of `users` who come `stagger` after each other [s].
    fn closed(&self, users: u32, stagger: Option<f64>) -> Pairs {
        let mut out = vec![
            ("kind", Value::from("closed")),
            ("concurrency", Value::from(i64::from(users))),
        ];
        if let Some(think) = &self.think_time {
            out.push(("think", Value::from(think.as_str())));
            out.push(("think_cv", Value::from(1.0)));
        }
        out.extend(stagger.map(|s| ("stagger", Value::from(format!("{s:.4} s")))));
        out
    }

    /// The question as a file, under a load.
    fn of_load(
        &self,
        arrival: Pairs,
        name: &str,
        requests: f64,
        warmup: f64,
    ) -> Result<String, Error> {
        let text = |s: &str| Value::String(s.to_owned());
        let list = |all: &[String]| Value::Array(all.iter().map(|s| text(s)).collect());
        let table = |pairs: Vec<(&str, Value)>| {
            Value::Table(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
        };
        let mut root = Table::new();
        root.insert("name".into(), text(name));
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
        if let Some(price) = &self.gpu_price {
            plan.push(("gpu_price", text(price)));
        }
        if self.autoscaled {
            plan.push(("autoscaled", Value::Boolean(true)));
        }
        if !plan.is_empty() {
            root.insert("plan".into(), table(plan));
        }
        let mut model = vec![("name", text(&self.model))];
        model.extend(self.weights.as_ref().map(|w| ("weights", text(w))));
        root.insert("model".into(), table(model));
        let hardware = [("instance", &self.instances), ("accelerator", &self.gpus)];
        let hardware = hardware.into_iter().filter(|(_, all)| !all.is_empty());
        let hardware: Vec<_> = hardware.map(|(key, all)| (key, list(all))).collect();
        if !hardware.is_empty() {
            root.insert("hardware".into(), table(hardware));
        }
        if !self.engines.is_empty() {
            let engines = self.engines.iter().map(|e| table(vec![("kind", text(e))]));
            root.insert("engine".into(), Value::Array(engines.collect()));
        }
        let arrival = table(arrival);
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
