//! Lanes over time: steps of each replica, its KV, its requests.

use std::collections::BTreeSet;

use egui::{Align2, Color32, FontId, Mesh, Painter, Rect, Response, Sense, Stroke, Ui, pos2, vec2};
use store::EventKind;

use crate::chart::Axis;
use crate::format;
use crate::lanes::{self, Item, StepColors};
use crate::run_data::{Row, RunData, parts};
use crate::state::{Action, State};
use crate::theme;
use crate::views::cluster_rows::{self, ClusterRows};
use crate::views::lane_view::{GUTTER, View, legend_entry};

const RULER: f32 = 22.0;
const STEP_H: f32 = 20.0;
const KV_H: f32 = 8.0;
const ROW_H: f32 = 6.0;
const GAP: f32 = 5.0;

/// What the timeline keeps for itself.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Replicas whose requests are shown.
    open: BTreeSet<usize>,
    /// Whether `open` was set for the run that is shown.
    set: bool,
    /// Text that names of lanes must hold.
    pub find: String,
    cluster: ClusterRows,
    items: Vec<Item>,
}

/// A lane and where it begins.
struct Lane {
    replica: usize,
    top: f32,
    height: f32,
}

impl Timeline {
    /// Another run is shown.
    pub fn reset(&mut self) {
        self.set = false;
    }

    /// Shows the lanes.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        if !self.set {
            self.open = if run.replicas() <= 2 {
                (0..run.replicas()).collect()
            } else {
                BTreeSet::new()
            };
            self.cluster.set(&run);
            self.set = true;
        }
        // Before anything can make the pane wider than it is.
        let width = (ui.available_width() - GUTTER - 12.0).max(100.0);
        self.toolbar(ui, state, &run);
        ruler(ui, state, width);
        let lanes = self.lanes(&run);
        let height = lanes.last().map_or(0.0, |l| l.top + l.height + GAP);
        egui::ScrollArea::vertical()
            .id_salt("lanes")
            .auto_shrink(false)
            .scroll_source(egui::scroll_area::ScrollSource::SCROLL_BAR)
            .show_viewport(ui, |ui, seen| {
                let size = vec2(GUTTER + width, height.max(ui.available_height()));
                let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
                response.widget_info(|| {
                    egui::WidgetInfo::labeled(egui::Role::Canvas, true, "Timeline lanes")
                });
                let view = View {
                    run: &run,
                    rect,
                    map: state.time.map(width),
                    width,
                };
                self.cluster
                    .paint(ui, &view, egui::Rangef::new(seen.top(), seen.bottom()));
                for lane in &lanes {
                    if lane.top + lane.height >= seen.top() && lane.top <= seen.bottom() {
                        self.lane(ui, state, &view, lane);
                    }
                }
                view.cursor(ui, state);
                self.pointer(ui, state, &view, &lanes, &response);
            });
    }

    fn toolbar(&mut self, ui: &mut Ui, state: &mut State, run: &RunData) {
        ui.horizontal_wrapped(|ui| {
            if ui
                .button("Show all")
                .on_hover_text("Key F: all of the run")
                .clicked()
            {
                state.ask(Action::ShowAll);
            }
            let hint = |ui: &mut Ui, action, text: &str, tip: &str| {
                ui.button(text)
                    .on_hover_text(tip)
                    .clicked()
                    .then_some(action)
            };
            let asked = [
                hint(ui, Action::Zoom(2.0), "Zoom in", "Key W, or the wheel"),
                hint(ui, Action::Zoom(0.5), "Zoom out", "Key S, or the wheel"),
            ];
            for action in asked.into_iter().flatten() {
                state.ask(action);
            }
            ui.separator();
            ui.selectable_value(&mut state.colors, StepColors::Cause, "by cause");
            ui.selectable_value(&mut state.colors, StepColors::Phase, "by phase");
            legend(ui, state.colors);
            if run.replicas() > 8 {
                let edit = egui::TextEdit::singleline(&mut self.find)
                    .hint_text("find a replica")
                    .desired_width(110.0);
                ui.add(edit).accessible_name("Find a replica");
            }
            self.cluster.choices(ui, run);
            if run.record.cluster.is_some() {
                cluster_rows::legend(ui);
            }
        });
    }

    fn lanes(&self, run: &RunData) -> Vec<Lane> {
        let mut top = self.cluster.height();
        let mut lanes = Vec::new();
        for (replica, info) in run.record.info.replicas.iter().enumerate() {
            if !self.find.is_empty() && !info.name.contains(self.find.trim()) {
                continue;
            }
            let rows = if self.open.contains(&replica) {
                run.rows(replica).len()
            } else {
                0
            };
            let height = STEP_H + KV_H + rows as f32 * ROW_H + GAP;
            lanes.push(Lane {
                replica,
                top,
                height,
            });
            top += height + GAP;
        }
        lanes
    }

    fn lane(&mut self, ui: &mut Ui, state: &mut State, view: &View<'_>, lane: &Lane) {
        let run = view.run;
        let top = view.rect.top() + lane.top;
        let left = view.rect.left() + GUTTER;
        let painter = ui.painter().clone();
        let name = &run.record.info.replicas[lane.replica].name;
        let open = self.open.contains(&lane.replica);
        let button = Rect::from_min_size(pos2(view.rect.left(), top), vec2(GUTTER - 8.0, STEP_H));
        let label = format!("{} {name}", if open { "-" } else { "+" });
        let response = ui.place(
            button,
            egui::Button::selectable(state.replica == Some(lane.replica), label).truncate(),
        );
        if response
            .on_hover_text("Click: show or hide its requests. Series then show this replica.")
            .clicked()
        {
            if !self.open.remove(&lane.replica) {
                self.open.insert(lane.replica);
            }
            state.replica = (state.replica != Some(lane.replica)).then_some(lane.replica);
        }
        let levels = &run.record.steps;
        let (_, items) = lanes::steps(levels, lane.replica, &view.map, view.width, state.colors);
        let palette: &[Color32] = match state.colors {
            StepColors::Cause => &theme::CAUSES,
            StepColors::Phase => &theme::PHASES,
        };
        let clip = Rect::from_min_size(
            pos2(left, view.rect.top()),
            vec2(view.width, view.rect.height()),
        );
        let painter = painter.with_clip_rect(clip.intersect(ui.clip_rect()));
        let background = ui.visuals().extreme_bg_color;
        painter.rect_filled(
            Rect::from_min_size(pos2(left, top), vec2(view.width, STEP_H + KV_H)),
            0.0,
            background,
        );
        boxes(&painter, &items, palette, pos2(left, top), STEP_H);
        self.kv(&painter, view, lane.replica, pos2(left, top + STEP_H));
        self.events(&painter, view, lane.replica, pos2(left, top));
        if open {
            let top = top + STEP_H + KV_H + 2.0;
            for (i, row) in run.rows(lane.replica).iter().enumerate() {
                let y = top + i as f32 * ROW_H;
                if y + ROW_H < ui.clip_rect().top() || y > ui.clip_rect().bottom() {
                    continue;
                }
                lanes::requests(run, row, &view.map, view.width, &mut self.items);
                boxes(
                    &painter,
                    &self.items,
                    &theme::REQUEST,
                    pos2(left, y),
                    ROW_H - 1.0,
                );
                preempted(&painter, view, row, &self.items, pos2(left, y));
            }
            self.selected(&painter, state, view, lane, top);
        }
    }

    /// A frame around the selected request.
    fn selected(&self, painter: &Painter, state: &State, view: &View<'_>, lane: &Lane, top: f32) {
        let Some(r) = state.request.and_then(|id| view.run.request(id)) else {
            return;
        };
        if r.replica as usize != lane.replica {
            return;
        }
        let all = &view.run.record.requests;
        let row = view.run.rows(lane.replica).iter().position(|row| {
            let i = row.requests.partition_point(|i| {
                let q = &all[*i as usize];
                (q.arrival, q.id) < (r.arrival, r.id)
            });
            row.requests
                .get(i)
                .is_some_and(|i| all[*i as usize].id == r.id)
        });
        if let Some(row) = row {
            let end = r.arrival.0 + parts(r, view.run.end()).iter().sum::<u64>();
            let left = view.rect.left() + GUTTER;
            let rect = Rect::from_min_max(
                pos2(
                    left + view.map.x(r.arrival.0).max(-4.0),
                    top + row as f32 * ROW_H - 1.0,
                ),
                pos2(
                    left + view.map.x(end).min(view.width + 4.0),
                    top + (row + 1) as f32 * ROW_H,
                ),
            );
            let stroke = Stroke::new(
                1.5,
                painter.ctx().global_style().visuals.strong_text_color(),
            );
            painter.rect_stroke(rect, 1.0, stroke, egui::StrokeKind::Outside);
        }
    }

    /// KV use as a thin band: the fuller, the higher.
    fn kv(&self, painter: &Painter, view: &View<'_>, replica: usize, at: egui::Pos2) {
        let blocks = view.run.record.info.replicas[replica].kv_blocks;
        if blocks == 0 {
            return;
        }
        let n = (view.width / 3.0) as usize;
        let window = view.map.ns(0.0).max(0.0) as u64..view.map.ns(view.width).max(1.0) as u64;
        let columns = store::resample::columns(&view.run.record.steps, window, n, Some(replica));
        let mut mesh = Mesh::default();
        let w = view.width / n as f32;
        for (i, c) in columns.iter().enumerate() {
            let h = (KV_H - 1.0) * (c.kv_blocks / blocks as f64).clamp(0.0, 1.0) as f32;
            if h > 0.1 {
                let x = at.x + i as f32 * w;
                let rect = Rect::from_min_max(pos2(x, at.y + KV_H - h), pos2(x + w, at.y + KV_H));
                mesh.add_colored_rect(rect, theme::GREEN);
            }
        }
        painter.add(mesh);
    }

    fn events(&self, painter: &Painter, view: &View<'_>, replica: usize, at: egui::Pos2) {
        let events = view.run.record.info.events.iter();
        // A replica that was there from the start needs no marker.
        for e in events.filter(|e| e.replica as usize == replica && e.at > 0) {
            let x = at.x + view.map.x(e.at);
            let color = match e.kind {
                EventKind::Added | EventKind::Ready => theme::GREEN,
                EventKind::Draining | EventKind::Drained => theme::YELLOW,
                EventKind::Killed => theme::VERMILLION,
            };
            painter.line_segment(
                [pos2(x, at.y), pos2(x, at.y + STEP_H + KV_H)],
                Stroke::new(2.0, color),
            );
            painter.text(
                pos2(x + 3.0, at.y + 6.0),
                Align2::LEFT_CENTER,
                e.kind.name(),
                FontId::proportional(10.0),
                color,
            );
        }
    }

    /// Wheel, drag, hover and click over the lanes.
    fn pointer(
        &self,
        ui: &Ui,
        state: &mut State,
        view: &View<'_>,
        lanes: &[Lane],
        response: &Response,
    ) {
        navigate(ui, state, response, view.rect.left() + GUTTER, view.width);
        if response.dragged() {
            ui.scroll_with_delta(vec2(0.0, response.drag_delta().y));
        }
        let Some(p) = response.hover_pos() else {
            return;
        };
        let (x, y) = (p.x - view.rect.left() - GUTTER, p.y - view.rect.top());
        if y < self.cluster.height() && x >= 0.0 {
            self.cluster.hover(response, view, x, y);
            return;
        }
        let lane = lanes.iter().find(|l| y >= l.top && y < l.top + l.height);
        let Some(lane) = lane.filter(|_| x >= 0.0 && x <= view.width) else {
            return;
        };
        let y = y - lane.top;
        if y < STEP_H {
            if let Some(text) = step_words(view, lane.replica, x, state.colors) {
                response.clone().on_hover_ui_at_pointer(|ui| {
                    ui.label(text);
                });
            }
            return;
        }
        let row = (y - STEP_H - KV_H - 2.0) / ROW_H;
        if row < 0.0 || !self.open.contains(&lane.replica) {
            return;
        }
        let Some(row) = view.run.rows(lane.replica).get(row as usize) else {
            return;
        };
        let mut items = Vec::new();
        lanes::requests(view.run, row, &view.map, view.width, &mut items);
        let Some(item) = lanes::at(&items, x) else {
            return;
        };
        let r = &view.run.record.requests[row.requests[item.first as usize] as usize];
        let text = if item.count > 1 && item.x1 - item.x0 < 3.0 * lanes::MIN_PX {
            format!("about {} requests; zoom in to tell them apart", item.count)
        } else {
            format!(
                "request {}: {} prompt tokens, {} output tokens, {}{}\nclick for its life",
                r.id,
                r.prompt_tokens,
                r.output_tokens,
                theme::REQUEST_NAMES[usize::from(item.color).min(3)],
                match r.preemptions {
                    0 => String::new(),
                    n => format!(", preempted {n} times"),
                }
            )
        };
        response.clone().on_hover_ui_at_pointer(|ui| {
            ui.label(text);
        });
        if response.clicked() {
            state.ask(Action::Select(Some(r.id)));
        }
    }
}

/// Boxes of a lane as one mesh: two triangles each, nothing to tessellate.
fn boxes(painter: &Painter, items: &[Item], palette: &[Color32], at: egui::Pos2, height: f32) {
    let mut mesh = Mesh::default();
    mesh.reserve_vertices(4 * items.len());
    mesh.reserve_triangles(2 * items.len());
    for item in items {
        let color = palette
            .get(usize::from(item.color))
            .copied()
            .unwrap_or(theme::GREY);
        // What covers little of its time is lower, never invisible.
        let h = height * item.fill.max(0.25);
        let gap = if item.x1 - item.x0 > 6.0 { 1.0 } else { 0.0 };
        let rect = Rect::from_min_max(
            pos2(at.x + item.x0, at.y + height - h),
            pos2(at.x + item.x1 - gap, at.y + height),
        );
        mesh.add_colored_rect(rect, color);
    }
    painter.add(mesh);
}

/// A line below requests that lost their KV and were begun again, where they stand alone.
fn preempted(painter: &Painter, view: &View<'_>, row: &Row, items: &[Item], at: egui::Pos2) {
    let all = &view.run.record.requests;
    for item in items.iter().filter(|i| i.count == 1) {
        let r = row.requests.get(item.first as usize);
        if r.is_some_and(|i| all[*i as usize].preemptions > 0) {
            let y = at.y + ROW_H - 1.0;
            let ends = [pos2(at.x + item.x0, y), pos2(at.x + item.x1, y)];
            painter.line_segment(ends, Stroke::new(2.0, theme::PURPLE));
        }
    }
}

fn legend(ui: &mut Ui, colors: StepColors) {
    let (palette, names): (&[Color32], &[&str]) = match colors {
        StepColors::Cause => (&theme::CAUSES, &theme::CAUSE_NAMES),
        StepColors::Phase => (&theme::PHASES, &theme::PHASE_NAMES),
    };
    for (color, name) in palette.iter().zip(names) {
        legend_entry(ui, *color, name);
    }
}

fn ruler(ui: &mut Ui, state: &mut State, width: f32) {
    let (rect, response) =
        ui.allocate_exact_size(vec2(GUTTER + width, RULER), Sense::click_and_drag());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::Canvas, true, "Time ruler"));
    let left = rect.left() + GUTTER;
    let range = (state.time.start, state.time.start + state.time.width);
    let axis = Axis::new("time").duration();
    let map = state.time.map(width);
    let (faint, grid) = (theme::faint(ui.visuals()), theme::grid(ui.visuals()));
    let painter = ui.painter();
    let ticks = axis.ticks(range, (width / 100.0) as usize);
    for (t, text) in ticks.iter().zip(axis.tick_words(&ticks)) {
        let x = left + map.x(t.max(0.0) as u64);
        painter.line_segment(
            [pos2(x, rect.bottom() - 6.0), pos2(x, rect.bottom())],
            Stroke::new(1.0, grid),
        );
        painter.text(
            pos2(x, rect.center().y - 2.0),
            Align2::CENTER_CENTER,
            text,
            FontId::proportional(11.0),
            faint,
        );
    }
    let shown = format!("{} shown", format::duration(state.time.width));
    painter.text(
        pos2(rect.left() + 4.0, rect.center().y),
        Align2::LEFT_CENTER,
        shown,
        FontId::proportional(11.0),
        faint,
    );
    navigate(ui, state, &response, left, width);
}

/// Pan by dragging, zoom by the wheel, all by a double click.
pub(crate) fn navigate(ui: &Ui, state: &mut State, response: &Response, left: f32, width: f32) {
    if response.double_clicked() {
        state.ask(Action::ShowAll);
    }
    if response.dragged() {
        let dx = response.drag_delta().x;
        if dx != 0.0 {
            state.time.pan(-f64::from(dx / width));
        }
    }
    if let Some(p) = response.hover_pos() {
        let at = state.time.map(width).ns((p.x - left).clamp(0.0, width));
        state.hover = Some(at);
        let (scroll, zoom) = ui.input(|i| (i.smooth_scroll_delta(), i.zoom_delta()));
        if zoom != 1.0 {
            state.time.zoom(f64::from(zoom), at);
        } else if scroll.y != 0.0 {
            state.time.zoom(f64::from(scroll.y * 0.005).exp(), at);
        }
        if scroll.x != 0.0 {
            state.time.pan(-f64::from(scroll.x / width));
        }
    }
}

/// The step or the steps at a position, in words.
fn step_words(view: &View<'_>, replica: usize, x: f32, colors: StepColors) -> Option<String> {
    let levels = &view.run.record.steps;
    let (level, items) = lanes::steps(levels, replica, &view.map, view.width, colors);
    let item = lanes::at(&items, x)?;
    let s = levels.get(level)?.of(replica).get(item.first as usize)?;
    let head = if item.count == 1 {
        format!("step of {}", format::duration((s.end - s.start) as f64))
    } else {
        format!(
            "{} steps, {} on average",
            format::count(item.count.into()),
            format::duration(s.busy as f64 / f64::from(s.steps.max(1)))
        )
    };
    let total: f32 = s.parts.iter().sum();
    let bound = s
        .parts
        .iter()
        .zip(theme::CAUSE_NAMES)
        .filter(|(p, _)| **p > 0.005 * total)
        .map(|(p, name)| format!("{name} {}", format::percent(f64::from(p / total))))
        .collect::<Vec<_>>()
        .join(", ");
    let per = f64::from(s.steps.max(1));
    Some(format!(
        "{head}\n{bound}\nper step: {} tokens prefilled, {} decoded\nrunning {}, waiting {}, KV blocks {}",
        format::figures(s.prefill_tokens as f64 / per),
        format::figures(s.decode_tokens as f64 / per),
        format::figures(f64::from(s.running.mean)),
        format::figures(f64::from(s.waiting.mean)),
        format::figures(f64::from(s.kv_blocks.mean)),
    ))
}
