//! What the formulas know of a device, the time that they give, and the sums that all of them do.

use crate::Accelerator;

/// The datasheet numbers the formulas need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Peak of 16-bit matrix arithmetic [FLOP/s].
    pub bf16: f64,
    /// Peak of 8-bit floating-point matrix arithmetic [FLOP/s]; `None` where the device has none.
    pub fp8: Option<f64>,
    /// Peak of 8-bit integer matrix arithmetic [OP/s]; `None` where the device has none.
    pub int8: Option<f64>,
    /// Whether it has 4-bit matrix arithmetic: kernels of Blackwell's generation.
    pub fp4: bool,
    /// Peak memory bandwidth [bytes/s].
    pub bandwidth: f64,
    /// Processors (SMs, NeuronCores).
    pub units: f64,
    /// Last-level cache [bytes].
    pub cache: f64,
    /// Rate at which all units together read that cache [bytes/s], where it was measured.
    pub cache_rate: Option<f64>,
}

impl Device {
    /// What `a`'s datasheet says.
    pub fn new(a: &Accelerator) -> Device {
        Device {
            bf16: a.bf16_flops,
            fp8: a.fp8_flops,
            int8: a.int8_ops,
            fp4: a.fp4_flops.is_some(),
            bandwidth: a.memory_bandwidth,
            units: f64::from(a.units.max(1)),
            cache: a.on_chip_bytes as f64,
            cache_rate: a.cache_bandwidth,
        }
    }
}

/// Predicted time of one operator on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpTime {
    /// Time of the kernel [s].
    pub seconds: f64,
    /// Time that arithmetic alone would take [s].
    pub compute: f64,
    /// Time that device memory alone would take [s].
    pub memory: f64,
}

impl OpTime {
    /// `factor` times as long: what binds stays what binds.
    #[inline]
    pub fn times(self, factor: f64) -> OpTime {
        OpTime {
            seconds: self.seconds * factor,
            compute: self.compute * factor,
            memory: self.memory * factor,
        }
    }

    /// True when memory traffic asks for at least as much time as arithmetic.
    #[inline]
    pub fn memory_bound(&self) -> bool {
        self.memory >= self.compute
    }
}

impl std::ops::Add for OpTime {
    type Output = OpTime;

    #[inline]
    fn add(self, o: OpTime) -> OpTime {
        OpTime {
            seconds: self.seconds + o.seconds,
            compute: self.compute + o.compute,
            memory: self.memory + o.memory,
        }
    }
}

/// `(a^p + b^p)^(1/p)`: the larger one, softened; p = 1 adds, a large p takes the maximum.
#[inline]
pub(crate) fn soft_max(a: f64, b: f64, p: f64) -> f64 {
    let (hi, lo) = if a >= b { (a, b) } else { (b, a) };
    if hi <= 0.0 {
        return 0.0;
    }
    let r = lo / hi;
    // Below this ratio the correction is under 1e-4 for every p the bounds allow above 2.
    if r < 1e-2 && p > 2.0 {
        return hi;
    }
    hi * (1.0 + r.powf(p)).powf(1.0 / p)
}

/// Divides and rounds up, for shapes.
#[inline]
pub(crate) fn ceil_div(a: f64, b: f64) -> f64 {
    (a / b).ceil()
}
