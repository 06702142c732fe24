//! From logits to a token.

use std::cmp::Ordering;

use rand::RngExt;
use sim::kernel::rng::{self, Stream};

use crate::request::{Sampling, TokenLogprobs};

/// Temperatures below this mean the likeliest token (vLLM's `_SAMPLING_EPS`).
pub const GREEDY_BELOW: f32 = 1e-5;

/// Draws the tokens of one request.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    draws: Stream,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler; `fallback_seed` is used when the request names none.
    pub fn new(sampling: Sampling, fallback_seed: u64) -> Sampler {
        let seed = sampling.seed.unwrap_or(fallback_seed);
        Sampler {
            sampling,
            draws: rng::stream(seed, "sampling"),
            candidates: Vec::new(),
        }
    }

    /// Chooses a token, but none of those `banned`; `prompt` and `output` are what penalties look at. None: nothing is left,
    /// or no logit is a number, so the forward pass is broken.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        banned: &[u32],
        prompt: &[u32],
        output: &[u32],
    ) -> Option<u32> {
        self.restrict(logits, banned, output);
        self.penalise(logits, prompt, output);
        let likeliest = argmax(logits)?;
        let best = logits[likeliest as usize];
        if best == f32::NEG_INFINITY {
            return None;
        }
        if self.sampling.temperature < GREEDY_BELOW {
            return Some(likeliest);
        }
        let s = &self.sampling;
        let weigh = |l: f32| ((l - best) / s.temperature).exp();
        let c = &mut self.candidates;
        c.clear();
        c.extend(
            logits
                .iter()
                .enumerate()
                .filter(|(_, l)| !l.is_nan())
                .map(|(i, &l)| (i as u32, weigh(l)))
                .filter(|&(_, w)| w > 0.0 && w >= s.min_p),
        );
        let by_weight = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = s.top_k as usize;
        if k > 0 && k < c.len() {
            c.select_nth_unstable_by(k - 1, by_weight);
            c.truncate(k);
        }
        let total = |c: &[(u32, f32)]| c.iter().map(|x| f64::from(x.1)).sum::<f64>();
        if s.top_p < 1.0 {
            c.sort_unstable_by(by_weight);
            let goal = total(c) * f64::from(s.top_p);
            let mut sum = 0.0;
            let kept = c.iter().position(|x| {
                sum += f64::from(x.1);
                sum >= goal
            });
            c.truncate(kept.map_or(c.len(), |i| i + 1));
        }
        let mut at = self.draws.random::<f64>() * total(c);
        for &(id, w) in c.iter() {
            at -= f64::from(w);
            if at < 0.0 {
                return Some(id);
            }
        }
        c.last().map(|x| x.0)
    }

    /// Leaves out tokens: in vLLM's order, before penalties.
    fn restrict(&self, logits: &mut [f32], banned: &[u32], output: &[u32]) {
        let s = &self.sampling;
        if let Some(ids) = &s.allowed_token_ids {
            for (id, l) in (0u32..).zip(logits.iter_mut()) {
                if ids.binary_search(&id).is_err() {
                    *l = f32::NEG_INFINITY;
                }
            }
        }
        let ends_bad_word = |word: &Vec<u32>| {
            let (&last, before) = word.split_last()?;
            output.ends_with(before).then_some(last)
        };
        let bad = s.bad_words.iter().filter_map(ends_bad_word);
        for id in banned.iter().copied().chain(bad) {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = f32::NEG_INFINITY;
            }
        }
    }

    fn penalise(&self, logits: &mut [f32], prompt: &[u32], output: &[u32]) {
        let s = &self.sampling;
        if s.repetition_penalty != 1.0 {
            let mut seen: Vec<u32> = prompt.iter().chain(output).copied().collect();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(l) = logits.get_mut(id as usize) {
                    *l = if *l > 0.0 {
                        *l / s.repetition_penalty
                    } else {
                        *l * s.repetition_penalty
                    };
                }
            }
        }
        if s.presence_penalty != 0.0 || s.frequency_penalty != 0.0 {
            let mut seen = output.to_vec();
            seen.sort_unstable();
            for run in seen.chunk_by(|a, b| a == b) {
                if let Some(l) = logits.get_mut(run[0] as usize) {
                    *l -= s.presence_penalty + s.frequency_penalty * run.len() as f32;
                }
            }
        }
    }
}

/// Index of the largest value, the first among equals; none when no value is a number.
fn argmax(values: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (i, &v) in values.iter().enumerate() {
        if v.partial_cmp(&best.map_or(f32::NEG_INFINITY, |b| b.1)) == Some(Ordering::Greater)
            || (best.is_none() && !v.is_nan())
        {
            best = Some((i as u32, v));
        }
    }
    best.map(|b| b.0)
}

/// Log probabilities of `chosen` and of the `top` likeliest tokens under the logits as the model gave them (vLLM's
/// `raw_logprobs`).
pub fn logprobs(logits: &[f32], chosen: u32, top: usize) -> TokenLogprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    let log_p = |l: f32| (f64::from(l) - log_sum) as f32;
    let mut order: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    let by = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let top = top.min(order.len());
    if top > 0 {
        order.select_nth_unstable_by(top - 1, by);
    }
    order.truncate(top);
    order.sort_unstable_by(by);
    TokenLogprobs {
        chosen: logits
            .get(chosen as usize)
            .map_or(f32::NEG_INFINITY, |&l| log_p(l)),
        top: order.into_iter().map(|(i, l)| (i, log_p(l))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(sampling: Sampling, logits: &[f32], n: usize) -> Vec<u32> {
        let mut s = Sampler::new(sampling, 7);
        (0..n)
            .map(|_| s.choose(&mut logits.to_vec(), &[], &[], &[]).unwrap())
            .collect()
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_likeliest() {
        let s = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        assert_eq!(draw(s, &[1.0, 3.0, 3.0, f32::NAN], 2), [1, 1]);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [1.0f32.ln(), 2.0f32.ln(), 7.0f32.ln()];
        let d = draw(Sampling::default(), &logits, 20_000);
        for (id, share) in [(0, 0.1), (1, 0.2), (2, 0.7)] {
            let seen = d.iter().filter(|&&x| x == id).count() as f64 / 20_000.0;
            // Five standard deviations of a share of 20 000 draws.
            assert!((seen - share).abs() < 5.0 * (share * (1.0 - share) / 20_000.0_f64).sqrt());
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_leave_out_the_tail() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let only = |s: Sampling| {
            let mut d = draw(s, &logits, 2000);
            d.sort_unstable();
            d.dedup();
            d
        };
        let d = Sampling::default;
        assert_eq!(only(Sampling { top_k: 2, ..d() }), [0, 1]);
        assert_eq!(only(Sampling { top_p: 0.81, ..d() }), [0, 1, 2]);
        assert_eq!(only(Sampling { top_p: 0.0, ..d() }), [0]);
        assert_eq!(only(Sampling { min_p: 0.5, ..d() }), [0, 1]);
        assert_eq!(only(d()), [0, 1, 2, 3]);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_another_seed_others() {
        let logits = [0.0; 50];
        let with = |seed| Sampling {
            seed: Some(seed),
            ..Sampling::default()
        };
        assert_eq!(draw(with(1), &logits, 20), draw(with(1), &logits, 20));
        assert_ne!(draw(with(1), &logits, 20), draw(with(2), &logits, 20));
    }

    #[test]
    fn banned_tokens_are_not_chosen_and_broken_logits_are_told() {
        let mut s = Sampler::new(Sampling::default(), 0);
        for _ in 0..100 {
            assert_eq!(s.choose(&mut [9.0, 0.0], &[0], &[], &[]), Some(1));
        }
        assert_eq!(s.choose(&mut [f32::NAN; 3], &[], &[], &[]), None);
    }

    #[test]
    fn penalties_push_away_what_was_said() {
        let greedy = |s: Sampling, output: &[u32]| {
            let mut s = Sampler::new(
                Sampling {
                    temperature: 0.0,
                    ..s
                },
                0,
            );
            s.choose(&mut [2.0, 1.5], &[], &[], output)
        };
        let d = Sampling::default;
        let presence = Sampling {
            presence_penalty: 1.0,
            ..d()
        };
        assert_eq!(greedy(presence.clone(), &[]), Some(0));
        assert_eq!(greedy(presence, &[0]), Some(1));
        let frequency = Sampling {
            frequency_penalty: 0.2,
            ..d()
        };
        assert_eq!(greedy(frequency.clone(), &[0, 0]), Some(0));
        assert_eq!(greedy(frequency, &[0, 0, 0]), Some(1));
        let repetition = Sampling {
            repetition_penalty: 2.0,
            ..d()
        };
        assert_eq!(greedy(repetition, &[0]), Some(1));
    }

    #[test]
    fn log_probabilities_sum_to_one_and_come_best_first() {
        let l = logprobs(&[0.0, 1.0, 2.0, 1.0], 0, 4);
        let sum: f32 = l.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(l.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1, 3, 0]);
        assert_eq!(l.chosen, l.top[3].1);
    }
}
