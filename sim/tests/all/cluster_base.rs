//! A plain cluster of two groups with a node each: what faults hit, what crashes leave in tables, who is refused, and where pods stand.

use crate::common::clusters::{cluster, secs};
use sim::kube::record::Controller;
use sim::record::{RequestRow, RunRecord};
use sim::report::text::{Detail, render};
use sim::report::{RunReport, cluster_csv, csv};
use sim::request::{Outcome, RejectReason};
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

/// Two replicas, each on a node of its own, and a Cluster Autoscaler.
const BASE: &str = r#"
[step]
base = "30 ms"
[engine]
kind = "vllm"
kv_blocks = 4000
max_num_seqs = 64
max_model_len = 4096
[[workload]]
arrival = { kind = "poisson", rate = "5 req/s" }
prompt = 64
output = 64
[run]
duration = "20 min"
[cluster]
replicas = 2
[[cluster.node_group]]
name = "a"
accelerators = 1
min = 1
nodes = 1
max = 4
price = "1 USD/h"
[[cluster.node_group]]
name = "b"
accelerators = 1
min = 1
nodes = 1
max = 4
price = "1 USD/h"
[cluster.pod]
weights_load = "60 s"
engine_init = "30 s"
[autoscaler.cluster_autoscaler]
"#;

fn parsed(more: &str, overrides: &[&str]) -> Result<Scenario, String> {
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    Scenario::parse(&format!("{BASE}{more}"), "base.toml", &overrides).map_err(|e| e.to_string())
}

fn ran(more: &str, overrides: &[&str]) -> RunRecord {
    let scenario = parsed(more, overrides).unwrap_or_else(|e| panic!("{e}"));
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    scenario.run(&options).unwrap_or_else(|e| panic!("{e}"))
}

/// Why the scenario is refused.
fn refused(more: &str) -> String {
    parsed(more, &[])
        .and_then(|s| s.cluster_spec().map_err(|e| e.to_string()).map(drop))
        .expect_err("refused")
}

fn rows(record: &RunRecord) -> &[RequestRow] {
    record.request_rows.as_deref().expect("rows")
}

fn lost(record: &RunRecord) -> Vec<&str> {
    let lost = cluster(record).nodes.iter();
    lost.filter(|n| n.why_gone == "it failed")
        .map(|n| n.name.as_str())
        .collect()
}

fn columns(table: &str) -> Vec<&str> {
    table.lines().next().unwrap_or("").split(',').collect()
}

#[test]
fn a_fault_hits_the_node_group_that_it_names_and_no_other() {
    let fault = "[[fault]]\nkind = \"node\"\nnode_group = \"b\"\nall = true\nat = \"5 min\"\n";
    assert_eq!(lost(&ran(fault, &[])), ["b-1"]);
    let zones = [
        "cluster.node_group[0].zone=z1",
        "cluster.node_group[1].zone=z2",
    ];
    let fault = "[[fault]]\nkind = \"node\"\nzone = \"z1\"\nall = true\nat = \"5 min\"\n";
    assert_eq!(lost(&ran(fault, &zones)), ["a-0"]);
    // Lives of nodes too are those of the group alone.
    let fault = "[[fault]]\nkind = \"node\"\nnode_group = \"b\"\nmtbf = \"2 min\"\n";
    let record = ran(fault, &[]);
    let lost = lost(&record);
    assert!(lost.len() > 1, "{lost:?}");
    assert!(lost.iter().all(|n| n.starts_with("b-")), "{lost:?}");
}

#[test]
fn a_fault_refuses_keys_that_do_nothing_for_its_kind() {
    let of = |kind: &str, key: &str| {
        let text = format!("[[fault]]\nkind = \"{kind}\"\nat = \"5 min\"\n{key}\n");
        refused(&text)
    };
    for (kind, key) in [
        ("node", "factor = 2"),
        ("node", "share = 0.5"),
        ("node", "notice = \"1 min\""),
        ("node", "duration = \"1 min\""),
        ("replica", "node_group = \"a\""),
        ("metrics_outage", "zone = \"z\""),
        ("metrics_outage", "target = 0"),
        ("no_capacity", "noticed_after = \"1 s\""),
        ("straggler", "link = \"node\""),
    ] {
        let name = key.split(' ').next().unwrap_or("");
        let message = of(kind, key);
        assert!(
            message.contains("does nothing for this kind of fault") && message.contains(name),
            "{kind} {key}: {message}"
        );
    }
    let message = of("node", "node_group = \"nope\"");
    assert!(
        message.contains("nope") && message.contains("node group"),
        "{message}"
    );
    let message = of("straggler", "zone = \"nope\"");
    assert!(message.contains("zone"), "{message}");
}

/// What hits the cluster as a whole comes before nodes, whatever comes first in the file: no replacement slips through.
#[test]
fn at_one_instant_the_cloud_has_no_capacity_before_a_node_is_lost() {
    let node = "[[fault]]\nkind = \"node\"\nnode_group = \"a\"\nall = true\nat = \"5 min\"\n";
    let cloud = "[[fault]]\nkind = \"no_capacity\"\nnode_group = \"a\"\nat = \"5 min\"\nduration = \"5 min\"\n";
    for text in [format!("{node}{cloud}"), format!("{cloud}{node}")] {
        let record = ran(&text, &[]);
        let nodes = &cluster(&record).nodes;
        let replaced = nodes
            .iter()
            .any(|n| n.group == "a" && secs(n.requested) == 300.0 && !n.is_refused);
        assert!(!replaced, "a replacement came through");
    }
}

#[test]
fn each_crash_is_told_and_each_start_has_a_row_with_its_own_phases() {
    let record = ran("[[fault]]\nkind = \"replica\"\nmtbf = \"200 s\"\n", &[]);
    let c = cluster(&record);
    let restarts: u32 = c.pods.iter().map(|p| p.restarts).sum();
    assert!(restarts >= 4, "{restarts}");
    let told = c
        .decisions
        .iter()
        .filter(|d| d.controller == Controller::Kubelet);
    assert_eq!(told.count(), restarts as usize);
    for pod in &c.pods {
        let starts: Vec<_> = pod.phases_of_starts(c.node_of(pod), c.end).collect();
        assert_eq!(starts.len(), 1 + pod.restarts as usize, "{}", pod.name);
        for (i, (start, phases)) in starts.iter().enumerate() {
            let of = phases.map(|d| d.as_secs());
            // They were warm at the start: nobody pulled an image.
            assert_eq!(of[3], 0.0, "{} {i}: {of:?}", pod.name);
            if i > 0 && start.ready < c.end {
                let all: f64 = of.iter().sum();
                let whole = start.ready.since(start.after).as_secs();
                assert!((all - whole).abs() < 1e-6, "{all} of {whole}: {of:?}");
                assert!(of[9] >= 10.0 && (of[4] - 60.0).abs() < 1e-6, "{of:?}");
            }
        }
    }
    let report = RunReport::new(&record, 0.0).cluster.expect("a cluster");
    let crashes = report.crashes.expect("crashes");
    assert_eq!(crashes.crashes, u64::from(restarts));
    assert!(crashes.mean_s > 100.0, "{crashes:?}");
    let mut table = Vec::new();
    cluster_csv::write_pods(&mut table, c).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert_eq!(table.lines().count(), 1 + c.pods.len() + restarts as usize);
    assert!(
        ["start", "crashed_s"]
            .iter()
            .all(|k| columns(&table).contains(k))
    );
}

#[test]
fn without_a_ready_endpoint_a_service_refuses_and_others_hold_within_their_limits() {
    let all = "[[fault]]\nkind = \"node\"\nall = true\nat = \"5 min\"\n";
    let of = |record: &RunRecord, outcome: Outcome| {
        rows(record).iter().filter(|r| r.outcome == outcome).count()
    };
    let no_endpoint = Outcome::Rejected(RejectReason::NoEndpoint);
    let record = ran(all, &[]);
    let refused = of(&record, no_endpoint);
    // Nodes are noticed after 340 s, and new replicas take minutes: thousands of requests find nobody.
    assert!(refused > 2000, "{refused}");
    let waits = rows(&record)
        .iter()
        .filter(|r| r.outcome == Outcome::Finished);
    let longest = waits
        .map(|r| r.first_token.since(r.arrival).as_secs())
        .fold(0.0, f64::max);
    assert!(longest < 5.0, "nobody waited for a replica: {longest}");
    // A queue holds all of them.
    let record = ran(all, &["cluster.gateway=queue"]);
    assert_eq!(of(&record, no_endpoint), 0);
    // Knative holds each for five minutes.
    let record = ran(all, &["cluster.gateway=knative"]);
    let gave_up: Vec<f64> = (rows(&record).iter())
        .filter(|r| r.outcome == no_endpoint)
        .map(|r| r.end.since(r.arrival).as_secs())
        .collect();
    assert!(gave_up.len() > 100);
    assert!(
        gave_up.iter().all(|t| (t - 300.0).abs() < 1e-6),
        "{gave_up:?}"
    );
    // And so many of them.
    let record = ran(all, &["cluster.gateway=knative", "cluster.hold_limit=100"]);
    let at_once = rows(&record)
        .iter()
        .filter(|r| r.outcome == no_endpoint && r.end == r.arrival);
    assert!(at_once.count() > 1000);
}

#[test]
fn a_scale_from_zero_behind_a_service_warns() {
    let record = ran("", &["cluster.replicas=0"]);
    let warned = |r: &RunRecord| {
        r.info
            .warnings
            .iter()
            .any(|w| w.contains("cluster.gateway"))
    };
    assert!(warned(&record), "{:?}", record.info.warnings);
    assert!(!warned(&ran(
        "",
        &["cluster.replicas=0", "cluster.gateway=keda_http"]
    )));
    assert!(!warned(&ran("", &[])));
}

#[test]
fn requests_name_the_pod_and_the_start_that_served_them() {
    let record = ran("[[fault]]\nkind = \"replica\"\nmtbf = \"200 s\"\n", &[]);
    let c = cluster(&record);
    let mut table = Vec::new();
    csv::write_served(&mut table, rows(&record), Some(c)).unwrap();
    let table = String::from_utf8(table).unwrap();
    let columns = columns(&table);
    let at = |name: &str| columns.iter().position(|c| *c == name).expect(name);
    let (pod, start, first, end) = (at("pod"), at("start"), at("first_token_s"), at("end_s"));
    let mut later = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[first].is_empty() {
            continue;
        }
        let row = c
            .pods
            .iter()
            .find(|p| p.name == fields[pod])
            .expect("a pod");
        let number: usize = fields[start].parse().unwrap();
        let own = row.starts().nth(number).expect("a start");
        let time = |k: usize| fields[k].parse::<f64>().unwrap();
        assert!(secs(own.ready) <= time(first), "{line}");
        assert!(time(end) <= secs(own.crashed).min(secs(row.gone)), "{line}");
        later += usize::from(number > 0);
    }
    assert!(later > 100, "some were served by a later start: {later}");
}

#[test]
fn requests_in_the_servers_of_engines_are_in_a_column_of_their_own() {
    // 40 ms in the API server for each request, one at a time: 25 a second.
    let text = r#"
[model]
name = "llama-3.1-8b"
[hardware]
instance = "p5.48xlarge"
params = { "engine.vllm_v1.request_in" = 0.04 }
[engine]
kind = "vllm_v1"
api_server_count = 1
[[workload]]
arrival = { kind = "constant", rate = "100 req/s" }
prompt = 100
output = 8
[run]
duration = "1 min"
[cluster]
sample = "5 s"
node_group = [{ name = "gpu", max = 1 }]
"#;
    let scenario = Scenario::parse(text, "server.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
    let record = scenario.run(&RunOptions::default()).unwrap();
    let c = cluster(&record);
    let ended = |t: f64| rows(&record).iter().filter(|r| secs(r.end) <= t).count() as u64;
    let mut most = 0;
    for s in c.samples.iter().filter(|s| secs(s.at) < 60.0) {
        let inside = s.held + s.waiting + s.running + s.in_server;
        let open = s.offered - ended(secs(s.at));
        // Answers are on their way out for a moment.
        assert!(inside.abs_diff(open) <= 2 * 64, "{s:?}: {inside} of {open}");
        most = most.max(s.in_server);
    }
    assert!(most > 1000, "{most}");
    let mut table = Vec::new();
    cluster_csv::write_replicas(&mut table, c).unwrap();
    assert!(columns(&String::from_utf8(table).unwrap()).contains(&"in_server"));
}

/// Groups of two nodes with four accelerators each.
const WIDE: [&str; 5] = [
    "cluster.node_group[0].accelerators=4",
    "cluster.node_group[0].nodes=2",
    "cluster.node_group[0].min=2",
    "cluster.pod.accelerators=1",
    "cluster.node_group[1].accelerators=4",
];

fn on_nodes(record: &RunRecord, at: f64) -> Vec<usize> {
    let c = cluster(record);
    let mut of = vec![0; c.nodes.len()];
    for p in (c.pods.iter()).filter(|p| secs(p.scheduled) <= at && secs(p.gone) > at) {
        of[p.node.expect("a node")] += 1;
    }
    of
}

#[test]
fn the_scheduler_spreads_pods_over_nodes_and_zones() {
    let spread = ran("", &[&WIDE[..], &["cluster.replicas=6"]].concat());
    assert_eq!(on_nodes(&spread, 1.0), [2, 2, 2]);
    // Nodes of two zones: as many pods in each.
    let zones = [
        "cluster.replicas=4",
        "cluster.node_group[0].zone=x",
        "cluster.node_group[1].zone=y",
    ];
    let of = on_nodes(&ran("", &[&WIDE[..], &zones].concat()), 1.0);
    assert_eq!(of[0] + of[1], 2, "{of:?}");
    // A scheduler that packs fills one node after the other.
    let packs = [
        "cluster.replicas=6",
        "cluster.scheduler={ scoringStrategy = \"MostAllocated\", resources = { accelerators = 1 }, defaultingType = \"List\" }",
    ];
    assert_eq!(
        on_nodes(&ran("", &[&WIDE[..], &packs].concat()), 1.0),
        [4, 2, 0]
    );
}

#[test]
fn a_scale_in_takes_first_from_nodes_with_more_pods_of_the_deployment() {
    let more = "[[change]]\nat = \"5 min\"\nreplicas = 3\n";
    let grows = "[[change]]\nat = \"5 min\"\nreplicas = 4\n";
    // Three nodes with 3, 2 and 2: its ranks are taken once, so the one with three gives all of them.
    let record = ran(more, &[&WIDE[..], &["cluster.replicas=7"]].concat());
    assert_eq!(on_nodes(&record, 299.0), [3, 2, 2]);
    let mut left = on_nodes(&record, 1000.0);
    left.sort_unstable();
    // All three pods of the fullest node go, and one of another.
    assert_eq!(left, [0, 1, 2]);
    let record = ran(grows, &[&WIDE[..], &["cluster.replicas=5"]].concat());
    let mut left = on_nodes(&record, 1000.0);
    left.sort_unstable();
    // Of 2, 2 and 1 one of the fuller nodes gives.
    assert_eq!(left, [1, 1, 2]);
}

#[test]
fn pods_that_were_withdrawn_without_a_node_are_told_with_the_limit_that_held_them() {
    let changes =
        "[[change]]\nat = \"1 min\"\nreplicas = 12\n[[change]]\nat = \"15 min\"\nreplicas = 2\n";
    let record = ran(changes, &[]);
    let report = RunReport::new(&record, 0.0);
    let c = report.cluster.as_ref().expect("a cluster");
    let [withdrawn] = c.withdrawn.as_slice() else {
        panic!("{:?}", c.withdrawn)
    };
    assert_eq!(withdrawn.pods, 4, "{withdrawn:?}");
    assert_eq!(withdrawn.longest_s, 840.0);
    assert_eq!(withdrawn.limit, "a: max 4 reached; b: max 4 reached");
    assert!(
        withdrawn.reason.contains("Insufficient nvidia.com/gpu"),
        "{withdrawn:?}"
    );
    let text = render(&report, Detail::Brief);
    assert!(
        text.contains("withdrawn") && text.contains("max 4 reached"),
        "{text}"
    );
    assert!(text.contains("ready at once"), "{text}");
    assert!(!text.contains("-0 "), "{text}");
}

#[test]
fn nodes_that_are_removed_together_are_told_in_one_row() {
    let changes =
        "[[change]]\nat = \"1 min\"\nreplicas = 7\n[[change]]\nat = \"10 min\"\nreplicas = 2\n";
    let record = ran(changes, &["run.duration=40 min"]);
    let removed = cluster(&record)
        .decisions
        .iter()
        .filter(|d| d.controller == Controller::ClusterAutoscaler && d.why.starts_with("removes "));
    let removed: Vec<_> = removed.collect();
    assert!(!removed.is_empty());
    let nodes: i64 = removed.iter().map(|d| d.from - d.to).sum();
    assert_eq!(nodes, 5, "{removed:?}");
    let mut at: Vec<_> = removed.iter().map(|d| (d.at, d.about.clone())).collect();
    at.dedup();
    assert_eq!(
        at.len(),
        removed.len(),
        "one row for each group and instant"
    );
}

/// CPU time of this thread [s].
fn cpu() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns: f64 = stat.split(' ').next()?.parse().ok()?;
    Some(ns / 1e9)
}

/// Four times the pods take at most seven times the work: what grows with the square would take sixteen.
#[test]
#[ignore = "a measurement: cargo test -p sim --release --test all -- --ignored the_work_of_a_scale_out"]
fn the_work_of_a_scale_out_grows_with_the_pods() {
    let of = |pods: usize| {
        let change = format!("[[change]]\nat = \"1 min\"\nreplicas = {pods}\n");
        let few = "workload[0].arrival={ kind = \"poisson\", rate = \"1 req/s\" }";
        let scenario = parsed(&change, &["cluster.node_group[0].max=20000", few]);
        let scenario = scenario.unwrap_or_else(|e| panic!("{e}"));
        let before = cpu()?;
        let record = scenario.run(&RunOptions::default()).unwrap();
        let ready = cluster(&record).samples.iter().map(|s| s.ready).max();
        assert_eq!(ready, Some(pods as u32));
        Some(cpu()? - before)
    };
    let (Some(small), Some(large)) = (of(1000), of(4000)) else {
        return;
    };
    assert!(large < 7.0 * small, "{small} s and {large} s");
}

#[test]
#[ignore = "a measurement: cargo test -p sim --release --test all -- --ignored --nocapture ten_thousand"]
fn ten_thousand_pods_are_scaled_out() {
    let change = "[[change]]\nat = \"1 min\"\nreplicas = 10000\n";
    let few = "workload[0].arrival={ kind = \"poisson\", rate = \"1 req/s\" }";
    let scenario = parsed(change, &["cluster.node_group[0].max=20000", few]).unwrap();
    let before = cpu();
    let record = scenario.run(&RunOptions::default()).unwrap();
    let took = cpu().zip(before).map(|(after, before)| after - before);
    let most = cluster(&record).samples.iter().map(|s| s.ready).max();
    println!("{took:?} s of CPU, {most:?} ready");
}
