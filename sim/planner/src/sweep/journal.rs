//! What of a sweep is done: a file that only grows, a line per run, each with its checksum.
//!
//! A line is the FNV-1a hash of what follows in 16 hexadecimal digits, a space, and one JSON object. The first line is the sweep's own. A kill can
//! leave a last line without its end: it is cut off when the journal is opened again, and its run is made anew. Any other line that does not match its
//! checksum is damaged: it is left out and said, its run is made anew, and all other lines count.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::result::Row;
use crate::Error;
use crate::hash::fnv1a;

/// Bytes in which a damaged first line may differ from the sweep's own and still be taken for it: those of another sweep differ in most of the 16 digits
/// of their checksums.
const FIRST_LINE_BYTES: usize = 4;

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
    /// Whether it has its first line.
    is_begun: bool,
    /// The runs that are done.
    pub rows: Vec<Row>,
    /// Numbers of the lines that do not match their checksums, from 1.
    damaged: Vec<usize>,
    /// Bytes up to the end of the last whole line.
    whole: u64,
}

impl Contents {
    /// The damage in words; none where there is none.
    pub fn damage(&self, path: &Path) -> Option<String> {
        let (first, more) = self.damaged.split_first()?;
        let lines = match more.len() {
            0 => format!("line {first} does not match its checksum and is"),
            n => format!("line {first} and {n} more do not match their checksums and are"),
        };
        Some(format!("{}: {lines} left out", path.display()))
    }
}

/// What a line says; none where it does not match its checksum.
fn said<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (sum, json) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    let right = sum == format!("{:016x}", fnv1a(json.as_bytes()));
    right.then(|| serde_json::from_str(json).ok()).flatten()
}

/// Reads the lines of a journal that is to be `own`'s.
///
/// # Errors
/// It is another's, or no journal.
fn read(path: &Path, bytes: &[u8], own: &Head) -> Result<Contents, Error> {
    let mut contents = Contents {
        is_begun: false,
        rows: Vec::new(),
        damaged: Vec::new(),
        whole: 0,
    };
    for (i, text) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        // A line without its end was being written when the process was killed.
        let Some(text) = text.strip_suffix(b"\n") else {
            break;
        };
        contents.whole += text.len() as u64 + 1;
        if i == 0 {
            contents.is_begun = true;
            match said::<Head>(text) {
                Some(head) if head == *own => {}
                Some(other) => return Err(of_another(path, &other)),
                None if is_nearly(text, line(own)?.as_bytes()) => contents.damaged.push(1),
                None => {
                    return Err(Error::input(format!(
                        "{} is no journal of this sweep: its first line does not say so; name another folder, or remove it to start over",
                        path.display()
                    )));
                }
            }
            continue;
        }
        match said(text) {
            Some(row) => contents.rows.push(row),
            None => contents.damaged.push(i + 1),
        }
    }
    Ok(contents)
}

/// Whether a line is the `whole` one but for a few bytes; where its end is among them, the next line follows it.
fn is_nearly(text: &[u8], whole: &[u8]) -> bool {
    let whole = whole.strip_suffix(b"\n").unwrap_or(whole);
    let others = text.iter().zip(whole).filter(|(a, b)| a != b).count();
    text.len() >= whole.len() && others <= FIRST_LINE_BYTES
}

fn of_another(path: &Path, other: &Head) -> Error {
    Error::input(format!(
        "{} belongs to another sweep or shard ({} of {} runs, shard {}/{}): the sweep, its scenario, the shards or servetwin changed; name \
         another folder, or remove it to start over",
        path.display(),
        other.sweep,
        other.runs,
        other.shard.0,
        other.shard.1
    ))
}

/// Opens a journal and takes its lock.
fn locked(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
        .map_err(|e| Error::Failed(format!("cannot open {}: {e}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(Error::input(format!(
            "{} is in use by another process",
            path.display()
        ))),
    }
}

impl Journal {
    /// Reads the journal `path` of `head` without changing it.
    ///
    /// # Errors
    /// A file that cannot be read, or is no journal of this sweep and shard.
    pub fn read(path: &Path, head: &Head) -> Result<Contents, Error> {
        let fail = |e: std::io::Error| Error::input(format!("cannot read {}: {e}", path.display()));
        let mut bytes = Vec::new();
        File::open(path)
            .map_err(fail)?
            .take(MAX_BYTES)
            .read_to_end(&mut bytes)
            .map_err(fail)?;
        read(path, &bytes, head)
    }

    /// Opens or begins the journal `path` of `head`; gives what it holds. Nobody else may have it open. Damaged lines are taken out of it.
    ///
    /// # Errors
    /// A journal of another sweep or shard, one that another process has open.
    pub fn open(path: &Path, head: &Head) -> Result<(Journal, Contents), Error> {
        let fail = |what: &str, e: std::io::Error| {
            Error::Failed(format!("cannot {what} {}: {e}", path.display()))
        };
        let mut file = locked(path)?;
        let mut bytes = Vec::new();
        (&mut file)
            .take(MAX_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|e| fail("read", e))?;
        let contents = read(path, &bytes, head)?;
        if contents.damaged.is_empty() {
            file.set_len(contents.whole)
                .map_err(|e| fail("shorten", e))?;
        } else {
            let own = line(head)?;
            let whole = bytes.get(..contents.whole as usize).unwrap_or_default();
            let lines = whole.split_inclusive(|b| *b == b'\n').enumerate().skip(1);
            let good = lines.filter(|(i, _)| !contents.damaged.contains(&(i + 1)));
            let text: Vec<u8> = std::iter::once(own.as_bytes())
                .chain(good.map(|(_, text)| text))
                .flatten()
                .copied()
                .collect();
            files::write(path, |out| out.write_all(&text))
                .map_err(|e| Error::Failed(e.to_string()))?;
            file = locked(path)?;
        }
        file.seek(SeekFrom::End(0)).map_err(|e| fail("open", e))?;
        let mut journal = Journal {
            file,
            path: path.to_owned(),
        };
        if !contents.is_begun {
            journal.append(&line(head)?)?;
        }
        Ok((journal, contents))
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
        assert!(done.rows.is_empty());
        j.add(&row(0)).unwrap();
        j.add(&row(1)).unwrap();
        drop(j);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut j, done) = Journal::open(&path, &head()).unwrap();
            for run in done.rows.len() as u64..2 {
                j.add(&row(run)).unwrap();
            }
            drop(j);
            assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    /// A journal of two runs.
    fn two(path: &Path) -> Vec<u8> {
        let _ = std::fs::remove_file(path);
        let (mut j, _) = Journal::open(path, &head()).unwrap();
        j.add(&row(0)).unwrap();
        j.add(&row(1)).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn another_sweep_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        two(&path);
        let other = Head {
            sweep: "y".into(),
            ..head()
        };
        let e = Journal::open(&path, &other).err().unwrap().to_string();
        assert!(e.contains("another sweep"), "{e}");
        std::fs::write(&path, "once upon a time\n").unwrap();
        let e = Journal::open(&path, &head()).err().unwrap().to_string();
        assert!(e.contains("no journal of this sweep"), "{e}");
    }

    #[test]
    fn any_flipped_byte_costs_no_more_than_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let whole = two(&path);
        let of = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'\n').count();
        for at in 0..whole.len() {
            for bit in [1, 0x20, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                std::fs::write(&path, &bytes).unwrap();
                let (mut j, held) = Journal::open(&path, &head()).unwrap();
                // A line's end that is gone joins two lines; the last line's makes it one that was cut.
                let least = if whole[at] == b'\n' { 0 } else { 1 };
                assert!(held.rows.len() >= least, "byte {at}");
                assert!(held.rows.iter().all(|r| *r == row(r.run)));
                let said = held.damage(&path);
                let is_cut = of(&bytes) < of(&whole) && !bytes.ends_with(b"\n");
                assert_eq!(said.is_none(), is_cut, "byte {at}: {said:?}");
                for run in (0..2).filter(|n| held.rows.iter().all(|r| r.run != *n)) {
                    j.add(&row(run)).unwrap();
                }
                drop(j);
                let again = Journal::read(&path, &head()).unwrap();
                assert_eq!((again.rows.len(), again.damage(&path)), (2, None));
            }
        }
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
