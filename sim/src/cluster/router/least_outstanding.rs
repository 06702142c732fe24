//! The replica with the fewest outstanding requests, in constant time for a fixed number of replicas.

/// Replicas by their number of outstanding requests: one bit set per number.
#[derive(Debug)]
pub struct LeastOutstanding {
    counts: Vec<u32>,
    words: usize,
    /// `sets[c * words ..]`: the replicas with `c` outstanding requests.
    sets: Vec<u64>,
    sizes: Vec<u32>,
    least: usize,
    last: u32,
}

impl LeastOutstanding {
    /// `replicas` replicas without requests.
    pub fn new(replicas: u32) -> LeastOutstanding {
        let words = (replicas as usize).div_ceil(64).max(1);
        let mut sets = vec![0; words];
        for i in 0..replicas as usize {
            sets[i / 64] |= 1 << (i % 64);
        }
        LeastOutstanding {
            counts: vec![0; replicas as usize],
            words,
            sets,
            sizes: vec![replicas],
            least: 0,
            last: replicas.saturating_sub(1),
        }
    }

    /// Outstanding requests of a replica.
    #[inline]
    pub fn count(&self, replica: u32) -> u32 {
        self.counts[replica as usize]
    }

    /// The replica with the fewest; among equals the next after the last choice in index order, cyclically.
    pub fn choose(&mut self) -> u32 {
        let set = &self.sets[self.least * self.words..(self.least + 1) * self.words];
        let from = self.last as usize + 1;
        let (word, bit) = (from / 64, from % 64);
        let after = |i: usize| -> u64 {
            let w = set.get(i).copied().unwrap_or(0);
            if i == word { w & (u64::MAX << bit) } else { w }
        };
        let found = (word..self.words)
            .map(|i| (i, after(i)))
            .chain((0..self.words).map(|i| (i, set[i])))
            .find(|&(_, w)| w != 0);
        if let Some((i, w)) = found {
            self.last = (i * 64) as u32 + w.trailing_zeros();
        }
        self.last
    }

    /// One more at `replica`.
    pub fn add(&mut self, replica: u32) {
        let c = self.counts[replica as usize] as usize;
        if self.sizes.len() <= c + 1 {
            self.sizes.push(0);
            self.sets.resize(self.sets.len() + self.words, 0);
        }
        self.shift(replica, c, c + 1);
        if self.least == c && self.sizes[c] == 0 {
            self.least = c + 1;
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
        self.least = self.least.min(c - 1);
    }

    fn shift(&mut self, replica: u32, from: usize, to: usize) {
        let (word, mask) = (replica as usize / 64, 1u64 << (replica % 64));
        self.sets[from * self.words + word] &= !mask;
        self.sets[to * self.words + word] |= mask;
        self.sizes[from] -= 1;
        self.sizes[to] += 1;
        self.counts[replica as usize] = to as u32;
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
            let mut l = LeastOutstanding::new(n);
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
