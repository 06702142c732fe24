//! The step-time model of one replica, from its operators: accelerator x links x model x layout x engine x profile.
//!
//! A step is walked operator by operator: norms, QKV projection, rotary embedding, attention, output
//! projection, all-reduce, feed-forward or experts, all-reduce, for every layer; then LM head and
//! sampling; then what the host adds. Everything that depends only on the number of tokens is kept in tables that are
//! filled on first use, so a step costs a few table look-ups and two attention formulas, whatever the batch size.

mod device;
mod draft;
mod drafted;
mod experts;
mod table;
mod walk;
mod widest;

use crate::accelerator::Accelerator;
use crate::batch::BatchStats;
use crate::dtype::Dtype;
use crate::engine_cost::EngineCost;
use crate::layout::Layout;
use crate::model::ModelArch;
use crate::ops::collective::{CollectiveModel, Fabric};
use crate::ops::{
    Cache, DecodeShape, Kernels, OperatorModel, PrefillShape, PrefillWork, Routing, Span,
};
use crate::profile::Profile;
use crate::recurrence::Recurrence;
use crate::step::{Parts, StepCost, StepModel};
use device::Device;
use draft::DraftModule;
use experts::SharedExperts;
use table::Table;
use walk::{Attention, LayerWalk};
use widest::Widest;

/// Everything that decides how long a step takes.
#[derive(Clone, Debug)]
pub struct OperatorStepsSpec<'a> {
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

/// Kernels of one layer that leave a gap behind them: two norms, QKV, rotary and KV write, attention, output
/// projection, two feed-forward products, activation, two collectives; one more where gate and up projection are apart.
const KERNELS_PER_LAYER: f64 = 11.0;

/// A resolved step-time model. See the module's documentation.
#[derive(Clone, Debug)]
pub struct OperatorSteps {
    /// Walks the layers for entries of the tables that nobody has asked for yet.
    walk: Box<LayerWalk>,
    cost: EngineCost,
    /// Layers, those of one half counted as half ones.
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
    /// What a rank computes of layers with a state, and how many there are.
    recurrence: Option<(Recurrence, f64)>,
    window_layers: f64,
    /// What those layers attend to.
    span: Span,
    /// The same for decodes: everything where their kernels read it all the same.
    decode_span: Span,
    /// See [`OperatorStepsSpec::graph_sizes`].
    graph_sizes: Vec<u32>,
    /// What data-parallel ranks do together; `None`: there is one rank, and `linear` holds everything.
    shared: Option<SharedExperts>,
    /// What drafts tokens after each step; `None`: there is no speculation.
    draft: Option<DraftModule>,
    /// Send between two stages by token [s/token] and per message [s].
    send_fixed: f64,
    send_per_token: f64,
    warnings: Vec<String>,
}

impl OperatorSteps {
    /// Resolves `spec` and fills the tables. The layout must have been checked against the model.
    pub fn new(spec: &OperatorStepsSpec<'_>) -> OperatorSteps {
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
        OperatorSteps {
            cost: spec.cost,
            layers: m.whole_layers(),
            kernels_per_layer: KERNELS_PER_LAYER
                + f64::from(u8::from(m.gated && !spec.kernels.gate_with_up)),
            stage_share: f64::from(m.layers.div_ceil(pp)) / f64::from(m.layers.max(1)),
            tp,
            pp,
            meetings: if m.parallel_block { 0.5 } else { 1.0 },
            linear: Table::up_to(table),
            head: Table::up_to(table.min(4096)),
            attention,
            full_layers: f64::from(m.kv_layers().saturating_sub(window_layers)),
            recurrence: m
                .recurrence
                .map(|r| (r.on_rank(tp), f64::from(m.state_layers_in(0..m.layers)))),
            window_layers: f64::from(window_layers),
            span: walk.span(),
            decode_span: match walk.span() {
                Span::Chunk(_) if !spec.kernels.chunked_decodes => Span::All,
                span => span,
            },
            send_fixed,
            send_per_token,
            graph_sizes: spec.graph_sizes.to_vec(),
            shared: walk.shared_experts(),
            draft: DraftModule::of(&walk, table),
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
        if let Some((shape, layers)) = &self.recurrence {
            if batch.decode_seqs > 0 {
                let t = self.walk.ops.state_decode(shape, batch.decode_seqs);
                device.add_attention(t, *layers);
            }
            if batch.prefill_seqs > 0 {
                let t = self.walk.ops.state_prefill(shape, &PrefillWork::of(batch));
                device.add_attention(t, *layers);
            }
        }
        if batch.decode_seqs > 0 {
            match self.attention {
                Attention::Gqa(shape) => {
                    if self.full_layers > 0.0 {
                        let t = self.walk.ops.decode_attention(&shape, batch, Cache::Cold);
                        device.add_attention(t, self.full_layers);
                    }
                    if self.window_layers > 0.0 {
                        let shape = DecodeShape {
                            span: self.decode_span,
                            ..shape
                        };
                        let t = self.walk.ops.decode_attention(&shape, batch, Cache::Cold);
                        device.add_attention(t, self.window_layers);
                    }
                }
                Attention::Mla(shape, _) => {
                    let t = self.walk.ops.decode_mla(&shape, batch, Cache::Cold);
                    device.add_attention(t, self.full_layers);
                }
                Attention::Sparse(shape, _) => {
                    let t = self.walk.ops.decode_sparse(&shape, batch);
                    device.add_attention(t, self.full_layers);
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
                    span: Span::All,
                },
                Attention::Mla(_, s) | Attention::Sparse(_, s) => s,
            };
            if self.full_layers > 0.0 {
                let t = match self.attention {
                    Attention::Gqa(_) => self.walk.ops.prefill_attention(&shape, &work),
                    Attention::Mla(..) => self.walk.ops.prefill_mla(&shape, &work),
                    Attention::Sparse(sparse, _) => {
                        self.walk.ops.prefill_sparse(&sparse, &shape, &work)
                    }
                };
                device.add_attention(t, self.full_layers);
            }
            if self.window_layers > 0.0 {
                let shape = PrefillShape {
                    span: self.span,
                    ..shape
                };
                let t = self.walk.ops.prefill_attention(&shape, &work);
                device.add_attention(t, self.window_layers);
            }
        }
    }
}

impl StepModel for OperatorSteps {
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
            Some(padded) => self.graph_tokens(padded, batch),
            None => batch.tokens(),
        };
        let mut device = self.linear(tokens);
        self.add_attention(&mut device, batch);
        let passes = self.add_drafts(std::slice::from_ref(batch), graph, &mut device);
        self.cost_of(device, &widest, (tokens, passes), graph.is_some())
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
                self.graph_tokens(padded, batch)
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
            let each = match graph {
                Some(padded) => self.graph_tokens(padded, &BatchStats::default()),
                None => 1,
            };
            total = total.saturating_add(idle.saturating_mul(each));
            shared.add(total, &self.walk.ops, &mut device);
        }
        let passes = self.add_drafts(ranks, graph, &mut device);
        self.cost_of(device, &widest, (total, passes), in_graph)
    }
}

impl OperatorSteps {
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

    /// The step whose slowest rank keeps its device busy for `device` with layers that see `tokens` tokens and so many `passes` of the module that
    /// drafts.
    #[inline]
    fn cost_of(
        &self,
        device: Device,
        widest: &Widest,
        (tokens, passes): (u32, f64),
        in_graph: bool,
    ) -> StepCost {
        let c = &self.cost;
        let layers = self.layers + passes;
        let head = self.head(widest.sampled_seqs);

        // A whole-model graph is launched once; otherwise the host feeds kernels layer by layer, and whichever
        // of host and device is slower sets the pace.
        // Negative where kernels in a graph overlap; they cannot hide more than there is of them.
        let gaps = (c.kernel_gap * self.kernels_per_layer * layers).max(-device.total());
        let per_layer = if in_graph {
            c.piece_launch
        } else if c.graph_max_seqs > 0 {
            c.mixed_launch
        } else {
            c.layer_launch + c.rank_launch * self.meetings * f64::from(self.tp - 1)
        };
        let launch = per_layer * layers;
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
        // One thread launches this step's kernels and keeps the books of the one before.
        parts.host += if c.overlap {
            (launch + host - run).max(0.0)
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
                stage.max(launch * self.stage_share + host)
            } else {
                latency
            },
            parts,
        }
    }
}

#[cfg(test)]
mod tests;
