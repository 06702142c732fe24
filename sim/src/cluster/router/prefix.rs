//! Prefix-aware routing with an approximate index (sources 6.3: Gateway API Inference Extension, llm-d).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rand::RngExt;

use crate::kernel::rng::Stream;
use crate::kv::block_pool::PassThrough;
use crate::kv::content::block_hashes;
use crate::policy::Load;
use crate::request::RequestSpec;

/// Parameters under the meaning of 6.3; the scores are added with these weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixAwareParams {
    /// Tokens per block of the index [tokens].
    pub block_size: u32,
    /// Longest prefix looked at [blocks].
    pub max_blocks: u32,
    /// Blocks remembered per replica.
    pub lru_blocks: u32,
    /// Weight of matched blocks / blocks of the request.
    pub prefix_weight: f64,
    /// Weight of (max - q) / (max - min) over the replicas' waiting requests.
    pub queue_weight: f64,
    /// Weight of 1 - KV use.
    pub kv_weight: f64,
}

impl Default for PrefixAwareParams {
    /// 6.3 for the index; equal weights.
    fn default() -> Self {
        PrefixAwareParams {
            block_size: 16,
            max_blocks: 256,
            lru_blocks: 31_250,
            prefix_weight: 1.0,
            queue_weight: 1.0,
            kv_weight: 1.0,
        }
    }
}

/// No entry.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    newer: u32,
    older: u32,
}

/// What one replica is believed to hold: a set of blocks, the least recently routed of which goes first.
#[derive(Debug)]
struct Lru {
    limit: usize,
    entries: Vec<Entry>,
    newest: u32,
    oldest: u32,
    index: HashMap<u64, u32, BuildHasherDefault<PassThrough>>,
}

impl Lru {
    fn new(limit: u32) -> Lru {
        Lru {
            limit: limit.max(1) as usize,
            entries: Vec::new(),
            newest: NIL,
            oldest: NIL,
            index: HashMap::default(),
        }
    }

    fn holds(&self, hash: u64) -> bool {
        self.index.contains_key(&hash)
    }

    fn unlink(&mut self, e: u32) {
        let Entry { newer, older, .. } = self.entries[e as usize];
        if newer == NIL {
            self.newest = older;
        } else {
            self.entries[newer as usize].older = older;
        }
        if older == NIL {
            self.oldest = newer;
        } else {
            self.entries[older as usize].newer = newer;
        }
    }

    /// Adds `hash`, or makes it the newest; the hash that had to go for it.
    fn insert(&mut self, hash: u64) -> Option<u64> {
        let mut evicted = None;
        let e = if let Some(&e) = self.index.get(&hash) {
            self.unlink(e);
            e
        } else if self.entries.len() < self.limit {
            self.entries.push(Entry {
                hash,
                newer: NIL,
                older: NIL,
            });
            self.entries.len() as u32 - 1
        } else {
            let e = self.oldest;
            self.unlink(e);
            let gone = self.entries[e as usize].hash;
            self.index.remove(&gone);
            evicted = Some(gone);
            e
        };
        self.index.insert(hash, e);
        self.entries[e as usize] = Entry {
            hash,
            newer: NIL,
            older: self.newest,
        };
        if self.newest != NIL {
            self.entries[self.newest as usize].newer = e;
        }
        self.newest = e;
        if self.oldest == NIL {
            self.oldest = e;
        }
        evicted
    }
}

/// The scorer and its index.
///
/// A request looks at the replicas that are believed to hold its first block, and at the best of all others, which is settled once for
/// all requests between two changes of what the router sees.
#[derive(Debug)]
pub struct PrefixAware {
    params: PrefixAwareParams,
    /// What each replica is believed to hold.
    held: Vec<Lru>,
    /// Replicas that are believed to hold a block with which a request began, by its hash.
    homes: HashMap<u64, Vec<u32>, BuildHasherDefault<PassThrough>>,
    /// Loads as the router sees them; `None`: the replica may not be chosen.
    loads: Vec<Option<Load>>,
    /// Something has changed since `best` was settled.
    stale: bool,
    best: Best,
    draws: Stream,
    hashes: Vec<u64>,
    ties: Vec<u32>,
    routed: u32,
}

/// The replicas that would be chosen for a prompt that nobody holds.
#[derive(Debug, Default)]
struct Best {
    /// Most and fewest waiting requests of a replica.
    waiting: (u32, u32),
    score: f64,
    /// Those with that score, ascending.
    replicas: Vec<u32>,
}

impl PrefixAware {
    /// An empty index over no replica; `draws` breaks ties.
    pub fn new(params: PrefixAwareParams, draws: Stream) -> PrefixAware {
        PrefixAware {
            held: Vec::new(),
            homes: HashMap::default(),
            loads: Vec::new(),
            stale: true,
            best: Best::default(),
            params,
            draws,
            hashes: Vec::new(),
            ties: Vec::new(),
            routed: 0,
        }
    }

    /// Replica `i` is there, with `load` and an empty cache.
    pub fn join(&mut self, i: u32, load: Load) {
        while self.held.len() <= i as usize {
            self.held.push(Lru::new(self.params.lru_blocks));
            self.loads.push(None);
        }
        self.loads[i as usize] = Some(load);
        self.stale = true;
    }

    /// Replica `i` is gone, and its cache with it.
    pub fn leave(&mut self, i: u32) {
        let gone = std::mem::replace(&mut self.held[i as usize], Lru::new(self.params.lru_blocks));
        for e in &gone.entries {
            forget(&mut self.homes, e.hash, i);
        }
        self.loads[i as usize] = None;
        self.stale = true;
    }

    /// Replica `i` holds `load` now.
    #[inline]
    pub fn seen(&mut self, i: u32, load: Load) {
        if let Some(Some(old)) = self.loads.get_mut(i as usize)
            && *old != load
        {
            *old = load;
            self.stale = true;
        }
    }

    /// The score of a replica with `load` for a request of which it holds the share `prefix`.
    fn score(&self, prefix: f64, load: &Load) -> f64 {
        let p = &self.params;
        let (most, least) = self.best.waiting;
        let queue = if most == least {
            1.0
        } else {
            f64::from(most - load.waiting) / f64::from(most - least)
        };
        p.prefix_weight * prefix
            + p.queue_weight * queue
            + p.kv_weight * (1.0 - load.kv_use()).clamp(0.0, 1.0)
    }

    /// Looks at all replicas.
    fn settle(&mut self) {
        let waiting = || self.loads.iter().flatten().map(|l| l.waiting);
        self.best.waiting = (waiting().max().unwrap_or(0), waiting().min().unwrap_or(0));
        let mut replicas = std::mem::take(&mut self.best.replicas);
        replicas.clear();
        let mut top = f64::NEG_INFINITY;
        for (i, load) in (0..).zip(&self.loads) {
            let Some(load) = load else { continue };
            let score = self.score(0.0, load);
            if score > top {
                top = score;
                replicas.clear();
            }
            if score == top {
                replicas.push(i);
            }
        }
        self.best.score = top;
        self.best.replicas = replicas;
        self.stale = false;
    }

    /// The replica with the largest score, random among ties; the index then believes that it holds the prompt.
    pub fn choose(&mut self, request: &RequestSpec) -> u32 {
        let block = self.params.block_size.max(1);
        block_hashes(request, self.routed, block, &mut self.hashes);
        self.routed = self.routed.wrapping_add(1);
        let blocks = (request.prompt_tokens / block).min(self.params.max_blocks) as usize;
        self.hashes.truncate(blocks);
        if self.stale {
            self.settle();
        }
        let mut top = f64::NEG_INFINITY;
        self.ties.clear();
        let first = self.hashes.first().and_then(|h| self.homes.get(h));
        for &i in first.into_iter().flatten() {
            let Some(load) = &self.loads[i as usize] else {
                continue;
            };
            let held = &self.held[i as usize];
            let matched = self.hashes.iter().take_while(|&&h| held.holds(h)).count();
            let score = self.score(matched as f64 / blocks as f64, load);
            if score > top {
                top = score;
                self.ties.clear();
            }
            if score == top {
                self.ties.push(i);
            }
        }
        let ties = if self.best.score > top {
            &self.best.replicas
        } else {
            if self.best.score == top {
                self.ties.extend(&self.best.replicas);
            }
            self.ties.sort_unstable();
            self.ties.dedup();
            &self.ties
        };
        let chosen = match ties.as_slice() {
            [] => 0,
            [only] => *only,
            many => many[self.draws.random_range(0..many.len())],
        };
        self.remember(chosen);
        chosen
    }

    /// Believes that `replica` holds the prompt.
    fn remember(&mut self, replica: u32) {
        let held = &mut self.held[replica as usize];
        for &hash in &self.hashes {
            if let Some(evicted) = held.insert(hash) {
                forget(&mut self.homes, evicted, replica);
            }
        }
        if let Some(&first) = self.hashes.first()
            && held.holds(first)
        {
            let homes = self.homes.entry(first).or_default();
            if !homes.contains(&replica) {
                homes.push(replica);
            }
        }
    }
}

/// Replica `i` does not hold `hash` any more.
fn forget(homes: &mut HashMap<u64, Vec<u32>, BuildHasherDefault<PassThrough>>, hash: u64, i: u32) {
    if let Some(of) = homes.get_mut(&hash) {
        of.retain(|&r| r != i);
        if of.is_empty() {
            homes.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng;
    use crate::request::Segment;

    fn index(replicas: u32, params: PrefixAwareParams) -> PrefixAware {
        let mut p = PrefixAware::new(params, rng::stream(1, "r"));
        (0..replicas).for_each(|i| p.join(i, Load::default()));
        p
    }

    fn request(content: u64) -> RequestSpec {
        RequestSpec {
            prompt_tokens: 320,
            segments: vec![Segment {
                content,
                tokens: 300,
            }],
            ..RequestSpec::default()
        }
    }

    #[test]
    fn a_prefix_goes_back_to_where_it_was_routed() {
        let mut p = index(4, PrefixAwareParams::default());
        let homes: Vec<u32> = (0..20).map(|c| p.choose(&request(c))).collect();
        for (c, &home) in homes.iter().enumerate() {
            assert_eq!(p.choose(&request(c as u64)), home);
        }
    }

    #[test]
    fn a_long_queue_outweighs_a_short_match() {
        let mut p = index(2, PrefixAwareParams::default());
        let home = p.choose(&request(1));
        let mut other = request(1);
        other.prompt_tokens = 3200;
        p.seen(
            home,
            Load {
                waiting: 50,
                ..Load::default()
            },
        );
        assert_ne!(p.choose(&other), home);
    }

    #[test]
    fn the_index_forgets_the_least_recently_routed_block() {
        let mut l = Lru::new(2);
        let evicted: Vec<_> = [1, 2, 1, 3].map(|h| l.insert(h)).into();
        assert_eq!(evicted, [None, None, None, Some(2)]);
        assert!(l.holds(1) && l.holds(3) && !l.holds(2));
    }

    /// Looks at all replicas for each request.
    fn by_scan(p: &PrefixAware, hashes: &[u64], blocks: usize) -> Vec<u32> {
        let mut top = f64::NEG_INFINITY;
        let mut best = Vec::new();
        for (i, load) in p.loads.iter().enumerate() {
            let Some(load) = load else { continue };
            let matched = hashes.iter().take_while(|&&h| p.held[i].holds(h)).count();
            let score = p.score(matched as f64 / blocks.max(1) as f64, load);
            if score > top {
                top = score;
                best.clear();
            }
            if score == top {
                best.push(i as u32);
            }
        }
        best
    }

    #[test]
    fn the_choice_is_one_of_those_of_a_scan() {
        let mut draws = rng::stream(3, "test");
        for prefix_weight in [1.0, 0.0, 0.2] {
            // A short memory, so that blocks are forgotten.
            let mut p = index(
                12,
                PrefixAwareParams {
                    lru_blocks: 60,
                    prefix_weight,
                    ..PrefixAwareParams::default()
                },
            );
            for _ in 0..3000 {
                let i = draws.random_range(0..12);
                let load = Load {
                    waiting: draws.random_range(0..3),
                    kv_used_blocks: draws.random_range(0..3),
                    kv_total_blocks: 4,
                    ..Load::default()
                };
                match draws.random_range(0..20) {
                    0 if p.loads.iter().flatten().count() > 2 && p.loads[i as usize].is_some() => {
                        p.leave(i)
                    }
                    1 if p.loads[i as usize].is_none() => p.join(i, load),
                    2..8 => p.seen(i, load),
                    _ => {}
                }
                let mut r = request(draws.random_range(0..9));
                r.prompt_tokens = draws.random_range(10..500);
                let mut hashes = Vec::new();
                block_hashes(&r, p.routed, p.params.block_size, &mut hashes);
                let blocks = (r.prompt_tokens / p.params.block_size) as usize;
                hashes.truncate(blocks);
                if p.stale {
                    p.settle();
                }
                let wanted = by_scan(&p, &hashes, blocks);
                let chosen = p.choose(&r);
                assert!(wanted.contains(&chosen), "{chosen} is none of {wanted:?}");
            }
        }
    }
}
