//! SGLang's defaults by device memory, and the share of memory that it gives to weights and KV (serving-policies 7.5).
//!
//! `ServerArgs._handle_gpu_memory_settings` (`python/sglang/srt/server_args.py`; sgl-project/sglang pull request 10975, in 0.5.3; before that the same
//! limits in `ServerArgs.__post_init__`). Memory is what the driver says of the whole device.

use crate::accelerator::Accelerator;

const MIB: f64 = 1_048_576.0;
const GIB_IN_MIB: f64 = 1024.0;

/// First patch release of 0.5 whose share is made up of parts; before, it was looked up by device.
const BY_PARTS: u32 = 3;

/// Memory set aside whatever is served, for attention's metadata [MiB].
const CONSTANT: f64 = 512.0;
/// Activations of a token of the longest prefill [MiB].
const PER_PREFILL_TOKEN: f64 = 1.5;
/// Fewest tokens that activations are counted for.
const FEWEST_TOKENS: u32 = 2048;
/// A captured decode graph's buffers per sequence [MiB].
const PER_GRAPH_SEQUENCE: f64 = 2.0;
/// More per sequence and data-parallel rank under data-parallel attention [MiB], and again beyond [`LARGE_GRAPH`].
const PER_RANK_SEQUENCE: (f64, f64) = (3.0, 1.5);
/// Batches of decode graphs from which data-parallel attention takes more.
const LARGE_GRAPH: u32 = 300;
/// What drafts tokens, and its graphs (recalled) [MiB].
const DRAFTS: f64 = 2.0 * GIB_IN_MIB;
/// A captured piece of prefill, by number of tokens [MiB].
const PER_PIECE: f64 = 8.0;
/// Devices with more memory than this set at least [`LARGE_RESERVE`] aside [MiB].
const LARGE_DEVICE: f64 = 60.0 * GIB_IN_MIB;
/// See [`LARGE_DEVICE`] [MiB].
const LARGE_RESERVE: f64 = 10.0 * GIB_IN_MIB;

/// What SGLang's defaults depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SglangDevice {
    /// What follows the `0.5.` of the release.
    pub patch: u32,
    /// Memory of a device [MiB].
    pub memory_mib: f64,
    /// Tensor-parallel ranks as SGLang counts them: those of all data-parallel attention ranks together.
    pub tp: u32,
    /// Data-parallel attention ranks.
    pub dp: u32,
}

/// What the share of weights and KV leaves room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SglangReserve {
    /// Most tokens of a prefill: `chunked_prefill_size`, or without chunks `max_prefill_tokens` [tokens].
    pub prefill_tokens: u32,
    /// Largest batch of a decode graph.
    pub cuda_graph_max_bs: u32,
    /// Whether the pieces of prefill between attention kernels are captured.
    pub prefill_graphs: bool,
    /// Whether tokens are drafted.
    pub drafts: bool,
}

impl SglangDevice {
    /// A replica's devices under a release of 0.5.
    pub fn new(patch: u32, device: &Accelerator, tp: u32, dp: u32) -> SglangDevice {
        SglangDevice {
            patch,
            memory_mib: device.per_rank().memory_bytes as f64 / MIB,
            tp: tp.saturating_mul(dp),
            dp,
        }
    }

    fn below(&self, gib: f64) -> bool {
        self.memory_mib < gib * GIB_IN_MIB
    }

    /// Default `chunked_prefill_size` [tokens].
    pub fn chunked_prefill_size(&self) -> u32 {
        if self.below(35.0) {
            2048
        } else if self.below(60.0) && self.patch >= BY_PARTS {
            4096
        } else if self.below(160.0) {
            8192
        } else {
            16_384
        }
    }

    /// Default `cuda_graph_max_bs`. Before 0.5.3 as the comments of `server_args.py` tell it.
    pub fn cuda_graph_max_bs(&self) -> u32 {
        let few = self.tp < 4;
        let by_tp = |small: u32, large: u32| if few { small } else { large };
        if self.patch < BY_PARTS {
            return match () {
                () if self.below(35.0) => by_tp(8, 80),
                () if self.below(90.0) => 160,
                () if self.below(160.0) => 256,
                () => 512,
            };
        }
        match () {
            () if self.below(20.0) => 8,
            () if self.below(35.0) => by_tp(24, 80),
            () if self.below(60.0) => by_tp(32, 160),
            () if self.below(160.0) => by_tp(256, 512),
            () => 512,
        }
    }

    /// Default `mem_fraction_static` [ratio], rounded to three digits as SGLang does.
    pub fn mem_fraction_static(&self, reserve: &SglangReserve) -> f64 {
        let reserved = match self.patch {
            0..BY_PARTS => self.reserved_by_device(),
            _ => self.reserved_by_parts(reserve),
        };
        let share = (self.memory_mib - reserved) / self.memory_mib;
        (share * 1000.0).round() / 1000.0
    }

    fn reserved_by_device(&self) -> f64 {
        let ranks = f64::from(self.tp);
        let gib = match () {
            () if self.below(35.0) => 2.8 + ranks / 10.0,
            () if self.below(90.0) => 9.5 + ranks / 2.0,
            () if self.below(160.0) => 12.0 + ranks / 2.0,
            () => 32.0,
        };
        let attention = if self.dp > 1 { 4.0 } else { 0.0 };
        (gib + attention) * GIB_IN_MIB
    }

    fn reserved_by_parts(&self, r: &SglangReserve) -> f64 {
        let batch = f64::from(r.cuda_graph_max_bs);
        let mut reserved = CONSTANT
            + f64::from(r.prefill_tokens.max(FEWEST_TOKENS)) * PER_PREFILL_TOKEN
            + batch * PER_GRAPH_SEQUENCE
            + f64::from(self.tp) / 8.0 * GIB_IN_MIB;
        if self.dp > 1 {
            let (always, large) = PER_RANK_SEQUENCE;
            let more = if r.cuda_graph_max_bs > LARGE_GRAPH {
                large
            } else {
                0.0
            };
            reserved += batch * f64::from(self.dp) * (always + more);
        }
        if r.prefill_graphs {
            reserved += f64::from(pieces(r.prefill_tokens)) * PER_PIECE;
        }
        if r.drafts {
            reserved += DRAFTS;
        }
        if self.memory_mib > LARGE_DEVICE {
            reserved = reserved.max(LARGE_RESERVE);
        }
        reserved
    }
}

/// Numbers of tokens up to `most` for which pieces of prefill are captured (`_generate_piecewise_cuda_graph_tokens`).
fn pieces(most: u32) -> u32 {
    [
        (4, 32, 4),
        (48, 256, 16),
        (288, 512, 32),
        (576, 1024, 64),
        (1280, 4096, 256),
        (4608, u32::MAX, 512),
    ]
    .into_iter()
    .filter(|(from, _, _)| *from <= most)
    .map(|(from, to, step)| (most.min(to) - from) / step + 1)
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::dtype::Dtype;
    use crate::engine::EngineKind;
    use crate::layout::Layout;
    use crate::memory::{MemoryPlan, MemorySettings, VllmRelease};

    fn device(patch: u32, name: &str, tp: u32) -> SglangDevice {
        let c = Catalog::builtin();
        SglangDevice::new(patch, c.accelerator(name).unwrap(), tp, 1)
    }

    fn reserve(d: &SglangDevice) -> SglangReserve {
        SglangReserve {
            prefill_tokens: d.chunked_prefill_size(),
            cuda_graph_max_bs: d.cuda_graph_max_bs(),
            prefill_graphs: false,
            drafts: false,
        }
    }

    #[test]
    fn limits_follow_the_memory_of_the_device_7_5() {
        for (name, tp, chunk, graphs) in [
            ("T4-16GB", 1, 2048, 8),
            ("A10G-24GB", 1, 2048, 24),
            ("A10G-24GB", 4, 2048, 80),
            ("L40S-48GB", 1, 4096, 32),
            ("A100-SXM4-80GB", 1, 8192, 256),
            ("H100-SXM5-80GB", 8, 8192, 512),
            ("H200-SXM5-141GB", 1, 8192, 256),
            ("B200-SXM-180GB", 1, 16_384, 512),
        ] {
            let d = device(14, name, tp);
            let found = (d.chunked_prefill_size(), d.cuda_graph_max_bs());
            assert_eq!(found, (chunk, graphs), "{name} tp {tp}");
        }
        assert_eq!(device(1, "L40S-48GB", 1).chunked_prefill_size(), 8192);
        assert_eq!(device(1, "H100-SXM5-80GB", 2).cuda_graph_max_bs(), 160);
    }

    #[test]
    fn the_share_is_what_the_parts_leave_7_5() {
        // 512 + 8192 x 1.5 + 256 x 2 + 128 MiB of 80 GiB.
        let h100 = device(14, "H100-SXM5-80GB", 1);
        assert_eq!(h100.mem_fraction_static(&reserve(&h100)), 0.836);
        // 512 + 2048 x 1.5 + 24 x 2 + 128 MiB of 24 GiB: 0.847, as public logs of RTX 4090 (24564 MiB) have it.
        let small = SglangDevice {
            memory_mib: 24_564.0,
            ..device(14, "A10G-24GB", 1)
        };
        assert_eq!(small.mem_fraction_static(&reserve(&small)), 0.847);
        let all = SglangReserve {
            prefill_graphs: true,
            ..reserve(&h100)
        };
        assert!(h100.mem_fraction_static(&all) < 0.836);
        // A large device keeps 10 GiB free however little is asked for.
        let few = SglangReserve {
            prefill_tokens: 2048,
            cuda_graph_max_bs: 1,
            prefill_graphs: false,
            drafts: false,
        };
        let drafting = SglangReserve {
            drafts: true,
            ..reserve(&small)
        };
        let less =
            small.mem_fraction_static(&reserve(&small)) - small.mem_fraction_static(&drafting);
        assert!((less - 2048.0 / 24_564.0).abs() < 1e-3, "{less}");
        assert_eq!(h100.mem_fraction_static(&few), 0.875);
    }

    /// A server's log of August 2026: Qwen3-30B-A3B in FP8 on one H100 with SGLang's defaults, `max_total_num_tokens=392920`, 58 sizes of prefill captured.
    #[test]
    fn kv_tokens_are_those_that_a_server_logged_7_5() {
        assert_eq!(pieces(8192), 58);
        let c = Catalog::builtin();
        let chip = c.accelerator("H100-SXM5-80GB").unwrap();
        let model = c.model("qwen3-30b-a3b").unwrap();
        let settings = MemorySettings {
            weights: Dtype::Fp8,
            ..MemorySettings::defaults(EngineKind::Sglang, VllmRelease::DEFAULT, chip, model)
        };
        assert_eq!(settings.memory_fraction, 0.83);
        let plan = MemoryPlan::for_layout(model, chip, Layout::SINGLE, &settings).unwrap();
        let error = plan.kv_tokens as f64 / 392_920.0 - 1.0;
        assert!(error.abs() < 0.02, "{}: {error}", plan.kv_tokens);
    }

    #[test]
    fn releases_before_0_5_3_look_the_share_up_by_device_7_5() {
        let h100 = device(1, "H100-SXM5-80GB", 1);
        assert_eq!(h100.mem_fraction_static(&reserve(&h100)), 0.875);
        let two = device(1, "H100-SXM5-80GB", 2);
        assert_eq!(two.mem_fraction_static(&reserve(&two)), 0.869);
    }
}
