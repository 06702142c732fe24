//! One figure of a set.

use super::super::row::Row;

/// One figure: what was measured, and what is predicted or why nothing is.
pub(super) fn row(
    set: &str,
    case: &str,
    metric: &str,
    measured: f64,
    predicted: Result<f64, String>,
    fitted: bool,
) -> Row {
    let (predicted, note) = match predicted {
        Ok(p) => (Some(p), String::new()),
        Err(why) => (None, why),
    };
    Row {
        set: set.to_owned(),
        case: case.to_owned(),
        metric: metric.to_owned(),
        measured,
        predicted,
        range: None,
        kind: None,
        place: None,
        responses: None,
        plain: None,
        accelerator: None,
        baseline: None,
        fitted,
        note,
    }
}
