//! Why a model cannot be opened.

use std::path::PathBuf;

/// Why a model could not be loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// `config.json` does not describe a model that the engine computes.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Weights are missing, damaged or of the wrong shape.
    #[error("{}: {message}", path.display())]
    Weights {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer cannot be used.
    #[error("{}: {message}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// An option does not fit the model.
    #[error("{0}")]
    Options(String),
    /// A worker thread could not be started.
    #[error("a worker thread could not be started: {0}")]
    Thread(String),
}
