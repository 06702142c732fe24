//! The replica with the smallest share of KV blocks in use, without looking at all of them.

use std::collections::BTreeSet;

use crate::policy::Load;

/// Replicas in the order of choice: KV use, then waiting requests, then index.
#[derive(Debug, Default)]
pub struct LeastKv {
    order: BTreeSet<(u64, u32, u32)>,
    /// Under which key each stands in `order`; `None`: it is not ready.
    keys: Vec<Option<(u64, u32)>>,
}

impl LeastKv {
    /// Replica `i`, which holds `load`, may be chosen from now on.
    pub fn join(&mut self, i: u32, load: &Load) {
        if self.keys.len() <= i as usize {
            self.keys.resize(i as usize + 1, None);
        }
        self.place(i, key(load));
    }

    /// Replica `i` may not be chosen any more.
    pub fn leave(&mut self, i: u32) {
        if let Some((kv, waiting)) = self.keys[i as usize].take() {
            self.order.remove(&(kv, waiting, i));
        }
    }

    /// Replica `i` holds `load` now.
    #[inline]
    pub fn seen(&mut self, i: u32, load: &Load) {
        let key = key(load);
        match self.keys.get(i as usize) {
            Some(Some(old)) if *old != key => {
                self.leave(i);
                self.place(i, key);
            }
            _ => {}
        }
    }

    fn place(&mut self, i: u32, key: (u64, u32)) {
        self.keys[i as usize] = Some(key);
        self.order.insert((key.0, key.1, i));
    }

    /// The first in order; there must be one.
    pub fn choose(&self) -> u32 {
        self.order.first().map_or(0, |k| k.2)
    }
}

/// Shares are not negative, so their bits are in their order.
fn key(load: &Load) -> (u64, u32) {
    (load.kv_use().to_bits(), load.waiting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng;
    use rand::RngExt;

    #[test]
    fn the_choice_is_that_of_a_scan() {
        let mut draws = rng::stream(3, "test");
        let mut l = LeastKv::default();
        let mut loads: Vec<Option<Load>> = vec![None; 40];
        for _ in 0..5000 {
            let i = draws.random_range(0..loads.len());
            let load = Load {
                kv_used_blocks: draws.random_range(0..5),
                kv_total_blocks: 10,
                waiting: draws.random_range(0..3),
                ..Load::default()
            };
            match (&loads[i], draws.random_bool(0.1)) {
                (None, _) => {
                    l.join(i as u32, &load);
                    loads[i] = Some(load);
                }
                (Some(_), true) => {
                    l.leave(i as u32);
                    loads[i] = None;
                }
                (Some(_), false) => {
                    l.seen(i as u32, &load);
                    loads[i] = Some(load);
                }
            }
            let scan = (0..loads.len())
                .filter_map(|i| loads[i].map(|l| (l.kv_use(), l.waiting, i)))
                .min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
            if let Some((_, _, i)) = scan {
                assert_eq!(l.choose(), i as u32);
            }
        }
    }
}
