//! `servetwin autoscale`, and runs in a cluster: their tables and their plot.

use crate::common::{assert_refused, servetwin, stdout};

const SCENARIO: &str = r#"
[step]
base = "100 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[workload]]
arrival = { kind = "steps", steps = [{ rate = "1 req/s", duration = "5 min" }, { rate = "6 req/s", duration = "10 min" }] }
prompt = 16
output = 10
[run]
duration = "15 min"
[slo]
ttft = "2 s"
[cluster]
node_group = [{ name = "gpu", max = 4, price = "3.6 USD/h" }]
[autoscaler.hpa]
maxReplicas = 4
metrics = [{ metric = "vllm:num_requests_waiting", averageValue = 4 }]
[autoscaler.cluster_autoscaler]
"#;

fn written(dir: &std::path::Path, text: &str) -> String {
    let path = dir.join("crowd.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn settings_are_held_against_each_other_and_one_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), SCENARIO);
    let args = [
        "autoscale",
        &file,
        "--target",
        "2,8",
        "--min",
        "1,2,4",
        "--window",
        "300",
        "--attainment",
        "0.95",
        "--json",
    ];
    let out = servetwin(&args);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: serde_json::Value = serde_json::from_str(&stdout(&out)).unwrap();
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(
        settings.len(),
        7,
        "six, and the scenario as it stands: {report}"
    );
    let costs: Vec<f64> = settings
        .iter()
        .map(|s| s["usd"].as_f64().unwrap())
        .collect();
    assert!(costs.is_sorted(), "{costs:?}");
    let chosen = &settings[report["chosen"].as_u64().unwrap() as usize];
    // Nodes come too late for a crowd of ten minutes, so warm spares are needed.
    let words = chosen["setting"].to_string();
    assert!(
        words.contains("min 2") || words.contains("min 4"),
        "{report}"
    );
    assert!(
        chosen["attainment_ratio"].as_f64().unwrap() >= 0.95,
        "{report}"
    );
    // The same settings on the same seeds say the same again.
    assert_eq!(stdout(&servetwin(&args)), stdout(&out));
    let text = stdout(&servetwin(&args[..args.len() - 1]));
    assert!(text.contains("choose vllm:num_requests_waiting"), "{text}");
}

#[test]
fn kinds_of_autoscalers_are_held_against_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), SCENARIO);
    let out = servetwin(&["autoscale", &file, "--kinds", "--target", "3", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: serde_json::Value = serde_json::from_str(&stdout(&out)).unwrap();
    let settings = report["settings"].as_array().unwrap();
    let words: Vec<String> = settings.iter().map(|s| s["setting"].to_string()).collect();
    for kind in [
        "hpa: envoy",
        "keda: envoy",
        "epp: saturation",
        "wva: tokens",
        "sagemaker: target tracking",
        "sagemaker: step scaling",
        "dynamo: load",
        "on Karpenter",
    ] {
        assert!(words.iter().any(|w| w.contains(kind)), "{kind}: {words:?}");
    }
    let present = settings.iter().filter(|s| s["is_present"] == true);
    assert_eq!(present.count(), 1, "the scenario as it stands: {report}");
    // Each of them grew: the crowd needs two replicas.
    let grew = |s: &&serde_json::Value| s["changes"].as_f64().unwrap() >= 1.0;
    assert_eq!(
        settings.iter().filter(grew).count(),
        settings.len(),
        "{report}"
    );
}

#[test]
fn without_an_objective_or_an_autoscaler_there_is_nothing_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let (with_slo, _) = SCENARIO.split_once("[autoscaler.hpa]").unwrap();
    let file = written(dir.path(), with_slo);
    assert_refused(
        &servetwin(&["autoscale", &file]),
        "no [autoscaler.hpa] or [autoscaler.keda]",
    );
    let file = written(dir.path(), &SCENARIO.replace("[slo]\nttft = \"2 s\"\n", ""));
    assert_refused(
        &servetwin(&["autoscale", &file]),
        "the scenario has none; write slo =",
    );
}

#[test]
fn a_run_in_a_cluster_writes_its_tables_and_its_plot() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), SCENARIO);
    let out_dir = dir.path().join("out");
    let plot = dir.path().join("cluster.svg");
    let out = servetwin(&[
        "run",
        &file,
        "--csv",
        &out_dir.display().to_string(),
        "--plot",
        &plot.display().to_string(),
    ]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = stdout(&out);
    for words in [
        "node hours",
        "pods became ready",
        "cluster-autoscaler",
        "hpa",
    ] {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
    let table = |name: &str| std::fs::read_to_string(out_dir.join(name)).unwrap();
    let scaling = table("scaling.csv");
    assert!(
        scaling.lines().any(|l| l.contains(",hpa,replicas,1,")),
        "{scaling}"
    );
    let (nodes, pods) = (table("nodes.csv"), table("pods.csv"));
    assert!(
        nodes.lines().count() > 2 && pods.lines().count() > 2,
        "{nodes}{pods}"
    );
    assert!(table("replicas.csv").lines().count() > 50);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("replicas ready") && svg.contains("time [min]"));
    // Without a cluster there is nothing to plot, and that is said before the run.
    let (plain, _) = SCENARIO.split_once("[cluster]").unwrap();
    let file = written(dir.path(), plain);
    assert_refused(
        &servetwin(&["run", &file, "--plot", &plot.display().to_string()]),
        "has no [cluster]",
    );
}
