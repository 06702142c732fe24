//! The page that a scrape gets.

use std::fmt::Write as _;

use super::{EndReason, Histogram, ReplicaMetrics, TOKENS};

/// Reads a figure off a replica.
type Reading<T> = fn(&ReplicaMetrics) -> T;

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
    /// Longest prompt and output together [tokens].
    pub max_model_len: u32,
}

/// A series' help text, and how to read it.
type Series<T> = (&'static str, &'static str, fn(&ReplicaMetrics) -> T);
/// Series that one more label tells apart: its name, and each value of it with how to read it.
type Labelled<T> = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, fn(&ReplicaMetrics) -> T)],
);

const GAUGES: [Series<f64>; 4] = [
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

const LABELLED_GAUGES: [Labelled<f64>; 2] = [
    (
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = \
         deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals \
         vllm:num_requests_waiting.",
        "reason",
        &[
            ("capacity", |m| f64::from(m.load.waiting)),
            ("deferred", |_| 0.0),
        ],
    ),
    (
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 \
         means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        &[
            ("awake", |_| 1.0),
            ("weights_offloaded", |_| 0.0),
            ("discard_all", |_| 0.0),
        ],
    ),
];

const COUNTERS: [Series<u64>; 10] = [
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
        "external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
        |_| 0,
    ),
    (
        "external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
        |_| 0,
    ),
    (
        "mm_cache_queries",
        "Multi-modal cache queries, in terms of number of queried items.",
        |_| 0,
    ),
    (
        "mm_cache_hits",
        "Multi-modal cache hits, in terms of number of cached items.",
        |_| 0,
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
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        |m| m.cached_tokens,
    ),
    (
        "generation_tokens",
        "Number of generation tokens processed.",
        |m| m.generation_tokens,
    ),
];

const LABELLED_COUNTERS: [Labelled<u64>; 3] = [
    (
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        "source",
        &[
            ("local_compute", |m| {
                m.prompt_tokens.saturating_sub(m.cached_tokens)
            }),
            ("local_cache_hit", |m| m.cached_tokens),
            ("external_kv_transfer", |_| 0),
        ],
    ),
    (
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, \
         p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to \
         vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        "source",
        &[
            ("device", |m| m.cache_hits),
            ("host", |_| 0),
            ("p2p", |_| 0),
            ("disk", |_| 0),
            ("external_unspecified", |_| 0),
        ],
    ),
    (
        "request_success",
        "Count of successfully processed requests.",
        "finished_reason",
        &[
            (EndReason::NAMES[0], |m| m.ended[0]),
            (EndReason::NAMES[1], |m| m.ended[1]),
            (EndReason::NAMES[2], |m| m.ended[2]),
            (EndReason::NAMES[3], |m| m.ended[3]),
            (EndReason::NAMES[4], |m| m.ended[4]),
        ],
    ),
];

type Histo = fn(&ReplicaMetrics) -> &Histogram;

const HISTOGRAMS: [(&str, &str, Histo); 17] = [
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
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        |m| &m.request_longest,
    ),
    (
        "request_params_n",
        "Histogram of the n request parameter.",
        |m| &m.request_n,
    ),
    (
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        |m| &m.request_max,
    ),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        |m| &m.request_preemptions,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        |m| &m.request_computed,
    ),
];

/// The text that a scrape gets: a snapshot of each replica's series; `kept_out`: requests that found no room in the queue
/// before all replicas.
pub fn render(info: &ServerInfo, replicas: &[(u32, ReplicaMetrics)], kept_out: u64) -> String {
    let model = escape(&info.model);
    let mut page = Page {
        out: String::new(),
        replicas: (replicas.iter())
            .map(|(i, m)| (format!("engine=\"{i}\",model_name=\"{model}\""), m))
            .collect(),
        longest: f64::from(info.max_model_len),
    };
    for (name, help, read) in GAUGES {
        page.values(name, help, "gauge", &[("", read)], "");
    }
    for (name, help, label, series) in LABELLED_GAUGES {
        page.values(name, help, "gauge", series, label);
    }
    for (name, help, read) in COUNTERS {
        page.values(&format!("{name}_total"), help, "counter", &[("", read)], "");
    }
    for (name, help, label, series) in LABELLED_COUNTERS {
        page.values(&format!("{name}_total"), help, "counter", series, label);
    }
    page.head(
        "admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "counter",
    );
    let kept_out = kept_out + replicas.iter().map(|(_, m)| m.kept_out).sum::<u64>();
    for (reason, count) in [
        ("max_num_queued_reqs", kept_out),
        ("max_num_queued_tokens", 0),
    ] {
        let _ = writeln!(
            page.out,
            "vllm:admission_rejections_total{{model_name=\"{model}\",reason=\"{reason}\"}} {count}"
        );
    }
    for (name, help, read) in HISTOGRAMS {
        page.histogram(name, help, read);
    }
    page.head(
        "cache_config_info",
        "Information of the LLMEngine CacheConfig",
        "gauge",
    );
    let mut out = page.out;
    for (i, _) in replicas {
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

/// A page of series while it is written.
struct Page<'a> {
    out: String,
    /// Each replica with its labels.
    replicas: Vec<(String, &'a ReplicaMetrics)>,
    /// Longest request [tokens].
    longest: f64,
}

impl Page<'_> {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(
            self.out,
            "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}"
        );
    }

    /// A series, or several that `label` tells apart.
    fn values<T: std::fmt::Display>(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        series: &[(&str, Reading<T>)],
        label: &str,
    ) {
        self.head(name, help, kind);
        for (labels, m) in &self.replicas {
            for (value, read) in series {
                let more = if label.is_empty() {
                    String::new()
                } else {
                    format!(",{label}=\"{value}\"")
                };
                let _ = writeln!(self.out, "vllm:{name}{{{labels}{more}}} {}", read(m));
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, read: Histo) {
        self.head(name, help, "histogram");
        for (label, m) in &self.replicas {
            let h = read(m);
            // No request is longer than the longest, so the buckets beyond hold nothing of their own.
            let beyond = |b: &f64| std::ptr::eq(h.bounds, TOKENS.as_slice()) && *b > self.longest;
            let mut sum = 0;
            for (k, count) in h.counts.iter().enumerate() {
                sum += count;
                if h.bounds.get(k).is_some_and(beyond) {
                    continue;
                }
                let le = h.bounds.get(k).map_or("+Inf".into(), |b| format!("{b:?}"));
                let _ = writeln!(self.out, "vllm:{name}_bucket{{{label},le=\"{le}\"}} {sum}");
            }
            let _ = writeln!(self.out, "vllm:{name}_sum{{{label}}} {}", h.sum);
            let _ = writeln!(self.out, "vllm:{name}_count{{{label}}} {sum}");
        }
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
