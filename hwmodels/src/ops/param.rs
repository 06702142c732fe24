//! Parameters of operator models: name, prior, bounds, and where a value is read.

use crate::Profile;

/// One parameter of an operator model: its name within the operator's prefix, prior and physical bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParamSpec {
    /// Last part of the dotted name, e.g. `compute_efficiency`.
    pub name: &'static str,
    /// Value used where no profile says otherwise.
    pub prior: f64,
    /// Smallest value that physics allows.
    pub min: f64,
    /// Largest value that physics allows.
    pub max: f64,
    /// Unit, e.g. `ratio` or `s`.
    pub unit: &'static str,
    /// What it stands for.
    pub meaning: &'static str,
}

impl ParamSpec {
    /// Full name under `prefix`.
    pub fn full_name(&self, prefix: &str) -> String {
        format!("{prefix}.{}", self.name)
    }

    /// The profile's value within the bounds, else the prior.
    fn read(&self, profile: &Profile, prefix: &str) -> f64 {
        profile
            .get(&self.full_name(prefix), self.prior)
            .clamp(self.min, self.max)
    }
}

/// Reads all `specs` under `prefix`.
pub(crate) fn read_all<const N: usize>(
    specs: &[ParamSpec; N],
    profile: &Profile,
    prefix: &str,
) -> [f64; N] {
    std::array::from_fn(|i| specs[i].read(profile, prefix))
}
