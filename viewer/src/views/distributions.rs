//! Latencies: cumulative shares and histograms, with the limits of the objective.

use std::sync::Arc;

use egui::{Color32, Ui, vec2};
use sim::metrics::Metric;
use store::resample::cumulative;

use crate::chart::{Axis, Chart, Join, Line, Mark};
use crate::format;
use crate::run_data::{METRICS, RunData, metric_name};
use crate::state::State;
use crate::theme;

/// Points of a curve.
const POINTS: usize = 400;

/// Bins of a histogram.
const BINS: usize = 60;

/// What the view keeps for itself.
#[derive(Default)]
pub struct Distributions {
    histogram: bool,
    key: Option<(*const RunData, *const RunData, bool)>,
    charts: Vec<Chart>,
}

impl Distributions {
    /// Shows a chart per metric.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        let base = state.base.as_ref().map(|d| d.data.clone());
        ui.horizontal(|ui| {
            ui.selectable_value(&mut self.histogram, false, "cumulative");
            ui.selectable_value(&mut self.histogram, true, "histogram");
            if base.is_some() {
                ui.small("faint: before");
            }
        });
        let of_base = base.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        let key = (Arc::as_ptr(&run), of_base, self.histogram);
        if self.key != Some(key) {
            self.charts = charts(&run, base.as_deref(), self.histogram);
            self.key = Some(key);
        }
        let charts = std::mem::take(&mut self.charts);
        egui::ScrollArea::vertical()
            .id_salt("distributions")
            .auto_shrink(false)
            .show(ui, |ui| {
                let columns = if ui.available_width() > 760.0 { 2 } else { 1 };
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

/// A chart per metric; `base` faintly behind.
pub fn charts(run: &RunData, base: Option<&RunData>, histogram: bool) -> Vec<Chart> {
    [
        Metric::Ttft,
        Metric::Itl,
        Metric::Tpot,
        Metric::E2e,
        Metric::Queue,
    ]
    .into_iter()
    .map(|m| {
        let mut lines = Vec::new();
        if let Some(base) = base {
            lines.push(line(base, m, theme::GREY, "before", histogram).faint());
        }
        let name = if base.is_some() { "now" } else { "" };
        lines.push(line(run, m, theme::SKY, name, histogram));
        let marks = run.limit(m).map(|limit| Mark {
            at: limit as f64,
            vertical: true,
            name: match share_within(run, m, limit) {
                Some(s) => format!(
                    "limit {}: {} meet it",
                    format::duration(limit as f64),
                    format::percent(s)
                ),
                None => format!("limit {}", format::duration(limit as f64)),
            },
            color: theme::LIMIT,
        });
        let y = if histogram {
            Axis::new("share per bin").from_zero()
        } else {
            Axis::new("share").share()
        };
        Chart {
            title: metric_name(m).to_owned(),
            x: Axis::new("").duration().log(),
            y: if histogram {
                Axis {
                    kind: crate::chart::Kind::Share,
                    ..y
                }
            } else {
                y
            },
            lines,
            marks: marks.into_iter().collect(),
        }
    })
    .collect()
}

/// Share of the measured values that are at most `limit` [ns].
fn share_within(run: &RunData, metric: Metric, limit: u64) -> Option<f64> {
    let values = run.sorted(metric);
    (!values.is_empty())
        .then(|| values.partition_point(|v| *v <= limit) as f64 / values.len() as f64)
}

fn line(run: &RunData, metric: Metric, color: Color32, name: &str, histogram: bool) -> Line {
    let weighted: Vec<(u64, u64)> = if metric == Metric::Itl {
        run.record.info.itl.clone()
    } else {
        run.sorted(metric).iter().map(|v| (*v, 1)).collect()
    };
    let points = if histogram {
        bins(&weighted)
    } else {
        cumulative(&weighted, POINTS)
    };
    Line::new(name, color, points).join(if histogram {
        Join::Steps
    } else {
        Join::Straight
    })
}

/// Shares of values in bins of equal width on a logarithmic axis.
pub fn bins(values: &[(u64, u64)]) -> Vec<[f64; 2]> {
    let positive: Vec<&(u64, u64)> = values.iter().filter(|v| v.0 > 0).collect();
    let (Some(first), Some(last)) = (positive.first(), positive.last()) else {
        return Vec::new();
    };
    let (low, high) = ((first.0 as f64).ln(), (last.0 as f64).ln() + 1e-9);
    let total: u64 = values.iter().map(|v| v.1).sum();
    let width = (high - low).max(1e-6) / BINS as f64;
    let mut counts = vec![0u64; BINS];
    for (v, n) in positive {
        let i = (((*v as f64).ln() - low) / width) as usize;
        counts[i.min(BINS - 1)] += n;
    }
    let mut points: Vec<[f64; 2]> = counts
        .iter()
        .enumerate()
        .map(|(i, n)| [(low + i as f64 * width).exp(), *n as f64 / total as f64])
        .collect();
    points.push([high.exp(), 0.0]);
    points
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

    #[test]
    fn shares_of_bins_add_up_to_one() {
        let sum = |points: Vec<[f64; 2]>| points.iter().map(|p| p[1]).sum::<f64>();
        assert!((sum(bins(&[(10, 3), (500, 5), (9_000, 2)])) - 1.0).abs() < 1e-9);
        assert!((sum(bins(&[(10, 3)])) - 1.0).abs() < 1e-9);
        assert!(bins(&[(0, 3)]).is_empty());
    }

    #[test]
    fn limits_say_how_many_meet_them() {
        let run = small();
        let charts = charts(&run, Some(&run), false);
        assert_eq!(charts.len(), 5);
        assert!(
            charts[0].marks[0].name.contains("meet it"),
            "{:?}",
            charts[0].marks
        );
        assert_eq!(charts[0].lines.len(), 2);
        assert!(charts.iter().all(|c| !c.is_empty()));
    }
}
