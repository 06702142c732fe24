//! Rolling updates: replicas of an older generation are replaced a few at a time.
//!
//! As a Deployment's controller does it (`pkg/controller/deployment/rolling.go`): up to `maxSurge` more than are wanted are created; of the old ones as many go
//! as leave all but `maxUnavailable` ready, those that are not ready first. A LeaderWorkerSet replaces the highest index first.

use super::cluster::Cluster;
use crate::kernel::time::SimTime;

const WHY: &str = "replaced by the rolling update";

impl Cluster {
    /// Replaces what of deployment `d` is of an older generation, as far as it may now; false: nothing is.
    pub(super) fn roll(&mut self, now: SimTime, d: usize) -> bool {
        let generation = self.deployments[d].generation;
        if generation == 0 {
            return false;
        }
        let wanted = self.deployments[d].wanted();
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
}
