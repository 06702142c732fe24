//! What the tensor-parallel ranks of one pipeline stage do together: sum their parts, and hand them to the first.
//!
//! Each rank puts its part where the others can read it, waits for them, and sums all parts in the order of the ranks,
//! so that every rank has the same bits and every run gives them again. Two sets of places take turns: a rank that
//! is ahead can fill the next set while others still read this one, and no further.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A rank has stopped; the others cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLost;

/// How long a rank looks whether the others have come before it sleeps: about what falling asleep and waking cost, which on
/// a virtual machine is far more than the microseconds that the ranks of a balanced step are apart.
const PATIENCE: Duration = Duration::from_micros(100);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;

struct Barrier {
    ranks: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    lost: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    fn wait(&self) -> Result<(), RankLost> {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.arrived.store(0, Ordering::Relaxed);
            // The lock keeps a sleeper from missing the change between its last look and its sleep.
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            drop(guard);
            self.wake.notify_all();
            return Ok(());
        }
        let come = || self.round.load(Ordering::Acquire) != round;
        let lost = || self.lost.load(Ordering::Acquire);
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if come() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > PATIENCE {
                break;
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !come() && !lost() {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        // All came, even if one has left since.
        if come() { Ok(()) } else { Err(RankLost) }
    }
}

/// The ranks of one pipeline stage.
pub struct Group {
    barrier: Barrier,
    /// `[turn][rank]`
    places: [Vec<RwLock<Vec<f32>>>; 2],
}

impl Group {
    /// A group of `ranks`.
    pub fn new(ranks: usize) -> Group {
        let places = || (0..ranks).map(|_| RwLock::new(Vec::new())).collect();
        Group {
            barrier: Barrier {
                ranks,
                arrived: AtomicUsize::new(0),
                round: AtomicUsize::new(0),
                lost: AtomicBool::new(false),
                lock: Mutex::new(()),
                wake: Condvar::new(),
            },
            places: [places(), places()],
        }
    }

    /// Says that a rank is gone: every wait ends with [`RankLost`].
    pub fn lose(&self) {
        let guard = self
            .barrier
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.barrier.lost.store(true, Ordering::Release);
        drop(guard);
        self.barrier.wake.notify_all();
    }

    /// Puts a rank's part in its place and waits for all.
    fn exchange(&self, turn: usize, rank: usize, part: &[f32]) -> Result<(), RankLost> {
        let mut place = self.places[turn][rank].write().map_err(|_| RankLost)?;
        place.clear();
        place.extend_from_slice(part);
        drop(place);
        self.barrier.wait()
    }
}

/// One rank's membership of a group.
pub struct Member {
    group: std::sync::Arc<Group>,
    rank: usize,
    turn: usize,
}

impl Member {
    /// Rank `rank` of the group. Each rank must have one member, and all must call the same operations in the same order.
    pub fn new(group: std::sync::Arc<Group>, rank: usize) -> Member {
        Member {
            group,
            rank,
            turn: 0,
        }
    }

    /// This member's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.group.places[0].len()
    }

    /// Replaces `values` by their sum over all ranks.
    pub fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), RankLost> {
        if self.ranks() == 1 {
            return Ok(());
        }
        let turn = self.turn;
        self.turn ^= 1;
        self.group.exchange(turn, self.rank, values)?;
        for (rank, place) in self.group.places[turn].iter().enumerate() {
            let part = place.read().map_err(|_| RankLost)?;
            if rank == 0 {
                values.copy_from_slice(&part);
            } else {
                kernels::elementwise::add(values, &part);
            }
        }
        Ok(())
    }

    /// Gives rank 0 every rank's part, in the order of the ranks, by calling `take(rank, part)` there.
    pub fn gather(
        &mut self,
        part: &[f32],
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<(), RankLost> {
        if self.ranks() == 1 {
            take(0, part);
            return Ok(());
        }
        let turn = self.turn;
        self.turn ^= 1;
        self.group.exchange(turn, self.rank, part)?;
        if self.rank == 0 {
            for (rank, place) in self.group.places[turn].iter().enumerate() {
                take(rank, &place.read().map_err(|_| RankLost)?);
            }
        }
        Ok(())
    }
}

/// However a rank ends, the others learn of it.
impl Drop for Member {
    fn drop(&mut self) {
        self.group.lose();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_rank_gets_the_sum_many_times_over() {
        let group = Arc::new(Group::new(3));
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let group = Arc::clone(&group);
                scope.spawn(move || {
                    let mut member = Member::new(group, rank);
                    for round in 0..500 {
                        let mut values = [(rank + round) as f32, rank as f32];
                        member.all_reduce(&mut values).unwrap();
                        assert_eq!(values, [(3 + 3 * round) as f32, 3.0]);
                        let mut seen = Vec::new();
                        member
                            .gather(&[(rank * 10 + round) as f32], |r, p| seen.push((r, p[0])))
                            .unwrap();
                        if rank == 0 {
                            let expected = |r: usize| (r, (r * 10 + round) as f32);
                            assert_eq!(seen, [expected(0), expected(1), expected(2)]);
                        }
                    }
                    // No rank may leave while others still read.
                    let _ = member.all_reduce(&mut [0.0]);
                });
            }
        });
    }

    #[test]
    fn ranks_do_not_wait_for_one_that_is_gone() {
        let group = Arc::new(Group::new(2));
        let gone = Member::new(Arc::clone(&group), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Member::new(Arc::clone(&group), 0).all_reduce(&mut [1.0]));
            drop(gone);
            assert_eq!(waiting.join().unwrap(), Err(RankLost));
        });
    }
}
