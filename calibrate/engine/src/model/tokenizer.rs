//! Text to tokens and back, by the `tokenizers` crate.

use std::path::Path;

use super::error::ModelError;

/// A model's tokenizer.
pub struct TextTokenizer {
    inner: tokenizers::Tokenizer,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// It cannot be read or is no tokenizer.
    pub fn from_file(path: &Path) -> Result<TextTokenizer, ModelError> {
        let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
            path: path.to_owned(),
            source,
        })?;
        TextTokenizer::from_bytes(&bytes).map_err(|message| ModelError::Tokenizer {
            path: path.to_owned(),
            message,
        })
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// It is no tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<TextTokenizer, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        // The library's own `from_bytes` is generic: it would be compiled once more here.
        let mut inner: tokenizers::Tokenizer =
            text.parse().map_err(|e: tokenizers::Error| e.to_string())?;
        // Files may ask to cut or pad what they encode; a server must see the prompt as it is.
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        Ok(TextTokenizer { inner })
    }

    /// Tokens of a text; `special` adds those that the tokenizer puts around every text, for example the first one.
    ///
    /// # Errors
    /// The tokenizer cannot express the text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        self.inner
            .encode_fast(text, special)
            .map(|e| e.get_ids().to_vec())
            .map_err(|e| e.to_string())
    }

    /// Text of tokens. Bytes that are no UTF-8 become U+FFFD; unknown ids vanish. `skip_special` leaves out special
    /// tokens.
    ///
    /// # Errors
    /// The tokenizer's decoder refuses.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, String> {
        self.inner
            .decode(tokens, skip_special)
            .map_err(|e| e.to_string())
    }

    /// Id of a token given as text, for example `<|im_end|>`.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The library's tokenizer.
    #[must_use]
    pub fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }
}
