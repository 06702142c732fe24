//! A user's own folder of catalog files, in which one bad file does not take the others down.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Catalog, LeftOut};
use crate::error::Error;
use crate::files::{self, Files};

/// Largest catalog file that is read [bytes].
const MAX_FILE_BYTES: u64 = 16 << 20;

impl Catalog {
    /// Adds the files of a folder; see [`Catalog::with_dir`].
    ///
    /// # Errors
    /// As [`Catalog::with_dir`].
    pub fn add_dir(&mut self, files: &dyn Files, dir: &Path) -> Result<(), Error> {
        let models = dir.join("models");
        let mut paths = files.list(dir).map_err(|e| Error::Io {
            path: dir.to_owned(),
            message: e.to_string(),
        })?;
        paths.extend(files.list(&models).unwrap_or_default());
        for path in paths {
            let in_models = path.parent() == Some(models.as_path());
            match path.extension().and_then(|e| e.to_str()) {
                Some("toml") => {}
                Some("json") if in_models => {}
                _ => continue,
            }
            self.add_file(files, &path);
        }
        self.leave_out_dangling(&dir.display().to_string());
        Ok(())
    }

    /// Adds one file; a file with a fault changes nothing but [`Catalog::left_out`].
    fn add_file(&mut self, files: &dyn Files, path: &Path) {
        let shown = path.display().to_string();
        let stem = path
            .file_stem()
            .map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let is_json = path.extension().is_some_and(|e| e == "json");
        let mut names = BTreeSet::from([stem.to_lowercase()]);
        let text = files::read_text(files, path, MAX_FILE_BYTES).map_err(|e| Error::Io {
            path: path.to_owned(),
            message: e.to_string(),
        });
        let result = text.and_then(|text| {
            if !is_json {
                names = defined_names(&text);
            }
            let mut with_file = self.clone();
            if is_json {
                with_file.add_hf_config(&stem, &text, &shown)?;
            } else {
                with_file.add_toml(&shown, &text)?;
            }
            *self = with_file;
            Ok(())
        });
        if let Err(error) = result {
            self.left_out.push(LeftOut { error, names });
        }
    }

    /// Leaves out the entries that refer to what does not exist, until none does.
    fn leave_out_dangling(&mut self, file: &str) {
        loop {
            let dangling = self.dangling(file);
            if dangling.is_empty() {
                return;
            }
            for (kind, name, error) in dangling {
                match kind {
                    "accelerator" => self.accelerators.remove(&name),
                    _ => self.instances.remove(&name),
                }
                let names = BTreeSet::from([name.to_lowercase()]);
                self.left_out.push(LeftOut { error, names });
            }
        }
    }

    /// The files, and entries of files, that could not be used.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// `found`, unless a file that was left out defines `name` too: what it says of `name` is then not known.
    pub(super) fn intact<'a, T>(
        &'a self,
        name: &str,
        found: Result<&'a T, Error>,
    ) -> Result<&'a T, Error> {
        let name = name.trim().to_lowercase();
        match self.left_out.iter().find(|l| l.names.contains(&name)) {
            Some(left_out) => Err(left_out.error.clone()),
            None => found,
        }
    }
}

/// Lower-case names and aliases that a TOML text defines, told without parsing it.
fn defined_names(text: &str) -> BTreeSet<String> {
    let defines = |line: &&str| {
        ["name", "aliases"].iter().any(|key| {
            let rest = line.trim_start().strip_prefix(key);
            rest.is_some_and(|r| r.trim_start().starts_with('='))
        })
    };
    text.lines()
        .filter(defines)
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .map(str::to_lowercase)
        .collect()
}
