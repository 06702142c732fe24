//! Step time of statically compiled models on Inferentia and Trainium.
//!
//! The compiler fixes shapes: a decode step runs every slot over its whole compiled context, a prefill
//! runs the whole bucket, whatever the requests need. There are no kernel tables for these devices, so the model
//! is coarse: bytes over achievable bandwidth or FLOPs over achievable peak, plus a fixed time per layer (two
//! collectives and the compiled graph's own latency), plus the ring's transfer of activations, plus the host.
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
pub const SPECS: [NeuronSpec; 5] = [
    NeuronSpec {
        name: "bandwidth_efficiency",
        prior: 0.7,
        min: 0.1,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which weights are read",
    },
    NeuronSpec {
        name: "compute_efficiency",
        prior: 0.35,
        min: 0.02,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the 16-bit peak that prefill reaches, attention included",
    },
    NeuronSpec {
        name: "kv_efficiency",
        prior: 0.4,
        min: 0.05,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which the KV cache is read",
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
    /// Attention of one query-key pair [s].
    compute_per_pair: f64,
    /// Ring transfer of one token's activations through all layers [s].
    ring_per_token: f64,
    layer_fixed: f64,
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
        let [bandwidth, compute, kv, layer_fixed, link] = params.values;
        let ranks = f64::from(layout.devices());
        let chips = ranks / f64::from(cores_per_chip.max(1));
        let peak_bytes = chip.memory_bandwidth * chips;
        let kv_heads = f64::from(model.kv_heads.max(layout.tp.min(model.heads)));
        let kv_bytes =
            2.0 * kv_heads * f64::from(model.head_dim) * f64::from(model.layers) * kv_cache.bytes();
        let layers = f64::from(model.layers);
        let peak = chip.bf16_flops * chips;
        // Two ring all-reduces per layer: each rank passes on 2 (n-1)/n of the message (9.4).
        let ring = if layout.tp > 1 {
            let n = f64::from(layout.tp);
            let link_rate = chip.scale_up_bandwidth.unwrap_or(chip.host_bandwidth) * link;
            2.0 * layers * 2.0 * (n - 1.0) / n * f64::from(model.hidden) * 2.0 / link_rate
        } else {
            0.0
        };
        NeuronModel {
            cost,
            layers,
            weights: parameters * weights.bytes() / (peak_bytes * bandwidth),
            kv_per_token: kv_bytes / (peak_bytes * kv),
            compute_per_token: 2.0 * active / (peak * compute),
            compute_per_pair: 4.0 * layers * f64::from(model.heads) * f64::from(model.head_dim)
                / (peak * compute),
            ring_per_token: ring,
            layer_fixed,
        }
    }
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
                + self.layer_fixed * self.layers * runs;
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
            parts.communication +=
                self.ring_per_token * f64::from(b.decode_tokens) + self.layer_fixed * self.layers;
        }
        parts.host = self.cost.step_host
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
