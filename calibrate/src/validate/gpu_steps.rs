//! Whole steps that `calibrate/gpu` timed, predicted from the single operators of the same folder.
//!
//! Nothing of the steps is fitted: the operators are (`operators/`, where the folder has them; otherwise the built-in profile of the
//! accelerator stands in). Compared is the device's own time, from the first kernel to the last: launches, gaps between kernels and the
//! host's work are the engine's and no part of it. So a bias of a few per cent, of the gaps inside a CUDA graph, is to be expected.

use std::collections::BTreeMap;
use std::path::Path;

use hwmodels::ops::collective::{Fabric, LinkClass};
use hwmodels::ops::{Kernels, Routing};
use hwmodels::profiles::{self, Choice};
use hwmodels::{
    BatchStats, Catalog, Dtype, EngineCost, EngineKind, Layout, OperatorSteps, OperatorStepsSpec,
    StepModel,
};
use serde::Deserialize;

use super::case::Source;
use super::error::SetError;
use super::report::{Errors, Summary};
use crate::operators;

/// Name of the set, as users select it.
pub const SET: &str = "gpu_steps";
/// Its file.
pub const FILE: &str = "steps.csv";

#[derive(Debug, Deserialize)]
struct Row {
    system: String,
    model: String,
    kind: String,
    mode: String,
    decode_seqs: u32,
    decode_tokens: u32,
    decode_ctx_sum: u64,
    decode_ctx_sq_sum: u64,
    prefill_seqs: u32,
    prefill_tokens: u32,
    prefill_ctx_sum: u64,
    prefill_pairs: u64,
    sampled_seqs: u32,
    device_ms: f64,
}

impl Row {
    fn batch(&self) -> BatchStats {
        BatchStats {
            decode_seqs: self.decode_seqs,
            decode_tokens: self.decode_tokens,
            decode_ctx_sum: self.decode_ctx_sum,
            decode_ctx_sq_sum: self.decode_ctx_sq_sum,
            prefill_seqs: self.prefill_seqs,
            prefill_tokens: self.prefill_tokens,
            prefill_ctx_sum: self.prefill_ctx_sum,
            prefill_pairs: self.prefill_pairs,
            sampled_seqs: self.sampled_seqs,
        }
    }
}

/// Errors of the device's time by system, model, kind of step and mode.
///
/// # Errors
/// A table is malformed, or holds a system or model that is not known.
pub fn summaries(dir: &Path) -> Result<Vec<Summary>, SetError> {
    let rows: Vec<Row> = Source::Folder(dir.to_owned()).read(FILE)?;
    let mut models: BTreeMap<(String, String), OperatorSteps> = BTreeMap::new();
    let mut signed: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for row in &rows {
        let key = (row.system.clone(), row.model.clone());
        if !models.contains_key(&key) {
            models.insert(key.clone(), replica(dir, row)?);
        }
        let parts = models[&key].step(&row.batch()).parts;
        let device = parts.weights + parts.kv + parts.compute;
        signed
            .entry((
                format!("{SET} {} {}", row.system, row.model),
                format!("{} ({}) device time", row.kind, row.mode),
            ))
            .or_default()
            .push(100.0 * (device * 1e3 / row.device_ms - 1.0));
    }
    Ok(signed
        .into_iter()
        .map(|((set, metric), errors)| Summary {
            set,
            metric,
            fitted: None,
            predicted: Errors::of(&errors),
            baseline: None,
            untouched: None,
            covered: None,
            unpredicted: 0,
        })
        .collect())
}

/// The model of one device that ran `row`, with the operators fitted on the same folder.
fn replica(dir: &Path, row: &Row) -> Result<OperatorSteps, SetError> {
    let wrong = |message: String| SetError::new(FILE, message);
    let system = operators::SYSTEMS
        .iter()
        .find(|s| s.name == row.system)
        .ok_or_else(|| wrong(operators::Error::System(row.system.clone()).to_string()))?;
    let catalog = Catalog::builtin();
    let accelerator = catalog
        .accelerator(system.accelerator)
        .map_err(|e| wrong(e.to_string()))?;
    let model = catalog
        .model(&row.model)
        .map_err(|e| wrong(e.to_string()))?;
    let measured = dir.join("operators").is_dir()
        && operators::present(dir)
            .map_err(|e| wrong(e.to_string()))?
            .contains(system);
    let profile = if measured {
        operators::fit(dir, system.name)
            .map_err(|e| SetError::new("operators", e.to_string()))?
            .0
    } else {
        profiles::resolve(system.accelerator, None, EngineKind::VllmV1, &Choice::Auto)
            .map_err(|e| wrong(e.to_string()))?
            .profile
    };
    let spec = OperatorStepsSpec {
        accelerator,
        fabric: Fabric::single_node(LinkClass::NvLink4, 1, accelerator.memory_bandwidth),
        model,
        layout: Layout::SINGLE,
        weights: Dtype::Bf16,
        kv_cache: Dtype::Bf16,
        cost: EngineCost::prior(EngineKind::VllmV1),
        profile: &profile,
        max_tokens: 8192,
        routing: Routing::Balanced,
        kernels: Kernels::default(),
        graph_sizes: &[],
    };
    Ok(OperatorSteps::new(&spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "system,model,kind,mode,decode_seqs,decode_tokens,decode_ctx_sum,decode_ctx_sq_sum,prefill_seqs,\
        prefill_tokens,prefill_ctx_sum,prefill_pairs,sampled_seqs,device_ms";

    fn folder(rows: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("{}\n{rows}\n", HEAD.replace([' ', '\n'], ""));
        std::fs::write(dir.path().join(FILE), text).unwrap();
        dir
    }

    #[test]
    fn one_decode_takes_the_time_of_reading_the_weights_and_one_long_prefill_that_of_its_arithmetic()
     {
        // 15.0 GB of matrices at nine tenths of 3.35 TB/s, and 2.6 us for each of 350 kernels; 2 x 7.0e9 x 4096 FLOPs and a
        // tenth of that for attention at 700 TFLOP/s.
        let dir = folder(
            "h100_sxm,Llama-3.1-8B,decode,graph,1,1,128,16384,0,0,0,0,1,5.9\n\
             h100_sxm,Llama-3.1-8B,prefill,eager,0,0,0,0,1,4096,4096,8390656,1,90",
        );
        let found = summaries(dir.path()).unwrap();
        assert_eq!(found.len(), 2);
        for s in &found {
            let e = s.predicted.unwrap();
            assert_eq!(e.n, 1);
            assert!(e.median_ape < 20.0, "{}: {e:?}", s.metric);
        }
    }

    #[test]
    fn a_system_without_tables_is_refused_with_the_known_ones() {
        let dir = folder("cpu,Llama-3.1-8B,decode,graph,1,1,128,16384,0,0,0,0,1,5");
        let e = summaries(dir.path()).unwrap_err();
        assert!(e.to_string().contains("h100_sxm"), "{e}");
    }
}
