//! Output files that are whole or not there.
//!
//! A file is written without a name, in the folder that it is to lie in (`O_TMPFILE`), and gets its name when all of it is on the disk. A full disk
//! or a kill therefore leaves the file that was there before, or none, and nothing beside it.
//!
//! Where the file system has no such files (NFS, some overlays) it is called `.servetwin-*.part` until then, and held locked. What a killed process
//! leaves of these, as of the moment between naming and renaming, is nobody's lock: the next process that writes into the folder removes it.
//!
//! Logs that grow while a server runs (`serve --step-log`, `twin --jsonl`) are no such files: they are worth something unfinished.

mod staged;

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use staged::Staged;

/// Bytes that are collected before the system is asked to write them.
const BUFFER_BYTES: usize = 1 << 16;
/// Most symbolic links that are followed, as Linux has it.
const MOST_LINKS: usize = 40;

/// What a file's content is written to.
pub type Out<'a> = BufWriter<&'a File>;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError { path, source }
}

/// Files that belong together: they take their names when all of them are written.
#[derive(Debug, Default)]
pub struct Files {
    staged: Vec<(Staged, PathBuf)>,
}

impl Files {
    /// No file yet.
    pub fn new() -> Files {
        Files::default()
    }

    /// Writes what `fill` gives, to be called `path` after [`Files::commit`]. What is no plain file, such as `/dev/null` or a named
    /// pipe, gets it at once.
    ///
    /// # Errors
    /// When `fill` fails, the disk is full, `path` is a folder or read-only, or its folder is not there or cannot be written.
    pub fn write(
        &mut self,
        path: &Path,
        fill: impl FnOnce(&mut Out) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let place = Place::of(path).map_err(at(path))?;
        let Place::File { target, old } = place else {
            let device = File::options().write(true).open(path).map_err(at(path))?;
            return filled(&device, folder(path), fill).map_err(at(path));
        };
        let staged = stage(&target, old.as_ref(), fill).map_err(at(path))?;
        self.staged.push((staged, target));
        Ok(())
    }

    /// Gives the files their names, in the order in which they were written.
    ///
    /// # Errors
    /// When a file cannot be named; those before it have their names then.
    pub fn commit(self) -> Result<(), WriteError> {
        for (file, target) in self.staged {
            file.replace(&target).map_err(at(&target))?;
        }
        Ok(())
    }
}

/// Writes one file; see [`Files::write`].
///
/// # Errors
/// As [`Files::write`] and [`Files::commit`].
pub fn write(path: &Path, fill: impl FnOnce(&mut Out) -> io::Result<()>) -> Result<(), WriteError> {
    let mut files = Files::new();
    files.write(path, fill)?;
    files.commit()
}

/// Writes a file that is not there yet.
///
/// # Errors
/// As [`write()`]; also when `path` is there, whatever it is.
pub fn write_new(
    path: &Path,
    fill: impl FnOnce(&mut Out) -> io::Result<()>,
) -> Result<(), WriteError> {
    stage(path, None, fill)
        .and_then(|staged| staged.create(path))
        .map_err(at(path))
}

/// A file in the folder of `target` with all of its content and the permissions of `old` or of any new file.
fn stage(
    target: &Path,
    old: Option<&Metadata>,
    fill: impl FnOnce(&mut Out) -> io::Result<()>,
) -> io::Result<Staged> {
    let folder = folder(target);
    let staged = Staged::new(folder)?;
    if let Some(old) = old {
        staged.file().set_permissions(old.permissions())?;
    }
    filled(staged.file(), folder, fill)?;
    // Some file systems only then say that there is no room.
    staged
        .file()
        .sync_all()
        .map_err(|e| no_room(e, staged.file(), folder))?;
    Ok(staged)
}

/// Checks without writing anything that `path` could be written.
///
/// # Errors
/// When `path` is a folder or read-only, or its folder is not there.
pub fn check(path: &Path) -> Result<(), WriteError> {
    let place = Place::of(path).map_err(at(path))?;
    if let Place::File { target, .. } = place {
        let folder = std::fs::metadata(folder(&target)).map_err(at(path))?;
        if !folder.is_dir() {
            return Err(at(path)(io::ErrorKind::NotADirectory.into()));
        }
    }
    Ok(())
}

/// Whether both names lead to one plain file, by symbolic or hard links too.
pub fn same(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &Path| {
        let meta = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some((meta.dev(), meta.ino()))
    };
    identity(a).is_some_and(|a| Some(a) == identity(b))
}

/// What a name stands for.
enum Place {
    /// A plain file, there already or not.
    File {
        /// The name with symbolic links followed, so that a link stays one.
        target: PathBuf,
        old: Option<Metadata>,
    },
    /// A device, a pipe, an open file of this process.
    Other,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let open = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];
        if open.iter().any(|o| path.starts_with(o)) {
            return Ok(Place::Other);
        }
        let old = match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let target = followed(path)?;
                return Ok(Place::File { target, old: None });
            }
            other => other?,
        };
        if old.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                "it is a folder",
            ));
        }
        if !old.is_file() {
            return Ok(Place::Other);
        }
        if old.permissions().readonly() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is there and read-only",
            ));
        }
        let target = std::fs::canonicalize(path)?;
        let old = Some(old);
        Ok(Place::File { target, old })
    }
}

/// Where a name leads that stands for nothing yet: itself, or through symbolic links to what is to be made.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(to) = std::fs::read_link(&target) else {
            break;
        };
        target = folder(&target).join(to);
    }
    if target != path && !folder(&target).is_dir() {
        let why = format!(
            "it is a link to {}, whose folder is not there",
            target.display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    Ok(target)
}

fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn filled(
    file: &File,
    folder: &Path,
    fill: impl FnOnce(&mut Out) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    fill(&mut out)
        .and_then(|()| out.flush())
        .map_err(|e| no_room(e, file, folder))
}

/// Says of a full disk how much of the file is written, and how much room there is left; another error stays as it is.
fn no_room(error: io::Error, file: &File, folder: &Path) -> io::Error {
    let kind = error.kind();
    if !matches!(
        kind,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        return error;
    }
    let written = file.metadata().map_or(0, |m| m.len());
    let free = rustix::fs::statvfs(folder).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
    let what = match kind {
        io::ErrorKind::StorageFull => "the disk is full",
        _ => "the quota of the disk is used up",
    };
    let why = format!(
        "{what}: {written} bytes of it were written, {free} bytes were left in {}; make room, or name a file on another disk",
        folder.display()
    );
    io::Error::new(kind, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A writer that runs out of space after a while.
    fn runs_full(out: &mut Out) -> io::Result<()> {
        out.write_all(&vec![b'x'; 3 * BUFFER_BYTES])?;
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.csv");
        assert!(write(&file, runs_full).is_err());
        assert_eq!(names(dir.path()), Vec::<String>::new());
        fs::write(&file, "old").unwrap();
        let error = write(&file, runs_full).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        let said = error.to_string();
        let begins = format!(
            "cannot write {}: the disk is full: 196608 bytes",
            file.display()
        );
        assert!(said.starts_with(&begins), "{said}");
        assert!(said.contains("bytes were left in"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(names(dir.path()), ["a.csv"]);
        let full = write(Path::new("/dev/full"), |out| out.write_all(b"new")).unwrap_err();
        assert!(full.to_string().contains("the disk is full"), "{full}");
    }

    #[test]
    fn nothing_lies_beside_a_file_that_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let during = |_: &mut Out| {
            // A kill here leaves what is there now.
            assert_eq!(names(dir.path()), Vec::<String>::new());
            Ok(())
        };
        write(&dir.path().join("a"), during).unwrap();
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn what_killed_processes_left_is_removed_and_what_others_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [".servetwin-dead00.part", ".servetwin-alive0.part", "x.part"] {
            fs::write(at(name), "half").unwrap();
        }
        fs::create_dir(at(".servetwin-folder.part")).unwrap();
        let alive = File::open(at(".servetwin-alive0.part")).unwrap();
        alive.lock().unwrap();
        write(&at("a"), |_| Ok(())).unwrap();
        let left = [
            ".servetwin-alive0.part",
            ".servetwin-folder.part",
            "a",
            "x.part",
        ];
        assert_eq!(names(dir.path()), left);
    }

    #[test]
    fn a_link_to_nothing_yet_is_written_through_or_refused() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        symlink("second", at("first")).unwrap();
        symlink(at("far/file"), at("second")).unwrap();
        check(&at("first")).unwrap();
        write(&at("first"), |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(at("far/file")).unwrap(), "new");
        assert!(fs::symlink_metadata(at("first")).unwrap().is_symlink());
        symlink("gone/file", at("lost")).unwrap();
        symlink("round", at("round")).unwrap();
        for (name, says) in [
            ("lost", "gone/file, whose folder is not there"),
            ("round", ""),
        ] {
            for error in [
                check(&at(name)).unwrap_err(),
                write(&at(name), |_| Ok(())).unwrap_err(),
            ] {
                assert!(error.to_string().contains(says), "{error}");
            }
            assert!(fs::symlink_metadata(at(name)).unwrap().is_symlink());
        }
    }

    #[test]
    fn of_files_that_belong_together_all_are_new_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "old").unwrap();
        let mut files = Files::new();
        files.write(&a, |out| out.write_all(b"new")).unwrap();
        assert!(files.write(&b, runs_full).is_err());
        drop(files);
        assert_eq!(fs::read_to_string(&a).unwrap(), "old");
        assert_eq!(names(dir.path()), ["a"]);
        let mut files = Files::new();
        files.write(&a, |out| out.write_all(b"new")).unwrap();
        files.write(&b, |out| out.write_all(b"more")).unwrap();
        assert_eq!(fs::read_to_string(&a).unwrap(), "old");
        files.commit().unwrap();
        assert_eq!(fs::read_to_string(&a).unwrap(), "new");
        assert_eq!(names(dir.path()), ["a", "b"]);
    }

    #[test]
    fn links_stay_links_and_permissions_stay_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, |out| out.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        // A new file has the permissions that any program would give it.
        let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
        write(&ours, |_| Ok(())).unwrap();
        File::create(&plain).unwrap();
        let mode = |path| fs::metadata(path).unwrap().mode();
        assert_eq!(mode(ours), mode(plain));
    }

    #[test]
    fn folders_read_only_files_and_missing_folders_are_refused_and_devices_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
        for path in [dir.path(), &file, Path::new("/no/such/folder/file")] {
            assert!(check(path).is_err(), "{}", path.display());
            let error = write(path, |out| out.write_all(b"new")).unwrap_err();
            assert!(
                !error.to_string().contains(".servetwin-"),
                "{error}: names what nobody asked for"
            );
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        check(&dir.path().join("new")).unwrap();
        check(Path::new("file-here")).unwrap();
        write(Path::new("/dev/null"), |out| out.write_all(b"new")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_new_file_never_replaces_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write_new(&file, |out| out.write_all(b"first")).unwrap();
        let error = write_new(&file, |out| out.write_all(b"second")).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "first");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn names_of_one_file_are_told_by_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "").unwrap();
        fs::write(at("b"), "").unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink("a", at("soft")).unwrap();
        let round = dir.path().join("../").join(dir.path().file_name().unwrap());
        for other in [at("a"), at("hard"), at("soft"), round.join("a")] {
            assert!(same(&at("a"), &other), "{}", other.display());
        }
        assert!(!same(&at("a"), &at("b")) && !same(&at("none"), &at("none")));
        assert!(!same(Path::new("/dev/null"), Path::new("/dev/null")));
    }
}
