//! Room: how far the load can grow. It ranks deployments of equal price, since the margin of a latency says little of it: one far below its limit may leave it at
//! a few per cent more load.

use rayon::prelude::*;

use super::question::Question;
use super::ready::Ready;
use super::search::{Settled, better};
use crate::Error;

/// Multiples of the load that are tried, one after another, as long as more than one deployment is left.
const MULTIPLES: [f64; 12] = [
    1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0,
];

/// Ranks the cheapest of `settled`, which are in the order of [`better`], by the load that they hold when what may be lost is lost.
///
/// # Errors
/// The simulator's own.
pub fn rank(question: &Question, ready: &[Ready], settled: &mut [Settled]) -> Result<(), Error> {
    let least = settled.first().map_or(0.0, |s| s.cost);
    let equal = settled.partition_point(|s| s.cost <= least * (1.0 + 1e-9));
    let tied = &mut settled[..equal];
    let mut left: Vec<usize> = (0..equal).collect();
    for factor in MULTIPLES {
        if left.len() < 2 {
            break;
        }
        tied.iter_mut().for_each(|s| {
            s.room.get_or_insert(1.0);
        });
        let judge = match question.judge(factor) {
            Ok(judge) => judge,
            // More requests than may be simulated.
            Err(e) if e.is_input() => break,
            Err(e) => return Err(e),
        };
        let holds = left
            .par_iter()
            .map(|i| {
                let s = &tied[*i];
                let stands = ready[s.at].judged(&judge, s.units, question.redundancy)?;
                Ok(stands.holds)
            })
            .collect::<Result<Vec<bool>, Error>>()?;
        let mut kept = holds.iter();
        left.retain(|_| kept.next() == Some(&true));
        left.iter().for_each(|i| tied[*i].room = Some(factor));
    }
    let room = |s: &Settled| s.room.unwrap_or(1.0);
    tied.sort_by(|a, b| room(b).total_cmp(&room(a)).then(better(a, b)));
    Ok(())
}
