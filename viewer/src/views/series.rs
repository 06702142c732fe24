//! Quantities over the window of the timeline.

use std::ops::Range;
use std::sync::Arc;

use egui::{Ui, Vec2, vec2};
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

/// A chart is at least this large [points].
const LEAST: Vec2 = vec2(340.0, 86.0);

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
                let columns = super::columns(ui, charts.len(), LEAST.y, LEAST.x);
                let rows = charts.len().div_ceil(columns) as f32;
                let height = ((ui.available_height() - 8.0) / rows - 6.0).clamp(LEAST.y, 240.0);
                let width = ui.available_width() / columns as f32 - 8.0 * (columns - 1) as f32;
                for row in charts.chunks(columns) {
                    ui.horizontal(|ui| {
                        for chart in row {
                            one(ui, state, chart, vec2(width, height));
                        }
                    });
                }
            });
        self.charts = charts;
    }
}

/// A chart whose window is that of the timeline.
fn one(ui: &mut Ui, state: &mut State, chart: &Chart, size: Vec2) {
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
        ..Chart::default()
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
            "Requests per step (batch size)",
            Axis::new("requests").from_zero(),
            vec![Line::new("", theme::PURPLE, batch(run, &window, replica)).join(Join::Steps)],
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
            .filter(|i| columns.iter().any(|c| c.parts[*i] > 0.0))
            .map(|i| {
                let below = move |c: &Column| c.parts[..=i].iter().sum::<f64>().min(1.0);
                line(theme::CAUSE_SHORT[i], theme::CAUSES[i], &below).fill()
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
        all.push((
            "Cost rate [USD/h]",
            Axis::new("USD/h").from_zero(),
            vec![paid],
        ));
    }
    all
}

/// Requests that a step holds, mean over the steps of a column: one per decode and one per chunk of a prompt.
fn batch(run: &RunData, window: &Range<u64>, replica: Option<usize>) -> Vec<[f64; 2]> {
    let levels = &run.record.steps;
    let width = (window.end - window.start).max(1) as f64 / COLUMNS as f64;
    let mut sums = vec![[0.0; 2]; COLUMNS];
    let replicas = match replica {
        Some(r) => r..r + 1,
        None => 0..run.replicas(),
    };
    for r in replicas {
        let level = resample::level_for(levels, r, window.clone(), 4 * COLUMNS);
        let rows = levels.get(level).map(|l| l.within(r, window.clone()));
        for s in rows.into_iter().flatten() {
            // A span counts where its middle is.
            let at = (s.start / 2 + s.end / 2).saturating_sub(window.start) as f64 / width;
            if let Some([requests, steps]) = sums.get_mut(at as usize) {
                *requests += (s.decode_tokens + s.prefill_seqs) as f64;
                *steps += f64::from(s.steps);
            }
        }
    }
    // A column without a step goes on with what was before it.
    let held = sums
        .iter()
        .enumerate()
        .filter(|(_, [_, steps])| *steps > 0.0);
    let at = |i: usize| window.start as f64 + i as f64 * width;
    let mut points: Vec<[f64; 2]> = held.map(|(i, [n, steps])| [at(i), n / steps]).collect();
    points.extend(points.last().map(|p| [window.end as f64, p[1]]));
    points
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
        let batch = charts.iter().find(|c| c.title.contains("batch size"));
        let sizes = &batch.unwrap().lines[0].points;
        assert!(sizes.len() > 100);
        assert!(
            sizes.iter().all(|p| (1.0..=8.0).contains(&p[1])),
            "max_num_seqs is 8"
        );
        for line in charts.iter().flat_map(|c| &c.lines) {
            assert!(
                line.points.is_sorted_by_key(|p| p[0] as i64),
                "{}",
                line.name
            );
        }
    }
}
