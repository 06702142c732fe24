//! The files of the page (`viewer/web/build.sh`), where the program was built with them: what `servetwin view --web` serves.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use flate2::read::GzDecoder;

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Writes `page`, files by name and gzip form, into the folder `dir`, which is made where it is not there: each file as it is, and its gzip
/// form beside it, for servers that hand that out. The names of what was written come back, a line each.
///
/// # Errors
/// In words: there is no file to write, or which one cannot be written.
pub fn write(page: &[(&str, &[u8])], dir: &Path) -> Result<String, String> {
    if page.is_empty() {
        return Err(
            "this servetwin-viewer was built without the page\n\
             In the repository, `viewer/web/build.sh --program` builds the page, and the program with it: docs/viewer.md."
                .to_owned(),
        );
    }
    let failed = |path: &Path, e: io::Error| format!("cannot write {}: {e}", path.display());
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let (mut said, mut all) = (String::new(), files::Files::new());
    for (name, gzip) in page {
        let mut plain = Vec::new();
        let unpacked = GzDecoder::new(*gzip).read_to_end(&mut plain);
        unpacked.map_err(|e| format!("the {name} in this program is damaged: {e}"))?;
        for (name, bytes) in [
            ((*name).to_owned(), &plain[..]),
            (format!("{name}.gz"), gzip),
        ] {
            let path = dir.join(name);
            let written = all.write(&path, |out| out.write_all(bytes));
            written.map_err(|e| e.to_string())?;
            // A text takes whatever is written to it.
            let _ = writeln!(said, "{}", path.display());
        }
    }
    all.commit().map_err(|e| e.to_string())?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(text: &str) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn files_are_written_as_they_are_and_squeezed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("site");
        let (html, wasm) = (squeezed("<p>hello"), squeezed(&"nothing ".repeat(1000)));
        let said = write(&[("index.html", &html), ("viewer_bg.wasm", &wasm)], &dir).unwrap();
        assert_eq!(said.lines().count(), 4);
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(text("index.html"), "<p>hello");
        assert_eq!(text("viewer_bg.wasm"), "nothing ".repeat(1000));
        assert_eq!(std::fs::read(dir.join("viewer_bg.wasm.gz")).unwrap(), wasm);
    }

    #[test]
    fn without_a_page_it_says_what_builds_it_in() {
        let folder = tempfile::tempdir().unwrap();
        let e = write(&[], &folder.path().join("site")).unwrap_err();
        assert!(e.contains("viewer/web/build.sh --program"), "{e}");
        assert!(!folder.path().join("site").exists(), "nothing is written");
        let e = write(&[("index.html", b"no gzip")], folder.path()).unwrap_err();
        assert!(e.contains("index.html") && e.contains("damaged"), "{e}");
    }
}
