//! Documents as trees of keys: what a table knows of each, and what remains.

use std::sync::Arc;

use super::draft::{Draft, Origin};
use crate::keys::{Meaning, Table};
use crate::place::Place;
use crate::report::Fate;
use crate::text::yaml::{Node, Value};

/// Longest way of keys that is told apart [bytes].
const MAX_PATH: usize = 400;

/// A document, or a part of one.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    /// Its root.
    pub node: &'a Node,
    /// The file.
    pub file: &'a Arc<str>,
}

/// A way of keys to a value, as it is written and as reports and tables spell it.
pub struct Found<'a> {
    /// The value.
    pub node: &'a Node,
    /// Where from.
    pub origin: Origin,
}

impl<'a> Tree<'a> {
    /// The value at a way of keys below `prefix`, which is where this tree stands in its document.
    pub fn find(&self, prefix: &str, keys: &[&str]) -> Option<Found<'a>> {
        let (last, before) = keys.split_last()?;
        let parent = self.node.at(before)?;
        let entry = parent.entry(last)?;
        if entry.value.is_null() {
            return None;
        }
        let key = keys
            .iter()
            .fold(prefix.to_owned(), |path, k| join(&path, k));
        let raw = entry.value.text().unwrap_or("").to_owned();
        Some(Found {
            node: &entry.value,
            origin: Origin::new(Place::new(self.file, entry.line), key, raw),
        })
    }

    /// A scalar as text.
    pub fn text(&self, prefix: &str, keys: &[&str]) -> Option<(String, Origin)> {
        let found = self.find(prefix, keys)?;
        Some((found.node.text()?.to_owned(), found.origin))
    }

    /// A whole number of at least 0; what else it is goes to the draft.
    pub fn whole(&self, prefix: &str, keys: &[&str], draft: &mut Draft) -> Option<(i64, Origin)> {
        let found = self.find(prefix, keys)?;
        let text = found.node.text().unwrap_or("a list or mapping");
        match crate::keys::whole(text) {
            Ok(n) if n >= 0 => Some((n, found.origin)),
            Ok(n) => {
                draft.fault(found.origin.fault(format!("must be at least 0, got {n}")));
                None
            }
            Err(why) => {
                draft.fault(found.origin.fault(why));
                None
            }
        }
    }
}

/// `path.key`, with a key that holds dots or slashes in brackets.
pub fn join(path: &str, key: &str) -> String {
    // A way that long is no key of anybody's.
    if path.len() > MAX_PATH {
        return path.to_owned();
    }
    if key.contains(['.', '/']) {
        return format!("{path}[\"{key}\"]");
    }
    match path.is_empty() {
        true => key.to_owned(),
        false => format!("{path}.{key}"),
    }
}

/// Reports every value that has not been reported yet, by the table of the nearest prefix of its path. `tables` holds prefixes and their tables; what a table
/// reads (`Sets`, `Says`) has been dealt with by whoever read it.
pub fn sweep(tree: Tree<'_>, tables: &[(String, &Table)], draft: &mut Draft) {
    walk(tree, tree.node, "", tree.node.line, tables, draft);
}

fn walk(
    tree: Tree<'_>,
    node: &Node,
    path: &str,
    line: u32,
    tables: &[(String, &Table)],
    draft: &mut Draft,
) {
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                walk(
                    tree,
                    &entry.value,
                    &join(path, &entry.key),
                    entry.line,
                    tables,
                    draft,
                );
            }
        }
        Value::List(items) if !items.is_empty() => {
            let path = format!("{path}[]");
            for item in items {
                walk(tree, item, &path, item.line, tables, draft);
            }
        }
        _ => leaf(tree, node, path, line, tables, draft),
    }
}

fn leaf(
    tree: Tree<'_>,
    node: &Node,
    path: &str,
    line: u32,
    tables: &[(String, &Table)],
    draft: &mut Draft,
) {
    let value: String = node.text().unwrap_or("").chars().take(100).collect();
    let origin = Origin::new(Place::new(tree.file, line), path, value);
    if draft.has_seen(&origin) {
        return;
    }
    let nearest = tables
        .iter()
        .filter(|(prefix, _)| path.starts_with(prefix.as_str()))
        .max_by_key(|(prefix, _)| prefix.len());
    let Some((prefix, table)) = nearest else {
        draft.fate(&origin, Fate::NotUnderstood, "");
        return;
    };
    let inner = &path[prefix.len()..];
    match table.find(inner).map(|k| k.meaning) {
        Some(Meaning::Sets(..) | Meaning::Says(..)) => {}
        Some(Meaning::Idle) => draft.fate(&origin, Fate::NoEffect, ""),
        Some(Meaning::NotModelled(_)) if node.is_null() => draft.fate(&origin, Fate::NoEffect, ""),
        Some(Meaning::NotModelled(why)) => draft.fate(&origin, Fate::NotModelled, why),
        Some(Meaning::Refused(why)) => draft.fault(origin.fault(why)),
        None => {
            let hint = match table.nearest(inner) {
                Some(known) => format!("did you mean `{prefix}{known}`?"),
                None => String::new(),
            };
            draft.fate(&origin, Fate::NotUnderstood, hint);
        }
    }
}

/// A node as it stands below `prefix`, so that a part of a document is reported with its whole path.
pub fn under(node: &Node, prefix: &str) -> Node {
    (prefix.rsplit('.')).fold(node.clone(), |inner, key| inner.wrapped(key))
}
