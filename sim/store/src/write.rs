//! Writing a record file.

use std::io::{self, Seek, Write};

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

struct Archive<W: Write + Seek>(ZipWriter<W>, CompressionMethod);

impl<W: Write + Seek> Archive<W> {
    fn start(&mut self, name: &str) -> Result<(), StoreError> {
        // The same bytes every time: no clock, no permissions of this machine.
        let options = SimpleFileOptions::default()
            .compression_method(self.1)
            .compression_level((self.1 == CompressionMethod::Deflated).then_some(1))
            .unix_permissions(0o644);
        self.0.start_file(name, options).map_err(failed)
    }

    fn json(&mut self, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        self.start(name)?;
        serde_json::to_writer(&mut self.0, value).map_err(io::Error::from)?;
        Ok(())
    }

    fn table<R: Row>(&mut self, table: &str, rows: &[R]) -> Result<(), StoreError> {
        for (i, chunk) in rows.chunks(CHUNK_ROWS).enumerate() {
            for (name, values) in R::NAMES.iter().zip(R::columns(chunk)) {
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
    archive(out, record, CompressionMethod::Deflated)
}

/// The same without compressing: larger and sooner done, to be read at once.
///
/// # Errors
/// Those of `out`.
pub fn write_plain(out: impl Write + Seek, record: &Record) -> Result<(), StoreError> {
    archive(out, record, CompressionMethod::Stored)
}

fn archive(
    out: impl Write + Seek,
    record: &Record,
    method: CompressionMethod,
) -> Result<(), StoreError> {
    let mut archive = Archive(ZipWriter::new(out), method);
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
    archive.table("rates", &record.rates.bins)?;
    archive.table("transfers", &record.transfers)?;
    for (i, level) in record.steps.iter().enumerate().rev() {
        archive.table(&format!("steps/{i}"), &level.rows)?;
    }
    archive.table("requests", &record.requests)?;
    archive.0.finish().map_err(failed)?.flush()?;
    Ok(())
}
