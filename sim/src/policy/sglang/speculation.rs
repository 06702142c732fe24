//! Drafts that a decode verifies (serving-policies 7.8): `python/sglang/srt/speculative/`, `ServerArgs._handle_speculative_decoding`.

use super::super::check::ParamError;
use super::params::{ENGINE, SglangParams, SpeculativeAlgorithm};

/// Drafts after a step where the argument is left out (`auto_choose_speculative_params` of DeepSeek's models).
const STEPS: u32 = 3;
/// Most of them.
const MOST_STEPS: u32 = 15;

/// Share of drafts that are accepted, of those whose predecessors were: the first, and each further one, of DeepSeek-R1's module run over and over on two
/// drafts a step (public run configuration of vLLM on eight H200s, 2025: "80 % for token 1, 60 % for token 2"). DeepSeek-V3's report (arXiv 2412.19437,
/// 5.4.3) has 85 to 90 % for the first.
const ACCEPT_RATES: [f64; 2] = [0.8, 0.75];

impl SglangParams {
    /// Drafts after each step; 0: none.
    pub fn drafts(&self) -> u32 {
        match self.speculative_algorithm {
            None => 0,
            Some(SpeculativeAlgorithm::Eagle) => self.speculative_num_steps.unwrap_or(STEPS),
        }
    }

    /// How likely each draft is accepted; empty: there are none.
    pub(super) fn accept_rates(&self) -> Vec<f64> {
        match (self.drafts(), &self.speculative_accept_rates) {
            (0, _) => Vec::new(),
            (_, Some(rates)) => rates.clone(),
            (_, None) => ACCEPT_RATES.to_vec(),
        }
    }

    /// Whether the next step is chosen while one runs: with drafts only under the second version of speculation.
    pub(super) fn overlaps(&self) -> bool {
        !self.disable_overlap_schedule && (self.drafts() == 0 || self.enable_spec_v2)
    }

    /// Refuses arguments of speculation that make no sense, or that are not modelled.
    pub(super) fn check_speculation(&self) -> Result<(), ParamError> {
        let err = |param, problem: String| Err(ParamError::new(ENGINE, param, problem));
        let given = [
            (
                "speculative_num_steps",
                self.speculative_num_steps.is_some(),
            ),
            (
                "speculative_eagle_topk",
                self.speculative_eagle_topk.is_some(),
            ),
            (
                "speculative_num_draft_tokens",
                self.speculative_num_draft_tokens.is_some(),
            ),
            (
                "speculative_accept_rates",
                self.speculative_accept_rates.is_some(),
            ),
            ("enable_spec_v2", self.enable_spec_v2),
        ];
        if self.speculative_algorithm.is_none() {
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((param, _)) => err(
                    param,
                    "has no effect without speculative_algorithm = \"EAGLE\"".into(),
                ),
                None => Ok(()),
            };
        }
        let steps = self.drafts();
        if !(1..=MOST_STEPS).contains(&steps) {
            return err(
                "speculative_num_steps",
                format!("must be from 1 to {MOST_STEPS}, got {steps}"),
            );
        }
        if let Some(topk) = self.speculative_eagle_topk.filter(|k| *k != 1) {
            return err(
                "speculative_eagle_topk",
                format!("must be 1: drafts that branch into a tree are not modelled, got {topk}"),
            );
        }
        // SGLang sets it so where the drafts are a chain, whatever was given.
        if let Some(tokens) = self
            .speculative_num_draft_tokens
            .filter(|t| *t != steps + 1)
        {
            return err(
                "speculative_num_draft_tokens",
                format!(
                    "must be speculative_num_steps + 1 ({}) where drafts are a chain, as SGLang would set it, got {tokens}",
                    steps + 1
                ),
            );
        }
        let rates = self.accept_rates();
        let is_share = |r: &f64| (0.0..=1.0).contains(r);
        if rates.is_empty() || rates.len() > MOST_STEPS as usize || !rates.iter().all(is_share) {
            return err(
                "speculative_accept_rates",
                format!("must be 1 to {MOST_STEPS} numbers from 0 to 1"),
            );
        }
        Ok(())
    }
}
