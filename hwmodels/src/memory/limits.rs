//! The limits of a step that vLLM's V1 engine takes by default: by release and device.
//!
//! | release | device | tokens (API server) | sequences |
//! |---|---|---|---|
//! | to 0.8.3 | H100, H200 by name; others | 8192; 2048 | 1024 |
//! | 0.8.4 | H100, H200 by name; others | 8192; 2048 | 1024; 256 |
//! | 0.8.5 | 70 GiB or more; others | 8192; 2048 | 1024; 256 |
//! | 0.9 to 0.27 | 70 GiB or more, no A100; others | 8192; 2048 | 1024; 256 |
//! | from 0.28 | as before, and 160 GiB or more | 16384 | 1024 |
//!
//! Sources: vLLM pull requests 12369 (H100 and H200), 16158 (256 for others), 17073 (by memory), 17885 (A100 apart), 51726 (160 GiB);
//! `EngineArgs.get_batch_defaults`, before that `_set_default_args_v1`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::GIB;
use crate::accelerator::Accelerator;

/// A release of vLLM, `0.minor.patch`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct VllmRelease {
    /// What follows the `0.`.
    pub minor: u32,
    /// What follows the minor release's dot.
    pub patch: u32,
}

impl VllmRelease {
    /// The release that is assumed where none is given.
    pub const DEFAULT: VllmRelease = VllmRelease::last_of(15);

    /// The last release of `0.minor`, which is meant where no patch is named.
    pub const fn last_of(minor: u32) -> VllmRelease {
        VllmRelease {
            minor,
            patch: u32::MAX,
        }
    }

    const fn new(minor: u32, patch: u32) -> VllmRelease {
        VllmRelease { minor, patch }
    }
}

/// Whether layers that attend within chunks (Llama 4) give back the KV of earlier chunks: since pull request 19351 (0.9.2), not by default from 21761 (0.10.1) on,
/// which found it slow, and again since 29627 (0.13).
pub(super) fn frees_chunks(release: VllmRelease) -> bool {
    let since = release >= VllmRelease::new(9, 2) && release < VllmRelease::new(10, 1);
    since || release >= VllmRelease::new(13, 0)
}

/// Default limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// `max_num_batched_tokens` of the API server [tokens].
    pub(super) tokens: u32,
    /// `max_num_seqs`.
    pub(super) seqs: u32,
}

/// The limits of `release` on `device`.
pub(super) fn of(release: VllmRelease, device: &Accelerator) -> Limits {
    let gib = device.memory_bytes as f64 / GIB;
    let name = device.name.to_lowercase();
    let large = if release < VllmRelease::new(8, 5) {
        name.contains("h100") || name.contains("h200")
    } else if release < VllmRelease::new(9, 0) {
        gib >= 70.0
    } else {
        gib >= 70.0 && !name.contains("a100")
    };
    let tokens = match large {
        _ if gib >= 160.0 && release >= VllmRelease::new(28, 0) => 16_384,
        true => 8_192,
        false => 2_048,
    };
    Limits {
        tokens,
        seqs: if large || release < VllmRelease::new(8, 4) {
            1_024
        } else {
            256
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;

    #[test]
    fn limits_follow_the_release_and_the_device() {
        let c = Catalog::builtin();
        let at = |minor, patch, device: &str| {
            let l = of(
                VllmRelease::new(minor, patch),
                c.accelerator(device).unwrap(),
            );
            (l.tokens, l.seqs)
        };
        for (device, by_release) in [
            // 0.8.3, 0.8.4, 0.8.5, 0.15, 0.28.
            (
                "h100-pcie",
                [
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                ],
            ),
            (
                "rtx-4090",
                [
                    (2048, 1024),
                    (2048, 256),
                    (2048, 256),
                    (2048, 256),
                    (2048, 256),
                ],
            ),
            (
                "A100-SXM4-80GB",
                [
                    (2048, 1024),
                    (2048, 256),
                    (8192, 1024),
                    (2048, 256),
                    (2048, 256),
                ],
            ),
            (
                "B200-SXM-180GB",
                [
                    (2048, 1024),
                    (2048, 256),
                    (8192, 1024),
                    (8192, 1024),
                    (16384, 1024),
                ],
            ),
            (
                "H200-SXM5-141GB",
                [
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                    (8192, 1024),
                ],
            ),
        ] {
            let found = [(8, 3), (8, 4), (8, 5), (15, 0), (28, 0)].map(|(m, p)| at(m, p, device));
            assert_eq!(found, by_release, "{device}");
        }
    }
}
