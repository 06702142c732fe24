//! The requests of a measured load, sent again in a simulation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sim::kernel::time::{SimDuration, SimTime};
use sim::request::{ReqId, RequestSpec, Segment};
use sim::workload::{RequestEnd, Workload};

use super::load::{Load, Pacing, Request, causes};

/// A load as a workload: at its measured send times, or, where users sent it, each request as long after the simulated
/// end of the one that brought it about as it was in the measurement.
#[derive(Clone, Debug)]
pub struct Replay {
    requests: Vec<Request>,
    /// Requests that wait for the end of the request of this index, with their pause.
    followers: Vec<Vec<(usize, SimDuration)>>,
    due: BinaryHeap<Reverse<(SimTime, usize)>>,
    any_cached: bool,
    /// The measured request behind each id of the run.
    order: Vec<usize>,
}

impl Replay {
    /// `load`, to be sent again.
    pub fn new(load: &Load) -> Replay {
        let start = load.requests[0].sent;
        let mut replay = Replay {
            followers: vec![Vec::new(); load.requests.len()],
            due: BinaryHeap::new(),
            order: Vec::with_capacity(load.requests.len()),
            any_cached: load.requests.iter().any(|r| r.cached > 0),
            requests: load.requests.clone(),
        };
        let causes = match load.pacing {
            Pacing::Schedule => vec![None; load.requests.len()],
            Pacing::Users => causes(&load.requests),
        };
        for (i, cause) in causes.into_iter().enumerate() {
            match cause {
                Some((parent, pause)) => {
                    replay.followers[parent].push((i, SimDuration::from_secs(pause)));
                }
                None => {
                    let at = SimTime::from_secs(load.requests[i].sent - start);
                    replay.due.push(Reverse((at, i)));
                }
            }
        }
        replay
    }

    /// Index of the measured request behind each id of the run.
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

/// Content that a prompt shares with an earlier one of the same cached length. Which one it was nobody measured.
const CACHED: u64 = 0x6361_6368_6564_0000;

impl Workload for Replay {
    fn peek(&self) -> Option<SimTime> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        let Some(Reverse((at, i))) = self.due.pop() else {
            return;
        };
        self.order.push(i);
        let r = &self.requests[i];
        out.segments.clear();
        if r.cached > 0 {
            out.segments.push(Segment {
                content: CACHED,
                tokens: r.cached,
            });
        }
        *out = RequestSpec {
            arrival: at,
            prompt_tokens: r.prompt,
            output_tokens: r.output,
            max_tokens: r.output,
            tag: i as u64,
            segments: std::mem::take(&mut out.segments),
            ..RequestSpec::default()
        };
    }

    fn on_end(&mut self, end: &RequestEnd) {
        for (i, pause) in std::mem::take(&mut self.followers[end.tag as usize]) {
            self.due.push(Reverse((end.at + pause, i)));
        }
    }

    fn shares_content(&self) -> bool {
        self.any_cached
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.requests.len() as u64)
    }
}
