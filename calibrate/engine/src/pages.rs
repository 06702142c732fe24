//! Storage for policies that account for rows or slots, not for KV blocks (static batching, padded TGI, Neuron slots).
//!
//! Their accounts stay theirs; this only says where in the paged cache a row's KV lies. It is as large as what they
//! account for, rounded up to blocks row by row.

use sim::request::ReqId;

/// Block tables by sequence.
#[derive(Debug)]
pub struct PageTable {
    block_size: u32,
    free: Vec<u32>,
    tables: Vec<Vec<u32>>,
}

impl PageTable {
    /// All of `blocks` blocks free.
    pub fn new(blocks: u32, block_size: u32) -> PageTable {
        PageTable {
            block_size,
            free: (0..blocks).rev().collect(),
            tables: Vec::new(),
        }
    }

    /// Gives `id` what it lacks to hold `tokens` tokens. False, and nothing changes, if there are too few blocks.
    pub fn grow(&mut self, id: ReqId, tokens: u32) -> bool {
        let i = id as usize;
        if self.tables.len() <= i {
            self.tables.resize_with(i + 1, Vec::new);
        }
        let need = tokens.div_ceil(self.block_size) as usize;
        let more = need.saturating_sub(self.tables[i].len());
        if more > self.free.len() {
            return false;
        }
        let from = self.free.len() - more;
        self.tables[i].extend(self.free.drain(from..).rev());
        true
    }

    /// Blocks of `id`, in the order of its tokens.
    pub fn table(&self, id: ReqId) -> &[u32] {
        self.tables.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// Takes everything back from `id`.
    pub fn release(&mut self, id: ReqId) {
        if let Some(t) = self.tables.get_mut(id as usize) {
            self.free.append(t);
        }
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_once_and_come_back() {
        let mut p = PageTable::new(4, 16);
        assert!(p.grow(0, 17) && p.grow(2, 32));
        assert_eq!((p.table(0), p.table(2)), (&[0, 1][..], &[2, 3][..]));
        assert!(!p.grow(0, 33));
        p.release(2);
        assert!(p.grow(0, 33));
        assert_eq!(p.free(), 1);
    }
}
