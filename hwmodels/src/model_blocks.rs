//! Which block each layer of a model is, and how many layers are of a kind.

use std::ops::Range;

use crate::blocks::{Block, FeedForward, Mixer};
use crate::model::{ModelArch, Moe};

impl Moe {
    /// The feed-forward block of layer `index` (from 0) where nothing but these fields says it.
    pub fn feed_forward(&self, index: u32) -> FeedForward {
        let routed = index >= self.dense_layers
            && (index - self.dense_layers + 1).is_multiple_of(self.moe_every.max(1));
        if routed {
            FeedForward::Experts
        } else {
            FeedForward::Dense
        }
    }
}

impl ModelArch {
    /// Layer `index` (from 0).
    pub fn block(&self, index: u32) -> Block {
        match self.blocks.get(index as usize) {
            Some(block) => *block,
            None => Block {
                mixer: Mixer::Attention,
                feed_forward: (self.moe).map_or(FeedForward::Dense, |m| m.feed_forward(index)),
            },
        }
    }

    /// Layers in `range` by what they are made of, each kind once, with their number.
    pub fn blocks_in(&self, range: Range<u32>) -> Vec<(Block, u32)> {
        let mut kinds: Vec<(Block, u32)> = Vec::new();
        for block in range.map(|i| self.block(i)) {
            match kinds.iter_mut().find(|(kind, _)| *kind == block) {
                Some((_, n)) => *n += 1,
                None => kinds.push((block, 1)),
            }
        }
        kinds
    }

    fn count(&self, range: Range<u32>, of: impl Fn(Block) -> bool) -> u32 {
        range.filter(|i| of(self.block(*i))).count() as u32
    }

    /// True when layer `index` (from 0) has routed experts.
    pub fn is_moe_layer(&self, index: u32) -> bool {
        self.block(index).feed_forward == FeedForward::Experts
    }

    /// Layers in `range` that have routed experts.
    pub fn moe_layers_in(&self, range: Range<u32>) -> u32 {
        self.count(range, |b| b.feed_forward == FeedForward::Experts)
    }

    /// Layers in `range` that have a dense feed-forward block.
    pub fn dense_layers_in(&self, range: Range<u32>) -> u32 {
        self.count(range, |b| b.feed_forward == FeedForward::Dense)
    }

    /// Layers in `range` that keep KV.
    pub fn kv_layers_in(&self, range: Range<u32>) -> u32 {
        self.count(range, |b| b.mixer == Mixer::Attention)
    }

    /// Layers that keep KV.
    pub fn kv_layers(&self) -> u32 {
        self.kv_layers_in(0..self.layers)
    }

    /// Layers in `range` that keep a state.
    pub fn state_layers_in(&self, range: Range<u32>) -> u32 {
        self.count(range, |b| b.mixer == Mixer::State)
    }

    /// Layers as a model counts them whose layers all have both halves: one whose layers have one each (Nemotron-H) has half as many.
    pub fn whole_layers(&self) -> f64 {
        let halves: u32 = (0..self.layers).map(|i| self.block(i).halves()).sum();
        f64::from(halves) / 2.0
    }

    /// Checks that layers with a state and their shape come together, and that some layer has attention.
    pub(crate) fn validate_blocks(&self) -> Result<(), String> {
        if !self.blocks.is_empty() && self.blocks.len() != self.layers as usize {
            return Err(format!(
                "{} layers are described, the model has {}",
                self.blocks.len(),
                self.layers
            ));
        }
        if self.kv_layers() == 0 {
            return Err(
                "no layer has attention: models of layers with a state alone are not modelled"
                    .to_owned(),
            );
        }
        let states = self.state_layers_in(0..self.layers) > 0;
        match &self.recurrence {
            Some(_) if !states => {
                return Err("no layer keeps a state, but its shape is given".to_owned());
            }
            None if states => {
                return Err("layers keep a state whose shape is not given".to_owned());
            }
            Some(r) => r.validate()?,
            None => {}
        }
        if states && (self.window.is_some() || self.indexer.is_some()) {
            return Err(
                "layers with a state beside windows or sparse attention are not modelled"
                    .to_owned(),
            );
        }
        if self.moe.is_none() && self.moe_layers_in(0..self.layers) > 0 {
            return Err("layers have experts whose shape is not given".to_owned());
        }
        Ok(())
    }
}
