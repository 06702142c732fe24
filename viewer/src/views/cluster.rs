//! Replicas, their accelerators and their KV, as they play.

use egui::{Align2, FontId, Rect, RichText, Sense, Slider, Stroke, StrokeKind, Ui, pos2, vec2};
use store::{Cluster, EventKind, StepSpan};

use crate::cluster_lanes::{self, Held};
use crate::format;
use crate::run_data::RunData;
use crate::state::{Action, State};
use crate::theme;
use crate::views::pool_lanes;

/// A replica at an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Requests running.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Share of its KV blocks in use; none where it does not page KV.
    pub kv: Option<f64>,
    /// Index of what bound the step under way; none: idle.
    pub cause: Option<usize>,
    /// Whether it takes requests.
    pub up: bool,
}

/// Replica `replica` at `at` [ns].
pub fn at(run: &RunData, replica: usize, at: u64) -> Now {
    let steps = run.record.steps.first();
    let span: Option<StepSpan> =
        steps.and_then(|l| l.within(replica, at..at + 1).iter().next_back());
    let blocks = run.record.info.replicas[replica].kv_blocks;
    let mut events = run.record.info.events.iter();
    let last = events.rfind(|e| e.replica as usize == replica && e.at <= at);
    Now {
        running: span.map_or(0.0, |s| f64::from(s.running.mean)),
        waiting: span.map_or(0.0, |s| f64::from(s.waiting.mean)),
        kv: (blocks > 0).then(|| {
            span.map_or(0.0, |s| f64::from(s.kv_blocks.mean) / blocks as f64)
                .clamp(0.0, 1.0)
        }),
        cause: span.and_then(|s| {
            let most = s.parts.iter().copied().fold(0.0, f32::max);
            s.parts.iter().position(|p| *p == most && most > 0.0)
        }),
        up: last.is_none_or(|e| e.kind == EventKind::Ready),
    }
}

/// Shows the picture with its playback.
pub fn ui(ui: &mut Ui, state: &mut State) {
    let Some(run) = state.run() else {
        return super::empty(ui, "Open a run first.");
    };
    ui.horizontal_wrapped(|ui| {
        let label = if state.playing { "Pause" } else { "Play" };
        if ui.button(label).on_hover_text("Space").clicked() {
            state.ask(Action::Play);
        }
        if ui
            .button("Back")
            .on_hover_text("A hundredth of the window")
            .clicked()
        {
            state.ask(Action::Step(-state.time.width * 1e-11));
        }
        if ui
            .button("Forward")
            .on_hover_text("A hundredth of the window")
            .clicked()
        {
            state.ask(Action::Step(state.time.width * 1e-11));
        }
        ui.add(
            Slider::new(&mut state.speed, 0.01..=1000.0)
                .logarithmic(true)
                .text("speed")
                .suffix("x"),
        );
        ui.label(format!("at {}", format::duration(state.playhead)));
    });
    ui.spacing_mut().slider_width = (ui.available_width() - 90.0).max(100.0);
    let mut seconds = state.playhead * 1e-9;
    let scrub = Slider::new(&mut seconds, 0.0..=run.end() as f64 * 1e-9)
        .show_value(false)
        .text("instant");
    if ui.add(scrub).changed() {
        state.playhead = seconds * 1e9;
        state.playing = false;
    }
    egui::ScrollArea::vertical()
        .id_salt("cluster")
        .auto_shrink(false)
        .show(ui, |ui| match &run.record.cluster {
            Some(cluster) => nodes(ui, state, &run, cluster),
            None => pools(ui, state, &run),
        });
}

/// Size of a tile [points].
const TILE: egui::Vec2 = vec2(152.0, 84.0);

/// Room between tiles [points].
const GAP: f32 = 8.0;

/// The replicas by pool.
fn pools(ui: &mut Ui, state: &mut State, run: &RunData) {
    for pool in pool_lanes::pools(run) {
        let name = pool.name.as_str();
        ui.strong(if name.is_empty() { "replicas" } else { name });
        ui.horizontal_wrapped(|ui| {
            for replica in pool.replicas {
                tile(ui, state, run, replica, TILE);
            }
        });
    }
}

/// The nodes of a cluster, each with its replicas and the pods that start on it.
fn nodes(ui: &mut Ui, state: &mut State, run: &RunData, cluster: &Cluster) {
    let at = state.playhead.max(0.0) as u64;
    let held = cluster_lanes::held(cluster, at);
    if held.is_empty() {
        ui.label("no node is there at this instant");
    }
    // Nodes stand beside each other as long as there is room.
    let room = ui.available_width();
    let per_row = ((room / (TILE.x + GAP)) as usize).max(1);
    let wide = |tiles: usize| tiles.clamp(1, per_row) as f32 * (TILE.x + GAP);
    let mut rows: Vec<Vec<(usize, Vec<Held>)>> = Vec::new();
    let mut used = f32::INFINITY;
    for node in held {
        let width = wide(node.1.len());
        if used + width > room {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += width;
        if let Some(row) = rows.last_mut() {
            row.push(node);
        }
    }
    for row in rows {
        ui.horizontal_top(|ui| {
            ui.spacing_mut().item_spacing.x = 0.0;
            for (n, list) in row {
                let width = wide(list.len());
                ui.vertical(|ui| {
                    ui.set_width(width);
                    ui.spacing_mut().item_spacing.x = GAP;
                    one_node(ui, state, run, cluster, n, &list);
                });
            }
        });
    }
}

/// A node with what it holds.
fn one_node(
    ui: &mut Ui,
    state: &mut State,
    run: &RunData,
    cluster: &Cluster,
    n: usize,
    list: &[Held],
) {
    let at = state.playhead.max(0.0) as u64;
    let node = &cluster.nodes[n];
    let of = cluster_lanes::of_node(node, run.end());
    ui.horizontal(|ui| {
        ui.set_max_width(ui.available_width() - GAP);
        ui.strong(&node.name);
        if let Some(phase) = cluster_lanes::phase(&of, at) {
            ui.colored_label(phase.color, phase.name);
        }
        let instance = RichText::new(&node.instance).small();
        let instance = instance.color(theme::faint(ui.visuals()));
        ui.add(egui::Label::new(instance).truncate());
    })
    .response
    .on_hover_text(cluster_lanes::node_words(node));
    ui.horizontal_wrapped(|ui| {
        for held in list {
            match held {
                Held::Replica(replica) => tile(ui, state, run, *replica, TILE),
                Held::Pod(i) => starting(ui, run, cluster, *i, at),
            }
        }
    });
}

/// A pod that is not ready.
fn starting(ui: &mut Ui, run: &RunData, cluster: &Cluster, i: usize, at: u64) {
    let pod = &cluster.pods[i];
    let draining = cluster.replicas[pod.replica as usize].draining;
    let of = cluster_lanes::of_pod(pod, draining, run.end());
    let phase = cluster_lanes::phase(&of, at);
    let (rect, response) = ui.allocate_exact_size(TILE, Sense::hover());
    response.widget_info(|| {
        egui::WidgetInfo::labeled(egui::Role::Label, true, format!("Pod {}", pod.name))
    });
    let color = phase.map_or(theme::GREY, |p| p.color);
    let painter = ui.painter_at(rect);
    let background = ui.visuals().extreme_bg_color;
    let stroke = Stroke::new(1.5, color);
    painter.rect(rect, 4.0, background, stroke, StrokeKind::Inside);
    let words = phase.map_or("ending", |p| p.name);
    for (y, text, color) in [
        (12.0, pod.name.as_str(), ui.visuals().text_color()),
        (28.0, words, color),
    ] {
        let at = rect.min + vec2(8.0, y);
        let font = FontId::proportional(12.0);
        painter.text(at, Align2::LEFT_CENTER, text, font, color);
    }
    response.on_hover_text(cluster_lanes::pod_words(pod));
}

fn tile(ui: &mut Ui, state: &mut State, run: &RunData, replica: usize, size: egui::Vec2) {
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    let info = &run.record.info.replicas[replica];
    response.widget_info(|| {
        egui::WidgetInfo::labeled(egui::Role::Button, true, format!("Replica {}", info.name))
    });
    if !ui.is_rect_visible(rect) {
        return;
    }
    let now = at(run, replica, state.playhead.max(0.0) as u64);
    let visuals = ui.visuals();
    let painter = ui.painter();
    let color = match (now.up, now.cause) {
        (true, Some(c)) => theme::CAUSES[c],
        _ => theme::grid(visuals),
    };
    let width = if state.replica == Some(replica) {
        3.0
    } else {
        1.5
    };
    painter.rect(
        rect,
        4.0,
        visuals.extreme_bg_color,
        Stroke::new(width, color),
        StrokeKind::Inside,
    );
    let text = |y: f32, t: String, faint: bool| {
        let color = if faint {
            theme::faint(visuals)
        } else {
            visuals.text_color()
        };
        painter.text(
            rect.min + vec2(8.0, y),
            Align2::LEFT_CENTER,
            t,
            FontId::proportional(12.0),
            color,
        );
    };
    text(12.0, info.name.chars().take(22).collect(), false);
    let what = match (now.up, now.cause) {
        (false, _) => "not ready",
        (true, Some(c)) => theme::CAUSE_NAMES[c],
        (true, None) => "idle",
    };
    text(28.0, what.to_owned(), true);
    text(
        44.0,
        format!(
            "{} run, {} wait",
            format::figures(now.running.round()),
            format::figures(now.waiting.round())
        ),
        true,
    );
    if let Some(kv) = now.kv {
        let bar = Rect::from_min_size(rect.min + vec2(8.0, 54.0), vec2(size.x - 16.0, 8.0));
        painter.rect_filled(bar, 2.0, theme::grid(visuals));
        let full = Rect::from_min_size(bar.min, vec2(bar.width() * kv as f32, bar.height()));
        painter.rect_filled(full, 2.0, theme::GREEN);
    }
    // Its accelerators.
    let n = info.devices.min(16);
    for d in 0..n {
        let at = pos2(rect.left() + 8.0 + d as f32 * 8.5, rect.bottom() - 16.0);
        let device = Rect::from_min_size(at, vec2(6.5, 8.0));
        painter.rect_filled(device, 1.0, color);
    }
    if response
        .on_hover_text(format!(
            "{} accelerators, {} KV blocks of {} tokens\nKV in use: {}",
            info.devices,
            format::count(info.kv_blocks),
            info.block_tokens,
            now.kv.map_or("-".to_owned(), format::percent)
        ))
        .clicked()
    {
        state.replica = (state.replica != Some(replica)).then_some(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn a_replica_is_what_its_step_says() {
        let run = small();
        let step = run.record.steps[0].of(1).get(50).unwrap();
        let now = at(&run, 1, (step.start + step.end) / 2);
        assert_eq!(now.running, f64::from(step.running.mean));
        assert!(now.up && now.cause.is_some() && now.kv.unwrap() > 0.0);
        let idle = at(&run, 1, run.end() + 1_000_000_000);
        assert_eq!((idle.running, idle.cause), (0.0, None));
    }
}
