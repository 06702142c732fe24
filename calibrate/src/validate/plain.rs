//! What a scenario written by hand predicts of a measured run: one that does not know what the set knows of how its servers were started, what stood before
//! them and how its client asked.
//!
//! A bare scenario has the model, the hardware, the layout, the engine with its version, and the load by its lengths, rates and users. One with flags has
//! the engine's own keys besides, which whoever runs a deployment knows: token budget, slots, prefix caching. Neither knows the front end that the set's own
//! has, nor how tokens are chosen, nor by which path a host stages bytes.

use serde::Serialize;
use sim::scenario::schema::{kind_named, kind_of, schema};
use toml::{Table, Value};

use super::report::Errors;
use super::row::{Row, percentage};

/// What a plain scenario knows of the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Engine and version.
    Bare,
    /// The engine's keys too.
    Flags,
}

/// What the two plain scenarios of a run predict; null where one cannot be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlainFigures {
    /// Of the bare scenario.
    pub bare: Option<f64>,
    /// Of the one with the engine's keys.
    pub flags: Option<f64>,
}

/// Errors of one metric of one set on rows that were only predicted: by the set's own scenarios and by plain ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlainErrors {
    /// Data set.
    pub set: String,
    /// Metric.
    pub metric: String,
    /// Of the set's own scenarios.
    pub own: Errors,
    /// Of bare ones.
    pub bare: Errors,
    /// Of those with the engine's keys.
    pub flags: Errors,
}

/// The plain scenario of `text`; none where it is no scenario.
pub fn plain(text: &str, known: Known) -> Option<String> {
    let mut root: Table = toml::from_str(text).ok()?;
    let engine = root.get_mut("engine")?.as_table_mut()?;
    let kind = engine.get("kind")?.as_str()?.to_owned();
    match known {
        Known::Bare => {
            let needed = required(&kind);
            engine.retain(|key, _| key == "version" || needed.iter().any(|n| n == key));
        }
        Known::Flags => {
            engine.remove("front_end");
        }
    }
    if let Some(hardware) = root.get_mut("hardware").and_then(Value::as_table_mut) {
        hardware.remove("host_path");
    }
    let streams = root.get_mut("workload").and_then(Value::as_array_mut);
    for stream in streams.into_iter().flatten() {
        if let Some(stream) = stream.as_table_mut() {
            stream.remove("sampling");
        }
    }
    toml::to_string(&root).ok()
}

/// Keys that an engine does not start without.
fn required(kind: &str) -> Vec<String> {
    let name = kind_named(kind).map(|k| k.name());
    let engines = schema().pointer("/properties/engine/oneOf");
    let engines = engines.and_then(|e| e.as_array()).into_iter().flatten();
    engines
        .filter(|e| kind_of(e) == name)
        .filter_map(|e| e["required"].as_array())
        .flatten()
        .filter_map(|key| key.as_str().map(str::to_owned))
        .collect()
}

/// Errors by set and metric of `rows` that have plain figures.
pub fn errors(rows: &[Row]) -> Vec<PlainErrors> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    let counts = |r: &&Row| !r.fitted && r.plain.is_some_and(|p| p.bare.and(p.flags).is_some());
    for r in rows.iter().filter(counts) {
        let key = (r.set.as_str(), r.metric.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let of = |(set, metric): (&str, &str)| {
        let of_key = |r: &&Row| r.set == set && r.metric == metric;
        let found: Vec<&Row> = rows.iter().filter(counts).filter(of_key).collect();
        let errors = |figure: &dyn Fn(&Row) -> Option<f64>| {
            let signed = |r: &&Row| Some(percentage(figure(r)?, r.measured));
            Errors::of(&found.iter().filter_map(signed).collect::<Vec<_>>())
        };
        Some(PlainErrors {
            set: set.to_owned(),
            metric: metric.to_owned(),
            own: errors(&|r| r.predicted)?,
            bare: errors(&|r| r.plain?.bare)?,
            flags: errors(&|r| r.plain?.flags)?,
        })
    };
    keys.into_iter().filter_map(of).collect()
}

/// The table of `errors` in Markdown; empty where there are none.
pub fn markdown(errors: &[PlainErrors]) -> String {
    if errors.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "\nPlain scenarios: median error and bias of the sets' own scenarios, of bare ones, and of those with the engine's keys.\n\n\
         | set | metric | rows | own | bare | with the engine's keys |\n|---|---|---|---|---|---|\n",
    );
    let cell = |e: &Errors| format!("{:.1} %, {:+.1} %", e.median_ape, e.bias);
    for e in errors {
        out += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            e.set,
            e.metric,
            e.own.n,
            cell(&e.own),
            cell(&e.bare),
            cell(&e.flags)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[model]\nname = \"m\"\n[hardware]\naccelerator = \"H100\"\nhost_path = \"shared\"\n\
        [engine]\nkind = \"vllm_v1\"\nversion = \"0.12\"\nfront_end = \"dynamo\"\nmax_num_seqs = 8\n\
        [[workload]]\narrival = { kind = \"trace\", file = \"{dir}/t.csv\" }\nsampling = { temperature = 0.6 }\n";

    #[test]
    fn a_plain_scenario_knows_the_deployment_but_not_its_benchmark() {
        let read = |known| -> Table { toml::from_str(&plain(TEXT, known).unwrap()).unwrap() };
        let (bare, flags) = (read(Known::Bare), read(Known::Flags));
        let keys = |t: &Table| {
            t["engine"]
                .as_table()
                .unwrap()
                .keys()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(&bare), ["kind", "version"]);
        assert_eq!(keys(&flags), ["kind", "max_num_seqs", "version"]);
        for t in [&bare, &flags] {
            let stream = t["workload"][0].as_table().unwrap();
            assert!(!stream.contains_key("sampling"));
            assert_eq!(stream["arrival"]["file"].as_str(), Some("{dir}/t.csv"));
            assert!(!t["hardware"].as_table().unwrap().contains_key("host_path"));
        }
        // What an engine does not start without stays.
        let neuron = "[engine]\nkind = \"tgi_neuron\"\nbatch_size = 8\nsequence_length = 4096\non_device_sampling = false\n";
        let kept: Table = toml::from_str(&plain(neuron, Known::Bare).unwrap()).unwrap();
        let kept = kept["engine"].as_table().unwrap();
        assert!(kept.contains_key("batch_size") && !kept.contains_key("on_device_sampling"));
    }
}
