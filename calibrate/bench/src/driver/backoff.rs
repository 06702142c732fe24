//! How long a client waits after a failure before it goes on.
//!
//! Without it the users of a closed loop send again at once, and an endpoint that is down or answers 500 gets thousands of requests
//! per second. The pause doubles while nothing but failures come and is drawn between half of its length and all of it, so
//! that users do not come back together. Refusals with 429 and 503 are the workload's (`refused_pause`).

use std::time::Duration;

use sim::kv::chain;

/// Longest first pause [ns].
const FIRST_NS: u64 = 100_000_000;
/// Longest pause [ns].
const LONGEST_NS: u64 = 5_000_000_000;
/// Times that the pause has grown before an endpoint may be given up.
const LEAST_ROUNDS: u32 = 6;

/// Failures since the last answer.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// Of the random part of the pauses.
    seed: u64,
    draws: u64,
    /// Times that the pause has grown.
    round: u32,
    /// When it last did, after the run's start [ns].
    grown_ns: u64,
    /// When the first of the failures was known, after the run's start [ns].
    since_ns: u64,
}

impl Backoff {
    /// No failures yet.
    pub fn new(seed: u64) -> Backoff {
        Backoff {
            seed: chain(seed, 0xbac0),
            draws: 0,
            round: 0,
            grown_ns: 0,
            since_ns: 0,
        }
    }

    /// A request was answered: failures start from nothing again.
    pub fn answered(&mut self) {
        self.round = 0;
    }

    /// A request sent at `sent_ns` had failed at `now_ns`: the pause of its client [ns].
    pub fn failed(&mut self, sent_ns: u64, now_ns: u64) -> u64 {
        // Requests that were under way together fail together: that is one failure of the endpoint, not many.
        if self.round == 0 || sent_ns >= self.grown_ns {
            if self.round == 0 {
                self.since_ns = now_ns;
            }
            self.round = self.round.saturating_add(1);
            self.grown_ns = now_ns;
        }
        let doublings = (self.round - 1).min(16);
        let whole = (FIRST_NS << doublings).min(LONGEST_NS);
        self.draws += 1;
        // The upper 32 bits of a hash as a share of one.
        let share = chain(self.seed, self.draws) >> 32;
        whole / 2 + ((whole / 2 * share) >> 32)
    }

    /// How long there have been failures only, once pauses have grown a few times.
    pub fn failing_for(&self, now_ns: u64) -> Option<Duration> {
        (self.round >= LEAST_ROUNDS)
            .then(|| Duration::from_nanos(now_ns.saturating_sub(self.since_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_start_again_after_an_answer() {
        let mut b = Backoff::new(1);
        let mut now = 0;
        let mut whole = FIRST_NS;
        for _ in 0..12 {
            let pause = b.failed(now, now + 1);
            assert!((whole / 2..=whole).contains(&pause), "{pause} of {whole}");
            whole = (2 * whole).min(LONGEST_NS);
            now += pause;
        }
        assert_eq!(whole, LONGEST_NS);
        b.answered();
        assert!(b.failed(now, now) <= FIRST_NS);
    }

    #[test]
    fn requests_that_fail_together_count_as_one_failure() {
        let mut b = Backoff::new(1);
        let pauses: Vec<u64> = (0..100).map(|i| b.failed(10, 20 + i)).collect();
        assert!(pauses.iter().all(|p| *p <= FIRST_NS), "{pauses:?}");
        // Their clients do not come back together.
        let spread = pauses.iter().max().unwrap() - pauses.iter().min().unwrap();
        assert!(spread > FIRST_NS / 4, "{spread}");
        assert!(b.failed(FIRST_NS, FIRST_NS + 1) > FIRST_NS / 2 + FIRST_NS / 4);
    }

    #[test]
    fn the_same_seed_draws_the_same_pauses() {
        let pauses = |seed| {
            let mut b = Backoff::new(seed);
            (0..8)
                .map(|i| b.failed(i << 40, i << 40))
                .collect::<Vec<_>>()
        };
        assert_eq!(pauses(3), pauses(3));
        assert_ne!(pauses(3), pauses(4));
    }

    #[test]
    fn an_endpoint_is_given_up_only_after_several_pauses() {
        let mut b = Backoff::new(1);
        let second = 1_000_000_000;
        assert_eq!(b.failing_for(90 * second), None);
        for i in 0..5 {
            b.failed(i * second, i * second);
        }
        assert_eq!(b.failing_for(90 * second), None);
        b.failed(5 * second, 5 * second);
        assert_eq!(b.failing_for(90 * second), Some(Duration::from_secs(90)));
        b.answered();
        assert_eq!(b.failing_for(95 * second), None);
    }
}
