//! Models that share the accelerators of a cluster: their controller, the replicas that it created, and the swaps so far.

use super::record::SwapRow;
use crate::control::on_demand::OnDemand;
use crate::kernel::time::SimTime;

/// Loading on demand at work.
pub(super) struct Shared {
    pub control: OnDemand,
    /// The deployment of each model.
    pub pools: Vec<usize>,
    /// When its next look is planned.
    pub planned: SimTime,
    /// Replicas that it created, and the nodes where they are to find room; none: a node that is to come.
    pub intended: Vec<(usize, Option<usize>)>,
    pub swaps: Vec<SwapRow>,
}

impl Shared {
    pub fn new(control: OnDemand, pools: Vec<usize>) -> Shared {
        Shared {
            control,
            pools,
            planned: SimTime::NEVER,
            intended: Vec::new(),
            swaps: Vec::new(),
        }
    }
}
