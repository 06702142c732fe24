//! Streams of requests.

use super::super::document::join;
use super::super::file::{
    PrefixFile, RetriesFile, RetryOn, SamplingFile, SessionsFile, StreamFile,
};
use super::{Checker, MAX_SECS, Result};
use crate::workload::spec::{
    Arrival, Cancel, DEFAULT_MAX_TOKENS, Lengths, MAX_TOKENS, Prefix, Retries, SamplingSpec,
    Sessions, StreamSpec,
};

impl Checker<'_, '_> {
    pub(super) fn stream(&self, s: &StreamFile, index: usize, path: &str) -> Result<StreamSpec> {
        let at = |key: &str| join(path, key);
        let arrival_file = self.need(
            &s.arrival,
            path,
            "arrival",
            "{ kind = \"poisson\", rate = \"2.5 req/s\" }",
        )?;
        let arrival = self.arrival(&arrival_file, &at("arrival"))?;
        let is_trace = matches!(arrival, Arrival::Trace { .. });
        let lengths = self.lengths(s, is_trace, path)?;
        if is_trace {
            for (given, key) in [
                (s.prefix.is_some(), "prefix"),
                (s.sessions.is_some(), "sessions"),
            ] {
                if given {
                    return self.fail(
                        &at(key),
                        "a trace says itself what its requests share; leave this out",
                    );
                }
            }
        }
        let cancel = match &s.cancel {
            Some(c) => Some(Cancel {
                fraction: self.need(&c.fraction, &at("cancel"), "fraction", "0.1")?,
                after: self.positive_secs(
                    self.need(&c.after, &at("cancel"), "after", "\"5 s\"")?,
                    &at("cancel.after"),
                )?,
            }),
            None => None,
        };
        Ok(StreamSpec {
            name: self.text(
                s.name.clone().unwrap_or(format!("stream-{index}")),
                &at("name"),
            )?,
            model: s
                .model
                .clone()
                .map(|m| self.text(m, &at("model")))
                .transpose()?,
            arrival,
            lengths,
            max_tokens: s
                .max_tokens
                .map(|n| self.whole(n, 1, MAX_TOKENS, &at("max_tokens")))
                .transpose()?,
            prefix: s
                .prefix
                .as_ref()
                .map(|p| self.prefix(p, &at("prefix")))
                .transpose()?,
            sessions: s
                .sessions
                .as_ref()
                .map(|x| self.sessions(x, &at("sessions")))
                .transpose()?,
            timeout: self.optional_secs(s.timeout, &at("timeout"))?,
            cancel,
            retries: s
                .retries
                .as_ref()
                .map(|x| self.retries(x, &at("retries")))
                .transpose()?,
            priority: s.priority.unwrap_or(0),
            sampling: match &s.sampling {
                Some(x) => self.sampling(x, &at("sampling"))?,
                None => SamplingSpec::default(),
            },
            requests: s
                .requests
                .map(|n| self.count(n, &at("requests")))
                .transpose()?,
        })
    }

    fn lengths(&self, s: &StreamFile, is_trace: bool, path: &str) -> Result<Lengths> {
        let at = |key: &str| join(path, key);
        Ok(match (&s.prompt, &s.output, &s.lengths) {
            (None, None, None) if is_trace => Lengths::OfTrace,
            (p, o, l) if is_trace => {
                let key = if p.is_some() {
                    "prompt"
                } else if o.is_some() {
                    "output"
                } else {
                    debug_assert!(l.is_some());
                    "lengths"
                };
                return self.fail(&at(key), "a trace brings its own lengths; leave this out");
            }
            (None, None, Some(pairs)) => Lengths::Pairs {
                file: self.path(&pairs.file, &at("lengths.file"))?,
                prompt_column: pairs.prompt_column.clone().unwrap_or("input_tokens".into()),
                output_column: pairs
                    .output_column
                    .clone()
                    .unwrap_or("output_tokens".into()),
            },
            (p, o, None) => Lengths::Separate {
                prompt: self.length(&self.need(p, path, "prompt", "256")?, &at("prompt"))?,
                output: self.length(&self.need(o, path, "output", "256")?, &at("output"))?,
            },
            (_, _, Some(_)) => {
                return self.fail(
                    &at("lengths"),
                    "give `lengths`, or `prompt` and `output`, not both",
                );
            }
        })
    }

    fn prefix(&self, p: &PrefixFile, path: &str) -> Result<Prefix> {
        let at = |key: &str| join(path, key);
        Ok(Prefix {
            tokens: self.whole(
                self.need(&p.tokens, path, "tokens", "1024")?,
                1,
                MAX_TOKENS,
                &at("tokens"),
            )?,
            groups: self.whole(p.groups.unwrap_or(1), 1, 1_000_000, &at("groups"))?,
            zipf: self.number(p.zipf.unwrap_or(0.0), 0.0, 10.0, &at("zipf"))?,
        })
    }

    fn sampling(&self, s: &SamplingFile, path: &str) -> Result<SamplingSpec> {
        let at = |key: &str| join(path, key);
        let temperature = s.temperature.unwrap_or(1.0);
        Ok(SamplingSpec {
            temperature: self.number(temperature, 0.0, 100.0, &at("temperature"))?,
            top_k: self.whole(s.top_k.unwrap_or(0), 0, MAX_TOKENS, &at("top_k"))?,
            top_p: s
                .top_p
                .map(|p| self.number(p, 1e-9, 1.0, &at("top_p")))
                .transpose()?,
            penalties: s.penalties.unwrap_or(false),
            logprobs: self.whole(s.logprobs.unwrap_or(0), 0, MAX_TOKENS, &at("logprobs"))?,
        })
    }

    fn sessions(&self, s: &SessionsFile, path: &str) -> Result<Sessions> {
        let at = |key: &str| join(path, key);
        Ok(Sessions {
            turns: self.length(&self.need(&s.turns, path, "turns", "5")?, &at("turns"))?,
            think: self.secs_or(s.think, 0.0, &at("think"))?,
            think_cv: self.number(s.think_cv.unwrap_or(1.0), 0.0, 100.0, &at("think_cv"))?,
            max_context: self.whole(
                s.max_context.unwrap_or(DEFAULT_MAX_TOKENS),
                1,
                MAX_TOKENS,
                &at("max_context"),
            )?,
        })
    }

    fn retries(&self, r: &RetriesFile, path: &str) -> Result<Retries> {
        let at = |key: &str| join(path, key);
        let on =
            r.on.clone()
                .unwrap_or(vec![RetryOn::Rejected, RetryOn::Failed]);
        if on.is_empty() {
            return self.fail(
                &at("on"),
                "is empty; name rejected, timed_out or failed, or leave retries out",
            );
        }
        let backoff = self.secs_or(r.backoff, 1.0, &at("backoff"))?;
        let factor = self.number(r.factor.unwrap_or(2.0), 1.0, 100.0, &at("factor"))?;
        let max = self.whole(self.need(&r.max, path, "max", "3")?, 1, 100, &at("max"))?;
        if backoff.secs() * factor.powi(max as i32 - 1) > MAX_SECS {
            return self.fail(
                &at("factor"),
                format!(
                    "the last of {max} pauses would be longer than 100 years; lower factor or max"
                ),
            );
        }
        Ok(Retries {
            max,
            backoff,
            factor,
            jitter: r.jitter.unwrap_or_default(),
            on_rejected: on.contains(&RetryOn::Rejected),
            on_timed_out: on.contains(&RetryOn::TimedOut),
            on_failed: on.contains(&RetryOn::Failed),
        })
    }
}

/// Whether a stream stops without a limit of the run.
pub(super) fn ends_by_itself(s: &StreamSpec) -> bool {
    s.requests.is_some()
        || match &s.arrival {
            Arrival::Burst { .. } | Arrival::Trace { .. } => true,
            Arrival::Steps { repeat, .. } | Arrival::RateTable { repeat, .. } => !repeat,
            _ => false,
        }
}
