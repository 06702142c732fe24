//! Fast model actuation in a run: instances fall asleep on their nodes and are woken, within the limits of accelerators and hosts.

use crate::common::clusters::{MODELS, cluster, ran, refused, run, secs};
use sim::control::actuation::Path;
use sim::kernel::time::SimTime;
use sim::kube::record::{ActuationRecord, Controller};
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::actuation::ActuationReport;
use sim::scenario::Scenario;

/// To none at 100 s and back at 200 s.
const AWAY: &str = "change=[{ at = \"100 s\", replicas = 0 }, { at = \"200 s\", replicas = 1 }]";

fn actuation(record: &RunRecord) -> &ActuationRecord {
    cluster(record).actuation.as_ref().expect("actuation")
}

fn report(record: &RunRecord) -> ActuationReport {
    let report = RunReport::new(record, 0.0).cluster.expect("a cluster");
    report.actuation.expect("actuation")
}

/// Phases of pod `p` [s].
fn phases(record: &RunRecord, p: usize) -> [f64; 10] {
    let c = cluster(record);
    let pod = &c.pods[p];
    pod.phases(c.node_of(pod), c.end)
        .map(|d| secs(SimTime(d.0)))
}

fn paths(record: &RunRecord) -> Vec<Option<Path>> {
    cluster(record).pods.iter().map(|p| p.path).collect()
}

#[test]
fn a_replica_that_goes_sleeps_and_the_next_one_wakes_it() {
    let record = ran(&[AWAY, "cluster.actuation={}"]);
    let c = cluster(&record);
    assert_eq!(record.counts.finished, record.counts.offered);
    assert_eq!(paths(&record)[1], Some(Path::Hot));
    // The requester runs after 2 s, the instance is awake 3 s later; probes come every 10 s from the requester's start.
    assert_eq!(
        phases(&record, 1),
        [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 7.0, 0.0]
    );
    assert_eq!(secs(c.pods[1].ready), 212.0);
    let [instance] = &actuation(&record).instances[..] else {
        panic!("{:?}", actuation(&record).instances);
    };
    assert_eq!(instance.pods, [0, 1]);
    // It drains what it has, the kubelet sees that within a second, and falling asleep takes 3 s; then its pod is gone.
    let [(asleep, awake)] = instance.naps[..] else {
        panic!("{instance:?}");
    };
    assert!((103.0..=106.0).contains(&secs(asleep)), "{instance:?}");
    assert_eq!((asleep, secs(awake)), (c.pods[0].gone, 202.0));
    let told = report(&record);
    assert_eq!((told.hot_hit_ratio, told.sleeps), (Some(1.0), 1));
    assert_eq!((told.paths[0].mean_s, told.most_asleep), (12.0, 1));
    assert_eq!(told.most_gpu_bytes, 1_363_652_116);
}

#[test]
fn without_actuation_the_same_replica_starts_anew() {
    let record = ran(&[AWAY]);
    assert_eq!(paths(&record), [None, None]);
    assert_eq!(
        phases(&record, 1),
        [0.0, 0.0, 0.0, 0.0, 30.0, 0.0, 5.0, 0.0, 5.0, 0.0]
    );
    assert!(cluster(&record).actuation.is_none());
}

#[test]
fn level_2_loads_the_weights_again_and_keeps_none_in_the_host() {
    let record = ran(&[AWAY, "cluster.actuation={ level = 2, tensors = \"40 GB\" }"]);
    assert_eq!(
        phases(&record, 1),
        [0.0, 0.0, 0.0, 2.0, 30.0, 0.0, 0.0, 3.0, 7.0, 0.0]
    );
    assert_eq!(actuation(&record).most_host_bytes, 0);
}

#[test]
fn a_launcher_has_loaded_the_modules_of_a_new_instance() {
    let record = ran(&[
        "change=[{ at = \"100 s\", replicas = 2 }]",
        "cluster.node_group[0].accelerators=2",
        "cluster.actuation={ launcher = { launcherCount = 2 }, imports = \"2 s\" }",
    ]);
    assert_eq!(paths(&record), [Some(Path::Warm), Some(Path::Warm)]);
    // 5 s of the engine's start less the imports.
    assert_eq!(
        phases(&record, 1),
        [0.0, 0.0, 0.0, 2.0, 30.0, 0.0, 3.0, 0.0, 7.0, 0.0]
    );
}

#[test]
fn a_pod_on_another_node_finds_no_sleeper() {
    // The first node is full when the second replica comes, and gone when the third does.
    let record = ran(&[
        "change=[{ at = \"50 s\", nodes = 2 }, { at = \"150 s\", replicas = 2 }, { at = \"300 s\", replicas = 0 }, { at = \"400 s\", replicas = 1 }]",
        "fault=[{ kind = \"node\", at = \"350 s\", target = 0, noticed_after = \"0 s\" }]",
        "cluster.actuation={}",
        "cluster.node_group[0].nodes=1",
    ]);
    assert_eq!(
        paths(&record)[1..3],
        [Some(Path::Cold), Some(Path::Hot)],
        "{:?}",
        actuation(&record).instances
    );
    let gone = &actuation(&record).instances[0];
    assert_eq!(
        (gone.gone.map(secs), gone.why_gone.as_str()),
        (Some(350.0), "its node is gone")
    );
}

/// Two models on one accelerator, one after the other; `more` is of `[cluster.actuation]`.
fn in_turn(more: &str) -> RunRecord {
    let lines: Vec<String> = [
        (100, "small", 0),
        (110, "large", 1),
        (250, "large", 0),
        (260, "small", 1),
    ]
    .iter()
    .map(|(at, pool, n)| format!("{{ at = \"{at} s\", pool = \"{pool}\", replicas = {n} }}"))
    .collect();
    let all = [
        format!("change=[{}]", lines.join(", ")),
        "pool[1].pod.accelerators=1".into(),
        "pool[1].replicas=0".into(),
        "cluster.node_group[0].accelerators=1".into(),
        "cluster.node_group[0].max=1".into(),
        "workload[1].arrival.rate=0.2 req/s".into(),
        "workload[1].timeout=60 s".into(),
        "run.drain=false".into(),
        format!("cluster.actuation={{ {more} }}"),
    ];
    let scenario = Scenario::parse(MODELS, "models.toml", &all).unwrap_or_else(|e| panic!("{e}"));
    run(&scenario)
}

#[test]
fn two_models_sleep_on_one_accelerator_as_far_as_the_limit_lets_them() {
    let record = in_turn("sleeper-limit = 1");
    assert_eq!(paths(&record)[1..], [Some(Path::Cold), Some(Path::Hot)]);
    assert_eq!(report(&record).most_asleep, 2);
    // A limit of none deletes the first model's sleeper when the second one's instance is made.
    let record = in_turn("sleeper-limit = 0");
    assert_eq!(paths(&record)[1..], [Some(Path::Cold), Some(Path::Cold)]);
    let first = &actuation(&record).instances[0];
    assert_eq!(first.why_gone, "deleted to make room for another");
    let told: Vec<&str> = (cluster(&record).decisions.iter())
        .filter(|d| d.controller == Controller::DualPods && d.to != d.from)
        .map(|d| d.why.as_str())
        .collect();
    assert!(
        told.iter().any(|w| w.contains("1 sleeper deleted (cold)")),
        "{told:?}"
    );
}

#[test]
fn the_hosts_memory_limits_who_sleeps() {
    let with = |host: &str| {
        in_turn(&format!(
            "sleeper-limit = 4, tensors = \"60 GB\", host_memory = \"{host}\""
        ))
    };
    let both = with("120 GB");
    assert_eq!(report(&both).most_host_bytes, 120_000_000_000);
    assert_eq!(paths(&both)[2], Some(Path::Hot));
    // Room for one: the second deletes the first.
    let one = with("100 GB");
    assert_eq!(paths(&one)[2], Some(Path::Cold));
    assert_eq!(
        actuation(&one).instances[0].why_gone,
        "deleted to make room in the host's memory"
    );
    // Room for none: instances end.
    let none = with("50 GB");
    assert_eq!((report(&none).sleeps, report(&none).no_host_room), (0, 2));
}

#[test]
fn a_crash_ends_instance_and_pod_and_another_pod_comes() {
    let record = ran(&[
        "fault=[{ kind = \"replica\", at = \"100 s\" }]",
        "cluster.actuation={}",
    ]);
    let c = cluster(&record);
    assert_eq!(c.pods[0].gone, SimTime(100_000_000_000));
    assert_eq!(
        (c.pods[0].restarts, paths(&record)[1]),
        (0, Some(Path::Cold))
    );
    assert_eq!(actuation(&record).instances[0].why_gone, "it crashed");
}

#[test]
fn a_pod_that_goes_while_its_instance_wakes_leaves_it_asleep() {
    let record = ran(&[
        "change=[{ at = \"100 s\", replicas = 0 }, { at = \"200 s\", replicas = 1 }, { at = \"203 s\", replicas = 0 }, { at = \"300 s\", replicas = 1 }]",
        "cluster.actuation={}",
    ]);
    assert_eq!(paths(&record)[1..], [Some(Path::Hot), Some(Path::Hot)]);
    let naps = &actuation(&record).instances[0].naps;
    let naps: Vec<(f64, f64)> = naps.iter().map(|n| (secs(n.0), secs(n.1))).collect();
    assert_eq!(naps[1], (203.0, 302.0));
}

#[test]
fn wake_ups_at_once_share_what_the_host_gives() {
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../scenarios/cluster-fast-actuation.toml"),
    )
    .unwrap();
    let waking = |replicas: u32| {
        let all = [
            format!(
                "change=[{{ at = \"100 s\", pool = \"chat\", replicas = 0 }}, {{ at = \"200 s\", pool = \"chat\", replicas = {replicas} }}]"
            ),
            format!("pool[0].replicas={replicas}"),
            "pool[0].autoscaler={}".into(),
            "pool[1].autoscaler={}".into(),
            "pool[1].replicas=0".into(),
            "run={ duration = \"240 s\", drain = false }".into(),
        ];
        let scenario = Scenario::parse(&text, "fast.toml", &all).unwrap_or_else(|e| panic!("{e}"));
        let record = run(&scenario);
        let last = cluster(&record).pods.len() - 1;
        assert_eq!(paths(&record)[last], Some(Path::Hot));
        phases(&record, last)[7]
    };
    // 16.06 GB at 24 GB/s; four at once have 46 GB/s together.
    let (alone, four) = (waking(1), waking(4));
    assert!((alone - 0.97).abs() < 0.01, "{alone}");
    assert!((four - 1.70).abs() < 0.01, "{four}");
}

#[test]
fn what_cannot_be_is_refused() {
    refused(
        &[
            "cluster.actuation={}",
            "engine={ kind = \"tgi\", kv_blocks = 1000 }",
        ],
        &["cluster.actuation", "vLLM's sleep mode"],
    );
    refused(
        &[
            "cluster.actuation={}",
            "cluster.pod={ size = 2, accelerators = 1 }",
        ],
        &["cluster.actuation", "a replica has 2 pods"],
    );
    refused(
        &["cluster.actuation={ level = 3 }"],
        &["cluster.actuation.level", "must be 1 or 2, got 3"],
    );
    refused(
        &["cluster.actuation={ sleeper-limit = 1, launcher = {} }"],
        &["cluster.actuation.sleeper-limit", "launcher.maxInstances"],
    );
    refused(
        &["cluster.actuation={ launcher = { maxInstances = 0 } }"],
        &["launcher.maxInstances", "from 1 to"],
    );
    refused(
        &["cluster.actuation={ wake_bandwidth = \"10 GB/s\" }"],
        &[
            "cluster.actuation.wake_bandwidth",
            "needs [model] and [hardware]",
        ],
    );
    refused(
        &["cluster.actuation={ sleepers = 1 }"],
        &["cluster.actuation", "sleepers"],
    );
}

#[test]
fn an_engine_whose_memory_leaves_no_room_for_sleepers_is_refused() {
    let text = "[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\n[[workload]]\n\
                arrival = { kind = \"constant\", rate = \"1 req/s\" }\nprompt = 16\noutput = 10\n[run]\nduration = \"10 s\"\n[cluster]\n\
                node_group = [{ name = \"gpu\", max = 1 }]\nactuation = {}\n";
    let built = |all: &[&str]| {
        let all: Vec<String> = all.iter().map(|s| (*s).to_owned()).collect();
        Scenario::parse(text, "h100.toml", &all).unwrap().build()
    };
    assert!(built(&[]).is_ok());
    let e = match built(&["cluster.actuation.sleeper-limit=8"]) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("accepted"),
    };
    for words in ["8 sleepers", "gpu_memory_utilization = 0.87 or less"] {
        assert!(e.contains(words), "{e}");
    }
    assert!(
        built(&[
            "cluster.actuation.sleeper-limit=8",
            "engine.gpu_memory_utilization=0.87"
        ])
        .is_ok()
    );
}

#[test]
fn the_trace_and_the_report_show_who_slept() {
    let record = ran(&[AWAY, "cluster.actuation={}"]);
    let text = sim::report::text::render(&RunReport::new(&record, 0.0), Default::default());
    assert!(
        text.contains("1 hot ready 12.0 s after they were placed"),
        "{text}"
    );
    assert!(text.contains("waking 3.0 s"), "{text}");
    let mut csv = Vec::new();
    sim::report::actuation::write_instances(&mut csv, cluster(&record), actuation(&record))
        .unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert!(
        csv.lines().nth(1).unwrap().contains(",202.000000000,,"),
        "{csv}"
    );
}
