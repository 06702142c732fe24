//! The earliest of many clocks: a tournament tree over one instant per replica.

use crate::kernel::time::SimTime;

/// Keeps the minimum of `n` instants under change of single ones: O(log n) per change, O(1) to read.
/// Among equal instants the lowest index wins.
#[derive(Clone, Debug)]
pub struct Tournament {
    leaves: usize,
    /// Winner of each inner node and, from `leaves` on, the contestants themselves.
    nodes: Vec<(SimTime, u32)>,
}

impl Tournament {
    /// `n` clocks that never ring.
    pub fn new(n: usize) -> Tournament {
        let leaves = n.next_power_of_two().max(1);
        let mut nodes = vec![(SimTime::NEVER, 0); 2 * leaves];
        for i in 0..leaves {
            nodes[leaves + i].1 = i as u32;
        }
        for i in (1..leaves).rev() {
            nodes[i] = nodes[2 * i];
        }
        Tournament { leaves, nodes }
    }

    /// Clocks that there is room for.
    pub fn capacity(&self) -> usize {
        self.leaves
    }

    /// Sets clock `i`.
    #[inline]
    pub fn set(&mut self, i: u32, at: SimTime) {
        let mut node = self.leaves + i as usize;
        if self.nodes[node].0 == at {
            return;
        }
        self.nodes[node].0 = at;
        while node > 1 {
            node /= 2;
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            let winner = if right.0 < left.0 { right } else { left };
            self.nodes[node] = winner;
        }
    }

    /// The earliest instant and whose it is.
    #[inline]
    pub fn first(&self) -> (SimTime, u32) {
        self.nodes[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng;
    use rand::RngExt;

    #[test]
    fn the_earliest_clock_wins_and_the_lowest_index_among_equals() {
        let mut draws = rng::stream(1, "tournament");
        for n in [1usize, 2, 3, 7, 16, 33] {
            let mut clocks = vec![SimTime::NEVER; n];
            let mut t = Tournament::new(n);
            for _ in 0..200 {
                let i = draws.random_range(0..n);
                clocks[i] = SimTime(draws.random_range(0..20));
                t.set(i as u32, clocks[i]);
                let first = (0..n).min_by_key(|&i| clocks[i]).unwrap();
                assert_eq!(t.first(), (clocks[first], first as u32));
            }
        }
    }
}
