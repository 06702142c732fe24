//! Counts prompts with the model's own tokenizer, where the server does not say their length.

use std::path::Path;
use std::sync::Arc;

use bench::tokenizer::TokenCounter;

use super::observe::CountTokens;

/// A counter of the `tokenizer.json` at `file`.
///
/// # Errors
/// In words, when the file is no tokenizer.
pub fn counter(file: &Path) -> Result<CountTokens, String> {
    let tokenizer = TokenCounter::from_file(file).map_err(|e| {
        format!(
            "{}: no tokenizer ({e}); give the tokenizer.json of the model's files",
            file.display()
        )
    })?;
    Ok(Arc::new(move |text: &str| {
        u32::try_from(tokenizer.count(text).ok()?).ok()
    }))
}
