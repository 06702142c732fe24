//! What the gateway does when a replica refuses or fails a request.

use crate::kernel::time::SimDuration;

/// The gateway's rules; the default is a gateway that passes every answer on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatewaySpec {
    /// Sends requests again whose try failed.
    pub retries: Option<RetrySpec>,
    /// Stops sending to replicas whose tries fail.
    pub outliers: Option<OutlierSpec>,
    /// Requests that it may have unanswered; one more is answered 503. `None`: any.
    pub max_requests: Option<u32>,
}

/// When and how often a request is sent again (Envoy's retry policy and budget; nginx's `proxy_next_upstream`). Only requests whose client
/// has got nothing yet are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySpec {
    /// Times at most that a request is sent again.
    pub max: u32,
    /// Refused (429, 503) ones are.
    pub on_refused: bool,
    /// Those whose replica died are.
    pub on_failed: bool,
    /// Those that took longer than `per_try_timeout` are.
    pub on_timeout: bool,
    /// How long one try may take.
    pub per_try_timeout: Option<SimDuration>,
    /// Base of the pause before a retry; zero: none.
    pub backoff: SimDuration,
    /// Retries under way, as a share of the requests under way [%] ...
    pub budget_percent: f64,
    /// ... or so many, whichever is more.
    pub min_retry_concurrency: u32,
}

impl Default for RetrySpec {
    /// One retry of what was refused or failed, at once, within Envoy's budget (20 %, 3).
    fn default() -> RetrySpec {
        RetrySpec {
            max: 1,
            on_refused: true,
            on_failed: true,
            on_timeout: true,
            per_try_timeout: None,
            backoff: SimDuration::ZERO,
            budget_percent: 20.0,
            min_retry_concurrency: 3,
        }
    }
}

/// When a replica is taken out of the rotation, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutlierSpec {
    /// Tries that fail one after the other until it is ejected.
    pub consecutive_failures: u32,
    /// They count only within this time of the first; `None`: however long it takes.
    pub fail_window: Option<SimDuration>,
    /// How often it is looked whom to take back; zero: at once when the time is over.
    pub interval: SimDuration,
    /// How long it is out ...
    pub base_ejection_time: SimDuration,
    /// ... times the number of its ejections.
    pub grows: bool,
    /// Share of the replicas that may be out at once [%]; one always may.
    pub max_ejection_percent: f64,
}

impl OutlierSpec {
    /// Envoy's outlier detection with its defaults: 5 consecutive 5xx, interval 10 s, base ejection time 30 s, at most 10 % of the hosts.
    pub fn envoy() -> OutlierSpec {
        OutlierSpec {
            consecutive_failures: 5,
            fail_window: None,
            interval: SimDuration(10_000_000_000),
            base_ejection_time: SimDuration(30_000_000_000),
            grows: true,
            max_ejection_percent: 10.0,
        }
    }

    /// nginx with its defaults: `max_fails=1 fail_timeout=10s`.
    pub fn nginx() -> OutlierSpec {
        OutlierSpec {
            consecutive_failures: 1,
            fail_window: Some(SimDuration(10_000_000_000)),
            interval: SimDuration::ZERO,
            base_ejection_time: SimDuration(10_000_000_000),
            grows: false,
            max_ejection_percent: 100.0,
        }
    }
}
