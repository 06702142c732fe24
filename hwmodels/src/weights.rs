//! Weights of a model on the ranks of a layout.

use std::ops::Range;

use crate::blocks::Block;
use crate::dtype::Dtype;
use crate::layout::Layout;
use crate::model::{LayerBytes, ModelArch, small_bytes};

impl ModelArch {
    /// Bytes of the weights of one layer that is made of `block` on one rank, the matrices in `weights`.
    ///
    /// MXFP4 is a format of experts only: other matrices stay 16-bit. With `ep` ranks the experts are
    /// dealt out whole and each is divided over the remaining `dp * tp / ep` ranks.
    pub fn layer_weight_bytes(&self, block: Block, weights: Dtype, layout: Layout) -> LayerBytes {
        let p = self.layer_params(block);
        let tp = layout.tp.max(1);
        let ranks = layout.stage_ranks().max(1);
        let ep = layout.ep.clamp(1, ranks);
        let dense_bytes = if weights == Dtype::Mxfp4 {
            2.0
        } else {
            weights.bytes()
        };
        let small_bytes = small_bytes(weights);
        LayerBytes {
            mixer: self.mixer_params(block.mixer, tp) as f64 * dense_bytes,
            dense: p.dense as f64 * dense_bytes / f64::from(tp),
            expert: p.expert as f64 * weights.bytes() / f64::from(ranks / ep),
            experts_held: f64::from((p.experts as u32).div_ceil(ep)),
            small: p.small as f64 * small_bytes,
        }
    }

    /// What the attention matrices of `layers` layers take more on a rank where they stay in 16 bits [bytes].
    pub fn unquantised_attention_bytes(&self, weights: Dtype, tp: u32, layers: u32) -> f64 {
        if !self.attention_in_16_bits {
            return 0.0;
        }
        let more = (2.0 - weights.bytes()).max(0.0);
        f64::from(layers) * self.attention_params(tp.max(1)) as f64 * more
    }

    /// Bytes of all weights on one rank of the stage that holds `layers`, the matrices in `weights`.
    /// The first stage has the embedding, the last the LM head; tied, one copy serves both on a single stage.
    pub fn stage_weight_bytes(&self, layout: Layout, layers: Range<u32>, weights: Dtype) -> f64 {
        let first = layers.start == 0;
        let last = layers.end == self.layers;
        let mut bytes: f64 = (self.blocks_in(layers).iter())
            .map(|(block, n)| {
                f64::from(*n) * self.layer_weight_bytes(*block, weights, layout).total()
            })
            .sum();
        let tables =
            u32::from(first) + u32::from(last) - u32::from(first && last && self.tied_embeddings);
        bytes += f64::from(tables) * self.embedding_bytes(weights, layout.tp);
        if first {
            bytes += self.other_parameters as f64 * 2.0 / f64::from(layout.tp.max(1));
        }
        if last {
            bytes += f64::from(self.hidden) * small_bytes(weights);
        }
        bytes
    }

    /// Bytes of all weights, undivided, the matrices in `weights`.
    pub fn weight_bytes(&self, weights: Dtype) -> f64 {
        self.stage_weight_bytes(Layout::SINGLE, 0..self.layers, weights)
    }
}
