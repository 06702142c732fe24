//! A pool of KV blocks with a prefix cache: who holds which block, which free ones still hold known content.
//!
//! Promises (serving-policies 1.6):
//! - every block is either referenced by at least one sequence or in the free queue, never both;
//! - the free queue is in LRU order: blocks are taken from its head and given back at its tail;
//! - a block in the free queue keeps its hash, and can be hit, until it is taken for reuse (eviction at allocation);
//! - identical blocks that were filled concurrently are not merged; a lookup finds the one that was filled first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No block.
const NIL: u32 = u32::MAX;

/// Passes the content hashes through: they are well mixed already.
#[derive(Default)]
pub struct PassThrough(u64);

impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(b);
        }
    }
    fn write_u64(&mut self, x: u64) {
        self.0 = x;
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    refs: u32,
    /// Content of a full, visible block.
    hash: Option<u64>,
    /// Neighbours in the free queue, when `refs` is 0.
    prev: u32,
    next: u32,
    /// The next block with the same content, filled later.
    twin: u32,
}

/// The blocks, the free queue and the index of visible content.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    head: u32,
    tail: u32,
    free: u32,
    index: HashMap<u64, u32, BuildHasherDefault<PassThrough>>,
}

impl BlockPool {
    /// A pool of `blocks` empty blocks, all free, to be taken in the order of their numbers.
    pub fn new(blocks: u32) -> BlockPool {
        let mut pool = BlockPool {
            blocks: vec![
                Block {
                    refs: 0,
                    hash: None,
                    prev: NIL,
                    next: NIL,
                    twin: NIL
                };
                blocks as usize
            ],
            head: NIL,
            tail: NIL,
            free: 0,
            index: HashMap::default(),
        };
        for b in 0..blocks {
            pool.push_tail(b);
        }
        pool
    }

    /// Blocks in the free queue.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// The visible block with this content, if there is one.
    pub fn find(&self, hash: u64) -> Option<u32> {
        self.index.get(&hash).copied()
    }

    /// Whether nobody references `block`.
    pub fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].refs == 0
    }

    /// Adds a reference to a found block, taking it out of the free queue if it was there.
    pub fn touch(&mut self, block: u32) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Takes the least recently freed block, forgetting what it held. `None` when no block is free.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.head;
        if block == NIL {
            return None;
        }
        self.unlink(block);
        self.hide(block);
        debug_assert_eq!(self.blocks[block as usize].refs, 0);
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    /// Makes a full block visible under its content.
    pub fn publish(&mut self, block: u32, hash: u64) {
        debug_assert!(self.blocks[block as usize].hash.is_none());
        debug_assert!(self.blocks[block as usize].refs > 0);
        self.blocks[block as usize].hash = Some(hash);
        match self.index.get(&hash) {
            None => {
                self.index.insert(hash, block);
            }
            Some(&first) => {
                let mut last = first;
                while self.blocks[last as usize].twin != NIL {
                    last = self.blocks[last as usize].twin;
                }
                self.blocks[last as usize].twin = block;
            }
        }
    }

    /// The block's content, if it was visible, is no longer found.
    pub fn hide(&mut self, block: u32) {
        if let Some(hash) = self.blocks[block as usize].hash.take() {
            self.forget(block, hash);
        }
    }

    /// Drops one reference; the last one sends the block to the tail of the free queue.
    pub fn release(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        assert!(b.refs > 0, "KV block {block} released more often than held");
        b.refs -= 1;
        if b.refs == 0 {
            self.push_tail(block);
        }
    }

    /// Checks the promises at the top of this file, for tests: `held` counts the references that exist outside.
    ///
    /// # Panics
    /// When one of them is broken.
    pub fn check(&self, held: &[u32]) {
        let mut in_queue = vec![false; self.blocks.len()];
        let (mut at, mut count) = (self.head, 0);
        while at != NIL {
            assert!(!in_queue[at as usize], "free queue is not a list");
            in_queue[at as usize] = true;
            count += 1;
            at = self.blocks[at as usize].next;
        }
        assert_eq!(count, self.free);
        for (i, b) in self.blocks.iter().enumerate() {
            assert_eq!(b.refs, held[i], "references of block {i}");
            assert_eq!(in_queue[i], b.refs == 0, "block {i} is free or held");
            if let Some(h) = b.hash {
                let mut at = self.find(h).expect("a visible block is in the index");
                while at != i as u32 {
                    at = self.blocks[at as usize].twin;
                }
            }
        }
    }

    fn forget(&mut self, block: u32, hash: u64) {
        let twin = std::mem::replace(&mut self.blocks[block as usize].twin, NIL);
        let first = self.index[&hash];
        if first == block {
            if twin == NIL {
                self.index.remove(&hash);
            } else {
                self.index.insert(hash, twin);
            }
            return;
        }
        let mut at = first;
        while self.blocks[at as usize].twin != block {
            at = self.blocks[at as usize].twin;
        }
        self.blocks[at as usize].twin = twin;
    }

    fn push_tail(&mut self, block: u32) {
        self.blocks[block as usize].prev = self.tail;
        self.blocks[block as usize].next = NIL;
        if self.tail == NIL {
            self.head = block;
        } else {
            self.blocks[self.tail as usize].next = block;
        }
        self.tail = block;
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        if prev == NIL {
            self.head = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            self.blocks[next as usize].prev = prev;
        }
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_from_the_head_and_given_back_at_the_tail() {
        let mut p = BlockPool::new(3);
        assert_eq!((p.take(), p.take()), (Some(0), Some(1)));
        p.release(1);
        p.release(0);
        assert_eq!(
            (p.take(), p.take(), p.take(), p.take()),
            (Some(2), Some(1), Some(0), None)
        );
    }

    #[test]
    fn a_freed_block_can_be_hit_until_it_is_taken_for_reuse() {
        let mut p = BlockPool::new(2);
        let a = p.take().unwrap();
        p.publish(a, 7);
        p.release(a);
        assert_eq!(p.find(7), Some(a));
        p.take();
        assert_eq!(p.find(7), Some(a), "the other block was older in the queue");
        p.take();
        assert_eq!(p.find(7), None);
    }

    #[test]
    fn twins_are_found_in_the_order_they_were_filled() {
        let mut p = BlockPool::new(3);
        let (a, b) = (p.take().unwrap(), p.take().unwrap());
        p.publish(a, 7);
        p.publish(b, 7);
        assert_eq!(p.find(7), Some(a));
        p.release(a);
        p.touch(b);
        p.take();
        assert_eq!(p.take(), Some(a));
        assert_eq!(p.find(7), Some(b));
        p.check(&[1, 2, 1]);
    }

    #[test]
    fn a_touched_block_leaves_the_free_queue() {
        let mut p = BlockPool::new(2);
        let a = p.take().unwrap();
        p.publish(a, 9);
        p.release(a);
        assert_eq!(p.free(), 2);
        p.touch(a);
        assert_eq!(p.free(), 1);
        p.touch(a);
        p.release(a);
        assert!(!p.is_free(a));
        p.check(&[1, 0]);
    }
}
