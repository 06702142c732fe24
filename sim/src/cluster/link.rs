//! Transfers of KV between replicas: each has a port of some bandwidth, and a fabric may join them all.
//!
//! A transfer takes a latency, and then its bytes at its share of what its source, its destination and the fabric can carry. Shares are
//! max-min fair: every transfer gets the same until something it needs is used up, and what some cannot use goes to the others
//! (Bertsekas and Gallager, Data Networks, 6.5.2). So two transfers at once over one link take twice as long.

use crate::kernel::time::{SimDuration, SimTime};
use crate::request::ReqId;

/// A transfer under way.
#[derive(Clone, Debug)]
struct Flow {
    id: ReqId,
    from: u32,
    to: u32,
    /// Its bytes move from here on.
    starts: SimTime,
    /// Bytes to go, as of the last change.
    left: f64,
    /// Its share since then [bytes/s].
    rate: f64,
    /// When it ends, should nothing change.
    ends: SimTime,
}

/// All transfers under way.
#[derive(Clone, Debug)]
pub struct Transfers {
    latency: SimDuration,
    /// What all transfers together can have [bytes/s].
    fabric: f64,
    /// What a replica can send, and what it can receive, by its index [bytes/s].
    ports: Vec<f64>,
    flows: Vec<Flow>,
    /// When `left` was last brought up to date.
    since: SimTime,
}

impl Transfers {
    /// None yet, over a fabric that carries `fabric` bytes/s (infinite: any number).
    pub fn new(latency: SimDuration, fabric: f64) -> Transfers {
        Transfers {
            latency,
            fabric,
            ports: Vec::new(),
            flows: Vec::new(),
            since: SimTime::ZERO,
        }
    }

    /// Replica `i` can send, and can receive, `bandwidth` bytes/s.
    pub fn set_port(&mut self, i: u32, bandwidth: f64) {
        let i = i as usize;
        if self.ports.len() <= i {
            self.ports.resize(i + 1, 0.0);
        }
        self.ports[i] = bandwidth;
    }

    /// From `now` on all transfers together can have `fabric`, and each replica can send and receive what `ports` says [bytes/s].
    pub fn set_capacities(&mut self, now: SimTime, fabric: f64, ports: Vec<f64>) {
        self.progress(now);
        (self.fabric, self.ports) = (fabric, ports);
        self.share(now);
    }

    /// What one transfer alone gets from replica `from` to replica `to` [bytes/s].
    pub fn alone(&self, from: u32, to: u32) -> f64 {
        self.port(from).min(self.port(to)).min(self.fabric)
    }

    fn port(&self, i: u32) -> f64 {
        self.ports.get(i as usize).copied().unwrap_or(0.0)
    }

    /// The KV of request `id`, `bytes` of it, goes from replica `from` to replica `to` from `now` on.
    pub fn start(&mut self, now: SimTime, id: ReqId, from: u32, to: u32, bytes: f64) {
        self.progress(now);
        self.flows.push(Flow {
            id,
            from,
            to,
            starts: now + self.latency,
            left: bytes,
            rate: 0.0,
            ends: SimTime::NEVER,
        });
        self.share(now);
    }

    /// The transfer for request `id`, if there is one, is broken off.
    pub fn abort(&mut self, now: SimTime, id: ReqId) {
        if self.flows.iter().any(|f| f.id == id) {
            self.progress(now);
            self.flows.retain(|f| f.id != id);
            self.share(now);
        }
    }

    /// When a transfer ends next, or starts to move its bytes, which changes the shares of the others.
    pub fn next(&self) -> SimTime {
        let of = |f: &Flow| {
            if f.starts > self.since {
                f.starts
            } else {
                f.ends
            }
        };
        self.flows.iter().map(of).min().unwrap_or(SimTime::NEVER)
    }

    /// Brings all of them to `now`; the requests whose transfers have ended, in the order in which those were started.
    pub fn advance(&mut self, now: SimTime) -> Vec<ReqId> {
        if self.next() > now {
            return Vec::new();
        }
        self.progress(now);
        let is_done = |f: &Flow| f.starts <= now && f.ends <= now;
        let ended = (self.flows.iter().filter(|f| is_done(f)))
            .map(|f| f.id)
            .collect();
        self.flows.retain(|f| !is_done(f));
        self.share(now);
        // What started to move now may have had nothing to move.
        ended
    }

    fn progress(&mut self, now: SimTime) {
        for f in &mut self.flows {
            let from = self.since.max(f.starts);
            if now > from {
                f.left = (f.left - f.rate * now.since(from).as_secs()).max(0.0);
            }
        }
        self.since = self.since.max(now);
    }

    /// Shares out what there is among the transfers that move bytes at `now`.
    fn share(&mut self, now: SimTime) {
        let mut open: Vec<usize> = (0..self.flows.len())
            .filter(|&i| self.flows[i].starts <= now)
            .collect();
        let (mut out, mut into) = (self.ports.clone(), self.ports.clone());
        let mut fabric = self.fabric;
        while !open.is_empty() {
            // The resource that gives each of its transfers least decides for those.
            let users = |side: &dyn Fn(&Flow) -> u32, port: u32, flows: &[Flow]| {
                open.iter().filter(|&&i| side(&flows[i]) == port).count() as f64
            };
            let mut least = fabric / open.len() as f64;
            for &i in &open {
                let f = &self.flows[i];
                least = least
                    .min(out[f.from as usize] / users(&|f| f.from, f.from, &self.flows))
                    .min(into[f.to as usize] / users(&|f| f.to, f.to, &self.flows));
            }
            let tight = |used: f64, n: f64| used / n <= least * (1.0 + 1e-12);
            let fixed: Vec<usize> = (open.iter().copied())
                .filter(|&i| {
                    let f = &self.flows[i];
                    tight(fabric, open.len() as f64)
                        || tight(
                            out[f.from as usize],
                            users(&|f| f.from, f.from, &self.flows),
                        )
                        || tight(into[f.to as usize], users(&|f| f.to, f.to, &self.flows))
                })
                .collect();
            for &i in &fixed {
                let f = &mut self.flows[i];
                f.rate = least;
                fabric -= least;
                out[f.from as usize] -= least;
                into[f.to as usize] -= least;
            }
            open.retain(|i| !fixed.contains(i));
        }
        for f in self.flows.iter_mut().filter(|f| f.starts <= now) {
            f.ends = if f.left <= 0.0 {
                now
            } else if f.rate > 0.0 {
                // Up to the nanosecond in which the last byte is there.
                SimTime(
                    now.0
                        .saturating_add((f.left / f.rate * 1e9).ceil().max(1.0) as u64),
                )
            } else {
                SimTime::NEVER
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GB: f64 = 1e9;

    fn link(latency: u64, fabric: f64, ports: &[f64]) -> Transfers {
        let mut t = Transfers::new(SimDuration(latency), fabric);
        for (i, bandwidth) in ports.iter().enumerate() {
            t.set_port(i as u32, *bandwidth);
        }
        t
    }

    /// When each transfer ends, by request.
    fn ends(mut t: Transfers) -> Vec<(ReqId, u64)> {
        let mut all = Vec::new();
        while t.next() < SimTime::NEVER {
            let now = t.next();
            all.extend(t.advance(now).into_iter().map(|id| (id, now.0)));
        }
        all
    }

    #[test]
    fn one_transfer_takes_its_latency_and_its_bytes_over_the_slower_port() {
        let mut t = link(5_000, f64::INFINITY, &[4.0 * GB, 2.0 * GB]);
        t.start(SimTime(100), 7, 0, 1, 2.0 * GB);
        assert_eq!(ends(t), [(7, 100 + 5_000 + 1_000_000_000)]);
    }

    #[test]
    fn two_at_once_over_one_link_take_twice_as_long() {
        for (from, to) in [((0, 0), (1, 2)), ((0, 1), (2, 2))] {
            let mut t = link(0, f64::INFINITY, &[GB, GB, GB]);
            t.start(SimTime(0), 1, from.0, to.0, GB);
            t.start(SimTime(0), 2, from.1, to.1, GB);
            assert_eq!(ends(t), [(1, 2_000_000_000), (2, 2_000_000_000)]);
        }
        // Over links of their own they do not meet, but in the fabric.
        let mut t = link(0, f64::INFINITY, &[GB; 4]);
        t.start(SimTime(0), 1, 0, 2, GB);
        t.start(SimTime(0), 2, 1, 3, GB);
        assert_eq!(ends(t.clone()), [(1, 1_000_000_000), (2, 1_000_000_000)]);
        t.fabric = GB;
        t.share(SimTime(0));
        assert_eq!(ends(t), [(1, 2_000_000_000), (2, 2_000_000_000)]);
    }

    #[test]
    fn a_later_one_halves_the_rest_of_the_first_and_then_has_all() {
        let mut t = link(0, f64::INFINITY, &[GB, GB, GB]);
        t.start(SimTime(0), 1, 0, 1, GB);
        t.start(SimTime(500_000_000), 2, 0, 2, GB);
        // 0.5 GB alone, 0.5 GB at half the rate: 1.5 s; the other has 0.5 GB left then.
        assert_eq!(ends(t), [(1, 1_500_000_000), (2, 2_000_000_000)]);
    }

    #[test]
    fn what_a_slow_port_cannot_use_goes_to_the_others() {
        let mut t = link(0, f64::INFINITY, &[3.0 * GB, GB, 9.0 * GB]);
        t.start(SimTime(0), 1, 0, 1, GB);
        t.start(SimTime(0), 2, 0, 2, 2.0 * GB);
        assert_eq!(ends(t), [(1, 1_000_000_000), (2, 1_000_000_000)]);
    }

    #[test]
    fn a_transfer_under_way_slows_down_with_its_link_and_speeds_up_again() {
        let mut t = link(0, f64::INFINITY, &[GB, GB]);
        t.start(SimTime(0), 1, 0, 1, GB);
        // 0.5 GB at 1 GB/s, 0.25 GB at a quarter of it for a second, 0.25 GB at 1 GB/s.
        t.set_capacities(SimTime(500_000_000), f64::INFINITY, vec![GB, 0.25 * GB]);
        t.set_capacities(SimTime(1_500_000_000), f64::INFINITY, vec![GB, GB]);
        assert_eq!(ends(t), [(1, 1_750_000_000)]);
    }

    #[test]
    fn a_broken_off_transfer_leaves_its_share_to_the_others() {
        let mut t = link(0, f64::INFINITY, &[GB, GB, GB]);
        t.start(SimTime(0), 1, 0, 1, GB);
        t.start(SimTime(0), 2, 0, 2, GB);
        t.abort(SimTime(1_000_000_000), 1);
        assert_eq!(ends(t), [(2, 1_500_000_000)]);
    }

    proptest! {
        #[test]
        fn every_transfer_ends_and_none_beats_its_link(
            flows in prop::collection::vec((0u64..2_000, 0u32..3, 3u32..6, 1u64..100_000), 1..30),
            fabric in prop::option::of(1u32..20),
        ) {
            let mut t = link(50, fabric.map_or(f64::INFINITY, |f| f64::from(f) * GB), &[GB, 2.0 * GB, 5.0 * GB, GB, 3.0 * GB, 4.0 * GB]);
            let mut flows = flows;
            flows.sort();
            let mut ended = Vec::new();
            for (id, &(at, from, to, bytes)) in flows.iter().enumerate() {
                while t.next() <= SimTime(at) {
                    let now = t.next();
                    ended.extend(t.advance(now).into_iter().map(|id| (id, now)));
                }
                t.start(SimTime(at), id as ReqId, from, to, bytes as f64);
            }
            ended.extend(ends(t.clone()).into_iter().map(|(id, at)| (id, SimTime(at))));
            prop_assert_eq!(ended.len(), flows.len());
            let mut all = 0.0;
            for &(id, end) in &ended {
                let (at, from, to, bytes) = flows[id as usize];
                let least = bytes as f64 / t.alone(from, to) * 1e9;
                prop_assert!(end.0 as f64 + 1.0 >= (at + 50) as f64 + least, "{id}: {end:?}");
                all += bytes as f64;
            }
            // Work is conserved: together they take no longer than one after the other over the slowest port.
            let last = ended.iter().map(|e| e.1.0).max().unwrap() as f64;
            let first = flows[0].0 as f64;
            let slowest = fabric.map_or(GB, |f| GB.min(f64::from(f) * GB));
            prop_assert!(last - first <= 2_000.0 + 50.0 + all / slowest * 1e9 + flows.len() as f64 * 2.0);
        }
    }
}
