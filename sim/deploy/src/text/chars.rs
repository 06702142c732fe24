//! The characters of a text whose comments run from `#` to the end of the line.

use super::{MAX_BYTES, Wrong};

/// Characters, and the line that they stand on.
pub(super) struct Chars<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    /// Line of the next character, counted from 1.
    pub(super) line: u32,
}

impl<'a> Chars<'a> {
    /// The characters of a text that is not too long.
    pub(super) fn of(text: &'a str) -> Result<Chars<'a>, Wrong> {
        if text.len() > MAX_BYTES {
            return Err(Wrong::new(1, format!("more than {MAX_BYTES} bytes")));
        }
        Ok(Chars {
            chars: text.chars().peekable(),
            line: 1,
        })
    }

    /// Takes the next character.
    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.chars.next();
        if c == Some('\n') {
            self.line = self.line.saturating_add(1);
        }
        c
    }

    /// The next character, whatever it is.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.chars.peek().copied()
    }

    /// Skips spaces and comments; the character that follows.
    pub(super) fn after_space(&mut self) -> Option<char> {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() {
                self.next();
            } else {
                return Some(c);
            }
        }
        None
    }
}
