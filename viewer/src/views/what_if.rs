//! Sliders that run the scenario again, with figures before and after.

use egui::{RichText, Slider, Ui};

use crate::format;
use crate::knobs::{self, Knobs, Unit};
use crate::state::{Action, Export, State};
use crate::theme;
use crate::views::compare;

/// What the view keeps for itself.
#[derive(Default)]
pub struct WhatIf {
    /// The scenario that the knobs are of.
    origin: Option<String>,
    knobs: Knobs,
    /// What was asked for last.
    asked: Vec<String>,
    instances: Vec<String>,
}

impl WhatIf {
    /// Another run is shown, not a variation of this one.
    pub fn reset(&mut self) {
        self.origin = None;
    }

    /// Puts the sliders where a variation with `sets` has them.
    pub fn put(&mut self, sets: &[String]) {
        self.knobs.put(sets);
        self.asked = sets.to_vec();
    }

    /// Shows sliders and figures.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(doc) = state.varied.clone().or_else(|| state.doc.clone()) else {
            return super::empty(ui, "Open a run first.");
        };
        if self.origin.is_none() {
            if self.instances.is_empty() {
                self.instances = instances();
            }
            self.knobs = knobs::knobs(&doc.data.record.info.scenario, &self.instances);
            self.asked.clear();
            self.origin = Some(doc.source.origin.clone());
        }
        egui::ScrollArea::vertical().id_salt("what-if").auto_shrink(false).show(ui, |ui| {
            let settled = self.sliders(ui);
            let sets = self.knobs.sets();
            if settled && sets != self.asked {
                self.asked.clone_from(&sets);
                state.ask(if sets.is_empty() {
                    Action::DropWhatIf
                } else {
                    Action::WhatIf(sets.clone())
                });
            }
            self.buttons(ui, state, &doc.source.origin, &sets);
            ui.separator();
            match (&state.varied, &state.doc) {
                (Some(before), Some(after)) => {
                    if let Some(seconds) = state.answered_s {
                        let text = format!("answered in {}", format::duration(seconds * 1e9));
                        ui.label(RichText::new(text).color(theme::faint(ui.visuals())));
                    }
                    compare::table(ui, &before.data.record.report, &after.data.record.report, state.stale);
                }
                _ => {
                    let hint = "Move a slider: the scenario runs again with the same requests, and the figures before and after stand here.";
                    ui.label(RichText::new(hint).color(theme::faint(ui.visuals())));
                }
            }
        });
    }

    /// Whether a slider was let go or a choice was made.
    fn sliders(&mut self, ui: &mut Ui) -> bool {
        let mut settled = false;
        ui.spacing_mut().slider_width = (ui.available_width() * 0.4).clamp(120.0, 320.0);
        for knob in &mut self.knobs.knobs {
            let (low, high) = knob.range;
            let (suffix, unit) = (knob.suffix(), knob.unit);
            let mut slider = Slider::new(&mut knob.now, low..=high)
                .text(knob.label.clone())
                .suffix(suffix)
                .logarithmic(high / low.max(1e-9) > 20.0);
            slider = match unit {
                Unit::Whole => slider.integer(),
                Unit::Share => slider.max_decimals(3),
                Unit::Rate | Unit::Millis => slider.max_decimals(2),
            };
            let response = ui.add(slider).on_hover_text(format!(
                "{} (was {})",
                knob.key,
                knob.words(knob.was)
            ));
            settled |= response.changed() || response.drag_stopped();
        }
        for choice in &mut self.knobs.choices {
            let before = choice.now.clone();
            egui::ComboBox::from_label(choice.label.clone())
                .selected_text(choice.now.clone())
                .show_ui(ui, |ui| {
                    for option in &choice.options {
                        ui.selectable_value(&mut choice.now, option.clone(), option.as_str());
                    }
                });
            settled |= choice.now != before;
        }
        settled
    }

    fn buttons(&mut self, ui: &mut Ui, state: &mut State, origin: &str, sets: &[String]) {
        ui.horizontal_wrapped(|ui| {
            if ui
                .add_enabled(!sets.is_empty(), egui::Button::new("Put back"))
                .clicked()
            {
                self.knobs.reset();
                self.asked.clear();
                state.ask(Action::DropWhatIf);
            }
            if ui.button("Copy as command").clicked() {
                state.ask(Action::Copy(knobs::command(origin, sets)));
            }
            if ui.button("Save as scenario").clicked()
                && let Some(doc) = state.varied.as_ref().or(state.doc.as_ref())
            {
                let mut source = doc.source.clone();
                source.overrides.extend(sets.iter().cloned());
                match source.scenario() {
                    Ok(scenario) => state.ask(Action::Export(Export::Text {
                        name: format!("{}-what-if.toml", scenario.name.replace(['/', ' '], "-")),
                        text: scenario.show(),
                    })),
                    Err(e) => state.ask(Action::Say(e)),
                }
            }
        });
    }
}

/// Names of the instances that the catalog has.
fn instances() -> Vec<String> {
    hwmodels::Catalog::builtin()
        .instances()
        .map(|i| i.name.clone())
        .collect()
}
