//! Candidates of a plan or a sweep: one figure against another, with those that no other beats.

use egui::{RichText, Ui, vec2};

use crate::candidates::{Candidates, front};
use crate::chart::{Axis, Chart, Join, Line, Mark, Plot};
use crate::format;
use crate::state::{Action, State};
use crate::theme;

/// A click this far from a point still means it [points].
const REACH: f32 = 12.0;

/// Shows them, or how to get them.
pub fn ui(ui: &mut Ui, state: &mut State) {
    let Some(all) = state.candidates.clone() else {
        return super::empty(
            ui,
            "Open the result of a plan (servetwin plan FILE --json > plan.json) or of a sweep (results.json or results.csv in its folder).",
        );
    };
    let (mut x, mut y) = state.candidate_axes.unwrap_or(all.axes);
    ui.horizontal_wrapped(|ui| {
        ui.strong(&all.name);
        ui.label(RichText::new(&all.about).color(theme::faint(ui.visuals())));
        choose(ui, "across", &all, &mut x);
        choose(ui, "up", &all, &mut y);
    });
    state.candidate_axes = Some((x, y));
    let best = front(&all, x, y);
    let height = (0.55 * ui.available_height()).max(160.0);
    let chart = chart(&all, &best, x, y);
    let shown = super::chart(ui, state, &chart, vec2(ui.available_width(), height), None);
    if let Some(p) = shown.response.hover_pos() {
        let at = p - shown.response.rect.min.to_vec2();
        if let Some(i) = nearest(&all, &chart, &shown.plot, at, x, y) {
            let row = &all.rows[i];
            shown.response.clone().on_hover_ui_at_pointer(|ui| {
                ui.strong(&row.label);
                ui.label("click to run and open it");
            });
            if shown.response.clicked() {
                state.ask(Action::OpenCandidate(i));
            }
        }
    }
    ui.horizontal_wrapped(|ui| {
        ui.label("A click opens a candidate: its settings, in");
        let edit = egui::TextEdit::singleline(&mut state.candidate_base)
            .hint_text("the scenario of the plan or sweep: path")
            .desired_width(260.0);
        ui.add(edit).accessible_name("Scenario of the candidates");
        ui.label("or, where none is named, in the run that is open.");
    });
    table(ui, state, &all, &best, x, y);
}

fn choose(ui: &mut Ui, label: &str, all: &Candidates, at: &mut usize) {
    let name = |i: usize| all.figures.get(i).map_or("", |f| f.label.as_str());
    egui::ComboBox::from_label(label)
        .selected_text(name(*at))
        .show_ui(ui, |ui| {
            for i in 0..all.figures.len() {
                ui.selectable_value(at, i, name(i));
            }
        });
}

/// One figure against another: all, those on the front joined, the answer marked.
pub fn chart(all: &Candidates, best: &[usize], x: usize, y: usize) -> Chart {
    let at = |i: usize| {
        let row = &all.rows[i];
        Some([
            row.values.get(x).copied().flatten()?,
            row.values.get(y).copied().flatten()?,
        ])
    };
    let mut others: Vec<[f64; 2]> = (0..all.rows.len()).filter_map(at).collect();
    others.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let joined: Vec<[f64; 2]> = best.iter().filter_map(|i| at(*i)).collect();
    let name = |i: usize| all.figures.get(i).map_or("", |f| f.label.as_str());
    let chosen = all.rows.iter().position(|r| r.chosen).and_then(at);
    Chart {
        title: name(y).to_owned(),
        x: Axis::new(name(x)),
        y: Axis::new(""),
        lines: vec![
            Line::new("no other is better in both", theme::GREEN, joined.clone()),
            Line::new("candidates", theme::SKY, others).join(Join::Dots),
            Line::new("", theme::GREEN, joined).join(Join::Dots),
        ],
        marks: chosen
            .map(|p| Mark {
                at: p[0],
                vertical: true,
                name: "the plan's answer".to_owned(),
                color: theme::ORANGE,
            })
            .into_iter()
            .collect(),
        ..Chart::default()
    }
}

/// The candidate under the pointer.
fn nearest(
    all: &Candidates,
    chart: &Chart,
    plot: &Plot,
    pointer: egui::Pos2,
    x: usize,
    y: usize,
) -> Option<usize> {
    let distance = |row: &crate::candidates::Candidate| {
        let p = [
            row.values.get(x).copied().flatten()?,
            row.values.get(y).copied().flatten()?,
        ];
        Some(plot.at(chart, p).distance(pointer))
    };
    let near = (all.rows.iter().enumerate()).filter_map(|(i, row)| Some((distance(row)?, i)));
    let near = near.filter(|(d, _)| *d < REACH);
    near.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
}

fn table(ui: &mut Ui, state: &mut State, all: &Candidates, best: &[usize], x: usize, y: usize) {
    let figure = |i: usize, at: usize| {
        let value = all.rows[i].values.get(at).copied().flatten();
        value.map_or("-".to_owned(), format::figures)
    };
    let rest = (0..all.rows.len()).filter(|i| !best.contains(i));
    egui::ScrollArea::vertical()
        .id_salt("candidates")
        .auto_shrink(false)
        .show(ui, |ui| {
            let grid = egui::Grid::new("candidates").striped(true).num_columns(4);
            grid.spacing([14.0, 3.0]).show(ui, |ui| {
                for at in [x, y] {
                    ui.strong(all.figures.get(at).map_or("", |f| f.label.as_str()));
                }
                ui.strong("candidate");
                ui.end_row();
                for i in best.iter().copied().chain(rest).take(500) {
                    let row = &all.rows[i];
                    ui.label(figure(i, x));
                    ui.label(figure(i, y));
                    let name = if best.contains(&i) {
                        RichText::new(&row.label).strong()
                    } else {
                        RichText::new(&row.label)
                    };
                    if ui.link(name).clicked() {
                        state.ask(Action::OpenCandidate(i));
                    }
                    if let Some(error) = &row.error {
                        ui.colored_label(theme::note(ui.visuals()), error);
                    }
                    ui.end_row();
                }
            });
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidates::of_csv;

    #[test]
    fn the_front_is_joined_and_points_are_found() {
        let csv = "point,seed,k,ttft_ms.p99,throughput.output_tokens_per_s,fingerprint,error\n\
            0,1,1,10,100,a,\n1,1,2,20,150,b,\n2,1,3,30,120,c,\n";
        let all = of_csv("r", csv.as_bytes()).unwrap().unwrap();
        let (x, y) = all.axes;
        let best = front(&all, x, y);
        assert_eq!(best, [0, 1]);
        let chart = chart(&all, &best, x, y);
        assert_eq!(chart.lines[0].points, [[100.0, 10.0], [150.0, 20.0]]);
        assert_eq!(chart.lines[1].points.len(), 3);
        let plot = crate::chart::layout(&chart, vec2(500.0, 300.0));
        let at = plot.at(&chart, [120.0, 30.0]);
        assert_eq!(nearest(&all, &chart, &plot, at, x, y), Some(2));
        let far = egui::pos2(plot.frame.left(), plot.frame.top());
        assert_eq!(nearest(&all, &chart, &plot, far, x, y), None);
    }
}
