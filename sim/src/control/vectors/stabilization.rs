//! Stabilization, with `behavior` (4.8) and without (4.7).

use super::cells::NOW;
use super::cells::{FileError, Row};
use super::{Difference, RowReport, compare, reported};
use crate::control::hpa::spec::Settings;
use crate::control::hpa::stabilize::{Recommendation, RecommendationLog};
use crate::kernel::time::SimDuration;

pub(super) fn check(row: &Row, settings: &Settings) -> Result<RowReport, FileError> {
    let recommendation = |(replicas, at)| Recommendation { replicas, at };
    let before: Vec<_> = row
        .dated("recommendations")?
        .into_iter()
        .map(recommendation)
        .collect();
    let mut log = RecommendationLog::new(before.clone());
    let recommended = row.needed_i32("recommended_replicas")?;
    let down_window = row
        .seconds("scale_down_window_s")?
        .unwrap_or(settings.downscale_stabilization);
    let (replicas, window) = match row.text("mode") {
        "legacy" => (
            log.stabilize_downscale(NOW, recommended, down_window),
            down_window,
        ),
        "behavior" => {
            let current = row.needed_i32("current_replicas")?;
            let up_window = row.seconds("scale_up_window_s")?.unwrap_or_default();
            let replicas = log.stabilize(NOW, current, recommended, up_window, down_window);
            (replicas, up_window.max(down_window))
        }
        other => {
            return Err(row.error(
                "mode",
                format_args!("`{other}` is neither behavior nor legacy"),
            ));
        }
    };
    let mut differences = Vec::new();
    let expected = row.needed_i32("expected_replicas")?;
    compare(
        &mut differences,
        "expected_replicas",
        Some(expected),
        replicas,
    );
    if let Some(difference) = log_difference(row, &before, &log, recommended, window)? {
        differences.push(difference);
    }
    Ok(reported(differences, String::new()))
}

/// Where the log after the call is not what is expected. Of several obsolete slots kube-controller-manager reuses the last, and the
/// description of these files says the first; no decision depends on it, so that either is taken.
fn log_difference(
    row: &Row,
    before: &[Recommendation],
    log: &RecommendationLog,
    recommended: i32,
    window: SimDuration,
) -> Result<Option<Difference>, FileError> {
    let column = "expected_log";
    let text = row.text(column);
    let after: Vec<i32> = log.slots().iter().map(|r| r.replicas).collect();
    let agrees = match text.strip_prefix("len=") {
        _ if text.is_empty() => true,
        Some(length) => {
            let length: usize = length.parse().map_err(|_| {
                row.error(
                    column,
                    format_args!("`{text}` is not `len=` and a count, as len=3"),
                )
            })?;
            length == after.len()
        }
        None => {
            let number = |item: &str| {
                item.parse::<i32>().map_err(|_| {
                    row.error(
                        column,
                        format_args!(
                            "`{item}` is not a whole number; write a list, as 10;3, or len=2"
                        ),
                    )
                })
            };
            let expected = row
                .list(column)
                .into_iter()
                .map(number)
                .collect::<Result<Vec<_>, _>>()?;
            expected == after || Some(expected) == first_reused(before, recommended, window)
        }
    };
    let list = after
        .iter()
        .map(i32::to_string)
        .collect::<Vec<_>>()
        .join(";");
    Ok((!agrees).then(|| Difference {
        column,
        expected: text.to_owned(),
        got: list,
    }))
}

/// The log with the first of its obsolete slots reused, if it has one.
fn first_reused(
    before: &[Recommendation],
    recommended: i32,
    window: SimDuration,
) -> Option<Vec<i32>> {
    let first = before.iter().position(|r| NOW.since(r.at) > window)?;
    let mut replicas: Vec<i32> = before.iter().map(|r| r.replicas).collect();
    replicas[first] = recommended;
    Some(replicas)
}
