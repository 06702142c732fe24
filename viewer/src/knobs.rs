//! What a what-if can turn: keys of the resolved scenario, with their values and ranges.

use toml::{Table, Value};

/// What a knob sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number.
    Whole,
    /// `... req/s`.
    Rate,
    /// `... ms`.
    Millis,
    /// A share.
    Share,
}

/// Something that can be turned.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// Key in the scenario.
    pub key: String,
    /// Its name on screen.
    pub label: String,
    /// What it sets.
    pub unit: Unit,
    /// The value that was run.
    pub was: f64,
    /// The value that is wanted.
    pub now: f64,
    /// Least and most.
    pub range: (f64, f64),
}

impl Knob {
    /// What `--set` takes for it; none where it was not turned.
    pub fn set(&self) -> Option<String> {
        (self.now != self.was).then(|| format!("{}={}", self.key, self.words(self.now)))
    }

    /// A value as the scenario has it.
    pub fn words(&self, v: f64) -> String {
        match self.unit {
            Unit::Whole => format!("{}", v.round()),
            Unit::Rate => format!("{} req/s", rounded(v)),
            Unit::Millis => format!("{} ms", rounded(v)),
            Unit::Share => format!("{}", (v * 1000.0).round() / 1000.0),
        }
    }

    /// Its unit, for a slider.
    pub fn suffix(&self) -> &'static str {
        match self.unit {
            Unit::Whole | Unit::Share => "",
            Unit::Rate => " req/s",
            Unit::Millis => " ms",
        }
    }
}

/// Four figures: sliders give values such as 3.3000000000000003.
fn rounded(v: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let scale = 10f64.powf(3.0 - v.abs().log10().floor());
    (v * scale).round() / scale
}

/// Something that can be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Key in the scenario.
    pub key: String,
    /// Its name on screen.
    pub label: String,
    /// What can be chosen.
    pub options: Vec<String>,
    /// What was run.
    pub was: String,
    /// What is wanted.
    pub now: String,
    /// Whether it is a text in the scenario.
    pub text: bool,
}

impl Choice {
    /// What `--set` takes for it; none where it was not changed.
    pub fn set(&self) -> Option<String> {
        (self.now != self.was).then(|| format!("{}={}", self.key, self.now))
    }
}

/// All there is to turn in a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knobs {
    /// Sliders.
    pub knobs: Vec<Knob>,
    /// Choices.
    pub choices: Vec<Choice>,
}

/// The value at a path such as `workload[0].arrival.rate`.
fn at<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let mut value: Option<&Value> = None;
    for part in path.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let next = match value {
            None => table.get(name)?,
            Some(v) => v.get(name)?,
        };
        value = Some(match index {
            Some(i) => next.as_array()?.get(i)?,
            None => next,
        });
    }
    value
}

/// A number, with its unit taken off: `2.5 req/s`, `250 ms`, `2 s`.
fn number(value: &Value, unit: Unit) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(*i as f64),
        Value::Float(f) => Some(*f),
        Value::String(text) => {
            let (n, u) = text.trim().split_once(' ').unwrap_or((text, ""));
            let n: f64 = n.parse().ok()?;
            let factor = match (unit, u.trim()) {
                (Unit::Rate, "req/s") | (Unit::Millis, "ms") => 1.0,
                (Unit::Rate, "req/min") => 1.0 / 60.0,
                (Unit::Millis, "s") => 1e3,
                (Unit::Millis, "us" | "µs") => 1e-3,
                (Unit::Millis, "min") => 60e3,
                _ => return None,
            };
            Some(n * factor)
        }
        _ => None,
    }
}

/// Keys with a slider: name, label, unit, and the range that is there at least.
const SLIDERS: [(&str, &str, Unit, f64, f64); 10] = [
    ("layout.replicas", "replicas", Unit::Whole, 1.0, 64.0),
    (
        "workload[0].arrival.concurrency",
        "users",
        Unit::Whole,
        1.0,
        1024.0,
    ),
    (
        "engine.max_num_seqs",
        "max_num_seqs",
        Unit::Whole,
        1.0,
        1024.0,
    ),
    (
        "engine.max_num_batched_tokens",
        "max_num_batched_tokens",
        Unit::Whole,
        256.0,
        32_768.0,
    ),
    (
        "engine.max_batch_prefill_tokens",
        "max_batch_prefill_tokens",
        Unit::Whole,
        256.0,
        32_768.0,
    ),
    (
        "engine.max_concurrent_requests",
        "max_concurrent_requests",
        Unit::Whole,
        1.0,
        1024.0,
    ),
    (
        "engine.kv_blocks",
        "KV blocks",
        Unit::Whole,
        16.0,
        100_000.0,
    ),
    ("slo.ttft", "limit of TTFT", Unit::Millis, 10.0, 30_000.0),
    ("slo.tpot", "limit of TPOT", Unit::Millis, 1.0, 1_000.0),
    ("run.requests", "requests", Unit::Whole, 100.0, 20_000.0),
];

/// What can be turned in the resolved scenario `text` (as `Scenario::show` writes it); `instances` are those of the catalog.
pub fn knobs(text: &str, instances: &[String]) -> Knobs {
    let Ok(table) = text.parse::<Table>() else {
        return Knobs::default();
    };
    let mut all = Knobs::default();
    for (key, was) in rates(text) {
        let label = match key.split('.').next() {
            Some("workload[0]") => "request rate".to_owned(),
            other => format!("request rate of {}", other.unwrap_or("a stream")),
        };
        all.push(&key, &label, Unit::Rate, was, (was / 10.0, was * 5.0));
    }
    for (key, label, unit, low, high) in SLIDERS {
        if let Some(was) = at(&table, key).and_then(|v| number(v, unit)) {
            all.push(key, label, unit, was, (low.min(was), high.max(2.0 * was)));
        }
    }
    if let Some(Value::String(was)) = at(&table, "hardware.instance") {
        let mut options = instances.to_vec();
        if !options.contains(was) {
            options.insert(0, was.clone());
        }
        all.choose("hardware.instance", "instance", options, was.clone(), true);
    }
    for (key, label) in [
        ("layout.tp", "tensor parallelism"),
        ("layout.pp", "pipeline parallelism"),
    ] {
        if let Some(Value::Integer(was)) = at(&table, key) {
            let mut options = vec![1, 2, 4, 8, 16];
            if !options.contains(was) {
                options.insert(0, *was);
            }
            let options = options.iter().map(i64::to_string).collect();
            all.choose(key, label, options, was.to_string(), false);
        }
    }
    if let Some(Value::String(was)) = at(&table, "router.policy") {
        let options = [
            "round_robin",
            "random",
            "least_outstanding",
            "least_kv",
            "power_of_two",
        ];
        let mut options = options.map(str::to_owned).to_vec();
        if !options.contains(was) {
            options.insert(0, was.clone());
        }
        all.choose("router.policy", "router", options, was.clone(), true);
    }
    all
}

/// Keys of the rates of the resolved scenario `text`, with their values [req/s].
pub fn rates(text: &str) -> Vec<(String, f64)> {
    let Ok(table) = text.parse::<Table>() else {
        return Vec::new();
    };
    let streams = at(&table, "workload")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    (0..streams)
        .map(|i| format!("workload[{i}].arrival.rate"))
        .filter_map(|key| {
            let rate = number(at(&table, &key)?, Unit::Rate)?;
            (rate > 0.0).then_some((key, rate))
        })
        .collect()
}

impl Knobs {
    fn push(&mut self, key: &str, label: &str, unit: Unit, was: f64, range: (f64, f64)) {
        self.knobs.push(Knob {
            key: key.to_owned(),
            label: label.to_owned(),
            unit,
            was,
            now: was,
            range,
        });
    }

    fn choose(&mut self, key: &str, label: &str, options: Vec<String>, was: String, text: bool) {
        self.choices.push(Choice {
            key: key.to_owned(),
            label: label.to_owned(),
            options,
            now: was.clone(),
            was,
            text,
        });
    }

    /// What `--set` takes for all that was changed.
    pub fn sets(&self) -> Vec<String> {
        let knobs = self.knobs.iter().filter_map(Knob::set);
        knobs
            .chain(self.choices.iter().filter_map(Choice::set))
            .collect()
    }

    /// Turns all as `sets` say, which [`Knobs::sets`] gave; the others are put back.
    pub fn put(&mut self, sets: &[String]) {
        self.reset();
        for set in sets {
            let Some((key, value)) = set.split_once('=') else {
                continue;
            };
            if let Some(k) = self.knobs.iter_mut().find(|k| k.key == key) {
                let number = value.split(' ').next().and_then(|n| n.parse().ok());
                k.now = number.unwrap_or(k.was);
            }
            if let Some(c) = self.choices.iter_mut().find(|c| c.key == key) {
                value.clone_into(&mut c.now);
            }
        }
    }

    /// Puts all back.
    pub fn reset(&mut self) {
        for k in &mut self.knobs {
            k.now = k.was;
        }
        for c in &mut self.choices {
            c.now = c.was.clone();
        }
    }
}

/// A word of a command line.
fn quoted(s: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=,".contains(c);
    if s.chars().all(plain) {
        s.to_owned()
    } else {
        format!("'{}'", s.replace('\'', "'\\''"))
    }
}

/// The command line that does the same.
pub fn command(origin: &str, sets: &[String]) -> String {
    let mut out = format!("servetwin run {}", quoted(origin));
    for set in sets {
        out += &format!(" --set {}", quoted(set));
    }
    out
}

/// The command line that writes the run as a page that opens in a browser without a server or network.
pub fn report_command(origin: &str, sets: &[String]) -> String {
    let record = format!(".{}", store::EXTENSION);
    if origin.ends_with(&record) && sets.is_empty() {
        return format!("servetwin report {} --html report.html", quoted(origin));
    }
    format!(
        "{} --record run{record} && servetwin report run{record} --html report.html",
        command(origin, sets)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery;
    use sim::scenario::Scenario;

    #[test]
    fn every_knob_of_every_shipped_scenario_is_taken_by_it() {
        let bundle = gallery::bundle();
        let mut rates_found = 0;
        for (i, (name, text)) in gallery::SHIPPED.iter().enumerate() {
            let parse = |sets: &[String]| {
                Scenario::parse_from(bundle.clone(), text, &gallery::origin(i), sets)
            };
            let shown = parse(&[]).unwrap().show();
            let mut knobs = knobs(&shown, &["p5.48xlarge".to_owned()]);
            assert!(knobs.sets().is_empty());
            assert!(!knobs.knobs.is_empty(), "{name}");
            for k in &mut knobs.knobs {
                rates_found += usize::from(k.unit == Unit::Rate);
                assert!(k.range.0 <= k.was && k.was <= k.range.1, "{name} {k:?}");
                k.now = (k.was * 1.1).ceil();
            }
            let sets = knobs.sets();
            if let Err(e) = parse(&sets) {
                panic!("{name}: {sets:?}: {e}");
            }
            knobs.reset();
            assert!(knobs.sets().is_empty());
            knobs.put(&sets);
            assert_eq!(knobs.sets(), sets, "{name}");
        }
        assert!(rates_found >= 10, "{rates_found}");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let sets = [
            "workload[0].arrival.rate=2.5 req/s".to_owned(),
            "seed=3".to_owned(),
        ];
        assert_eq!(
            command("a b.toml", &sets),
            "servetwin run 'a b.toml' --set 'workload[0].arrival.rate=2.5 req/s' --set seed=3"
        );
    }

    #[test]
    fn the_report_of_a_record_needs_no_run() {
        assert_eq!(
            report_command("a.servetwin", &[]),
            "servetwin report a.servetwin --html report.html"
        );
        assert_eq!(
            report_command("a.toml", &["seed=3".to_owned()]),
            "servetwin run a.toml --set seed=3 --record run.servetwin && servetwin report run.servetwin --html report.html"
        );
    }

    #[test]
    fn values_have_four_figures() {
        assert_eq!(rounded(3.300_000_000_000_000_3), 3.3);
        assert_eq!(rounded(12_345.6), 12_350.0);
        assert_eq!(rounded(0.0), 0.0);
    }
}
