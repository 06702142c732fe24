//! `servetwin startup`: how long a pod takes to serve, phase by phase.

use std::fmt::Write as _;
use std::path::PathBuf;

use calibrate::validate::startup::fit;
use hwmodels::catalog::Catalog;
use hwmodels::files::Disk;
use hwmodels::layout::{Layout, Placement};
use hwmodels::memory::{MemorySettings, VllmRelease, smallest_layout};
use hwmodels::model::ModelArch;
use hwmodels::startup::defaults::Defaults;
use hwmodels::startup::spread::Spread;
use hwmodels::startup::weights::{NodeRead, busiest_node};
use hwmodels::startup::{Estimate, Pod, State, estimate};
use hwmodels::units::{ByteSize, BytesPerSec};
use hwmodels::{Dtype, EngineKind, Evidence};
use serde::Serialize;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};

/// Predict how long a pod takes until it serves: a node, its image, the weights, the engine, readiness.
///
/// Each phase has a typical time (the median) and the range from its 10th to its 90th percentile. docs/startup.md tells where they come from.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin startup --model llama-3.1-8b --instance g5.2xlarge
  servetwin startup --model llama-3.1-405b --instance p5.48xlarge --pp 2 --tp 8 --storage efs --together 8
  servetwin startup --model llama-3.1-8b --instance p5.48xlarge --storage page_cache --warm --json")]
pub struct Args {
    /// Model, by its name in the catalog.
    #[arg(long, value_name = "NAME", required_unless_present = "fit")]
    model: Option<String>,
    /// Instance type, by its name in the catalog.
    #[arg(long, value_name = "NAME", required_unless_present = "fit")]
    instance: Option<String>,
    /// Engine: vllm, tgi, trt_llm, tgi_neuron, llama_cpp, sglang.
    #[arg(long, value_name = "NAME", default_value = "vllm", value_parser = engine)]
    engine: EngineKind,
    /// Tensor-parallel ranks [default: the smallest layout that fits].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    tp: Option<u32>,
    /// Pipeline stages [default: the smallest layout that fits; 1 with --tp].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pp: Option<u32>,
    /// Format of the weights: bf16, fp8, int8, int4, mxfp4 [default: the model's own].
    #[arg(long, value_name = "FORMAT", value_parser = dtype)]
    weights: Option<Dtype>,
    /// Where the weights lie: s3, efs, fsx_lustre, ebs_gp3, ebs_io2, nvme, page_cache, hub.
    #[arg(long, value_name = "NAME", default_value = "ebs_gp3")]
    storage: String,
    /// Who loads them: safetensors, runai-streamer, tensorizer.
    #[arg(long, value_name = "NAME", default_value = "safetensors")]
    loader: String,
    /// Reads at a time, instead of the loader's own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    streams: Option<u32>,
    /// What the volume or file system gives, e.g. `"1000 MiB/s"`, instead of the default.
    #[arg(long, value_name = "RATE")]
    capacity: Option<BytesPerSec>,
    /// Replicas that start at once, each on nodes of its own: they share file systems.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    together: u32,
    /// Pods that start at once on each node: they share its network card, volume and page cache.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    per_node: u32,
    /// The node is there and its accelerators can be used.
    #[arg(long)]
    node_ready: bool,
    /// The image is on the node.
    #[arg(long)]
    image_cached: bool,
    /// The engine ran on this node before: its libraries are in the page cache.
    #[arg(long)]
    libraries_cached: bool,
    /// The results of torch.compile are on a volume or in the image.
    #[arg(long)]
    compile_cached: bool,
    /// All four of the above.
    #[arg(long)]
    warm: bool,
    /// vLLM's flag: neither torch.compile nor CUDA graphs.
    #[arg(long)]
    enforce_eager: bool,
    /// Release of vLLM, e.g. "0.9.2": before 0.10.1 graphs are captured slowly [default: a newer one].
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    release: Option<VllmRelease>,
    /// Where the image's registry is: in the node's own region, or elsewhere (Docker Hub, ghcr.io, another region).
    #[arg(long, value_name = "WHERE", default_value = "region")]
    registry: Registry,
    /// Size of the compressed image, instead of the engine's.
    #[arg(long, value_name = "SIZE")]
    image: Option<ByteSize>,
    /// `periodSeconds` of the readiness probe [s].
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = period)]
    probe_period: f64,
    /// Kind of host, by its name in the figures [default: by the accelerator].
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// File of figures in the form of hwmodels/data/startup.toml, instead of the built-in ones.
    #[arg(long, value_name = "FILE")]
    figures: Option<PathBuf>,
    /// Folder of catalog files that add to or replace the built-in ones.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Print the fitted figures instead, derived from the measurements in DIR (docs/validation.md).
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "instance", "json"])]
    fit: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Where an image comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Registry {
    /// A registry of the node's region.
    Region,
    /// Any other.
    Public,
}

fn release(text: &str) -> Result<VllmRelease, String> {
    let own = serde_json::from_value::<sim::engines::VllmRelease>(text.into());
    own.map(sim::engines::VllmRelease::in_full)
        .map_err(|e| e.to_string())
}

fn engine(text: &str) -> Result<EngineKind, String> {
    let name = match text {
        "vllm" => "vllm_v1",
        "trtllm" | "tensorrt_llm" => "trt_llm",
        other => other,
    };
    EngineKind::ALL
        .into_iter()
        .find(|e| e.name() == name)
        .ok_or_else(|| {
            format!(
                "engines are vllm, {}",
                EngineKind::ALL.map(EngineKind::name).join(", ")
            )
        })
}

fn dtype(text: &str) -> Result<Dtype, String> {
    serde_json::from_value(text.into())
        .map_err(|_| "formats are fp32, bf16, fp8, int8, int4, mxfp4".to_owned())
}

fn period(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.0..=86_400.0).contains(&s) => Ok(s),
        _ => Err("write a number of seconds from 0 to 86400".to_owned()),
    }
}

/// A phase, or the sum, as it is printed.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Figure {
    name: &'static str,
    typical_s: f64,
    mean_s: f64,
    p10_s: f64,
    p90_s: f64,
    evidence: Option<Evidence>,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
}

impl Figure {
    fn new(name: &'static str, time: Spread) -> Figure {
        Figure {
            name,
            typical_s: time.typical(),
            mean_s: time.mean(),
            p10_s: time.quantile(0.1),
            p90_s: time.quantile(0.9),
            evidence: None,
            source: String::new(),
        }
    }
}

/// How the weights come.
#[derive(Serialize)]
struct Load<'a> {
    storage: &'a str,
    loader: &'a str,
    bytes_per_node: f64,
    /// Of a load that is alone.
    rate_bytes_per_s: f64,
    limit: &'a str,
    alone_s: f64,
    together_s: f64,
}

/// The whole answer.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    instance: &'a str,
    engine: &'static str,
    layout: String,
    nodes: u32,
    together: u32,
    per_node: u32,
    platform: &'a str,
    host: &'a str,
    load: Load<'a>,
    phases: Vec<Figure>,
    total: Figure,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(dir) = &args.fit {
        let fit = fit::fit(dir).map_err(|e| BadInput(e.to_string()))?;
        print(&fit.toml())?;
        return Ok(exit_code::OK);
    }
    let told = |e: hwmodels::Error| BadInput(e.to_string());
    let catalog = match &args.catalog {
        Some(dir) => Catalog::with_dir(&Disk, dir).map_err(told)?,
        None => Catalog::builtin(),
    };
    let defaults = match &args.figures {
        Some(path) => {
            let name = path.display().to_string();
            let text =
                std::fs::read_to_string(path).map_err(|e| BadInput(format!("{name}: {e}")))?;
            Defaults::parse(&text, &name).map_err(|e| BadInput(e.to_string()))?
        }
        None => Defaults::builtin(),
    };
    let model = catalog
        .model(args.model.as_deref().unwrap_or_default())
        .map_err(told)?;
    let instance = catalog
        .instance(args.instance.as_deref().unwrap_or_default())
        .map_err(told)?;
    let placement = place(&args, &catalog, model, &instance.name)?;
    let (bytes, ranks) = busiest_node(
        model,
        &placement,
        args.weights.unwrap_or(model.native_dtype),
    );
    let pod = Pod {
        defaults: &defaults,
        instance,
        host: args.host.as_deref(),
        engine: args.engine,
        layers: placement
            .stage_layers
            .iter()
            .map(|s| s.len() as u32)
            .max()
            .unwrap_or(0),
        state_layers: placement
            .stage_layers
            .iter()
            .max_by_key(|s| s.len())
            .map_or(0, |s| model.state_layers_in(s.clone())),
        ranks: placement.layout.devices(),
        read: NodeRead {
            bytes,
            ranks,
            storage: &args.storage,
            loader: &args.loader,
            streams: args.streams,
            capacity: args.capacity.map(BytesPerSec::bytes_per_sec),
        },
        together: args.together.saturating_mul(placement.nodes),
        per_node: args.per_node,
        state: State {
            node_ready: args.node_ready || args.warm,
            image_cached: args.image_cached || args.warm,
            libraries_cached: args.libraries_cached || args.warm,
            compile_cached: args.compile_cached || args.warm,
            enforce_eager: args.enforce_eager,
            public_registry: args.registry == Registry::Public,
            release: args.release,
            image_bytes: args.image.map(|b| b.bytes() as f64),
            probe_period_s: args.probe_period,
        },
    };
    let e = estimate(&pod).map_err(|e| BadInput(e.to_string()))?;
    if !e.load.alone_s().is_finite() {
        let message = format!("the weights never come: {} gives nothing", e.load.limit);
        return Err(BadInput(message).into());
    }
    let report = report(&pod, &e, model, &placement);
    if args.json {
        print_json(&report)?;
    } else {
        print(&in_words(&report))?;
    }
    Ok(exit_code::OK)
}

fn place(
    args: &Args,
    catalog: &Catalog,
    model: &ModelArch,
    instance: &str,
) -> Result<Placement, BadInput> {
    let told = |e: hwmodels::Error| BadInput(e.to_string());
    if args.tp.is_some() || args.pp.is_some() {
        let layout = Layout {
            tp: args.tp.unwrap_or(1),
            pp: args.pp.unwrap_or(1),
            ..Layout::SINGLE
        };
        return Placement::new(catalog, model, instance, layout, args.engine).map_err(told);
    }
    let node = catalog.instance(instance).map_err(told)?;
    let device = catalog.accelerator(&node.accelerator).map_err(told)?;
    let mut settings = MemorySettings::defaults(args.engine, VllmRelease::DEFAULT, device, model);
    if let Some(weights) = args.weights {
        settings.weights = weights;
    }
    // Compiled sequences and contexts of a whole model are not what decides where its weights fit.
    settings.max_model_len = settings.max_model_len.min(8_192);
    smallest_layout(catalog, model, instance, &settings).ok_or_else(|| {
        BadInput(format!(
            "{} fits on no layout of {instance} with {}; --tp and --pp name one",
            model.name, args.engine
        ))
    })
}

fn report<'a>(
    pod: &Pod<'a>,
    e: &'a Estimate,
    model: &'a ModelArch,
    placement: &Placement,
) -> Report<'a> {
    let phase = |p: &hwmodels::startup::Phase| Figure {
        evidence: Some(p.evidence),
        source: p.source.clone(),
        ..Figure::new(p.name.name(), p.time)
    };
    Report {
        model: &model.name,
        instance: &pod.instance.name,
        engine: pod.engine.name(),
        layout: placement.layout.to_string(),
        nodes: placement.nodes,
        together: pod.together / placement.nodes.max(1),
        per_node: pod.per_node,
        platform: &e.platform,
        host: &e.host,
        load: Load {
            storage: pod.read.storage,
            loader: pod.read.loader,
            bytes_per_node: e.load.bytes,
            rate_bytes_per_s: e.load.rate(),
            limit: &e.load.limit,
            alone_s: e.load.alone_s(),
            together_s: e.load.together_s(pod.together, pod.per_node),
        },
        phases: e.phases.iter().map(phase).collect(),
        total: Figure::new("total", e.total),
    }
}

fn in_words(r: &Report<'_>) -> String {
    let mut text = format!(
        "{} on {} x {}, {}, {}; platform {}, host {}\n{} starts at once, {} pod(s) a node\n\n",
        r.model,
        r.nodes,
        r.instance,
        r.engine,
        r.layout,
        r.platform,
        r.host,
        r.together,
        r.per_node
    );
    let _ = writeln!(
        text,
        "{:<17} {:>9} {:>9} {:>9}  {:<12}  source",
        "phase [s]", "typical", "p10", "p90", "evidence"
    );
    for p in r.phases.iter().chain([&r.total]) {
        let evidence = p
            .evidence
            .map_or(String::new(), |e| format!("{e:?}").to_lowercase());
        let line = format!(
            "{:<17} {:>9.1} {:>9.1} {:>9.1}  {evidence:<12}  {}",
            p.name, p.typical_s, p.p10_s, p.p90_s, p.source
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let l = &r.load;
    let _ = writeln!(
        text,
        "\nweights: {:.1} GB a node from {} by {}, {:.2} GB/s alone: limited by {}; {:.1} s alone, {:.1} s together",
        l.bytes_per_node * 1e-9,
        l.storage,
        l.loader,
        l.rate_bytes_per_s * 1e-9,
        l.limit,
        l.alone_s,
        l.together_s
    );
    text
}
