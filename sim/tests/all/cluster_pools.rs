//! Pools on a cluster: each its own Deployment, all of them on the same nodes.

use crate::common::clusters::{APART, MODELS, check_books, cluster, refused_text, run, secs};
use sim::kube::record::{Controller, DeploymentSample};
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::cluster::ClusterReport;
use sim::request::Outcome;
use sim::scenario::Scenario;
use sim::simulation::{Path, RunOptions};

fn scenario(text: &str, overrides: &[&str]) -> Scenario {
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    Scenario::parse(text, "pools.toml", &overrides).unwrap_or_else(|e| panic!("{e}"))
}

fn ran(text: &str, overrides: &[&str]) -> RunRecord {
    run(&scenario(text, overrides))
}

fn report(record: &RunRecord) -> ClusterReport {
    RunReport::new(record, 0.0).cluster.expect("a cluster")
}

/// The state of a deployment when it was first sampled at or after `at` [s].
fn state(record: &RunRecord, name: &str, at: f64) -> DeploymentSample {
    let d = (cluster(record).deployments.iter()).find(|d| d.name == name);
    let samples = &d.expect("a deployment of that name").samples;
    *samples.iter().find(|s| secs(s.at) >= at).expect("a sample")
}

#[track_caller]
fn refused(text: &str, overrides: &[&str], words: &[&str]) {
    refused_text(text, "pools.toml", overrides, words);
}

#[test]
fn a_pool_is_scaled_and_the_other_stays_as_it_is() {
    let record = ran(
        APART,
        &["change=[{ at = \"100 s\", pool = \"decode\", replicas = 3 }]"],
    );
    assert_eq!(record.counts.finished, record.counts.offered);
    let (p, d) = (
        state(&record, "prefill", 90.0),
        state(&record, "decode", 90.0),
    );
    assert_eq!((p.desired, p.ready, d.desired, d.ready), (1, 1, 1, 1));
    let (p, d) = (
        state(&record, "prefill", 400.0),
        state(&record, "decode", 400.0),
    );
    assert_eq!((p.desired, p.ready, d.desired, d.ready), (1, 1, 3, 1));
    assert_eq!(d.pending_pods, 2, "no node for them, and nobody adds one");
    let decision = &cluster(&record).decisions[0];
    assert_eq!(
        (decision.about.as_str(), decision.from, decision.to),
        ("decode replicas", 1, 3)
    );
}

#[test]
fn pods_of_all_pools_wait_for_nodes_of_the_same_autoscaler() {
    let record = ran(
        APART,
        &[
            "change=[{ at = \"60 s\", pool = \"decode\", replicas = 3 }, { at = \"60 s\", pool = \"prefill\", replicas = 2 }]",
            "autoscaler.cluster_autoscaler={}",
        ],
    );
    assert_eq!(record.counts.finished, record.counts.offered);
    let c = cluster(&record);
    assert_eq!(c.nodes.len(), 5, "two at the start, one for each pod more");
    let (p, d) = (
        state(&record, "prefill", 500.0),
        state(&record, "decode", 500.0),
    );
    assert_eq!((p.ready, d.ready), (2, 3));
    // Whoever is ready takes its share of what comes.
    let mut replicas: Vec<u32> = (record.request_rows.as_ref().unwrap().iter())
        .filter(|r| secs(r.arrival) > 500.0)
        .map(|r| r.replica)
        .collect();
    replicas.sort_unstable();
    replicas.dedup();
    assert_eq!(replicas.len(), 3, "decode replicas: {replicas:?}");
}

#[test]
fn two_models_share_a_node_and_pay_for_what_their_pods_hold() {
    let record = ran(MODELS, &[]);
    assert_eq!(record.counts.finished, record.counts.offered);
    let c = report(&record);
    assert_eq!(c.nodes.requested, 1, "one accelerator and two of four");
    let hours = secs(cluster(&record).end) / 3600.0;
    let usd: Vec<f64> = c.deployments.iter().map(|d| d.usd.unwrap()).collect();
    assert!(
        (usd[0] - hours).abs() < 1e-9 && (usd[1] - 2.0 * hours).abs() < 1e-9,
        "{usd:?}"
    );
    assert!((c.usd.unwrap() - 4.0 * hours).abs() < 1e-9);
    for row in record.request_rows.as_ref().unwrap() {
        let pool = cluster(&record).engine_deployments(2)[row.replica as usize];
        assert_eq!(pool, usize::from(row.prompt_tokens > 100), "{row:?}");
    }
    let pools = RunReport::new(&record, 0.0).pools;
    assert_eq!((pools[0].replicas, pools[1].replicas), (1, 1));
    assert!(
        pools[0].busy_ratio > 0.5 && pools[0].busy_ratio <= 1.0,
        "{pools:?}"
    );
}

#[test]
fn a_pool_that_grows_takes_the_room_that_another_gave_back() {
    // The large one has two of four accelerators, the small one grows to two, and then four pods of one find no room for a third.
    let record = ran(
        MODELS,
        &[
            "cluster.node_group[0].max=1",
            "change=[{ at = \"60 s\", pool = \"small\", replicas = 4 }, { at = \"300 s\", pool = \"large\", replicas = 0 }]",
            "workload[1].timeout=5 s",
        ],
    );
    let before = state(&record, "small", 280.0);
    assert_eq!((before.ready, before.pending_pods), (2, 2));
    let after = state(&record, "small", 500.0);
    assert_eq!((after.ready, after.pending_pods), (4, 0));
    assert_eq!(state(&record, "large", 500.0).ready, 0);
    assert!(
        state(&record, "large", 400.0).held > 0,
        "they wait at the gateway"
    );
    assert_eq!(state(&record, "small", 400.0).held, 0);
    let c = cluster(&record);
    let reason = c
        .pods
        .iter()
        .map(|p| p.unschedulable.as_str())
        .find(|t| !t.is_empty());
    assert_eq!(
        reason,
        Some("0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    );
}

#[test]
fn a_pod_is_placed_on_the_groups_that_its_pool_names() {
    let groups = "cluster.node_group=[{ name = \"a\", max = 1, nodes = 1 }, { name = \"b\", max = 1, nodes = 1 }]";
    let record = ran(
        APART,
        &[
            groups,
            "pool[0].node_groups=[\"a\"]",
            "pool[1].node_groups=[\"b\"]",
            "change=[{ at = \"60 s\", pool = \"decode\", replicas = 0 }, { at = \"70 s\", pool = \"prefill\", replicas = 2 }, { at = \"200 s\", pool = \"decode\", replicas = 1 }]",
        ],
    );
    let c = cluster(&record);
    for pod in &c.pods {
        let group = c.node_of(pod).map(|n| n.group.as_str());
        let own = if pod.name.starts_with("prefill") {
            "a"
        } else {
            "b"
        };
        assert!(group.is_none_or(|g| g == own), "{pod:?} on {group:?}");
    }
    let waits = c.pods.iter().find(|p| !p.unschedulable.is_empty()).unwrap();
    assert_eq!(
        waits.unschedulable,
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector"
    );
    refused(
        APART,
        &[groups, "pool[0].node_groups=[\"c\"]"],
        &["pool[0].node_groups[0]", "node group", "`c`"],
    );
}

#[test]
fn requests_wait_at_the_gateway_until_both_stages_are_there() {
    let record = ran(
        APART,
        &[
            "cluster.start=cold",
            "pool[0].pod={ weights_load = \"10 s\" }",
            "pool[1].pod={ weights_load = \"100 s\" }",
            "autoscaler.cluster_autoscaler={}",
        ],
    );
    assert_eq!(record.counts.finished, record.counts.offered);
    let ready = |d: usize| {
        let mut all = cluster(&record)
            .replicas
            .iter()
            .filter(|r| r.deployment == d);
        secs(all.next().unwrap().served[0].1)
    };
    assert!(ready(1) > ready(0) + 80.0, "{} {}", ready(0), ready(1));
    let rows = record.request_rows.as_ref().unwrap();
    let first = rows
        .iter()
        .map(|r| secs(r.first_scheduled))
        .fold(f64::MAX, f64::min);
    assert!(
        first >= ready(1),
        "prefilled at {first}, with nobody to decode until {}",
        ready(1)
    );
}

#[test]
fn a_prefill_replica_that_dies_loses_what_it_holds_and_the_gateway_tries_again() {
    let slow = [
        "workload[0].arrival.rate=3 req/s",
        "kv_transfer={ bandwidth = \"1 MB/s\", latency = \"1 ms\", bytes_per_token = 100000, first_token = \"decode\" }",
        "pool[0].replicas=2",
        "fault=[{ kind = \"replica\", pool = \"prefill\", at = \"100 s\", target = 0 }, { kind = \"replica\", pool = \"decode\", at = \"300 s\" }]",
    ];
    let fails = ran(APART, &slow);
    assert!(fails.counts.failed > 2, "{:?}", fails.counts);
    assert!(fails.transfers.as_ref().unwrap().broken_off > 2);
    let mut tries = slow.to_vec();
    tries.push("router.retries={ max = 3, budget_percent = 100 }");
    let again = ran(APART, &tries);
    assert_eq!(
        again.counts.finished, again.counts.offered,
        "{:?}",
        again.counts
    );
    assert!(again.gateway.unwrap().retries > 2);
}

#[test]
fn a_drained_prefill_replica_waits_until_its_kv_was_fetched() {
    // 1.6 MB at 0.5 MB/s: 3.2 s each, one at a time for each decode replica.
    let slow =
        "kv_transfer={ bandwidth = \"500 kB/s\", latency = \"1 ms\", bytes_per_token = 100000 }";
    let of = |grace: &str| {
        let grace = format!("cluster.pod.terminationGracePeriodSeconds={grace}");
        let all = [
            slow,
            grace.as_str(),
            "pool[0].replicas=2",
            "pool[1].replicas=4",
            "workload[0].arrival.rate=1 req/s",
            "change=[{ at = \"100.5 s\", pool = \"prefill\", replicas = 1 }]",
        ];
        ran(APART, &all)
    };
    let record = of("600");
    assert_eq!(
        record.counts.finished, record.counts.offered,
        "{:?}",
        record.counts
    );
    let gone = cluster(&record)
        .replicas
        .iter()
        .find(|r| secs(r.gone) < 1e9)
        .unwrap();
    let engine = gone.served[0].0;
    let last = (record
        .transfers
        .as_ref()
        .unwrap()
        .rows
        .as_ref()
        .unwrap()
        .iter())
    .filter(|t| t.from == engine)
    .map(|t| secs(t.ended))
    .fold(0.0, f64::max);
    assert!(last > 101.0, "it held KV when it was told to end");
    assert!(
        secs(gone.gone) >= last,
        "gone at {}, fetched at {last}",
        secs(gone.gone)
    );
    let killed = of("0");
    assert!(killed.transfers.unwrap().broken_off > 0);
    assert_eq!(
        killed.counts.failed, 0,
        "vLLM computes it again where it is decoded"
    );
}

#[test]
fn a_degraded_kv_link_stretches_transfers_and_nothing_else() {
    let times = |record: &RunRecord, from: f64, to: f64| -> Vec<f64> {
        (record
            .transfers
            .as_ref()
            .unwrap()
            .rows
            .as_ref()
            .unwrap()
            .iter())
        .filter(|t| secs(t.began) > from && secs(t.began) < to)
        .map(|t| secs(t.ended) - secs(t.began))
        .collect()
    };
    let fault = |more: &str| {
        let line = format!(
            "fault=[{{ kind = \"degraded_link\", link = \"kv\", at = \"200 s\", duration = \"100 s\", share = 0.01{more} }}]"
        );
        ran(APART, &[&line])
    };
    for record in [fault(""), fault(", pool = \"decode\"")] {
        assert_eq!(record.counts.finished, record.counts.offered);
        // 1.6 MB at 1 GB/s after 1 ms, and at a hundredth of it.
        for (from, to, want) in [
            (0.0, 199.0, 0.0026),
            (201.0, 299.0, 0.161),
            (301.0, 599.0, 0.0026),
        ] {
            let all = times(&record, from, to);
            assert!(all.len() > 90, "{} transfers", all.len());
            assert!(all.iter().all(|t| (t - want).abs() < 1e-6), "{all:?}");
        }
        let why = &(cluster(&record).decisions.iter()).find(|d| d.controller == Controller::Fault);
        assert_eq!(why.unwrap().about, "kv links");
    }
    refused(
        MODELS,
        &["fault=[{ kind = \"degraded_link\", link = \"kv\", at = \"1 s\" }]"],
        &["fault[0].link", "no KV goes"],
    );
    refused(
        APART,
        &["fault=[{ kind = \"node\", link = \"kv\", at = \"1 s\" }]"],
        &["fault[0].link", "degraded_link"],
    );
}

#[test]
fn a_degraded_link_of_a_node_slows_the_kv_of_its_replicas() {
    // Two nodes of one accelerator: the fault hits the one that prefills, or the one that decodes, which starts anew on it.
    let times = |record: &RunRecord, from: f64, to: f64| -> Vec<f64> {
        let rows = record.transfers.as_ref().unwrap().rows.as_ref().unwrap();
        (rows.iter())
            .filter(|t| secs(t.began) > from && secs(t.began) < to)
            .map(|t| secs(t.ended) - secs(t.began))
            .collect()
    };
    for pool in ["prefill", "decode"] {
        let fault = format!(
            "fault=[{{ kind = \"degraded_link\", pool = \"{pool}\", at = \"200 s\", duration = \"200 s\", share = 0.01 }}, {{ kind = \"replica\", pool = \"{pool}\", at = \"300 s\" }}]"
        );
        let record = ran(
            APART,
            &[&fault, "router.retries={ max = 3, budget_percent = 100 }"],
        );
        // 1.6 MB at 1 GB/s after 1 ms, and at a hundredth of it: of an engine that starts on the node, too.
        for (from, to, want, least) in [
            (0.0, 199.0, 0.0026, 90),
            (201.0, 299.0, 0.161, 90),
            (350.0, 399.0, 0.161, 30),
            (401.0, 599.0, 0.0026, 90),
        ] {
            let all = times(&record, from, to);
            assert!(all.len() > least, "{pool}: {} transfers", all.len());
            // Where a backlog is sent at once, transfers share the port.
            let shortest = all.iter().copied().fold(f64::MAX, f64::min);
            assert!(
                (shortest - want).abs() < 1e-6,
                "{pool}: {shortest} from {from} s on"
            );
        }
    }
}

#[test]
fn a_partition_of_a_pool_fails_what_that_pool_serves() {
    let record = ran(
        MODELS,
        &[
            "pool[0].replicas=2",
            "fault=[{ kind = \"router_partition\", pool = \"small\", all = true, at = \"200 s\", duration = \"60 s\", connect_timeout = \"1 s\" }]",
        ],
    );
    let failed = |stream: u16| {
        let rows = record.request_rows.as_ref().unwrap().iter();
        rows.filter(|r| r.stream == stream && r.outcome == Outcome::Failed)
            .count()
    };
    assert!((118..=122).contains(&failed(0)), "{} of 120", failed(0));
    assert_eq!(failed(1), 0);
}

#[test]
fn each_hpa_sees_the_metrics_of_its_own_pool() {
    let hpa = |metric: &str, target: u32| {
        format!(
            "{{ hpa = {{ maxReplicas = 4, metrics = [{{ type = \"Pods\", metric = \"{metric}\", averageValue = {target} }}] }}, metrics = {{ scrape_interval = \"5 s\", metrics_relist_interval = \"5 s\" }} }}"
        )
    };
    let (p, d) = (
        format!("pool[0].autoscaler={}", hpa("vllm:num_requests_running", 2)),
        format!("pool[1].autoscaler={}", hpa("vllm:num_requests_running", 2)),
    );
    let record = ran(
        APART,
        &[
            &p,
            &d,
            "workload[0].arrival.rate=3.9 req/s",
            "autoscaler.cluster_autoscaler={}",
            "cluster.pod.terminationGracePeriodSeconds=300",
        ],
    );
    // A prefill takes a step, a decode nine: one replica prefills with less than one request in its batch, and decode needs two.
    assert_eq!(state(&record, "prefill", 550.0).desired, 1);
    assert!(state(&record, "decode", 550.0).desired >= 2);
    assert_eq!(record.counts.finished, record.counts.offered);
    let c = report(&record);
    let hpa: Vec<_> = c
        .decisions
        .iter()
        .filter(|d| d.controller == "hpa")
        .collect();
    assert!(
        !hpa.is_empty() && hpa.iter().all(|d| d.about == "decode replicas"),
        "{hpa:?}"
    );
}

#[test]
fn a_gateway_metric_is_that_of_the_pools_that_take_the_same_requests() {
    let keda = "autoscaler={ keda = { minReplicaCount = 1, maxReplicaCount = 3, pollingInterval = 10, triggers = [{ type = \"prometheus\", metric = \"envoy_cluster_upstream_rq_active\", threshold = 3 }] } }";
    let (small, large) = (format!("pool[0].{keda}"), format!("pool[1].{keda}"));
    let record = ran(
        MODELS,
        &[
            &small,
            &large,
            "workload[1].arrival.rate=12 req/s",
            "cluster.node_group[0].max=3",
            "autoscaler.cluster_autoscaler={}",
        ],
    );
    assert_eq!(state(&record, "small", 500.0).desired, 1);
    assert_eq!(state(&record, "large", 500.0).desired, 3);
}

#[test]
fn dynamos_planner_scales_prefill_and_decode() {
    for target in ["throughput", "latency", "sla"] {
        let planner = format!(
            "autoscaler.dynamo={{ mode = \"disagg\", optimization_target = \"{target}\", max_gpu_budget = 8, ttft = 200, itl = 120, throughput_adjustment_interval = \"60 s\" }}"
        );
        let record = ran(
            APART,
            &[
                &planner,
                "autoscaler.cluster_autoscaler={}",
                "workload[0].arrival.rate=12 req/s",
                "workload[0].prompt=3000",
                "step={ base = \"20 ms\", per_token = \"40 us\", per_context_token = \"4 us\" }",
                "cluster.pod.terminationGracePeriodSeconds=300",
            ],
        );
        let of = |name: &str| {
            (cluster(&record).decisions.iter())
                .filter(|d| d.controller == Controller::Dynamo && d.about == name && d.from != d.to)
                .map(|d| d.to)
                .max()
        };
        assert!(
            of("prefill replicas").is_some_and(|n| n > 1),
            "{target}: {:?}",
            cluster(&record)
                .decisions
                .iter()
                .filter(|d| d.controller == Controller::Dynamo)
                .map(|d| (&d.about, d.to, &d.why))
                .take(9)
                .collect::<Vec<_>>()
        );
        assert!(
            of("decode replicas").is_some_and(|n| n > 1),
            "{target}: {:?}",
            cluster(&record)
                .decisions
                .iter()
                .filter(|d| d.controller == Controller::Dynamo)
                .map(|d| (&d.about, d.to, &d.why))
                .take(9)
                .collect::<Vec<_>>()
        );
        let most = (cluster(&record).decisions.iter())
            .filter(|d| d.about.ends_with(" replicas"))
            .map(|d| d.to);
        assert!(most.max().unwrap() <= 7, "the budget is 8 accelerators");
    }
}

#[test]
fn a_rolling_update_and_bounds_are_of_one_pool() {
    let hpa = "autoscaler={ hpa = { maxReplicas = 2, metrics = [{ type = \"External\", metric = \"envoy_cluster_upstream_rq_active\", averageValue = 100 }] } }";
    let small = format!("pool[0].{hpa}");
    let record = ran(
        MODELS,
        &[
            &small,
            "change=[{ at = \"60 s\", pool = \"large\", restart = true }, { at = \"100 s\", pool = \"small\", minReplicas = 2 }]",
        ],
    );
    assert_eq!(record.counts.finished, record.counts.offered);
    let created = |d: usize| {
        cluster(&record)
            .replicas
            .iter()
            .filter(|r| r.deployment == d)
            .count()
    };
    assert_eq!((created(0), created(1)), (2, 2));
    assert_eq!(state(&record, "small", 300.0).desired, 2);
    refused(
        MODELS,
        &["change=[{ at = \"1 s\", replicas = 2 }]"],
        &["change[0]", "`pool` is missing", "small, large"],
    );
    refused(
        MODELS,
        &["change=[{ at = \"1 s\", pool = \"large\", minReplicas = 2 }]"],
        &["change[0]", "no [autoscaler.hpa]"],
    );
    refused(
        MODELS,
        &["change=[{ at = \"1 s\", pool = \"huge\", replicas = 2 }]"],
        &["change[0].pool", "huge"],
    );
}

#[test]
fn a_node_takes_down_what_all_pools_have_on_it() {
    let record = ran(
        MODELS,
        &[
            "fault=[{ kind = \"node\", pool = \"large\", at = \"200 s\", noticed_after = \"10 s\" }]",
        ],
    );
    let lost: Vec<usize> = (cluster(&record).replicas.iter())
        .filter(|r| r.why_gone == "lost with its node")
        .map(|r| r.deployment)
        .collect();
    assert_eq!(lost, [0, 1]);
    assert_eq!(state(&record, "small", 590.0).ready, 1);
    assert_eq!(state(&record, "large", 590.0).ready, 1);
}

#[test]
fn what_pools_and_cluster_refuse_names_key_and_reason() {
    for (overrides, words) in [
        (
            &["cluster.replicas=2"][..],
            &["cluster.replicas", "those of each [[pool]]"][..],
        ),
        (
            &["autoscaler.hpa={ maxReplicas = 2, metrics = [] }"],
            &[
                "autoscaler.hpa",
                "autoscaler = { hpa = { ... } } in the [[pool]]",
            ],
        ),
        (
            &["pool[0].autoscaler={ karpenter = {} }"],
            &["pool[0].autoscaler.karpenter", "scales nodes"],
        ),
        (
            &["pool[1].pod={ name = \"prefill\" }"],
            &["pool[1].pod.name", "names of Deployments are unique"],
        ),
        (
            &["autoscaler.dynamo={ mode = \"agg\" }"],
            &["autoscaler.dynamo.mode", "disagg"],
        ),
        (
            &["pool[0].autoscaler={ dynamo = { mode = \"disagg\" } }"],
            &["pool[0].autoscaler.dynamo.mode", "mode = \"prefill\""],
        ),
        (
            &["pool[0].replicas=9"],
            &[
                "pool[0].replicas",
                "pool `prefill`",
                "room for 8 of their 9 pods",
            ],
        ),
        (
            &["pool[0].pod={ accelerators = 3, size = 0 }"],
            &["pool[0].pod.size", "from 1 to"],
        ),
        (
            &["fault=[{ kind = \"node\", pool = \"decode\", mtbf = \"1 h\" }]"],
            &["fault[0].pool", "needs `at`"],
        ),
        (
            &["fault=[{ kind = \"metrics_outage\", pool = \"decode\", at = \"1 s\" }]"],
            &["fault[0].pool", "as a whole"],
        ),
        (
            &["fault=[{ kind = \"replica\", all = true, mtbf = \"1 h\" }]"],
            &["fault[0].all", "`at`"],
        ),
    ] {
        refused(APART, overrides, words);
    }
    let alone = APART.split("[cluster]").next().unwrap();
    refused(
        alone,
        &["pool[0].pod={ size = 1 }"],
        &["pool[0].pod", "needs a [cluster]"],
    );
    refused(
        MODELS,
        &["autoscaler.dynamo={}"],
        &["autoscaler.dynamo", "role = \"prefill\""],
    );
}

#[test]
fn a_scenario_with_pools_on_a_cluster_is_shown_and_read_back_the_same() {
    for (text, more) in [
        (
            APART,
            "pool[1].autoscaler={ keda = { triggers = [{ type = \"redis\", threshold = 2 }] } }",
        ),
        (MODELS, "pool[0].node_groups=[\"gpu\"]"),
    ] {
        let s = scenario(text, &[more]);
        let shown = s.show();
        let back =
            Scenario::parse(&shown, "pools.toml", &[]).unwrap_or_else(|e| panic!("{e}\n{shown}"));
        assert_eq!(back, s, "{shown}");
        assert_eq!(back.show(), shown);
    }
}

#[test]
fn the_same_bytes_on_either_path_and_any_pace() {
    let of = |path: Path, check: bool| {
        let options = RunOptions {
            path,
            check,
            ..RunOptions::default()
        };
        let record = scenario(
            MODELS,
            &[
                "router.policy=round_robin",
                "fault=[{ kind = \"replica\", mtbf = \"100 s\", pool = \"small\" }]",
            ],
        )
        .run(&options)
        .unwrap();
        check_books(&record);
        let pools = cluster(&record).engine_deployments(record.info.replicas.len());
        let starts = pools.iter().filter(|p| **p == 0).count();
        assert!(
            starts > 1 && pools.len() == starts + 1,
            "faults hit the small pool alone"
        );
        (record.fingerprint, cluster(&record).clone())
    };
    let (a, b) = (of(Path::Auto, false), of(Path::Reference, true));
    assert_eq!(a.0, b.0);
    assert_eq!(a.1, b.1);
}
