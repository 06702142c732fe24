//! Models that share accelerators and are loaded on demand.

use crate::common::clusters::{check_books, cluster, refused_text, run, secs};
use sim::control::actuation::Path;
use sim::kernel::time::SimTime;
use sim::kube::record::{Controller, SwapRow};
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::swaps::SwapReport;
use sim::run::Run;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

/// Two models in turn on one accelerator: the first for a minute, then the second.
const TURNS: &str = r#"
[step]
base = "100 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[pool]]
name = "a"
max_prompt = 100
[[pool]]
name = "b"
min_prompt = 101
replicas = 0
[[workload]]
name = "a"
arrival = { kind = "steps", steps = [{ rate = "1 req/s", duration = "60 s" }, { rate = "0 req/s", duration = "60 s" }], repeat = true }
prompt = 16
output = 10
[[workload]]
name = "b"
arrival = { kind = "steps", steps = [{ rate = "0 req/s", duration = "60 s" }, { rate = "1 req/s", duration = "60 s" }], repeat = true }
prompt = 200
output = 10
[run]
duration = "480 s"
[cluster]
node_group = [{ name = "gpu", accelerators = 1, max = 1, nodes = 1, price = "3.6 USD/h" }]
pod = { image_pull = "20 s", weights_load = "30 s", engine_init = "5 s", periodSeconds = 1 }
actuation = { sleeper-limit = 2 }
[autoscaler.on_demand]
"#;

fn scenario(overrides: &[&str]) -> Scenario {
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    Scenario::parse(TURNS, "turns.toml", &overrides).unwrap_or_else(|e| panic!("{e}"))
}

fn ran(overrides: &[&str]) -> RunRecord {
    run(&scenario(overrides))
}

fn swaps(record: &RunRecord) -> &[SwapRow] {
    cluster(record).swaps.as_ref().expect("swaps")
}

fn report(record: &RunRecord) -> SwapReport {
    let report = RunReport::new(record, 0.0).cluster.expect("a cluster");
    report.swaps.expect("swaps")
}

/// When the replica of a swap was ready [s].
fn ready(record: &RunRecord, s: &SwapRow) -> f64 {
    let served = cluster(record).replicas[s.replica].served.first();
    served.map_or(f64::NAN, |s| secs(s.1))
}

#[track_caller]
fn refused(overrides: &[&str], words: &[&str]) {
    refused_text(TURNS, "turns.toml", overrides, words);
}

#[test]
fn a_request_for_a_model_that_is_not_there_swaps_it_in_at_once() {
    let record = ran(&[]);
    assert_eq!(record.counts.finished, record.counts.offered);
    let c = cluster(&record);
    let all = swaps(&record);
    // Eight turns, of which the first finds its model there.
    let to: Vec<usize> = all.iter().map(|s| s.deployment).collect();
    assert_eq!(to, [1, 0, 1, 0, 1, 0, 1]);
    let rows = record.request_rows.as_ref().unwrap();
    let first = rows
        .iter()
        .filter(|r| r.prompt_tokens == 200)
        .map(|r| r.arrival);
    assert_eq!(
        Some(all[0].at),
        first.min(),
        "decided when the request came"
    );
    assert_eq!(all[0].evicted, [0]);
    // The second model has never been there; all later ones are woken.
    let path = |s: &SwapRow| c.pods[c.replicas[s.replica].pods[0]].path;
    assert_eq!(path(&all[0]), Some(Path::Cold));
    assert!(all[1..].iter().all(|s| path(s) == Some(Path::Hot)));
    for s in &all[1..] {
        // What was under way ends within a second or two, the kubelet looks each second; 3 s to sleep, 2 s for the requester, 3 s to wake, a probe.
        let took = ready(&record, s) - secs(s.at);
        assert!((8.0..=16.0).contains(&took), "{took}");
    }
    let told = report(&record);
    assert_eq!((told.loads, told.swaps, told.completed), (7, 7, 7));
    assert!(
        told.mean_evict_s >= 3.0 && told.mean_evict_s < told.mean_s,
        "{told:?}"
    );
    let hours: f64 = all
        .iter()
        .map(|s| ready(&record, s) - secs(s.at))
        .sum::<f64>()
        / 3600.0;
    assert!((told.accelerator_hours - hours).abs() < 1e-9, "{told:?}");
    assert_eq!((told.models[0].loads, told.models[0].evicted), (3, 4));
    let text = sim::report::text::render(&RunReport::new(&record, 0.0), Default::default());
    assert!(
        text.contains("7 loads on demand, 7 of which evicted others"),
        "{text}"
    );
}

#[test]
fn requests_wait_for_the_swap_and_are_served_in_their_order() {
    let record = ran(&[]);
    let s = &swaps(&record)[0];
    let at = ready(&record, s);
    let rows = record.request_rows.as_ref().unwrap();
    let mut held: Vec<_> = (rows.iter())
        .filter(|r| r.prompt_tokens == 200 && secs(r.arrival) < at && r.arrival >= s.at)
        .collect();
    held.sort_by_key(|r| r.arrival);
    assert!(held.len() > 10, "{}", held.len());
    assert!(held.iter().all(|r| secs(r.first_scheduled) >= at));
    assert!(
        held.windows(2)
            .all(|w| w[0].first_scheduled <= w[1].first_scheduled)
    );
}

#[test]
fn without_actuation_a_model_ends_and_the_other_starts_from_its_weights() {
    let record = ran(&["cluster.actuation={}", "run.duration=240 s"]);
    let hot = report(&record).mean_s;
    let text = TURNS.replace("actuation = { sleeper-limit = 2 }\n", "");
    let cold = Scenario::parse(&text, "cold.toml", &["run.duration=240 s".to_owned()]).unwrap();
    let record = run(&cold);
    assert_eq!(record.counts.finished, record.counts.offered);
    let cold = report(&record);
    assert!(
        cold.mean_s > 35.0 && cold.mean_s > hot,
        "{} {hot}",
        cold.mean_s
    );
    assert!(cluster(&record).actuation.is_none());
}

#[test]
fn the_pace_leaves_no_trace() {
    let mut built = scenario(&[]).build().unwrap();
    let spec = built.cluster.clone().expect("a cluster");
    let mut options = RunOptions::default();
    options.record.slo = built.slo;
    let load = Box::new(&mut built.workload);
    let mut stepped = Run::in_cluster(&built.simulation, load, &options, &spec, None).unwrap();
    for k in 1..1500 {
        stepped
            .step_until(SimTime::from_secs(0.37 * f64::from(k)))
            .unwrap();
    }
    stepped.run_to_end().unwrap();
    let stepped = stepped.finish(built.info).unwrap();
    let whole = ran(&[]);
    assert_eq!(whole.fingerprint, stepped.fingerprint);
    assert_eq!(whole.counts, stepped.counts);
    assert_eq!(cluster(&whole).swaps, cluster(&stepped).swaps);
}

#[test]
fn an_idle_model_is_unloaded_after_its_ttl() {
    let record = ran(&[
        "autoscaler.on_demand.globalTTL=20",
        "autoscaler.on_demand.models=[{ pool = \"b\", ttl = 0 }]",
        "workload[1].arrival={ kind = \"steps\", steps = [{ rate = \"0 req/s\", duration = \"200 s\" }, { rate = \"1 req/s\", duration = \"20 s\" }, { rate = \"0 req/s\", duration = \"500 s\" }] }",
        "workload[0].arrival.repeat=false",
        "run={ duration = \"480 s\", drain = false }",
    ]);
    let c = cluster(&record);
    let idle: Vec<_> = (c.decisions.iter())
        .filter(|d| d.controller == Controller::OnDemand && d.why.contains("ttl"))
        .collect();
    let [one] = &idle[..] else { panic!("{idle:?}") };
    let rows = record.request_rows.as_ref().unwrap();
    let last = rows
        .iter()
        .filter(|r| r.prompt_tokens == 16)
        .map(|r| secs(r.end));
    let after = secs(one.at) - last.fold(0.0, f64::max);
    assert!((19.0..=21.5).contains(&after), "{after}");
    assert_eq!(one.about, "a replicas");
    // The other found room, evicted nobody, and stays.
    assert_eq!(swaps(&record).len(), 1);
    assert!(swaps(&record)[0].evicted.is_empty());
    assert_eq!(
        c.replicas[swaps(&record)[0].replica].draining,
        SimTime::NEVER
    );
}

/// A model that is never idle, and another that is asked for at 100 s.
const BUSY: [&str; 4] = [
    "workload[0].arrival={ kind = \"constant\", rate = \"3 req/s\" }",
    "workload[1].arrival={ kind = \"steps\", steps = [{ rate = \"0 req/s\", duration = \"100 s\" }, { rate = \"0.5 req/s\", duration = \"400 s\" }] }",
    "workload[1].timeout=60 s",
    "run={ duration = \"480 s\", drain = false }",
];

#[test]
fn a_busy_model_drains_for_another_or_keeps_its_place() {
    let with = |more: &[&str]| {
        let mut all = BUSY.to_vec();
        all.extend(more);
        ran(&all)
    };
    let drains = with(&[]);
    assert!(swaps(&drains).len() > 4, "{}", swaps(&drains).len());
    let keeps = with(&["autoscaler.on_demand.evict=idle"]);
    assert!(swaps(&keeps).is_empty());
    assert!(keeps.counts.timed_out > 100, "{:?}", keeps.counts);
    let persistent = with(&["autoscaler.on_demand.models=[{ pool = \"a\", persistent = true }]"]);
    assert!(swaps(&persistent).is_empty());
    let stays = with(&["autoscaler.on_demand.min_residency=60 s"]);
    let ready: Vec<f64> = swaps(&stays).iter().map(|s| ready(&stays, s)).collect();
    assert!(
        ready.len() > 2 && ready.len() < swaps(&drains).len(),
        "{ready:?}"
    );
    for (s, before) in swaps(&stays)[1..].iter().zip(&ready) {
        assert!(secs(s.at) - before >= 60.0, "{s:?} {before}");
    }
}

#[test]
fn a_larger_model_makes_two_go() {
    let record = ran(&[
        "cluster.node_group[0].accelerators=2",
        "pool=[{ name = \"a\", max_prompt = 100 }, { name = \"c\", min_prompt = 300 }, { name = \"b\", min_prompt = 101, max_prompt = 299, replicas = 0, pod = { accelerators = 2 } }]",
        "run.duration=110 s",
    ]);
    assert_eq!(record.counts.finished, record.counts.offered);
    assert_eq!(swaps(&record)[0].evicted.len(), 2);
}

#[test]
fn a_lost_node_does_not_keep_a_model_waiting_for_ever() {
    let record = ran(&[
        "fault=[{ kind = \"node\", at = \"100 s\", noticed_after = \"5 s\" }]",
        "cluster.node_group[0].boot=30 s",
        "cluster.node_group[0].device_plugin=5 s",
    ]);
    let rows = record.request_rows.as_ref().unwrap();
    let late = rows.iter().filter(|r| secs(r.arrival) > 140.0);
    let failed = late.filter(|r| r.outcome != sim::request::Outcome::Finished);
    assert_eq!(failed.count(), 0);
    check_books(&record);
}

#[test]
fn what_cannot_be_is_refused() {
    refused(
        &["pool=[{ name = \"a\" }]"],
        &["autoscaler.on_demand", "several pools"],
    );
    refused(
        &[
            "pool[1].min_prompt=1",
            "pool[1].max_prompt=100",
            "pool[0].min_prompt=1",
        ],
        &["autoscaler.on_demand", "`a` and `b` take the same requests"],
    );
    refused(
        &[
            "pool[0].autoscaler={ hpa = { maxReplicas = 2, metrics = [{ metric = \"vllm:num_requests_waiting\", averageValue = 2 }] } }",
        ],
        &["pool[0].autoscaler", "pool `a`", "autoscaler of its own"],
    );
    refused(
        &["autoscaler.on_demand.models=[{ pool = \"bb\" }]"],
        &["autoscaler.on_demand.models[0].pool", "bb"],
    );
    refused(
        &["autoscaler.on_demand.models=[{ pool = \"b\", ttl = -5 }]"],
        &["models[0].ttl", "got -5"],
    );
    refused(
        &["autoscaler.on_demand.models=[{ pool = \"b\", replicas = 0 }]"],
        &["models[0].replicas", "at least 1"],
    );
    refused(
        &["pool[0].autoscaler={ on_demand = {} }"],
        &["on_demand", "all pools together"],
    );
    refused(
        &["autoscaler.on_demand.ttl=5"],
        &["autoscaler.on_demand", "ttl"],
    );
}
