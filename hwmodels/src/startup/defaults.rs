//! The figures that start-up predictions rest on: `data/startup.toml`, embedded, and what a user lays over them.

use serde::Deserialize;

use super::error::StartupError;
use super::spread::Spread;
use crate::engine::EngineKind;
use crate::evidence::Evidence;
use crate::memory::VllmRelease;
use crate::packed;
use crate::units::{ByteSize, BytesPerSec, Secs};

/// A duration with its source.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The median.
    pub typical: Secs,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// Where it comes from.
    pub source: String,
}

impl Figure {
    /// As a distribution.
    pub fn spread(&self) -> Spread {
        Spread::LogNormal {
            typical_s: self.typical.secs(),
            sigma: self.sigma,
        }
    }
}

/// How a cloud's nodes of one kind come up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Its name.
    pub name: String,
    /// Beginnings of the instance types' names.
    pub instances: Vec<String>,
    /// Instance asked for, until its node is Ready.
    pub boot: Figure,
    /// Node Ready, until its accelerators can be allocated.
    pub device_plugin: Figure,
    /// What the disk takes of images and downloads.
    pub disk_write: BytesPerSec,
    /// Source of `disk_write`.
    pub disk_source: String,
}

/// A rate with its source.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateFigure {
    /// The median.
    pub rate: BytesPerSec,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// Where it comes from.
    pub source: String,
}

/// Container images.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Unpacked over compressed bytes.
    pub unpack_ratio: f64,
    /// Fetching and unpacking from a registry of the node's own region, in unpacked bytes.
    pub pull: RateFigure,
    /// The same from a registry elsewhere: Docker Hub, ghcr.io, another region.
    pub public_pull: RateFigure,
    /// Creating and starting the container.
    pub start: Figure,
    /// What the first start on a node adds.
    pub first_start: Figure,
}

/// An engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFigures {
    /// Which.
    pub kind: EngineKind,
    /// Its image, compressed.
    pub image: ByteSize,
    /// Source of the image's size.
    pub image_source: String,
    /// Container started until it serves, without the weights; none where the host's lines tell it by step.
    pub ready: Option<Figure>,
    /// What a compilation adds that finds nothing in its cache.
    pub compile_cold_per_layer: Option<Secs>,
    /// Standard deviation of its logarithm.
    #[serde(default)]
    pub compile_cold_sigma: f64,
    /// How many times as long what follows a compilation takes on such a start.
    #[serde(default)]
    pub cold: ColdStart,
}

/// What of a start of vLLM V1 depends on more than the host's lines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColdStart {
    /// The pass that sizes the KV cache, where nothing is cached: times the host's line.
    pub profiling: Option<Factor>,
    /// Graph capture of releases before `graphs_before`: times the host's line.
    pub graphs: Option<Factor>,
    /// The first release that captures graphs as the hosts' lines say.
    pub graphs_before: Option<VllmRelease>,
    /// Share of an attention layer's part of a compilation that a layer with a state has.
    pub state_layer: Option<f64>,
}

/// A factor on a duration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// The median.
    pub typical: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// Where it comes from.
    pub source: String,
}

/// Seconds by the size of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// For every model [s].
    #[serde(default)]
    pub base: f64,
    /// For each layer [s].
    #[serde(default)]
    pub per_layer: f64,
    /// For each 1e9 bytes of weights on a rank [s].
    #[serde(default)]
    pub per_gb: f64,
    /// Standard deviation of the logarithm.
    #[serde(default)]
    pub sigma: f64,
}

impl Line {
    /// The typical value of a model of so many layers and bytes [s]; never below zero.
    pub fn at(&self, layers: u32, bytes: f64) -> f64 {
        (self.base + self.per_layer * f64::from(layers) + self.per_gb * bytes * 1e-9).max(0.0)
    }
}

/// How fast one kind of host gets vLLM V1 up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Accelerators whose nodes are taken to be such hosts; `*`: all others.
    pub accelerators: Vec<String>,
    /// From the page cache to the accelerators, by all ranks of the node together.
    pub page_cache: BytesPerSec,
    /// Imports, CUDA context.
    pub framework: Line,
    /// torch.compile that finds its results in the cache.
    pub compile_cached: Line,
    /// Profiling pass that sizes the KV cache.
    pub profiling: Line,
    /// CUDA graph capture.
    pub graphs: Line,
    /// The rest of engine initialisation.
    pub init: Line,
    /// Tokenizer, front end, process hand-over.
    pub front_end: Line,
    /// Where it comes from.
    pub source: String,
}

/// Who shares a storage's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All nodes that load from it.
    FileSystem,
    /// The pods of one node.
    Node,
}

/// What carries a storage's bytes to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The network card.
    Network,
    /// The link to block storage.
    Ebs,
    /// Nothing that others use.
    Local,
}

/// Where weights lie.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Its name.
    pub name: String,
    /// Who shares its capacity.
    pub scope: Scope,
    /// What carries its bytes.
    pub over: Over,
    /// What it gives altogether, where that is a limit.
    pub capacity: Option<BytesPerSec>,
    /// What it gives one node at most.
    pub per_client: Option<BytesPerSec>,
    /// Where it comes from.
    pub source: String,
}

/// How a loader reads from a storage.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The loader.
    pub loader: String,
    /// The storage, or the part of its name before `_`.
    pub storage: String,
    /// Reads at a time, of a rank.
    pub streams: u32,
    /// Whether `streams` are those of the node instead.
    #[serde(default)]
    pub node_streams: bool,
    /// Before the first byte.
    #[serde(default)]
    pub open: Secs,
    /// Of one stream; none: the host's page-cache rate.
    pub per_stream: Option<BytesPerSec>,
    /// Of all streams, where the loader itself is a limit.
    pub ceiling: Option<BytesPerSec>,
    /// Whether it is a download to the node's disk.
    #[serde(default)]
    pub via_disk: bool,
    /// Standard deviation of the logarithm of the time.
    pub sigma: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// Where it comes from.
    pub source: String,
}

/// All figures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// Platforms; the first that matches is taken.
    pub platform: Vec<Platform>,
    /// Images.
    pub image: Image,
    /// Engines.
    pub engine: Vec<EngineFigures>,
    /// What several ranks add.
    pub distributed: Distributed,
    /// Hosts; the first that matches is taken.
    pub host: Vec<Host>,
    /// Storages.
    pub storage: Vec<Storage>,
    /// Loaders by storage.
    pub load: Vec<Load>,
}

/// Several ranks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distributed {
    /// Process groups and communicators.
    pub ready: Figure,
}

impl Defaults {
    /// Those of the binary.
    ///
    /// # Panics
    /// Never in a build whose tests pass: one reads and checks the embedded file.
    pub fn builtin() -> Defaults {
        packed::find("startup.toml").read()
    }

    /// Figures in the form of `data/startup.toml`; `name` is the file's, for messages.
    ///
    /// # Errors
    /// What does not parse, with its line; a figure that cannot be.
    pub fn parse(text: &str, name: &str) -> Result<Defaults, StartupError> {
        let wrong = |message: String| StartupError::File {
            file: name.to_owned(),
            message,
        };
        let d: Defaults = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        d.check().map_err(wrong)?;
        Ok(d)
    }

    fn check(&self) -> Result<(), String> {
        let sigma = |what: &str, value: f64| match (0.0..=3.0).contains(&value) {
            true => Ok(()),
            false => Err(format!("{what}: sigma must be from 0 to 3, got {value}")),
        };
        for p in &self.platform {
            sigma(&format!("platform {}: boot", p.name), p.boot.sigma)?;
            sigma(
                &format!("platform {}: device_plugin", p.name),
                p.device_plugin.sigma,
            )?;
        }
        for l in &self.load {
            sigma(&format!("load {} from {}", l.loader, l.storage), l.sigma)?;
            if l.streams == 0 {
                return Err(format!(
                    "load {} from {}: streams must be at least 1",
                    l.loader, l.storage
                ));
            }
        }
        for e in &self.engine {
            if let Some(ready) = &e.ready {
                sigma(&format!("engine {}: ready", e.kind), ready.sigma)?;
            }
            for factor in [&e.cold.profiling, &e.cold.graphs].into_iter().flatten() {
                sigma(&format!("engine {}: cold", e.kind), factor.sigma)?;
                if !(1.0..=1000.0).contains(&factor.typical) {
                    return Err(format!(
                        "engine {}: cold: typical must be from 1 to 1000, got {}",
                        e.kind, factor.typical
                    ));
                }
            }
        }
        for h in &self.host {
            for line in [
                h.framework,
                h.compile_cached,
                h.profiling,
                h.graphs,
                h.init,
                h.front_end,
            ] {
                sigma(&format!("host {}", h.name), line.sigma)?;
            }
        }
        let image = &self.image;
        sigma("image.pull", image.pull.sigma)?;
        sigma("image.public_pull", image.public_pull.sigma)?;
        sigma("image.start", image.start.sigma)?;
        sigma("image.first_start", image.first_start.sigma)?;
        if !(image.unpack_ratio >= 1.0 && image.unpack_ratio <= 100.0) {
            return Err(format!(
                "image.unpack_ratio: must be from 1 to 100, got {}",
                image.unpack_ratio
            ));
        }
        Ok(())
    }

    /// The platform of an instance type.
    ///
    /// # Errors
    /// None matches.
    pub fn platform(&self, instance: &str) -> Result<&Platform, StartupError> {
        self.platform
            .iter()
            .find(|p| p.instances.iter().any(|i| instance.starts_with(i.as_str())))
            .ok_or_else(|| {
                unknown(
                    "platform for instance",
                    instance,
                    self.platform.iter().map(|p| p.name.as_str()),
                )
            })
    }

    /// The figures of an engine.
    ///
    /// # Errors
    /// There are none.
    pub fn engine(&self, kind: EngineKind) -> Result<&EngineFigures, StartupError> {
        self.engine.iter().find(|e| e.kind == kind).ok_or_else(|| {
            unknown(
                "engine",
                kind.name(),
                self.engine.iter().map(|e| e.kind.name()),
            )
        })
    }

    /// The host that nodes with this accelerator are taken to be.
    ///
    /// # Errors
    /// None matches.
    pub fn host_of(&self, accelerator: &str) -> Result<&Host, StartupError> {
        let names = |h: &&Host, name: &str| h.accelerators.iter().any(|a| a == name);
        self.host
            .iter()
            .find(|h| names(h, accelerator))
            .or_else(|| self.host.iter().find(|h| names(h, "*")))
            .ok_or_else(|| {
                unknown(
                    "host for accelerator",
                    accelerator,
                    self.host.iter().map(|h| h.name.as_str()),
                )
            })
    }

    /// A host by name.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn host(&self, name: &str) -> Result<&Host, StartupError> {
        self.host
            .iter()
            .find(|h| h.name == name)
            .ok_or_else(|| unknown("host", name, self.host.iter().map(|h| h.name.as_str())))
    }

    /// A storage by name.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn storage(&self, name: &str) -> Result<&Storage, StartupError> {
        self.storage.iter().find(|s| s.name == name).ok_or_else(|| {
            unknown(
                "storage",
                name,
                self.storage.iter().map(|s| s.name.as_str()),
            )
        })
    }

    /// How a loader reads from a storage.
    ///
    /// # Errors
    /// Nothing is known of the pair.
    pub fn load(&self, loader: &str, storage: &str) -> Result<&Load, StartupError> {
        let kind = storage.split('_').next().unwrap_or(storage);
        let of = |name: &str| {
            self.load
                .iter()
                .find(|l| l.loader == loader && l.storage == name)
        };
        of(storage).or_else(|| of(kind)).ok_or_else(|| {
            let fits = |l: &&Load| l.storage == storage || l.storage == kind;
            let loaders = self.load.iter().filter(fits).map(|l| l.loader.as_str());
            unknown(
                "loader for this storage",
                &format!("{loader} from {storage}"),
                loaders,
            )
        })
    }
}

fn unknown<'a>(
    kind: &'static str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> StartupError {
    StartupError::Unknown {
        kind,
        name: name.to_owned(),
        known: known.into_iter().collect::<Vec<_>>().join(", "),
    }
}
