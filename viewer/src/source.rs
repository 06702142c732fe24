//! A scenario as the viewer holds it: its text, its files, and what is changed in it.

use std::sync::Arc;

use hwmodels::files::Files;
use sim::scenario::Scenario;

/// A scenario and what is changed in it: everything to run it again.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it comes from: a path, or the name of a shipped scenario.
    pub origin: String,
    /// Its text.
    pub text: String,
    /// The files that it names.
    pub files: Arc<dyn Files>,
    /// What is changed in it, as `--set` takes it.
    pub overrides: Vec<String>,
}

impl Source {
    /// The scenario in a file.
    ///
    /// # Errors
    /// In words: why it cannot be read.
    pub fn read(path: &std::path::Path) -> Result<Source, String> {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("cannot read {origin}: {e}"))?;
        Ok(Source {
            origin,
            text,
            files: Arc::new(hwmodels::files::Disk),
            overrides: Vec::new(),
        })
    }

    /// The scenario, checked.
    ///
    /// # Errors
    /// Everything that is wrong with it, in words.
    pub fn scenario(&self) -> Result<Scenario, String> {
        Scenario::parse_from(
            self.files.clone(),
            &self.text,
            &self.origin,
            &self.overrides,
        )
        .map_err(|e| e.to_string())
    }
}
