//! A digital twin: measured and predicted, side by side as they come.

use egui::{RichText, Ui, vec2};

use crate::chart::{Axis, Band, Chart, Join, Line, Mark};
use crate::live::{Figure, Look, Looks, Unit};
use crate::state::{Action, State};
use crate::theme;

/// Figures in the order in which they are shown; others follow.
const FIRST: [&str; 6] = [
    "ttft_p50",
    "ttft_p99",
    "tpot_mean",
    "itl_mean",
    "e2e_mean",
    "output_tokens_per_second",
];

/// Shows the twin, or how to connect to one.
pub fn ui(ui: &mut Ui, state: &mut State) {
    ui.horizontal_wrapped(|ui| {
        ui.label("Twin at");
        let edit = egui::TextEdit::singleline(&mut state.live_address)
            .hint_text("127.0.0.1:9100")
            .desired_width(180.0);
        let entered = ui
            .add(edit)
            .accessible_name("Address of the twin")
            .lost_focus()
            && ui.input(|i| i.key_pressed(egui::Key::Enter));
        if (ui.button("Connect").clicked() || entered) && !state.live_address.trim().is_empty() {
            state.ask(Action::Connect(state.live_address.trim().to_owned()));
        }
        if state.looks.is_some() && ui.button("Disconnect").clicked() {
            state.ask(Action::Disconnect);
        }
    });
    let Some(looks) = state.looks.take() else {
        return super::empty(
            ui,
            "Connect to a twin that serves its metrics (servetwin twin ... --metrics 127.0.0.1:9100), or open the lines that it writes (--jsonl FILE).",
        );
    };
    let color = if looks.answers || looks.all.last().is_some_and(|l| !l.drift()) {
        theme::faint(ui.visuals())
    } else {
        theme::note(ui.visuals())
    };
    ui.label(RichText::new(&looks.status).color(color));
    if let Some(last) = looks.all.last() {
        verdict(ui, last);
    }
    let charts = charts(&looks);
    egui::ScrollArea::vertical()
        .id_salt("live")
        .auto_shrink(false)
        .show(ui, |ui| {
            let columns = super::columns(ui, charts.len(), 170.0, 340.0);
            let width = ui.available_width() / columns as f32 - 8.0;
            for row in charts.chunks(columns) {
                ui.horizontal(|ui| {
                    for chart in row {
                        super::chart(ui, state, chart, vec2(width, 170.0), None);
                    }
                });
            }
        });
    state.looks = Some(looks);
}

/// How the last look stands, in words.
fn verdict(ui: &mut Ui, look: &Look) {
    let drifting: Vec<String> = (look.figures.iter())
        .filter(|(_, (_, f))| f.drift)
        .map(|(name, _)| name_of(name))
        .collect();
    if drifting.is_empty() {
        ui.label("no drift: the deployment behaves as its profile says");
    } else {
        let text = format!(
            "DRIFT in {}: the deployment no longer behaves as its profile says; see servetwin twin refit",
            drifting.join(", ")
        );
        ui.colored_label(theme::note(ui.visuals()), text);
    }
}

/// A chart per figure that both sides have: measured, predicted, and where the measured one is expected; drift marked where it begins.
pub fn charts(looks: &Looks) -> Vec<Chart> {
    let Some(first) = looks.all.first() else {
        return Vec::new();
    };
    let mut names: Vec<(&String, Unit)> = Vec::new();
    for look in &looks.all {
        for (name, (unit, _)) in &look.figures {
            if !names.iter().any(|(n, _)| *n == name) {
                names.push((name, *unit));
            }
        }
    }
    let place = |name: &str| FIRST.iter().position(|f| *f == name).unwrap_or(FIRST.len());
    names.sort_by(|a, b| place(a.0).cmp(&place(b.0)).then(a.0.cmp(b.0)));
    let at = |look: &Look| (look.at_unix_s - first.at_unix_s) * 1e9;
    names
        .into_iter()
        .map(|(name, unit)| {
            let scale = if unit == Unit::Seconds { 1e9 } else { 1.0 };
            let points = |of: &dyn Fn(&Figure) -> Option<f64>| -> Vec<[f64; 2]> {
                let of = |l: &Look| Some([at(l), of(&l.figures.get(name)?.1)? * scale]);
                looks.all.iter().filter_map(of).collect()
            };
            let line = |label: &str, color, of: &dyn Fn(&Figure) -> Option<f64>| {
                Line::new(label, color, points(of)).join(Join::Straight)
            };
            let axis = match unit {
                Unit::Seconds => Axis::new("").duration().from_zero(),
                _ => Axis::new("").from_zero(),
            };
            Chart {
                title: name_of(name),
                x: Axis::new("since the first look").duration(),
                y: axis,
                bands: expected(looks, name, |l, v| [at(l), v * scale])
                    .into_iter()
                    .collect(),
                lines: vec![
                    line("predicted", theme::SKY, &|f| f.predicted),
                    line("measured", theme::ORANGE, &|f| f.measured),
                ],
                marks: drifts(looks, name)
                    .into_iter()
                    .map(|l| Mark {
                        at: at(l),
                        vertical: true,
                        name: "drift".to_owned(),
                        color: theme::VERMILLION,
                    })
                    .collect(),
            }
        })
        .collect()
}

/// Where a figure is expected to be measured, look by look; none where no look says.
fn expected(looks: &Looks, name: &str, edge: impl Fn(&Look, f64) -> [f64; 2]) -> Option<Band> {
    let of = |l: &Look| {
        let (from, to) = l.figures.get(name)?.1.expected()?;
        Some([edge(l, from), edge(l, to)])
    };
    let pairs: Vec<[[f64; 2]; 2]> = looks.all.iter().filter_map(of).collect();
    (!pairs.is_empty()).then(|| Band {
        name: "expected".to_owned(),
        color: theme::SKY,
        pairs,
    })
}

/// A figure of the twin in words: `ttft_p50` is TTFT p50.
fn name_of(figure: &str) -> String {
    let words = figure.split('_').map(|word| match word {
        "ttft" | "tpot" | "itl" | "e2e" | "kv" => word.to_uppercase(),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Looks in which drift of a figure begins.
fn drifts<'a>(looks: &'a Looks, name: &str) -> Vec<&'a Look> {
    let is = |l: &Look| l.figures.get(name).is_some_and(|(_, f)| f.drift);
    let all = &looks.all;
    (0..all.len())
        .filter(|i| is(&all[*i]) && !i.checked_sub(1).is_some_and(|b| is(&all[b])))
        .map(|i| &all[i])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_and_predicted_share_a_chart_and_drift_is_marked_where_it_begins() {
        let look = |t: f64, drift| {
            let figure = Figure {
                measured: Some(0.05),
                predicted: Some(0.04),
                usual: Some(0.0),
                limit: Some(0.1),
                drift,
            };
            Look {
                at_unix_s: 1000.0 + t,
                compared: Some(30.0),
                figures: [
                    ("ttft_p50".to_owned(), (Unit::Seconds, figure)),
                    ("a_share".to_owned(), (Unit::Ratio, figure)),
                ]
                .into(),
            }
        };
        let looks = Looks {
            all: vec![look(0.0, false), look(30.0, true), look(60.0, true)],
            ..Looks::default()
        };
        let charts = charts(&looks);
        assert_eq!(charts[0].title, "TTFT p50");
        let line = |name: &str| charts[0].lines.iter().find(|l| l.name == name).unwrap();
        assert_eq!(line("measured").points[2], [60e9, 0.05e9]);
        assert_eq!(line("predicted").points[0], [0.0, 0.04e9]);
        let band = &charts[0].bands[0];
        assert_eq!(band.pairs.len(), 3);
        assert!(
            band.pairs
                .iter()
                .all(|[low, high]| low[1] < 0.04e9 && high[1] > 0.04e9)
        );
        assert_eq!(charts[0].marks.len(), 1);
        assert_eq!(charts[0].marks[0].at, 30e9);
    }
}
