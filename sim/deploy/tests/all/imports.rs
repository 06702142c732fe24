//! Whole deployments, written as their guides write them, become the scenarios that a person has written of them.

use deploy::export::{Target, export};
use deploy::import::{Options, import};
use deploy::report::Fate;
use deploy::{Imported, Source};
use sim::scenario::Scenario;

fn source(path: &str) -> Source {
    let full = format!("{}/tests/files/{path}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&full).unwrap_or_else(|e| panic!("{full}: {e}"));
    Source::new(path, text)
}

#[track_caller]
fn imported(paths: &[&str], options: &Options) -> Imported {
    let sources: Vec<Source> = paths.iter().map(|p| source(p)).collect();
    import(&sources, options).unwrap_or_else(|e| panic!("{e}"))
}

fn on(instance: &str) -> Options {
    Options {
        instance: Some(instance.into()),
        ..Options::default()
    }
}

#[track_caller]
fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "imported.toml", &[]).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A scenario of `scenarios/`.
fn written(name: &str) -> Scenario {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Scenario::load(path.as_ref(), &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Compares two deployments: everything but names, words, the load and its limits.
#[track_caller]
fn assert_same_deployment(imported: &Imported, name: &str) -> (Scenario, Scenario) {
    let (got, expected) = (scenario(&imported.scenario), written(name));
    assert_eq!(got.model, expected.model, "{}", imported.scenario);
    assert_eq!(got.hardware, expected.hardware, "{}", imported.scenario);
    assert_eq!(got.layout, expected.layout, "{}", imported.scenario);
    assert_eq!(got.replicas, expected.replicas, "{}", imported.scenario);
    assert_eq!(got.engine, expected.engine, "{}", imported.scenario);
    assert_eq!(got.router, expected.router, "{}", imported.scenario);
    (got, expected)
}

fn fate(imported: &Imported, key: &str) -> Option<Fate> {
    imported
        .report
        .keys
        .iter()
        .find(|k| k.key == key)
        .map(|k| k.fate)
}

#[test]
fn the_405b_guide_is_its_scenario() {
    let files = [
        "eks-triton/values.yaml",
        "eks-triton/build.sh",
        "eks-triton/config.pbtxt",
        "eks-triton/bench.sh",
    ];
    let imported = imported(&files, &on("p5.48xlarge"));
    let (got, expected) =
        assert_same_deployment(&imported, "llama3.1-405b-2xp5.48xlarge-trtllm-many-users");
    assert_eq!(got.workload[0].arrival, expected.workload[0].arrival);
    assert_eq!(got.workload[0].lengths, expected.workload[0].lengths);
    assert_eq!(got.workload[0].requests, expected.limits.requests);
    got.build().expect("it starts");
}

#[test]
fn what_the_chart_makes_of_its_values_is_the_same_deployment() {
    let files = [
        "eks-triton/leaderworkerset.yaml",
        "eks-triton/build.sh",
        "eks-triton/config.pbtxt",
    ];
    let imported = imported(&files, &on("p5.48xlarge"));
    assert_same_deployment(&imported, "llama3.1-405b-2xp5.48xlarge-trtllm-many-users");
    assert!(
        imported.report.warnings.is_empty(),
        "{:?}",
        imported.report.warnings
    );
}

#[test]
fn tgi_behind_nginx_is_its_scenario() {
    let files = [
        "tgi-compose/compose.yaml",
        "tgi-compose/tgi.env",
        "tgi-compose/nginx.conf",
        "tgi-compose/bench.sh",
    ];
    let imported = imported(&files, &on("p4d.24xlarge"));
    let (got, expected) = assert_same_deployment(&imported, "llama2-7b-p4d-tgi-tp1x8");
    assert_eq!(got.workload[0].arrival, expected.workload[0].arrival);
    assert_eq!(got.workload[0].lengths, expected.workload[0].lengths);
    assert_eq!(got.workload[0].requests, expected.limits.requests);
    got.build().expect("it starts");
}

#[test]
fn a_vllm_command_tells_what_became_of_each_option() {
    let imported = imported(&["vllm/serve.sh", "vllm/bench.sh"], &on("p5.4xlarge"));
    let got = scenario(&imported.scenario);
    let engine = got.engine.params.to_table();
    assert_eq!(engine["max_num_batched_tokens"].as_integer(), Some(8000));
    assert_eq!(engine["max_num_seqs"].as_integer(), Some(256));
    assert_eq!(fate(&imported, "--max-model-len"), Some(Fate::Used));
    assert_eq!(
        fate(&imported, "--speculative-config"),
        Some(Fate::NotModelled)
    );
    assert_eq!(fate(&imported, "--max-nun-seqs"), Some(Fate::NotUnderstood));
    assert_eq!(fate(&imported, "--port"), Some(Fate::NoEffect));
    let unknown = imported
        .report
        .keys
        .iter()
        .find(|k| k.key == "--max-nun-seqs")
        .unwrap();
    assert_eq!(
        (unknown.line, unknown.note.as_str()),
        (18, "did you mean `--max-num-seqs`?")
    );
    assert!(imported.report.is_partial());
    assert!(!format!("{:?}", imported.report).contains("hf_not_a_real_token"));
    assert!(!imported.scenario.contains("hf_not_a_real_token"));
    let arrival = format!("{:?}", got.workload[0].arrival);
    assert!(
        arrival.contains("Gamma") && arrival.contains("cv: 2.0"),
        "{arrival}"
    );
    assert_eq!(got.slo.ttft.map(|t| t.secs()), Some(0.5));
}

#[test]
fn a_manifest_says_machine_release_and_replicas() {
    let imported = imported(&["vllm/deployment.yaml"], &Options::default());
    let got = scenario(&imported.scenario);
    let hardware = got.hardware.as_ref().unwrap();
    assert_eq!(hardware.instance, "p5.48xlarge");
    assert_eq!((got.layout.tp, got.replicas), (2, 4));
    let engine = got.engine.params.to_table();
    assert_eq!(engine["version"].as_str(), Some("0.15"));
    assert_eq!(engine["max_model_len"].as_integer(), Some(16384));
    assert_eq!(fate(&imported, "spec.maxReplicas"), Some(Fate::Used));
    let cluster = got.cluster.as_ref().expect("its autoscaler needs one");
    let hpa = cluster.autoscaler.as_ref().unwrap().hpa.as_ref().unwrap();
    assert_eq!((hpa.min_replicas, hpa.max_replicas), (Some(2), Some(8)));
    assert_eq!(
        hpa.metrics[0].metric.as_deref(),
        Some("vllm:num_requests_waiting")
    );
    // 8 replicas of TP 2 on nodes of 8 devices.
    assert_eq!(cluster.cluster.node_group[0].max, Some(2));
    let unknown: Vec<&str> = (imported.report.keys.iter())
        .filter(|k| k.fate == Fate::NotUnderstood)
        .map(|k| k.key.as_str())
        .collect();
    // Nothing but the arguments reads it, by its name.
    assert_eq!(unknown, ["MAX_LEN"], "{}", imported.report.render());
    assert!(
        imported
            .scenario
            .contains("max_model_len = 16384  # vllm/deployment.yaml:31"),
        "{}",
        imported.scenario
    );
    got.build().expect("it starts");
}

#[test]
fn what_no_file_says_must_be_said() {
    let error = import(&[source("vllm/serve.sh")], &Options::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("--instance TYPE"), "{error}");
    let bench = import(&[source("vllm/bench.sh")], &on("g5.2xlarge"))
        .unwrap_err()
        .to_string();
    assert!(
        bench.contains("which model") && bench.contains("which engine"),
        "{bench}"
    );
}

#[test]
fn faults_are_placed_in_the_files() {
    for (text, place) in [
        (
            "vllm serve Qwen/Qwen3-14B \\\n  --max-num-seqs many\n",
            "serve.sh:2: --max-num-seqs: must be a whole number",
        ),
        (
            "vllm serve Qwen/Qwen3-14B \\\n  --scheduling-policy lifo\n",
            "serve.sh:2: --scheduling-policy: engine.scheduling_policy",
        ),
        (
            "vllm serve Qwen/Qwen3-14B --tensor-parallel-size $TP\n",
            "serve.sh:1: --tensor-parallel-size: `$TP` has no value",
        ),
        (
            "vllm serve nobody/knows-this\n",
            "serve.sh:1: MODEL: the model `nobody/knows-this`",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-14B --schedule-policy dfs-weight\n",
            "serve.sh:1: --schedule-policy: this order of waiting requests is not modelled",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-14B --disaggregation-mode prefill\n",
            "--disaggregation-mode: one command is one of two servers",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-14B --speculative-algorithm EAGLE3\n",
            "--speculative-algorithm: drafts of the model's own module",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-14B --pp-size 2\n",
            "SGLang's scheduler for pipeline stages is not modelled",
        ),
        (
            "python -m sglang.launch_server --model-path x/DeepSeek-V3 --tp 8 --dp 3 --enable-dp-attention\n",
            "--dp-size must divide --tp-size (8), got 3",
        ),
        (
            "vllm serve Qwen/Qwen3-14B --max-num-seqs 1e99\n",
            "must be a whole number",
        ),
        (
            "vllm serve 'Qwen/Qwen3-14B\n",
            "serve.sh:1: the quote ' that starts here does not end",
        ),
    ] {
        let error = import(&[Source::new("serve.sh", text)], &on("p5.4xlarge"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(place), "{text}: {error}");
    }
}

#[test]
fn files_of_two_deployments_are_refused() {
    let other = Source::new("other.sh", "vllm serve Qwen/Qwen3-32B --max-num-seqs 8\n");
    let error = import(&[source("vllm/serve.sh"), other], &on("p5.4xlarge"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("other.sh:1") && error.contains("vllm/serve.sh:11"),
        "{error}"
    );
    assert!(error.contains("one deployment at a time"), "{error}");
}

#[test]
fn experts_in_data_parallel_ranks_are_one_replica_and_dense_copies_are_many() {
    let moe = Source::new(
        "a.sh",
        "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel --max-model-len 8192 --max-num-seqs 256\n",
    );
    let got = scenario(&import(&[moe], &on("p5en.48xlarge")).unwrap().scenario);
    assert_eq!((got.layout.dp, got.layout.ep, got.replicas), (8, 8, 1));
    let dense = Source::new("a.sh", "vllm serve Qwen/Qwen3-14B --data-parallel-size 4\n");
    let got = scenario(&import(&[dense], &on("p5.48xlarge")).unwrap().scenario);
    assert_eq!((got.layout.dp, got.replicas), (1, 4));
}

#[test]
fn a_config_json_stands_in_for_the_catalog() {
    let config = Source::new(
        "config.json",
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4}",
    );
    let serve = Source::new("serve.sh", "vllm serve nobody/knows-this\n");
    let imported = import(&[serve, config], &on("g5.2xlarge")).unwrap();
    assert!(
        imported.scenario.contains("config = \"config.json\""),
        "{}",
        imported.scenario
    );
}

#[test]
fn sagemakers_requests_are_an_endpoint() {
    let text = r#"{
      "PrimaryContainer": {
        "Image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.1.1-tgi1.4.2-gpu-py310-cu121-ubuntu20.04",
        "Environment": {"HF_MODEL_ID": "meta-llama/Llama-2-7b-hf", "SM_NUM_GPUS": "1", "MAX_INPUT_LENGTH": "1024", "MAX_TOTAL_TOKENS": "2048"}
      },
      "ProductionVariants": [{"VariantName": "all", "InstanceType": "ml.g5.2xlarge", "InitialInstanceCount": 3}]
    }"#;
    let imported = import(&[Source::new("endpoint.json", text)], &Options::default()).unwrap();
    let (got, expected) = (
        scenario(&imported.scenario),
        written("llama2-7b-3x-g5.2xlarge-endpoint"),
    );
    assert_eq!(got.model, expected.model);
    assert_eq!(got.hardware, expected.hardware);
    assert_eq!(got.engine, expected.engine);
    assert_eq!(got.replicas, expected.replicas);
    assert_eq!(got.router.policy, expected.router.policy);
    assert_eq!(got.router.timeout, expected.router.timeout);
}

#[test]
fn guidellm_is_a_load() {
    let load = "guidellm benchmark --target http://x --profile concurrent --rate 16 --max-requests 200 --data 'prompt_tokens=1000,prompt_tokens_stdev=100,output_tokens=200'\n";
    let files = [
        source("vllm/deployment.yaml"),
        Source::new("bench.sh", load),
    ];
    let got = scenario(&import(&files, &Options::default()).unwrap().scenario);
    let arrival = format!("{:?}", got.workload[0].arrival);
    assert!(
        arrival.contains("Closed") && arrival.contains("16"),
        "{arrival}"
    );
    assert_eq!(got.workload[0].requests, Some(200));
}

#[test]
fn a_range_query_is_a_load() {
    let answer = r#"{"status": "success", "data": {"resultType": "matrix", "result": [
      {"metric": {"pod": "a"}, "values": [[1700000000, "1.5"], [1700000060, "2"], [1700000120, "NaN"]]},
      {"metric": {"pod": "b"}, "values": [[1700000000, "0.5"], [1700000060, "1"]]}
    ]}}"#;
    let files = [
        source("vllm/deployment.yaml"),
        Source::new("rate.json", answer),
    ];
    let imported = import(&files, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let got = scenario(&imported.scenario);
    let arrival = format!("{:?}", got.workload[0].arrival);
    assert!(
        arrival.contains("Steps") && arrival.contains("3.0") && arrival.contains("2.0"),
        "{arrival}"
    );
    assert_eq!(got.limits.duration.map(|d| d.secs()), Some(120.0));
    assert!(
        imported
            .report
            .defaults
            .iter()
            .any(|d| d.key == "workload.prompt")
    );
}

/// The engine beside which an autoscaler stands.
const SERVES: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llm}\nspec:\n  replicas: 2\n  template:\n    spec:\n      nodeSelector: \
    {node.kubernetes.io/instance-type: g6e.xlarge}\n      containers:\n      - name: engine\n        image: vllm/vllm-openai:v0.15.0\n        args: \
    [--model=meta-llama/Llama-3.1-8B, --max-model-len=4096]\n        resources: {limits: {nvidia.com/gpu: 1}}\n---\n";

fn beside(autoscaler: &str) -> Imported {
    let file = Source::new("all.yaml", format!("{SERVES}{autoscaler}"));
    import(&[file], &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// A pod that asks for a part of a device stands on one, there and back.
#[test]
fn mig_parts_are_imported_and_exported() {
    let text = SERVES
        .replace("g6e.xlarge", "p4d.24xlarge")
        .replace("nvidia.com/gpu: 1", "nvidia.com/mig-4g.20gb: 1");
    let imported = import(&[Source::new("all.yaml", text)], &Options::default());
    let imported = imported.unwrap_or_else(|e| panic!("{e}"));
    let got = scenario(&imported.scenario);
    let hardware = got.hardware.as_ref().unwrap();
    assert_eq!(hardware.mig.as_deref(), Some("4g.20gb"));
    assert_eq!(got.layout.devices(), 1);
    let files = export(&got, Target::Kubernetes).unwrap_or_else(|e| panic!("{e}"));
    let written = &files.files[0].text;
    assert!(written.contains("nvidia.com/mig-4g.20gb: 1"), "{written}");
    let e = export(&got, Target::Vllm)
        .expect_err("whole devices")
        .to_string();
    assert!(e.contains("MIG") && e.contains("k8s"), "{e}");
}

const KEDA: &str = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: llm}\nspec:\n  scaleTargetRef: {name: llm}\n  minReplicaCount: 1\n  maxReplicaCount: \
    6\n  cooldownPeriod: 120\n  fallback: {failureThreshold: 3, replicas: 4}\n  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: \
    {stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}}}\n  triggers:\n  - type: prometheus\n    metricType: AverageValue\n    metadata: \
    {serverAddress: http://p:9090, query: 'sum(avg_over_time(vllm:num_requests_waiting{job=\"x\"}[2m]))', threshold: \"5\"}\n";

#[test]
fn a_scaled_object_becomes_the_autoscaler() {
    let imported = beside(KEDA);
    let got = scenario(&imported.scenario);
    let cluster = got.cluster.as_ref().unwrap();
    let keda = cluster.autoscaler.as_ref().unwrap().keda.as_ref().unwrap();
    assert_eq!(
        (keda.min_replica_count, keda.max_replica_count),
        (Some(1), Some(6))
    );
    assert_eq!(keda.cooldown_period, Some(120));
    assert_eq!(keda.fallback.as_ref().unwrap().replicas, 4);
    let trigger = &keda.triggers[0];
    assert_eq!(trigger.metric.as_deref(), Some("vllm:num_requests_waiting"));
    assert_eq!(
        (trigger.threshold, trigger.window.unwrap().secs()),
        (Some(5.0), 120.0)
    );
    let down = keda.behavior.as_ref().unwrap().scale_down.as_ref().unwrap();
    assert_eq!(down.stabilization_window_seconds, Some(60));
    assert!(
        !imported.report.is_partial(),
        "{}",
        imported.report.render()
    );
    got.build().expect("it starts");
}

#[test]
fn an_autoscaler_that_is_not_simulated_leaves_its_minimum() {
    let hpa = |metrics: &str| {
        beside(&format!(
            "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: llm}}\nspec:\n  minReplicas: 3\n  maxReplicas: 9\n  metrics:\n{metrics}"
        ))
    };
    for (metrics, why) in [
        (
            "  - type: Resource\n    resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}\n",
            "CPU",
        ),
        (
            "  - type: Pods\n    pods: {metric: {name: DCGM_FI_DEV_GPU_UTIL}, target: {type: AverageValue, averageValue: 80}}\n",
            "DCGM_FI_DEV_GPU_UTIL",
        ),
        (
            "  - type: Pods\n    pods: {metric: {name: 'vllm:num_requests_waiting'}, target: {type: AverageValue, averageValue: many}}\n",
            "autoscaler.hpa",
        ),
    ] {
        let imported = hpa(metrics);
        let got = scenario(&imported.scenario);
        assert!(
            got.cluster.is_none() && got.replicas == 3,
            "{}",
            imported.scenario
        );
        let told = imported.report.render();
        assert!(
            told.contains(why) && fate(&imported, "spec.maxReplicas") == Some(Fate::NotModelled),
            "{told}"
        );
    }
    // Names of the custom metrics API take no colon.
    let imported = hpa(
        "  - type: Pods\n    pods: {metric: {name: vllm_num_requests_waiting}, target: {type: AverageValue, averageValue: 2500m}}\n  - type: Resource\n    resource: \
                        {name: memory}\n",
    );
    let got = scenario(&imported.scenario);
    let metrics = &got
        .cluster
        .as_ref()
        .unwrap()
        .autoscaler
        .as_ref()
        .unwrap()
        .hpa
        .as_ref()
        .unwrap()
        .metrics;
    assert_eq!(
        (metrics.len(), metrics[0].metric.as_deref()),
        (1, Some("vllm:num_requests_waiting"))
    );
    let two = format!("{KEDA}---\n{KEDA}");
    let e = import(
        &[Source::new("all.yaml", format!("{SERVES}{two}"))],
        &Options::default(),
    )
    .unwrap_err()
    .to_string();
    assert!(e.contains("second autoscaler"), "{e}");
}

#[test]
fn an_exported_autoscaler_comes_back() {
    let hpa = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: llm}\nspec:\n  minReplicas: 1\n  maxReplicas: 4\n  metrics:\n  - type: Pods\n    pods: \
               {metric: {name: 'vllm:num_requests_running'}, target: {type: AverageValue, averageValue: 30}}\n  - type: External\n    external: {metric: {name: \
               envoy_cluster_upstream_rq_active}, target: {type: Value, value: 100}}\n  behavior: {scaleUp: {selectPolicy: Min, policies: [{type: Percent, value: 50, \
               periodSeconds: 60}]}}\n";
    for autoscaler in [hpa, KEDA] {
        let first = scenario(&beside(autoscaler).scenario);
        let exported = export(&first, Target::Kubernetes).unwrap();
        let files: Vec<Source> = (exported.files.iter())
            .map(|f| Source::new(f.name.clone(), f.text.clone()))
            .collect();
        let second = import(&files, &Options::default())
            .unwrap_or_else(|e| panic!("{e}\n{}", files[0].text));
        let second = scenario(&second.scenario);
        let of = |s: &Scenario| s.cluster.as_ref().unwrap().autoscaler.clone();
        assert_eq!(of(&second), of(&first), "{}", files[0].text);
        assert!(
            exported.not_said.iter().any(|n| n.starts_with("cluster")),
            "{:?}",
            exported.not_said
        );
        // A target without objects says so.
        let script = export(&first, Target::Vllm).unwrap();
        assert!(script.not_said.iter().any(|n| n.starts_with("autoscaler")));
    }
}

#[test]
fn an_access_log_is_a_load() {
    let line = |minute: u32, second: u32, request: &str| {
        format!(
            "10.0.0.1 - - [10/Oct/2025:13:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" 200 512 \"-\" \"x\"\n"
        )
    };
    let mut log = String::new();
    for second in 0..60 {
        log += &line(0, second, "POST /v1/completions");
        log += &line(0, second, "GET /metrics");
    }
    log += &line(10, 0, "POST /v1/completions");
    let serve = Source::new("all.yaml", SERVES.replace("---\n", ""));
    let imported = import(
        &[serve.clone(), Source::new("access.log", log)],
        &Options::default(),
    )
    .unwrap();
    let got = scenario(&imported.scenario);
    assert_eq!(got.limits.duration.unwrap().secs(), 610.0);
    let mut mix = got.mix().unwrap();
    let mut n = 0;
    let mut spec = sim::request::RequestSpec::default();
    use sim::workload::Workload as _;
    while mix.peek().is_some() {
        mix.pop(n, &mut spec);
        n += 1;
    }
    // 61 requests to the engine, drawn at their rate.
    assert!((30..100).contains(&n), "{n}");
    assert!(
        imported
            .report
            .render()
            .contains("60 requests that no engine answers"),
        "{}",
        imported.report.render()
    );
    let jsonl =
        "{\"time\": 10.5, \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 3}}\n".repeat(2);
    let imported = import(
        &[serve, Source::new("log.jsonl", jsonl)],
        &Options::default(),
    )
    .unwrap();
    assert!(
        imported.scenario.contains("usage.prompt_tokens")
            && imported.scenario.contains("log.jsonl"),
        "{}",
        imported.scenario
    );
    let broken = format!("{}nonsense\n", line(0, 0, "POST /v1/completions"));
    let e = import(&[Source::new("access.log", broken)], &Options::default()).unwrap_err();
    assert!(e.to_string().contains("access.log:2"), "{e}");
}

#[test]
fn the_production_stack_switches_prefix_caching_off_where_nobody_says() {
    let stack = |config: &str, more: &str| {
        let text = format!(
            "servingEngineSpec:\n  modelSpec:\n  - name: a\n    repository: vllm/vllm-openai\n    tag: v0.15.0\n    modelURL: Qwen/Qwen3-14B\n    replicaCount: 2\n    requestGPU: \
             1\n    vllmConfig: {config}\n{more}"
        );
        import(&[Source::new("values.yaml", text)], &on("p5.48xlarge"))
    };
    let caches = |imported: &Imported| {
        let engine = scenario(&imported.scenario).engine.params.to_table();
        engine["enable_prefix_caching"].as_bool().unwrap()
    };
    assert!(!caches(&stack("{maxModelLen: 4096}", "").unwrap()));
    assert!(!caches(&stack("{enablePrefixCaching: false}", "").unwrap()));
    assert!(caches(&stack("{enablePrefixCaching: true}", "").unwrap()));
    // Without a configuration vLLM's own default holds.
    assert!(caches(&stack("{}", "").unwrap()));
    let off = "  - {name: b, enabled: false, modelURL: other/model, replicaCount: 9, repository: x, tag: y}\n";
    assert_eq!(scenario(&stack("{}", off).unwrap().scenario).replicas, 2);
}

#[test]
fn a_graph_of_components_is_imported_as_one_of_services() {
    let text = "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata: {name: g}\nspec:\n  components:\n  - name: Frontend\n    type: frontend\n    replicas: \
                1\n    podTemplate: {spec: {containers: [{name: main, image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1, env: [{name: DYN_ROUTER_MODE, value: kv}]}]}}\n  - name: \
                VllmDecodeWorker\n    type: worker\n    replicas: 2\n    podTemplate:\n      spec:\n        containers:\n        - name: main\n          image: \
                nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1\n          command: [python3, -m, dynamo.vllm]\n          args: [--model, Qwen/Qwen3-14B, --max-model-len, \"4096\"]\n          \
                resources: {limits: {nvidia.com/gpu: \"1\"}}\n";
    let imported = import(&[Source::new("graph.yaml", text)], &on("p5.4xlarge")).unwrap();
    let got = scenario(&imported.scenario);
    assert_eq!(got.replicas, 2);
    let engine = got.engine.params.to_table();
    assert_eq!(engine["front_end"].as_str(), Some("dynamo"));
    assert_eq!(engine["max_model_len"].as_integer(), Some(4096));
    assert_eq!(got.router.policy, sim::scenario::RouterPolicy::PrefixAware);
    assert!(
        !imported.report.is_partial(),
        "{}",
        imported.report.render()
    );
}

/// What becomes of a benchmark's words, beside a server.
fn bench(words: &str) -> Imported {
    let sources = [
        Source::new("serve.sh", "vllm serve Qwen/Qwen3-14B\n"),
        Source::new("bench.sh", format!("{words}\n")),
    ];
    import(&sources, &on("p5.4xlarge")).unwrap()
}

fn not_understood(imported: &Imported) -> Vec<String> {
    let keys = imported.report.keys.iter();
    keys.filter(|k| matches!(k.fate, Fate::NotUnderstood))
        .map(|k| k.key.clone())
        .collect()
}

/// Options of `vllm bench serve` (vllm/benchmarks/serve.py), `guidellm benchmark run` (guidellm/__main__.py) and `aiperf profile` (docs/cli_options.md).
#[test]
fn options_of_load_generators_are_those_of_their_sources() {
    for words in [
        "vllm bench serve --model Qwen/Qwen3-14B --random-input-len 100 --random-output-len 10 --request-rate 2 --num-prompts 10 --probe-request-rate 0.1 \
         --self-timed --frequency-penalty 0.1 --presence-penalty 0.1 --chat-template-kwargs {} --skip-tokenizer-init --enable-multimodal-chat \
         --plot-timeline --timeline-itl-thresholds 25,50 --plot-dataset-stats --lora-modules a b --lora-assignment random",
        "guidellm benchmark run --target http://x --data prompt_tokens=100,output_tokens=10 --profile poisson --rate 2 --max-requests 10 --data-num-workers 1 \
         --dataloader-kwargs {} --request-formatter-kwargs {} --output-sampling 20 --disable-console-interactive --max-global-error-rate 0.1 \
         --detect-saturation --per-constraints {}",
        "aiperf profile -m Qwen/Qwen3-14B --isl 100 --osl 10 --request-rate 2 --request-count 10 --custom-endpoint /v1/x --url-strategy round_robin \
         --transport http --use-legacy-max-tokens --connection-reuse-strategy pooled --dataset-sampling-strategy shuffle --num-conversations 5 \
         --session-turns-mean 2 --session-turn-delay-mean 10 --export-level raw --export-http-trace --show-trace-timing --no-gpu-telemetry \
         --server-metrics node1:8081 --benchmark-grace-period 30 --warmup-duration 5 --request-cancellation-delay 1 --seq-dist 128,64:100 \
         --user-context-prompt-length 10 --num-users 3 --prefill-concurrency 4",
    ] {
        assert_eq!(
            not_understood(&bench(words)),
            Vec::<String>::new(),
            "{words}"
        );
    }
}

#[test]
fn a_linear_ramp_is_what_it_says_and_another_is_said() {
    let words = |strategy: &str| {
        format!(
            "vllm bench serve --random-input-len 100 --random-output-len 10 --num-prompts 100 --ramp-up-strategy {strategy} --ramp-up-start-rps 1 \
             --ramp-up-end-rps 5"
        )
    };
    let linear = bench(&words("linear"));
    assert!(!linear.report.is_partial(), "{}", linear.report.render());
    assert!(linear.scenario.contains("ramp"));
    assert!(bench(&words("exponential")).report.is_partial());
}

#[test]
fn a_system_prompt_that_all_share_is_a_prefix() {
    let imported = bench(
        "aiperf profile -m Qwen/Qwen3-14B --isl 100 --osl 10 --request-rate 2 --request-count 10 --shared-system-prompt-length 64",
    );
    assert!(
        imported.scenario.contains("groups = 1") && imported.scenario.contains("tokens = 64"),
        "{}",
        imported.scenario
    );
}

#[test]
fn kserve_s_prefill_is_a_pool_of_its_own() {
    let text = "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata:\n  name: x\nspec:\n  model:\n    uri: hf://Qwen/Qwen3-14B\n  replicas: \
                3\n  parallelism:\n    tensor: 2\n  template:\n    containers:\n    - name: main\n      env:\n      - name: VLLM_ADDITIONAL_ARGS\n        value: \
                \"--max-num-seqs 64\"\n      resources:\n        limits:\n          nvidia.com/gpu: 2\n  prefill:\n    replicas: 2\n    parallelism:\n      tensor: \
                1\n    template:\n      containers:\n      - name: main\n        resources:\n          limits:\n            nvidia.com/gpu: 1\n";
    let imported = import(&[Source::new("llm.yaml", text)], &on("p5.48xlarge")).unwrap();
    let scenario = scenario(&imported.scenario);
    let pools: Vec<(u32, u32)> = (scenario.pools.iter())
        .map(|p| (p.replicas, p.layout.tp))
        .collect();
    assert_eq!(pools, [(2, 1), (3, 2)], "{}", imported.scenario);
    let seqs = |i: usize| {
        scenario.pools[i]
            .engine
            .params
            .to_table()
            .get("max_num_seqs")
            .cloned()
    };
    assert_eq!(seqs(1), Some(64.into()));
    assert_ne!(seqs(0), seqs(1));
}
