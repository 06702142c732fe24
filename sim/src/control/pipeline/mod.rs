//! The path of a metric from the engine to the HPA, with the age that each stage adds (4.9).
//!
//! ```text
//!  counters --refresh--> exporter page --scrape--> Prometheus --rule group--> recorded series --query--> adapter --> HPA
//!                                                                         (known to the adapter from its relist on)
//! ```
//!
//! Each stage samples the one before at its own period and phase. [`MetricPath::due`] says when the state of pods is looked at next, and
//! [`MetricPath::tick`] does all that is due, the earlier stages first. What later stages see depends on scrapes alone, so their turns
//! before a scrape or a query are taken then, each as of its own instant. Who drives it gives the phases: there is no randomness here.

pub mod rule;
pub mod series;

use std::collections::{BTreeMap, BTreeSet};

use super::hpa::pods::{PodSamples, Sample};
use super::quantity::milli_from_f64;
use crate::kernel::time::{SimDuration, SimTime};
use rule::{Counter, Counters, RatioRule, Rule};
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
    /// `--metrics-interval-ms` of Triton: how often its page is written anew. `None`: the page shows the present.
    pub exporter_refresh: Option<Stage>,
    /// `scrape_interval`, of the PodMonitor or global.
    pub scrape: Stage,
    /// Interval of the rule group.
    pub rule_group: Stage,
    /// `--metrics-relist-interval` of prometheus-adapter.
    pub adapter_relist: Stage,
    /// What the HPA asks for.
    pub rule: Rule,
}

impl PathSpec {
    /// The EKS multi-node Triton deployment: 1 s, 30 s, 6 s, 6 s, `triton:queue_compute:ratio`.
    pub const EKS_TRITON: PathSpec = PathSpec {
        exporter_refresh: Some(Stage::every(1)),
        scrape: Stage::every(30),
        rule_group: Stage::every(6),
        adapter_relist: Stage::every(6),
        rule: Rule::Ratio(RatioRule::QUEUE_COMPUTE_RATIO),
    };

    /// Defaults of each part: 2 s, 60 s, 60 s, 10 min.
    pub const DEFAULTS: PathSpec = PathSpec {
        exporter_refresh: Some(Stage::every(2)),
        scrape: Stage::every(60),
        rule_group: Stage::every(60),
        adapter_relist: Stage::every(600),
        rule: Rule::Ratio(RatioRule::QUEUE_COMPUTE_RATIO),
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
    /// Next actions of the exporter and the scrape.
    next_refresh: SimTime,
    next_scrape: SimTime,
    /// Next actions of rule group and relist.
    next: [SimTime; 2],
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
        if let Some((name, _)) = spec
            .stages()
            .iter()
            .find(|(_, stage)| stage.is_some_and(|s| s.period == SimDuration::ZERO))
        {
            return Err(format!("{name}: its period must be greater than 0"));
        }
        let mut path = MetricPath {
            spec,
            next_refresh: SimTime::NEVER,
            next_scrape: spec.scrape.first,
            next: [spec.rule_group.first, spec.adapter_relist.first],
            pages: BTreeMap::new(),
            scraped: BTreeMap::new(),
            recorded: BTreeMap::new(),
            is_known: false,
        };
        path.set_refresh(SimTime::ZERO);
        Ok(path)
    }

    /// What it was made with.
    pub fn spec(&self) -> &PathSpec {
        &self.spec
    }

    /// When pods are looked at next: the last refresh of their pages before the next scrape, or that scrape. Other refreshes nobody sees.
    pub fn due(&self) -> SimTime {
        self.next_refresh.min(self.next_scrape)
    }

    /// Plans the last refresh that comes no later than the next scrape and no earlier than `from`.
    fn set_refresh(&mut self, from: SimTime) {
        let Some(stage) = self.spec.exporter_refresh else {
            return;
        };
        self.next_refresh = SimTime::NEVER;
        if self.next_scrape >= stage.first {
            let turns = self.next_scrape.since(stage.first).0 / stage.period.0;
            let last = stage.first + SimDuration(stage.period.0.saturating_mul(turns));
            if last >= from {
                self.next_refresh = last;
            }
        }
    }

    /// Does all that is due. `present`: series of all pods that run now; a pod that is not there has vanished.
    pub fn tick(&mut self, now: SimTime, present: &[ExporterReading]) {
        self.catch_up(now, false);
        if self.next_refresh <= now {
            self.pages = present.iter().map(|r| (r.target, r.counters)).collect();
            self.next_refresh = SimTime::NEVER;
        }
        if self.next_scrape <= now {
            if self.spec.exporter_refresh.is_none() {
                self.pages = present.iter().map(|r| (r.target, r.counters)).collect();
            }
            let alive: BTreeSet<Target> = present.iter().map(|r| r.target).collect();
            self.scrape(now, &alive);
            self.skip_scrape(now);
        }
        self.catch_up(now, true);
    }

    /// Leaves out what is due, as when Prometheus is down: nothing is scraped, and no rule evaluated.
    pub fn skip(&mut self, now: SimTime) {
        for (next, stage) in self
            .next
            .iter_mut()
            .zip([self.spec.rule_group, self.spec.adapter_relist])
        {
            *next = after(*next, stage.period, now);
        }
        if self.next_refresh <= now {
            self.next_refresh = SimTime::NEVER;
        }
        if self.next_scrape <= now {
            self.skip_scrape(now);
        }
    }

    fn skip_scrape(&mut self, now: SimTime) {
        self.next_scrape = after(self.next_scrape, self.spec.scrape.period, now);
        self.set_refresh(SimTime(now.0.saturating_add(1)));
    }

    /// Rule groups and relists before `now`, and at `now` where `also_now`, each at its own instant, rules first.
    fn catch_up(&mut self, now: SimTime, also_now: bool) {
        let [rule_period, relist_period] =
            [self.spec.rule_group.period, self.spec.adapter_relist.period];
        loop {
            let [rule, relist] = self.next;
            let at = rule.min(relist);
            if at > now || (at == now && !also_now) {
                return;
            }
            if rule == at {
                self.evaluate(at);
                self.next[0] = at + rule_period;
            }
            if relist == at {
                self.is_known = self.has_series(at);
                self.next[1] = at + relist_period;
            }
        }
    }

    fn has_series(&self, now: SimTime) -> bool {
        match self.spec.rule {
            Rule::Instant(c) => {
                (self.scraped.values()).any(|s| s[c.index()].instant(now).is_some())
            }
            _ => self.recorded.values().any(|s| s.instant(now).is_some()),
        }
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
        let keep = LOOKBACK.max(self.spec.rule.window());
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
        if !self.spec.rule.is_recorded() {
            return;
        }
        let values: BTreeMap<Target, f64> = self
            .scraped
            .iter()
            .filter_map(|(target, series)| Some((*target, self.spec.rule.evaluate(now, series)?)))
            .collect();
        for (target, value) in &values {
            self.recorded.entry(*target).or_default().push(now, *value);
        }
        self.recorded.retain(|target, recorded| {
            if !values.contains_key(target) {
                recorded.mark_stale(now);
            }
            recorded.forget_before(now, LOOKBACK);
            !recorded.is_empty()
        });
    }

    /// The present value of each pod: the sum over its models.
    fn of_pods(&self, now: SimTime) -> BTreeMap<u64, f64> {
        let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
        let mut add = |target: &Target, value: Option<f64>| {
            if let Some(value) = value {
                *sums.entry(target.pod).or_default() += value;
            }
        };
        match self.spec.rule {
            Rule::Instant(c) => (self.scraped.iter())
                .for_each(|(target, series)| add(target, series[c.index()].instant(now))),
            _ => {
                (self.recorded.iter()).for_each(|(target, series)| add(target, series.instant(now)))
            }
        }
        sums
    }

    /// What the adapter answers to the HPA now: the sum over the models of each pod, in milli-units. A pod without a series has no
    /// sample; before the first relist that found the series nothing has.
    pub fn query(&mut self, now: SimTime, pods: &[u64]) -> PodSamples {
        self.catch_up(now, true);
        let sums = if self.is_known {
            self.of_pods(now)
        } else {
            BTreeMap::new()
        };
        let sample = |sum: &f64| Sample {
            value_milli: milli_from_f64(*sum),
            taken: now,
            window: self.spec.rule.window(),
        };
        let of_pods: Vec<_> = pods.iter().map(|pod| sums.get(pod).map(sample)).collect();
        let unlisted = sums.len() - of_pods.iter().flatten().count();
        PodSamples { of_pods, unlisted }
    }

    /// What a query of Prometheus itself says now (KEDA's `prometheus` trigger): the sum over all pods; none where there is no series.
    pub fn total(&mut self, now: SimTime) -> Option<f64> {
        self.catch_up(now, true);
        let sums = self.of_pods(now);
        (!sums.is_empty()).then(|| sums.values().sum())
    }
}

/// The first turn after `now` of a stage whose next was `next`; turns that were missed are not made up for.
fn after(next: SimTime, period: SimDuration, now: SimTime) -> SimTime {
    if next > now {
        return next;
    }
    let missed = now.since(next).0 / period.0;
    next + SimDuration(period.0.saturating_mul(missed + 1))
}

impl PathSpec {
    fn stages(&self) -> [(&'static str, Option<Stage>); 4] {
        [
            ("exporter_refresh", self.exporter_refresh),
            ("scrape", Some(self.scrape)),
            ("rule_group", Some(self.rule_group)),
            ("adapter_relist", Some(self.adapter_relist)),
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
            counters: [
                1e9 + queue * t,
                1e9 + 1e6 * t,
                0.0,
                0.0,
                0.0,
                0.0,
                1.0,
                t / 10.0,
                0.5,
                0.0,
                0.0,
                0.0,
            ],
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
    fn a_gauge_is_seen_as_of_the_last_scrape_and_its_average_as_of_the_last_rule() {
        let spec = |rule| PathSpec {
            exporter_refresh: None,
            rule,
            ..PathSpec::EKS_TRITON
        };
        let present = |now| vec![reading(A, now, 0.0)];
        let mut instant = MetricPath::new(spec(Rule::Instant(Counter::Waiting))).expect("periods");
        assert_eq!(drive(&mut instant, 89.0, present), Some(6000), "of 60 s");
        let total = instant.total(SimTime::from_secs(89.0)).expect("a series");
        assert!((total - 6.0).abs() < 1e-9, "{total}");
        let average = Rule::Over {
            series: Counter::Waiting,
            function: rule::OverTime::Avg,
            window: SimDuration(60_000_000_000),
        };
        let mut average = MetricPath::new(spec(average)).expect("periods");
        // The rule of 84 s sees the scrapes at 30 and 60 s, that of 90 s also the one at 90 s, and not the one at 30 s.
        assert_eq!(drive(&mut average, 89.0, present), Some(4500));
        assert_eq!(drive(&mut average, 90.0, present), Some(7500));
    }

    #[test]
    fn nothing_comes_through_while_prometheus_is_down() {
        let mut path = eks();
        let present = |now| vec![reading(A, now, 2e6)];
        drive(&mut path, 60.0, present);
        while path.due() <= SimTime::from_secs(400.0) {
            let now = path.due();
            path.skip(now);
        }
        let of = |path: &mut MetricPath, at| path.query(SimTime::from_secs(at), &[1]).of(0);
        assert_eq!(of(&mut path, 390.0), None, "older than 5 minutes");
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
