//! YAML 1.2 (and JSON, which is a part of it) as a tree that knows its lines.
//!
//! The grammar is `saphyr-parser`'s, whose events carry their lines; what becomes of them is decided here, since the tree builders of YAML crates lose lines
//! or let anchors multiply. Keys that come twice are refused, as Kubernetes and Helm refuse them. An alias is shared, not copied, but counts as if it
//! were, so that a few lines of anchors within anchors cannot stand for a million keys.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::{MAX_BYTES, MAX_DEPTH, Wrong};
use crate::place::shown;

/// Most nodes of a file with its aliases written out; long texts count as several.
const MAX_NODES: usize = 200_000;
/// Text that counts as one more node [bytes].
const NODE_BYTES: usize = 128;
/// Most documents of a file.
const MAX_DOCUMENTS: usize = 1_000;
/// Longest key [bytes].
const MAX_KEY: usize = 512;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Line, counted from 1.
    pub line: u32,
    /// What is there.
    pub value: Value,
    /// Nodes in it, itself included, aliases written out.
    size: usize,
    /// Levels in it, itself included.
    depth: usize,
}

/// What stands at a place of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A plain or quoted scalar.
    Scalar {
        /// Its text.
        text: String,
        /// Whether it had quotes or was a block, and so is text whatever it looks like.
        quoted: bool,
    },
    /// A sequence.
    List(Vec<Rc<Node>>),
    /// A mapping, in the file's order.
    Map(Vec<Entry>),
}

/// A key of a mapping with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// The key's line.
    pub line: u32,
    /// Its value.
    pub value: Rc<Node>,
}

impl Node {
    fn scalar(line: u32, text: String, quoted: bool) -> Node {
        let size = 1 + text.len() / NODE_BYTES;
        Node {
            line,
            value: Value::Scalar { text, quoted },
            size,
            depth: 1,
        }
    }

    /// The scalar's text; none for a list, a mapping or null.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, quoted } if *quoted || !is_null(text) => Some(text),
            _ => None,
        }
    }

    /// Whether there is nothing here: an empty scalar, `~` or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, quoted: false } if is_null(text))
    }

    /// The mapping's value of `key`; none where that is null.
    pub fn get(&self, key: &str) -> Option<&Rc<Node>> {
        self.entry(key).map(|e| &e.value).filter(|v| !v.is_null())
    }

    /// The mapping's entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|e| e.key == key)
    }

    /// The value at a way of keys.
    pub fn at(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter()
            .try_fold(self, |node, key| node.get(key).map(|n| &**n))
    }

    /// The mapping's entries; none for anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The list's items; none for anything else.
    pub fn items(&self) -> &[Rc<Node>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// A mapping with this node as its only value.
    pub fn wrapped(self, key: &str) -> Node {
        let (line, size, depth) = (self.line, self.size + 1, self.depth + 1);
        let entry = Entry {
            key: key.to_owned(),
            line,
            value: Rc::new(self),
        };
        Node {
            line,
            value: Value::Map(vec![entry]),
            size,
            depth,
        }
    }

    /// The node with each line so many further down, for a text within another.
    pub fn below(&self, lines: u32) -> Node {
        self.relined(&|line| line.saturating_add(lines))
    }

    /// The node with every line on `line`.
    pub fn on_line(&self, line: u32) -> Node {
        self.relined(&|_| line)
    }

    fn relined(&self, line: &dyn Fn(u32) -> u32) -> Node {
        let value = match &self.value {
            Value::List(items) => {
                Value::List(items.iter().map(|i| Rc::new(i.relined(line))).collect())
            }
            Value::Map(entries) => Value::Map(
                (entries.iter())
                    .map(|e| Entry {
                        key: e.key.clone(),
                        line: line(e.line),
                        value: Rc::new(e.value.relined(line)),
                    })
                    .collect(),
            ),
            scalar => scalar.clone(),
        };
        Node {
            line: line(self.line),
            value,
            ..*self
        }
    }

    /// Values in it, itself included.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether it is larger or deeper than a file may be.
    pub fn is_too_large(&self) -> bool {
        self.size > MAX_NODES || self.depth > MAX_DEPTH
    }

    /// A node with this value in place of its own.
    pub fn with(&self, value: Value) -> Node {
        let node = Node {
            line: self.line,
            value,
            size: 1,
            depth: 1,
        };
        node.measured()
    }

    /// With its size and depth as they are.
    fn measured(mut self) -> Node {
        let inner: Vec<&Rc<Node>> = match &self.value {
            Value::List(items) => items.iter().collect(),
            Value::Map(entries) => entries.iter().map(|e| &e.value).collect(),
            Value::Scalar { text, .. } => {
                self.size = 1 + text.len() / NODE_BYTES;
                return self;
            }
        };
        let size = inner.iter().fold(1, |n, i| i.size.saturating_add(n));
        let depth = 1 + inner.iter().map(|i| i.depth).max().unwrap_or(0);
        (self.size, self.depth) = (size, depth);
        self
    }

    /// Whether it is a mapping.
    pub fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// The documents of a file. Empty ones are left out.
///
/// # Errors
/// What is no YAML, and what is beyond a limit.
pub fn documents(text: &str) -> Result<Vec<Rc<Node>>, Wrong> {
    if text.len() > MAX_BYTES {
        return Err(Wrong::new(
            1,
            format!(
                "the file has {} bytes; at most {MAX_BYTES} are read",
                text.len()
            ),
        ));
    }
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| {
            Wrong::new(
                line_of(e.marker().line()),
                format!("not valid YAML: {}", shown(e.info())),
            )
        })?;
        builder.take(event, span)?;
    }
    Ok(builder.done)
}

fn line_of(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX).max(1)
}

/// A list or mapping that has not ended yet.
enum Open {
    List {
        line: u32,
        anchor: usize,
        items: Vec<Rc<Node>>,
    },
    Map {
        line: u32,
        anchor: usize,
        entries: Vec<Entry>,
        keys: BTreeSet<String>,
        merged: Vec<Rc<Node>>,
        /// The key whose value comes next.
        key: Option<(String, u32)>,
    },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Rc<Node>>,
    nodes: usize,
    done: Vec<Rc<Node>>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Wrong> {
        let line = line_of(span.start.line());
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.put(node, 0, line),
                None => Err(Wrong::new(
                    line,
                    "an alias of a value that has not ended: a value cannot hold itself",
                )),
            },
            Event::Scalar(text, style, anchor, _) => self.scalar(text, style, anchor, line),
            Event::SequenceStart(anchor, _) => self.enter(Open::List {
                line,
                anchor,
                items: Vec::new(),
            }),
            Event::MappingStart(anchor, _) => self.enter(Open::Map {
                line,
                anchor,
                entries: Vec::new(),
                keys: BTreeSet::new(),
                merged: Vec::new(),
                key: None,
            }),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => {
                    let (node, anchor) = closed(open)?;
                    let line = node.line;
                    self.put(Rc::new(node), anchor, line)
                }
                None => Ok(()),
            },
        }
    }

    fn enter(&mut self, open: Open) -> Result<(), Wrong> {
        let (Open::List { line, .. } | Open::Map { line, .. }) = &open;
        if self.open.len() >= MAX_DEPTH {
            return Err(Wrong::new(
                *line,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.open.push(open);
        Ok(())
    }

    fn scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        anchor: usize,
        line: u32,
    ) -> Result<(), Wrong> {
        let quoted = !matches!(style, ScalarStyle::Plain);

        self.put(
            Rc::new(Node::scalar(line, text.into_owned(), quoted)),
            anchor,
            line,
        )
    }

    /// Puts a whole node where it belongs: it is a key, a value, an item, or a document.
    fn put(&mut self, node: Rc<Node>, anchor: usize, line: u32) -> Result<(), Wrong> {
        self.nodes = self.nodes.saturating_add(node.size);
        if self.nodes > MAX_NODES {
            return Err(Wrong::new(
                line,
                format!("more than {MAX_NODES} values, with those that aliases (`*name`) repeat"),
            ));
        }
        if self.open.len() + node.depth > MAX_DEPTH {
            return Err(Wrong::new(
                line,
                format!(
                    "nested more than {MAX_DEPTH} levels deep, with what aliases (`*name`) repeat"
                ),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.open.last_mut() {
            None => {
                if self.done.len() >= MAX_DOCUMENTS {
                    return Err(Wrong::new(
                        line,
                        format!("more than {MAX_DOCUMENTS} documents"),
                    ));
                }
                if !node.is_null() {
                    self.done.push(node);
                }
            }
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map {
                entries,
                keys,
                merged,
                key,
                ..
            }) => match key.take() {
                None => {
                    let Value::Scalar { text, .. } = &node.value else {
                        return Err(Wrong::new(line, "a key must be text"));
                    };
                    if text.len() > MAX_KEY {
                        return Err(Wrong::new(
                            line,
                            format!("a key of more than {MAX_KEY} bytes"),
                        ));
                    }
                    *key = Some((text.clone(), line));
                }
                Some((name, _)) if name == "<<" => merged.push(node),
                Some((name, at)) => {
                    if !keys.insert(name.clone()) {
                        return Err(Wrong::new(
                            at,
                            format!("the key `{}` comes twice", shown(&name)),
                        ));
                    }
                    entries.push(Entry {
                        key: name,
                        line: at,
                        value: node,
                    });
                }
            },
        }
        Ok(())
    }
}

/// A list or mapping that has ended, and its anchor.
fn closed(open: Open) -> Result<(Node, usize), Wrong> {
    match open {
        Open::List {
            line,
            anchor,
            items,
        } => {
            let size = items.iter().fold(1, |n, i| i.size.saturating_add(n));
            let depth = 1 + items.iter().map(|i| i.depth).max().unwrap_or(0);
            let value = Value::List(items);
            Ok((
                Node {
                    line,
                    value,
                    size,
                    depth,
                },
                anchor,
            ))
        }
        Open::Map {
            line,
            anchor,
            mut entries,
            mut keys,
            merged,
            ..
        } => {
            // `<<: *defaults` gives what the mapping itself does not say.
            for node in &merged {
                let sources: Vec<&Rc<Node>> = match &node.value {
                    Value::Map(_) => vec![node],
                    Value::List(items) => items.iter().collect(),
                    Value::Scalar { .. } => Vec::new(),
                };
                if sources.is_empty() || !sources.iter().all(|s| s.is_map()) {
                    return Err(Wrong::new(
                        node.line,
                        "`<<` merges mappings, e.g. <<: *defaults",
                    ));
                }
                for entry in sources.iter().flat_map(|s| s.entries()) {
                    if keys.insert(entry.key.clone()) {
                        entries.push(entry.clone());
                    }
                }
            }
            let size = entries
                .iter()
                .fold(1, |n, e| e.value.size.saturating_add(n));
            let depth = 1 + entries.iter().map(|e| e.value.depth).max().unwrap_or(0);
            let value = Value::Map(entries);
            Ok((
                Node {
                    line,
                    value,
                    size,
                    depth,
                },
                anchor,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Rc<Node> {
        let mut all = documents(text).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn values_know_their_lines() {
        let doc = one("a: 1\nb:\n  - x\n  - y: |\n      run\n      it\n");
        assert_eq!(doc.get("a").unwrap().text(), Some("1"));
        let list = doc.get("b").unwrap();
        assert_eq!(list.items()[0].line, 3);
        let block = list.items()[1].get("y").unwrap();
        assert_eq!((block.line, block.text()), (5, Some("run\nit\n")));
    }

    #[test]
    fn documents_and_json_are_read() {
        assert_eq!(documents("---\na: 1\n---\n---\nb: 2\n").unwrap().len(), 2);
        let doc = one("{\n  \"a\": {\"b\": [1, null, \"x\\n\"]}\n}\n");
        let list = doc.at(&["a", "b"]).unwrap();
        assert_eq!(list.items()[0].text(), Some("1"));
        assert!(list.items()[1].is_null());
        assert_eq!(list.items()[2].text(), Some("x\n"));
    }

    #[test]
    fn aliases_and_merges_are_followed() {
        let doc = one("base: &b\n  x: 1\n  y: 2\nuse:\n  <<: *b\n  y: 3\nagain: *b\n");
        assert_eq!(doc.at(&["use", "x"]).unwrap().text(), Some("1"));
        assert_eq!(doc.at(&["use", "y"]).unwrap().text(), Some("3"));
        assert_eq!(doc.at(&["again", "y"]).unwrap().text(), Some("2"));
    }

    #[test]
    fn keys_that_come_twice_are_refused_with_their_line() {
        let wrong = documents("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert_eq!(wrong, Wrong::new(3, "the key `a` comes twice"));
    }

    #[test]
    fn anchors_within_anchors_do_not_multiply() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..30 {
            let before = format!("*a{},", i - 1).repeat(10);
            text += &format!("a{i}: &a{i} [{before}]\n");
        }
        let wrong = documents(&text).unwrap_err();
        assert!(wrong.message.contains("aliases"), "{wrong:?}");
    }

    #[test]
    fn depth_is_limited_however_it_is_reached() {
        let deep = "[".repeat(100_000);
        assert!(documents(&deep).is_err());
        let block: String = (0..200).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
        assert!(documents(&block).unwrap_err().message.contains("deep"));
        let mut chain = String::from("a0: &a0 [x]\n");
        for i in 1..100 {
            chain += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
        }
        assert!(documents(&chain).unwrap_err().message.contains("deep"));
    }

    #[test]
    fn a_value_cannot_hold_itself() {
        assert!(documents("a: &a [*a]\n").is_err());
    }
}
