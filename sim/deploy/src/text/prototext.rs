//! Protocol buffers' text format, as Triton's `config.pbtxt` is written in.
//!
//! The crates that read it need the messages' descriptors; a tree with lines is all that is wanted here.

use super::chars::Chars;
use super::{MAX_DEPTH, Wrong};
use crate::place::shown;

/// Most fields of a file.
const MAX_FIELDS: usize = 200_000;

/// A field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Line, counted from 1.
    pub line: u32,
    /// Its value.
    pub value: Value,
}

/// What a field holds. A list `[a, b]` is several fields of one name, as the format has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, a name or a text, without its quotes.
    Scalar(String),
    /// A message.
    Message(Vec<Field>),
}

impl Field {
    /// The value where it is a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            Value::Message(_) => None,
        }
    }

    /// The fields of a message; none of a scalar.
    pub fn fields(&self) -> &[Field] {
        match &self.value {
            Value::Scalar(_) => &[],
            Value::Message(fields) => fields,
        }
    }

    /// The scalar of the message's field of this name.
    pub fn get(&self, name: &str) -> Option<&Field> {
        self.fields().iter().find(|f| f.name == name)
    }
}

/// The fields of a file.
///
/// # Errors
/// What is no text format, with its line.
pub fn fields(text: &str) -> Result<Vec<Field>, Wrong> {
    let mut reader = Reader {
        chars: Chars::of(text)?,
        fields: 0,
    };
    reader.message(None, 0)
}

struct Reader<'a> {
    chars: Chars<'a>,
    fields: usize,
}

impl Reader<'_> {
    /// Fields until `end`, or until the text ends.
    fn message(&mut self, end: Option<char>, depth: usize) -> Result<Vec<Field>, Wrong> {
        if depth > MAX_DEPTH {
            return Err(Wrong::new(
                self.chars.line,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        let start = self.chars.line;
        let mut out = Vec::new();
        loop {
            match self.chars.after_space() {
                None if end.is_none() => return Ok(out),
                None => {
                    return Err(Wrong::new(
                        start,
                        "the message that starts here does not end",
                    ));
                }
                Some(c) if Some(c) == end => {
                    self.chars.next();
                    return Ok(out);
                }
                Some(',' | ';') => {
                    self.chars.next();
                }
                Some(_) => self.field(depth, &mut out)?,
            }
        }
    }

    fn field(&mut self, depth: usize, out: &mut Vec<Field>) -> Result<(), Wrong> {
        let line = self.chars.line;
        let name = self.name();
        if name.is_empty() {
            let found = self.chars.next().unwrap_or(' ');
            return Err(Wrong::new(
                line,
                format!(
                    "expected the name of a field, found `{}`",
                    shown(&found.to_string())
                ),
            ));
        }
        let colon = self.chars.after_space() == Some(':');
        if colon {
            self.chars.next();
        }
        match self.chars.after_space() {
            Some('[') => {
                self.chars.next();
                self.list(&name, depth, out)
            }
            Some('{' | '<') => self.value(name, line, depth, out),
            _ if colon => self.value(name, line, depth, out),
            _ => Err(Wrong::new(
                line,
                format!("the field `{}` has no `:`", shown(&name)),
            )),
        }
    }

    fn list(&mut self, name: &str, depth: usize, out: &mut Vec<Field>) -> Result<(), Wrong> {
        let start = self.chars.line;
        loop {
            match self.chars.after_space() {
                None => return Err(Wrong::new(start, "the list that starts here does not end")),
                Some(']') => {
                    self.chars.next();
                    return Ok(());
                }
                Some(',') => {
                    self.chars.next();
                }
                Some(_) => {
                    let line = self.chars.line;
                    self.value(name.to_owned(), line, depth, out)?;
                }
            }
        }
    }

    fn value(
        &mut self,
        name: String,
        line: u32,
        depth: usize,
        out: &mut Vec<Field>,
    ) -> Result<(), Wrong> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(Wrong::new(line, format!("more than {MAX_FIELDS} fields")));
        }
        let value = match self.chars.after_space() {
            Some('{') => {
                self.chars.next();
                Value::Message(self.message(Some('}'), depth + 1)?)
            }
            Some('<') => {
                self.chars.next();
                Value::Message(self.message(Some('>'), depth + 1)?)
            }
            Some('"' | '\'') => {
                let mut text = String::new();
                // Texts side by side are one.
                while let Some(quote) = self.chars.after_space().filter(|c| matches!(c, '"' | '\''))
                {
                    self.text(quote, &mut text)?;
                }
                Value::Scalar(text)
            }
            _ => {
                let text = self.name();
                if text.is_empty() {
                    return Err(Wrong::new(
                        line,
                        format!("the field `{}` has no value", shown(&name)),
                    ));
                }
                Value::Scalar(text)
            }
        };
        out.push(Field { name, line, value });
        Ok(())
    }

    fn text(&mut self, quote: char, out: &mut String) -> Result<(), Wrong> {
        let start = self.chars.line;
        self.chars.next();
        loop {
            match self.chars.next() {
                Some(c) if c == quote => return Ok(()),
                Some('\\') => match self.chars.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(c) => out.push(c),
                    None => {}
                },
                Some('\n') | None => {
                    return Err(Wrong::new(
                        start,
                        format!("the text in {quote} does not end on its line"),
                    ));
                }
                Some(c) => out.push(c),
            }
        }
    }

    /// A name, a number, or a placeholder of Triton's templates (`${name}`).
    fn name(&mut self) -> String {
        let mut out = String::new();
        while let Some(c) = self.chars.peek() {
            let placeholder =
                c == '{' && out == "$" || c == '}' && out.starts_with("${") && !out.ends_with('}');
            if !(c.is_alphanumeric() || "_+-.$".contains(c) || placeholder) {
                break;
            }
            out.push(c);
            self.chars.next();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triton_configuration_is_read() {
        let text = "name: \"x\" # note\nmax_batch_size: ${n}\ninput [\n  { name: 'a' dims: [ -1, 2 ] }\n]\nparameters: {\n  key: \"k\"\n  value: { string_value: \"0.9\" }\n}\nmodel_transaction_policy { decoupled: true }\n";
        let all = fields(text).unwrap();
        assert_eq!(all[0].text(), Some("x"));
        assert_eq!(all[1].text(), Some("${n}"));
        let dims: Vec<_> = all[2].fields()[1..].iter().map(|f| f.text()).collect();
        assert_eq!(dims, [Some("-1"), Some("2")]);
        assert_eq!(all[3].line, 6);
        let value = all[3].get("value").unwrap();
        assert_eq!(value.get("string_value").unwrap().text(), Some("0.9"));
        assert_eq!(all[4].get("decoupled").unwrap().text(), Some("true"));
    }

    #[test]
    fn faults_have_their_line() {
        for (text, line) in [
            ("a: 1\nb", 2),
            ("a {\n b: 1\n", 1),
            ("a: \"x\n", 1),
            ("a: [1,\n", 1),
            ("\n}", 2),
            ("a:", 1),
        ] {
            assert_eq!(fields(text).unwrap_err().line, line, "{text}");
        }
        assert!(
            fields(&"a{".repeat(10_000))
                .unwrap_err()
                .message
                .contains("deep")
        );
    }
}
