//! Names of KV blocks by their content: chained hashes over a request's segments (serving-policies 1.6).

use super::chain;
use crate::request::{ReqId, RequestSpec};

/// Seed of every chain.
const ROOT: u64 = 0x7365_7276_6574_7769;
/// Marks content that belongs to one request only.
const UNIQUE: u64 = 0x756e_6971_7565_0000;

/// Writes the chained hashes of the full blocks of `block` tokens that the prompt and output of request `id` fill.
/// Two requests agree on a block exactly when they agree on its tokens and on all before them.
pub fn block_hashes(spec: &RequestSpec, id: ReqId, block: u32, out: &mut Vec<u64>) {
    out.clear();
    let unique = chain(UNIQUE, u64::from(id));
    let mut room = spec.prompt_tokens;
    let segments = spec.segments.iter().map_while(|s| {
        let tokens = s.tokens.min(room);
        room -= tokens;
        (tokens > 0).then_some((s.content, tokens))
    });
    let covered: u32 = spec
        .segments
        .iter()
        .fold(0u32, |sum, s| sum.saturating_add(s.tokens))
        .min(spec.prompt_tokens);
    let output = if spec.output_content == 0 {
        chain(unique, 1)
    } else {
        spec.output_content
    };
    let pieces = segments
        .chain([
            (unique, spec.prompt_tokens - covered),
            (output, spec.output_tokens),
        ])
        .filter(|p| p.1 > 0);
    let (mut hash, mut filled) = (ROOT, 0);
    for (content, tokens) in pieces {
        let mut offset = 0;
        while offset < tokens {
            let n = (tokens - offset).min(block - filled);
            hash = chain(chain(hash, content), u64::from(offset) << 32 | u64::from(n));
            offset += n;
            filled += n;
            if filled == block {
                out.push(hash);
                filled = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Segment;

    fn spec(prompt: u32, output: u32, segments: &[(u64, u32)]) -> RequestSpec {
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

    fn hashes(s: &RequestSpec, id: ReqId) -> Vec<u64> {
        let mut out = Vec::new();
        block_hashes(s, id, 16, &mut out);
        out
    }

    fn agreeing(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count()
    }

    #[test]
    fn requests_agree_as_far_as_their_segments_do() {
        let a = hashes(&spec(100, 10, &[(7, 70)]), 0);
        let b = hashes(&spec(200, 10, &[(7, 50), (8, 50)]), 1);
        assert_eq!(a.len(), 110 / 16);
        assert_eq!(agreeing(&a, &b), 50 / 16);
    }

    #[test]
    fn unique_rests_and_outputs_are_shared_with_nobody() {
        let a = hashes(&spec(64, 64, &[]), 0);
        let b = hashes(&spec(64, 64, &[]), 1);
        assert_eq!((a.len(), agreeing(&a, &b)), (8, 0));
    }

    #[test]
    fn a_follow_up_turn_agrees_with_the_answer_it_sends_back() {
        let mut first = spec(40, 60, &[(7, 40)]);
        first.output_content = 9;
        let second = spec(150, 1, &[(7, 40), (9, 60), (10, 50)]);
        assert_eq!(agreeing(&hashes(&first, 0), &hashes(&second, 1)), 100 / 16);
    }

    #[test]
    fn segments_longer_than_the_prompt_are_cut() {
        let a = hashes(&spec(20, 1, &[(7, 1_000_000)]), 0);
        assert_eq!(a.len(), 1);
    }
}
