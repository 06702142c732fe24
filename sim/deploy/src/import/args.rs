//! Arguments of a command, by its table of keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use crate::keys::{Key, Meaning, Read, Table, Takes, value};
use crate::place::{Place, shown};
use crate::report::Fate;
use crate::text::shell::{Word, unresolved};

/// An option that means something, with its value.
#[derive(Clone, Debug)]
pub struct Given {
    /// The key of the table.
    pub key: Key,
    /// Its value; of a switch `true` or `false`.
    pub value: String,
    /// Where it was written.
    pub origin: Origin,
}

/// What a command line says.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Options by their usual name; where one came twice, the last.
    pub given: BTreeMap<&'static str, Given>,
    /// Words that are neither options nor their values.
    pub positional: Vec<Word>,
}

impl Args {
    /// An option by its usual name.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    /// An option's value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(|g| g.value.as_str())
    }
}

/// Reads the words behind a program's name. What has no effect, is not modelled or not known is reported at once.
pub fn read(table: &Table, words: &[Word], file: &Arc<str>, draft: &mut Draft) -> Args {
    let mut args = Args::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let place = Place::new(file, word.line);
        let text = word.text.as_str();
        if !is_option(text) {
            args.positional.push(word.clone());
            continue;
        }
        let (name, mut given) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (text.to_owned(), None),
        };
        let (key, negated) = find(table, &name);
        let Some(key) = key else {
            let value = given.or_else(|| follow(&mut words)).unwrap_or_default();
            let hint = match table.nearest(&name) {
                Some(known) => format!("did you mean `{known}`?"),
                None => String::new(),
            };
            draft.fate(&Origin::new(place, name, value), Fate::NotUnderstood, hint);
            continue;
        };
        if given.is_none() {
            given = match key.takes {
                Takes::Value | Takes::Maybe => follow(&mut words),
                Takes::Values => {
                    let mut all = Vec::new();
                    while let Some(value) = follow(&mut words) {
                        all.push(value);
                    }
                    (!all.is_empty()).then(|| all.join(","))
                }
                Takes::Nothing => words
                    .peek()
                    .is_some_and(|w| matches!(w.text.as_str(), "true" | "false" | "True" | "False"))
                    .then(|| follow(&mut words))
                    .flatten(),
            };
        }
        let matters = matches!(key.meaning, Meaning::Sets(..) | Meaning::Says(..));
        if given.is_none() && key.takes == Takes::Value && matters {
            draft.fault(Origin::new(place, name, "").fault("has no value"));
            continue;
        }
        let value = match (given, negated) {
            (Some(value), _) => value,
            (None, true) => "false".to_owned(),
            (None, false) => "true".to_owned(),
        };
        take(
            key,
            value,
            Origin::new(place, name, ""),
            draft,
            &mut args.given,
        );
    }
    args
}

/// A key with its value from anywhere: an option, a variable, a field. Reports it where it says nothing of the scenario.
pub fn take(
    key: Key,
    value: String,
    origin: Origin,
    draft: &mut Draft,
    given: &mut BTreeMap<&'static str, Given>,
) {
    let origin = Origin {
        raw: value.clone(),
        ..origin
    };
    match key.meaning {
        Meaning::Idle => draft.fate(&origin, Fate::NoEffect, ""),
        // What is switched off is as if it were not there.
        Meaning::NotModelled(why) if matches!(value.as_str(), "false" | "False") => {
            draft.fate(&origin, Fate::NoEffect, format!("off: {why}"));
        }
        Meaning::NotModelled(why) => draft.fate(&origin, Fate::NotModelled, why),
        Meaning::Refused(why) => draft.fault(origin.fault(why)),
        Meaning::Sets(..) | Meaning::Says(..) => {
            if let Some(why) = unresolved(&value) {
                draft.fault(origin.fault(why));
                return;
            }
            let new = Given { key, value, origin };
            if let Some(old) = given.insert(key.name(), new) {
                draft.fate(&old.origin, Fate::NoEffect, "given again later");
            }
        }
    }
}

/// Puts into the scenario what the table says goes there as it is.
pub fn apply<'a>(given: impl IntoIterator<Item = &'a Given>, draft: &mut Draft) {
    for g in given {
        if let Meaning::Sets(path, read) = g.key.meaning {
            match value(&g.value, read) {
                Ok(v) => draft.set(path, v, &g.origin),
                Err(why) => draft.fault(g.origin.fault(why)),
            }
        }
    }
}

/// An option's value as a whole number; what is wrong with it goes to the draft.
pub fn whole(given: Option<&Given>, draft: &mut Draft) -> Option<(i64, Origin)> {
    let g = given?;
    match crate::keys::whole(&g.value) {
        Ok(n) if n >= 0 => Some((n, g.origin.clone())),
        Ok(n) => {
            draft.fault(g.origin.fault(format!("must be at least 0, got {n}")));
            None
        }
        Err(why) => {
            draft.fault(g.origin.fault(why));
            None
        }
    }
}

/// An option's value as a number; what is wrong with it goes to the draft.
pub fn number(given: Option<&Given>, draft: &mut Draft) -> Option<(f64, Origin)> {
    let g = given?;
    match crate::keys::number(&g.value) {
        Ok(n) => Some((n, g.origin.clone())),
        Err(why) => {
            draft.fault(g.origin.fault(why));
            None
        }
    }
}

/// Whether an option is there and says yes; what is wrong with it goes to the draft.
pub fn switched(given: Option<&Given>, draft: &mut Draft) -> Option<(bool, Origin)> {
    let g = given?;
    match crate::keys::switch(&g.value) {
        Ok(on) => Some((on, g.origin.clone())),
        Err(why) => {
            draft.fault(g.origin.fault(why));
            None
        }
    }
}

/// The table's key of an option as written: `_` for `-` is allowed, `--no-x` is `--x` off, `--x.y` is a part of `--x`.
fn find(table: &Table, name: &str) -> (Option<Key>, bool) {
    let plain = |name: &str| {
        let start = name.len() - name.trim_start_matches('-').len();
        (table.find(name)).or_else(|| {
            let dashes = format!("{}{}", &name[..start], name[start..].replace('_', "-"));
            let lines = format!("{}{}", &name[..start], name[start..].replace('-', "_"));
            table.find(&dashes).or_else(|| table.find(&lines))
        })
    };
    if let Some(key) = plain(name) {
        return (Some(key), false);
    }
    if let Some(rest) = name
        .strip_prefix("--no-")
        .or_else(|| name.strip_prefix("--no_"))
        && let Some(key) = plain(&format!("--{rest}"))
        && (key.takes == Takes::Nothing || matches!(key.meaning, Meaning::Sets(_, Read::Switch)))
    {
        return (Some(key), true);
    }
    if let Some(key) = abbreviated(table, name) {
        return (Some(key), false);
    }
    match name.split_once('.') {
        Some((start, _)) => (
            plain(start).filter(|k| !matches!(k.meaning, Meaning::Sets(..) | Meaning::Says(..))),
            false,
        ),
        None => (None, false),
    }
}

/// The key of which `name` is the beginning, as Python's argparse takes it where there is but one.
fn abbreviated(table: &Table, name: &str) -> Option<Key> {
    let by_argparse = matches!(table.kind, "vllm" | "sglang" | "vllm-bench");
    let plain = name.replace('_', "-");
    if !by_argparse || plain.len() < 6 || !plain.starts_with("--") {
        return None;
    }
    let mut found = table
        .names()
        .filter(|n| !n.ends_with('*') && n.starts_with(&plain));
    let first = found.next()?;
    let key = table.find(first)?;
    // Two names of one key are one.
    let same = |n: &str| key.names.split(' ').any(|own| own == n);
    found.all(same).then_some(key)
}

/// The next word, where it is no option.
fn follow<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a Word>>) -> Option<String> {
    words
        .next_if(|w| !is_option(&w.text))
        .map(|w| w.text.clone())
}

fn is_option(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && !is_number(text)
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

/// A message about a value that must be one of a few.
pub fn one_of(given: &Given, known: &str) -> crate::place::Fault {
    given
        .origin
        .fault(format!("must be {known}, got `{}`", shown(&given.value)))
}
