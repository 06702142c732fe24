//! The replica with the fewest outstanding requests, in constant time for a fixed number of replicas.

/// Replicas by their number of outstanding requests: one bit set per number.
#[derive(Debug, Default)]
pub struct LeastOutstanding {
    counts: Vec<u32>,
    /// Whether each replica may be chosen; the others are in no set.
    ready: Vec<bool>,
    words: usize,
    /// `sets[c * words ..]`: the replicas with `c` outstanding requests.
    sets: Vec<u64>,
    sizes: Vec<u32>,
    least: usize,
    /// The last choice; none yet.
    last: Option<u32>,
}

impl LeastOutstanding {
    /// No replica yet.
    pub fn new() -> LeastOutstanding {
        LeastOutstanding::default()
    }

    /// `replica` may be chosen from now on.
    pub fn join(&mut self, replica: u32) {
        let r = replica as usize;
        if r >= self.counts.len() {
            self.counts.resize(r + 1, 0);
            self.ready.resize(r + 1, false);
        }
        if self.ready[r] {
            return;
        }
        self.widen((r + 1).div_ceil(64));
        self.ready[r] = true;
        let c = self.counts[r] as usize;
        self.reach(c);
        self.sets[c * self.words + r / 64] |= 1 << (r % 64);
        self.sizes[c] += 1;
        self.settle(c);
    }

    /// `replica` may not be chosen any more.
    pub fn leave(&mut self, replica: u32) {
        let r = replica as usize;
        if std::mem::take(&mut self.ready[r]) {
            let c = self.counts[r] as usize;
            self.sets[c * self.words + r / 64] &= !(1 << (r % 64));
            self.sizes[c] -= 1;
            self.settle(c);
        }
    }

    /// Makes room for replicas up to `64 * words`.
    fn widen(&mut self, words: usize) {
        if words <= self.words {
            return;
        }
        // By doubling, so that a fleet that grows one by one is not copied each time.
        let words = words.next_power_of_two();
        let mut sets = vec![0; self.sizes.len() * words];
        for (old, new) in self
            .sets
            .chunks(self.words.max(1))
            .zip(sets.chunks_mut(words))
        {
            new[..old.len()].copy_from_slice(old);
        }
        (self.sets, self.words) = (sets, words);
    }

    /// Makes room for `c` outstanding requests.
    fn reach(&mut self, c: usize) {
        if self.sizes.len() <= c {
            self.sizes.resize(c + 1, 0);
            self.sets.resize(self.sizes.len() * self.words, 0);
        }
    }

    /// The number of those with `c` has changed: finds the fewest again.
    fn settle(&mut self, c: usize) {
        if self.sizes[c] > 0 {
            self.least = self.least.min(c);
        }
        if self.sizes[self.least] == 0 {
            self.least = (self.sizes.iter().position(|n| *n > 0)).unwrap_or(0);
        }
    }

    /// Outstanding requests of a replica.
    #[inline]
    pub fn count(&self, replica: u32) -> u32 {
        self.counts.get(replica as usize).copied().unwrap_or(0)
    }

    /// The replica with the fewest; among equals the next after the last choice in index order, cyclically.
    pub fn choose(&mut self) -> u32 {
        let set = &self.sets[self.least * self.words..(self.least + 1) * self.words];
        let from = self.last.map_or(0, |last| last as usize + 1);
        let (word, bit) = (from / 64, from % 64);
        let after = |i: usize| -> u64 {
            let w = set.get(i).copied().unwrap_or(0);
            if i == word { w & (u64::MAX << bit) } else { w }
        };
        let found = (word..self.words)
            .map(|i| (i, after(i)))
            .chain((0..self.words).map(|i| (i, set[i])))
            .find(|&(_, w)| w != 0);
        let chosen = found.map_or(0, |(i, w)| (i * 64) as u32 + w.trailing_zeros());
        self.last = Some(chosen);
        chosen
    }

    /// One more at `replica`.
    pub fn add(&mut self, replica: u32) {
        let c = self.counts[replica as usize] as usize;
        self.reach(c + 1);
        self.shift(replica, c, c + 1);
        if self.least == c && self.sizes[c] == 0 {
            // The one that moved is there, unless it is not ready.
            self.settle(c + 1);
        }
    }

    /// One less at `replica`.
    pub fn remove(&mut self, replica: u32) {
        let c = self.counts[replica as usize] as usize;
        debug_assert!(c > 0, "replica {replica} answered more than it was sent");
        if c == 0 {
            return;
        }
        self.shift(replica, c, c - 1);
        if self.ready[replica as usize] {
            self.least = self.least.min(c - 1);
        }
    }

    fn shift(&mut self, replica: u32, from: usize, to: usize) {
        self.counts[replica as usize] = to as u32;
        if !self.ready[replica as usize] {
            return;
        }
        let (word, mask) = (replica as usize / 64, 1u64 << (replica % 64));
        self.sets[from * self.words + word] &= !mask;
        self.sets[to * self.words + word] |= mask;
        self.sizes[from] -= 1;
        self.sizes[to] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng;
    use rand::RngExt;

    #[test]
    fn the_choice_is_the_least_with_ties_in_rotation() {
        let mut draws = rng::stream(3, "test");
        for n in [1u32, 2, 5, 64, 65, 200] {
            let mut l = LeastOutstanding::new();
            for i in 0..n {
                l.join(i);
            }
            let mut counts = vec![0u32; n as usize];
            let mut last = n - 1;
            for _ in 0..2000 {
                let chosen = l.choose();
                let least = *counts.iter().min().unwrap();
                let expected = (1..=n)
                    .map(|d| (last + d) % n)
                    .find(|&i| counts[i as usize] == least)
                    .unwrap();
                assert_eq!(chosen, expected);
                last = chosen;
                counts[chosen as usize] += 1;
                l.add(chosen);
                let r = draws.random_range(0..n);
                if counts[r as usize] > 0 && draws.random_bool(0.9) {
                    counts[r as usize] -= 1;
                    l.remove(r);
                }
                assert_eq!(l.count(r), counts[r as usize]);
            }
        }
    }
}
