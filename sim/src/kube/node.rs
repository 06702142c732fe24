//! A node.

use super::slow::Slow;
use crate::kernel::time::SimTime;

/// Taint of a spot node that is taken away.
pub(super) const RECLAIMED: &str = "aws-node-termination-handler/spot-itn";

/// What a node has of an image.
#[derive(Clone, Copy)]
pub(super) struct Image {
    /// When it is there; [`SimTime::NEVER`]: nobody has asked for it.
    pub there: SimTime,
    /// A container of it has started on the node before: its libraries are in the page cache.
    pub has_started: bool,
}

/// A node, or the request for one.
pub(super) struct Node {
    pub group: usize,
    pub name: String,
    pub requested: SimTime,
    pub ready: SimTime,
    pub usable: SimTime,
    pub tainted: SimTime,
    /// Why it is tainted: what the scheduler says of it.
    pub taint: &'static str,
    pub gone: SimTime,
    pub why_gone: String,
    pub is_refused: bool,
    /// What it has of each image, by the image's index.
    pub images: Vec<Image>,
    pub pods: Vec<usize>,
    /// What slows the steps on it: which fault, since when, how much longer they take.
    pub slowed: Vec<(usize, SimTime, Slow)>,
    /// How often something slowed it.
    pub slowed_times: u32,
    pub serving_gpu_ns: u128,
    /// Karpenter's claim that it is of.
    pub claim: Option<u64>,
    /// When a pod last came or went, or it became usable.
    pub last_pod_event: SimTime,
}

impl Node {
    /// Asked for and not Ready.
    pub fn is_booting(&self) -> bool {
        self.ready == SimTime::NEVER && self.gone == SimTime::NEVER
    }

    /// Ready and not gone.
    pub fn is_registered(&self) -> bool {
        self.ready != SimTime::NEVER && self.gone == SimTime::NEVER
    }

    /// Whether pods can be placed on it.
    pub fn is_usable(&self) -> bool {
        self.usable != SimTime::NEVER && !self.is_tainted() && self.gone == SimTime::NEVER
    }

    /// How much longer steps take on it.
    pub fn slowdown(&self) -> Slow {
        self.slowed
            .iter()
            .fold(Slow::default(), |all, s| all.times(s.2))
    }

    pub fn is_tainted(&self) -> bool {
        self.tainted != SimTime::NEVER
    }

    /// Whether it is of its group for whoever keeps that at its size: a node that a spot notice has reached is until it is gone.
    pub fn is_held(&self) -> bool {
        !self.is_tainted() || self.taint == RECLAIMED
    }
}
