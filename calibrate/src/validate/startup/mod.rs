//! Start-up of pods: weights from storage to the accelerators, and the steps of an engine's start, held against measurements.
//!
//! [`weights`] reads `weights_load_times.csv` (run-ai/runai-model-streamer, benchmarks on g5.12xlarge) and `cluster/node_and_pod.csv` (posts and
//! issues named there); [`vllm`] reads `vllm_startup_warm.csv` (upb-cn/vllm-startup-profiler). Predicted is what `servetwin startup` says, from
//! `hwmodels/data/startup.toml`; [`fit`] derives that file's fitted figures from the rows that are marked as fitted.

pub mod fit;
mod row;
pub mod vllm;
pub mod weights;

use std::path::Path;

use hwmodels::startup::defaults::Defaults;

use super::case::Source;
use super::error::SetError;
use super::row::Row;

/// The sets with their files.
pub const SETS: [(&str, &str); 2] = [(weights::SET, weights::FILE), (vllm::SET, vllm::FILE)];

/// The rows of one of [`SETS`] in the folder `dir`.
///
/// # Errors
/// A file is malformed.
pub fn rows(dir: &Path, set: &str) -> Result<Vec<Row>, SetError> {
    let source = Source::Folder(dir.to_owned());
    let defaults = Defaults::builtin();
    match set {
        weights::SET => weights::rows(&source, &defaults),
        _ => vllm::rows(&source, &defaults),
    }
}

#[cfg(test)]
mod tests {
    use hwmodels::doubt::START_ERROR;

    use super::super::report::{Report, Summary};
    use super::*;

    #[test]
    fn predictions_are_within_their_bars_where_the_measurements_are_at_hand() {
        let Some(dir) = std::env::var_os("SERVETWIN_MEASURED") else {
            eprintln!("skipped: SERVETWIN_MEASURED names no folder of measurements");
            return;
        };
        let rows = SETS
            .iter()
            .flat_map(|(set, _)| rows(Path::new(&dir), set).unwrap());
        let report = Report::new(rows.collect(), &std::collections::BTreeMap::new());
        for (set, metric, n, bar) in [
            (weights::SET, "load_s", 24, 10.0),
            (weights::SET, "start_to_ready_s", 5, 10.0),
            (weights::SET, "shared_s", 4, 10.0),
            (vllm::SET, "framework_bootstrap_s", 41, 15.0),
            (vllm::SET, "load_weights_s", 37, 15.0),
            (vllm::SET, "torch_compile_s", 39, 15.0),
            // The pass that sizes the KV cache, a twentieth of a start, is the one phase beyond 15 %.
            (vllm::SET, "kv_cache_profiling_s", 41, 20.0),
            (vllm::SET, "graph_capturing_s", 41, 15.0),
            (vllm::SET, "init_engine_s", 41, 15.0),
            (vllm::SET, "total_s", 37, 15.0),
            (vllm::SET, "total_s from the other host", 31, 15.0),
        ] {
            let e = report.predicted(set, metric).unwrap();
            assert!(e.n >= n && e.median_ape <= bar, "{set} {metric}: {e:?}");
        }
        assert!(report.rows.iter().all(|r| r.predicted.is_some()));
        // Ranges of TTFT take no less for the error of a start. It was read off with the rows of Granite, which have given a number to the fit since.
        let other_host =
            |s: &&Summary| s.set == vllm::SET && s.metric == "total_s from the other host";
        let untouched = report.summaries.iter().find(other_host);
        let p90 = untouched.and_then(|s| s.untouched).unwrap().p90_ape;
        assert!(p90 / 100.0 <= START_ERROR, "{p90}");
    }
}
