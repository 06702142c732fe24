//! What of the prompts a workload itself lets a prefix cache know, and what the server found beyond that.
//!
//! A benchmark whose prompts the server has met before measures its prefix cache: a TTFT of milliseconds in place of seconds. The
//! workload says which content its prompts share, so whatever is found beyond that was not planned.

use std::collections::HashMap;

use sim::request::RequestSpec;

use crate::driver::RawRun;
use crate::server_figures::ServerFigures;

/// Tokens of a prompt that may be found by chance: prompts that begin alike, and what a server puts in front of each [tokens].
const CHANCE_TOKENS: u32 = 8;
/// Unplanned hits above this share of the prompt tokens are told [ratio].
const TELL_ABOVE: f64 = 0.01;

/// What of each prompt an unlimited prefix cache knows from the requests before it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// By content, tokens met so far [tokens].
    met: HashMap<u64, u32>,
}

impl Known {
    /// Prompt tokens of `spec` that are known [tokens]; from now on, all of it is.
    fn of(&mut self, spec: &RequestSpec) -> u32 {
        let mut known = 0;
        let mut all_before = true;
        for s in &spec.segments {
            let met = self.met.entry(s.content).or_default();
            if all_before {
                known += (*met).min(s.tokens);
                all_before = *met >= s.tokens;
            }
            *met = (*met).max(s.tokens);
        }
        if spec.output_content != 0 {
            self.met.insert(spec.output_content, spec.output_tokens);
        }
        known.min(spec.prompt_tokens)
    }
}

/// Prefix-cache hits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CacheHits {
    /// Prompt tokens that the workload shares: what an unlimited cache that starts empty would find [tokens].
    pub planned_tokens: u64,
    /// Prompt tokens that the server found beyond that [tokens]; none where it does not say what it found.
    pub unplanned_tokens: Option<u64>,
    /// The same as a share of the prompt tokens that it speaks of [0, 1].
    pub unplanned_ratio: Option<f64>,
}

impl CacheHits {
    /// The hits of `run`: by the usage of each answer, else by the server's metrics. `overhead` is what the server puts around each
    /// prompt [tokens].
    pub fn of(run: &RawRun, server: Option<&ServerFigures>, overhead: u32) -> CacheHits {
        let allowed = overhead.saturating_add(CHANCE_TOKENS);
        let mut known = Known::default();
        let mut hits = CacheHits::default();
        let (mut unplanned, mut prompt, mut said) = (0u64, 0u64, false);
        for s in &run.samples {
            let planned = known.of(&s.spec);
            hits.planned_tokens += u64::from(planned);
            let usage = s.trace.usage.unwrap_or_default();
            if let Some(cached) = usage.cached_tokens {
                said = true;
                let expected = planned.saturating_add(allowed);
                unplanned += u64::from(cached.saturating_sub(expected));
                prompt += u64::from(usage.prompt_tokens.unwrap_or(s.spec.prompt_tokens));
            }
        }
        if said {
            hits.unplanned(unplanned as f64, prompt as f64);
        } else if let Some(server) = server
            && let Some((found, looked_up)) = server.prefix_hit_tokens.zip(server.prefix_query_tokens)
            // A request that lost its KV finds its own blocks when it comes back.
            && server.preemptions.unwrap_or(0.0) == 0.0
        {
            let expected = hits.planned_tokens + run.samples.len() as u64 * u64::from(allowed);
            hits.unplanned((found - expected as f64).max(0.0), looked_up);
        }
        hits
    }

    fn unplanned(&mut self, tokens: f64, of: f64) {
        self.unplanned_tokens = Some(tokens as u64);
        self.unplanned_ratio = (of > 0.0).then(|| tokens / of);
    }

    /// What the reader must know, where there are more unplanned hits than chance gives.
    pub fn warning(&self) -> Option<String> {
        let ratio = self.unplanned_ratio.filter(|r| *r > TELL_ABOVE)?;
        let tokens = self.unplanned_tokens?;
        Some(format!(
            "PREFIX CACHE: {:.1} % of the prompt tokens ({tokens}) were found in the server's prefix cache though the load does not share them, \
             so TTFT is that of prompts the server had met before; were these prompts sent to it already? Without --seed and --prompt-salt every \
             run sends new ones",
            100.0 * ratio
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Sample, Stopped};
    use crate::endpoint::{RequestTrace, Usage};
    use sim::request::Segment;

    fn spec(segments: &[(u64, u32)], prompt_tokens: u32) -> RequestSpec {
        RequestSpec {
            prompt_tokens,
            segments: segments
                .iter()
                .map(|&(content, tokens)| Segment { content, tokens })
                .collect(),
            ..RequestSpec::default()
        }
    }

    fn run(requests: &[(RequestSpec, Option<u32>)]) -> RawRun {
        RawRun {
            samples: requests
                .iter()
                .map(|(spec, cached)| {
                    let mut trace = RequestTrace::pending();
                    trace.usage = Some(Usage {
                        prompt_tokens: Some(spec.prompt_tokens),
                        completion_tokens: Some(1),
                        cached_tokens: *cached,
                    });
                    Sample {
                        spec: spec.clone(),
                        planned_ns: 0,
                        sent_ns: 0,
                        trace,
                    }
                })
                .collect(),
            end_ns: 1,
            started_unix_s: 0.0,
            stopped: Stopped::Done,
            connections: Default::default(),
            cpu_s: None,
            held_back: 0,
            notes: Vec::new(),
        }
    }

    #[test]
    fn what_the_workload_shares_is_no_surprise() {
        let dialogue = |turns: u32| {
            let segments: Vec<(u64, u32)> = (0..turns).map(|t| (u64::from(t) + 9, 100)).collect();
            spec(&segments, 100 * turns)
        };
        let shared = run(&[
            (spec(&[(5, 400)], 1000), Some(0)),
            (spec(&[(5, 400)], 1000), Some(400)),
            (dialogue(1), Some(0)),
            (dialogue(2), Some(96)),
            (dialogue(3), Some(192)),
        ]);
        let hits = CacheHits::of(&shared, None, 0);
        assert_eq!(hits.planned_tokens, 400 + 100 + 200);
        assert_eq!(hits.unplanned_tokens, Some(0));
        assert_eq!(hits.warning(), None);
    }

    #[test]
    fn content_behind_something_new_cannot_be_found() {
        let mut known = Known::default();
        assert_eq!(known.of(&spec(&[(1, 50), (2, 50)], 100)), 0);
        assert_eq!(known.of(&spec(&[(1, 50), (3, 50), (2, 50)], 150)), 50);
        assert_eq!(known.of(&spec(&[(1, 80), (2, 50)], 130)), 50);
        assert_eq!(known.of(&spec(&[(1, 80), (2, 50)], 130)), 130);
        assert_eq!(known.of(&spec(&[(1, 10)], 10)), 10);
    }

    #[test]
    fn prompts_that_the_server_has_met_before_are_told_loudly() {
        let again = run(&[(spec(&[], 1000), Some(992)), (spec(&[], 1000), Some(992))]);
        let hits = CacheHits::of(&again, None, 0);
        assert_eq!(hits.unplanned_tokens, Some(2 * 984));
        let warning = hits.warning().unwrap();
        assert!(warning.starts_with("PREFIX CACHE: 98.4 %"), "{warning}");
        // A chat template that stands before every prompt is no surprise.
        let template = run(&[(spec(&[], 1000), Some(0)), (spec(&[], 1000), Some(32))]);
        assert_eq!(CacheHits::of(&template, None, 40).warning(), None);
    }

    #[test]
    fn where_answers_say_nothing_the_servers_metrics_do() {
        let silent = run(&[(spec(&[], 1000), None), (spec(&[(5, 500)], 1000), None)]);
        assert_eq!(CacheHits::of(&silent, None, 0).unplanned_tokens, None);
        let metrics = |hits: f64, preemptions: f64| ServerFigures {
            prefix_hit_tokens: Some(hits),
            prefix_query_tokens: Some(2000.0),
            preemptions: Some(preemptions),
            ..ServerFigures::default()
        };
        let warm = CacheHits::of(&silent, Some(&metrics(1016.0, 0.0)), 0);
        assert_eq!(warm.unplanned_ratio, Some(0.5));
        let cold = CacheHits::of(&silent, Some(&metrics(16.0, 0.0)), 0);
        assert_eq!(cold.warning(), None);
        let preempted = CacheHits::of(&silent, Some(&metrics(1016.0, 3.0)), 0);
        assert_eq!(preempted.unplanned_ratio, None);
    }
}
