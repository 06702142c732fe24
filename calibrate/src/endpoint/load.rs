//! A measured load, reduced to what a black-box fit can use: when each request was sent, its lengths, and when its client got
//! the first and the last token.

use sim::kernel::time::SimTime;
use sim::metrics::Distribution;
use sim::record::{RequestRow, RunRecord};
use sim::request::Outcome;

/// One request as its client saw it. Times are after the start of the load [s].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Sent.
    pub sent: f64,
    /// First token arrived.
    pub first: f64,
    /// Last token arrived.
    pub end: f64,
    /// Prompt length [tokens].
    pub prompt: u32,
    /// Output length [tokens].
    pub output: u32,
    /// Prompt tokens that the endpoint said it found in its prefix cache [tokens].
    pub cached: u32,
}

impl Request {
    /// Time to first token [s].
    pub fn ttft(&self) -> f64 {
        self.first - self.sent
    }

    /// End-to-end latency [s].
    pub fn e2e(&self) -> f64 {
        self.end - self.sent
    }

    /// Time per output token after the first [s]; none for a single token.
    pub fn tpot(&self) -> Option<f64> {
        (self.output > 1).then(|| (self.end - self.first) / f64::from(self.output - 1))
    }
}

/// What decides when requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// A schedule: a slower endpoint gets the same requests at the same times.
    Schedule,
    /// Users: a request is sent when an earlier one has been answered.
    Users,
}

/// What a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Parameters are fitted on it.
    Fit,
    /// It is only predicted.
    HoldOut,
}

/// Quantiles of the gaps between tokens that a fit looks at.
pub const GAP_QUANTILES: [f64; 2] = [0.5, 0.9];

/// One measured load.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// What decided when requests were sent.
    pub pacing: Pacing,
    /// Requests that were answered in full, in the order of their sends.
    pub requests: Vec<Request>,
    /// Requests that were not.
    pub failed: u64,
    /// Quantiles of the gaps between tokens ([`GAP_QUANTILES`]) over all requests [s], where they were measured.
    pub gaps: Option<[f64; 2]>,
}

/// A record that no load can be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Rows are missing.
    #[error("{name}: the record keeps no row per request; measure fewer requests or keep all rows")]
    NoRows {
        /// The load.
        name: String,
    },
    /// Nothing was answered.
    #[error("{name}: none of its {offered} requests was answered in full")]
    NothingFinished {
        /// The load.
        name: String,
        /// Requests sent.
        offered: u64,
    },
}

/// The quantiles of `gaps` that a fit looks at [s].
pub fn gap_quantiles(gaps: &Distribution) -> Option<[f64; 2]> {
    let q = |p| gaps.quantile_secs(p);
    Some([q(GAP_QUANTILES[0])?, q(GAP_QUANTILES[1])?])
}

impl Load {
    /// The load that `record` holds, called `name`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn of_record(name: &str, role: Role, record: &RunRecord) -> Result<Load, LoadError> {
        let rows = record
            .request_rows
            .as_ref()
            .ok_or_else(|| LoadError::NoRows { name: name.into() })?;
        let done = |r: &&RequestRow| {
            r.outcome == Outcome::Finished
                && r.first_token != SimTime::NEVER
                && r.output_tokens > 0
                && r.end > r.arrival
        };
        let mut requests: Vec<(SimTime, u32, Request)> = rows
            .iter()
            .filter(done)
            .map(|r| {
                let request = Request {
                    sent: r.arrival.as_secs(),
                    first: r.first_token.as_secs(),
                    end: r.end.as_secs(),
                    prompt: r.prompt_tokens.max(1),
                    output: r.output_tokens,
                    cached: r.cached_tokens.min(r.prompt_tokens.saturating_sub(1)),
                };
                (r.arrival, r.id, request)
            })
            .collect();
        requests.sort_by_key(|r| (r.0, r.1));
        let requests: Vec<Request> = requests.into_iter().map(|r| r.2).collect();
        Load::new(
            name,
            role,
            requests,
            rows.len() as u64,
            gap_quantiles(&record.latencies.itl),
        )
    }

    /// The load of `requests`, in the order of their sends, out of `offered` that were sent.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn new(
        name: &str,
        role: Role,
        requests: Vec<Request>,
        offered: u64,
        gaps: Option<[f64; 2]>,
    ) -> Result<Load, LoadError> {
        if requests.is_empty() {
            return Err(LoadError::NothingFinished {
                name: name.into(),
                offered,
            });
        }
        Ok(Load {
            name: name.into(),
            role,
            pacing: pacing(&requests),
            failed: offered.saturating_sub(requests.len() as u64),
            requests,
            gaps,
        })
    }

    /// From the first send to the last token [s].
    pub fn span(&self) -> f64 {
        let start = self.requests[0].sent;
        self.requests.iter().map(|r| r.end).fold(start, f64::max) - start
    }

    /// Output tokens per second [tokens/s].
    pub fn throughput(&self) -> f64 {
        let tokens: f64 = self.requests.iter().map(|r| f64::from(r.output)).sum();
        tokens / self.span().max(1e-9)
    }

    /// Most requests sent and not yet answered in full.
    pub fn most_in_flight(&self) -> u32 {
        most(self.requests.iter().map(|r| (r.sent, r.end, 1.0))) as u32
    }

    /// Most requests between their first and last token at once: no fewer can run together.
    pub fn most_streaming(&self) -> u32 {
        most(self.requests.iter().map(|r| (r.first, r.end, 1.0))) as u32
    }

    /// Most tokens that requests between first and last token held together, each counted with what it had
    /// at its first token [tokens]: no less KV can there be.
    pub fn most_held_tokens(&self) -> u64 {
        most(
            self.requests
                .iter()
                .map(|r| (r.first, r.end, f64::from(r.prompt))),
        ) as u64
    }
}

/// The largest sum of weights over all instants of the intervals `(from, to, weight)`. Ends come before starts.
fn most(intervals: impl Iterator<Item = (f64, f64, f64)>) -> f64 {
    let mut events: Vec<(f64, f64)> = intervals
        .filter(|(from, to, _)| to > from)
        .flat_map(|(from, to, w)| [(from, w), (to, -w)])
        .collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut now, mut most) = (0.0, 0.0_f64);
    for (_, w) in events {
        now += w;
        most = most.max(now);
    }
    most
}

/// Share of the time between the first sends and the last that must see the same number of requests under way for the load
/// to be one of users [ratio].
const STEADY: f64 = 0.9;

/// Whether `requests` were sent by users who wait for answers: then nearly always equally many are under way.
fn pacing(requests: &[Request]) -> Pacing {
    let mut events: Vec<(f64, i32)> = requests
        .iter()
        .flat_map(|r| [(r.sent, 1), (r.end, -1)])
        .collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut levels = Vec::with_capacity(events.len());
    let mut now = 0;
    for (t, change) in &events {
        now += change;
        levels.push((*t, now));
    }
    let most = levels.iter().map(|l| l.1).max().unwrap_or(0);
    let last_send = requests.last().map_or(0.0, |r| r.sent);
    let Some(first) = levels.iter().position(|l| l.1 == most) else {
        return Pacing::Schedule;
    };
    let (mut full, mut all) = (0.0, 0.0);
    for pair in levels[first..].windows(2) {
        let time = pair[1].0.min(last_send) - pair[0].0;
        if time <= 0.0 {
            continue;
        }
        all += time;
        if pair[0].1 == most {
            full += time;
        }
    }
    let rounds = requests.len() >= 2 * most.max(1) as usize;
    if rounds && all > 0.0 && full >= STEADY * all {
        Pacing::Users
    } else {
        Pacing::Schedule
    }
}

/// For each request of a load of users, the earlier one whose end brought it about, and the pause after that [s].
pub fn causes(requests: &[Request]) -> Vec<Option<(usize, f64)>> {
    let mut by_end: Vec<usize> = (0..requests.len()).collect();
    by_end.sort_by(|&a, &b| requests[a].end.total_cmp(&requests[b].end));
    // Ends that nobody has reacted to yet, the latest last.
    let (mut open, mut next) = (Vec::new(), 0);
    requests
        .iter()
        .map(|r| {
            while next < by_end.len() && requests[by_end[next]].end <= r.sent {
                open.push(by_end[next]);
                next += 1;
            }
            let parent = open.pop()?;
            Some((parent, r.sent - requests[parent].end))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sent: f64, first: f64, end: f64) -> Request {
        Request {
            sent,
            first,
            end,
            prompt: 100,
            output: 10,
            cached: 0,
        }
    }

    #[test]
    fn users_are_told_from_a_schedule_by_how_many_requests_each_send_finds() {
        let closed: Vec<Request> = (0..40)
            .map(|i| {
                let t = f64::from(i / 4) * 1.01 + f64::from(i % 4) * 1e-3;
                request(t, t + 0.2, t + 1.0)
            })
            .collect();
        assert_eq!(pacing(&closed), Pacing::Users);
        let open: Vec<Request> = (0..40)
            .map(|i| {
                let t = f64::from(i) * 0.3 + 0.29 * f64::from(i * 7 % 5) / 5.0;
                request(t, t + 0.2, t + 0.4 + f64::from(i % 3) * 0.5)
            })
            .collect();
        assert_eq!(pacing(&open), Pacing::Schedule);
        let burst: Vec<Request> = (0..40)
            .map(|i| request(0.0, 1.0 + f64::from(i), 2.0 + f64::from(i)))
            .collect();
        assert_eq!(pacing(&burst), Pacing::Schedule);
    }

    #[test]
    fn each_send_of_a_user_follows_the_answer_that_came_last() {
        let r = [
            request(0.0, 0.1, 1.0),
            request(0.0, 0.1, 2.0),
            request(1.5, 1.6, 3.0),
            request(2.25, 2.3, 3.0),
        ];
        assert_eq!(causes(&r), [None, None, Some((0, 0.5)), Some((1, 0.25))]);
    }

    #[test]
    fn what_runs_together_bounds_the_limits_from_below() {
        let load = Load::new(
            "x",
            Role::Fit,
            vec![
                request(0.0, 1.0, 3.0),
                request(0.0, 3.0, 4.0),
                request(0.0, 2.0, 4.0),
            ],
            4,
            None,
        )
        .unwrap();
        assert_eq!(load.most_in_flight(), 3);
        assert_eq!(load.most_streaming(), 2);
        assert_eq!(load.most_held_tokens(), 200);
        assert_eq!(load.failed, 1);
    }
}
