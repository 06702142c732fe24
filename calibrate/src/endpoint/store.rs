//! Measured loads as files: a folder per load with `requests.csv`, as every record has it, and `load.json` with what that does not
//! hold; beside the folders `endpoint.json`, what the endpoint said of itself.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use files::Files;
use serde::{Deserialize, Serialize};
use sim::kernel::time::SimTime;
use sim::record::RequestRow;
use sim::report::csv;
use sim::request::Outcome;

use super::facts::Facts;
use super::load::{Load, LoadError, Pacing, Request, Role};

/// What `requests.csv` does not hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    name: String,
    role: Role,
    pacing: Pacing,
    failed: u64,
    gaps: Option<[f64; 2]>,
}

/// Why loads cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file.
    #[error("{path}: {message}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A load came out empty.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No load in any folder.
    #[error("{0} holds no requests.csv, nor does a folder in it: give folders of measured runs")]
    Nothing(PathBuf),
    /// Loads of several endpoints.
    #[error("{0} and {1} are of different endpoints: fit them one by one")]
    Endpoints(PathBuf, PathBuf),
}

const FACTS: &str = "endpoint.json";
/// There while a measurement into the folder has not ended.
const UNFINISHED: &str = "unfinished";

fn file_error(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> StoreError {
    let path = path.to_owned();
    move |e| StoreError::File {
        path: path.clone(),
        message: e.to_string(),
    }
}

/// Writes `load` into `dir/NUMBER-NAME`.
///
/// # Errors
/// A file cannot be written.
pub fn write(dir: &Path, number: usize, load: &Load) -> Result<PathBuf, StoreError> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let name: String = load.name.chars().map(plain).collect();
    let folder = dir.join(format!("{number:02}-{name}"));
    fs::create_dir_all(&folder).map_err(|e| file_error(&folder)(&e))?;
    let rows: Vec<RequestRow> = load
        .requests
        .iter()
        .enumerate()
        .map(|(i, r)| RequestRow {
            id: i as u32,
            stream: 0,
            replica: 0,
            prompt_tokens: r.prompt,
            cached_tokens: r.cached,
            output_tokens: r.output,
            preemptions: 0,
            arrival: SimTime::from_secs(r.sent),
            first_scheduled: SimTime::NEVER,
            first_token: SimTime::from_secs(r.first),
            end: SimTime::from_secs(r.end),
            outcome: Outcome::Finished,
        })
        .collect();
    let beside = Beside {
        name: load.name.clone(),
        role: load.role,
        pacing: load.pacing,
        failed: load.failed,
        gaps: load.gaps,
    };
    let path = folder.join("load.json");
    let text = serde_json::to_string_pretty(&beside).map_err(|e| file_error(&path)(&e))?;
    let mut set = Files::new();
    set.write(&folder.join("requests.csv"), |out| {
        csv::write_requests(out, &rows)
    })
    .and_then(|()| set.write(&path, |out| out.write_all(text.as_bytes())))
    .and_then(|()| set.commit())
    .map_err(|e| file_error(&e.path)(&e.source))?;
    Ok(folder)
}

/// Reads the load in `folder`, as it was fitted or held out; `role` is that of a record which does not say.
///
/// # Errors
/// A file is missing or wrong.
pub fn read(folder: &Path, role: Role) -> Result<Load, StoreError> {
    let table = folder.join("requests.csv");
    let file = fs::File::open(&table).map_err(|e| file_error(&table)(&e))?;
    let rows =
        csv::read_requests(std::io::BufReader::new(file)).map_err(|e| file_error(&table)(&e))?;
    let name = folder.file_name().map_or_else(
        || folder.display().to_string(),
        |n| n.to_string_lossy().into_owned(),
    );
    let path = folder.join("load.json");
    let beside: Option<Beside> = match fs::read_to_string(&path) {
        Ok(text) => Some(serde_json::from_str(&text).map_err(|e| file_error(&path)(&e))?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(file_error(&path)(&e)),
    };
    let offered = rows.len() as u64;
    let mut requests: Vec<(SimTime, Request)> = rows
        .iter()
        .filter(|r| {
            r.outcome == Outcome::Finished
                && r.first_token != SimTime::NEVER
                && r.output_tokens > 0
                && r.end > r.arrival
        })
        .map(|r| {
            let prompt = r.prompt_tokens.max(1);
            let request = Request {
                sent: r.arrival.as_secs(),
                first: r.first_token.as_secs(),
                end: r.end.as_secs(),
                prompt,
                output: r.output_tokens,
                cached: r.cached_tokens.min(prompt - 1),
            };
            (r.arrival, request)
        })
        .collect();
    requests.sort_by_key(|r| r.0);
    let requests: Vec<Request> = requests.into_iter().map(|r| r.1).collect();
    let mut load = Load::new(&name, role, requests, offered, None)?;
    if let Some(b) = beside {
        load.name = b.name;
        load.role = b.role;
        load.pacing = b.pacing;
        load.failed = b.failed;
        load.gaps = b.gaps;
    }
    Ok(load)
}

/// Writes what an endpoint said of itself into `dir`, beside the folders of its loads.
///
/// # Errors
/// The file cannot be written.
pub fn write_facts(dir: &Path, facts: &Facts) -> Result<(), StoreError> {
    let path = dir.join(FACTS);
    let text = serde_json::to_string_pretty(facts).map_err(|e| file_error(&path)(&e))?;
    files::write(&path, |out| out.write_all(text.as_bytes()))
        .map_err(|e| file_error(&e.path)(&e.source))
}

/// What the endpoint of the loads in `dirs` said of itself: from the folders, or the ones that they lie in.
///
/// # Errors
/// A file is wrong, or they are of several endpoints.
pub fn read_facts(dirs: &[PathBuf]) -> Result<Option<Facts>, StoreError> {
    let mut found: Option<(PathBuf, Facts)> = None;
    for dir in dirs {
        for folder in [Some(dir.as_path()), dir.parent()].into_iter().flatten() {
            let path = folder.join(FACTS);
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(file_error(&path)(&e)),
            };
            let facts: Facts = serde_json::from_str(&text).map_err(|e| file_error(&path)(&e))?;
            facts.server.check().map_err(|e| file_error(&path)(&e))?;
            match &found {
                Some((first, known)) if *known != facts => {
                    return Err(StoreError::Endpoints(first.clone(), path));
                }
                _ => found = Some((path, facts)),
            }
            break;
        }
    }
    Ok(found.map(|(_, facts)| facts))
}

/// Marks `dir` as the folder of a measurement that has not ended, or that it has.
///
/// # Errors
/// The mark cannot be written or taken away.
pub fn mark(dir: &Path, unfinished: bool) -> Result<(), StoreError> {
    let path = dir.join(UNFINISHED);
    let done = if unfinished {
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(&path, "a measurement into this folder has not ended\n"))
    } else {
        match fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    };
    done.map_err(|e| file_error(&path)(&e))
}

/// The first of `dirs` whose measurement has not ended.
pub fn unfinished(dirs: &[PathBuf]) -> Option<&PathBuf> {
    dirs.iter().find(|d| d.join(UNFINISHED).is_file())
}

/// Folders with a `requests.csv`: those of `dirs` themselves, or else the folders in them, in the order of their names.
///
/// # Errors
/// A folder cannot be listed or holds none.
pub fn folders(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, StoreError> {
    let mut out = Vec::new();
    for dir in dirs {
        if dir.join("requests.csv").is_file() {
            out.push(dir.clone());
            continue;
        }
        let entries = fs::read_dir(dir).map_err(|e| file_error(dir)(&e))?;
        let mut inside: Vec<PathBuf> = entries
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.join("requests.csv").is_file())
            .collect();
        if inside.is_empty() {
            return Err(StoreError::Nothing(dir.clone()));
        }
        inside.sort();
        out.append(&mut inside);
    }
    Ok(out)
}
