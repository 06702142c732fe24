//! Routers: which replica a request goes to (sources 6).

pub mod least_kv;
pub mod least_outstanding;
pub mod prefix;

use rand::RngExt;

use crate::kernel::rng::{self, Stream};
use crate::policy::Load;
use crate::request::RequestSpec;
use least_kv::LeastKv;
use least_outstanding::LeastOutstanding;
use prefix::{PrefixAware, PrefixAwareParams};

/// A routing rule and its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RouterConfig {
    /// Plain rotation (6.1: nginx with equal weights and a shared zone, ALB).
    #[default]
    RoundRobin,
    /// Uniformly random (6.1: SageMaker RANDOM).
    Random,
    /// Fewest requests sent and not yet answered (6.1: nginx least_conn, ALB and SageMaker least outstanding requests);
    /// ties rotate: the next one in index order after the last choice.
    LeastOutstanding,
    /// Two distinct replicas at random, the one with fewer outstanding requests; ties: the first drawn (6.1: nginx
    /// random two, Envoy least_request).
    PowerOfTwo,
    /// Smallest share of KV blocks in use; ties: fewer waiting, then the lowest index. Sees scraped state.
    LeastKv,
    /// A session always goes to the same replica (6.2: consistent hash); a request without one goes to the
    /// replica with the fewest outstanding requests.
    Session,
    /// Weighted scores with an approximate prefix index (6.3). Sees scraped state.
    PrefixAware(PrefixAwareParams),
}

impl RouterConfig {
    /// Whether it looks at the engines' own state, which a scrape may make old.
    pub fn sees_loads(&self) -> bool {
        matches!(self, RouterConfig::LeastKv | RouterConfig::PrefixAware(_))
    }

    /// Whether it looks at no state of the replicas, for most requests at least ([`Router::needs_state`] tells of which it does).
    pub fn is_blind(&self) -> bool {
        matches!(
            self,
            RouterConfig::RoundRobin | RouterConfig::Random | RouterConfig::Session
        )
    }
}

#[derive(Debug)]
enum Rule {
    RoundRobin { next: usize },
    Random(Stream),
    LeastOutstanding,
    PowerOfTwo(Stream),
    LeastKv(LeastKv),
    Session,
    PrefixAware(Box<PrefixAware>),
}

/// A router at work: the rule, the replicas that it may choose, and how many requests each has been sent and not answered.
#[derive(Debug)]
pub struct Router {
    rule: Rule,
    /// Replicas that are ready, ascending.
    live: Vec<u32>,
    outstanding: LeastOutstanding,
    /// Whether the rule looks at outstanding requests, so that they have to be counted.
    counts: bool,
}

impl Router {
    /// A router in front of no replica yet, in the run with `seed`.
    pub fn new(config: RouterConfig, seed: u64) -> Router {
        Router::named(config, seed, "router")
    }

    /// The same, which draws from the random stream called `name`.
    pub fn named(config: RouterConfig, seed: u64, name: &str) -> Router {
        let stream = || rng::stream(seed, name);
        let rule = match config {
            RouterConfig::RoundRobin => Rule::RoundRobin { next: 0 },
            RouterConfig::Random => Rule::Random(stream()),
            RouterConfig::LeastOutstanding => Rule::LeastOutstanding,
            RouterConfig::PowerOfTwo => Rule::PowerOfTwo(stream()),
            RouterConfig::LeastKv => Rule::LeastKv(LeastKv::default()),
            RouterConfig::Session => Rule::Session,
            RouterConfig::PrefixAware(p) => {
                Rule::PrefixAware(Box::new(PrefixAware::new(p, stream())))
            }
        };
        Router {
            live: Vec::new(),
            outstanding: LeastOutstanding::new(),
            counts: matches!(rule, Rule::LeastOutstanding | Rule::PowerOfTwo(_)),
            rule,
        }
    }

    /// Replica `i`, which holds `load`, may be chosen from now on.
    pub fn join(&mut self, i: u32, load: Load) {
        let Err(place) = self.live.binary_search(&i) else {
            return;
        };
        self.live.insert(place, i);
        self.outstanding.join(i);
        match &mut self.rule {
            // The next in turn stays the next.
            Rule::RoundRobin { next } if place < *next => *next += 1,
            Rule::LeastKv(l) => l.join(i, &load),
            Rule::PrefixAware(p) => p.join(i, load),
            _ => {}
        }
    }

    /// Replica `i` may not be chosen any more.
    pub fn leave(&mut self, i: u32) {
        let Ok(place) = self.live.binary_search(&i) else {
            return;
        };
        self.live.remove(place);
        self.outstanding.leave(i);
        match &mut self.rule {
            Rule::RoundRobin { next } => {
                if place < *next {
                    *next -= 1;
                }
                if *next >= self.live.len() {
                    *next = 0;
                }
            }
            Rule::LeastKv(l) => l.leave(i),
            Rule::PrefixAware(p) => p.leave(i),
            _ => {}
        }
    }

    /// Replicas that it may choose.
    pub fn ready(&self) -> usize {
        self.live.len()
    }

    /// Chooses a replica for `request` and counts it there; `None`: none is ready.
    pub fn route(&mut self, request: &RequestSpec) -> Option<u32> {
        let n = self.live.len();
        let chosen = match &mut self.rule {
            _ if n == 0 => return None,
            _ if n == 1 => self.live[0],
            Rule::RoundRobin { next } => {
                let chosen = self.live[*next];
                *next = (*next + 1) % n;
                chosen
            }
            Rule::Random(draws) => self.live[draws.random_range(0..n as u32) as usize],
            Rule::LeastOutstanding => self.outstanding.choose(),
            Rule::PowerOfTwo(draws) => {
                let a = draws.random_range(0..n as u32);
                let b = (a + draws.random_range(1..n as u32)) % n as u32;
                let (a, b) = (self.live[a as usize], self.live[b as usize]);
                if self.outstanding.count(b) < self.outstanding.count(a) {
                    b
                } else {
                    a
                }
            }
            Rule::LeastKv(l) => l.choose(),
            Rule::Session => match request.session {
                Some(session) => self.live[jump_hash(session, n as u32) as usize],
                None => self.outstanding.choose(),
            },
            Rule::PrefixAware(p) => p.choose(request),
        };
        if self.counts {
            self.outstanding.add(chosen);
        }
        Some(chosen)
    }

    /// Whether the choice for `request` depends on which requests have ended by now.
    #[inline]
    pub fn needs_state(&self, request: &RequestSpec) -> bool {
        match self.rule {
            _ if self.live.len() < 2 => false,
            Rule::RoundRobin { .. } | Rule::Random(_) => false,
            Rule::Session => request.session.is_none(),
            // What these see besides is what was last scraped.
            Rule::LeastKv(_) | Rule::PrefixAware(_) => false,
            Rule::LeastOutstanding | Rule::PowerOfTwo(_) => true,
        }
    }

    /// Whether it looks at the engines' own state.
    #[inline]
    pub fn sees_loads(&self) -> bool {
        matches!(self.rule, Rule::LeastKv(_) | Rule::PrefixAware(_))
    }

    /// The router now sees that replica `i` holds `load`.
    #[inline]
    pub fn seen(&mut self, i: u32, load: Load) {
        match &mut self.rule {
            Rule::LeastKv(l) => l.seen(i, &load),
            Rule::PrefixAware(p) => p.seen(i, load),
            _ => {}
        }
    }

    /// Counts outstanding requests from now on; there are `outstanding(i)` at replica `i`.
    pub fn recount(&mut self, replicas: u32, outstanding: impl Fn(u32) -> u32) {
        self.counts = true;
        for i in 0..replicas {
            for _ in self.outstanding.count(i)..outstanding(i) {
                self.outstanding.add(i);
            }
        }
    }

    /// A request sent to `replica` has been answered, refused or given up.
    #[inline]
    pub fn ended(&mut self, replica: u32) {
        if self.counts {
            self.outstanding.remove(replica);
        }
    }

    /// Requests sent to `replica` and not yet answered, as far as the rule counts them.
    pub fn outstanding(&self, replica: u32) -> u32 {
        self.outstanding.count(replica)
    }
}

/// Jump consistent hash (Lamping and Veach 2014, arXiv 1406.2294): spreads keys evenly, and moves 1/n of them when the
/// n-th bucket is added.
fn jump_hash(key: u64, buckets: u32) -> u32 {
    let mut key = crate::kv::chain(0, key);
    let (mut b, mut j) = (0u64, 0u64);
    while j < u64::from(buckets) {
        b = j;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        j = ((b + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    b as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(config: RouterConfig, n: u32) -> Router {
        let mut r = Router::new(config, 1);
        for i in 0..n {
            r.join(i, Load::default());
        }
        r
    }

    fn pick(r: &mut Router) -> u32 {
        r.route(&RequestSpec::default()).unwrap()
    }

    fn picks(config: RouterConfig, n: u32, requests: usize) -> Vec<u32> {
        let mut r = router(config, n);
        (0..requests).map(|_| pick(&mut r)).collect()
    }

    #[test]
    fn nobody_is_chosen_where_nobody_is_ready() {
        let mut r = router(RouterConfig::RoundRobin, 0);
        assert_eq!(r.route(&RequestSpec::default()), None);
        r.join(7, Load::default());
        assert_eq!(pick(&mut r), 7);
        r.leave(7);
        assert_eq!(r.route(&RequestSpec::default()), None);
    }

    #[test]
    fn every_rule_chooses_among_those_that_are_ready() {
        let rules = [
            RouterConfig::RoundRobin,
            RouterConfig::Random,
            RouterConfig::LeastOutstanding,
            RouterConfig::PowerOfTwo,
            RouterConfig::LeastKv,
            RouterConfig::Session,
            RouterConfig::PrefixAware(PrefixAwareParams::default()),
        ];
        for config in rules {
            let mut draws = rng::stream(5, "test");
            let mut r = router(config, 3);
            r.recount(3, |_| 0);
            let mut live = vec![0, 1, 2];
            let mut next = 3;
            for step in 0..3000u32 {
                if draws.random_bool(0.05) {
                    // 70 replicas at most: sets of more than one word.
                    if live.len() < 70 && (live.len() < 2 || draws.random_bool(0.6)) {
                        r.join(next, Load::default());
                        live.push(next);
                        next += 1;
                    } else {
                        let gone = live.remove(draws.random_range(0..live.len()));
                        r.leave(gone);
                    }
                }
                let spec = RequestSpec {
                    session: (step % 3 == 0).then_some(u64::from(step % 7)),
                    ..RequestSpec::default()
                };
                let chosen = r.route(&spec).unwrap();
                assert!(live.contains(&chosen), "{config:?}: {chosen} of {live:?}");
                if draws.random_bool(0.8) {
                    r.ended(chosen);
                }
            }
        }
    }

    #[test]
    fn a_rotation_goes_on_where_it_was_when_replicas_come_and_go() {
        let mut r = router(RouterConfig::RoundRobin, 4);
        assert_eq!([pick(&mut r), pick(&mut r)], [0, 1]);
        r.leave(0);
        assert_eq!(pick(&mut r), 2);
        r.join(0, Load::default());
        assert_eq!([pick(&mut r), pick(&mut r)], [3, 0]);
        r.leave(3);
        assert_eq!([pick(&mut r), pick(&mut r), pick(&mut r)], [1, 2, 0]);
    }

    #[test]
    fn round_robin_rotates() {
        assert_eq!(picks(RouterConfig::RoundRobin, 3, 5), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn random_reaches_every_replica_about_equally() {
        let p = picks(RouterConfig::Random, 4, 4000);
        for i in 0..4 {
            let n = p.iter().filter(|&&x| x == i).count();
            assert!((850..1150).contains(&n), "{n} of 4000 went to {i}");
        }
    }

    #[test]
    fn power_of_two_never_takes_the_fuller_of_its_two() {
        let mut r = router(RouterConfig::PowerOfTwo, 2);
        for _ in 0..100 {
            pick(&mut r);
            assert!(r.outstanding(0).abs_diff(r.outstanding(1)) <= 1);
        }
    }

    #[test]
    fn a_session_stays_on_its_replica_and_sessions_spread() {
        let mut r = router(RouterConfig::Session, 5);
        let mut hits = [0; 5];
        for session in 0..1000 {
            let spec = RequestSpec {
                session: Some(session),
                ..RequestSpec::default()
            };
            let a = r.route(&spec);
            assert_eq!(a, r.route(&spec));
            hits[a.unwrap() as usize] += 1;
        }
        assert!(hits.iter().all(|&h| h > 130), "{hits:?}");
    }
}
