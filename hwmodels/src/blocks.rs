//! What a layer is made of: what mixes its tokens, and its feed-forward block.

use serde::{Deserialize, Serialize};

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention, with KV for each token.
    Attention,
    /// A recurrence ([`crate::recurrence`]), with a state for each sequence.
    State,
    /// Nothing: the layer is a feed-forward block.
    None,
}

/// A layer's feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// Of one width for all tokens.
    Dense,
    /// Routed experts.
    Experts,
    /// None: the layer mixes tokens and does nothing else.
    None,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Block {
    /// What mixes its tokens.
    pub mixer: Mixer,
    /// Its feed-forward block.
    pub feed_forward: FeedForward,
}

impl Block {
    /// Attention and a dense feed-forward block.
    pub const DENSE: Block = Block {
        mixer: Mixer::Attention,
        feed_forward: FeedForward::Dense,
    };

    /// Halves of a usual layer, of which each has a norm before it and, under tensor parallel, an all-reduce behind it.
    pub fn halves(self) -> u32 {
        u32::from(self.mixer != Mixer::None) + u32::from(self.feed_forward != FeedForward::None)
    }
}
