//! The Horizontal Pod Autoscaler against the test vectors beside this file, which are written from the specification.

use std::path::Path;

use sim::control::vectors::{self, Kind};

fn vectors_of(file: &str) -> (String, vectors::Report) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/hpa")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let report = vectors::check(&text, &vectors::default_settings())
        .unwrap_or_else(|e| panic!("{file}: {e}"));
    (text, report)
}

const FILES: [(&str, Kind); 5] = [
    ("calculator.csv", Kind::Calculator),
    ("grouping.csv", Kind::Grouping),
    ("rates.csv", Kind::Rates),
    ("bounds.csv", Kind::Bounds),
    ("stabilization.csv", Kind::Stabilization),
];

#[test]
fn the_controller_agrees_with_every_vector() {
    for (file, kind) in FILES {
        let (_, report) = vectors_of(file);
        assert_eq!(report.kind, kind, "{file}");
        let differing: Vec<String> = report
            .differing()
            .map(|r| format!("{file}:{}: {r}", r.line))
            .collect();
        assert!(differing.is_empty(), "{}", differing.join("\n"));
    }
}

/// The check would be worth nothing if wrong expectations passed: with every expected value changed, every row differs.
#[test]
fn a_row_with_a_wrong_expectation_differs() {
    for (file, _) in FILES {
        let (text, right) = vectors_of(file);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().clone();
        let changed = |column: &str, cell: &str| match column {
            "expected_replicas" if cell.is_empty() => "7".to_owned(),
            "expected_replicas" if cell == "2147483647" => "1".to_owned(),
            "expected_replicas" => (cell.parse::<i64>().unwrap() + 1).to_string(),
            "expected_group" if cell == "ready" => "missing".to_owned(),
            "expected_group" => "ready".to_owned(),
            "expected_error" => String::new(),
            _ => cell.to_owned(),
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(&header).unwrap();
        for record in reader.records() {
            let record = record.unwrap();
            writer
                .write_record(header.iter().zip(&record).map(|(h, c)| changed(h, c)))
                .unwrap();
        }
        let wrong = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        let report = vectors::check(&wrong, &vectors::default_settings()).unwrap();
        assert_eq!(report.differing().count(), right.rows.len(), "{file}");
    }
}

#[test]
fn every_reason_of_the_condition_and_every_method_has_vectors() {
    let all: String = FILES.iter().map(|(file, _)| vectors_of(file).0).collect();
    let words = [
        "DesiredWithinRange",
        "TooFewReplicas",
        "TooManyReplicas",
        "ScaleUpLimit",
        "ScaleDownLimit",
        "resource_utilization",
        "pods_average",
        "object_value",
        "object_average",
        "external_value",
        "external_average",
        "legacy",
        "behavior",
    ];
    for word in words {
        assert!(all.contains(word), "{word}");
    }
    let rows: usize = FILES
        .iter()
        .map(|(file, _)| vectors_of(file).1.rows.len())
        .sum();
    assert!(rows >= 150, "{rows} rows");
}

#[test]
fn wrong_files_are_told_where_and_what_would_be_right() {
    let calculator = "case_id,method,current_replicas,pod_phase,pod_ready,pod_request_milli,pod_metric_milli,target,tolerance_up,expected_replicas";
    let bounds = "case_id,current_replicas,recommended_replicas,min_replicas,max_replicas,expected_replicas,expected_reason";
    let cases = [
        ("".to_owned(), "the file is empty"),
        (
            "a,b\n1,2\n".to_owned(),
            "line 1: the header is that of no kind",
        ),
        (format!("{bounds}\n"), "there is no row under the header"),
        (
            format!("{bounds},case_id\n"),
            "line 1: column `case_id` stands twice",
        ),
        (
            format!("{bounds}\n1,2,3\n"),
            "line 2: 3 cells, but the header has 7",
        ),
        (
            format!("{bounds}\n1,2,3,1,9,3,\n2,x,3,1,9,3,\n"),
            "line 3: column `current_replicas`: `x` is not a whole number of 32 bits",
        ),
        (
            format!("{bounds}\n1,2147483648,3,1,9,3,\n"),
            "line 2: column `current_replicas`: `2147483648` is not",
        ),
        (
            format!("{bounds}\n1,2,3,1,,3,\n"),
            "line 2: column `max_replicas`: must hold a whole number",
        ),
        (
            format!("{calculator}\n1,mean,1,R,1,,5,5,,1\n"),
            "line 2: column `method`: `mean` is no method; write resource_utilization",
        ),
        (
            format!("{calculator}\n1,pods_average,1,X,1,,5,5,,1\n"),
            "line 2: column `pod_phase`: `X` is no phase; write R, P, F or S",
        ),
        (
            format!("{calculator}\n1,pods_average,1,R,1;1,,5,5,,1\n"),
            "line 2: column `pod_ready`: 2 items, but `pod_phase` lists 1 pods",
        ),
        (
            format!("{calculator}\n1,pods_average,1,R,2,,5,5,,1\n"),
            "line 2: column `pod_ready`: `2` is neither 0 nor 1",
        ),
        (
            format!("{calculator}\n1,pods_average,1,R,1,,5.5,5,,1\n"),
            "line 2: column `pod_metric_milli`: `5.5` is not a whole number of milli",
        ),
        (
            format!("{calculator}\n1,pods_average,1,R,1,,5,5,-1,1\n"),
            "line 2: column `tolerance_up`: `-1` is not a number of at least 0",
        ),
    ];
    for (text, expected) in cases {
        let error = vectors::check(&text, &vectors::default_settings())
            .expect_err(expected)
            .to_string();
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn columns_may_come_in_any_order_and_others_are_ignored() {
    let text = "expected_replicas,source_test,max_replicas,recommended_replicas,current_replicas,name\n4,TestX,100,30,1,at least 4\n";
    let report = vectors::check(text, &vectors::default_settings()).unwrap();
    assert_eq!(report.kind, Kind::Bounds);
    assert_eq!(report.differing().count(), 0);
}

#[test]
fn of_several_obsolete_slots_the_first_or_the_last_may_be_reused() {
    let header = "mode,recommendations,current_replicas,recommended_replicas,scale_down_window_s,expected_replicas,expected_log";
    for (log, differs) in [
        ("9;8;3", 0),
        ("3;8;7", 0),
        ("9;3;7", 1),
        ("9;8;7;3", 1),
        ("len=3", 0),
        ("len=2", 1),
    ] {
        let text = format!("{header}\nlegacy,9@500;8@400;7@301,,3,300,3,{log}\n");
        let report = vectors::check(&text, &vectors::default_settings()).unwrap();
        assert_eq!(report.differing().count(), differs, "{log}");
    }
}

/// Each cell of every fifth row in turn holds what hurts: the answer is a report or an error, never a panic.
#[test]
fn no_cell_makes_the_check_panic() {
    let nasty = [
        "",
        "-",
        "-1",
        "0",
        "x",
        "NaN",
        "inf",
        "-inf",
        "1e308",
        "9223372036854775807",
        "-9223372036854775808",
        "2147483647",
        "-2147483648",
        ";;;",
        "9223372036854775807;9223372036854775807;-;-9223372036854775808",
        "R;P;F;S;R;R;R;R;R;R;R;R",
        "1;0;1;0",
        "Pods:2147483647:4294967295;Percent:-2147483648:0",
        "-2147483648@-1;2147483647@1e300",
        "2147483647@0;2147483647@0",
    ];
    let settings = vectors::default_settings();
    let mut reports = 0;
    for (file, _) in FILES {
        let (text, _) = vectors_of(file);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().clone();
        for record in reader.records().step_by(5) {
            let record = record.unwrap();
            for (column, bad) in (0..header.len()).flat_map(|c| nasty.map(|bad| (c, bad))) {
                let mut writer = csv::Writer::from_writer(Vec::new());
                writer.write_record(&header).unwrap();
                let cells = record
                    .iter()
                    .enumerate()
                    .map(|(i, cell)| if i == column { bad } else { cell });
                writer.write_record(cells).unwrap();
                let row = String::from_utf8(writer.into_inner().unwrap()).unwrap();
                reports += usize::from(vectors::check(&row, &settings).is_ok());
            }
        }
    }
    assert!(reports > 300, "{reports}");
}
