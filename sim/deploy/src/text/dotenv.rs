//! Files of environment variables, as `docker compose` and `docker run --env-file` read them.
//!
//! Known crates put what they read into the process's environment and expand from it; a file must mean the same on every machine, so this reader
//! expands only what the file itself has set before.

use std::collections::BTreeMap;

use super::{MAX_BYTES, Wrong};
use crate::place::shown;

/// A variable and where it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Line, counted from 1.
    pub line: u32,
}

/// The variables of a file in their order; a later one overrides an earlier one of its name.
///
/// # Errors
/// A line that is no `NAME=value`, a quote that does not end.
pub fn variables(text: &str) -> Result<Vec<Variable>, Wrong> {
    if text.len() > MAX_BYTES {
        return Err(Wrong::new(
            1,
            format!("more than {MAX_BYTES} bytes of variables"),
        ));
    }
    let mut found: Vec<Variable> = Vec::new();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let number = u32::try_from(i + 1).unwrap_or(u32::MAX);
        let line = line.trim_start_matches('\u{feff}').trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if found.len() >= MAX_VARIABLES {
            return Err(Wrong::new(
                number,
                format!("more than {MAX_VARIABLES} variables"),
            ));
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(Wrong::new(
                number,
                format!("`{}` is no NAME=value", shown(line)),
            ));
        };
        let name = name.trim_end();
        if !is_name(name) {
            return Err(Wrong::new(
                number,
                format!("`{}` is no name of a variable", shown(name)),
            ));
        }
        let value = value_of(value.trim(), &known).map_err(|e| Wrong::new(number, e))?;
        known.insert(name.to_owned(), value.clone());
        found.push(Variable {
            name: name.to_owned(),
            value,
            line: number,
        });
    }
    Ok(found)
}

/// Whether a shell takes it as a variable's name.
pub fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn value_of(text: &str, known: &BTreeMap<String, String>) -> Result<String, String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let Some(quote) = quote else {
        // A comment starts at a `#` behind a space.
        let end = text
            .match_indices('#')
            .map(|(i, _)| i)
            .find(|i| *i == 0 || text[..*i].ends_with([' ', '\t']));
        let plain = end.map_or(text, |i| &text[..i]).trim_end();
        return expanded(plain, known);
    };
    let mut out = String::new();
    let mut chars = text.chars().skip(1);
    loop {
        match chars.next() {
            None => return Err(format!("the quote {quote} does not end on this line")),
            Some(c) if c == quote => break,
            Some('\\') if quote == '"' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(c @ ('"' | '\\' | '$')) => out.push(c),
                Some(c) => out.extend(['\\', c]),
                None => return Err("a backslash ends the line".to_owned()),
            },
            Some(c) => out.push(c),
        }
    }
    if quote == '"' {
        return expanded(&out, known);
    }
    Ok(out)
}

/// Longest value [bytes], however it came about.
const MAX_VALUE: usize = 1 << 12;
/// Most variables of a file.
const MAX_VARIABLES: usize = 2_000;

/// `$NAME` and `${NAME}` of variables that the file has set; others stay as they are written.
fn expanded(text: &str, known: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let braces = rest.starts_with("${");
        let from = if braces { 2 } else { 1 };
        let name: String = rest[from..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let end = from + name.len() + usize::from(braces);
        let whole = !braces || rest[..].get(end - 1..end) == Some("}");
        match known.get(&name).filter(|_| whole) {
            Some(value) => {
                out.push_str(value);
                rest = &rest[end..];
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
        if out.len() > MAX_VALUE {
            return Err(format!("the value has more than {MAX_VALUE} bytes"));
        }
    }
    out.push_str(rest);
    if out.len() > MAX_VALUE {
        return Err(format!("the value has more than {MAX_VALUE} bytes"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let found = variables(text).unwrap();
        found.into_iter().map(|v| (v.name, v.value)).collect()
    }

    #[test]
    fn quotes_comments_and_references_are_read() {
        let text =
            "# TGI\nexport A=1 # one\nB='x # y $A'\nC=\"${A}2\\n\"\nD=a#b\nE=$A-$NONE-${NONE}\n";
        let expected = [
            ("A", "1"),
            ("B", "x # y $A"),
            ("C", "12\n"),
            ("D", "a#b"),
            ("E", "1-$NONE-${NONE}"),
        ];
        let expected = expected.map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(pairs(text), expected);
    }

    #[test]
    fn faults_have_their_line() {
        assert_eq!(variables("A=1\nB\n").unwrap_err().line, 2);
        assert_eq!(variables("A=\"x\n").unwrap_err().line, 1);
        assert_eq!(variables("1A=x\n").unwrap_err().line, 1);
    }

    #[test]
    fn references_do_not_multiply() {
        let mut text = format!("A0={}\n", "x".repeat(100));
        for i in 1..40 {
            text += &format!("A{i}={}\n", format!("$A{}", i - 1).repeat(10));
        }
        assert!(variables(&text).unwrap_err().message.contains("bytes"));
    }
}
