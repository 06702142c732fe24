//! What can go wrong.

use sim::scenario::{ScenarioError, ScenarioRunError};
use sim::simulation::RunError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's input is wrong: what, where, and what would be right.
    #[error("{0}")]
    Input(String),
    /// Something else failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// An input error of this text.
    pub fn input(text: impl Into<String>) -> Error {
        Error::Input(text.into())
    }

    /// Whether the caller can mend it.
    pub fn is_input(&self) -> bool {
        matches!(self, Error::Input(_))
    }
}

impl From<ScenarioError> for Error {
    fn from(e: ScenarioError) -> Error {
        Error::Input(e.to_string())
    }
}

impl From<RunError> for Error {
    fn from(e: RunError) -> Error {
        match e {
            RunError::NotFast { .. } | RunError::TooManyRequests => Error::Input(e.to_string()),
            e => Error::Failed(e.to_string()),
        }
    }
}

impl From<ScenarioRunError> for Error {
    fn from(e: ScenarioRunError) -> Error {
        match e {
            ScenarioRunError::Scenario(e) => e.into(),
            ScenarioRunError::Run(e) => e.into(),
            e => Error::Failed(e.to_string()),
        }
    }
}
