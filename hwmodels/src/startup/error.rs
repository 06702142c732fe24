//! What is wrong with figures of start-ups.

/// Why a start-up cannot be predicted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StartupError {
    /// A name that the figures do not have.
    #[error("unknown {kind} `{name}`; known: {known}")]
    Unknown {
        /// What was looked up.
        kind: &'static str,
        /// The name as written.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Figures that do not parse or cannot be.
    #[error("{file}: {message}")]
    File {
        /// The file.
        file: String,
        /// Line, field and reason.
        message: String,
    },
}
