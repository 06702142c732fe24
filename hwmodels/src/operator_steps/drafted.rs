//! What the module that drafts tokens adds to a step: its passes over the step's batch.

use super::OperatorSteps;
use super::device::Device;
use super::draft::DraftModule;
use crate::batch::BatchStats;

/// The batch of the module's first pass: all tokens of the step, and one next token for each sequence that has one.
fn first_pass(b: &BatchStats) -> BatchStats {
    BatchStats {
        sampled_seqs: b.sampled_seqs.saturating_sub(b.decode_tokens) + b.decode_seqs,
        ..*b
    }
}

/// The batch of a further pass: one token of each decoding sequence.
fn further_pass(b: &BatchStats) -> BatchStats {
    BatchStats {
        decode_seqs: b.decode_seqs,
        decode_tokens: b.decode_seqs,
        decode_ctx_sum: b.decode_ctx_sum,
        decode_ctx_sq_sum: b.decode_ctx_sq_sum,
        sampled_seqs: b.decode_seqs,
        ..BatchStats::default()
    }
}

impl OperatorSteps {
    /// Tokens that a rank computes in a graph of `padded` sequences.
    #[inline]
    pub(super) fn graph_tokens(&self, padded: u32, batch: &BatchStats) -> u32 {
        match &self.draft {
            Some(module) => padded.saturating_mul(module.drafts + 1),
            None => padded.saturating_add(batch.decode_tokens - batch.decode_seqs),
        }
    }

    /// Adds what the module does after a step with the batches `ranks`, in graphs of `padded` sequences or without. Returns its passes.
    pub(super) fn add_drafts(
        &self,
        ranks: &[BatchStats],
        padded: Option<u32>,
        device: &mut Device,
    ) -> f64 {
        let Some(module) = &self.draft else {
            return 0.0;
        };
        let all = padded.map(|p| p.saturating_mul(module.drafts + 1));
        device.add_scaled(&self.pass(module, ranks, first_pass, all), 1.0);
        // What a prompt's last token is followed by is drafted beyond the first when its first decode begins.
        if ranks.iter().all(|b| b.decode_seqs == 0) || module.drafts < 2 {
            return 1.0;
        }
        let more = f64::from(module.drafts - 1);
        device.add_scaled(&self.pass(module, ranks, further_pass, padded), more);
        1.0 + more
    }

    /// One pass of the module: the slowest rank's.
    fn pass(
        &self,
        module: &DraftModule,
        ranks: &[BatchStats],
        batch: fn(&BatchStats) -> BatchStats,
        tokens: Option<u32>,
    ) -> Device {
        let (mut slowest, mut total) = (Device::default(), 0u32);
        for b in ranks.iter().map(batch) {
            let tokens = tokens.unwrap_or(b.tokens().max(1));
            total = total.saturating_add(tokens);
            let mut own = module.linear.get(tokens, |t| self.walk.draft_layer(t));
            let mut attention = Device::default();
            self.add_attention(&mut attention, &b);
            own.add_scaled(&attention, 1.0 / self.layers);
            own.add_scaled(&self.head(b.sampled_seqs), 1.0);
            if own.total() > slowest.total() {
                slowest = own;
            }
        }
        if let Some(shared) = &module.shared {
            shared.add(total, &self.walk.ops, &mut slowest);
        }
        slowest
    }
}
