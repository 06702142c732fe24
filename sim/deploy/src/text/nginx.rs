//! nginx configurations: directives with their words and blocks.

use super::chars::Chars;
use super::{MAX_DEPTH, Wrong};

/// Most directives of a file.
const MAX_DIRECTIVES: usize = 100_000;

/// A directive, e.g. `server tgi-1:80 weight=2;` or `upstream tgi { ... }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Its name and arguments; at least one word.
    pub words: Vec<String>,
    /// Line, counted from 1.
    pub line: u32,
    /// What its block holds; empty without one.
    pub block: Vec<Directive>,
}

impl Directive {
    /// Its name.
    pub fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }
}

/// The directives of a file.
///
/// # Errors
/// A block or directive that does not end.
pub fn directives(text: &str) -> Result<Vec<Directive>, Wrong> {
    let mut reader = Reader {
        chars: Chars::of(text)?,
        count: 0,
    };
    let all = reader.block(0)?;
    match reader.chars.next() {
        None => Ok(all),
        Some(_) => Err(Wrong::new(
            reader.chars.line,
            "`}` without a block that it ends",
        )),
    }
}

struct Reader<'a> {
    chars: Chars<'a>,
    count: usize,
}

impl Reader<'_> {
    /// Directives until the `}` that ends the block, which is left, or until the text ends.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, Wrong> {
        if depth > MAX_DEPTH {
            return Err(Wrong::new(
                self.chars.line,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        let mut out = Vec::new();
        loop {
            match self.chars.after_space() {
                None | Some('}') => return Ok(out),
                Some(';') => {
                    self.chars.next();
                }
                Some(_) => out.push(self.directive(depth)?),
            }
        }
    }

    fn directive(&mut self, depth: usize) -> Result<Directive, Wrong> {
        let start = self.chars.line;
        self.count += 1;
        if self.count > MAX_DIRECTIVES {
            return Err(Wrong::new(
                start,
                format!("more than {MAX_DIRECTIVES} directives"),
            ));
        }
        let mut words = Vec::new();
        loop {
            match self.chars.after_space() {
                None | Some('}') => {
                    return Err(Wrong::new(
                        start,
                        "the directive that starts here does not end with `;` or a block",
                    ));
                }
                Some(';') => {
                    self.chars.next();
                    break;
                }
                Some('{') if words.is_empty() => {
                    return Err(Wrong::new(start, "a block without a name"));
                }
                Some('{') => {
                    self.chars.next();
                    let block = self.block(depth + 1)?;
                    if self.chars.next() != Some('}') {
                        return Err(Wrong::new(start, "the block that starts here does not end"));
                    }
                    return Ok(Directive {
                        words,
                        line: start,
                        block,
                    });
                }
                Some(quote @ ('"' | '\'')) => {
                    self.chars.next();
                    let mut word = String::new();
                    loop {
                        match self.chars.next() {
                            Some(c) if c == quote => break,
                            Some('\\') => word.extend(self.chars.next()),
                            Some(c) => word.push(c),
                            None => {
                                return Err(Wrong::new(
                                    start,
                                    format!("the quote {quote} does not end"),
                                ));
                            }
                        }
                    }
                    words.push(word);
                }
                Some(_) => words.push(self.plain()),
            }
        }
        Ok(Directive {
            words,
            line: start,
            block: Vec::new(),
        })
    }

    /// A word without quotes; `${name}` is a part of it.
    fn plain(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.chars.peek() {
            let variable = word.ends_with('$') && c == '{';
            if c.is_whitespace() || c == ';' || (c == '{' && !variable) || c == '}' {
                break;
            }
            word.push(c);
            self.chars.next();
            if variable {
                while let Some(c) = self.chars.next() {
                    word.push(c);
                    if c == '}' {
                        break;
                    }
                }
            }
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_read() {
        let text = "# front\nhttp {\n  upstream tgi {\n    least_conn;\n    server a:80 weight=2; # one\n    server b:80;\n  }\n  server { location / { proxy_pass http://tgi; log_format x 'a;b' ${y}; } }\n}\n";
        let all = directives(text).unwrap();
        let upstream = &all[0].block[0];
        assert_eq!(upstream.words, ["upstream", "tgi"]);
        assert_eq!(upstream.block[1].words, ["server", "a:80", "weight=2"]);
        assert_eq!(upstream.block[1].line, 5);
    }

    #[test]
    fn faults_have_their_line() {
        for (text, line) in [
            ("a;\nb", 2),
            ("a {\nb;", 1),
            ("}\n", 1),
            ("a 'x", 1),
            ("\n{", 2),
            ("a }", 1),
        ] {
            assert_eq!(directives(text).unwrap_err().line, line, "{text}");
        }
        assert!(
            directives(&"a{".repeat(10_000))
                .unwrap_err()
                .message
                .contains("deep")
        );
    }
}
