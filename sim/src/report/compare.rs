//! Scenarios under the same seeds against the first of them: the differences of their figures, with intervals.
//!
//! Run i of each has the same seed, hence the same arrivals where the workloads agree, so the difference is taken pair by
//! pair and most of the noise cancels.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::metrics::interval::Interval;
use crate::report::compare_words::{self, Runs};
use crate::report::doubt;
use crate::report::draws::{COVERAGE, FORM, coverage};
use crate::report::expect::Numbers;
use crate::report::figures::{field, figure, wrapped};
use crate::report::keys::{KeyDifference, differences};
use crate::report::outcomes::{RequestCounts, warnings_of};
use crate::report::replications::{
    CONFIDENCE, FIGURES, differ, in_table_order, label, nothing_finished, seeds_change_nothing,
};
use crate::report::summary::{CONTRACT, RunReport};

/// Most scenarios of a comparison: each has a letter.
pub const MOST: usize = 26;

/// Difference of the shares of requests that two sides finished from which on their latencies are of different requests
/// [ratio].
const SHARE_APART: f64 = 0.01;

/// Most differing keys that the terminal shows of a scenario.
const SHOWN_KEYS: usize = 12;

/// Runs of one scenario, before they are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The resolved scenario (TOML).
    pub config: String,
    /// Its runs, in the order of the seeds.
    pub runs: Vec<RunReport>,
    /// Its runs with drawn parameters, in the order of the draws; empty where nothing was drawn.
    pub draws: Vec<RunReport>,
}

/// A paired comparison (`compare A B... --json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Comparison {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the first scenario, the base.
    pub a: String,
    /// Name of the second scenario.
    pub b: String,
    /// Seeds all ran with.
    pub seeds: Vec<u64>,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Whether the seeds made any two runs of a scenario differ. False: no figure has an interval from them.
    pub seeds_vary: bool,
    /// Draws of the profiles' parameters; null where none were drawn.
    pub draws: Option<u64>,
    /// Keys in which the second scenario differs from the first, as resolved.
    pub keys: Vec<KeyDifference>,
    /// Whether the second served the same requests as the first in every pair: as many offered and finished, with as many
    /// tokens.
    pub same_requests: bool,
    /// A sentence for each scenario beside the first: which of the two is faster, and what it costs beside the other.
    #[serde(default)]
    pub summary: Vec<String>,
    /// What the reader must know to judge the differences.
    pub notes: Vec<String>,
    /// What the runs of each scenario warn of.
    pub warnings: Vec<SideWarning>,
    /// The figures that both have.
    pub figures: Vec<Difference>,
    /// Runs of the first scenario, by seed.
    pub runs_a: Vec<RunReport>,
    /// Runs of the second scenario, by seed.
    pub runs_b: Vec<RunReport>,
    /// Further scenarios against the first; empty for a comparison of two.
    pub more: Vec<Further>,
}

/// A third or further scenario against the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Further {
    /// Its name.
    pub name: String,
    /// Keys in which it differs from the first.
    pub keys: Vec<KeyDifference>,
    /// As for the second.
    pub same_requests: bool,
    /// The figures that it and the first have; `b` is its own.
    pub figures: Vec<Difference>,
    /// Its runs, by seed.
    pub runs: Vec<RunReport>,
}

/// A warning of some runs of one scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SideWarning {
    /// Letter of the scenario, in the order of the command line: `A`, `B`, ...
    pub side: String,
    /// As the first of these runs has it.
    pub text: String,
    /// Runs that warn of the same, their numbers aside.
    pub runs: u64,
}

/// One figure of both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Difference {
    /// Path in the run's report, e.g. `ttft_ms.p99`.
    pub path: String,
    /// Mean of the first.
    pub a: f64,
    /// Mean of the second.
    pub b: f64,
    /// Second minus first, paired by seed.
    pub difference: Interval,
    /// Whether the interval excludes zero (with draws: theirs); null without an interval.
    pub significant: Option<bool>,
    /// Lower end of the interval that holds 90 % of the paired draws' differences; null without draws.
    pub low: Option<f64>,
    /// Upper end of it.
    pub high: Option<f64>,
}

/// One scenario of the table.
struct Column<'a> {
    name: &'a str,
    keys: &'a [KeyDifference],
    figures: &'a [Difference],
    runs: &'a [RunReport],
}

impl Comparison {
    /// Compares `b` and `more` with `a`, run by run; the runs of all are in the order of the same seeds.
    pub fn new(a: Side, b: Side, more: Vec<Side>) -> Comparison {
        let vary = |side: &Side| differ(&side.runs);
        let seeds_vary = vary(&a) || vary(&b) || more.iter().any(vary);
        let mut notes = Vec::new();
        let mut warnings = Vec::new();
        let mut summary = Vec::new();
        let mut against = |side: &Side, letter: char| {
            let keys = differences(&a.config, &side.config);
            let [of_a, of_b] =
                [('A', &a.runs), (letter, &side.runs)].map(|(letter, runs)| Runs { letter, runs });
            let loads = compare_words::loads_differ(&of_a, &of_b, &keys);
            let under = match loads {
                Some(_) => "Under different loads, ",
                None => "",
            };
            notes.extend(loads);
            let (same, told) = same_requests(&a.runs, &side.runs, letter);
            notes.extend(told);
            let comparable = alike(&a.runs, &side.runs);
            let sentence = compare_words::sentence(&of_a, &of_b, comparable, seeds_vary);
            summary.push(format!("{under}{sentence}"));
            (keys, same, figures(&a, side, seeds_vary))
        };
        let (keys, same, of_b) = against(&b, 'B');
        let mut further = Vec::new();
        for (side, letter) in more.iter().zip('C'..) {
            let (keys, same_requests, figures) = against(side, letter);
            further.push(Further {
                name: name(&side.runs),
                keys,
                same_requests,
                figures,
                runs: side.runs.clone(),
            });
        }
        for (side, letter) in [&a, &b].into_iter().chain(&more).zip('A'..) {
            warnings.extend(warnings_of(&side.runs).into_iter().map(|w| SideWarning {
                side: letter.to_string(),
                text: w.text,
                runs: w.runs,
            }));
        }
        if !seeds_vary {
            notes.push(seeds_change_nothing("the runs of each scenario are"));
        }
        Comparison {
            contract: CONTRACT,
            a: name(&a.runs),
            b: name(&b.runs),
            seeds: a.runs.iter().map(|r| r.seed).collect(),
            confidence: CONFIDENCE,
            seeds_vary,
            draws: (!a.draws.is_empty()).then_some(a.draws.len() as u64),
            keys,
            same_requests: same,
            summary,
            notes,
            warnings,
            figures: of_b,
            runs_a: a.runs,
            runs_b: b.runs,
            more: further,
        }
    }

    /// Whether some run finished nothing.
    pub fn nothing_finished(&self) -> bool {
        let further = self.more.iter().flat_map(|m| &m.runs);
        let mut runs = self.runs_a.iter().chain(&self.runs_b).chain(further);
        runs.any(|r| r.requests.finished == 0)
    }

    /// The scenarios that are held against the base, from `B` on.
    fn columns(&self) -> Vec<Column<'_>> {
        let second = Column {
            name: &self.b,
            keys: &self.keys,
            figures: &self.figures,
            runs: &self.runs_b,
        };
        let further = self.more.iter().map(|m| Column {
            name: &m.name,
            keys: &m.keys,
            figures: &m.figures,
            runs: &m.runs,
        });
        std::iter::once(second).chain(further).collect()
    }

    /// The table on the terminal; lines end in `\n`.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let columns = self.columns();
        let all = std::iter::once(self.runs_a.as_slice()).chain(columns.iter().map(|c| c.runs));
        for (runs, letter) in all.zip('A'..) {
            if let Some(text) = nothing_finished(runs) {
                writeln!(out, "{letter}: {text}\n")?;
            }
        }
        self.write_sides(out, &columns)?;
        for note in &self.notes {
            field(out, "note", note)?;
        }
        let of_each = self.runs_a.len() as u64;
        for w in &self.warnings {
            let part = if w.runs == of_each {
                String::new()
            } else {
                format!(" ({} of {of_each} runs warn so)", w.runs)
            };
            field(
                out,
                &format!("warning of {}", w.side),
                &format!("{}{part}", w.text),
            )?;
        }
        writeln!(out)?;
        match columns.as_slice() {
            [only] => self.write_pair(out, only)?,
            several => self.write_several(out, several)?,
        }
        if self.draws.is_some() {
            writeln!(out, "\n{FORM}")?;
        }
        self.write_ranges(out, &columns)?;
        writeln!(out)?;
        for sentence in &self.summary {
            wrapped(out, "", sentence)?;
        }
        Ok(())
    }

    /// In what range nine of ten such deployments would be measured.
    fn write_ranges(&self, out: &mut String, columns: &[Column<'_>]) -> std::fmt::Result {
        let all = std::iter::once(self.runs_a.as_slice()).chain(columns.iter().map(|c| c.runs));
        for (runs, letter) in all.zip('A'..) {
            let range = runs.first().map_or(String::new(), doubt::in_words);
            if !range.is_empty() {
                if letter == 'A' {
                    writeln!(out)?;
                }
                field(out, &format!("90 % range, {letter}"), &range)?;
            }
        }
        Ok(())
    }

    /// What is compared: names, requests, and the keys that differ.
    fn write_sides(&self, out: &mut String, columns: &[Column<'_>]) -> std::fmt::Result {
        writeln!(out, "A  {}", self.a)?;
        writeln!(out, "   {}", RequestCounts::of(&self.runs_a).in_words())?;
        for (column, letter) in columns.iter().zip('B'..) {
            writeln!(out, "{letter}  {}", column.name)?;
            writeln!(out, "   {}", RequestCounts::of(column.runs).in_words())?;
            if column.keys.is_empty() {
                writeln!(out, "   does not differ from A in any key")?;
            }
            for d in column.keys.iter().take(SHOWN_KEYS) {
                let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "(not set)".into());
                writeln!(out, "   {}: {} -> {}", d.key, value(&d.a), value(&d.b))?;
            }
            if let Some(n) = column.keys.len().checked_sub(SHOWN_KEYS).filter(|n| *n > 0) {
                writeln!(out, "   and {n} more keys (--json names them all)")?;
            }
        }
        let n = self.runs_a.len();
        let plural = if n == 1 { "" } else { "s" };
        writeln!(
            out,
            "\n  {n} paired run{plural} (same seeds, same arrivals where the workloads agree)"
        )
    }

    fn write_pair(&self, out: &mut String, b: &Column<'_>) -> std::fmt::Result {
        let interval = match self.draws {
            Some(_) => format!("{:.0} % of the draws", 100.0 * COVERAGE),
            None => format!("+- ({:.0} %)", 100.0 * self.confidence),
        };
        writeln!(
            out,
            "{:<22} {:>11} {:>11} {:>11} {:>22} {:>9}  {:>4}",
            "", "A", "B", "B - A", interval, "change", "n"
        )?;
        for row in rows(b.figures) {
            let around = match (row.low, row.high) {
                (Some(low), Some(high)) => format!("{} to {}", figure(low), figure(high)),
                _ => row.difference.half_width.map_or("-".into(), figure),
            };
            let equal_counts = row.path.starts_with("requests.") && row.a == row.b;
            let mark = match row.significant {
                Some(false) if !equal_counts => "  within noise",
                _ => "",
            };
            writeln!(
                out,
                "{:<22} {:>11} {:>11} {:>11} {around:>22} {:>9}  {:>4}{mark}",
                label(&row.path),
                figure(row.a),
                figure(row.b),
                figure(row.difference.mean),
                change(row),
                row.difference.n
            )?;
        }
        Ok(())
    }

    fn write_several(&self, out: &mut String, columns: &[Column<'_>]) -> std::fmt::Result {
        write!(out, "{:<22} {:>11}", "", "A")?;
        for (_, letter) in columns.iter().zip('B'..) {
            write!(out, " {letter:>11} {:>10}", "change")?;
        }
        writeln!(out)?;
        // A row for every figure that some column has.
        let all: Vec<Difference> = FIGURES
            .iter()
            .filter_map(|f| {
                let found = columns.iter().filter_map(|c| at(c.figures, f.path));
                found.max_by(|x, y| x.b.total_cmp(&y.b)).cloned()
            })
            .collect();
        for row in rows(&all) {
            write!(out, "{:<22} {:>11}", label(&row.path), figure(row.a))?;
            for column in columns {
                let (value, change) = match at(column.figures, &row.path) {
                    Some(d) => {
                        let noisy = d.significant == Some(false) && d.difference.mean != 0.0;
                        let noise = if noisy { "~" } else { "" };
                        (figure(d.b), format!("{noise}{}", change(d)))
                    }
                    None => ("-".into(), "-".into()),
                };
                write!(out, " {value:>11} {change:>10}")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "\n  change: against A; ~ within noise")
    }
}

fn at<'a>(figures: &'a [Difference], path: &str) -> Option<&'a Difference> {
    figures.iter().find(|d| d.path == path)
}

fn rows(figures: &[Difference]) -> Vec<&Difference> {
    in_table_order(
        figures,
        |d: &Difference| d.path.clone(),
        |d| d.a == 0.0 && d.b == 0.0,
    )
}

fn change(row: &Difference) -> String {
    if row.a == 0.0 {
        "-".into()
    } else {
        format!("{:+.1} %", 100.0 * row.difference.mean / row.a)
    }
}

fn name(runs: &[RunReport]) -> String {
    runs.first().map_or(String::new(), |r| r.name.clone())
}

/// The figures that both sides have, paired by seed.
fn figures(a: &Side, b: &Side, seeds_vary: bool) -> Vec<Difference> {
    // The same pair several times is one pair.
    let counted = if seeds_vary { a.runs.len() } else { 1 };
    let numbers = |runs: &[RunReport], n: usize| -> Vec<Numbers> {
        runs.iter().take(n).map(Numbers::of).collect()
    };
    let (of_a, of_b) = (numbers(&a.runs, counted), numbers(&b.runs, counted));
    let drawn_a = numbers(&a.draws, usize::MAX);
    let drawn_b = numbers(&b.draws, usize::MAX);
    let pairs = |of_a: &[Numbers], of_b: &[Numbers], path: &str| -> Vec<(f64, f64)> {
        let both = of_a.iter().zip(of_b);
        both.filter_map(|(a, b)| Some((a.at(path)?, b.at(path)?)))
            .collect()
    };
    FIGURES
        .iter()
        .filter_map(|f| {
            let found = pairs(&of_a, &of_b, f.path);
            let apart = |pairs: &[(f64, f64)]| pairs.iter().map(|(a, b)| b - a).collect::<Vec<_>>();
            let difference = Interval::of(&apart(&found), CONFIDENCE)?;
            let draws = coverage(apart(&pairs(&drawn_a, &drawn_b, f.path)));
            let n = found.len() as f64;
            Some(Difference {
                path: f.path.to_string(),
                a: found.iter().map(|p| p.0).sum::<f64>() / n,
                b: found.iter().map(|p| p.1).sum::<f64>() / n,
                difference,
                significant: match draws {
                    Some((low, high, _)) => Some(low > 0.0 || high < 0.0),
                    None => difference.half_width.map(|_| difference.excludes_zero()),
                },
                low: draws.map(|d| d.0),
                high: draws.map(|d| d.1),
            })
        })
        .collect()
}

/// Whether both sides finished about the same share of what was offered, so that their latencies compare.
fn alike(a: &[RunReport], b: &[RunReport]) -> bool {
    let share = |runs: &[RunReport]| RequestCounts::of(runs).finished_ratio().unwrap_or(0.0);
    (share(a) - share(b)).abs() < SHARE_APART
}

/// Whether the runs of `b` (called `letter`) served the same requests as those of `a`, and what to say where they did not.
fn same_requests(a: &[RunReport], b: &[RunReport], letter: char) -> (bool, Option<String>) {
    let served = |r: &RunReport| {
        let (q, t) = (&r.requests, &r.tokens);
        (q.offered, q.finished, t.prompt, t.output)
    };
    let same = a.iter().zip(b).all(|(a, b)| served(a) == served(b));
    if same {
        return (true, None);
    }
    let (of_a, of_b) = (RequestCounts::of(a), RequestCounts::of(b));
    let share = |c: &RequestCounts| c.finished_ratio().unwrap_or(0.0);
    let (share_a, share_b) = (share(&of_a), share(&of_b));
    let told = if !alike(a, b) {
        format!(
            "A and {letter} did not serve the same requests: A finished {:.1} % of those offered, {letter} {:.1} %. Latencies are \
             those of finished requests alone, so they do not compare; compare goodput and the counts.",
            100.0 * share_a,
            100.0 * share_b
        )
    } else if of_a.offered != of_b.offered {
        format!(
            "A and {letter} did not serve the same requests: {} were offered to A, {} to {letter}.",
            of_a.offered, of_b.offered
        )
    } else {
        format!(
            "A and {letter} did not serve the same requests: their tokens or the requests that finished differ."
        )
    };
    (false, Some(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side whose i-th run has the i-th of `values` as its throughput.
    fn with_throughput(values: &[f64]) -> Side {
        let run = |(i, v): (usize, &f64)| {
            let mut r = RunReport::empty();
            r.throughput.requests_per_s = *v;
            r.requests.offered = 100;
            r.requests.finished = 100;
            r.fingerprint = format!("{i}");
            r
        };
        Side {
            runs: values.iter().enumerate().map(run).collect(),
            ..Side::default()
        }
    }

    fn throughput(figures: &[Difference]) -> &Difference {
        at(figures, "throughput.requests_per_s").unwrap()
    }

    #[test]
    fn pairing_finds_a_small_steady_difference_under_large_noise() {
        let a = with_throughput(&[10.0, 20.0, 30.0, 40.0]);
        let b = with_throughput(&[10.5, 20.5, 30.6, 40.4]);
        let c = Comparison::new(a, b, Vec::new());
        let row = throughput(&c.figures);
        assert!((row.difference.mean - 0.5).abs() < 1e-9);
        assert_eq!(row.significant, Some(true));
        assert!(c.same_requests && c.seeds_vary && c.notes.is_empty());
        assert!(c.render().contains("requests/s"));
    }

    #[test]
    fn one_pair_claims_no_significance() {
        let (a, b) = (with_throughput(&[1.0]), with_throughput(&[2.0]));
        let c = Comparison::new(a, b, Vec::new());
        assert!(c.figures.iter().all(|f| f.significant.is_none()));
        assert!(!c.render().contains("The seeds change nothing"));
    }

    #[test]
    fn a_side_that_rejects_most_of_its_requests_is_not_called_faster() {
        let a = with_throughput(&[1.0, 1.1]);
        let mut b = with_throughput(&[1.0, 1.1]);
        for r in &mut b.runs {
            r.requests.finished = 25;
            r.requests.rejected = 75;
            r.warnings = vec!["of 100 requests 75 rejected".into()];
        }
        let c = Comparison::new(a, b, Vec::new());
        assert!(!c.same_requests);
        assert_eq!((c.warnings[0].side.as_str(), c.warnings[0].runs), ("B", 2));
        let text = c.render();
        for want in [
            "A and B did not serve the same requests: A finished 100.0 % of those offered, B 25.0 %",
            "200 offered, 50 finished, 150 rejected",
            "of 100 requests 75 rejected",
            "  rejected",
        ] {
            assert!(text.contains(want), "{want}:\n{text}");
        }
    }

    #[test]
    fn seeds_that_change_nothing_give_no_interval() {
        let same = |v: f64| {
            let mut side = with_throughput(&[v, v, v]);
            for r in &mut side.runs {
                r.fingerprint = "same".into();
            }
            side
        };
        let c = Comparison::new(same(1.0), same(2.0), Vec::new());
        assert!(!c.seeds_vary);
        let row = throughput(&c.figures);
        assert_eq!((row.difference.half_width, row.significant), (None, None));
        assert_eq!(row.difference.n, 1);
        assert!(c.render().contains("The seeds change nothing"));
    }

    #[test]
    fn draws_give_the_interval_of_the_difference() {
        let side = |v: f64, spread: f64| {
            let drawn: Vec<f64> = (0..=100).map(|i| v + spread * f64::from(i)).collect();
            Side {
                draws: with_throughput(&drawn).runs,
                ..with_throughput(&[v])
            }
        };
        let c = Comparison::new(side(10.0, 0.0), side(12.0, 0.01), Vec::new());
        let row = throughput(&c.figures);
        assert!((row.low.unwrap() - 2.05).abs() < 1e-9, "{row:?}");
        assert!((row.high.unwrap() - 2.95).abs() < 1e-9, "{row:?}");
        assert_eq!((row.significant, c.draws), (Some(true), Some(101)));
        assert!(c.render().contains("90 % of the draws"));
    }

    #[test]
    fn the_first_of_several_is_the_base_of_all_others() {
        let config = |instance: &str| format!("[hardware]\ninstance = \"{instance}\"\n");
        let side = |v: f64, instance: &str| Side {
            config: config(instance),
            ..with_throughput(&[v, v + 0.5])
        };
        let c = Comparison::new(side(1.0, "x"), side(2.0, "y"), vec![side(4.0, "z")]);
        assert_eq!(c.more.len(), 1);
        assert_eq!(throughput(&c.more[0].figures).difference.mean, 3.0);
        let text = c.render();
        for want in [
            "hardware.instance: x -> y",
            "hardware.instance: x -> z",
            "+240.0 %",
        ] {
            assert!(text.contains(want), "{want}:\n{text}");
        }
    }

    #[test]
    fn a_side_that_finished_nothing_is_told_first() {
        let mut b = with_throughput(&[1.0]);
        b.runs[0].requests.finished = 0;
        b.runs[0].requests.rejected = 100;
        let c = Comparison::new(with_throughput(&[1.0]), b, Vec::new());
        assert!(c.nothing_finished());
        assert!(
            c.render().starts_with("B: NOTHING FINISHED: of 100"),
            "{}",
            c.render()
        );
    }
}
