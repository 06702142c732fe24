//! One call of the replica calculator (4.2 to 4.5).

use super::cells::NOW;
use super::cells::{FileError, Row};
use super::{Difference, RowReport, compare, default_settings, reported};
use crate::control::hpa::calculator::{self, MetricError, PodView, Proposal, UtilizationTarget};
use crate::control::hpa::pods::{PodPhase, PodSamples, PodState, ReadyCondition, Sample};
use crate::control::hpa::spec::{Settings, Tolerance};
use crate::kernel::time::{SimDuration, SimTime};

/// When a pod of these rows started, unless it is inside the CPU initialization period.
const LONG_AGO: SimTime = SimTime::ZERO;
const WINDOW: SimDuration = SimDuration(60_000_000_000);

pub(super) fn check(row: &Row, settings: &Settings) -> Result<RowReport, FileError> {
    let outcome = call(row, settings)?;
    let expected_error = row.text("expected_error");
    let expects_error = row.text("expected_replicas").is_empty() || !expected_error.is_empty();
    let mut differences = Vec::new();
    match &outcome {
        Err(error) if expects_error => {
            let got = error.to_string();
            if !got.contains(expected_error) {
                differences.push(Difference {
                    column: "expected_error",
                    expected: format!("`{expected_error}`"),
                    got: format!("`{got}`"),
                });
            }
        }
        Err(error) => differences.push(Difference {
            column: "expected_replicas",
            expected: row.text("expected_replicas").to_owned(),
            got: format!("the error `{error}`"),
        }),
        Ok(proposal) if expects_error => differences.push(Difference {
            column: "expected_error",
            expected: format!("`{expected_error}`"),
            got: format!("none, but {} replicas", proposal.replicas),
        }),
        Ok(proposal) => {
            compare(
                &mut differences,
                "expected_replicas",
                row.i32("expected_replicas")?,
                proposal.replicas,
            );
            compare(
                &mut differences,
                "expected_usage",
                row.i64("expected_usage")?,
                proposal.usage,
            );
            if let Some(average) = proposal.average_milli {
                compare(
                    &mut differences,
                    "expected_average_milli",
                    row.i64("expected_average_milli")?,
                    average,
                );
            }
        }
    }
    let why = outcome.map_or_else(|_| String::new(), |proposal| proposal.why);
    Ok(reported(differences, why))
}

/// The call that a row describes.
fn call(row: &Row, settings: &Settings) -> Result<Result<Proposal, MetricError>, FileError> {
    let pods = pods(row)?;
    let current = row.needed_i32("current_replicas")?;
    let tolerance = Tolerance {
        down: row
            .fraction("tolerance_down")?
            .unwrap_or(settings.tolerance),
        up: row.fraction("tolerance_up")?.unwrap_or(settings.tolerance),
    };
    let target = row
        .i64("target")?
        .ok_or_else(|| row.error("target", "must hold a whole number"))?;
    let samples = samples(row, &pods)?;
    // Rows tell what a pod counts as; `pods` writes ages that these settings turn into just that.
    let fixed = default_settings();
    let view = PodView {
        current,
        pods: &pods,
        samples: &samples,
        tolerance,
        now: NOW,
        settings: &fixed,
    };
    let container = Some(row.text("container")).filter(|c| !c.is_empty());
    let total = |api| -> Result<Result<i64, MetricError>, FileError> {
        let series: Vec<i64> = row.millis("samples_milli")?.into_iter().flatten().collect();
        Ok(calculator::total(&series, "of the row", api))
    };
    let percent = || {
        i32::try_from(target).map_err(|_| {
            row.error(
                "target",
                format_args!("`{target}` is no percentage of 32 bits"),
            )
        })
    };
    Ok(match row.text("method") {
        "resource_utilization" => {
            let target = UtilizationTarget {
                resource: "cpu",
                container,
                requests_milli: &row.millis_of_pods("pod_request_milli", pods.len())?,
                percent: percent()?,
            };
            calculator::utilization(view, target)
        }
        "pods_average" => calculator::average(view, target, "of the row", false),
        "object_value" => total("custom")?
            .and_then(|usage| calculator::value(current, usage, target, &pods, tolerance)),
        "external_value" => total("external")?
            .and_then(|usage| calculator::value(current, usage, target, &pods, tolerance)),
        "object_average" => total("custom")?
            .and_then(|usage| calculator::value_per_pod(current, usage, target, tolerance)),
        "external_average" => total("external")?
            .and_then(|usage| calculator::value_per_pod(current, usage, target, tolerance)),
        other => {
            return Err(row.error(
                "method",
                format_args!(
                    "`{other}` is no method; write resource_utilization, pods_average, object_value, object_average, external_value or external_average"
                ),
            ));
        }
    })
}

/// Pods with ages that make them what the row says under [`default_settings`].
fn pods(row: &Row) -> Result<Vec<PodState>, FileError> {
    let phases = row.list("pod_phase");
    let ready = row.flags("pod_ready", phases.len(), true)?;
    let deleted = row.flags("pod_deleted", phases.len(), false)?;
    let initializing = row.flags("pod_cpu_initializing", phases.len(), false)?;
    let mut pods = Vec::with_capacity(phases.len());
    for (i, phase) in phases.into_iter().enumerate() {
        // Inside the period: started and ready just now, so that no window fits before the sample. Else of old: an unready pod became so
        // at its start, and never was ready.
        let since = if initializing[i] { NOW } else { LONG_AGO };
        pods.push(PodState {
            phase: phase_of(phase).ok_or_else(|| {
                row.error(
                    "pod_phase",
                    format_args!("`{phase}` is no phase; write R, P, F or S"),
                )
            })?,
            deleted: deleted[i],
            started: Some(since),
            ready: Some(ReadyCondition {
                is_ready: ready[i],
                since,
            }),
        });
    }
    Ok(pods)
}

/// Running, Pending, Failed or Succeeded, or the first letter.
pub(super) fn phase_of(text: &str) -> Option<PodPhase> {
    match text.to_ascii_lowercase().as_str() {
        "r" | "running" => Some(PodPhase::Running),
        "p" | "pending" => Some(PodPhase::Pending),
        "f" | "failed" => Some(PodPhase::Failed),
        "s" | "succeeded" => Some(PodPhase::Succeeded),
        _ => None,
    }
}

fn samples(row: &Row, pods: &[PodState]) -> Result<PodSamples, FileError> {
    let column = "metric_pods_unknown";
    let mut millis = row.millis("pod_metric_milli")?;
    // One flag for all samples, or one for each.
    let unknown = match row.list(column).as_slice() {
        [_] => vec![row.flag(column)?.unwrap_or(false); millis.len()],
        _ => row.flags(column, millis.len(), false)?,
    };
    let mut unlisted = millis.iter().skip(pods.len()).flatten().count();
    millis.truncate(pods.len());
    for (milli, _) in millis
        .iter_mut()
        .zip(unknown)
        .filter(|(_, unknown)| *unknown)
    {
        unlisted += usize::from(milli.take().is_some());
    }
    let sample = |value_milli| Sample {
        value_milli,
        taken: NOW,
        window: WINDOW,
    };
    let of_pods = millis.into_iter().map(|milli| milli.map(sample)).collect();
    Ok(PodSamples { of_pods, unlisted })
}
