//! The published measurements, predicted: what the accuracy report promises holds.

use calibrate::validate::{Errors, Options, Report, Source, serving};

fn validate(source: &Source, sets: &[&str]) -> Report {
    let options = Options {
        sets: sets.iter().map(|s| (*s).to_owned()).collect(),
        baseline: false,
    };
    serving(source, &options, &|_, _| {}).expect("the data are well formed")
}

fn predicted(report: &Report, set: &str, metric: &str) -> Errors {
    report
        .predicted(set, metric)
        .unwrap_or_else(|| panic!("{set} {metric}: no predicted rows"))
}

#[test]
fn tgi_on_layouts_that_were_not_fitted_is_within_eight_per_cent_at_the_median() {
    let report = validate(&Source::Published, &["jumpstart"]);
    for metric in ["latency_ms_per_token", "throughput_tok_s"] {
        let e = predicted(&report, "jumpstart", metric);
        assert!(
            e.n >= 18 && e.median_ape <= 8.0 && e.mean_ape <= 12.0,
            "{metric}: {e:?}"
        );
    }
    let e = predicted(&report, "jumpstart_minimum_latency", "latency_ms_per_token");
    assert!(e.n >= 19 && e.mean_ape <= 12.0, "{e:?}");
}

#[test]
fn every_published_row_is_predicted() {
    let report = validate(&Source::Published, &["jumpstart", "llama_405b", "inf2"]);
    for row in &report.rows {
        assert!(
            row.predicted.is_some_and(|p| p > 0.0),
            "{} {}: {}",
            row.set,
            row.case,
            row.note
        );
    }
}

#[test]
fn saturated_throughput_of_dense_models_under_tensorrt_llm_is_predicted_without_a_fit() {
    let report = validate(&Source::Published, &["trtllm_overview"]);
    let e = predicted(&report, "trtllm_overview", "output_tok_s");
    assert!(e.n == 54 && e.median_ape <= 10.0, "{e:?}");
}

#[test]
fn mixtures_with_data_parallel_attention_are_predicted_without_a_fit() {
    let sets = ["trtllm_overview_moe", "trtllm_per_gpu"];
    let report = validate(&Source::Published, &sets);
    for (set, n, bar) in [(sets[0], 46, 20.0), (sets[1], 44, 27.0)] {
        let e = predicted(&report, set, "output_tok_s");
        assert!(e.n == n && e.median_ape <= bar, "{set}: {e:?}");
    }
}

#[test]
fn a_folder_without_measurements_is_noted_set_by_set() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let report = validate(&Source::Folder(empty.path().to_owned()), &[]);
    // All but NVIDIA's overviews, which the binary carries for folders without them.
    let carried = |set: &str| set.starts_with("trtllm_overview") || set == "trtllm_per_gpu";
    assert!(report.rows.iter().all(|r| carried(&r.set)));
    let names = calibrate::validate::names();
    let skipped = names.iter().filter(|n| !carried(n)).count();
    assert_eq!(report.notes.len(), skipped);
}

#[test]
fn vllm_on_h100_is_within_its_bars_where_the_measurements_are_at_hand() {
    let Some(dir) = std::env::var_os("SERVETWIN_MEASURED") else {
        eprintln!("skipped: SERVETWIN_MEASURED names no folder of measurements");
        return;
    };
    let source = Source::Folder(dir.into());
    let report = validate(&source, &["vllm_requests", "vllm_rate_sweep"]);
    let within = |set: &str, metric: &str, bar: f64| {
        let e = predicted(&report, set, metric);
        assert!(e.median_ape <= bar, "{set} {metric}: {e:?}");
    };
    within("vllm_requests", "e2e_mean_ms", 5.0);
    within("vllm_requests", "ttft_mean_ms", 15.0);
    within("vllm_rate_sweep", "tpot_mean_ms", 5.0);
}
