//! Cells of a CSV file, read with messages that say where, why, and what would be right.

use std::fmt;

use crate::kernel::time::{SimDuration, SimTime};

/// The present of every row: late enough that all ages lie before it.
pub(super) const NOW: SimTime = SimTime(u64::MAX / 2);

/// What is wrong with a file of test vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Where, if it is about one line.
    pub line: Option<u64>,
    /// What, why, and what would be right.
    pub message: String,
}

impl FileError {
    pub(super) fn whole(message: String) -> Self {
        FileError {
            line: None,
            message,
        }
    }

    pub(super) fn at(line: u64, message: String) -> Self {
        FileError {
            line: Some(line),
            message,
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for FileError {}

/// A header and its rows.
pub(super) struct Table {
    header: Vec<String>,
    records: Vec<Result<csv::StringRecord, FileError>>,
}

impl Table {
    pub(super) fn read(text: &str) -> Result<Self, FileError> {
        let text = text.trim_start_matches('\u{feff}');
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let header: Vec<String> = match reader.headers() {
            Ok(header) => header.iter().map(str::to_owned).collect(),
            Err(error) => return Err(FileError::at(1, error.to_string())),
        };
        if header.iter().all(String::is_empty) {
            return Err(FileError::whole(
                "the file is empty; its first line must be a header".to_owned(),
            ));
        }
        let twice = |(i, name): &(usize, &String)| !name.is_empty() && header[..*i].contains(name);
        if let Some((_, name)) = header.iter().enumerate().find(twice) {
            return Err(FileError::at(
                1,
                format!("column `{name}` stands twice in the header"),
            ));
        }
        let records = reader
            .records()
            .map(|record| record.map_err(|e| in_words(&e)))
            .collect();
        Ok(Table { header, records })
    }

    pub(super) fn has(&self, column: &str) -> bool {
        self.header.iter().any(|c| c == column)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Result<Row<'_>, FileError>> {
        self.records.iter().map(|record| match record {
            Ok(record) => Ok(Row {
                header: &self.header,
                record,
            }),
            Err(error) => Err(error.clone()),
        })
    }
}

fn in_words(error: &csv::Error) -> FileError {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => FileError {
            line: pos.as_ref().map(csv::Position::line),
            message: format!(
                "{len} cells, but the header has {expected_len}; a cell with a comma needs quotes"
            ),
        },
        _ => FileError {
            line: error.position().map(csv::Position::line),
            message: error.to_string(),
        },
    }
}

/// One row.
pub(super) struct Row<'a> {
    header: &'a [String],
    record: &'a csv::StringRecord,
}

impl<'a> Row<'a> {
    pub(super) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// The text of a cell; empty where the file has no such column.
    pub(super) fn text(&self, column: &str) -> &'a str {
        let index = self.header.iter().position(|c| c == column);
        index.and_then(|i| self.record.get(i)).unwrap_or_default()
    }

    pub(super) fn error(&self, column: &str, why: impl fmt::Display) -> FileError {
        FileError::at(self.line(), format!("column `{column}`: {why}"))
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        column: &str,
        text: &str,
        right: &str,
    ) -> Result<T, FileError> {
        text.parse()
            .map_err(|_| self.error(column, format_args!("`{text}` is not {right}")))
    }

    /// A whole number of 32 bits, or nothing.
    pub(super) fn i32(&self, column: &str) -> Result<Option<i32>, FileError> {
        self.optional(column, "a whole number of 32 bits")
    }

    /// A whole number of 64 bits, or nothing.
    pub(super) fn i64(&self, column: &str) -> Result<Option<i64>, FileError> {
        self.optional(column, "a whole number of 64 bits")
    }

    fn optional<T: std::str::FromStr>(
        &self,
        column: &str,
        right: &str,
    ) -> Result<Option<T>, FileError> {
        match self.text(column) {
            "" => Ok(None),
            text => self.parsed(column, text, right).map(Some),
        }
    }

    /// A whole number of 32 bits.
    pub(super) fn needed_i32(&self, column: &str) -> Result<i32, FileError> {
        self.i32(column)?
            .ok_or_else(|| self.error(column, "must hold a whole number"))
    }

    /// A fraction of at least 0, or nothing.
    pub(super) fn fraction(&self, column: &str) -> Result<Option<f64>, FileError> {
        let fraction: Option<f64> = self.optional(column, "a number of at least 0")?;
        match fraction {
            Some(f) if f.is_nan() || f < 0.0 => {
                Err(self.error(column, format_args!("`{f}` is not a number of at least 0")))
            }
            _ => Ok(fraction),
        }
    }

    /// Seconds of at least 0, or nothing.
    pub(super) fn seconds(&self, column: &str) -> Result<Option<SimDuration>, FileError> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        match self.nanos(column, text)? {
            nanos @ 0.. => Ok(Some(SimDuration(u64::try_from(nanos).unwrap_or(u64::MAX)))),
            _ => Err(self.error(
                column,
                format_args!("`{text}` is not a number of seconds of at least 0"),
            )),
        }
    }

    /// The instant that an age in seconds names, or nothing.
    pub(super) fn instant(&self, column: &str) -> Result<Option<SimTime>, FileError> {
        match self.text(column) {
            "" => Ok(None),
            text => self.ago(column, text).map(Some),
        }
    }

    /// The instant so many seconds before the present; what lies before the clock's start becomes that, a negative age lies ahead.
    fn ago(&self, column: &str, text: &str) -> Result<SimTime, FileError> {
        let nanos = i128::from(NOW.0).saturating_sub(self.nanos(column, text)?);
        Ok(SimTime(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)))
    }

    /// Seconds as nanoseconds: whole ones exactly, whatever their size.
    fn nanos(&self, column: &str, text: &str) -> Result<i128, FileError> {
        if let Ok(whole) = text.parse::<i64>() {
            return Ok(i128::from(whole) * 1_000_000_000);
        }
        match text.parse::<f64>() {
            Ok(secs) if !secs.is_nan() => Ok((secs * 1e9).round() as i128),
            _ => Err(self.error(column, format_args!("`{text}` is not a number of seconds"))),
        }
    }

    /// 0 or 1 (or false, true), or nothing.
    pub(super) fn flag(&self, column: &str) -> Result<Option<bool>, FileError> {
        match self.text(column) {
            "" => Ok(None),
            text => self.flag_of(column, text).map(Some),
        }
    }

    fn flag_of(&self, column: &str, text: &str) -> Result<bool, FileError> {
        match text {
            "0" | "false" => Ok(false),
            "1" | "true" => Ok(true),
            _ => Err(self.error(column, format_args!("`{text}` is neither 0 nor 1"))),
        }
    }

    /// Items of a list; none where the cell is empty.
    pub(super) fn list(&self, column: &str) -> Vec<&'a str> {
        match self.text(column) {
            "" => Vec::new(),
            text => text.split(';').map(str::trim).collect(),
        }
    }

    /// A flag for each of `pods` pods; `default` where the list is shorter.
    pub(super) fn flags(
        &self,
        column: &str,
        pods: usize,
        default: bool,
    ) -> Result<Vec<bool>, FileError> {
        let items = self.list_of_pods(column, pods)?;
        let flag = |pod| match items.get(pod).copied() {
            None | Some("") => Ok(default),
            Some(text) => self.flag_of(column, text),
        };
        (0..pods).map(flag).collect()
    }

    /// Milli-units for each of `pods` pods; none where the list is shorter, or an item is empty or `-`.
    pub(super) fn millis_of_pods(
        &self,
        column: &str,
        pods: usize,
    ) -> Result<Vec<Option<i64>>, FileError> {
        let items = self.list_of_pods(column, pods)?;
        let mut millis = self.millis_or_none(column, &items)?;
        millis.resize(pods, None);
        Ok(millis)
    }

    /// Milli-units; none where an item is empty or `-`.
    pub(super) fn millis(&self, column: &str) -> Result<Vec<Option<i64>>, FileError> {
        self.millis_or_none(column, &self.list(column))
    }

    fn millis_or_none(&self, column: &str, items: &[&str]) -> Result<Vec<Option<i64>>, FileError> {
        let milli = |item: &&str| match *item {
            "" | "-" => Ok(None),
            text => self
                .parsed(
                    column,
                    text,
                    "a whole number of milli-units, or `-` for none",
                )
                .map(Some),
        };
        items.iter().map(milli).collect()
    }

    fn list_of_pods(&self, column: &str, pods: usize) -> Result<Vec<&'a str>, FileError> {
        let items = self.list(column);
        if items.iter().skip(pods).any(|item| !item.is_empty()) {
            let why = format!("{} items, but `pod_phase` lists {pods} pods", items.len());
            return Err(self.error(column, why));
        }
        Ok(items)
    }

    /// Items `replicas@ageSeconds`.
    pub(super) fn dated(&self, column: &str) -> Result<Vec<(i32, SimTime)>, FileError> {
        let dated = |item: &str| {
            let wrong = || {
                self.error(
                    column,
                    format_args!("`{item}` is not `replicas@ageSeconds`, as 3@45"),
                )
            };
            let (replicas, age) = item.split_once('@').ok_or_else(wrong)?;
            let replicas = replicas.trim().parse().map_err(|_| wrong())?;
            Ok((replicas, self.ago(column, age.trim())?))
        };
        self.list(column)
            .into_iter()
            .filter(|i| !i.is_empty())
            .map(dated)
            .collect()
    }
}
