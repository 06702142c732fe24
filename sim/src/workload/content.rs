//! Which KV blocks of two requests hold the same tokens.

use crate::kv::chain;
use crate::request::{RequestSpec, Segment};

/// Writes the chained hashes of the full KV blocks of a request's prompt and output into `out` (cleared first):
/// hash `i` names the tokens `[i * block, (i + 1) * block)` and all before them, so equal hashes mean equal
/// beginnings. `unique` identifies what the request shares with nobody and differs from every other
/// request's; `block` is the block size, at least 1 [tokens].
pub fn block_hashes(spec: &RequestSpec, unique: u64, block: u32, out: &mut Vec<u64>) {
    out.clear();
    let block = block.max(1);
    let output_content = if spec.output_content == 0 {
        chain(chain(0x5e9, unique), 1)
    } else {
        spec.output_content
    };
    let output = Segment {
        content: output_content,
        tokens: spec.output_tokens,
    };
    let own = chain(chain(0x5e9, unique), 0);
    let mut left = spec.prompt_tokens;
    let mut hash = 0u64;
    // Tokens of the block under way, and of the request so far.
    let mut filled = 0u32;
    let mut take = |piece: Segment| {
        let mut offset = 0;
        while offset < piece.tokens {
            let n = (block - filled).min(piece.tokens - offset);
            // A stretch is named by its content and where in it it starts; its end follows from the block's.
            hash = chain(chain(hash, piece.content), u64::from(offset));
            offset += n;
            filled += n;
            if filled == block {
                out.push(hash);
                filled = 0;
            } else {
                hash = chain(hash, u64::from(filled));
            }
        }
    };
    for s in &spec.segments {
        let tokens = s.tokens.min(left);
        left -= tokens;
        take(Segment { tokens, ..*s });
    }
    take(Segment {
        content: own,
        tokens: left,
    });
    take(output);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: u32, output: u32, segments: &[(u64, u32)]) -> RequestSpec {
        RequestSpec {
            prompt_tokens: prompt,
            output_tokens: output,
            segments: segments
                .iter()
                .map(|&(content, tokens)| Segment { content, tokens })
                .collect(),
            ..RequestSpec::default()
        }
    }

    fn hashes(spec: &RequestSpec, unique: u64, block: u32) -> Vec<u64> {
        let mut out = vec![1, 2, 3];
        block_hashes(spec, unique, block, &mut out);
        out
    }

    fn shared(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count()
    }

    #[test]
    fn only_full_blocks_are_named() {
        for (prompt, output, block) in [
            (1, 1, 16),
            (15, 1, 16),
            (16, 16, 16),
            (100, 77, 16),
            (7, 9, 1),
        ] {
            let h = hashes(&request(prompt, output, &[]), 1, block);
            assert_eq!(h.len() as u32, (prompt + output) / block);
        }
    }

    #[test]
    fn requests_share_exactly_the_full_blocks_of_their_common_beginning() {
        // 100 common tokens: 6 full blocks of 16.
        let a = hashes(&request(300, 50, &[(7, 100)]), 1, 16);
        let b = hashes(&request(200, 50, &[(7, 100), (8, 60)]), 2, 16);
        assert_eq!(shared(&a, &b), 6);
        // The beginning of a longer piece of content is the same content.
        let c = hashes(&request(64, 50, &[(7, 64)]), 3, 16);
        assert_eq!(shared(&a, &c), 4);
        assert_eq!(shared(&b, &c), 4);
    }

    #[test]
    fn unique_requests_share_nothing_and_equal_ones_everything() {
        let r = request(256, 256, &[]);
        assert_eq!(shared(&hashes(&r, 1, 16), &hashes(&r, 2, 16)), 0);
        assert_eq!(hashes(&r, 1, 16), hashes(&r, 1, 16));
    }

    #[test]
    fn a_next_turn_finds_the_answer_it_sends_back() {
        let first = RequestSpec {
            output_content: 99,
            ..request(40, 30, &[(5, 40)])
        };
        let second = request(110, 30, &[(5, 40), (99, 30), (6, 40)]);
        // 70 tokens in common: 4 full blocks of 16.
        assert_eq!(shared(&hashes(&first, 1, 16), &hashes(&second, 2, 16)), 4);
    }

    #[test]
    fn segments_longer_than_the_prompt_are_cut() {
        let a = hashes(&request(32, 32, &[(7, 1000)]), 1, 16);
        let b = hashes(&request(64, 1, &[(7, 1000)]), 2, 16);
        assert_eq!(a.len(), 4);
        assert_eq!(shared(&a, &b), 2);
    }
}
