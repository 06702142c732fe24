//! The figures of the run, and what limits it.

use egui::{RichText, Ui};
use sim::metrics::Metric;
use sim::report::{RunReport, doubt};

use crate::format;
use crate::run_data::metric_name;
use crate::state::{Action, Export, PaneKind, State};
use crate::theme;

/// Shows the figures.
pub fn ui(ui: &mut Ui, state: &mut State) {
    let Some(doc) = state.doc.clone() else {
        return super::empty(ui, "Open a run first.");
    };
    let r = &doc.data.record.report;
    egui::ScrollArea::vertical()
        .id_salt("summary")
        .auto_shrink(false)
        .show(ui, |ui| {
            ui.heading(&r.name);
            ui.label(RichText::new(&r.deployment).color(theme::faint(ui.visuals())));
            ui.label(RichText::new(&r.load).color(theme::faint(ui.visuals())));
            ui.add_space(4.0);
            ui.label(&r.diagnosis.text);
            for line in headline(r) {
                ui.label(line);
            }
            let ranges = doubt::in_words(r);
            if !ranges.is_empty() {
                ui.label(format!("90 % range: {ranges}"));
            }
            latencies(ui, r);
            bound(ui, r);
            ui.add_space(6.0);
            for warning in &r.warnings {
                ui.label(
                    RichText::new(format!("Note: {warning}")).color(theme::note(ui.visuals())),
                );
            }
            if let Some(thinned) = doc.data.record.info.thinned() {
                ui.label(
                    RichText::new(format!("This picture {thinned}."))
                        .color(theme::note(ui.visuals())),
                );
            }
            ui.add_space(6.0);
            ui.horizontal_wrapped(|ui| {
                if ui.button("Slowest requests").clicked() {
                    state.ask(Action::Show(PaneKind::Requests));
                }
                if ui.button("What if").clicked() {
                    state.ask(Action::Show(PaneKind::WhatIf));
                }
                if ui
                    .button("Save record")
                    .on_hover_text("A .servetwin file that servetwin view and report open")
                    .clicked()
                {
                    state.ask(Action::Export(Export::Record));
                }
                if ui
                    .button("Perfetto trace")
                    .on_hover_text("Runs it again and writes its first 2000 requests and their steps for ui.perfetto.dev")
                    .clicked()
                {
                    state.ask(Action::Export(Export::Perfetto));
                }
                if ui
                    .button("HTML report")
                    .on_hover_text("Copies the command that writes this run as a page, which opens without a server or network")
                    .clicked()
                {
                    state.ask(Action::CopyReport);
                }
            });
            provenance(ui, state, &doc);
        });
}

/// The first figures, a line each.
pub fn headline(r: &RunReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{} of {} requests finished in {}; {} req/s, {} output tokens/s.",
        format::count(r.requests.finished),
        format::count(r.requests.offered),
        format::duration(r.duration_s * 1e9),
        format::figures(r.throughput.requests_per_s),
        format::figures(r.throughput.output_tokens_per_s),
    )];
    if let Some(met) = r.slo.met_ratio {
        let holds = if r.slo.holds == Some(true) {
            "holds"
        } else {
            "does not hold"
        };
        lines.push(format!(
            "{} of the requests met the objective: it {holds}.",
            format::percent(met)
        ));
    }
    if let (Some(hour), per) = (r.cost.usd_per_hour, r.cost.usd_per_million_output_tokens) {
        let per = per.map_or(String::new(), |p| {
            format!(", {} USD per million output tokens", format::figures(p))
        });
        lines.push(format!("{} USD/h{per}.", format::figures(hour)));
    }
    lines.push(format!(
        "KV cache: {} on average, {} at most. Replicas busy {} of the time.",
        format::percent(r.kv.mean_ratio),
        format::percent(r.kv.peak_ratio),
        format::percent(r.replicas.busy_ratio)
    ));
    lines
}

fn latencies(ui: &mut Ui, r: &RunReport) {
    ui.add_space(6.0);
    egui::Grid::new("latencies")
        .striped(true)
        .num_columns(6)
        .spacing([14.0, 3.0])
        .show(ui, |ui| {
            for title in ["", "mean", "p50", "p90", "p99", "n"] {
                ui.strong(title);
            }
            ui.end_row();
            for m in [
                Metric::Ttft,
                Metric::Itl,
                Metric::Tpot,
                Metric::E2e,
                Metric::Queue,
            ] {
                let s = r.latency(m);
                ui.label(metric_name(m));
                for v in [s.mean, s.p50, s.p90, s.p99] {
                    ui.label(format::ms(v));
                }
                ui.label(format::figures(s.n as f64));
                ui.end_row();
            }
        });
}

/// What the time went to, as a bar with words.
fn bound(ui: &mut Ui, r: &RunReport) {
    let b = &r.bound_by;
    let shares = [
        b.weights,
        b.kv,
        b.compute,
        b.communication,
        b.host,
        b.bubble,
    ];
    ui.add_space(6.0);
    ui.strong("What the time went to");
    let (rect, _) = ui.allocate_exact_size(
        egui::vec2(ui.available_width().min(520.0), 16.0),
        egui::Sense::hover(),
    );
    ui.painter()
        .rect_filled(rect, 2.0, ui.visuals().extreme_bg_color);
    let mut x = rect.left();
    for (share, color) in shares.iter().zip(theme::CAUSES) {
        let w = rect.width() * (*share as f32).clamp(0.0, 1.0);
        let part =
            egui::Rect::from_min_size(egui::pos2(x, rect.top()), egui::vec2(w, rect.height()));
        ui.painter().rect_filled(part, 0.0, color);
        x += w;
    }
    let words: Vec<String> = shares
        .iter()
        .zip(theme::CAUSE_NAMES)
        .filter(|(s, _)| **s >= 0.005)
        .map(|(s, name)| format!("{name} {}", format::percent(*s)))
        .chain((b.idle >= 5e-4).then(|| format!("idle {}", format::percent(b.idle))))
        .collect();
    ui.small(words.join(", "));
}

fn provenance(ui: &mut Ui, state: &mut State, doc: &crate::jobs::Doc) {
    let record = &doc.data.record;
    ui.collapsing("Where this comes from", |ui| {
        ui.label(format!(
            "{}, servetwin {}, seed {}, fingerprint {}",
            doc.source.origin, record.info.version, record.report.seed, record.report.fingerprint
        ));
        for p in &record.report.profiles {
            let trust = if p.trusted {
                "validated"
            } else {
                "not validated"
            };
            ui.label(format!("profile {} ({trust}): {}", p.name, p.note));
        }
        for a in &record.report.accuracy {
            ui.label(format!(
                "{} of {}: median error {} over {} rows",
                a.metric,
                a.set,
                format::percent(a.median_error_ratio),
                a.n
            ));
        }
        if ui.button("Copy as command").clicked() {
            state.ask(Action::Copy(crate::knobs::command(
                &doc.source.origin,
                &doc.source.overrides,
            )));
        }
        ui.collapsing("Scenario, with every default", |ui| {
            ui.add(
                egui::Label::new(RichText::new(&record.info.scenario).monospace())
                    .wrap_mode(egui::TextWrapMode::Extend),
            );
        });
    });
}
