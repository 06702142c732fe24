//! Quantities over the window of the timeline.

use std::ops::Range;
use std::sync::Arc;

use egui::{Ui, vec2};
use store::resample::{self, Column};
use store::{Cluster, Sample};

use crate::chart::{Axis, Chart, Join, Line};
use crate::cluster_lanes;
use crate::run_data::RunData;
use crate::state::State;
use crate::theme;
use crate::views::timeline::navigate;

/// Columns of a series.
const COLUMNS: usize = 300;

/// The charts, kept as long as what they show stays.
#[derive(Default)]
pub struct Series {
    key: Option<(*const RunData, Range<u64>, Option<usize>)>,
    charts: Vec<Chart>,
}

impl Series {
    /// Shows them one above the other, on one axis.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        let window = state.time.range();
        let key = (Arc::as_ptr(&run), window.clone(), state.replica);
        if self.key.as_ref() != Some(&key) {
            self.charts = charts(&run, window, state.replica);
            self.key = Some(key);
        }
        let whose = state.replica.map_or_else(
            || match run.replicas() {
                1 => "one replica".to_owned(),
                n => format!("all {n} replicas"),
            },
            |r| run.record.info.replicas[r].name.clone(),
        );
        ui.horizontal(|ui| {
            ui.label(whose);
            if state.replica.is_some() && ui.button("Show all replicas").clicked() {
                state.replica = None;
            }
        });
        let charts = std::mem::take(&mut self.charts);
        egui::ScrollArea::vertical()
            .id_salt("series")
            .auto_shrink(false)
            .show(ui, |ui| {
                let height = ((ui.available_height() - 8.0) / charts.len() as f32 - 6.0).max(110.0);
                for chart in &charts {
                    let size = vec2(ui.available_width(), height);
                    let cursor = state.hover;
                    let shown = super::chart(ui, state, chart, size, cursor);
                    let left = shown.response.rect.left() + shown.plot.frame.left();
                    // The wheel scrolls here; dragging moves the window.
                    if shown.response.dragged() {
                        navigate(ui, state, &shown.response, left, shown.plot.frame.width());
                    }
                    if shown.response.double_clicked() {
                        state.time.reset();
                    }
                    if shown.hover.is_some() {
                        state.hover = shown.hover;
                    }
                }
            });
        self.charts = charts;
    }
}

/// The charts over `window` [ns].
pub fn charts(run: &RunData, window: Range<u64>, replica: Option<usize>) -> Vec<Chart> {
    let columns = resample::columns(&run.record.steps, window.clone(), COLUMNS, replica);
    let width = (window.end - window.start) as f64 / COLUMNS as f64;
    let line = |name: &str, color, of: &dyn Fn(&Column) -> f64| {
        let points = columns
            .iter()
            .enumerate()
            .map(|(i, c)| [window.start as f64 + i as f64 * width, of(c)])
            .chain(columns.last().map(|c| [window.end as f64, of(c)]))
            .collect();
        Line::new(name, color, points).join(Join::Steps)
    };
    let x = || {
        Axis::new("")
            .duration()
            .over(window.start as f64, window.end as f64)
    };
    let chart = |title: &str, y: Axis, lines: Vec<Line>| Chart {
        title: title.to_owned(),
        x: x(),
        y,
        lines,
        marks: Vec::new(),
    };
    let infos = &run.record.info.replicas;
    let blocks: u64 = match replica {
        Some(r) => infos[r].kv_blocks,
        None => infos.iter().map(|r| r.kv_blocks).sum(),
    };
    let mut all = vec![
        chart(
            "Requests per second",
            Axis::new("req/s").from_zero(),
            rates(run, &window),
        ),
        chart(
            "Requests in engines",
            Axis::new("requests").from_zero(),
            vec![
                line("running", theme::SKY, &|c| c.running),
                line("waiting", theme::ORANGE, &|c| c.waiting),
            ],
        ),
        chart(
            "Tokens per second",
            Axis::new("tokens/s").from_zero(),
            vec![
                line("prefill", theme::ORANGE, &|c| c.tokens[0]),
                line("decode", theme::SKY, &|c| c.tokens[1]),
            ],
        ),
    ];
    if blocks > 0 {
        let use_ = line("KV blocks in use", theme::GREEN, &|c| {
            c.kv_blocks / blocks as f64
        });
        all.push(chart(
            "KV cache use",
            Axis::new("share").share(),
            vec![use_],
        ));
    }
    all.push(chart(
        "Time of steps by cause",
        Axis::new("share").share(),
        (0..6)
            .map(|i| {
                let below = move |c: &Column| c.parts[..=i].iter().sum::<f64>().min(1.0);
                line(theme::CAUSE_NAMES[i], theme::CAUSES[i], &below).fill()
            })
            .collect(),
    ));
    if let Some(cluster) = &run.record.cluster {
        all.extend(
            of_cluster(run, cluster)
                .into_iter()
                .map(|(title, axis, lines)| chart(title, axis, lines)),
        );
    } else if run.record.info.events.iter().any(|e| e.at > 0) {
        all.push(chart(
            "Replicas ready",
            Axis::new("replicas").from_zero(),
            vec![ready(run)],
        ));
    }
    all
}

/// What only a run in a cluster has.
fn of_cluster(run: &RunData, cluster: &Cluster) -> Vec<(&'static str, Axis, Vec<Line>)> {
    let line = |name: &str, color, of: fn(&Sample) -> u64| {
        let points = (cluster.samples.iter())
            .map(|s| [s.at as f64, of(s) as f64])
            .collect();
        Line::new(name, color, points).join(Join::Steps)
    };
    let rate = cluster_lanes::cost_rate(cluster, run.end());
    let mut all = vec![
        (
            "Replicas",
            Axis::new("replicas").from_zero(),
            vec![
                line("wanted", theme::ORANGE, |s| s.desired.into()),
                line("ready", theme::GREEN, |s| s.ready.into()),
                line("pods pending", theme::VERMILLION, |s| s.pending_pods.into()),
            ],
        ),
        (
            "Nodes",
            Axis::new("nodes").from_zero(),
            vec![
                line("ready", theme::GREEN, |s| s.nodes.into()),
                line("booting", theme::GREY, |s| s.booting_nodes.into()),
            ],
        ),
        (
            "Requests held at the gateway",
            Axis::new("requests").from_zero(),
            vec![line("held", theme::VERMILLION, |s| s.held)],
        ),
    ];
    if !rate.is_empty() {
        let paid = Line::new("nodes", theme::PURPLE, rate).join(Join::Steps);
        all.push(("Cost rate", Axis::new("USD/h").from_zero(), vec![paid]));
    }
    all
}

/// Requests sent, finished and lost per second, over all replicas.
fn rates(run: &RunData, window: &Range<u64>) -> Vec<Line> {
    let rates = &run.record.rates;
    let width = rates.width.max(1);
    let from = (window.start / width) as usize;
    let to = (window.end.div_ceil(width) as usize).min(rates.bins.len());
    let bins = rates.bins.get(from.min(to)..to).unwrap_or(&[]);
    // A handful of bins per line: less is noise.
    let every = bins.len().div_ceil(120).max(1);
    let line = |name: &str, color, of: fn(&store::Bin) -> u64| {
        let points = bins
            .chunks(every)
            .enumerate()
            .map(|(i, chunk)| {
                let n: u64 = chunk.iter().map(of).sum();
                let seconds = (chunk.len() as u64 * width) as f64 * 1e-9;
                [
                    ((from + i * every) as u64 * width) as f64,
                    n as f64 / seconds,
                ]
            })
            .collect();
        Line::new(name, color, points).join(Join::Steps)
    };
    let mut lines = vec![
        line("sent", theme::ORANGE, |b| b.sent),
        line("finished", theme::SKY, |b| b.finished),
    ];
    if rates.bins.iter().any(|b| b.lost > 0) {
        lines.push(line("lost", theme::VERMILLION, |b| b.lost));
    }
    lines
}

/// Replicas that the router may choose, over time.
fn ready(run: &RunData) -> Line {
    use store::EventKind as E;
    let mut n = 0i64;
    let mut points = vec![[0.0, 0.0]];
    let mut up = vec![false; run.replicas()];
    for e in &run.record.info.events {
        let is = &mut up[e.replica as usize];
        let after = match e.kind {
            E::Ready => true,
            E::Added => *is,
            E::Draining | E::Drained | E::Killed => false,
        };
        n += i64::from(after) - i64::from(*is);
        *is = after;
        points.push([e.at as f64, n as f64]);
    }
    points.push([run.end() as f64, n as f64]);
    Line::new("ready", theme::GREEN, points).join(Join::Steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn charts_cover_the_window_and_rates_add_up() {
        let run = small();
        let charts = charts(&run, 0..run.end(), None);
        let titles: Vec<&str> = charts.iter().map(|c| c.title.as_str()).collect();
        assert!(titles.contains(&"KV cache use") && titles.contains(&"Requests per second"));
        let sent = &charts[0].lines[0].points;
        assert!(sent.len() > 20 && sent.len() <= 121);
        let mean: f64 = sent.iter().map(|p| p[1]).sum::<f64>() / sent.len() as f64;
        assert!((20.0..60.0).contains(&mean), "{mean}");
        for line in charts.iter().flat_map(|c| &c.lines) {
            assert!(
                line.points.is_sorted_by_key(|p| p[0] as i64),
                "{}",
                line.name
            );
        }
    }
}
