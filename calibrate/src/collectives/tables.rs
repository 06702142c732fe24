//! The measured tables, and which of their rows are fitted.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use hwmodels::ops::collective::{
    AllReduceImpl, Fabric, Group, HostPath, Launch, LinkClass, Network, NetworkClass,
};
use serde::Deserialize;

use super::error::Error;
use super::row::{Op, Row, Stage};

pub(super) fn open(path: &Path) -> Result<csv::Reader<Box<dyn Read>>, Error> {
    let file = std::fs::File::open(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let reader: Box<dyn Read> = if path.extension().is_some_and(|e| e == "gz") {
        Box::new(GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    Ok(csv::Reader::from_reader(reader))
}

pub(crate) fn records<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>, Error> {
    open(path)?
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Parse {
            path: path.to_owned(),
            source,
        })
}

#[derive(Deserialize)]
pub(super) struct TableRow {
    pub(super) system: String,
    pub(super) library: String,
    pub(super) library_version: String,
    pub(super) op_name: String,
    pub(super) kernel_source: String,
    pub(super) dtype: String,
    pub(super) num_gpus: u32,
    pub(super) size_bytes: f64,
    pub(super) latency_us: f64,
}

#[derive(Deserialize)]
pub(super) struct SendRow {
    pub(super) system: String,
    pub(super) op: String,
    pub(super) num_workers: u32,
    pub(super) devices_per_node: u32,
    pub(super) size_bytes: f64,
    pub(super) median_ms: f64,
}

#[derive(Deserialize)]
pub(super) struct TwoNodeRow {
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) size_bytes: f64,
    pub(super) time_us: f64,
    pub(super) in_place: u32,
}

/// Reads the tables and decides of each row whether it is fitted.
pub(super) fn load(folder: &Path) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    let path = folder.join("collectives/engine_and_nccl_allreduce.csv.gz");
    for r in records::<TableRow>(&path)? {
        rows.extend(table_row(&r));
    }
    rows = without_copies(medians(rows));
    for r in records::<SendRow>(&folder.join("collectives/nccl_graph_timed.csv.gz"))? {
        rows.extend(send_row(&r));
    }
    for r in records::<TwoNodeRow>(&folder.join("nccl_allreduce_2node_efa.csv"))? {
        rows.push(two_node_row(&r));
    }
    Ok(rows)
}

/// Drops series that repeat another's figures to the last digit: the tables carry some of them under
/// several versions, and a copy is no further evidence. The fitted one stays.
pub(super) fn without_copies(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|r| r.stage.is_none());
    let mut seen = std::collections::BTreeSet::new();
    rows.retain(|r| {
        seen.insert(format!(
            "{} {:?} {:?} {} {} {}",
            r.device, r.op, r.launch, r.group.ranks, r.bytes, r.seconds
        ))
    });
    rows
}

/// A point measured more than once counts once, by its median.
pub(super) fn medians(rows: Vec<Row>) -> Vec<Row> {
    let mut points: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for r in rows {
        let key = format!(
            "{} {} {} {:?} {:?} {:?} {} {}",
            r.device, r.library, r.split, r.op, r.launch, r.implementation, r.group.ranks, r.bytes
        );
        points.entry(key).or_default().push(r);
    }
    points
        .into_values()
        .map(|mut same| {
            same.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            let middle = same.len() / 2;
            let upper = same[middle].seconds;
            let lower = same[(same.len() - 1) / 2].seconds;
            let mut row = same.swap_remove(middle);
            row.seconds = 0.5 * (lower + upper);
            row
        })
        .collect()
}

/// The device, link and memory bandwidth [bytes/s] that a row was measured on; `None`: not used.
fn measured_on(r: &TableRow) -> Option<(&'static str, LinkClass, f64)> {
    Some(match r.system.as_str() {
        "h100_sxm" => ("H100 SXM", LinkClass::NvLink4, 3.35e12),
        "h200_sxm" => (OTHER_DEVICE, LinkClass::NvLink4, 4.8e12),
        "a100_sxm" => ("A100 SXM", LinkClass::NvLink3, 2.039e12),
        // SGLang 0.5.12 was measured on a host whose NCCL keeps its rate at 8 ranks (from Python:
        // its eager times say nothing of the link), the other rows on one where it collapses. That
        // one has peer access within pairs, which the engines' own kernels use.
        "l40s" if r.library == "sglang" && r.library_version == "0.5.12" => {
            if r.kernel_source.ends_with("eager") {
                return None;
            }
            (SWITCHED_HOST, LinkClass::PciePeer, 0.864e12)
        }
        "l40s" if r.kernel_source.contains("ustom") && r.num_gpus == 2 => {
            (CONGESTED_HOST, LinkClass::PciePeer, 0.864e12)
        }
        "l40s" => (CONGESTED_HOST, LinkClass::PcieHost, 0.864e12),
        _ => return None,
    })
}

/// Name of the device whose rows are never fitted.
const OTHER_DEVICE: &str = "H200 SXM";
/// Names of the two L40S hosts.
const SWITCHED_HOST: &str = "L40S, switched host";
const CONGESTED_HOST: &str = "L40S, congested host";

/// Which kernels a row timed; `None`: not modelled.
fn implementation(r: &TableRow, device: &str, link: LinkClass) -> Option<AllReduceImpl> {
    let on_hopper = link == LinkClass::NvLink4;
    let version = r.library_version.as_str();
    Some(match r.library.as_str() {
        "nccl" => AllReduceImpl::Nccl,
        // On the switched host SGLang leaves everything to NCCL; TensorRT-LLM's rows of L40S do too.
        "sglang" if device == SWITCHED_HOST || r.kernel_source == "TRTLLM" && !on_hopper => {
            AllReduceImpl::Nccl
        }
        "sglang" if r.kernel_source == "TRTLLM" => AllReduceImpl::TrtLlm,
        // Its second kernel generation is not modelled.
        "sglang" if on_hopper && version == "0.5.14" => return None,
        "sglang" => AllReduceImpl::Sglang,
        "vllm" => AllReduceImpl::Vllm {
            symmetric_memory: on_hopper && version != "0.14.0",
        },
        "trtllm" if version.starts_with("1.2") => AllReduceImpl::TrtLlm,
        "trtllm" => AllReduceImpl::TrtLlmOneShot,
        _ => return None,
    })
}

/// `fitted`, or why the row is held out.
fn split(r: &TableRow, device: &str, link: LinkClass) -> &'static str {
    let on_hopper = link == LinkClass::NvLink4;
    let eager = r.kernel_source.ends_with("eager");
    let version = r.library_version.as_str();
    let fitted_version = match r.library.as_str() {
        "nccl" => version == "2.27.3" && r.dtype == "half",
        "vllm" if on_hopper => version == "0.24.0" || version == "0.14.0",
        // Beyond a pair, a PCIe host's engine rows are NCCL's but for the host time.
        "vllm" => version == "0.14.0" && (link != LinkClass::PcieHost || eager),
        "trtllm" if on_hopper => version == "1.2.0rc5" || version == "1.3.0rc20",
        "trtllm" => version == "1.0.0" && link == LinkClass::NvLink3,
        "sglang" => device == SWITCHED_HOST,
        _ => false,
    };
    if device == OTHER_DEVICE {
        "other device"
    } else if !fitted_version {
        match r.library.as_str() {
            "nccl" if version == "2.27.3" => "other type",
            "sglang" => "other library",
            "vllm" if link == LinkClass::PcieHost => "other library",
            _ => "other version",
        }
    } else if r.num_gpus == 4 {
        "other ranks"
    } else {
        "fitted"
    }
}

pub(super) fn table_row(r: &TableRow) -> Option<Row> {
    let (device, link, memory) = measured_on(r)?;
    let op = match r.op_name.as_str() {
        "all_reduce" => Op::AllReduce,
        "all_gather" => Op::AllGather,
        "reduce_scatter" => Op::ReduceScatter,
        "alltoall" => Op::AllToAll,
        _ => return None,
    };
    // Integers cannot be reduced in the switch, and no engine reduces them.
    if op == Op::AllReduce && r.dtype == "int8" {
        return None;
    }
    let implementation = implementation(r, device, link)?;
    let split = split(r, device, link);
    let eager = r.kernel_source.ends_with("eager");
    let what = match (r.library.as_str(), op) {
        _ if eager => "host",
        (_, Op::AllToAll) => "all_to_all",
        ("vllm", _) => "vllm",
        ("trtllm", _) => "trtllm",
        _ => "ring",
    };
    Some(Row {
        device,
        fabric: Fabric {
            host_path: HostPath::Shared,
            sockets: 2,
            ..Fabric::single_node(link, 8, memory)
        },
        library: format!("{} {}", r.library, r.library_version),
        op,
        implementation,
        launch: if eager { Launch::Eager } else { Launch::Graph },
        group: Group::within_node(r.num_gpus),
        bytes: r.size_bytes,
        seconds: r.latency_us * 1e-6,
        stage: (split == "fitted").then_some(Stage {
            link: link.name(),
            what,
        }),
        split,
    })
}

/// Sends of the graph-timed table. Its other rows are not used: below about 60 us they are set by
/// the measuring host (the same all-reduce takes 16 us or 61 us, at random).
pub(super) fn send_row(r: &SendRow) -> Option<Row> {
    if r.op != "send_recv" || r.num_workers != 2 {
        return None;
    }
    let (device, link, adapter) = match r.system.as_str() {
        "h100_dgx" => ("H100 SXM", LinkClass::NvLink4, 50e9),
        "a100_dgx" => ("A100 SXM", LinkClass::NvLink3, 12.5e9),
        _ => return None,
    };
    let nodes = if r.devices_per_node == 1 { 2 } else { 1 };
    let network = Network {
        class: NetworkClass::Infiniband,
        node_bandwidth: adapter,
    };
    let fitted = nodes == 1 || device == "H100 SXM";
    Some(Row {
        device,
        fabric: Fabric {
            network: (nodes == 2).then_some(network),
            ..Fabric::single_node(link, r.devices_per_node, 2e12)
        },
        library: "nccl, graph-timed".to_owned(),
        op: Op::Send,
        implementation: AllReduceImpl::Nccl,
        launch: Launch::Graph,
        group: Group::across(2, nodes),
        bytes: r.size_bytes,
        seconds: r.median_ms * 1e-3,
        stage: fitted.then_some(Stage {
            link: if nodes == 1 {
                link.name()
            } else {
                network.class.name()
            },
            what: "send",
        }),
        split: if fitted { "fitted" } else { "other device" },
    })
}

/// The two-node table: one fabric, one number of ranks, so nothing of it can be held out but the
/// in-place half, which repeats the other.
pub(super) fn two_node_row(r: &TwoNodeRow) -> Row {
    let network = Network {
        class: NetworkClass::Efa4x100,
        node_bandwidth: 50e9,
    };
    let fitted = r.in_place == 0;
    Row {
        device: "2 x 8 H100 SXM",
        fabric: Fabric {
            network: Some(network),
            ..Fabric::single_node(LinkClass::NvLink4, 8, 3.35e12)
        },
        library: "nccl, EFA".to_owned(),
        op: Op::AllReduce,
        implementation: AllReduceImpl::Nccl,
        launch: Launch::Graph,
        group: Group::across(r.ranks, r.nodes),
        bytes: r.size_bytes,
        seconds: r.time_us * 1e-6,
        stage: fitted.then_some(Stage {
            link: network.class.name(),
            what: "ring",
        }),
        split: if fitted { "fitted" } else { "in place" },
    }
}
