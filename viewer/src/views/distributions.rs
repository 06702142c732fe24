//! Latencies: cumulative shares and histograms, with the limits of the objective.

use std::sync::Arc;

use egui::{Color32, Ui, vec2};
use sim::metrics::Metric;
use sim::report::doubt::{self, Figure};

use crate::chart::{Axis, Band, Chart, Join, Kind, Line, Mark};
use crate::format;
use crate::measured::is_measured;
use crate::run_data::{METRICS, RunData, metric_name};
use crate::state::State;
use crate::theme;

/// What the view keeps for itself.
#[derive(Default)]
pub struct Distributions {
    histogram: bool,
    key: Option<(Vec<*const RunData>, bool)>,
    charts: Vec<Chart>,
}

/// A run and what it is called beside others.
pub struct Named<'a> {
    /// The run.
    pub run: &'a RunData,
    /// Its name in legends.
    pub name: String,
}

impl Distributions {
    /// Shows a chart per metric.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        let others = state.others();
        let all: Vec<Named<'_>> = (others.iter())
            .map(|d| Named {
                run: &d.data,
                name: d.title.clone(),
            })
            .collect();
        ui.horizontal(|ui| {
            ui.selectable_value(&mut self.histogram, false, "cumulative");
            ui.selectable_value(&mut self.histogram, true, "histogram");
            if !self.histogram && prediction(&run, &all).is_some() {
                ui.small("band: where 9 of 10 such deployments are measured, by the prediction");
            }
        });
        let runs = std::iter::once(Arc::as_ptr(&run));
        let runs = runs.chain(others.iter().map(|d| Arc::as_ptr(&d.data)));
        let key = (runs.collect(), self.histogram);
        if self.key.as_ref() != Some(&key) {
            self.charts = charts(&run, &all, self.histogram);
            self.key = Some(key);
        }
        let charts = std::mem::take(&mut self.charts);
        egui::ScrollArea::vertical()
            .id_salt("distributions")
            .auto_shrink(false)
            .show(ui, |ui| {
                let columns = super::columns(ui, charts.len(), 140.0, 360.0);
                let rows = charts.len().div_ceil(columns) as f32;
                let w = ui.available_width() / columns as f32 - 8.0;
                let h = ((ui.available_height() - 8.0) / rows - 8.0).clamp(140.0, 340.0);
                for pair in charts.chunks(columns) {
                    ui.horizontal(|ui| {
                        for chart in pair {
                            super::chart(ui, state, chart, vec2(w, h), None);
                        }
                    });
                }
            });
        self.charts = charts;
    }
}

/// Of a measured and a predicted run the predicted one.
fn prediction<'a>(run: &'a RunData, others: &[Named<'a>]) -> Option<&'a RunData> {
    let [other] = others else {
        return None;
    };
    match (is_measured(&run.record), is_measured(&other.run.record)) {
        (true, false) => Some(other.run),
        (false, true) => Some(run),
        _ => None,
    }
}

/// A chart per metric; `others` behind.
pub fn charts(run: &RunData, others: &[Named<'_>], histogram: bool) -> Vec<Chart> {
    let all = [
        Metric::Ttft,
        Metric::Itl,
        Metric::Tpot,
        Metric::E2e,
        Metric::Queue,
    ];
    all.into_iter()
        .map(|m| chart(run, others, m, histogram))
        .collect()
}

fn chart(run: &RunData, others: &[Named<'_>], m: Metric, histogram: bool) -> Chart {
    let y = if histogram {
        Axis {
            kind: Kind::Share,
            ..Axis::new("share per bin").from_zero()
        }
    } else {
        Axis::new("share").share()
    };
    let marks = run.limit(m).map(|limit| Mark {
        at: limit as f64,
        vertical: true,
        name: match run.spread(m).within {
            Some(s) => format!(
                "limit {}: {} meet it",
                format::duration(limit as f64),
                format::percent(s)
            ),
            None => format!("limit {}", format::duration(limit as f64)),
        },
        color: theme::LIMIT,
    });
    let predicted = prediction(run, others);
    let band = predicted
        .filter(|_| !histogram)
        .and_then(|p| expected(p, m));
    Chart {
        title: metric_name(m).to_owned(),
        x: Axis::new("").duration().log(),
        y,
        bands: band.into_iter().collect(),
        lines: lines(run, others, m, histogram),
        marks: marks.into_iter().collect(),
    }
}

/// A line per run: one alone has no name, of two the other is what was before, or what was measured.
fn lines(run: &RunData, others: &[Named<'_>], m: Metric, histogram: bool) -> Vec<Line> {
    let line = |run, color, name: &str| line(run, m, color, name, histogram);
    match others {
        [] => vec![line(run, theme::SKY, "")],
        [other] if prediction(run, others).is_some() => {
            let (measured, predicted) = if is_measured(&run.record) {
                (run, other.run)
            } else {
                (other.run, run)
            };
            vec![
                line(predicted, theme::SKY, "predicted"),
                line(measured, theme::ORANGE, "measured"),
            ]
        }
        [other] => vec![
            line(other.run, theme::GREY, "before").faint(),
            line(run, theme::SKY, "now"),
        ],
        several => {
            let colors = theme::SERIES.iter().skip(1).cycle();
            let of = several.iter().zip(colors);
            of.map(|(n, color)| line(n.run, *color, &n.name))
                .chain([line(run, theme::SKY, "this run")])
                .collect()
        }
    }
}

/// Where the values of nine of ten such deployments lie, by how far predictions were from measurements so far.
fn expected(run: &RunData, m: Metric) -> Option<Band> {
    let figure = match m {
        Metric::Ttft => Figure::Ttft,
        Metric::Itl | Metric::Tpot => Figure::Tpot,
        _ => return None,
    };
    let factor = doubt::spread(&run.record.report, figure, None).exp();
    let points = run.spread(m).cumulative;
    Some(Band {
        name: "expected".to_owned(),
        color: theme::SKY,
        pairs: (points.iter())
            .map(|[v, share]| [[v / factor, *share], [v * factor, *share]])
            .collect(),
    })
}

fn line(run: &RunData, metric: Metric, color: Color32, name: &str, histogram: bool) -> Line {
    let spread = run.spread(metric);
    let (points, join) = if histogram {
        (spread.histogram, Join::Steps)
    } else {
        (spread.cumulative, Join::Straight)
    };
    Line::new(name, color, points).join(join)
}

/// A selector of the metrics that requests have.
pub(crate) fn metrics(ui: &mut Ui, metric: &mut Metric) {
    for m in METRICS {
        ui.selectable_value(metric, m, metric_name(m));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    fn named(run: &RunData) -> Named<'_> {
        Named {
            run,
            name: "other".to_owned(),
        }
    }

    #[test]
    fn limits_say_how_many_meet_them() {
        let run = small();
        let all = charts(&run, &[named(&run)], false);
        assert_eq!(all.len(), 5);
        assert!(
            all[0].marks[0].name.contains("meet it"),
            "{:?}",
            all[0].marks
        );
        assert_eq!(all[0].lines.len(), 2);
        assert!(all.iter().all(|c| !c.is_empty() && c.bands.is_empty()));
        let three = charts(&run, &[named(&run), named(&run)], true);
        assert_eq!(three[1].lines.len(), 3);
    }

    #[test]
    fn what_was_measured_lies_over_the_band_of_the_prediction() {
        let run = small();
        let mut table = Vec::new();
        let rows: Vec<_> = run.record.requests.iter().collect();
        sim::report::csv::write_requests(&mut table, &rows).unwrap();
        let tables = crate::measured::Tables {
            requests: &table,
            summary: None,
            scenario: None,
        };
        let measured = RunData::new(crate::measured::record("bench", &tables).unwrap());
        for (a, b) in [(&run, &measured), (&measured, &run)] {
            let all = charts(a, &[named(b)], false);
            let ttft = &all[0];
            let names: Vec<&str> = ttft.lines.iter().map(|l| l.name.as_str()).collect();
            assert_eq!(names, ["predicted", "measured"]);
            let [low, high] = *ttft.bands[0].pairs.last().unwrap();
            let last = ttft.lines[0].points.last().unwrap();
            assert!(low[0] < last[0] && last[0] < high[0]);
            assert!(all[3].bands.is_empty(), "E2E has no such errors");
        }
    }
}
