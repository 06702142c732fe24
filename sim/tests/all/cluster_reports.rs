//! What reports of a run in a cluster say: lanes of a trace, energy, utilisation, the course of the service; and a rolling update under load.

use crate::common::clusters::{cluster, ran, refused, scenario, secs};
use serde_json::Value;
use sim::kernel::time::SimTime;
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::trace::{self, Limit};
use sim::simulation::RunOptions;

const GROW: &str = "change=[{ at = \"100 s\", replicas = 2 }, { at = \"100 s\", nodes = 2 }]";

fn traced(limit: Limit) -> Vec<Value> {
    let mut options = RunOptions::default();
    options.record.max_step_rows = 1_000_000;
    let record = scenario(&[GROW]).run(&options).unwrap();
    let mut out = Vec::new();
    trace::write(&mut out, &record, limit).unwrap();
    let whole: Value = serde_json::from_slice(&out).expect("JSON");
    whole["traceEvents"].as_array().expect("a list").clone()
}

#[test]
fn a_trace_has_lanes_for_nodes_pods_and_controllers() {
    let events = traced(Limit::None);
    let lanes: Vec<&str> = (events.iter())
        .filter(|e| e["ph"] == "M")
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    for name in [
        "nodes",
        "gpu-1",
        "pods",
        "server-1",
        "controllers",
        "operator",
    ] {
        assert!(lanes.contains(&name), "{name} is not in {lanes:?}");
    }
    let slice = |name: &str, from_s: f64| {
        let found = |e: &&Value| {
            e["ph"] == "X" && e["name"] == name && e["ts"].as_f64() == Some(from_s * 1e6)
        };
        events
            .iter()
            .find(found)
            .unwrap_or_else(|| panic!("no {name} at {from_s} s"))
    };
    // The second replica: boot 100 to 150 s, plugin to 160, pull to 180, weights to 210, engine to 215, ready at 220.
    assert_eq!(slice("boot", 100.0)["dur"], 50e6);
    assert_eq!(slice("device plugin", 150.0)["dur"], 10e6);
    assert_eq!(
        slice("Pending", 100.0)["args"]["reason"],
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"
    );
    assert_eq!(slice("weights load", 180.0)["dur"], 30e6);
    assert_eq!(slice("ready", 220.0)["args"]["replica"], 1);
    let told = events
        .iter()
        .find(|e| e["ph"] == "i" && e["name"] == "replicas: 1 to 2");
    assert_eq!(told.expect("a decision")["args"]["why"], "kubectl scale");
    let counted = |e: &&Value| e["ph"] == "C" && e["name"] == "replicas" && e["args"]["ready"] == 2;
    assert!(events.iter().any(|e| counted(&e)));
    // A stretch of the run has what lasts into it, and nothing else.
    let part = traced(Limit::Window(
        SimTime::from_secs(190.0),
        SimTime::from_secs(200.0),
    ));
    let names: Vec<&str> = (part
        .iter()
        .filter(|e| e["ph"] == "X" && e["cat"] == "cluster"))
    .filter_map(|e| e["name"].as_str())
    .collect();
    assert!(
        names.contains(&"weights load") && !names.contains(&"boot"),
        "{names:?}"
    );
}

#[test]
fn energy_is_idle_power_over_lives_and_more_while_steps_run() {
    let record = ran(&[
        GROW,
        "cluster.node_group[0].idle_watts=100",
        "cluster.node_group[0].busy_watts=300",
    ]);
    let energy = RunReport::new(&record, 0.0).cluster.unwrap().energy;
    let c = cluster(&record);
    let lives: f64 = (0..c.nodes.len()).map(|n| c.lifetime(n).as_secs()).sum();
    let busy: f64 = record.replicas.iter().map(|r| r.busy.as_secs()).sum();
    assert!(busy > 100.0 && busy < lives);
    let wh = (100.0 * lives + 200.0 * busy) / 3600.0;
    assert!((energy.wh.unwrap() - wh).abs() < 1e-6, "{energy:?} {wh}");
    assert!((energy.idle_wh.unwrap() - 100.0 * lives / 3600.0).abs() < 1e-6);
    let per_token = wh * 3600.0 / record.tokens.output as f64;
    assert!((energy.joules_per_output_token.unwrap() - per_token).abs() < 1e-9);
    let unknown = RunReport::new(&ran(&[]), 0.0);
    let energy = unknown.cluster.clone().unwrap().energy;
    assert_eq!(energy.wh, None);
    assert!(
        energy.note.contains("write idle_watts and busy_watts"),
        "{energy:?}"
    );
    let text = sim::report::text::render(&unknown, Default::default());
    assert!(text.contains("not known"), "{text}");
    refused(
        &["cluster.node_group[0].idle_watts=100"],
        &["needs both idle_watts and busy_watts"],
    );
}

#[test]
fn utilisation_is_over_the_time_that_a_replica_was_there() {
    let record = ran(&[GROW, "workload[0].arrival.rate=3 req/s"]);
    let lives: f64 = (cluster(&record).engine_lives(record.replicas.len()).iter())
        .map(|(from, to)| to.since(*from).as_secs())
        .sum();
    let busy: f64 = record.replicas.iter().map(|r| r.busy.as_secs()).sum();
    let told = RunReport::new(&record, 0.0).replicas;
    assert!((told.busy_ratio - busy / lives).abs() < 1e-9, "{told:?}");
    assert!(
        lives < 0.9 * 2.0 * secs(record.end),
        "one was there for part of the run"
    );
}

#[test]
fn the_course_of_a_run_without_rows_is_told_from_counts() {
    let s = scenario(&[GROW, "workload[0].arrival.rate=6 req/s"]);
    let of = |max_request_rows: usize| -> RunRecord {
        let mut options = RunOptions::default();
        options.record.max_request_rows = max_request_rows;
        s.run(&options).unwrap()
    };
    let (with, without) = (of(2_000_000), of(10));
    assert!(without.request_rows.is_none());
    assert_eq!(with.fingerprint, without.fingerprint);
    let course = |r: &RunRecord| RunReport::new(r, 0.0).cluster.unwrap().course;
    let (exact, counted) = (course(&with), course(&without));
    assert!(counted.len() >= 24, "{}", counted.len());
    let sum = |c: &[sim::report::cluster::Stretch]| -> (u64, u64, f64) {
        let good = c
            .iter()
            .map(|s| s.attainment_ratio.unwrap_or(0.0) * s.offered as f64);
        (
            c.iter().map(|s| s.offered).sum(),
            c.iter().map(|s| s.finished).sum(),
            good.sum(),
        )
    };
    let (a, b) = (sum(&exact), sum(&counted));
    assert_eq!((a.0, a.1), (b.0, b.1));
    assert!((a.2 - b.2).abs() < 1e-6, "{a:?} {b:?}");
    assert_eq!(a.0, with.counts.offered);
    let told = counted.iter().filter(|s| s.offered > 0);
    assert!(told.clone().all(|s| s.ttft_p50_ms.is_some()), "{counted:?}");
}

/// Four replicas that are replaced at 100 s, with `surge` and `unavailable`; the fewest that were ready and the most that there were.
fn rolled(surge: &str, unavailable: &str) -> (RunRecord, u32, u32) {
    let record = ran(&[
        "cluster.replicas=4",
        "cluster.sample=1 s",
        "cluster.node_group[0].max=8",
        "cluster.node_group[0].nodes=6",
        "router.policy=least_outstanding",
        "workload[0].arrival.rate=6 req/s",
        &format!("cluster.pod.maxSurge=\"{surge}\""),
        &format!("cluster.pod.maxUnavailable=\"{unavailable}\""),
        "change=[{ at = \"100 s\", restart = true }]",
    ]);
    let c = cluster(&record);
    let least = c.samples.iter().map(|s| s.ready).min().unwrap();
    let most = c.samples.iter().map(|s| s.replicas).max().unwrap();
    (record, least, most)
}

#[test]
fn a_rolling_update_keeps_what_it_must_and_loses_no_request() {
    for (surge, unavailable, least, most) in
        [("25%", "0", 4, 5), ("0", "1", 3, 4), ("2", "25%", 3, 6)]
    {
        let (record, ready, there) = rolled(surge, unavailable);
        assert!(ready >= least, "{surge} {unavailable}: {ready}");
        assert_eq!(there, most, "{surge} {unavailable}");
        let c = cluster(&record);
        let old = c.replicas.iter().take(4);
        assert!(
            old.clone()
                .all(|r| r.why_gone == "replaced by the rolling update"),
            "{:?}",
            c.replicas
        );
        assert_eq!(c.replicas.len(), 8);
        assert_eq!(
            c.samples.last().map(|s| (s.ready, s.replicas)),
            Some((4, 4))
        );
        assert_eq!(
            record.counts.finished, record.counts.offered,
            "draining loses nothing"
        );
    }
    refused(
        &["cluster.pod.maxSurge=a lot"],
        &["cluster.pod.maxSurge: must be a number such as \"1\" or a share such as \"25%\""],
    );
}

#[test]
fn a_deployment_scaled_in_the_midst_of_a_rollout_keeps_its_proportions() {
    let sizes = |replicas: u32| {
        let record = ran(&[
            "cluster.replicas=16",
            "cluster.sample=1 s",
            "cluster.node_group[0].max=32",
            "cluster.node_group[0].nodes=32",
            "cluster.pod.maxSurge=\"25%\"",
            "cluster.pod.maxUnavailable=\"25%\"",
            // New ones need 65 s: at 110 s none of them is ready.
            &format!(
                "change=[{{ at = \"100 s\", restart = true }}, {{ at = \"110 s\", replicas = {replicas} }}]"
            ),
        ]);
        let c = cluster(&record);
        let at = |t: f64| c.samples.iter().find(|s| secs(s.at) >= t).unwrap();
        let scaled = |r: &&sim::kube::record::ReplicaRow| {
            r.why_gone == "not wanted any more" && secs(r.draining) == 110.0
        };
        let old = c.replicas[..16].iter().filter(scaled).count();
        let new = c.replicas[16..].iter().filter(scaled).count();
        let last = c.samples.last().unwrap();
        assert_eq!((last.replicas, last.ready), (replicas, replicas));
        (at(109.0).replicas, at(111.0).replicas, old, new)
    };
    // 12 old and 8 new ones are 20. Wanted are 8 with a surge of 2, so that 6 and 4 stay.
    assert_eq!(sizes(8), (20, 10, 6, 4));
    // 12 old ones become 19 and 8 new ones 13 where 26 are wanted with a surge of 7: the largest takes the rest.
    assert_eq!(sizes(26), (20, 33, 0, 0));
}
