//! The group of one pod (4.2).

use super::calculator::phase_of;
use super::cells::NOW;
use super::cells::{FileError, Row};
use super::{RowReport, compare, reported};
use crate::control::hpa::pods::{PodGroup, PodState, ReadyCondition, Sample, group_of};
use crate::control::hpa::spec::Settings;
use crate::kernel::time::SimTime;

pub(super) fn check(row: &Row, settings: &Settings) -> Result<RowReport, FileError> {
    let phase = row.text("phase");
    let phase = phase_of(phase).ok_or_else(|| {
        row.error(
            "phase",
            format_args!("`{phase}` is no phase; write Running, Pending, Failed or Succeeded"),
        )
    })?;
    let since = row.instant("transition_age_s")?.unwrap_or(SimTime::ZERO);
    let is_ready = match row.text("ready_condition") {
        "true" | "True" | "1" => Some(true),
        "false" | "False" | "0" => Some(false),
        "none" | "" => None,
        other => {
            return Err(row.error(
                "ready_condition",
                format_args!("`{other}` is neither true, false nor none"),
            ));
        }
    };
    let sample = match row.text("metric_age_s") {
        "missing" => None,
        _ => Some(Sample {
            value_milli: 1,
            taken: row.instant("metric_age_s")?.unwrap_or(SimTime::ZERO),
            window: row.seconds("metric_window_s")?.unwrap_or_default(),
        }),
    };
    let pod = PodState {
        phase,
        deleted: row.flag("deleted")?.unwrap_or(false),
        started: row.instant("start_age_s")?,
        ready: is_ready.map(|is_ready| ReadyCondition { is_ready, since }),
    };
    let expected = row.text("expected_group");
    if !["ready", "unready", "missing", "ignored"].contains(&expected) {
        return Err(row.error(
            "expected_group",
            format_args!("`{expected}` is neither ready, unready, missing nor ignored"),
        ));
    }
    let got = match group_of(
        &pod,
        sample,
        row.text("resource").eq_ignore_ascii_case("cpu"),
        NOW,
        settings,
    ) {
        PodGroup::Ready => "ready",
        PodGroup::Unready => "unready",
        PodGroup::Missing => "missing",
        PodGroup::Ignored => "ignored",
    };
    let mut differences = Vec::new();
    compare(&mut differences, "expected_group", Some(expected), got);
    Ok(reported(differences, String::new()))
}
