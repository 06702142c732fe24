//! Rows of AIConfigurator's samples of measured points (`serving2/*_h100*.csv`, `h100_qwen3_32b_vllm.csv`), and what its benchmark does in all of them.

use serde::Deserialize;

use super::case::Measured;

/// Measured requests per user of a run.
pub(super) const ROUNDS: u32 = 10;

/// A measured point: aggregated (`agg`) or with prefill and decode apart (`disagg`). What the other kind has is empty.
#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    /// `agg` or `disagg`.
    pub mode: String,
    /// Prompt length [tokens].
    pub isl: u32,
    /// Output length [tokens].
    pub osl: u32,
    /// Users in a loop.
    pub concurrency: Option<f64>,
    /// Tensor-parallel ranks of an aggregated point.
    pub tp_size: Option<f64>,
    /// The same of a server that prefills.
    pub prefill_tp_size: Option<f64>,
    /// The same of a server that decodes.
    pub decode_tp_size: Option<f64>,
    /// Mean TTFT.
    pub silicon_ttft_ms: f64,
    /// Mean TPOT.
    pub silicon_tpot_ms: f64,
}

impl Sample {
    /// Tensor-parallel ranks and users of an aggregated point with a concurrency.
    pub fn aggregated(&self) -> Option<[u32; 2]> {
        let (tp, users) = (self.tp_size?, self.concurrency?);
        (self.mode == "agg").then_some([tp as u32, users as u32])
    }

    /// Tensor-parallel ranks of the servers that prefill and of those that decode, and users, of a point that has them apart.
    pub fn apart(&self) -> Option<[u32; 3]> {
        let (prefill, decode) = (self.prefill_tp_size?, self.decode_tp_size?);
        let figures = [prefill, decode, self.concurrency?].map(|n| n as u32);
        (self.mode == "disagg").then_some(figures)
    }

    /// Its figures, and whether parameters were fitted on them; `fitted` is asked by metric.
    pub fn measured(&self, fitted: impl Fn(&str) -> bool) -> Vec<Measured> {
        [
            ("ttft_ms", "ttft_ms.mean", self.silicon_ttft_ms),
            ("tpot_ms", "tpot_ms.mean", self.silicon_tpot_ms),
        ]
        .into_iter()
        .map(|(metric, path, value)| Measured {
            metric,
            path,
            value,
            fitted: fitted(metric),
        })
        .collect()
    }
}

/// A length drawn evenly between 0.8 and 1.0 of `tokens`.
pub(super) fn drawn(tokens: u32) -> String {
    format!(
        "{{ kind = \"uniform\", min = {}, max = {tokens} }}",
        (f64::from(tokens) * 0.8).round()
    )
}
