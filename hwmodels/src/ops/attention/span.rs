//! Which of its past a token attends to.

/// Which of its past a token attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// All of it.
    #[default]
    All,
    /// So many last tokens, itself included (sliding window).
    Last(u32),
    /// What precedes it in its chunk of the sequence. Chunks begin at multiples of so many tokens (Llama 4's `attention_chunk_size`: 8192), so
    /// token 8191 sees 8192 tokens and token 8192 itself alone.
    Chunk(u32),
}

impl Span {
    /// A sliding window, where there is one.
    pub fn window(tokens: Option<u32>) -> Span {
        tokens.map_or(Span::All, Span::Last)
    }
}

/// Query-key pairs of the first `tokens` tokens of a sequence within chunks of `chunk` tokens.
pub(super) fn chunk_pairs(tokens: f64, chunk: f64) -> f64 {
    let whole = (tokens / chunk).floor();
    let rest = tokens - whole * chunk;
    whole * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0
}

/// Tokens that the last of `context` tokens sees of its chunk of `chunk` tokens: from 1 to `chunk`.
pub(super) fn place_in_chunk(context: f64, chunk: f64) -> f64 {
    let whole = ((context - 1.0) / chunk).floor().max(0.0);
    context - whole * chunk
}

/// The mean of [`place_in_chunk`] over contexts that are spread evenly from `from` to `to`.
pub(super) fn mean_place(from: f64, to: f64, chunk: f64) -> f64 {
    if to <= chunk || to - from < 1.0 {
        return place_in_chunk((from + to) / 2.0, chunk);
    }
    let area = |x: f64| {
        let whole = (x / chunk).floor();
        let rest = x - whole * chunk;
        (whole * chunk * chunk + rest * rest) / 2.0
    };
    (area(to) - area(from.max(0.0))) / (to - from.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_places_are_those_counted_token_by_token() {
        let chunk = 8_u32;
        let sees = |context: u32| (context - 1) % chunk + 1;
        let mut pairs = 0.0;
        for tokens in 1..40_u32 {
            pairs += f64::from(sees(tokens));
            assert_eq!(chunk_pairs(f64::from(tokens), 8.0), pairs, "{tokens}");
            let place = place_in_chunk(f64::from(tokens), 8.0);
            assert_eq!(place, f64::from(sees(tokens)), "{tokens}");
        }
        // Whole chunks: half a chunk each, wherever they begin.
        assert_eq!(mean_place(0.0, 800.0, 8.0), 4.0);
        assert_eq!(mean_place(100.0, 900.0, 8.0), 4.0);
        // Equal contexts, and contexts within the first chunk, are what they are.
        assert_eq!(mean_place(20.0, 20.0, 8.0), 4.0);
        assert_eq!(mean_place(2.0, 6.0, 8.0), 4.0);
    }
}
