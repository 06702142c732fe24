//! What an engine says of itself at `/metrics`: the Prometheus text format, and the few figures that a twin needs of
//! vLLM, TGI, Triton with TensorRT-LLM and llama-server.

use std::collections::BTreeMap;

use crate::printable::printable;

/// Most samples that are read of one page; more is no engine's page.
const MAX_SAMPLES: usize = 200_000;

/// One line of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name with its suffix, e.g. `vllm:time_to_first_token_seconds_bucket`.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Value; may be infinite or NaN.
    pub value: f64,
}

/// A line that is no sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metrics page, line {line}: {problem}: {text}")]
pub struct PageError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: &'static str,
    /// Beginning of the line, fit for a terminal.
    pub text: String,
}

/// A page, as scraped once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    samples: Vec<Sample>,
}

/// A cumulative histogram: `counts[i]` observations at or below `bounds[i]`, the last bound infinite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending.
    pub bounds: Vec<f64>,
    /// Observations at or below each bound.
    pub counts: Vec<f64>,
    /// Sum of the observations.
    pub sum: f64,
}

impl Page {
    /// Reads the text format (version 0.0.4, and OpenMetrics as far as it is the same).
    ///
    /// # Errors
    /// The first line that is neither a comment nor a sample.
    pub fn parse(text: &str) -> Result<Page, PageError> {
        let mut samples = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |problem| PageError {
                line: i + 1,
                problem,
                text: printable(&line.chars().take(120).collect::<String>()).into_owned(),
            };
            samples.push(sample(line).map_err(fail)?);
            if samples.len() > MAX_SAMPLES {
                return Err(fail("more samples than any engine has"));
            }
        }
        Ok(Page { samples })
    }

    /// All samples in the order of the page.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether any sample's name begins with `prefix`.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.samples.iter().any(|s| s.name.starts_with(prefix))
    }

    /// Sum of the finite samples called `name` over all labels; `None` where there are none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.sum_where(name, &[])
    }

    /// As [`Page::sum`], of samples that have all of these labels.
    pub fn sum_where(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = None;
        for s in self.named(name, labels) {
            if s.value.is_finite() {
                found = Some(found.unwrap_or(0.0) + s.value);
            }
        }
        found
    }

    /// Mean of the finite samples called `name`; `None` where there are none. For shares of several engines on one page.
    pub fn mean(&self, name: &str) -> Option<f64> {
        let values: Vec<f64> = self
            .named(name, &[])
            .map(|s| s.value)
            .filter(|v| v.is_finite())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    fn named<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |s| {
            s.name == name
                && labels
                    .iter()
                    .all(|(k, v)| s.labels.get(*k).is_some_and(|have| have == v))
        })
    }

    /// The histogram called `name` (without suffix), summed over all labels but `le`.
    pub fn histogram(&self, name: &str) -> Option<Histogram> {
        let bucket = format!("{name}_bucket");
        let mut by_bound: Vec<(f64, f64)> = Vec::new();
        for s in self.named(&bucket, &[]) {
            let Some(bound) = s.labels.get("le").and_then(|le| number(le)) else {
                continue;
            };
            match by_bound.iter_mut().find(|(b, _)| *b == bound) {
                Some((_, count)) => *count += s.value,
                None => by_bound.push((bound, s.value)),
            }
        }
        if by_bound.is_empty() {
            return None;
        }
        by_bound.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(Histogram {
            bounds: by_bound.iter().map(|b| b.0).collect(),
            counts: by_bound.iter().map(|b| b.1).collect(),
            sum: self.sum(&format!("{name}_sum")).unwrap_or(f64::NAN),
        })
    }
}

impl Histogram {
    /// Observations.
    pub fn count(&self) -> f64 {
        self.counts.last().copied().unwrap_or(0.0)
    }

    /// Mean of the observations; `None` where there are none.
    pub fn mean(&self) -> Option<f64> {
        let n = self.count();
        (n > 0.0 && self.sum.is_finite()).then(|| self.sum / n)
    }

    /// What was observed after `earlier`. `None` where the buckets differ or the counter started again.
    pub fn since(&self, earlier: &Histogram) -> Option<Histogram> {
        if self.bounds != earlier.bounds {
            return None;
        }
        let counts: Vec<f64> = self
            .counts
            .iter()
            .zip(&earlier.counts)
            .map(|(now, before)| now - before)
            .collect();
        if counts.iter().any(|c| *c < 0.0) {
            return None;
        }
        Some(Histogram {
            bounds: self.bounds.clone(),
            counts,
            sum: self.sum - earlier.sum,
        })
    }

    /// The `p` quantile, linear within its bucket (Prometheus' `histogram_quantile`); the upper bound of the highest finite
    /// bucket where it lies beyond. `None` where nothing was observed.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        let n = self.count();
        if n <= 0.0 {
            return None;
        }
        let rank = p.clamp(0.0, 1.0) * n;
        let i = self.counts.iter().position(|c| *c >= rank && *c > 0.0)?;
        let (low, below) = if i == 0 {
            (0.0f64.min(self.bounds[0]), 0.0)
        } else {
            (self.bounds[i - 1], self.counts[i - 1])
        };
        let high = self.bounds[i];
        if high.is_infinite() {
            return (i > 0).then_some(low);
        }
        let within = self.counts[i] - below;
        Some(if within > 0.0 {
            low + (high - low) * (rank - below) / within
        } else {
            high
        })
    }
}

fn sample(line: &str) -> Result<Sample, &'static str> {
    let name_end = line
        .find(|c: char| c == '{' || c.is_whitespace())
        .ok_or("no value")?;
    let name = &line[..name_end];
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err("no name");
    }
    let mut rest = &line[name_end..];
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.split_once('=').ok_or("a label without a value")?;
            let after = after
                .trim_start()
                .strip_prefix('"')
                .ok_or("a label's value without quotes")?;
            let (value, after) = quoted(after).ok_or("a label's value without an end")?;
            labels.insert(key.trim().to_string(), value);
            rest = after;
        }
    }
    let value = rest.split_whitespace().next().ok_or("no value")?;
    Ok(Sample {
        name: name.to_string(),
        labels,
        value: number(value).ok_or("the value is no number")?,
    })
}

/// Text up to the closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[i + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                other => out.push(other),
            },
            c => out.push(c),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        text => text.parse().ok(),
    }
}

/// Whose page it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exporter {
    /// vLLM, or an engine that uses its names.
    Vllm,
    /// Text Generation Inference.
    Tgi,
    /// Triton with the TensorRT-LLM backend.
    TrtLlm,
    /// llama.cpp's server.
    LlamaServer,
    /// SGLang.
    Sglang,
}

/// What an engine says of itself, in one form for all engines. `None`: it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineMetrics {
    /// Whose page it is; `None`: nobody's that is known.
    pub exporter: Option<Exporter>,
    /// Requests running.
    pub running: Option<f64>,
    /// Requests waiting.
    pub waiting: Option<f64>,
    /// KV cache in use [0, 1].
    pub kv_usage: Option<f64>,
    /// KV blocks there are.
    pub kv_blocks: Option<f64>,
    /// Tokens per KV block [tokens].
    pub kv_block_tokens: Option<f64>,
    /// Times that a request lost its KV, since the start.
    pub preemptions: Option<f64>,
    /// Prompt tokens processed, since the start [tokens].
    pub prompt_tokens: Option<f64>,
    /// Tokens generated, since the start [tokens].
    pub generated_tokens: Option<f64>,
    /// Requests finished, since the start.
    pub finished: Option<f64>,
    /// Prompt tokens looked up in the prefix cache, since the start [tokens].
    pub prefix_queries: Option<f64>,
    /// Of those, tokens found [tokens].
    pub prefix_hits: Option<f64>,
    /// Calls of the model, since the start.
    pub steps: Option<f64>,
    /// Time to first token [s].
    pub ttft: Option<Histogram>,
    /// Gaps between tokens [s].
    pub itl: Option<Histogram>,
    /// End-to-end latency [s].
    pub e2e: Option<Histogram>,
    /// Queue time [s].
    pub queue: Option<Histogram>,
    /// Time in prefill [s].
    pub prefill: Option<Histogram>,
    /// Time in decode [s].
    pub decode: Option<Histogram>,
    /// Tokens in a step [tokens].
    pub step_tokens: Option<Histogram>,
}

impl EngineMetrics {
    /// Reads a page of any known engine.
    pub fn from_page(page: &Page) -> EngineMetrics {
        if page.has_prefix("vllm:") {
            vllm(page)
        } else if page.has_prefix("tgi_") {
            tgi(page)
        } else if page.has_prefix("nv_trt_llm_") {
            trt_llm(page)
        } else if page.has_prefix("llamacpp:") {
            llama_server(page)
        } else if page.has_prefix("sglang:") {
            sglang(page)
        } else {
            EngineMetrics::default()
        }
    }

    /// What happened after `earlier`: counters and histograms become differences (`None` where they started again), gauges
    /// stay as they are now.
    pub fn since(&self, earlier: &EngineMetrics) -> EngineMetrics {
        let count = |now: Option<f64>, before: Option<f64>| match (now, before) {
            (Some(a), Some(b)) if a >= b => Some(a - b),
            _ => None,
        };
        let hist = |now: &Option<Histogram>, before: &Option<Histogram>| {
            now.as_ref()
                .zip(before.as_ref())
                .and_then(|(a, b)| a.since(b))
        };
        EngineMetrics {
            preemptions: count(self.preemptions, earlier.preemptions),
            prompt_tokens: count(self.prompt_tokens, earlier.prompt_tokens),
            generated_tokens: count(self.generated_tokens, earlier.generated_tokens),
            finished: count(self.finished, earlier.finished),
            prefix_queries: count(self.prefix_queries, earlier.prefix_queries),
            prefix_hits: count(self.prefix_hits, earlier.prefix_hits),
            steps: count(self.steps, earlier.steps),
            ttft: hist(&self.ttft, &earlier.ttft),
            itl: hist(&self.itl, &earlier.itl),
            e2e: hist(&self.e2e, &earlier.e2e),
            queue: hist(&self.queue, &earlier.queue),
            prefill: hist(&self.prefill, &earlier.prefill),
            decode: hist(&self.decode, &earlier.decode),
            step_tokens: hist(&self.step_tokens, &earlier.step_tokens),
            ..self.clone()
        }
    }
}

/// The first of several names that a page has: engines rename their metrics.
fn first(page: &Page, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|n| page.sum(n))
}

fn first_histogram(page: &Page, names: &[&str]) -> Option<Histogram> {
    names.iter().find_map(|n| page.histogram(n))
}

fn vllm(page: &Page) -> EngineMetrics {
    let config = page
        .samples
        .iter()
        .find(|s| s.name == "vllm:cache_config_info");
    let of_config = |key: &str| {
        config
            .and_then(|s| s.labels.get(key))
            .and_then(|v| v.parse().ok())
    };
    EngineMetrics {
        exporter: Some(Exporter::Vllm),
        running: page.sum("vllm:num_requests_running"),
        waiting: page.sum("vllm:num_requests_waiting"),
        kv_usage: page
            .mean("vllm:kv_cache_usage_perc")
            .or_else(|| page.mean("vllm:gpu_cache_usage_perc")),
        kv_blocks: of_config("num_gpu_blocks"),
        kv_block_tokens: of_config("block_size"),
        preemptions: first(
            page,
            &["vllm:num_preemptions_total", "vllm:num_preemptions"],
        ),
        prompt_tokens: first(page, &["vllm:prompt_tokens_total", "vllm:prompt_tokens"]),
        generated_tokens: first(
            page,
            &["vllm:generation_tokens_total", "vllm:generation_tokens"],
        ),
        finished: first(
            page,
            &["vllm:request_success_total", "vllm:request_success"],
        ),
        prefix_queries: first(
            page,
            &[
                "vllm:prefix_cache_queries_total",
                "vllm:gpu_prefix_cache_queries_total",
            ],
        ),
        prefix_hits: first(
            page,
            &[
                "vllm:prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits_total",
            ],
        ),
        steps: page
            .histogram("vllm:iteration_tokens_total")
            .map(|h| h.count()),
        ttft: page.histogram("vllm:time_to_first_token_seconds"),
        itl: first_histogram(
            page,
            &[
                "vllm:inter_token_latency_seconds",
                "vllm:time_per_output_token_seconds",
            ],
        ),
        e2e: page.histogram("vllm:e2e_request_latency_seconds"),
        queue: page.histogram("vllm:request_queue_time_seconds"),
        prefill: page.histogram("vllm:request_prefill_time_seconds"),
        decode: page.histogram("vllm:request_decode_time_seconds"),
        step_tokens: page.histogram("vllm:iteration_tokens_total"),
    }
}

fn tgi(page: &Page) -> EngineMetrics {
    let batch = page.sum("tgi_batch_current_size");
    EngineMetrics {
        exporter: Some(Exporter::Tgi),
        running: batch,
        waiting: page.sum("tgi_queue_size"),
        finished: page.sum("tgi_request_success"),
        prompt_tokens: page.sum("tgi_request_input_length_sum"),
        generated_tokens: page.sum("tgi_request_generated_tokens_sum"),
        steps: page.sum("tgi_batch_inference_success"),
        itl: page.histogram("tgi_request_mean_time_per_token_duration"),
        e2e: page.histogram("tgi_request_duration"),
        queue: page.histogram("tgi_request_queue_duration"),
        ..EngineMetrics::default()
    }
}

fn trt_llm(page: &Page) -> EngineMetrics {
    let requests =
        |kind: &str| page.sum_where("nv_trt_llm_request_metrics", &[("request_type", kind)]);
    let kv = |kind: &str| {
        page.sum_where(
            "nv_trt_llm_kv_cache_block_metrics",
            &[("kv_cache_block_type", kind)],
        )
    };
    let share = page
        .named(
            "nv_trt_llm_kv_cache_block_metrics",
            &[("kv_cache_block_type", "fraction")],
        )
        .map(|s| s.value)
        .next();
    let success = page.sum("nv_inference_request_success");
    EngineMetrics {
        exporter: Some(Exporter::TrtLlm),
        running: requests("scheduled").or_else(|| requests("active")),
        waiting: requests("waiting"),
        kv_usage: share.or_else(|| Some(kv("used")? / kv("max").filter(|m| *m > 0.0)?)),
        kv_blocks: kv("max"),
        kv_block_tokens: kv("tokens_per"),
        finished: success,
        ..EngineMetrics::default()
    }
}

fn llama_server(page: &Page) -> EngineMetrics {
    EngineMetrics {
        exporter: Some(Exporter::LlamaServer),
        running: page.sum("llamacpp:requests_processing"),
        waiting: page.sum("llamacpp:requests_deferred"),
        kv_usage: page.sum("llamacpp:kv_cache_usage_ratio"),
        prompt_tokens: page.sum("llamacpp:prompt_tokens_total"),
        generated_tokens: page.sum("llamacpp:tokens_predicted_total"),
        steps: page.sum("llamacpp:n_decode_total"),
        ..EngineMetrics::default()
    }
}

/// Names: `python/sglang/srt/metrics/collector.py` of 0.5.
fn sglang(page: &Page) -> EngineMetrics {
    let tokens = page.sum("sglang:max_total_num_tokens");
    EngineMetrics {
        exporter: Some(Exporter::Sglang),
        running: page.sum("sglang:num_running_reqs"),
        waiting: page.sum("sglang:num_queue_reqs"),
        kv_usage: page.mean("sglang:token_usage"),
        kv_blocks: tokens,
        kv_block_tokens: tokens.map(|_| 1.0),
        prompt_tokens: page.sum("sglang:prompt_tokens_total"),
        generated_tokens: page.sum("sglang:generation_tokens_total"),
        finished: page.sum("sglang:num_requests_total"),
        prefix_queries: page
            .sum("sglang:cached_tokens_total")
            .and_then(|_| page.sum("sglang:prompt_tokens_total")),
        prefix_hits: page.sum("sglang:cached_tokens_total"),
        ttft: page.histogram("sglang:time_to_first_token_seconds"),
        itl: first_histogram(
            page,
            &[
                "sglang:inter_token_latency_seconds",
                "sglang:time_per_output_token_seconds",
            ],
        ),
        e2e: page.histogram("sglang:e2e_request_latency_seconds"),
        queue: page.histogram("sglang:queue_time_seconds"),
        ..EngineMetrics::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B"} 2.0
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B"} 0.75
vllm:num_preemptions_total{engine="0",model_name="x"} 7.0
vllm:num_preemptions_created{engine="0",model_name="x"} 1.75e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="x"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="x"} 5.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2231",sliding_window="None"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="x"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01",model_name="x"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="x"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="x"} 12.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="x"} 12.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="x"} 0.9
"#;

    #[test]
    fn a_vllm_page_becomes_figures_summed_over_its_engines() {
        let m = EngineMetrics::from_page(&Page::parse(VLLM).unwrap());
        assert_eq!(m.exporter, Some(Exporter::Vllm));
        assert_eq!(
            (m.running, m.waiting, m.kv_usage),
            (Some(5.0), Some(1.0), Some(0.5))
        );
        assert_eq!((m.preemptions, m.finished), (Some(7.0), Some(15.0)));
        assert_eq!((m.kv_blocks, m.kv_block_tokens), (Some(2231.0), Some(16.0)));
        let ttft = m.ttft.unwrap();
        assert_eq!(ttft.count(), 12.0);
        assert!((ttft.mean().unwrap() - 0.075).abs() < 1e-12);
        // Rank 6 of 12 is the second of six in (0.01, 0.1].
        assert!((ttft.quantile(0.5).unwrap() - (0.01 + 0.09 * 2.0 / 6.0)).abs() < 1e-12);
        assert_eq!(
            ttft.quantile(0.99),
            Some(0.1),
            "beyond the last finite bound"
        );
        assert_eq!(m.itl, None);
    }

    #[test]
    fn what_happened_between_two_scrapes_is_their_difference() {
        let before = EngineMetrics::from_page(&Page::parse(VLLM).unwrap());
        let later = VLLM
            .replace(
                "le=\"0.01\",model_name=\"x\"} 4.0",
                "le=\"0.01\",model_name=\"x\"} 14.0",
            )
            .replace(
                "le=\"0.1\",model_name=\"x\"} 10.0",
                "le=\"0.1\",model_name=\"x\"} 20.0",
            )
            .replace(
                "le=\"+Inf\",model_name=\"x\"} 12.0",
                "le=\"+Inf\",model_name=\"x\"} 22.0",
            )
            .replace(
                "_sum{engine=\"0\",model_name=\"x\"} 0.9",
                "_sum{engine=\"0\",model_name=\"x\"} 0.95",
            )
            .replace(
                "num_preemptions_total{engine=\"0\",model_name=\"x\"} 7.0",
                "num_preemptions_total{engine=\"0\",model_name=\"x\"} 9.0",
            );
        let after = EngineMetrics::from_page(&Page::parse(&later).unwrap());
        let change = after.since(&before);
        assert_eq!(change.preemptions, Some(2.0));
        assert_eq!(change.running, Some(5.0));
        let ttft = change.ttft.unwrap();
        assert_eq!(ttft.count(), 10.0);
        assert!((ttft.mean().unwrap() - 0.005).abs() < 1e-12);
        assert!(ttft.quantile(1.0).unwrap() <= 0.01 + 1e-12);
        // An engine that started again has no difference.
        assert_eq!(before.since(&after).preemptions, None);
        assert_eq!(before.since(&after).ttft, None);
    }

    #[test]
    fn pages_of_tgi_triton_and_llama_server_are_read() {
        let tgi = EngineMetrics::from_page(&Page::parse(
            "# TYPE tgi_queue_size gauge\ntgi_queue_size 4\ntgi_batch_current_size 8\n# TYPE tgi_request_queue_duration histogram\n\
             tgi_request_queue_duration_bucket{le=\"0.01\"} 1\ntgi_request_queue_duration_bucket{le=\"+Inf\"} 2\n\
             tgi_request_queue_duration_sum 0.5\ntgi_request_queue_duration_count 2\n",
        ).unwrap());
        assert_eq!(
            (tgi.exporter, tgi.running, tgi.waiting),
            (Some(Exporter::Tgi), Some(8.0), Some(4.0))
        );
        assert_eq!(tgi.queue.unwrap().mean(), Some(0.25));
        let trt = EngineMetrics::from_page(&Page::parse(
            "nv_inference_request_success{model=\"ensemble\",version=\"1\"} 9\n\
             nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"waiting\",version=\"1\"} 1\n\
             nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"scheduled\",version=\"1\"} 3\n\
             nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"max\",version=\"1\"} 512\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"tensorrt_llm\",version=\"1\"} 0.4875\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"tensorrt_llm\",version=\"1\"} 64\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\",model=\"tensorrt_llm\",version=\"1\"} 3030\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"tensorrt_llm\",version=\"1\"} 6239\n",
        ).unwrap());
        assert_eq!(
            (trt.running, trt.waiting, trt.kv_usage),
            (Some(3.0), Some(1.0), Some(0.4875))
        );
        assert_eq!(
            (trt.kv_blocks, trt.kv_block_tokens),
            (Some(6239.0), Some(64.0))
        );
        let llama = EngineMetrics::from_page(&Page::parse(
            "llamacpp:prompt_tokens_total 4608\nllamacpp:tokens_predicted_total 1536\nllamacpp:n_decode_total 900\n\
             llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\nllamacpp:n_busy_slots_per_decode 1.5\n",
        ).unwrap());
        assert_eq!(
            (llama.running, llama.generated_tokens, llama.steps),
            (Some(2.0), Some(1536.0), Some(900.0))
        );
        let sglang = EngineMetrics::from_page(&Page::parse(
            "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 7\nsglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 2\n\
             sglang:token_usage{model_name=\"m\"} 0.28\nsglang:max_total_num_tokens{model_name=\"m\"} 392920\n\
             sglang:prompt_tokens_total{model_name=\"m\"} 8128902\nsglang:generation_tokens_total{model_name=\"m\"} 7557572\n\
             sglang:cached_tokens_total{model_name=\"m\"} 4000\n\
             sglang:time_to_first_token_seconds_bucket{le=\"0.1\"} 1\nsglang:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n\
             sglang:time_to_first_token_seconds_sum 0.3\nsglang:time_to_first_token_seconds_count 2\n",
        ).unwrap());
        assert_eq!(
            (
                sglang.exporter,
                sglang.running,
                sglang.waiting,
                sglang.kv_usage
            ),
            (Some(Exporter::Sglang), Some(7.0), Some(2.0), Some(0.28))
        );
        assert_eq!(
            (sglang.kv_blocks, sglang.kv_block_tokens, sglang.prefix_hits),
            (Some(392_920.0), Some(1.0), Some(4000.0))
        );
        assert_eq!(sglang.ttft.unwrap().mean(), Some(0.15));
        assert_eq!(
            EngineMetrics::from_page(&Page::parse("up 1\n").unwrap()),
            EngineMetrics::default()
        );
    }

    #[test]
    fn labels_may_hold_quotes_commas_and_braces_and_values_timestamps() {
        let page =
            Page::parse("a{x=\"1,\\\"}\\\\ \\n\",y=\"\"} -2.5e-3 1700000000000\nb +Inf\nc NaN\n")
                .unwrap();
        assert_eq!(page.samples()[0].labels["x"], "1,\"}\\ \n");
        assert_eq!(page.samples()[0].value, -0.0025);
        assert_eq!(page.sum("b"), None);
    }

    #[test]
    fn a_line_that_is_no_sample_is_named() {
        for bad in [
            "a",
            "a{x=1} 2",
            "a{x=\"1} 2",
            "a{x} 1",
            "a one",
            "{} 1",
            "<html>",
        ] {
            let e = Page::parse(&format!("ok 1\n{bad}\n")).unwrap_err();
            assert_eq!(e.line, 2, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = Page::parse(&text);
        }

        #[test]
        fn quantiles_rise_and_stay_within_the_bounds(counts in prop::collection::vec(0u32..50, 1..8), a in 0.0f64..1.0, b in 0.0f64..1.0) {
            let mut total = 0.0;
            let mut h = Histogram::default();
            for (i, c) in counts.iter().enumerate() {
                total += f64::from(*c);
                h.bounds.push(i as f64 + 1.0);
                h.counts.push(total);
            }
            prop_assume!(total > 0.0);
            let (low, high) = (h.quantile(a.min(b)).unwrap(), h.quantile(a.max(b)).unwrap());
            prop_assert!(low <= high + 1e-12 && low >= 0.0 && high <= counts.len() as f64);
        }
    }
}
