//! A TOML text with its overrides, as a tree that still knows the line of every key.
//!
//! Overrides (`--set key.path=value`) are laid over the tree before anything is checked, so a value is
//! treated alike wherever it comes from. Each override's text gets its own stretch of offsets behind
//! the file's, so one table of places serves both.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use hwmodels::files::Files;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Issue, ScenarioError};

/// Longest scenario file that is read [bytes]. The shipped ones have less than 4 KiB.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// A stretch of offsets that belongs to an override.
struct OverrideSpan {
    range: Range<usize>,
    label: String,
}

/// Where every key of a scenario was written.
#[derive(Clone, Debug, Default)]
pub struct Places {
    origin: String,
    by_path: BTreeMap<String, String>,
}

impl Places {
    /// Whether `path` was written.
    pub(super) fn has(&self, path: &str) -> bool {
        self.by_path.contains_key(path)
    }

    /// An error at `path`, placed at that key or at the nearest table around it that was written.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ScenarioError {
        let mut at = path;
        let place = loop {
            if let Some(place) = self.by_path.get(at) {
                break place;
            }
            match at.rfind(['.', '[']) {
                Some(i) => at = &at[..i],
                None => break &self.origin,
            }
        };
        ScenarioError::new(place.clone(), path, message)
    }
}

/// A parsed scenario text with its overrides.
pub struct Document<'a> {
    origin: String,
    /// Offset of each line's first byte.
    lines: Vec<usize>,
    overrides: Vec<OverrideSpan>,
    root: Spanned<DeTable<'a>>,
}

/// Reads a file of at most [`MAX_FILE_BYTES`], in UTF-8; `what` it is stands in messages, e.g. "the scenario".
pub fn read_text(files: &dyn Files, path: &Path, what: &str) -> Result<String, ScenarioError> {
    let origin = path.display().to_string();
    let fail = |message: String| ScenarioError::new(origin.clone(), "", message);
    let unreadable = |e: std::io::Error| fail(format!("cannot read {what}: {e}"));
    let opened = files.open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::IsADirectory => fail(format!("is a folder; name the file of {what}")),
        _ => unreadable(e),
    })?;
    if opened.bytes > MAX_FILE_BYTES {
        return Err(fail(format!(
            "has {} bytes; {what} has at most {MAX_FILE_BYTES}",
            opened.bytes
        )));
    }
    // A pipe or a device claims no length, so the limit is kept while reading, too.
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut std::io::Read::take(opened.reader, MAX_FILE_BYTES + 1),
        &mut bytes,
    )
    .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(fail(format!(
            "is longer than the {MAX_FILE_BYTES} bytes that {what} may have"
        )));
    }
    text_of(bytes, &origin)
}

/// The bytes as text, without a byte-order mark; the error names the line of the first byte that is not UTF-8.
pub fn text_of(bytes: Vec<u8>, origin: &str) -> Result<String, ScenarioError> {
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        ScenarioError::new(
            format!("{origin}:{line}"),
            "",
            format!("byte {at} is not UTF-8; save the file as UTF-8 text"),
        )
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

impl<'a> Document<'a> {
    /// Parses `text`, read from `origin`, and lays `overrides` (`key.path=value`) over it.
    pub fn parse(
        text: &'a str,
        origin: &str,
        overrides: &'a [String],
    ) -> Result<Document<'a>, ScenarioError> {
        let mut lines = vec![0];
        lines.extend(
            text.bytes()
                .enumerate()
                .filter(|(_, b)| *b == b'\n')
                .map(|(i, _)| i + 1),
        );
        let mut document = Document {
            origin: origin.to_string(),
            lines,
            overrides: Vec::new(),
            root: Spanned::new(0..0, DeTable::new()),
        };
        if text.trim().is_empty() {
            return Err(ScenarioError::new(
                origin,
                "",
                "is empty; a scenario needs at least [model], [hardware], [engine] and one [[workload]]",
            ));
        }
        let root = DeTable::parse(text).map_err(|e| {
            let place = e.span().map_or(origin.to_string(), |s| document.place(&s));
            ScenarioError::new(place, "", format!("not valid TOML: {}", e.message()))
        })?;
        let (span, table) = (root.span(), root.into_inner());
        if let DeValue::Table(table) = shifted(DeValue::Table(table), 0) {
            document.root = Spanned::new(span, table);
        }
        let mut offset = text.len() + 1;
        for o in overrides {
            document.apply(o, &mut offset)?;
        }
        Ok(document)
    }

    /// Offsets of the whole text.
    pub fn root_span(&self) -> Range<usize> {
        self.root.span()
    }

    /// Whether there is a key at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.exact(path).is_some()
    }

    /// Offset that orders issues as the file does; what is not in the file comes last.
    pub fn line_of(&self, path: &str) -> usize {
        self.span_of(path).map_or(usize::MAX, |s| s.start)
    }

    /// Where every key was written.
    pub fn places(&self) -> Places {
        fn walk(
            d: &Document<'_>,
            table: &DeTable<'_>,
            prefix: &str,
            out: &mut BTreeMap<String, String>,
        ) {
            for (k, v) in table {
                let path = join(prefix, k.get_ref());
                out.insert(path.clone(), d.place(&k.span()));
                descend(d, v, &path, out);
            }
        }
        fn descend(
            d: &Document<'_>,
            v: &Spanned<DeValue<'_>>,
            path: &str,
            out: &mut BTreeMap<String, String>,
        ) {
            match v.get_ref() {
                DeValue::Table(t) => walk(d, t, path, out),
                DeValue::Array(a) => {
                    for (i, item) in a.iter().enumerate() {
                        // Plain numbers (points of a table) stand where their list does.
                        if item.get_ref().is_table() {
                            let path = format!("{path}[{i}]");
                            out.insert(path.clone(), d.place(&item.span()));
                            descend(d, item, &path, out);
                        }
                    }
                }
                _ => {}
            }
        }
        let mut by_path = BTreeMap::new();
        walk(self, self.root.get_ref(), "", &mut by_path);
        Places {
            origin: self.origin.clone(),
            by_path,
        }
    }

    /// The tree.
    pub fn root(&self) -> &DeTable<'a> {
        self.root.get_ref()
    }

    /// File and line, or the override, of an offset range.
    pub fn place(&self, span: &Range<usize>) -> String {
        if let Some(o) = self
            .overrides
            .iter()
            .find(|o| o.range.contains(&span.start))
        {
            return format!("--set {}", o.label);
        }
        let line = self
            .lines
            .partition_point(|start| *start <= span.start)
            .max(1);
        format!("{}:{line}", self.origin)
    }

    /// An issue at `path`, placed at that key, or at the nearest table around it that exists.
    pub fn issue(&self, path: &str, message: impl Into<String>) -> Issue {
        Issue {
            place: self
                .span_of(path)
                .map_or_else(|| self.origin.clone(), |s| self.place(&s)),
            path: path.to_string(),
            message: message.into(),
        }
    }

    /// [`Document::issue`] as an error.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ScenarioError {
        ScenarioError::from_issues(vec![self.issue(path, message)])
    }

    /// Reads a table, which stands at `path`, as `T`; serde's complaint is placed at the key it is about.
    pub fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        table: Spanned<DeTable<'_>>,
    ) -> Result<T, ScenarioError> {
        T::deserialize(toml::de::Deserializer::from(table)).map_err(|e| self.serde_error(&e, path))
    }

    /// Serde's complaint, placed at the key it is about, or else at `fallback`.
    pub fn serde_error(&self, e: &toml::de::Error, fallback: &str) -> ScenarioError {
        let message = e.message().trim().replace('\n', " ");
        match e.span().and_then(|s| Some((self.path_of(&s)?, s))) {
            Some((path, span)) => {
                let message = super::shape::in_the_words_of_files(&message, &path);
                ScenarioError::new(self.place(&span), path, message)
            }
            None => self.error(fallback, message),
        }
    }

    /// Offsets of the key at `path`, or of the nearest one around it.
    fn span_of(&self, path: &str) -> Option<Range<usize>> {
        self.find(path).map(|(span, _)| span)
    }

    /// Offsets of the key at exactly `path`.
    fn exact(&self, path: &str) -> Option<Range<usize>> {
        self.find(path)
            .and_then(|(span, whole)| whole.then_some(span))
    }

    /// Offsets of the key at `path` or of the nearest one around it, and whether it is the key itself.
    fn find(&self, path: &str) -> Option<(Range<usize>, bool)> {
        let mut steps = steps(path).into_iter();
        let Some(Step::Key(first)) = steps.next() else {
            return None;
        };
        let (key, mut value) = self.root.get_ref().get_key_value(first.as_str())?;
        let mut found = key.span();
        for step in steps {
            let next = match (step, value.get_ref()) {
                (Step::Key(key), DeValue::Table(t)) => {
                    t.get_key_value(key.as_str()).map(|(k, v)| (k.span(), v))
                }
                (Step::Index(i), DeValue::Array(a)) => a.get(i).map(|v| (v.span(), v)),
                _ => None,
            };
            let Some((span, v)) = next else {
                return Some((found, false));
            };
            (found, value) = (span, v);
        }
        Some((found, true))
    }

    /// Path of the smallest key or value whose offsets hold `span`.
    fn path_of(&self, span: &Range<usize>) -> Option<String> {
        fn walk(
            table: &DeTable<'_>,
            prefix: &str,
            span: &Range<usize>,
            best: &mut Option<(usize, String)>,
        ) {
            for (k, v) in table {
                let path = join(prefix, k.get_ref());
                consider(&k.span(), &path, span, best);
                descend(v, &path, span, best);
            }
        }
        fn descend(
            v: &Spanned<DeValue<'_>>,
            path: &str,
            span: &Range<usize>,
            best: &mut Option<(usize, String)>,
        ) {
            consider(&v.span(), path, span, best);
            match v.get_ref() {
                DeValue::Table(t) => walk(t, path, span, best),
                DeValue::Array(a) => {
                    for (i, item) in a.iter().enumerate() {
                        descend(item, &format!("{path}[{i}]"), span, best);
                    }
                }
                _ => {}
            }
        }
        fn consider(
            own: &Range<usize>,
            path: &str,
            span: &Range<usize>,
            best: &mut Option<(usize, String)>,
        ) {
            let holds = own.start <= span.start && span.end <= own.end;
            let smaller = best.as_ref().is_none_or(|(len, _)| own.len() <= *len);
            if holds && smaller {
                *best = Some((own.len(), path.to_string()));
            }
        }
        let mut best = None;
        walk(self.root.get_ref(), "", span, &mut best);
        best.map(|(_, path)| path)
    }

    fn apply(&mut self, text: &'a str, offset: &mut usize) -> Result<(), ScenarioError> {
        let place = format!("--set {text}");
        let fail = |message: String| ScenarioError::new(place.clone(), "", message);
        let Some((key, value)) = text.split_once('=') else {
            return Err(fail(
                "no `=`; write key.path=value, e.g. engine.max_num_seqs=64".into(),
            ));
        };
        let (key, value) = (key.trim(), value.trim());
        let steps = steps(key);
        if steps.is_empty() || steps.len() > 16 || key.split('.').any(str::is_empty) {
            return Err(fail(format!(
                "`{key}` is no key path; write e.g. workload[0].arrival.rate"
            )));
        }
        if value.len() as u64 > MAX_FILE_BYTES {
            return Err(fail("the value is too long".into()));
        }
        // What is no TOML value is text, so that quotes need not survive the shell: run.duration=10 min.
        let parsed = DeValue::parse(value).map(Spanned::into_inner);
        let parsed = match parsed {
            Ok(v) => v,
            Err(e) if value.starts_with(['"', '\'', '[', '{']) => {
                return Err(fail(format!(
                    "the value is not valid TOML: {}",
                    e.message()
                )));
            }
            Err(_) => DeValue::String(value.to_string().into()),
        };
        let range = *offset..*offset + value.len().max(1);
        let parsed = Spanned::new(range.clone(), shifted(parsed, *offset));
        *offset = range.end + 1;
        self.overrides.push(OverrideSpan {
            range: range.clone(),
            label: text.to_string(),
        });
        insert(self.root.get_mut(), &steps, parsed, &range).map_err(fail)
    }
}

/// Puts `value` at `steps` below `table`, making tables on the way.
fn insert<'a>(
    table: &mut DeTable<'a>,
    steps: &[Step],
    value: Spanned<DeValue<'a>>,
    range: &Range<usize>,
) -> Result<(), String> {
    let Some((Step::Key(key), rest)) = steps.split_first() else {
        return Err("a key path starts with a name".into());
    };
    let existing = table.keys().find(|k| k.get_ref() == key).cloned();
    if rest.is_empty() {
        // Removing first replaces the key's place as well as its value.
        if let Some(k) = existing {
            table.remove(&k);
        }
        table.insert(Spanned::new(range.clone(), key.clone().into()), value);
        return Ok(());
    }
    let slot = match existing {
        Some(k) => table.get_mut(&k),
        None => {
            let k = Spanned::new(range.clone(), key.clone().into());
            table.insert(
                k.clone(),
                Spanned::new(range.clone(), DeValue::Table(DeTable::new())),
            );
            table.get_mut(&k)
        }
    };
    let slot = slot.ok_or_else(|| format!("`{key}` cannot be set"))?;
    set(slot, key, rest, value, range)
}

/// Puts `value` at `steps` below `slot`, which is called `name`. A list is entered by index, or by the name of one of
/// its tables.
fn set<'a>(
    slot: &mut Spanned<DeValue<'a>>,
    name: &str,
    steps: &[Step],
    value: Spanned<DeValue<'a>>,
    range: &Range<usize>,
) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        *slot = value;
        return Ok(());
    };
    match slot.get_mut() {
        DeValue::Table(inner) => insert(inner, steps, value, range),
        DeValue::Array(items) => {
            let len = items.len();
            let index = match step {
                Step::Index(i) => *i,
                Step::Key(key) => items
                    .iter()
                    .position(|v| {
                        v.get_ref().get("name").and_then(|n| n.get_ref().as_str()) == Some(key)
                    })
                    .or_else(|| key.parse().ok())
                    .ok_or_else(|| {
                        format!("`{name}` is a list of {len} without one named `{key}`; write e.g. {name}[0]")
                    })?,
            };
            let item = items.get_mut(index).ok_or_else(|| {
                format!("`{name}` has {len} element(s), so there is no [{index}]")
            })?;
            set(item, &format!("{name}[{index}]"), rest, value, range)
        }
        other => Err(format!(
            "`{name}` is a {}; it holds no keys",
            other.type_str()
        )),
    }
}

/// One step of a key path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// `a.b[0].c` as steps; empty when it is no path.
fn steps(path: &str) -> Vec<Step> {
    let mut out = Vec::new();
    for part in path.split('.') {
        let (name, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
        if name.is_empty() {
            return Vec::new();
        }
        out.push(Step::Key(name.to_string()));
        while let Some(inner) = rest.strip_prefix('[') {
            let Some((index, after)) = inner.split_once(']') else {
                return Vec::new();
            };
            let Ok(i) = index.parse() else {
                return Vec::new();
            };
            out.push(Step::Index(i));
            rest = after;
        }
        if !rest.is_empty() {
            return Vec::new();
        }
    }
    out
}

/// `prefix.key`.
pub fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() {
        return key.to_string();
    }
    format!("{prefix}.{key}")
}

/// The value with its offsets moved by `shift`.
fn shifted(value: DeValue<'_>, shift: usize) -> DeValue<'_> {
    let moved = |s: Range<usize>| s.start + shift..s.end + shift;
    match value {
        DeValue::Table(t) => DeValue::Table(
            t.into_iter()
                .map(|(k, v)| {
                    let (ks, vs) = (moved(k.span()), moved(v.span()));
                    (
                        Spanned::new(ks, k.into_inner()),
                        Spanned::new(vs, shifted(v.into_inner(), shift)),
                    )
                })
                .collect(),
        ),
        DeValue::Array(a) => DeValue::Array(
            a.into_iter()
                .map(|v| Spanned::new(moved(v.span()), shifted(v.into_inner(), shift)))
                .collect(),
        ),
        // No key holds a date as such; one written without quotes is meant as its text.
        DeValue::Datetime(d) => DeValue::String(d.to_string().into()),
        plain => plain,
    }
}
