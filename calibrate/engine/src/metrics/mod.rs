//! `/metrics`: counters, gauges and histograms under vLLM's names and with its help texts (`vllm/v1/metrics/loggers.py` and
//! `buckets.py` of vLLM 0.33), in Prometheus' text format. One set of series for each replica, told apart by the label
//! `engine`. What this engine has not, such as caches outside of a replica, is there and stays 0.

mod page;

use std::sync::atomic::{AtomicU32, Ordering};

use sim::kube::Totals;
use sim::policy::Load;

use crate::request::Finish;
pub use page::{ServerInfo, render};

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
const ITERATION: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Buckets of the number of choices asked for.
const CHOICES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
/// Buckets of how often a request was preempted.
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
/// Buckets of tokens of a request [tokens]: 1, 2, 5 times powers of ten, as far as the longest request goes.
static TOKENS: [f64; 21] = [
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
    2_000_000.0,
    5_000_000.0,
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
    /// vLLM's names; no output here is cut because it repeats itself.
    const NAMES: [&'static str; 5] = ["stop", "length", "abort", "error", "repetition"];

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
    /// Prompt tokens that the prefix cache held at first scheduling [tokens].
    pub cached_tokens: u32,
    /// Tokens made [tokens].
    pub output_tokens: u32,
    /// Limit on the output [tokens].
    pub max_tokens: u32,
    /// Times it lost its KV.
    pub preemptions: u32,
}

/// The `n` sequences that answer one prompt, of which two series tell when the last has ended.
#[derive(Debug)]
pub struct Family {
    n: u32,
    left: AtomicU32,
    /// Longest output so far [tokens].
    longest: AtomicU32,
}

impl Family {
    /// A family of `n` sequences.
    pub fn new(n: usize) -> Family {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        Family {
            n,
            left: AtomicU32::new(n),
            longest: AtomicU32::new(0),
        }
    }

    /// One of them ended with `tokens` tokens. True: it was the last.
    fn ended(&self, tokens: u32) -> bool {
        self.longest.fetch_max(tokens, Ordering::AcqRel);
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
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
    cached_tokens: u64,
    generation_tokens: u64,
    cache_queries: u64,
    cache_hits: u64,
    ended: [u64; EndReason::NAMES.len()],
    /// Requests that the policy's limit on its queue kept out.
    kept_out: u64,
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
    request_longest: Histogram,
    request_n: Histogram,
    request_preemptions: Histogram,
    request_computed: Histogram,
}

impl Default for ReplicaMetrics {
    fn default() -> Self {
        ReplicaMetrics {
            load: Load::default(),
            steps: 0,
            preemptions: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generation_tokens: 0,
            cache_queries: 0,
            cache_hits: 0,
            ended: [0; EndReason::NAMES.len()],
            kept_out: 0,
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
            request_longest: Histogram::new(&TOKENS),
            request_n: Histogram::new(&CHOICES),
            request_preemptions: Histogram::new(&PREEMPTIONS),
            request_computed: Histogram::new(&TOKENS),
        }
    }
}

impl ReplicaMetrics {
    /// What it has done, as controllers count it. Requests reach the scheduler as they come, so none of their time lies in front of the
    /// engine.
    pub fn totals(&self) -> Totals {
        Totals {
            finished: self.ended.iter().sum(),
            queue_ns: 0,
            compute_ns: (self.e2e.sum.max(0.0) * 1e9) as u64,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.generation_tokens,
        }
    }

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

    /// A request of `prompt` tokens, `cached` of which were cached, has its first token `ttft` seconds after its submission.
    pub fn first_token(&mut self, ttft: f64, prompt: u32, cached: u32) {
        self.ttft.observe(ttft);
        self.prompt_tokens += u64::from(prompt);
        self.cached_tokens += u64::from(cached);
        self.generation_tokens += 1;
    }

    /// A request has another token, `gap` seconds after the one before.
    pub fn token(&mut self, gap: f64) {
        self.gaps.observe(gap);
        self.generation_tokens += 1;
    }

    /// A request ended, which was one of the sequences of `family`.
    pub fn ended(&mut self, reason: EndReason, t: &RequestTimes, family: &Family) {
        self.ended[reason.index()] += 1;
        if family.ended(t.output_tokens) {
            self.request_n.observe(f64::from(family.n));
            let longest = family.longest.load(Ordering::Acquire);
            self.request_longest.observe(f64::from(longest));
        }
        let EndReason::Finished(_) = reason else {
            return;
        };
        self.e2e.observe(t.end);
        self.request_prompt.observe(f64::from(t.prompt_tokens));
        self.request_output.observe(f64::from(t.output_tokens));
        self.request_max.observe(f64::from(t.max_tokens));
        self.request_preemptions.observe(f64::from(t.preemptions));
        let computed = t.prompt_tokens.saturating_sub(t.cached_tokens);
        self.request_computed.observe(f64::from(computed));
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

    /// The policy's limit on its queue kept a request out.
    pub fn kept_out(&mut self) {
        self.kept_out += 1;
    }

    /// Requests that ended, by `stop`, `length`, `abort` and `error`.
    pub fn ends(&self) -> [u64; 4] {
        let [stop, length, abort, error, _] = self.ended;
        [stop, length, abort, error]
    }

    /// Tokens made [tokens].
    pub fn generation_tokens(&self) -> u64 {
        self.generation_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_cumulative_and_named_as_in_vllm() {
        let mut m = ReplicaMetrics::default();
        let family = Family::new(2);
        m.kept_out();
        m.first_scheduled(100, 32);
        m.step(68, 0);
        m.first_token(0.03, 100, 32);
        m.token(0.02);
        m.ended(
            EndReason::Finished(Finish::Length),
            &RequestTimes {
                first_scheduled: Some(0.01),
                first_token: Some(0.03),
                end: 0.05,
                prompt_tokens: 100,
                cached_tokens: 32,
                output_tokens: 2,
                max_tokens: 2,
                preemptions: 3,
            },
            &family,
        );
        m.ended(
            EndReason::Abort,
            &RequestTimes {
                first_scheduled: None,
                first_token: None,
                end: 0.05,
                prompt_tokens: 100,
                cached_tokens: 0,
                output_tokens: 7,
                max_tokens: 9,
                preemptions: 0,
            },
            &family,
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
                max_model_len: 150,
            },
            &[(0, m)],
            5,
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
            r#"vllm:num_requests_waiting_by_reason{engine="0",model_name="a\"b",reason="capacity"} 0"#,
            r#"vllm:prompt_tokens_by_source_total{engine="0",model_name="a\"b",source="local_compute"} 68"#,
            r#"vllm:prompt_tokens_by_source_total{engine="0",model_name="a\"b",source="local_cache_hit"} 32"#,
            r#"vllm:prompt_tokens_cached_total{engine="0",model_name="a\"b"} 32"#,
            r#"vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="a\"b",source="device"} 32"#,
            r#"vllm:request_num_preemptions_bucket{engine="0",model_name="a\"b",le="2.0"} 0"#,
            r#"vllm:request_num_preemptions_bucket{engine="0",model_name="a\"b",le="3.0"} 1"#,
            r#"vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="a\"b"} 68"#,
            // Both sequences of one prompt make one value each.
            r#"vllm:request_params_n_sum{engine="0",model_name="a\"b"} 2"#,
            r#"vllm:request_params_n_count{engine="0",model_name="a\"b"} 1"#,
            r#"vllm:request_max_num_generation_tokens_sum{engine="0",model_name="a\"b"} 7"#,
            "# TYPE vllm:request_num_preemptions histogram",
            r#"vllm:admission_rejections_total{model_name="a\"b",reason="max_num_queued_reqs"} 6"#,
            "# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.",
            r#"vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="11"} 1"#,
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in\n{text}"
            );
        }
        let longest = r#"request_prompt_tokens_bucket{engine="0",model_name="a\"b",le="100.0"} 1"#;
        assert!(text.contains(longest), "{text}");
        assert!(!text.contains("le=\"200.0\""), "no request is so long");
        // Prometheus refuses a page that names a family twice.
        let mut names: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
