//! What of a sweep is done: a file that only grows, a line per run, each with its checksum.
//!
//! A line is the FNV-1a hash of what follows in 16 hexadecimal digits, a space, and one JSON object. The first line is the sweep's own. A kill can
//! leave a last line without its end: it is cut off when the journal is opened again, and its run is made anew. Anything else that does not match its
//! checksum is damage, and said.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::result::Row;
use crate::Error;
use crate::hash::fnv1a;

/// Longest journal that is read [bytes].
const MAX_BYTES: u64 = 16 << 30;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Fingerprint of the sweep.
    pub sweep: String,
    /// Its runs, those of all shards.
    pub runs: u64,
    /// The shard: index from 1, and how many there are.
    pub shard: (u64, u64),
}

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
}

fn line(value: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(|e| Error::Failed(e.to_string()))?;
    Ok(format!("{:016x} {json}\n", fnv1a(json.as_bytes())))
}

/// What a journal holds.
pub struct Contents {
    /// Its first line; none where it is empty.
    pub head: Option<Head>,
    /// The runs that are done.
    pub rows: Vec<Row>,
    /// Bytes up to the end of the last whole line.
    whole: u64,
}

/// Reads the lines of a journal.
///
/// # Errors
/// A line other than the last that does not match its checksum.
fn read(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    let mut contents = Contents {
        head: None,
        rows: Vec::new(),
        whole: 0,
    };
    let damaged = |n: usize| {
        Error::input(format!(
            "{}:{n}: the line does not match its checksum: the file was changed or damaged; remove it to start over",
            path.display()
        ))
    };
    let mut at = 0;
    let mut n = 0;
    while at < bytes.len() {
        n += 1;
        // A line without its end was being written when the process was killed.
        let Some(length) = bytes[at..].iter().position(|b| *b == b'\n') else {
            break;
        };
        let text = std::str::from_utf8(&bytes[at..at + length]).map_err(|_| damaged(n))?;
        let (sum, json) = text.split_once(' ').ok_or_else(|| damaged(n))?;
        if u64::from_str_radix(sum, 16).ok() != Some(fnv1a(json.as_bytes())) {
            return Err(damaged(n));
        }
        if n == 1 {
            contents.head = Some(serde_json::from_str(json).map_err(|_| damaged(n))?);
        } else {
            contents
                .rows
                .push(serde_json::from_str(json).map_err(|_| damaged(n))?);
        }
        at += length + 1;
        contents.whole = at as u64;
    }
    Ok(contents)
}

impl Journal {
    /// Reads the journal `path` without changing it.
    ///
    /// # Errors
    /// A file that cannot be read, is no journal, or is damaged.
    pub fn read(path: &Path) -> Result<Contents, Error> {
        let fail = |e: std::io::Error| Error::input(format!("cannot read {}: {e}", path.display()));
        let mut bytes = Vec::new();
        File::open(path)
            .map_err(fail)?
            .take(MAX_BYTES)
            .read_to_end(&mut bytes)
            .map_err(fail)?;
        let contents = read(path, &bytes)?;
        if contents.head.is_none() {
            return Err(Error::input(format!(
                "{} is no journal of a sweep",
                path.display()
            )));
        }
        Ok(contents)
    }

    /// Opens or begins the journal `path` of `head`; gives what is done. Nobody else may have it open.
    ///
    /// # Errors
    /// A journal of another sweep or shard, a damaged one, one that another process has open.
    pub fn open(path: &Path, head: &Head) -> Result<(Journal, Vec<Row>), Error> {
        let fail = |what: &str, e: std::io::Error| {
            Error::Failed(format!("cannot {what} {}: {e}", path.display()))
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| fail("open", e))?;
        if file.try_lock().is_err() {
            return Err(Error::input(format!(
                "{} is in use by another process",
                path.display()
            )));
        }
        let mut bytes = Vec::new();
        (&mut file)
            .take(MAX_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|e| fail("read", e))?;
        let contents = read(path, &bytes)?;
        match &contents.head {
            Some(other) if other != head => {
                return Err(Error::input(format!(
                    "{} belongs to another sweep or shard ({} of {} runs, shard {}/{}): the sweep, its scenario, the shards or servetwin changed; name \
                     another folder, or remove it to start over",
                    path.display(),
                    other.sweep,
                    other.runs,
                    other.shard.0,
                    other.shard.1
                )));
            }
            _ => {}
        }
        file.set_len(contents.whole)
            .map_err(|e| fail("shorten", e))?;
        file.seek(SeekFrom::End(0)).map_err(|e| fail("open", e))?;
        let mut journal = Journal {
            file,
            path: path.to_owned(),
        };
        if contents.head.is_none() {
            journal.append(&line(head)?)?;
        }
        Ok((journal, contents.rows))
    }

    /// Adds a run that is done.
    ///
    /// # Errors
    /// A full disk.
    pub fn add(&mut self, row: &Row) -> Result<(), Error> {
        self.append(&line(row)?)
    }

    fn append(&mut self, line: &str) -> Result<(), Error> {
        self.file
            .write_all(line.as_bytes())
            .map_err(|e| Error::Failed(format!("cannot write {}: {e}", self.path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            sweep: "x".into(),
            runs: 3,
            shard: (1, 1),
        }
    }

    fn row(run: u64) -> Row {
        Row {
            run,
            figures: vec![Some(1.5), None],
            fingerprint: "f".into(),
            error: None,
        }
    }

    #[test]
    fn a_cut_line_is_forgotten_and_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut j, done) = Journal::open(&path, &head()).unwrap();
        assert!(done.is_empty());
        j.add(&row(0)).unwrap();
        j.add(&row(1)).unwrap();
        drop(j);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut j, done) = Journal::open(&path, &head()).unwrap();
            for run in done.len() as u64..2 {
                j.add(&row(run)).unwrap();
            }
            drop(j);
            assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn damage_is_not_a_cut_and_another_sweep_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut j, _) = Journal::open(&path, &head()).unwrap();
        j.add(&row(0)).unwrap();
        drop(j);
        let other = Head {
            sweep: "y".into(),
            ..head()
        };
        assert!(
            Journal::open(&path, &other)
                .err()
                .unwrap()
                .to_string()
                .contains("another sweep")
        );
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() - 8;
        bytes[middle] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(
            Journal::open(&path, &head())
                .err()
                .unwrap()
                .to_string()
                .contains(":2:")
        );
    }

    #[test]
    fn two_processes_do_not_share_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let _held = Journal::open(&path, &head()).unwrap();
        assert!(
            Journal::open(&path, &head())
                .err()
                .unwrap()
                .to_string()
                .contains("in use")
        );
    }
}
