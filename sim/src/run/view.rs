//! What can be seen of a run from outside.

use crate::cluster::replica::Lifecycle;
use crate::kernel::time::SimTime;
use crate::policy::Load;

/// How far a replica may be advanced before the others: as far as nothing from outside can reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// For many requests at once, on all cores: the router looks at no state, or at a scrape's, and requests do not depend on answers.
    Ahead,
    /// To the next request: the router looks at replicas as they are, but requests do not depend on answers.
    Arrivals,
    /// Instant by instant: answers bring requests, or somebody watches.
    Instants,
}

/// Where a run stands after it was advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// At the instant that was asked for; more is to come.
    Reached,
    /// Nothing more will happen.
    Over,
    /// Somebody raised [`RunOptions::cancel`].
    Cancelled,
}

/// A replica as a snapshot shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaView {
    /// Where it stands between its start and its end.
    pub lifecycle: Lifecycle,
    /// What its engine holds.
    pub load: Load,
    /// Requests that were sent to it and have not ended, in its front end or engine.
    pub outstanding: usize,
}

/// A run at an instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The instant.
    pub now: SimTime,
    /// Requests that clients have sent.
    pub offered: u64,
    /// Requests that have ended, however.
    pub ended: u64,
    /// Requests that wait at the gateway because no replica is ready.
    pub held: usize,
    /// The replicas, by index; those that are gone keep theirs.
    pub replicas: Vec<ReplicaView>,
}
