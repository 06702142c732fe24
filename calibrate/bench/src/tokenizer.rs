//! Token counts by a model's own tokenizer.

use std::path::Path;

/// A model's tokenizer, for counting.
pub struct TokenCounter {
    inner: tokenizers::Tokenizer,
}

impl TokenCounter {
    /// Reads a `tokenizer.json`, or the one in a folder.
    ///
    /// # Errors
    /// In words: it cannot be read, or is no tokenizer.
    pub fn from_file(file: &Path) -> Result<TokenCounter, String> {
        let file = if file.is_dir() {
            file.join("tokenizer.json")
        } else {
            file.to_path_buf()
        };
        let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
        // The library's own `from_file` is generic: it would be compiled once more here.
        let inner = text.parse().map_err(|e: tokenizers::Error| e.to_string())?;
        Ok(TokenCounter { inner })
    }

    /// Tokens of `text` as a prompt, with those that the tokenizer puts around every text.
    ///
    /// # Errors
    /// In words: the tokenizer cannot express the text.
    pub fn count(&self, text: &str) -> Result<usize, String> {
        self.inner
            .encode_fast(text, true)
            .map(|e| e.len())
            .map_err(|e| e.to_string())
    }
}
