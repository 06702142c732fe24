//! Published serving points: Llama-3.1-405B on two H100 nodes, and Llama-3.1-8B on Inferentia2.
//!
//! `serving_points.csv`. 405B: NVIDIA/AWS multi-node Triton guide, TensorRT-LLM, TP 8 x PP 2, one request at a time; nothing of
//! it is fitted. Inferentia2: Hugging Face optimum-neuron blog, TGI on Neuron, three replicas of TP 8 behind nginx, GuideLLM;
//! the host's time per compiled row and per slot in use are fitted on two ITL figures, everything else is predicted. Also
//! `inf2_guidellm.csv`: one replica under optimum-neuron's vLLM plug-in with a static batch of 32; nothing of it is fitted. What each of
//! its runs varied is the folder of its report in huggingface/optimum-neuron (`benchmark/vllm/results/`), see `variant`.
//!
//! Requests of both draw their tokens: TGI's chat route does so unless the temperature is 0, vLLM takes what a call leaves out from
//! the model's `generation_config.json`, and GuideLLM sends no temperature.

use std::collections::BTreeMap;

use serde::Deserialize;

use sim::workload::lengths::interpolate;

use super::case::{Case, Measured, Source};
use super::error::SetError;

/// Name of the data file of published points.
pub const FILE: &str = "serving_points.csv";
/// Name of the data file of optimum-neuron's own benchmark.
pub const GUIDELLM: &str = "inf2_guidellm.csv";

#[derive(Debug, Deserialize)]
struct Raw {
    model: String,
    load_mode: String,
    concurrency: Option<u32>,
    metric: String,
    stat: String,
    value: f64,
}

/// Orders of the output lengths that are tried, since the right one is not reported.
const ORDERS: u64 = 20;

/// One benchmark's figures by (metric, statistic).
type Figures = BTreeMap<(String, String), f64>;

fn figures(rows: &[Raw], of: impl Fn(&Raw) -> bool) -> Figures {
    rows.iter()
        .filter(|r| of(r))
        .map(|r| ((r.metric.clone(), r.stat.clone()), r.value))
        .collect()
}

fn get(f: &Figures, metric: &str, stat: &str) -> Option<f64> {
    f.get(&(metric.to_owned(), stat.to_owned())).copied()
}

fn push(
    out: &mut Vec<Measured>,
    f: &Figures,
    (metric, stat): (&str, &str),
    name: &'static str,
    path: &'static str,
    scale: f64,
    fitted: bool,
) {
    if let Some(v) = get(f, metric, stat) {
        out.push(Measured {
            metric: name,
            path,
            value: v * scale,
            fitted,
        });
    }
}

/// The 405B case.
///
/// # Errors
/// The file is missing or malformed.
pub fn llama_405b(source: &Source) -> Result<Vec<Case>, SetError> {
    let rows: Vec<Raw> = source.read(FILE)?;
    let f = figures(&rows, |r| r.model == "Llama-3.1-405B");
    if f.is_empty() {
        return Ok(Vec::new());
    }
    let mut measured = Vec::new();
    push(
        &mut measured,
        &f,
        ("ttft_ms", "avg"),
        "ttft_ms",
        "ttft_ms.mean",
        1.0,
        false,
    );
    push(
        &mut measured,
        &f,
        ("itl_ms", "avg"),
        "itl_ms",
        "itl_ms.mean",
        1.0,
        false,
    );
    push(
        &mut measured,
        &f,
        ("e2e_ms", "avg"),
        "e2e_ms",
        "e2e_ms.mean",
        1.0,
        false,
    );
    push(
        &mut measured,
        &f,
        ("output_throughput", "avg"),
        "output_tok_s",
        "throughput_with_drain.output_tokens_per_s",
        1.0,
        false,
    );
    let scenario = "[model]\nname = \"llama-3.1-405b\"\nweights = \"bf16\"\n\
        [hardware]\ninstance = \"p5.48xlarge\"\n[layout]\ntp = 8\npp = 2\n\
        [engine]\nkind = \"trt_llm\"\nmax_batch_size = 8\nmax_num_tokens = 4096\nmax_seq_len = 131072\n\
        gemm_plugin = false\nuse_fused_mlp = false\nmulti_block_mode = false\n\
        [[workload]]\narrival = { kind = \"closed\", concurrency = 1 }\nprompt = 1024\noutput = 1024\n\
        [run]\nrequests = 5\n";
    Ok(vec![Case {
        set: "llama_405b",
        name: "llama-3.1-405b 2 x p5.48xlarge tp8 pp2 c=1".into(),
        knobs: Vec::new(),
        scenario: scenario.into(),
        files: Vec::new(),
        runs: 1,
        measured,
    }])
}

/// Output lengths of `n` requests as the benchmark reports them [tokens]: one at the middle of each of `n` equal shares of its quantiles, all
/// moved by what brings their mean to the reported one: so few requests drawn at random would have another mean than the run had. Their order is
/// not reported.
fn output_lengths(f: &Figures, n: usize) -> Vec<u32> {
    let mut points = vec![[0.0, get(f, "osl", "p1").unwrap_or(60.0)]];
    for (share, stat) in [
        (0.01, "p1"),
        (0.05, "p5"),
        (0.5, "p50"),
        (0.95, "p95"),
        (0.99, "p99"),
    ] {
        if let Some(v) = get(f, "osl", stat) {
            points.push([share, v]);
        }
    }
    points.push([1.0, get(f, "osl", "p99").unwrap_or(450.0)]);
    let drawn: Vec<f64> = (0..n)
        .map(|i| interpolate(&points, (i as f64 + 0.5) / n as f64))
        .collect();
    let mean = drawn.iter().sum::<f64>() / n as f64;
    let shift = get(f, "osl", "avg").map_or(0.0, |reported| reported - mean);
    drawn
        .iter()
        .map(|tokens| (tokens + shift).round().max(1.0) as u32)
        .collect()
}

/// The two modes of the Inferentia2 benchmark.
///
/// # Errors
/// The file is missing or malformed.
pub fn inf2(source: &Source) -> Result<Vec<Case>, SetError> {
    let rows: Vec<Raw> = source.read(FILE)?;
    let mut out = Vec::new();
    for throughput in [false, true] {
        let f = figures(&rows, |r| {
            r.model == "Llama-3.1-8B-Instruct"
                && (r.concurrency == Some(1)) != throughput
                && r.load_mode.contains("all requests at once") == throughput
        });
        if f.is_empty() {
            continue;
        }
        let requests = get(&f, "completed_requests", "total").map_or(11, |n| n as usize);
        let prompt = get(&f, "isl", "avg").unwrap_or(15_900.0);
        let arrival = if throughput {
            format!("{{ kind = \"burst\", requests = {requests}, max_in_flight = 128 }}")
        } else {
            "{ kind = \"closed\", concurrency = 1 }".to_owned()
        };
        let scenario = format!(
            "[model]\nname = \"llama-3.1-8b\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"inf2.48xlarge\"\n[layout]\ntp = 8\nreplicas = 3\n\
             [engine]\nkind = \"tgi_neuron\"\nbatch_size = 8\nsequence_length = 16512\n\
             max_input_tokens = 16000\non_device_sampling = false\n\
             [router]\npolicy = \"round_robin\"\n\
             [[workload]]\narrival = {arrival}\n{LLAMA_SAMPLING}\nprompt = {}\nmax_tokens = 512\n\
             output = {{ kind = \"empirical\", file = \"{{dir}}/outputs.csv\", column = \"tokens\", order = \"shuffled\" }}\n\
             [run]\nrequests = {requests}\n",
            prompt.round(),
        );
        let outputs: String = output_lengths(&f, requests)
            .iter()
            .map(|n| format!("{n}\n"))
            .collect();
        out.push(Case {
            set: "inf2",
            name: format!(
                "llama-3.1-8b inf2.48xlarge 3 x tp8 {}",
                if throughput {
                    "throughput"
                } else {
                    "synchronous"
                }
            ),
            knobs: Vec::new(),
            scenario,
            files: vec![("outputs.csv".into(), format!("tokens\n{outputs}"))],
            runs: ORDERS,
            measured: inf2_figures(&f, throughput),
        });
    }
    Ok(out)
}

/// What was measured under one load.
fn inf2_figures(f: &Figures, throughput: bool) -> Vec<Measured> {
    let mut m = Vec::new();
    push(
        &mut m,
        f,
        ("output_throughput", "avg"),
        "output_tok_s",
        "throughput_with_drain.output_tokens_per_s",
        1.0,
        false,
    );
    push(
        &mut m,
        f,
        ("ttft_ms", "p50"),
        "ttft_p50_ms",
        "ttft_ms.p50",
        1.0,
        false,
    );
    push(
        &mut m,
        f,
        ("itl_ms", "avg"),
        "itl_mean_ms",
        "itl_ms.mean",
        1.0,
        !throughput,
    );
    // Alone, every gap is the same step: its median is the mean that was fitted.
    if throughput {
        push(
            &mut m,
            f,
            ("itl_ms", "p50"),
            "itl_p50_ms",
            "itl_ms.p50",
            1.0,
            throughput,
        );
    }
    push(
        &mut m,
        f,
        ("e2e_s", "avg"),
        "e2e_mean_ms",
        "e2e_ms.mean",
        1e3,
        false,
    );
    m
}

#[derive(Debug, Deserialize)]
struct GuideRow {
    #[serde(rename = "Date")]
    date: String,
    max_batch: u32,
    seq_len: u32,
    max_users: u32,
    load_mode: String,
    input_tokens: u32,
    output_tokens: u32,
    achieved_rps: Option<f64>,
    ttft_mean_ms: f64,
    itl_mean_ms: f64,
    output_tok_s: f64,
}

/// What Llama 3's `generation_config.json` says of sampling.
const LLAMA_SAMPLING: &str = "sampling = { temperature = 0.6, top_p = 0.9 }";

/// What the run of this date had otherwise than the plug-in's defaults, as keys of `[engine]`, by the folder of its report: `chunked-8b-v2`,
/// `std-8b-v2`, `std-8b-ods-true`; `hybrid-ods-8b` has the defaults. `std`: no chunks. Without `ods` the host chooses the tokens. Other runs
/// are taken to have the defaults.
fn variant(date: &str) -> &'static str {
    match date {
        "2026-03-03-14-11-21" => "on_device_sampling = false\n",
        "2026-03-03-14-07-33" => "on_device_sampling = false\ncontext_chunk = 0\n",
        "2026-03-03-15-22-15" => "context_chunk = 0\n",
        _ => "",
    }
}

impl GuideRow {
    /// Tokens of an answer: those that came, where the rate of requests is told. Fewer came than were asked for, since answers end by themselves.
    fn tokens(&self) -> u32 {
        match self.achieved_rps.filter(|rate| *rate > 0.0) {
            Some(rate) => (self.output_tok_s / rate).round().max(2.0) as u32,
            None => self.output_tokens,
        }
    }
}

/// optimum-neuron's vLLM plug-in.
///
/// # Errors
/// The file is missing or malformed.
pub fn inf2_vllm(source: &Source) -> Result<Vec<Case>, SetError> {
    let mut out = Vec::new();
    for r in source.read::<GuideRow>(GUIDELLM)? {
        let synchronous = r.load_mode == "synchronous";
        let users = if synchronous { 1 } else { r.max_users };
        let scenario = format!(
            "[model]\nname = \"llama-3.1-8b\"\nweights = \"bf16\"\n\
             [hardware]\ninstance = \"inf2.48xlarge\"\n[layout]\ntp = 8\n\
             [engine]\nkind = \"tgi_neuron\"\nserver = \"optimum_vllm\"\nbatch_size = {}\nsequence_length = {}\n{}\
             [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\n{LLAMA_SAMPLING}\nprompt = {}\noutput = {}\n\
             [run]\nrequests = {}\n",
            r.max_batch,
            r.seq_len,
            variant(&r.date),
            r.input_tokens,
            r.tokens(),
            if synchronous { 8 } else { 4 * users },
        );
        out.push(Case {
            set: "inf2_vllm",
            name: format!("{} {} users={}", r.date, r.load_mode, users),
            knobs: Vec::new(),
            scenario,
            files: Vec::new(),
            runs: 1,
            measured: vec![
                Measured::unseen("ttft_mean_ms", "ttft_ms.mean", r.ttft_mean_ms),
                Measured::unseen("itl_mean_ms", "itl_ms.mean", r.itl_mean_ms),
                Measured::unseen(
                    "output_tok_s",
                    "throughput_with_drain.output_tokens_per_s",
                    r.output_tok_s,
                ),
            ],
        });
    }
    Ok(out)
}
