//! Routers: which replica a request goes to (sources 6).

pub mod least_outstanding;
pub mod prefix;

use rand::RngExt;

use crate::kernel::rng::{self, Stream};
use crate::policy::Load;
use crate::request::RequestSpec;
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
}

#[derive(Debug)]
enum Rule {
    RoundRobin { next: u32 },
    Random(Stream),
    LeastOutstanding,
    PowerOfTwo(Stream),
    LeastKv,
    Session,
    PrefixAware(PrefixAware),
}

/// A router at work: the rule, and how many requests each replica has been sent and not answered.
#[derive(Debug)]
pub struct Router {
    rule: Rule,
    replicas: u32,
    outstanding: LeastOutstanding,
}

impl Router {
    /// A router in front of `replicas` (at least one) replicas, in the run with `seed`.
    pub fn new(config: RouterConfig, replicas: u32, seed: u64) -> Router {
        let stream = || rng::stream(seed, "router");
        Router {
            rule: match config {
                RouterConfig::RoundRobin => Rule::RoundRobin { next: 0 },
                RouterConfig::Random => Rule::Random(stream()),
                RouterConfig::LeastOutstanding => Rule::LeastOutstanding,
                RouterConfig::PowerOfTwo => Rule::PowerOfTwo(stream()),
                RouterConfig::LeastKv => Rule::LeastKv,
                RouterConfig::Session => Rule::Session,
                RouterConfig::PrefixAware(p) => {
                    Rule::PrefixAware(PrefixAware::new(p, replicas, stream()))
                }
            },
            replicas,
            outstanding: LeastOutstanding::new(replicas),
        }
    }

    /// Chooses a replica for `request` and counts it there. `load` tells the state of a replica as the router sees it.
    pub fn route(&mut self, request: &RequestSpec, load: impl Fn(u32) -> Load) -> u32 {
        let n = self.replicas;
        let chosen = match &mut self.rule {
            _ if n == 1 => 0,
            Rule::RoundRobin { next } => {
                let chosen = *next;
                *next = (chosen + 1) % n;
                chosen
            }
            Rule::Random(draws) => draws.random_range(0..n),
            Rule::LeastOutstanding => self.outstanding.choose(),
            Rule::PowerOfTwo(draws) => {
                let a = draws.random_range(0..n);
                let b = (a + draws.random_range(1..n)) % n;
                if self.outstanding.count(b) < self.outstanding.count(a) {
                    b
                } else {
                    a
                }
            }
            Rule::LeastKv => (0..n)
                .min_by(|&a, &b| {
                    let (x, y) = (load(a), load(b));
                    kv_use(&x)
                        .total_cmp(&kv_use(&y))
                        .then(x.waiting.cmp(&y.waiting))
                })
                .unwrap_or(0),
            Rule::Session => match request.session {
                Some(session) => jump_hash(session, n),
                None => self.outstanding.choose(),
            },
            Rule::PrefixAware(p) => p.choose(request, load),
        };
        self.outstanding.add(chosen);
        chosen
    }

    /// A request sent to `replica` has been answered, refused or given up.
    pub fn ended(&mut self, replica: u32) {
        self.outstanding.remove(replica);
    }

    /// Requests sent to `replica` and not yet answered.
    pub fn outstanding(&self, replica: u32) -> u32 {
        self.outstanding.count(replica)
    }
}

/// Share of KV blocks in use [ratio].
fn kv_use(load: &Load) -> f64 {
    load.kv_used_blocks as f64 / load.kv_total_blocks.max(1) as f64
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

    fn picks(config: RouterConfig, n: u32, requests: usize) -> Vec<u32> {
        let mut r = Router::new(config, n, 1);
        (0..requests)
            .map(|_| r.route(&RequestSpec::default(), |_| Load::default()))
            .collect()
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
        let mut r = Router::new(RouterConfig::PowerOfTwo, 2, 1);
        for _ in 0..100 {
            r.route(&RequestSpec::default(), |_| Load::default());
            assert!(r.outstanding(0).abs_diff(r.outstanding(1)) <= 1);
        }
    }

    #[test]
    fn a_session_stays_on_its_replica_and_sessions_spread() {
        let mut r = Router::new(RouterConfig::Session, 5, 1);
        let mut hits = [0; 5];
        for session in 0..1000 {
            let spec = RequestSpec {
                session: Some(session),
                ..RequestSpec::default()
            };
            let a = r.route(&spec, |_| Load::default());
            assert_eq!(a, r.route(&spec, |_| Load::default()));
            hits[a as usize] += 1;
        }
        assert!(hits.iter().all(|&h| h > 130), "{hits:?}");
    }

    #[test]
    fn least_kv_takes_the_emptiest_cache() {
        let mut r = Router::new(RouterConfig::LeastKv, 3, 1);
        let used = [5, 2, 7];
        let chosen = r.route(&RequestSpec::default(), |i| Load {
            kv_used_blocks: used[i as usize],
            kv_total_blocks: 10,
            ..Load::default()
        });
        assert_eq!(chosen, 1);
    }
}
