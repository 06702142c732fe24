//! Numbers of the keys around a cluster.

use hwmodels::units::Secs;

use crate::kernel::time::SimDuration;

/// Most nodes of a group.
pub(super) const MAX_NODES: u32 = 100_000;

/// A time of `value` seconds, a constant of ours.
pub(super) fn secs(value: f64) -> Secs {
    Secs::new(value).unwrap_or_default()
}

/// A time of the run in the words of a file: as it was written, to the nanosecond.
pub(super) fn told(time: SimDuration) -> Secs {
    secs(time.0 as f64 / 1e9)
}

/// `value` on the clock of a run; none is no time.
pub(super) fn nanos(value: Option<Secs>) -> SimDuration {
    SimDuration::from_secs(value.unwrap_or_default().secs())
}
