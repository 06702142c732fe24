//! JSON schemas of everything that machines read, as committed under `docs/schema`.

use schemars::{Schema, schema_for};

use crate::report::autoscale::AutoscaleReport;
use crate::report::compare::Comparison;
use crate::report::curve::Curve;
use crate::report::draws::Draws;
use crate::report::replications::Replications;
use crate::report::summary::RunReport;

/// File name and schema of each contract.
pub fn contracts() -> [(&'static str, Schema); 6] {
    [
        ("run-report.schema.json", schema_for!(RunReport)),
        ("replications.schema.json", schema_for!(Replications)),
        ("draws.schema.json", schema_for!(Draws)),
        ("comparison.schema.json", schema_for!(Comparison)),
        ("curve.schema.json", schema_for!(Curve)),
        ("autoscale.schema.json", schema_for!(AutoscaleReport)),
    ]
}
