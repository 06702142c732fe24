//! What became of every key of the files that were imported.

use std::fmt::Write as _;

use serde::Serialize;

use crate::place::{Place, printable, shown};

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It says something of the scenario.
    Used,
    /// Nothing in a simulation depends on it.
    NoEffect,
    /// It changes how the deployment behaves, and that is not simulated.
    NotModelled,
    /// The importer does not know it.
    NotUnderstood,
}

/// A key of a file and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// File.
    pub file: String,
    /// Line, counted from 1; 0 for an option of the command line.
    pub line: u32,
    /// The key as the file spells it, e.g. `--max-num-seqs` or `spec.replicas`.
    pub key: String,
    /// Its value, shortened.
    pub value: String,
    /// What became of it.
    pub fate: Fate,
    /// The scenario's key and value, or why it has none.
    pub note: String,
}

/// A key of the scenario that no file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Default {
    /// The scenario's key.
    pub key: String,
    /// The value that was taken.
    pub value: String,
    /// Why that, and how to say another.
    pub note: String,
}

/// What a file was taken for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileKind {
    /// File.
    pub file: String,
    /// Its kind, one of [`crate::import::Kind`]'s names.
    pub kind: String,
}

/// What became of every key, in the files' order.
#[derive(Clone, Debug, std::default::Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The files.
    pub files: Vec<FileKind>,
    /// Their keys.
    pub keys: Vec<Entry>,
    /// What no file says and a default was taken for.
    pub defaults: Vec<Default>,
    /// What does not fit together, though it can be imported.
    pub warnings: Vec<String>,
}

impl Report {
    /// Adds a key.
    pub fn add(
        &mut self,
        place: &Place,
        key: &str,
        value: &str,
        fate: Fate,
        note: impl Into<String>,
    ) {
        self.keys.push(Entry {
            file: place.file.to_string(),
            line: place.line,
            key: printable(key),
            value: secret(key, value).map_or_else(|| shown(value), str::to_owned),
            fate,
            note: note.into(),
        });
    }

    /// How many keys came to this.
    pub fn count(&self, fate: Fate) -> usize {
        self.keys.iter().filter(|k| k.fate == fate).count()
    }

    /// Whether something in the files is not in the scenario though it may matter.
    pub fn is_partial(&self) -> bool {
        self.count(Fate::NotModelled) + self.count(Fate::NotUnderstood) > 0
    }

    /// The counts in one line: `Import: 14 keys used, 3 not simulated, 1 not understood, 9 without effect; 5 defaults taken, 1 warning.`
    pub fn counts(&self) -> String {
        let s = |n: usize| if n == 1 { "" } else { "s" };
        let used = self.count(Fate::Used);
        format!(
            "Import: {used} key{} used, {} not simulated, {} not understood, {} without effect; {} default{} taken, {} warning{}.",
            s(used),
            self.count(Fate::NotModelled),
            self.count(Fate::NotUnderstood),
            self.count(Fate::NoEffect),
            self.defaults.len(),
            s(self.defaults.len()),
            self.warnings.len(),
            s(self.warnings.len())
        )
    }

    /// The report as text, the most important first, the counts last.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for f in &self.files {
            let _ = writeln!(out, "{}: {}", printable(&f.file), f.kind);
        }
        let groups = [
            (Fate::Used, "Used"),
            (Fate::NotModelled, "Understood, but not simulated"),
            (Fate::NotUnderstood, "Not understood"),
            (Fate::NoEffect, "Without effect on a simulation"),
        ];
        for (fate, title) in groups {
            let keys: Vec<&Entry> = self.keys.iter().filter(|k| k.fate == fate).collect();
            if keys.is_empty() {
                continue;
            }
            let _ = writeln!(out, "\n{title} ({}):", keys.len());
            for k in keys {
                let place = match k.line {
                    0 => printable(&k.file),
                    line => format!("{}:{line}", printable(&k.file)),
                };
                let value = match k.value.is_empty() {
                    true => String::new(),
                    false => format!(" = {}", k.value),
                };
                let note = match k.note.is_empty() {
                    true => String::new(),
                    false => format!("  -> {}", k.note),
                };
                let _ = writeln!(out, "  {place}: {}{value}{note}", shown(&k.key));
            }
        }
        if !self.defaults.is_empty() {
            let _ = writeln!(
                out,
                "\nNot in the files, so defaults were taken ({}):",
                self.defaults.len()
            );
            for d in &self.defaults {
                let _ = writeln!(out, "  {} = {}  ({})", d.key, d.value, d.note);
            }
        }
        if !self.warnings.is_empty() {
            let _ = writeln!(out, "\nWarnings ({}):", self.warnings.len());
            for w in &self.warnings {
                let _ = writeln!(out, "  {w}");
            }
        }
        let _ = writeln!(out, "\n{}", self.counts());
        out
    }
}

/// What stands in a report in place of a value that is nobody's business: one whose key names a secret, and that is no switch, number, path or name of one.
fn secret(key: &str, value: &str) -> Option<&'static str> {
    // The way to a key is not the key: spec.tokenSecret.name names a Secret.
    let last = key.rsplit(['.', '"']).find(|part| part.len() > 1)?;
    let words: Vec<String> = last
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let is = |word: &str| words.iter().any(|w| w == word);
    let names = is("token")
        || is("secret")
        || is("password")
        || is("passwd")
        || is("credential")
        || is("credentials");
    let keys = (is("api") || is("access") || is("private") || is("auth")) && is("key");
    // HF_TOKEN_PATH, TOKEN_SECRET_NAME: where a secret is, not what.
    let place = [
        "path",
        "file",
        "dir",
        "name",
        "url",
        "id",
        "secretname",
        "ref",
    ];
    let is_place = words.last().is_some_and(|w| place.contains(&w.as_str()));
    let plain = value.is_empty()
        || value.parse::<f64>().is_ok()
        || matches!(value, "true" | "false" | "True" | "False");
    let joined = [
        "apikey",
        "accesskey",
        "secretkey",
        "authtoken",
        "accesstoken",
        "hftoken",
        "secretaccesskey",
    ];
    let camel = words.iter().any(|w| joined.contains(&w.as_str()));
    ((names || keys || camel) && !is_place && !plain).then_some("(hidden)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_reach_the_report() {
        let mut report = Report::default();
        let place = Place::option(".env");
        for (key, value) in [
            ("HF_TOKEN", "hf_abc"),
            ("--api-key", "k"),
            ("MAX_INPUT_TOKENS", "1024"),
            ("AWS_SECRET_ACCESS_KEY", "wJalr"),
            ("OPENAI_APIKEY", "k"),
            ("--long-prefill-token-threshold", "512"),
            ("--trust-token", "true"),
            ("HF_TOKEN_PATH", "/run/token"),
            ("spec.imagePullSecrets[].name", "registry"),
            ("containers[].env[].valueFrom.secretKeyRef.name", "hf"),
            ("kv-secret", "s3cr3t"),
        ] {
            report.add(&place, key, value, Fate::NoEffect, "");
        }
        let values: Vec<&str> = report.keys.iter().map(|k| k.value.as_str()).collect();
        let hidden = "(hidden)";
        assert_eq!(
            values,
            [
                hidden,
                hidden,
                "1024",
                hidden,
                hidden,
                "512",
                "true",
                "/run/token",
                "registry",
                "hf",
                hidden
            ]
        );
        assert_eq!(
            report.render().lines().last(),
            Some(
                "Import: 0 keys used, 0 not simulated, 0 not understood, 11 without effect; 0 defaults taken, 0 warnings."
            )
        );
    }
}
