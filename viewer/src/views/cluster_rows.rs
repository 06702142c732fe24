//! The rows of the cluster above the replicas' lanes: decisions, nodes, pods.

use egui::{Align2, FontId, Mesh, Rect, Response, Shape, Stroke, Ui, pos2, vec2};
use store::Cluster;

use super::lane_view::{GUTTER, View, legend_entry};
use crate::cluster_lanes::{self, Row, Stretch};
use crate::lanes::MIN_PX;
use crate::run_data::RunData;
use crate::theme;

/// Rows are shown from the start where a run has no more of them.
const FEW: usize = 12;

/// Height of the row of decisions.
const DECISIONS_H: f32 = 18.0;
/// Height of a node's row.
const NODE_H: f32 = 13.0;
/// Height of a pod's row.
const POD_H: f32 = 10.0;

/// What of the cluster is shown.
#[derive(Debug, Default)]
pub struct ClusterRows {
    nodes: bool,
    pods: bool,
    rows: Vec<Row>,
}

fn height(row: Row) -> f32 {
    match row {
        Row::Decisions => DECISIONS_H,
        Row::Node(_) => NODE_H,
        Row::Pod(_) => POD_H,
    }
}

impl ClusterRows {
    /// Another run is shown.
    pub fn set(&mut self, run: &RunData) {
        let cluster = run.record.cluster.as_ref();
        self.nodes = cluster.is_some_and(|c| c.nodes.len() <= FEW);
        self.pods = self.nodes && cluster.is_some_and(|c| c.pods.len() <= 2 * FEW);
        self.find(cluster);
    }

    fn find(&mut self, cluster: Option<&Cluster>) {
        let rows = |c| cluster_lanes::rows(c, self.nodes, self.pods);
        self.rows = cluster.map(rows).unwrap_or_default();
    }

    /// Choices of what is shown.
    pub fn choices(&mut self, ui: &mut Ui, run: &RunData) {
        let Some(cluster) = &run.record.cluster else {
            return;
        };
        ui.separator();
        let nodes = format!("nodes ({})", cluster.nodes.len());
        let mut changed = ui.checkbox(&mut self.nodes, nodes).changed();
        if self.nodes {
            let pods = format!("pods ({})", cluster.pods.len());
            changed |= ui.checkbox(&mut self.pods, pods).changed();
        }
        if changed {
            self.find(Some(cluster));
        }
    }

    /// Height of all rows.
    pub fn height(&self) -> f32 {
        let sum: f32 = self.rows.iter().map(|r| height(*r)).sum();
        if sum > 0.0 { sum + 6.0 } else { 0.0 }
    }

    /// Paints the rows that are between `seen` [points from the top].
    pub(super) fn paint(&self, ui: &Ui, view: &View<'_>, seen: egui::Rangef) {
        let Some(cluster) = &view.run.record.cluster else {
            return;
        };
        let mut top = 0.0;
        for row in &self.rows {
            let h = height(*row);
            if top + h >= seen.min && top <= seen.max {
                self.row(ui, view, cluster, *row, top);
            }
            top += h;
        }
        self.faults(ui, view, cluster);
    }

    fn row(&self, ui: &Ui, view: &View<'_>, cluster: &Cluster, row: Row, top: f32) {
        let (name, of) = match row {
            Row::Decisions => {
                self.decisions(ui, view, cluster, top);
                ("decisions", Vec::new())
            }
            Row::Node(n) => {
                let node = &cluster.nodes[n];
                (
                    node.name.as_str(),
                    cluster_lanes::of_node(node, view.run.end()),
                )
            }
            Row::Pod(p) => {
                let pod = &cluster.pods[p];
                let draining = cluster.replicas[pod.replica as usize].draining;
                let of = cluster_lanes::of_pod(pod, draining, view.run.end());
                (pod.name.as_str(), of)
            }
        };
        let y = view.rect.top() + top;
        let indent = if matches!(row, Row::Pod(_)) {
            14.0
        } else {
            4.0
        };
        let clip = Rect::from_min_size(pos2(view.rect.left(), y), vec2(GUTTER - 8.0, height(row)));
        ui.painter()
            .with_clip_rect(clip.intersect(ui.clip_rect()))
            .text(
                pos2(view.rect.left() + indent, y + 0.5 * height(row)),
                Align2::LEFT_CENTER,
                name,
                FontId::proportional(if matches!(row, Row::Pod(_)) {
                    9.0
                } else {
                    11.0
                }),
                theme::faint(ui.visuals()),
            );
        boxes(ui, view, &of, y, height(row) - 2.0);
    }

    /// A mark per decision, coloured by who took it; those that changed nothing are small.
    fn decisions(&self, ui: &Ui, view: &View<'_>, cluster: &Cluster, top: f32) {
        let y = view.rect.top() + top;
        let left = view.rect.left() + GUTTER;
        let painter = ui.painter_at(view.clip());
        let mut last = f32::NEG_INFINITY;
        for d in &cluster.decisions {
            let x = view.map.x(d.at);
            let small = d.from == d.to;
            // What is not told apart is painted once.
            if !(-2.0..=view.width + 2.0).contains(&x) || (small && x - last < 1.5) {
                continue;
            }
            last = x;
            let color = cluster_lanes::color_of(&d.controller);
            let x = left + x;
            let h = if small { 4.0 } else { 11.0 };
            let (a, b) = (y + DECISIONS_H - 3.0 - h, y + DECISIONS_H - 3.0);
            let up = d.to >= d.from;
            let points = if up {
                vec![pos2(x - 0.45 * h, b), pos2(x, a), pos2(x + 0.45 * h, b)]
            } else {
                vec![pos2(x - 0.45 * h, a), pos2(x + 0.45 * h, a), pos2(x, b)]
            };
            painter.add(Shape::convex_polygon(points, color, Stroke::NONE));
        }
    }

    /// Faults go across all lanes.
    fn faults(&self, ui: &Ui, view: &View<'_>, cluster: &Cluster) {
        let painter = ui.painter_at(view.clip());
        for d in cluster.decisions.iter().filter(|d| d.controller == "fault") {
            let x = view.map.x(d.at);
            if (0.0..=view.width).contains(&x) {
                let x = view.rect.left() + GUTTER + x;
                let color = theme::VERMILLION.gamma_multiply(0.45);
                let ends = [pos2(x, view.rect.top()), pos2(x, view.rect.bottom())];
                painter.line_segment(ends, Stroke::new(1.0, color));
            }
        }
    }

    /// Says what is under the pointer, `x` and `y` from where the lanes begin.
    pub(super) fn hover(&self, response: &Response, view: &View<'_>, x: f32, y: f32) {
        let Some(text) = self.words(view, x, y) else {
            return;
        };
        response.clone().on_hover_ui_at_pointer(|ui| {
            ui.set_max_width(420.0);
            ui.label(text);
        });
    }

    fn words(&self, view: &View<'_>, x: f32, y: f32) -> Option<String> {
        let cluster = view.run.record.cluster.as_ref()?;
        let mut top = 0.0;
        let row = *self.rows.iter().find(|r| {
            top += height(**r);
            y < top
        })?;
        let at = view.map.ns(x).max(0.0) as u64;
        let named = |text: String, of: &[Stretch]| {
            let here = of.iter().find(|s| s.from <= at && at < s.to);
            let here = here.map_or("not there".to_owned(), |s| {
                let length = crate::format::duration((s.to - s.from) as f64);
                format!("{} for {length}", s.name)
            });
            format!("{text}\n{here}")
        };
        match row {
            Row::Decisions => {
                let distance = |d: &store::Decision| (view.map.x(d.at) - x).abs();
                let near = cluster.decisions.iter().filter(|d| distance(d) < 6.0);
                // Of those on one spot, the one that changed most.
                let key = |d: &&store::Decision| ((d.to - d.from).abs(), -distance(d) as i64);
                near.max_by_key(key).map(cluster_lanes::words)
            }
            Row::Node(n) => {
                let node = &cluster.nodes[n];
                let of = cluster_lanes::of_node(node, view.run.end());
                Some(named(cluster_lanes::node_words(node), &of))
            }
            Row::Pod(p) => {
                let pod = &cluster.pods[p];
                let draining = cluster.replicas[pod.replica as usize].draining;
                let of = cluster_lanes::of_pod(pod, draining, view.run.end());
                Some(named(cluster_lanes::pod_words(pod), &of))
            }
        }
    }
}

/// The stretches of a row, each at least as wide as can be seen.
fn boxes(ui: &Ui, view: &View<'_>, of: &[Stretch], y: f32, height: f32) {
    let left = view.rect.left() + GUTTER;
    let mut mesh = Mesh::default();
    let mut free = f32::NEG_INFINITY;
    for s in of {
        let (a, b) = (view.map.x(s.from), view.map.x(s.to));
        if b < 0.0 || a > view.width {
            continue;
        }
        // What is too narrow to be seen goes into what follows, but for the last.
        let from = a.max(0.0);
        if b - free.max(from) < 0.25 * MIN_PX && b < view.width - 1.0 && of.len() > 1 {
            continue;
        }
        let (from, to) = (free.max(from), b.min(view.width).max(from + 1.0));
        free = to;
        let rect = Rect::from_min_max(pos2(left + from, y), pos2(left + to, y + height));
        mesh.add_colored_rect(rect, s.color);
    }
    ui.painter_at(view.clip()).add(mesh);
}

/// What colours mean.
pub fn legend(ui: &mut Ui) {
    let pairs = [
        (theme::GREY, "booting, pending"),
        (theme::PURPLE, "image pull"),
        (theme::BLUE, "weights load"),
        (theme::YELLOW, "engine start"),
        (theme::GREEN, "serves"),
        (theme::ORANGE, "drains"),
        (theme::VERMILLION, "fault"),
    ];
    for (color, name) in pairs {
        legend_entry(ui, color, name);
    }
}
