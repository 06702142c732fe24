//! What is wrong with a validation set.

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {message}")]
pub struct SetError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub message: String,
    /// True when the file is not there at all.
    pub missing: bool,
}

impl SetError {
    /// `file` is there but cannot be used.
    pub fn new(file: &str, message: String) -> SetError {
        SetError {
            file: file.to_owned(),
            message,
            missing: false,
        }
    }
}
