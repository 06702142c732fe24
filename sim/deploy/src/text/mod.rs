//! Parsers of the formats that deployments are written in. Each knows the line of what it read, and has limits, so that no text costs more
//! time or memory than its length justifies.

mod chars;
pub mod dotenv;
pub mod nginx;
pub mod prototext;
pub mod shell;
pub mod yaml;

/// Longest text [bytes]. Deployment files are a thousandth of it.
pub const MAX_BYTES: usize = 8 << 20;

/// Deepest nesting of any format.
pub const MAX_DEPTH: usize = 64;

/// What is wrong with a text, and on which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Line, counted from 1.
    pub line: u32,
    /// What, and what would be right.
    pub message: String,
}

impl Wrong {
    /// What is wrong on `line`.
    pub fn new(line: u32, message: impl Into<String>) -> Wrong {
        Wrong {
            line,
            message: message.into(),
        }
    }
}
