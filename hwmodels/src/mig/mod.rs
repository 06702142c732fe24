//! Multi-Instance GPU: a device cut into parts that share nothing.
//!
//! A part has slices of the device's processors (7 on an A100 and its successors, 4 on an A30) and of its memory (8 and 4): memory,
//! cache and bandwidth go with the latter. Parts have no link to each other, so a replica takes one. Source: NVIDIA Multi-Instance GPU User Guide,
//! "Supported MIG Profiles" (fractions of memory and SMs, number of instances).

pub mod profile;

use crate::accelerator::Accelerator;
use profile::{Profile, memory_slices_of};

/// One part of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The part as an accelerator of its own, `A100-SXM4-40GB 3g.20gb`: profiles of the whole hold for it as extrapolated.
    pub accelerator: Accelerator,
    /// Parts of this profile that a device has.
    pub per_device: u32,
}

impl Part {
    /// The part of `chip` that `profile` names.
    ///
    /// # Errors
    /// In words: the chip has no MIG, or not this profile.
    pub fn of(chip: &Accelerator, profile: &str) -> Result<Part, String> {
        let Some(whole) = chip.mig.last().and_then(|p| Profile::parse(p)) else {
            return Err(format!("{} has no MIG", chip.name));
        };
        let known = chip.mig.iter().any(|p| p == profile);
        let Some(part) = Profile::parse(profile).filter(|_| known) else {
            return Err(format!(
                "{} has no MIG profile `{profile}`; it has {}",
                chip.name,
                chip.mig.join(", ")
            ));
        };
        let memory = part.memory_slices(whole);
        let all = memory_slices_of(whole);
        let per_device = (whole.slices / part.slices).min(all / memory).max(1);
        let (of_units, of_memory) = (
            f64::from(part.slices) / f64::from(whole.slices),
            f64::from(memory) / f64::from(all),
        );
        let bytes = |n: u64| (n as f64 * of_memory) as u64;
        let accelerator = Accelerator {
            name: format!("{} {profile}", chip.name),
            aliases: Vec::new(),
            same_chip_as: Some(chip.same_chip_as.clone().unwrap_or(chip.name.clone())),
            memory_bytes: bytes(chip.memory_bytes),
            usable_bytes: bytes(chip.usable_bytes),
            memory_bandwidth: chip.memory_bandwidth * of_memory,
            bf16_flops: chip.bf16_flops * of_units,
            fp8_flops: chip.fp8_flops.map(|v| v * of_units),
            int8_ops: chip.int8_ops.map(|v| v * of_units),
            fp4_flops: chip.fp4_flops.map(|v| v * of_units),
            units: ((f64::from(chip.units) * of_units) as u32).max(1),
            on_chip_bytes: bytes(chip.on_chip_bytes),
            cache_bandwidth: chip.cache_bandwidth.map(|v| v * of_memory),
            scale_up_link: None,
            scale_up_bandwidth: None,
            // Copy engines go with the compute slices.
            host_bandwidth: chip.host_bandwidth * of_units,
            mig: Vec::new(),
            ..chip.clone()
        };
        Ok(Part {
            accelerator,
            per_device,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    /// Every profile of the catalog against the guide's numbers of instances.
    #[test]
    fn parts_are_as_many_as_the_guide_says() {
        let catalog = Catalog::builtin();
        let of = |chip: &str| {
            let chip = catalog.accelerator(chip).unwrap();
            let part = |p: &String| (p.clone(), Part::of(chip, p).unwrap().per_device);
            chip.mig.iter().map(part).collect::<Vec<_>>()
        };
        let expected = |names: [&str; 6]| {
            let all = names.map(str::to_owned).into_iter().zip([7, 4, 3, 2, 1, 1]);
            all.collect::<Vec<_>>()
        };
        let a100 = [
            "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb",
        ];
        assert_eq!(of("A100-SXM4-40GB"), expected(a100));
        let h100 = [
            "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb",
        ];
        assert_eq!(of("H100"), expected(h100));
        let h200 = [
            "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb",
        ];
        assert_eq!(of("H200"), expected(h200));
    }

    #[test]
    fn a_part_has_its_slices_and_no_link() {
        let catalog = Catalog::builtin();
        let chip = catalog.accelerator("A100-SXM4-40GB").unwrap();
        let part = Part::of(chip, "3g.20gb").unwrap().accelerator;
        assert_eq!(part.memory_bytes, chip.memory_bytes / 2);
        assert!((part.memory_bandwidth - chip.memory_bandwidth / 2.0).abs() < 1.0);
        assert!((part.bf16_flops - chip.bf16_flops * 3.0 / 7.0).abs() < 1.0);
        assert_eq!(part.units, 46);
        assert_eq!(part.scale_up_link, None);
        let whole = Part::of(chip, "7g.40gb").unwrap().accelerator;
        assert_eq!(whole.usable_bytes, chip.usable_bytes);
        let e = Part::of(chip, "3g.40gb").unwrap_err();
        assert!(e.contains("`3g.40gb`") && e.contains("3g.20gb"), "{e}");
        let e = Part::of(catalog.accelerator("A10G").unwrap(), "1g.5gb").unwrap_err();
        assert!(e.contains("no MIG"), "{e}");
    }

    #[test]
    fn names_that_are_no_profiles_are_none() {
        for name in [
            "",
            "g.gb",
            "3g",
            "3g.20",
            "0g.5gb",
            "3g.0gb",
            "xg.5gb",
            "1g.5gb+me",
        ] {
            assert_eq!(Profile::parse(name), None, "{name}");
        }
    }
}
