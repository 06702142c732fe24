//! `[cluster.actuation]`: how instances sleep and wake, with every default filled in and checked.

use hwmodels::EngineKind;
use hwmodels::memory::MemorySettings;
use hwmodels::units::{ByteSize, BytesPerSec};

use super::Scenario;
use super::actuation_file::ActuationFile;
use super::cluster_file::DelayFile;
use super::error::ScenarioError;
use super::node_groups::Shape;
use super::pods::fixed;
use super::startup::Tensors;
use crate::control::actuation::{DualPodsSpec, LauncherSpec};
use crate::kube::delay::Delay;
use crate::kube::spec::{ActuationSpec, Wake, WakeSpec};

type Result<T> = std::result::Result<T, ScenarioError>;

const AT: &str = "cluster.actuation";

/// A requester's container, whose image is small and on the node. A prior: Kubernetes' own objective for such pods is 5 s at the 99th percentile.
const REQUESTER: f64 = 2.0;
/// Without hardware: "about 3 seconds for a model with 64 GiB of tensor data" (sources 11.1).
const WAKE_UP: f64 = 3.0;
/// Without hardware: as long as the wake-up (sources 11.1).
const FALL_ASLEEP: f64 = 3.0;
/// The framework's phase on hosts of Hopper (`hwmodels/data/startup.toml`).
const IMPORTS: f64 = 8.3;

/// Wake-up from the host's memory, beside the copy [s] (sources 11.1).
const WAKE_FIXED: f64 = 0.3;
/// What an accelerator takes from the host's memory [bytes/s] (sources 11.1).
const WAKE_RATE: f64 = 24e9;
/// What a host gives to four of them that wake together [bytes/s] (sources 11.1).
const WAKE_NODE_RATE: f64 = 46e9;
/// Falling asleep at level 1, beside the copy [s] (sources 11.1).
const SLEEP_FIXED: f64 = 0.05;
/// What an accelerator gives to the host's memory [bytes/s] (sources 11.1).
const SLEEP_RATE: f64 = 22.4e9;
/// What a host takes from four of them [bytes/s] (sources 11.1).
const SLEEP_NODE_RATE: f64 = 40e9;
/// Falling asleep at level 2, which copies nothing [s] (sources 11.1).
const SLEEP_LEVEL_2: f64 = 0.3;
/// What a sleeper keeps of an H100's memory [bytes] (sources 11.2).
const SLEEPING_GPU: u64 = 1_363_652_116;

/// Most instances or launchers that a key may name.
const MOST: u32 = 10_000;

/// Fills in defaults; those that are estimated from model and hardware are left to that.
pub(super) fn fill(file: &mut ActuationFile, is_estimated: bool) {
    match &mut file.launcher {
        Some(launcher) => {
            launcher.max_instances.get_or_insert(2);
            launcher.launcher_count.get_or_insert(0);
        }
        None => {
            file.sleeper_limit.get_or_insert(1);
        }
    }
    if let Some(budget) = &mut file.node_instance_budget {
        budget.max_instances.get_or_insert(0);
    }
    file.level.get_or_insert(1);
    file.requester.get_or_insert_with(|| fixed(REQUESTER));
    file.sleeping_gpu_memory
        .get_or_insert(ByteSize::new(SLEEPING_GPU));
    if !is_estimated {
        file.wake_up.get_or_insert_with(|| fixed(WAKE_UP));
        file.fall_asleep.get_or_insert_with(|| fixed(FALL_ASLEEP));
        file.imports.get_or_insert_with(|| fixed(IMPORTS));
    }
}

impl Scenario {
    fn actuation_file(&self) -> Option<&ActuationFile> {
        self.cluster.as_ref()?.cluster.actuation.as_ref()
    }

    /// Fast model actuation, where the scenario has it.
    pub(super) fn actuation(&self) -> Result<Option<ActuationSpec>> {
        let Some(file) = self.actuation_file() else {
            return Ok(None);
        };
        let at = |key: &str| format!("{AT}.{key}");
        if file.launcher.is_some() && file.sleeper_limit.is_some() {
            return self.wrong(
                &at("sleeper-limit"),
                "is of instances that are pods of their own; with launchers write launcher.maxInstances alone",
            );
        }
        let level = file.level.unwrap_or(1);
        if !(1..=2).contains(&level) {
            return self.wrong(&at("level"), format!("must be 1 or 2, got {level}"));
        }
        let few = |value: Option<u32>, key: &str, least: u32, default: u32| {
            let n = value.unwrap_or(default);
            match (least..=MOST).contains(&n) {
                true => Ok(n as usize),
                false => self.wrong(&at(key), format!("must be from {least} to {MOST}, got {n}")),
            }
        };
        let launcher = match &file.launcher {
            Some(l) => Some(LauncherSpec {
                max_instances: few(l.max_instances, "launcher.maxInstances", 1, 2)?,
                launcher_count: few(l.launcher_count, "launcher.launcherCount", 0, 0)?,
            }),
            None => None,
        };
        let budget = (file.node_instance_budget.as_ref()).and_then(|b| b.max_instances);
        Ok(Some(ActuationSpec {
            dual_pods: DualPodsSpec {
                sleeper_limit: few(file.sleeper_limit, "sleeper-limit", 0, 1)?,
                launcher,
                node_max_instances: few(budget, "nodeInstanceBudget.maxInstances", 0, 0)?,
            },
            level,
            requester: self.delay(&file.requester, &at("requester"))?,
            host_memory: file.host_memory.map(ByteSize::bytes),
            sleeping_gpu_bytes: file
                .sleeping_gpu_memory
                .map_or(SLEEPING_GPU, ByteSize::bytes),
        }))
    }

    /// How instances of replicas of this shape sleep and wake; `of`: what is estimated of them, where there is hardware.
    pub(super) fn wake(&self, shape: &Shape, of: Option<&Tensors>) -> Result<Option<WakeSpec>> {
        let Some(file) = self.actuation_file() else {
            return Ok(None);
        };
        let at = |key: &str| format!("{AT}.{key}");
        let level = file.level.unwrap_or(1);
        let kind = self.engine.params.kind();
        if kind != EngineKind::VllmV1 {
            return self.wrong(
                AT,
                format!("is vLLM's sleep mode, which {kind} does not have; write engine.kind = \"vllm\" or leave it out"),
            );
        }
        if shape.size > 1 {
            return self.wrong(
                AT,
                format!(
                    "binds a pod to an instance on its own node, and a replica has {} pods; let a replica fit on a node (layout, cluster.pod.size)",
                    shape.size
                ),
            );
        }
        let rates = [
            ("wake_bandwidth", file.wake_bandwidth),
            ("host_bandwidth", file.host_bandwidth),
        ];
        for (key, _) in rates.into_iter().filter(|(_, given)| given.is_some()) {
            if of.is_none() {
                let message = "needs [model] and [hardware]; write wake_up = \"3 s\" in its place";
                return self.wrong(&at(key), message);
            }
            if file.wake_up.is_some() || level == 2 {
                let message = "is of wake-ups whose time is estimated, at level 1; leave it out";
                return self.wrong(&at(key), message);
            }
        }
        let bytes = file.tensors.map(ByteSize::bytes);
        let tensor_bytes = bytes.or(of.map(|t| t.bytes as u64)).unwrap_or(0);
        let gpus = f64::from(shape.per_pod.max(1));
        let or = |own: &Option<DelayFile>, key: &str, default: Delay| match own {
            Some(_) => self.delay(own, &at(key)),
            None => Ok(default),
        };
        let how = match &file.wake_up {
            Some(_) => Wake::Time(self.delay(&file.wake_up, &at("wake_up"))?),
            None => {
                let rate = |own: Option<BytesPerSec>, key: &str, default: f64| match own
                    .map(|b| b.bytes_per_sec())
                {
                    Some(v) if v <= 0.0 => self.wrong(&at(key), "must be above 0"),
                    v => Ok(v.unwrap_or(default)),
                };
                Wake::Copy {
                    fixed: Delay::Fixed(WAKE_FIXED),
                    rate: gpus * rate(file.wake_bandwidth, "wake_bandwidth", WAKE_RATE)?,
                    node: rate(file.host_bandwidth, "host_bandwidth", WAKE_NODE_RATE)?,
                }
            }
        };
        let copy = tensor_bytes as f64 / (gpus * SLEEP_RATE).min(SLEEP_NODE_RATE);
        let sleep = match level {
            1 => SLEEP_FIXED + copy,
            _ => SLEEP_LEVEL_2,
        };
        let imports = of.map_or(Delay::Fixed(IMPORTS), |t| t.imports);
        Ok(Some(WakeSpec {
            how,
            sleep: or(&file.fall_asleep, "fall_asleep", Delay::Fixed(sleep))?,
            tensor_bytes,
            imports: or(&file.imports, "imports", imports)?,
        }))
    }

    /// Checks that the engine's share of an accelerator with `total` bytes leaves room for the sleepers that may be there beside it.
    pub(super) fn sleepers_fit(&self, settings: &MemorySettings, total: u64) -> Result<()> {
        let (Some(spec), Some(_)) = (self.actuation()?, self.actuation_file()) else {
            return Ok(());
        };
        let most = spec.dual_pods.most_sleepers() as u64;
        let theirs = most.saturating_mul(spec.sleeping_gpu_bytes) as f64;
        let free = (1.0 - settings.memory_fraction) * total as f64;
        if theirs <= free {
            return Ok(());
        }
        let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
        let fits = (1.0 - theirs / total as f64).max(0.0);
        let advice = match fits >= 0.1 {
            true => format!(
                "write gpu_memory_utilization = {:.2} or less",
                (fits * 100.0).floor() / 100.0
            ),
            false => "allow fewer sleepers".to_owned(),
        };
        self.wrong(
            "engine.gpu_memory_utilization",
            format!(
                "{} of {:.1} GiB leaves {:.2} GiB, and {most} sleepers on an accelerator keep {:.2} GiB (cluster.actuation.sleeping_gpu_memory): vLLM would \
                 not start beside them; {advice}",
                settings.memory_fraction,
                gib(total as f64),
                gib(free),
                gib(theirs)
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups and sleeps at level 1 that were published (sources 11.1): bytes of the tensors, accelerators, wake-up [s], falling asleep [s].
    const PUBLISHED: [(f64, f64, f64, Option<f64>); 5] = [
        // Qwen3-0.6B, Phi-3-vision and Qwen3-Coder-30B-A3B on an A100, Qwen3-235B-A22B in FP8 on four.
        (1.2e9, 1.0, 0.26, Some(0.093)),
        (8.3e9, 1.0, 0.82, Some(0.415)),
        (61.1e9, 1.0, 2.87, Some(2.78)),
        (236e9, 4.0, 5.41, Some(5.89)),
        // "About 3 seconds for a model with 64 GiB of tensor data."
        (68.7e9, 1.0, 3.0, None),
    ];

    #[test]
    fn wake_ups_are_those_that_were_published() {
        for (bytes, gpus, wake, sleep) in PUBLISHED {
            let told = WAKE_FIXED + bytes / (gpus * WAKE_RATE).min(WAKE_NODE_RATE);
            // Of small models what is fixed varies most.
            let within = if bytes > 20e9 { 0.06 } else { 0.36 };
            assert!(
                (told / wake - 1.0).abs() < within,
                "{bytes}: {told} of {wake}"
            );
            let Some(sleep) = sleep else { continue };
            let told = SLEEP_FIXED + bytes / (gpus * SLEEP_RATE).min(SLEEP_NODE_RATE);
            assert!(
                (told / sleep - 1.0).abs() < 0.15,
                "{bytes}: {told} of {sleep}"
            );
        }
    }
}
