//! Fits the operator models of [`hwmodels::ops`] to measured kernel tables, and checks them on shapes that were
//! not fitted.
//!
//! The split is by shape, never by row: of the distinct shapes of a table in ascending order, every third
//! is held out with all its rows. A shape is (n, k) of a weight matrix, (heads, KV heads, head size, window) of
//! attention, (hidden, inner size, experts, ranks) of routed experts, (feed-forward size, ranks) of element-wise kernels. [`fit`] gives the profile and the
//! [`Report`]; layer times measured by others with other software are predicted only.
mod attention;
mod elementwise;
mod error;
mod gemm;
mod moe;
mod report;
mod systems;
mod tables;
mod task;

use std::path::Path;

use hwmodels::Catalog;
use hwmodels::ops::Device;
use hwmodels::profile::{Profile, Provenance};
use hwmodels::profiles;

use attention::{fit_decodes, fit_prefills};
use elementwise::fit_elementwise;
use gemm::fit_gemms;
use moe::fit_experts;
use tables::{
    AttentionRow, ElementwiseTableRow, GemmRow, Measurement, MoeRow, layer_rows, optional_table,
    table,
};
use task::Collect;

pub use error::Error;
pub use report::{Report, ReportRow};
pub use systems::{SYSTEMS, System};

/// The systems that `data/operators` holds tables of.
///
/// # Errors
/// The folder cannot be read.
pub fn present(data: &Path) -> Result<Vec<System>, Error> {
    let folder = data.join("operators");
    let mut found = Vec::new();
    for system in SYSTEMS {
        if tables::table_path(&folder, system.name, "gemm")?.is_some() {
            found.push(system);
        }
    }
    Ok(found)
}

/// Fits every operator of the system named `system` to the tables in `data/operators`; element-wise kernels to their table
/// there, or else to `data/vidur_profiles` where that holds the system.
///
/// # Errors
/// When the system is unknown, or its GEMM or attention tables are missing or malformed.
pub fn fit(data: &Path, system: &str) -> Result<(Profile, Report), Error> {
    fit_from(data, system, None)
}

/// [`fit`], started from the profile that ships for `system` where `data` holds the public tables that it was fitted on: the same optimum in a
/// fraction of the time.
///
/// # Errors
/// As [`fit`].
pub fn refit(data: &Path, system: &str) -> Result<(Profile, Report), Error> {
    let name = profile_name(system);
    let public = Measurement::read(data)?.is_none();
    let shipped = profiles::builtin().find(|p| public && p.name == name);
    fit_from(data, system, shipped)
}

fn profile_name(system: &str) -> String {
    format!("{}-operators", system.replace('_', "-"))
}

fn fit_from(
    data: &Path,
    system: &str,
    start: Option<&Profile>,
) -> Result<(Profile, Report), Error> {
    let known = SYSTEMS.iter().find(|s| s.name == system);
    let of = known.ok_or_else(|| Error::System(system.to_owned()))?;
    let catalog = Catalog::builtin();
    let accelerator = catalog.accelerator(of.accelerator)?;
    let folder = data.join("operators");
    let device = Device::new(accelerator);
    let gemms: Vec<GemmRow> = table(&folder, system, "gemm")?;
    let decodes: Vec<AttentionRow> = table(&folder, system, "generation_attention")?;
    let prefills: Vec<AttentionRow> = table(&folder, system, "context_attention")?;
    let experts: Vec<MoeRow> = optional_table(&folder, system, "moe")?;
    let small: Vec<ElementwiseTableRow> = optional_table(&folder, system, "elementwise")?;
    let (fitted_on, software) = match Measurement::read(data)? {
        Some(m) => (vec![m.source()], m.software()),
        None => (
            vec![
                format!("ai-dynamo/aiconfigurator (Apache-2.0): kernel tables of {system}"),
                "microsoft/vidur (MIT): layer times (element-wise kernels)".to_owned(),
            ],
            gemms
                .first()
                .map(|r| format!("vLLM {}", r.version))
                .into_iter()
                .collect(),
        ),
    };
    let mut all = Collect {
        profile: Profile {
            name: profile_name(system),
            accelerator: of.same_chip.to_owned(),
            description: format!(
                "GEMM, attention, expert and element-wise kernels on {}",
                accelerator.name
            ),
            provenance: Provenance {
                command: format!(
                    "servetwin calibrate operators --data DIR --system {system} --out FILE"
                ),
                fitted_on,
                software,
                rows: 0,
                notes: vec![
                    "Split by shape: every third distinct shape in ascending order is held out.".to_owned(),
                    "Standard errors count each shape as one observation.".to_owned(),
                    "Parameters of evidence `analytic` were not fitted: properties of the kernel (FlashAttention 2 or 3), or not visible in the table."
                        .to_owned(),
                ],
            },
            ..Profile::default()
        },
        rows: Vec::new(),
        start,
    };
    let layers = layer_rows(data, system)?;
    fit_gemms(&mut all, system, &device, &gemms, &layers)?;
    fit_decodes(&mut all, of, &device, &decodes, data)?;
    fit_prefills(&mut all, of, &device, &prefills, data)?;
    fit_experts(&mut all, system, &device, &experts)?;
    fit_elementwise(&mut all, system, &device, &layers, &small)?;
    let report = Report {
        system: system.to_owned(),
        split: "held out: every third distinct shape, with all its rows".to_owned(),
        rows: all.rows,
    };
    Ok((all.profile, report))
}

#[cfg(test)]
mod tests;
