//! An engine's keys as options, by the tables that importers read.

use sim::scenario::{EngineParams, Scenario};
use toml::Value;

use crate::keys::{Meaning, Table};

/// An option of the engine with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its names, as the table has them.
    pub names: &'static str,
    /// The scenario's value.
    pub value: Value,
}

impl Setting {
    /// The option of a command line.
    pub fn long(&self) -> &'static str {
        self.names
            .split(' ')
            .find(|n| n.starts_with("--"))
            .unwrap_or(self.names)
    }

    /// The variable of an environment.
    pub fn variable(&self) -> Option<&'static str> {
        self.names.split(' ').find(|n| !n.starts_with('-'))
    }

    /// The value as text, lists separated by `separator`.
    pub fn text(&self, separator: &str) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            Value::Array(items) => items
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(separator),
            other => other.to_string(),
        }
    }
}

/// The engine's keys that are not its defaults: those that one of the tables has as they are, and the others.
pub fn of(s: &Scenario, tables: &[&Table]) -> (Vec<Setting>, Vec<(String, Value)>) {
    let kind = s.engine.params.kind();
    let usual = EngineParams::read(kind, toml::Table::new())
        .map(|p| p.to_table())
        .unwrap_or_default();
    let mut keys: Vec<(String, Value)> = s.engine.params.to_table().into_iter().collect();
    if let Ok(mut common) = toml::Table::try_from(s.engine.common) {
        if let Some(fraction) = common.remove("memory_fraction") {
            keys.push((sim::engines::memory_key(kind).to_owned(), fraction));
        }
        keys.extend(common);
    }
    keys.retain(|(key, value)| usual.get(key) != Some(value));
    let layout = [
        ("layout.tp", s.layout.tp),
        ("layout.pp", s.layout.pp),
        ("layout.ep", s.layout.ep),
    ];
    let mut all: Vec<(String, Value)> = keys
        .into_iter()
        .map(|(k, v)| (format!("engine.{k}"), v))
        .collect();
    all.extend(
        layout
            .iter()
            .filter(|(_, n)| *n > 1)
            .map(|(k, n)| ((*k).to_owned(), i64::from(*n).into())),
    );
    let (mut said, mut rest) = (Vec::new(), Vec::new());
    for (path, value) in all {
        let found = tables
            .iter()
            .flat_map(|t| t.keys)
            .find(|k| matches!(k.meaning, Meaning::Sets(p, _) if p == path));
        match found {
            Some(key) => said.push(Setting {
                names: key.names,
                value,
            }),
            None => rest.push((path, value)),
        }
    }
    (said, rest)
}

/// Takes a key out of the rest.
pub fn take(rest: &mut Vec<(String, Value)>, path: &str) -> Option<Value> {
    let at = rest.iter().position(|(p, _)| p == path)?;
    Some(rest.remove(at).1)
}
