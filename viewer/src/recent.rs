//! Files that were opened before, latest first: kept in a file of the user's state folder (XDG base directories).

use std::path::PathBuf;

/// Most that are kept.
const MOST: usize = 8;

/// Files that were opened before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recent {
    /// Their names, latest first.
    pub names: Vec<String>,
    /// Where they are kept; none: only while the program runs.
    file: Option<PathBuf>,
}

/// `servetwin/recent` in `$XDG_STATE_HOME`, or in `~/.local/state`.
pub fn place(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let absolute = |p: PathBuf| p.is_absolute().then_some(p);
    let state = var("XDG_STATE_HOME").map(PathBuf::from).and_then(absolute);
    let home = || var("HOME").map(|h| PathBuf::from(h).join(".local/state"));
    Some(state.or_else(home)?.join("servetwin/recent"))
}

impl Recent {
    /// Those kept in `file`.
    pub fn kept_in(file: PathBuf) -> Recent {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter(|l| !l.is_empty()).take(MOST);
        Recent {
            names: lines.map(str::to_owned).collect(),
            file: Some(file),
        }
    }

    /// A file was opened.
    pub fn opened(&mut self, name: &str) {
        self.names.retain(|n| n != name);
        self.names.insert(0, name.to_owned());
        self.names.truncate(MOST);
        self.keep();
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn keep(&self) {
        use std::io::Write as _;
        let Some(file) = &self.file else {
            return;
        };
        if let Some(folder) = file.parent() {
            // Where this fails, writing does too.
            let _ = std::fs::create_dir_all(folder);
        }
        let names = self.names.iter().filter(|n| !n.contains('\n'));
        let text: String = names.map(|n| format!("{n}\n")).collect();
        // A list that is not kept is a little less comfort, and nothing to interrupt for.
        let _ = files::write(file, |out| out.write_all(text.as_bytes()));
    }

    /// A page has nowhere to keep them.
    #[cfg(target_arch = "wasm32")]
    fn keep(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_there_the_next_time_latest_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state/servetwin/recent");
        let mut recent = Recent::kept_in(file.clone());
        for i in 0..12 {
            recent.opened(&format!("/runs/{i}.servetwin"));
        }
        recent.opened("/runs/7.servetwin");
        let again = Recent::kept_in(file);
        assert_eq!(again.names, recent.names);
        assert_eq!(again.names.len(), MOST);
        assert_eq!(
            again.names[..2],
            ["/runs/7.servetwin", "/runs/11.servetwin"]
        );
    }

    #[test]
    fn they_are_kept_where_the_user_keeps_state() {
        let of = |xdg: &str, home: &str| {
            let get = |name: &str| match name {
                "XDG_STATE_HOME" => (!xdg.is_empty()).then(|| xdg.into()),
                _ => (!home.is_empty()).then(|| home.into()),
            };
            place(get).map(|p| p.display().to_string())
        };
        assert_eq!(of("/s", "/h").as_deref(), Some("/s/servetwin/recent"));
        let home = Some("/h/.local/state/servetwin/recent");
        assert_eq!(of("", "/h").as_deref(), home);
        assert_eq!(of("relative", "/h").as_deref(), home);
        assert_eq!(of("", ""), None);
    }
}
