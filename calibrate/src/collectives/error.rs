//! Why there is no fit.

use std::path::PathBuf;

use crate::fit::FitError;

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A table could not be read.
    #[error("{}: {source}; the folder must hold the public collective tables", path.display())]
    Read {
        /// File.
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
    /// The rows do not determine the parameters.
    #[error("fitting {stage}: {source}")]
    Fit {
        /// Which parameters.
        stage: String,
        /// Reason.
        source: FitError,
    },
}
