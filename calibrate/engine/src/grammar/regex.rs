//! Regular expressions to grammar nodes, by the `regex-syntax` crate.

use std::collections::BTreeMap;

use regex_syntax::hir::{Class, Hir, HirKind, Look};
use regex_syntax::utf8::Utf8Sequences;

use super::{Builder, Node, NodeId};

/// Bytes from the first to the last, both included.
type ByteRange = (u8, u8);

/// What a character of the expression is written as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// As it is.
    Plain,
    /// As within a JSON string: quotes, backslashes and control characters by their escapes.
    Json,
}

/// Text that `pattern` matches as a whole.
pub(super) fn whole(b: &mut Builder, pattern: &str) -> Result<NodeId, String> {
    let hir = parse(pattern)?;
    top(b, &hir, Spelling::Plain, None)
}

/// The inside of a JSON string some part of which `pattern` matches, as JSON Schema has it: `^` and `$` bind it to the ends.
/// `filler`: any number of characters.
pub(super) fn within_string(
    b: &mut Builder,
    pattern: &str,
    filler: NodeId,
) -> Result<NodeId, String> {
    let hir = parse(pattern)?;
    top(b, &hir, Spelling::Json, Some(filler))
}

fn parse(pattern: &str) -> Result<Hir, String> {
    regex_syntax::Parser::new()
        .parse(pattern)
        // The library's message is of several lines with a pointer; its last line says what is wrong.
        .map_err(|e| {
            let text = e.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!("`{pattern}` is no regular expression: {last}")
        })
}

/// An expression with anchors at its ends.
fn top(
    b: &mut Builder,
    hir: &Hir,
    spelling: Spelling,
    filler: Option<NodeId>,
) -> Result<NodeId, String> {
    let parts = match hir.kind() {
        HirKind::Alternation(of) => {
            let of = of
                .iter()
                .map(|h| top(b, h, spelling, filler))
                .collect::<Result<_, _>>()?;
            return Ok(b.add(Node::Alt(of)));
        }
        HirKind::Concat(of) => of.as_slice(),
        _ => std::slice::from_ref(hir),
    };
    let is = |h: Option<&Hir>, look| h.is_some_and(|h| *h.kind() == HirKind::Look(look));
    let (mut from, mut to) = (0, parts.len());
    while from < to && is(parts.get(from), Look::Start) {
        from += 1;
    }
    while to > from && is(parts.get(to - 1), Look::End) {
        to -= 1;
    }
    let mut seq = Vec::new();
    seq.extend(filler.filter(|_| from == 0));
    for h in &parts[from..to] {
        seq.push(node(b, h, spelling)?);
    }
    seq.extend(filler.filter(|_| to == parts.len()));
    Ok(b.add(Node::Seq(seq)))
}

fn node(b: &mut Builder, hir: &Hir, spelling: Spelling) -> Result<NodeId, String> {
    b.check()?;
    let all = |b: &mut Builder, of: &[Hir]| -> Result<Vec<NodeId>, String> {
        of.iter().map(|h| node(b, h, spelling)).collect()
    };
    Ok(match hir.kind() {
        HirKind::Empty => b.empty(),
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).map_err(|_| "it matches broken UTF-8")?;
            match spelling {
                Spelling::Plain => b.text(text),
                Spelling::Json => {
                    let text: String = text.chars().map(escaped).collect();
                    b.text(&text)
                }
            }
        }
        HirKind::Class(class) => {
            let ranges: Vec<(char, char)> = match class {
                Class::Unicode(c) => c.ranges().iter().map(|r| (r.start(), r.end())).collect(),
                Class::Bytes(c) => {
                    let ascii = |r: &regex_syntax::hir::ClassBytesRange| {
                        (char::from(r.start()), char::from(r.end()))
                    };
                    c.ranges().iter().map(ascii).collect()
                }
            };
            characters(b, &ranges, spelling)
        }
        HirKind::Look(_) => {
            return Err("of `^`, `$` and other assertions only `^` at its beginning and `$` at its end are supported".into());
        }
        HirKind::Repetition(r) => {
            let of = node(b, &r.sub, spelling)?;
            b.add(Node::Repeat {
                of,
                min: r.min,
                max: r.max,
            })
        }
        HirKind::Capture(c) => node(b, &c.sub, spelling)?,
        HirKind::Concat(of) => {
            let of = all(b, of)?;
            b.add(Node::Seq(of))
        }
        HirKind::Alternation(of) => {
            let of = all(b, of)?;
            b.add(Node::Alt(of))
        }
    })
}

/// How JSON writes a character within a string.
fn escaped(c: char) -> String {
    match c {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32),
        c => c.into(),
    }
}

/// One character of `ranges`.
fn characters(b: &mut Builder, ranges: &[(char, char)], spelling: Spelling) -> NodeId {
    let is_plain = |c: char| spelling == Spelling::Plain || escaped(c).len() == c.len_utf8();
    let mut ways = Vec::new();
    let mut plain: Vec<(char, char)> = Vec::new();
    for &(first, last) in ranges {
        if first > '\\' {
            plain.push((first, last));
            continue;
        }
        // All characters with an escape are ASCII: look at those one by one.
        for c in (first..=last).take_while(|c| c.is_ascii()) {
            if is_plain(c) {
                plain.push((c, c));
            } else {
                ways.push(b.text(&escaped(c)));
            }
        }
        if last > '\u{7f}' {
            plain.push((first.max('\u{80}'), last));
        }
    }
    let sequences: Vec<Vec<(u8, u8)>> = plain
        .iter()
        .flat_map(|&(first, last)| Utf8Sequences::new(first, last))
        .map(|s| s.as_slice().iter().map(|r| (r.start, r.end)).collect())
        .collect();
    if !sequences.is_empty() {
        let tails = sequences.iter().map(Vec::as_slice).collect();
        ways.push(utf8(b, tails));
    }
    b.add(Node::Alt(ways))
}

/// One of these sequences of byte ranges; those that begin alike share their beginning.
fn utf8(b: &mut Builder, sequences: Vec<&[(u8, u8)]>) -> NodeId {
    let mut single: Vec<(u8, u8)> = Vec::new();
    let mut longer: BTreeMap<ByteRange, Vec<&[ByteRange]>> = BTreeMap::new();
    for s in sequences {
        match s {
            [] => {}
            [only] => single.push(*only),
            [first, rest @ ..] => longer.entry(*first).or_default().push(rest),
        }
    }
    let mut ways = Vec::new();
    if !single.is_empty() {
        ways.push(b.add(Node::Byte(joined(single))));
    }
    for (first, rest) in longer {
        let first = b.add(Node::Byte(vec![first]));
        let rest = utf8(b, rest);
        ways.push(b.add(Node::Seq(vec![first, rest])));
    }
    match ways.as_slice() {
        [only] => *only,
        _ => b.add(Node::Alt(ways)),
    }
}

/// Ranges with neighbours put together.
fn joined(mut ranges: Vec<(u8, u8)>) -> Vec<(u8, u8)> {
    ranges.sort_unstable();
    let mut out: Vec<(u8, u8)> = Vec::new();
    for (first, last) in ranges {
        match out.last_mut() {
            Some(l) if u16::from(first) <= u16::from(l.1) + 1 => l.1 = l.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}
