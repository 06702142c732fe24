//! Python files of Modal and BentoML, as far as they start vLLM or SGLang: the list of words of the command, the machine that the decorator asks for, and
//! constants of the file that both name. Nothing is run; what the file computes stays unknown, and is said.
//!
//! Fields: modal.com/docs (`gpu`, `min_containers`); docs.bentoml.com (`resources`, `__command__`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::program::{self, Process};
use crate::place::{Fault, Place, shown};
use crate::report::Fate;
use crate::text::shell::Word;

/// Most tokens of a file.
const MAX_TOKENS: usize = 200_000;

/// A token and its line.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    line: u32,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// A string; whether it is an f-string.
    Text(String, bool),
    /// A name, keyword or number.
    Word(String),
    /// Another character.
    Sign(char),
    /// The end of a logical line.
    End,
}

/// Whether a text is such a file.
pub fn is_one(text: &str) -> bool {
    let starts = [
        "import modal",
        "from modal ",
        "import bentoml",
        "from bentoml ",
    ];
    text.lines()
        .any(|row| starts.iter().any(|s| row.starts_with(s)))
}

/// Imports a file.
pub fn import(text: &str, file: &Arc<str>, draft: &mut Draft) {
    let tokens = tokens(text);
    let known = constants(&tokens);
    machine(&tokens, &known, file, draft);
    let mut words: Vec<Word> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let opens = tokens[i].kind == Kind::Sign('[');
        let first = match tokens.get(i + 1).map(|t| &t.kind) {
            Some(Kind::Text(text, _)) if opens => text.as_str(),
            _ => "",
        };
        let starts = matches!(first, "vllm" | "sglang" | "python" | "python3" | "uv");
        // What a later list adds to the command.
        let adds = !words.is_empty() && first.starts_with("--");
        if starts && words.is_empty() || adds {
            let (found, end) = items(&tokens, i + 1, &known, file, draft);
            words.extend(found);
            i = end;
        }
        i += 1;
    }
    for token in &tokens {
        if let Kind::Text(text, _) = &token.kind
            && (text.starts_with("vllm==") || text.starts_with("sglang"))
            && text.contains("==")
        {
            let word = [Word {
                text: text.clone(),
                line: token.line,
            }];
            super::vllm::installed(&word, file, draft);
            super::sglang::installed(&word, file, draft);
        }
    }
    let process = Process {
        words,
        entrypoint: true,
        ..Process::default()
    };
    if process.words.is_empty() || !program::run(&process, file, draft, 0) {
        let message = "no list of words in it starts vLLM or SGLang (`[\"vllm\", \"serve\", ...]`); give the command as a script beside it";
        draft.fault(Fault::new(Place::new(file, 1), "", message));
    }
}

/// The words of the list that starts at `i`, and where it ends.
fn items(
    tokens: &[Token],
    mut i: usize,
    known: &BTreeMap<String, String>,
    file: &Arc<str>,
    draft: &mut Draft,
) -> (Vec<Word>, usize) {
    let mut out = Vec::new();
    let mut depth = 0;
    let mut item: Vec<Token> = Vec::new();
    while let Some(token) = tokens.get(i) {
        let ends = depth == 0 && matches!(token.kind, Kind::Sign(',') | Kind::Sign(']'));
        if ends {
            let line = item.first().map_or(token.line, |t| t.line);
            match value(&item, known) {
                Some(text) => out.push(Word { text, line }),
                None if item.is_empty() => {}
                None => {
                    let origin = Origin::new(Place::new(file, line), "command", spelled(&item));
                    draft.fate(
                        &origin,
                        Fate::NotUnderstood,
                        "what the file computes is not known",
                    );
                    // The option before it stands without its value, so it goes too.
                    if out
                        .last()
                        .is_some_and(|w: &Word| w.text.starts_with("--") && !w.text.contains('='))
                    {
                        out.pop();
                    }
                }
            }
            item.clear();
            if token.kind == Kind::Sign(']') {
                break;
            }
        } else {
            match token.kind {
                Kind::Sign('(' | '[' | '{') => depth += 1,
                Kind::Sign(')' | ']' | '}') => depth -= 1,
                _ => {}
            }
            if token.kind != Kind::End {
                item.push(token.clone());
            }
        }
        i += 1;
    }
    (out, i)
}

fn spelled(tokens: &[Token]) -> String {
    let words = tokens.iter().map(|t| match &t.kind {
        Kind::Text(text, _) => shown(text),
        Kind::Word(word) => word.clone(),
        Kind::Sign(c) => c.to_string(),
        Kind::End => String::new(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What an expression is: a string, a number, a constant of the file, `str()` of one, or an attribute that was made of one.
fn value(tokens: &[Token], known: &BTreeMap<String, String>) -> Option<String> {
    let of = |name: &str| known.get(name).cloned();
    let mut tokens = tokens;
    // `str(...)` of anything is that.
    while let [f, open, inner @ .., close] = tokens
        && f.kind == Kind::Word("str".to_owned())
        && (&open.kind, &close.kind) == (&Kind::Sign('('), &Kind::Sign(')'))
    {
        tokens = inner;
    }
    match tokens {
        [one] => match &one.kind {
            Kind::Text(text, false) => Some(text.clone()),
            Kind::Text(text, true) => filled(text, known),
            Kind::Word(word) if word.parse::<f64>().is_ok() => Some(word.clone()),
            Kind::Word(name) => of(name),
            _ => None,
        },
        [.., dot, last] if dot.kind == Kind::Sign('.') => match &last.kind {
            Kind::Word(name) => of(name),
            _ => None,
        },
        _ => None,
    }
}

/// An f-string whose names are known.
fn filled(text: &str, known: &BTreeMap<String, String>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}')?;
        out.push_str(before);
        out.push_str(known.get(name.trim())?);
        rest = tail;
    }
    out.push_str(rest);
    Some(out)
}

/// Names that stand for a string or a number: `NAME = "x"`, and what is made of one (`model = Model(NAME)`).
fn constants(tokens: &[Token]) -> BTreeMap<String, String> {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let ends = |t: &Token| t.kind == Kind::End;
    for line in tokens.split(ends) {
        let [name, equals, rest @ ..] = line else {
            continue;
        };
        let (Kind::Word(name), Kind::Sign('=')) = (&name.kind, &equals.kind) else {
            continue;
        };
        let made = || {
            let inner = rest.iter().position(|t| t.kind == Kind::Sign('('))?;
            let first = rest.get(inner + 1)?;
            value(std::slice::from_ref(first), &known)
        };
        if let Some(text) = value(rest, &known).or_else(made) {
            known.insert(name.clone(), text);
        }
    }
    known
}

/// The machine and replicas that decorators ask for.
fn machine(tokens: &[Token], known: &BTreeMap<String, String>, file: &Arc<str>, draft: &mut Draft) {
    for (i, token) in tokens.iter().enumerate() {
        let (Kind::Word(name) | Kind::Text(name, _)) = &token.kind else {
            continue;
        };
        let is_key = matches!(
            tokens.get(i + 1).map(|t| &t.kind),
            Some(Kind::Sign('=' | ':'))
        );
        let Some(found) = tokens.get(i + 2).filter(|_| is_key) else {
            continue;
        };
        let Some(text) = value(std::slice::from_ref(found), known) else {
            continue;
        };
        let origin = Origin::new(Place::new(file, found.line), name.clone(), text.clone());
        match name.as_str() {
            "gpu" if text.parse::<i64>().is_err() => {
                let (product, count) = text.split_once(':').unwrap_or((&text, "1"));
                let product = product.trim_end_matches('!').to_owned();
                draft.facts.product = Some((product, origin.clone()));
                let n = count.parse().unwrap_or(1);
                draft.facts.pod_devices = Some((n, origin));
            }
            "gpu" => {
                let n = text.parse().unwrap_or(1);
                draft.facts.pod_devices = Some((n, origin));
            }
            "gpu_type" => draft.facts.product = Some((text, origin)),
            "min_containers" | "keep_warm" | "min_replicas" => {
                if let Ok(n) = text.parse::<i64>() {
                    draft.facts.replicas.push((n.max(1), origin));
                }
            }
            _ => {}
        }
    }
}

/// The tokens of a file, comments left out; a bracket's lines are one.
fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    let (mut line, mut depth) = (1u32, 0i32);
    while let Some(c) = chars.next() {
        if out.len() >= MAX_TOKENS {
            break;
        }
        match c {
            '\n' => {
                if depth <= 0 {
                    out.push(Token {
                        line,
                        kind: Kind::End,
                    });
                }
                line += 1;
            }
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            '\\' => {
                if chars.next_if_eq(&'\n').is_some() {
                    line += 1;
                }
            }
            '"' | '\'' => {
                let start = line;
                let text = string(c, &mut chars, &mut line);
                out.push(Token {
                    line: start,
                    kind: Kind::Text(text, false),
                });
            }
            c if c.is_alphanumeric() || c == '_' => {
                let mut word = c.to_string();
                while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    word.push(c);
                }
                let quote = chars.peek().copied().filter(|q| matches!(q, '"' | '\''));
                let prefix = matches!(word.as_str(), "f" | "r" | "b" | "F" | "rf" | "fr");
                match quote.filter(|_| prefix) {
                    Some(quote) => {
                        chars.next();
                        let start = line;
                        let text = string(quote, &mut chars, &mut line);
                        let is_f = word.to_ascii_lowercase().contains('f');
                        out.push(Token {
                            line: start,
                            kind: Kind::Text(text, is_f),
                        });
                    }
                    None => {
                        let dot = word.chars().all(|c| c.is_ascii_digit());
                        while dot
                            && let Some(c) = chars.next_if(|c| *c == '.' || c.is_ascii_digit())
                        {
                            word.push(c);
                        }
                        out.push(Token {
                            line,
                            kind: Kind::Word(word),
                        });
                    }
                }
            }
            c if c.is_whitespace() => {}
            c => {
                depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
                out.push(Token {
                    line,
                    kind: Kind::Sign(c),
                });
            }
        }
    }
    out.push(Token {
        line,
        kind: Kind::End,
    });
    out
}

/// The rest of a string that starts with `quote`, three of them or one.
fn string(
    quote: char,
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    line: &mut u32,
) -> String {
    let mut out = String::new();
    let long = if chars.next_if_eq(&quote).is_some() {
        if chars.next_if_eq(&quote).is_none() {
            return out;
        }
        true
    } else {
        false
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                if let Some(c) = chars.next() {
                    *line += u32::from(c == '\n');
                    out.push(c);
                }
            }
            c if c == quote && !long => return out,
            c if c == quote => {
                if chars.next_if_eq(&quote).is_some() {
                    if chars.next_if_eq(&quote).is_some() {
                        return out;
                    }
                    out.push(quote);
                }
                out.push(c);
            }
            '\n' if !long => {
                *line += 1;
                return out;
            }
            c => {
                *line += u32::from(c == '\n');
                out.push(c);
            }
        }
    }
    out
}
