//! Stabilization: recent recommendations hold a change back (4.7, 4.8).
//!
//! Source: kubernetes `pkg/controller/podautoscaler/horizontal.go`, `stabilizeRecommendation` and
//! `stabilizeRecommendationWithBehaviors`.

use crate::kernel::time::{SimDuration, SimTime};

/// A logged recommendation, as it was before it was stabilized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Replicas.
    pub replicas: i32,
    /// When.
    pub at: SimTime,
}

/// Recommendations of the past. Slots are reused: of several obsolete ones the last, as in the original; which one it is changes no
/// decision, since an obsolete slot never counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecommendationLog {
    slots: Vec<Recommendation>,
}

impl RecommendationLog {
    /// A log with these slots.
    pub fn new(slots: Vec<Recommendation>) -> Self {
        RecommendationLog { slots }
    }

    /// The slots.
    pub fn slots(&self) -> &[Recommendation] {
        &self.slots
    }

    /// Without `behavior` (4.7): the highest recommendation of the window, both ends included, and the present one.
    pub fn stabilize_downscale(
        &mut self,
        now: SimTime,
        recommended: i32,
        window: SimDuration,
    ) -> i32 {
        let age = |r: &Recommendation| now.since(r.at);
        let highest = self
            .slots
            .iter()
            .filter(|r| age(r) <= window)
            .fold(recommended, |most, r| most.max(r.replicas));
        self.log(now, recommended, |r| age(r) > window);
        highest
    }

    /// With `behavior` (4.8): what is nearest to `current` between the lowest recommendation younger than the up window and the highest
    /// younger than the down window, the present one in both.
    pub fn stabilize(
        &mut self,
        now: SimTime,
        current: i32,
        recommended: i32,
        up_window: SimDuration,
        down_window: SimDuration,
    ) -> i32 {
        let age = |r: &Recommendation| now.since(r.at);
        let younger = |window| {
            self.slots
                .iter()
                .filter(move |r| age(r) < window)
                .map(|r| r.replicas)
        };
        let up = younger(up_window).fold(recommended, i32::min);
        let down = younger(down_window).fold(recommended, i32::max);
        let mut stabilized = current;
        if stabilized < up {
            stabilized = up;
        }
        if stabilized > down {
            stabilized = down;
        }
        self.log(now, recommended, |r| age(r) > up_window.max(down_window));
        stabilized
    }

    fn log(&mut self, now: SimTime, replicas: i32, is_obsolete: impl Fn(&Recommendation) -> bool) {
        let new = Recommendation { replicas, at: now };
        match self.slots.iter_mut().rfind(|r| is_obsolete(r)) {
            Some(slot) => *slot = new,
            None => self.slots.push(new),
        }
    }
}
