//! Why there is no fit.

use std::path::PathBuf;

use super::systems::SYSTEMS;
use crate::fit::FitError;

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such system.
    #[error("no kernel tables are known for `{0}`; known: {known}", known = SYSTEMS.map(|s| s.name).join(", "))]
    System(String),
    /// The catalog lacks the system's accelerator.
    #[error(transparent)]
    Catalog(#[from] hwmodels::Error),
    /// The folder holds no table of this system.
    #[error(
        "{}: no file named `{system}_*_{table}_perf.csv` or `.csv.gz`; expected the public kernel tables, or those of calibrate/gpu, in `operators/`",
        folder.display()
    )]
    NoTable {
        /// Folder looked in.
        folder: PathBuf,
        /// System asked for.
        system: String,
        /// Table missing.
        table: &'static str,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// File or folder.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// A table has an unexpected shape.
    #[error("{}: {source}", path.display())]
    Parse {
        /// File.
        path: PathBuf,
        /// Reason.
        source: csv::Error,
    },
    /// The facts about the measuring machine have an unexpected shape.
    #[error("{}: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Reason.
        source: serde_json::Error,
    },
    /// The rows do not determine the parameters.
    #[error("fitting {what}: {source}")]
    Fit {
        /// Operator and format.
        what: String,
        /// Reason.
        source: FitError,
    },
}
