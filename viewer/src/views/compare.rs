//! Two runs on the same axes, and their differences.

use std::sync::Arc;

use egui::Ui;
use sim::report::RunReport;
use sim::report::expect::Numbers;
use sim::report::replications::FIGURES;

use crate::candidates::more_is_better;
use crate::format;
use crate::jobs::Doc;
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
    /// Whether it is a share of one.
    pub share: bool,
}

impl Delta {
    /// A value of it.
    fn words(&self, v: Option<f64>) -> String {
        let words = if self.share {
            format::percent
        } else {
            format::figures
        };
        v.map_or("-".to_owned(), words)
    }
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
                share: f.path.ends_with("_ratio"),
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
    ui.label(d.label);
    ui.label(d.words(d.a));
    ui.label(d.words(d.b));
    changed(ui, d, "");
}

/// The change, coloured by whether it is for the better, after `head`.
fn changed(ui: &mut Ui, d: &Delta, head: &str) -> egui::Response {
    let change = match (d.a, d.b) {
        (Some(a), Some(b)) => format::change(a, b),
        _ => String::new(),
    };
    match d.better.filter(|_| change != "=") {
        Some(better) => ui.colored_label(
            theme::change(better, ui.visuals()),
            format!("{head}{change} {}", if better { "better" } else { "worse" }),
        ),
        None => ui.label(format!("{head}{change}")),
    }
}

/// Shows the comparison, or how to make one.
pub fn ui(ui: &mut Ui, state: &mut State, path: &mut String) {
    let Some(doc) = state.doc.clone() else {
        return super::empty(ui, "Open a run first.");
    };
    ui.horizontal_wrapped(|ui| {
        ui.label("Hold against");
        let others = state.others();
        for (i, other) in state.docs.clone().iter().enumerate() {
            if Arc::ptr_eq(other, &doc) {
                continue;
            }
            let mut held = others.iter().any(|o| Arc::ptr_eq(o, other));
            let label = format!("{} ({})", other.title, i + 1);
            if ui.checkbox(&mut held, label).changed() {
                state.ask(Action::CompareAlso(i));
            }
        }
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
    let others = state.others();
    let [base, more @ ..] = others.as_slice() else {
        return super::empty(
            ui,
            "Open further runs above, drop several files at once, or move a slider in What if. Distributions then show all of them.",
        );
    };
    egui::ScrollArea::both()
        .id_salt("compare")
        .auto_shrink(false)
        .show(ui, |ui| {
            let (a, b) = (&base.data.record, &doc.data.record);
            if more.is_empty() {
                ui.label(format!("before: {}   after: {}", base.title, doc.title));
                table(ui, &a.report, &b.report, false);
            } else {
                several(ui, &doc, &others);
            }
            let keys = sim::report::keys::differences(&a.info.scenario, &b.info.scenario);
            // Without a scenario there is nothing to differ from: a benchmark may have none.
            if keys.is_empty() || a.info.scenario.is_empty() || b.info.scenario.is_empty() {
                return;
            }
            ui.add_space(8.0);
            let whose = format!(
                "What differs in the scenarios: {} | {}",
                base.title, doc.title
            );
            ui.strong(if more.is_empty() {
                "What differs in the scenarios".to_owned()
            } else {
                whose
            });
            for k in keys.iter().take(40) {
                let of = |v: &Option<String>| v.clone().unwrap_or_else(|| "not set".to_owned());
                ui.label(format!("{}: {} | {}", k.key, of(&k.a), of(&k.b)));
            }
        });
}

/// A column for the run that is shown, and for each other with its change from there.
fn several(ui: &mut Ui, doc: &Doc, others: &[Arc<Doc>]) {
    let this = &doc.data.record.report;
    let all: Vec<Vec<Delta>> = others
        .iter()
        .map(|o| deltas(this, &o.data.record.report))
        .collect();
    let labels = FIGURES.iter().map(|f| f.label.trim());
    let grid = egui::Grid::new("several").striped(true);
    grid.num_columns(2 + others.len())
        .spacing([14.0, 3.0])
        .show(ui, |ui| {
            ui.strong("");
            ui.strong(format!("{} (shown)", doc.title));
            for other in others {
                ui.strong(&other.title);
            }
            ui.end_row();
            for label in labels {
                let row: Vec<Option<&Delta>> = all
                    .iter()
                    .map(|d| d.iter().find(|d| d.label == label))
                    .collect();
                let Some(first) = row.iter().flatten().next() else {
                    continue;
                };
                ui.label(label);
                ui.label(first.words(first.a));
                for d in &row {
                    match d {
                        Some(d) => changed(ui, d, &format!("{}  ", d.words(d.b))),
                        None => ui.label(first.words(first.a)),
                    };
                }
                ui.end_row();
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
        assert_eq!(of("KV use, mean").words(Some(0.25)), "25 %");
    }
}
