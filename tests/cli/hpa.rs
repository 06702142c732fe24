//! `servetwin hpa check`.

use std::path::Path;

use crate::common::{assert_refused, json, servetwin, stdout};

const BOUNDS: &str = "case_id,name,current_replicas,recommended_replicas,min_replicas,max_replicas,expected_replicas,expected_reason\n";

fn written(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn vectors_written_from_the_specification_agree() {
    let names = ["calculator", "grouping", "rates", "bounds", "stabilization"];
    let files = names.map(|name| format!("sim/tests/hpa/{name}.csv"));
    let args: Vec<&str> = ["hpa", "check"]
        .into_iter()
        .chain(files.iter().map(String::as_str))
        .collect();
    let out = servetwin(&args);
    let text = stdout(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert_eq!(text.lines().count(), files.len() + 1, "{text}");
    assert!(text.lines().all(|l| l.ends_with(" 0 differ")), "{text}");
}

#[test]
fn a_row_that_differs_is_printed_and_sets_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let rows = "1,right,1,30,1,100,4,ScaleUpLimit\n2,wrong,5,7,3,10,8,TooManyReplicas\n";
    let file = written(dir.path(), "bounds.csv", &format!("{BOUNDS}{rows}"));
    let out = servetwin(&["hpa", "check", &file]);
    assert_eq!(out.status.code(), Some(1));
    let expected = format!(
        "{file}:3: 2 wrong: replicas is 7, expected 8; reason is DesiredWithinRange, expected TooManyReplicas\n\
         {file}: bounds without behavior: 2 rows, 1 agree, 1 differs\n"
    );
    assert_eq!(stdout(&out), expected);
}

#[test]
fn the_same_is_told_to_machines() {
    let dir = tempfile::tempdir().unwrap();
    let rows = "1,right,1,30,1,100,4,ScaleUpLimit\n2,wrong,5,7,3,10,8,TooManyReplicas\n";
    let file = written(dir.path(), "bounds.csv", &format!("{BOUNDS}{rows}"));
    let out = servetwin(&["hpa", "check", &file, "--json"]);
    assert_eq!(out.status.code(), Some(1), "a row differs");
    let report: serde_json::Value = serde_json::from_str(&stdout(&out)).unwrap();
    let counts = serde_json::json!({ "rows": 2, "agree": 1, "differ": 1 });
    assert_eq!(report["counts"], counts);
    let told = &report["files"][0];
    assert_eq!(told["counts"], counts);
    assert_eq!(told["file"], file.as_str());
    assert_eq!(told["kind"], "bounds without behavior");
    let row = &told["differing"][0];
    assert_eq!(
        (row["line"].as_u64(), row["case"].as_str()),
        (Some(3), Some("2 wrong"))
    );
    let expected = serde_json::json!([
        { "column": "expected_replicas", "expected": "8", "got": "7" },
        { "column": "expected_reason", "expected": "TooManyReplicas", "got": "DesiredWithinRange" },
    ]);
    assert_eq!(row["differences"], expected);
    let files = ["sim/tests/hpa/bounds.csv", "sim/tests/hpa/rates.csv"];
    let all = json(&servetwin(&["hpa", "check", files[0], files[1], "--json"]));
    assert_eq!(all["counts"]["differ"], 0);
    assert_eq!(all["files"].as_array().unwrap().len(), 2);
}

#[test]
fn wrong_files_are_told_with_their_line_and_nothing_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let right = written(
        dir.path(),
        "right.csv",
        &format!("{BOUNDS}1,right,1,30,1,100,4,\n"),
    );
    let wrong = written(
        dir.path(),
        "wrong.csv",
        &format!("{BOUNDS}1,x,one,30,1,100,4,\n"),
    );
    let out = servetwin(&["hpa", "check", &right, &wrong]);
    assert_refused(
        &out,
        "wrong.csv:2: column `current_replicas`: `one` is not a whole number of 32 bits",
    );
    let out = servetwin(&[
        "hpa",
        "check",
        &dir.path().join("none.csv").display().to_string(),
    ]);
    assert_refused(&out, "none.csv: No such file");
}

#[test]
fn settings_of_the_controller_can_be_given() {
    let dir = tempfile::tempdir().unwrap();
    let text = "case_id,resource,phase,start_age_s,ready_condition,transition_age_s,metric_age_s,metric_window_s,deleted,expected_group\n\
                1,cpu,Running,200,true,10,0,30,0,unready\n\
                2,cpu,Running,900,false,880,0,30,0,unready\n";
    let file = written(dir.path(), "grouping.csv", text);
    assert_eq!(servetwin(&["hpa", "check", &file]).status.code(), Some(1));
    let defaults = [
        "--cpu-initialization-period",
        "300",
        "--initial-readiness-delay",
        "30s",
    ];
    let out = servetwin(&[["hpa", "check", &file].as_slice(), &defaults].concat());
    assert_eq!(out.status.code(), Some(0), "{}", stdout(&out));
    let out = servetwin(&["hpa", "check", &file, "--initial-readiness-delay=-1"]);
    assert_refused(&out, "a number of seconds of at least 0");
}
