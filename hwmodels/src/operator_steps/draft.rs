//! The module that drafts tokens for the next step to verify (multi-token prediction, run over and over as EAGLE's drafts are): one more layer.
//!
//! Sources: sgl-project/sglang `python/sglang/srt/models/deepseek_nextn.py`, `python/sglang/srt/speculative/eagle_worker.py`. After a step of the model the
//! module goes over the tokens of that step (`draft_extend`), which yields the first draft, and then over one token of each sequence for every further
//! draft (`draft_forward`). It has two norms, a projection of a token's embedding and hidden state that every rank computes whole in 16 bits, a layer like
//! the model's last, and the model's LM head.

use super::OperatorSteps;
use super::device::Device;
use super::experts::SharedExperts;
use super::table::Table;
use super::walk::LayerWalk;
use crate::batch::BatchStats;
use crate::dtype::Dtype;

/// The module on one rank.
#[derive(Clone, Debug)]
pub(super) struct DraftModule {
    /// Tokens that it drafts after a step.
    pub(super) drafts: u32,
    /// Its token-wise work by token count.
    linear: Table,
    /// What data-parallel ranks do together of its layer.
    shared: Option<SharedExperts>,
}

impl DraftModule {
    /// `None`: nothing is drafted.
    pub(super) fn of(walk: &LayerWalk, table: u32) -> Option<DraftModule> {
        (walk.kernels.drafts > 0).then(|| DraftModule {
            drafts: walk.kernels.drafts,
            linear: Table::up_to(table),
            shared: walk
                .shared_experts()
                .map(|s| SharedExperts { layers: 1.0, ..s }),
        })
    }
}

impl LayerWalk {
    /// The module's token-wise work for `t` tokens.
    fn draft_layer(&self, t: u32) -> Device {
        let m = &self.model;
        let mut d = self.layer(t, m.moe.is_some(), None);
        // Embedding and hidden state are normalised, the layer's output once more.
        let norms = 3.0 * 2.0 * 2.0 * f64::from(m.hidden) * f64::from(t);
        d.add_activations(self.ops.elementwise(norms, 3.0));
        d.add_gemm((self.ops).gemm(t, m.hidden, 2 * m.hidden, Dtype::Bf16, Dtype::Bf16));
        d
    }
}

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
