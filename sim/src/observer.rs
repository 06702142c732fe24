//! Watching a run while it goes on.

use crate::kernel::time::SimTime;
use crate::record::{RequestRow, StepRow};

/// What happens to a replica besides its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// It was added and is not ready yet.
    Added,
    /// The router may choose it from now on.
    Ready,
    /// The router does not choose it any more; it ends when its last request has.
    Draining,
    /// It is gone, its last request answered.
    Drained,
    /// It is gone, and whatever it held with it.
    Killed,
}

/// Is told of steps, requests and replicas as they happen, in the order of the virtual clock.
///
/// A run without an observer pays nothing for it. A run with one advances its replicas in turn, on one core; the record is the same.
pub trait Observer: Send {
    /// A step has ended.
    fn step(&mut self, row: &StepRow) {
        let _ = row;
    }

    /// A request has ended, or the run has while it was under way.
    fn request(&mut self, row: &RequestRow) {
        let _ = row;
    }

    /// Something became of replica `replica`.
    fn fleet(&mut self, at: SimTime, replica: u32, event: FleetEvent) {
        let _ = (at, replica, event);
    }
}
