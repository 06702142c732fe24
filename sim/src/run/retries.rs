//! Requests that the gateway may send again, and those that wait to be.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;

use crate::cluster::gateway::RetrySpec;
use crate::kernel::rng::{self, Stream};
use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{ReqId, RequestSpec};

/// A request under way that may be sent again.
struct Try {
    spec: RequestSpec,
    patience: Option<SimDuration>,
    /// Times that it has been sent again.
    retries: u32,
}

/// The tries of all requests under way.
pub struct Retries {
    spec: RetrySpec,
    by_id: BTreeMap<ReqId, Try>,
    /// Those that are sent again at an instant to come, or whose client gives up then.
    later: BTreeSet<(SimTime, ReqId)>,
    /// Retries under way: sent, or to be.
    active: u64,
    draws: Stream,
}

/// What becomes of a request whose try has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent again at this instant.
    Again(SimTime),
    /// It ends as its try did.
    Ends,
}

impl Retries {
    /// No request yet, in the run with `seed`.
    pub fn new(spec: RetrySpec, seed: u64) -> Retries {
        Retries {
            spec,
            by_id: BTreeMap::new(),
            later: BTreeSet::new(),
            active: 0,
            draws: rng::stream(seed, "gateway.retry"),
        }
    }

    /// A request is sent for the first time, or again.
    pub fn sent(&mut self, id: ReqId, spec: &RequestSpec, patience: Option<SimDuration>) {
        self.by_id.entry(id).or_insert_with(|| Try {
            spec: spec.clone(),
            patience,
            retries: 0,
        });
    }

    /// Requests that wait to be sent again.
    pub fn waiting(&self) -> usize {
        self.later.len()
    }

    /// What waits to be sent again.
    pub fn waiting_specs(&self) -> impl Iterator<Item = &RequestSpec> {
        (self.later.iter()).filter_map(|(_, id)| Some(&self.by_id.get(id)?.spec))
    }

    /// A try of `id` has failed at `now`.
    pub fn failed(&mut self, id: ReqId, now: SimTime) -> Verdict {
        let under_way = self.by_id.len() as f64;
        let Some(t) = self.by_id.get_mut(&id) else {
            return Verdict::Ends;
        };
        let is_first = t.retries == 0;
        // Envoy: retries under way, this one included, are at most a share of the requests under way, or a fixed number.
        let most = (self.spec.budget_percent / 100.0 * under_way)
            .max(f64::from(self.spec.min_retry_concurrency));
        let others = self.active - u64::from(!is_first);
        if t.retries >= self.spec.max || others as f64 + 1.0 > most {
            return Verdict::Ends;
        }
        self.active += u64::from(is_first);
        t.retries += 1;
        let pause = backoff(&self.spec, t.retries, &mut self.draws);
        // A client that gives up meanwhile is told then.
        let deadline = t.patience.map_or(SimTime::NEVER, |p| t.spec.arrival + p);
        let at = (now + pause).min(deadline.max(now));
        self.later.insert((at, id));
        Verdict::Again(at)
    }

    /// When the next one is sent again.
    pub fn next(&self) -> SimTime {
        self.later.first().map_or(SimTime::NEVER, |l| l.0)
    }

    /// Takes out the next one that is due at `now`.
    pub fn due(&mut self, now: SimTime) -> Option<(ReqId, RequestSpec, Option<SimDuration>)> {
        let &(at, id) = self.later.first()?;
        if at > now {
            return None;
        }
        self.later.pop_first();
        let t = self.by_id.get(&id)?;
        Some((id, t.spec.clone(), t.patience))
    }

    /// Request `id` has ended.
    pub fn ended(&mut self, id: ReqId) {
        if let Some(t) = self.by_id.remove(&id)
            && t.retries > 0
        {
            self.active -= 1;
        }
    }

    /// Takes out all that wait, when the run ends.
    pub fn drain(&mut self) -> Vec<(ReqId, RequestSpec)> {
        let waiting = std::mem::take(&mut self.later);
        (waiting.into_iter())
            .filter_map(|(_, id)| self.by_id.remove(&id).map(|t| (id, t.spec)))
            .collect()
    }
}

/// Envoy's pause before retry `n`: drawn evenly below base x (2^n - 1), at most ten times the base.
fn backoff(spec: &RetrySpec, n: u32, draws: &mut Stream) -> SimDuration {
    let base = spec.backoff.0;
    if base == 0 {
        return SimDuration::ZERO;
    }
    let factor = 2u64.saturating_pow(n.min(32)) - 1;
    let most = base.saturating_mul(factor).min(base.saturating_mul(10));
    SimDuration(draws.random_range(0..most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RetrySpec {
        RetrySpec {
            max: 2,
            ..RetrySpec::default()
        }
    }

    fn retries(spec: RetrySpec, n: ReqId) -> Retries {
        let mut r = Retries::new(spec, 1);
        for id in 0..n {
            r.sent(id, &RequestSpec::default(), None);
        }
        r
    }

    #[test]
    fn a_request_is_sent_again_so_many_times_and_no_more() {
        let mut r = retries(spec(), 1);
        assert_eq!(r.failed(0, SimTime(5)), Verdict::Again(SimTime(5)));
        assert_eq!(r.due(SimTime(5)).unwrap().0, 0);
        assert_eq!(r.failed(0, SimTime(6)), Verdict::Again(SimTime(6)));
        assert_eq!(r.due(SimTime(6)).unwrap().0, 0);
        assert_eq!(r.failed(0, SimTime(7)), Verdict::Ends);
        r.ended(0);
        assert_eq!((r.active, r.by_id.len()), (0, 0));
    }

    #[test]
    fn retries_under_way_are_a_share_of_the_requests_or_a_fixed_number() {
        // A fifth of 10 is 2, but three are always allowed; a fifth of 50 is 10.
        for (requests, allowed) in [(10, 3), (50, 10)] {
            let mut r = retries(spec(), requests);
            let again = (0..requests)
                .filter(|&id| matches!(r.failed(id, SimTime(0)), Verdict::Again(_)))
                .count();
            assert_eq!(again, allowed);
        }
    }

    #[test]
    fn pauses_grow_and_are_drawn() {
        let s = RetrySpec {
            max: 9,
            backoff: SimDuration(1_000),
            ..spec()
        };
        let mut draws = rng::stream(1, "test");
        for (n, most) in [(1, 1_000), (2, 3_000), (3, 7_000), (4, 10_000), (9, 10_000)] {
            let all: Vec<u64> = (0..200).map(|_| backoff(&s, n, &mut draws).0).collect();
            assert!(all.iter().all(|p| *p < most));
            assert!(all.iter().any(|p| *p > most * 9 / 10));
        }
    }
}
