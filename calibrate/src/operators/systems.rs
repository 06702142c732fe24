//! Systems that kernel tables exist for.

/// A system that tables exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Prefix of its files, e.g. `h100_sxm`.
    pub name: &'static str,
    /// Catalog name of its accelerator.
    pub accelerator: &'static str,
    /// Accelerators (catalog names) of the same chip, which the profile holds for.
    pub(super) same_chip: &'static str,
    /// Its attention kernels are FlashAttention 3: query heads that share a KV head share a tile in prefill, and
    /// decode splits KV also without such groups. FlashAttention 2 does neither.
    pub(super) flash3: bool,
}

/// The systems of the public kernel tables, and those that `calibrate/gpu` was written for.
pub const SYSTEMS: [System; 3] = [
    System {
        name: "h100_sxm",
        accelerator: "H100-SXM5-80GB",
        same_chip: "H100-SXM5-80GB",
        flash3: true,
    },
    System {
        name: "a100_sxm",
        accelerator: "A100-SXM4-80GB",
        same_chip: "A100-SXM4-80GB, A100-SXM4-40GB",
        flash3: false,
    },
    System {
        name: "h200_sxm",
        accelerator: "H200-SXM5-141GB",
        same_chip: "H200-SXM5-141GB",
        flash3: true,
    },
];
