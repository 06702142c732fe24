//! Bandwidth shared by those who transfer at once: a fluid model with max-min fair shares.
//!
//! A *link* has a capacity: a file system, a node's network card, a volume. A *flow* has bytes to move, crosses some links and may have a
//! ceiling of its own. At every instant the rates are max-min fair: all flows get the same until a link or a ceiling stops some of them; the
//! others share what is left. Rates change only when a flow joins or leaves, so a simulator steps from one such instant to the next.
//!
//! ```
//! use hwmodels::startup::share::FairShare;
//! let mut disk = FairShare::new([100.0]); // bytes/s
//! let a = disk.join(0.0, 1000.0, f64::INFINITY, [0]);
//! assert_eq!(disk.next_end(), Some((10.0, a)));
//! let b = disk.join(5.0, 250.0, f64::INFINITY, [0]); // half each from now on
//! assert_eq!(disk.next_end(), Some((10.0, b)));
//! assert!(disk.leave(10.0, b) < 1e-9);
//! assert_eq!(disk.next_end(), Some((12.5, a)));
//! ```

/// Names a flow of one [`FairShare`]; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(u64);

#[derive(Clone, Debug)]
struct Flow {
    id: FlowId,
    /// Bytes to move at `FairShare::now`.
    left: f64,
    /// Most that it takes [bytes/s].
    ceiling: f64,
    links: Vec<usize>,
    /// Its share now [bytes/s].
    rate: f64,
}

/// Links and the flows on them. Times are seconds and never go back.
#[derive(Clone, Debug, Default)]
pub struct FairShare {
    capacities: Vec<f64>,
    flows: Vec<Flow>,
    now: f64,
    next: u64,
}

impl FairShare {
    /// Links of these capacities [bytes/s]; they are named by their order.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> FairShare {
        FairShare {
            capacities: capacities.into_iter().collect(),
            ..FairShare::default()
        }
    }

    /// Adds a link [bytes/s] and returns its number.
    pub fn add_link(&mut self, capacity: f64) -> usize {
        self.capacities.push(capacity);
        self.capacities.len() - 1
    }

    /// A flow of `bytes` begins at `now` [s], takes at most `ceiling` [bytes/s] and crosses `links`. A link that is not there stops nobody.
    pub fn join(
        &mut self,
        now: f64,
        bytes: f64,
        ceiling: f64,
        links: impl IntoIterator<Item = usize>,
    ) -> FlowId {
        self.advance(now);
        let id = FlowId(self.next);
        self.next += 1;
        self.flows.push(Flow {
            id,
            left: bytes.max(0.0),
            ceiling: ceiling.max(0.0),
            links: links
                .into_iter()
                .filter(|l| *l < self.capacities.len())
                .collect(),
            rate: 0.0,
        });
        self.share();
        id
    }

    /// A flow ends or is given up at `now` [s]; returns the bytes that it has not moved (0 for one that is not there).
    pub fn leave(&mut self, now: f64, id: FlowId) -> f64 {
        self.advance(now);
        let Some(i) = self.flows.iter().position(|f| f.id == id) else {
            return 0.0;
        };
        let left = self.flows.remove(i).left;
        self.share();
        left
    }

    /// A link's capacity [bytes/s] changes at `now` [s]: slow storage, a degraded network card.
    pub fn set_capacity(&mut self, now: f64, link: usize, capacity: f64) {
        self.advance(now);
        if let Some(c) = self.capacities.get_mut(link) {
            *c = capacity;
        }
        self.share();
    }

    /// The most that a flow takes [bytes/s] changes at `now` [s]: the storage has become slow for it.
    pub fn set_ceiling(&mut self, now: f64, id: FlowId, ceiling: f64) {
        self.advance(now);
        if let Some(flow) = self.flows.iter_mut().find(|f| f.id == id) {
            flow.ceiling = ceiling.max(0.0);
        }
        self.share();
    }

    /// When the first flow will have moved all its bytes if nobody joins or leaves before [s], and which; of several the one that joined first.
    pub fn next_end(&self) -> Option<(f64, FlowId)> {
        let end = |f: &Flow| match f.left > 0.0 {
            true => self.now + f.left / f.rate,
            false => self.now,
        };
        self.flows
            .iter()
            .map(|f| (end(f), f.id))
            .filter(|(t, _)| t.is_finite())
            .min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The share of a flow now [bytes/s].
    pub fn rate(&self, id: FlowId) -> Option<f64> {
        self.flows.iter().find(|f| f.id == id).map(|f| f.rate)
    }

    /// Flows that are under way.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether nobody transfers.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Runs until nobody transfers; the flows with their ends [s], in the order of their ends. Flows without any bandwidth are left out.
    pub fn drain(mut self) -> Vec<(FlowId, f64)> {
        let mut ends = Vec::with_capacity(self.flows.len());
        while let Some((at, id)) = self.next_end() {
            self.leave(at, id);
            ends.push((id, at));
        }
        ends
    }

    fn advance(&mut self, now: f64) {
        let dt = now - self.now;
        if dt.is_nan() || dt <= 0.0 {
            return;
        }
        for f in &mut self.flows {
            // What rounding leaves of a flow at its end is no byte.
            let left = f.left - f.rate * dt;
            f.left = if left < 1e-6 { 0.0 } else { left };
        }
        self.now = now;
    }

    /// Progressive filling: in each round the tightest link, or the lowest ceilings below its share, fix the rates of their flows.
    fn share(&mut self) {
        let mut free = self.capacities.clone();
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        while !open.is_empty() {
            let mut users = vec![0usize; free.len()];
            for &i in &open {
                for &l in &self.flows[i].links {
                    users[l] += 1;
                }
            }
            let share = |l: usize| free[l].max(0.0) / users[l] as f64;
            let tightest = (0..free.len())
                .filter(|l| users[*l] > 0)
                .min_by(|a, b| share(*a).total_cmp(&share(*b)));
            let level = tightest.map_or(f64::INFINITY, share);
            let ceiling = open
                .iter()
                .map(|i| self.flows[*i].ceiling)
                .fold(f64::INFINITY, f64::min);
            let fixed: Vec<usize> = if ceiling <= level {
                let low = |i: &usize| self.flows[*i].ceiling <= ceiling;
                open.iter().copied().filter(low).collect()
            } else {
                let on = |i: &usize| tightest.is_some_and(|l| self.flows[*i].links.contains(&l));
                open.iter().copied().filter(on).collect()
            };
            let rate = level.min(ceiling);
            for &i in &fixed {
                self.flows[i].rate = rate;
                for &l in &self.flows[i].links {
                    free[l] -= rate;
                }
            }
            open.retain(|i| !fixed.contains(i));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NO: f64 = f64::INFINITY;

    #[test]
    fn those_who_load_at_once_share_and_the_last_gets_all() {
        let mut fs = FairShare::new([100.0]);
        let ids: Vec<FlowId> = (0..4).map(|_| fs.join(0.0, 100.0, NO, [0])).collect();
        let late = fs.join(0.0, 300.0, NO, [0]);
        let ends = fs.drain();
        assert_eq!(ends[..4], [0, 1, 2, 3].map(|i| (ids[i], 5.0)));
        assert_eq!(
            ends[4],
            (late, 7.0),
            "200 bytes are left after 5 s, and it has the link alone"
        );
    }

    #[test]
    fn a_ceiling_leaves_its_rest_to_the_others() {
        let mut fs = FairShare::new([100.0]);
        let slow = fs.join(0.0, 100.0, 10.0, [0]);
        let fast = fs.join(0.0, 900.0, NO, [0]);
        assert_eq!((fs.rate(slow), fs.rate(fast)), (Some(10.0), Some(90.0)));
    }

    #[test]
    fn a_flow_over_two_links_is_held_by_the_tighter_one() {
        // A file system of 100 and nodes of 30: three nodes are not held back by it, five are.
        let mut fs = FairShare::new([100.0, 30.0, 30.0, 30.0, 30.0, 30.0]);
        let a: Vec<FlowId> = (1..=3).map(|n| fs.join(0.0, 300.0, NO, [0, n])).collect();
        assert_eq!(fs.rate(a[0]), Some(30.0));
        let b: Vec<FlowId> = (4..=5).map(|n| fs.join(0.0, 300.0, NO, [0, n])).collect();
        assert_eq!((fs.rate(a[0]), fs.rate(b[1])), (Some(20.0), Some(20.0)));
        // Two loads on one node share its card.
        let mut node = FairShare::new([100.0, 30.0]);
        let one = node.join(0.0, 30.0, NO, [0, 1]);
        let two = node.join(0.0, 60.0, NO, [0, 1]);
        assert_eq!(node.drain(), [(one, 2.0), (two, 3.0)]);
    }

    #[test]
    fn who_leaves_early_has_bytes_left_and_a_dead_link_ends_nothing() {
        let mut fs = FairShare::new([10.0]);
        let a = fs.join(0.0, 100.0, NO, [0]);
        assert_eq!(fs.leave(4.0, a), 60.0);
        assert_eq!(fs.leave(5.0, a), 0.0, "it is gone");
        let b = fs.join(6.0, 10.0, NO, [0]);
        fs.set_capacity(6.5, 0, 0.0);
        assert_eq!(fs.next_end(), None);
        fs.set_capacity(9.0, 0, 10.0);
        assert_eq!(fs.next_end(), Some((9.5, b)));
    }

    proptest! {
        /// No link carries more than it can; all bytes arrive; whoever could be faster is stopped by a full link or its ceiling.
        #[test]
        fn shares_are_feasible_and_fair(
            capacities in proptest::collection::vec(1.0f64..100.0, 1..4),
            flows in proptest::collection::vec((1.0f64..1000.0, 1.0f64..200.0, 0usize..8), 1..12),
        ) {
            let mut fs = FairShare::new(capacities.clone());
            for (i, (bytes, ceiling, links)) in flows.iter().enumerate() {
                let on = (0..capacities.len()).filter(|l| links & (1 << l) != 0);
                fs.join(i as f64 * 0.1, *bytes, *ceiling, on);
            }
            let load = |l: usize| -> f64 {
                fs.flows.iter().filter(|f| f.links.contains(&l)).map(|f| f.rate).sum()
            };
            for (l, c) in capacities.iter().enumerate() {
                prop_assert!(load(l) <= c * (1.0 + 1e-9));
            }
            for f in &fs.flows {
                let full = |l: &usize| load(*l) >= capacities[*l] * (1.0 - 1e-9)
                    && fs.flows.iter().filter(|g| g.links.contains(l)).all(|g| g.rate <= f.rate * (1.0 + 1e-9));
                prop_assert!(f.rate >= f.ceiling * (1.0 - 1e-9) || f.links.iter().any(full));
            }
            let running = fs.len();
            prop_assert_eq!(fs.drain().len(), running);
        }
    }
}
