//! The step-time model of one replica: accelerator x links x model x layout x engine x profile.
//!
//! A step is walked operator by operator: norms, QKV projection, rotary embedding, attention, output
//! projection, all-reduce, feed-forward or experts, all-reduce, for every layer; then LM head and
//! sampling; then what the host adds. Everything that depends only on the number of tokens is kept in tables that are
//! filled on first use, so a step costs a few table look-ups and two attention formulas, whatever the batch size.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::accelerator::Accelerator;
use crate::batch::BatchStats;
use crate::dtype::Dtype;
use crate::engine_cost::EngineCost;
use crate::evidence::Evidence;
use crate::layout::Layout;
use crate::model::{AttentionKind, ModelArch, Moe};
use crate::ops::collective::{AllReduceImpl, CollectiveModel, Fabric, Group, Launch};
use crate::ops::{
    Cache, DecodeShape, Kernels, MlaShape, MoeShape, OpShape, OpTime, OperatorModel, PrefillShape,
    PrefillWork, Routing,
};
use crate::profile::Profile;
use crate::step::{Parts, StepCost, StepModel};

/// Everything that decides how long a step takes.
#[derive(Clone, Debug)]
pub struct ReplicaSpec<'a> {
    /// One rank's device: the accelerator, or one core of it where ranks are cores (Neuron).
    pub accelerator: &'a Accelerator,
    /// What connects the ranks.
    pub fabric: Fabric,
    /// The model.
    pub model: &'a ModelArch,
    /// How it is spread.
    pub layout: Layout,
    /// Format of the weights. MXFP4 holds for routed experts only; the rest stays 16-bit then.
    pub weights: Dtype,
    /// Format of the KV cache.
    pub kv_cache: Dtype,
    /// What the engine adds.
    pub cost: EngineCost,
    /// Calibrated parameters of operators and collectives.
    pub profile: &'a Profile,
    /// Most tokens one step can hold: the size of the tables [tokens].
    pub max_tokens: u32,
    /// How evenly tokens spread over experts.
    pub routing: Routing,
    /// Which kernels the engine runs.
    pub kernels: Kernels,
    /// Sizes that decode batches are padded to for captured graphs, in ascending order; empty: the engine's rule.
    pub graph_sizes: &'a [u32],
}

/// Device time by cause [s], before launches and host.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    weights: f64,
    kv: f64,
    compute: f64,
    communication: f64,
}

impl Device {
    fn total(&self) -> f64 {
        self.weights + self.kv + self.compute + self.communication
    }

    fn add_gemm(&mut self, t: OpTime) {
        if t.memory_bound() {
            self.weights += t.seconds;
        } else {
            self.compute += t.seconds;
        }
    }

    fn add_activations(&mut self, t: OpTime) {
        self.kv += t.seconds;
    }

    fn add_attention(&mut self, t: OpTime, layers: f64) {
        if t.memory_bound() {
            self.kv += t.seconds * layers;
        } else {
            self.compute += t.seconds * layers;
        }
    }

    fn add_scaled(&mut self, o: &Device, k: f64) {
        self.weights += o.weights * k;
        self.kv += o.kv * k;
        self.compute += o.compute * k;
        self.communication += o.communication * k;
    }
}

/// Kernels of one layer that leave a gap behind them: two norms, QKV, rotary and KV write, attention, output
/// projection, two feed-forward products, activation, two collectives; one more where gate and up projection are apart.
const KERNELS_PER_LAYER: f64 = 11.0;

/// A resolved step-time model. See the module's documentation.
#[derive(Clone, Debug)]
pub struct ReplicaModel {
    /// Walks the layers for entries of the tables that nobody has asked for yet.
    walk: Box<LayerWalk>,
    cost: EngineCost,
    layers: f64,
    kernels_per_layer: f64,
    /// Share of the layers on the fullest pipeline stage.
    stage_share: f64,
    tp: u32,
    pp: u32,
    /// Collectives of a layer over the usual two: a parallel block needs one.
    meetings: f64,
    /// All layers' token-wise work by token count.
    linear: Table,
    /// LM head and sampling by sampled sequences.
    head: Table,
    attention: Attention,
    full_layers: f64,
    window_layers: f64,
    window: Option<u32>,
    /// See [`ReplicaSpec::graph_sizes`].
    graph_sizes: Vec<u32>,
    /// What data-parallel ranks do together; `None`: there is one rank, and `linear` holds everything.
    shared: Option<SharedExperts>,
    /// Send between two stages by token [s/token] and per message [s].
    send_fixed: f64,
    send_per_token: f64,
    warnings: Vec<String>,
}

/// Expert layers of data-parallel ranks: each rank's tokens are gathered on all of them, every rank computes its share of the
/// experts, and the results are added up and scattered back.
#[derive(Clone, Debug)]
struct SharedExperts {
    shape: MoeShape,
    routing: Routing,
    layers: f64,
    ranks: u32,
    group: Group,
    collectives: CollectiveModel,
    /// Bytes of a token as it is gathered, and as it comes back.
    gathered: f64,
    scattered: f64,
}

#[derive(Clone, Copy, Debug)]
enum Attention {
    Gqa(DecodeShape),
    Mla(MlaShape, PrefillShape),
}

impl ReplicaModel {
    /// Resolves `spec` and fills the tables. The layout must have been checked against the model.
    pub fn new(spec: &ReplicaSpec<'_>) -> ReplicaModel {
        let m = spec.model;
        let (tp, pp) = (spec.layout.tp.max(1), spec.layout.pp.max(1));
        let walk = Box::new(LayerWalk {
            model: m.clone(),
            layout: spec.layout,
            weights: spec.weights,
            kv_cache: spec.kv_cache,
            routing: spec.routing,
            kernels: spec.kernels,
            all_reduce: spec.cost.all_reduce,
            devices_per_node: spec.fabric.devices_per_node.max(1),
            ops: OperatorModel::new(spec.accelerator, spec.profile).with_kernels(spec.kernels),
            collectives: CollectiveModel::new(&spec.fabric, spec.profile),
            tp,
        });
        let collectives = &walk.collectives;
        let table = spec.max_tokens.clamp(1, 1 << 16);
        let attention = walk.attention();
        let per_node = spec.fabric.devices_per_node.max(1);
        // Stages are consecutive ranks: stage boundaries cross nodes when a stage fills one.
        let crosses = pp > 1 && tp * pp > per_node;
        let bytes = f64::from(m.hidden) * 2.0;
        let (send_fixed, send_per_token) = if pp > 1 {
            let one = collectives.send(bytes, crosses);
            let many = collectives.send(bytes * 4097.0, crosses);
            let slope = (many - one) / 4096.0;
            (one - slope, slope)
        } else {
            (0.0, 0.0)
        };
        let window_layers = m.window.map_or(0, |w| w.layers.min(m.layers));
        ReplicaModel {
            cost: spec.cost,
            layers: f64::from(m.layers),
            kernels_per_layer: KERNELS_PER_LAYER
                + f64::from(u8::from(m.gated && !spec.kernels.gate_with_up)),
            stage_share: f64::from(m.layers.div_ceil(pp)) / f64::from(m.layers.max(1)),
            tp,
            pp,
            meetings: if m.parallel_block { 0.5 } else { 1.0 },
            linear: Table::up_to(table),
            head: Table::up_to(table.min(4096)),
            attention,
            full_layers: f64::from(m.layers - window_layers),
            window_layers: f64::from(window_layers),
            window: m.window.map(|w| w.tokens),
            send_fixed,
            send_per_token,
            graph_sizes: spec.graph_sizes.to_vec(),
            shared: walk.shared_experts(),
            warnings: walk.warnings(),
            walk,
        }
    }

    /// What about these predictions rests on priors or lies outside the fitted range, in words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The engine's costs in use.
    pub fn cost(&self) -> &EngineCost {
        &self.cost
    }

    #[inline]
    fn add_attention(&self, device: &mut Device, batch: &BatchStats) {
        if batch.decode_seqs > 0 {
            match self.attention {
                Attention::Gqa(shape) => {
                    if self.full_layers > 0.0 {
                        let t = self.walk.ops.decode_attention(&shape, batch, Cache::Cold);
                        device.add_attention(t, self.full_layers);
                    }
                    if self.window_layers > 0.0 {
                        let shape = DecodeShape {
                            window: self.window,
                            ..shape
                        };
                        let t = self.walk.ops.decode_attention(&shape, batch, Cache::Cold);
                        device.add_attention(t, self.window_layers);
                    }
                }
                Attention::Mla(shape, _) => {
                    let t = self.walk.ops.decode_mla(&shape, batch, Cache::Cold);
                    device.add_attention(t, self.layers);
                }
            }
        }
        if batch.prefill_seqs > 0 {
            let work = PrefillWork::of(batch);
            let shape = match self.attention {
                Attention::Gqa(s) => PrefillShape {
                    heads: s.heads,
                    kv_heads: s.kv_heads,
                    head_dim: s.head_dim,
                    kv_dtype: s.kv_dtype,
                    window: None,
                },
                Attention::Mla(_, s) => s,
            };
            if self.full_layers > 0.0 {
                let t = match self.attention {
                    Attention::Gqa(_) => self.walk.ops.prefill_attention(&shape, &work),
                    Attention::Mla(..) => self.walk.ops.prefill_mla(&shape, &work),
                };
                device.add_attention(t, self.full_layers);
            }
            if self.window_layers > 0.0 {
                let shape = PrefillShape {
                    window: self.window,
                    ..shape
                };
                let t = self.walk.ops.prefill_attention(&shape, &work);
                device.add_attention(t, self.window_layers);
            }
        }
    }
}

/// Entries of a table that are made together, as room for them.
const CHUNK: usize = 512;

/// A table that is filled on first use, entry by entry: a run asks for few of the sizes that a step could have.
#[derive(Clone, Debug)]
struct Table {
    last: u32,
    chunks: Vec<OnceLock<Box<[OnceLock<Device>]>>>,
}

impl Table {
    /// An empty table with entries for 0 to `last`, which is at least 1.
    fn up_to(last: u32) -> Table {
        Table {
            last,
            chunks: vec![OnceLock::new(); last as usize / CHUNK + 1],
        }
    }

    /// Entry `n`, which is `make(n)`; beyond the table, in proportion to its last entry.
    #[inline]
    fn get(&self, n: u32, make: impl Fn(u32) -> Device) -> Device {
        if n > self.last {
            let mut d = Device::default();
            let factor = f64::from(n) / f64::from(self.last);
            d.add_scaled(&self.get(self.last, make), factor);
            return d;
        }
        let chunk = self.chunks[n as usize / CHUNK]
            .get_or_init(|| vec![OnceLock::new(); CHUNK].into_boxed_slice());
        *chunk[n as usize % CHUNK].get_or_init(|| make(n))
    }
}

impl StepModel for ReplicaModel {
    fn step(&self, batch: &BatchStats) -> StepCost {
        if self.shared.is_some() {
            return self.step_ranks(std::slice::from_ref(batch));
        }
        if batch.is_empty() {
            return StepCost::default();
        }
        let widest = Widest::of(batch);
        let graph = self.graph_size(&widest);
        let tokens = match graph {
            Some(padded) => padded.saturating_add(batch.decode_tokens - batch.decode_seqs),
            None => batch.tokens(),
        };
        let mut device = self.linear(tokens);
        self.add_attention(&mut device, batch);
        self.cost_of(device, &widest, tokens, graph.is_some())
    }

    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        let widest = ranks
            .iter()
            .map(Widest::of)
            .fold(Widest::default(), Widest::max);
        if widest.tokens == 0 {
            return StepCost::default();
        }
        // A graph's batch is padded to a captured size, that of the largest batch on every rank.
        let graph = self.graph_size(&widest);
        let in_graph = graph.is_some();
        let padded = graph.unwrap_or_default();
        let mut device = Device::default();
        let mut total: u32 = 0;
        for batch in ranks {
            // A rank that has nothing to do takes part with a token of its own.
            let tokens = if in_graph {
                padded.saturating_add(batch.decode_tokens - batch.decode_seqs)
            } else {
                batch.tokens().max(1)
            };
            let mut own = self.linear(tokens);
            self.add_attention(&mut own, batch);
            total = total.saturating_add(tokens);
            if own.total() > device.total() {
                device = own;
            }
        }
        if let Some(shared) = &self.shared {
            let idle = shared.ranks.saturating_sub(ranks.len() as u32);
            let each = if in_graph { padded } else { 1 };
            total = total.saturating_add(idle.saturating_mul(each));
            shared.add(total, &self.walk.ops, &mut device);
        }
        self.cost_of(device, &widest, total, in_graph)
    }
}

/// The largest of what the ranks of a step hold.
#[derive(Clone, Copy, Debug, Default)]
struct Widest {
    tokens: u32,
    prefill_tokens: u32,
    decode_seqs: u32,
    seqs: u32,
    sampled_seqs: u32,
}

impl Widest {
    #[inline]
    fn of(b: &BatchStats) -> Widest {
        Widest {
            tokens: b.tokens(),
            prefill_tokens: b.prefill_tokens,
            decode_seqs: b.decode_seqs,
            seqs: b.decode_seqs + b.prefill_seqs,
            sampled_seqs: b.sampled_seqs,
        }
    }

    fn max(self, o: Widest) -> Widest {
        Widest {
            tokens: self.tokens.max(o.tokens),
            prefill_tokens: self.prefill_tokens.max(o.prefill_tokens),
            decode_seqs: self.decode_seqs.max(o.decode_seqs),
            seqs: self.seqs.max(o.seqs),
            sampled_seqs: self.sampled_seqs.max(o.sampled_seqs),
        }
    }
}

impl SharedExperts {
    /// Adds the expert layers' work for `tokens` tokens of all ranks.
    fn add(&self, tokens: u32, ops: &OperatorModel, device: &mut Device) {
        let mut layer = Device::default();
        layer.add_gemm(ops.moe(&self.shape, tokens, self.routing));
        let tokens = f64::from(tokens);
        layer.communication += self
            .collectives
            .all_gather(tokens * self.gathered, self.group)
            + self
                .collectives
                .reduce_scatter(tokens * self.scattered, self.group);
        device.add_scaled(&layer, self.layers);
    }
}

impl ReplicaModel {
    /// All layers' token-wise work for `tokens` tokens.
    #[inline]
    fn linear(&self, tokens: u32) -> Device {
        self.linear.get(tokens, |t| self.walk.all_layers(t))
    }

    /// LM head and sampling for `sampled` sequences.
    #[inline]
    fn head(&self, sampled: u32) -> Device {
        self.head.get(sampled, |s| self.walk.head(s))
    }

    /// Sequences of the graph that the step replays; `None`: kernels are launched one by one.
    #[inline]
    fn graph_size(&self, widest: &Widest) -> Option<u32> {
        if widest.prefill_tokens > 0 {
            return None;
        }
        let seqs = widest.decode_seqs;
        if self.graph_sizes.is_empty() {
            return (seqs <= self.cost.graph_max_seqs).then(|| self.cost.graph_size(seqs));
        }
        let next = self.graph_sizes.partition_point(|s| *s < seqs);
        self.graph_sizes.get(next).copied()
    }

    /// The step whose slowest rank keeps its device busy for `device` with layers that see `tokens` tokens.
    #[inline]
    fn cost_of(&self, device: Device, widest: &Widest, tokens: u32, in_graph: bool) -> StepCost {
        let c = &self.cost;
        let head = self.head(widest.sampled_seqs);

        // A whole-model graph is launched once; otherwise the host feeds kernels layer by layer, and whichever
        // of host and device is slower sets the pace.
        // Negative where kernels in a graph overlap; they cannot hide more than there is of them.
        let gaps = (c.kernel_gap * self.kernels_per_layer * self.layers).max(-device.total());
        let per_layer = if in_graph {
            0.0
        } else if c.graph_max_seqs > 0 {
            c.mixed_launch
        } else {
            c.layer_launch + c.rank_launch * self.meetings * f64::from(self.tp - 1)
        };
        let launch = per_layer * self.layers;
        let body = device.total() + gaps;
        let exposed_launch = (launch - body).max(0.0);
        let sends = if self.pp > 1 {
            // Activations go down the stages, and the sampled tokens back to the first.
            f64::from(self.pp - 1) * (self.send_fixed + self.send_per_token * f64::from(tokens))
                + self.send_fixed
        } else {
            0.0
        };
        let per_seq = c.seq_host + c.rank_seq_host * f64::from(self.tp - 1);
        let host = c.step_host + per_seq * f64::from(widest.seqs);
        let mut parts = Parts {
            weights: device.weights + head.weights,
            kv: device.kv + head.kv,
            compute: device.compute + head.compute,
            communication: device.communication + head.communication + sends,
            host: gaps + exposed_launch,
            ..Parts::default()
        };
        let run = parts.total();
        // The fullest stage, with the LM head on the last one, spaces the steps of a pipeline.
        let stage = (body + exposed_launch) * self.stage_share + head.total();
        parts.host += if c.overlap {
            (host - run).max(0.0)
        } else {
            host
        };
        let latency = parts.total();
        if gaps < 0.0 {
            parts.host -= gaps;
            parts.hide(-gaps);
        }
        StepCost {
            latency,
            interval: if self.pp > 1 {
                stage.max(host)
            } else {
                latency
            },
            parts,
        }
    }
}

/// Walks a model's layers on one rank.
#[derive(Clone, Debug)]
struct LayerWalk {
    model: ModelArch,
    layout: Layout,
    weights: Dtype,
    kv_cache: Dtype,
    routing: Routing,
    kernels: Kernels,
    all_reduce: AllReduceImpl,
    devices_per_node: u32,
    ops: OperatorModel,
    collectives: CollectiveModel,
    tp: u32,
}

impl LayerWalk {
    /// Format of the dense matrices.
    fn dense(&self) -> Dtype {
        match self.weights {
            Dtype::Mxfp4 => Dtype::Bf16,
            d => d,
        }
    }

    /// Format that arithmetic runs in for weights of format `w`.
    fn activations(w: Dtype) -> Dtype {
        match w {
            Dtype::Fp8 | Dtype::Int8 | Dtype::Fp32 => w,
            Dtype::Bf16 | Dtype::Int4 | Dtype::Mxfp4 => Dtype::Bf16,
        }
    }

    /// Whether 8-bit weights have a scale for each block: the models with latent attention are published so (DeepSeek-V3's `weight_block_size`).
    fn block_scales(&self) -> bool {
        self.weights == Dtype::Fp8 && matches!(self.model.attention, AttentionKind::Mla { .. })
    }

    /// Bytes of one value that a kernel hands to a product.
    fn product_input(&self) -> f64 {
        match self.dense() {
            Dtype::Fp8 | Dtype::Int8 if self.kernels.fused_quantisation => 1.0,
            _ => 2.0,
        }
    }

    fn gemm(&self, m: u32, n: u32, k: u32) -> OpTime {
        let w = self.dense();
        let block = self.block_scales();
        self.ops.gemm_of(m, n, k, w, Self::activations(w), block)
    }

    fn group(&self) -> Group {
        let nodes = self.tp.div_ceil(self.devices_per_node);
        if nodes > 1 {
            Group::across(self.tp, nodes)
        } else {
            Group::within_node(self.tp)
        }
    }

    fn all_reduce(&self, tokens: u32) -> f64 {
        if self.tp < 2 {
            return 0.0;
        }
        let bytes = f64::from(tokens) * f64::from(self.model.hidden) * 2.0;
        self.collectives
            .all_reduce(bytes, self.group(), self.all_reduce, Launch::Graph)
    }

    fn kv_heads(&self) -> u32 {
        self.model.kv_heads.div_ceil(self.tp).max(1)
    }

    fn attention(&self) -> Attention {
        let m = &self.model;
        let heads = m.heads.div_ceil(self.tp);
        match m.attention {
            AttentionKind::Gqa => Attention::Gqa(DecodeShape {
                heads,
                kv_heads: self.kv_heads(),
                head_dim: m.head_dim,
                kv_dtype: self.kv_cache,
                window: None,
            }),
            AttentionKind::Mla {
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
                ..
            } => Attention::Mla(
                MlaShape {
                    heads,
                    kv_lora_rank,
                    rope_dim: qk_rope_dim,
                    kv_dtype: self.kv_cache,
                },
                PrefillShape {
                    heads,
                    kv_heads: heads,
                    head_dim: (qk_nope_dim + qk_rope_dim + v_head_dim) / 2,
                    kv_dtype: self.kv_cache,
                    window: None,
                },
            ),
        }
    }

    /// Projections, element-wise kernels and output projection of one layer's attention.
    fn attention_block(&self, t: u32, d: &mut Device) {
        let m = &self.model;
        let heads = m.heads.div_ceil(self.tp);
        let tokens = f64::from(t);
        let (q_width, kv_width, out_width);
        match m.attention {
            AttentionKind::Gqa => {
                q_width = heads * m.head_dim;
                kv_width = 2 * self.kv_heads() * m.head_dim;
                out_width = q_width;
                d.add_gemm(self.gemm(t, q_width + kv_width, m.hidden));
            }
            AttentionKind::Mla {
                q_lora_rank,
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
            } => {
                q_width = heads * (qk_nope_dim + qk_rope_dim);
                kv_width = kv_lora_rank + qk_rope_dim;
                out_width = heads * v_head_dim;
                if q_lora_rank > 0 {
                    d.add_gemm(self.gemm(t, q_lora_rank + kv_width, m.hidden));
                    d.add_gemm(self.gemm(t, q_width, q_lora_rank));
                } else {
                    d.add_gemm(self.gemm(t, q_width + kv_width, m.hidden));
                }
                // Key and value up-projections, absorbed into query and output in decode.
                d.add_gemm(self.gemm(t, heads * (qk_nope_dim + v_head_dim), kv_lora_rank));
            }
        }
        d.add_gemm(self.gemm(t, m.hidden, out_width));
        let kv_bytes = self.kv_cache.bytes();
        if self.kernels.fused_rotary {
            // Q, K and V are read once; Q is written in place, K and V to the cache.
            let bytes = 4.0 * f64::from(q_width) + (2.0 + kv_bytes) * f64::from(kv_width);
            d.add_activations(self.ops.elementwise(bytes * tokens, 1.0));
        } else {
            // Rotary embedding reads and writes Q and K; the KV write reads and writes K and V.
            let rotary = 2.0 * 2.0 * f64::from(q_width + kv_width / 2) * tokens;
            let write = f64::from(kv_width) * tokens * (2.0 + kv_bytes);
            d.add_activations(self.ops.elementwise(rotary + write, 2.0));
        }
        if m.qk_norm {
            // Queries and keys are normalised head by head: each is read and written once more.
            let norm = 2.0 * 2.0 * f64::from(q_width + kv_width / 2) * tokens;
            d.add_activations(self.ops.elementwise(norm, 2.0));
        }
    }

    fn dense_mlp(&self, t: u32, intermediate: u32, d: &mut Device) {
        let m = &self.model;
        let inner = intermediate.div_ceil(self.tp);
        let up = if m.gated { 2 * inner } else { inner };
        if m.gated && !self.kernels.gate_with_up {
            d.add_gemm(self.gemm(t, inner, m.hidden));
            d.add_gemm(self.gemm(t, inner, m.hidden));
        } else {
            d.add_gemm(self.gemm(t, up, m.hidden));
        }
        let bytes = (2.0 * f64::from(up) + self.product_input() * f64::from(inner)) * f64::from(t);
        d.add_activations(self.ops.elementwise(bytes, 1.0));
        d.add_gemm(self.gemm(t, m.hidden, inner));
    }

    fn moe(&self, t: u32, d: &mut Device) {
        let m = &self.model;
        let Some(moe) = m.moe else { return };
        // Router, then choice and permutation of tokens.
        d.add_gemm(
            self.ops
                .gemm(t, moe.experts, m.hidden, Dtype::Bf16, Dtype::Bf16),
        );
        d.add_activations(
            self.ops
                .elementwise(f64::from(t) * f64::from(moe.experts) * 4.0, 2.0),
        );
        if self.layout.dp == 1 {
            let shape = self.experts(&moe);
            d.add_gemm(self.ops.moe(&shape, t, self.routing));
        }
        if moe.shared_intermediate > 0 {
            self.dense_mlp(t, moe.shared_intermediate, d);
        }
    }

    /// Routed experts as the ranks of a stage share them.
    fn experts(&self, moe: &Moe) -> MoeShape {
        let ranks = self.layout.stage_ranks().max(1);
        let ep = self.layout.ep.max(1);
        MoeShape {
            hidden: self.model.hidden,
            intermediate: moe.expert_intermediate,
            experts: moe.experts,
            top_k: moe.top_k,
            tp: (ranks / ep).max(1),
            ep,
            weights: self.weights,
            activations: Self::activations(self.weights),
            block_scales: self.block_scales(),
        }
    }

    /// What data-parallel ranks compute together.
    fn shared_experts(&self) -> Option<SharedExperts> {
        let m = &self.model;
        let layout = self.layout;
        let moe = m.moe.filter(|_| layout.dp > 1)?;
        let nodes = (layout.stage_ranks()).div_ceil(self.devices_per_node);
        let hidden = f64::from(m.hidden);
        Some(SharedExperts {
            shape: self.experts(&moe),
            routing: self.routing,
            layers: f64::from(m.layers - moe.dense_layers.min(m.layers)),
            ranks: layout.dp,
            group: if nodes > 1 {
                Group::across(layout.dp, nodes.min(layout.dp))
            } else {
                Group::within_node(layout.dp)
            },
            collectives: self.collectives.clone(),
            gathered: hidden * self.product_input(),
            scattered: hidden * 2.0,
        })
    }

    /// One layer; `experts` chooses routed experts over the dense block.
    fn layer(&self, t: u32, experts: bool) -> Device {
        let m = &self.model;
        let mut d = Device::default();
        // A norm with its residual reads two streams and writes two, one of them the next product's input.
        let norm = (3.0 * 2.0 + self.product_input()) * f64::from(m.hidden) * f64::from(t);
        let norms = if m.parallel_block { 1.0 } else { 2.0 };
        d.add_activations(self.ops.elementwise(norm * norms, norms));
        self.attention_block(t, &mut d);
        if experts {
            self.moe(t, &mut d);
        } else {
            self.dense_mlp(t, m.intermediate, &mut d);
        }
        let reduces = if m.parallel_block { 1.0 } else { 2.0 };
        d.communication += reduces * self.all_reduce(t);
        d
    }

    /// Every layer's token-wise work for `t` tokens.
    fn all_layers(&self, t: u32) -> Device {
        let mut d = Device::default();
        if t == 0 {
            return d;
        }
        let m = &self.model;
        let dense = m.moe.map_or(m.layers, |x| x.dense_layers.min(m.layers));
        if dense > 0 {
            d.add_scaled(&self.layer(t, false), f64::from(dense));
        }
        if m.layers > dense {
            d.add_scaled(&self.layer(t, true), f64::from(m.layers - dense));
        }
        d
    }

    /// Final norm, LM head, gathering of logits, sampling.
    fn head(&self, sampled: u32) -> Device {
        let mut d = Device::default();
        if sampled == 0 {
            return d;
        }
        let m = &self.model;
        d.add_gemm(self.ops.gemm(
            sampled,
            m.vocab.div_ceil(self.tp),
            m.hidden,
            Dtype::Bf16,
            Dtype::Bf16,
        ));
        if self.tp > 1 {
            let bytes = f64::from(sampled) * f64::from(m.vocab) * 2.0;
            d.communication += self.collectives.all_gather(bytes, self.group());
        }
        d.add_activations(self.ops.sampling(sampled, m.vocab));
        d
    }

    fn warnings(&self) -> Vec<String> {
        let m = &self.model;
        let inner = m.intermediate.div_ceil(self.tp).max(1);
        let mut weak = BTreeSet::new();
        let mut note = |what: &str, e: Evidence| {
            if matches!(e, Evidence::Analytic | Evidence::Extrapolated) {
                weak.insert(format!("{what} times are {}", match e {
                    Evidence::Analytic => "analytic: no kernel measurements of this accelerator are in the profile",
                    _ => "extrapolated: beyond the shapes that the profile was fitted on, or from another accelerator with the same chip",
                }));
            }
        };
        note(
            "GEMM",
            self.ops.evidence(&OpShape::Gemm {
                m: 64,
                n: m.hidden,
                k: inner,
                weights: self.dense(),
            }),
        );
        note(
            "attention",
            self.ops.evidence(&OpShape::Attention {
                head_dim: m.head_dim,
                kv: self.kv_cache,
            }),
        );
        if m.moe.is_some() {
            note(
                "expert",
                self.ops.evidence(&OpShape::Moe {
                    weights: self.weights,
                    ep: self.layout.ep,
                }),
            );
        }
        weak.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::ops::collective::LinkClass;

    fn accelerator() -> Accelerator {
        crate::Catalog::builtin()
            .accelerator("h100")
            .unwrap()
            .clone()
    }

    fn llama_7b() -> ModelArch {
        crate::Catalog::builtin()
            .model("llama-2-7b")
            .unwrap()
            .clone()
    }

    fn model(tp: u32, pp: u32, engine: EngineKind) -> ReplicaModel {
        ReplicaModel::new(&ReplicaSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: &llama_7b(),
            layout: Layout {
                tp,
                pp,
                dp: 1,
                ep: 1,
            },
            weights: Dtype::Bf16,
            kv_cache: Dtype::Bf16,
            cost: EngineCost::prior(engine),
            profile: &Profile::default(),
            max_tokens: 2048,
            routing: Routing::Balanced,
            kernels: Kernels::default(),
            graph_sizes: &[],
        })
    }

    fn decodes(n: u32, context: u32) -> BatchStats {
        let mut b = BatchStats::default();
        for _ in 0..n {
            b.add_decode(context);
        }
        b
    }

    #[test]
    fn parts_sum_to_the_latency() {
        for engine in EngineKind::ALL {
            for (tp, pp) in [(1, 1), (4, 1), (2, 2)] {
                let m = model(tp, pp, engine);
                let mut b = decodes(7, 300);
                b.add_prefill(200, 64, true);
                let c = m.step(&b);
                assert!((c.parts.total() - c.latency).abs() < 1e-12, "{engine}");
                assert!(c.interval <= c.latency, "{engine}: {c:?}");
            }
        }
    }

    #[test]
    fn kernels_that_overlap_leave_no_part_negative() {
        let decode = decodes(4, 300);
        let mut mixed = decode;
        mixed.add_prefill(200, 64, true);
        let with_gap = |kernel_gap: f64| {
            let mut m = model(1, 1, EngineKind::VllmV1);
            m.cost.kernel_gap = kernel_gap;
            m
        };
        let apart = with_gap(0.0).step(&decode);
        for gap in [-1e-6, -5e-6, -1.0] {
            for batch in [&decode, &mixed] {
                let c = with_gap(gap).step(batch);
                assert!(c.parts.as_array().iter().all(|p| *p >= 0.0), "{c:?}");
                assert!((c.parts.total() - c.latency).abs() < 1e-12, "{c:?}");
                assert!(c.parts.overlap > 0.0, "{c:?}");
            }
            // Host time stays what it is; what overlaps is the kernels' own.
            let c = with_gap(gap).step(&decode);
            let kernels = |p: &Parts| p.weights + p.kv + p.compute + p.communication;
            assert!(kernels(&c.parts) < kernels(&apart.parts));
        }
        assert_eq!(apart.parts.overlap, 0.0);
    }

    #[test]
    fn no_decode_step_is_faster_than_reading_the_weights_at_peak() {
        let weights = 2.0 * (6.738e9 - 32000.0 * 4096.0);
        for b in [1, 16, 256] {
            let t = model(1, 1, EngineKind::VllmV1)
                .step(&decodes(b, 500))
                .latency;
            assert!(t > weights / 3350e9, "batch {b}: {t}");
        }
    }

    #[test]
    fn no_prefill_is_faster_than_the_peak_allows() {
        let mut b = BatchStats::default();
        b.add_prefill(2048, 0, true);
        let t = model(1, 1, EngineKind::VllmV1).step(&b).latency;
        assert!(t > 2.0 * 6.5e9 * 2048.0 / 989e12, "{t}");
    }

    #[test]
    fn an_eager_engine_on_many_ranks_is_bound_by_its_launches() {
        let c = model(8, 1, EngineKind::Tgi).step(&decodes(1, 300));
        assert!(c.parts.host > 0.5 * c.latency, "{c:?}");
    }

    #[test]
    fn a_pipeline_admits_the_next_step_before_the_first_ends() {
        let c = model(1, 4, EngineKind::TrtLlm).step(&decodes(64, 1000));
        assert!(c.interval < 0.4 * c.latency, "{c:?}");
    }

    fn mixture(dp: u32, routing: Routing) -> ReplicaModel {
        let catalog = crate::Catalog::builtin();
        ReplicaModel::new(&ReplicaSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: catalog.model("qwen3-235b-a22b").unwrap(),
            layout: Layout {
                tp: 1,
                pp: 1,
                dp,
                ep: dp,
            },
            weights: Dtype::Fp8,
            kv_cache: Dtype::Fp8,
            cost: EngineCost::prior(EngineKind::VllmV1),
            profile: &Profile::default(),
            max_tokens: 2048,
            routing,
            kernels: Kernels::default(),
            graph_sizes: &[],
        })
    }

    #[test]
    fn the_slowest_rank_sets_the_time_of_a_step() {
        let m = mixture(8, Routing::Balanced);
        let idle = BatchStats::default();
        let even = [decodes(32, 1000); 8];
        let mut one_long = even;
        one_long[3] = decodes(32, 8000);
        let cost = |ranks: &[BatchStats]| m.step_ranks(ranks);
        let (even, one_long) = (cost(&even), cost(&one_long));
        assert!(one_long.latency > even.latency && one_long.parts.kv > even.parts.kv);
        // What the ranks share depends on all tokens, what they do alone on their own.
        let mut busy = decodes(32, 1000);
        busy.add_prefill(1024, 0, true);
        let mut ranks = [idle; 8];
        ranks[0] = busy;
        let alone = cost(&ranks);
        let all = cost(&[busy; 8]);
        assert!(all.latency > alone.latency);
        assert!(all.parts.communication > 3.0 * alone.parts.communication);
        // Whoever says nothing of the idle ranks means the same.
        assert_eq!(m.step(&busy), alone);
        assert_eq!(cost(&[idle; 8]), StepCost::default());
    }

    #[test]
    fn prompts_on_one_rank_cost_nearly_as_much_as_on_all() {
        let m = mixture(8, Routing::Balanced);
        let mut prompt = BatchStats::default();
        prompt.add_prefill(2048, 0, true);
        let mut ranks = [decodes(32, 1000); 8];
        let decode = m.step_ranks(&ranks).latency;
        ranks[0].add_prefill(2048, 0, true);
        let one = m.step_ranks(&ranks).latency;
        let all = m.step_ranks(&[ranks[0]; 8]).latency;
        assert!(
            one > 2.0 * decode && all < 4.0 * one,
            "{decode} {one} {all}"
        );
    }

    #[test]
    fn a_popular_expert_slows_its_rank_down() {
        let batch = [decodes(64, 1000); 8];
        let even = mixture(8, Routing::Balanced).step_ranks(&batch).latency;
        let skewed = mixture(8, Routing::PowerLaw(1.0))
            .step_ranks(&batch)
            .latency;
        assert!(skewed > even, "{skewed} {even}");
    }

    #[test]
    fn decode_batches_are_padded_to_the_given_graph_sizes() {
        let sized = |sizes: &[u32]| {
            ReplicaModel::new(&ReplicaSpec {
                accelerator: &accelerator(),
                fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
                model: &llama_7b(),
                layout: Layout::SINGLE,
                weights: Dtype::Bf16,
                kv_cache: Dtype::Bf16,
                cost: EngineCost::prior(EngineKind::TrtLlm).graphed(),
                profile: &Profile::default(),
                max_tokens: 2048,
                routing: Routing::Balanced,
                kernels: Kernels::default(),
                graph_sizes: sizes,
            })
        };
        let time = |sizes: &[u32], n: u32| sized(sizes).step(&decodes(n, 1)).latency;
        assert_eq!(time(&[256, 1024], 200), time(&[256], 200));
        assert!(time(&[256, 1024], 300) > time(&[256, 512, 1024], 300));
        // Beyond the largest, kernels are launched one by one and nothing is padded.
        assert!(time(&[256, 1024], 1025) < time(&[2048], 1025));
    }

    #[test]
    fn steps_beyond_the_table_continue_it() {
        let m = model(1, 1, EngineKind::VllmV1);
        let step = |n: u32| {
            let mut b = BatchStats::default();
            b.add_prefill(n, 0, true);
            m.step(&b).latency
        };
        assert!(step(4096) > 1.8 * step(2048) && step(4096) < 2.6 * step(2048));
    }
}
