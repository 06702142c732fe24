//! Prints the engine's decode and prefill throughput as JSON lines, for `compare/throughput.py`.
//!
//! `cargo run -p engine --release --example throughput -- --model DIR --dtype bf16 --threads 1`

use std::path::PathBuf;
use std::time::Instant;

use engine::executor::{Executor, SeqInput, StepTimes};
use engine::model::{ModelOptions, load};

const BLOCK: usize = 16;

struct Arguments {
    model: Option<PathBuf>,
    options: ModelOptions,
    /// Tokens already in the cache when decoding begins.
    context: usize,
    steps: usize,
    repeats: usize,
}

fn arguments() -> Result<Arguments, String> {
    let mut a = Arguments {
        model: None,
        options: ModelOptions::default(),
        context: 128,
        steps: 32,
        repeats: 3,
    };
    let mut list = std::env::args().skip(1);
    while let Some(flag) = list.next() {
        let value = list.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || {
            value
                .parse::<usize>()
                .map_err(|e| format!("{flag} {value}: {e}"))
        };
        match flag.as_str() {
            "--model" => a.model = Some(value.into()),
            "--dtype" => a.options.dtype = Some(value.parse()?),
            "--threads" => a.options.threads = number()?,
            "--tp" => a.options.tp = number()?,
            "--pp" => a.options.pp = number()?,
            "--context" => a.context = number()?,
            "--steps" => a.steps = number()?.max(1),
            "--repeats" => a.repeats = number()?.max(1),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(a)
}

fn input(sequence: usize, room: usize, from: usize, count: usize) -> SeqInput {
    let per = room.div_ceil(BLOCK);
    let first = (sequence * per) as u32;
    SeqInput {
        tokens: (from..from + count)
            .map(|p| ((p * 31 + sequence * 7) % 256) as u32)
            .collect(),
        context: from as u32,
        blocks: (first..first + per as u32).collect(),
        sample: true,
    }
}

fn step(model: &mut dyn Executor, inputs: Vec<SeqInput>) -> StepTimes {
    model.submit(inputs).expect("a step that fits");
    model.collect().expect("a step that ends").times
}

/// The best of several runs: what the machine does when nothing disturbs it.
fn best(repeats: usize, mut run: impl FnMut() -> StepTimes) -> (f64, StepTimes) {
    (0..repeats)
        .map(|_| {
            let begin = Instant::now();
            let times = run();
            (begin.elapsed().as_secs_f64(), times)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("at least one run")
}

fn print(kind: &str, size: usize, tokens: usize, seconds: f64, t: StepTimes) {
    println!(
        "{{\"kind\":\"{kind}\",\"size\":{size},\"tokens_per_s\":{:.1},\"linear_ratio\":{:.3},\"attention_ratio\":{:.3},\"elementwise_ratio\":{:.3},\"communication_ratio\":{:.3}}}",
        tokens as f64 / seconds,
        t.linear / t.total,
        t.attention / t.total,
        t.elementwise / t.total,
        t.communication / t.total,
    );
}

fn main() {
    let a = match arguments() {
        Ok(a) => a,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let batches = [1, 2, 4, 8, 16];
    let room = (a.context + a.steps).max(512);
    let options = ModelOptions {
        num_blocks: (16 * room.div_ceil(BLOCK)) as u32,
        ..a.options
    };
    let loaded = match load(a.model.as_deref(), &options) {
        Ok(loaded) => loaded,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(2);
        }
    };
    let mut model = loaded.executor;
    let model = model.as_mut();
    for tokens in [128, 512] {
        step(model, vec![input(0, room, 0, tokens)]);
        let (seconds, times) = best(a.repeats, || step(model, vec![input(0, room, 0, tokens)]));
        print("prefill", tokens, tokens, seconds, times);
    }
    for batch in batches {
        let prompts = (0..batch).map(|s| input(s, room, 0, a.context)).collect();
        step(model, prompts);
        let (seconds, times) = best(a.repeats, || {
            let mut sum = StepTimes::default();
            for i in 0..a.steps {
                let inputs = (0..batch)
                    .map(|s| input(s, room, a.context + i, 1))
                    .collect();
                let t = step(model, inputs);
                sum.linear += t.linear;
                sum.attention += t.attention;
                sum.elementwise += t.elementwise;
                sum.communication += t.communication;
                sum.total += t.total;
            }
            sum
        });
        print("decode", batch, batch * a.steps, seconds, times);
    }
}
