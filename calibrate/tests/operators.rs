//! The operator fits against the public kernel tables, where those are at hand.

use std::path::PathBuf;

use calibrate::operators::{SYSTEMS, fit};
use hwmodels::profiles;

/// Folder of the measured tables, or a line that says why the test does nothing.
fn measured() -> Option<PathBuf> {
    let folder = std::env::var_os("SERVETWIN_MEASURED").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: SERVETWIN_MEASURED does not name the folder of measured tables");
    }
    folder
}

#[test]
fn shapes_that_were_not_fitted_are_within_tolerance_and_the_shipped_profiles_are_what_the_command_makes()
 {
    let Some(data) = measured() else { return };
    let shipped = profiles::builtin();
    for system in SYSTEMS {
        let (profile, report) = fit(&data, system.name).unwrap();
        assert!(profile.trusted(), "{report}");
        for (name, p) in &profile.params {
            assert!((p.min..=p.max).contains(&p.value), "{name} = {}", p.value);
        }
        let ours = shipped.iter().find(|p| p.name == profile.name).unwrap();
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
