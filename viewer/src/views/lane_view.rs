//! Where lanes and instants lie on the screen, and entries of their legends.

use std::sync::Arc;

use egui::{Color32, Rect, Sense, Stroke, Ui, pos2, vec2};

use crate::run_data::RunData;
use crate::state::State;
use crate::theme;
use crate::time_view::TimeMap;

/// Width of the names on the left [points].
pub(super) const GUTTER: f32 = 150.0;

/// Where instants of a run lie on the screen.
pub(super) struct View<'a> {
    pub(super) run: &'a Arc<RunData>,
    pub(super) rect: Rect,
    pub(super) map: TimeMap,
    pub(super) width: f32,
}

impl View<'_> {
    /// Where lanes are painted.
    pub(super) fn clip(&self) -> Rect {
        let at = pos2(self.rect.left() + GUTTER, self.rect.top());
        Rect::from_min_size(at, vec2(self.width, self.rect.height()))
    }

    /// The instant under the pointer, and the playhead, across all lanes.
    pub(super) fn cursor(&self, ui: &Ui, state: &State) {
        let left = self.rect.left() + GUTTER;
        let line = |ns: f64, color: Color32| {
            let x = self.map.x(ns.max(0.0) as u64);
            if (0.0..=self.width).contains(&x) {
                let ends = [
                    pos2(left + x, self.rect.top()),
                    pos2(left + x, self.rect.bottom()),
                ];
                ui.painter().line_segment(ends, Stroke::new(1.0, color));
            }
        };
        if let Some(ns) = state.hover {
            line(ns, theme::faint(ui.visuals()));
        }
        if state.playing || state.playhead > 0.0 {
            line(state.playhead, theme::ORANGE);
        }
    }
}

/// A colour and what it means, which stay together.
pub(crate) fn legend_entry(ui: &mut Ui, color: Color32, name: &str) {
    let text = egui::WidgetText::from(egui::RichText::new(name).small());
    let galley = text.into_galley(
        ui,
        Some(egui::TextWrapMode::Extend),
        f32::INFINITY,
        egui::TextStyle::Small,
    );
    let size = vec2(14.0 + galley.size().x, galley.size().y.max(10.0));
    let (rect, response) = ui.allocate_exact_size(size, Sense::hover());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::Label, true, name));
    let box_ = Rect::from_center_size(pos2(rect.left() + 5.0, rect.center().y), vec2(10.0, 10.0));
    ui.painter().rect_filled(box_, 1.0, color);
    let at = pos2(rect.left() + 14.0, rect.center().y - 0.5 * galley.size().y);
    ui.painter().galley(at, galley, ui.visuals().text_color());
}
