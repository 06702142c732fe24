//! Files that come from elsewhere: from a dialog, from the browser.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A file that was chosen or read elsewhere, to be opened.
pub enum Arrived {
    /// Its bytes, and its name.
    Bytes(String, Vec<u8>),
    /// Where it is.
    Path(PathBuf),
}

/// Files that come from elsewhere; or why they do not.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Result<Arrived, String>>>>);

impl Inbox {
    /// Puts one in; whoever does wakes the application.
    pub fn put(&self, file: Result<Arrived, String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(file);
    }

    /// Takes all out.
    pub fn take(&self) -> Vec<Result<Arrived, String>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
