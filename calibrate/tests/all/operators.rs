//! The operator fits against the public kernel tables, where those are at hand.

use std::path::PathBuf;

use calibrate::operators::{fit, present};
use hwmodels::profiles;

use crate::common::measured_folder;

#[test]
fn shapes_that_were_not_fitted_are_within_tolerance_and_the_shipped_profiles_are_what_the_command_makes()
 {
    let Some(data) = measured_folder("operators") else {
        return;
    };
    let systems = present(&data).unwrap();
    assert_eq!(systems.len(), 2, "tables of H100 and A100");
    for system in systems {
        let (profile, report) = fit(&data, system.name).unwrap();
        assert!(profile.trusted(), "{report}");
        for (name, p) in &profile.params {
            assert!((p.min..=p.max).contains(&p.value), "{name} = {}", p.value);
        }
        let ours = profiles::builtin()
            .find(|p| p.name == profile.name)
            .unwrap();
        assert_eq!(
            ours.params.keys().collect::<Vec<_>>(),
            profile.params.keys().collect::<Vec<_>>()
        );
        for (name, p) in &profile.params {
            let shipped = ours.params[name].value;
            assert!(
                (shipped - p.value).abs() <= 1e-3 * (p.max - p.min),
                "{name}: shipped {shipped}, refitted {}",
                p.value
            );
        }
    }
}

/// A folder in the form of `calibrate/gpu`, as that program wrote it on a CPU.
fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("gpu/tests/sample")
}

/// Copies the sample under another system's name: its rows are of a CPU, which has no place in the catalog.
fn sample_as(system: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("operators")).unwrap();
    std::fs::copy(
        sample().join("measurement.json"),
        dir.path().join("measurement.json"),
    )
    .unwrap();
    for entry in std::fs::read_dir(sample().join("operators")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = name.replacen("cpu_", &format!("{system}_"), 1);
        std::fs::copy(&path, dir.path().join("operators").join(name)).unwrap();
    }
    dir
}

#[test]
fn tables_of_the_measuring_program_are_read_and_named_as_the_profiles_source() {
    let dir = sample_as("h200_sxm");
    let systems = present(dir.path()).unwrap();
    assert_eq!(
        systems.iter().map(|s| s.name).collect::<Vec<_>>(),
        ["h200_sxm"]
    );
    let (profile, report) = fit(dir.path(), "h200_sxm").unwrap();
    assert!(
        profile.provenance.fitted_on[0].starts_with("calibrate/gpu on CPU"),
        "{:?}",
        profile.provenance
    );
    let software = profile.provenance.software.join(" ");
    assert!(software.contains("torch "), "{software}");
    for (op, regime) in [
        ("gemm bf16", "all"),
        ("decode kv16", "uneven contexts"),
        ("prefill kv16", "on earlier context"),
        ("element-wise", "norm"),
        ("sampling (analytic)", "sample_greedy"),
    ] {
        assert!(
            report.rows.iter().any(|r| r.op == op && r.regime == regime),
            "no row for {op}, {regime} in\n{report}"
        );
    }
    // Times of a CPU are not those of an H200: nothing of this may look trustworthy.
    assert!(!profile.trusted());
}
