//! Reading a record file, or parts of it.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use serde::de::DeserializeOwned;
use sim::record::RequestRow;
use sim::report::RunReport;
use zip::ZipArchive;

use crate::columns::Row;
use crate::levels::MAX_LEVELS;
use crate::npy::Values;
use crate::write::CLUSTER;
use crate::{
    Bin, CHUNK_ROWS, Cluster, FORMAT, Info, MAX_ROWS, Packed, Packer, Rates, Record, StepLevel,
    StepSpan, StoreError, Transfer,
};

/// Most that a text in the archive may be [bytes].
const MAX_TEXT: u64 = 64 << 20;

/// Most parts of the archive.
const MAX_PARTS: usize = 100_000;

/// Most replicas.
const MAX_REPLICAS: usize = 1 << 20;

/// No replica served the request.
const NO_REPLICA: u32 = u32::MAX;

/// Whether bytes at the start of a file say that it may be a record.
pub fn is_record(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04")
}

/// An open record file. Parts are read when they are asked for.
pub struct Reader<R> {
    archive: ZipArchive<R>,
    info: Info,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads what was run; nothing else yet.
    ///
    /// # Errors
    /// [`StoreError`]: no record, a newer one, a damaged one.
    pub fn open(input: R) -> Result<Reader<R>, StoreError> {
        let archive = ZipArchive::new(input).map_err(|e| StoreError::NotARecord(e.to_string()))?;
        if archive.len() > MAX_PARTS {
            return Err(StoreError::TooLarge {
                what: "parts",
                found: archive.len() as u64,
                most: MAX_PARTS as u64,
            });
        }
        let mut reader = Reader {
            archive,
            info: Info::default(),
        };
        if reader.archive.index_for_name("info.json").is_none() {
            return Err(StoreError::NotARecord("no `info.json` in it".to_owned()));
        }
        let text = reader.text("info.json")?;
        refuse_newer(&text)?;
        reader.info = parse(&text, "info.json")?;
        check(&reader.info)?;
        Ok(reader)
    }

    /// What was run, and what the file holds of it.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The figures of the run. A number may differ from what was written in its last bit.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn report(&mut self) -> Result<RunReport, StoreError> {
        let text = self.text("report.json")?;
        parse(&text, "report.json")
    }

    /// The same as the JSON text that was written.
    ///
    /// # Errors
    /// [`StoreError`]; also where it does not hold a report.
    pub fn report_json(&mut self) -> Result<String, StoreError> {
        self.report()?;
        self.text("report.json")
    }

    /// Rows of requests, in the order of their ends.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn requests(&mut self) -> Result<Packed<RequestRow>, StoreError> {
        let (replicas, streams) = (self.info.replicas.len(), self.info.streams.len());
        let mut rows = Packer::for_rows(at_most(self.info.request_rows));
        self.table("requests", self.info.request_rows, |r: RequestRow| {
            let known = r.replica == NO_REPLICA || (r.replica as usize) < replicas;
            if !known || usize::from(r.stream) >= streams.max(1) {
                return Err("names a replica or a stream that is not there".to_owned());
            }
            rows.push(r);
            Ok(())
        })?;
        Ok(rows.finish())
    }

    /// Levels of steps that there are; 0 is the finest.
    pub fn levels(&self) -> usize {
        self.info.step_rows.len()
    }

    /// Level `level` of the steps.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn steps(&mut self, level: usize) -> Result<StepLevel, StoreError> {
        let place = format!("steps/{level}");
        let Some(n) = self.info.step_rows.get(level) else {
            return Err(StoreError::Missing(place));
        };
        let replicas = self.info.replicas.len();
        let (mut rows, mut last) = (Packer::for_rows(at_most(*n)), (0, 0));
        self.table(&place, *n, |r: StepSpan| {
            if r.replica as usize >= replicas {
                return Err(format!("names replica {} of {replicas}", r.replica));
            }
            if (r.replica, r.start) < last {
                return Err("is not in order".to_owned());
            }
            last = (r.replica, r.start);
            rows.push(r);
            Ok(())
        })?;
        Ok(StepLevel::new(rows.finish(), replicas))
    }

    /// All levels of the steps. The smallest is read first: what is needed meanwhile for the largest then lies above all that stays, and
    /// goes back to the system.
    fn all_steps(&mut self) -> Result<Vec<StepLevel>, StoreError> {
        let levels = (0..self.levels()).rev().map(|level| self.steps(level));
        let mut levels: Vec<StepLevel> = levels.collect::<Result<_, _>>()?;
        levels.reverse();
        Ok(levels)
    }

    /// KV that went from one replica to another, by request.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn transfers(&mut self) -> Result<Packed<Transfer>, StoreError> {
        let replicas = self.info.replicas.len();
        let mut rows = Packer::for_rows(at_most(self.info.transfer_rows));
        let mut last = (0, 0);
        self.table("transfers", self.info.transfer_rows, |t: Transfer| {
            if t.from.max(t.to) as usize >= replicas {
                return Err("names a replica that is not there".to_owned());
            }
            if (t.request, t.ended) < last {
                return Err("is not in order".to_owned());
            }
            last = (t.request, t.ended);
            rows.push(t);
            Ok(())
        })?;
        Ok(rows.finish())
    }

    /// Counts over time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rates(&mut self) -> Result<Rates, StoreError> {
        let mut chunks = 0;
        while self.has(&format!("rates/{chunks}/sent.npy")) {
            chunks += 1;
        }
        if chunks > 1 {
            return Err(StoreError::damaged("rates", "it has more than one chunk"));
        }
        let mut bins: Vec<Bin> = Vec::new();
        if chunks > 0 {
            let rows = self.rows_of("rates/0/sent.npy")?;
            self.table("rates", rows as u64, |bin| {
                bins.push(bin);
                Ok(())
            })?;
        }
        Ok(Rates {
            width: self.info.bin_width.max(1),
            bins,
        })
    }

    /// All of it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn all(mut self) -> Result<Record, StoreError> {
        let steps = self.all_steps()?;
        Ok(Record {
            report: self.report()?,
            requests: self.requests()?,
            steps,
            transfers: self.transfers()?,
            rates: self.rates()?,
            cluster: self.cluster()?,
            info: self.info,
        })
    }

    /// The cluster around the replicas, where there was one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn cluster(&mut self) -> Result<Option<Cluster>, StoreError> {
        if !self.has(CLUSTER) {
            return Ok(None);
        }
        let cluster: Cluster = parse(&self.text(CLUSTER)?, CLUSTER)?;
        cluster.check(self.info.replicas.len())?;
        Ok(Some(cluster))
    }

    fn has(&self, name: &str) -> bool {
        self.archive.index_for_name(name).is_some()
    }

    fn text(&mut self, name: &str) -> Result<String, StoreError> {
        let part = self.part(name)?;
        let mut text = String::new();
        part.take(MAX_TEXT + 1)
            .read_to_string(&mut text)
            .map_err(|e| StoreError::damaged(name, e.to_string()))?;
        if text.len() as u64 > MAX_TEXT {
            return Err(StoreError::damaged(name, "it is too long"));
        }
        Ok(text)
    }

    fn part(&mut self, name: &str) -> Result<zip::read::ZipFile<'_, R>, StoreError> {
        self.archive.by_name(name).map_err(|e| match e {
            zip::result::ZipError::FileNotFound => StoreError::Missing(name.to_owned()),
            e => StoreError::damaged(name, e.to_string()),
        })
    }

    /// Rows of a column of 64-bit numbers, by its size.
    fn rows_of(&mut self, name: &str) -> Result<usize, StoreError> {
        let bytes = self.part(name)?.size();
        // The header has 128 bytes.
        let rows = bytes.saturating_sub(128) / 8;
        match usize::try_from(rows) {
            Ok(rows) if rows <= CHUNK_ROWS => Ok(rows),
            _ => Err(StoreError::damaged(name, "it is too long")),
        }
    }

    /// Hands the `rows` rows of a table to `take`, which says what is wrong with one.
    fn table<T: Row>(
        &mut self,
        table: &str,
        rows: u64,
        mut take: impl FnMut(T) -> Result<(), String>,
    ) -> Result<(), StoreError> {
        let rows = usize::try_from(rows).ok().filter(|n| *n <= MAX_ROWS);
        let Some(rows) = rows else {
            return Err(StoreError::TooLarge {
                what: "rows of a table",
                found: u64::MAX,
                most: MAX_ROWS as u64,
            });
        };
        let (mut seen, mut wrong) = (0, None);
        for chunk in 0..rows.div_ceil(CHUNK_ROWS) {
            let n = CHUNK_ROWS.min(rows - chunk * CHUNK_ROWS);
            let place = format!("{table}/{chunk}");
            let mut columns = Vec::with_capacity(T::NAMES.len());
            for name in T::NAMES {
                let name = format!("{place}/{name}.npy");
                let mut part = self.part(&name)?;
                columns.push(Values::read(&mut part, n, &name)?);
            }
            let read = T::rows(columns, |row| {
                if wrong.is_none() {
                    wrong = take(row).err().map(|why| format!("row {seen} {why}"));
                    seen += 1;
                }
            });
            read.map_err(|e| e.within(&place))?;
            if let Some(why) = wrong.take() {
                return Err(StoreError::damaged(table, why));
            }
        }
        Ok(())
    }
}

/// `rows`, as far as a table may have them.
fn at_most(rows: u64) -> usize {
    usize::try_from(rows).map_or(MAX_ROWS, |rows| rows.min(MAX_ROWS))
}

/// Reads a whole record.
///
/// # Errors
/// [`StoreError`].
pub fn read(input: impl Read + Seek) -> Result<Record, StoreError> {
    Reader::open(input)?.all()
}

/// Reads a whole record that lies in memory, its large tables side by side.
///
/// # Errors
/// [`StoreError`].
pub fn read_slice(bytes: &[u8]) -> Result<Record, StoreError> {
    let reader = Reader::open(Cursor::new(bytes))?;
    let other = Reader {
        archive: reader.archive.clone(),
        info: reader.info.clone(),
    };
    side_by_side(reader, other)
}

/// Reads a whole record from a file, its large tables side by side. The file is read in parts, so that no memory goes to it as it is.
///
/// # Errors
/// [`StoreError`].
pub fn read_file(path: &Path) -> Result<Record, StoreError> {
    let open = || Reader::open(BufReader::new(File::open(path)?));
    side_by_side(open()?, open()?)
}

/// Reads with two readers of one record.
fn side_by_side<R: Read + Seek + Send>(
    mut reader: Reader<R>,
    mut other: Reader<R>,
) -> Result<Record, StoreError> {
    let (requests, steps) = rayon::join(|| other.requests(), || reader.all_steps());
    Ok(Record {
        report: reader.report()?,
        requests: requests?,
        steps: steps?,
        transfers: reader.transfers()?,
        rates: reader.rates()?,
        cluster: reader.cluster()?,
        info: reader.info,
    })
}

fn parse<T: DeserializeOwned>(text: &str, name: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::damaged(name, e.to_string()))
}

/// Before anything else is read: a newer format may look different in all but this.
fn refuse_newer(text: &str) -> Result<(), StoreError> {
    #[derive(serde::Deserialize)]
    struct Head {
        format: u32,
        #[serde(default)]
        version: String,
    }
    let head: Head = parse(text, "info.json")?;
    if head.format > FORMAT {
        return Err(StoreError::Newer {
            found: head.format,
            known: FORMAT,
            version: head.version.chars().take(40).collect(),
        });
    }
    if head.format == 0 {
        return Err(StoreError::damaged("info.json", "there is no format 0"));
    }
    Ok(())
}

fn check(info: &Info) -> Result<(), StoreError> {
    let too_large = |what, found: u64, most: usize| StoreError::TooLarge {
        what,
        found,
        most: most as u64,
    };
    if info.replicas.len() > MAX_REPLICAS {
        return Err(too_large(
            "replicas",
            info.replicas.len() as u64,
            MAX_REPLICAS,
        ));
    }
    if info.step_rows.len() > MAX_LEVELS {
        let found = info.step_rows.len() as u64;
        return Err(too_large("levels of steps", found, MAX_LEVELS));
    }
    // All levels together: a level has an eighth of the rows of the one before it.
    let rows = info
        .step_rows
        .iter()
        .chain([&info.transfer_rows])
        .fold(info.request_rows, |a, b| a.saturating_add(*b));
    if rows > 3 * MAX_ROWS as u64 {
        return Err(too_large("rows", rows, 3 * MAX_ROWS));
    }
    let known = |replica: u32| (replica as usize) < info.replicas.len();
    if let Some(e) = info.events.iter().find(|e| !known(e.replica)) {
        let why = format!(
            "an event names replica {} of {}",
            e.replica,
            info.replicas.len()
        );
        return Err(StoreError::damaged("info.json", why));
    }
    if info.end == u64::MAX {
        return Err(StoreError::damaged("info.json", "the run never ends"));
    }
    Ok(())
}
