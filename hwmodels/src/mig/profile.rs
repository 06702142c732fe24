//! Names of MIG profiles.

/// A profile such as `3g.20gb`: three compute slices, 20 GB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Compute slices.
    pub slices: u32,
    /// Memory as its name says [GB].
    pub gigabytes: u32,
}

impl Profile {
    /// Reads `3g.20gb`.
    pub fn parse(name: &str) -> Option<Profile> {
        let (slices, memory) = name.split_once("g.")?;
        let profile = Profile {
            slices: slices.parse().ok()?,
            gigabytes: memory.strip_suffix("gb")?.parse().ok()?,
        };
        (profile.slices > 0 && profile.gigabytes > 0).then_some(profile)
    }

    /// Slices of the memory of a device that is `whole`: as many as hold the gigabytes of the name.
    pub(super) fn memory_slices(self, whole: Profile) -> u32 {
        let all = f64::from(memory_slices_of(whole));
        let share = f64::from(self.gigabytes) / f64::from(whole.gigabytes);
        ((share * all).round() as u32).max(1)
    }
}

/// Memory slices of a device whose compute is cut into seven, or four.
pub(super) fn memory_slices_of(whole: Profile) -> u32 {
    if whole.slices == 7 { 8 } else { whole.slices }
}
