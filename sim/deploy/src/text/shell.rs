//! Shell scripts, as far as they start programs: commands with their words, the variables set before them, and lines.
//!
//! Crates that split shell words take a newline for a space and know no variables, so that two commands become one. Here a command ends where a shell
//! ends it (newline, `;`, `&&`, `|`), variables that the script has set are expanded, and what a shell would have to run to know (`$(...)`) stays as written.

use std::collections::BTreeMap;

use super::dotenv::is_name;
use super::{MAX_BYTES, MAX_DEPTH, Wrong};
use crate::place::shown;

/// Most words of a script; long words count as several, and so do the variables that each command sees.
const MAX_WORDS: usize = 200_000;
/// Text that counts as one more word [bytes].
const WORD_BYTES: usize = 128;
/// Longest word [bytes], variables expanded.
const MAX_WORD: usize = 1 << 20;

/// A word and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its text, without quotes and with variables expanded.
    pub text: String,
    /// Line on which it starts, counted from 1.
    pub line: u32,
}

/// A program with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Variables that it sees, set before it on its line or exported by the script: name, value, line.
    pub variables: Vec<(String, Word)>,
    /// Program and arguments; at least one word.
    pub words: Vec<Word>,
}

/// The commands of a script that starts on `line` of its file. `known` holds variables set elsewhere.
///
/// # Errors
/// A quote or a bracket that does not end; a script that is too long.
pub fn commands(
    text: &str,
    line: u32,
    known: &BTreeMap<String, String>,
) -> Result<Vec<Command>, Wrong> {
    if text.len() > MAX_BYTES {
        return Err(Wrong::new(
            line,
            format!("more than {MAX_BYTES} bytes of script"),
        ));
    }
    let mut reader = Reader {
        chars: text.chars().peekable(),
        line: line.max(1),
        known: known.clone(),
        set: Vec::new(),
        command: Vec::new(),
        done: Vec::new(),
        words: 0,
        skip_word: false,
        here: Vec::new(),
    };
    reader.script()?;
    Ok(reader.done)
}

struct Reader<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    line: u32,
    known: BTreeMap<String, String>,
    /// Variables that the script has exported.
    set: Vec<(String, Word)>,
    command: Vec<(Word, bool)>,
    done: Vec<Command>,
    words: usize,
    /// The next word is the file of a redirection.
    skip_word: bool,
    /// Ends of here-documents that start behind this line.
    here: Vec<String>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.chars.next();
        if c == Some('\n') {
            self.line = self.line.saturating_add(1);
        }
        c
    }

    fn script(&mut self) -> Result<(), Wrong> {
        while let Some(c) = self.chars.peek().copied() {
            match c {
                ' ' | '\t' | '\r' => {
                    self.next();
                }
                '\n' => {
                    self.next();
                    self.end();
                    self.skip_here_documents();
                }
                ';' | '|' | '(' | ')' => {
                    self.next();
                    self.end();
                }
                '&' => {
                    self.next();
                    // `&>` is a redirection.
                    if self.chars.peek() != Some(&'>') {
                        self.end();
                    }
                }
                '>' | '<' => self.redirection()?,
                '#' => {
                    while self.chars.peek().is_some_and(|c| *c != '\n') {
                        self.next();
                    }
                }
                _ => self.word()?,
            }
        }
        self.end();
        Ok(())
    }

    /// `> file`, `2>&1`, `<<EOF`: what follows is no argument.
    fn redirection(&mut self) -> Result<(), Wrong> {
        let mut operator = String::new();
        while let Some(c) = self.chars.peek().copied().filter(|c| "<>&|-".contains(*c)) {
            operator.push(c);
            self.next();
            if operator.len() > 3 {
                break;
            }
        }
        // `2>` left its number as a word.
        let number =
            |w: &(Word, bool)| w.0.text.len() == 1 && w.0.text.as_bytes()[0].is_ascii_digit();
        if self.command.last().is_some_and(number) {
            self.command.pop();
        }
        self.skip_word = true;
        if operator.starts_with("<<") && operator != "<<<" {
            while self.chars.peek() == Some(&' ') {
                self.next();
            }
            let line = self.line;
            let (end, _) = self.text()?;
            if end.is_empty() {
                return Err(Wrong::new(line, "`<<` without the word that ends the text"));
            }
            self.here.push(end);
            self.skip_word = false;
        }
        Ok(())
    }

    fn skip_here_documents(&mut self) {
        for end in std::mem::take(&mut self.here) {
            loop {
                let mut row = String::new();
                let mut some = false;
                while let Some(c) = self.next() {
                    some = true;
                    if c == '\n' {
                        break;
                    }
                    row.push(c);
                }
                if !some || row.trim() == end {
                    break;
                }
            }
        }
    }

    fn word(&mut self) -> Result<(), Wrong> {
        let line = self.line;
        let (text, quoted) = self.text()?;
        if std::mem::take(&mut self.skip_word) {
            return Ok(());
        }
        // A backslash before a line's end is no word.
        if text.is_empty() && !quoted {
            return Ok(());
        }
        self.words += 1 + text.len() / WORD_BYTES;
        if self.words > MAX_WORDS {
            return Err(Wrong::new(line, format!("more than {MAX_WORDS} words")));
        }
        self.command.push((Word { text, line }, quoted));
        Ok(())
    }

    /// One word: its text, and whether any of it was quoted.
    fn text(&mut self) -> Result<(String, bool), Wrong> {
        let start = self.line;
        let (mut out, mut quoted) = (String::new(), false);
        while let Some(c) = self.chars.peek().copied() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '|' | '&' | '(' | ')' | '<' | '>' => break,
                '\'' => {
                    self.next();
                    quoted = true;
                    self.until('\'', start, &mut out)?;
                }
                '"' => {
                    self.next();
                    quoted = true;
                    self.double_quoted(start, &mut out)?;
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        // A line that goes on.
                        Some('\n') => {}
                        Some('\r') if self.chars.peek() == Some(&'\n') => {
                            self.next();
                        }
                        Some(c) => {
                            quoted = true;
                            out.push(c);
                        }
                        None => {}
                    }
                }
                '$' => self.dollar(&mut out)?,
                '`' => {
                    self.next();
                    out.push('`');
                    self.until('`', start, &mut out)?;
                    out.push('`');
                }
                c => {
                    self.next();
                    out.push(c);
                }
            }
            if out.len() > MAX_WORD {
                return Err(Wrong::new(
                    start,
                    format!("a word of more than {MAX_WORD} bytes"),
                ));
            }
        }
        Ok((out, quoted))
    }

    fn until(&mut self, quote: char, start: u32, out: &mut String) -> Result<(), Wrong> {
        loop {
            match self.next() {
                Some(c) if c == quote => return Ok(()),
                Some(c) => out.push(c),
                None => {
                    return Err(Wrong::new(
                        start,
                        format!("the quote {quote} that starts here does not end"),
                    ));
                }
            }
        }
    }

    fn double_quoted(&mut self, start: u32, out: &mut String) -> Result<(), Wrong> {
        loop {
            match self.chars.peek().copied() {
                None => {
                    return Err(Wrong::new(
                        start,
                        "the quote \" that starts here does not end",
                    ));
                }
                Some('"') => {
                    self.next();
                    return Ok(());
                }
                Some('$') => self.dollar(out)?,
                Some('\\') => {
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(c @ ('"' | '\\' | '$' | '`')) => out.push(c),
                        Some(c) => out.extend(['\\', c]),
                    }
                }
                Some(c) => {
                    self.next();
                    out.push(c);
                }
            }
            if out.len() > MAX_WORD {
                return Err(Wrong::new(
                    start,
                    format!("a word of more than {MAX_WORD} bytes"),
                ));
            }
        }
    }

    /// `$NAME`, `${NAME}`, `${NAME:-default}`; anything else stays as it is written.
    fn dollar(&mut self, out: &mut String) -> Result<(), Wrong> {
        let start = self.line;
        self.next();
        match self.chars.peek().copied() {
            Some('{') => {
                self.next();
                let mut inner = String::new();
                self.until('}', start, &mut inner)?;
                let end = inner
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(inner.len());
                let (name, rest) = inner.split_at(end);
                let default = rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-'));
                match (self.known.get(name), default) {
                    (Some(value), _) if !(value.is_empty() && rest.starts_with(':')) => {
                        out.push_str(value);
                    }
                    (_, Some(default)) => out.push_str(default),
                    _ => out.push_str(&format!("${{{inner}}}")),
                }
            }
            Some('(') => {
                let mut inner = String::new();
                self.bracketed(start, &mut inner)?;
                let sum = (inner.strip_prefix("((").and_then(|s| s.strip_suffix("))")))
                    .and_then(|s| Arithmetic::of(s, &self.known));
                match sum {
                    Some(n) => out.push_str(&n.to_string()),
                    None => out.extend(["$", &inner]),
                }
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.chars.peek().copied() {
                    if !(c.is_ascii_alphanumeric() || c == '_') {
                        break;
                    }
                    name.push(c);
                    self.next();
                }
                match self.known.get(&name) {
                    Some(value) => out.push_str(value),
                    None => out.push_str(&format!("${name}")),
                }
            }
            _ => out.push('$'),
        }
        Ok(())
    }

    /// `(...)` with brackets in it, as written.
    fn bracketed(&mut self, start: u32, out: &mut String) -> Result<(), Wrong> {
        let mut depth = 0;
        loop {
            let Some(c) = self.next() else {
                return Err(Wrong::new(start, "`$(` that starts here does not end"));
            };
            out.push(c);
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth > MAX_DEPTH {
                return Err(Wrong::new(
                    start,
                    format!("brackets nested more than {MAX_DEPTH} levels deep"),
                ));
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Ends a command: its leading `NAME=value` words are variables.
    fn end(&mut self) {
        self.skip_word = false;
        self.words += self.set.len();
        let mut words = std::mem::take(&mut self.command).into_iter().peekable();
        let mut own = Vec::new();
        let mut export = false;
        while let Some((word, _)) = words.peek() {
            if !export
                && own.is_empty()
                && matches!(
                    word.text.as_str(),
                    "export" | "set" | "declare" | "local" | "readonly"
                )
            {
                export = true;
                words.next();
                continue;
            }
            let Some((name, value)) = word.text.split_once('=').filter(|(n, _)| is_name(n)) else {
                break;
            };
            let value = Word {
                text: value.to_owned(),
                line: word.line,
            };
            own.push((name.to_owned(), value));
            words.next();
        }
        let words: Vec<Word> = words.map(|(w, _)| w).collect();
        if words.is_empty() || export {
            for (name, value) in own {
                self.known.insert(name.clone(), value.text.clone());
                // Programs see what is exported; the rest is for the script's own `$NAME`.
                if !export && !self.set.iter().any(|(n, _)| *n == name) {
                    continue;
                }
                self.set.retain(|(n, _)| *n != name);
                self.set.push((name, value));
            }
            return;
        }
        let mut variables = self.set.clone();
        variables.extend(own);
        self.done.push(Command { variables, words });
    }
}

/// Most levels of brackets in a shell's arithmetic.
const MAX_BRACKETS: usize = 32;

/// `$((A * 2 + 1))`: whole numbers and variables that are known, with brackets.
struct Arithmetic<'a> {
    rest: &'a str,
    known: &'a BTreeMap<String, String>,
    depth: usize,
}

impl<'a> Arithmetic<'a> {
    /// What it comes to; none where it names what is not known, or is none.
    fn of(text: &'a str, known: &'a BTreeMap<String, String>) -> Option<i64> {
        let mut all = Arithmetic {
            rest: text,
            known,
            depth: 0,
        };
        let sum = all.sum()?;
        all.rest.trim().is_empty().then_some(sum)
    }

    fn sign(&mut self, signs: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let c = self.rest.chars().next().filter(|c| signs.contains(c))?;
        self.rest = &self.rest[1..];
        Some(c)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut all = self.product()?;
        while let Some(sign) = self.sign(&['+', '-']) {
            let next = self.product()?;
            all = match sign {
                '+' => all.checked_add(next)?,
                _ => all.checked_sub(next)?,
            };
        }
        Some(all)
    }

    fn product(&mut self) -> Option<i64> {
        let mut all = self.value()?;
        while let Some(sign) = self.sign(&['*', '/', '%']) {
            let next = self.value()?;
            all = match sign {
                '*' => all.checked_mul(next)?,
                '/' => all.checked_div(next)?,
                _ => all.checked_rem(next)?,
            };
        }
        Some(all)
    }

    fn value(&mut self) -> Option<i64> {
        if self.sign(&['(']).is_some() {
            self.depth += 1;
            if self.depth > MAX_BRACKETS {
                return None;
            }
            let inner = self.sum()?;
            self.depth -= 1;
            return self.sign(&[')']).map(|_| inner);
        }
        self.rest = self.rest.trim_start();
        if let Some(inner) = self.rest.strip_prefix("${") {
            let (inner, rest) = inner.split_once('}')?;
            self.rest = rest;
            let (name, default) = match inner.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inner, None),
            };
            let found = self.known.get(name).map(String::as_str).or(default)?;
            return found.trim().parse().ok();
        }
        self.rest = self.rest.strip_prefix('$').unwrap_or(self.rest);
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let number = word.parse().ok();
        number.or_else(|| self.known.get(word)?.trim().parse().ok())
    }
}

/// A word as a shell reads it back to the same text.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What is wrong with a value that still names a variable, if it does.
pub fn unresolved(text: &str) -> Option<String> {
    (text.contains("$(") || text.contains('`') || text.contains("${") || text.starts_with('$'))
        .then(|| {
            format!(
                "`{}` has no value in this file; set the variable in it, or write the value",
                shown(text)
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<Vec<String>> {
        let all = commands(text, 1, &BTreeMap::new()).unwrap();
        all.into_iter()
            .map(|c| c.words.into_iter().map(|w| w.text).collect())
            .collect()
    }

    #[test]
    fn commands_end_where_a_shell_ends_them() {
        let text =
            "#!/bin/bash\nset -e\na b \\\n  'c d' \"e\\\"f\" # note\nx; y && z | w > out 2>&1 &\n";
        let words = [
            vec!["a", "b", "c d", "e\"f"],
            vec!["x"],
            vec!["y"],
            vec!["z"],
            vec!["w"],
        ];
        assert_eq!(split(text), words);
    }

    #[test]
    fn variables_are_expanded_and_kept() {
        let text = "export M=m/x\nTP=4\nA=1 run $M \"${TP}\" ${N:-7} $(pwd) $X\n";
        let all = commands(text, 10, &BTreeMap::new()).unwrap();
        let words: Vec<&str> = all[0].words.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(words, ["run", "m/x", "4", "7", "$(pwd)", "$X"]);
        assert_eq!(all[0].words[0].line, 12);
        let names: Vec<&str> = all[0].variables.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["M", "A"]);
        assert!(unresolved("$X").is_some());
    }

    #[test]
    fn arithmetic_of_what_is_known_is_done() {
        let known = [("N", "4"), ("X", "many")];
        let known: BTreeMap<String, String> = known.map(|(n, v)| (n.into(), v.into())).into();
        for (text, expected) in [
            ("N * 8", Some(32)),
            ("$N*(2+${M:-3})", Some(20)),
            ("10 - 2 - 3", Some(5)),
            ("N / 0", None),
            ("M + 1", None),
            ("X + 1", None),
            ("9223372036854775807 + 1", None),
            ("", None),
        ] {
            assert_eq!(Arithmetic::of(text, &known), expected, "{text}");
        }
        let deep = "(".repeat(10_000);
        assert_eq!(Arithmetic::of(&deep, &known), None);
        let all = commands("run --n $((N * 2)) --m $((M * 2))", 1, &known).unwrap();
        let words: Vec<&str> = all[0].words.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(words, ["run", "--n", "8", "--m", "$((M * 2))"]);
    }

    #[test]
    fn here_documents_are_no_commands() {
        assert_eq!(
            split("cat <<EOF\nnot a command\nEOF\nb\n"),
            [vec!["cat"], vec!["b"]]
        );
    }

    #[test]
    fn words_keep_the_line_they_start_on() {
        let all = commands("a \\\n  b \\\n  c", 5, &BTreeMap::new()).unwrap();
        let lines: Vec<u32> = all[0].words.iter().map(|w| w.line).collect();
        assert_eq!(lines, [5, 6, 7]);
    }

    #[test]
    fn what_does_not_end_is_refused_where_it_starts() {
        for text in ["a\nb 'c", "a\nb \"c", "a\nb $(c", "a\nb ${c"] {
            let wrong = commands(text, 1, &BTreeMap::new()).unwrap_err();
            assert_eq!(wrong.line, 2, "{text}");
        }
    }

    #[test]
    fn variables_do_not_multiply() {
        let mut text = format!("A0={}\n", "x".repeat(100));
        for i in 1..40 {
            text += &format!("A{i}={}\n", format!("$A{}", i - 1).repeat(10));
        }
        let wrong = commands(&text, 1, &BTreeMap::new()).unwrap_err();
        assert!(wrong.message.contains("bytes"));
    }

    #[test]
    fn quoted_words_are_read_back() {
        for word in ["plain", "a b", "it's", "", "$x", "#", "a=b;c"] {
            let back = split(&format!("run {}", quoted(word)));
            assert_eq!(back, [vec!["run", word]]);
        }
    }
}
