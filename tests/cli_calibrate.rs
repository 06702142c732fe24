//! `servetwin calibrate`, from the outside.

use std::process::{Command, Output};

fn calibrate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .arg("calibrate")
        .args(arguments)
        .env_remove("SERVETWIN_MEASURED")
        .output()
        .expect("runs")
}

#[test]
fn a_folder_without_the_tables_is_bad_input_and_the_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let folder = folder.path().to_str().expect("utf-8");
    for (what, file) in [
        ("collectives", "engine_and_nccl_allreduce.csv.gz"),
        ("host", "a100_cpu_overheads.csv.gz"),
    ] {
        let out = calibrate(&[what, "--data", folder]);
        assert_eq!(out.status.code(), Some(2), "{what}");
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(message.contains(file), "{message}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn the_shipped_collective_profile_is_what_the_command_makes() {
    let Some(folder) = std::env::var_os("SERVETWIN_MEASURED") else {
        eprintln!("skipped: SERVETWIN_MEASURED does not name the folder of measurements");
        return;
    };
    let folder = folder.to_str().expect("utf-8").to_owned();
    let out = tempfile::NamedTempFile::new().expect("file");
    let path = out.path().to_str().expect("utf-8");
    let result = calibrate(&["collectives", "--data", &folder, "--out", path]);
    assert_eq!(result.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&result.stdout).contains("all devices"));
    let made = std::fs::read_to_string(path).expect("profile");
    let shipped = include_str!("../hwmodels/data/profiles/collectives.toml");
    assert!(
        made == shipped,
        "run the command in the profile's provenance"
    );
}

#[test]
fn an_endpoint_or_records_that_are_not_there_are_said_so_and_subcommands_still_work() {
    for (arguments, says) in [
        (vec!["--records", "/nonexistent"], "/nonexistent"),
        (vec!["--endpoint", "ftp://host"], "ftp://host"),
        (
            vec![
                "--endpoint",
                "http://127.0.0.1:9",
                "--budget",
                "five minutes",
            ],
            "five minutes",
        ),
    ] {
        let out = calibrate(&arguments);
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(says), "{message}");
        assert!(out.stdout.is_empty());
    }
    assert_eq!(calibrate(&["steps", "--help"]).status.code(), Some(0));
}

#[test]
fn where_the_results_of_a_long_measurement_go_is_made_before_it_begins() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    let inside = |name: &str| file.join(name).to_str().expect("utf-8").to_owned();
    for (flag, path) in [
        ("--out", inside("profile.toml")),
        ("--keep", inside("loads")),
    ] {
        // Nobody listens there: the folder is looked at first.
        let out = calibrate(&["--endpoint", "http://127.0.0.1:9", flag, &path]);
        assert_eq!(out.status.code(), Some(2), "{flag}");
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(
            message.contains(&format!("{flag}: cannot make the folder")),
            "{message}"
        );
    }
    let new = folder.path().join("new");
    let path = new.join("profile.toml");
    let out = calibrate(&[
        "--endpoint",
        "http://127.0.0.1:9",
        "--out",
        path.to_str().expect("utf-8"),
    ]);
    assert_ne!(out.status.code(), Some(0), "nobody listens");
    assert!(new.is_dir());
}
