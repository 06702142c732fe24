//! Tables of the keys that importers know: the arguments of a command, environment variables, keys of a document. What a table says is what the
//! importer does, and what `docs/import-export.md` lists.

use crate::place::shown;

/// What a value is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A whole number.
    Whole,
    /// A whole number, also as 8k (8000), 8K (8192), 1.5k.
    Thousands,
    /// A number.
    Number,
    /// True or false; on the command line the option alone, or `--no-...`.
    Switch,
    /// Whole numbers, separated by commas or spaces.
    Wholes,
    /// Text.
    Text,
}

/// What follows an option on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A value.
    Value,
    /// Nothing, or true or false.
    Nothing,
    /// One or more values.
    Values,
    /// A value or nothing.
    Maybe,
}

/// What a key means for a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is this key of the scenario.
    Sets(&'static str, Read),
    /// It is read, as these words say.
    Says(&'static str, Read),
    /// Nothing in a simulation depends on it.
    Idle,
    /// It changes the deployment in a way that is not simulated; these words say which.
    NotModelled(&'static str),
    /// A deployment with it cannot be imported; these words say why.
    Refused(&'static str),
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its names, separated by spaces, the usual one first: `--tensor-parallel-size -tp`.
    pub names: &'static str,
    /// What follows it.
    pub takes: Takes,
    /// What it means.
    pub meaning: Meaning,
}

impl Key {
    /// The usual name.
    pub fn name(&self) -> &'static str {
        self.names.split(' ').next().unwrap_or(self.names)
    }
}

/// A key of the scenario's own.
pub const fn sets(names: &'static str, key: &'static str, read: Read) -> Key {
    Key {
        names,
        takes: takes_of(read),
        meaning: Meaning::Sets(key, read),
    }
}

/// A key that the importer reads.
pub const fn says(names: &'static str, words: &'static str, read: Read) -> Key {
    Key {
        names,
        takes: takes_of(read),
        meaning: Meaning::Says(words, read),
    }
}

/// A key with a value that is not simulated.
pub const fn not_modelled(names: &'static str, words: &'static str) -> Key {
    Key {
        names,
        takes: Takes::Value,
        meaning: Meaning::NotModelled(words),
    }
}

/// A key without a value that is not simulated.
pub const fn not_modelled_flag(names: &'static str, words: &'static str) -> Key {
    Key {
        names,
        takes: Takes::Nothing,
        meaning: Meaning::NotModelled(words),
    }
}

const fn takes_of(read: Read) -> Takes {
    match read {
        Read::Switch => Takes::Nothing,
        Read::Wholes => Takes::Values,
        _ => Takes::Value,
    }
}

/// The keys of one kind of file or command.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The kind's name, as `--kind` has it.
    pub kind: &'static str,
    /// What it is, in a line.
    pub title: &'static str,
    /// Keys that mean something; a `*` at a name's end stands for anything.
    pub keys: &'static [Key],
    /// Keys with a value, without effect; a `*` at the end stands for anything.
    pub idle: &'static [&'static str],
    /// Options without a value, without effect.
    pub idle_flags: &'static [&'static str],
}

impl Table {
    /// The key of this name.
    pub fn find(&self, name: &str) -> Option<Key> {
        let is = |known: &str| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => known == name,
        };
        let idle = |list: &[&str], takes| {
            list.iter().any(|n| is(n)).then_some(Key {
                names: "",
                takes,
                meaning: Meaning::Idle,
            })
        };
        (self.keys.iter())
            .find(|k| k.names.split(' ').any(is))
            .copied()
            .or_else(|| idle(self.idle, Takes::Value))
            .or_else(|| idle(self.idle_flags, Takes::Nothing))
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        (self.keys.iter().flat_map(|k| k.names.split(' ')))
            .chain(self.idle.iter().copied())
            .chain(self.idle_flags.iter().copied())
    }

    /// The known name nearest to one that is not known.
    pub fn nearest(&self, name: &str) -> Option<&'static str> {
        self.names()
            .map(|known| (strsim::jaro_winkler(known, name), known))
            .filter(|(likeness, _)| *likeness > 0.9)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    }
}

/// A whole number, at most 2^53.
///
/// # Errors
/// What else it is.
pub fn whole(text: &str) -> Result<i64, String> {
    let plain = text.trim().replace('_', "");
    let number = plain.parse::<i64>().ok().filter(|n| n.abs() <= 1 << 53);
    number.ok_or_else(|| format!("must be a whole number, got `{}`", shown(text)))
}

/// A whole number, or thousands of it: 8k is 8000, 8K is 8192, 1.5M is 1 572 864.
///
/// # Errors
/// What else it is.
pub fn thousands(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let factor = match text.chars().last() {
        Some('k') => 1e3,
        Some('m') => 1e6,
        Some('g') => 1e9,
        Some('K') => 1024.0,
        Some('M') => 1024.0 * 1024.0,
        Some('G') => 1024.0 * 1024.0 * 1024.0,
        _ => return whole(text),
    };
    let number: Option<f64> = text[..text.len() - 1].trim().parse().ok();
    let product = number
        .map(|n| (n * factor).floor())
        .filter(|n| n.abs() < 9e15);
    match product {
        Some(n) => Ok(n as i64),
        None => Err(format!(
            "must be a whole number, or one such as 8k or 8K, got `{}`",
            shown(text)
        )),
    }
}

/// A number.
///
/// # Errors
/// What else it is.
pub fn number(text: &str) -> Result<f64, String> {
    let parsed: Option<f64> = text.trim().parse().ok();
    parsed
        .filter(|n| n.is_finite())
        .ok_or_else(|| format!("must be a number, got `{}`", shown(text)))
}

/// True or false.
///
/// # Errors
/// What else it is.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "enable" | "enabled" => Ok(true),
        "false" | "0" | "no" | "off" | "disable" | "disabled" => Ok(false),
        _ => Err(format!("must be true or false, got `{}`", shown(text))),
    }
}

/// Whole numbers separated by commas or spaces, in brackets or not.
///
/// # Errors
/// What else it is.
pub fn wholes(text: &str) -> Result<Vec<i64>, String> {
    text.trim_matches(['[', ']'])
        .split([',', ' '])
        .filter(|part| !part.is_empty())
        .map(whole)
        .collect()
}

/// A value of a scenario.
///
/// # Errors
/// What else it is.
pub fn value(text: &str, read: Read) -> Result<toml::Value, String> {
    Ok(match read {
        Read::Whole => whole(text)?.into(),
        Read::Thousands => thousands(text)?.into(),
        Read::Number => number(text)?.into(),
        Read::Switch => switch(text)?.into(),
        Read::Wholes => wholes(text)?.into(),
        Read::Text => text.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_engines_read_them() {
        assert_eq!(thousands("8k"), Ok(8000));
        assert_eq!(thousands("8K"), Ok(8192));
        assert_eq!(thousands("25.6k"), Ok(25600));
        assert_eq!(thousands("4096"), Ok(4096));
        for bad in ["", "k", "x", "1e99k", "99999999999999999999"] {
            assert!(thousands(bad).is_err(), "{bad}");
        }
        assert_eq!(wholes("[1, 2,4]"), Ok(vec![1, 2, 4]));
        assert!(number("nan").is_err() && number("inf").is_err());
    }
}
