//! Deployment files to scenarios and back.
//!
//! Texts in, texts out: this crate opens no file. [`import`] makes a scenario of the files that a deployment consists of, with a [`report`] of what became of
//! every key. Open [`import`] first, then [`keys`], whose tables say what each importer does.

pub mod export;
pub mod import;
pub mod keys;
pub mod place;
pub mod report;
pub mod text;

pub use export::{Exported, Target, export};
pub use import::{Imported, Options, Source, import};
pub use place::Error;
