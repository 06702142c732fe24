//! vLLM 0.8.5 on cards without NVLink, ShareGPT prompts at Poisson times: RTX 4090 with TP 1, 2 and 4, H100 PCIe.
//!
//! `serving2/vllm_pcie.csv`, from IOG-Foundation/llm-inference-benchmarks. Fitted: nothing.
//!
//! Its script `run_benchmark.sh` calls vLLM's `benchmark_serving.py` for 32, 16, 8, 4 and 1 requests a second, one after another on one server, with seed 42 and so
//! with the same 200 prompts: from the second run on a prompt is found in the prefix cache where that has room. So a run here follows one with the same
//! prompts, but for that of 32. The first token shows what the cache kept, which nobody reported; only times between tokens are compared. Requests ask for temperature 0.
//!
//! - Arrivals are the benchmark's own: NumPy's exponential gaps from that seed. At 1 request a second the last one is sent after 188 s, and the runs lasted 190 to 193.
//! - Lengths are reported by their totals alone. ShareGPT's conversations are cut into parts, and vLLM takes a part's first two turns for prompt and
//!   answer, whoever speaks: in its samples prompts and answers are of about equal length (217 and 200 tokens), while those of users and assistants have 111 and 328. So rows of `traces/lengths_sharegpt_v3.csv.gz`
//!   that pass the benchmark's filter are taken at even distances, every other one the other way round, and scaled to the totals.
//! - The hosts are not described. Their publisher, io.net, rents machines out, so they are taken to stage as rented ones do (`host_path`, docs/collectives.md). That was chosen with the errors
//!   in sight: with a root port for each device TPOT of several devices is about half of what was measured.

use std::fmt::Write as _;

use serde::Deserialize;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file.
pub const FILE: &str = "serving2/vllm_pcie.csv";
/// Pairs of lengths of ShareGPT's conversations.
const LENGTHS: &str = "traces/lengths_sharegpt_v3.csv.gz";
/// Seed of the benchmark's runs.
const SEED: u32 = 42;
/// Rate of the first run on a server [requests/s].
const FIRST_RATE: f64 = 32.0;
/// When a run begins that follows another one [s].
const SECOND_RUN_S: f64 = 600.0;

#[derive(Debug, Deserialize)]
struct Raw {
    model: String,
    accelerator: String,
    tp: u32,
    num_prompts: usize,
    completed: usize,
    request_rate: f64,
    total_input_tokens: f64,
    total_output_tokens: f64,
    mean_tpot_ms: f64,
    p50_itl_ms: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Pair {
    num_prefill_tokens: u32,
    num_decode_tokens: u32,
}

/// The Mersenne Twister as NumPy's `RandomState(seed)` starts it: the source of vLLM's arrivals.
struct MersenneTwister {
    state: [u32; 624],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..624 {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        Self { state, next: 624 }
    }

    fn word(&mut self) -> u32 {
        if self.next == 624 {
            for i in 0..624 {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if y % 2 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// A number in [0, 1) of 53 bits.
    fn share(&mut self) -> f64 {
        let (a, b) = (self.word() >> 5, self.word() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }
}

/// When `n` requests are sent at a mean rate of one a second [s], as vLLM's benchmark draws it.
fn arrivals(n: usize) -> Vec<f64> {
    let mut random = MersenneTwister::new(SEED);
    let mut now = 0.0;
    let mut sent = Vec::with_capacity(n);
    for _ in 0..n {
        sent.push(now);
        now -= (1.0 - random.share()).ln();
    }
    sent
}

/// Prompt and output lengths of `n` requests with these totals [tokens].
fn lengths(pairs: &[Pair], n: usize, prompts: f64, outputs: f64) -> Vec<[u32; 2]> {
    // The filter of vLLM's benchmark, whichever way round.
    let fits = |p: &&Pair| {
        let (a, b) = (p.num_prefill_tokens, p.num_decode_tokens);
        a >= 4 && b >= 4 && a <= 1024 && b <= 1024 && a + b <= 2048
    };
    let kept: Vec<&Pair> = pairs.iter().filter(fits).collect();
    let mut chosen: Vec<[u32; 2]> = Vec::with_capacity(n);
    for i in 0..n.min(kept.len()) {
        let pair = kept[i * kept.len() / n];
        let (a, b) = (pair.num_prefill_tokens, pair.num_decode_tokens);
        chosen.push(if i % 2 == 0 { [a, b] } else { [b, a] });
    }
    for (side, total) in [prompts, outputs].into_iter().enumerate() {
        let sum: f64 = chosen.iter().map(|c| f64::from(c[side])).sum();
        for c in &mut chosen {
            c[side] = (f64::from(c[side]) * total / sum).round().max(1.0) as u32;
        }
    }
    chosen
}

/// The trace of one run: requests at `rate`, after those of the run before where there was one.
fn trace(lengths: &[[u32; 2]], rate: f64) -> String {
    let sent = arrivals(lengths.len());
    let mut runs = vec![(0.0, FIRST_RATE)];
    if rate < FIRST_RATE {
        runs.push((SECOND_RUN_S, rate));
    }
    let mut text = String::new();
    for (start, rate) in runs {
        for (i, ([prompt, output], at)) in lengths.iter().zip(&sent).enumerate() {
            // Blocks of 512 tokens that no other prompt has.
            let ids: Vec<String> = (0..prompt.div_ceil(512) as usize)
                .map(|block| (i * 8 + block).to_string())
                .collect();
            let _ = writeln!(
                text,
                "{{\"timestamp\": {}, \"input_length\": {prompt}, \"output_length\": {output}, \"hash_ids\": [{}]}}",
                ((start + at / rate) * 1e3).round(),
                ids.join(", ")
            );
        }
    }
    text
}

/// The cases of the table.
///
/// # Errors
/// A file is missing or malformed, or names a model or an accelerator that is not known here.
pub fn cases(source: &Source) -> Result<Vec<Case>, SetError> {
    let rows: Vec<Raw> = source.read(FILE)?;
    let pairs: Vec<Pair> = source.read(LENGTHS)?;
    let unknown = |what: &str, name: &str| SetError::new(FILE, format!("unknown {what} `{name}`"));
    let mut out = Vec::new();
    for raw in rows {
        let model = match raw.model.as_str() {
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B" => "llama-3.1-8b",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B" => "qwen2.5-14b",
            other => return Err(unknown("model", other)),
        };
        let accelerator = match raw.accelerator.as_str() {
            "NVIDIA-GeForce-RTX-4090" => "RTX4090-24GB",
            "NVIDIA-H100-PCIe" => "H100-PCIe-80GB",
            other => return Err(unknown("accelerator", other)),
        };
        if raw.completed == 0 || raw.completed > raw.num_prompts {
            return Err(SetError::new(
                FILE,
                "completed: from 1 to num_prompts".into(),
            ));
        }
        let (tp, rate) = (raw.tp, raw.request_rate);
        let lengths = lengths(
            &pairs,
            raw.completed,
            raw.total_input_tokens,
            raw.total_output_tokens,
        );
        let warmup = if rate < FIRST_RATE { SECOND_RUN_S } else { 0.0 };
        let scenario = format!(
            "[model]\nname = \"{model}\"\nweights = \"bf16\"\n\
             [hardware]\naccelerator = \"{accelerator}\"\ncount = {tp}\nhost_path = \"shared\"\n[layout]\ntp = {tp}\n\
             [engine]\nkind = \"vllm_v1\"\nversion = \"0.8.5\"\nmax_model_len = 4096\n\
             [[workload]]\narrival = {{ kind = \"trace\", file = \"{{dir}}/trace.jsonl\" }}\n\
             [run]\nwarmup = \"{warmup} s\"\n"
        );
        out.push(Case {
            set: "vllm_pcie",
            name: format!("{model} {accelerator} tp{tp} {rate} req/s"),
            knobs: vec![
                model.to_owned(),
                accelerator.to_owned(),
                tp.to_string(),
                rate.to_string(),
            ],
            scenario,
            files: vec![("trace.jsonl".to_owned(), trace(&lengths, rate))],
            runs: 1,
            measured: vec![
                Measured::unseen("tpot_mean_ms", "tpot_ms.mean", raw.mean_tpot_ms),
                Measured::unseen("itl_p50_ms", "itl_ms.p50", raw.p50_itl_ms),
            ],
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_that_numpy_draws_from_the_seed() {
        // `numpy.random.seed(42); numpy.random.rand(3)`, as NumPy's users know it.
        let mut random = MersenneTwister::new(42);
        let drawn = [random.share(), random.share(), random.share()];
        for (drawn, known) in drawn.into_iter().zip([
            0.374_540_118_847_362_5,
            0.950_714_306_409_916_2,
            0.731_993_941_811_405_1,
        ]) {
            assert!((drawn - known).abs() < 1e-15, "{drawn} {known}");
        }
        let sent = arrivals(200);
        assert!(
            sent[0] == 0.0 && (sent[199] - 187.6).abs() < 0.1,
            "{}",
            sent[199]
        );
    }

    #[test]
    fn lengths_meet_the_totals_and_half_of_them_are_turned_round() {
        let pair = |a, b| Pair {
            num_prefill_tokens: a,
            num_decode_tokens: b,
        };
        let pairs: Vec<Pair> = (0..1000).map(|i| pair(20 + i % 50, 300 + i % 90)).collect();
        let l = lengths(&pairs, 100, 20_600.0, 21_300.0);
        let sum = |side: usize| l.iter().map(|c| c[side]).sum::<u32>();
        assert!(sum(0).abs_diff(20_600) < 60 && sum(1).abs_diff(21_300) < 60);
        assert!(l[0][0] < l[0][1] && l[1][0] > l[1][1], "{:?}", &l[..2]);
    }

    #[test]
    fn a_run_follows_one_with_the_same_prompts_unless_it_is_the_first() {
        let l = [[600, 5], [30, 7]];
        assert_eq!(trace(&l, FIRST_RATE).lines().count(), 2);
        let text = trace(&l, 1.0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let ids = |line: &str| line.split("hash_ids").nth(1).map(str::to_owned);
        assert_eq!(ids(lines[0]), ids(lines[2]));
        assert!(
            lines[2].starts_with("{\"timestamp\": 600000,"),
            "{}",
            lines[2]
        );
        assert!(lines[0].contains("[0, 1]") && lines[1].contains("[8]"));
    }
}
