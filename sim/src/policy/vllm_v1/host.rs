//! The host's memory as a tier of KV, and what is on its way from there.

use std::collections::BTreeMap;

use crate::kernel::time::SimTime;
use crate::request::ReqId;

/// The host's share of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostKv {
    /// Blocks that it holds.
    pub blocks: u64,
    /// Time to load one block [s].
    pub block_s: f64,
}

/// What lies in the host's memory, and what is on its way from there.
#[derive(Debug)]
pub(super) struct HostTier {
    pub config: HostKv,
    /// When each block was last used, by content, and the reverse.
    used_at: BTreeMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    /// Loads under way: when they end, for whom, and in which use of the id.
    pub loads: Vec<(SimTime, ReqId, u64)>,
    /// When the link is free again.
    pub link_free: SimTime,
}

impl HostTier {
    pub fn new(config: HostKv) -> HostTier {
        HostTier {
            config,
            used_at: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            loads: Vec::new(),
            link_free: SimTime::ZERO,
        }
    }

    pub fn holds(&self, block: u64) -> bool {
        self.used_at.contains_key(&block)
    }

    /// `block` is there from now on, as the one used last.
    pub fn touch(&mut self, block: u64) {
        if self.config.blocks == 0 {
            return;
        }
        self.uses += 1;
        if let Some(before) = self.used_at.insert(block, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, block);
        if self.used_at.len() as u64 > self.config.blocks
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used_at.remove(&oldest);
        }
    }

    /// When the next load ends.
    pub fn next_end(&self) -> Option<SimTime> {
        self.loads.iter().map(|l| l.0).min()
    }
}
