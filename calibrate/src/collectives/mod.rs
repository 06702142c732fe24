//! Fits the collective models of [`hwmodels::ops::collective`] to measured tables, and checks them
//! on rows that were not fitted.
//!
//! The split is by device, by number of ranks and by library version, never by row: a link class is
//! fitted on 2 and 8 ranks of one device under one version of the library, and predicts 4 ranks,
//! the other device, and the other versions. [`fit`] gives the profile that ships with `hwmodels`
//! and the [`Report`] that `docs/collectives.md` quotes.
mod error;
mod report;
mod row;
mod stage;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use hwmodels::profile::{Profile, Provenance, Validation};

use report::report;
use row::{Row, Stage};
use stage::{STAGES, fit_stage};
use tables::load;

pub use error::Error;
pub(crate) use report::quantile;
pub use report::{Report, ReportRow};

/// Largest median error that the profile's validations accept [%].
const TOLERANCE: f64 = 10.0;

/// Fits the tables under `folder`: the profile and its errors.
///
/// # Errors
/// When a table is missing or malformed, or holds too few rows.
pub fn fit(folder: &Path) -> Result<(Profile, Report), Error> {
    let rows = load(folder)?;
    let mut profile = Profile {
        name: "collectives".to_owned(),
        accelerator: "any".to_owned(),
        description: "Latency and link efficiency of collectives, by link class".to_owned(),
        ..Profile::default()
    };
    let mut stages: Vec<Stage> = rows.iter().filter_map(|r| r.stage).collect();
    stages.sort_by_key(|s| (STAGES.iter().position(|w| *w == s.what), s.link));
    stages.dedup();
    for stage in &stages {
        let fitted: Vec<&Row> = rows.iter().filter(|r| r.stage == Some(*stage)).collect();
        fit_stage(*stage, &fitted, &mut profile).map_err(|source| Error::Fit {
            stage: format!("{} {}", stage.link, stage.what),
            source,
        })?;
    }
    let report = report(&rows, &profile);
    profile.provenance = provenance(&rows);
    profile.validity = validity(&rows);
    profile.validations = report
        .all_reduce_held_out
        .iter()
        .map(|r| Validation {
            set: format!("{}: {}", r.device, r.split),
            metric: "all_reduce time".to_owned(),
            n: r.n,
            median_ape: (r.median * 10.0).round() / 10.0,
            tolerance: TOLERANCE,
        })
        .collect();
    Ok((profile, report))
}

fn provenance(rows: &[Row]) -> Provenance {
    let mut software: Vec<String> = rows
        .iter()
        .filter(|r| r.stage.is_some())
        .map(|r| r.library.clone())
        .collect();
    software.sort();
    software.dedup();
    Provenance {
        command: "servetwin calibrate collectives --data DIR --out FILE".to_owned(),
        fitted_on: vec![
            "ai-dynamo/aiconfigurator collective tables (Apache-2.0): A100, H100, L40S, ranks 2 and 8"
                .to_owned(),
            "microsoft/vidur send tables (MIT): A100 and H100 in a node, H100 between nodes".to_owned(),
            "NVIDIA/AWS multi-node Triton guide: 16 ranks on two p5 nodes, out of place".to_owned(),
        ],
        software,
        rows: rows.iter().filter(|r| r.stage.is_some()).count() as u64,
        notes: vec![
            "efa_4x100 is that one two-node fabric, not p5 in general".to_owned(),
            "pcie_host is a host whose devices share one path through it; pcie_peer one with PCIe switches"
                .to_owned(),
        ],
    }
}

fn validity(rows: &[Row]) -> BTreeMap<String, [f64; 2]> {
    let range = |value: &dyn Fn(&Row) -> f64| {
        let values = rows.iter().filter(|r| r.stage.is_some()).map(value);
        values.fold([f64::INFINITY, 0.0], |[lo, hi], v| [lo.min(v), hi.max(v)])
    };
    BTreeMap::from([
        ("bytes".to_owned(), range(&|r| r.bytes)),
        ("ranks".to_owned(), range(&|r| f64::from(r.group.ranks))),
    ])
}

#[cfg(test)]
mod tests;
