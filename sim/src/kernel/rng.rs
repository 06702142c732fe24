//! Named random streams: one per source of randomness, derived from the run's seed and a name,
//! so that two variants of a scenario see the same arrivals.

use rand_pcg::Pcg64Mcg;

/// The portable generator behind every stream.
pub type Stream = Pcg64Mcg;

/// SplitMix64: the next of a sequence of numbers that look independent.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in [0, 1) for place `n` of thing `of` in the run with `seed`: the same whatever was drawn before.
pub fn draw(seed: u64, of: u64, n: u64) -> f64 {
    let mut state = seed;
    let mut mixed = split_mix(&mut state) ^ of;
    mixed = split_mix(&mut mixed) ^ n;
    (split_mix(&mut mixed) >> 11) as f64 / (1u64 << 53) as f64
}

/// The stream called `name` of the run with `seed`. The same pair always gives the same draws.
pub fn stream(seed: u64, name: &str) -> Stream {
    // FNV-1a of the name, then SplitMix64 to spread seed and name over the 128-bit state.
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for b in name.bytes() {
        h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut s = seed ^ h.rotate_left(32);
    let (hi, lo) = (split_mix(&mut s), split_mix(&mut s));
    Pcg64Mcg::new((u128::from(hi) << 64) | u128::from(lo ^ h))
}
