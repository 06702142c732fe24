//! What a deployment needs beside its options to serve: a checkpoint that answers, a token to fetch it, shared memory, and time to start.

use std::fmt::Write as _;

use hwmodels::catalog::Catalog;
use hwmodels::layout::{Layout, Placement};
use hwmodels::startup::defaults::Defaults;
use hwmodels::startup::weights::{NodeRead, busiest_node};
use hwmodels::startup::{Pod, State, estimate};
use sim::scenario::{ModelSource, Scenario};

use super::shared::ranks;

/// The Secret with the key `HF_TOKEN` that manifests name.
pub const SECRET: &str = "hf-token-secret";
/// Publishers whose checkpoints the hub gives only to those who agreed to their terms.
const GATED: [&str; 3] = ["meta-llama/", "google/gemma", "mistralai/"];
/// Checkpoints that were not tuned for dialogues and have no sibling that was: they have no chat template.
const BASE: [&str; 4] = [
    "bigscience/bloom",
    "EleutherAI/",
    "01-ai/Yi-6B",
    "01-ai/Yi-9B",
];
/// Seconds between two probes, Kubernetes' own default.
const PERIOD_S: f64 = 10.0;
/// Shortest time that a start may take [s]: networks and registries have bad days.
const LEAST_START_S: f64 = 600.0;
/// What is allowed where nothing is known of the start [s].
const UNKNOWN_START_S: f64 = 1800.0;
/// Longest time that is written [s].
const MOST_START_S: f64 = 86_400.0;
/// How much longer than 99 of 100 starts one may take.
const START_ROOM: f64 = 2.0;
/// Space for a checkpoint beside the bytes of its weights: a second copy of some tensors, and other files [ratio, bytes].
const DISK_ROOM: (f64, f64) = (1.3, 10e9);

/// The model's name on the Hugging Face hub where the catalog knows it: of several, the first that was tuned for dialogues, as loads are dialogues.
pub fn model_id(s: &Scenario) -> String {
    match s.model.as_ref().map(|m| &m.source) {
        Some(ModelSource::Catalog(name)) => {
            let catalog = Catalog::builtin();
            let aliases = catalog.model(name).map_or(&[][..], |a| &a.aliases);
            let hub = || aliases.iter().filter(|alias| alias.contains('/'));
            let named = hub().find(|id| is_tuned(id)).or(hub().next());
            named.unwrap_or(name).clone()
        }
        Some(ModelSource::Config(path)) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
            folder.map_or_else(|| "./model".to_owned(), |p| p.display().to_string())
        }
        None => String::new(),
    }
}

/// Whether a checkpoint's name says that it was tuned for dialogues.
fn is_tuned(id: &str) -> bool {
    let id = id.to_ascii_lowercase();
    id.contains("instruct") || id.contains("chat") || id.ends_with("-it")
}

/// Whether a checkpoint takes dialogues; of one that nobody knows it is assumed.
pub fn chats(id: &str) -> bool {
    is_tuned(id) || !BASE.iter().any(|base| id.starts_with(base))
}

/// Whether the hub asks for a token.
pub fn is_gated(s: &Scenario) -> bool {
    let id = model_id(s);
    GATED.iter().any(|publisher| id.starts_with(publisher))
}

/// A comment that says how to make the Secret, where the model needs one.
pub fn secret_comment(s: &Scenario) -> String {
    match is_gated(s) {
        true => format!(
            "# The model is gated: agree to its terms, then kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=...\n"
        ),
        false => String::new(),
    }
}

/// A comment of a script that says where the token comes from, where the model needs one.
pub fn token_comment(s: &Scenario) -> &'static str {
    match is_gated(s) {
        true => "# The model is gated: agree to its terms, and set HF_TOKEN.\n",
        false => "",
    }
}

/// The variable with the token, each line indented by `pad`.
pub fn token(s: &Scenario, pad: &str) -> String {
    let optional = match is_gated(s) {
        true => "",
        false => ", optional: true",
    };
    format!(
        "{pad}- name: HF_TOKEN\n{pad}  valueFrom:\n{pad}    secretKeyRef: {{name: {SECRET}, key: HF_TOKEN{optional}}}\n"
    )
}

/// Whether ranks of a pod with so many devices talk by way of `/dev/shm`, of which a container has 64 MiB unless it is given more.
pub fn shares_memory(devices: u32) -> bool {
    devices > 1
}

/// Where `/dev/shm` is mounted, each line indented by `pad`.
pub fn memory_mount(pad: &str) -> String {
    format!("{pad}volumeMounts:\n{pad}- {{name: shm, mountPath: /dev/shm}}\n")
}

/// What is mounted there.
pub fn memory_volume(pad: &str) -> String {
    format!("{pad}volumes:\n{pad}- name: shm\n{pad}  emptyDir: {{medium: Memory}}\n")
}

/// The probes of a server that answers `path`: a start may take as long as this deployment's does, and then it is asked every ten seconds.
pub fn probes(s: &Scenario, path: &str, port: u16, pad: &str) -> String {
    let failures = (allowed_start(s) / PERIOD_S).ceil();
    let mut out = String::new();
    let get = format!("{pad}  httpGet: {{path: {path}, port: {port}}}");
    let _ = write!(
        out,
        "{pad}startupProbe:\n{get}\n{pad}  periodSeconds: {PERIOD_S}\n{pad}  failureThreshold: {failures}\n{pad}readinessProbe:\n{get}\n"
    );
    out
}

/// How long a start may take before it counts as failed [s].
fn allowed_start(s: &Scenario) -> f64 {
    start(s)
        .map_or(UNKNOWN_START_S, |secs| secs * START_ROOM)
        .clamp(LEAST_START_S, MOST_START_S)
}

/// The time that 99 of 100 starts of a container stay below [s]: weights from the hub, then the engine. None where the catalog knows too little.
fn start(s: &Scenario) -> Option<f64> {
    let (model, hardware) = (s.model.as_ref()?, s.hardware.as_ref()?);
    let ModelSource::Catalog(name) = &model.source else {
        return None;
    };
    let catalog = Catalog::builtin();
    let arch = catalog.model(name).ok()?;
    let kind = s.engine.params.kind();
    let placement = Placement::new(&catalog, arch, &hardware.instance, s.layout, kind).ok()?;
    let weights = model.weights.unwrap_or(arch.native_dtype);
    let (bytes, readers) = busiest_node(arch, &placement, weights);
    let stage = placement.stage_layers.iter().max_by_key(|l| l.len())?;
    let found = estimate(&Pod {
        defaults: &Defaults::builtin(),
        instance: catalog.instance(&hardware.instance).ok()?,
        host: None,
        engine: kind,
        layers: u32::try_from(stage.len()).ok()?,
        state_layers: arch.state_layers_in(stage.clone()),
        ranks: ranks(s),
        read: NodeRead {
            bytes,
            ranks: readers,
            storage: "hub",
            loader: "safetensors",
            streams: None,
            capacity: None,
        },
        together: 1,
        per_node: 1,
        state: State {
            node_ready: true,
            image_cached: true,
            ..State::default()
        },
    });
    let secs = found.ok()?.total.quantile(0.99);
    Some(secs).filter(|secs| secs.is_finite())
}

/// Space for the checkpoint, `185Gi`; none where the catalog does not know the model.
pub fn disk(s: &Scenario) -> Option<String> {
    let model = s.model.as_ref()?;
    let ModelSource::Catalog(name) = &model.source else {
        return None;
    };
    let catalog = Catalog::builtin();
    let arch = catalog.model(name).ok()?;
    let weights = model.weights.unwrap_or(arch.native_dtype);
    let bytes = arch.stage_weight_bytes(Layout::SINGLE, 0..arch.layers, weights);
    let space = (bytes * DISK_ROOM.0 + DISK_ROOM.1) / f64::from(1 << 30);
    Some(format!("{}Gi", space.ceil()))
}
