//! How a figure is known.

use serde::{Deserialize, Serialize};

/// Where a figure comes from, from best to worst.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Read off a measurement of this very thing.
    Measured,
    /// Fitted on measurements that cover this case.
    Fitted,
    /// Computed from a datasheet or a published formula.
    Analytic,
    /// Outside the range of what was measured or fitted.
    Extrapolated,
}
