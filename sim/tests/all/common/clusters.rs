//! What tests of runs in a cluster have in common: a small scenario, and what holds of every run.

use sim::cluster::pools::Role;
use sim::cluster::requests::NO_REPLICA;
use sim::kernel::time::SimTime;
use sim::kube::record::ClusterRecord;
use sim::record::RunRecord;
use sim::request::Outcome;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

/// Replicas of constant step times: one request takes 10 steps of 0.1 s; four run at once.
pub const PLAIN: &str = r#"
[step]
base = "100 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[workload]]
arrival = { kind = "constant", rate = "1 req/s" }
prompt = 16
output = 10
[run]
duration = "600 s"
[slo]
ttft = "2 s"
[cluster]
gateway = "queue"
node_group = [{ name = "gpu", max = 4, price = "3.6 USD/h", boot = "50 s", device_plugin = "10 s" }]
pod = { image_pull = "20 s", weights_load = "30 s", engine_init = "5 s", periodSeconds = 10 }
"#;

/// Prefill and decode apart: constant step times, a replica of each, 100 kB of KV for each token.
pub const APART: &str = r#"
[step]
base = "100 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[pool]]
name = "prefill"
role = "prefill"
[[pool]]
name = "decode"
role = "decode"
[kv_transfer]
bandwidth = "1 GB/s"
latency = "1 ms"
bytes_per_token = 100000
[[workload]]
arrival = { kind = "constant", rate = "1 req/s" }
prompt = 16
output = 10
[run]
duration = "600 s"
[slo]
ttft = "2 s"
[cluster]
gateway = "queue"
node_group = [{ name = "gpu", max = 8, price = "3.6 USD/h", boot = "50 s", device_plugin = "10 s" }]
pod = { image_pull = "20 s", weights_load = "30 s", engine_init = "5 s", periodSeconds = 10 }
"#;

/// Two models on one node group of four accelerators a node.
pub const MODELS: &str = r#"
[step]
base = "50 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[pool]]
name = "small"
max_prompt = 100
[[pool]]
name = "large"
min_prompt = 101
pod = { accelerators = 2 }
[[workload]]
name = "short"
arrival = { kind = "constant", rate = "2 req/s" }
prompt = 16
output = 10
[[workload]]
name = "long"
arrival = { kind = "constant", rate = "1 req/s" }
prompt = 200
output = 10
[run]
duration = "600 s"
[cluster]
gateway = "queue"
node_group = [{ name = "gpu", accelerators = 4, max = 2, price = "4 USD/h", boot = "50 s", device_plugin = "10 s" }]
pod = { image_pull = "20 s", weights_load = "30 s", engine_init = "5 s", periodSeconds = 10 }
"#;

pub fn scenario(overrides: &[&str]) -> Scenario {
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    Scenario::parse(PLAIN, "plain.toml", &overrides).unwrap_or_else(|e| panic!("{e}"))
}

pub fn run(scenario: &Scenario) -> RunRecord {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let record = scenario.run(&options).unwrap_or_else(|e| panic!("{e}"));
    check_books(&record);
    record
}

pub fn ran(overrides: &[&str]) -> RunRecord {
    run(&scenario(overrides))
}

pub fn cluster(record: &RunRecord) -> &ClusterRecord {
    record.cluster.as_ref().expect("a cluster")
}

/// Seconds, exactly for what was written in them.
pub fn secs(t: SimTime) -> f64 {
    t.0 as f64 / 1e9
}

/// What holds of every run in a cluster.
pub fn check_books(record: &RunRecord) {
    assert!(record.counts.conserved(), "{:?}", record.counts);
    let c = cluster(record);
    let rows = record.request_rows.as_ref().expect("rows");
    assert_eq!(
        rows.len() as u64,
        record.counts.offered,
        "one row for each request"
    );
    let mut ids: Vec<u32> = rows.iter().map(|r| r.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), rows.len(), "each request ends once");
    let served: Vec<_> = c
        .replicas
        .iter()
        .flat_map(|r| r.served.iter().map(move |s| (r, s)))
        .collect();
    for row in rows.iter().filter(|r| r.first_scheduled != SimTime::NEVER) {
        if row.replica == NO_REPLICA {
            // Prefilled, and then there was nobody to decode it.
            assert!(record.transfers.is_some() && row.outcome == Outcome::Failed);
            continue;
        }
        let (replica, (_, ready, _)) = served
            .iter()
            .find(|(_, (engine, _, _))| *engine == row.replica)
            .expect("an engine that the cluster started");
        // Where prefill is apart, the replica that decodes may be ready only when the prefill is done.
        let is_apart = record.transfers.is_some();
        let served_at = if is_apart {
            row.end
        } else {
            row.first_scheduled
        };
        assert!(served_at >= *ready, "served before it was ready: {row:?}");
        assert!(
            row.end <= replica.gone || replica.gone == SimTime::NEVER,
            "served after it was gone: {row:?}"
        );
    }
    check_transfers(record);
    check_sleepers(record);
    // Cost is the sum over lifetimes, worked out another way.
    let mut usd = 0.0;
    for node in c.nodes.iter().filter(|n| !n.is_refused) {
        let end = node.gone.min(c.end);
        usd += (secs(end) - secs(node.requested)) / 3600.0 * node.usd_per_hour.unwrap_or(0.0);
    }
    if let Some(told) = c.usd() {
        assert!((told - usd).abs() < 1e-6, "{told} {usd}");
    }
    for pod in c
        .pods
        .iter()
        .filter(|p| p.ready != SimTime::NEVER && p.restarts == 0)
    {
        let phases = pod.phases(c.node_of(pod), c.end);
        let whole: u64 = phases.iter().map(|d| d.0).sum();
        assert_eq!(
            whole,
            pod.ready.since(pod.created).0,
            "phases add up to the start: {pod:?}"
        );
    }
}

/// An instance serves for one pod at a time and not while it sleeps, and an accelerator is of one pod at a time.
fn check_sleepers(record: &RunRecord) {
    let c = cluster(record);
    let Some(a) = &c.actuation else { return };
    let rows = record.request_rows.as_ref().expect("rows");
    for i in &a.instances {
        let gone = i.gone.unwrap_or(SimTime::NEVER);
        for (from, to) in &i.naps {
            assert!(i.created <= *from && from <= to && *to <= gone, "{i:?}");
            for p in &i.pods {
                for (engine, ready, until) in &c.replicas[c.pods[*p].replica].served {
                    assert!(
                        until.min(&c.end) <= from || to <= ready,
                        "ready while it slept: {i:?}"
                    );
                    for row in rows.iter().filter(|r| r.replica == *engine) {
                        let served = (row.first_scheduled, row.end);
                        assert!(
                            served.1 <= *from || *to <= served.0,
                            "served while it slept: {row:?}"
                        );
                    }
                }
            }
        }
        let pods: Vec<_> = i.pods.iter().map(|p| &c.pods[*p]).collect();
        for pair in pods.windows(2) {
            assert!(pair[0].gone <= pair[1].scheduled, "two pods have {i:?}");
        }
        for other in a.instances.iter().filter(|o| !std::ptr::eq(*o, i)) {
            if other.node != i.node || !other.gpus.iter().any(|g| i.gpus.contains(g)) {
                continue;
            }
            for (p, q) in (i.pods.iter()).flat_map(|p| other.pods.iter().map(move |q| (p, q))) {
                let (p, q) = (&c.pods[*p], &c.pods[*q]);
                assert!(
                    p.gone <= q.scheduled || q.gone <= p.scheduled,
                    "an accelerator is of two pods: {p:?} {q:?}"
                );
            }
        }
    }
}

/// KV goes from replicas that prefill to replicas that decode, while both are there.
fn check_transfers(record: &RunRecord) {
    let c = cluster(record);
    let pools = c.engine_deployments(record.info.replicas.len());
    let lives = c.engine_lives(record.info.replicas.len());
    let rows = record.transfers.as_ref().and_then(|t| t.rows.as_ref());
    for t in rows.into_iter().flatten() {
        let role = |engine: u32| record.info.pools[pools[engine as usize]].role;
        assert_eq!(
            (role(t.from), role(t.to)),
            (Role::Prefill, Role::Decode),
            "{t:?}"
        );
        for engine in [t.from, t.to] {
            let (from, until) = lives[engine as usize];
            assert!(
                from <= t.began && t.ended <= until,
                "{t:?} in {from:?} to {until:?}"
            );
        }
    }
}

#[track_caller]
pub fn refused(overrides: &[&str], words: &[&str]) {
    refused_text(PLAIN, "plain.toml", overrides, words);
}

/// The scenario `text` of the file `name` is refused with these words.
#[track_caller]
pub fn refused_text(text: &str, name: &str, overrides: &[&str], words: &[&str]) {
    let all: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    let e = match Scenario::parse(text, name, &all) {
        Err(e) => e.to_string(),
        Ok(s) => match s.build() {
            Err(e) => e.to_string(),
            Ok(_) => panic!("accepted: {overrides:?}"),
        },
    };
    for word in words {
        assert!(e.contains(word), "`{word}` is not in: {e}");
    }
}
