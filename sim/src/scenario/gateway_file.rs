//! What the gateway does with failed tries, as written: `[router.retries]` and `[router.outlier_detection]`.

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::numbers::told;
use crate::cluster::gateway::{OutlierSpec, RetrySpec};
use crate::kernel::time::SimDuration;

/// The gateway sends a request again whose try failed and whose client has got nothing yet (Envoy's retry policy, nginx's `proxy_next_upstream`).
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayRetriesFile {
    /// Times at most that a request is sent again, 1 to 100 (Envoy: `num_retries`). Default: 1.
    pub max: Option<u32>,
    /// After what: "refused" (429, 503), "failed" (its replica died), "timeout" (`per_try_timeout`). Default: all three.
    pub on: Option<Vec<TryEnd>>,
    /// How long one try may take; a replica that takes longer has failed (504). Default: as long as the client waits.
    pub per_try_timeout: Option<Secs>,
    /// Base of the pause before a retry: drawn evenly below base x (2^n - 1), at most ten times the base (Envoy: "25 ms"). Default: "0 s", at once, as nginx does.
    pub backoff: Option<Secs>,
    /// Retries under way at most, as a share of the requests under way [%] (Envoy's retry budget). Default: 20.
    pub budget_percent: Option<f64>,
    /// Retries that may be under way whatever their share. Default: 3.
    pub min_retry_concurrency: Option<u32>,
}

/// How a try ends that is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TryEnd {
    /// The replica refused it (429, 503).
    Refused,
    /// The replica died.
    Failed,
    /// It took longer than `per_try_timeout`.
    Timeout,
}

/// The gateway stops sending to a replica whose tries fail with 5xx (503, a replica that died, `per_try_timeout`).
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutlierFile {
    /// Whose rules: Envoy's outlier detection (5 failures in a row, 30 s times the number of ejections, at most 10 % of the replicas or one, looked at
    /// every 10 s), or nginx's (`max_fails=1 fail_timeout=10s`). Default: "envoy".
    pub like: Option<Balancer>,
    /// Tries that fail one after the other (Envoy: `consecutive_5xx`; nginx: `max_fails`). Default: 5, like nginx 1.
    pub consecutive_failures: Option<u32>,
    /// How often it is looked whose ejection is over. Default: "10 s", like nginx at once.
    pub interval: Option<Secs>,
    /// How long a replica is out (nginx: `fail_timeout`). Default: "30 s" times the number of its ejections, like nginx "10 s".
    pub base_ejection_time: Option<Secs>,
    /// Share of the replicas that may be out at once [%]; one always may, the last one never. Default: 10, like nginx 100.
    pub max_ejection_percent: Option<f64>,
}

/// Balancers whose rules there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balancer {
    /// Envoy.
    #[default]
    Envoy,
    /// nginx.
    Nginx,
}

fn nanos(t: Secs) -> SimDuration {
    SimDuration::from_secs(t.secs())
}

impl GatewayRetriesFile {
    /// The rules, with every default filled in; not yet checked.
    pub(super) fn spec(&self) -> RetrySpec {
        let d = RetrySpec::default();
        let on = |end: TryEnd| self.on.as_ref().is_none_or(|all| all.contains(&end));
        RetrySpec {
            max: self.max.unwrap_or(d.max),
            on_refused: on(TryEnd::Refused),
            on_failed: on(TryEnd::Failed),
            on_timeout: on(TryEnd::Timeout),
            per_try_timeout: self.per_try_timeout.map(nanos),
            backoff: self.backoff.map_or(d.backoff, nanos),
            budget_percent: self.budget_percent.unwrap_or(d.budget_percent),
            min_retry_concurrency: self
                .min_retry_concurrency
                .unwrap_or(d.min_retry_concurrency),
        }
    }

    /// The rules in the words of a file.
    pub(super) fn of(spec: &RetrySpec) -> GatewayRetriesFile {
        let ends = [
            (spec.on_refused, TryEnd::Refused),
            (spec.on_failed, TryEnd::Failed),
            (spec.on_timeout, TryEnd::Timeout),
        ];
        GatewayRetriesFile {
            max: Some(spec.max),
            on: Some(
                ends.into_iter()
                    .filter_map(|(on, e)| on.then_some(e))
                    .collect(),
            ),
            per_try_timeout: spec.per_try_timeout.map(told),
            backoff: Some(told(spec.backoff)),
            budget_percent: Some(spec.budget_percent),
            min_retry_concurrency: Some(spec.min_retry_concurrency),
        }
    }
}

impl OutlierFile {
    /// The rules, with every default filled in; not yet checked.
    pub(super) fn spec(&self) -> OutlierSpec {
        let d = match self.like.unwrap_or_default() {
            Balancer::Envoy => OutlierSpec::envoy(),
            Balancer::Nginx => OutlierSpec::nginx(),
        };
        let base = self.base_ejection_time.map_or(d.base_ejection_time, nanos);
        OutlierSpec {
            consecutive_failures: self.consecutive_failures.unwrap_or(d.consecutive_failures),
            // nginx counts within the time that it also leaves a server out for.
            fail_window: d.fail_window.map(|_| base),
            interval: self.interval.map_or(d.interval, nanos),
            base_ejection_time: base,
            grows: d.grows,
            max_ejection_percent: self.max_ejection_percent.unwrap_or(d.max_ejection_percent),
        }
    }

    /// The rules in the words of a file.
    pub(super) fn of(spec: &OutlierSpec) -> OutlierFile {
        OutlierFile {
            like: Some(match spec.fail_window {
                Some(_) => Balancer::Nginx,
                None => Balancer::Envoy,
            }),
            consecutive_failures: Some(spec.consecutive_failures),
            interval: Some(told(spec.interval)),
            base_ejection_time: Some(told(spec.base_ejection_time)),
            max_ejection_percent: Some(spec.max_ejection_percent),
        }
    }
}
