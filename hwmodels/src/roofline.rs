//! The baseline that every prediction has to beat: a plain roofline times one factor plus one constant.

use crate::accelerator::Accelerator;
use crate::batch::BatchStats;
use crate::dtype::Dtype;
use crate::layout::Layout;
use crate::model::{AttentionKind, ModelArch};
use crate::step::{Parts, StepCost, StepModel};

/// `factor x max(FLOPs / peak, bytes / bandwidth) + constant`, with nothing else: no kernels, no
/// collectives, no host (sources 7.1).
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    weight_bytes: f64,
    flops_per_token: f64,
    kv_bytes_per_token: f64,
    flops_per_pair: f64,
    bandwidth: f64,
    peak: f64,
    /// Multiplies the roofline; 1 is the datasheet.
    pub factor: f64,
    /// Added to every step [s].
    pub constant: f64,
}

impl Roofline {
    /// The roofline of `layout.devices()` devices pooled, for `parameters` weights of which
    /// `active_parameters` work on each token.
    pub fn new(
        accelerator: &Accelerator,
        model: &ModelArch,
        layout: Layout,
        weights: Dtype,
        kv_cache: Dtype,
        (parameters, active_parameters): (f64, f64),
    ) -> Roofline {
        let devices = f64::from(layout.devices());
        let kv_values = match model.attention {
            AttentionKind::Gqa => 2.0 * f64::from(model.kv_heads) * f64::from(model.head_dim),
            AttentionKind::Mla {
                kv_lora_rank,
                qk_rope_dim,
                ..
            } => f64::from(kv_lora_rank + qk_rope_dim),
        };
        let peak = match weights {
            Dtype::Fp8 => accelerator.fp8_flops.unwrap_or(accelerator.bf16_flops),
            Dtype::Int8 => accelerator.int8_ops.unwrap_or(accelerator.bf16_flops),
            Dtype::Fp32 | Dtype::Bf16 | Dtype::Int4 | Dtype::Mxfp4 => accelerator.bf16_flops,
        };
        Roofline {
            weight_bytes: parameters * weights.bytes(),
            flops_per_token: 2.0 * active_parameters,
            kv_bytes_per_token: kv_values * f64::from(model.layers) * kv_cache.bytes(),
            flops_per_pair: 4.0
                * f64::from(model.layers)
                * f64::from(model.heads)
                * f64::from(model.head_dim),
            bandwidth: accelerator.memory_bandwidth * devices,
            peak: peak * devices,
            factor: 1.0,
            constant: 0.0,
        }
    }
}

impl StepModel for Roofline {
    fn step(&self, b: &BatchStats) -> StepCost {
        if b.is_empty() {
            return StepCost::default();
        }
        let kv = self.kv_bytes_per_token * (b.decode_ctx_sum + b.prefill_ctx_sum) as f64;
        let memory = (self.weight_bytes + kv) / self.bandwidth;
        let pairs = (b.decode_ctx_sum + b.prefill_pairs) as f64;
        let compute = (self.flops_per_token * f64::from(b.tokens()) + self.flops_per_pair * pairs)
            / self.peak;
        let mut parts = Parts {
            host: self.constant,
            ..Parts::default()
        };
        if memory >= compute {
            parts.weights = self.factor * self.weight_bytes / self.bandwidth;
            parts.kv = self.factor * kv / self.bandwidth;
        } else {
            parts.compute = self.factor * compute;
        }
        let latency = parts.total();
        StepCost {
            latency,
            interval: latency,
            parts,
        }
    }

    /// The devices of all ranks are one pool.
    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        let mut all = BatchStats::default();
        for batch in ranks {
            all.merge(batch);
        }
        self.step(&all)
    }
}
