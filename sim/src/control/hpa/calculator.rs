//! The replica calculator: from samples to a proposal, before bounds, stabilization and rates (4.3 to 4.5).
//!
//! Source: kubernetes `pkg/controller/podautoscaler/{replica_calculator.go,metrics/utilization.go}`. Sums are exact in 128 bits and
//! results saturate where the original would overflow. Ratios are f64 and averages are integers, as there.

use super::pods::{PodGroup, PodSamples, PodState, group_of};
use super::spec::{Settings, Tolerance};
use crate::control::quantity::{ceil_i32, saturate_i32, saturate_i64};
use crate::kernel::time::SimTime;

/// Replicas that one metric asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Replicas.
    pub replicas: i32,
    /// Usage as in the status: percent for a utilization target, milli-units elsewhere.
    pub usage: i64,
    /// Mean of the measured pods [milli-units]; utilization targets only.
    pub average_milli: Option<i64>,
    /// Why, in words.
    pub why: String,
}

/// Why a metric has no proposal. The texts hold those of the original.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// The metrics API returned nothing.
    #[error("unable to get {metric}: no metrics returned from {api} metrics API")]
    NoMetrics {
        /// What was asked for.
        metric: String,
        /// `resource`, `custom` or `external`.
        api: &'static str,
    },
    /// The query itself failed.
    #[error("unable to get {metric}: {reason}")]
    Unavailable {
        /// What was asked for.
        metric: String,
        /// What the API said.
        reason: String,
    },
    /// The selector matches no pod.
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    /// Samples came, but of pods that are ignored or unready alone.
    #[error(
        "did not receive metrics for targeted pods (pods might be unready): no metrics of pods that count"
    )]
    NoneCounted,
    /// Samples came, but of pods that are not listed alone, or the measured pods request nothing.
    #[error("no metrics returned matched known pods")]
    NoKnownPods,
    /// A pod sets no request, so that it has no utilization.
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    MissingRequest {
        /// `cpu`, `memory`, ...
        resource: String,
        /// The container that was asked for, or `(any)`.
        container: String,
        /// Index of the pod.
        pod: usize,
    },
    /// A target that the API server would refuse.
    #[error("the target must be greater than 0, got {0}")]
    BadTarget(i64),
    /// The spec and what was measured do not belong together.
    #[error("the metric's source does not fit what was measured")]
    WrongReading,
}

/// What all per-pod methods are told.
#[derive(Clone, Copy, Debug)]
pub struct PodView<'a> {
    /// Replicas of the scale subresource.
    pub current: i32,
    /// Pods that the selector matches.
    pub pods: &'a [PodState],
    /// Their samples.
    pub samples: &'a PodSamples,
    /// Tolerance of this object.
    pub tolerance: Tolerance,
    /// The present.
    pub now: SimTime,
    /// Controller flags.
    pub settings: &'a Settings,
}

/// A utilization target on a resource (4.3).
#[derive(Clone, Copy, Debug)]
pub struct UtilizationTarget<'a> {
    /// Resource; `cpu` has the rules of 4.2.
    pub resource: &'a str,
    /// The container considered; none: all of a pod.
    pub container: Option<&'a str>,
    /// Requests over the containers considered, by pod [milli-units]; none where one of them sets none.
    pub requests_milli: &'a [Option<i64>],
    /// Percent of the requests.
    pub percent: i32,
}

/// A measured set of pods.
struct Measured {
    ratio: f64,
    usage: i64,
    average_milli: Option<i64>,
}

/// Pods by group; `set` are the ready ones with their values.
struct Grouped {
    set: Vec<(usize, i64)>,
    unready: Vec<usize>,
    missing: Vec<usize>,
}

/// Proposal for a utilization target (4.3).
///
/// # Errors
/// No samples, no pods, a pod without a request, a target that is not positive.
pub fn utilization(view: PodView, target: UtilizationTarget) -> Result<Proposal, MetricError> {
    if target.percent <= 0 {
        return Err(MetricError::BadTarget(target.percent.into()));
    }
    if view.samples.is_empty() {
        let metric = format!("metrics for resource {}", target.resource);
        return Err(MetricError::NoMetrics {
            metric,
            api: "resource",
        });
    }
    let grouped = grouped(&view, target.resource == "cpu")?;
    let mut requests = Vec::with_capacity(view.pods.len());
    for pod in 0..view.pods.len() {
        let request = target.requests_milli.get(pod).copied().flatten();
        requests.push(request.ok_or_else(|| MetricError::MissingRequest {
            resource: target.resource.to_owned(),
            container: target.container.unwrap_or("(any)").to_owned(),
            pod,
        })?);
    }
    let measure = |set: &[(usize, i64)]| {
        let requested: i128 = set.iter().map(|(pod, _)| i128::from(requests[*pod])).sum();
        if requested == 0 {
            return Err(MetricError::NoKnownPods);
        }
        let used: i128 = set.iter().map(|(_, milli)| i128::from(*milli)).sum();
        let percent = saturate_i32(used * 100 / requested);
        Ok(Measured {
            ratio: f64::from(percent) / f64::from(target.percent),
            usage: percent.into(),
            average_milli: Some(saturate_i64(used / set.len() as i128)),
        })
    };
    // A missing pod may use all that it requests, or what the target allows where that is more.
    let full = |pod: usize| {
        saturate_i64(i128::from(requests[pod]) * i128::from(target.percent.max(100)) / 100)
    };
    propose(&view, grouped, measure, full)
}

/// Proposal for a mean value a pod: Pods metrics (4.4), and AverageValue of a resource (4.3) with `is_cpu` where that is `cpu`.
///
/// # Errors
/// No samples, no pods, a target that is not positive. `metric` names it there.
pub fn average(
    view: PodView,
    target_milli: i64,
    metric: &str,
    is_resource: bool,
) -> Result<Proposal, MetricError> {
    if target_milli <= 0 {
        return Err(MetricError::BadTarget(target_milli));
    }
    if view.samples.is_empty() {
        let (metric, api) = match is_resource {
            true => (format!("metrics for resource {metric}"), "resource"),
            false => (format!("metric {metric}"), "custom"),
        };
        return Err(MetricError::NoMetrics { metric, api });
    }
    let grouped = grouped(&view, is_resource && metric == "cpu")?;
    let measure = |set: &[(usize, i64)]| {
        if set.is_empty() {
            return Err(MetricError::NoKnownPods);
        }
        let used: i128 = set.iter().map(|(_, milli)| i128::from(*milli)).sum();
        let mean = saturate_i64(used / set.len() as i128);
        Ok(Measured {
            ratio: mean as f64 / target_milli as f64,
            usage: mean,
            average_milli: None,
        })
    };
    propose(&view, grouped, measure, |_| target_milli)
}

/// `kept 3`, or `3 to 5`.
fn change(from: i32, to: i32) -> String {
    if from == to {
        format!("kept {from}")
    } else {
        format!("{from} to {to}")
    }
}

fn grouped(view: &PodView, is_cpu: bool) -> Result<Grouped, MetricError> {
    if view.pods.is_empty() {
        return Err(MetricError::NoPods);
    }
    let mut grouped = Grouped {
        set: Vec::new(),
        unready: Vec::new(),
        missing: Vec::new(),
    };
    for (i, pod) in view.pods.iter().enumerate() {
        let sample = view.samples.of(i);
        match (
            group_of(pod, sample, is_cpu, view.now, view.settings),
            sample,
        ) {
            (PodGroup::Ready, Some(sample)) => grouped.set.push((i, sample.value_milli)),
            (PodGroup::Unready, _) => grouped.unready.push(i),
            (PodGroup::Missing | PodGroup::Ready, _) => grouped.missing.push(i),
            (PodGroup::Ignored, _) => {}
        }
    }
    if grouped.set.is_empty() && view.samples.unlisted == 0 {
        return Err(MetricError::NoneCounted);
    }
    Ok(grouped)
}

/// The common procedure: a plain ratio where all pods are known, else a second one over the set with the unknown pods filled in so that
/// they never hasten a change (4.3).
fn propose(
    view: &PodView,
    mut grouped: Grouped,
    measure: impl Fn(&[(usize, i64)]) -> Result<Measured, MetricError>,
    full: impl Fn(usize) -> i64,
) -> Result<Proposal, MetricError> {
    let current = view.current;
    let first = measure(&grouped.set)?;
    let ratio = first.ratio;
    let said = |replicas, why| Proposal {
        replicas,
        usage: first.usage,
        average_milli: first.average_milli,
        why,
    };
    let counts_unready = !grouped.unready.is_empty() && ratio > 1.0;
    if !counts_unready && grouped.missing.is_empty() {
        if view.tolerance.holds(ratio) {
            return Ok(said(
                current,
                format!("kept {current}: ratio {ratio:.2} within tolerance"),
            ));
        }
        let pods = grouped.set.len();
        let replicas = ceil_i32(ratio * pods as f64);
        return Ok(said(
            replicas,
            format!(
                "{}: ratio {ratio:.2} over {pods} ready pods",
                change(current, replicas)
            ),
        ));
    }
    if ratio < 1.0 {
        grouped
            .set
            .extend(grouped.missing.iter().map(|&pod| (pod, full(pod))));
    } else if ratio > 1.0 {
        grouped
            .set
            .extend(grouped.missing.iter().map(|&pod| (pod, 0)));
    }
    if counts_unready {
        grouped
            .set
            .extend(grouped.unready.iter().map(|&pod| (pod, 0)));
    }
    let filled = measure(&grouped.set)?.ratio;
    let unknown = format!(
        "with {} missing and {} unready pods filled in",
        grouped.missing.len(),
        if counts_unready {
            grouped.unready.len()
        } else {
            0
        }
    );
    if view.tolerance.holds(filled) {
        return Ok(said(
            current,
            format!("kept {current}: ratio {filled:.2} within tolerance, {unknown}"),
        ));
    }
    if (ratio < 1.0 && filled > 1.0) || (ratio > 1.0 && filled < 1.0) {
        let why = format!("kept {current}: ratio {ratio:.2} crosses 1 to {filled:.2}, {unknown}");
        return Ok(said(current, why));
    }
    let pods = grouped.set.len();
    let replicas = ceil_i32(filled * pods as f64);
    if (filled < 1.0 && replicas > current) || (filled > 1.0 && replicas < current) {
        let why = format!(
            "kept {current}: ratio {filled:.2} over {pods} pods gives {replicas}, against its direction, {unknown}"
        );
        return Ok(said(current, why));
    }
    let why = format!(
        "{}: ratio {filled:.2} over {pods} pods, {unknown}",
        change(current, replicas)
    );
    Ok(said(replicas, why))
}

/// Sum of the series that an Object or External metric returned, saturating at 64 bits.
///
/// # Errors
/// No series at all.
pub fn total(series_milli: &[i64], metric: &str, api: &'static str) -> Result<i64, MetricError> {
    if series_milli.is_empty() {
        let metric = format!(
            "{}metric {metric}",
            if api == "external" { "external " } else { "" }
        );
        return Err(MetricError::NoMetrics { metric, api });
    }
    let mut sum = 0i64;
    for &milli in series_milli {
        match sum.checked_add(milli) {
            Some(more) => sum = more,
            // What follows an overflow is not looked at.
            None => return Ok(if milli > 0 { i64::MAX } else { i64::MIN }),
        }
    }
    Ok(sum)
}

/// Proposal for an Object or External metric with a Value target (4.5).
///
/// # Errors
/// No pods, a target that is not positive.
pub fn value(
    current: i32,
    usage_milli: i64,
    target_milli: i64,
    pods: &[PodState],
    tolerance: Tolerance,
) -> Result<Proposal, MetricError> {
    if target_milli <= 0 {
        return Err(MetricError::BadTarget(target_milli));
    }
    let ratio = usage_milli as f64 / target_milli as f64;
    let said = |replicas, why| {
        Ok(Proposal {
            replicas,
            usage: usage_milli,
            average_milli: None,
            why,
        })
    };
    if current == 0 {
        let replicas = ceil_i32(ratio);
        return said(
            replicas,
            format!("{}: ratio {ratio:.2}", change(0, replicas)),
        );
    }
    if tolerance.holds(ratio) {
        return said(
            current,
            format!("kept {current}: ratio {ratio:.2} within tolerance"),
        );
    }
    if pods.is_empty() {
        return Err(MetricError::NoPods);
    }
    let ready = pods.iter().filter(|p| p.is_running_and_ready()).count();
    let replicas = ceil_i32(ratio * ready as f64);
    said(
        replicas,
        format!(
            "{}: ratio {ratio:.2} over {ready} ready pods",
            change(current, replicas)
        ),
    )
}

/// Proposal for an Object or External metric with an AverageValue target (4.5). `status_replicas`: of the scale subresource's status.
///
/// # Errors
/// A target that is not positive.
pub fn value_per_pod(
    status_replicas: i32,
    usage_milli: i64,
    target_milli: i64,
    tolerance: Tolerance,
) -> Result<Proposal, MetricError> {
    if target_milli <= 0 {
        return Err(MetricError::BadTarget(target_milli));
    }
    let ratio = usage_milli as f64 / (target_milli as f64 * f64::from(status_replicas));
    let (replicas, why) = if tolerance.holds(ratio) {
        let why = format!("kept {status_replicas}: ratio {ratio:.2} within tolerance");
        (status_replicas, why)
    } else {
        let replicas = ceil_i32(usage_milli as f64 / target_milli as f64);
        let why = format!(
            "{}: {usage_milli}m in all, {target_milli}m a pod",
            change(status_replicas, replicas)
        );
        (replicas, why)
    };
    // No replica, no mean: 0 is told, as since kubernetes pull request 140958. A saturated total stays what it is.
    let usage = match status_replicas {
        0 => 0,
        _ if usage_milli as f64 >= i64::MAX as f64 => i64::MAX,
        _ => (usage_milli as f64 / f64::from(status_replicas)).ceil() as i64,
    };
    Ok(Proposal {
        replicas,
        usage,
        average_milli: None,
        why,
    })
}
