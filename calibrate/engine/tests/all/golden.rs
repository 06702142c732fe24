//! Logits against those that transformers computed (`golden/make.py`).

use std::path::PathBuf;

use engine::executor::SeqInput;
use engine::model::{ModelOptions, load};
use kernels::dtype::WeightDtype;
use safetensors::SafeTensors;

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(case)
}

/// Tokens, and the logits after each.
fn golden(case: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let bytes = std::fs::read(folder(case).join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tokens = file.tensor("tokens").unwrap();
    let tokens = tokens.data().as_chunks::<4>().0.iter();
    let logits = file.tensor("logits").unwrap();
    let vocab = logits.shape()[1];
    let logits: Vec<f32> = (logits.data().as_chunks::<4>().0.iter())
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    (
        tokens.map(|b| u32::from_le_bytes(*b)).collect(),
        logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect(),
    )
}

/// The largest difference of a logit, over chunks of `chunk` tokens, in units of the logits' root mean square.
fn difference(case: &str, dtype: WeightDtype, chunk: usize, tp: usize) -> f32 {
    let (tokens, expected) = golden(case);
    let options = ModelOptions {
        dtype: Some(dtype),
        tp,
        num_blocks: 4,
        ..ModelOptions::default()
    };
    let mut model = load(Some(&folder(case)), &options).unwrap().executor;
    let all: Vec<f32> = expected.iter().flatten().copied().collect();
    let scale = (all.iter().map(|x| x * x).sum::<f32>() / all.len() as f32).sqrt();
    let mut worst = 0.0_f32;
    let mut seen = 0;
    while seen < tokens.len() {
        let count = chunk.min(tokens.len() - seen);
        let step = SeqInput {
            tokens: tokens[seen..seen + count].to_vec(),
            context: seen as u32,
            blocks: vec![3, 0, 2],
            sample: true,
        };
        model.submit(vec![step]).unwrap();
        seen += count;
        let logits = model.collect().unwrap().logits;
        assert_eq!(logits.len(), expected[seen - 1].len());
        for (ours, theirs) in logits.iter().zip(&expected[seen - 1]) {
            worst = worst.max((ours - theirs).abs() / scale);
        }
    }
    worst
}

#[test]
fn logits_agree_with_transformers_for_every_architecture_token_by_token_and_in_chunks() {
    for case in ["llama", "llama-tied", "qwen2", "qwen3", "mistral"] {
        for (chunk, tp) in [(1, 1), (11, 1), (32, 1), (7, 2)] {
            let off = difference(case, WeightDtype::F32, chunk, tp);
            assert!(
                off < 2e-5,
                "{case} in chunks of {chunk} on {tp} ranks is off by {off}"
            );
        }
    }
}

#[test]
fn a_cache_in_sixteen_bits_stays_near_transformers_in_single_precision() {
    for case in ["llama", "qwen3"] {
        let f16 = difference(case, WeightDtype::F16, 32, 1);
        let bf16 = difference(case, WeightDtype::Bf16, 32, 1);
        assert!(
            f16 < 0.02 && bf16 < 0.15 && f16 < bf16,
            "{case}: {f16} and {bf16}"
        );
    }
}
