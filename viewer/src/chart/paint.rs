//! A chart on the screen.

use egui::{Align2, FontId, Mesh, Pos2, Rect, Response, Sense, Shape, Stroke, Ui, Vec2, pos2};

use super::{Anchor, Chart, Item, Plot, layout};
use crate::theme;

/// A chart that is on the screen.
pub struct Shown {
    /// Where the pointer and the keyboard went.
    pub response: Response,
    /// The x under the pointer.
    pub hover: Option<f64>,
    /// Its layout, in points from the upper left corner of `response.rect`.
    pub plot: Plot,
}

const FONT: f32 = 11.0;

/// Shows `chart` in `size` points. `cursor` is an x that a line is drawn at, as other views share it. The values under the pointer are shown
/// beside it.
pub fn show(ui: &mut Ui, chart: &Chart, size: Vec2, cursor: Option<f64>) -> Shown {
    let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
    response.widget_info(|| {
        egui::WidgetInfo::labeled(egui::Role::Canvas, true, format!("Chart: {}", chart.title))
    });
    let plot = layout(chart, rect.size());
    let hover = response
        .hover_pos()
        .filter(|p| plot.frame.translate(rect.min.to_vec2()).contains(*p))
        .map(|p| plot.x_at(chart, p.x - rect.left()));
    if ui.is_rect_visible(rect) {
        paint(ui, chart, &plot, rect.min, hover.or(cursor));
    }
    if let Some(x) = hover {
        let lines = readout(chart, x);
        response.clone().on_hover_ui_at_pointer(|ui| {
            for line in lines {
                ui.label(line);
            }
        });
    }
    Shown {
        response,
        hover,
        plot,
    }
}

/// The values at `x`, a line each.
fn readout(chart: &Chart, x: f64) -> Vec<String> {
    let mut lines = vec![chart.x.words(x)];
    for line in chart.lines.iter().filter(|l| !l.points.is_empty()) {
        let i = line.points.partition_point(|p| p[0] <= x).saturating_sub(1);
        let name = if line.name.is_empty() {
            String::new()
        } else {
            format!("{}: ", line.name)
        };
        lines.push(format!("{name}{}", chart.y.words(line.points[i][1])));
    }
    lines
}

fn paint(ui: &Ui, chart: &Chart, plot: &Plot, origin: Pos2, cursor: Option<f64>) {
    let visuals = ui.visuals();
    let (grid, faint) = (theme::grid(visuals), theme::faint(visuals));
    let move_by = origin.to_vec2();
    let painter = ui.painter();
    let clipped = painter.with_clip_rect(
        plot.frame
            .translate(move_by)
            .expand(1.0)
            .intersect(painter.clip_rect()),
    );
    for item in &plot.items {
        match item {
            Item::Rule { ends, color } => {
                painter.line_segment(
                    ends.map(|e| e + move_by),
                    Stroke::new(1.0, color.unwrap_or(grid)),
                );
            }
            Item::Curve {
                points,
                color,
                width,
            } => {
                let points: Vec<Pos2> = points.iter().map(|p| *p + move_by).collect();
                let legend = points
                    .first()
                    .is_some_and(|p| p.y < origin.y + plot.frame.top());
                let painter = if legend { painter } else { &clipped };
                painter.add(Shape::line(points, Stroke::new(*width, *color)));
            }
            Item::Area { columns, color } => {
                let mut mesh = Mesh::default();
                for c in columns {
                    mesh.add_colored_rect(c.translate(move_by), *color);
                }
                clipped.add(mesh);
            }
            Item::Band { pairs, color } => {
                let mut mesh = Mesh::default();
                for p in pairs.iter().flatten() {
                    mesh.colored_vertex(*p + move_by, *color);
                }
                for i in (0..mesh.vertices.len().saturating_sub(3) as u32).step_by(2) {
                    mesh.add_triangle(i, i + 1, i + 2);
                    mesh.add_triangle(i + 1, i + 3, i + 2);
                }
                clipped.add(mesh);
            }
            Item::Dot { at, color, radius } => {
                clipped.circle_filled(*at + move_by, *radius, *color);
            }
            Item::Text {
                at,
                anchor,
                text,
                color,
            } => {
                let align = match anchor {
                    Anchor::Left => Align2::LEFT_CENTER,
                    Anchor::Middle => Align2::CENTER_CENTER,
                    Anchor::Right => Align2::RIGHT_CENTER,
                };
                let font = FontId::proportional(FONT);
                painter.text(*at + move_by, align, text, font, color.unwrap_or(faint));
            }
        }
    }
    if let Some(x) = cursor {
        let x = plot.at(chart, [x, plot.y.0]).x;
        if x >= plot.frame.left() && x <= plot.frame.right() {
            let ends = [pos2(x, plot.frame.top()), pos2(x, plot.frame.bottom())];
            painter.line_segment(ends.map(|e| e + move_by), Stroke::new(1.0, faint));
        }
    }
    if chart.is_empty() {
        let at = Rect::from_min_size(origin, plot.size).center();
        let font = FontId::proportional(13.0);
        painter.text(
            at,
            Align2::CENTER_CENTER,
            "nothing to show here",
            font,
            faint,
        );
    }
}
