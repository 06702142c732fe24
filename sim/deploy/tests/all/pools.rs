//! Several deployments in one import, and pools that are exported and come back.

use deploy::import::{Options, import};
use deploy::report::Fate;
use deploy::{Imported, Source, Target, export};
use proptest::prelude::*;
use sim::cluster::pools::Role;
use sim::scenario::{PoolChoice, Scenario};

/// A Deployment of vLLM.
fn deployment(name: &str, labels: &str, args: &[&str], gpus: u32) -> String {
    let args: String = args.iter().map(|a| format!("        - '{a}'\n")).collect();
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 2\n  template:\n    metadata:\n      labels: {{app: {name}{labels}}}\n    spec:\n      nodeSelector: {{node.kubernetes.io/instance-type: p5.48xlarge}}\n      containers:\n      - name: engine\n        image: vllm/vllm-openai:v0.33.0\n        args:\n{args}        resources:\n          limits: {{nvidia.com/gpu: {gpus}}}\n---\n"
    )
}

fn hpa(target: &str, kind: &str, most: u32, metric: &str) -> String {
    format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {target}}}\nspec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: {kind}, name: {target}}}\n  minReplicas: 1\n  maxReplicas: {most}\n  metrics:\n  - {metric}\n---\n"
    )
}

const WAITING: &str = "{type: Pods, pods: {metric: {name: vllm_num_requests_waiting}, target: {type: AverageValue, averageValue: 3}}}";
const CPU: &str =
    "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}";

fn imported(text: &str) -> Imported {
    let sources = [Source::new("all.yaml", text)];
    import(&sources, &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn parsed(imported: &Imported) -> Scenario {
    Scenario::parse(&imported.scenario, "x.toml", &[])
        .unwrap_or_else(|e| panic!("{e}\n{}", imported.scenario))
}

fn autoscaler(p: &PoolChoice) -> Option<&sim::scenario::cluster_file::AutoscalerFile> {
    p.on_cluster.as_ref()?.autoscaler.as_ref()
}

#[test]
fn two_models_with_an_autoscaler_each_become_pools_on_a_cluster() {
    let text = deployment(
        "chat",
        "",
        &[
            "--model=meta-llama/Llama-3.1-8B-Instruct",
            "--max-model-len=8192",
        ],
        1,
    ) + &deployment(
        "code",
        "",
        &[
            "--model=Qwen/Qwen3-32B",
            "--max-model-len=8192",
            "--tensor-parallel-size=2",
            "--max-num-seqs=64",
        ],
        2,
    ) + &hpa("chat", "Deployment", 6, WAITING)
        + "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: code}\nspec:\n  scaleTargetRef: {name: code}\n  minReplicaCount: 1\n  maxReplicaCount: 5\n  triggers:\n  - type: prometheus\n    metadata: {serverAddress: x, query: 'sum(vllm:num_requests_waiting)', threshold: '4'}\n---\n"
        + &hpa("gateway", "Deployment", 9, CPU);
    let all = imported(&text);
    let s = parsed(&all);
    assert_eq!(s.pools.len(), 2, "{}", all.scenario);
    let [chat, code] = &s.pools[..] else { panic!() };
    assert_eq!(
        (
            chat.name.as_str(),
            chat.model_name().as_str(),
            chat.replicas,
            chat.layout.tp
        ),
        ("chat", "llama-3.1-8b", 2, 1)
    );
    assert_eq!(
        (
            code.name.as_str(),
            code.model_name().as_str(),
            code.replicas,
            code.layout.tp
        ),
        ("code", "qwen3-32b", 2, 2)
    );
    let own = autoscaler(chat)
        .and_then(|a| a.hpa.as_ref())
        .expect("an HPA");
    assert_eq!((own.max_replicas, own.metrics.len()), (Some(6), 1));
    let own = autoscaler(code)
        .and_then(|a| a.keda.as_ref())
        .expect("KEDA");
    assert_eq!(own.max_replica_count, Some(5));
    // 6 on one accelerator and 5 on two, on nodes of eight.
    let groups = &s.cluster.as_ref().expect("a cluster").cluster.node_group;
    assert_eq!((groups.len(), groups[0].max), (1, Some(3)));
    // What both say stands once, at the top; each value names its line.
    assert_eq!(all.scenario.matches("max_model_len = 8192").count(), 1);
    assert!(
        all.scenario
            .contains("engine.max_num_seqs = 64  # all.yaml:"),
        "{}",
        all.scenario
    );
    let models: Vec<_> = s
        .workload
        .iter()
        .map(|w| w.model.clone().unwrap_or_default())
        .collect();
    assert_eq!(models, ["llama-3.1-8b", "qwen3-32b"]);
    let other = (all.report.keys.iter())
        .find(|k| k.value == "gateway")
        .expect("is told");
    assert_eq!(other.fate, Fate::NoEffect, "{}", other.note);
    assert!(!all.report.is_partial(), "{}", all.report.render());
    s.build().expect("runs");
}

#[test]
fn prefill_and_decode_are_told_by_label_by_kv_role_or_by_name() {
    let args = |role: &str| -> Vec<String> {
        let link = format!(
            "--kv-transfer-config={{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"{role}\"}}"
        );
        vec![
            "--model=meta-llama/Llama-3.1-8B-Instruct".to_owned(),
            "--max-model-len=8192".to_owned(),
            link,
        ]
    };
    let two = |names: [&str; 2], labels: [&str; 2], roles: [&str; 2]| -> String {
        (0..2)
            .map(|i| {
                let args = args(roles[i]);
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                deployment(names[i], labels[i], &args, 1) + &hpa(names[i], "Deployment", 4, WAITING)
            })
            .collect()
    };
    let both = ["kv_both", "kv_both"];
    let label = [", llm-d.ai/role: prefill", ", llm-d.ai/role: decode"];
    for (text, guessed) in [
        (two(["a", "b"], label, both), false),
        (
            two(["a", "b"], ["", ""], ["kv_producer", "kv_consumer"]),
            false,
        ),
        (two(["llm-prefill", "llm-decode"], ["", ""], both), true),
    ] {
        let all = imported(&text);
        let s = parsed(&all);
        let roles: Vec<Role> = s.pools.iter().map(|p| p.role).collect();
        assert_eq!(roles, [Role::Prefill, Role::Decode], "{}", all.scenario);
        assert!(
            s.pools
                .iter()
                .all(|p| autoscaler(p).is_some_and(|a| a.hpa.is_some()))
        );
        let told = all
            .report
            .defaults
            .iter()
            .any(|d| d.key.starts_with("role of pool"));
        assert_eq!(told, guessed, "{}", all.report.render());
        assert!(!all.report.is_partial(), "{}", all.report.render());
        s.build().expect("runs");
    }
    // Without a connector a name says nothing.
    let plain = ["--model=meta-llama/Llama-3.1-8B-Instruct"];
    let text = deployment("prefill", "", &plain, 1) + &deployment("decode", "", &plain, 1);
    let s = parsed(&imported(&text));
    assert!(s.pools.iter().all(|p| p.role == Role::Both) && s.cluster.is_none());
}

#[test]
fn an_autoscaler_that_cannot_be_followed_is_left_out_and_the_other_stays() {
    let args = ["--model=meta-llama/Llama-3.1-8B-Instruct"];
    let unknown = WAITING.replace("vllm_num_requests_waiting", "nobody_exports_this");
    for bad in [CPU.to_owned(), unknown] {
        let text = deployment("a", "", &args, 1)
            + &deployment("b", "", &args, 1)
            + &hpa("a", "Deployment", 3, &bad)
            + &hpa("b", "Deployment", 4, WAITING);
        let all = imported(&text);
        let s = parsed(&all);
        assert!(autoscaler(&s.pools[0]).is_none(), "{}", all.scenario);
        assert!(autoscaler(&s.pools[1]).is_some(), "{}", all.scenario);
        let lost = all
            .report
            .keys
            .iter()
            .filter(|k| k.fate == Fate::NotModelled);
        assert!(lost.count() > 0, "{}", all.report.render());
        s.build().expect("runs");
    }
}

#[test]
fn leader_worker_sets_are_pools_too_and_what_contradicts_is_refused() {
    let set = |name: &str, model: &str| {
        let spec = format!(
            "spec:\n        nodeSelector: {{node.kubernetes.io/instance-type: p5.48xlarge}}\n        containers:\n        - name: engine\n          image: vllm/vllm-openai:v0.33.0\n          command: [vllm, serve]\n          args: [{model}, --tensor-parallel-size=8, --pipeline-parallel-size=2, --max-model-len=8192]\n          resources: {{limits: {{nvidia.com/gpu: 8}}}}\n"
        );
        format!(
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  leaderWorkerTemplate:\n    size: 2\n    workerTemplate:\n      {spec}---\n"
        )
    };
    let text = set("big", "meta-llama/Llama-3.1-405B-Instruct")
        + &set("large", "meta-llama/Llama-3.1-70B-Instruct")
        + &hpa("big", "LeaderWorkerSet", 2, WAITING);
    let s = parsed(&imported(&text));
    assert_eq!(s.pools.len(), 2);
    assert!(s.pools.iter().all(|p| (p.layout.tp, p.layout.pp) == (8, 2)));
    assert!(autoscaler(&s.pools[0]).is_some());
    // Two of two nodes, and one.
    assert_eq!(
        s.cluster.as_ref().unwrap().cluster.node_group[0].max,
        Some(6)
    );

    let files = |more: Source| {
        import(
            &[Source::new("all.yaml", text.clone()), more],
            &Options::default(),
        )
    };
    let script = Source::new("serve.sh", "vllm serve Qwen/Qwen3-14B\n");
    let e = files(script).unwrap_err().to_string();
    assert!(
        e.contains("serve.sh:1") && e.contains("beside the Deployments"),
        "{e}"
    );
    let bench = Source::new(
        "bench.sh",
        "vllm bench serve --model Qwen/Qwen3-14B --random-input-len 100 --random-output-len 10 --request-rate 1 --num-prompts 10\n",
    );
    let e = files(bench).unwrap_err().to_string();
    assert!(e.contains("does not say which of them it asks for"), "{e}");
}

/// What of a pool manifests say; how many replicas it has is its autoscaler's to say where it has one.
fn said(p: &PoolChoice) -> impl PartialEq + std::fmt::Debug {
    let scaler = autoscaler(p)
        .filter(|a| a.hpa.is_some() || a.keda.is_some())
        .map(|a| (a.hpa.clone(), a.keda.clone()));
    (
        p.role,
        scaler.is_none().then_some(p.replicas),
        p.model.clone(),
        p.hardware.clone(),
        p.layout,
        p.engine.clone(),
        scaler,
    )
}

/// Exports to `target`, imports all files at once, and compares the pools.
fn there_and_back(scenario: &Scenario, target: Target) -> Result<(), TestCaseError> {
    let exported = export(scenario, target).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let sources: Vec<Source> = (exported.files.iter())
        .map(|f| Source::new(f.name.clone(), f.text.clone()))
        .collect();
    let files: String = (sources.iter())
        .map(|s| format!("--- {}\n{}", s.name, s.text))
        .collect();
    let all = import(&sources, &Options::default())
        .map_err(|e| TestCaseError::fail(format!("{e}\n{files}")))?;
    prop_assert!(!all.report.is_partial(), "{}\n{files}", all.report.render());
    let back = Scenario::parse(&all.scenario, "y.toml", &[])
        .map_err(|e| TestCaseError::fail(format!("{e}\n{}", all.scenario)))?;
    prop_assert_eq!(back.pools.len(), scenario.pools.len());
    for (a, b) in back.pools.iter().zip(&scenario.pools) {
        prop_assert_eq!(said(a), said(b), "{}\n{}", files, all.scenario);
    }
    Ok(())
}

#[test]
fn shipped_pools_on_a_cluster_come_back_from_manifests() {
    for name in ["cluster-two-models", "cluster-pd-flash-crowd"] {
        let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let scenario = Scenario::load(path.as_ref(), &[]).unwrap();
        there_and_back(&scenario, Target::Kubernetes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let exported = export(&scenario, Target::Kubernetes).unwrap();
        let scaled = (exported.files.iter()).filter(|f| {
            f.text.contains("kind: HorizontalPodAutoscaler")
                || f.text.contains("kind: ScaledObject")
        });
        assert_eq!(scaled.count(), 2, "{name}");
    }
}

/// Pools on a cluster: two models, or prefill and decode, each with limits, a layout and an autoscaler of its own.
fn pools() -> impl Strategy<Value = String> {
    let scaler = prop::sample::select(vec![
        "",
        "autoscaler.hpa = { minReplicas = 1, maxReplicas = 4, metrics = [{ metric = \"vllm:num_requests_waiting\", averageValue = 3 }] }\n",
        "autoscaler.hpa = { minReplicas = 1, maxReplicas = 3, metrics = [{ type = \"External\", metric = \"envoy_cluster_upstream_rq_active\", averageValue = \"7\" }], behavior = { scaleDown = { stabilizationWindowSeconds = 60 } } }\n",
        "autoscaler.keda = { minReplicaCount = 1, maxReplicaCount = 5, cooldownPeriod = 60, triggers = [{ metric = \"vllm:num_requests_running\", threshold = 12, rule = \"avg_over_time\", window = \"1 min\" }] }\n",
    ]);
    let limits = prop::sample::select(vec![
        "",
        "engine = { max_num_seqs = 64 }\n",
        "engine = { max_num_batched_tokens = 4096, enable_prefix_caching = false }\n",
    ]);
    let pool = (
        1u32..4,
        prop::sample::select(vec![1u32, 2, 4]),
        limits,
        scaler,
    );
    let apart = any::<bool>();
    (apart, pool.clone(), pool).prop_map(|(apart, a, b)| {
        let one = |name: &str, of: &str, (n, tp, limits, scaler): (u32, u32, &str, &str)| {
            format!("[[pool]]\nname = \"{name}\"\n{of}replicas = {n}\nlayout = {{ tp = {tp} }}\n{limits}{scaler}")
        };
        let top = "[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\nversion = \"0.33\"\nmax_model_len = 8192\n";
        let rest = "[run]\nrequests = 10\n[cluster]\nnode_group = [{ name = \"nodes\", min = 8, max = 8 }]\n";
        let load = |model: &str| format!("[[workload]]\n{model}arrival = {{ kind = \"poisson\", rate = \"1 req/s\" }}\nprompt = 100\noutput = 10\n");
        match apart {
            true => {
                let model = "[model]\nname = \"llama-3.1-8b\"\n";
                let (p, d) = (one("p", "role = \"prefill\"\n", a), one("d", "role = \"decode\"\n", b));
                format!("{model}{top}{p}{d}{}{rest}", load(""))
            }
            false => {
                let (x, y) = ("llama-3.1-8b", "qwen3-14b");
                let of = |m: &str| format!("model = {{ name = \"{m}\" }}\n");
                let asks = |m: &str| load(&format!("model = \"{m}\"\n"));
                let (p, d) = (one("x", &of(x), a), one("y", &of(y), b));
                format!("{top}{p}{d}{}{}{rest}", asks(x), asks(y))
            }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pools_on_a_cluster_come_back_from_their_manifests(text in pools(), sets in any::<bool>()) {
        let scenario = Scenario::parse(&text, "x.toml", &[])
            .map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        let target = if sets { Target::LeaderWorkerSet } else { Target::Kubernetes };
        there_and_back(&scenario, target)?;
    }
}
