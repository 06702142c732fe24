//! Runs in a cluster under each autoscaler that is no HPA: decisions at the instants that their rules give, with inputs and reasons, and the same record on any
//! number of threads.

use crate::common::clusters::{cluster, ran, refused, run, scenario, secs};
use sim::kube::record::{Controller, DecisionRow};
use sim::record::RunRecord;
use sim::report::RunReport;

/// 1 request a second, 9 from 100 s to 1000 s, then 1 again. A replica serves 4 a second.
const LOAD: &str = "workload[0].arrival={ kind = \"steps\", cv = 0, steps = [{ rate = \"1 req/s\", duration = \"100 s\" }, { rate = \"9 req/s\", duration = \"900 s\" }, { rate = \"1 req/s\", duration = \"2600 s\" }] }";
const HOUR: &str = "run={ duration = \"3600 s\", drain = false }";

const TRACKING: &str = "autoscaler.sagemaker={ MaxCapacity = 4, TargetTrackingScaling = { PredefinedMetricType = \"SageMakerVariantInvocationsPerInstance\", TargetValue = 180 } }";
const CONCURRENT: &str = "autoscaler.sagemaker={ MaxCapacity = 4, TargetTrackingScaling = { PredefinedMetricType = \"SageMakerVariantConcurrentRequestsPerModelHighResolution\", TargetValue = 4 } }";
const STEPS: &str = "autoscaler.sagemaker={ MaxCapacity = 4, StepScaling = [{ Alarm = { MetricName = \"ConcurrentRequestsPerModel\", Threshold = 8 }, StepAdjustments = [{ MetricIntervalLowerBound = 0, MetricIntervalUpperBound = 200, ScalingAdjustment = 1 }, { MetricIntervalLowerBound = 200, ScalingAdjustment = 2 }] }] }";
const SCHEDULED: &str = "autoscaler.sagemaker={ MaxCapacity = 4, StartsAt = \"2026-01-05T07:50:00\", ScheduledActions = [{ ScheduledActionName = \"morning\", Schedule = \"cron(0 8 ? * MON-FRI *)\", MinCapacity = 3 }, { Schedule = \"at(2026-01-05T08:30:00)\", MinCapacity = 1, MaxCapacity = 2 }] }";
const DYNAMO_FAST: &str =
    "autoscaler.dynamo={ mode = \"agg\", optimization_target = \"latency\", max_gpu_budget = 4 }";
const DYNAMO_SLOW: &str = "autoscaler.dynamo={ mode = \"agg\", optimization_target = \"sla\", throughput_adjustment_interval = \"60 s\", ttft = 500, itl = 150 }";
const WVA: &str = "autoscaler.wva={ maxReplicas = 4 }";
const EPP: &str = "autoscaler.epp={ maxReplicaCount = 4, runningRequestsThreshold = 3, stabilizationWindowSeconds = 60 }";
const NODES: &str = "autoscaler.cluster_autoscaler={ scale-down-unneeded-time = \"60 s\", scale-down-delay-after-add = \"60 s\" }";
const KARPENTER: &str = "autoscaler.karpenter={ disruption = { consolidateAfter = \"60 s\", budgets = [{ nodes = \"100%\" }] } }";

fn decisions(record: &RunRecord, who: Controller) -> Vec<&DecisionRow> {
    let own = |d: &&DecisionRow| d.controller == who && d.from != d.to;
    cluster(record).decisions.iter().filter(own).collect()
}

fn changes(record: &RunRecord, who: Controller) -> Vec<(f64, i64, i64)> {
    let of = |d: &DecisionRow| (secs(d.at), d.from, d.to);
    decisions(record, who).into_iter().map(of).collect()
}

#[track_caller]
fn served_all(record: &RunRecord) {
    assert_eq!(
        record.counts.failed, 0,
        "draining loses nothing: {:?}",
        record.counts
    );
    assert!(record.counts.finished > record.counts.offered * 9 / 10);
}

#[test]
fn target_tracking_follows_its_alarms_and_instances_follow_it() {
    let record = ran(&[TRACKING, LOAD, HOUR]);
    // The minutes that end at 120, 180 and 240 s are above 180 requests; the last is published at 300 s: ceil(1 x 540 / 180).
    // Below 162 are those that end at 1020 to 1860 s: published at 1920 s.
    assert_eq!(
        changes(&record, Controller::TargetTracking),
        [(300.0, 1, 3), (1920.0, 3, 1)]
    );
    let d = decisions(&record, Controller::TargetTracking)[0];
    assert!(d.inputs.starts_with("metric 540"), "{d:?}");
    assert_eq!(
        d.why, "1 to 3: alarm, metric 540.0000 above target 180",
        "{d:?}"
    );
    let c = cluster(&record);
    let bought: Vec<f64> = c.nodes.iter().map(|n| secs(n.requested)).collect();
    assert_eq!(bought, [0.0, 300.0, 300.0], "instances with the capacity");
    assert_eq!(c.samples.last().map(|s| (s.ready, s.nodes)), Some((1, 1)));
    served_all(&record);
    let report = RunReport::new(&record, 0.0).cluster.expect("a cluster");
    assert!(
        report
            .decisions
            .iter()
            .any(|d| d.controller == "target-tracking" && !d.inputs.is_empty())
    );
}

#[test]
fn concurrent_requests_are_seen_within_half_a_minute() {
    let record = ran(&[CONCURRENT, LOAD, HOUR]);
    let first = changes(&record, Controller::TargetTracking)[0];
    // In hand are more than 4 from the ten seconds that end at 110 s on; three of them are published at 140 s.
    assert_eq!((first.0, first.1), (140.0, 1), "{first:?}");
    served_all(&record);
}

#[test]
fn step_scaling_takes_the_step_that_the_distance_gives_and_cools_down() {
    let record = ran(&[STEPS, LOAD, HOUR]);
    let all = changes(&record, Controller::StepScaling);
    // At 120 s about a hundred are in hand, less than 200 above the threshold: one more. A minute later it is hundreds: two more from the capacity before.
    assert_eq!(all[..2], [(180.0, 1, 2), (240.0, 2, 3)], "{all:?}");
    let told: Vec<&str> = cluster(&record)
        .decisions
        .iter()
        .filter(|d| d.controller == Controller::StepScaling)
        .map(|d| d.why.as_str())
        .collect();
    assert!(told.iter().any(|w| w.ends_with("in Cooldown")), "{told:?}");
}

#[test]
fn scheduled_actions_move_bounds_and_capacity_at_their_time() {
    let record = ran(&[SCHEDULED, HOUR]);
    assert_eq!(
        changes(&record, Controller::Scheduled),
        [(600.0, 1, 3), (2400.0, 3, 2)]
    );
    let d = decisions(&record, Controller::Scheduled)[0];
    assert!(d.why.contains("by morning"), "{d:?}");
}

#[test]
fn a_forecast_is_met_before_its_hour() {
    let history: Vec<String> = (0..24)
        .map(|h| if h == 1 { "540" } else { "60" }.to_owned())
        .collect();
    let policy = format!(
        "autoscaler.sagemaker={{ MaxCapacity = 4, PredictiveScaling = {{ Mode = \"ForecastAndScale\", TargetValue = 180, History = [{}] }} }}",
        history.join(", ")
    );
    let record = ran(&[
        &policy,
        "workload[0].arrival={ kind = \"steps\", cv = 0, steps = [{ rate = \"1 req/s\", duration = \"1 h\" }, { rate = \"9 req/s\", duration = \"10 min\" }] }",
        "run={ duration = \"70 min\", drain = false }",
    ]);
    assert_eq!(
        changes(&record, Controller::Predictive),
        [(3300.0, 1, 3)],
        "SchedulingBufferTime before the hour"
    );
    let rows = record.request_rows.as_ref().unwrap().iter();
    let slow = rows.filter(|r| r.outcome == sim::request::Outcome::Finished);
    let slow = slow.filter(|r| r.first_token.since(r.arrival).as_secs() > 2.0);
    assert_eq!(slow.count(), 0, "the capacity is there when the load comes");
}

#[test]
fn dynamo_s_fast_loop_adds_a_worker_where_one_is_over_its_threshold() {
    let record = ran(&[DYNAMO_FAST, LOAD, HOUR, NODES]);
    let all = changes(&record, Controller::Dynamo);
    // 0.4 of 16 000 KV tokens are 400 prompts of 16 tokens: at 5 a second more than are served that is 80 s after the load comes.
    let (at, from, to) = all[0];
    assert_eq!((from, to), (1, 2), "{all:?}");
    assert!((170.0..=200.0).contains(&at), "{all:?}");
    let d = decisions(&record, Controller::Dynamo)[0];
    assert!(d.inputs.contains("prompt tokens queued"), "{d:?}");
    assert!(d.why.contains("scale_up: 1 to 2"), "{d:?}");
    let end = cluster(&record).samples.last().map(|s| s.desired);
    assert_eq!(end, Some(1), "back when it is calm: {all:?}");
}

#[test]
fn dynamo_s_slow_loop_scales_by_what_an_engine_can_do() {
    let record = ran(&[DYNAMO_SLOW, LOAD, HOUR, NODES]);
    let all = changes(&record, Controller::Dynamo);
    // Four sequences at 100 ms a step and a prefill of 100 ms each: 140 ms a token, 2.86 requests a second; 220 requests in a minute need two
    // workers, 540 need four.
    assert_eq!(all[..2], [(120.0, 1, 2), (180.0, 2, 4)], "{all:?}");
    assert_eq!(all.last().map(|c| c.2), Some(1), "{all:?}");
    let d = decisions(&record, Controller::Dynamo)[1];
    assert!(
        d.why.contains("540.0 requests of 16 + 10 tokens foreseen"),
        "{d:?}"
    );
    served_all(&record);
}

#[test]
fn the_variant_autoscaler_wishes_and_its_hpa_acts() {
    let record = ran(&[WVA, LOAD, HOUR, NODES]);
    let wish = decisions(&record, Controller::Wva)[0];
    assert_eq!(secs(wish.at) % 60.0, 0.0, "once a minute: {wish:?}");
    assert!(wish.why.contains("demand"), "{wish:?}");
    assert!(wish.inputs.contains("KV cache at most"), "{wish:?}");
    let acted = decisions(&record, Controller::Hpa)[0];
    assert!(
        acted.at > wish.at && acted.inputs.contains("wva_desired_replicas"),
        "{acted:?}"
    );
    // A scrape of 30 s, and a reconcile of 15 s.
    assert!(acted.at.since(wish.at).as_secs() <= 45.0, "{acted:?}");
}

#[test]
fn keda_follows_the_endpoint_picker() {
    let record = ran(&[EPP, LOAD, HOUR, NODES]);
    let up = decisions(&record, Controller::Hpa)[0];
    assert!(up.to > 1 && up.inputs.contains("pool-saturation"), "{up:?}");
    let end = cluster(&record)
        .samples
        .last()
        .map(|s| (s.desired, s.nodes));
    assert_eq!(end, Some((1, 1)));
}

#[test]
fn karpenter_buys_the_cheapest_and_gives_it_back() {
    let record = ran(&[
        KARPENTER,
        "cluster.node_group=[{ name = \"dear\", min = 1, max = 4, price = \"3.6 USD/h\", boot = \"50 s\", device_plugin = \"10 s\" }, { name = \"cheap\", max = 2, price = \"1.8 USD/h\", boot = \"50 s\", device_plugin = \"10 s\" }]",
        "change=[{ at = \"100 s\", replicas = 4 }, { at = \"900 s\", replicas = 1 }]",
        "run={ duration = \"1800 s\", drain = false }",
    ]);
    let c = cluster(&record);
    let of = |group: &str| {
        c.nodes
            .iter()
            .filter(|n| n.group == group && !n.is_refused)
            .count()
    };
    // The first, which a cheap one replaces before the others come, and two where the cheap ones are out.
    assert_eq!(of("dear"), 3, "{:?}", c.decisions);
    let refused = c.nodes.iter().filter(|n| n.is_refused).count();
    assert!(refused >= 1, "the third was refused: {:?}", c.nodes);
    let all = decisions(&record, Controller::Karpenter);
    let first = all.iter().find(|d| d.why.contains("claimed"));
    let first = first.expect("a claim");
    assert_eq!(secs(first.at), 101.0, "BATCH_IDLE_DURATION after the pods");
    assert!(first.why.contains("claimed 3 x"), "{first:?}");
    // One replica is left, and it ends on a cheap node.
    let left: Vec<&str> = (c.nodes.iter())
        .filter(|n| n.gone > c.end && !n.is_refused)
        .map(|n| n.group.as_str())
        .collect();
    assert_eq!(left, ["cheap"], "{:?}", c.nodes);
    let by_karpenter = |n: &&sim::kube::record::NodeRow| n.why_gone.contains("Karpenter");
    assert_eq!(
        c.nodes.iter().filter(by_karpenter).count(),
        c.nodes.len() - refused - 1
    );
    assert_eq!(c.samples.last().map(|s| (s.ready, s.nodes)), Some((1, 1)));
    assert_eq!(record.counts.failed, 0);
}

#[test]
fn karpenter_brings_back_what_a_fault_took() {
    let record = ran(&[
        KARPENTER,
        "cluster.replicas=2",
        "fault=[{ kind = \"node\", at = \"200 s\", target = 0, noticed_after = \"40 s\" }]",
    ]);
    let c = cluster(&record);
    assert_eq!(c.nodes.len(), 3);
    let back = secs(c.nodes[2].requested);
    assert_eq!(back, 241.0, "when the pod is made anew, and a batch later");
    assert_eq!(c.samples.last().map(|s| s.ready), Some(2));
}

#[test]
fn every_controller_leaves_the_same_record_on_any_number_of_threads() {
    for keys in [
        vec![TRACKING],
        vec![CONCURRENT],
        vec![STEPS],
        vec![SCHEDULED],
        vec![DYNAMO_FAST, NODES],
        vec![DYNAMO_SLOW, NODES],
        vec![WVA, NODES],
        vec![EPP, KARPENTER],
    ] {
        let mut all = keys.clone();
        all.extend([
            "workload[0].arrival={ kind = \"poisson\", rate = \"7 req/s\" }",
            "fault=[{ kind = \"node\", at = \"400 s\", noticed_after = \"40 s\" }]",
            "run.duration=900 s",
        ]);
        let s = scenario(&all);
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| run(&s))
        };
        let one = on(1);
        for threads in [2, 4] {
            let other = on(threads);
            assert_eq!(
                one.fingerprint, other.fingerprint,
                "{keys:?}, {threads} threads"
            );
            assert_eq!(one.cluster, other.cluster, "{keys:?}, {threads} threads");
        }
        let again = sim::scenario::Scenario::parse(&s.show(), "plain.toml", &[]);
        let again = again.unwrap_or_else(|e| panic!("{e}\n{}", s.show()));
        assert_eq!(s, again, "{}", s.show());
    }
}

#[test]
fn bounds_of_an_endpoint_are_patched() {
    let record = ran(&[
        TRACKING,
        HOUR,
        "change=[{ at = \"600 s\", minReplicas = 2 }]",
    ]);
    let patched = &decisions(&record, Controller::Operator)[0];
    assert_eq!((patched.from, patched.to), (1, 2));
    assert_eq!(
        patched.why,
        "RegisterScalableTarget: MinCapacity 2, MaxCapacity 4"
    );
}

#[test]
fn wrong_settings_are_refused_at_their_keys() {
    refused(
        &[TRACKING, "autoscaler.wva={ maxReplicas = 2 }"],
        &["autoscaler.sagemaker", "would fight with [autoscaler.wva]"],
    );
    refused(
        &["autoscaler.sagemaker={ MaxCapacity = 4 }"],
        &["has no policy: write TargetTrackingScaling"],
    );
    refused(
        &[
            "autoscaler.sagemaker={ MaxCapacity = 4, TargetTrackingScaling = { PredefinedMetricType = \"SageMakerVariantInvocationsPerInstance\", TargetValue = 0 } }",
        ],
        &["autoscaler.sagemaker.TargetTrackingScaling.TargetValue: must be above 0, got 0"],
    );
    refused(
        &["autoscaler.sagemaker={ MaxCapacity = 4, TargetTrackingScaling = { TargetValues = 5 } }"],
        &["did you mean `TargetValue`"],
    );
    refused(
        &["autoscaler.sagemaker={ MinCapacity = 5, MaxCapacity = 4 }"],
        &["MinCapacity (5) must be at most MaxCapacity (4)"],
    );
    refused(
        &[
            "autoscaler.sagemaker={ MaxCapacity = 4, StepScaling = [{ Alarm = { MetricName = \"InvocationsPerInstance\", Threshold = 8, Period = 45 }, StepAdjustments = [{ ScalingAdjustment = 1 }] }] }",
        ],
        &[
            "autoscaler.sagemaker.StepScaling[0].Alarm.Period: must be 10 s, 30 s or a multiple of 60 s",
        ],
    );
    refused(
        &[
            "autoscaler.sagemaker={ MaxCapacity = 4, ScheduledActions = [{ Schedule = \"cron(0 25 * * ? *)\", MinCapacity = 2 }] }",
        ],
        &[
            "autoscaler.sagemaker.ScheduledActions[0]",
            "hour: `25` is not within 0 to 23",
        ],
    );
    refused(
        &[
            "autoscaler.sagemaker={ MaxCapacity = 4, PredictiveScaling = { TargetValue = 60, History = [1, 2] } }",
        ],
        &[
            "autoscaler.sagemaker.PredictiveScaling.History: a forecast needs at least 24 hours, got 2",
        ],
    );
    refused(
        &["autoscaler.dynamo={}"],
        &["autoscaler.dynamo.mode", "write mode = \"agg\""],
    );
    refused(
        &["autoscaler.dynamo={ mode = \"agg\", itl = 0 }"],
        &["autoscaler.dynamo.itl: must be above 0, got 0"],
    );
    refused(
        &["autoscaler.wva={ maxReplicas = 4, config = { scaleUpThreshold = 0.6 } }"],
        &["autoscaler.wva.config", "must be above scaleDownBoundary"],
    );
    refused(
        &["autoscaler.epp={ saturationThreshold = 0 }"],
        &["autoscaler.epp.saturationThreshold: must be above 0, got 0"],
    );
    refused(
        &[KARPENTER, NODES],
        &["autoscaler.karpenter: takes the place of [autoscaler.cluster_autoscaler]"],
    );
    refused(
        &["autoscaler.karpenter={ disruption = { budgets = [{ nodes = \"ten\" }] } }"],
        &["autoscaler.karpenter.disruption.budgets[0].nodes: must be a number"],
    );
    refused(
        &[
            "autoscaler.karpenter={}",
            "cluster.node_group=[{ max = 4 }]",
        ],
        &["cluster.node_group[0].price: Karpenter chooses by price"],
    );
}
