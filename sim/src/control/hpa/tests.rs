//! The whole controller: one sync after another (4.6 to 4.8). Its parts have vectors in `sim/tests/hpa`.

use super::spec::{Behavior, ScalingPolicy};
use super::*;
use crate::kernel::time::SimDuration;
use pods::{PodPhase, ReadyCondition, Sample};

fn at(secs: u64) -> SimTime {
    SimTime(secs * 1_000_000_000)
}

fn queue_ratio(min: i32, max: i32, behavior: Option<Behavior>) -> Hpa {
    let spec = HpaSpec {
        min_replicas: Some(min),
        max_replicas: max,
        metrics: vec![metric(
            "queue",
            MetricSource::Pods,
            MetricTarget::AverageValue(1000),
        )],
        behavior,
    };
    Hpa::new(spec, Settings::default()).expect("a right spec")
}

fn metric(name: &str, source: MetricSource, target: MetricTarget) -> MetricSpec {
    MetricSpec {
        name: name.to_owned(),
        source,
        target,
    }
}

fn ready_pods(n: i32) -> Vec<PodState> {
    let ready = ReadyCondition {
        is_ready: true,
        since: SimTime::ZERO,
    };
    let pod = PodState {
        phase: PodPhase::Running,
        deleted: false,
        started: Some(SimTime::ZERO),
        ready: Some(ready),
    };
    vec![pod; n.try_into().expect("a count")]
}

fn each(pods: &[PodState], value_milli: i64, now: SimTime) -> PodSamples {
    let sample = Sample {
        value_milli,
        taken: now,
        window: SimDuration::ZERO,
    };
    PodSamples {
        of_pods: vec![Some(sample); pods.len()],
        unlisted: 0,
    }
}

/// A sync in which all pods have the same value.
fn sync(hpa: &mut Hpa, now: SimTime, replicas: i32, value_milli: i64) -> Decision {
    let pods = ready_pods(replicas);
    let reading = Reading::Pods(each(&pods, value_milli, now));
    hpa.sync(now, scale(replicas, &pods), &[reading])
}

fn scale(replicas: i32, pods: &[PodState]) -> Scale<'_> {
    Scale {
        spec_replicas: replicas,
        status_replicas: replicas,
        pods,
    }
}

fn reason(condition: &Option<Condition>) -> (bool, &str) {
    condition
        .as_ref()
        .map_or((false, ""), |c| (c.is_true, c.reason.as_str()))
}

#[test]
fn a_decision_says_why() {
    let mut hpa = queue_ratio(1, 10, None);
    let kept = sync(&mut hpa, at(0), 3, 1070);
    assert_eq!((kept.scale_to, kept.desired), (None, 3));
    assert_eq!(kept.why, "kept 3: ratio 1.07 within tolerance (queue)");
    assert_eq!(kept.able_to_scale.reason, "ReadyForNewScale");
    let up = sync(&mut hpa, at(15), 3, 1500);
    assert_eq!((up.scale_to, up.desired), (Some(5), 5));
    assert_eq!(up.why, "3 to 5: ratio 1.50 over 3 ready pods (queue)");
    assert_eq!(reason(&up.scaling_active), (true, "ValidMetricFound"));
    assert_eq!(reason(&up.scaling_limited), (false, "DesiredWithinRange"));
}

#[test]
fn no_replicas_disable_the_autoscaler_unless_min_is_zero() {
    let disabled = sync(&mut queue_ratio(1, 10, None), at(0), 0, 5000);
    assert_eq!(
        (disabled.scale_to, reason(&disabled.scaling_active)),
        (None, (false, "ScalingDisabled"))
    );
    let spec = HpaSpec {
        min_replicas: Some(0),
        max_replicas: 10,
        metrics: vec![metric(
            "backlog",
            MetricSource::External,
            MetricTarget::AverageValue(2000),
        )],
        behavior: None,
    };
    let mut from_zero = Hpa::new(spec, Settings::default()).expect("External allows zero");
    assert_eq!(
        from_zero
            .sync(at(0), scale(0, &[]), &[Reading::Series(vec![5000])])
            .scale_to,
        Some(3)
    );
    let after = from_zero.sync(
        at(15),
        scale(3, &ready_pods(3)),
        &[Reading::Series(vec![0])],
    );
    assert_eq!(after.scale_to, None, "stabilized: {}", after.why);
    let later = from_zero.sync(
        at(316),
        scale(3, &ready_pods(3)),
        &[Reading::Series(vec![0])],
    );
    assert_eq!(later.scale_to, Some(0), "{}", later.why);
}

#[test]
fn bounds_come_before_metrics() {
    let above = sync(&mut queue_ratio(2, 5, None), at(0), 9, 5000);
    assert_eq!(
        (above.scale_to, above.why.as_str()),
        (Some(5), "9 to 5: above maxReplicas")
    );
    assert!(above.metrics.is_empty());
    let below = sync(&mut queue_ratio(2, 5, None), at(0), 1, 5000);
    assert_eq!(
        (below.scale_to, below.why.as_str()),
        (Some(2), "1 to 2: below minReplicas")
    );
}

#[test]
fn the_largest_proposal_wins_and_a_failed_metric_forbids_scale_down() {
    let spec = HpaSpec {
        min_replicas: None,
        max_replicas: 20,
        metrics: vec![
            metric(
                "a",
                MetricSource::External,
                MetricTarget::AverageValue(1000),
            ),
            metric("b", MetricSource::Object, MetricTarget::Value(1000)),
        ],
        behavior: None,
    };
    let pods = ready_pods(4);
    let sync = |a: Reading, b: Reading| {
        let mut hpa = Hpa::new(spec.clone(), Settings::default()).expect("a right spec");
        hpa.sync(at(0), scale(4, &pods), &[a, b])
    };
    let series = |milli| Reading::Series(vec![milli]);
    let failed = || Reading::Unavailable("timeout".to_owned());
    let both = sync(series(5000), series(1500));
    assert_eq!((both.scale_to, both.metrics.len()), (Some(6), 2));
    assert_eq!(sync(series(7000), series(1500)).scale_to, Some(7));
    assert_eq!(
        sync(failed(), series(1500)).scale_to,
        Some(6),
        "the others would scale up"
    );
    let forbidden = sync(failed(), series(500));
    assert_eq!(
        (forbidden.scale_to, reason(&forbidden.scaling_active)),
        (None, (false, "FailedGetExternalMetric"))
    );
    assert!(
        forbidden
            .why
            .starts_with("kept 4: a metric failed, and the others would scale down; a:"),
        "{}",
        forbidden.why
    );
    let none = sync(failed(), Reading::Series(Vec::new()));
    assert!(
        none.why.starts_with("kept 4: no metric gave a count; a:"),
        "{}",
        none.why
    );
    assert_eq!(
        reason(&sync(series(5000), series(1000)).scaling_active),
        (true, "ValidMetricFound")
    );
}

#[test]
fn without_behavior_scale_down_waits_five_minutes() {
    let mut hpa = queue_ratio(1, 10, None);
    // What a fresh controller finds counts as a recommendation.
    for secs in (0..=300).step_by(15) {
        let held = sync(&mut hpa, at(secs), 4, 400);
        assert_eq!(held.scale_to, None, "at {secs} s: {}", held.why);
        assert_eq!(held.able_to_scale.reason, "ScaleDownStabilized");
    }
    assert_eq!(sync(&mut hpa, at(315), 4, 400).scale_to, Some(2));
}

#[test]
fn without_behavior_scale_up_at_most_doubles() {
    let up = sync(&mut queue_ratio(1, 100, None), at(0), 3, 20_000);
    assert_eq!(
        (up.scale_to, reason(&up.scaling_limited)),
        (Some(6), (true, "ScaleUpLimit"))
    );
    assert!(
        up.why.ends_with("; 6, limited by the rate of scale-up"),
        "{}",
        up.why
    );
    assert_eq!(
        sync(&mut queue_ratio(1, 100, None), at(0), 1, 20_000).scale_to,
        Some(4)
    );
}

#[test]
fn rates_of_behavior_count_executed_changes() {
    let mut behavior = Behavior::default();
    behavior.scale_up.policies = vec![ScalingPolicy::pods(2, 60)];
    let mut hpa = queue_ratio(1, 100, Some(behavior));
    assert_eq!(sync(&mut hpa, at(0), 3, 9000).scale_to, Some(5));
    let spent = sync(&mut hpa, at(59), 5, 9000);
    assert_eq!(
        (spent.scale_to, reason(&spent.scaling_limited)),
        (None, (true, "ScaleUpLimit"))
    );
    assert_eq!(sync(&mut hpa, at(60), 5, 9000).scale_to, Some(7));
}

#[test]
fn windows_of_behavior_hold_either_direction() {
    let mut behavior = Behavior::default();
    behavior.scale_up.stabilization_window = Some(SimDuration(60_000_000_000));
    behavior.scale_down.stabilization_window = Some(SimDuration::ZERO);
    let mut hpa = queue_ratio(1, 100, Some(behavior));
    let held = sync(&mut hpa, at(0), 4, 2000);
    assert_eq!(
        (held.scale_to, held.able_to_scale.reason.as_str()),
        (None, "ScaleUpStabilized")
    );
    assert_eq!(
        sync(&mut hpa, at(60), 4, 2000).scale_to,
        Some(8),
        "{}",
        held.why
    );
    assert_eq!(
        sync(&mut hpa, at(75), 8, 500).scale_to,
        Some(4),
        "no window down"
    );
}

#[test]
fn own_tolerances_hold_in_their_direction() {
    let mut behavior = Behavior::default();
    behavior.scale_up.tolerance = Some(0.0);
    let mut hpa = queue_ratio(1, 100, Some(behavior));
    assert_eq!(sync(&mut hpa, at(0), 4, 1010).scale_to, Some(5));
    assert_eq!(sync(&mut hpa, at(15), 5, 950).scale_to, None);
}

#[test]
fn resources_and_containers_are_measured_by_their_requests() {
    for source in [
        MetricSource::Resource,
        MetricSource::ContainerResource {
            container: "server".to_owned(),
        },
    ] {
        let spec = HpaSpec {
            min_replicas: None,
            max_replicas: 20,
            metrics: vec![metric("cpu", source.clone(), MetricTarget::Utilization(50))],
            behavior: None,
        };
        let mut hpa = Hpa::new(spec, Settings::default()).expect("a right spec");
        let (pods, now) = (ready_pods(2), at(1000));
        let mut reading = |requests_milli: Vec<Option<i64>>| {
            let samples = each(&pods, 900, now);
            hpa.sync(
                now,
                scale(2, &pods),
                &[Reading::Resource {
                    samples,
                    requests_milli,
                }],
            )
        };
        assert_eq!(reading(vec![Some(1000); 2]).scale_to, Some(4));
        let missing = reading(vec![Some(1000), None]);
        assert_eq!(missing.scale_to, None);
        assert!(
            missing.why.contains("missing request for cpu in container"),
            "{}",
            missing.why
        );
    }
}

#[test]
fn an_average_of_cpu_minds_readiness_and_one_of_memory_does_not() {
    for (name, expected) in [("cpu", Some(2)), ("memory", Some(4))] {
        let spec = HpaSpec {
            min_replicas: None,
            max_replicas: 20,
            metrics: vec![metric(
                name,
                MetricSource::Resource,
                MetricTarget::AverageValue(500),
            )],
            behavior: None,
        };
        let mut hpa = Hpa::new(spec, Settings::default()).expect("a right spec");
        let mut pods = ready_pods(2);
        let now = at(1000);
        // Never was ready.
        pods[1].ready = Some(ReadyCondition {
            is_ready: false,
            since: at(1),
        });
        let samples = each(&pods, 1000, now);
        let requests_milli = vec![None; 2];
        let decision = hpa.sync(
            now,
            scale(2, &pods),
            &[Reading::Resource {
                samples,
                requests_milli,
            }],
        );
        assert_eq!(
            decision.scale_to.or(Some(decision.desired)),
            expected,
            "{name}: {}",
            decision.why
        );
    }
}

#[test]
fn a_reading_of_another_kind_is_an_error_and_no_panic() {
    let mut hpa = queue_ratio(1, 10, None);
    let pods = ready_pods(2);
    let decision = hpa.sync(at(0), scale(2, &pods), &[Reading::Series(vec![1])]);
    assert_eq!(decision.metrics, [Err(MetricError::WrongReading)]);
    assert_eq!(hpa.sync(at(0), scale(2, &pods), &[]).scale_to, None);
}
