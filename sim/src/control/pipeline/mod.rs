//! The path of a metric from the engine to the HPA, with the age that each stage adds (4.9).
//!
//! ```text
//!  counters --refresh--> exporter page --scrape--> Prometheus --rule group--> recorded series --query--> adapter --> HPA
//!                                                                         (known to the adapter from its relist on)
//! ```
//!
//! Each stage samples the one before at its own period and phase. [`MetricPath::due`] says when the next stage acts, and
//! [`MetricPath::tick`] lets all that are due act, the earlier stages first. Who drives it gives the phases: there is no randomness here.

pub mod rule;
pub mod series;

use std::collections::{BTreeMap, BTreeSet};

use super::hpa::pods::{PodSamples, Sample};
use super::quantity::milli_from_f64;
use crate::kernel::time::{SimDuration, SimTime};
use rule::{Counter, Counters, RatioRule};
use series::{LOOKBACK, Series};

/// A stage's period and the instant of its first action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Time between two actions.
    pub period: SimDuration,
    /// The first action.
    pub first: SimTime,
}

impl Stage {
    /// Every `secs` seconds, first at the start of the run.
    pub const fn every(secs: u64) -> Self {
        Stage {
            period: SimDuration(secs * 1_000_000_000),
            first: SimTime::ZERO,
        }
    }
}

/// Periods of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// `--metrics-interval-ms` of Triton: how often its page is written anew.
    pub exporter_refresh: Stage,
    /// `scrape_interval`, of the PodMonitor or global.
    pub scrape: Stage,
    /// Interval of the rule group.
    pub rule_group: Stage,
    /// `--metrics-relist-interval` of prometheus-adapter.
    pub adapter_relist: Stage,
    /// The recording rule that the HPA asks for.
    pub rule: RatioRule,
}

impl PathSpec {
    /// The EKS multi-node Triton deployment: 1 s, 30 s, 6 s, 6 s, `triton:queue_compute:ratio`.
    pub const EKS_TRITON: PathSpec = PathSpec {
        exporter_refresh: Stage::every(1),
        scrape: Stage::every(30),
        rule_group: Stage::every(6),
        adapter_relist: Stage::every(6),
        rule: RatioRule::QUEUE_COMPUTE_RATIO,
    };

    /// Defaults of each part: 2 s, 60 s, 60 s, 10 min.
    pub const DEFAULTS: PathSpec = PathSpec {
        exporter_refresh: Stage::every(2),
        scrape: Stage::every(60),
        rule_group: Stage::every(60),
        adapter_relist: Stage::every(600),
        rule: RatioRule::QUEUE_COMPUTE_RATIO,
    };
}

/// One model of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The pod.
    pub pod: u64,
    /// The model, as each is a series of its own.
    pub model: u32,
}

/// The present counters of one model of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExporterReading {
    /// Whose.
    pub target: Target,
    /// Their values.
    pub counters: Counters,
}

/// The path, and what each stage holds.
#[derive(Clone, Debug)]
pub struct MetricPath {
    spec: PathSpec,
    /// Next actions: refresh, scrape, rule group, relist.
    next: [SimTime; 4],
    pages: BTreeMap<Target, Counters>,
    scraped: BTreeMap<Target, [Series; Counter::COUNT]>,
    recorded: BTreeMap<Target, Series>,
    is_known: bool,
}

impl MetricPath {
    /// A path that has seen nothing yet.
    ///
    /// # Errors
    /// A stage without a period.
    pub fn new(spec: PathSpec) -> Result<Self, String> {
        let stages = spec.stages();
        if let Some((name, _)) = stages
            .iter()
            .find(|(_, stage)| stage.period == SimDuration::ZERO)
        {
            return Err(format!("{name}: its period must be greater than 0"));
        }
        Ok(MetricPath {
            spec,
            next: stages.map(|(_, stage)| stage.first),
            pages: BTreeMap::new(),
            scraped: BTreeMap::new(),
            recorded: BTreeMap::new(),
            is_known: false,
        })
    }

    /// When the next stage acts.
    pub fn due(&self) -> SimTime {
        self.next.into_iter().min().unwrap_or(SimTime::NEVER)
    }

    /// Lets all stages act that are due. `present`: counters of all pods that run now; a pod that is not there has vanished.
    pub fn tick(&mut self, now: SimTime, present: &[ExporterReading]) {
        let alive: BTreeSet<Target> = present.iter().map(|r| r.target).collect();
        if self.is_due(0, now) {
            self.pages = present.iter().map(|r| (r.target, r.counters)).collect();
        }
        if self.is_due(1, now) {
            self.scrape(now, &alive);
        }
        if self.is_due(2, now) {
            self.evaluate(now);
        }
        if self.is_due(3, now) {
            self.is_known = self.recorded.values().any(|s| s.instant(now).is_some());
        }
    }

    /// Whether a stage acts now, and when it does next.
    fn is_due(&mut self, stage: usize, now: SimTime) -> bool {
        let period = self.spec.stages()[stage].1.period;
        let is_due = self.next[stage] <= now;
        if is_due {
            // Actions that were missed are not made up for.
            let missed = now.since(self.next[stage]).0 / period.0;
            self.next[stage] += SimDuration(period.0.saturating_mul(missed + 1));
        }
        is_due
    }

    fn scrape(&mut self, now: SimTime, alive: &BTreeSet<Target>) {
        for (target, counters) in self
            .pages
            .iter()
            .filter(|(target, _)| alive.contains(target))
        {
            let series = self.scraped.entry(*target).or_default();
            series
                .iter_mut()
                .zip(counters)
                .for_each(|(s, value)| s.push(now, *value));
        }
        let keep = LOOKBACK.max(self.spec.rule.window);
        self.scraped.retain(|target, series| {
            for s in series.iter_mut() {
                if !alive.contains(target) {
                    s.mark_stale(now);
                }
                s.forget_before(now, keep);
            }
            series.iter().any(|s| !s.is_empty())
        });
    }

    fn evaluate(&mut self, now: SimTime) {
        for (target, series) in &self.scraped {
            if let Some(value) = self.spec.rule.evaluate(now, series) {
                self.recorded.entry(*target).or_default().push(now, value);
            }
        }
        let (scraped, rule) = (&self.scraped, self.spec.rule);
        self.recorded.retain(|target, recorded| {
            let has_value = scraped
                .get(target)
                .is_some_and(|s| rule.evaluate(now, s).is_some());
            if !has_value {
                recorded.mark_stale(now);
            }
            recorded.forget_before(now, LOOKBACK);
            !recorded.is_empty()
        });
    }

    /// What the adapter answers to the HPA now: the sum over the models of each pod, in milli-units. A pod without a series has no
    /// sample; before the first relist that found the series nothing has.
    pub fn query(&self, now: SimTime, pods: &[u64]) -> PodSamples {
        let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
        for (target, series) in self.recorded.iter().filter(|_| self.is_known) {
            if let Some(value) = series.instant(now) {
                *sums.entry(target.pod).or_default() += value;
            }
        }
        let sample = |sum: &f64| Sample {
            value_milli: milli_from_f64(*sum),
            taken: now,
            window: self.spec.rule.window,
        };
        let of_pods: Vec<_> = pods.iter().map(|pod| sums.get(pod).map(sample)).collect();
        let unlisted = sums.len() - of_pods.iter().flatten().count();
        PodSamples { of_pods, unlisted }
    }
}

impl PathSpec {
    fn stages(&self) -> [(&'static str, Stage); 4] {
        [
            ("exporter_refresh", self.exporter_refresh),
            ("scrape", self.scrape),
            ("rule_group", self.rule_group),
            ("adapter_relist", self.adapter_relist),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Target = Target { pod: 1, model: 0 };

    /// Counters of a target whose queue time grows `queue` and whose compute time 1e6 us a second.
    fn reading(target: Target, now: SimTime, queue: f64) -> ExporterReading {
        let t = now.as_secs();
        ExporterReading {
            target,
            counters: [1e9 + queue * t, 1e9 + 1e6 * t, 0.0, 0.0],
        }
    }

    /// Drives a path to `end`, the targets at an instant given by `present`; returns what the adapter says of pod 1 at the end.
    fn drive(
        path: &mut MetricPath,
        end: f64,
        present: impl Fn(SimTime) -> Vec<ExporterReading>,
    ) -> Option<i64> {
        let end = SimTime::from_secs(end);
        while path.due() <= end {
            let now = path.due();
            path.tick(now, &present(now));
        }
        path.query(end, &[1]).of(0).map(|s| s.value_milli)
    }

    fn eks() -> MetricPath {
        MetricPath::new(PathSpec::EKS_TRITON).expect("periods")
    }

    #[test]
    fn a_steady_ratio_arrives_after_two_scrapes() {
        let present = |now| vec![reading(A, now, 2e6)];
        assert_eq!(drive(&mut eks(), 29.0, present), None);
        // The rule's window is open at its start, so that samples at 0 and 30 s are both inside until 59 s.
        assert_eq!(drive(&mut eks(), 30.0, present), Some(2000));
    }

    #[test]
    fn models_of_a_pod_are_summed() {
        let b = Target { pod: 1, model: 1 };
        let other = Target { pod: 2, model: 0 };
        let present = |now| {
            vec![
                reading(A, now, 2e6),
                reading(b, now, 5e5),
                reading(other, now, 9e6),
            ]
        };
        let mut path = eks();
        assert_eq!(drive(&mut path, 30.0, present), Some(2500));
        assert_eq!(path.query(SimTime::from_secs(30.0), &[1]).unlisted, 1);
    }

    #[test]
    fn a_change_is_seen_only_as_scrapes_come() {
        // The queue starts at 61 s, a second after a scrape.
        let present = |now: SimTime| {
            vec![reading(A, SimTime::ZERO, 0.0), reading(A, now, 0.0)]
                .into_iter()
                .skip(1)
                .map(|mut r| {
                    r.counters[0] = 1e9 + 3e6 * (now.as_secs() - 61.0).max(0.0);
                    r
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(drive(&mut eks(), 89.0, present), Some(0));
        // 29 of 30 s between the two scrapes are queued: 3 times 29/30.
        assert_eq!(drive(&mut eks(), 90.0, present), Some(2900));
        assert_eq!(drive(&mut eks(), 120.0, present), Some(3000));
    }

    #[test]
    fn a_vanished_pod_has_no_sample_after_the_next_scrape_and_rule() {
        let present = |now: SimTime| match now.as_secs() < 70.0 {
            true => vec![reading(A, now, 2e6)],
            false => Vec::new(),
        };
        assert_eq!(drive(&mut eks(), 89.0, present), Some(2000));
        assert_eq!(drive(&mut eks(), 90.0, present), None);
    }

    #[test]
    fn the_adapter_knows_a_series_from_its_relist_on() {
        let spec = PathSpec {
            adapter_relist: Stage {
                period: SimDuration(600_000_000_000),
                first: SimTime::from_secs(10.0),
            },
            ..PathSpec::EKS_TRITON
        };
        let present = |now| vec![reading(A, now, 2e6)];
        let path = || MetricPath::new(spec).expect("periods");
        assert_eq!(drive(&mut path(), 609.0, present), None);
        assert_eq!(drive(&mut path(), 610.0, present), Some(2000));
    }

    #[test]
    fn no_period_is_zero() {
        let spec = PathSpec {
            scrape: Stage::every(0),
            ..PathSpec::DEFAULTS
        };
        assert_eq!(
            MetricPath::new(spec).expect_err("0 s"),
            "scrape: its period must be greater than 0"
        );
    }
}
