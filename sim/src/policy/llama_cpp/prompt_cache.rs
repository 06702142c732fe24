//! Prompts in host memory (`--cache-ram`): what slots held before they went on to other prompts (serving-policies 4.6).
//!
//! A prompt is the list of the names of its tokens, each of which names all tokens before it too.

use std::collections::VecDeque;

/// How much the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CacheRam {
    /// Most of it [bytes]; none: no limit but that of tokens.
    pub bytes: Option<u64>,
    /// KV of a token [bytes].
    pub bytes_per_token: f64,
    /// Tokens that it may hold whatever their size [tokens].
    pub tokens: u64,
}

/// Leading tokens that two prompts share. A token's name names all before it, so that a search by halves finds the last one.
pub(super) fn common(a: &[u64], b: &[u64]) -> usize {
    let (mut low, mut high) = (0, a.len().min(b.len()));
    while low < high {
        let middle = low.midpoint(high);
        if a[middle] == b[middle] {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The states of slots, as `server_prompt_cache` keeps them: the oldest first.
#[derive(Debug)]
pub(super) struct PromptCache {
    limits: CacheRam,
    states: VecDeque<Vec<u64>>,
    /// Tokens of all states.
    tokens: u64,
}

impl PromptCache {
    pub(super) fn new(limits: CacheRam) -> PromptCache {
        PromptCache {
            limits,
            states: VecDeque::new(),
            tokens: 0,
        }
    }

    fn bytes(&self, tokens: u64) -> f64 {
        tokens as f64 * self.limits.bytes_per_token
    }

    fn drop_oldest(&mut self) {
        if let Some(state) = self.states.pop_front() {
            self.tokens -= state.len() as u64;
        }
    }

    /// Copies what a slot holds, unless it is there already or larger than the cache; what it contains as a whole goes.
    pub(super) fn save(&mut self, prompt: &[u64]) {
        let whole = |state: &[u64]| common(state, prompt);
        if prompt.is_empty() || self.states.iter().any(|s| whole(s) == prompt.len()) {
            return;
        }
        let new = prompt.len() as u64;
        let limit = self.limits.bytes.map(|b| b as f64);
        if limit.is_some_and(|limit| self.bytes(new) > limit) {
            return;
        }
        self.states.retain(|s| whole(s) < s.len());
        self.tokens = self.states.iter().map(|s| s.len() as u64).sum();
        while limit.is_some_and(|limit| self.bytes(self.tokens + new) > limit)
            && !self.states.is_empty()
        {
            self.drop_oldest();
        }
        self.states.push_back(prompt.to_vec());
        self.tokens += new;
        // As many tokens as the memory holds, or as the context has if that is more.
        let fit = limit.map_or(0.0, |limit| limit / self.limits.bytes_per_token);
        while self.tokens as f64 > fit.max(self.limits.tokens as f64) {
            self.drop_oldest();
        }
    }

    /// Takes out what serves a prompt better than what its slot holds: it shares a larger part of the prompt, and a larger
    /// part of it is shared, at least a quarter.
    pub(super) fn load(&mut self, slot: &[u64], prompt: &[u64]) -> Option<Vec<u64>> {
        let share = |common: usize, of: usize| common as f32 / of as f32;
        let own = common(slot, prompt);
        // Of an empty slot nothing would be lost.
        let mut keep = if slot.is_empty() {
            -1.0
        } else {
            share(own, slot.len())
        };
        let mut similar = share(own, prompt.len());
        let mut best = None;
        for (i, state) in self.states.iter().enumerate() {
            let common = common(state, prompt);
            let (kept, alike) = (share(common, state.len()), share(common, prompt.len()));
            if kept >= 0.25 && kept > keep && alike > similar {
                (keep, similar, best) = (kept, alike, Some(i));
            }
        }
        let state = self.states.remove(best?)?;
        self.tokens -= state.len() as u64;
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of a prompt that shares its first `shared` with all others of `family`.
    fn prompt(family: u64, shared: usize, own: u64, len: usize) -> Vec<u64> {
        (0..len)
            .map(|i| {
                let who = if i < shared { 0 } else { own };
                (family << 40) | (who << 20) | i as u64
            })
            .collect()
    }

    fn cache(bytes: Option<u64>, tokens: u64) -> PromptCache {
        PromptCache::new(CacheRam {
            bytes,
            bytes_per_token: 2.0,
            tokens,
        })
    }

    #[test]
    fn what_two_prompts_share_is_found_by_halves() {
        for shared in 0..=9 {
            let (a, b) = (prompt(1, shared, 1, 9), prompt(1, shared, 2, 12));
            assert_eq!(common(&a, &b), shared);
        }
        assert_eq!(common(&[], &[1]), 0);
    }

    #[test]
    fn the_oldest_go_when_memory_is_full_and_longer_ones_replace_those_that_they_contain() {
        let mut c = cache(Some(60), 1);
        c.save(&prompt(1, 0, 1, 10));
        c.save(&prompt(2, 0, 1, 10));
        c.save(&prompt(1, 0, 1, 20));
        let lengths = |c: &PromptCache| c.states.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&c), [10, 20], "60 bytes hold 30 tokens");
        c.save(&prompt(2, 0, 1, 5));
        assert_eq!(lengths(&c), [10, 20], "contained in what is there");
        c.save(&prompt(3, 0, 1, 31));
        assert_eq!(lengths(&c), [10, 20], "larger than all memory");
        c.save(&prompt(3, 0, 1, 1));
        assert_eq!(lengths(&c), [20, 1]);
        assert_eq!(c.tokens, 21);
    }

    #[test]
    fn without_a_limit_of_memory_the_tokens_of_the_context_are_one() {
        let mut c = cache(None, 25);
        for family in 0..4 {
            c.save(&prompt(family, 0, 1, 10));
        }
        assert_eq!((c.states.len(), c.tokens), (2, 20));
    }

    #[test]
    fn a_state_is_taken_where_it_serves_better_than_the_slot_and_a_quarter_of_it_is_of_use() {
        let mut c = cache(Some(1 << 20), 1);
        c.save(&prompt(1, 8, 1, 40));
        c.save(&prompt(1, 8, 2, 20));
        let wanted = prompt(1, 8, 3, 16);
        // 8 of 40 are less than a quarter, 8 of 20 more.
        assert_eq!(c.load(&[], &wanted), Some(prompt(1, 8, 2, 20)));
        assert_eq!(
            c.load(&[], &wanted),
            None,
            "taken out, and the other is left alone"
        );
        assert_eq!(c.tokens, 40);
        // A slot that shares as much of the prompt keeps what it has.
        let wanted = prompt(1, 8, 1, 12);
        // 12 of 40 are less than the 8 of 12 that the slot would keep.
        assert_eq!(c.load(&prompt(1, 8, 4, 12), &wanted), None);
        assert_eq!(
            c.load(&prompt(1, 8, 4, 40), &wanted),
            Some(prompt(1, 8, 1, 40))
        );
    }
}
