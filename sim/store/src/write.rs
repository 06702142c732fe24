//! Writing a record file.

use std::io::{self, Seek, SeekFrom, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::columns::Row;
use crate::{CHUNK_ROWS, Record, StoreError};

/// The part that holds the cluster.
pub(crate) const CLUSTER: &str = "cluster.json";

fn failed(e: zip::result::ZipError) -> StoreError {
    match e {
        zip::result::ZipError::Io(e) => StoreError::Io(e),
        other => StoreError::Io(io::Error::other(other.to_string())),
    }
}

/// Writes until an error, and takes what comes after it for written: when it is dropped, the archive tries once more to end itself, and prints on
/// standard error where it cannot.
struct UntilError<W> {
    out: W,
    has_failed: bool,
    /// Where it would write next, and how long it would be [bytes].
    at: u64,
    end: u64,
}

impl<W: Write + Seek> UntilError<W> {
    fn new(out: W) -> UntilError<W> {
        UntilError {
            out,
            has_failed: false,
            at: 0,
            end: 0,
        }
    }

    /// What `write` gives; `after` once something has failed.
    fn unless_failed<T>(
        &mut self,
        after: T,
        write: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.has_failed {
            return Ok(after);
        }
        let done = write(&mut self.out);
        self.has_failed = (done.as_ref()).is_err_and(|e| e.kind() != io::ErrorKind::Interrupted);
        if self.has_failed {
            // The archive takes it for granted that it writes behind what it has.
            self.at = self.end;
        }
        done
    }
}

impl<W: Write + Seek> Write for UntilError<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.unless_failed(bytes.len(), |out| out.write(bytes))?;
        self.at += n as u64;
        self.end = self.end.max(self.at);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_failed((), W::flush)
    }
}

impl<W: Write + Seek> Seek for UntilError<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let would = match to {
            SeekFrom::Start(n) => n,
            SeekFrom::Current(n) => self.at.saturating_add_signed(n),
            SeekFrom::End(n) => self.end.saturating_add_signed(n),
        };
        self.at = self.unless_failed(would, |out| out.seek(to))?;
        Ok(self.at)
    }
}

struct Archive<W: Write + Seek>(ZipWriter<UntilError<W>>);

impl<W: Write + Seek> Archive<W> {
    fn start(&mut self, name: &str) -> Result<(), StoreError> {
        // The same bytes every time: no clock, no permissions of this machine.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(1))
            .unix_permissions(0o644);
        self.0.start_file(name, options).map_err(failed)
    }

    fn json(&mut self, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        self.start(name)?;
        serde_json::to_writer(&mut self.0, value).map_err(io::Error::from)?;
        Ok(())
    }

    fn table<R: Row>(
        &mut self,
        table: &str,
        mut rows: impl Iterator<Item = R>,
    ) -> Result<(), StoreError> {
        for i in 0.. {
            let chunk: Vec<R> = rows.by_ref().take(CHUNK_ROWS).collect();
            if chunk.is_empty() {
                break;
            }
            for (name, values) in R::NAMES.iter().zip(R::columns(&chunk)) {
                self.start(&format!("{table}/{i}/{name}.npy"))?;
                values.write(&mut self.0)?;
            }
        }
        Ok(())
    }
}

/// Writes `record` to `out`. The same record gives the same bytes.
///
/// # Errors
/// Those of `out`.
pub fn write(out: impl Write + Seek, record: &Record) -> Result<(), StoreError> {
    let mut archive = Archive(ZipWriter::new(UntilError::new(out)));
    archive.json("info.json", &record.info)?;
    // As `run --json` prints it, so that `report --json` need not go through numbers again.
    archive.start("report.json")?;
    serde_json::to_writer_pretty(&mut archive.0, &record.report).map_err(io::Error::from)?;
    archive.0.write_all(b"\n")?;
    // For those who open the archive with other tools.
    archive.start("scenario.toml")?;
    archive.0.write_all(record.info.scenario.as_bytes())?;
    if let Some(cluster) = &record.cluster {
        archive.json(CLUSTER, cluster)?;
    }
    archive.table("rates", record.rates.bins.iter().copied())?;
    archive.table("transfers", record.transfers.iter())?;
    for (i, level) in record.steps.iter().enumerate().rev() {
        archive.table(&format!("steps/{i}"), level.rows().iter())?;
    }
    archive.table("requests", record.requests.iter())?;
    let mut out = archive.0.finish().map_err(failed)?;
    match out.has_failed {
        false => Ok(out.flush()?),
        true => Err(io::Error::other("a part of it could not be written").into()),
    }
}
