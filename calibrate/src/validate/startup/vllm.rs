//! Starts of vLLM V1 by step, with everything in caches or with the weights on SSDs.
//!
//! Fitted: [`FITTED`] on each of the three hosts with everything in caches, and the weights' time of the same models from SSDs. Only predicted: the
//! other models; the other steps of starts from SSDs; and whole starts on one host of H100 from the figures of the other.

use hwmodels::catalog::Catalog;
use hwmodels::engine::EngineKind;
use hwmodels::startup::defaults::Defaults;
use hwmodels::startup::weights::NodeRead;
use hwmodels::startup::{Estimate, PhaseName, Pod, State, estimate};
use serde::Deserialize;

use super::super::case::Source;
use super::super::error::SetError;
use super::super::row::Row;
use super::row::row;

/// Name of the set.
pub const SET: &str = "vllm_startup";
/// Its file.
pub const FILE: &str = "vllm_startup_warm.csv";
/// Models that figures are fitted on: the smallest, two of common sizes, the deepest.
pub const FITTED: [&str; 4] = ["qwen1.5-0.5b", "llama2-7b-hf", "qwen1.5-14b", "yi-9b"];

/// Layers of Granite 4.0 H that keep a state.
const GRANITE_STATE_LAYERS: u32 = 36;

/// Decoder layers and 1e9 bytes of the checkpoint's tensors, as the models' pages at the hub list them.
const MODELS: [(&str, u32, f64); 20] = [
    ("falcon-7b", 32, 14.43),
    ("llama2-13b-hf", 40, 26.03),
    ("llama2-7b-hf", 32, 13.48),
    ("llama3.2-3b", 28, 6.43),
    ("qwen1.5-0.5b", 24, 1.24),
    ("qwen1.5-14b", 40, 28.33),
    ("qwen1.5-1.8b", 24, 3.67),
    ("qwen1.5-4b", 40, 7.90),
    ("qwen1.5-7b", 32, 15.44),
    ("yi-6b", 32, 12.12),
    ("yi-9b", 48, 17.66),
    ("deepseek-r1-distill-llama-8b", 32, 16.06),
    ("deepseek-r1-distill-qwen-7b", 28, 15.23),
    ("deepseek-v2-lite-16b", 27, 31.41),
    ("gpt-oss-20b", 24, 13.76),
    ("granite3.3-8b-instruct", 40, 16.34),
    ("granite4.0-h-32b", 40, 64.42),
    ("granite4.0-h-3b", 40, 6.38),
    ("llama3.1-8b-instruct", 32, 16.06),
    // Qwen1.5-MoE-A2.7B.
    ("qwen-14.3b", 24, 28.63),
];

/// One start.
#[derive(Clone, Debug, Deserialize)]
pub struct Start {
    source: String,
    hardware: String,
    tp: u32,
    /// Its model.
    pub model: String,
    condition: String,
    /// Imports and device context [s].
    pub framework_bootstrap_s: f64,
    /// Weights [s].
    pub load_weights_s: f64,
    /// torch.compile [s].
    pub torch_compile_s: f64,
    /// Profiling pass [s].
    pub kv_cache_profiling_s: f64,
    /// Graph capture [s].
    pub graph_capturing_s: f64,
    /// All of engine initialisation: the three above and the rest [s].
    pub init_engine_s: f64,
    /// From the process to serving [s].
    pub total_s: f64,
}

impl Start {
    /// The host of `startup.toml` that it ran on.
    pub fn host(&self) -> &'static str {
        match self.source.rsplit('/').next() {
            Some("A100") => "a100",
            Some("node7") => "h100-epyc",
            Some("t1") => "h100-xeon",
            _ if ["H100", "H200", "B200"]
                .iter()
                .any(|h| self.hardware.contains(h)) =>
            {
                "hopper"
            }
            _ => "a100",
        }
    }

    /// Whether the weights came from SSDs.
    pub fn from_ssd(&self) -> bool {
        self.condition.contains("SSD")
    }

    /// Whether it is of a model most of whose layers keep a state.
    pub fn has_states(&self) -> bool {
        self.model.starts_with("granite4.0-h")
    }

    /// Layers, and 1e9 bytes of weights.
    pub fn size(&self) -> Result<(u32, f64), String> {
        let name = self.model.as_str();
        if let Some(m) = MODELS.iter().find(|m| m.0 == name) {
            return Ok((m.1, m.2));
        }
        let catalog = Catalog::builtin();
        let model = catalog.model(name).map_err(|e| e.to_string())?;
        Ok((model.layers, model.weight_bytes(model.native_dtype) * 1e-9))
    }

    /// What is left of the whole: tokenizer, front end, hand-over [s].
    pub fn front_end_s(&self) -> f64 {
        self.total_s - self.framework_bootstrap_s - self.load_weights_s - self.init_engine_s
    }

    /// Engine initialisation without its three named steps [s].
    pub fn init_rest_s(&self) -> f64 {
        self.init_engine_s
            - self.torch_compile_s
            - self.kv_cache_profiling_s
            - self.graph_capturing_s
    }

    /// Whether it is of a model and host whose figures are fitted.
    pub fn fitted(&self) -> bool {
        FITTED.contains(&self.model.as_str())
            && self.source.contains("vllm-startup-profiler")
            && self.host() != "hopper"
    }
}

/// Reads the file.
///
/// # Errors
/// It is missing or malformed.
pub fn starts(source: &Source) -> Result<Vec<Start>, SetError> {
    source.read(FILE)
}

/// The rows of the set.
///
/// # Errors
/// The file is malformed.
pub fn rows(source: &Source, defaults: &Defaults) -> Result<Vec<Row>, SetError> {
    let mut out = Vec::new();
    for s in starts(source)? {
        let cached = if s.from_ssd() {
            "weights on SSD"
        } else {
            "all cached"
        };
        let case = format!("{} {} tp{} {cached}", s.model, s.host(), s.tp);
        let predicted = predict(defaults, &s, s.host());
        let seconds = |names: &[PhaseName]| {
            predicted.as_ref().map_err(Clone::clone).map(|e| {
                names
                    .iter()
                    .filter_map(|n| e.phase(*n))
                    .map(|p| p.time.typical())
                    .sum::<f64>()
            })
        };
        use PhaseName::{
            EngineInit, Framework, FrontEnd, GraphCapture, MemoryProfiling, TorchCompile,
            WeightsLoad,
        };
        let init = [TorchCompile, MemoryProfiling, GraphCapture, EngineInit];
        let total = [&[Framework, WeightsLoad, FrontEnd], init.as_slice()].concat();
        let warm = s.fitted() && !s.from_ssd();
        for (metric, measured, names, fitted) in [
            (
                "framework_bootstrap_s",
                s.framework_bootstrap_s,
                &[Framework][..],
                warm,
            ),
            (
                "load_weights_s",
                s.load_weights_s,
                &[WeightsLoad],
                s.fitted(),
            ),
            (
                "torch_compile_s",
                s.torch_compile_s,
                &[TorchCompile],
                // The share of layers with a state is of these models.
                warm || s.has_states(),
            ),
            (
                "kv_cache_profiling_s",
                s.kv_cache_profiling_s,
                &[MemoryProfiling],
                warm,
            ),
            (
                "graph_capturing_s",
                s.graph_capturing_s,
                &[GraphCapture],
                warm,
            ),
            ("init_engine_s", s.init_engine_s, &init, warm),
            ("total_s", s.total_s, &total, s.fitted()),
        ] {
            out.push(row(SET, &case, metric, measured, seconds(names), fitted));
        }
        let other = match s.host() {
            "h100-epyc" => "h100-xeon",
            "h100-xeon" if !s.from_ssd() => "h100-epyc",
            _ => continue,
        };
        let elsewhere = predict(defaults, &s, other).map(|e| e.total.typical());
        out.push(row(
            SET,
            &case,
            "total_s from the other host",
            s.total_s,
            elsewhere,
            false,
        ));
    }
    Ok(out)
}

/// The start `s` on `host`, from the engine's process on.
fn predict(defaults: &Defaults, s: &Start, host: &str) -> Result<Estimate, String> {
    let (layers, gb) = s.size()?;
    let catalog = Catalog::builtin();
    let instance = catalog.instance("p5.48xlarge").map_err(|e| e.to_string())?;
    let pod = Pod {
        defaults,
        instance,
        host: Some(host),
        engine: EngineKind::VllmV1,
        layers,
        state_layers: match s.has_states() {
            true => GRANITE_STATE_LAYERS,
            false => 0,
        },
        ranks: s.tp,
        read: NodeRead {
            bytes: gb * 1e9,
            ranks: s.tp,
            storage: if s.from_ssd() { "nvme" } else { "page_cache" },
            loader: "safetensors",
            streams: None,
            capacity: None,
        },
        together: 1,
        per_node: 1,
        state: State {
            node_ready: true,
            image_cached: true,
            libraries_cached: true,
            compile_cached: true,
            probe_period_s: 0.0,
            ..State::default()
        },
    };
    let mut e = estimate(&pod).map_err(|e| e.to_string())?;
    e.phases.retain(|p| p.name != PhaseName::ContainerStart);
    e.total =
        hwmodels::startup::spread::Spread::fixed(e.phases.iter().map(|p| p.time.typical()).sum());
    Ok(e)
}
