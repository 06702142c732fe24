//! From logits to what clients get: choosing a step's tokens, and handing out them and their text.

use std::time::Instant;

use super::in_flight::Collected;
use super::sequence::Seq;
use super::{Driver, lock};
use crate::request::{Ended, Event, Failure, Finish, StopReason, Token};
use crate::sampling::logprobs;
use crate::text::Text;

impl Driver {
    /// Chooses a token for each sampled row of `logits`, and sends them.
    pub(super) fn hand_out(&mut self, c: &mut Collected, logits: &mut [f32], vocab: usize) {
        let mut rows = logits.chunks_exact_mut(vocab);
        let began = Instant::now();
        let mut chosen = Vec::new();
        for e in c.step.plan.entries.iter().filter(|e| e.samples) {
            let Some(row) = rows.next() else { break };
            let Some(seq) = self.seqs[e.id as usize].as_deref_mut() else {
                continue;
            };
            match choose(seq, row, &self.spec.eos) {
                Ok(token) => chosen.push((e.id, token)),
                Err(failure) => c.broken.push((e.id, failure)),
            }
        }
        c.sample = began.elapsed().as_secs_f64();
        let now = self.clock();
        let mut metrics = lock(&self.shared.metrics);
        for (id, token) in chosen {
            let Some(seq) = self.seqs[id as usize].as_deref_mut() else {
                continue;
            };
            match seq.first_token {
                None => {
                    seq.first_token = Some(now);
                    let prompt = seq.request.prompt.len() as u32;
                    let ttft = now.since(seq.submitted).as_secs();
                    metrics.first_token(ttft, prompt, seq.cached);
                }
                Some(_) => metrics.token(now.since(seq.last_token).as_secs()),
            }
            seq.last_token = now;
            let (text, ended) = take_token(seq, &token, &self.spec.text, &self.spec.eos);
            if let Some(e) = &ended {
                c.stopped.push(id);
                c.finishes.push(e.finish);
            }
            // A reader that has gone is about to be cancelled.
            let _ = seq.events.send(Event::Output {
                token,
                text,
                cached_tokens: seq.cached,
                ended,
            });
        }
    }
}

/// Chooses the next token of `seq` and adds it to its tokens.
fn choose(seq: &mut Seq, row: &mut [f32], eos: &[u32]) -> Result<Token, Failure> {
    let prompt = seq.request.prompt.len();
    let r = &seq.request;
    let raw = r.logprobs.map(|_| row.to_vec());
    let mut banned: Vec<u32> = Vec::new();
    if ((seq.tokens.len() - prompt) as u32) < r.min_tokens {
        banned.extend(eos.iter().filter(|_| !r.ignore_eos));
        banned.extend(&r.stop_token_ids);
    }
    let (p, o) = seq.tokens.split_at(prompt);
    let Some(id) = seq.sampler.choose(row, &banned, p, o) else {
        return Err(if row.iter().all(|l| l.is_nan()) {
            Failure::Executor("the model's logits are no numbers".into())
        } else {
            Failure::NoToken
        });
    };
    seq.tokens.push(id);
    Ok(Token {
        id,
        logprobs: raw
            .zip(r.logprobs)
            .map(|(raw, top)| logprobs(&raw, id, top as usize)),
    })
}

/// The text that `token`, the last of `seq`, makes certain, and whether the output ends with it.
fn take_token(seq: &mut Seq, token: &Token, text: &Text, eos: &[u32]) -> (String, Option<Ended>) {
    let made = seq.output().len() as u32;
    let r = &seq.request;
    let is_eos = !r.ignore_eos && eos.contains(&token.id);
    let is_stop = r.stop_token_ids.contains(&token.id);
    let mut fresh = String::new();
    let hidden = r.skip_special_tokens && text.is_special(token.id);
    // vLLM shows a stop token only when asked to include stop strings.
    if !hidden && !((is_eos || is_stop) && !r.include_stop_str_in_output) {
        seq.utf8.push(text.token_bytes(token.id), &mut fresh);
    }
    let last = made >= r.max_tokens || is_eos || is_stop;
    if last {
        seq.utf8.finish(&mut fresh);
    }
    // Stop strings count from `min_tokens` on.
    let (mut out, found) = if made >= r.min_tokens {
        seq.stops.push(&fresh, r.include_stop_str_in_output)
    } else {
        (fresh, None)
    };
    let ended = if let Some(stop) = found {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: Some(StopReason::Text(stop)),
        })
    } else if is_eos {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: None,
        })
    } else if is_stop {
        Some(Ended {
            finish: Finish::Stop,
            stop_reason: Some(StopReason::Token(token.id)),
        })
    } else if made >= r.max_tokens {
        Some(Ended {
            finish: Finish::Length,
            stop_reason: None,
        })
    } else {
        None
    };
    if ended
        .as_ref()
        .is_some_and(|e| !matches!(e.stop_reason, Some(StopReason::Text(_))))
    {
        out.push_str(&seq.stops.finish());
    }
    (out, ended)
}
