//! Where the files of a question are, and who may stop its answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hwmodels::files::{Bundle, Disk, Files};
use sim::scenario::{Scenario, ScenarioError};

use crate::Error;

/// Requests of a run at most, where nobody says less.
pub const MOST_REQUESTS: u64 = 1 << 20;

/// Where the files that a question names are, and who may stop its answer.
#[derive(Clone, Debug)]
pub struct World {
    /// The files.
    pub files: Arc<dyn Files>,
    /// Raised by whoever wants no answer any more: runs under way stop between two instants.
    pub cancel: Option<Arc<AtomicBool>>,
    /// Requests of a run at most.
    pub most_requests: u64,
    /// Whether the files lie on this computer's disk, so that their names can be made absolute.
    on_disk: bool,
}

impl Default for World {
    /// This computer's disk; nobody stops the answer.
    fn default() -> World {
        World {
            files: Arc::new(Disk),
            cancel: None,
            most_requests: MOST_REQUESTS,
            on_disk: true,
        }
    }
}

impl World {
    /// Files in memory and no others.
    pub fn of(bundle: Bundle) -> World {
        World {
            files: Arc::new(bundle),
            cancel: None,
            most_requests: MOST_REQUESTS,
            on_disk: false,
        }
    }

    /// A scenario from text, whose files are of this world.
    ///
    /// # Errors
    /// As [`Scenario::parse`].
    pub fn scenario(
        &self,
        text: &str,
        origin: &str,
        overrides: &[String],
    ) -> Result<Scenario, ScenarioError> {
        Scenario::parse_from(self.files.clone(), text, origin, overrides)
    }

    /// Whether somebody wants no answer any more.
    pub fn is_cancelled(&self) -> bool {
        let cancel = self.cancel.as_ref();
        cancel.is_some_and(|c| c.load(Ordering::Relaxed))
    }

    /// An error where somebody wants no answer any more.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// The folder that names relative to `base` are put behind, so that a scenario can be written elsewhere.
    pub(crate) fn folder(&self, base: &Path) -> Result<PathBuf, Error> {
        if self.on_disk {
            // An empty folder is the one that the process is in.
            std::path::absolute(Path::new(".").join(base)).map_err(|e| Error::Failed(e.to_string()))
        } else {
            Ok(base.to_owned())
        }
    }
}
