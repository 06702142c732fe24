//! Where files come from: a disk, or a bundle in memory.
//!
//! Neither this crate nor the simulator opens a file by itself. Whoever calls them hands over a [`Files`], so that the same code runs
//! beside a disk and in a browser, which has none.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A file that was opened.
pub struct Opened {
    /// Its length [bytes]; 0 for a pipe or a device, which claim none.
    pub bytes: u64,
    /// What is in it.
    pub reader: Box<dyn BufRead + Send>,
}

/// Files by name. Relative names are relative to the folder of the process, or to the root of the bundle.
pub trait Files: fmt::Debug + Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// There is no such file, it cannot be read, or it is a folder.
    fn open(&self, path: &Path) -> io::Result<Opened>;

    /// The files of a folder, without its folders, in the order of their names.
    ///
    /// # Errors
    /// There is no such folder, or it cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The files of the computer that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn open(&self, path: &Path) -> io::Result<Opened> {
        let meta = std::fs::metadata(path)?;
        if meta.is_dir() {
            return Err(is_folder());
        }
        let file = std::fs::File::open(path)?;
        Ok(Opened {
            bytes: meta.len(),
            reader: Box::new(BufReader::with_capacity(1 << 16, file)),
        })
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_file() {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Files held in memory; an empty one is a world without files.
///
/// ```
/// use hwmodels::files::{Bundle, read_text};
///
/// let bundle = Bundle::default().with("traces/a.csv", "arrival_s,prompt,output\n".as_bytes());
/// let text = read_text(&bundle, "traces/./a.csv".as_ref(), 1000).unwrap();
/// assert!(text.starts_with("arrival_s"));
/// ```
#[derive(Clone, Default)]
pub struct Bundle {
    files: BTreeMap<PathBuf, Arc<[u8]>>,
}

impl Bundle {
    /// The bundle with one file more; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, path: impl AsRef<Path>, content: impl Into<Arc<[u8]>>) -> Bundle {
        self.files.insert(plain(path.as_ref()), content.into());
        self
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Bundle {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(files: I) -> Bundle {
        (files.into_iter()).fold(Bundle::default(), |b, (name, text)| {
            b.with(name, text.as_bytes())
        })
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl Files for Bundle {
    fn open(&self, path: &Path) -> io::Result<Opened> {
        let path = plain(path);
        match self.files.get(&path) {
            Some(content) => Ok(Opened {
                bytes: content.len() as u64,
                reader: Box::new(Cursor::new(Arc::clone(content))),
            }),
            None if self.files.keys().any(|f| f.starts_with(&path)) => Err(is_folder()),
            None => Err(not_there()),
        }
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let folder = plain(folder);
        let mut inside = (self.files.keys())
            .filter(|f| f.starts_with(&folder))
            .peekable();
        if inside.peek().is_none() {
            return Err(not_there());
        }
        Ok(inside
            .filter(|f| f.parent() == Some(&folder))
            .cloned()
            .collect())
    }
}

/// The path without `.` and with each `..` taken back.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.pop() => {}
            part => out.push(part),
        }
    }
    out
}

fn is_folder() -> io::Error {
    io::Error::new(io::ErrorKind::IsADirectory, "is a folder, not a file")
}

fn not_there() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no such file")
}

/// Reads a file of at most `limit` bytes, in UTF-8, without its byte-order mark.
///
/// # Errors
/// A file that cannot be read, is longer, or is no text.
pub fn read_text(files: &dyn Files, path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read_bytes(files, path, limit)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        invalid(format!(
            "byte {at} is not UTF-8; save the file as UTF-8 text"
        ))
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// A file that cannot be read or is longer.
pub fn read_bytes(files: &dyn Files, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let opened = files.open(path)?;
    let bytes = opened.bytes;
    if bytes > limit {
        return Err(invalid(format!(
            "{bytes} bytes are more than it may have ({limit})"
        )));
    }
    // A pipe claims no length, so the limit is kept while reading, too.
    let mut content = Vec::new();
    opened.reader.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(invalid(format!(
            "is longer than the {limit} bytes it may have"
        )));
    }
    Ok(content)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_answers_as_a_disk_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/b.txt"), "b").unwrap();
        std::fs::write(dir.path().join("sub/a.txt"), "\u{feff}a").unwrap();
        let bundle = Bundle::from_iter([("sub/b.txt", "b"), ("sub/a.txt", "\u{feff}a")]);
        for (files, root) in [(&Disk as &dyn Files, dir.path()), (&bundle, Path::new(""))] {
            let at = |name: &str| root.join(name);
            assert_eq!(read_text(files, &at("sub/../sub/a.txt"), 10).unwrap(), "a");
            let listed = files.list(&at("sub")).unwrap();
            assert_eq!(listed, [at("sub/a.txt"), at("sub/b.txt")]);
            let kind = |name| files.open(&at(name)).err().unwrap().kind();
            assert_eq!(kind("sub"), io::ErrorKind::IsADirectory);
            assert_eq!(kind("sub/c.txt"), io::ErrorKind::NotFound);
            assert!(read_text(files, &at("sub/a.txt"), 3).is_err());
            assert!(files.list(&at("none")).is_err());
        }
    }
}
