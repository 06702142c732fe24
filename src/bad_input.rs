//! The error that is the caller's.

/// The caller's input is wrong; a command returns this where the exit code must be [`exit_code::BAD_INPUT`].
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}
