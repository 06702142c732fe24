//! Runs in a cluster: pods start phase by phase, controllers see the run through their metric path, faults lose no request.

use std::sync::{Arc, Mutex};

use crate::common::clusters::{PLAIN, cluster, ran, refused, run, scenario, secs};
use sim::kernel::time::SimTime;
use sim::kube::record::{Controller, PHASES};
use sim::observer::Observer;
use sim::record::{RequestRow, RunRecord};
use sim::report::RunReport;
use sim::request::Outcome;
use sim::run::Run;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

#[test]
fn a_second_replica_is_ready_after_the_sum_of_its_phases() {
    let record = ran(&["change=[{ at = \"100 s\", replicas = 2 }, { at = \"110 s\", nodes = 2 }]"]);
    let c = cluster(&record);
    assert_eq!((c.nodes.len(), c.pods.len()), (2, 2));
    let (node, pod) = (&c.nodes[1], &c.pods[1]);
    let times = [
        node.requested,
        node.ready,
        node.usable,
        pod.created,
        pod.scheduled,
        pod.started,
        pod.loaded,
        pod.up,
        pod.ready,
    ];
    // Probes come every 10 s from the container's start at 190 s: the first that finds the server at 225 s is that of 230 s.
    assert_eq!(
        times.map(secs),
        [
            110.0, 160.0, 170.0, 100.0, 170.0, 190.0, 220.0, 225.0, 230.0
        ]
    );
    let phases = pod.phases(Some(node), c.end).map(|d| secs(SimTime(d.0)));
    let expected = [10.0, 50.0, 10.0, 20.0, 30.0, 0.0, 5.0, 0.0, 5.0, 0.0];
    assert_eq!(phases, expected, "{PHASES:?}");
    let rows = record.request_rows.as_ref().unwrap();
    let first = rows
        .iter()
        .filter(|r| r.replica == 1)
        .map(|r| r.arrival)
        .min();
    assert_eq!(
        first.map(secs),
        Some(231.0),
        "round robin: every other one from then on"
    );
    assert_eq!(record.counts.finished, record.counts.offered);
}

#[test]
fn without_room_a_pod_stays_pending_and_the_report_says_why() {
    let record = ran(&["change=[{ at = \"100 s\", replicas = 3 }]"]);
    let report = RunReport::new(&record, 0.0);
    let told = report.cluster.expect("a cluster");
    assert_eq!(told.pending.len(), 2);
    assert_eq!(
        told.pending[0].reason,
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    );
    let text = sim::report::text::render(&RunReport::new(&record, 0.0), Default::default());
    assert!(text.contains("Insufficient nvidia.com/gpu"), "{text}");
}

/// KEDA on the gateway's list, from zero and back.
const TO_ZERO: [&str; 3] = [
    "autoscaler.keda={ pollingInterval = 30, cooldownPeriod = 100, maxReplicaCount = 1, triggers = [{ type = \"redis\", threshold = 5 }] }",
    "autoscaler.cluster_autoscaler={ gpu-pod-buffer = \"2 s\", scale-down-unneeded-time = \"60 s\", scale-down-delay-after-add = \"60 s\" }",
    "cluster.replicas=0",
];

#[test]
fn requests_wait_at_the_gateway_until_keda_has_brought_a_replica_and_it_goes_to_zero_again() {
    let mut overrides = TO_ZERO.to_vec();
    overrides.extend([
        "workload[0].requests=20",
        "run={ duration = \"900 s\", drain = false }",
    ]);
    let record = ran(&overrides);
    let c = cluster(&record);
    assert_eq!(record.counts.finished, 20);
    let ready = c.replicas[0].served[0].1;
    let rows = record.request_rows.as_ref().unwrap();
    assert!(rows.iter().all(|r| r.first_scheduled >= ready));
    let woke = c
        .decisions
        .iter()
        .find(|d| d.controller == Controller::Keda && d.to == 1)
        .expect("awake");
    assert!(
        secs(woke.at) <= 31.0 && woke.inputs.starts_with("listLength"),
        "{woke:?}"
    );
    let slept = c
        .decisions
        .iter()
        .find(|d| d.controller == Controller::Keda && d.to == 0 && d.from == 1)
        .expect("asleep");
    // The last poll that saw a queue came before the replica was ready; the cooldown runs from there.
    let quiet = slept.at.since(ready).as_secs();
    assert!((70.0..=130.0).contains(&quiet), "{quiet}");
    let node = &c.nodes[0];
    assert!(node.gone != SimTime::NEVER, "{node:?}");
    assert_eq!(node.why_gone, "removed by the Cluster Autoscaler");
    assert!(c.usd().expect("a price") < 3.6 * 0.25);
}

const HPA: &str = "autoscaler.hpa={ maxReplicas = 4, metrics = [{ metric = \"vllm:num_requests_waiting\", averageValue = 4 }] }";

#[test]
fn the_hpa_follows_a_queue_through_its_metric_path_and_nodes_follow_it() {
    // A replica serves 4 req/s; 9 req/s need three.
    let record = ran(&[
        HPA,
        "autoscaler.cluster_autoscaler={}",
        "workload[0].arrival={ kind = \"steps\", cv = 0, steps = [{ rate = \"1 req/s\", duration = \"100 s\" }, { rate = \"9 req/s\", duration = \"900 s\" }, { rate = \"1 req/s\", duration = \"2600 s\" }] }",
        "run={ duration = \"3600 s\", drain = false }",
        "autoscaler.metrics={ scrape_interval = \"15 s\", metrics_relist_interval = \"15 s\" }",
    ]);
    let c = cluster(&record);
    let up = c
        .decisions
        .iter()
        .find(|d| d.controller == Controller::Hpa && d.to > d.from)
        .expect("up");
    // One scrape and one reconcile after the queue has begun to grow, not at once.
    let lag = secs(up.at) - 100.0;
    assert!((1.0..=35.0).contains(&lag), "{lag}: {up:?}");
    assert!(up.why.contains("vllm:num_requests_waiting"), "{up:?}");
    let grown = c
        .decisions
        .iter()
        .find(|d| d.controller == Controller::ClusterAutoscaler && d.to > d.from)
        .expect("nodes");
    let wait = grown.at.since(up.at).as_secs();
    assert!(
        (30.0..=41.0).contains(&wait),
        "the 30 s of pods with GPUs and a scan: {wait}"
    );
    let most = c.samples.iter().map(|s| s.ready).max();
    assert!(most >= Some(3), "{most:?}");
    let last = c.samples.last().expect("samples");
    assert_eq!(
        (last.ready, last.nodes),
        (1, 1),
        "back to what is needed: {last:?}"
    );
    let kept = c
        .decisions
        .iter()
        .any(|d| d.controller == Controller::Hpa && d.from == d.to && d.why.starts_with("kept"));
    assert!(kept, "reasons of what was left alone are told too");
    assert_eq!(record.counts.failed, 0, "draining loses nothing");
}

#[test]
fn the_same_bytes_on_any_number_of_threads_and_in_any_pace() {
    let s = scenario(&[
        HPA,
        "autoscaler.cluster_autoscaler={}",
        "workload[0].arrival={ kind = \"poisson\", rate = \"9 req/s\" }",
        "fault=[{ kind = \"replica\", mtbf = \"5 min\" }, { kind = \"node\", at = \"200 s\", noticed_after = \"40 s\" }]",
        "run.duration=900 s",
    ]);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| run(&s))
    };
    let one = on(1);
    for threads in [2, 4] {
        let other = on(threads);
        assert_eq!(one.fingerprint, other.fingerprint, "{threads} threads");
        assert_eq!(one.cluster, other.cluster, "{threads} threads");
    }
    // Watched runs advance instant by instant.
    struct Watch(Arc<Mutex<u64>>);
    impl Observer for Watch {
        fn request(&mut self, _: &RequestRow) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let mut built = s.build().unwrap();
    let seen = Arc::new(Mutex::new(0));
    let spec = built.cluster.clone().expect("a cluster");
    let mut options = RunOptions::default();
    options.record.slo = built.slo;
    let mut watched = Run::in_cluster(
        &built.simulation,
        Box::new(&mut built.workload),
        &options,
        &spec,
        Some(Box::new(Watch(seen.clone()))),
    )
    .unwrap();
    watched.run_to_end().unwrap();
    let watched = watched.finish(built.info).unwrap();
    assert_eq!(watched.fingerprint, one.fingerprint);
    assert_eq!(watched.cluster, one.cluster);
    assert_eq!(*seen.lock().unwrap(), one.counts.offered);
}

#[test]
fn a_gang_is_ready_when_all_its_pods_are_and_fails_as_a_whole() {
    let record = ran(&[
        "cluster.pod.size=2",
        "cluster.pod.accelerators=1",
        "cluster.node_group[0].accelerators=1",
        "change=[{ at = \"100 s\", replicas = 2 }, { at = \"100 s\", nodes = 3 }, { at = \"200 s\", nodes = 4 }]",
        "workload[0].arrival.rate=4 req/s",
        "fault=[{ kind = \"replica\", at = \"400.05 s\", target = 1 }]",
    ]);
    let c = cluster(&record);
    assert_eq!(c.replicas[1].name, "server-1");
    let [leader, worker] = [&c.pods[2], &c.pods[3]];
    assert_eq!(
        (leader.name.as_str(), worker.name.as_str()),
        ("server-1", "server-1-1")
    );
    assert_eq!(
        [leader.scheduled, worker.scheduled].map(secs),
        [160.0, 260.0],
        "the second node came later"
    );
    assert_eq!(leader.ready, worker.ready);
    assert_eq!(c.replicas[1].served[0].1, worker.ready);
    assert_eq!(
        leader.phases(c.node_of(leader), c.end)[5].as_secs(),
        100.0,
        "waited for its gang"
    );
    // The crash ends both pods; a group of the same name is made on the same nodes, which have the image.
    assert_eq!([leader.gone, worker.gone].map(secs), [400.05, 400.05]);
    let again = &c.replicas[2];
    assert_eq!(
        (again.name.as_str(), secs(again.created)),
        ("server-1", 400.05)
    );
    assert_eq!(c.pods[again.pods[0]].started, again.created, "no pull");
    assert!(record.counts.failed > 0);
}

#[test]
fn a_spot_node_is_drained_at_the_notice_and_its_group_replaces_it() {
    let record = ran(&[
        "cluster.replicas=2",
        "cluster.node_group[0].spot=true",
        "cluster.pod.terminationGracePeriodSeconds=60",
        "fault=[{ kind = \"spot\", at = \"100 s\", target = 0 }]",
    ]);
    let c = cluster(&record);
    assert_eq!(
        record.counts.failed, 0,
        "two minutes are enough for requests of one second"
    );
    assert_eq!(
        [c.nodes[0].tainted, c.nodes[0].gone].map(secs),
        [100.0, 220.0]
    );
    assert_eq!(c.nodes[0].why_gone, "reclaimed");
    assert_eq!(
        secs(c.nodes[2].requested),
        260.0,
        "the group keeps its size, 40 s after the loss"
    );
    assert_eq!(
        secs(c.replicas[2].created),
        100.0,
        "the pod is replaced when it is evicted"
    );
    assert_eq!(secs(c.pods[2].ready), 380.0, "{:?}", c.pods[2]);
}

#[test]
fn a_lost_node_fails_what_it_held_and_its_pods_come_back_when_that_is_noticed() {
    let record = ran(&[
        "cluster.replicas=2",
        "workload[0].arrival.rate=4 req/s",
        "fault=[{ kind = \"node\", at = \"100.05 s\", target = 0, noticed_after = \"40 s\" }]",
    ]);
    let c = cluster(&record);
    assert!(record.counts.failed > 0);
    let lost = record
        .request_rows
        .as_ref()
        .unwrap()
        .iter()
        .filter(|r| r.outcome == Outcome::Failed);
    assert!(
        lost.clone().all(|r| secs(r.end) == 100.05),
        "with it, and none later"
    );
    assert_eq!(secs(c.replicas[2].created), 140.05);
    assert_eq!(secs(c.nodes[2].requested), 140.05);
}

#[test]
fn a_refused_instance_is_told_and_its_group_backed_off() {
    let record = ran(&[
        "autoscaler.cluster_autoscaler={}",
        "fault=[{ kind = \"no_capacity\", at = \"50 s\", duration = \"250 s\" }]",
        "change=[{ at = \"100 s\", replicas = 2 }]",
        "run={ duration = \"1200 s\", drain = false }",
    ]);
    let c = cluster(&record);
    let refused = c.nodes.iter().filter(|n| n.is_refused).count();
    assert_eq!(refused, 1, "backed off for five minutes: {:?}", c.nodes);
    let again = c
        .nodes
        .iter()
        .find(|n| !n.is_refused && n.requested > SimTime::ZERO)
        .expect("a second try");
    let pause = again.requested.since(c.nodes[1].gone).as_secs();
    assert!((300.0..=310.0).contains(&pause), "{pause}");
    assert!(
        c.decisions
            .iter()
            .any(|d| d.why.contains("no capacity for another instance"))
    );
}

#[test]
fn no_metric_no_decision_while_prometheus_is_down() {
    let record = ran(&[
        HPA,
        "workload[0].arrival.rate=9 req/s",
        "cluster.node_group[0].nodes=4",
        "fault=[{ kind = \"metrics_outage\", at = \"0 s\", duration = \"300 s\" }]",
    ]);
    let c = cluster(&record);
    let up = c
        .decisions
        .iter()
        .find(|d| d.to > d.from)
        .expect("scaled at last");
    assert!(secs(up.at) >= 300.0, "{up:?}");
    assert!(
        c.decisions
            .iter()
            .any(|d| d.why.contains("connection refused"))
    );
}

#[test]
fn a_slow_node_slows_the_engines_that_start_on_it() {
    let record = ran(&[
        "cluster.start=cold",
        "cluster.node_group[0].nodes=1",
        "fault=[{ kind = \"straggler\", at = \"0 s\", factor = 3 }]",
    ]);
    let rows = record.request_rows.as_ref().unwrap();
    let alone = rows.last().expect("rows");
    assert!(
        (alone.end.since(alone.first_scheduled).as_secs() - 3.0).abs() < 0.5,
        "{alone:?}"
    );
}

#[test]
fn a_run_ends_when_nothing_can_serve_what_waits() {
    let record = ran(&[
        "cluster.start=cold",
        "cluster.node_group[0].nodes=0",
        "cluster.patience=10 min",
        "run.duration=60 s",
    ]);
    assert_eq!(record.counts.in_flight, record.counts.offered);
    assert!(secs(record.end) < 800.0);
}

#[test]
fn wrong_manifests_are_refused_with_their_place_and_what_would_be_right() {
    refused(
        &["cluster.node_group[0].min=5"],
        &[
            "cluster.node_group[0].max: must be at least min (5), got 4",
            "plain.toml:19",
        ],
    );
    refused(
        &["cluster.pod.size=9", "cluster.pod.accelerators=1"],
        &["a replica has 9 pods", "raise max"],
    );
    refused(
        &[
            "cluster.pod.accelerators=8",
            "cluster.node_group[0].accelerators=4",
        ],
        &["no node has room for a pod", "Insufficient nvidia.com/gpu"],
    );
    refused(
        &[
            "autoscaler.hpa={ maxReplicas = 2, metrics = [{ metric = \"tgi_queue_size\", averageValue = 5 }] }",
        ],
        &[
            "autoscaler.hpa.metrics[0].metric: nobody exports `tgi_queue_size`",
            "vllm:num_requests_waiting",
        ],
    );
    refused(
        &[
            "autoscaler.hpa={ minReplicas = 3, maxReplicas = 2, metrics = [{ metric = \"vllm:num_requests_waiting\", averageValue = 5 }] }",
        ],
        &["autoscaler.hpa.maxReplicas: must be at least 1 and at least minReplicas (3), got 2"],
    );
    refused(
        &[
            "autoscaler.hpa={ maxReplicas = 2, metrics = [{ type = \"Pods\", metric = \"vllm:num_requests_waiting\", value = 5 }] }",
        ],
        &["autoscaler.hpa.metrics[0].target: a metric of this type takes averageValue"],
    );
    refused(
        &["autoscaler.hpa={ min_replicas = 3 }"],
        &["did you mean `minReplicas`"],
    );
    refused(
        &["autoscaler.keda={ triggers = [{ type = \"redis\", threshold = 5, metric = \"x\" }] }"],
        &["leave this out"],
    );
    refused(
        &["fault=[{ kind = \"spot\", at = \"1 s\" }]"],
        &["no node group has spot = true"],
    );
    refused(&["fault=[{ kind = \"node\" }]"], &["needs `at` or `mtbf`"]);
    refused(
        &["change=[{ at = \"1 s\", minReplicas = 2 }]"],
        &["there is no [autoscaler.hpa]"],
    );
    refused(
        &["change=[{ at = \"1 s\", node_group = \"gp\", max = 2 }]"],
        &["unknown node group `gp`; did you mean `gpu`?"],
    );
    refused(
        &["cluster.node_group[0].boot={ kind = \"lognormal\", median = \"9 s\" }"],
        &["`sigma` is missing"],
    );
    let without =
        PLAIN.split("[cluster]").next().unwrap().to_owned() + "[autoscaler.cluster_autoscaler]\n";
    let e = Scenario::parse(&without, "plain.toml", &[])
        .expect_err("no cluster")
        .to_string();
    assert!(e.contains("needs a [cluster]"), "{e}");
}

#[test]
fn a_cluster_reads_back_from_what_is_shown() {
    let s = scenario(&[
        HPA,
        "autoscaler.hpa.behavior={ scaleDown = { stabilizationWindowSeconds = 60, policies = [{ type = \"Percent\", value = 50, periodSeconds = 60 }] } }",
        "autoscaler.cluster_autoscaler={ expander = \"least-waste\" }",
        "fault=[{ kind = \"node\", mtbf = { kind = \"weibull\", scale = \"10 h\", shape = 1.5 } }]",
        "change=[{ at = \"100 s\", minReplicas = 2 }]",
        "cluster.node_group[0].boot={ kind = \"lognormal\", median = \"90 s\", sigma = 0.3 }",
    ]);
    let again = Scenario::parse(&s.show(), "plain.toml", &[])
        .unwrap_or_else(|e| panic!("{e}\n{}", s.show()));
    assert_eq!(s, again, "{}", s.show());
}

/// The folder of measurements that are not shipped; `None` where there is none, which is said.
fn measured(test: &str) -> Option<std::path::PathBuf> {
    match std::env::var_os("SERVETWIN_MEASURED") {
        Some(dir) => Some(dir.into()),
        None => {
            eprintln!("SKIPPED {test}: SERVETWIN_MEASURED names no folder");
            None
        }
    }
}

fn shipped(name: &str) -> RunRecord {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../scenarios")
        .join(name);
    run(&Scenario::load(&file, &[]).unwrap_or_else(|e| panic!("{e}")))
}

/// Values of a column of a table, by a word that the row holds.
fn cell(file: &std::path::Path, holds: &str, column: usize) -> String {
    let mut rows =
        csv::Reader::from_path(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let row = rows
        .records()
        .map(|r| r.unwrap())
        .find(|r| r.iter().any(|c| c.contains(holds)))
        .unwrap_or_else(|| panic!("{}: no row with {holds}", file.display()));
    row[column].to_owned()
}

#[test]
fn the_eks_walk_through_takes_the_measured_times() {
    let Some(dir) = measured("the EKS walk-through") else {
        return;
    };
    let file = dir.join("cluster_timeline.csv");
    let figure = |holds: &str| -> f64 { cell(&file, holds, 1).parse().unwrap() };
    let record = shipped("cluster-405b-eks-lws.toml");
    let c = cluster(&record);
    const PATCH: f64 = 600.0;
    let created = secs(c.replicas[1].created);
    // An upper bound, by when the pods were listed; the HPA looks every 15 s.
    assert!(
        created - PATCH <= figure("pods Pending").max(15.0),
        "{created}"
    );
    assert_eq!(c.replicas[1].pods.len(), 2);
    let up = c
        .decisions
        .iter()
        .find(|d| d.controller == Controller::ClusterAutoscaler && d.to == 4)
        .expect("2 to 4");
    let trigger = secs(up.at) - created;
    assert!(
        (trigger - figure("TriggeredScaleUp")).abs() <= 10.0,
        "a scan of 10 s: {trigger}"
    );
    let registered: Vec<f64> = c.nodes[2..4]
        .iter()
        .map(|n| secs(n.ready) - created)
        .collect();
    let told = figure("pod created to both nodes registered");
    assert!(
        registered.iter().all(|r| (r - told).abs() <= 60.0),
        "ages are told in minutes: {registered:?}"
    );
    // From a node to a ready pod: no longer than the first listing says.
    let start = secs(c.pods[2].ready) - secs(c.pods[2].scheduled);
    assert!(start <= figure("first deployment listing"), "{start}");
    // The patch is taken back at 80 min: the second replica drains, its nodes go after the unneeded time.
    assert!(
        c.replicas[1].draining > SimTime::from_secs(4800.0) && c.replicas[1].gone != SimTime::NEVER
    );
    for node in &c.nodes[2..4] {
        let unneeded = secs(node.gone) - secs(c.replicas[1].gone);
        assert!((600.0..=640.0).contains(&unneeded), "{node:?}");
    }
    assert_eq!(record.counts.failed, 0);
}

/// Seconds of a time of day.
fn day(utc: &str) -> f64 {
    let time = utc
        .split('T')
        .nth(1)
        .and_then(|t| t.strip_suffix('Z'))
        .unwrap_or_else(|| panic!("{utc}"));
    time.split(':')
        .fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

#[test]
fn the_gke_episode_takes_its_measured_course() {
    let Some(dir) = measured("the GKE episode") else {
        return;
    };
    let events = dir.join("cluster/gke_t4_scale_from_zero_events.csv");
    let begin = day(&cell(&events, "30 requests fired", 1));
    let told = |holds: &str| day(&cell(&events, holds, 1)) - begin;
    let record = shipped("cluster-gke-t4-from-zero.toml");
    let c = cluster(&record);
    let decided = |who: Controller, to: i64| {
        secs(
            c.decisions
                .iter()
                .find(|d| d.controller == who && d.to == to && d.from != to)
                .expect("decided")
                .at,
        )
    };
    let near = |what: &str, got: f64, want: f64, period: f64| {
        assert!(
            (got - want).abs() <= period,
            "{what}: {got} s, measured {want} s, period {period} s"
        );
    };
    let woke = decided(Controller::Keda, 1);
    near("KEDA wakes", woke, told("vllm 0 to 1"), 30.0);
    near(
        "scale-up",
        decided(Controller::ClusterAutoscaler, 1) - woke,
        told("gpu pool 0 to 1") - told("vllm 0 to 1"),
        12.0,
    );
    let (node, pod) = (&c.nodes[0], &c.pods[0]);
    let late = woke - told("vllm 0 to 1");
    near(
        "node Ready",
        secs(node.ready) - late,
        told("not yet allocatable"),
        12.0,
    );
    near(
        "scheduled",
        secs(pod.scheduled) - late,
        told("vllm on the GPU node"),
        12.0,
    );
    near(
        "container",
        secs(pod.started) - late,
        told("vllm container"),
        12.0,
    );
    near(
        "ready",
        secs(pod.ready) - late,
        told("last failing readiness"),
        17.0,
    );
    near(
        "first completion",
        secs(record.request_rows.as_ref().unwrap()[0].end) - late,
        told("first completions"),
        30.0,
    );
    near(
        "KEDA sleeps",
        decided(Controller::Keda, 0) - late,
        told("KEDAScaleTargetDeactivated"),
        30.0,
    );
    // The queue: within 20 % at the measured instants, or within the half minute between two looks at it.
    let queue = dir.join("cluster/gke_t4_scale_from_zero_queue.csv");
    for row in csv::Reader::from_path(&queue).unwrap().records() {
        let row = row.unwrap();
        let (at, want): (f64, f64) = (day(&row[1]) - begin, row[2].parse().unwrap());
        let fits = c.samples.iter().any(|s| {
            (secs(s.at) - at).abs() <= 30.0 && (s.held as f64 - want).abs() <= 0.2 * want + 0.5
        });
        assert!(fits, "queue at {at} s: {want}");
    }
}
