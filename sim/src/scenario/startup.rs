//! How long pods take to start where the scenario does not say: the figures of [`hwmodels::startup`] for its engine, model, instance types and storage.

use std::collections::BTreeMap;

use hwmodels::EngineKind;
use hwmodels::catalog::Catalog;
use hwmodels::layout::Placement;
use hwmodels::startup::defaults::Defaults;
use hwmodels::startup::spread::Spread;
use hwmodels::startup::weights::NodeRead;
use hwmodels::startup::{Estimate, PhaseName, Pod, State, estimate};

use super::cluster_file::{DelayFile, NodeGroupFile, PodFile, RegistryFile};
use super::error::ScenarioError;
use super::{ModelChoice, Scenario};
use crate::engines::EngineParams;
use crate::kube::delay::Delay;
use crate::kube::spec::{ClusterSpec, SharedLoad, StartSpec, Wake, WakeSpec, Weights};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Storage where none is named.
pub const STORAGE: &str = "ebs_gp3";
/// Loader where none is named.
pub(super) const LOADER: &str = "safetensors";

/// Boot and device plugin of a group, and the start of a pod on it.
pub(super) struct GroupStart {
    pub boot: Delay,
    pub device_plugin: Delay,
    pub start: StartSpec,
    pub tensors: Tensors,
}

/// What of a pod's start sleep and launchers save.
pub(super) struct Tensors {
    /// Model tensors of a pod [bytes].
    pub bytes: f64,
    /// Loading the Python modules.
    pub imports: Delay,
}

/// A time by its median and spread.
fn delay(time: Spread) -> Delay {
    match time {
        Spread::Uniform { low_s, high_s } => Delay::Uniform {
            min: low_s,
            max: high_s,
        },
        Spread::LogNormal {
            typical_s,
            sigma: 0.0,
        } => Delay::Fixed(typical_s),
        Spread::LogNormal { typical_s, sigma } => Delay::Lognormal {
            median: typical_s,
            sigma,
        },
    }
}

/// The sum of some phases.
fn sum(e: &Estimate, names: &[PhaseName]) -> Delay {
    let own = e.phases.iter().filter(|p| names.contains(&p.name));
    delay(Spread::sum(own.map(|p| p.time)))
}

/// What the figures of start-ups are asked with: the same for all groups.
pub(super) struct Figures<'a> {
    catalog: &'a Catalog,
    defaults: Defaults,
    model: String,
}

impl Scenario {
    /// The figures, where the scenario names a model and hardware.
    pub(super) fn figures<'a>(&self, catalog: &'a mut Catalog) -> Result<Option<Figures<'a>>> {
        let (Some(model), Some(hardware)) = (&self.model, &self.hardware) else {
            return Ok(None);
        };
        let model: &ModelChoice = model;
        let name = self.add_model(model, catalog)?;
        self.add_hardware(hardware, catalog)?;
        Ok(Some(Figures {
            catalog,
            defaults: Defaults::builtin(),
            model: name,
        }))
    }

    /// How a pod starts on the nodes of `group`, whose instance type is `instance`: what the scenario says, and the figures for the rest.
    pub(super) fn start_on(
        &self,
        figures: &Figures,
        group: (&NodeGroupFile, &str),
        pod: &PodFile,
        instance: &str,
    ) -> Result<GroupStart> {
        let (file, at) = group;
        let key = |key: &str| format!("cluster.pod.{key}");
        let e = self.estimate(figures, file, pod, instance, at)?;
        let or = |own: &Option<DelayFile>, path: &str, default: Delay| match own {
            Some(_) => self.delay(own, path),
            None => Ok(default),
        };
        use PhaseName::*;
        let engine = sum(
            &e,
            &[
                Framework,
                Distributed,
                TorchCompile,
                MemoryProfiling,
                GraphCapture,
                EngineInit,
                FrontEnd,
            ],
        );
        let is_given = pod.engine_init.is_some();
        let weights = match &pod.weights_load {
            Some(_) => Weights::Time(self.delay(&pod.weights_load, &key("weights_load"))?),
            None => Weights::Load(SharedLoad {
                storage: 0,
                bytes: e.load.bytes,
                open_s: e.load.open_s,
                ceiling: e.load.ceiling,
                node: e.load.node,
                shared: e.load.shared,
                copy_s: e.load.copy_s,
                sigma: e.load.sigma,
            }),
        };
        Ok(GroupStart {
            boot: or(&file.boot, &format!("{at}.boot"), sum(&e, &[NodeBoot]))?,
            device_plugin: or(
                &file.device_plugin,
                &format!("{at}.device_plugin"),
                sum(&e, &[DevicePlugin]),
            )?,
            start: StartSpec {
                image_pull: or(
                    &pod.image_pull,
                    &key("image_pull"),
                    sum(&e, &[ImagePull, ContainerStart]),
                )?,
                image_cached: self.delay(&pod.image_cached, &key("image_cached"))?,
                weights,
                first_start: match is_given {
                    true => Delay::Fixed(0.0),
                    false => sum(&e, &[FirstStart]),
                },
                engine_init: or(&pod.engine_init, &key("engine_init"), engine)?,
                wake: None,
            },
            tensors: Tensors {
                bytes: e.load.bytes,
                imports: sum(&e, &[Framework]),
            },
        })
    }

    fn estimate(
        &self,
        figures: &Figures,
        file: &NodeGroupFile,
        pod: &PodFile,
        instance: &str,
        at: &str,
    ) -> Result<Estimate> {
        let (platform, host) = (file.platform.as_deref(), file.host.as_deref());
        let told = |path: &str, message: String| self.places.error(path, message);
        let arch = figures
            .catalog
            .model(&figures.model)
            .map_err(|e| told("model.name", e.to_string()))?;
        let kind: EngineKind = self.engine.params.kind();
        // Ranks lie as on the scenario's own instance type, whatever nodes a group has.
        let own = self.hardware.as_ref().map_or(instance, |h| &h.instance);
        if let Some(Err(e)) = host.map(|name| figures.defaults.host(name)) {
            return Err(told(&format!("{at}.host"), e.to_string()));
        }
        let placement = Placement::new(figures.catalog, arch, own, self.layout, kind)
            .map_err(|e| told("layout", e.to_string()))?;
        let own = self.model.as_ref().and_then(|m| m.weights);
        let (bytes, ranks) = hwmodels::startup::weights::busiest_node(
            arch,
            &placement,
            own.unwrap_or(arch.native_dtype),
        );
        let mut node = figures
            .catalog
            .instance(instance)
            .map_err(|e| told(&format!("{at}.instance"), e.to_string()))?
            .clone();
        // A machine of one's own has no network that the catalog knows of.
        if node.network_bandwidth <= 0.0 {
            node.network_bandwidth = f64::INFINITY;
        }
        let mut defaults = figures.defaults.clone();
        if let Some(name) = platform {
            let known: Vec<&str> = defaults.platform.iter().map(|p| p.name.as_str()).collect();
            let Some(own) = defaults.platform.iter().find(|p| p.name == name).cloned() else {
                let message = super::schema::unknown("platform", name, &known);
                return Err(told(&format!("{at}.platform"), message));
            };
            defaults.platform = vec![hwmodels::startup::defaults::Platform {
                instances: vec![String::new()],
                ..own
            }];
        }
        let stage = placement.stage_layers.iter().max_by_key(|s| s.len());
        let release = match &self.engine.params {
            EngineParams::VllmV1(p) => Some(p.version.in_full()),
            _ => None,
        };
        estimate(&Pod {
            defaults: &defaults,
            instance: &node,
            host,
            engine: kind,
            layers: stage.map_or(0, |s| s.len() as u32),
            state_layers: stage.map_or(0, |s| arch.state_layers_in(s.clone())),
            ranks: placement.layout.devices(),
            read: NodeRead {
                bytes,
                ranks,
                storage: pod.storage.as_deref().unwrap_or(STORAGE),
                loader: pod.loader.as_deref().unwrap_or(LOADER),
                streams: None,
                capacity: pod.bandwidth.map(|b| b.bytes_per_sec()),
            },
            together: 1,
            per_node: 1,
            state: State {
                compile_cached: pod.compile_cached.unwrap_or(false),
                enforce_eager: self.engine.common.cuda_graphs == Some(false),
                public_registry: pod.registry == Some(RegistryFile::Public),
                release,
                image_bytes: pod.image.map(|b| b.bytes() as f64),
                ..State::default()
            },
        })
        .map_err(|e| told("cluster.pod.storage", e.to_string()))
    }

    /// What a report of the defaults shows of each deployment on each group: medians [s] by phase.
    pub(super) fn start_in_words(cluster: &ClusterSpec) -> BTreeMap<String, String> {
        let secs = |d: &Delay| format!("{:.1} s", d.median());
        let mut all = BTreeMap::new();
        for d in &cluster.deployments {
            for (g, s) in cluster.groups.iter().zip(&d.starts) {
                let Some(s) = s else { continue };
                let weights = match &s.weights {
                    Weights::Time(d) => secs(d),
                    Weights::Load(l) => format!("{:.1} s alone", l.alone_s()),
                };
                let text = format!(
                    "node boot {}, device plugin {}, image pull {}, weights {weights}, engine {} (medians)",
                    secs(&g.boot),
                    secs(&g.device_plugin),
                    secs(&s.image_pull),
                    secs(&s.engine_init)
                );
                let text = match &s.wake {
                    Some(w) => format!("{text}; {}", wake_in_words(w)),
                    None => text,
                };
                let what = match cluster.deployments.len() {
                    1 => format!("start on {}", g.name),
                    _ => format!("start of {} on {}", d.name, g.name),
                };
                all.insert(what, text);
            }
        }
        all
    }
}

/// How instances wake and sleep, for reports of the defaults: medians.
fn wake_in_words(w: &WakeSpec) -> String {
    let wake = match &w.how {
        Wake::Time(delay) => format!("{:.1} s", delay.median()),
        Wake::Copy { fixed, rate, node } => {
            let alone = fixed.median() + w.tensor_bytes as f64 / rate.min(*node);
            format!("{alone:.1} s alone")
        }
    };
    format!("wake-up {wake}, falling asleep {:.1} s", w.sleep.median())
}
