//! Sweep files, and the points they ask for.

use std::path::{Path, PathBuf};

use hwmodels::files::Disk;
use hwmodels::units::plain;
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use serde::Deserialize;
use sim::kernel::rng;
use sim::scenario::document::{self, Document};
use sim::scenario::{Scenario, relative};
use toml::{Spanned, Value};

use crate::Error;
use crate::hash::fnv1a;

/// Most runs of a sweep.
pub const MOST_RUNS: u64 = 1_000_000;

/// A sweep file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepFile {
    name: Option<String>,
    /// The scenario, relative to the sweep file.
    scenario: PathBuf,
    /// Overrides of every point.
    #[serde(default)]
    set: Vec<String>,
    /// Replications of every point, with seeds counting up from the scenario's. Default: 1.
    seeds: Option<u64>,
    /// What is varied.
    axis: Vec<AxisFile>,
    /// Sample the axes in place of their grid.
    sample: Option<SampleFile>,
}

/// An axis as written: `values`, or `from` and `to`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisFile {
    key: String,
    values: Option<Vec<Value>>,
    from: Option<f64>,
    to: Option<f64>,
    steps: Option<u32>,
    #[serde(default)]
    log: bool,
    /// What stands behind the number, e.g. `req/s`.
    unit: Option<String>,
    /// Whole numbers only.
    #[serde(default)]
    whole: bool,
}

/// Points of a Latin hypercube.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleFile {
    points: u64,
    #[serde(default)]
    seed: u64,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    key: String,
    kind: AxisKind,
}

#[derive(Clone, Debug, PartialEq)]
enum AxisKind {
    List(Vec<Value>),
    Range {
        from: f64,
        to: f64,
        steps: u32,
        log: bool,
        unit: Option<String>,
        whole: bool,
    },
}

/// A sweep, checked.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Its name.
    pub name: String,
    /// The scenario's text.
    text: String,
    /// The scenario's file.
    pub scenario: PathBuf,
    origin: String,
    /// Keys that are varied, in order.
    pub keys: Vec<String>,
    /// The points, in order.
    pub points: Vec<Point>,
    /// Overrides of every point.
    set: Vec<String>,
    /// Seeds of every point.
    pub seeds: Vec<u64>,
}

/// One point.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The value of each key, as a table shows it.
    pub values: Vec<String>,
    /// The same as overrides.
    pub overrides: Vec<String>,
}

impl Sweep {
    /// Reads a sweep file; `set` are overrides of every point.
    ///
    /// # Errors
    /// Everything that is wrong with it or with its scenario, with file, line and key.
    pub fn load(path: &Path, set: &[String]) -> Result<Sweep, Error> {
        let text = document::read_text(&Disk, path, "the sweep")?;
        let origin = path.display().to_string();
        let document = Document::parse(&text, &origin, &[])?;
        let root = Spanned::new(document.root_span(), document.root().clone());
        let file: SweepFile = document.read("", root)?;
        let at = |key: &str, message: String| Error::from(document.error(key, message));
        if file.axis.is_empty() {
            return Err(at("axis", "give at least one, e.g. [[axis]] key = \"engine.max_num_seqs\", values = [64, 128]".into()));
        }
        let mut axes = Vec::new();
        for (i, axis) in file.axis.into_iter().enumerate() {
            axes.push(
                checked(axis).map_err(|(key, message)| at(&format!("axis[{i}].{key}"), message))?,
            );
        }
        let scenario = path.parent().unwrap_or(Path::new("")).join(&file.scenario);
        let scenario_text = document::read_text(&Disk, &scenario, "the scenario")?;
        let seeds = file.seeds.unwrap_or(1);
        if seeds == 0 || seeds > 10_000 {
            return Err(at("seeds", format!("must be from 1 to 10000, got {seeds}")));
        }
        let points = match &file.sample {
            None => grid(&axes, seeds).map_err(|m| at("axis", m))?,
            Some(s) => {
                if s.points == 0 || s.points.saturating_mul(seeds) > MOST_RUNS {
                    return Err(at(
                        "sample.points",
                        format!("must be from 1 to {}, got {}", MOST_RUNS / seeds, s.points),
                    ));
                }
                latin_hypercube(&axes, s.points, s.seed)
            }
        };
        let mut all = file.set;
        all.extend_from_slice(set);
        let origin = scenario.display().to_string();
        // Relative values are relative to the scenario with what every point sets.
        let all = relative::absolute(&scenario_text, &origin, &all)?;
        let mut sweep = Sweep {
            name: file.name.unwrap_or_else(|| {
                path.file_stem()
                    .map_or("sweep".into(), |s| s.to_string_lossy().into_owned())
            }),
            text: scenario_text,
            scenario,
            origin,
            keys: axes.into_iter().map(|a| a.key).collect(),
            points,
            set: all,
            seeds: Vec::new(),
        };
        // Every key of every point is checked before the first run: nothing runs for an hour to end in a misspelt key.
        let first = sweep.at(0)?;
        sweep.seeds = (0..seeds).map(|i| first.seed.wrapping_add(i)).collect();
        for i in 1..sweep.points.len() {
            sweep.at(i)?;
        }
        Ok(sweep)
    }

    fn at(&self, point: usize) -> Result<Scenario, Error> {
        let mut overrides = self.set.clone();
        overrides.extend(self.points[point].overrides.iter().cloned());
        Ok(Scenario::parse(&self.text, &self.origin, &overrides)?)
    }

    /// Runs there are.
    pub fn runs(&self) -> u64 {
        self.points.len() as u64 * self.seeds.len() as u64
    }

    /// Point and seed of run `i`.
    pub fn run(&self, i: u64) -> (usize, u64) {
        let seeds = self.seeds.len() as u64;
        ((i / seeds) as usize, self.seeds[(i % seeds) as usize])
    }

    /// The scenario of run `i`.
    ///
    /// # Errors
    /// A point that no scenario can have.
    pub fn scenario(&self, i: u64) -> Result<Scenario, Error> {
        let (point, seed) = self.run(i);
        let mut scenario = self.at(point)?;
        scenario.seed = seed;
        Ok(scenario)
    }

    /// What tells this sweep from others: its scenario, points, seeds, and the version of servetwin.
    pub fn fingerprint(&self) -> String {
        let mut all = format!(
            "{}\n{}\n{:?}\n{:?}\n",
            env!("CARGO_PKG_VERSION"),
            self.text,
            self.set,
            self.seeds
        );
        for p in &self.points {
            all += &p.overrides.join("\n");
            all.push('\n');
        }
        format!("{:016x}", fnv1a(all.as_bytes()))
    }
}

fn checked(axis: AxisFile) -> Result<Axis, (String, String)> {
    let fail = |key: &str, message: String| Err((key.to_owned(), message));
    let kind = match (axis.values, axis.from, axis.to) {
        (Some(values), None, None) => {
            if values.is_empty() {
                return fail("values", "must hold at least one value".into());
            }
            AxisKind::List(values)
        }
        (None, Some(from), Some(to)) => {
            if !(from.is_finite() && to.is_finite() && from < to) {
                return fail(
                    "to",
                    format!("must be above from ({}), got {}", plain(from), plain(to)),
                );
            }
            if axis.log && from <= 0.0 {
                return fail(
                    "from",
                    format!("must be above 0 with log = true, got {}", plain(from)),
                );
            }
            let steps = axis.steps.unwrap_or(5);
            if !(2..=100_000).contains(&steps) {
                return fail("steps", format!("must be from 2 to 100000, got {steps}"));
            }
            AxisKind::Range {
                from,
                to,
                steps,
                log: axis.log,
                unit: axis.unit,
                whole: axis.whole,
            }
        }
        _ => return fail("values", "give either values, or from and to".into()),
    };
    Ok(Axis {
        key: axis.key,
        kind,
    })
}

impl Axis {
    fn steps(&self) -> usize {
        match &self.kind {
            AxisKind::List(values) => values.len(),
            AxisKind::Range { steps, .. } => *steps as usize,
        }
    }

    /// The value at `share` of the axis, from 0 to 1: as a table shows it, and as TOML.
    fn at(&self, share: f64) -> (String, String) {
        match &self.kind {
            AxisKind::List(values) => {
                let i = ((share * values.len() as f64) as usize).min(values.len() - 1);
                show(&values[i])
            }
            AxisKind::Range {
                from,
                to,
                log,
                unit,
                whole,
                ..
            } => {
                let x = if *log {
                    from * (to / from).powf(share)
                } else {
                    from + share * (to - from)
                };
                let x = if *whole { x.round() } else { x };
                match unit {
                    None => (plain(x), plain(x)),
                    Some(u) => show(&Value::String(format!("{} {u}", plain(x)))),
                }
            }
        }
    }

    /// Value `i` of the grid.
    fn step(&self, i: usize) -> (String, String) {
        match &self.kind {
            AxisKind::List(values) => show(&values[i]),
            AxisKind::Range { steps, .. } => self.at(i as f64 / f64::from(steps - 1)),
        }
    }
}

fn show(value: &Value) -> (String, String) {
    (
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned),
        value.to_string(),
    )
}

fn point(axes: &[Axis], values: Vec<(String, String)>) -> Point {
    let overrides = axes
        .iter()
        .zip(&values)
        .map(|(a, v)| format!("{}={}", a.key, v.1))
        .collect();
    Point {
        values: values.into_iter().map(|v| v.0).collect(),
        overrides,
    }
}

/// All combinations, the last axis fastest.
fn grid(axes: &[Axis], seeds: u64) -> Result<Vec<Point>, String> {
    let n = axes
        .iter()
        .try_fold(1u64, |n, a| n.checked_mul(a.steps() as u64))
        .filter(|n| n.saturating_mul(seeds) <= MOST_RUNS);
    let n = n.ok_or_else(|| {
        format!("the grid has more than {MOST_RUNS} runs; give fewer values, or [sample]")
    })?;
    Ok((0..n)
        .map(|i| {
            let mut left = i;
            let mut values: Vec<(String, String)> = axes
                .iter()
                .rev()
                .map(|a| {
                    let steps = a.steps() as u64;
                    let value = a.step((left % steps) as usize);
                    left /= steps;
                    value
                })
                .collect();
            values.reverse();
            point(axes, values)
        })
        .collect())
}

/// `n` points of which each axis, cut into `n` equal parts, has one in every part.
fn latin_hypercube(axes: &[Axis], n: u64, seed: u64) -> Vec<Point> {
    let columns: Vec<Vec<f64>> = axes
        .iter()
        .map(|a| {
            let mut random = rng::stream(seed, &format!("sweep.{}", a.key));
            let mut column: Vec<f64> = (0..n)
                .map(|i| (i as f64 + random.random::<f64>()) / n as f64)
                .collect();
            column.shuffle(&mut random);
            column
        })
        .collect();
    (0..n as usize)
        .map(|i| {
            point(
                axes,
                axes.iter().zip(&columns).map(|(a, c)| a.at(c[i])).collect(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &str, from: f64, to: f64, steps: u32) -> Axis {
        Axis {
            key: key.into(),
            kind: AxisKind::Range {
                from,
                to,
                steps,
                log: false,
                unit: None,
                whole: false,
            },
        }
    }

    #[test]
    fn a_grid_has_every_combination_the_last_axis_fastest() {
        let list = Axis {
            key: "b".into(),
            kind: AxisKind::List(vec![Value::String("x".into()), Value::Integer(2)]),
        };
        let points = grid(&[range("a", 0.0, 1.0, 3), list], 1).unwrap();
        let values: Vec<String> = points.iter().map(|p| p.values.join(" ")).collect();
        assert_eq!(values, ["0 x", "0 2", "0.5 x", "0.5 2", "1 x", "1 2"]);
        assert_eq!(points[0].overrides, ["a=0", "b=\"x\""]);
    }

    #[test]
    fn a_latin_hypercube_has_one_point_in_every_part_of_every_axis() {
        let axes = [range("a", 0.0, 10.0, 2), range("b", 0.0, 10.0, 2)];
        let points = latin_hypercube(&axes, 10, 7);
        for axis in 0..2 {
            let mut parts: Vec<u32> = points
                .iter()
                .map(|p| p.values[axis].parse::<f64>().unwrap() as u32)
                .collect();
            parts.sort_unstable();
            assert_eq!(parts, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(points, latin_hypercube(&axes, 10, 7));
        assert_ne!(points, latin_hypercube(&axes, 10, 8));
    }

    #[test]
    fn a_range_in_logarithms_has_equal_ratios_and_whole_numbers_are_whole() {
        let kind = AxisKind::Range {
            from: 16.0,
            to: 1024.0,
            steps: 4,
            log: true,
            unit: None,
            whole: true,
        };
        let axis = Axis {
            key: "a".into(),
            kind,
        };
        let values: Vec<String> = (0..4).map(|i| axis.step(i).0).collect();
        assert_eq!(values, ["16", "64", "256", "1024"]);
    }
}
