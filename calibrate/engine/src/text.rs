//! Text to tokens, and tokens to text as they come: never half a character, never part of a stop string.

use tokenizers::Tokenizer;

/// A tokenizer with the bytes of each of its tokens.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    /// Bytes of token `i`: `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    special: Vec<bool>,
}

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's: one printable character for each byte.
    ByteLevel,
    /// SentencePiece's: `▁` for a space, `<0xE2>` for a byte.
    Pieces,
}

impl Text {
    /// Wraps `tokenizer`, whose model has a vocabulary of `vocab` tokens at least.
    pub fn new(tokenizer: Tokenizer, vocab: usize) -> Text {
        let decoder = serde_json::to_string(&tokenizer.get_decoder()).unwrap_or_default();
        let spelling = if decoder.contains("ByteLevel") {
            Spelling::ByteLevel
        } else {
            Spelling::Pieces
        };
        let alphabet = byte_alphabet();
        let added = tokenizer.get_added_tokens_decoder();
        let vocab = vocab.max(tokenizer.get_vocab_size(true));
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        let mut special = Vec::with_capacity(vocab);
        for id in 0..vocab as u32 {
            if let Some(token) = added.get(&id) {
                bytes.extend_from_slice(token.content.as_bytes());
                special.push(token.special);
            } else {
                spell(
                    &tokenizer.id_to_token(id).unwrap_or_default(),
                    spelling,
                    &alphabet,
                    &mut bytes,
                );
                special.push(false);
            }
            starts.push(bytes.len() as u32);
        }
        Text {
            tokenizer,
            bytes,
            starts,
            special,
        }
    }

    /// Tokens of a text; `add_special` puts around it what the tokenizer puts around a prompt.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.tokenizer
            .encode_fast(text, add_special)
            .map(|e| e.get_ids().to_vec())
            .map_err(|e| e.to_string())
    }

    /// The sequences of tokens that spell a word, at the beginning of a text and behind a space, as vLLM looks for them.
    ///
    /// # Errors
    /// When the tokenizer refuses, or the word is no token.
    pub fn bad_word(&self, word: &str) -> Result<Vec<Vec<u32>>, String> {
        let word = word.trim_start();
        let plain = self.encode(word, false)?;
        let Some(&first) = plain.first() else {
            return Err("it has no tokens".into());
        };
        let spaced = self.encode(&format!(" {word}"), false)?;
        // Otherwise the space is a token of its own, and the word's follow it.
        let is_new = spaced.len() == plain.len() && spaced.first() != Some(&first);
        Ok(std::iter::once(plain)
            .chain(is_new.then_some(spaced))
            .collect())
    }

    /// Bytes of a token; none for an id that there is not.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        match (self.starts.get(i), self.starts.get(i + 1)) {
            (Some(&a), Some(&b)) => &self.bytes[a as usize..b as usize],
            _ => &[],
        }
    }

    /// Whether a token is special, such as an end of text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Text of tokens; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut out = String::new();
        let mut utf8 = Utf8Stream::default();
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                utf8.push(self.token_bytes(id), &mut out);
            }
        }
        utf8.finish(&mut out);
        out
    }

    /// How a single token reads: as [`Text::decode`] of it alone.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// Tokens there are.
    pub fn vocab(&self) -> usize {
        self.special.len()
    }
}

/// The byte that each character of GPT-2's byte alphabet stands for (`bytes_to_unicode` in its `encoder.py`).
fn byte_alphabet() -> Vec<(char, u8)> {
    let mut shifted = 256u32;
    let mut table: Vec<(char, u8)> = (0..=255u8)
        .map(|b| {
            let printable = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable {
                u32::from(b)
            } else {
                shifted += 1;
                shifted - 1
            };
            (char::from_u32(code).unwrap_or('?'), b)
        })
        .collect();
    table.sort_unstable();
    table
}

fn spell(token: &str, spelling: Spelling, alphabet: &[(char, u8)], out: &mut Vec<u8>) {
    if spelling == Spelling::Pieces {
        let byte = token
            .strip_prefix("<0x")
            .and_then(|t| t.strip_suffix('>'))
            .filter(|t| t.len() == 2)
            .and_then(|t| u8::from_str_radix(t, 16).ok());
        match byte {
            Some(b) => out.push(b),
            None => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
        }
        return;
    }
    for c in token.chars() {
        match alphabet.binary_search_by_key(&c, |a| a.0) {
            Ok(i) => out.push(alphabet[i].1),
            Err(_) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Bytes to text as they come: an incomplete character waits, what cannot become one is U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes, and appends to `out` what they complete.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = e.error_len() else {
                        rest = after;
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
    }

    /// No more bytes come: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Looks for stop strings in text that comes in pieces, holding back what may become one.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// A matcher of these strings; empty ones never match.
    pub fn new(stops: &[String]) -> StopMatcher {
        StopMatcher {
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            held: String::new(),
        }
    }

    /// Takes `text` and returns what of it and of earlier text is certain, with the stop string that ends it, if one
    /// does: the one that begins first. The string itself is part of the text only with `include`.
    pub fn push(&mut self, text: &str, include: bool) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (text.to_string(), None);
        }
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|s| self.held.find(s.as_str()).map(|at| (at, s)))
            .min_by_key(|&(at, s)| (at, s.len()));
        if let Some((at, stop)) = found {
            let end = if include { at + stop.len() } else { at };
            let stop = stop.clone();
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let keep = (from..self.held.len())
            .filter(|&i| self.held.is_char_boundary(i))
            .find(|&i| self.stops.iter().any(|s| s.starts_with(&self.held[i..])))
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// No more text comes: returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_characters_wait_for_their_other_half() {
        let mut s = Utf8Stream::default();
        let mut out = String::new();
        for b in "aé€🦀".bytes() {
            s.push(&[b], &mut out);
            assert!(!out.contains('\u{fffd}'), "{out}");
        }
        s.finish(&mut out);
        assert_eq!(out, "aé€🦀");
    }

    #[test]
    fn a_byte_level_alphabet_spells_every_byte() {
        let alphabet = byte_alphabet();
        let mut all: Vec<u8> = alphabet.iter().map(|a| a.1).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
        let mut out = Vec::new();
        spell("ĠhiÄ", Spelling::ByteLevel, &alphabet, &mut out);
        assert_eq!(out, [b' ', b'h', b'i', 0xc4]);
        out.clear();
        spell("▁hi", Spelling::Pieces, &alphabet, &mut out);
        spell("<0xE2>", Spelling::Pieces, &alphabet, &mut out);
        assert_eq!(out, [b' ', b'h', b'i', 0xe2]);
    }

    #[test]
    fn a_stop_string_across_pieces_is_found_and_not_sent() {
        let stops = ["END".to_string(), "\n\n".to_string()];
        let mut m = StopMatcher::new(&stops);
        assert_eq!(m.push("ab E", false), ("ab ".into(), None));
        assert_eq!(m.push("N", false), (String::new(), None));
        assert_eq!(m.push("X\n", false), ("ENX".into(), None));
        assert_eq!(
            m.push("\nmore", false),
            (String::new(), Some("\n\n".into()))
        );
        let mut m = StopMatcher::new(&stops);
        assert_eq!(m.push("aENDb", true), ("aEND".into(), Some("END".into())));
        let mut m = StopMatcher::new(&stops);
        assert_eq!(m.push("aEN", false).0, "a");
        assert_eq!(m.finish(), "EN");
    }

    proptest! {
        #[test]
        fn text_in_pieces_equals_text_at_once(bytes in prop::collection::vec(any::<u8>(), 0..60), cut in 1usize..7) {
            let mut s = Utf8Stream::default();
            let mut out = String::new();
            for piece in bytes.chunks(cut) {
                s.push(piece, &mut out);
            }
            s.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn without_a_match_no_text_is_lost(pieces in prop::collection::vec("[ab]{0,3}", 0..20), stop in "[ab]{1,4}") {
            let mut m = StopMatcher::new(std::slice::from_ref(&stop));
            let whole: String = pieces.concat();
            let mut out = String::new();
            let mut stopped = false;
            for p in &pieces {
                let (text, found) = m.push(p, false);
                out.push_str(&text);
                if found.is_some() {
                    stopped = true;
                    break;
                }
            }
            if stopped {
                let at = whole.find(&stop);
                prop_assert_eq!(Some(out.len()), at);
            } else {
                out.push_str(&m.finish());
                prop_assert!(!whole.contains(&stop));
                prop_assert_eq!(out, whole);
            }
        }
    }
}
