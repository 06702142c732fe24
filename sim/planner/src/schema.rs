//! JSON schemas of what machines read, as committed under `docs/schema`.

use schemars::{Schema, schema_for};

use crate::capacity::CapacityTable;
use crate::plan::PlanReport;
use crate::sweep::SweepResult;
use crate::whatif::WhatIf;

/// File name and schema of each contract.
pub fn contracts() -> [(&'static str, Schema); 4] {
    [
        ("plan.schema.json", schema_for!(PlanReport)),
        ("capacity.schema.json", schema_for!(CapacityTable)),
        ("whatif.schema.json", schema_for!(WhatIf)),
        ("sweep.schema.json", schema_for!(SweepResult)),
    ]
}
