//! What several subjects share: the folder of measurements, and validation of a few sets.

use std::path::PathBuf;

use calibrate::validate::{Errors, Options, Report, SetError, Source, serving};

/// The folder of measurements, or `None` with a line that says that `test` was skipped.
pub fn measured_folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SERVETWIN_MEASURED");
    if folder.is_none() {
        // Past the test harness, which keeps what passing tests print to itself.
        let line = format!("SKIPPED, no measurements (SERVETWIN_MEASURED): {test}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    folder.map(PathBuf::from)
}

/// [`measured_folder`] to validate against.
pub fn measured(test: &str) -> Option<Source> {
    measured_folder(test).map(Source::Folder)
}

/// The report on `sets`, without the baseline.
pub fn validate(source: &Source, sets: &[&str]) -> Report {
    serve(source, sets).expect("the data are well formed")
}

/// Why `sets` cannot be validated.
pub fn refusal(source: &Source, sets: &[&str]) -> String {
    let refused = serve(source, sets);
    refused.expect_err("the data are malformed").to_string()
}

fn serve(source: &Source, sets: &[&str]) -> Result<Report, SetError> {
    serving(source, &options(sets), &|_, _| {})
}

fn options(sets: &[&str]) -> Options {
    Options {
        sets: sets.iter().map(|s| (*s).to_owned()).collect(),
        ..Options::default()
    }
}

/// The report on `sets` with plain scenarios.
pub fn validate_plain(source: &Source, sets: &[&str]) -> Report {
    let options = Options {
        plain: true,
        ..options(sets)
    };
    serving(source, &options, &|_, _| {}).expect("the data are well formed")
}

/// The errors of the rows of a set and metric that nothing was fitted on.
pub fn predicted(report: &Report, set: &str, metric: &str) -> Errors {
    report
        .predicted(set, metric)
        .unwrap_or_else(|| panic!("{set} {metric}: no predicted rows"))
}
