//! The shapes in which public projects ship deployments, each with what it must become: `files/shapes`, written here in those shapes.

use deploy::import::{Options, import};
use deploy::report::Fate;
use deploy::{Imported, Source};
use sim::cluster::pools::Role;
use sim::scenario::{ModelSource, PoolChoice, Scenario};

/// Files of a shape under `files/shapes`.
fn sources(names: &[&str]) -> Vec<Source> {
    let read = |name: &&str| {
        let path = format!("{}/tests/files/shapes/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        Source::new(*name, text)
    };
    names.iter().map(read).collect()
}

fn imported(names: &[&str], instance: Option<&str>) -> Result<Imported, String> {
    let options = Options {
        instance: instance.map(str::to_owned),
        ..Options::default()
    };
    import(&sources(names), &options).map_err(|e| e.to_string())
}

/// What a scenario deploys, in a line: of each kind of replica its name and role, how many, devices (tp x pp x dp), model; then engine, release and machine.
fn deployed(s: &Scenario) -> String {
    let layout = |l: &hwmodels::Layout| format!("tp{} pp{} dp{}", l.tp, l.pp, l.dp);
    let model = |m: &ModelSource| match m {
        ModelSource::Catalog(name) => name.clone(),
        ModelSource::Config(path) => path.display().to_string(),
    };
    let one = || {
        let model = s.model.as_ref().map_or(String::new(), |m| model(&m.source));
        vec![format!("{} x {} {model}", s.replicas, layout(&s.layout))]
    };
    let each = |p: &PoolChoice| {
        let role = match p.role {
            Role::Both => "",
            Role::Prefill => " prefills",
            Role::Decode => " decodes",
        };
        let layout = layout(&p.layout);
        format!(
            "{}{role}: {} x {layout} {}",
            p.name,
            p.replicas,
            p.model_name()
        )
    };
    let replicas = match s.pools.is_empty() {
        true => one(),
        false => s.pools.iter().map(each).collect(),
    };
    let machine = s
        .hardware
        .as_ref()
        .map_or(String::new(), |h| match &h.machine {
            Some(own) => format!("{} x {}", own.count, own.accelerator),
            None => h.instance.clone(),
        });
    let engine = s.engine.params.to_table();
    let version = engine.get("version").and_then(|v| v.as_str());
    let kind = s.engine.params.kind();
    format!(
        "{} | {kind} {} | {machine}",
        replicas.join("; "),
        version.unwrap_or("-")
    )
}

/// A shape: its files, the instance where no file says the machine, and what it deploys.
type Shape = (&'static [&'static str], Option<&'static str>, &'static str);

const P5: Option<&str> = Some("p5.48xlarge");

const SHAPES: &[Shape] = &[
    (
        &["aibrix-fleet.yaml"],
        P5,
        "2 x tp2 pp1 dp1 qwen2.5-7b | vllm_v1 0.11 | p5.48xlarge",
    ),
    (
        &["aibrix-podautoscaler.yaml"],
        None,
        "2 x tp1 pp1 dp1 qwen2.5-7b | vllm_v1 0.10 | 1 x L40S-48GB",
    ),
    (
        &["aibrix-sglang-apart.yaml"],
        P5,
        "storm-prefill prefills: 1 x tp2 pp1 dp1 qwen3-8b; storm-decode decodes: 1 x tp2 pp1 dp1 qwen3-8b | sglang 0.5.14 | p5.48xlarge",
    ),
    (
        &["aibrix-stormservice.yaml"],
        None,
        "storm-prefill prefills: 4 x tp1 pp1 dp1 qwen3-8b; storm-decode decodes: 3 x tp1 pp1 dp1 qwen3-8b | vllm_v1 0.9 | 1 x H100-SXM5-80GB",
    ),
    (
        &["bento_service.py"],
        None,
        "1 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.33 | 1 x L4-24GB",
    ),
    (
        &["disaggregated-set.yaml"],
        P5,
        "set-prefill prefills: 4 x tp2 pp1 dp1 qwen3-32b; set-decode decodes: 2 x tp4 pp1 dp1 qwen3-32b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["dynamo-sglang-multinode.yaml"],
        P5,
        "prefill prefills: 1 x tp8 pp1 dp1 qwen3-32b; decode decodes: 1 x tp8 pp1 dp1 qwen3-32b | sglang 0.5.14 | p5.48xlarge",
    ),
    (
        &["dynamo-trtllm-apart.yaml"],
        P5,
        "prefill prefills: 2 x tp1 pp1 dp1 qwen3-8b; decode decodes: 1 x tp1 pp1 dp1 qwen3-8b | trt_llm - | p5.48xlarge",
    ),
    (
        &["dynamo-trtllm.yaml"],
        P5,
        "3 x tp2 pp1 dp1 qwen3-32b | trt_llm - | p5.48xlarge",
    ),
    (
        &["gke-hpa.yaml"],
        None,
        "1 x tp1 pp1 dp1 qwen3-8b | vllm_v1 0.11 | 1 x H100-SXM5-80GB",
    ),
    (
        &["gke-tgi.yaml"],
        None,
        "1 x tp1 pp1 dp1 gemma-2-2b | tgi v3 | 1 x L4-24GB",
    ),
    (
        &["karpenter-gpu-name.yaml"],
        None,
        "2 x tp1 pp1 dp1 gemma-3-1b | vllm_v1 0.11 | 1 x L40S-48GB",
    ),
    (
        &["karpenter.yaml"],
        None,
        "2 x tp4 pp1 dp1 qwen3-32b | vllm_v1 0.11 | g6e.12xlarge",
    ),
    (
        &["knative.yaml"],
        P5,
        "2 x tp1 pp1 dp1 qwen3-8b | vllm_v1 0.11 | p5.48xlarge",
    ),
    (
        &["kserve-data-parallel.yaml"],
        P5,
        "1 x tp1 pp1 dp16 deepseek-v3 | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["kserve-inference-service.yaml"],
        None,
        "2 x tp1 pp1 dp1 gemma-2-2b | vllm_v1 0.33 | 1 x L40S-48GB",
    ),
    (
        &["kserve-runtime.yaml"],
        P5,
        "1 x tp1 pp1 dp1 granite-3.3-8b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["kubeai-model.yaml"],
        None,
        "1 x tp8 pp1 dp1 llama-3.1-405b | vllm_v1 0.33 | 8 x H100-SXM5-80GB",
    ),
    (
        &["llm-d-deployment.yaml"],
        None,
        "3 x tp2 pp1 dp1 qwen3-32b | vllm_v1 0.33 | 2 x H200-SXM5-141GB",
    ),
    (
        &["llm-d-wide.yaml"],
        P5,
        "1 x tp1 pp1 dp16 deepseek-v3 | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["lmcache-deployment.yaml"],
        None,
        "1 x tp1 pp1 dp1 mistral-7b-v0.3 | vllm_v1 0.33 | 1 x H100-SXM5-80GB",
    ),
    (
        &["modal_app.py"],
        None,
        "2 x tp2 pp1 dp1 qwen3-8b | vllm_v1 0.11 | 2 x H100-SXM5-80GB",
    ),
    (
        &["neuron.yaml"],
        None,
        "1 x tp2 pp1 dp1 llama-2-7b | tgi_neuron - | inf2.8xlarge",
    ),
    (
        &["nim.yaml"],
        None,
        "1 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.33 | 1 x L4-24GB",
    ),
    (
        &["nimservice.yaml"],
        None,
        "2 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.33 | 1 x H100-SXM5-80GB",
    ),
    (
        &["opt.yaml"],
        None,
        "1 x tp1 pp1 dp1 opt-125m | vllm_v1 0.33 | 1 x L4-24GB",
    ),
    (
        &["ray-serve.yaml"],
        None,
        "3 x tp1 pp1 dp1 qwen2.5-0.5b | vllm_v1 0.33 | 1 x A10G-24GB",
    ),
    (
        &["raycluster-command.yaml"],
        P5,
        "1 x tp4 pp2 dp1 llama-3.1-70b | vllm_v1 0.12 | p5.48xlarge",
    ),
    (
        &["rayservice.yaml"],
        None,
        "2 x tp2 pp1 dp1 qwen2.5-7b | vllm_v1 0.33 | 2 x L4-24GB",
    ),
    (
        &["rolebasedgroup.yaml"],
        P5,
        "apart-prefill prefills: 1 x tp2 pp1 dp1 qwen3-32b; apart-decode decodes: 2 x tp2 pp1 dp1 qwen3-32b | sglang 0.5.6 | p5.48xlarge",
    ),
    (
        &["rollout.yaml"],
        P5,
        "4 x tp1 pp1 dp1 phi-3-mini | vllm_v1 0.11 | p5.48xlarge",
    ),
    (
        &["sglang-ranks.yaml"],
        P5,
        "1 x tp16 pp1 dp1 deepseek-v3 | sglang 0.5.6 | p5.48xlarge",
    ),
    (
        &["sglang-statefulset.yaml"],
        P5,
        "1 x tp16 pp1 dp1 deepseek-v3 | sglang 0.5.6 | p5.48xlarge",
    ),
    (
        &["short-flags.sh"],
        P5,
        "1 x tp2 pp1 dp1 qwen3-14b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["skypilot-sglang.yaml"],
        None,
        "1 x tp8 pp1 dp1 qwen3-235b-a22b | sglang 0.5.5 | 8 x H100-SXM5-80GB",
    ),
    (
        &["skypilot.yaml"],
        None,
        "2 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.10 | 1 x L4-24GB",
    ),
    (
        &["stack-apart.yaml"],
        P5,
        "first prefills: 2 x tp1 pp1 dp1 llama-3.1-8b; then decodes: 1 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["stack-ray.yaml"],
        P5,
        "1 x tp1 pp2 dp1 llama-3.1-8b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["stack-two-models.yaml"],
        P5,
        "small: 2 x tp1 pp1 dp1 qwen3-8b; large: 1 x tp2 pp1 dp1 qwen3-32b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["unknown-family.sh"],
        P5,
        "1 x tp1 pp1 dp1 llama-3.1-8b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &["unknown-model.sh"],
        P5,
        "1 x tp1 pp1 dp1 codellama-13b | vllm_v1 0.33 | p5.48xlarge",
    ),
    (
        &[
            "kustomize-base.yaml",
            "kustomization.yaml",
            "kustomize-patch.yaml",
        ],
        P5,
        "5 x tp2 pp1 dp1 qwen3-32b | vllm_v1 0.11 | p5.48xlarge",
    ),
];

#[test]
fn shapes_of_public_projects_become_what_they_deploy() {
    let mut wrong = String::new();
    for (files, instance, expected) in SHAPES {
        let got = imported(files, *instance).and_then(|i| {
            let doubts = i
                .report
                .warnings
                .iter()
                .find(|w| w.contains("would not start"));
            if let Some(doubt) = doubts {
                return Err(doubt.clone());
            }
            let s = Scenario::parse(&i.scenario, "x.toml", &[]).map_err(|e| e.to_string())?;
            s.build()
                .map_err(|e| format!("would not start: {e}\n{}", i.scenario))?;
            Ok(deployed(&s))
        });
        let got = got.unwrap_or_else(|e| format!("ERROR {e}"));
        if got != *expected {
            wrong += &format!(
                "    (&{files:?}, {}, {got:?}),\n",
                if instance.is_some() { "P5" } else { "None" }
            );
        }
    }
    assert!(wrong.is_empty(), "these became something else:\n{wrong}");
}

/// What cannot be simulated is refused with a message that says why, never imported as something else.
#[test]
fn what_cannot_be_imported_is_refused_with_the_reason() {
    for (file, words) in [
        (
            "template.yaml",
            "template.yaml:4: is a template of a Helm chart",
        ),
        (
            "block-size.sh",
            "blocks of 1, 8, 16, 32, 64, 128 or 256 tokens, got 17",
        ),
    ] {
        let e = imported(&[file], P5).expect_err(file);
        assert!(e.contains(words), "{file}: {e}");
    }
    let one = |text: &str| {
        let source = [Source::new("x.yaml", text)];
        let instance = P5.map(str::to_owned);
        import(
            &source,
            &Options {
                instance,
                ..Options::default()
            },
        )
        .map_err(|e| e.to_string())
    };
    let ollama = "apiVersion: kubeai.org/v1\nkind: Model\nmetadata: {name: x}\nspec: {url: 'ollama://x', engine: OLlama, resourceProfile: 'nvidia-gpu-l4:1'}\n";
    let e = one(ollama).expect_err("no vLLM");
    assert!(
        e.contains("x.yaml:4: spec.engine") && e.contains("VLLM"),
        "{e}"
    );
    let cpu = ollama
        .replace("OLlama", "VLLM")
        .replace("nvidia-gpu-l4", "cpu");
    let e = one(&cpu).expect_err("no GPU");
    assert!(e.contains("has no GPU"), "{e}");
}

/// A side without the other does both; two sides on machines of one's own have a link, which is a marked default.
#[test]
fn roles_need_both_sides_and_a_link() {
    let alone = imported(&["llm-d-deployment.yaml"], None).unwrap();
    assert!(!alone.scenario.contains("role ="), "{}", alone.scenario);
    let apart = imported(&["aibrix-stormservice.yaml"], None).unwrap();
    let told = |d: &deploy::report::Default| d.key == "kv_transfer.bandwidth";
    assert!(
        apart.report.defaults.iter().any(told),
        "{}",
        apart.report.render()
    );
    // Without it the simulator refuses what would never end.
    let without: String = (apart.scenario.lines())
        .filter(|l| !l.starts_with("[kv_transfer]") && !l.starts_with("bandwidth ="))
        .map(|l| format!("{l}\n"))
        .collect();
    let s = Scenario::parse(&without, "x.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
    let e = s.build().err().expect("no link").to_string();
    assert!(e.contains("kv_transfer") && e.contains("bandwidth"), "{e}");
}

/// Autoscalers of AIBrix, and of GKE's custom metrics adapter, are HorizontalPodAutoscalers here.
#[test]
fn autoscalers_by_other_names_scale_on_the_same_series() {
    for (file, most) in [("aibrix-podautoscaler.yaml", 6), ("gke-hpa.yaml", 5)] {
        let all = imported(&[file], None).unwrap();
        let s = Scenario::parse(&all.scenario, "x.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
        let hpa = s
            .cluster
            .as_ref()
            .and_then(|c| c.autoscaler.as_ref()?.hpa.as_ref());
        let hpa = hpa.unwrap_or_else(|| panic!("{file}: {}", all.report.render()));
        assert_eq!(hpa.max_replicas, Some(most), "{file}");
        let series = hpa.metrics[0].metric.as_deref();
        assert_eq!(series, Some("vllm:num_requests_waiting"), "{file}");
    }
}

/// Starts, ends and rollouts of pods are the workload's where an autoscaler makes a cluster, and are said to be without effect where there is none.
#[test]
fn keys_of_pods_reach_the_cluster() {
    let pod = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec:\n  replicas: 2\n  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n  template:\n    \
               spec:\n      terminationGracePeriodSeconds: 180\n      nodeSelector: {node.kubernetes.io/instance-type: g6e.xlarge}\n      containers:\n      - name: engine\n        \
               image: vllm/vllm-openai:v0.15.0\n        args: [--model=Qwen/Qwen3-8B, --max-model-len=4096]\n        readinessProbe: {initialDelaySeconds: 20, periodSeconds: 5}\n        \
               resources: {limits: {nvidia.com/gpu: 1}}\n";
    let hpa = "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec:\n  scaleTargetRef: {kind: Deployment, name: chat}\n  maxReplicas: 4\n  \
               metrics: [{type: Pods, pods: {metric: {name: 'vllm:num_requests_waiting'}, target: {averageValue: 3}}}]\n";
    let read = |text: String| {
        import(&[Source::new("a.yaml", text)], &Options::default())
            .unwrap_or_else(|e| panic!("{e}"))
    };
    let all = read(format!("{pod}{hpa}"));
    let s = Scenario::parse(&all.scenario, "x.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
    let own = s
        .cluster
        .as_ref()
        .and_then(|c| c.cluster.pod.clone())
        .expect("a pod");
    assert_eq!(
        own.termination_grace_period_seconds,
        Some(180),
        "{}",
        all.scenario
    );
    assert_eq!(
        (own.initial_delay_seconds, own.period_seconds),
        (Some(20), Some(5))
    );
    assert_eq!(
        (own.max_surge.as_deref(), own.max_unavailable.as_deref()),
        (Some("1"), Some("0"))
    );
    assert_eq!(own.name.as_deref(), Some("chat"));
    let alone = read(pod.to_owned());
    let key = |end: &str| {
        alone
            .report
            .keys
            .iter()
            .find(|k| k.key.ends_with(end))
            .expect("is told")
            .clone()
    };
    let grace = key("terminationGracePeriodSeconds");
    assert_eq!(grace.fate, Fate::NoEffect);
    assert!(
        grace
            .note
            .contains("cluster.pod.terminationGracePeriodSeconds = 180"),
        "{}",
        grace.note
    );
}

/// Patches that write one on another are bounded by what a file may hold, and those that fit nowhere are told.
#[test]
fn patches_do_not_multiply() {
    let base = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: e, image: 'vllm/vllm-openai:v0.11.0', args: [Qwen/Qwen3-8B]}]}}}\n";
    let read = |kustomization: String| {
        let files = [
            Source::new("base.yaml", base),
            Source::new("kustomization.yaml", kustomization),
        ];
        let instance = P5.map(str::to_owned);
        import(
            &files,
            &Options {
                instance,
                ..Options::default()
            },
        )
    };
    let head = "kind: Kustomization\nresources: [base.yaml]\npatches:\n- target: {kind: Deployment}\n  patch: |-\n";
    // Each operation goes one level deeper.
    let deep: String = (0..100)
        .map(|i| {
            format!(
                "    - {{op: add, path: /spec/x{}, value: {{x: {{}}}}}}\n",
                "/x".repeat(i)
            )
        })
        .collect();
    let e = read(format!("{head}{deep}"))
        .expect_err("too deep")
        .to_string();
    assert!(
        e.contains("kustomization.yaml:4") && e.contains("deeper"),
        "{e}"
    );
    let nowhere = "    - {op: replace, path: /spec/none/replicas, value: 3}\n";
    let e = read(format!("{head}{nowhere}"))
        .expect_err("nowhere")
        .to_string();
    assert!(e.contains("/spec/none/replicas"), "{e}");
    let all = read(format!(
        "{head}    - {{op: add, path: /spec/replicas, value: 7}}\n"
    ))
    .unwrap_or_else(|e| panic!("{e}"));
    assert!(
        all.scenario.contains("replicas = 7  # base.yaml:"),
        "{}",
        all.scenario
    );
}
