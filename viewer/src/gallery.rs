//! The shipped scenarios: in the program, with the files that they name.

use std::sync::Arc;

use hwmodels::files::{Bundle, Files};

use crate::source::Source;

include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// A shipped scenario, as the first screen shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// Its index in [`SHIPPED`].
    pub index: usize,
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub description: String,
    /// What the model, the machine and the engine are.
    pub tags: Vec<String>,
    /// Which shelf it stands on.
    pub shelf: &'static str,
}

/// Shelves in the order of the first screen.
pub const SHELVES: [&str; 6] = [
    "Start here",
    "What a machine can do",
    "Which layout is best",
    "Traffic with a shape",
    "Clusters that scale",
    "Theory and scale",
];

fn shelf(name: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    if has(&["qwen3-14b-h100-vllm", "chat-sessions", "l4-vllm-mixed"]) {
        SHELVES[0]
    } else if has(&["cluster-"]) {
        SHELVES[4]
    } else if has(&["azure", "deepseek", "trtllm"]) {
        SHELVES[2]
    } else if has(&["mooncake", "day", "3x-"]) {
        SHELVES[3]
    } else if has(&["queue", "million"]) {
        SHELVES[5]
    } else {
        SHELVES[1]
    }
}

/// Where a shipped scenario lies in [`bundle`].
pub fn origin(index: usize) -> String {
    format!("scenarios/{}.toml", SHIPPED[index].0)
}

/// A shipped scenario, to be run.
pub fn source(index: usize) -> Source {
    Source {
        origin: origin(index),
        text: SHIPPED[index].1.to_owned(),
        files: bundle(),
        overrides: Vec::new(),
    }
}

/// The shipped files, of which scenarios name some.
pub fn bundle() -> Arc<dyn Files> {
    let mut all = Bundle::default();
    for (i, (_, text)) in SHIPPED.iter().enumerate() {
        all = all.with(origin(i), text.as_bytes());
    }
    for (name, bytes) in TRACES {
        all = all.with(format!("scenarios/traces/{name}"), bytes);
    }
    Arc::new(all)
}

fn text_at(table: &toml::Table, path: &str) -> Option<String> {
    let (head, rest) = path.split_once('.').unwrap_or((path, ""));
    let value = table.get(head)?;
    match value {
        toml::Value::Table(t) if !rest.is_empty() => text_at(t, rest),
        toml::Value::String(s) => Some(s.clone()),
        _ => None,
    }
}

/// The cards of all shipped scenarios, in the order of their shelves.
pub fn cards() -> Vec<Card> {
    let mut cards: Vec<Card> = SHIPPED
        .iter()
        .enumerate()
        .map(|(index, (name, text))| {
            let table: toml::Table = text.parse().unwrap_or_default();
            let tags = [
                "model.name",
                "hardware.instance",
                "hardware.accelerator",
                "engine.kind",
            ];
            Card {
                index,
                name,
                description: text_at(&table, "description").unwrap_or_default(),
                tags: tags.iter().filter_map(|t| text_at(&table, t)).collect(),
                shelf: shelf(name),
            }
        })
        .collect();
    cards.sort_by_key(|c| (SHELVES.iter().position(|s| *s == c.shelf), c.index));
    cards
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::scenario::Scenario;

    #[test]
    fn every_shipped_scenario_can_be_built_without_a_disk() {
        let bundle = bundle();
        for (i, (name, text)) in SHIPPED.iter().enumerate() {
            let scenario = Scenario::parse_from(bundle.clone(), text, &origin(i), &[]);
            let scenario = scenario.unwrap_or_else(|e| panic!("{name}: {e}"));
            scenario.mix().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        assert!(SHIPPED.len() > 30);
    }

    #[test]
    fn cards_say_what_they_show() {
        let cards = cards();
        assert_eq!(cards.len(), SHIPPED.len());
        assert_eq!(cards[0].shelf, SHELVES[0]);
        for card in cards {
            assert!(!card.description.is_empty(), "{}", card.name);
        }
    }
}
