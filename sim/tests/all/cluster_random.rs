//! Runs in a cluster under random faults, changes and numbers of replicas: no request is lost.

use crate::common::clusters::{ran, run, scenario};
use proptest::prelude::*;

/// A random line of a scenario that breaks or changes something.
fn line() -> impl Strategy<Value = (bool, String)> {
    let at = 0u32..900;
    prop_oneof![
        at.clone()
            .prop_map(|t| (true, format!("{{ kind = \"replica\", at = \"{t} s\" }}"))),
        (at.clone(), 0u32..400).prop_map(|(t, n)| (
            true,
            format!("{{ kind = \"node\", at = \"{t} s\", noticed_after = \"{n} s\" }}")
        )),
        (at.clone(), 0u32..200).prop_map(|(t, n)| (
            true,
            format!("{{ kind = \"spot\", at = \"{t} s\", notice = \"{n} s\" }}")
        )),
        at.clone().prop_map(|t| (
            true,
            format!("{{ kind = \"metrics_outage\", at = \"{t} s\", duration = \"90 s\" }}")
        )),
        at.clone().prop_map(|t| (
            true,
            format!("{{ kind = \"no_capacity\", at = \"{t} s\", duration = \"200 s\" }}")
        )),
        (at.clone(), 1u32..20).prop_map(|(t, f)| (
            true,
            format!("{{ kind = \"thermal_throttling\", at = \"{t} s\", factor = {f}, duration = \"60 s\" }}")
        )),
        (at.clone(), 0u32..60).prop_map(|(t, n)| (
            true,
            format!("{{ kind = \"crash_loop\", at = \"{t} s\", duration = \"200 s\", crashes_after = \"{n} s\" }}")
        )),
        (at.clone(), 1u32..10).prop_map(|(t, c)| (
            true,
            format!("{{ kind = \"router_partition\", at = \"{t} s\", connect_timeout = \"{c} s\" }}")
        )),
        (60u32..600).prop_map(|m| (
            true,
            format!("{{ kind = \"router_partition\", mtbf = \"{m} s\", duration = \"20 s\" }}")
        )),
        at.clone().prop_map(|t| (
            true,
            format!("{{ kind = \"slow_storage\", at = \"{t} s\", duration = \"90 s\" }}")
        )),
        (60u32..900).prop_map(|m| (
            true,
            format!("{{ kind = \"node\", mtbf = \"{m} s\", noticed_after = \"20 s\" }}")
        )),
        (at.clone(), 0u32..5)
            .prop_map(|(t, n)| (false, format!("{{ at = \"{t} s\", replicas = {n} }}"))),
        (at.clone(), 0u32..5)
            .prop_map(|(t, n)| (false, format!("{{ at = \"{t} s\", nodes = {n} }}"))),
        (at, 1i32..5)
            .prop_map(|(t, n)| (false, format!("{{ at = \"{t} s\", minReplicas = {n} }}"))),
    ]
}

/// KEDA lets the service go to zero.
const TO_ZERO: &str = "autoscaler.keda={ pollingInterval = 30, cooldownPeriod = 100, maxReplicaCount = 1, triggers = [{ type = \"redis\", threshold = 5 }] }";

const ENGINES: [&str; 5] = [
    "{ kind = \"vllm_v1\", kv_blocks = 1000, max_num_seqs = 4, max_model_len = 4096 }",
    "{ kind = \"tgi\", kv_blocks = 1000 }",
    "{ kind = \"trt_llm\", kv_blocks = 1000, max_batch_size = 4 }",
    "{ kind = \"llama_cpp\", kv_blocks = 1000 }",
    "{ kind = \"sglang\", kv_blocks = 16000, max_running_requests = 4 }",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever breaks and is changed: each request ends once, nobody serves who is not ready, cost is the sum over lifetimes (all in
    /// `check_books`), and the pace leaves no trace.
    #[test]
    fn random_faults_and_changes_lose_no_request(
        lines in prop::collection::vec(line(), 0..8),
        engine in 0usize..ENGINES.len(),
        size in 1u32..3,
        rate in 1u32..12,
        policy in prop::sample::select(vec!["round_robin", "least_outstanding", "least_kv"]),
        keda in any::<bool>(),
        seed in 0u64..1000,
        retries in any::<bool>(),
    ) {
        let of = |fault: bool| {
            let own: Vec<&str> = lines.iter().filter(|l| l.0 == fault).map(|l| l.1.as_str()).collect();
            format!("{}=[{}]", if fault { "fault" } else { "change" }, own.join(", "))
        };
        let scaler = if keda { TO_ZERO.to_owned() } else {
            "autoscaler.hpa={ maxReplicas = 4, metrics = [{ type = \"External\", metric = \"envoy_cluster_upstream_rq_active\", averageValue = 4 }] }".to_owned()
        };
        let mut all = vec![
            format!("seed={seed}"),
            of(true),
            of(false),
            scaler,
            "autoscaler.cluster_autoscaler={ scale-down-unneeded-time = \"60 s\", scale-down-delay-after-add = \"60 s\" }".to_owned(),
            "cluster.node_group[0].spot=true".to_owned(),
            "cluster.node_group[0].accelerators=1".to_owned(),
            "cluster.node_group[0].max=8".to_owned(),
            "cluster.pod.accelerators=1".to_owned(),
            format!("cluster.pod.size={size}"),
            format!("engine={}", ENGINES[engine]),
            format!("workload[0].arrival={{ kind = \"poisson\", rate = \"{rate} req/s\" }}"),
            format!("router.policy={policy}"),
        ];
        // The others keep a request whose client has left in the batch until the step ends, which the check of their driver does not know.
        if ENGINES[engine].contains("vllm") {
            all.push("workload[0].timeout=300 s".to_owned());
        }
        if retries {
            all.push("workload[0].retries={ max = 2 }".to_owned());
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let record = run(&scenario(&all));
        prop_assert!(record.counts.offered > 0);
    }

    /// Draining loses nothing where the grace period is long enough.
    #[test]
    fn scaling_without_faults_fails_no_request(
        sizes in prop::collection::vec((0u32..600, 1u32..5), 1..8),
        rate in 1u32..8,
    ) {
        let lines: Vec<String> = sizes.iter().map(|(at, n)| format!("{{ at = \"{at} s\", replicas = {n} }}")).collect();
        let record = ran(&[
            &format!("change=[{}]", lines.join(", ")),
            "cluster.node_group[0].nodes=4",
            "cluster.pod.terminationGracePeriodSeconds=3600",
            &format!("workload[0].arrival.rate={rate} req/s"),
        ]);
        prop_assert_eq!(record.counts.finished, record.counts.offered);
    }
}
