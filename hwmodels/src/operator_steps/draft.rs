//! The module that drafts tokens for the next step to verify (multi-token prediction, run over and over as EAGLE's drafts are): one more layer.
//!
//! Sources: sgl-project/sglang `python/sglang/srt/models/deepseek_nextn.py`, `python/sglang/srt/speculative/eagle_worker.py`. After a step of the model the
//! module goes over the tokens of that step (`draft_extend`), which yields the first draft, and then over one token of each sequence for every further
//! draft (`draft_forward`). It has two norms, a projection of a token's embedding and hidden state that every rank computes whole in 16 bits, a layer like
//! the model's last, and the model's LM head.

use super::device::Device;
use super::experts::SharedExperts;
use super::table::Table;
use super::walk::LayerWalk;
use crate::blocks::{Block, FeedForward};
use crate::dtype::Dtype;

/// The module on one rank.
#[derive(Clone, Debug)]
pub(super) struct DraftModule {
    /// Tokens that it drafts after a step.
    pub(super) drafts: u32,
    /// Its token-wise work by token count.
    pub(super) linear: Table,
    /// What data-parallel ranks do together of its layer.
    pub(super) shared: Option<SharedExperts>,
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
    pub(super) fn draft_layer(&self, t: u32) -> Device {
        let m = &self.model;
        let feed_forward = match m.moe {
            Some(_) => FeedForward::Experts,
            None => FeedForward::Dense,
        };
        let mut d = self.layer(
            t,
            Block {
                feed_forward,
                ..Block::DENSE
            },
        );
        // Embedding and hidden state are normalised, the layer's output once more.
        let norms = 3.0 * 2.0 * 2.0 * f64::from(m.hidden) * f64::from(t);
        d.add_activations(self.ops.elementwise(norms, 3.0));
        d.add_gemm((self.ops).gemm(t, m.hidden, 2 * m.hidden, Dtype::Bf16, Dtype::Bf16));
        d
    }
}
