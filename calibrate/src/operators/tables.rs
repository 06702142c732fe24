//! The measured tables: the columns that are read, and what they say about a kernel's work.
//!
//! Two kinds of folders have this form: the public kernel tables, and what `calibrate/gpu` measures. The latter adds columns
//! (`cache`, `ctx_sq_sum`), a table of element-wise kernels and `measurement.json`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use hwmodels::ops::{
    Cache, DecodeShape, Experts, MoeShape, PrefillShape, PrefillWork, Routing, Span,
};
use hwmodels::{BatchStats, Dtype};
use serde::Deserialize;

use super::error::Error;

/// Times below this are too coarse at 1 us resolution [s].
pub(super) const COARSE: f64 = 20e-6;

/// One measured kernel time.
pub(super) trait Row: Sync {
    /// What the split keeps together.
    fn shape(&self) -> [u32; 6];
    /// Measured time [s].
    fn seconds(&self) -> f64;
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct GemmRow {
    pub(super) version: String,
    pub(super) gemm_dtype: String,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) latency: f64,
}

impl Row for GemmRow {
    fn shape(&self) -> [u32; 6] {
        [self.n, self.k, 0, 0, 0, 0]
    }
    fn seconds(&self) -> f64 {
        self.latency * 1e-3
    }
}

impl GemmRow {
    /// Matrices of the size that models have: neither side small, depth within 20 000.
    pub(super) fn model_like(&self) -> bool {
        self.n >= 512
            && self.k >= 512
            && self.k <= 20_000
            && self.n as u64 * self.k as u64 >= 1_000_000
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct AttentionRow {
    pub(super) batch_size: u32,
    pub(super) isl: u32,
    pub(super) num_heads: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) kv_cache_dtype: String,
    pub(super) step: u32,
    #[serde(default)]
    pub(super) window_size: u32,
    pub(super) latency: f64,
    #[serde(default)]
    kernel_source: String,
    /// `cold`: the KV was not in the last-level cache.
    #[serde(default)]
    cache: String,
    /// Sum of the squared contexts of an uneven decode batch [tokens^2]; 0: all equal.
    #[serde(default)]
    pub(super) ctx_sq_sum: u64,
}

impl Row for AttentionRow {
    fn shape(&self) -> [u32; 6] {
        [
            self.num_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.window_size,
            0,
            0,
        ]
    }
    fn seconds(&self) -> f64 {
        self.latency * 1e-3
    }
}

impl AttentionRow {
    pub(super) fn window(&self) -> Option<u32> {
        (self.window_size > 0).then_some(self.window_size)
    }

    /// Where the KV lay when the kernel started.
    pub(super) fn cache(&self) -> Cache {
        if self.cache == "cold" {
            Cache::Cold
        } else {
            Cache::Warm
        }
    }

    /// Whether the kernel splits KV without grouped heads, as FlashAttention 3 and the measuring program's own kernel do;
    /// `None` where the table does not name it.
    pub(super) fn splits_ungrouped(&self) -> Option<bool> {
        self.kernel_is(&["triton_paged_splitkv", "fa3"])
    }

    /// Whether the query heads of a KV head share a tile in prefill, as in FlashAttention 3.
    pub(super) fn packs_groups(&self) -> Option<bool> {
        self.kernel_is(&["fa3"])
    }

    fn kernel_is(&self, names: &[&str]) -> Option<bool> {
        let known = !self.kernel_source.is_empty();
        known.then(|| names.iter().any(|n| self.kernel_source.contains(n)))
    }

    /// Contexts of a decode row: sequences have `isl + step` tokens, on average where they are uneven.
    pub(super) fn decodes(&self) -> BatchStats {
        let c = u64::from(self.isl + self.step);
        let b = u64::from(self.batch_size);
        BatchStats {
            decode_seqs: self.batch_size,
            decode_tokens: self.batch_size,
            decode_ctx_sum: b * c,
            decode_ctx_sq_sum: if self.ctx_sq_sum > 0 {
                self.ctx_sq_sum
            } else {
                b * c * c
            },
            ..BatchStats::default()
        }
    }

    /// Chunks of a prefill row: `isl` new tokens after `step` earlier ones.
    pub(super) fn chunks(&self) -> PrefillWork {
        let (b, n, c) = (
            f64::from(self.batch_size),
            f64::from(self.isl),
            f64::from(self.step),
        );
        PrefillWork {
            seqs: b,
            tokens: b * n,
            ctx_sum: b * (n + c),
            pairs: b * (n * c + n * (n + 1.0) / 2.0),
        }
    }

    pub(super) fn decode_shape(&self, kv: Dtype) -> DecodeShape {
        DecodeShape {
            heads: self.num_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            kv_dtype: kv,
            span: Span::window(self.window()),
        }
    }

    pub(super) fn prefill_shape(&self, kv: Dtype) -> PrefillShape {
        PrefillShape {
            heads: self.num_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            kv_dtype: kv,
            span: Span::window(self.window()),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct MoeRow {
    pub(super) moe_dtype: String,
    pub(super) num_tokens: u32,
    pub(super) hidden_size: u32,
    pub(super) inter_size: u32,
    pub(super) topk: u32,
    pub(super) num_experts: u32,
    pub(super) moe_tp_size: u32,
    pub(super) moe_ep_size: u32,
    pub(super) distribution: String,
    pub(super) latency: f64,
    #[serde(default)]
    kernel_source: String,
}

impl Row for MoeRow {
    fn shape(&self) -> [u32; 6] {
        [
            self.hidden_size,
            self.inter_size,
            self.num_experts,
            self.moe_tp_size,
            self.moe_ep_size,
            0,
        ]
    }
    fn seconds(&self) -> f64 {
        self.latency * 1e-3
    }
}

impl MoeRow {
    /// Whose kernels were timed; Triton's where the table does not say.
    pub(super) fn experts(&self) -> Experts {
        if self.kernel_source.contains("cutlass") {
            Experts::Cutlass
        } else {
            Experts::Triton
        }
    }

    pub(super) fn moe_shape(&self, weights: Dtype) -> MoeShape {
        MoeShape {
            block_scales: false,
            hidden: self.hidden_size,
            intermediate: self.inter_size,
            experts: self.num_experts,
            top_k: self.topk,
            tp: self.moe_tp_size,
            ep: self.moe_ep_size,
            weights,
            activations: weights,
        }
    }

    pub(super) fn routing(&self) -> Routing {
        match self.distribution.strip_prefix("power_law_") {
            Some(a) => Routing::PowerLaw(a.parse().unwrap_or(1.0)),
            None => Routing::Balanced,
        }
    }
}

/// One layer timed by another tool, 1 us resolution.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LayerRow {
    pub(super) n_head: u32,
    pub(super) n_kv_head: u32,
    pub(super) n_embd: u32,
    pub(super) n_expanded_embd: u32,
    pub(super) num_tokens: u32,
    pub(super) num_tensor_parallel_workers: u32,
    #[serde(rename = "time_stats.attn_pre_proj.median")]
    pub(super) qkv: f64,
    #[serde(rename = "time_stats.attn_post_proj.median")]
    pub(super) out: f64,
    #[serde(rename = "time_stats.mlp_up_proj.median")]
    pub(super) up: f64,
    #[serde(rename = "time_stats.mlp_down_proj.median")]
    pub(super) down: f64,
    #[serde(rename = "time_stats.input_layernorm.median")]
    pub(super) norm: f64,
    #[serde(rename = "time_stats.attn_rope.median")]
    pub(super) rotary: f64,
    #[serde(rename = "time_stats.mlp_act.median")]
    pub(super) activation: f64,
    #[serde(rename = "time_stats.add.median")]
    pub(super) add: f64,
}

/// An element-wise kernel: bytes moved, time, and what the split keeps together.
pub(super) struct ElementwiseRow {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    pub(super) hidden: u32,
    pub(super) tp: u32,
    pub(super) kernel: u32,
}

impl Row for ElementwiseRow {
    fn shape(&self) -> [u32; 6] {
        [self.hidden, self.tp, 0, 0, 0, 0]
    }
    fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// Attention of one layer timed by another tool.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LayerAttentionRow {
    pub(super) n_q_head: u32,
    pub(super) n_kv_head: u32,
    pub(super) n_embd: u32,
    pub(super) num_tensor_parallel_workers: u32,
    pub(super) batch_size: u32,
    pub(super) prefill_chunk_size: u32,
    pub(super) kv_cache_size: u32,
    #[serde(rename = "time_stats.attn_decode.median")]
    pub(super) decode: Option<f64>,
    #[serde(rename = "time_stats.attn_prefill.median")]
    pub(super) prefill: Option<f64>,
}

pub(super) fn read_csv<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>, Error> {
    let file = File::open(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let input: Box<dyn Read> = if path.extension().is_some_and(|e| e == "gz") {
        Box::new(GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    csv::Reader::from_reader(input)
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Parse {
            path: path.to_owned(),
            source,
        })
}

/// The file of `system` in `folder`, the last by name where there are several versions.
pub(super) fn table_path(
    folder: &Path,
    system: &str,
    table: &str,
) -> Result<Option<PathBuf>, Error> {
    let read = |source| Error::Read {
        path: folder.to_owned(),
        source,
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(".gz").unwrap_or(&name);
        if name.starts_with(&format!("{system}_")) && stem.ends_with(&format!("_{table}_perf.csv"))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found.pop())
}

/// The table of `system` in `folder`; none where there is no such file.
pub(super) fn optional_table<T: for<'a> Deserialize<'a>>(
    folder: &Path,
    system: &str,
    table: &str,
) -> Result<Vec<T>, Error> {
    match table_path(folder, system, table)? {
        Some(path) => read_csv(&path),
        None => Ok(Vec::new()),
    }
}

/// The table of `system` in `folder`.
pub(super) fn table<T: for<'a> Deserialize<'a>>(
    folder: &Path,
    system: &str,
    table: &'static str,
) -> Result<Vec<T>, Error> {
    match table_path(folder, system, table)? {
        Some(path) => read_csv(&path),
        None => Err(Error::NoTable {
            folder: folder.to_owned(),
            system: system.to_owned(),
            table,
        }),
    }
}

/// An element-wise or sampling kernel of `calibrate/gpu`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ElementwiseTableRow {
    pub(super) kernel: String,
    pub(super) tokens: u32,
    pub(super) width: u32,
    /// Bytes moved; for sampling, of one pass over 32-bit logits.
    pub(super) bytes: f64,
    pub(super) latency: f64,
}

impl ElementwiseTableRow {
    /// The row as the fit takes it; `None` for a kernel that is none of a layer's.
    pub(super) fn row(&self) -> Option<ElementwiseRow> {
        let kernel = match self.kernel.as_str() {
            "add_norm" => 0,
            "rope_cache" => 1,
            "silu_mul" => 2,
            _ => return None,
        };
        Some(ElementwiseRow {
            bytes: self.bytes,
            seconds: self.latency * 1e-3,
            hidden: self.width,
            tp: 1,
            kernel,
        })
    }
}

/// What `calibrate/gpu` says about the machine beside its tables.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measurement {
    device: MeasuredDevice,
    #[serde(default)]
    versions: BTreeMap<String, String>,
    #[serde(default)]
    runs: Vec<MeasuredPart>,
}

#[derive(Clone, Debug, Deserialize)]
struct MeasuredDevice {
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct MeasuredPart {
    part: String,
    started: String,
}

impl Measurement {
    /// Reads `measurement.json` of a folder; `None` where there is none.
    pub(super) fn read(data: &Path) -> Result<Option<Measurement>, Error> {
        let path = data.join("measurement.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| Error::Json { path, source })
    }

    /// Where the rows come from, for a profile's provenance.
    pub(super) fn source(&self) -> String {
        let day = self
            .runs
            .iter()
            .find(|r| r.part == "operators")
            .and_then(|r| r.started.get(..10))
            .unwrap_or("day unknown");
        format!("calibrate/gpu on {}, {day}", self.device.name)
    }

    /// Software that ran, e.g. `torch 2.11.0`.
    pub(super) fn software(&self) -> Vec<String> {
        self.versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect()
    }
}

/// Folder name of a system in the layer-time data.
pub(super) fn short(system: &str) -> &str {
    system.split('_').next().unwrap_or(system)
}

/// Layer times of every model of this system; none where the folder is absent.
pub(super) fn layer_rows(data: &Path, system: &str) -> Result<Vec<LayerRow>, Error> {
    let folder = data.join("vidur_profiles").join(short(system));
    let mut models: Vec<PathBuf> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries
            .filter_map(|e| e.ok().map(|e| e.path().join("mlp.csv.gz")))
            .filter(|p| p.is_file())
            .collect(),
        Err(_) => return Ok(Vec::new()),
    };
    models.sort();
    let mut rows = Vec::new();
    for path in models {
        rows.extend(read_csv::<LayerRow>(&path)?);
    }
    Ok(rows)
}

/// Attention layer times of this system; none where the file is absent.
pub(super) fn layer_attention(data: &Path, system: &str) -> Result<Vec<LayerAttentionRow>, Error> {
    let path = data
        .join("vidur_profiles")
        .join(format!("{}_attention_llama2-70b_tp2.csv.gz", short(system)));
    if path.is_file() {
        read_csv(&path)
    } else {
        Ok(Vec::new())
    }
}

impl LayerAttentionRow {
    fn row(&self, ms: f64, isl: u32, step: u32) -> Option<AttentionRow> {
        let tp = self.num_tensor_parallel_workers.max(1);
        (ms * 1e-3 >= COARSE).then(|| AttentionRow {
            kernel_source: String::new(),
            cache: String::new(),
            ctx_sq_sum: 0,
            batch_size: self.batch_size,
            isl,
            num_heads: self.n_q_head / tp,
            num_key_value_heads: (self.n_kv_head / tp).max(1),
            head_dim: self.n_embd / self.n_q_head.max(1),
            kv_cache_dtype: "bfloat16".to_owned(),
            step,
            window_size: 0,
            latency: ms,
        })
    }

    pub(super) fn decode_row(&self) -> Option<AttentionRow> {
        self.row(self.decode?, 1, self.kv_cache_size)
    }

    pub(super) fn prefill_row(&self) -> Option<AttentionRow> {
        self.row(self.prefill?, self.prefill_chunk_size, self.kv_cache_size)
    }
}
