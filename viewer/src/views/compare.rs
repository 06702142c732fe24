//! Two runs on the same axes, and their differences.

use egui::Ui;
use sim::report::RunReport;
use sim::report::expect::Numbers;
use sim::report::replications::FIGURES;

use crate::candidates::more_is_better;
use crate::format;
use crate::state::{Action, State};
use crate::theme;

/// A figure of two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// Its name, with its unit.
    pub label: &'static str,
    /// Before.
    pub a: Option<f64>,
    /// After.
    pub b: Option<f64>,
    /// Whether the change is for the better; none where it is neither.
    pub better: Option<bool>,
}

/// The figures of two runs; those that neither has are left out.
pub fn deltas(a: &RunReport, b: &RunReport) -> Vec<Delta> {
    let (na, nb) = (Numbers::of(a), Numbers::of(b));
    FIGURES
        .iter()
        .filter_map(|f| {
            let (x, y) = (na.at(f.path), nb.at(f.path));
            let zero = |v: Option<f64>| v.is_none_or(|v| v == 0.0);
            if x.is_none() && y.is_none() || zero(x) && zero(y) {
                return None;
            }
            let better = match (x, y) {
                (Some(x), Some(y)) if x != y => more_is_better(f.path).map(|more| (y > x) == more),
                _ => None,
            };
            Some(Delta {
                label: f.label.trim(),
                a: x,
                b: y,
                better,
            })
        })
        .collect()
}

/// The table of two runs; dimmed while the second is being computed.
pub fn table(ui: &mut Ui, a: &RunReport, b: &RunReport, stale: bool) {
    let rows = deltas(a, b);
    ui.scope(|ui| {
        if stale {
            ui.set_opacity(0.45);
        }
        let grid = egui::Grid::new("deltas")
            .striped(true)
            .num_columns(4)
            .spacing([14.0, 3.0]);
        grid.show(ui, |ui| {
            for title in ["", "before", "after", "change"] {
                ui.strong(title);
            }
            ui.end_row();
            for d in &rows {
                delta(ui, d);
                ui.end_row();
            }
        });
    });
}

/// A row of the table.
fn delta(ui: &mut Ui, d: &Delta) {
    let text = |v: Option<f64>| v.map_or("-".to_owned(), format::figures);
    ui.label(d.label);
    ui.label(text(d.a));
    ui.label(text(d.b));
    let change = match (d.a, d.b) {
        (Some(a), Some(b)) => format::change(a, b),
        _ => String::new(),
    };
    match d.better {
        Some(true) => ui.colored_label(
            theme::change(true, ui.visuals()),
            format!("{change} better"),
        ),
        Some(false) => ui.colored_label(
            theme::change(false, ui.visuals()),
            format!("{change} worse"),
        ),
        None => ui.label(change),
    };
}

/// Shows the comparison, or how to make one.
pub fn ui(ui: &mut Ui, state: &mut State, path: &mut String) {
    let Some(doc) = state.doc.clone() else {
        return super::empty(ui, "Open a run first.");
    };
    ui.horizontal_wrapped(|ui| {
        ui.label("Hold against");
        let base = state.base.as_ref().map_or("nothing", |b| b.title.as_str());
        egui::ComboBox::from_label("of the runs that are open")
            .selected_text(base)
            .show_ui(ui, |ui| {
                for (i, other) in state.docs.clone().iter().enumerate() {
                    if !std::sync::Arc::ptr_eq(other, &doc)
                        && ui
                            .selectable_label(false, format!("{} ({})", other.title, i + 1))
                            .clicked()
                    {
                        state.ask(Action::CompareWith(i));
                    }
                }
            });
        let edit = egui::TextEdit::singleline(path)
            .hint_text("or a scenario or record: path")
            .desired_width(220.0);
        let entered = ui
            .add(edit)
            .accessible_name("Path to compare with")
            .lost_focus()
            && ui.input(|i| i.key_pressed(egui::Key::Enter));
        if (ui.button("Open and compare").clicked() || entered) && !path.trim().is_empty() {
            state.ask(Action::OpenCompare(path.trim().to_owned()));
        }
    });
    let Some(base) = state.base.clone() else {
        return super::empty(
            ui,
            "Open a second run above, or move a slider in What if. Distributions then show both.",
        );
    };
    egui::ScrollArea::vertical()
        .id_salt("compare")
        .auto_shrink(false)
        .show(ui, |ui| {
            ui.label(format!("before: {}   after: {}", base.title, doc.title));
            table(
                ui,
                &base.data.record.report,
                &doc.data.record.report,
                state.stale,
            );
            let keys = sim::report::keys::differences(
                &base.data.record.info.scenario,
                &doc.data.record.info.scenario,
            );
            if !keys.is_empty() {
                ui.add_space(8.0);
                ui.strong("What differs in the scenarios");
                for k in keys.iter().take(40) {
                    let of = |v: &Option<String>| v.clone().unwrap_or_else(|| "not set".to_owned());
                    ui.label(format!("{}: {} | {}", k.key, of(&k.a), of(&k.b)));
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn changes_are_told_better_from_worse() {
        let a = small().record.report;
        let mut b = a.clone();
        b.ttft_ms.p99 = b.ttft_ms.p99.map(|v| v * 2.0);
        b.throughput.goodput_per_s *= 1.5;
        let rows = deltas(&a, &b);
        let of = |label: &str| rows.iter().find(|d| d.label == label).unwrap();
        assert_eq!(of("TTFT p99 [ms]").better, Some(false));
        assert_eq!(of("goodput [req/s]").better, Some(true));
        assert_eq!(of("TTFT mean [ms]").better, None);
        assert!(rows.iter().all(|d| d.label != "rejected"));
    }
}
