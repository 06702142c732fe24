//! The keys in which two resolved scenarios differ.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A key that two scenarios give another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KeyDifference {
    /// Path of the key, e.g. `hardware.instance`.
    pub key: String,
    /// Value in the base, as a scenario file has it; null where it has none.
    pub a: Option<String>,
    /// Value in the other; null where it has none.
    pub b: Option<String>,
}

/// Keys that say nothing about the run: names, and the seed, in whose place a comparison sets its own.
const LEFT_OUT: [&str; 3] = ["name", "description", "seed"];

/// The keys in which the resolved scenarios `a` and `b` (TOML) differ, in the order of their names.
pub fn differences(a: &str, b: &str) -> Vec<KeyDifference> {
    let (a, b) = (leaves(a), leaves(b));
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter(|key| !LEFT_OUT.contains(&key.as_str()) && a.get(*key) != b.get(*key))
        .map(|key| KeyDifference {
            key: key.clone(),
            a: a.get(key).cloned(),
            b: b.get(key).cloned(),
        })
        .collect()
}

/// Every value of a TOML text by its path; nothing where it is none.
fn leaves(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        walk(&toml::Value::Table(table), String::new(), &mut out);
    }
    out
}

fn walk(value: &toml::Value, path: String, out: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let dot = if path.is_empty() { "" } else { "." };
                walk(value, format!("{path}{dot}{key}"), out);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            for (i, item) in items.iter().enumerate() {
                walk(item, format!("{path}[{i}]"), out);
            }
        }
        toml::Value::String(text) => {
            out.insert(path, text.clone());
        }
        other => {
            out.insert(path, other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_named_with_both_values() {
        let a = "name = \"a\"\nseed = 1\n[hardware]\ninstance = \"g5.2xlarge\"\n[engine]\nkind = \"tgi\"\nmax_waiting_tokens = 20\n\
                 [[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\n";
        let b = "name = \"b\"\nseed = 2\n[hardware]\ninstance = \"g5.12xlarge\"\n[engine]\nkind = \"tgi\"\n\
                 [[workload]]\narrival = { kind = \"poisson\", rate = \"2 req/s\" }\n";
        let found: Vec<String> = differences(a, b)
            .into_iter()
            .map(|d| format!("{}: {:?} {:?}", d.key, d.a, d.b))
            .collect();
        assert_eq!(
            found,
            [
                "engine.max_waiting_tokens: Some(\"20\") None",
                "hardware.instance: Some(\"g5.2xlarge\") Some(\"g5.12xlarge\")",
                "workload[0].arrival.rate: Some(\"1 req/s\") Some(\"2 req/s\")",
            ]
        );
        assert!(differences(a, a).is_empty());
        assert!(differences("not = [toml", "").is_empty());
    }
}
