//! What can go wrong.

use sim::metrics::objective::ObjectiveError;
use sim::scenario::{ScenarioError, ScenarioRunError};
use sim::simulation::RunError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's input is wrong: what, where, and what would be right.
    #[error("{0}")]
    Input(String),
    /// The caller's scenario is wrong, with its places.
    #[error(transparent)]
    Scenario(ScenarioError),
    /// Somebody raised [`crate::World::cancel`].
    #[error("cancelled")]
    Cancelled,
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
        matches!(self, Error::Input(_) | Error::Scenario(_))
    }

    /// What the caller can mend, in words.
    ///
    /// # Errors
    /// Itself, where he cannot.
    pub fn into_reason(self) -> Result<String, Error> {
        match self {
            Error::Input(why) => Ok(why),
            Error::Scenario(e) => Ok(e.to_string()),
            e => Err(e),
        }
    }
}

impl From<ObjectiveError> for Error {
    fn from(e: ObjectiveError) -> Error {
        Error::input(e.to_string())
    }
}

impl From<ScenarioError> for Error {
    fn from(e: ScenarioError) -> Error {
        Error::Scenario(e)
    }
}

impl From<RunError> for Error {
    fn from(e: RunError) -> Error {
        match e {
            RunError::NotFast { .. } | RunError::TooManyRequests => Error::Input(e.to_string()),
            RunError::Cancelled { .. } => Error::Cancelled,
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
