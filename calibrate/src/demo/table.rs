//! Measured beside predicted, load by load.

use serde::Serialize;
use sim::metrics::definition::Metric;
use sim::record::RunRecord;

use crate::statistics::median;

/// What is compared of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Mean end-to-end latency [ms].
    pub e2e_mean_ms: f64,
    /// Median time to first token [ms].
    pub ttft_p50_ms: f64,
    /// 99th percentile of the end-to-end latency [ms].
    pub e2e_p99_ms: f64,
    /// Output tokens of requests that finished in the measurement window, over its length [tokens/s].
    pub output_tokens_per_s: f64,
    /// Mean time per output token [ms].
    pub tpot_mean_ms: f64,
    /// 99th percentile of the time to first token [ms].
    pub ttft_p99_ms: f64,
}

/// A figure of the table.
pub struct Column {
    /// Its label.
    pub label: &'static str,
    /// Its value [ms or tokens/s].
    pub of: fn(&Figures) -> f64,
}

const fn column(label: &'static str, of: fn(&Figures) -> f64) -> Column {
    Column { label, of }
}

/// The figures in the order of the table.
pub const COLUMNS: [Column; 6] = [
    column("E2E mean", |f| f.e2e_mean_ms),
    column("TTFT p50", |f| f.ttft_p50_ms),
    column("tokens/s", |f| f.output_tokens_per_s),
    column("TPOT mean", |f| f.tpot_mean_ms),
    column("E2E p99", |f| f.e2e_p99_ms),
    column("TTFT p99", |f| f.ttft_p99_ms),
];

impl Figures {
    /// Of a record with request rows; none when no request was measured.
    pub fn of(record: &RunRecord) -> Option<Figures> {
        let ms = |metric: Metric, p: f64| Some(record.quantile_ns(metric, p)? / 1e6);
        let mean = |metric: Metric| {
            let values = record.sorted_values(metric)?;
            let n = values.len();
            (n > 0).then(|| values.iter().map(|v| *v as f64).sum::<f64>() / n as f64 / 1e6)
        };
        let window = record.window.length.as_secs();
        Some(Figures {
            e2e_mean_ms: mean(Metric::E2e)?,
            ttft_p50_ms: ms(Metric::Ttft, 0.5)?,
            e2e_p99_ms: ms(Metric::E2e, 0.99)?,
            output_tokens_per_s: if window > 0.0 {
                record.window.tokens.output as f64 / window
            } else {
                return None;
            },
            tpot_mean_ms: mean(Metric::Tpot)?,
            ttft_p99_ms: ms(Metric::Ttft, 0.99)?,
        })
    }

    /// Mean of each figure over `runs`.
    pub fn mean_of(runs: &[Figures]) -> Figures {
        let n = runs.len().max(1) as f64;
        let mean = |value: fn(&Figures) -> f64| runs.iter().map(value).sum::<f64>() / n;
        Figures {
            e2e_mean_ms: mean(|f| f.e2e_mean_ms),
            ttft_p50_ms: mean(|f| f.ttft_p50_ms),
            e2e_p99_ms: mean(|f| f.e2e_p99_ms),
            output_tokens_per_s: mean(|f| f.output_tokens_per_s),
            tpot_mean_ms: mean(|f| f.tpot_mean_ms),
            ttft_p99_ms: mean(|f| f.ttft_p99_ms),
        }
    }
}

/// A load: every time it was measured, and what was predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Name of the case.
    pub name: String,
    /// What it shows.
    pub shows: String,
    /// Whether the step model was fitted on it.
    pub fitted: bool,
    /// Requests of each run that were measured.
    pub requests: Vec<u64>,
    /// Requests that did not finish, in all runs.
    pub unfinished: u64,
    /// One per run.
    pub runs: Vec<Figures>,
    /// The simulator's answer: the mean over several courses of the machine's speed.
    pub predicted: Figures,
    /// What the reader must know to judge the prediction.
    pub warnings: Vec<String>,
}

impl Measured {
    /// Mean of the runs.
    pub fn measured(&self) -> Figures {
        Figures::mean_of(&self.runs)
    }

    /// Signed error of the prediction, by column [%].
    pub fn errors(&self) -> [f64; COLUMNS.len()] {
        let measured = self.measured();
        COLUMNS.map(|c| 100.0 * ((c.of)(&self.predicted) / (c.of)(&measured) - 1.0))
    }

    /// Largest deviation of a run from the mean of the runs, by column [%]; none with a single run.
    pub fn noise(&self) -> Option<[f64; COLUMNS.len()]> {
        (self.runs.len() > 1).then(|| {
            let mean = self.measured();
            COLUMNS.map(|c| {
                self.runs
                    .iter()
                    .map(|r| (100.0 * ((c.of)(r) / (c.of)(&mean) - 1.0)).abs())
                    .fold(0.0, f64::max)
            })
        })
    }
}

/// Something that did not work; the others go on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The load, or what else it was.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Summary of one column over the held-out loads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The column.
    pub figure: &'static str,
    /// Median absolute error [%].
    pub median_ape: f64,
    /// Largest absolute error [%].
    pub worst_ape: f64,
    /// The load with the largest error.
    pub worst: String,
    /// Median of the loads' run-to-run noise [%]; none where each was measured once.
    pub noise: Option<f64>,
}

/// All loads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// In the order in which they were measured.
    pub loads: Vec<Measured>,
    /// Over the loads that were not fitted, by column.
    pub held_out: Vec<Summary>,
    /// What did not work, in the order in which it was tried.
    pub failed: Vec<Failed>,
}

impl Table {
    /// Summarises `loads`; `failed` is what is missing.
    pub fn new(loads: Vec<Measured>, failed: Vec<Failed>) -> Table {
        let out: Vec<&Measured> = loads.iter().filter(|l| !l.fitted).collect();
        let held_out = COLUMNS
            .iter()
            .enumerate()
            .filter_map(|(i, column)| {
                let (worst, worst_ape) = out
                    .iter()
                    .map(|l| (l.name.clone(), l.errors()[i].abs()))
                    .max_by(|a, b| a.1.total_cmp(&b.1))?;
                let noise: Vec<f64> = out.iter().filter_map(|l| Some(l.noise()?[i])).collect();
                Some(Summary {
                    figure: column.label,
                    median_ape: median(out.iter().map(|l| l.errors()[i].abs()).collect())?,
                    worst_ape,
                    worst,
                    noise: median(noise),
                })
            })
            .collect();
        Table {
            loads,
            held_out,
            failed,
        }
    }

    /// The table on the terminal.
    pub fn render(&self) -> String {
        let mut out = String::new();
        if !self.loads.is_empty() {
            self.render_loads(&mut out);
        }
        if !self.failed.is_empty() {
            let width = self.failed.iter().map(|f| f.name.len()).max().unwrap_or(0);
            out += if out.is_empty() { "" } else { "\n" };
            out += "did not work, and is missing above\n";
            for f in &self.failed {
                out += &format!("  {:<width$}  {}\n", f.name, f.why);
            }
        }
        out
    }

    fn render_loads(&self, out: &mut String) {
        for (fitted, title) in [(true, "fitted on"), (false, "predicted, nothing fitted")] {
            *out += &format!("{title}\n  {:<14}", "");
            for column in COLUMNS {
                *out += &format!(" {:>22}", column.label);
            }
            *out += "\n";
            for load in self.loads.iter().filter(|l| l.fitted == fitted) {
                let (measured, errors, noise) = (load.measured(), load.errors(), load.noise());
                *out += &format!("  {:<14}", load.name);
                for (i, column) in COLUMNS.iter().enumerate() {
                    let noise = noise.map_or(String::new(), |n| format!(" ~{:.1}", n[i]));
                    *out += &format!(
                        " {:>22}",
                        format!("{:.1} {:+.1} %{noise}", (column.of)(&measured), errors[i])
                    );
                }
                *out += "\n";
            }
            *out += "\n";
        }
        *out += "  each cell: measured [ms or tokens/s], error of the prediction, ~ largest deviation of a run from the mean of its runs [%]\n\n";
        *out += "held-out loads      median error   largest   on                run-to-run\n";
        for s in &self.held_out {
            *out += &format!(
                "  {:<16} {:>12} {:>9}   {:<16} {:>11}\n",
                s.figure,
                format!("{:.1} %", s.median_ape),
                format!("{:.1} %", s.worst_ape),
                s.worst,
                s.noise.map_or("-".into(), |n| format!("{n:.1} %")),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(x: f64) -> Figures {
        Figures {
            e2e_mean_ms: x,
            ttft_p50_ms: x,
            e2e_p99_ms: x,
            output_tokens_per_s: x,
            tpot_mean_ms: x,
            ttft_p99_ms: x,
        }
    }

    fn load(name: &str, fitted: bool, runs: &[f64], predicted: f64) -> Measured {
        Measured {
            name: name.into(),
            shows: String::new(),
            fitted,
            requests: vec![1; runs.len()],
            unfinished: 0,
            runs: runs.iter().map(|x| figures(*x)).collect(),
            predicted: figures(predicted),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn errors_are_against_the_mean_of_the_runs_and_fitted_loads_do_not_count() {
        let table = Table::new(
            vec![
                load("fit", true, &[10.0], 20.0),
                load("a", false, &[9.0, 11.0], 11.0),
                load("b", false, &[10.0, 10.0], 7.0),
                load("c", false, &[10.0, 10.0], 10.0),
            ],
            Vec::new(),
        );
        let s = &table.held_out[0];
        assert!((s.median_ape - 10.0).abs() < 1e-9);
        assert!((s.worst_ape - 30.0).abs() < 1e-9);
        assert_eq!(s.worst, "b");
        assert!((table.loads[1].noise().unwrap()[0] - 10.0).abs() < 1e-9);
        assert_eq!(s.noise, Some(0.0));
    }

    #[test]
    fn a_single_run_has_no_noise() {
        assert_eq!(load("a", false, &[1.0], 1.0).noise(), None);
    }

    #[test]
    fn the_table_names_every_load() {
        let loads = vec![
            load("fit", true, &[1.0], 1.0),
            load("x", false, &[1.0], 1.1),
        ];
        let text = Table::new(loads, Vec::new()).render();
        assert!(text.contains("fit") && text.contains("+10.0 %"), "{text}");
        assert!(!text.contains("did not work"), "{text}");
    }

    #[test]
    fn what_failed_stands_below_what_worked_or_alone() {
        let failed = || {
            vec![Failed {
                name: "poisson-25".into(),
                why: "no request finished".into(),
            }]
        };
        let some = Table::new(vec![load("x", false, &[1.0], 1.1)], failed()).render();
        assert!(some.contains("+10.0 %"), "{some}");
        for text in [some, Table::new(Vec::new(), failed()).render()] {
            assert!(
                text.ends_with("  poisson-25  no request finished\n"),
                "{text}"
            );
        }
    }
}
