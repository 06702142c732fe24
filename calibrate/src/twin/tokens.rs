//! Counts prompts with the model's own tokenizer, where the server does not say their length.

use std::path::Path;
use std::sync::Arc;

use super::observe::CountTokens;

/// A counter of the `tokenizer.json` at `file`.
///
/// # Errors
/// In words, when the file is no tokenizer.
pub fn counter(file: &Path) -> Result<CountTokens, String> {
    let tokenizer = tokenizers::Tokenizer::from_file(file).map_err(|e| {
        format!(
            "{}: no tokenizer ({e}); give the tokenizer.json of the model's files",
            file.display()
        )
    })?;
    Ok(Arc::new(move |text: &str| {
        let encoded = tokenizer.encode_fast(text, true).ok()?;
        u32::try_from(encoded.len()).ok()
    }))
}
