//! Dense matrix multiplication: `m` tokens through an `n` x `k` weight.
//!
//! The kernel library picks one of a few tile shapes and a split of `k`; the model takes the fastest
//! candidate. A candidate's time is
//!
//! - arithmetic: its tiles in waves over the device's units, each tile at the peak of one unit times an
//!   efficiency that grows with the tile's arithmetic intensity;
//! - memory: weights, inputs and outputs over the achievable bandwidth, less where too few tiles are
//!   there to pull it; split-K writes and reads partial sums;
//!
//! joined by a soft maximum, plus a fixed kernel time. 8-bit arithmetic adds the quantisation of the
//! activations, as the measured kernels do.
//!
//! A compiler that chose its kernels for one number of tokens ([`Products::Compiled`]) keeps that tile and split for every
//! other number. Small tiles then read the same operands from the last-level cache again and again, and its rate
//! sets the pace.

use super::arithmetic::Arithmetic;
use super::device::{Device, OpTime, ceil_div, soft_max};
use super::kernels::{Kernels, Products};
use super::param::{ParamSpec, read_all};
use crate::Profile;

/// Parameters of the GEMM model, in the order of [`GemmParams::from_values`]. The priors lie between the fits of
/// A100 and H100 kernels (`servetwin calibrate operators`): they transfer those efficiencies to other devices.
pub const SPECS: [ParamSpec; 11] = [
    ParamSpec {
        name: "compute_efficiency",
        prior: 1.0,
        min: 0.3,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the peak that a tile of unlimited intensity reaches",
    },
    ParamSpec {
        name: "bandwidth_efficiency",
        prior: 0.8,
        min: 0.3,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth that a streaming kernel reaches",
    },
    ParamSpec {
        name: "fixed",
        prior: 3.0e-6,
        min: 0.5e-6,
        max: 20e-6,
        unit: "s",
        meaning: "time of a kernel that does nothing",
    },
    ParamSpec {
        name: "overlap_power",
        prior: 4.0,
        min: 1.0,
        max: 12.0,
        unit: "ratio",
        meaning: "how sharply memory and arithmetic overlap: 1 adds them, a large value takes the larger",
    },
    ParamSpec {
        name: "wave_quantisation",
        prior: 0.4,
        min: 0.0,
        max: 1.0,
        unit: "ratio",
        meaning: "share of a partial wave that costs a whole one",
    },
    ParamSpec {
        name: "tile_half_intensity",
        prior: 15.0,
        min: 0.0,
        max: 200.0,
        unit: "FLOP/byte",
        meaning: "tile intensity at which a unit reaches half its efficiency",
    },
    ParamSpec {
        name: "unit_bandwidth_share",
        prior: 1.25,
        min: 1.0,
        max: 4.0,
        unit: "ratio",
        meaning: "bandwidth that one unit can pull alone, over an even share of the device's",
    },
    ParamSpec {
        name: "split_cost",
        prior: 1.5e-6,
        min: 0.0,
        max: 10e-6,
        unit: "s",
        meaning: "extra time of a split-K kernel for adding the partial sums",
    },
    ParamSpec {
        name: "wave",
        prior: 1.4e-6,
        min: 0.0,
        max: 5e-6,
        unit: "s",
        meaning: "start and end of one wave of tiles: filling the pipeline, writing the outputs",
    },
    ParamSpec {
        name: "quantise_row",
        prior: 6.8e-9,
        min: 0.0,
        max: 50e-9,
        unit: "s",
        meaning: "time per token of quantising activations",
    },
    ParamSpec {
        name: "quantise_efficiency",
        prior: 0.37,
        min: 0.05,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak bandwidth at which activations are quantised",
    },
];

/// Values of [`SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmParams {
    compute_efficiency: f64,
    bandwidth_efficiency: f64,
    fixed: f64,
    overlap_power: f64,
    wave_quantisation: f64,
    tile_half_intensity: f64,
    unit_bandwidth_share: f64,
    split_cost: f64,
    wave: f64,
    quantise_row: f64,
    quantise_efficiency: f64,
}

impl GemmParams {
    /// From values in the order of [`SPECS`].
    pub fn from_values(v: &[f64; SPECS.len()]) -> GemmParams {
        GemmParams {
            compute_efficiency: v[0],
            bandwidth_efficiency: v[1],
            fixed: v[2],
            overlap_power: v[3],
            wave_quantisation: v[4],
            tile_half_intensity: v[5],
            unit_bandwidth_share: v[6],
            split_cost: v[7],
            wave: v[8],
            quantise_row: v[9],
            quantise_efficiency: v[10],
        }
    }

    /// The profile's values for `arithmetic`, priors where it is silent. Weight-only kernels take the
    /// 16-bit values with the dequantisation factor of Marlin-like kernels on arithmetic.
    pub fn from_profile(profile: &Profile, arithmetic: Arithmetic) -> GemmParams {
        if arithmetic == Arithmetic::WeightOnly {
            let base = Self::from_profile(profile, Arithmetic::Bf16);
            return GemmParams {
                compute_efficiency: base.compute_efficiency
                    * profile.get("gemm.weight_only.dequant_efficiency", DEQUANT_EFFICIENCY),
                bandwidth_efficiency: base.bandwidth_efficiency
                    * profile.get("gemm.weight_only.bandwidth_factor", WEIGHT_ONLY_BANDWIDTH),
                ..base
            };
        }
        Self::from_values(&read_all(&SPECS, profile, arithmetic.prefix()))
    }
}

/// Arithmetic rate of weight-only kernels over plain 16-bit ones: prefill is slightly slower than
/// 16-bit (sources 7.5). Analytic.
const DEQUANT_EFFICIENCY: f64 = 0.9;
/// Bandwidth that weight-only kernels reach over plain 16-bit ones: decode gains up to about 3 of the
/// 3.9 times that bytes alone would give (sources 7.5). Analytic.
const WEIGHT_ONLY_BANDWIDTH: f64 = 0.85;

/// Tile shapes of the 16-bit kernels that TensorRT compares, smallest first. Profiles of TensorRT 10 engines built for one
/// token name `sm80_xmma_gemm ... tilesize32x32x64_stage6` for every product of a layer, on an L4 and on Orin (docs/sources.md).
const COMPILED_TILES: [(f64, f64); 6] = [
    (32.0, 32.0),
    (64.0, 64.0),
    (128.0, 64.0),
    (128.0, 128.0),
    (128.0, 256.0),
    (256.0, 128.0),
];

/// Tile shapes (rows of tokens, columns of output features) that the library chooses from. The small
/// ones are products with the operands swapped, for few tokens.
const TILES: [(f64, f64); 8] = [
    (16.0, 128.0),
    (32.0, 128.0),
    (64.0, 64.0),
    (64.0, 128.0),
    (64.0, 256.0),
    (128.0, 128.0),
    (128.0, 256.0),
    (256.0, 128.0),
];
/// The same for 8-bit arithmetic, whose kernels take at least 64 rows.
const TILES_8BIT: [(f64, f64); 8] = [
    (64.0, 32.0),
    (64.0, 64.0),
    (64.0, 128.0),
    (64.0, 256.0),
    (128.0, 64.0),
    (128.0, 128.0),
    (128.0, 256.0),
    (256.0, 128.0),
];
/// Splits of k that the library chooses from.
const SPLITS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0];
/// Depth of a tile [input features].
const TILE_K: f64 = 64.0;

/// A kernel: tile shape and split of k.
#[derive(Clone, Copy)]
struct Kernel {
    rows: f64,
    columns: f64,
    split: f64,
}

/// What one kernel takes for one product [s], without its fixed time.
#[derive(Clone, Copy)]
struct KernelTime {
    compute: f64,
    memory: f64,
    split: f64,
}

impl KernelTime {
    fn total(&self) -> f64 {
        self.compute.max(self.memory) + self.split
    }
}

/// One product: `m` tokens through an `n` x `k` weight.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// How it is computed.
    pub arithmetic: Arithmetic,
    /// Bytes of one weight.
    pub weight_bytes: f64,
    /// Tokens.
    pub m: f64,
    /// Output features.
    pub n: f64,
    /// Input features.
    pub k: f64,
}

/// One product on one device.
struct Run<'a> {
    p: &'a GemmParams,
    d: &'a Device,
    product: Product,
}

impl Run<'_> {
    fn bytes(&self) -> f64 {
        let Product {
            arithmetic,
            weight_bytes,
            m,
            n,
            k,
        } = self.product;
        m * k * arithmetic.activation_bytes()
            + n * k * weight_bytes
            + m * n * arithmetic.output_bytes()
    }

    fn tiles(&self, rows: f64, columns: f64) -> f64 {
        ceil_div(self.product.m, rows) * ceil_div(self.product.n, columns)
    }

    /// Whether the library has a kernel that splits k this often for so many tiles.
    fn splits(&self, tiles: f64, split: f64) -> bool {
        split <= 1.0
            || (tiles * split <= 2.0 * self.d.units && self.product.k >= split * TILE_K * 4.0)
    }

    #[inline]
    fn time_of(&self, kernel: Kernel, cache_rate: Option<f64>) -> KernelTime {
        let Kernel {
            rows,
            columns,
            split,
        } = kernel;
        let (p, d, x) = (self.p, self.d, &self.product);
        let value = x.arithmetic.activation_bytes().max(x.weight_bytes);
        let unit_rate = x.arithmetic.peak(d) * p.compute_efficiency / d.units;
        let intensity = 2.0 * rows * columns / (rows + columns) / value;
        let rate = unit_rate * intensity / (intensity + p.tile_half_intensity);
        let ctas = self.tiles(rows, columns) * split;
        let ideal = ctas / d.units;
        let whole = ideal.ceil();
        let waves = ideal + p.wave_quantisation * (whole - ideal);
        let depth = ceil_div(x.k, split * TILE_K) * TILE_K;
        let arithmetic = waves * 2.0 * rows * columns * depth / rate + p.wave * whole;
        // Every tile reads its rows and columns over the whole depth from the cache that all units share; rows and
        // columns that a tile has beyond the matrix are not read.
        let cache = cache_rate.map_or(0.0, |r| {
            ctas * (rows.min(x.m) + columns.min(x.n)) * depth * value / r
        });
        let (partial, split_cost) = if split > 1.0 {
            (2.0 * split * x.m * x.n * 4.0, p.split_cost)
        } else {
            (0.0, 0.0)
        };
        // Bandwidth that the tiles' units pull when few are busy.
        let unit_bandwidth = d.bandwidth / d.units * p.unit_bandwidth_share;
        let reach = (unit_bandwidth * ctas.min(d.units)).min(d.bandwidth * p.bandwidth_efficiency);
        KernelTime {
            compute: arithmetic.max(cache),
            memory: (self.bytes() + partial) / reach,
            split: split_cost,
        }
    }

    /// The fastest of `tiles` and all splits; the first of equals.
    fn fastest(&self, tiles: &[(f64, f64)], cache_rate: Option<f64>) -> (Kernel, KernelTime) {
        let mut best = (
            Kernel {
                rows: 1.0,
                columns: 1.0,
                split: 1.0,
            },
            KernelTime {
                compute: f64::INFINITY,
                memory: 0.0,
                split: 0.0,
            },
        );
        for &(rows, columns) in tiles {
            let count = self.tiles(rows, columns);
            for split in SPLITS {
                if !self.splits(count, split) {
                    break;
                }
                let kernel = Kernel {
                    rows,
                    columns,
                    split,
                };
                let time = self.time_of(kernel, cache_rate);
                if time.total() < best.1.total() {
                    best = (kernel, time);
                }
            }
        }
        best
    }
}

/// Time of `product`. Only 16-bit arithmetic is compiled for a number of tokens, and only on a device whose
/// [`Device::cache_rate`] is known; everything else is chosen per shape.
pub fn time(p: &GemmParams, d: &Device, kernels: &Kernels, product: Product) -> OpTime {
    let Product {
        arithmetic,
        m,
        n,
        k,
        ..
    } = product;
    if m <= 0.0 || n <= 0.0 || k <= 0.0 {
        return OpTime::default();
    }
    let run = |m| Run {
        p,
        d,
        product: Product { m, ..product },
    };
    let best = match (kernels.products, arithmetic, d.cache_rate) {
        (Products::Compiled { tokens }, Arithmetic::Bf16, Some(rate)) => {
            let built_for = run(f64::from(tokens.max(1)));
            let (kernel, _) = built_for.fastest(&COMPILED_TILES, Some(rate));
            run(m).time_of(kernel, Some(rate))
        }
        _ => {
            let tiles = if arithmetic.quantises() {
                &TILES_8BIT
            } else {
                &TILES
            };
            run(m).fastest(tiles, None).1
        }
    };
    let mut t = OpTime {
        seconds: p.fixed + best.split + soft_max(best.compute, best.memory, p.overlap_power),
        compute: best.compute,
        memory: best.memory,
    };
    if arithmetic.quantises() && !kernels.fused_quantisation {
        let moved = 3.0 * m * k / (d.bandwidth * p.quantise_efficiency);
        t.seconds += moved.max(p.quantise_row * m);
        t.memory += moved;
    }
    t
}
