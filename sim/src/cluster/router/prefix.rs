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

    fn insert(&mut self, hash: u64) {
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
            self.index.remove(&self.entries[e as usize].hash);
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
    }
}

/// The scorer and its index.
#[derive(Debug)]
pub struct PrefixAware {
    params: PrefixAwareParams,
    /// What each replica is believed to hold.
    held: Vec<Lru>,
    draws: Stream,
    hashes: Vec<u64>,
    loads: Vec<Load>,
    best: Vec<u32>,
    routed: u32,
}

impl PrefixAware {
    /// An empty index over no replica; `draws` breaks ties.
    pub fn new(params: PrefixAwareParams, draws: Stream) -> PrefixAware {
        PrefixAware {
            held: Vec::new(),
            params,
            draws,
            hashes: Vec::new(),
            loads: Vec::new(),
            best: Vec::new(),
            routed: 0,
        }
    }

    /// Replica `i` is there, with an empty cache.
    pub fn join(&mut self, i: u32) {
        while self.held.len() <= i as usize {
            self.held.push(Lru::new(self.params.lru_blocks));
        }
    }

    /// Replica `i` is gone, and its cache with it.
    pub fn leave(&mut self, i: u32) {
        self.held[i as usize] = Lru::new(self.params.lru_blocks);
    }

    /// The one of the `live` replicas with the largest score, random among ties; the index then believes that it holds the prompt.
    pub fn choose(
        &mut self,
        request: &RequestSpec,
        live: &[u32],
        load: impl Fn(u32) -> Load,
    ) -> u32 {
        let p = self.params;
        let block = p.block_size.max(1);
        block_hashes(request, self.routed, block, &mut self.hashes);
        self.routed = self.routed.wrapping_add(1);
        let blocks = (request.prompt_tokens / block).min(p.max_blocks) as usize;
        self.hashes.truncate(blocks);
        self.loads.clear();
        self.loads.extend(live.iter().map(|&i| load(i)));
        let most = self.loads.iter().map(|l| l.waiting).max().unwrap_or(0);
        let least = self.loads.iter().map(|l| l.waiting).min().unwrap_or(0);
        let mut top = f64::NEG_INFINITY;
        self.best.clear();
        for (&i, l) in live.iter().zip(&self.loads) {
            let held = &self.held[i as usize];
            let matched = self.hashes.iter().take_while(|&&h| held.holds(h)).count();
            let prefix = matched as f64 / blocks.max(1) as f64;
            let queue = if most == least {
                1.0
            } else {
                f64::from(most - l.waiting) / f64::from(most - least)
            };
            let score = p.prefix_weight * prefix
                + p.queue_weight * queue
                + p.kv_weight * (1.0 - l.kv_use()).clamp(0.0, 1.0);
            if score > top {
                top = score;
                self.best.clear();
            }
            if score == top {
                self.best.push(i);
            }
        }
        let chosen = match self.best.as_slice() {
            [] => 0,
            [only] => *only,
            many => many[self.draws.random_range(0..many.len())],
        };
        for &h in &self.hashes {
            self.held[chosen as usize].insert(h);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng;
    use crate::request::Segment;

    fn index(replicas: u32) -> (PrefixAware, Vec<u32>) {
        let mut p = PrefixAware::new(PrefixAwareParams::default(), rng::stream(1, "r"));
        (0..replicas).for_each(|i| p.join(i));
        (p, (0..replicas).collect())
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
        let (mut p, live) = index(4);
        let homes: Vec<u32> = (0..20)
            .map(|c| p.choose(&request(c), &live, |_| Load::default()))
            .collect();
        for (c, &home) in homes.iter().enumerate() {
            let again = p.choose(&request(c as u64), &live, |_| Load::default());
            assert_eq!(again, home);
        }
    }

    #[test]
    fn a_long_queue_outweighs_a_short_match() {
        let (mut p, live) = index(2);
        let home = p.choose(&request(1), &live, |_| Load::default());
        let mut other = request(1);
        other.prompt_tokens = 3200;
        let chosen = p.choose(&other, &live, |i| Load {
            waiting: if i == home { 50 } else { 0 },
            ..Load::default()
        });
        assert_ne!(chosen, home);
    }

    #[test]
    fn the_index_forgets_the_least_recently_routed_block() {
        let mut l = Lru::new(2);
        l.insert(1);
        l.insert(2);
        l.insert(1);
        l.insert(3);
        assert!(l.holds(1) && l.holds(3) && !l.holds(2));
    }
}
