//! How long a pod takes to serve: a sum of named phases, each with its distribution and source.
//!
//! ```text
//!  node_boot  device_plugin | image_pull  container_start  first_start | framework  weights_load  torch_compile  memory_profiling  graph_capture
//!  ------- a new node ------  -------- the container ---------------    --------------------- the engine ----------- ... front_end | readiness
//! ```
//!
//! [`estimate`] puts the phases together from [`defaults::Defaults`] (`data/startup.toml`). Weights go over a [`weights::LoadPath`], whose limits are
//! shared by those who load at once; a simulator steps the same model with [`share::FairShare`]. docs/startup.md tells what is known how well.

pub mod defaults;
mod error;
pub mod share;
pub mod spread;
#[cfg(test)]
mod tests;
pub mod weights;

use serde::Serialize;

use crate::engine::EngineKind;
use crate::evidence::Evidence;
use crate::instance::Instance;
use crate::memory::VllmRelease;
use defaults::{Defaults, Factor, Figure, Host, Line};
pub use error::StartupError;
use spread::Spread;
use weights::{LoadPath, NodeRead};

/// A phase of a pod's start, in the order in which they follow each other.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// Instance asked for, until its node is Ready.
    NodeBoot,
    /// Node Ready, until its accelerators can be allocated.
    DevicePlugin,
    /// Image fetched and unpacked.
    ImagePull,
    /// Container created and started.
    ContainerStart,
    /// What a first start on a node adds: libraries come from disk.
    FirstStart,
    /// Imports and device context; of engines known by one figure, everything but the weights.
    Framework,
    /// Process groups and communicators of several ranks.
    Distributed,
    /// Weights from storage to the accelerators.
    WeightsLoad,
    /// torch.compile.
    TorchCompile,
    /// Profiling pass that sizes the KV cache.
    MemoryProfiling,
    /// CUDA graph capture.
    GraphCapture,
    /// The rest of engine initialisation.
    EngineInit,
    /// Tokenizer and front end.
    FrontEnd,
    /// Serving, until the next readiness probe sees it.
    Readiness,
}

impl PhaseName {
    /// As in JSON: `weights_load`.
    pub fn name(self) -> &'static str {
        match self {
            PhaseName::NodeBoot => "node_boot",
            PhaseName::DevicePlugin => "device_plugin",
            PhaseName::ImagePull => "image_pull",
            PhaseName::ContainerStart => "container_start",
            PhaseName::FirstStart => "first_start",
            PhaseName::Framework => "framework",
            PhaseName::Distributed => "distributed",
            PhaseName::WeightsLoad => "weights_load",
            PhaseName::TorchCompile => "torch_compile",
            PhaseName::MemoryProfiling => "memory_profiling",
            PhaseName::GraphCapture => "graph_capture",
            PhaseName::EngineInit => "engine_init",
            PhaseName::FrontEnd => "front_end",
            PhaseName::Readiness => "readiness",
        }
    }
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Which.
    pub name: PhaseName,
    /// How long it takes.
    pub time: Spread,
    /// How that is known.
    pub evidence: Evidence,
    /// Where it comes from.
    pub source: String,
}

/// What starts, and where.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// The figures.
    pub defaults: &'a Defaults,
    /// Node type.
    pub instance: &'a Instance,
    /// Kind of host by name, instead of the one that its accelerator stands for.
    pub host: Option<&'a str>,
    /// The engine.
    pub engine: EngineKind,
    /// Decoder layers of a rank.
    pub layers: u32,
    /// Of these, layers that keep a state in place of KV (Mamba, gated delta net).
    pub state_layers: u32,
    /// Ranks of the replica on all its nodes.
    pub ranks: u32,
    /// What this node reads.
    pub read: NodeRead<'a>,
    /// Nodes that load at once, this one among them.
    pub together: u32,
    /// Pods of each node that load at once.
    pub per_node: u32,
    /// What is there already, and how the engine is set.
    pub state: State,
}

/// What is there before a pod starts, and how its engine is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// The node and its accelerators can be used.
    pub node_ready: bool,
    /// The image is on the node.
    pub image_cached: bool,
    /// The same engine ran on this node before, so that its libraries are in the page cache.
    pub libraries_cached: bool,
    /// The results of torch.compile are in the cache (a volume, an image).
    pub compile_cached: bool,
    /// `--enforce-eager`: neither torch.compile nor graphs.
    pub enforce_eager: bool,
    /// The image comes from a registry outside of the node's region: Docker Hub, ghcr.io, another region's.
    pub public_registry: bool,
    /// Release of vLLM V1; none: one whose start-ups the hosts' lines are of.
    pub release: Option<VllmRelease>,
    /// Size of the compressed image, instead of the engine's [bytes].
    pub image_bytes: Option<f64>,
    /// `periodSeconds` of the readiness probe [s]; Kubernetes' default is 10.
    pub probe_period_s: f64,
}

impl Default for State {
    fn default() -> Self {
        State {
            node_ready: false,
            image_cached: false,
            libraries_cached: false,
            compile_cached: false,
            enforce_eager: false,
            public_registry: false,
            release: None,
            image_bytes: None,
            probe_period_s: 10.0,
        }
    }
}

/// The phases of one start, and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// In order; phases that do not happen are left out.
    pub phases: Vec<Phase>,
    /// Their sum, the phases independent of each other.
    pub total: Spread,
    /// The way of the weights.
    pub load: LoadPath,
    /// Platform that the node was taken for.
    pub platform: String,
    /// Host that it was taken for.
    pub host: String,
}

impl Estimate {
    /// A phase, where it happens.
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }
}

/// The phases of `pod`.
///
/// # Errors
/// A name that the figures do not have.
pub fn estimate(pod: &Pod<'_>) -> Result<Estimate, StartupError> {
    let d = pod.defaults;
    let platform = d.platform(&pod.instance.name)?;
    let host = match pod.host {
        Some(name) => d.host(name)?,
        None => d.host_of(&pod.instance.accelerator)?,
    };
    let engine = d.engine(pod.engine)?;
    let load = LoadPath::new(d, pod.instance, platform, host, &pod.read)?;
    let mut phases = Vec::new();
    let s = pod.state;
    if !s.node_ready {
        phases.push(measured(PhaseName::NodeBoot, &platform.boot));
        phases.push(measured(PhaseName::DevicePlugin, &platform.device_plugin));
    }
    if !s.image_cached {
        let compressed = s.image_bytes.unwrap_or(engine.image.bytes() as f64);
        let pull = match s.public_registry {
            true => &d.image.public_pull,
            false => &d.image.pull,
        };
        let rate = (pull.rate.bytes_per_sec()).min(platform.disk_write.bytes_per_sec());
        phases.push(Phase {
            name: PhaseName::ImagePull,
            time: Spread::LogNormal {
                typical_s: compressed * d.image.unpack_ratio / rate,
                sigma: pull.sigma,
            },
            evidence: pull.evidence,
            source: format!(
                "{:.1} GB compressed ({}); {}",
                compressed * 1e-9,
                if s.image_bytes.is_some() {
                    "given"
                } else {
                    &engine.image_source
                },
                pull.source
            ),
        });
    }
    phases.push(measured(PhaseName::ContainerStart, &d.image.start));
    if !s.libraries_cached && pod.engine != EngineKind::LlamaCpp {
        phases.push(measured(PhaseName::FirstStart, &d.image.first_start));
    }
    let weights = Phase {
        name: PhaseName::WeightsLoad,
        time: Spread::LogNormal {
            typical_s: load.together_s(pod.together, pod.per_node),
            sigma: load.sigma,
        },
        evidence: load.evidence,
        source: load.source.clone(),
    };
    phases.extend(engine_phases(pod, host, engine, weights));
    if s.probe_period_s > 0.0 {
        phases.push(Phase {
            name: PhaseName::Readiness,
            time: Spread::Uniform {
                low_s: 0.0,
                high_s: s.probe_period_s,
            },
            evidence: Evidence::Analytic,
            source: format!("readiness probe every {} s", s.probe_period_s),
        });
    }
    Ok(Estimate {
        total: Spread::sum(phases.iter().map(|p| p.time)),
        phases,
        load,
        platform: platform.name.clone(),
        host: host.name.clone(),
    })
}

fn measured(name: PhaseName, figure: &Figure) -> Phase {
    Phase {
        name,
        time: figure.spread(),
        evidence: figure.evidence,
        source: figure.source.clone(),
    }
}

/// From the engine's process until it serves, `weights` among it.
fn engine_phases(
    pod: &Pod<'_>,
    host: &Host,
    engine: &defaults::EngineFigures,
    weights: Phase,
) -> Vec<Phase> {
    let mut phases = Vec::new();
    let distributed =
        (pod.ranks > 1).then(|| measured(PhaseName::Distributed, &pod.defaults.distributed.ready));
    if let Some(ready) = &engine.ready {
        phases.push(measured(PhaseName::Framework, ready));
        phases.extend(distributed);
        phases.push(weights);
        return phases;
    }
    let rank_bytes = pod.read.bytes / f64::from(pod.read.ranks.max(1));
    // A host that stands for one that nobody measured.
    let is_known = pod.host.is_some() || host.accelerators.contains(&pod.instance.accelerator);
    let evidence = match is_known {
        true => Evidence::Fitted,
        false => Evidence::Extrapolated,
    };
    let line = |name, line: &Line| Phase {
        name,
        time: Spread::LogNormal {
            typical_s: line.at(pod.layers, rank_bytes),
            sigma: line.sigma,
        },
        evidence,
        source: host.source.clone(),
    };
    phases.push(line(PhaseName::Framework, &host.framework));
    phases.extend(distributed);
    phases.push(weights);
    if !pod.state.enforce_eager {
        phases.push(compilation(pod, host, engine, line));
    }
    let cold = &engine.cold;
    let is_cold = !pod.state.compile_cached;
    phases.push(times(
        line(PhaseName::MemoryProfiling, &host.profiling),
        cold.profiling.as_ref().filter(|_| is_cold),
    ));
    if !pod.state.enforce_eager {
        let is_old = (pod.state.release.zip(cold.graphs_before)).is_some_and(|(own, b)| own < b);
        phases.push(times(
            line(PhaseName::GraphCapture, &host.graphs),
            cold.graphs.as_ref().filter(|_| is_old),
        ));
    }
    phases.push(line(PhaseName::EngineInit, &host.init));
    phases.push(line(PhaseName::FrontEnd, &host.front_end));
    phases
}

/// A phase that takes `factor` times as long.
fn times(mut phase: Phase, factor: Option<&Factor>) -> Phase {
    let (Some(f), Spread::LogNormal { typical_s, sigma }) = (factor, phase.time) else {
        return phase;
    };
    phase.time = Spread::LogNormal {
        typical_s: typical_s * f.typical,
        sigma: sigma.hypot(f.sigma),
    };
    phase.source = format!("{}; {}", phase.source, f.source);
    phase
}

/// torch.compile: by layers that attend; one that keeps a state has a share of such a layer's part, and nothing of a model with such layers waits for kernels
/// that no cache has.
fn compilation(
    pod: &Pod<'_>,
    host: &Host,
    engine: &defaults::EngineFigures,
    line: impl Fn(PhaseName, &Line) -> Phase,
) -> Phase {
    let state = pod.state_layers.min(pod.layers);
    let share = engine.cold.state_layer.unwrap_or(1.0);
    let own = Line {
        base: host.compile_cached.base
            - host.compile_cached.per_layer * f64::from(state) * (1.0 - share),
        ..host.compile_cached
    };
    let mut compile = line(PhaseName::TorchCompile, &own);
    let is_cold = !pod.state.compile_cached && state == 0;
    if let (true, Some(cold)) = (is_cold, engine.compile_cold_per_layer) {
        compile.time = Spread::sum([
            compile.time,
            Spread::LogNormal {
                typical_s: cold.secs() * f64::from(pod.layers),
                sigma: engine.compile_cold_sigma,
            },
        ]);
        compile.source += "; with nothing cached: vllm pull 11005, issue 19824";
    }
    compile
}
