//! Text from a server, made fit for a terminal.
//!
//! An error body, a model's name or a header is whatever the other side sends: an escape sequence in it could move the cursor,
//! change the window's title or hide the rest of a line. Whoever prints such text prints [`printable`] of it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Of a text, this much is printed [characters].
pub const MOST_CHARS: usize = 500;

/// `text` on one line, without anything that a terminal or a bidirectional layout acts on, and of at most [`MOST_CHARS`] characters.
///
/// Control characters (the escape character and C1 among them), line breaks, bidirectional marks and overrides, and invisible
/// format characters are written as escapes such as `\n` and `\u{1b}`. What is cut off is marked by `...`. A text that is printable
/// already comes back as it is; a backslash stays a backslash, so the result is for reading and not for reading back.
///
/// ```
/// use bench::printable::printable;
/// assert_eq!(printable("out of memory"), "out of memory");
/// assert_eq!(printable("\u{1b}[2Jgone\nnext"), "\\u{1b}[2Jgone\\nnext");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let mut chars = text.char_indices();
    let untouched = chars.by_ref().take(MOST_CHARS).all(|(_, c)| !acts(c));
    if untouched && chars.next().is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len().min(2 * MOST_CHARS));
    let mut rest = text.chars();
    let mut written = 0;
    while written < MOST_CHARS {
        let Some(c) = rest.next() else {
            return Cow::Owned(out);
        };
        let before = out.len();
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if acts(c) => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
        // An escape is ASCII, so its bytes are its characters.
        written += if acts(c) { out.len() - before } else { 1 };
    }
    if rest.next().is_some() {
        out.push_str("...");
    }
    Cow::Owned(out)
}

/// Whether a terminal or a text layout does something at `c` other than showing it: C0 and C1 controls, line and paragraph
/// separators, bidirectional controls, and characters that take no room.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_can_be_shown_stays_and_is_not_copied() {
        for text in ["", "status 500: out of memory", "modèle 模型 модель \\n"] {
            assert!(matches!(printable(text), Cow::Borrowed(t) if t == text));
        }
    }

    #[test]
    fn controls_overrides_and_line_breaks_become_escapes() {
        for (text, shown) in [
            ("a\u{1b}[31mred\u{1b}[0m", "a\\u{1b}[31mred\\u{1b}[0m"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
            ("a\u{202e}fdp.exe\u{2066}", "a\\u{202e}fdp.exe\\u{2066}"),
            (
                "a\u{2028}b\u{200b}c\u{e0041}",
                "a\\u{2028}b\\u{200b}c\\u{e0041}",
            ),
            ("\0\u{7f}", "\\u{0}\\u{7f}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let exact = "x".repeat(MOST_CHARS);
        assert_eq!(printable(&exact), exact);
        let shown = printable(&"é".repeat(MOST_CHARS + 1)).into_owned();
        assert_eq!(shown.chars().count(), MOST_CHARS + 3);
        assert!(shown.ends_with("é..."));
        // Escapes count with the length they are printed in.
        assert!(printable(&"\u{1b}".repeat(10_000)).len() < MOST_CHARS + 16);
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left_and_once_is_enough(text in "(.|\\PC|\u{1b}|\u{202e}|\n){0,80}") {
            let once = printable(&text).into_owned();
            prop_assert!(!once.chars().any(acts));
            if once.chars().count() <= MOST_CHARS {
                prop_assert_eq!(printable(&once), once.as_str());
            }
        }
    }
}
