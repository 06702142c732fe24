//! Runs in a cluster under random faults, changes and numbers of replicas: no request is lost.

use crate::common::clusters::{cluster, ran, run, scenario};
use proptest::prelude::*;
use sim::report::RunReport;

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

/// Ways in which instances sleep, among them narrow limits; none: they do not.
const SLEEPS: [&str; 6] = [
    "",
    "{}",
    "{ sleeper-limit = 0, level = 2 }",
    "{ sleeper-limit = 2, tensors = \"40 GB\", host_memory = \"90 GB\" }",
    "{ launcher = { maxInstances = 2, launcherCount = 1 }, imports = \"2 s\" }",
    "{ launcher = {}, nodeInstanceBudget = { maxInstances = 2 }, fall_asleep = { kind = \"uniform\", min = \"1 s\", max = \"30 s\" } }",
];

/// KEDA lets the service go to zero.
const TO_ZERO: &str = "autoscaler.keda={ pollingInterval = 30, cooldownPeriod = 100, maxReplicaCount = 1, triggers = [{ type = \"redis\", threshold = 5 }] }";

const ENGINES: [&str; 5] = [
    "{ kind = \"vllm_v1\", kv_blocks = 1000, max_num_seqs = 4, max_model_len = 4096 }",
    "{ kind = \"tgi\", kv_blocks = 1000 }",
    "{ kind = \"trt_llm\", kv_blocks = 1000, max_batch_size = 4 }",
    "{ kind = \"llama_cpp\", kv_blocks = 1000 }",
    "{ kind = \"sglang\", kv_blocks = 16000, max_running_requests = 4 }",
];

/// A random line of a scenario with pools: as [`line`], of one of the pools where it is of replicas.
fn line_of_pools() -> impl Strategy<Value = (bool, String)> {
    let pool = prop::sample::select(vec!["one", "two"]);
    let named = (line(), pool.clone(), any::<bool>()).prop_map(|((fault, text), pool, named)| {
        let of_replicas = ["\"replica\"", "router_partition", "crash_loop"];
        let may = of_replicas.iter().any(|k| text.contains(k));
        let must = !fault && !text.contains("nodes =");
        match must || may && named {
            true => (
                fault,
                text.replacen("{ ", &format!("{{ pool = \"{pool}\", "), 1),
            ),
            false => (fault, text),
        }
    });
    let link = (0u32..600, 1u32..100, prop::option::of(pool.clone())).prop_map(|(at, share, pool)| {
        let pool = pool.map_or(String::new(), |p| format!(", pool = \"{p}\""));
        let share = f64::from(share) / 100.0;
        (true, format!("{{ kind = \"degraded_link\", link = \"kv\", at = \"{at} s\", duration = \"60 s\", share = {share}{pool} }}"))
    });
    let all = (
        0u32..600,
        pool,
        prop::sample::select(vec!["replica", "node", "router_partition"]),
    )
        .prop_map(|(at, pool, kind)| {
            (
                true,
                format!("{{ kind = \"{kind}\", at = \"{at} s\", pool = \"{pool}\", all = true }}"),
            )
        });
    prop_oneof![6 => named, 2 => link, 1 => all]
}

const ENGINES_APART: [&str; 2] = [
    "{ kind = \"vllm_v1\", kv_blocks = 300, max_num_seqs = 4, max_model_len = 4096 }",
    "{ kind = \"trt_llm\", kv_blocks = 300, max_batch_size = 4 }",
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
        sleeps in prop::sample::select(SLEEPS.to_vec()),
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
        if !sleeps.is_empty() && size == 1 && ENGINES[engine].contains("vllm") {
            all.push(format!("cluster.actuation={sleeps}"));
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

    /// The same of pools on shared nodes: whatever breaks of either, each request ends once, KV goes only between replicas that are there, and what pods
    /// hold costs no more than the nodes.
    #[test]
    fn random_faults_of_pools_lose_no_request(
        lines in prop::collection::vec(line_of_pools(), 0..8),
        apart in any::<bool>(),
        engine in 0usize..2,
        first_token in prop::sample::select(vec!["prefill", "decode"]),
        replicas in (0u32..3, 0u32..3),
        sizes in (1u32..3, 1u32..3),
        rate in 1u32..10,
        policy in prop::sample::select(vec!["round_robin", "least_outstanding", "least_kv"]),
        scaler in 0usize..3,
        seed in 0u64..1000,
        retries in any::<bool>(),
        cold in any::<bool>(),
        sleeps in prop::sample::select(SLEEPS.to_vec()),
    ) {
        let of = |fault: bool| {
            // KV goes nowhere where replicas do both.
            let may = |text: &str| {
                let unscaled = match scaler {
                    1 => "pool = \"two\"",
                    2 => "pool = \"one\"",
                    _ => "neither",
                };
                let is_bound = text.contains("minReplicas") && text.contains(unscaled);
                (apart || !text.contains("link =")) && !is_bound
            };
            let own: Vec<&str> = (lines.iter().filter(|l| l.0 == fault))
                .map(|l| l.1.as_str())
                .filter(|text| may(text))
                .collect();
            format!("{}=[{}]", if fault { "fault" } else { "change" }, own.join(", "))
        };
        let hpa = "autoscaler = { hpa = { maxReplicas = 4, metrics = [{ type = \"External\", metric = \"envoy_cluster_upstream_rq_active\", averageValue = 4 }] } }";
        let keda = "autoscaler = { keda = { pollingInterval = 30, cooldownPeriod = 100, minReplicaCount = 1, maxReplicaCount = 4, triggers = [{ metric = \"vllm:num_requests_waiting\", threshold = 3 }] } }";
        let keda = if ENGINES_APART[engine].contains("vllm") { keda } else { hpa };
        let pool = |name: &str, more: &str, n: u32, size: u32, scaler: &str| {
            let pod = format!("pod = {{ size = {size}, accelerators = 1 }}");
            let scaler = if scaler.is_empty() { String::new() } else { format!(", {scaler}") };
            format!("{{ name = \"{name}\", {more}, replicas = {n}, {pod}{scaler} }}")
        };
        let (one, two) = match apart {
            true => ("role = \"prefill\"", "role = \"decode\""),
            false => ("max_prompt = 15", "min_prompt = 16"),
        };
        let (s1, s2) = [(hpa, keda), (hpa, ""), ("", keda)][scaler];
        let mut all = vec![
            format!("seed={seed}"),
            format!("pool=[{}, {}]", pool("one", one, replicas.0, sizes.0, s1), pool("two", two, replicas.1, sizes.1, s2)),
            of(true),
            of(false),
            "autoscaler.cluster_autoscaler={ scale-down-unneeded-time = \"60 s\", scale-down-delay-after-add = \"60 s\" }".to_owned(),
            "cluster.node_group=[{ name = \"gpu\", spot = true, accelerators = 3, max = 6, price = \"3.6 USD/h\", boot = \"50 s\", device_plugin = \"10 s\" }]".to_owned(),
            format!("cluster.start={}", if cold { "cold" } else { "warm" }),
            format!("engine={}", ENGINES_APART[engine]),
            format!("workload[0].arrival={{ kind = \"poisson\", rate = \"{rate} req/s\" }}"),
            "workload[0].prompt={ kind = \"uniform\", min = 1, max = 30 }".to_owned(),
            "workload[0].output={ kind = \"uniform\", min = 1, max = 20 }".to_owned(),
            format!("router.policy={policy}"),
        ];
        if apart {
            all.push(format!("kv_transfer={{ bandwidth = \"2 MB/s\", latency = \"5 ms\", bytes_per_token = 50000, first_token = \"{first_token}\" }}"));
        }
        if ENGINES_APART[engine].contains("vllm") {
            all.push("workload[0].timeout=300 s".to_owned());
        }
        if retries {
            all.push("router.retries={ max = 2 }".to_owned());
        }
        if !sleeps.is_empty() && sizes == (1, 1) && ENGINES_APART[engine].contains("vllm") {
            all.push(format!("cluster.actuation={sleeps}"));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let record = run(&scenario(&all));
        prop_assert!(record.counts.offered > 0);
        let report = RunReport::new(&record, 0.0).cluster.unwrap();
        let held: f64 = report.deployments.iter().map(|d| d.usd.unwrap()).sum();
        prop_assert!(held <= report.usd.unwrap() + 1e-9, "{held} of {:?}", report.usd);
        for d in &cluster(&record).deployments {
            prop_assert_eq!(d.samples.len(), cluster(&record).samples.len());
        }
    }

    /// The same of models that share accelerators and are loaded on demand, asleep or started anew, under faults: each request ends once, nobody serves
    /// who is not there, and none waits for ever for a model that could be loaded.
    #[test]
    fn random_swaps_lose_no_request(
        lines in prop::collection::vec(line_of_pools(), 0..5),
        accelerators in 1u32..4,
        wide in any::<bool>(),
        sleeps in prop::sample::select(SLEEPS.to_vec()),
        evict in prop::sample::select(vec!["drain", "idle"]),
        residency in prop::sample::select(vec![0u32, 20, 90]),
        ttl in prop::sample::select(vec![0u32, 15, 120]),
        persistent in any::<bool>(),
        most in 1u32..3,
        limit in prop::option::of(1u32..6),
        rates in (1u32..6, 1u32..6, 1u32..6),
        seed in 0u64..1000,
        cold in any::<bool>(),
    ) {
        let of = |fault: bool| {
            // Sizes and bounds are the controller's own; KV goes nowhere.
            let own: Vec<&str> = (lines.iter().filter(|l| l.0 == fault))
                .map(|l| l.1.as_str())
                .filter(|text| !text.contains("link =") && !text.contains("minReplicas"))
                .collect();
            format!("{}=[{}]", if fault { "fault" } else { "change" }, own.join(", "))
        };
        let gpus = if wide && accelerators > 1 { 2 } else { 1 };
        let stream = |name: &str, prompt: u32, rate: u32| format!(
            r#"{{ name = "{name}", arrival = {{ kind = "gamma", rate = "0.{rate} req/s", cv = 4 }}, prompt = {prompt}, output = 10, timeout = "300 s" }}"#
        );
        let mut all = vec![
            format!("seed={seed}"),
            format!(r#"pool=[{{ name = "one", max_prompt = 20 }}, {{ name = "two", min_prompt = 21, max_prompt = 40, replicas = 0, pod = {{ accelerators = {gpus} }} }}, {{ name = "three", min_prompt = 41, replicas = 0 }}]"#),
            of(true),
            of(false),
            format!(r#"autoscaler.on_demand={{ evict = "{evict}", min_residency = "{residency} s", globalTTL = {ttl}, models = [{{ pool = "one", persistent = {persistent}, replicas = {most} }}, {{ pool = "three", priority = 3 }}] }}"#),
            format!(r#"cluster.node_group=[{{ name = "gpu", spot = true, accelerators = {accelerators}, min = 1, max = 2, nodes = 1, price = "3.6 USD/h", boot = "50 s", device_plugin = "10 s" }}]"#),
            format!("cluster.start={}", if cold { "cold" } else { "warm" }),
            format!("workload=[{}, {}, {}]", stream("s1", 10, rates.0), stream("s2", 30, rates.1), stream("s3", 50, rates.2)),
        ];
        if !sleeps.is_empty() {
            all.push(format!("cluster.actuation={sleeps}"));
        }
        if let Some(limit) = limit {
            all.push(format!("cluster.max_outstanding={limit}"));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let record = run(&scenario(&all));
        prop_assert!(record.counts.offered > 0);
        let swaps = RunReport::new(&record, 0.0).cluster.unwrap().swaps.unwrap();
        prop_assert!(swaps.completed <= swaps.loads && swaps.swaps <= swaps.loads);
        prop_assert!(swaps.lost_ratio <= 1.0 + 1e-9, "{swaps:?}");
    }

    /// Draining loses nothing of either pool where the grace period is long enough.
    #[test]
    fn scaling_pools_without_faults_fails_no_request(
        sizes in prop::collection::vec((0u32..600, 1u32..5, any::<bool>()), 1..8),
        rate in 1u32..8,
        bandwidth in 2000u32..20000,
    ) {
        let lines: Vec<String> = (sizes.iter())
            .map(|(at, n, first)| format!("{{ at = \"{at} s\", pool = \"{}\", replicas = {n} }}", if *first { "one" } else { "two" }))
            .collect();
        let record = ran(&[
            "pool=[{ name = \"one\", role = \"prefill\" }, { name = \"two\", role = \"decode\" }]",
            &format!("kv_transfer={{ bandwidth = \"{bandwidth} kB/s\", latency = \"5 ms\", bytes_per_token = 50000 }}"),
            &format!("change=[{}]", lines.join(", ")),
            "cluster.node_group[0].max=8",
            "cluster.node_group[0].nodes=8",
            "cluster.pod.terminationGracePeriodSeconds=36000",
            &format!("workload[0].arrival.rate={rate} req/s"),
        ]);
        prop_assert_eq!(record.counts.finished, record.counts.offered);
    }
}
