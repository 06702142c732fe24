//! Lanes over time: steps of each replica, its KV, its requests.

use std::collections::BTreeSet;

use egui::{Align2, Color32, FontId, Mesh, Painter, Rect, Response, Sense, Stroke, Ui, pos2, vec2};
use store::EventKind;

use crate::chart::{Anchor, Axis, within};
use crate::format;
use crate::lanes::{self, Item, Stage, StepColors};
use crate::run_data::{Row, RunData, parts};
use crate::state::{Action, State};
use crate::theme;
use crate::views::cluster_rows::{self, ClusterRows};
use crate::views::lane_view::{GUTTER, View, legend_entry};
use crate::views::pool_lanes::{POOL_H, PoolLanes};

const RULER: f32 = 22.0;
const STEP_H: f32 = 20.0;
const KV_H: f32 = 8.0;
const ROW_H: f32 = 6.0;
const STAGE_H: f32 = 8.0;
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
    pools: PoolLanes,
    /// The request that was selected last, and whether its lane is to be brought into sight.
    shown: Option<u32>,
    seek: bool,
    /// Whether the lanes are to be shown from the first.
    top: bool,
    items: Vec<Item>,
}

/// Whose a lane is.
#[derive(Clone, Copy)]
enum Whose {
    Pool(usize),
    Replica(usize),
}

/// A lane and where it begins.
struct Lane {
    whose: Whose,
    top: f32,
    height: f32,
}

impl Lane {
    fn replica(&self) -> Option<usize> {
        match self.whose {
            Whose::Replica(i) => Some(i),
            Whose::Pool(_) => None,
        }
    }
}

impl Timeline {
    /// Another run is shown, or a variation of this one.
    pub fn reset(&mut self) {
        self.set = false;
    }

    /// Another run is shown, from its top.
    pub fn begin(&mut self) {
        self.reset();
        self.top = true;
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
            self.pools.set(&run);
            self.set = true;
        }
        if self.shown != state.request {
            self.shown = state.request;
            let selected = state.request.and_then(|id| run.request(id));
            let replica = selected.map(|r| r.replica as usize);
            if let Some(replica) = replica.filter(|r| *r < run.replicas()) {
                self.open.insert(replica);
                self.pools.open(replica);
                self.seek = true;
            }
        }
        // Before anything can make the pane wider than it is.
        let width = (ui.available_width() - GUTTER - 12.0).max(100.0);
        self.toolbar(ui, state, &run);
        ruler(ui, state, width);
        let lanes = self.lanes(&run);
        if self.pools.pools.len() > 1 {
            self.pools.prepare(&run, state.time.range(), width);
        }
        let height = lanes.last().map_or(0.0, |l| l.top + l.height + GAP);
        let mut area = egui::ScrollArea::vertical();
        if std::mem::take(&mut self.top) {
            area = area.vertical_scroll_offset(0.0);
        }
        area.id_salt("lanes")
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
                        match lane.whose {
                            Whose::Pool(i) => self.pool(ui, &view, i, lane.top),
                            Whose::Replica(i) => self.lane(ui, state, &view, i, lane.top),
                        }
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
            legend(ui, state.colors, run);
            if !self.open.is_empty() {
                ui.separator();
                request_legend(ui, run);
            }
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
        let mut add = |whose, height: f32| {
            lanes.push(Lane { whose, top, height });
            top += height + GAP;
        };
        let several = self.pools.pools.len() > 1;
        for (i, pool) in self.pools.pools.iter().enumerate() {
            if several {
                add(Whose::Pool(i), POOL_H);
            }
            if several && self.pools.closed.contains(&i) {
                continue;
            }
            for replica in pool.replicas.iter().copied() {
                let name = &run.record.info.replicas[replica].name;
                if !self.find.is_empty() && !name.contains(self.find.trim()) {
                    continue;
                }
                let rows = if self.open.contains(&replica) {
                    run.rows(replica).len()
                } else {
                    0
                };
                let height = self.head(run, replica) + rows as f32 * ROW_H + GAP;
                add(Whose::Replica(replica), height);
            }
        }
        lanes
    }

    /// Stages of a replica's pipeline that have lanes of their own; 0: none.
    fn stages(&self, run: &RunData, replica: usize) -> u32 {
        let stages = run.record.info.replicas[replica].stages;
        if stages > 1 && self.open.contains(&replica) {
            stages.min(64)
        } else {
            0
        }
    }

    /// Height of a replica's lane above its requests.
    fn head(&self, run: &RunData, replica: usize) -> f32 {
        STEP_H + self.stages(run, replica) as f32 * STAGE_H + KV_H
    }

    /// A pool: what the time of its replicas' steps went to. A click hides or shows them.
    fn pool(&mut self, ui: &mut Ui, view: &View<'_>, i: usize, top: f32) {
        let y = view.rect.top() + top;
        let at = pos2(view.rect.left() + GUTTER, y);
        let painter = ui
            .painter()
            .with_clip_rect(view.clip().intersect(ui.clip_rect()));
        let background = Rect::from_min_size(at, vec2(view.width, POOL_H));
        painter.rect_filled(background, 0.0, ui.visuals().extreme_bg_color);
        self.pools.paint(&painter, i, at);
        let pool = &self.pools.pools[i];
        let closed = self.pools.closed.contains(&i);
        let sign = if closed { "+" } else { "-" };
        let label = format!("{sign} pool {} ({})", pool.name, pool.replicas.len());
        let place = pos2(view.rect.left(), y);
        let button = Rect::from_min_size(place, vec2(GUTTER - 8.0, POOL_H));
        let text = egui::RichText::new(label).strong();
        let response = ui.place(button, egui::Button::selectable(false, text).truncate());
        let tip =
            "Click: show or hide its replicas. Beside it: what the time of their steps went to.";
        if response.on_hover_text(tip).clicked() && !self.pools.closed.remove(&i) {
            self.pools.closed.insert(i);
        }
    }

    fn lane(&mut self, ui: &mut Ui, state: &mut State, view: &View<'_>, replica: usize, top: f32) {
        let run = view.run;
        let top = view.rect.top() + top;
        let left = view.rect.left() + GUTTER;
        let painter = ui.painter().clone();
        let name = &run.record.info.replicas[replica].name;
        let open = self.open.contains(&replica);
        let button = Rect::from_min_size(pos2(view.rect.left(), top), vec2(GUTTER - 8.0, STEP_H));
        let label = format!("{} {name}", if open { "-" } else { "+" });
        let response = ui.place(
            button,
            egui::Button::selectable(state.replica == Some(replica), label).truncate(),
        );
        if response
            .on_hover_text("Click: show or hide its requests. Series then show this replica.")
            .clicked()
        {
            if !self.open.remove(&replica) {
                self.open.insert(replica);
            }
            state.replica = (state.replica != Some(replica)).then_some(replica);
        }
        let levels = &run.record.steps;
        let steps =
            |stage| lanes::steps(levels, replica, &view.map, view.width, state.colors, stage).1;
        let items = steps(None);
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
            Rect::from_min_size(pos2(left, top), vec2(view.width, self.head(run, replica))),
            0.0,
            background,
        );
        boxes(&painter, &items, palette, pos2(left, top), STEP_H);
        let of = self.stages(run, replica);
        for index in 0..of {
            let y = top + STEP_H + index as f32 * STAGE_H;
            let items = steps(Some(Stage { index, of }));
            boxes(
                &painter,
                &items,
                palette,
                pos2(left, y + 1.0),
                STAGE_H - 1.0,
            );
            ui.painter().text(
                pos2(left - 6.0, y + 0.5 * STAGE_H),
                Align2::RIGHT_CENTER,
                format!("stage {index}"),
                FontId::proportional(9.0),
                theme::faint(ui.visuals()),
            );
        }
        let kv = top + STEP_H + of as f32 * STAGE_H;
        self.kv(&painter, view, replica, pos2(left, kv));
        self.events(&painter, view, replica, pos2(left, top));
        if open {
            let top = top + self.head(run, replica) + 2.0;
            for (i, row) in run.rows(replica).iter().enumerate() {
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
            self.selected(ui, &painter, state, view, (replica, top));
        }
    }

    /// A frame around the selected request.
    fn selected(
        &mut self,
        ui: &Ui,
        painter: &Painter,
        state: &State,
        view: &View<'_>,
        (replica, top): (usize, f32),
    ) {
        let Some(r) = state.request.and_then(|id| view.run.request(id)) else {
            return;
        };
        if r.replica as usize != replica {
            return;
        }
        let all = &view.run.record.requests;
        let row = view.run.rows(replica).iter().position(|row| {
            let key = |i: usize| (all.arrival(row.index(i)), all.id(row.index(i)));
            let list = row.requests.all();
            let i = list.partition_point(|i| key(i) < (r.arrival.0, r.id));
            i < list.len() && key(i).1 == r.id
        });
        if let Some(row) = row {
            let end = r.arrival.0 + parts(&view.run.record, &r).iter().sum::<u64>();
            let left = view.rect.left() + GUTTER;
            let y = top + row as f32 * ROW_H;
            if std::mem::take(&mut self.seek) {
                let at = pos2(view.rect.left(), y - 4.0 * ROW_H);
                let around = Rect::from_min_size(at, vec2(view.width, 9.0 * ROW_H));
                ui.scroll_to_rect(around, None);
            }
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
        let Some(replica) = lane.replica() else {
            return;
        };
        let (y, head) = (y - lane.top, self.head(view.run, replica));
        if y < head - KV_H {
            if let Some(text) = step_words(view, replica, x, state.colors) {
                response.clone().on_hover_ui_at_pointer(|ui| {
                    ui.label(text);
                });
            }
            return;
        }
        let row = (y - head - 2.0) / ROW_H;
        if row < 0.0 || !self.open.contains(&replica) {
            return;
        }
        let Some(row) = view.run.rows(replica).get(row as usize) else {
            return;
        };
        let mut items = Vec::new();
        lanes::requests(view.run, row, &view.map, view.width, &mut items);
        let Some(item) = lanes::at(&items, x) else {
            return;
        };
        let r = view.run.record.requests.row(row.index(item.first as usize));
        let text = if item.count > 1 && item.x1 - item.x0 < 3.0 * lanes::MIN_PX {
            format!("about {} requests; zoom in to tell them apart", item.count)
        } else {
            format!(
                "request {}: {} prompt tokens, {} output tokens, {}{}\nclick for its life",
                r.id,
                r.prompt_tokens,
                r.output_tokens,
                theme::REQUEST_NAMES[usize::from(item.color).min(4)],
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
        if r.is_some_and(|i| all.row(i as usize).preemptions > 0) {
            let y = at.y + ROW_H - 1.0;
            let ends = [pos2(at.x + item.x0, y), pos2(at.x + item.x1, y)];
            painter.line_segment(ends, Stroke::new(2.0, theme::PREEMPTED));
        }
    }
}

/// What the colours of steps mean, of those that there are.
fn legend(ui: &mut Ui, colors: StepColors, run: &RunData) {
    let (palette, names): (&[Color32], &[&str]) = match colors {
        StepColors::Cause => (&theme::CAUSES, &theme::CAUSE_NAMES),
        StepColors::Phase => (&theme::PHASES, &theme::PHASE_NAMES),
    };
    let coarsest = run.record.steps.last();
    let seen = |i: usize| coarsest.is_some_and(|l| l.rows().iter().any(|s| s.parts[i] > 0.0));
    let there = |i: usize| colors != StepColors::Cause || seen(i);
    for (i, (color, name)) in palette.iter().zip(names).enumerate() {
        if there(i) {
            legend_entry(ui, *color, name);
        }
    }
}

/// What the colours of requests mean, of those parts that there are.
fn request_legend(ui: &mut Ui, run: &RunData) {
    let record = &run.record;
    let r = &record.report.requests;
    let there = [
        true,
        true,
        !record.transfers.is_empty(),
        true,
        r.finished < r.offered,
    ];
    let all = theme::REQUEST.into_iter().zip(theme::REQUEST_NAMES);
    for ((color, name), _) in all.zip(there).filter(|(_, there)| *there) {
        legend_entry(ui, color, name);
    }
    if record.report.tokens.preemptions > 0 {
        legend_entry(ui, theme::PREEMPTED, "preempted");
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
        let (x, anchor) = within(x, &text, left - 2.0..=rect.right());
        let align = match anchor {
            Anchor::Left => Align2::LEFT_CENTER,
            Anchor::Middle => Align2::CENTER_CENTER,
            Anchor::Right => Align2::RIGHT_CENTER,
        };
        painter.text(
            pos2(x, rect.center().y - 2.0),
            align,
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
    let (level, items) = lanes::steps(levels, replica, &view.map, view.width, colors, None);
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
