//! A stable 64-bit fingerprint of a run: the sum of a hash of every row, step and gap.
//!
//! A sum does not depend on the order, so the fast path, which advances replicas one after the other, and the
//! reference path, which interleaves them, give the same value, and so does any number of threads. Instants and
//! identities are part of each item, so a change of the order in time still shows.

/// Hash of one item's words: products of keyed pairs, folded to 64 bits (independent of each other, hence fast),
/// then a final avalanche as in SplitMix64.
#[inline]
pub fn hash_words<const N: usize>(words: [u64; N]) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = GOLDEN ^ N as u64;
    let mut key = GOLDEN;
    for pair in words.chunks(2) {
        let (a, b) = (pair[0], pair.get(1).copied().unwrap_or(0));
        let product = u128::from(a ^ key) * u128::from(b ^ key.rotate_left(32));
        h = h.wrapping_add(product as u64 ^ (product >> 64) as u64);
        key = key.wrapping_add(GOLDEN);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// The running sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Takes in an item of `N` words, seen `weight` times.
    #[inline]
    pub fn add<const N: usize>(&mut self, words: [u64; N], weight: u64) {
        self.0 = self.0.wrapping_add(hash_words(words).wrapping_mul(weight));
    }

    /// Takes in everything that `other` holds.
    pub fn merge(&mut self, other: Fingerprint) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// The value.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_stable_between_versions() {
        assert_eq!(hash_words([1u64, 2, 3]), 17868897177033883680);
        let mut f = Fingerprint::default();
        f.add([1, 2, 3], 2);
        assert_eq!(f.value(), 17868897177033883680u64.wrapping_mul(2));
    }

    #[test]
    fn order_is_irrelevant_and_content_is_not() {
        let (mut a, mut b) = (Fingerprint::default(), Fingerprint::default());
        a.add([1, 2], 1);
        a.add([2, 1], 1);
        b.add([2, 1], 1);
        b.add([1, 2], 1);
        assert_eq!(a, b);
        b.add([1, 2], 1);
        assert_ne!(a, b);
        assert_ne!(hash_words([1, 2]), hash_words([2, 1]));
        assert_ne!(hash_words([0]), hash_words([0, 0]));
    }
}
