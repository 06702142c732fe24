//! `/metrics`: counters, gauges and histograms under vLLM's names (`vllm/v1/metrics/loggers.py`), in Prometheus' text
//! format. One set of series for each replica, told apart by the label `engine`.

use std::fmt::Write as _;

use sim::policy::Load;

use crate::request::Finish;

/// Buckets of time to first token [s].
const TTFT: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Buckets of gaps between tokens [s]; vLLM's begin at 10 ms, a CPU engine with a small model is below.
const GAPS: [f64; 22] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Buckets of whole requests [s].
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Buckets of tokens in a step [tokens].
const ITERATION: [f64; 15] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    32768.0, 65536.0,
];
/// Buckets of tokens of a request [tokens]: 1, 2, 5 times powers of ten.
const TOKENS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0, 200_000.0,
];

/// Counts of values up to each bound, their sum and number.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|&b| b < value);
        self.counts[at] += 1;
        self.sum += value;
    }
}

/// How a request ended, as `request_success_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// All its tokens were made.
    Finished(Finish),
    /// Its client left.
    Abort,
    /// It was refused, dropped or its step failed.
    Error,
}

impl EndReason {
    const NAMES: [&'static str; 4] = ["stop", "length", "abort", "error"];

    fn index(self) -> usize {
        match self {
            EndReason::Finished(Finish::Stop) => 0,
            EndReason::Finished(Finish::Length) => 1,
            EndReason::Abort => 2,
            EndReason::Error => 3,
        }
    }
}

/// What is known of a request when it ends [s from its submission].
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// First scheduled.
    pub first_scheduled: Option<f64>,
    /// First token.
    pub first_token: Option<f64>,
    /// End.
    pub end: f64,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Tokens made [tokens].
    pub output_tokens: u32,
    /// Limit on the output [tokens].
    pub max_tokens: u32,
}

/// The series of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    /// What its scheduler showed last.
    pub load: Load,
    /// Steps that ended.
    pub steps: u64,
    preemptions: u64,
    prompt_tokens: u64,
    generation_tokens: u64,
    cache_queries: u64,
    cache_hits: u64,
    ended: [u64; 4],
    iteration: Histogram,
    ttft: Histogram,
    gaps: Histogram,
    per_output: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt: Histogram,
    request_output: Histogram,
    request_max: Histogram,
}

impl Default for ReplicaMetrics {
    fn default() -> Self {
        ReplicaMetrics {
            load: Load::default(),
            steps: 0,
            preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            cache_queries: 0,
            cache_hits: 0,
            ended: [0; 4],
            iteration: Histogram::new(&ITERATION),
            ttft: Histogram::new(&TTFT),
            gaps: Histogram::new(&GAPS),
            per_output: Histogram::new(&GAPS),
            e2e: Histogram::new(&REQUEST),
            queue: Histogram::new(&REQUEST),
            inference: Histogram::new(&REQUEST),
            prefill: Histogram::new(&REQUEST),
            decode: Histogram::new(&REQUEST),
            request_prompt: Histogram::new(&TOKENS),
            request_output: Histogram::new(&TOKENS),
            request_max: Histogram::new(&TOKENS),
        }
    }
}

impl ReplicaMetrics {
    /// A step over `tokens` tokens ended, during whose choice `preempted` requests lost their KV.
    pub fn step(&mut self, tokens: u32, preempted: usize) {
        self.steps += 1;
        self.iteration.observe(f64::from(tokens));
        self.preemptions += preempted as u64;
    }

    /// A request was first scheduled `queued` seconds after its submission, `cached` of its `prompt` tokens being cached.
    pub fn first_scheduled(&mut self, prompt: u32, cached: u32) {
        self.cache_queries += u64::from(prompt);
        self.cache_hits += u64::from(cached);
    }

    /// A request of `prompt` tokens has its first token `ttft` seconds after its submission.
    pub fn first_token(&mut self, ttft: f64, prompt: u32) {
        self.ttft.observe(ttft);
        self.prompt_tokens += u64::from(prompt);
        self.generation_tokens += 1;
    }

    /// A request has another token, `gap` seconds after the one before.
    pub fn token(&mut self, gap: f64) {
        self.gaps.observe(gap);
        self.generation_tokens += 1;
    }

    /// A request ended.
    pub fn ended(&mut self, reason: EndReason, t: &RequestTimes) {
        self.ended[reason.index()] += 1;
        let EndReason::Finished(_) = reason else {
            return;
        };
        self.e2e.observe(t.end);
        self.request_prompt.observe(f64::from(t.prompt_tokens));
        self.request_output.observe(f64::from(t.output_tokens));
        self.request_max.observe(f64::from(t.max_tokens));
        if let (Some(scheduled), Some(first)) = (t.first_scheduled, t.first_token) {
            self.queue.observe(scheduled);
            self.prefill.observe(first - scheduled);
            self.decode.observe(t.end - first);
            self.inference.observe(t.end - scheduled);
            if t.output_tokens > 1 {
                self.per_output
                    .observe((t.end - first) / f64::from(t.output_tokens - 1));
            }
        }
    }

    /// Requests that ended, by `stop`, `length`, `abort` and `error`.
    pub fn ends(&self) -> [u64; 4] {
        self.ended
    }

    /// Tokens made [tokens].
    pub fn generation_tokens(&self) -> u64 {
        self.generation_tokens
    }
}

/// What does not change while a server runs.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// Name of the model.
    pub model: String,
    /// Tokens per KV block [tokens].
    pub block_size: u32,
    /// KV blocks of a replica.
    pub kv_blocks: u64,
    /// Whether prompts are found in the prefix cache.
    pub prefix_caching: bool,
}

/// A kind of series, and how to read it.
type Gauge = fn(&ReplicaMetrics) -> f64;
type Counter = fn(&ReplicaMetrics) -> u64;
type Histo = fn(&ReplicaMetrics) -> &Histogram;

/// The text that a scrape gets: a snapshot of each replica's series.
pub fn render(info: &ServerInfo, replicas: &[ReplicaMetrics]) -> String {
    let model = escape(&info.model);
    let label = |i: usize| format!("engine=\"{i}\",model_name=\"{model}\"");
    let mut out = String::new();
    let head = |out: &mut String, name: &str, help: &str, kind: &str| {
        let _ = writeln!(out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    };
    let gauges: [(&str, &str, Gauge); 4] = [
        (
            "num_requests_running",
            "Number of requests in model execution batches.",
            |m| f64::from(m.load.running),
        ),
        (
            "num_requests_waiting",
            "Number of requests waiting to be processed.",
            |m| f64::from(m.load.waiting),
        ),
        (
            "kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            kv_use,
        ),
        (
            "gpu_cache_usage_perc",
            "The same under its name before vLLM 0.11.",
            kv_use,
        ),
    ];
    for (name, help, read) in gauges {
        head(&mut out, name, help, "gauge");
        for (i, m) in replicas.iter().enumerate() {
            let _ = writeln!(out, "vllm:{name}{{{}}} {}", label(i), read(m));
        }
    }
    let counters: [(&str, &str, Counter); 5] = [
        (
            "prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            |m| m.cache_queries,
        ),
        (
            "prefix_cache_hits",
            "Prefix cache hits, in terms of number of cached tokens.",
            |m| m.cache_hits,
        ),
        (
            "num_preemptions",
            "Cumulative number of preemption from the engine.",
            |m| m.preemptions,
        ),
        (
            "prompt_tokens",
            "Number of prefill tokens processed.",
            |m| m.prompt_tokens,
        ),
        (
            "generation_tokens",
            "Number of generation tokens processed.",
            |m| m.generation_tokens,
        ),
    ];
    for (name, help, read) in counters {
        let name = format!("{name}_total");
        head(&mut out, &name, help, "counter");
        for (i, m) in replicas.iter().enumerate() {
            let _ = writeln!(out, "vllm:{name}{{{}}} {}", label(i), read(m));
        }
    }
    head(
        &mut out,
        "request_success_total",
        "Count of processed requests by how they ended.",
        "counter",
    );
    for (i, m) in replicas.iter().enumerate() {
        for (reason, count) in EndReason::NAMES.iter().zip(m.ended) {
            let _ = writeln!(
                out,
                "vllm:request_success_total{{{},finished_reason=\"{reason}\"}} {count}",
                label(i)
            );
        }
    }
    let histograms: [(&str, &str, Histo); 12] = [
        (
            "iteration_tokens_total",
            "Histogram of number of tokens per engine_step.",
            |m| &m.iteration,
        ),
        (
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            |m| &m.ttft,
        ),
        (
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            |m| &m.gaps,
        ),
        (
            "time_per_output_token_seconds",
            "The same under its name before vLLM 0.11.",
            |m| &m.gaps,
        ),
        (
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            |m| &m.per_output,
        ),
        (
            "e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            |m| &m.e2e,
        ),
        (
            "request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            |m| &m.queue,
        ),
        (
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            |m| &m.inference,
        ),
        (
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            |m| &m.prefill,
        ),
        (
            "request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            |m| &m.decode,
        ),
        (
            "request_prompt_tokens",
            "Number of prefill tokens processed.",
            |m| &m.request_prompt,
        ),
        (
            "request_generation_tokens",
            "Number of generation tokens processed.",
            |m| &m.request_output,
        ),
    ];
    for (name, help, read) in histograms {
        histogram(&mut out, name, help, replicas, read, &label);
    }
    histogram(
        &mut out,
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        replicas,
        |m| &m.request_max,
        &label,
    );
    head(
        &mut out,
        "cache_config_info",
        "Information of the LLMEngine CacheConfig",
        "gauge",
    );
    for i in 0..replicas.len() {
        let _ = writeln!(
            out,
            "vllm:cache_config_info{{block_size=\"{}\",enable_prefix_caching=\"{}\",engine=\"{i}\",num_gpu_blocks=\"{}\"}} 1",
            info.block_size,
            if info.prefix_caching { "True" } else { "False" },
            info.kv_blocks
        );
    }
    out
}

fn histogram(
    out: &mut String,
    name: &str,
    help: &str,
    replicas: &[ReplicaMetrics],
    read: Histo,
    label: &dyn Fn(usize) -> String,
) {
    let _ = writeln!(
        out,
        "# HELP vllm:{name} {help}\n# TYPE vllm:{name} histogram"
    );
    for (i, m) in replicas.iter().enumerate() {
        let (h, label) = (read(m), label(i));
        let mut sum = 0;
        for (k, count) in h.counts.iter().enumerate() {
            sum += count;
            let le = h.bounds.get(k).map_or("+Inf".into(), |b| format!("{b:?}"));
            let _ = writeln!(out, "vllm:{name}_bucket{{{label},le=\"{le}\"}} {sum}");
        }
        let _ = writeln!(out, "vllm:{name}_sum{{{label}}} {}", h.sum);
        let _ = writeln!(out, "vllm:{name}_count{{{label}}} {sum}");
    }
}

fn kv_use(m: &ReplicaMetrics) -> f64 {
    m.load.kv_used_blocks as f64 / m.load.kv_total_blocks.max(1) as f64
}

/// A label's value (Prometheus' text format).
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_cumulative_and_named_as_in_vllm() {
        let mut m = ReplicaMetrics::default();
        m.first_scheduled(100, 32);
        m.step(68, 0);
        m.first_token(0.03, 100);
        m.token(0.02);
        m.ended(
            EndReason::Finished(Finish::Length),
            &RequestTimes {
                first_scheduled: Some(0.01),
                first_token: Some(0.03),
                end: 0.05,
                prompt_tokens: 100,
                output_tokens: 2,
                max_tokens: 2,
            },
        );
        m.load = Load {
            running: 1,
            waiting: 0,
            kv_used_blocks: 5,
            kv_total_blocks: 10,
        };
        let text = render(
            &ServerInfo {
                model: "a\"b".into(),
                block_size: 16,
                kv_blocks: 11,
                prefix_caching: true,
            },
            &[m],
        );
        for line in [
            r#"vllm:num_requests_running{engine="0",model_name="a\"b"} 1"#,
            r#"vllm:kv_cache_usage_perc{engine="0",model_name="a\"b"} 0.5"#,
            r#"vllm:prefix_cache_hits_total{engine="0",model_name="a\"b"} 32"#,
            r#"vllm:generation_tokens_total{engine="0",model_name="a\"b"} 2"#,
            r#"vllm:request_success_total{engine="0",model_name="a\"b",finished_reason="length"} 1"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\"b",le="0.02"} 0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\"b",le="0.04"} 1"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\"b",le="+Inf"} 1"#,
            r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="a\"b"} 1"#,
            r#"vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="11"} 1"#,
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in\n{text}"
            );
        }
    }
}
