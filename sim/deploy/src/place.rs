//! Where something was written, and what is wrong there.

use std::fmt;
use std::sync::Arc;

/// Most characters of a file's text that a message repeats.
const SHOWN: usize = 80;

/// A line of a file, or an option of the command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file's name as the caller gave it; of an option its name, e.g. `--instance`.
    pub file: Arc<str>,
    /// Line, counted from 1; 0 where there are no lines.
    pub line: u32,
}

impl Place {
    /// A line of a file.
    pub fn new(file: &Arc<str>, line: u32) -> Place {
        Place {
            file: Arc::clone(file),
            line,
        }
    }

    /// An option of the command line.
    pub fn option(name: &str) -> Place {
        Place {
            file: name.into(),
            line: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file's name may hold anything; a comment or a message is one line.
        write!(f, "{}", printable(&self.file))?;
        match self.line {
            0 => Ok(()),
            line => write!(f, ":{line}"),
        }
    }
}

/// One thing that is wrong: where, which key, what, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it was written.
    pub place: Place,
    /// The key as the file spells it; empty when the file as a whole is at fault.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Fault {
    /// A fault of a key.
    pub fn new(place: Place, key: impl Into<String>, message: impl Into<String>) -> Fault {
        Fault {
            place,
            key: key.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", shown(&self.key))?;
        }
        f.write_str(&printable(&self.message))
    }
}

/// Files that cannot be imported, or a scenario that cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// All that is wrong, at least one fault.
    pub faults: Vec<Fault>,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error {
            faults: vec![fault],
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Text of a file as a message may repeat it: one line, not too long, control characters escaped.
pub fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(SHOWN).collect();
    if out.len() < text.len() {
        out.push_str("...");
    }
    printable(&out)
}

/// Text without characters that a terminal or a comment would act on.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            c if c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) => ' ',
            c => c,
        })
        .collect()
}
