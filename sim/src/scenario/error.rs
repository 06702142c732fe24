//! What is wrong with a scenario, and where.

use std::fmt;

/// One thing that is wrong: where, which key, what, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// File and line, e.g. `chat.toml:12`, or the override it came from, e.g. `--set run.requests=0`.
    pub place: String,
    /// Key path, e.g. `workload[0].arrival.rate`; empty when the file as a whole is at fault.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A scenario that cannot be used; the run it describes was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    issues: Vec<Issue>,
}

impl ScenarioError {
    /// An error of one issue.
    pub fn new(
        place: impl Into<String>,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError {
            issues: vec![Issue {
                place: place.into(),
                path: path.into(),
                message: message.into(),
            }],
        }
    }

    /// An error of several issues, in the order to show them. `issues` holds at least one.
    pub fn from_issues(issues: Vec<Issue>) -> ScenarioError {
        debug_assert!(!issues.is_empty(), "an error says something");
        ScenarioError { issues }
    }

    /// All that is wrong, at least one issue.
    pub fn issues(&self) -> &[Issue] {
        &self.issues
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.issues.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{issue}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}
