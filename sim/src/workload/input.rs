//! Reading tables and traces line by line: plain or gzip, bounded memory, errors with file and line.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use hwmodels::files::Files;

/// Longest line that is read [bytes]. Mooncake's longest (a million tokens in 512-token blocks) has about 20 kB.
pub const MAX_LINE_BYTES: usize = 8 << 20;

/// Longest JSON document that is read as a whole [bytes].
pub const MAX_DOCUMENT_BYTES: u64 = 4 << 30;

/// Most rows of a table that is held in memory.
pub const MAX_TABLE_ROWS: usize = 20_000_000;

/// The lines of a text.
pub struct Lines {
    name: String,
    reader: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Opens a file; gzip is told by its first two bytes, not by the name.
    pub fn open(files: &dyn Files, path: &Path) -> Result<Lines, String> {
        let name = path.display().to_string();
        let opened = files.open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::IsADirectory => format!("{name} is a folder, not a file"),
            _ => format!("cannot read {name}: {e}"),
        })?;
        Lines::from_reader(opened.reader, &name)
    }

    /// Reads from anything; `name` stands in messages.
    pub fn from_reader(mut reader: Box<dyn BufRead + Send>, name: &str) -> Result<Lines, String> {
        let head = reader
            .fill_buf()
            .map_err(|e| format!("cannot read {name}: {e}"))?;
        let reader: Box<dyn BufRead + Send> = if head.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(
                1 << 16,
                flate2::bufread::MultiGzDecoder::new(reader),
            ))
        } else {
            reader
        };
        Ok(Lines {
            name: name.to_string(),
            reader,
            buffer: Vec::new(),
            number: 0,
        })
    }

    /// The next line that is not blank, without its end; `None` at the end of the file.
    pub fn next_line(&mut self) -> Result<Option<&str>, String> {
        loop {
            self.buffer.clear();
            let limit = MAX_LINE_BYTES as u64 + 1;
            let n = (&mut self.reader)
                .take(limit)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|e| {
                    format!("cannot read {} after line {}: {e}", self.name, self.number)
                })?;
            if n == 0 {
                return Ok(None);
            }
            self.number += 1;
            if n as u64 == limit {
                return Err(self.error(&format!(
                    "the line is longer than {MAX_LINE_BYTES} bytes; is this the right file?"
                )));
            }
            if !self.buffer.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        match std::str::from_utf8(&self.buffer) {
            // A byte-order mark would hide the first column's name.
            Ok(text) => Ok(Some(text.trim().trim_start_matches('\u{feff}'))),
            Err(e) => {
                let at = e.valid_up_to();
                Err(self.error(&format!("byte {at} of the line is not UTF-8")))
            }
        }
    }

    /// The bytes that come next, as far as they are at hand: at most 64 KiB.
    pub fn head(&mut self) -> Result<&[u8], String> {
        let name = &self.name;
        self.reader
            .fill_buf()
            .map_err(|e| format!("cannot read {name}: {e}"))
    }

    /// All that comes, as one JSON value of at most [`MAX_DOCUMENT_BYTES`].
    pub fn document<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, String> {
        let head = self.head()?;
        if head.starts_with("\u{feff}".as_bytes()) {
            self.reader.consume(3);
        }
        let limited = (&mut self.reader).take(MAX_DOCUMENT_BYTES);
        serde_json::from_reader(limited)
            .map_err(|e| format!("{}:{}: {e}", self.name, e.line().max(1)))
    }

    /// `message` with file and line in front.
    pub fn error(&self, message: &str) -> String {
        format!("{}:{}: {message}", self.name, self.number)
    }

    /// Name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Splits a CSV line; quotes may enclose commas and are doubled inside (RFC 4180, without line breaks).
pub fn split_csv(line: &str) -> Vec<std::borrow::Cow<'_, str>> {
    let mut out = Vec::new();
    let mut rest = line;
    loop {
        let trimmed = rest.trim_start();
        if let Some(quoted) = trimmed.strip_prefix('"') {
            let mut text = String::new();
            let mut chars = quoted.char_indices();
            let mut end = quoted.len();
            while let Some((i, c)) = chars.next() {
                if c != '"' {
                    text.push(c);
                } else if quoted[i + 1..].starts_with('"') {
                    text.push('"');
                    chars.next();
                } else {
                    end = i + 1;
                    break;
                }
            }
            out.push(text.into());
            match quoted[end..].split_once(',') {
                Some((_, after)) => rest = after,
                None => return out,
            }
        } else {
            match rest.split_once(',') {
                Some((field, after)) => {
                    out.push(field.trim().into());
                    rest = after;
                }
                None => {
                    out.push(rest.trim().into());
                    return out;
                }
            }
        }
    }
}

/// Positions of the named columns in a CSV header line.
pub fn columns<const N: usize>(lines: &mut Lines, names: [&str; N]) -> Result<[usize; N], String> {
    let header: Vec<String> = match lines.next_line()? {
        None => {
            return Err(format!(
                "{} is empty; expected a CSV header with {}",
                lines.name(),
                names.join(", ")
            ));
        }
        Some(line) => split_csv(line)
            .into_iter()
            .map(|c| c.into_owned())
            .collect(),
    };
    let mut at = [0; N];
    for (slot, name) in at.iter_mut().zip(names) {
        *slot = header.iter().position(|h| h == name).ok_or_else(|| {
            lines.error(&format!(
                "no column `{name}`; the columns are {}",
                shorten(&header.join(", "), 300)
            ))
        })?;
    }
    Ok(at)
}

/// Reads numeric columns of a CSV file with a header, row by row.
pub fn read_columns<const N: usize>(
    files: &dyn Files,
    path: &Path,
    names: [&str; N],
    mut row: impl FnMut([f64; N]) -> Result<(), String>,
) -> Result<(), String> {
    let mut lines = Lines::open(files, path)?;
    let at = columns(&mut lines, names)?;
    let mut rows = 0usize;
    loop {
        let parsed = {
            let Some(line) = lines.next_line()? else {
                break;
            };
            let fields = split_csv(line);
            let mut values = [0.0; N];
            let mut bad = None;
            for ((v, i), name) in values.iter_mut().zip(at).zip(names) {
                let text = fields.get(i).map_or("", |f| f.as_ref());
                match text.parse::<f64>() {
                    Ok(x) if x.is_finite() => *v = x,
                    _ => {
                        bad = Some(format!(
                            "column `{name}`: expected a number, got \"{}\"",
                            shorten(text, 60)
                        ));
                    }
                }
            }
            bad.map_or(Ok(values), Err)
        };
        let result = parsed.and_then(&mut row);
        result.map_err(|m| lines.error(&m))?;
        rows += 1;
        if rows > MAX_TABLE_ROWS {
            return Err(lines.error(&format!(
                "the table has more than {MAX_TABLE_ROWS} rows; take a part of it"
            )));
        }
    }
    if rows == 0 {
        return Err(format!("{} has a header but no rows", lines.name()));
    }
    Ok(())
}

/// Keeps hostile input out of messages.
pub fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_string();
    }
    let head: String = text.chars().take(max).collect();
    format!("{head}...")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &'static [u8]) -> Lines {
        Lines::from_reader(Box::new(bytes), "t.csv").unwrap()
    }

    #[test]
    fn quoted_fields_may_hold_commas_and_quotes() {
        assert_eq!(
            split_csv("a,\"b, \"\"c\"\"\", d ,"),
            ["a", "b, \"c\"", "d", ""]
        );
        assert_eq!(split_csv("\"open, to the end"), ["open, to the end"]);
        assert_eq!(split_csv("\"ü\"x,y"), ["ü", "y"]);
        assert_eq!(split_csv(""), [""]);
    }

    #[test]
    fn a_line_without_end_is_refused_in_bounded_memory() {
        let reader = BufReader::new(std::io::repeat(b'x'));
        let mut l = Lines::from_reader(Box::new(reader), "t.csv").unwrap();
        let e = l.next_line().unwrap_err();
        assert!(e.contains("t.csv:1") && e.contains("longer than"), "{e}");
        assert!(l.buffer.capacity() < 4 * MAX_LINE_BYTES);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_refused_with_their_line() {
        let mut l = lines(b"a,b\n1,\xff\n");
        l.next_line().unwrap();
        let e = l.next_line().unwrap_err();
        assert!(e.contains("t.csv:2") && e.contains("not UTF-8"), "{e}");
    }

    #[test]
    fn a_broken_gzip_is_an_error() {
        let mut l = lines(&[0x1f, 0x8b, 8, 0, 1, 2, 3]);
        assert!(l.next_line().is_err());
    }

    #[test]
    fn blank_lines_and_a_byte_order_mark_are_skipped() {
        let mut l = lines("\u{feff}a\n\n \r\nb\r\n".as_bytes());
        assert_eq!(l.next_line().unwrap(), Some("a"));
        assert_eq!(l.next_line().unwrap(), Some("b"));
        assert_eq!(l.next_line().unwrap(), None);
    }
}
