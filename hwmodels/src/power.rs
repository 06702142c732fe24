//! Electric power of accelerators: what a board is rated at, and what it draws while it does nothing.
//!
//! `tdp_w` is the rated power, which a board under load draws at most: prefill comes near it, decode stays below. `idle_w` is with a process and its
//! weights on the device and nothing under way. Hosts, networks and cooling are not in these figures.

/// Power of one device [W].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoardPower {
    /// Rated power [W].
    pub tdp_w: f64,
    /// Idle, weights loaded [W].
    pub idle_w: f64,
}

/// Share of the rated power that a device draws while idle with a context on it. Recalled of `nvidia-smi` on A100, H100, L4 and T4: 10 to 20 %.
const IDLE_SHARE: f64 = 0.15;

/// Rated power by catalog name [W]. Vendor datasheets; of A10G, B200, MI300X and Trainium2 recalled. Inferentia2 and Trainium1 have no published figure.
const RATED: [(&str, f64); 15] = [
    ("A100-SXM4-40GB", 400.0),
    ("A100-SXM4-80GB", 400.0),
    ("H100-SXM5-80GB", 700.0),
    ("H100-PCIe-80GB", 350.0),
    ("H200-SXM5-141GB", 700.0),
    ("B200-SXM-180GB", 1000.0),
    ("B300-SXM-288GB", 1400.0),
    ("RTX4090-24GB", 450.0),
    ("RTX-PRO-6000-96GB", 600.0),
    ("A10G-24GB", 300.0),
    ("L4-24GB", 72.0),
    ("L40S-48GB", 350.0),
    ("T4-16GB", 70.0),
    ("MI300X-192GB", 750.0),
    ("Trainium2", 500.0),
];

/// The power of an accelerator by its name in the catalog, where it is known.
pub fn board_power(accelerator: &str) -> Option<BoardPower> {
    let (_, tdp_w) = RATED.iter().find(|(name, _)| *name == accelerator)?;
    Some(BoardPower {
        tdp_w: *tdp_w,
        idle_w: IDLE_SHARE * tdp_w,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_catalog_s_and_what_is_not_known_is_none() {
        let catalog = crate::Catalog::builtin();
        for (name, _) in RATED {
            assert_eq!(catalog.accelerator(name).expect(name).name, name);
        }
        let h100 = board_power("H100-SXM5-80GB").expect("known");
        assert!(h100.idle_w < h100.tdp_w && h100.tdp_w == 700.0);
        assert_eq!(board_power("Inferentia2"), None);
    }
}
