//! Ejection of replicas whose tries fail: Envoy's outlier detection and nginx's `max_fails`.

use crate::cluster::gateway::OutlierSpec;
use crate::kernel::time::{SimDuration, SimTime};

/// What the gateway knows of a replica.
#[derive(Clone, Debug, Default)]
struct Host {
    /// Tries that failed one after the other.
    failures: u32,
    /// When the first of those failed.
    since: SimTime,
    /// Times that it has been ejected.
    ejections: u32,
    /// It is ejected until then.
    until: Option<SimTime>,
}

/// Who is ejected, and for how long.
pub struct Outliers {
    spec: OutlierSpec,
    hosts: Vec<Host>,
}

impl Outliers {
    /// Nobody is.
    pub fn new(spec: OutlierSpec) -> Outliers {
        Outliers {
            spec,
            hosts: Vec::new(),
        }
    }

    fn host(&mut self, i: u32) -> &mut Host {
        let i = i as usize;
        if self.hosts.len() <= i {
            self.hosts.resize_with(i + 1, Host::default);
        }
        &mut self.hosts[i]
    }

    /// A try at replica `i` was answered.
    pub fn succeeded(&mut self, i: u32) {
        self.host(i).failures = 0;
    }

    /// A try at replica `i` failed at `now`, where `ready` replicas may be chosen. True: it is ejected from now on.
    pub fn failed(&mut self, i: u32, now: SimTime, ready: usize) -> bool {
        let spec = self.spec;
        let ejected = self.hosts.iter().filter(|h| h.until.is_some()).count();
        let host = self.host(i);
        let stale = (spec.fail_window).is_some_and(|w| now > host.since + w);
        if host.failures == 0 || stale {
            (host.failures, host.since) = (0, now);
        }
        host.failures += 1;
        if host.failures < spec.consecutive_failures || host.until.is_some() {
            return false;
        }
        // Envoy: one may always be ejected, more only up to the share. The last one stays: nginx and Envoy would send to all again.
        let all = (ready + ejected) as f64;
        let share = 100.0 * ejected as f64 / all.max(1.0);
        if ready <= 1 || ejected > 0 && share >= spec.max_ejection_percent {
            return false;
        }
        let host = self.host(i);
        host.failures = 0;
        host.ejections += 1;
        let times = if spec.grows {
            u64::from(host.ejections)
        } else {
            1
        };
        let end = now + SimDuration(spec.base_ejection_time.0.saturating_mul(times));
        // Envoy looks whom to take back every so often.
        host.until = Some(match spec.interval.0 {
            0 => end,
            every => SimTime(end.0.div_ceil(every).saturating_mul(every)),
        });
        true
    }

    /// When the next one comes back.
    pub fn next(&self) -> SimTime {
        (self.hosts.iter().filter_map(|h| h.until))
            .min()
            .unwrap_or(SimTime::NEVER)
    }

    /// Whose ejection is over at `now`, lowest first.
    pub fn back(&mut self, now: SimTime) -> Vec<u32> {
        let mut back = Vec::new();
        for (i, host) in self.hosts.iter_mut().enumerate() {
            if host.until.is_some_and(|t| t <= now) {
                host.until = None;
                back.push(i as u32);
            }
        }
        back
    }

    /// Replica `i` is gone for good.
    pub fn forget(&mut self, i: u32) {
        *self.host(i) = Host::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    #[test]
    fn envoy_ejects_after_five_failures_in_a_row_and_each_time_for_longer() {
        let mut o = Outliers::new(OutlierSpec::envoy());
        let fail = |o: &mut Outliers, at: u64| o.failed(0, SimTime(at * SEC), 20);
        for at in 0..4 {
            assert!(!fail(&mut o, at));
        }
        o.succeeded(0);
        for at in 4..8 {
            assert!(!fail(&mut o, at), "an answer starts the count anew");
        }
        assert!(fail(&mut o, 8));
        // 30 s from second 8 on, seen at the next look every 10 s.
        assert_eq!(o.next(), SimTime(40 * SEC));
        assert_eq!(o.back(SimTime(40 * SEC)), [0]);
        for at in 41..45 {
            assert!(!fail(&mut o, at));
        }
        assert!(fail(&mut o, 45));
        assert_eq!(o.next(), SimTime(110 * SEC), "60 s the second time");
    }

    #[test]
    fn one_may_always_be_ejected_more_only_up_to_the_share() {
        let mut o = Outliers::new(OutlierSpec {
            consecutive_failures: 1,
            ..OutlierSpec::envoy()
        });
        assert!(o.failed(0, SimTime(0), 5));
        assert!(!o.failed(1, SimTime(0), 4), "one of five is above a tenth");
        let mut o = Outliers::new(OutlierSpec {
            consecutive_failures: 1,
            max_ejection_percent: 100.0,
            ..OutlierSpec::envoy()
        });
        assert!(o.failed(0, SimTime(0), 2));
        assert!(!o.failed(1, SimTime(0), 1), "the last one stays");
    }

    #[test]
    fn nginx_takes_one_failure_and_ten_seconds() {
        let mut o = Outliers::new(OutlierSpec::nginx());
        assert!(o.failed(3, SimTime(SEC), 4));
        assert_eq!(o.next(), SimTime(11 * SEC));
        let mut two = Outliers::new(OutlierSpec {
            consecutive_failures: 2,
            ..OutlierSpec::nginx()
        });
        assert!(!two.failed(0, SimTime(0), 4));
        assert!(!two.failed(0, SimTime(11 * SEC), 4), "fail_timeout is over");
        assert!(two.failed(0, SimTime(12 * SEC), 4));
    }
}
