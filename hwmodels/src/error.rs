//! What can go wrong when describing hardware, models and layouts.

use std::path::PathBuf;

use thiserror::Error;

/// Error of the catalog and of what is resolved from it.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// A name that is in no catalog file.
    #[error(
        "unknown {kind} `{name}`{}; `servetwin catalog list` shows all",
        did_you_mean(nearest)
    )]
    Unknown {
        /// What was looked up: `accelerator`, `link`, `instance` or `model`.
        kind: &'static str,
        /// The name as written.
        name: String,
        /// The nearest known name, if any is near.
        nearest: Option<String>,
    },
    /// A file or folder that cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// A catalog file that does not parse or holds impossible values.
    #[error("{file}: {message}")]
    File {
        /// The file, or `built-in ...`.
        file: String,
        /// Line, field and reason.
        message: String,
    },
    /// A model configuration that cannot be understood.
    #[error("model configuration of `{model}`: {message}")]
    ModelConfig {
        /// Name of the model or file.
        model: String,
        /// Field and reason.
        message: String,
    },
    /// A layout that cannot exist for this model on this hardware.
    #[error("layout {layout} is impossible: {message}")]
    Layout {
        /// The layout, e.g. `TP 8 x PP 2`.
        layout: String,
        /// The broken rule, with the values and what would be right.
        message: String,
    },
    /// The model does not fit into the devices' memory.
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
    /// A figure of an accelerator that a model needs and nobody has measured.
    #[error(
        "{accelerator} has no `{field}` in the catalog, which {needed} need; a catalog file of your own can give it"
    )]
    Unmeasured {
        /// The accelerator.
        accelerator: String,
        /// Field of its catalog entry.
        field: &'static str,
        /// What needs it.
        needed: &'static str,
    },
    /// A setting outside its range.
    #[error("{setting} {rule}, got {got}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it is.
        got: String,
    },
}

/// A model that does not fit, with what would.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{model} does not fit on {hardware} with {layout}: needs {needs}, has {has}; {advice}")]
pub struct DoesNotFit {
    /// The model.
    pub model: String,
    /// The instance or accelerator.
    pub hardware: String,
    /// The layout asked for.
    pub layout: String,
    /// Memory needed per device (or core), in words.
    pub needs: String,
    /// Memory that there is per device (or core), in words.
    pub has: String,
    /// The smallest layout that fits, or that none does.
    pub advice: String,
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map_or_else(String::new, |n| format!("; did you mean `{n}`?"))
}

/// The candidate nearest to `name` by edit distance, ignoring case, if any is near enough to be meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lower = name.to_lowercase();
    candidates
        .into_iter()
        .map(|c| (strsim::jaro_winkler(&lower, &c.to_lowercase()), c))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, c)| c.to_owned())
}
