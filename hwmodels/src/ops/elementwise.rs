//! Norms, rotary embedding, activations, residuals, KV writes, sampling: bytes over bandwidth plus a
//! fixed time per kernel.

use super::device::{Device, OpTime};
use super::param::{ParamSpec, read_all};
use crate::Profile;

/// Prefix of the parameters in a profile.
pub const PREFIX: &str = "elementwise";

/// Parameters of element-wise kernels.
pub const SPECS: [ParamSpec; 3] = [
    ParamSpec {
        name: "bandwidth_efficiency",
        prior: 0.5,
        min: 0.1,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth",
    },
    ParamSpec {
        name: "fixed",
        prior: 2.6e-6,
        min: 0.3e-6,
        max: 20e-6,
        unit: "s",
        meaning: "time of a kernel that does nothing",
    },
    ParamSpec {
        name: "sampling_passes",
        prior: 4.0,
        min: 1.0,
        max: 20.0,
        unit: "passes",
        meaning: "passes over the 32-bit logits that softmax and sampling take",
    },
];

/// Values of [`SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseParams {
    bandwidth_efficiency: f64,
    fixed: f64,
    sampling_passes: f64,
}

impl ElementwiseParams {
    /// From values in the order of [`SPECS`].
    pub fn from_values(v: &[f64; SPECS.len()]) -> ElementwiseParams {
        ElementwiseParams {
            bandwidth_efficiency: v[0],
            fixed: v[1],
            sampling_passes: v[2],
        }
    }

    /// The profile's values, priors where it is silent.
    pub fn from_profile(profile: &Profile) -> ElementwiseParams {
        Self::from_values(&read_all(&SPECS, profile, PREFIX))
    }
}

/// Kernels that sampling launches (softmax, top-k/top-p filter, draw).
const SAMPLING_KERNELS: f64 = 3.0;

/// Time of `kernels` kernels that move `bytes` in total.
pub fn time(p: &ElementwiseParams, d: &Device, bytes: f64, kernels: f64) -> OpTime {
    if bytes <= 0.0 || kernels <= 0.0 {
        return OpTime::default();
    }
    let memory = bytes / (d.bandwidth * p.bandwidth_efficiency);
    OpTime {
        seconds: memory + p.fixed * kernels,
        compute: 0.0,
        memory,
    }
}

/// Time of sampling one token for each of `rows` rows of `vocab` 32-bit logits.
pub fn sampling_time(p: &ElementwiseParams, d: &Device, rows: u32, vocab: u32) -> OpTime {
    let bytes = f64::from(rows) * f64::from(vocab) * 4.0 * p.sampling_passes;
    time(p, d, bytes, SAMPLING_KERNELS)
}
