//! Pools in the timeline: a heading above the replicas of each, with what the time of their steps went to.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use egui::{Mesh, Painter, Pos2, Rect, pos2};
use store::resample;

use crate::run_data::RunData;
use crate::theme;

/// Height of a heading with its picture [points].
pub const POOL_H: f32 = 20.0;

/// Width of a column of the picture [points].
const COLUMN: f32 = 4.0;

/// Replicas of a pool that the picture is of; of more every so-many-th.
const MOST_REPLICAS: usize = 64;

/// A pool and its replicas, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its replicas.
    pub replicas: Vec<usize>,
}

/// The pools of a run, in the order of their first replicas.
pub fn pools(run: &RunData) -> Vec<Pool> {
    let mut all: Vec<Pool> = Vec::new();
    for (i, info) in run.record.info.replicas.iter().enumerate() {
        let name = info.pool();
        match all.iter_mut().find(|p| p.name == name) {
            Some(pool) => pool.replicas.push(i),
            None => all.push(Pool {
                name: name.to_owned(),
                replicas: vec![i],
            }),
        }
    }
    all
}

/// Shares of the time by cause, a column each.
type Columns = Vec<[f32; 6]>;

/// What the timeline keeps of pools.
#[derive(Debug, Default)]
pub struct PoolLanes {
    /// The pools of the run that is shown.
    pub pools: Vec<Pool>,
    /// Those whose replicas are hidden, by index.
    pub closed: BTreeSet<usize>,
    key: Option<(*const RunData, Range<u64>, usize)>,
    columns: Vec<Columns>,
}

impl PoolLanes {
    /// Another run is shown.
    pub fn set(&mut self, run: &RunData) {
        self.pools = pools(run);
        self.closed.clear();
        self.key = None;
    }

    /// Shows the replicas of the pool that `replica` is in.
    pub fn open(&mut self, replica: usize) {
        let of = self
            .pools
            .iter()
            .position(|p| p.replicas.contains(&replica));
        if let Some(i) = of {
            self.closed.remove(&i);
        }
    }

    /// Makes the pictures of `window` [ns], `width` points wide.
    pub fn prepare(&mut self, run: &Arc<RunData>, window: Range<u64>, width: f32) {
        let n = (width / COLUMN).max(1.0) as usize;
        let key = (Arc::as_ptr(run), window.clone(), n);
        if self.key.as_ref() != Some(&key) {
            let of = |pool: &Pool| columns(run, pool, window.clone(), n);
            self.columns = self.pools.iter().map(of).collect();
            self.key = Some(key);
        }
    }

    /// Paints the picture of pool `i`, with its upper left corner at `at`.
    pub fn paint(&self, painter: &Painter, i: usize, at: Pos2) {
        let mut mesh = Mesh::default();
        for (c, shares) in self.columns.get(i).into_iter().flatten().enumerate() {
            let x = at.x + c as f32 * COLUMN;
            let mut y = at.y + POOL_H;
            for (share, color) in shares.iter().zip(theme::CAUSES) {
                let top = (y - share * POOL_H).max(at.y);
                if y - top > 0.05 {
                    let part = Rect::from_min_max(pos2(x, top), pos2(x + COLUMN, y));
                    mesh.add_colored_rect(part, color);
                }
                y = top;
            }
        }
        painter.add(mesh);
    }
}

/// Mean over the replicas of a pool.
fn columns(run: &RunData, pool: &Pool, window: Range<u64>, n: usize) -> Columns {
    let mut sums = vec![[0.0f32; 6]; n];
    let every = pool.replicas.len().div_ceil(MOST_REPLICAS).max(1);
    let chosen: Vec<usize> = pool.replicas.iter().step_by(every).copied().collect();
    let share = 1.0 / chosen.len().max(1) as f32;
    for replica in chosen {
        let of = resample::columns(&run.record.steps, window.clone(), n, Some(replica));
        for (sum, column) in sums.iter_mut().zip(of) {
            for (s, p) in sum.iter_mut().zip(column.parts) {
                *s += share * p as f32;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn replicas_are_found_in_their_pools_and_their_time_adds_up() {
        let mut run = small();
        let names = ["prefill/0", "decode/0"];
        for (replica, name) in run.record.info.replicas.iter_mut().zip(names) {
            replica.name = name.to_owned();
        }
        let found = pools(&run);
        let of: Vec<_> = found
            .iter()
            .map(|p| (p.name.as_str(), &p.replicas[..]))
            .collect();
        assert_eq!(of, [("prefill", &[0][..]), ("decode", &[1][..])]);
        let all = columns(&run, &found[0], 0..run.end(), 50);
        assert_eq!(all.len(), 50);
        let busy: Vec<f32> = all.iter().map(|c| c.iter().sum()).collect();
        assert!(busy.iter().all(|b| (0.0..=1.01).contains(b)) && busy[20] > 0.1);
    }
}
