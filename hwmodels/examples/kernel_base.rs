//! What the formulas of the operator models say of kernel shapes, for `calibrate/kernels/fit.py`: shapes on standard input, one a line,
//! seconds on standard output. `cargo run --release -p hwmodels --example kernel_base -- ACCELERATOR vllm_v1|trt_llm [with-surfaces]`.
//!
//! Lines: `gemm ARITHMETIC m n k`, `decode heads kv_heads head_dim KV window batch context`, `prefill heads kv_heads head_dim KV window batch tokens`,
//! `linear_decode key_heads value_heads STATE batch`, `linear_prefill key_heads value_heads STATE batch tokens`, `kda_decode` and `kda_prefill` alike, `convolution channels batch tokens`,
//! `moe FORMAT hidden inner top_k experts tp ep tokens skew`, `mla_decode heads KV batch context`, `mla_prefill heads KV batch tokens`,
//! `dsa_decode heads index_heads KV batch context`, `dsa_prefill heads index_heads KV batch tokens before` (without projections), `elementwise bytes kernels`; a window of 0 is none.

use std::io::{BufRead, Write};

use hwmodels::indexer::Indexer;
use hwmodels::ops::{
    Cache, DecodeShape, Kernels, MlaShape, MoeShape, OperatorModel, PrefillShape, PrefillWork,
    Routing, Span, SparseKernels, SparseShape,
};
use hwmodels::profiles::{self, Choice};
use hwmodels::recurrence::{Recurrence, Rule};
use hwmodels::{BatchStats, Catalog, Dtype, EngineKind};

type Failure = Box<dyn std::error::Error>;

fn dtype(word: &str) -> Result<Dtype, Failure> {
    Ok(match word {
        "bf16" => Dtype::Bf16,
        "fp32" => Dtype::Fp32,
        "fp8" | "fp8_block" => Dtype::Fp8,
        "int8" => Dtype::Int8,
        "int4" => Dtype::Int4,
        "mxfp4" => Dtype::Mxfp4,
        other => return Err(format!("unknown format `{other}`").into()),
    })
}

fn activations(weights: Dtype) -> Dtype {
    match weights {
        Dtype::Fp8 | Dtype::Int8 => weights,
        _ => Dtype::Bf16,
    }
}

fn window(tokens: u32) -> Span {
    Span::window((tokens > 0).then_some(tokens))
}

/// Layers with a state by `rule`, with heads of 128 as all tables have them.
fn state(rule: Rule, key_heads: u32, value_heads: u32, state: Dtype) -> Recurrence {
    Recurrence {
        rule,
        key_heads,
        value_heads,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
        chunk: 64,
        state: Some(state),
    }
}

/// A convolution over this many channels.
fn convolution(channels: u32) -> Recurrence {
    Recurrence {
        key_dim: 0,
        value_dim: 1,
        ..state(Rule::Mamba2, 1, channels, Dtype::Bf16)
    }
}

/// `count` prompts of `tokens` tokens.
fn prompts(count: u32, tokens: u32) -> BatchStats {
    let mut batch = BatchStats::default();
    for _ in 0..count {
        batch.add_prefill(tokens, 0, true);
    }
    batch
}

/// Sparse latent attention with DeepSeek's latents, as all tables have them.
fn sparse(heads: u32, index_heads: u32, kv_dtype: Dtype) -> SparseShape {
    SparseShape {
        latent: MlaShape {
            heads,
            kv_lora_rank: 512,
            rope_dim: 64,
            kv_dtype,
        },
        indexer: Indexer {
            heads: index_heads,
            head_dim: 128,
            top_k: 2048,
        },
    }
}

/// The rule that an operator's name says.
fn rule(operator: &str) -> Rule {
    match operator.starts_with("kda") {
        true => Rule::Kda,
        false => Rule::GatedDelta,
    }
}

fn number(words: &[&str], i: usize) -> Result<u32, Failure> {
    let word = words.get(i).ok_or("a line is too short")?;
    Ok(word.parse()?)
}

fn format(words: &[&str], i: usize) -> Result<Dtype, Failure> {
    dtype(words.get(i).copied().unwrap_or_default())
}

fn seconds(ops: &OperatorModel, line: &str) -> Result<f64, Failure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| number(&words, i);
    let format = |i: usize| format(&words, i);
    let time = match words.first().copied().unwrap_or_default() {
        "gemm" => {
            let w = format(1)?;
            let block = words[1] == "fp8_block";
            ops.gemm_of(number(2)?, number(3)?, number(4)?, w, activations(w), block)
        }
        "decode" => {
            let mut batch = BatchStats::default();
            for _ in 0..number(6)? {
                batch.add_decode(number(7)?);
            }
            let shape = DecodeShape {
                heads: number(1)?,
                kv_heads: number(2)?,
                head_dim: number(3)?,
                kv_dtype: format(4)?,
                span: window(number(5)?),
            };
            ops.decode_attention(&shape, &batch, Cache::Warm)
        }
        "prefill" => {
            let batch = prompts(number(6)?, number(7)?);
            let shape = PrefillShape {
                heads: number(1)?,
                kv_heads: number(2)?,
                head_dim: number(3)?,
                kv_dtype: format(4)?,
                span: window(number(5)?),
            };
            ops.prefill_attention(&shape, &PrefillWork::of(&batch))
        }
        "linear_decode" | "kda_decode" => {
            let shape = state(rule(words[0]), number(1)?, number(2)?, format(3)?);
            ops.state_decode(&shape, number(4)?)
        }
        "linear_prefill" | "kda_prefill" => {
            let batch = prompts(number(4)?, number(5)?);
            let shape = state(rule(words[0]), number(1)?, number(2)?, format(3)?);
            ops.state_prefill(&shape, &PrefillWork::of(&batch))
        }
        "convolution" => ops.convolution(&convolution(number(1)?), number(2)?, number(3)?),
        "moe" => {
            let weights = format(1)?;
            let shape = MoeShape {
                hidden: number(2)?,
                intermediate: number(3)?,
                top_k: number(4)?,
                experts: number(5)?,
                tp: number(6)?,
                ep: number(7)?,
                weights,
                activations: activations(weights),
                block_scales: words[1] == "fp8_block",
            };
            let skew: f64 = words.get(9).ok_or("a line is too short")?.parse()?;
            let routing = if skew > 0.0 {
                Routing::PowerLaw(skew)
            } else {
                Routing::Even
            };
            ops.moe(&shape, number(8)?, routing)
        }
        "elementwise" => {
            let number = |i: usize| {
                words
                    .get(i)
                    .ok_or("a line is too short")?
                    .parse::<f64>()
                    .map_err(Failure::from)
            };
            ops.elementwise(number(1)?, number(2)?)
        }
        _ => return latent_seconds(ops, &words),
    };
    Ok(time.seconds)
}

/// Latent attention, dense and sparse.
fn latent_seconds(ops: &OperatorModel, words: &[&str]) -> Result<f64, Failure> {
    let number = |i: usize| number(words, i);
    let format = |i: usize| format(words, i);
    let time = match words.first().copied().unwrap_or_default() {
        "mla_decode" => {
            let mut batch = BatchStats::default();
            for _ in 0..number(3)? {
                batch.add_decode(number(4)?);
            }
            let shape = MlaShape {
                heads: number(1)?,
                kv_lora_rank: 512,
                rope_dim: 64,
                kv_dtype: format(2)?,
            };
            ops.decode_mla(&shape, &batch, Cache::Warm)
        }
        "mla_prefill" => {
            let batch = prompts(number(3)?, number(4)?);
            let heads = number(1)?;
            let shape = PrefillShape {
                heads,
                kv_heads: heads,
                head_dim: 160,
                kv_dtype: format(2)?,
                span: Span::All,
            };
            ops.prefill_mla(&shape, &PrefillWork::of(&batch))
        }
        "dsa_decode" => {
            let mut batch = BatchStats::default();
            for _ in 0..number(4)? {
                batch.add_decode(number(5)?);
            }
            ops.decode_sparse(&sparse(number(1)?, number(2)?, format(3)?), &batch)
        }
        "dsa_prefill" => {
            let mut batch = BatchStats::default();
            for _ in 0..number(4)? {
                batch.add_prefill(number(5)?, number(6)?, true);
            }
            let shape = sparse(number(1)?, number(2)?, format(3)?);
            let heads = shape.latent.heads;
            let dense = PrefillShape {
                heads,
                kv_heads: heads,
                head_dim: 160,
                kv_dtype: shape.latent.kv_dtype,
                span: Span::All,
            };
            ops.prefill_sparse(&shape, &dense, &PrefillWork::of(&batch))
        }
        other => return Err(format!("unknown operator `{other}`").into()),
    };
    Ok(time.seconds)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [accelerator, engine, rest @ ..] = args.as_slice() else {
        return Err("ACCELERATOR and engine are needed".into());
    };
    let engine = match engine.as_str() {
        "vllm_v1" => EngineKind::VllmV1,
        "trt_llm" => EngineKind::TrtLlm,
        "sglang" => EngineKind::Sglang,
        other => return Err(format!("no tables of engine `{other}`").into()),
    };
    let catalog = Catalog::builtin();
    let chip = catalog.accelerator(accelerator)?;
    let relative = chip.same_chip_as.as_deref();
    let mut resolved = profiles::resolve(&chip.name, relative, engine, &Choice::Auto)?;
    if rest.is_empty() {
        resolved.profile.surfaces.clear();
        resolved.profile.shapes.clear();
    }
    let kernels = match engine {
        EngineKind::TrtLlm => Kernels::trt_llm(),
        EngineKind::Sglang => Kernels {
            sparse: SparseKernels::Sglang,
            states: Dtype::Fp32,
            ..Kernels::default()
        },
        _ => Kernels::default(),
    };
    let ops = OperatorModel::new(chip, &resolved.profile).with_kernels(kernels);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{:.6e}", seconds(&ops, &line?)?)?;
    }
    Ok(())
}
