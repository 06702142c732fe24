//! KV-cache memory of a replica, in blocks: what each sequence holds, what is free, what the prefix cache can find.
//!
//! [`KvManager`] is what policies use. It keeps the blocks of serving-policies 1.6 by name when sequences of the run can
//! share content ([`block_pool`]), and only counts them when they cannot ([`counting`]); the decisions are the same.

pub mod block_pool;
pub mod content;
pub mod counting;

use crate::request::ReqId;
use block_pool::BlockPool;
use counting::{CountingPool, Left};

/// What a KV manager is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Blocks there are, reserved ones included.
    pub blocks: u64,
    /// Blocks set aside that no sequence gets (1 for vLLM's null block, 1 for TGI's block 0).
    pub reserved: u64,
    /// Tokens per block [tokens], at least 1.
    pub block_size: u32,
    /// Blocks that a sequence holds beside those of its tokens, from its admission on; above 0 without prefix caching alone.
    pub fixed_blocks: u32,
    /// Whether finished and preempted sequences leave content that can be hit.
    pub prefix_caching: bool,
    /// Whether sequences come with block hashes, i.e. can share content with each other. False: blocks are only counted.
    pub shared_content: bool,
}

/// What one sequence holds.
#[derive(Clone, Debug, Default)]
struct Seq {
    /// Blocks held.
    blocks: u32,
    /// Leading blocks that are full and visible to the prefix cache.
    visible: u32,
    /// Names of the blocks held (named mode).
    table: Vec<u32>,
    /// Content of its blocks (named mode).
    hashes: Vec<u64>,
    /// What it left in the free queue when it last gave its blocks back, and how many of those were visible
    /// (counting mode).
    left: Left,
    left_visible: u32,
}

#[derive(Debug)]
enum Pool {
    Counting(CountingPool),
    Named(BlockPool),
}

/// Block accounting of one replica. Sequences are named by small dense ids, as in [`crate::policy::Scheduler`].
#[derive(Debug)]
pub struct KvManager {
    config: KvConfig,
    pool: Pool,
    usable: u64,
    seqs: Vec<Seq>,
}

impl KvManager {
    /// A manager with all blocks free.
    pub fn new(config: KvConfig) -> KvManager {
        debug_assert!(config.fixed_blocks == 0 || !config.prefix_caching);
        let usable = config.blocks.saturating_sub(config.reserved);
        let pool = if config.shared_content && config.prefix_caching {
            Pool::Named(BlockPool::new(
                u32::try_from(usable).unwrap_or(u32::MAX - 1),
            ))
        } else {
            Pool::Counting(CountingPool::new(usable))
        };
        KvManager {
            config,
            pool,
            usable,
            seqs: Vec::new(),
        }
    }

    /// From now on blocks have names, so that [`KvManager::table`] can tell them, also where the run shares no content: for
    /// an engine that stores KV in them. The decisions are the same. Call it before the first sequence.
    ///
    /// # Panics
    /// When a sequence is known already.
    pub fn name_blocks(&mut self) {
        assert!(
            self.seqs.is_empty(),
            "blocks get their names before the first sequence"
        );
        if matches!(self.pool, Pool::Counting(_)) {
            self.pool = Pool::Named(BlockPool::new(
                u32::try_from(self.usable).unwrap_or(u32::MAX - 1),
            ));
        }
    }

    /// Names of the blocks of `id` in the order of its tokens, below [`KvManager::usable`]. Empty where blocks are only
    /// counted ([`KvManager::name_blocks`]).
    pub fn table(&self, id: ReqId) -> &[u32] {
        self.seqs.get(id as usize).map_or(&[], |s| &s.table)
    }

    /// Tells the content of the next full blocks of `id`, as its tokens become known. A run that knows them beforehand
    /// tells all of them to [`KvManager::register`].
    pub fn extend_content(&mut self, id: ReqId, hashes: &[u64]) {
        if self.config.prefix_caching
            && matches!(self.pool, Pool::Named(_))
            && let Some(seq) = self.seqs.get_mut(id as usize)
        {
            seq.hashes.extend_from_slice(hashes);
        }
    }

    /// Nothing that lies in the blocks of `id` can be hit from now on: what was to be computed into them never was.
    pub fn forget_content(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        seq.hashes.clear();
        if let Pool::Named(p) = &mut self.pool {
            for &b in &seq.table {
                p.hide(b);
            }
        }
    }

    /// Tokens per block [tokens].
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Blocks that sequences can hold.
    pub fn usable(&self) -> u64 {
        self.usable
    }

    /// Blocks that nobody holds, cached content included.
    #[inline]
    pub fn free(&self) -> u64 {
        match &self.pool {
            Pool::Counting(p) => p.free(),
            Pool::Named(p) => u64::from(p.free()),
        }
    }

    /// Blocks held by sequences; a shared block counts once.
    #[inline]
    pub fn used(&self) -> u64 {
        self.usable - self.free()
    }

    /// Blocks of a sequence of `tokens` tokens.
    #[inline]
    pub fn blocks_for(&self, tokens: u32) -> u64 {
        u64::from(tokens.div_ceil(self.config.block_size)) + u64::from(self.config.fixed_blocks)
    }

    /// Blocks that `id` holds.
    pub fn held(&self, id: ReqId) -> u64 {
        self.seqs
            .get(id as usize)
            .map_or(0, |s| u64::from(s.blocks))
    }

    /// Makes `id` known, with the content of its blocks (empty: unique). It holds nothing yet.
    pub fn register(&mut self, id: ReqId, hashes: Vec<u64>) {
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize_with(i + 1, Seq::default);
        }
        let seq = &mut self.seqs[i];
        debug_assert_eq!(seq.blocks, 0, "sequence {id} registered while it holds KV");
        seq.visible = 0;
        seq.left = Left::default();
        seq.left_visible = 0;
        if matches!(self.pool, Pool::Named(_)) {
            seq.hashes = hashes;
        }
    }

    /// Leading blocks of `id` that the prefix cache holds, when it has `num_tokens` tokens to compute. At most
    /// floor((num_tokens - 1) / block): the last token is always computed (1.6). Changes nothing.
    pub fn hits(&self, id: ReqId, num_tokens: u32) -> u32 {
        if !self.config.prefix_caching {
            return 0;
        }
        let most = num_tokens.saturating_sub(1) / self.config.block_size;
        let seq = &self.seqs[id as usize];
        debug_assert_eq!(seq.blocks, 0);
        match &self.pool {
            Pool::Counting(p) => {
                if seq.left_visible == 0 {
                    return 0;
                }
                most.min(seq.left_visible).min(p.survivors(seq.left))
            }
            Pool::Named(p) => seq
                .hashes
                .iter()
                .take(most as usize)
                .take_while(|&&h| p.find(h).is_some())
                .count() as u32,
        }
    }

    /// Blocks that would be free, were the first `hits` blocks of `id` taken out of the cache.
    fn free_beside_hits(&self, id: ReqId, hits: u32) -> u64 {
        let queued = match &self.pool {
            // Nobody else can hold them, so they all lie in the queue.
            Pool::Counting(_) => hits,
            Pool::Named(p) => self.seqs[id as usize].hashes[..hits as usize]
                .iter()
                .filter(|&&h| p.find(h).is_some_and(|b| p.is_free(b)))
                .count() as u32,
        };
        self.free() - u64::from(queued)
    }

    /// Whether `id`, which holds nothing, could get blocks for `tokens` tokens, `hits` of them from the cache, such that
    /// at least `keep` blocks stay free.
    pub fn can_admit(&self, id: ReqId, tokens: u32, hits: u32, keep: u64) -> bool {
        let need = self.blocks_for(tokens).saturating_sub(u64::from(hits));
        if hits == 0 {
            return need.saturating_add(keep) <= self.free();
        }
        need.saturating_add(keep) <= self.free_beside_hits(id, hits)
    }

    /// Gives `id`, which holds nothing, blocks for `tokens` tokens, the first `hits` ([`KvManager::hits`]) from the cache.
    /// False, and nothing changes, if there are too few.
    pub fn admit(&mut self, id: ReqId, tokens: u32, hits: u32) -> bool {
        if !self.can_admit(id, tokens, hits, 0) {
            return false;
        }
        let need = self.blocks_for(tokens) as u32;
        let seq = &mut self.seqs[id as usize];
        match &mut self.pool {
            Pool::Counting(p) => {
                if hits > 0 {
                    p.retake(seq.left, hits);
                }
                seq.left_visible = 0;
                p.take(u64::from(need.saturating_sub(hits)));
            }
            Pool::Named(p) => {
                debug_assert!(seq.table.is_empty());
                for &h in &seq.hashes[..hits as usize] {
                    if let Some(b) = p.find(h) {
                        p.touch(b);
                        seq.table.push(b);
                    }
                }
                for _ in hits..need {
                    if let Some(b) = p.take() {
                        seq.table.push(b);
                    }
                }
                debug_assert_eq!(seq.table.len(), need.max(hits) as usize);
            }
        }
        seq.blocks = need.max(hits);
        seq.visible = hits;
        true
    }

    /// Gives `id` what it lacks to hold `tokens` tokens. False, and nothing changes, if there are too few blocks.
    #[inline]
    pub fn grow(&mut self, id: ReqId, tokens: u32) -> bool {
        let need = tokens.div_ceil(self.config.block_size) + self.config.fixed_blocks;
        let seq = &mut self.seqs[id as usize];
        if need <= seq.blocks {
            return true;
        }
        let more = need - seq.blocks;
        match &mut self.pool {
            Pool::Counting(p) => {
                if u64::from(more) > p.free() {
                    return false;
                }
                p.take(u64::from(more));
            }
            Pool::Named(p) => {
                if more > p.free() {
                    return false;
                }
                for _ in 0..more {
                    if let Some(b) = p.take() {
                        seq.table.push(b);
                    }
                }
            }
        }
        seq.blocks = need;
        true
    }

    /// The first `tokens` tokens of `id` are, or are about to be, in its blocks: full blocks become visible (1.6: at
    /// scheduling time of the step that fills them).
    #[inline]
    pub fn publish(&mut self, id: ReqId, tokens: u32) {
        let seq = &mut self.seqs[id as usize];
        let full = (tokens / self.config.block_size).min(seq.blocks);
        if full <= seq.visible {
            return;
        }
        if let Pool::Named(p) = &mut self.pool
            && self.config.prefix_caching
        {
            for i in seq.visible..full {
                if let Some(&h) = seq.hashes.get(i as usize) {
                    p.publish(seq.table[i as usize], h);
                }
            }
        }
        seq.visible = full;
    }

    /// Takes everything back from `id`, its last block first. What is visible can be hit until it is reused.
    pub fn release(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        match &mut self.pool {
            Pool::Counting(p) => {
                if seq.blocks > 0 {
                    seq.left = p.give(seq.blocks);
                    seq.left_visible = seq.visible;
                }
            }
            Pool::Named(p) => {
                while let Some(b) = seq.table.pop() {
                    p.release(b);
                }
            }
        }
        seq.blocks = 0;
        seq.visible = 0;
    }

    /// Checks that blocks are conserved, for tests: free and held blocks add up to the usable ones, and nobody's
    /// references are lost.
    ///
    /// # Panics
    /// When they do not.
    pub fn check(&self) {
        match &self.pool {
            Pool::Counting(p) => {
                let held: u64 = self.seqs.iter().map(|s| u64::from(s.blocks)).sum();
                assert_eq!(held + p.free(), self.usable, "KV blocks are conserved");
            }
            Pool::Named(p) => {
                let mut held = vec![0u32; self.usable as usize];
                for s in &self.seqs {
                    assert_eq!(s.table.len(), s.blocks as usize);
                    for &b in &s.table {
                        held[b as usize] += 1;
                    }
                }
                p.check(&held);
            }
        }
    }
}

/// Mixes one value into a chained hash (SplitMix64's finaliser over the sum of both).
#[inline]
pub fn chain(hash: u64, value: u64) -> u64 {
    let mut z = hash
        .rotate_left(23)
        .wrapping_add(value)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(blocks: u64, shared: bool) -> KvManager {
        KvManager::new(KvConfig {
            blocks: blocks + 1,
            reserved: 1,
            block_size: 16,
            fixed_blocks: 0,
            prefix_caching: true,
            shared_content: shared,
        })
    }

    #[test]
    fn a_sequence_holds_its_fixed_blocks_from_admission_on() {
        let mut kv = KvManager::new(KvConfig {
            blocks: 11,
            reserved: 1,
            block_size: 16,
            fixed_blocks: 3,
            prefix_caching: false,
            shared_content: false,
        });
        kv.register(0, vec![]);
        kv.register(1, vec![]);
        assert!(kv.admit(0, 16, 0));
        assert_eq!((kv.held(0), kv.free()), (4, 6));
        // Four blocks of tokens and three beside them are one too many.
        assert!(!kv.can_admit(1, 64, 0, 0));
        assert!(kv.admit(1, 48, 0));
        assert!(kv.grow(0, 16) && !kv.grow(0, 17), "nothing is left");
        kv.release(1);
        assert!(kv.grow(0, 17));
        assert_eq!((kv.held(0), kv.free()), (5, 5));
    }

    #[test]
    fn the_null_block_is_never_given_out() {
        let mut kv = manager(4, false);
        kv.register(0, vec![]);
        assert!(!kv.admit(0, 65, 0));
        assert!(kv.admit(0, 64, 0));
        assert_eq!((kv.free(), kv.used(), kv.usable()), (0, 4, 4));
    }

    #[test]
    fn a_fully_cached_prompt_still_computes_its_last_block() {
        let mut kv = manager(8, true);
        kv.register(0, vec![1, 2]);
        assert!(kv.admit(0, 32, 0));
        kv.publish(0, 32);
        kv.register(1, vec![1, 2]);
        assert_eq!(kv.hits(1, 32), 1, "floor((32 - 1) / 16)");
        assert_eq!(kv.hits(1, 33), 2);
        assert!(kv.admit(1, 33, 2));
        assert_eq!(kv.used(), 3, "two blocks are shared");
        kv.check();
    }

    #[test]
    fn a_lookup_stops_at_the_first_miss() {
        let mut kv = manager(8, true);
        kv.register(0, vec![1, 2, 3]);
        assert!(kv.admit(0, 48, 0));
        kv.publish(0, 48);
        kv.register(1, vec![1, 9, 3]);
        assert_eq!(kv.hits(1, 100), 1);
    }

    #[test]
    fn named_tables_tell_who_holds_which_block_without_a_prefix_cache() {
        let mut kv = KvManager::new(KvConfig {
            blocks: 5,
            reserved: 1,
            block_size: 16,
            fixed_blocks: 0,
            prefix_caching: false,
            shared_content: false,
        });
        kv.name_blocks();
        kv.register(0, vec![1, 2]);
        kv.register(1, vec![1, 2]);
        assert!(kv.admit(0, 32, 0) && kv.admit(1, 16, 0));
        assert_eq!((kv.table(0), kv.table(1)), (&[0, 1][..], &[2][..]));
        kv.publish(0, 32);
        assert!(kv.grow(1, 17) && !kv.grow(1, 33));
        assert_eq!(kv.table(1), [2, 3]);
        kv.release(0);
        kv.register(0, vec![1, 2]);
        assert_eq!(kv.hits(0, 33), 0, "nothing is found without the cache");
        kv.check();
    }

    #[test]
    fn content_told_late_is_found_like_content_told_beforehand() {
        let mut kv = manager(8, true);
        kv.register(0, vec![1]);
        assert!(kv.admit(0, 33, 0));
        kv.publish(0, 31);
        kv.extend_content(0, &[2]);
        kv.publish(0, 32);
        kv.register(1, vec![1, 2, 3]);
        assert_eq!(kv.hits(1, 48), 2);
    }

    #[test]
    fn forgotten_content_is_not_found_and_its_twin_is() {
        let mut kv = manager(8, true);
        for id in 0..2 {
            kv.register(id, vec![1, 2]);
            assert!(kv.admit(id, 33, 0));
            kv.publish(id, 32);
        }
        kv.forget_content(0);
        kv.release(0);
        kv.register(2, vec![1, 2]);
        assert_eq!(kv.hits(2, 33), 2, "sequence 1 filled them too");
        kv.check();
        kv.forget_content(1);
        kv.release(1);
        assert_eq!(kv.hits(2, 33), 0);
        kv.check();
    }

    #[test]
    fn counting_and_naming_agree_on_what_a_preempted_sequence_finds_again() {
        for taken in 0..=6u32 {
            let mut found = Vec::new();
            for shared in [false, true] {
                let mut kv = manager(6, shared);
                kv.register(0, (100..110).collect());
                kv.register(1, (200..210).collect());
                assert!(kv.admit(0, 70, 0), "5 blocks, 4 of them full");
                kv.publish(0, 70);
                kv.release(0);
                if taken > 0 {
                    assert!(kv.admit(1, taken * 16, 0));
                }
                found.push(kv.hits(0, 71));
                let hits = kv.hits(0, 71);
                if kv.admit(0, 71, hits) {
                    kv.publish(0, 71);
                }
                kv.check();
                found.push(kv.free() as u32);
            }
            assert_eq!(found[..2], found[2..], "{taken} blocks taken");
        }
    }
}
