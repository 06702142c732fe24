//! Manifests: a Deployment with its Service, a LeaderWorkerSet, a Dynamo graph.

use std::fmt::Write as _;

use hwmodels::EngineKind;
use sim::cluster::pools::Role;
use sim::scenario::{RouterPolicy, Scenario};

use super::apart::Sides;
use super::serving::{self, model_id};
use super::shared::{Exported, devices_of_node, label, own_machine, ranks, router, selector, yaml};
use super::{autoscalers, compose, llm_d, sglang, triton, vllm};
use crate::place::printable;

/// Name of the resource that a device is to Kubernetes.
fn resource(s: &Scenario) -> String {
    match s.hardware.as_ref().and_then(|h| h.mig.as_ref()) {
        Some(profile) => format!("nvidia.com/mig-{profile}"),
        None => "nvidia.com/gpu".to_owned(),
    }
}

/// A container's image, program and arguments, and variables.
struct Container {
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    variables: Vec<(String, String)>,
    /// `nvidia.com/gpu`, or that of a MIG profile.
    resource: String,
    devices: u32,
    port: u16,
    /// The path that answers when it serves; none of a container that has no server.
    ready: Option<&'static str>,
    /// Whether it hands KV on or fetches it.
    moves_kv: bool,
}

impl Container {
    /// Its YAML in the deployment of `s`, each line indented by `indent` spaces.
    fn yaml(&self, s: &Scenario, indent: usize) -> String {
        let mut out = String::new();
        let pad = " ".repeat(indent);
        let _ = writeln!(out, "{pad}image: {}", yaml(&self.image));
        for (key, words) in [("command", &self.command), ("args", &self.args)] {
            if !words.is_empty() {
                let _ = writeln!(out, "{pad}{key}:");
            }
            for word in words {
                let _ = writeln!(out, "{pad}- {}", yaml(word));
            }
        }
        let _ = writeln!(out, "{pad}env:");
        out += &serving::token(s, &pad);
        if self.moves_kv {
            out += &llm_d::side_channel(&pad);
        }
        for (name, value) in &self.variables {
            let value = serde_json::Value::from(value.as_str());
            let _ = writeln!(out, "{pad}- name: {name}\n{pad}  value: {value}");
        }
        if let Some(path) = self.ready {
            let _ = writeln!(out, "{pad}ports:\n{pad}- containerPort: {}", self.port);
            out += &serving::probes(s, path, self.port, &pad);
        }
        let _ = writeln!(
            out,
            "{pad}resources:\n{pad}  limits:\n{pad}    {}: {}",
            self.resource, self.devices
        );
        if serving::shares_memory(self.devices) {
            out += &serving::memory_mount(&pad);
        }
        out
    }

    /// Its pod: where it goes, the container, the volumes beside it.
    fn pod(&self, s: &Scenario, indent: usize) -> String {
        let pad = " ".repeat(indent);
        let mut out = selector(s, indent);
        // Kubernetes describes Services in variables, of which one called vllm would be vLLM's own VLLM_PORT.
        let _ = write!(
            out,
            "{pad}tolerations:\n{pad}- {{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}\n{pad}enableServiceLinks: false\n{pad}containers:\n{pad}- name: engine\n{}",
            self.yaml(s, indent + 2)
        );
        if serving::shares_memory(self.devices) {
            out += &serving::memory_volume(&pad);
        }
        out
    }
}

/// How many replicas there are, where no autoscaler says so: each time the file is applied, that number would overrule it.
fn replicas(s: &Scenario, out: &mut Exported) -> String {
    match autoscalers::least(s) {
        None => format!("  replicas: {}\n", s.replicas),
        Some(least) => {
            if s.replicas != least {
                out.cannot(format!(
                    "layout.replicas = {}: the autoscaler has as many as it wants, from {least} on",
                    s.replicas
                ));
            }
            String::new()
        }
    }
}

fn metadata(s: &Scenario) -> String {
    let name = label(s);
    format!("metadata:\n  name: {name}\n  labels: {{app: {name}}}\n")
}

/// llm-d's label of pods that do one part of a request, behind others.
fn role_label(role: Role) -> &'static str {
    match role {
        Role::Both => "",
        Role::Prefill => ", llm-d.ai/role: prefill",
        Role::Decode => ", llm-d.ai/role: decode",
    }
}

/// How vLLM is told that KV comes and goes.
fn connector(role: Role) -> Option<String> {
    (role != Role::Both).then(|| format!("--kv-transfer-config={}", llm_d::CONNECTOR))
}

/// `deployment.yaml`.
pub fn deployment(s: &Scenario, role: Role, out: &mut Exported) {
    let name = label(s);
    let devices = ranks(s);
    if devices > devices_of_node(s) {
        out.cannot(format!(
            "a replica of {devices} devices spans nodes of {}: export to lws",
            devices_of_node(s)
        ));
    }
    let container = match s.engine.params.kind() {
        EngineKind::Tgi => Container {
            image: compose::image(s),
            command: Vec::new(),
            args: Vec::new(),
            variables: compose::variables(s, out),
            resource: resource(s),
            devices,
            port: 80,
            ready: Some("/health"),
            moves_kv: false,
        },
        EngineKind::Sglang => Container {
            image: sglang::image(s),
            command: ["python3", "-m", "sglang.launch_server"]
                .map(str::to_owned)
                .to_vec(),
            args: [
                format!("--model-path={}", model_id(s)),
                "--host=0.0.0.0".to_owned(),
            ]
            .into_iter()
            .chain(sglang::arguments(s, out))
            .collect(),
            variables: Vec::new(),
            resource: resource(s),
            devices,
            port: 30_000,
            ready: Some("/health"),
            moves_kv: false,
        },
        _ => Container {
            image: vllm::image(s),
            command: Vec::new(),
            args: [format!("--model={}", model_id(s))]
                .into_iter()
                .chain(vllm::arguments(s, out))
                .chain(connector(role))
                .collect(),
            variables: Vec::new(),
            resource: resource(s),
            devices,
            port: 8000,
            ready: Some("/health"),
            moves_kv: role != Role::Both,
        },
    };
    let mut text = format!(
        "# {}\n{}apiVersion: apps/v1\nkind: Deployment\n{}",
        printable(&s.description),
        serving::secret_comment(s),
        metadata(s)
    );
    let _ = write!(
        text,
        "spec:\n{}  selector:\n    matchLabels: {{app: {name}}}\n  template:\n    metadata:\n      labels: {{app: {name}{}}}\n    spec:\n",
        replicas(s, out),
        role_label(role)
    );
    text += &container.pod(s, 6);
    text += &service(&name, &format!("app: {name}"), container.port);
    text += &autoscalers::document(s, "apps/v1", "Deployment", out);
    out.file("deployment.yaml", text);
    own_machine(s, out);
    router(s, out);
}

/// `leaderworkerset.yaml`.
pub fn leader_worker_set(s: &Scenario, role: Role, out: &mut Exported) {
    let devices = ranks(s);
    let node = devices_of_node(s).min(devices);
    let size = devices.div_ceil(node.max(1)).max(1);
    let trt = s.engine.params.kind() == EngineKind::TrtLlm;
    let leader = match trt {
        true => Container {
            image: triton::IMAGE.to_owned(),
            command: ["python3", "./server.py", "leader"]
                .map(str::to_owned)
                .to_vec(),
            args: vec![
                "--triton_model_repo_dir=/var/run/models/triton_model_repo".to_owned(),
                format!("--tp={}", s.layout.tp),
                format!("--pp={}", s.layout.pp),
                format!("--gpu_per_node={node}"),
            ],
            variables: Vec::new(),
            resource: resource(s),
            devices: node,
            port: 8000,
            ready: Some("/v2/health/ready"),
            moves_kv: false,
        },
        false => Container {
            image: vllm::image(s),
            command: ["vllm", "serve"].map(str::to_owned).to_vec(),
            args: [model_id(s)]
                .into_iter()
                .chain(vllm::arguments(s, out))
                .chain(connector(role))
                .chain(multi_node(size, "0"))
                .collect(),
            variables: Vec::new(),
            resource: resource(s),
            devices: node,
            port: 8000,
            ready: Some("/health"),
            moves_kv: role != Role::Both,
        },
    };
    let worker = Container {
        image: leader.image.clone(),
        command: leader.command[..2].to_vec(),
        args: match trt {
            true => vec![
                "worker".to_owned(),
                "--triton_model_repo_dir=/var/run/models/triton_model_repo".to_owned(),
            ],
            false => [model_id(s), "--headless".to_owned()]
                .into_iter()
                .chain(vllm::arguments(s, &mut Exported::default()))
                .chain(connector(role))
                .chain(multi_node(size, "$(LWS_WORKER_INDEX)"))
                .collect(),
        },
        variables: Vec::new(),
        resource: resource(s),
        devices: node,
        port: 8000,
        ready: None,
        moves_kv: role != Role::Both,
    };
    let mut text = format!(
        "# {}\n{}apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\n{}",
        printable(&s.description),
        serving::secret_comment(s),
        metadata(s)
    );
    let _ = write!(
        text,
        "spec:\n{}  leaderWorkerTemplate:\n    size: {size}\n    restartPolicy: RecreateGroupOnPodRestart\n",
        replicas(s, out)
    );
    for (template, container) in [("leaderTemplate", &leader), ("workerTemplate", &worker)] {
        let _ = write!(
            text,
            "    {template}:\n      metadata:\n        labels: {{app: {}{}}}\n      spec:\n",
            label(s),
            role_label(role)
        );
        text += &container.pod(s, 8);
    }
    let leaders = format!(
        "leaderworkerset.sigs.k8s.io/name: {}, leaderworkerset.sigs.k8s.io/worker-index: \"0\"",
        label(s)
    );
    // The set's own name is that of the headless Service that its controller makes.
    text += &service(&format!("{}-serve", label(s)), &leaders, leader.port);
    let api = "leaderworkerset.x-k8s.io/v1";
    text += &autoscalers::document(s, api, "LeaderWorkerSet", out);
    out.file("leaderworkerset.yaml", text);
    own_machine(s, out);
    router(s, out);
    if trt {
        triton::engine_files(s, out);
    }
}

/// A Service in front of the pods with these labels.
fn service(name: &str, labels: &str, port: u16) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector: {{{labels}}}\n  ports:\n  - {{port: 80, targetPort: {port}}}\n"
    )
}

fn multi_node(size: u32, rank: &str) -> Vec<String> {
    if size < 2 {
        return Vec::new();
    }
    vec![
        format!("--nnodes={size}"),
        format!("--node-rank={rank}"),
        "--master-addr=$(LWS_LEADER_ADDRESS)".to_owned(),
    ]
}

/// A worker of a Dynamo graph: its service's name, and what it does where prefill and decode are apart.
fn dynamo_worker(
    name: &str,
    image: &str,
    (service, role): (&str, Option<&str>),
    s: &Scenario,
    words: &mut Exported,
) -> String {
    let mut text =
        format!("    {service}:\n      componentType: worker\n      dynamoNamespace: {name}\n");
    if let Some(role) = role {
        let _ = writeln!(text, "      subComponentType: {role}");
    }
    if serving::is_gated(s) {
        let _ = writeln!(text, "      envFromSecret: {}", serving::SECRET);
    }
    let _ = write!(
        text,
        "      replicas: {}\n      resources:\n        limits:\n          gpu: \"{}\"\n      extraPodSpec:\n{}",
        s.replicas,
        ranks(s),
        selector(s, 8)
    );
    let _ = write!(
        text,
        "        mainContainer:\n          image: {image}\n          command: [python3, -m, dynamo.vllm]\n          args:\n"
    );
    let role = role.map(|role| format!("--is-{role}-worker"));
    let args = [format!("--model={}", model_id(s))]
        .into_iter()
        .chain(vllm::arguments(s, words))
        .chain(role);
    for word in args {
        let _ = writeln!(text, "          - {}", yaml(&word));
    }
    text
}

/// `graph.yaml`: of `s`, or of both sides where prefill and decode are apart.
pub fn dynamo(s: &Scenario, sides: Option<&Sides>, out: &mut Exported) {
    let image = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:latest";
    let name = label(s);
    let mut text = format!(
        "# {}\n{}apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata:\n  name: {name}\nspec:\n  services:\n",
        printable(&s.description),
        serving::secret_comment(s)
    );
    let _ = write!(
        text,
        "    Frontend:\n      componentType: frontend\n      dynamoNamespace: {name}\n      replicas: 1\n      extraPodSpec:\n        mainContainer:\n          image: {image}\n"
    );
    if s.router.policy == RouterPolicy::PrefixAware {
        let _ = write!(
            text,
            "      envs:\n      - name: DYN_ROUTER_MODE\n        value: kv\n"
        );
    }
    let mut words = Exported::default();
    let workers = match sides {
        None => vec![("VllmDecodeWorker", None, s)],
        Some(sides) => vec![
            ("VllmDecodeWorker", Some("decode"), &sides.decode),
            ("VllmPrefillWorker", Some("prefill"), &sides.prefill),
        ],
    };
    for (service, role, side) in workers {
        text += &dynamo_worker(&name, image, (service, role), side, &mut words);
    }
    // Dynamo's own front end is what this target says.
    out.not_said.extend(
        words
            .not_said
            .into_iter()
            .filter(|w| !w.starts_with("engine.front_end")),
    );
    out.file("graph.yaml", text);
    if vllm::release(s) != sim::engines::VllmRelease::NEWEST.to_string() {
        out.cannot("engine.version: the runtime image holds it; choose its tag");
    }
    if !matches!(
        s.router.policy,
        RouterPolicy::RoundRobin | RouterPolicy::PrefixAware
    ) {
        out.cannot("router.policy: Dynamo's front end has round_robin and prefix_aware (kv)");
    }
    if s.router.timeout.is_some() {
        out.cannot("router.timeout: it is the gateway's");
    }
    if s.engine
        .params
        .to_table()
        .get("front_end")
        .and_then(|f| f.as_str())
        != Some("dynamo")
    {
        out.cannot("engine.front_end = \"api_server\": a Dynamo graph has Dynamo's");
    }
    own_machine(s, out);
}
