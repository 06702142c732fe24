//! Which beginnings prompts share, without keeping the prompts.
//!
//! A prompt is cut into blocks of fixed size (64 bytes of text, 16 token ids); each block gets a hash chained over all
//! blocks before it, as paged engines name their KV blocks, so two prompts agree on a hash exactly when they agree up
//! to the end of that block. The chain starts from a random number that is never written, so hashes cannot be looked
//! up in a table of likely texts, and only prompts seen by the same twin can be compared.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};

/// Text per block [bytes]: about 16 tokens of English.
pub const TEXT_BLOCK_BYTES: usize = 64;

/// Token ids per block [tokens]: vLLM's default block.
pub const ID_BLOCK_TOKENS: usize = 16;

/// Where chains start.
#[derive(Clone, Copy, Debug)]
pub struct Salt(u64);

impl Salt {
    /// A fresh random start.
    pub fn random() -> Salt {
        Salt(RandomState::new().hash_one(0x7365_7276_6574_7769_u64))
    }

    /// A given start, for tests.
    pub fn fixed(seed: u64) -> Salt {
        Salt(seed)
    }
}

/// Chained hashes of the full blocks of what is fed in.
#[derive(Clone, Debug)]
pub struct Blocks {
    hash: u64,
    size: usize,
    partial: Vec<u8>,
    hashes: Vec<u64>,
}

impl Blocks {
    /// Blocks of text.
    pub fn of_text(salt: Salt) -> Blocks {
        Blocks::new(salt, TEXT_BLOCK_BYTES)
    }

    /// Blocks of token ids, each fed as four bytes.
    pub fn of_ids(salt: Salt) -> Blocks {
        Blocks::new(Salt(salt.0 ^ 1), ID_BLOCK_TOKENS * 4)
    }

    fn new(salt: Salt, size: usize) -> Blocks {
        Blocks {
            hash: salt.0,
            size,
            partial: Vec::with_capacity(size),
            hashes: Vec::new(),
        }
    }

    /// Adds content.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = (self.size - self.partial.len()).min(bytes.len());
            let (now, rest) = bytes.split_at(take);
            self.partial.extend_from_slice(now);
            bytes = rest;
            if self.partial.len() == self.size {
                let mut hasher = DefaultHasher::new();
                self.hash.hash(&mut hasher);
                self.partial.hash(&mut hasher);
                self.hash = hasher.finish();
                self.hashes.push(self.hash);
                self.partial.clear();
            }
        }
    }

    /// The hashes of the full blocks; what is left over belongs to this prompt alone.
    pub fn finish(self) -> Vec<u64> {
        self.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(salt: u64, text: &str) -> Vec<u64> {
        let mut blocks = Blocks::of_text(Salt::fixed(salt));
        blocks.feed(text.as_bytes());
        blocks.finish()
    }

    #[test]
    fn prompts_agree_exactly_as_far_as_their_texts_do() {
        let shared = "x".repeat(3 * TEXT_BLOCK_BYTES + 10);
        let a = hashes(1, &format!("{shared}{}", "a".repeat(200)));
        let b = hashes(1, &format!("{shared}{}", "b".repeat(200)));
        assert_eq!(a[..3], b[..3]);
        assert!(a[3..].iter().zip(&b[3..]).all(|(a, b)| a != b));
        // The same text later in a prompt is another block.
        assert_ne!(a[0], a[1]);
    }

    #[test]
    fn how_the_text_was_cut_when_it_came_leaves_no_trace() {
        let text: String = (0..500)
            .map(|i| char::from(b'a' + (i % 23) as u8))
            .collect();
        let mut pieces = Blocks::of_text(Salt::fixed(1));
        for chunk in text.as_bytes().chunks(7) {
            pieces.feed(chunk);
        }
        assert_eq!(pieces.finish(), hashes(1, &text));
    }

    #[test]
    fn another_start_gives_other_names() {
        let text = "y".repeat(TEXT_BLOCK_BYTES);
        assert_ne!(hashes(1, &text), hashes(2, &text));
    }
}
