//! The free queue of [`crate::kv::block_pool`] when no two sequences can share content: counted, not listed.
//!
//! Without sharing, the only hits are those of a preempted sequence on its own blocks. A sequence gives its blocks back in
//! one go, so they lie side by side in the queue, last block first; how many of its leading blocks are left is then a
//! subtraction. Positions in the queue are absolute: `taken` blocks have left at the head, `given` have entered at the tail
//! since the start. A sequence that hits its own blocks leaves a hole, which the head jumps over.

use std::collections::VecDeque;

/// Where a sequence's blocks lie in the queue after it gave them back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Position of its last block.
    pub start: u64,
    /// Blocks given back.
    pub blocks: u32,
}

/// The queue of free blocks, counted.
#[derive(Clone, Debug)]
pub struct CountingPool {
    taken: u64,
    given: u64,
    holes: VecDeque<(u64, u32)>,
    hole_blocks: u64,
}

impl CountingPool {
    /// A pool of `blocks` free blocks.
    pub fn new(blocks: u64) -> CountingPool {
        CountingPool {
            taken: 0,
            given: blocks,
            holes: VecDeque::new(),
            hole_blocks: 0,
        }
    }

    /// Blocks in the free queue.
    #[inline]
    pub fn free(&self) -> u64 {
        self.given - self.taken - self.hole_blocks
    }

    /// Takes `n` blocks from the head, which must be there.
    #[inline]
    pub fn take(&mut self, n: u64) {
        debug_assert!(n <= self.free(), "took more KV blocks than are free");
        if self.holes.is_empty() {
            self.taken += n;
        } else {
            self.take_over_holes(n);
        }
    }

    #[cold]
    fn take_over_holes(&mut self, mut n: u64) {
        while let Some(&(start, len)) = self.holes.front() {
            let before = start - self.taken;
            if before > n {
                break;
            }
            n -= before;
            self.taken = start + u64::from(len);
            self.hole_blocks -= u64::from(len);
            self.holes.pop_front();
        }
        self.taken += n;
    }

    /// Gives `n` blocks of one sequence back, its last block first.
    #[inline]
    pub fn give(&mut self, n: u32) -> Left {
        let start = self.given;
        self.given += u64::from(n);
        Left { start, blocks: n }
    }

    /// How many of the sequence's blocks, counted from its first, have not been taken for reuse.
    #[inline]
    pub fn survivors(&self, left: Left) -> u32 {
        let end = left.start + u64::from(left.blocks);
        end.saturating_sub(self.taken.max(left.start)) as u32
    }

    /// Takes the first `n` of a sequence's surviving blocks back out of the queue.
    pub fn retake(&mut self, left: Left, n: u32) {
        debug_assert!(n <= self.survivors(left));
        if n == 0 {
            return;
        }
        let start = left.start + u64::from(left.blocks) - u64::from(n);
        let at = self.holes.partition_point(|h| h.0 < start);
        self.holes.insert(at, (start, n));
        self.hole_blocks += u64::from(n);
        // A hole at the very head is jumped over at once, so that `survivors` stays a subtraction.
        self.take_over_holes(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_of_a_sequence_are_reused_first() {
        let mut p = CountingPool::new(10);
        p.take(10);
        let left = p.give(4);
        assert_eq!(p.survivors(left), 4);
        p.take(1);
        assert_eq!(p.survivors(left), 3, "its tail block went");
        p.retake(left, 2);
        assert_eq!(p.free(), 1);
        p.take(1);
        assert_eq!(p.free(), 0);
    }

    #[test]
    fn the_head_jumps_over_holes() {
        let mut p = CountingPool::new(12);
        p.take(12);
        let a = p.give(4);
        let b = p.give(4);
        let c = p.give(4);
        p.retake(b, 3);
        assert_eq!(p.free(), 9);
        p.take(5);
        assert_eq!(p.survivors(a), 0);
        assert_eq!(p.survivors(c), 4);
        p.take(1);
        assert_eq!(p.survivors(c), 3);
    }
}
