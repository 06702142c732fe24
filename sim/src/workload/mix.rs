//! All streams of a run, merged by time, within the run's limits.

use std::sync::{Arc, Mutex};

use hwmodels::files::Files;

use super::source::{RequestEnd, Workload};
use super::spec::{Limits, StreamSpec, WorkloadError};
use super::stream::{CutCounts, FailureCell, StreamSource};
use crate::kernel::time::SimTime;
use crate::request::{ReqId, RequestSpec};

/// The workload of a scenario.
pub struct Mix {
    streams: Vec<StreamSource>,
    /// The next request: when, and of which stream.
    next: Option<(SimTime, usize)>,
    /// Requests that may still be sent, retries not counted.
    left: u64,
    /// Nothing is sent after this.
    until: SimTime,
    hint: Option<u64>,
    failure: FailureCell,
    cut: CutCounts,
}

/// A fault in stream `stream` of a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct StreamError {
    /// Index of the stream.
    pub stream: usize,
    /// What is wrong.
    pub error: WorkloadError,
}

impl Mix {
    /// Prepares all streams; opens and checks their files.
    pub fn new(
        streams: &[StreamSpec],
        files: &dyn Files,
        limits: &Limits,
        seed: u64,
    ) -> Result<Mix, StreamError> {
        let failure: FailureCell = Arc::new(Mutex::new(None));
        let cut = CutCounts::new(streams.len());
        let mut sources = Vec::with_capacity(streams.len());
        for (i, spec) in streams.iter().enumerate() {
            let source = u16::try_from(i)
                .map_err(|_| WorkloadError::new("", "there are more than 65536 streams"))
                .and_then(|index| {
                    StreamSource::new(spec, files, index, seed, Arc::clone(&failure), cut.clone())
                })
                .map_err(|error| StreamError { stream: i, error })?;
            sources.push(source);
        }
        let mut hint = sources
            .iter()
            .try_fold(0u64, |sum, s| Some(sum.saturating_add(s.len_hint()?)));
        if let Some(n) = limits.requests {
            hint = Some(hint.map_or(n, |h| h.min(n)));
        }
        let mut mix = Mix {
            streams: sources,
            next: None,
            left: limits.requests.unwrap_or(u64::MAX),
            until: limits
                .duration
                .map_or(SimTime::NEVER, |d| SimTime::from_secs(d.secs())),
            hint,
            failure,
            cut,
        };
        mix.find_next();
        Ok(mix)
    }

    /// Where a fault that came up during the run is left (a trace that changed under the run). Look after the run.
    pub fn failure(&self) -> FailureCell {
        Arc::clone(&self.failure)
    }

    /// How many outputs of each stream were cut to their `max_tokens` so far; the counts go on while it runs.
    pub fn cut(&self) -> CutCounts {
        self.cut.clone()
    }

    #[inline]
    fn find_next(&mut self) {
        let mut next: Option<(SimTime, usize)> = None;
        for (i, s) in self.streams.iter().enumerate() {
            if let Some(t) = s.peek()
                && t <= self.until
                && next.is_none_or(|(best, _)| t < best)
            {
                next = Some((t, i));
            }
        }
        self.next = next;
    }
}

impl Workload for Mix {
    #[inline]
    fn peek(&self) -> Option<SimTime> {
        self.next.map(|(t, _)| t)
    }

    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        let Some((_, i)) = self.next else { return };
        if self.streams[i].pop(out) {
            self.left -= 1;
            if self.left == 0 {
                self.streams
                    .iter_mut()
                    .for_each(StreamSource::forget_unsent);
            }
        }
        self.find_next();
    }

    fn on_end(&mut self, end: &RequestEnd) {
        if let Some(s) = self.streams.get_mut(usize::from(end.stream)) {
            s.on_end(end, self.left > 0);
            self.find_next();
        }
    }

    fn reacts(&self) -> bool {
        self.streams.iter().any(StreamSource::reacts)
    }

    fn shares_content(&self) -> bool {
        self.streams.iter().any(StreamSource::shares_content)
    }

    fn len_hint(&self) -> Option<u64> {
        self.hint
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use hwmodels::files::Disk;
    use hwmodels::units::{PerSec, Ratio, Secs};
    use proptest::prelude::*;
    use rand::RngExt;

    use super::super::spec::{Arrival, Cancel, Length, Lengths, Prefix, Retries, Sessions};
    use super::*;
    use crate::kernel::rng;
    use crate::kernel::time::SimDuration;
    use crate::request::{Outcome, RejectReason};

    fn secs(x: f64) -> Secs {
        Secs::new(x).unwrap()
    }

    fn plain(name: &str, arrival: Arrival) -> StreamSpec {
        StreamSpec {
            name: name.into(),
            model: None,
            arrival,
            lengths: Lengths::Separate {
                prompt: Length::Uniform { min: 1, max: 500 },
                output: Length::Uniform { min: 1, max: 100 },
            },
            max_tokens: None,
            prefix: None,
            sessions: None,
            timeout: None,
            cancel: None,
            retries: None,
            priority: 0,
            sampling: crate::workload::spec::SamplingSpec::default(),
            requests: None,
        }
    }

    fn poisson(rate: f64) -> Arrival {
        Arrival::Poisson {
            rate: PerSec::new(rate).unwrap(),
        }
    }

    fn closed(concurrency: u32, think: f64) -> Arrival {
        Arrival::Closed {
            concurrency,
            stagger: secs(0.0),
            think: secs(think),
            think_cv: 1.0,
            refused_pause: secs(0.1),
        }
    }

    fn limit(requests: u64) -> Limits {
        Limits {
            requests: Some(requests),
            duration: None,
        }
    }

    /// What a server with enough room for everybody saw.
    struct Log {
        sent: Vec<RequestSpec>,
        most_in_flight: Vec<u32>,
    }

    /// Drives a workload against a server that answers after an exponential time of mean 1 s, refuses a share of
    /// the requests, and times out those whose client is not that patient.
    fn drive(mut mix: Mix, refused: f64, service_seed: u64) -> Log {
        let mut service = rng::stream(service_seed, "test.service");
        let mut ends: BinaryHeap<Reverse<(SimTime, u32)>> = BinaryHeap::new();
        let mut sent: Vec<RequestSpec> = Vec::new();
        let mut outcomes = Vec::new();
        let mut in_flight = vec![0u32; mix.streams.len()];
        let mut most = in_flight.clone();
        let mut now = SimTime::ZERO;
        loop {
            let next_end = ends.peek().map(|e| e.0.0);
            let next_arrival = mix.peek();
            match (next_arrival, next_end) {
                (None, None) => break,
                (Some(a), e) if e.is_none_or(|e| a < e) => {
                    assert!(a >= now, "time went back");
                    now = a;
                    let mut spec = RequestSpec::default();
                    mix.pop(sent.len() as u32, &mut spec);
                    assert_eq!(spec.arrival, a);
                    assert!(spec.prompt_tokens >= 1 && spec.output_tokens >= 1);
                    assert!(spec.max_tokens >= spec.output_tokens);
                    assert!(spec.output_tokens >= 1);
                    let covered: u64 = spec.segments.iter().map(|s| u64::from(s.tokens)).sum();
                    assert!(covered <= u64::from(spec.prompt_tokens));
                    let stream = usize::from(spec.stream);
                    in_flight[stream] += 1;
                    most[stream] = most[stream].max(in_flight[stream]);
                    let u: f64 = service.random();
                    let answer = SimDuration::from_secs(-(1.0 - u).ln());
                    let (outcome, after) = if service.random::<f64>() < refused {
                        (
                            Outcome::Rejected(RejectReason::Overloaded),
                            SimDuration::ZERO,
                        )
                    } else if spec.timeout.is_some_and(|t| t < answer) {
                        (Outcome::TimedOut, spec.timeout.unwrap())
                    } else {
                        (Outcome::Finished, answer)
                    };
                    ends.push(Reverse((now + after, sent.len() as u32)));
                    outcomes.push(outcome);
                    sent.push(spec);
                    assert!(sent.len() < 1_000_000, "the workload does not end");
                }
                _ => {
                    let Reverse((at, id)) = ends.pop().unwrap();
                    now = at;
                    let spec = &sent[id as usize];
                    in_flight[usize::from(spec.stream)] -= 1;
                    let outcome = outcomes[id as usize];
                    mix.on_end(&RequestEnd {
                        id,
                        tag: spec.tag,
                        stream: spec.stream,
                        session: spec.session,
                        outcome,
                        at,
                        output_tokens: if outcome == Outcome::Finished {
                            spec.output_tokens
                        } else {
                            0
                        },
                    });
                }
            }
        }
        Log {
            sent,
            most_in_flight: most,
        }
    }

    fn mix(streams: &[StreamSpec], limits: Limits, seed: u64) -> Mix {
        Mix::new(streams, &Disk, &limits, seed).unwrap()
    }

    fn of_stream(log: &Log, stream: u16) -> Vec<RequestSpec> {
        let of = log.sent.iter().filter(|r| r.stream == stream);
        of.cloned().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_closed_loop_never_exceeds_its_concurrency_and_reaches_it(
            concurrency in 1u32..40, think in prop_oneof![Just(0.0), 0.01f64..2.0],
            refused in prop_oneof![Just(0.0), Just(0.3), Just(1.0)], seed in 0u64..1000,
        ) {
            let log = drive(mix(&[plain("a", closed(concurrency, think))], limit(400), seed), refused, seed);
            prop_assert_eq!(log.sent.len(), 400);
            prop_assert!(log.most_in_flight[0] <= concurrency);
            if refused == 0.0 {
                prop_assert_eq!(log.most_in_flight[0], concurrency);
            }
        }

        #[test]
        fn the_same_seed_gives_the_same_requests_and_another_does_not(seed in 0u64..1000) {
            let streams = [plain("a", poisson(5.0)), plain("b", closed(3, 0.5))];
            let a = drive(mix(&streams, limit(300), seed), 0.1, 1);
            let b = drive(mix(&streams, limit(300), seed), 0.1, 1);
            prop_assert_eq!(&a.sent, &b.sent);
            let c = drive(mix(&streams, limit(300), seed + 1), 0.1, 1);
            prop_assert_ne!(&a.sent, &c.sent);
        }

        #[test]
        fn changing_one_stream_leaves_the_draws_of_others_alone(seed in 0u64..1000) {
            let until = Limits { requests: None, duration: Some(secs(60.0)) };
            let first = plain("first", poisson(3.0));
            let before = drive(mix(&[first.clone(), plain("second", poisson(5.0))], until, seed), 0.0, 1);
            let mut changed = plain("second", poisson(9.0));
            changed.lengths = Lengths::Separate { prompt: Length::Fixed(7), output: Length::Fixed(8) };
            changed.prefix = Some(Prefix { tokens: 100, groups: 5, zipf: 1.0 });
            let after = drive(mix(&[first, changed], until, seed), 0.0, 1);
            prop_assert_eq!(of_stream(&before, 0), of_stream(&after, 0));
        }

        #[test]
        fn changing_lengths_leaves_arrivals_alone_and_the_service_does_not_change_an_open_loop(seed in 0u64..1000) {
            let mut stream = plain("a", poisson(3.0));
            stream.cancel = Some(Cancel { fraction: Ratio::new(0.5).unwrap(), after: secs(1.0) });
            let a = drive(mix(std::slice::from_ref(&stream), limit(200), seed), 0.0, 1);
            let b = drive(mix(std::slice::from_ref(&stream), limit(200), seed), 0.5, 2);
            prop_assert_eq!(&a.sent, &b.sent);
            stream.lengths = Lengths::Separate { prompt: Length::Fixed(7), output: Length::Fixed(8) };
            let c = drive(mix(&[stream], limit(200), seed), 0.0, 1);
            let instants = |log: &Log| log.sent.iter().map(|r| (r.arrival, r.timeout)).collect::<Vec<_>>();
            prop_assert_eq!(instants(&a), instants(&c));
        }

        #[test]
        fn a_session_sends_back_all_that_was_said(seed in 0u64..1000, turns in 1u32..8) {
            let mut stream = plain("chat", poisson(2.0));
            stream.prefix = Some(Prefix { tokens: 64, groups: 2, zipf: 0.0 });
            stream.sessions = Some(Sessions {
                turns: Length::Fixed(turns), think: secs(0.5), think_cv: 1.0, max_context: 1_000_000,
            });
            let log = drive(mix(&[stream], limit(200), seed), 0.0, seed);
            prop_assert_eq!(log.sent.len(), 200);
            let mut ids: Vec<u64> = log.sent.iter().filter_map(|r| r.session).collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                let of: Vec<_> = log.sent.iter().filter(|r| r.session == Some(id)).collect();
                prop_assert!(of.len() <= turns as usize);
                for pair in of.windows(2) {
                    let (a, b) = (pair[0], pair[1]);
                    let n = a.segments.len();
                    prop_assert_eq!(&b.segments[..n], &a.segments[..]);
                    prop_assert_eq!(b.segments[n].content, a.output_content);
                    prop_assert_eq!(b.segments[n].tokens, a.output_tokens);
                    prop_assert!(b.prompt_tokens > a.prompt_tokens + a.output_tokens);
                    prop_assert!(b.arrival >= a.arrival);
                }
            }
        }
    }

    #[test]
    fn a_burst_comes_at_once_or_keeps_its_number_in_flight() {
        let burst = |max_in_flight| Arrival::Burst {
            requests: 500,
            max_in_flight,
            refused_pause: secs(0.1),
        };
        let all = drive(
            mix(&[plain("a", burst(None))], Limits::default(), 1),
            0.0,
            1,
        );
        assert_eq!(all.sent.len(), 500);
        assert!(all.sent.iter().all(|r| r.arrival == SimTime::ZERO));
        let some = drive(
            mix(&[plain("a", burst(Some(128)))], Limits::default(), 1),
            0.0,
            1,
        );
        assert_eq!(some.sent.len(), 500);
        assert_eq!(some.most_in_flight[0], 128);
    }

    #[test]
    fn a_refused_request_is_sent_again_as_often_as_its_client_likes_and_is_the_same_request() {
        let mut stream = plain("a", poisson(1.0));
        stream.retries = Some(Retries {
            max: 3,
            backoff: secs(1.0),
            factor: 2.0,
            jitter: Ratio::default(),
            on_rejected: true,
            on_timed_out: false,
            on_failed: false,
        });
        // All are refused: each is sent four times, 1, 2 and 4 s apart.
        let log = drive(mix(&[stream], limit(10), 1), 1.0, 1);
        assert_eq!(log.sent.len(), 40);
        let first = &log.sent[0];
        let again: Vec<_> = log
            .sent
            .iter()
            .filter(|r| r.prompt_tokens == first.prompt_tokens && r.tag == first.tag)
            .map(|r| r.arrival.since(first.arrival).as_secs())
            .take(4)
            .collect();
        assert_eq!(again, [0.0, 1.0, 3.0, 7.0]);
    }

    #[test]
    fn refused_users_of_a_closed_loop_do_not_stop_time() {
        let until = Limits {
            requests: None,
            duration: Some(secs(10.0)),
        };
        let log = drive(mix(&[plain("a", closed(5, 0.0))], until, 1), 1.0, 1);
        // Each of five users sends at 0, 0.1, ... 10 s.
        assert_eq!(log.sent.len(), 5 * 101);
    }

    #[test]
    fn nothing_is_sent_after_the_duration() {
        let until = Limits {
            requests: None,
            duration: Some(secs(5.0)),
        };
        for arrival in [poisson(50.0), closed(10, 0.01)] {
            let log = drive(mix(&[plain("a", arrival)], until, 3), 0.0, 3);
            assert!(log.sent.len() > 30);
            assert!(
                log.sent
                    .iter()
                    .all(|r| r.arrival <= SimTime::from_secs(5.0))
            );
        }
    }

    #[test]
    fn popular_prefixes_are_drawn_by_their_weight() {
        let mut stream = plain("a", poisson(1000.0));
        stream.prefix = Some(Prefix {
            tokens: 50,
            groups: 3,
            zipf: 1.0,
        });
        let log = drive(mix(&[stream], limit(20_000), 1), 0.0, 1);
        let mut counts = std::collections::BTreeMap::new();
        for r in &log.sent {
            assert_eq!(r.segments[0].tokens, 50);
            *counts.entry(r.segments[0].content).or_insert(0.0) += 1.0;
        }
        let mut counts: Vec<f64> = counts.into_values().collect();
        counts.sort_by(f64::total_cmp);
        // Weights 1, 1/2, 1/3 of 11/6.
        for (got, want) in counts.iter().zip([2.0 / 11.0, 3.0 / 11.0, 6.0 / 11.0]) {
            let p = got / 20_000.0;
            assert!((p - want).abs() < 4.0 * (want * (1.0 - want) / 20_000.0f64).sqrt());
        }
    }

    #[test]
    fn a_trace_is_replayed_in_its_order_and_scaled_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.jsonl");
        std::fs::write(
            &file,
            "{\"timestamp\": 1000, \"input_length\": 1025, \"output_length\": 52, \"hash_ids\": [4, 5, 6]}\n\
             {\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 26, \"hash_ids\": [4]}\n",
        )
        .unwrap();
        let mut stream = plain(
            "a",
            Arrival::Trace {
                file,
                format: super::super::TraceFormat::Auto,
                columns: None,
                time_scale: 0.5,
            },
        );
        stream.lengths = Lengths::OfTrace;
        let m = mix(&[stream], Limits::default(), 1);
        assert!(m.shares_content());
        assert_eq!(m.len_hint(), Some(2));
        let log = drive(m, 0.0, 1);
        assert_eq!(log.sent[1].arrival, SimTime::from_secs(1.0));
        let tokens: Vec<_> = log.sent[0].segments.iter().map(|s| s.tokens).collect();
        assert_eq!(tokens, [512, 512, 1]);
        assert_eq!(log.sent[0].segments[0], log.sent[1].segments[0]);
    }

    #[test]
    fn memory_holds_what_is_under_way_and_no_more() {
        let mut stream = plain("a", poisson(10.0));
        stream.sessions = Some(Sessions {
            turns: Length::Fixed(3),
            think: secs(0.1),
            think_cv: 0.0,
            max_context: 1_000_000,
        });
        let mut m = mix(&[stream], limit(50_000), 1);
        let mut spec = RequestSpec::default();
        let mut id = 0;
        while m.peek().is_some() {
            m.pop(id, &mut spec);
            m.on_end(&RequestEnd {
                id,
                tag: spec.tag,
                stream: 0,
                session: spec.session,
                outcome: Outcome::Finished,
                at: spec.arrival,
                output_tokens: spec.output_tokens,
            });
            id += 1;
        }
        assert_eq!(id, 50_000);
        assert!(m.streams[0].slots() < 200, "{}", m.streams[0].slots());
    }
}
