//! Device time by cause.

use crate::ops::OpTime;

/// Device time by cause [s], before launches and host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Device {
    pub(super) weights: f64,
    pub(super) kv: f64,
    pub(super) compute: f64,
    pub(super) communication: f64,
}

impl Device {
    pub(super) fn total(&self) -> f64 {
        self.weights + self.kv + self.compute + self.communication
    }

    pub(super) fn add_gemm(&mut self, t: OpTime) {
        if t.memory_bound() {
            self.weights += t.seconds;
        } else {
            self.compute += t.seconds;
        }
    }

    pub(super) fn add_activations(&mut self, t: OpTime) {
        self.kv += t.seconds;
    }

    pub(super) fn add_attention(&mut self, t: OpTime, layers: f64) {
        if t.memory_bound() {
            self.kv += t.seconds * layers;
        } else {
            self.compute += t.seconds * layers;
        }
    }

    pub(super) fn add_scaled(&mut self, o: &Device, k: f64) {
        self.weights += o.weights * k;
        self.kv += o.kv * k;
        self.compute += o.compute * k;
        self.communication += o.communication * k;
    }
}
