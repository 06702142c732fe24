//! From files to what can be shown.

use std::path::Path;
use std::sync::Arc;

use hwmodels::files::Files;
use store::Record;

use super::{Doc, Done};
use crate::measured::{self, Tables};
use crate::source::Source;
use crate::{candidates, live};

/// Largest file that is opened [bytes].
#[cfg(not(target_arch = "wasm32"))]
const MAX_FILE: u64 = 4 << 30;

/// What is said of files that are none of these.
const KNOWN: &str = "a scenario (.toml), a record (.servetwin, written by `servetwin run FILE --record OUT.servetwin`), the result of a plan \
    (plan --json) or of a sweep (results.json, results.csv), the tables of a benchmark (bench --csv DIR), or the lines of a twin (twin --jsonl)";

/// What a file holds.
pub(super) enum Opened {
    /// A scenario, to be run.
    Scenario(Source),
    /// What can be shown as it is.
    Other(Done),
}

/// The files that scenarios and records from outside may name.
fn around() -> Arc<dyn Files> {
    #[cfg(not(target_arch = "wasm32"))]
    return Arc::new(hwmodels::files::Disk);
    #[cfg(target_arch = "wasm32")]
    crate::gallery::bundle()
}

/// Opens a file, or the folder of a benchmark.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn open(path: &Path) -> Result<Opened, String> {
    let name = path.display().to_string();
    let file = path.file_name().and_then(|n| n.to_str());
    let table = match file {
        _ if path.is_dir() => Some(path.to_owned()),
        Some("requests.csv") => path.parent().map(Path::to_owned),
        _ => None,
    };
    let Some(folder) = table else {
        if is_record(path) {
            let record = store::read_file(path).map_err(|e| format!("{name}: {e}"))?;
            return Ok(shown(&name, record));
        }
        return opened(&name, read(path)?);
    };
    let requests = folder.join("requests.csv");
    if !requests.is_file() {
        return Err(format!(
            "{name} is a folder without requests.csv; open {KNOWN}"
        ));
    }
    let text = |name: &str| {
        let path = folder.join(name);
        let bytes = path.is_file().then(|| read(&path)).transpose()?;
        let text = bytes.map(String::from_utf8).transpose();
        text.map_err(|_| format!("{} is no text", path.display()))
    };
    let (summary, scenario) = (text("summary.json")?, text("scenario.toml")?);
    let bytes = read(&requests)?;
    let tables = Tables {
        requests: &bytes,
        summary: summary.as_deref(),
        scenario: scenario.as_deref(),
    };
    let record = measured::record(&requests.display().to_string(), &tables)?;
    Ok(shown(
        &folder.join("scenario.toml").display().to_string(),
        record,
    ))
}

/// Whether the start of a file says that it is a record; what cannot be read is none.
#[cfg(not(target_arch = "wasm32"))]
fn is_record(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && store::is_record(&start)
}

#[cfg(not(target_arch = "wasm32"))]
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let name = path.display();
    let meta = std::fs::metadata(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    if meta.len() > MAX_FILE {
        return Err(format!(
            "{name} has {} bytes; at most {MAX_FILE} are read",
            meta.len()
        ));
    }
    std::fs::read(path).map_err(|e| format!("cannot read {name}: {e}"))
}

/// A record with the scenario in it, which comes from `origin`.
fn shown(origin: &str, record: Record) -> Opened {
    let source = Source {
        origin: origin.to_owned(),
        text: record.info.scenario.clone(),
        files: around(),
        overrides: Vec::new(),
    };
    Opened::Other(Done::Doc(Box::new(Doc::of(record, source))))
}

/// Opens the bytes of a file.
pub(super) fn opened(name: &str, bytes: Vec<u8>) -> Result<Opened, String> {
    if store::is_record(&bytes) {
        let record = store::read_slice(&bytes).map_err(|e| format!("{name}: {e}"))?;
        return Ok(shown(name, record));
    }
    let other = || format!("{name} is not, or was cut off from, {KNOWN}");
    let text = String::from_utf8(bytes).map_err(|_| other())?;
    let end = Path::new(name).extension().and_then(|e| e.to_str());
    match end {
        Some("toml") => Ok(Opened::Scenario(Source {
            origin: name.to_owned(),
            text,
            files: around(),
            overrides: Vec::new(),
        })),
        Some("csv") => match candidates::of_csv(name, text.as_bytes()) {
            Some(found) => Ok(Opened::Other(Done::Candidates(Box::new(found?)))),
            None => {
                let tables = Tables {
                    requests: text.as_bytes(),
                    summary: None,
                    scenario: None,
                };
                Ok(shown(name, measured::record(name, &tables)?))
            }
        },
        _ => {
            if let Some(found) = candidates::of_json(name, &text) {
                return Ok(Opened::Other(Done::Candidates(Box::new(found?))));
            }
            let looks = live::of_lines(name, &text).ok_or_else(other)?;
            Ok(Opened::Other(Done::Looks(Box::new(looks?))))
        }
    }
}
