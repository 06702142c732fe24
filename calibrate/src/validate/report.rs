//! What a validation prints: rows of measured against predicted, and their errors by set and metric.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hwmodels::doubt::{Figure, RowError, SetErrors, by_set};
use serde::Serialize;
use sim::report::doubt;

use super::plain::{self, PlainErrors};
use super::row::{LoadPlace, Row, percentage};

/// Percentage errors over some rows [%].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// Rows.
    pub n: usize,
    /// Median absolute percentage error [%].
    pub median_ape: f64,
    /// Mean absolute percentage error [%].
    pub mean_ape: f64,
    /// 90th percentile of the absolute percentage error [%], linear interpolation.
    pub p90_ape: f64,
    /// Mean signed percentage error [%]; positive: predictions are too high.
    pub bias: f64,
}

impl Errors {
    /// Errors from signed percentages; `None` if there are none.
    pub fn of(signed: &[f64]) -> Option<Errors> {
        if signed.is_empty() {
            return None;
        }
        let n = signed.len();
        let mut abs: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
        abs.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            let h = q * (n - 1) as f64;
            let (lo, hi) = (abs[h.floor() as usize], abs[h.ceil() as usize]);
            lo + (hi - lo) * h.fract()
        };
        Some(Errors {
            n,
            median_ape: quantile(0.5),
            mean_ape: abs.iter().sum::<f64>() / n as f64,
            p90_ape: quantile(0.9),
            bias: signed.iter().sum::<f64>() / n as f64,
        })
    }
}

/// Errors of one metric of one set: fitted rows and rows only predicted, apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Data set.
    pub set: String,
    /// Metric.
    pub metric: String,
    /// Errors on rows that parameters were fitted on.
    pub fitted: Option<Errors>,
    /// Errors on rows that were only predicted.
    pub predicted: Option<Errors>,
    /// Errors on those of them whose run gave no row at all to a fit; only where that leaves some out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untouched: Option<Errors>,
    /// The baseline's errors on the rows that were only predicted.
    pub baseline: Option<Errors>,
    /// Rows that were only predicted and have a 90 % range, and those of them that lie inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covered: Option<[usize; 2]>,
    /// Rows that could not be predicted.
    pub unpredicted: usize,
}

/// Whether one-knob changes moved a metric the way they did in reality.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Direction {
    /// Data set.
    pub set: String,
    /// Metric.
    pub metric: String,
    /// Pairs of rows that differ in one knob and in the metric by more than 5 %.
    pub pairs: usize,
    /// Pairs whose direction was predicted.
    pub right: usize,
}

/// Result of a validation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Every row, in the order of its set.
    pub rows: Vec<Row>,
    /// Errors by set and metric.
    pub summaries: Vec<Summary>,
    /// Directions by set and metric.
    pub directions: Vec<Direction>,
    /// How many rows lie inside their ranges, by load and figure.
    pub coverage: Vec<Coverage>,
    /// Errors of plain scenarios beside those of the sets' own, where they were run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plain: Vec<PlainErrors>,
    /// Whether predictions name the right choice.
    pub quality: super::decisions::Quality,
    /// Sets that were not found, or what else a reader must know.
    pub notes: Vec<String>,
}

/// Changes smaller than this share are noise, not a direction.
const DIRECTION_THRESHOLD: f64 = 0.05;

/// Errors by set, figure and kind of run, of the rows that nothing was fitted on, as they would be at a load that changes nothing: over what the load
/// makes of steps that are as far off ([`hwmodels::doubt::ends`]). Rates that arrivals set say nothing.
pub fn errors(rows: &[Row]) -> Vec<SetErrors> {
    by_set(rows.iter().filter(|r| !r.fitted).filter_map(|r| {
        let figure = doubt::figure_of(&r.metric);
        let error = (r.predicted? / r.measured).ln();
        let [shorter, longer] = r.responses.unwrap_or([1.0; 2]);
        let response = if error > 0.0 { shorter } else { longer };
        let set_by_arrivals = figure == Figure::Throughput && response < SET_BY_STEPS;
        (!set_by_arrivals).then_some(RowError {
            set: r.set.clone(),
            metric: r.metric.clone(),
            figure,
            kind: r.kind?,
            accelerator: r.accelerator.clone(),
            error,
            response: response.max(1.0),
        })
    }))
}

/// Response from which on a rate is that of the steps, not that of the arrivals.
const SET_BY_STEPS: f64 = 0.5;

/// Coverage of the rows of one figure whose loads are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// Where their loads are against what the deployments can do.
    pub place: LoadPlace,
    /// What the figure is about.
    pub figure: Figure,
    /// Rows that were only predicted.
    pub rows: usize,
    /// Those of them that lie inside their ranges.
    pub inside: usize,
    /// Median of the ranges' upper end over the prediction [ratio].
    pub median_factor: f64,
    /// Mean interval score: the width of a range as a logarithm, and 20 times the distance of a measurement that lies outside (Gneiting and Raftery 2007,
    /// "Strictly proper scoring rules", for 90 %). Less is better; what is known of runs alike is weighed so that it is small ([`hwmodels::doubt`]).
    pub score: f64,
}

/// Coverage by load and figure.
fn coverage(rows: &[Row]) -> Vec<Coverage> {
    let mut groups = BTreeMap::<(LoadPlace, Figure), Vec<[f64; 3]>>::new();
    for r in rows.iter().filter(|r| !r.fitted) {
        if let (Some(place), Some([low, high]), Some(predicted)) = (r.place, r.range, r.predicted) {
            let of = groups.entry((place, doubt::figure_of(&r.metric)));
            // As logarithms; below 0: inside.
            let outside = (low / r.measured).max(r.measured / high).ln();
            let score = (high / low).ln() + 20.0 * outside.max(0.0);
            of.or_default().push([high / predicted, score, outside]);
        }
    }
    groups
        .into_iter()
        .map(|((place, figure), mut rows)| {
            rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
            Coverage {
                place,
                figure,
                rows: rows.len(),
                inside: rows.iter().filter(|r| r[2] <= 0.0).count(),
                median_factor: rows[rows.len() / 2][0],
                score: rows.iter().map(|r| r[1]).sum::<f64>() / rows.len() as f64,
            }
        })
        .collect()
}

impl Report {
    /// Sums up `rows`. `knobs` gives the one-knob coordinates of a row's case: rows of one set and metric
    /// whose coordinates differ in exactly one place form a pair.
    pub fn new(rows: Vec<Row>, knobs: &BTreeMap<(String, String), Vec<String>>) -> Report {
        let mut keys: Vec<(String, String)> = Vec::new();
        for r in &rows {
            let key = (r.set.clone(), r.metric.clone());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let touched: BTreeSet<(&str, &str)> = rows
            .iter()
            .filter(|r| r.fitted)
            .map(|r| (r.set.as_str(), r.case.as_str()))
            .collect();
        let mut summaries = Vec::new();
        let mut directions = Vec::new();
        for (set, metric) in keys {
            let of: Vec<&Row> = rows
                .iter()
                .filter(|r| r.set == set && r.metric == metric)
                .collect();
            let errors = |counts: &dyn Fn(&Row) -> bool| {
                let e: Vec<f64> = of
                    .iter()
                    .filter(|r| counts(r))
                    .filter_map(|r| r.error())
                    .collect();
                Errors::of(&e)
            };
            let predicted = errors(&|r| !r.fitted);
            let untouched = errors(&|r| !touched.contains(&(&r.set, &r.case)));
            let baseline: Vec<f64> = of
                .iter()
                .filter(|r| !r.fitted)
                .filter_map(|r| r.baseline.map(|b| percentage(b, r.measured)))
                .collect();
            summaries.push(Summary {
                set: set.clone(),
                metric: metric.clone(),
                fitted: errors(&|r| r.fitted),
                predicted,
                untouched: untouched.filter(|u| predicted.is_some_and(|p| p.n > u.n)),
                baseline: Errors::of(&baseline),
                covered: covered(&of),
                unpredicted: of.iter().filter(|r| r.predicted.is_none()).count(),
            });
            if let Some(d) = direction(&set, &metric, &of, knobs) {
                directions.push(d);
            }
        }
        Report {
            coverage: coverage(&rows),
            plain: plain::errors(&rows),
            rows,
            summaries,
            directions,
            quality: Default::default(),
            notes: Vec::new(),
        }
    }

    /// The errors of rows of `set` and `metric` that were only predicted.
    pub fn predicted(&self, set: &str, metric: &str) -> Option<Errors> {
        self.summaries
            .iter()
            .find(|s| s.set == set && s.metric == metric)
            .and_then(|s| s.predicted)
    }

    /// Errors by set, figure and kind of run: what ranges are made of (`hwmodels/data/errors.toml`).
    pub fn errors(&self) -> Vec<SetErrors> {
        errors(&self.rows)
    }

    /// A table in Markdown, with every row if `rows`.
    pub fn markdown(&self, rows: bool) -> String {
        let mut out = String::new();
        out.push_str(
            "| set | metric | rows | n | median | mean | p90 | bias | baseline median | baseline mean |\n\
             |---|---|---|---|---|---|---|---|---|---|\n",
        );
        for s in &self.summaries {
            for (kind, errors) in [
                ("fitted", s.fitted),
                ("predicted", s.predicted),
                ("... nothing of the run fitted", s.untouched),
            ] {
                let Some(e) = errors else { continue };
                let baseline = match (kind, s.baseline) {
                    ("predicted", Some(b)) => {
                        format!("{:.1} % | {:.1} %", b.median_ape, b.mean_ape)
                    }
                    _ => "- | -".to_owned(),
                };
                let _ = writeln!(
                    out,
                    "| {} | {} | {kind} | {} | {:.1} % | {:.1} % | {:.1} % | {:+.1} % | {baseline} |",
                    s.set, s.metric, e.n, e.median_ape, e.mean_ape, e.p90_ape, e.bias
                );
            }
            if s.unpredicted > 0 {
                let _ = writeln!(
                    out,
                    "| {} | {} | not predicted | {} | - | - | - | - | - | - |",
                    s.set, s.metric, s.unpredicted
                );
            }
        }
        if !self.directions.is_empty() {
            out.push_str(
                "\nDirections: pairs of rows that differ in one knob, and by more than 5 % in the metric.\n\n\
                 | set | metric | pairs | right |\n|---|---|---|---|\n",
            );
            for d in &self.directions {
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} |",
                    d.set, d.metric, d.pairs, d.right
                );
            }
        }
        out.push_str(&self.quality.markdown());
        out.push_str(&plain::markdown(&self.plain));
        let ranged: Vec<(&Summary, [usize; 2])> = (self.summaries.iter())
            .filter_map(|s| Some((s, s.covered?)))
            .collect();
        if !ranged.is_empty() {
            out.push_str(
                "\nCoverage: rows that were only predicted and lie inside the 90 % range of their prediction.\n\n\
                 | set | metric | rows | inside |\n|---|---|---|---|\n",
            );
            let mut all = [0, 0];
            for (s, [n, inside]) in ranged {
                let _ = writeln!(
                    out,
                    "| {} | {} | {n} | {} |",
                    s.set,
                    s.metric,
                    share(inside, n)
                );
                all = [all[0] + n, all[1] + inside];
            }
            let [n, inside] = all;
            let _ = writeln!(out, "| all | all | {n} | {} |", share(inside, n));
            out.push_str(
                "\n| load | figure | rows | inside | range, median | score |\n|---|---|---|---|---|---|\n",
            );
            for c in &self.coverage {
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} | x {:.2} | {:.2} |",
                    c.place.name(),
                    c.figure.name(),
                    c.rows,
                    share(c.inside, c.rows),
                    c.median_factor,
                    c.score
                );
            }
        }
        if rows {
            out.push_str(
                "\n| set | case | metric | measured | predicted | error | baseline | rows |\n\
                 |---|---|---|---|---|---|---|---|\n",
            );
            for r in &self.rows {
                let predicted = match (r.predicted, r.error()) {
                    (Some(p), Some(e)) => format!("{} | {e:+.1} %", figure(p)),
                    _ => format!("- | {}", r.note),
                };
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} | {predicted} | {} | {} |",
                    r.set,
                    r.case,
                    r.metric,
                    figure(r.measured),
                    r.baseline.map_or_else(|| "-".to_owned(), figure),
                    if r.fitted { "fitted" } else { "predicted" },
                );
            }
        }
        for n in &self.notes {
            let _ = writeln!(out, "\n{n}");
        }
        out
    }
}

impl std::fmt::Display for Report {
    /// The tables without the rows.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.markdown(false))
    }
}

fn share(part: usize, of: usize) -> String {
    format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// Four significant digits.
fn figure(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return format!("{v}");
    }
    let digits = (3 - v.abs().log10().floor() as i32).clamp(0, 9) as usize;
    format!("{v:.digits$}")
}

/// Rows only predicted that have a range, and those inside of it.
fn covered(rows: &[&Row]) -> Option<[usize; 2]> {
    let with_range = rows.iter().filter(|r| !r.fitted);
    let inside: Vec<bool> = with_range
        .filter_map(|r| {
            r.range
                .map(|[low, high]| (low..=high).contains(&r.measured))
        })
        .collect();
    let hits = inside.iter().filter(|hit| **hit).count();
    (!inside.is_empty()).then_some([inside.len(), hits])
}

fn direction(
    set: &str,
    metric: &str,
    rows: &[&Row],
    knobs: &BTreeMap<(String, String), Vec<String>>,
) -> Option<Direction> {
    let coordinates = |r: &Row| knobs.get(&(r.set.clone(), r.case.clone()));
    let (mut pairs, mut right) = (0, 0);
    for (i, a) in rows.iter().enumerate() {
        for b in &rows[i + 1..] {
            let (Some(ka), Some(kb)) = (coordinates(a), coordinates(b)) else {
                continue;
            };
            if ka.len() != kb.len() || ka.iter().zip(kb).filter(|(x, y)| x != y).count() != 1 {
                continue;
            }
            let (Some(pa), Some(pb)) = (a.predicted, b.predicted) else {
                continue;
            };
            let measured = b.measured / a.measured - 1.0;
            if measured.abs() < DIRECTION_THRESHOLD {
                continue;
            }
            pairs += 1;
            right += usize::from((pb > pa) == (measured > 0.0));
        }
    }
    (pairs > 0).then(|| Direction {
        set: set.into(),
        metric: metric.into(),
        pairs,
        right,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, measured: f64, predicted: f64, fitted: bool) -> Row {
        Row {
            set: "s".into(),
            case: case.into(),
            metric: "m".into(),
            measured,
            predicted: Some(predicted),
            baseline: None,
            range: None,
            kind: None,
            place: None,
            responses: None,
            plain: None,
            accelerator: None,
            fitted,
            note: String::new(),
        }
    }

    #[test]
    fn errors_are_those_computed_by_hand() {
        let e = Errors::of(&[-10.0, 5.0, 20.0]).expect("three rows");
        assert_eq!((e.n, e.median_ape, e.bias), (3, 10.0, 5.0));
        assert!((e.mean_ape - 35.0 / 3.0).abs() < 1e-12);
        assert!((e.p90_ape - 18.0).abs() < 1e-12);
        assert_eq!(Errors::of(&[]), None);
    }

    #[test]
    fn fitted_and_predicted_rows_are_never_mixed() {
        let rows = vec![row("a", 100.0, 150.0, true), row("b", 100.0, 101.0, false)];
        let r = Report::new(rows, &BTreeMap::new());
        assert_eq!(r.summaries[0].fitted.map(|e| e.median_ape), Some(50.0));
        assert!(r.predicted("s", "m").expect("one row").median_ape < 1.0 + 1e-9);
    }

    #[test]
    fn rows_of_runs_that_gave_nothing_to_a_fit_are_told_apart() {
        let other = |r: Row| Row {
            metric: "other".into(),
            ..r
        };
        let rows = vec![
            row("a", 100.0, 150.0, true),
            other(row("a", 100.0, 140.0, false)),
            other(row("b", 100.0, 102.0, false)),
        ];
        let r = Report::new(rows, &BTreeMap::new());
        assert_eq!(r.predicted("s", "other").map(|e| e.n), Some(2));
        let untouched = r.summaries[1].untouched.expect("one row of b");
        assert_eq!(untouched.n, 1);
        assert!((untouched.median_ape - 2.0).abs() < 1e-9);
        // Nothing is left out where no run was fitted, and nothing is left of one that was.
        assert_eq!(r.summaries[0].untouched, None);
        assert!(
            r.markdown(false)
                .contains("| s | other | ... nothing of the run fitted | 1 | 2.0 % |")
        );
    }

    #[test]
    fn coverage_counts_predicted_rows_inside_their_ranges() {
        let ranged = |r: Row, range| Row {
            range: Some(range),
            ..r
        };
        let rows = vec![
            ranged(row("a", 100.0, 90.0, false), [80.0, 101.0]),
            ranged(row("b", 100.0, 90.0, false), [80.0, 99.0]),
            ranged(row("c", 100.0, 90.0, true), [80.0, 99.0]),
            row("d", 100.0, 90.0, false),
        ];
        let r = Report::new(rows, &BTreeMap::new());
        assert_eq!(r.summaries[0].covered, Some([2, 1]));
        assert!(r.markdown(false).contains("| s | m | 2 | 50 % |"));
    }

    #[test]
    fn a_direction_counts_pairs_that_differ_in_one_knob() {
        let rows = vec![row("a", 100.0, 90.0, false), row("b", 200.0, 80.0, false)];
        let knobs = [("a", ["x", "1"]), ("b", ["x", "2"])]
            .into_iter()
            .map(|(c, k)| (("s".into(), c.into()), k.map(String::from).to_vec()))
            .collect();
        let r = Report::new(rows, &knobs);
        assert_eq!((r.directions[0].pairs, r.directions[0].right), (1, 0));
    }
}
