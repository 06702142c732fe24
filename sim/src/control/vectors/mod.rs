//! Files of test vectors for the Horizontal Pod Autoscaler: CSV, five kinds, told apart by their header.
//!
//! A row holds the input of one step of the controller and what is expected of it. [`check`] works every row out with the code of
//! [`super::hpa`] and reports what differs. `docs/autoscaling.md` describes the columns. A column that a kind does not list is ignored.

mod bounds;
mod calculator;
mod cells;
mod grouping;
mod stabilization;

use std::fmt;

pub use cells::FileError;
use cells::{Row, Table};

use super::hpa::spec::Settings;
use crate::kernel::time::SimDuration;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One call of the replica calculator (4.2 to 4.5).
    Calculator,
    /// The group of one pod (4.2).
    Grouping,
    /// Bounds and rates of `behavior` (4.8).
    Rates,
    /// Bounds without `behavior` (4.7).
    Bounds,
    /// Stabilization (4.7, 4.8).
    Stabilization,
}

impl Kind {
    const ALL: [Kind; 5] = [
        Kind::Calculator,
        Kind::Grouping,
        Kind::Stabilization,
        Kind::Rates,
        Kind::Bounds,
    ];

    /// Columns without which a file is not of this kind.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Kind::Calculator => &["method", "current_replicas", "target", "expected_replicas"],
            Kind::Grouping => &["phase", "expected_group"],
            Kind::Stabilization => &[
                "mode",
                "recommendations",
                "recommended_replicas",
                "expected_replicas",
            ],
            Kind::Rates => &[
                "scale_up_policies",
                "scale_down_policies",
                "current_replicas",
                "recommended_replicas",
                "max_replicas",
                "expected_replicas",
            ],
            Kind::Bounds => &[
                "current_replicas",
                "recommended_replicas",
                "max_replicas",
                "expected_replicas",
            ],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Calculator => "replica calculator",
            Kind::Grouping => "pod grouping",
            Kind::Rates => "bounds and rates",
            Kind::Bounds => "bounds without behavior",
            Kind::Stabilization => "stabilization",
        })
    }
}

/// A column whose value is not what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The column.
    pub column: &'static str,
    /// What the file expects.
    pub expected: String,
    /// What the controller says.
    pub got: String,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowReport {
    /// Line in the file.
    pub line: u64,
    /// `case_id` and `name`, as far as they are there.
    pub case: String,
    /// What differs; none: the row agrees.
    pub differences: Vec<Difference>,
    /// The controller's reason in words, where it gives one.
    pub why: String,
}

impl fmt::Display for RowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = if self.case.is_empty() {
            "row"
        } else {
            &self.case
        };
        write!(f, "{case}:")?;
        for (i, d) in self.differences.iter().enumerate() {
            let comma = if i == 0 { "" } else { ";" };
            write!(
                f,
                "{comma} {} is {}, expected {}",
                d.column.trim_start_matches("expected_"),
                d.got,
                d.expected
            )?;
        }
        if !self.why.is_empty() {
            write!(f, " ({})", self.why)?;
        }
        Ok(())
    }
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it holds.
    pub kind: Kind,
    /// Its rows.
    pub rows: Vec<RowReport>,
}

impl Report {
    /// Rows that differ.
    pub fn differing(&self) -> impl Iterator<Item = &RowReport> {
        self.rows.iter().filter(|r| !r.differences.is_empty())
    }
}

/// Settings where a row has none: tolerance 0.1, CPU initialization period 120 s, initial readiness delay 10 s.
pub fn default_settings() -> Settings {
    Settings {
        cpu_initialization_period: SimDuration(120_000_000_000),
        initial_readiness_delay: SimDuration(10_000_000_000),
        ..Settings::default()
    }
}

/// Works out every row of a file. `settings`: what holds where a row has no setting of its own.
///
/// # Errors
/// A file that is none of the five kinds, or a cell that cannot be read: where, why, and what would be right.
pub fn check(text: &str, settings: &Settings) -> Result<Report, FileError> {
    let table = Table::read(text)?;
    let kind = kind_of(&table)?;
    let rows = table.rows().map(|row| {
        let row = row?;
        let mut report = match kind {
            Kind::Calculator => calculator::check(&row, settings)?,
            Kind::Grouping => grouping::check(&row, settings)?,
            Kind::Rates => bounds::check_rates(&row)?,
            Kind::Bounds => bounds::check_bounds(&row)?,
            Kind::Stabilization => stabilization::check(&row, settings)?,
        };
        report.line = row.line();
        report.case = case_of(&row);
        Ok(report)
    });
    let rows = rows.collect::<Result<Vec<_>, FileError>>()?;
    if rows.is_empty() {
        return Err(FileError::whole(
            "there is no row under the header: nothing would be checked".to_owned(),
        ));
    }
    Ok(Report { kind, rows })
}

fn kind_of(table: &Table) -> Result<Kind, FileError> {
    let has = |kind: &Kind| kind.needs().iter().all(|c| table.has(c));
    Kind::ALL.into_iter().find(has).ok_or_else(|| {
        let mut message =
            "the header is that of no kind of test vectors; each needs at least these columns:"
                .to_owned();
        for kind in Kind::ALL {
            message.push_str(&format!("\n  {kind}: {}", kind.needs().join(",")));
        }
        FileError::at(1, message)
    })
}

fn case_of(row: &Row) -> String {
    let parts = [row.text("case_id"), row.text("name")];
    let parts: Vec<&str> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    parts.join(" ")
}

/// A row's report, before it is told its line.
fn reported(differences: Vec<Difference>, why: String) -> RowReport {
    RowReport {
        line: 0,
        case: String::new(),
        differences,
        why,
    }
}

/// Notes a difference where a value is expected and is another.
fn compare<T: PartialEq + fmt::Display>(
    differences: &mut Vec<Difference>,
    column: &'static str,
    expected: Option<T>,
    got: T,
) {
    if let Some(expected) = expected.filter(|e| *e != got) {
        differences.push(Difference {
            column,
            expected: expected.to_string(),
            got: got.to_string(),
        });
    }
}
