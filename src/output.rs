//! Where results go: standard output.

use std::io::{self, Write};

/// Writes `text` to standard output.
///
/// # Errors
/// Those of standard output; a closed pipe is one, and ends the process quietly in `main`.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
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
