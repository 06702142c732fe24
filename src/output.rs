//! Where results go: standard output, or files that the user named.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context as _;
use engine::step_log;
use files::{Files, Out, WriteError};

use crate::bad_input::BadInput;

/// Nobody reads standard output any more (`servetwin ... | head`): the process ends quietly.
#[derive(Debug)]
pub struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for Closed {}

/// Standard output, whose errors say [`Closed`] where its reader has gone.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(closed)
    }
}

fn closed(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(e.kind(), Closed),
        _ => e,
    }
}

/// Writes `text` to standard output.
///
/// # Errors
/// Those of standard output: a full disk, or [`Closed`].
pub fn print(text: &str) -> anyhow::Result<()> {
    let write = || {
        Stdout.write_all(text.as_bytes())?;
        Stdout.flush()
    };
    write().context("cannot write to standard output")
}

/// Writes `value` to standard output as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// The user's files that this command reads.
static INPUTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn inputs() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    INPUTS.lock().unwrap_or_else(|e| e.into_inner())
}

/// Says that the command reads `files`, so that it never writes over one of them.
pub fn reads<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) {
    inputs().extend(files.into_iter().map(|f| f.as_ref().to_owned()));
}

/// Checks before the work whether a file can be written when it is done: nothing is simulated for an hour that cannot be kept.
///
/// # Errors
/// [`BadInput`] where the file is one that the command reads; where it is a folder or its folder is not there.
pub fn check(path: &Path) -> anyhow::Result<()> {
    refuse_input(path)?;
    Ok(files::check(path)?)
}

/// As [`check`], for files of these names in the folder `dir`, which need not be there yet.
///
/// # Errors
/// As [`check`].
pub fn check_dir(dir: &Path, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let path = dir.join(name);
        if path.exists() {
            check(&path)?;
        }
    }
    Ok(())
}

/// As [`check`], for the files of a step log of the model in the folder `model`.
///
/// # Errors
/// As [`check`].
pub fn check_step_log(log: &Path, model: Option<&Path>) -> anyhow::Result<()> {
    let entries = model.and_then(|dir| std::fs::read_dir(dir).ok());
    reads(
        entries
            .into_iter()
            .flatten()
            .filter_map(|e| Some(e.ok()?.path())),
    );
    check(log)?;
    check(&step_log::requests_path(log))?;
    check(&step_log::engine_path(log))
}

fn refuse_input(path: &Path) -> anyhow::Result<()> {
    match inputs().iter().find(|input| files::same(input, path)) {
        Some(input) => Err(BadInput(format!(
            "{} would be written over {}, which this command reads; name another file",
            path.display(),
            input.display()
        ))
        .into()),
        None => Ok(()),
    }
}

/// Lets `write` fill the file `path`, which takes its place when it is whole ([`files`]).
///
/// # Errors
/// When the file is one that the command reads, or cannot be written; names it.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut Out) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut set = FileSet::new();
    set.write(path, write)?;
    set.commit()
}

/// As [`write_file`], of a text.
///
/// # Errors
/// As [`write_file`].
pub fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    write_file(path, |out| out.write_all(text.as_bytes()))
}

/// Files that take their places when all of them are whole.
#[derive(Default)]
pub struct FileSet(Files);

impl FileSet {
    /// No file yet.
    pub fn new() -> FileSet {
        FileSet::default()
    }

    /// Lets `write` fill the file that is to be called `path`.
    ///
    /// # Errors
    /// As [`write_file`].
    pub fn write(
        &mut self,
        path: &Path,
        write: impl FnOnce(&mut Out) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        refuse_input(path)?;
        Ok(self.0.write(path, write)?)
    }

    /// Puts the files in their places.
    ///
    /// # Errors
    /// When one of them cannot be renamed; names it.
    pub fn commit(self) -> anyhow::Result<()> {
        Ok(self.0.commit()?)
    }
}

/// Whether the error says that a reader of our output has gone: of standard output, or of a pipe that was named as a file. A
/// connection that broke is another matter.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|e| {
        let stdout = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let file = e.downcast_ref::<WriteError>().map(|e| e.source.kind());
        stdout.is_some_and(|inner| inner.is::<Closed>()) || file == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_of_ours_that_has_gone_ends_the_process_quietly() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let stdout = anyhow::Error::new(closed(broken())).context("cannot write");
        assert!(is_closed(&stdout));
        let pipe = WriteError {
            path: "pipe".into(),
            source: broken(),
        };
        assert!(is_closed(&pipe.into()));
        assert!(!is_closed(
            &anyhow::Error::new(broken()).context("the endpoint hung up")
        ));
        let full = closed(io::ErrorKind::StorageFull.into());
        assert!(!is_closed(&full.into()));
    }
}
