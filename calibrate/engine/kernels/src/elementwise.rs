//! Norms, rotary embedding, activations: one row at a time, in plain loops that compilers turn into vector code.

use crate::isa::{Isa, Machine, Work};

/// Writes `x / rms(x) * weight` to `out`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

/// As [`rms_norm`], in place.
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// In sixteen partial sums, so that it vectorises.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s += x * x;
        }
    }
    let tail: f32 = rest.iter().map(|x| x * x).sum();
    sums.iter().sum::<f32>() + tail
}

/// Adds `y` to `x`.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Turns the pairs `(x[i], x[i + half])` of one head by its position's angles.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x * c - y * s;
        *b = y * c + x * s;
    }
}

/// `e^x` within 2e-7 relative for x from -87 to 88, clamped beyond; in plain arithmetic, so that loops over it vectorise
/// where calls of the library's would not. Cephes `expf`: `2^n` times a polynomial on `[-ln 2 / 2, ln 2 / 2]`.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    // Adding 1.5 x 2^23 rounds to an integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let n = x * std::f32::consts::LOG2_E + MAGIC;
    let bits = n.to_bits();
    let n = n - MAGIC;
    // ln 2 in two parts, the first with few bits, so that the product is exact.
    let r = x - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4_f32;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    let power = f32::from_bits(bits.wrapping_add(127).wrapping_shl(23));
    value * power
}

/// Writes `silu(gate) * up` to `out`; `both` holds the gate's values, then those of up.
pub fn swiglu(isa: Isa, both: &[f32], out: &mut [f32]) {
    // The exponential is long enough for wider vectors to matter.
    isa.run(Swiglu { both, out });
}

struct Swiglu<'a> {
    both: &'a [f32],
    out: &'a mut [f32],
}

impl Work for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, _: M) {
        let (gate, up) = self.both.split_at(self.out.len());
        for ((o, g), u) in self.out.iter_mut().zip(gate).zip(up) {
            *o = g / (1.0 + exp(-g)) * u;
        }
    }
}

/// Cosines and sines of every position up to the longest seen so far.
pub struct RotaryTable {
    inverse: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    /// An empty table of these inverse wavelengths [rad/token].
    #[must_use]
    pub fn new(inverse: Vec<f32>) -> RotaryTable {
        RotaryTable {
            inverse,
            cos: Vec::new(),
            sin: Vec::new(),
        }
    }

    /// Makes sure that positions below `end` are there.
    pub fn extend(&mut self, end: usize) {
        let have = self.cos.len() / self.inverse.len();
        for position in have..end {
            for inverse in &self.inverse {
                let (sin, cos) = (position as f32 * inverse).sin_cos();
                self.cos.push(cos);
                self.sin.push(sin);
            }
        }
    }

    /// Cosines and sines of a position below the last [`RotaryTable::extend`].
    #[must_use]
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.inverse.len();
        let range = position * half..(position + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_stays_within_two_ulp_of_the_library() {
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let (ours, exact) = (exp(x), f64::from(x).exp());
            let off = (f64::from(ours) / exact - 1.0).abs();
            assert!(off < 2.5e-7, "exp({x}) = {ours}, off by {off}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn rotation_keeps_lengths_and_turns_by_the_angle() {
        let mut head = [1.0, 0.0, 0.0, 1.0];
        let (sin, cos) = 0.3_f32.sin_cos();
        rotate(&mut head, &[cos, cos], &[sin, sin]);
        assert_eq!(head, [cos, -sin, sin, cos]);
    }
}
