//! The largest of what the ranks of a step hold.

use crate::batch::BatchStats;

/// The largest of what the ranks of a step hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Widest {
    pub(super) tokens: u32,
    pub(super) prefill_tokens: u32,
    pub(super) decode_seqs: u32,
    pub(super) seqs: u32,
    pub(super) sampled_seqs: u32,
}

impl Widest {
    #[inline]
    pub(super) fn of(b: &BatchStats) -> Widest {
        Widest {
            tokens: b.tokens(),
            prefill_tokens: b.prefill_tokens,
            decode_seqs: b.decode_seqs,
            seqs: b.decode_seqs + b.prefill_seqs,
            sampled_seqs: b.sampled_seqs,
        }
    }

    pub(super) fn max(self, o: Widest) -> Widest {
        Widest {
            tokens: self.tokens.max(o.tokens),
            prefill_tokens: self.prefill_tokens.max(o.prefill_tokens),
            decode_seqs: self.decode_seqs.max(o.decode_seqs),
            seqs: self.seqs.max(o.seqs),
            sampled_seqs: self.sampled_seqs.max(o.sampled_seqs),
        }
    }
}
