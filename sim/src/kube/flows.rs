//! Loads of weights under way, and what they share.

use std::collections::BTreeMap;

use hwmodels::startup::share::{FairShare, FlowId};

use crate::kernel::time::SimTime;

/// A load of weights whose speed may change.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// What it would still take at full speed, as of `since` [ns].
    pub left: u64,
    pub since: SimTime,
    /// Raised with each change of speed, so that the end that was planned before is stale.
    pub version: u32,
}

/// A load under way that shares something.
pub(super) struct Flow {
    pub id: FlowId,
    pub pod: usize,
    pub epoch: u32,
    /// Most that it takes when the storage is well [bytes/s].
    pub ceiling: f64,
    /// Tensors come from the host's memory, which slow storage leaves alone.
    pub is_wake: bool,
}

/// Loads under way, and what they share.
#[derive(Default)]
pub(super) struct Loads {
    pub links: FairShare,
    /// By storage, once somebody reads from it: its link and the capacity of that.
    pub shared: BTreeMap<usize, (usize, f64)>,
    /// By node and storage: the same of what the node has.
    pub nodes: BTreeMap<(usize, usize), (usize, f64)>,
    pub flows: Vec<Flow>,
    /// Raised with each change, so that the end that was planned before is stale.
    pub version: u64,
}
