//! What the engine said of itself over a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::prometheus::EngineMetrics;

/// What the engine said of itself between two scrapes, before and after the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFigures {
    /// Times that a request lost its KV.
    pub preemptions: Option<f64>,
    /// Share of looked-up prompt tokens found in the prefix cache [0, 1].
    pub prefix_hit_ratio: Option<f64>,
    /// Prompt tokens found in the prefix cache [tokens].
    pub prefix_hit_tokens: Option<f64>,
    /// Prompt tokens looked up in it [tokens].
    pub prefix_query_tokens: Option<f64>,
    /// Tokens generated [tokens].
    pub generated_tokens: Option<f64>,
    /// Calls of the model.
    pub steps: Option<f64>,
    /// KV blocks there are.
    pub kv_blocks: Option<f64>,
    /// Means and quantiles from its histograms [ms]: limited by the width of their buckets.
    pub latencies_ms: BTreeMap<String, ServerLatency>,
}

/// One of the engine's histograms [ms].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerLatency {
    /// Mean: exact.
    pub mean: f64,
    /// Median, interpolated within its bucket.
    pub p50: Option<f64>,
    /// 99th percentile, interpolated within its bucket.
    pub p99: Option<f64>,
    /// Observations.
    pub n: f64,
}

impl ServerFigures {
    /// The change between two scrapes.
    pub fn between(before: &EngineMetrics, after: &EngineMetrics) -> ServerFigures {
        let change = after.since(before);
        let mut latencies_ms = BTreeMap::new();
        for (name, histogram) in [
            ("ttft", &change.ttft),
            ("itl", &change.itl),
            ("e2e", &change.e2e),
            ("queue", &change.queue),
            ("prefill", &change.prefill),
            ("decode", &change.decode),
        ] {
            if let Some(h) = histogram
                && let Some(mean) = h.mean()
            {
                let ms = |p: f64| h.quantile(p).map(|s| s * 1e3);
                latencies_ms.insert(
                    name.to_string(),
                    ServerLatency {
                        mean: mean * 1e3,
                        p50: ms(0.5),
                        p99: ms(0.99),
                        n: h.count(),
                    },
                );
            }
        }
        ServerFigures {
            preemptions: change.preemptions,
            prefix_hit_ratio: change
                .prefix_hits
                .zip(change.prefix_queries)
                .filter(|(_, q)| *q > 0.0)
                .map(|(h, q)| h / q),
            prefix_hit_tokens: change.prefix_hits,
            prefix_query_tokens: change.prefix_queries,
            generated_tokens: change.generated_tokens,
            steps: change.steps,
            kv_blocks: change.kv_blocks,
            latencies_ms,
        }
    }
}
