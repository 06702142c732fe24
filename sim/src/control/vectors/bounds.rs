//! Bounds, with the rates of `behavior` (4.8) and without (4.7).

use super::cells::NOW;
use super::cells::{FileError, Row};
use super::{RowReport, compare, reported};
use crate::control::hpa::bounds::{Limit, Rates, ScaleEvent, ScaleEvents, without_behavior};
use crate::control::hpa::spec::{ScalingPolicy, ScalingRules, SelectPolicy};

pub(super) fn check_rates(row: &Row) -> Result<RowReport, FileError> {
    let up = rules(
        row,
        ScalingRules::scale_up(),
        "scale_up_policies",
        "scale_up_select",
    )?;
    let down = rules(
        row,
        ScalingRules::scale_down(),
        "scale_down_policies",
        "scale_down_select",
    )?;
    let events = ScaleEvents {
        up: events(row, "scale_up_events")?,
        down: events(row, "scale_down_events")?,
    };
    let rates = Rates {
        up: &up,
        down: &down,
        events: &events,
        min: row.i32("min_replicas")?.unwrap_or(1),
        max: row.needed_i32("max_replicas")?,
    };
    let current = row.needed_i32("current_replicas")?;
    let recommended = row.needed_i32("recommended_replicas")?;
    compared(row, rates.apply(NOW, current, recommended))
}

pub(super) fn check_bounds(row: &Row) -> Result<RowReport, FileError> {
    let current = row.needed_i32("current_replicas")?;
    let recommended = row.needed_i32("recommended_replicas")?;
    let min = row.i32("min_replicas")?.unwrap_or(1);
    let max = row.needed_i32("max_replicas")?;
    compared(row, without_behavior(current, recommended, min, max))
}

fn compared(row: &Row, (replicas, limit): (i32, Limit)) -> Result<RowReport, FileError> {
    let mut differences = Vec::new();
    let expected = row.needed_i32("expected_replicas")?;
    compare(
        &mut differences,
        "expected_replicas",
        Some(expected),
        replicas,
    );
    let reason = Some(row.text("expected_reason")).filter(|r| !r.is_empty());
    compare(&mut differences, "expected_reason", reason, limit.reason());
    Ok(reported(differences, String::new()))
}

/// Rules of one direction; empty cells take the API's defaults.
fn rules(
    row: &Row,
    mut rules: ScalingRules,
    policies: &str,
    select: &str,
) -> Result<ScalingRules, FileError> {
    let items = row.list(policies);
    if !items.is_empty() {
        rules.policies = items
            .into_iter()
            .map(|item| policy(row, policies, item))
            .collect::<Result<_, _>>()?;
    }
    rules.select_policy = match row.text(select) {
        "" | "Max" => SelectPolicy::Max,
        "Min" => SelectPolicy::Min,
        "Disabled" => SelectPolicy::Disabled,
        other => {
            return Err(row.error(
                select,
                format_args!("`{other}` is neither Max, Min nor Disabled"),
            ));
        }
    };
    Ok(rules)
}

/// `Type:value:periodSeconds`.
fn policy(row: &Row, column: &str, item: &str) -> Result<ScalingPolicy, FileError> {
    let wrong = || {
        row.error(
            column,
            format_args!(
                "`{item}` is not `Type:value:periodSeconds`, as Pods:4:15 or Percent:100:60"
            ),
        )
    };
    let mut parts = item.split(':').map(str::trim);
    let (Some(kind), Some(value), Some(period), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong());
    };
    let value = value.parse().map_err(|_| wrong())?;
    let period: u32 = period.parse().map_err(|_| wrong())?;
    match kind {
        "Pods" => Ok(ScalingPolicy::pods(value, period)),
        "Percent" => Ok(ScalingPolicy::percent(value, period)),
        _ => Err(wrong()),
    }
}

fn events(row: &Row, column: &str) -> Result<Vec<ScaleEvent>, FileError> {
    let event = |(change, at)| ScaleEvent { change, at };
    Ok(row.dated(column)?.into_iter().map(event).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn policies_are_read_in_their_form_alone() {
        let header = "case_id,current_replicas,recommended_replicas,max_replicas,scale_up_policies,scale_down_policies,expected_replicas";
        let settings = super::super::default_settings();
        for wrong in [
            "Pods:4",
            "Pods:4:15:1",
            "Share:4:15",
            "Pods:x:15",
            "Pods:4:-1",
        ] {
            let text = format!("{header}\n1,2,4,9,{wrong},,4\n");
            let error = super::super::check(&text, &settings)
                .expect_err(wrong)
                .to_string();
            assert!(
                error.starts_with("line 2: column `scale_up_policies`: `"),
                "{error}"
            );
        }
    }
}
