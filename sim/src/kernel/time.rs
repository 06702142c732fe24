//! Virtual time: integer nanoseconds since the start of the run.

use std::ops::{Add, AddAssign, Sub};

/// An instant of virtual time [ns]. `u64` nanoseconds reach 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(pub u64);

/// A span of virtual time [ns].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimDuration(pub u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: SimTime = SimTime(0);
    /// An instant that never comes.
    pub const NEVER: SimTime = SimTime(u64::MAX);

    /// Seconds since the start of the run [s].
    #[inline]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// The instant `secs` seconds after the start; negative and NaN become the start,
    /// what does not fit becomes [`SimTime::NEVER`].
    #[inline]
    pub fn from_secs(secs: f64) -> SimTime {
        SimTime(SimDuration::from_secs(secs).0)
    }

    /// Time since `earlier`; zero if that is later.
    #[inline]
    pub fn since(self, earlier: SimTime) -> SimDuration {
        SimDuration(self.0.saturating_sub(earlier.0))
    }
}

impl SimDuration {
    /// No time.
    pub const ZERO: SimDuration = SimDuration(0);

    /// The one place where cost formulas in seconds meet the integer clock: nearest nanosecond,
    /// at least zero (`as` saturates, and maps NaN to zero).
    #[inline]
    pub fn from_secs(secs: f64) -> SimDuration {
        SimDuration((secs * 1e9 + 0.5) as u64)
    }

    /// Seconds [s].
    #[inline]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// Milliseconds [ms].
    #[inline]
    pub fn as_millis(self) -> f64 {
        self.0 as f64 * 1e-6
    }
}

impl Add<SimDuration> for SimTime {
    type Output = SimTime;
    #[inline]
    fn add(self, d: SimDuration) -> SimTime {
        SimTime(self.0.saturating_add(d.0))
    }
}

impl AddAssign<SimDuration> for SimTime {
    #[inline]
    fn add_assign(&mut self, d: SimDuration) {
        *self = *self + d;
    }
}

impl Sub for SimTime {
    type Output = SimDuration;
    #[inline]
    fn sub(self, earlier: SimTime) -> SimDuration {
        debug_assert!(self >= earlier, "time went back: {self:?} - {earlier:?}");
        self.since(earlier)
    }
}

impl Add for SimDuration {
    type Output = SimDuration;
    #[inline]
    fn add(self, o: SimDuration) -> SimDuration {
        SimDuration(self.0.saturating_add(o.0))
    }
}
