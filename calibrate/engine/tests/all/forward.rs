//! What must not change the logits: batching, chunking, the placing of blocks, cached prefixes, files, threads, and
//! (within rounding) formats, tensor and pipeline parallelism.

use std::path::Path;

use engine::executor::{Executor, SeqInput};
use engine::model::{ModelOptions, init, load};
use kernels::dtype::WeightDtype;

const BLOCK: usize = 16;

fn options() -> ModelOptions {
    ModelOptions {
        block_size: BLOCK as u32,
        num_blocks: 64,
        ..ModelOptions::default()
    }
}

fn model(dir: &Path, options: &ModelOptions) -> Box<dyn Executor> {
    load(Some(dir), options).unwrap().executor
}

/// A folder with a random model of 600 thousand parameters: 2 layers, 4 heads, 2 KV heads.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = init::write(dir.path(), 600_000, 7, &mut |_| ()).unwrap();
    assert_eq!((config.layers, config.heads, config.kv_heads), (2, 4, 2));
    dir
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + seed * 91 + i * i % 13) % 256)
        .collect()
}

fn blocks(first: u32, tokens: usize) -> Vec<u32> {
    (first..first + tokens.div_ceil(BLOCK) as u32).collect()
}

fn part(tokens: &[u32], context: usize, blocks: &[u32], sample: bool) -> SeqInput {
    SeqInput {
        tokens: tokens.to_vec(),
        context: context as u32,
        blocks: blocks.to_vec(),
        sample,
    }
}

fn run(model: &mut dyn Executor, step: Vec<SeqInput>) -> Vec<f32> {
    model.submit(step).unwrap();
    let out = model.collect().unwrap();
    let t = out.times;
    assert!(
        t.linear > 0.0 && t.attention > 0.0 && t.elementwise > 0.0,
        "{t:?}"
    );
    assert!(out.logits.is_empty() || t.lm_head > 0.0, "{t:?}");
    assert!(t.named() <= t.total * 1.001 + 1e-6, "{t:?}");
    out.logits
}

/// Logits after a prompt, alone in one step.
fn whole(model: &mut dyn Executor, tokens: &[u32]) -> Vec<f32> {
    run(model, vec![part(tokens, 0, &blocks(0, tokens.len()), true)])
}

fn close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    assert!(!a.is_empty());
    let scale = (b.iter().map(|x| x * x).sum::<f32>() / b.len() as f32).sqrt();
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * scale,
            "{what}: logit {i} is {a}, not {b} (rms {scale})"
        );
    }
}

#[test]
fn batched_equals_unbatched_bit_by_bit() {
    let dir = folder();
    let mut model = model(dir.path(), &options());
    let prompts: Vec<_> = [33, 1, 16, 70, 5]
        .iter()
        .enumerate()
        .map(|(i, n)| prompt(i as u32, *n))
        .collect();
    let alone: Vec<_> = prompts.iter().flat_map(|p| whole(&mut *model, p)).collect();
    let step = prompts
        .iter()
        .enumerate()
        .map(|(i, p)| part(p, 0, &blocks(i as u32 * 8, p.len()), true))
        .collect();
    assert_eq!(run(&mut *model, step), alone);
    // Decodes together with a prompt, and a sequence whose logits nobody wants.
    let next: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, p)| {
            part(
                &[i as u32 + 9],
                p.len(),
                &blocks(i as u32 * 8, p.len() + 1),
                i != 2,
            )
        })
        .chain([part(&prompt(9, 20), 0, &blocks(50, 20), true)])
        .collect();
    let mixed = run(&mut *model, next);
    let mut expected = Vec::new();
    for (i, p) in prompts.iter().enumerate().filter(|(i, _)| *i != 2) {
        let mut tokens = p.clone();
        tokens.push(i as u32 + 9);
        expected.extend(whole(&mut *model, &tokens));
    }
    expected.extend(whole(&mut *model, &prompt(9, 20)));
    assert_eq!(mixed, expected);
}

#[test]
fn chunked_prefill_equals_whole_bit_by_bit_for_any_chunks_and_block_sizes() {
    let dir = folder();
    let tokens = prompt(1, 75);
    let expected = whole(&mut *model(dir.path(), &options()), &tokens);
    for block_size in [1, 5, 16, 32] {
        let mut o = options();
        o.block_size = block_size;
        o.num_blocks = 80;
        let mut model = model(dir.path(), &o);
        for chunks in [vec![75], vec![16, 16, 43], vec![1, 73, 1], vec![40, 35]] {
            let blocks: Vec<u32> = (0..75_u32.div_ceil(block_size)).collect();
            let (mut at, mut logits) = (0, Vec::new());
            for chunk in chunks {
                logits = run(
                    &mut *model,
                    vec![part(&tokens[at..at + chunk], at, &blocks, true)],
                );
                at += chunk;
            }
            assert_eq!(logits, expected, "blocks of {block_size}");
        }
    }
}

#[test]
fn blocks_in_any_order_equal_contiguous_ones() {
    let dir = folder();
    let mut model = model(dir.path(), &options());
    let tokens = prompt(2, 90);
    let expected = whole(&mut *model, &tokens);
    let scattered = [63, 0, 17, 5, 40, 2];
    assert_eq!(
        run(&mut *model, vec![part(&tokens, 0, &scattered, true)]),
        expected
    );
}

#[test]
fn a_cached_prefix_equals_a_cold_prompt() {
    let dir = folder();
    let mut model = model(dir.path(), &options());
    let (a, mut b) = (prompt(3, 64), prompt(3, 64));
    b.extend(prompt(4, 20));
    let expected = whole(&mut *model, &b);
    run(&mut *model, vec![part(&a, 0, &[10, 11, 12, 13], true)]);
    // Two others share its first three blocks, at the same time.
    let shared = |own: [u32; 3]| {
        let blocks: Vec<u32> = [10, 11, 12].into_iter().chain(own).collect();
        part(&b[48..], 48, &blocks, true)
    };
    let both = run(
        &mut *model,
        vec![shared([20, 21, 22]), shared([30, 31, 32])],
    );
    let (first, second) = both.split_at(expected.len());
    assert_eq!(first, expected);
    assert_eq!(second, expected);
}

#[test]
fn sixteen_bit_formats_stay_close_to_single() {
    let dir = folder();
    let tokens = prompt(5, 50);
    let mut o = options();
    o.dtype = Some(WeightDtype::F32);
    let exact = whole(&mut *model(dir.path(), &o), &tokens);
    // The file holds bf16, which both others hold exactly up to f16's range; what differs is the rounding of the KV cache.
    for (dtype, tolerance) in [(WeightDtype::Bf16, 0.06), (WeightDtype::F16, 0.01)] {
        o.dtype = Some(dtype);
        let logits = whole(&mut *model(dir.path(), &o), &tokens);
        close(&logits, &exact, tolerance, dtype.name());
        assert_ne!(logits, exact);
    }
}

#[test]
fn tensor_and_pipeline_parallel_ranks_give_the_logits_of_one() {
    let dir = folder();
    let prompts = [prompt(6, 40), prompt(7, 3)];
    let step = || {
        let list = prompts.iter().enumerate();
        list.map(|(i, p)| part(p, 0, &blocks(i as u32 * 8, p.len()), true))
            .collect()
    };
    let decode = || vec![part(&[7], 3, &[8], true), part(&[9], 40, &[0, 1, 2], true)];
    let mut o = options();
    o.dtype = Some(WeightDtype::F32);
    let mut one = model(dir.path(), &o);
    let expected = [run(&mut *one, step()), run(&mut *one, decode())];
    for (tp, pp, threads) in [(2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 3), (2, 2, 2)] {
        (o.tp, o.pp, o.threads) = (tp, pp, threads);
        let mut many = model(dir.path(), &o);
        let what = format!("tp {tp} pp {pp} threads {threads}");
        for _ in 0..2 {
            let logits = [run(&mut *many, step()), run(&mut *many, decode())];
            for (logits, expected) in logits.iter().zip(&expected) {
                close(logits, expected, 2e-5, &what);
                if tp == 1 {
                    assert_eq!(
                        logits, expected,
                        "{what}: no sum is cut, so no bit may differ"
                    );
                }
            }
        }
    }
}

#[test]
fn pipeline_stages_hold_several_steps_at_once_and_answer_in_order() {
    let dir = folder();
    let mut o = options();
    let prompts: Vec<_> = (0..7).map(|i| prompt(i, 10 + i as usize * 3)).collect();
    let expected: Vec<_> = {
        let mut one = model(dir.path(), &o);
        prompts.iter().map(|p| whole(&mut *one, p)).collect()
    };
    o.pp = 2;
    let mut model = model(dir.path(), &o);
    assert_eq!(model.depth(), 2);
    let step = |i: usize| {
        vec![part(
            &prompts[i],
            0,
            &blocks(i as u32 * 8, prompts[i].len()),
            true,
        )]
    };
    model.submit(step(0)).unwrap();
    for (i, expected) in expected.iter().enumerate() {
        if i + 1 < prompts.len() {
            model.submit(step(i + 1)).unwrap();
            assert!(model.submit(step(0)).is_err(), "a third step has no place");
        }
        assert_eq!(&model.collect().unwrap().logits, expected);
    }
    assert!(model.collect().is_err());
}

#[test]
fn steps_that_do_not_fit_are_refused_and_the_next_one_works() {
    let dir = folder();
    let mut model = model(dir.path(), &options());
    for (bad, word) in [
        (part(&[], 0, &[0], true), "no new tokens"),
        (part(&[260], 0, &[0], true), "vocabulary"),
        (part(&[1; 17], 0, &[0], true), "blocks"),
        (part(&[1], 0, &[64], true), "block 64"),
        (part(&[1], 8192, &[0; 600], true), "positions"),
    ] {
        let message = model.submit(vec![bad]).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(whole(&mut *model, &[1, 2, 3]).len(), 260);
}

#[test]
fn a_model_in_several_files_equals_the_one_in_a_single_file() {
    let dir = folder();
    let tokens = prompt(8, 30);
    let expected = whole(&mut *model(dir.path(), &options()), &tokens);

    let single = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&single).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut weight_map = serde_json::Map::new();
    let names = tensors.names();
    for (i, file) in [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    .iter()
    .enumerate()
    {
        let part: Vec<_> = names
            .iter()
            .filter(|n| n.len() % 2 == i)
            .map(|n| (n.to_string(), tensors.tensor(n).unwrap()))
            .collect();
        assert!(!part.is_empty());
        for (name, _) in &part {
            weight_map.insert(name.clone(), (*file).into());
        }
        safetensors::serialize_to_file(part, None, &dir.path().join(file)).unwrap();
    }
    std::fs::remove_file(&single).unwrap();
    let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    std::fs::write(
        dir.path().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    assert_eq!(
        whole(&mut *model(dir.path(), &options()), &tokens),
        expected
    );
}

#[test]
fn damaged_folders_are_refused_with_the_file_and_the_reason() {
    type Damage = fn(&Path);
    let cases: [(Damage, &[&str]); 5] = [
        (
            |d| std::fs::remove_file(d.join("config.json")).unwrap(),
            &["config.json"],
        ),
        (
            |d| std::fs::remove_file(d.join("tokenizer.json")).unwrap(),
            &["tokenizer.json"],
        ),
        (
            |d| std::fs::remove_file(d.join("model.safetensors")).unwrap(),
            &["model.safetensors.index.json"],
        ),
        (
            |d| {
                let path = d.join("model.safetensors");
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            &["model.safetensors", "no valid"],
        ),
        (
            |d| {
                let path = d.join("config.json");
                let text = std::fs::read_to_string(&path)
                    .unwrap()
                    .replace("\"vocab_size\": 260", "\"vocab_size\": 300");
                std::fs::write(path, text).unwrap();
            },
            &["embed_tokens", "[300, 128]"],
        ),
    ];
    for (damage, words) in cases {
        let dir = folder();
        damage(dir.path());
        let message = load(Some(dir.path()), &options())
            .err()
            .unwrap()
            .to_string();
        for word in words {
            assert!(message.contains(word), "{message}");
        }
    }
}

#[test]
fn a_written_model_is_the_one_in_memory_and_options_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    init::write(
        dir.path(),
        init::DEFAULT_PARAMETERS,
        init::DEFAULT_SEED,
        &mut |_| (),
    )
    .unwrap();
    let written = load(Some(dir.path()), &options()).unwrap();
    let built_in = load(None, &options()).unwrap();
    assert_eq!(written.facts.config, built_in.facts.config);
    assert_eq!(written.facts.eos, built_in.facts.eos);
    assert_eq!(written.facts.chat_template, built_in.facts.chat_template);
    let tokens = written.tokenizer.encode("Once upon a time", false).unwrap();
    let (mut written, mut built_in) = (written.executor, built_in.executor);
    assert_eq!(
        whole(&mut *written, &tokens),
        whole(&mut *built_in, &tokens)
    );
    for (tp, pp, threads) in [(0, 1, 1), (3, 1, 1), (1, 99, 1), (1, 1, 0)] {
        let o = ModelOptions {
            tp,
            pp,
            threads,
            ..options()
        };
        assert!(load(None, &o).is_err());
    }
}
