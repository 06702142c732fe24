//! A file that is being written: without a name, or under one of its own until it is whole.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::{Builder, NamedTempFile, TempPath};

const PREFIX: &str = ".servetwin-";
const SUFFIX: &str = ".part";
/// Permissions of a new file, of which the process's mask takes some away.
const MODE: u32 = 0o666;
/// Files made in vain because another process took them for left behind, before that is an error.
const TRIES: usize = 8;

/// A file that has not got its name yet; dropped, it is gone.
#[derive(Debug)]
pub enum Staged {
    /// Without a name.
    Unnamed {
        /// The file.
        file: File,
        /// Where it is to lie.
        folder: PathBuf,
    },
    /// Under a name of its own.
    Named(NamedTempFile),
}

impl Staged {
    /// An empty file in `folder`; removes what killed processes left there.
    pub fn new(folder: &Path) -> io::Result<Staged> {
        remove_left_behind(folder);
        match unnamed(folder) {
            Some(file) => Ok(Staged::Unnamed {
                file,
                folder: folder.to_owned(),
            }),
            None => named(folder).map(Staged::Named),
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        match self {
            Staged::Unnamed { file, .. } => file,
            Staged::Named(file) => file.as_file(),
        }
    }

    /// Calls it `target`, in place of what is called so.
    pub fn replace(self, target: &Path) -> io::Result<()> {
        match self {
            Staged::Unnamed { file, folder } => {
                // No call puts an unnamed file in another's place.
                let part = linked(&file, &folder)?;
                part.persist(target).map_err(|e| e.error)
            }
            Staged::Named(file) => file.persist(target).map(drop).map_err(|e| e.error),
        }
    }

    /// Calls it `target`, where nothing is called so.
    pub fn create(self, target: &Path) -> io::Result<()> {
        match self {
            Staged::Unnamed { file, .. } => link(&file, target),
            Staged::Named(file) => {
                let kept = file.persist_noclobber(target);
                kept.map(drop).map_err(|e| e.error)
            }
        }
    }
}

/// A locked file without a name; none where the file system has no such files, or where it could not be named by way of `/proc`.
fn unnamed(folder: &Path) -> Option<File> {
    let flags = i32::try_from(OFlags::TMPFILE.bits()).ok()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(MODE)
        .custom_flags(flags)
        .open(folder)
        .ok()?;
    std::fs::symlink_metadata(by_number(&file)).ok()?;
    // For the moment in which it is called a part; where there are no locks, nobody takes them for missing.
    let _ = file.try_lock();
    Some(file)
}

fn by_number(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn link(file: &File, target: &Path) -> io::Result<()> {
    linkat(CWD, by_number(file), CWD, target, AtFlags::SYMLINK_FOLLOW)?;
    Ok(())
}

/// The file under a name of its own in `folder`.
fn linked(file: &File, folder: &Path) -> io::Result<TempPath> {
    let named = builder().make_in(folder, |path| link(file, path));
    Ok(named.map_err(without_name)?.into_temp_path())
}

fn builder() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    builder
}

/// A locked file under a name of its own.
fn named(folder: &Path) -> io::Result<NamedTempFile> {
    let permissions = std::fs::Permissions::from_mode(MODE);
    for _ in 0..TRIES {
        let made = builder()
            .permissions(permissions.clone())
            .tempfile_in(folder)
            .map_err(without_name)?;
        let is_taken = matches!(made.as_file().try_lock(), Err(TryLockError::WouldBlock));
        // Between its making and its lock another process may have removed it.
        if !is_taken && made.as_file().metadata()?.nlink() > 0 {
            return Ok(made);
        }
    }
    let why = "another process removes files there while they are being written";
    Err(io::Error::other(why))
}

/// The error without the random name, which would mean nothing to the reader.
fn without_name(e: io::Error) -> io::Error {
    let text = e.to_string();
    let reason = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(e.kind(), reason.to_owned())
}

/// Folders that were looked through: once for each process.
static SEEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Removes files that processes which are gone left in `folder`: those that nobody holds locked.
fn remove_left_behind(folder: &Path) {
    let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
    if !seen.insert(folder.to_owned()) {
        return;
    }
    drop(seen);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) || !name.ends_with(SUFFIX) {
            continue;
        }
        let path = entry.path();
        let is_file = entry.file_type().is_ok_and(|t| t.is_file());
        let opened = File::options().read(true).write(true).open(&path);
        // What cannot be opened or removed is another user's.
        if let (true, Ok(file)) = (is_file, opened)
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_under_a_name_of_its_own_takes_its_place_too() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a");
        let staged = || Staged::Named(named(dir.path()).unwrap());
        staged().create(&at).unwrap();
        let again = staged().create(&at).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        staged().replace(&at).unwrap();
        let held = staged();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        remove_left_behind(dir.path());
        drop(held);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
