//! The views, a file each: data in, items made by pure functions, items painted.

pub mod cluster;
pub mod cluster_rows;
pub mod compare;
pub mod distributions;
pub mod knee;
mod lane_view;
pub mod live;
pub mod pareto;
pub mod pool_lanes;
pub mod requests;
pub mod roofline;
pub mod series;
pub mod summary;
pub mod timeline;
pub mod what_if;

pub(crate) use lane_view::legend_entry;

use egui::{RichText, Ui, Vec2, vec2};

use crate::chart::{self, Chart, Shown};
use crate::state::{Action, Export, State};
use crate::theme;

/// A chart with a menu to export it.
pub(crate) fn chart(
    ui: &mut Ui,
    state: &mut State,
    chart: &Chart,
    size: Vec2,
    cursor: Option<f64>,
) -> Shown {
    let shown = chart::show(ui, chart, size, cursor);
    let name: String = chart
        .title
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    shown.response.context_menu(|ui| {
        if ui.button("Save as SVG").clicked() {
            state.ask(Action::Export(Export::Text {
                name: format!("{name}.svg"),
                text: chart::svg(chart, vec2(size.x.max(480.0), size.y.max(240.0))),
            }));
            ui.close();
        }
        if ui.button("Save as PNG").clicked() {
            state.ask(Action::Export(Export::Chart {
                name: format!("{name}.png"),
                chart: Box::new(chart.clone()),
            }));
            ui.close();
        }
        if ui.button("Save as CSV").clicked() {
            state.ask(Action::Export(Export::Text {
                name: format!("{name}.csv"),
                text: chart.csv(),
            }));
            ui.close();
        }
        if ui.button("Copy as CSV").clicked() {
            state.ask(Action::Copy(chart.csv()));
            ui.close();
        }
    });
    shown
}

/// In how many columns `n` charts stand: one where all are seen, else as many as have room.
pub(crate) fn columns(ui: &Ui, n: usize, least_height: f32, least_width: f32) -> usize {
    let seen = (ui.available_height() / least_height).max(1.0) as usize;
    let room = (ui.available_width() / least_width).max(1.0) as usize;
    n.div_ceil(seen).clamp(1, room)
}

/// What a pane says when it has nothing to show.
pub(crate) fn empty(ui: &mut Ui, text: &str) {
    ui.add_space(12.0);
    ui.vertical_centered(|ui| {
        ui.label(RichText::new(text).color(theme::faint(ui.visuals())));
    });
}
