//! Reading the weights: which limit holds, and how many loads share it.

use super::defaults::{Defaults, Host, Over, Platform, Scope};
use super::error::StartupError;
use super::share::FairShare;
use crate::dtype::Dtype;
use crate::evidence::Evidence;
use crate::instance::Instance;
use crate::layout::Placement;
use crate::model::ModelArch;

/// What one node of a replica reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeRead<'a> {
    /// Bytes of the checkpoint that the node needs, read once: its ranks share the page cache.
    pub bytes: f64,
    /// Ranks that read at the same time.
    pub ranks: u32,
    /// Storage, by name.
    pub storage: &'a str,
    /// Loader, by name.
    pub loader: &'a str,
    /// Reads at a time, instead of the loader's.
    pub streams: Option<u32>,
    /// What the volume or file system gives, instead of the default [bytes/s].
    pub capacity: Option<f64>,
}

/// A way from a storage to the accelerators of one node, with its limits [bytes/s]; infinite: none.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPath {
    /// Bytes to read.
    pub bytes: f64,
    /// Before the first byte [s].
    pub open_s: f64,
    /// What this load takes at most: its streams, its loader, the storage's limit for one client.
    pub ceiling: f64,
    /// What the node's pods have together: its network card, its link to block storage, its volume, its disk, its page cache.
    pub node: f64,
    /// What all nodes have together.
    pub shared: f64,
    /// Reading from the page cache what was downloaded to disk before [s].
    pub copy_s: f64,
    /// The tightest limit of a load that is alone, in words.
    pub limit: String,
    /// Standard deviation of the logarithm of the time.
    pub sigma: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// Where it comes from.
    pub source: String,
}

impl LoadPath {
    /// The way of `read` on a node of type `instance`.
    ///
    /// # Errors
    /// An unknown storage or loader.
    pub fn new(
        defaults: &Defaults,
        instance: &Instance,
        platform: &Platform,
        host: &Host,
        read: &NodeRead<'_>,
    ) -> Result<LoadPath, StartupError> {
        const NONE: f64 = f64::INFINITY;
        let storage = defaults.storage(read.storage)?;
        let load = defaults.load(read.loader, read.storage)?;
        let page_cache = host.page_cache.bytes_per_sec();
        let ranks = if load.node_streams {
            1
        } else {
            read.ranks.max(1)
        };
        let streams = read.streams.unwrap_or(load.streams).saturating_mul(ranks);
        let per_stream = load.per_stream.map_or(NONE, |b| b.bytes_per_sec());
        // Mapped files go through the page cache whatever they lie on.
        let mapped = read.loader == "safetensors" && !load.via_disk;
        let copies = if mapped { page_cache } else { NONE };
        let client = storage.per_client.map_or(NONE, |b| b.bytes_per_sec());
        let loader = load.ceiling.map_or(NONE, |b| b.bytes_per_sec());
        let capacity = read
            .capacity
            .or(storage.capacity.map(|b| b.bytes_per_sec()))
            .unwrap_or(NONE);
        let (volume, shared) = match storage.scope {
            Scope::Node => (capacity, NONE),
            Scope::FileSystem => (NONE, capacity),
        };
        let (carrier, link) = match storage.over {
            Over::Network => ("network card", instance.network_bandwidth),
            Over::Ebs => (
                "link to block storage",
                instance.ebs_bandwidth.unwrap_or(NONE),
            ),
            Over::Local => ("", NONE),
        };
        let disk = match load.via_disk {
            true => platform.disk_write.bytes_per_sec(),
            false => NONE,
        };
        let limits = [
            (
                f64::from(streams) * per_stream,
                format!("{streams} stream(s) of the loader"),
            ),
            (loader, "the loader".to_owned()),
            (client, format!("{} for one node", storage.name)),
            (copies, format!("page cache of host {}", host.name)),
            (volume, format!("volume {}", storage.name)),
            (link, format!("{carrier} of {}", instance.name)),
            (disk, "disk that takes the download".to_owned()),
            (shared, format!("file system {}", storage.name)),
        ];
        let tightest = limits.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let ceiling = limits[..3].iter().map(|l| l.0).fold(NONE, f64::min);
        Ok(LoadPath {
            bytes: read.bytes,
            open_s: load.open.secs(),
            ceiling,
            node: volume.min(link).min(disk).min(copies),
            shared,
            copy_s: if load.via_disk {
                read.bytes / page_cache
            } else {
                0.0
            },
            limit: tightest.map_or_else(String::new, |l| l.1.clone()),
            sigma: load.sigma,
            evidence: load.evidence,
            source: load.source.clone(),
        })
    }

    /// Time of a load that is alone [s].
    pub fn alone_s(&self) -> f64 {
        self.together_s(1, 1)
    }

    /// Time until the last is through where `nodes` nodes with `per_node` loads each begin at once [s].
    pub fn together_s(&self, nodes: u32, per_node: u32) -> f64 {
        // Equal flows that begin together end together, so one node of each tells all: what the others take is not its to have.
        let shared = self.shared / f64::from(nodes.max(1));
        let mut links = FairShare::new([shared, self.node]);
        for _ in 0..per_node.max(1) {
            links.join(0.0, self.bytes, self.ceiling, [0, 1]);
        }
        let read = links.drain().last().map_or(f64::INFINITY, |end| end.1);
        self.open_s + read + self.copy_s
    }

    /// Its rate when it is alone [bytes/s].
    pub fn rate(&self) -> f64 {
        self.ceiling.min(self.node).min(self.shared)
    }
}

/// Bytes that the node of `p` with the most weights reads, and its ranks.
pub fn busiest_node(model: &ModelArch, p: &Placement, weights: Dtype) -> (f64, u32) {
    let ranks = p.layout.stage_ranks();
    let mut nodes: Vec<(f64, u32)> = vec![(0.0, 0); p.nodes.max(1) as usize];
    for (stage, layers) in p.stage_layers.iter().enumerate() {
        let of_rank = model.stage_weight_bytes(p.layout, layers.clone(), weights);
        let node = p.node_of_stage(stage as u32) as usize;
        if let Some(node) = nodes.get_mut(node) {
            // Ranks of different data-parallel groups read the same bytes.
            node.0 += of_rank * f64::from(p.layout.tp);
            node.1 += ranks.min(p.node_ranks);
        }
    }
    nodes
        .into_iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or((0.0, 1))
}
