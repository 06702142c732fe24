//! Rolling updates: replicas of an older generation are replaced a few at a time.
//!
//! As a Deployment's controller does it (`pkg/controller/deployment/rolling.go`): up to `maxSurge` more than are wanted are created; of the old ones as many go
//! as leave all but `maxUnavailable` ready, those that are not ready first. A LeaderWorkerSet replaces the highest index first.
//!
//! A Deployment that is given another size meanwhile keeps the proportions of its ReplicaSets (`pkg/controller/deployment/sync.go`, `scale`): all of them
//! together become as many as are wanted and may be surged, and each its share of that.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use crate::kernel::time::SimTime;

const WHY: &str = "replaced by the rolling update";

impl Cluster {
    /// Replaces what of deployment `d` is of an older generation, as far as it may now; false: nothing is.
    pub(super) fn roll(&mut self, now: SimTime, d: usize) -> bool {
        let generation = self.deployments[d].generation;
        let wanted = self.deployments[d].wanted();
        let before = std::mem::replace(&mut self.deployments[d].annotated, wanted);
        if generation == 0 {
            return false;
        }
        if before != wanted && !self.is_set_of_groups(d) {
            self.scale_in_proportion(now, d, before);
        }
        let spec = &self.spec.deployments[d].pod;
        let surge = spec.max_surge.of(wanted, true);
        let mut unavailable = spec.max_unavailable.of(wanted, false);
        if surge == 0 && unavailable == 0 {
            // Both may round to nothing; then one goes at a time.
            unavailable = 1;
        }
        let mut is_rolling = false;
        loop {
            let counted = self.counted(d);
            let old: Vec<usize> = (counted.iter().copied())
                .filter(|u| self.generation_of(*u) < generation)
                .collect();
            if old.is_empty() {
                return is_rolling;
            }
            is_rolling = true;
            let new = counted.len() - old.len();
            if new < wanted && counted.len() < wanted + surge {
                self.create(now, d);
                continue;
            }
            let ready = |units: &[usize]| units.iter().filter(|u| self.is_ready(**u)).count();
            let least = wanted.saturating_sub(unavailable);
            let coming = new - (ready(&counted) - ready(&old));
            let may_go = counted.len().saturating_sub(least + coming);
            let not_ready = old.iter().copied().filter(|u| !self.is_ready(*u)).max();
            let victim = match not_ready {
                Some(u) => Some(u).filter(|_| may_go > 0),
                None => self
                    .last_of(&old)
                    .filter(|_| may_go > 0 && ready(&counted) > least),
            };
            let Some(victim) = victim else {
                return is_rolling;
            };
            self.remove(now, victim, WHY);
        }
    }

    /// Deployment `d`, of which `before` replicas were wanted until now, is given another size in the midst of a rolling update.
    fn scale_in_proportion(&mut self, now: SimTime, d: usize, before: usize) {
        let mut sets: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for u in self.counted(d) {
            sets.entry(self.generation_of(u)).or_default().push(u);
        }
        if sets.len() < 2 {
            return;
        }
        let surge = self.spec.deployments[d].pod.max_surge;
        let with_surge = |n: usize| match n {
            0 => 0,
            n => n + surge.of(n, true),
        };
        let wanted = self.deployments[d].wanted();
        let sizes: Vec<(u32, usize)> = sets.iter().map(|(g, of)| (*g, of.len())).collect();
        for (generation, more) in shares(&sizes, with_surge(before), with_surge(wanted)) {
            for _ in 0..more {
                self.create_of(now, d, generation);
            }
            let mut own = sets.remove(&generation).unwrap_or_default();
            for _ in more..0 {
                // As a ReplicaSet that is made smaller: those first that are not ready.
                let not_ready = own.iter().copied().filter(|u| !self.is_ready(*u)).max();
                let Some(victim) = not_ready.or_else(|| self.last_of(&own)) else {
                    break;
                };
                own.retain(|u| *u != victim);
                self.remove(now, victim, "not wanted any more");
            }
        }
    }
}

/// By how much each of several ReplicaSets grows, with their generations and sizes, where all together may be `allowed` and might be `before`.
///
/// The largest is first, and takes what rounding leaves; of equals the newer one where they grow, the older one where they shrink.
fn shares(sizes: &[(u32, usize)], before: usize, allowed: usize) -> Vec<(u32, i64)> {
    let all: usize = sizes.iter().map(|s| s.1).sum();
    let more = allowed as i64 - all as i64;
    let mut order = sizes.to_vec();
    match more > 0 {
        true => order.sort_by_key(|(g, n)| std::cmp::Reverse((*n, *g))),
        false => order.sort_by_key(|(g, n)| (std::cmp::Reverse(*n), *g)),
    }
    let mut left = more;
    let mut out: Vec<(u32, i64)> = Vec::new();
    for (generation, size) in order {
        let share = match allowed {
            0 => 0.0,
            _ => (size * allowed) as f64 / before.max(1) as f64,
        };
        let own = share.round() as i64 - size as i64;
        let own = if more > 0 {
            own.min(left).max(0)
        } else {
            own.max(left).min(0)
        };
        left -= own;
        out.push((generation, own));
    }
    if let Some(first) = out.first_mut() {
        first.1 += left;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn replica_sets_share_what_a_deployment_gains_or_loses() {
        // 16 replicas and 4 more; 12 old ones and 8 new: 8 are wanted, which makes 10.
        assert_eq!(shares(&[(0, 12), (1, 8)], 20, 10), [(0, -6), (1, -4)]);
        // The example of the documentation: 10 replicas, maxSurge 3, 8 old and 5 new; 15 are wanted.
        assert_eq!(shares(&[(0, 8), (1, 5)], 13, 18), [(0, 3), (1, 2)]);
        assert_eq!(shares(&[(0, 12), (1, 8)], 20, 0), [(0, -12), (1, -8)]);
        // Halves are rounded up, and the largest takes the rest.
        assert_eq!(shares(&[(0, 3), (1, 3)], 6, 5), [(0, -1), (1, 0)]);
        assert_eq!(shares(&[(0, 5), (1, 5)], 10, 10), [(0, 0), (1, 0)]);
    }
}
