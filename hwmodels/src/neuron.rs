//! Step time of statically compiled models on Inferentia and Trainium.
//!
//! The compiler fixes shapes: a decode step runs every slot over its whole compiled context, a prefill
//! runs the whole bucket, whatever the requests need. There are no kernel tables for these devices, so the model
//! is coarse: bytes over achievable bandwidth or FLOPs over achievable peak, plus a fixed time per layer (two
//! collectives and the compiled graph's own latency), plus the ring's transfer of activations, plus the host.
//!
//! Attention has two parts. KV is read at the rate of the weights, so in a decode it costs by rows. The softmax goes over the positions on
//! engines of 128 lanes (NeuronCore-v2's vector and scalar engine, sources 9.4), with one row and head, or one query and head, in each lane. A decode
//! step has no more of them on a core than lanes, so it takes the same time for one row as for many; a prompt fills the lanes, and there the
//! softmax takes longer than the products beside which it runs.
//! Parameters are named `neuron.<name>` (device) and `engine.tgi_neuron.<name>` (host).

use crate::accelerator::Accelerator;
use crate::batch::BatchStats;
use crate::dtype::Dtype;
use crate::engine_cost::EngineCost;
use crate::layout::Layout;
use crate::model::ModelArch;
use crate::profile::Profile;
use crate::step::{Parts, StepCost, StepModel};

/// A parameter of the device part: name after `neuron.`, prior and physical bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeuronSpec {
    /// Name after `neuron.`.
    pub name: &'static str,
    /// Value before any fit.
    pub prior: f64,
    /// Smallest value allowed.
    pub min: f64,
    /// Largest value allowed.
    pub max: f64,
    /// Unit.
    pub unit: &'static str,
    /// What it is.
    pub meaning: &'static str,
}

/// The device parameters, in the order of [`NeuronParams::values`].
pub const SPECS: [NeuronSpec; 6] = [
    NeuronSpec {
        name: "bandwidth_efficiency",
        prior: 0.7,
        min: 0.1,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which weights and KV are read",
    },
    NeuronSpec {
        name: "compute_efficiency",
        prior: 0.35,
        min: 0.02,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the 16-bit peak that matrix products reach",
    },
    NeuronSpec {
        name: "position_fixed",
        prior: 4e-9,
        min: 0.0,
        max: 1e-7,
        unit: "s",
        meaning: "time of attention's softmax per layer and position, for all 128 lanes together",
    },
    NeuronSpec {
        name: "layer_fixed",
        prior: 120e-6,
        min: 1e-6,
        max: 1e-3,
        unit: "s",
        meaning: "fixed time per layer: two collectives and the graph's own latency",
    },
    NeuronSpec {
        name: "link_efficiency",
        prior: 0.3,
        min: 0.02,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the chip-to-chip bandwidth that the ring's collectives reach",
    },
    NeuronSpec {
        name: "prefill_fixed",
        prior: 10e-3,
        min: 0.0,
        max: 0.1,
        unit: "s",
        meaning: "fixed time per run of the context-encoding graph, beyond that of its layers",
    },
];

/// Values of [`SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeuronParams {
    values: [f64; SPECS.len()],
}

impl NeuronParams {
    /// From values in the order of [`SPECS`].
    pub fn from_values(values: [f64; SPECS.len()]) -> NeuronParams {
        NeuronParams { values }
    }

    /// The profile's values, priors where it is silent.
    pub fn from_profile(profile: &Profile) -> NeuronParams {
        NeuronParams {
            values: SPECS.map(|s| profile.get(&format!("neuron.{}", s.name), s.prior)),
        }
    }

    /// The values, in the order of [`SPECS`].
    pub fn values(&self) -> [f64; SPECS.len()] {
        self.values
    }
}

/// Lanes of a NeuronCore's vector and scalar engines.
const LANES: f64 = 128.0;

/// Compiled static shapes of one replica on NeuronCores.
#[derive(Clone, Copy, Debug)]
pub struct NeuronModel {
    cost: EngineCost,
    layers: f64,
    /// Weights over all ranks' achievable bandwidth [s].
    weights: f64,
    /// KV of one token of context over all ranks' achievable bandwidth [s].
    kv_per_token: f64,
    /// Matrix products of one token [s].
    compute_per_token: f64,
    /// Attention of one query-key pair through all layers [s].
    compute_per_pair: f64,
    /// Ring transfer of one token's activations through all layers [s].
    ring_per_token: f64,
    /// Softmax over one position in all lanes, through all layers [s].
    position: f64,
    /// Query heads of one rank.
    heads: u32,
    layer_fixed: f64,
    prefill_fixed: f64,
}

impl NeuronModel {
    /// The model on `layout.devices()` NeuronCores of which `cores_per_chip` share a chip.
    ///
    /// `parameters` are weights in all and weights that work on each token.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        chip: &Accelerator,
        cores_per_chip: u32,
        model: &ModelArch,
        layout: Layout,
        weights: Dtype,
        kv_cache: Dtype,
        (parameters, active): (f64, f64),
        params: NeuronParams,
        cost: EngineCost,
    ) -> NeuronModel {
        let [
            bandwidth,
            compute,
            position,
            layer_fixed,
            link,
            prefill_fixed,
        ] = params.values;
        let ranks = f64::from(layout.devices());
        let chips = ranks / f64::from(cores_per_chip.max(1));
        let peak_bytes = chip.memory_bandwidth * chips;
        let kv_heads = f64::from(compiled_kv_heads(model, layout.tp));
        let kv_bytes =
            2.0 * kv_heads * f64::from(model.head_dim) * f64::from(model.layers) * kv_cache.bytes();
        let layers = f64::from(model.layers);
        let heads = model.heads.div_ceil(layout.tp.max(1));
        let peak = chip.bf16_flops * chips;
        // Two ring all-reduces per layer: each rank passes on 2 (n-1)/n of the message (9.4).
        let ring = if layout.tp > 1 {
            let n = f64::from(layout.tp);
            let link_rate = ring_bandwidth(chip) * link;
            2.0 * layers * 2.0 * (n - 1.0) / n * f64::from(model.hidden) * 2.0 / link_rate
        } else {
            0.0
        };
        NeuronModel {
            cost,
            layers,
            weights: parameters * weights.bytes() / (peak_bytes * bandwidth),
            kv_per_token: kv_bytes / (peak_bytes * bandwidth),
            compute_per_token: 2.0 * active / (peak * compute),
            // The products run on the tensor engine while the others do the softmax.
            compute_per_pair: (4.0 * layers * f64::from(model.heads) * f64::from(model.head_dim)
                / (peak * compute))
                .max(position * layers * f64::from(heads) / LANES),
            ring_per_token: ring,
            position: position * layers,
            heads,
            layer_fixed,
            prefill_fixed,
        }
    }
}

/// Heads of keys and values of the compiled model: each rank has the same number, so they are copied to one per rank where that comes out even, else to
/// one per query head, which are padded (sources 9.4).
fn compiled_kv_heads(model: &ModelArch, tp: u32) -> u32 {
    let (heads, kv) = (
        model.heads.next_multiple_of(tp.max(1)),
        model.kv_heads.max(1),
    );
    if kv == model.heads {
        heads
    } else if kv.is_multiple_of(tp.max(1)) {
        kv
    } else if tp.is_multiple_of(kv) {
        tp
    } else {
        heads
    }
}

/// What one ring over neighbouring chips has of a chip's links [bytes/s]: a chip of a torus has four and one of a ring two, and a ring uses two (sources 9.4).
fn ring_bandwidth(chip: &Accelerator) -> f64 {
    let torus = (chip.scale_up_link.as_deref()).is_some_and(|link| link.contains("torus"));
    let rings = if torus { 2.0 } else { 1.0 };
    chip.scale_up_bandwidth.unwrap_or(chip.host_bandwidth) / rings
}

impl StepModel for NeuronModel {
    fn step(&self, b: &BatchStats) -> StepCost {
        if b.is_empty() {
            return StepCost::default();
        }
        let mut parts = Parts::default();
        if b.prefill_tokens > 0 {
            // Prompts are encoded one after another, each reading the weights again.
            let runs = f64::from(b.prefill_seqs.max(1));
            let compute = self.compute_per_token * f64::from(b.prefill_tokens)
                + self.compute_per_pair * b.prefill_pairs as f64;
            let memory = self.weights * runs;
            if compute >= memory {
                parts.compute += compute;
            } else {
                parts.weights += memory;
            }
            parts.communication += self.ring_per_token * f64::from(b.prefill_tokens)
                + (self.layer_fixed * self.layers + self.prefill_fixed) * runs;
        }
        if b.decode_seqs > 0 {
            let memory = self.weights + self.kv_per_token * b.decode_ctx_sum as f64;
            let compute = self.compute_per_token * f64::from(b.decode_tokens);
            if compute > memory {
                parts.compute += compute;
            } else {
                parts.weights += self.weights;
                parts.kv += memory - self.weights;
            }
            // All rows have the length of their bucket.
            let bucket = b.decode_ctx_sum as f64 / f64::from(b.decode_seqs);
            let passes = (f64::from(b.decode_seqs) * f64::from(self.heads) / LANES).ceil();
            parts.kv += self.position * bucket * passes;
            parts.communication +=
                self.ring_per_token * f64::from(b.decode_tokens) + self.layer_fixed * self.layers;
        }
        parts.host = self.cost.step_host
            + self.cost.row_host * f64::from(b.decode_seqs.saturating_add(b.prefill_seqs))
            + self.cost.seq_host * f64::from(b.sampled_seqs)
            + self.cost.prompt_token_host * f64::from(b.prefill_tokens);
        let latency = parts.total();
        StepCost {
            latency,
            interval: latency,
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;

    fn llama_8b() -> ModelArch {
        crate::Catalog::builtin()
            .model("llama-3.1-8b")
            .unwrap()
            .clone()
    }

    fn inf2() -> Accelerator {
        crate::Catalog::builtin()
            .accelerator("inferentia2")
            .unwrap()
            .clone()
    }

    fn model() -> NeuronModel {
        NeuronModel::new(
            &inf2(),
            2,
            &llama_8b(),
            Layout {
                tp: 8,
                pp: 1,
                dp: 1,
                ep: 1,
            },
            Dtype::Bf16,
            Dtype::Bf16,
            (8.03e9, 7.5e9),
            NeuronParams::from_profile(&Profile::default()),
            EngineCost::prior(EngineKind::TgiNeuron),
        )
    }

    #[test]
    fn a_static_decode_step_cannot_beat_the_memory() {
        let mut b = BatchStats::default();
        for _ in 0..8 {
            b.add_decode(16_512);
        }
        let floor = (8.03e9 * 2.0 + 8.0 * 16_512.0 * 131_072.0) / (4.0 * 880e9);
        let t = model().step(&b).latency;
        assert!(t > floor && t < 6.0 * floor, "{t} against {floor}");
    }

    #[test]
    fn attention_over_the_positions_of_a_bucket_takes_no_longer_for_more_rows() {
        let device = |rows: u32, bucket: u32| {
            let mut b = BatchStats::default();
            for _ in 0..rows {
                b.add_decode(bucket);
            }
            let cost = model().step(&b);
            cost.latency - cost.parts.host
        };
        // Beyond the KV of 3 x 4096 further tokens at the rate of the weights, and their activations, three rows more add nothing.
        let token = 131_072.0 / (4.0 * 880e9 * SPECS[0].prior);
        let more = device(4, 4096) - device(1, 4096) - 3.0 * 4096.0 * token;
        assert!(more > 0.0 && more < 1e-3, "{more}");
        let longer = device(1, 8192) - device(1, 4096) - 4096.0 * token;
        let softmax = 32.0 * SPECS[2].prior;
        assert!((longer - 4096.0 * softmax).abs() < 1e-9, "{longer}");
        // Four heads of 33 rows are more than 128 lanes.
        let wide = device(33, 4096) - device(32, 4096) - 4096.0 * token;
        assert!(wide > 4096.0 * softmax, "{wide}");
    }

    #[test]
    fn a_ring_on_a_torus_has_half_of_the_chips_links() {
        let catalog = crate::Catalog::builtin();
        let of = |name: &str| ring_bandwidth(catalog.accelerator(name).unwrap());
        assert_eq!(of("inferentia2"), 206e9);
        assert_eq!(of("trainium1"), 192e9);
    }

    #[test]
    fn every_rank_has_the_same_number_of_heads() {
        let of = |heads: u32, kv_heads: u32, tp: u32| {
            let model = ModelArch {
                heads,
                kv_heads,
                ..llama_8b()
            };
            compiled_kv_heads(&model, tp)
        };
        assert_eq!(of(40, 40, 24), 48, "padded");
        assert_eq!(of(64, 8, 24), 24, "copied to one per rank");
        assert_eq!(of(32, 8, 8), 8);
        assert_eq!(of(32, 8, 2), 8);
        assert_eq!(of(40, 10, 8), 40, "copied to one per query head");
    }

    #[test]
    fn prompts_are_encoded_one_after_another_2_5() {
        let mut one = BatchStats::default();
        one.add_prefill(16_512, 0, true);
        let mut three = BatchStats::default();
        for _ in 0..3 {
            three.add_prefill(16_512, 0, true);
        }
        let m = model();
        let device = |b: &BatchStats| m.step(b).latency - m.step(b).parts.host;
        assert!((device(&three) / device(&one) - 3.0).abs() < 1e-9);
    }
}
