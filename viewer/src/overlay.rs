//! What lies above the panes: the palette, the sheet of keys, the tour, messages.

use egui::{Align2, Context, Id, Key, Modal, RichText, ScrollArea, TextEdit, Ui, vec2};

use crate::commands::{self, KEYS};
use crate::state::{Action, PaneKind, State};
use crate::theme;

/// What lies above the panes.
#[derive(Default)]
pub struct Overlay {
    /// What was typed into the palette, while it is open.
    palette: Option<String>,
    chosen: usize,
    help: bool,
    tour: Option<usize>,
    messages: Vec<String>,
}

/// The steps of the tour: a pane and what to see there.
pub const TOUR: [(PaneKind, &str); 6] = [
    (
        PaneKind::Summary,
        "The summary says what came out, and what limits the deployment.",
    ),
    (
        PaneKind::Timeline,
        "The timeline has a lane per replica. Turn the wheel to zoom, drag to move, F shows all. Click + for a replica's requests, and a request for its life.",
    ),
    (
        PaneKind::Series,
        "Series follow the timeline's window: rates, queues, KV use, and what the time of steps went to.",
    ),
    (
        PaneKind::Distributions,
        "Distributions show each latency with the limit of the objective and the share that meets it.",
    ),
    (
        PaneKind::WhatIf,
        "Move a slider here: the same requests run again, and every view shows both runs.",
    ),
    (
        PaneKind::Cluster,
        "The cluster picture plays the run. Ctrl+P opens all commands, ? the keys.",
    ),
];

impl Overlay {
    /// Opens or closes the palette.
    pub fn toggle_palette(&mut self) {
        self.palette = match self.palette {
            Some(_) => None,
            None => Some(String::new()),
        };
        self.chosen = 0;
    }

    /// Opens or closes the sheet of keys.
    pub fn toggle_help(&mut self) {
        self.help = !self.help;
    }

    /// Starts the tour.
    pub fn start_tour(&mut self) {
        self.tour = Some(0);
    }

    /// Says something until it is dismissed.
    pub fn say(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.messages.contains(&text) {
            self.messages.push(text);
        }
        if self.messages.len() > 4 {
            self.messages.remove(0);
        }
    }

    /// Closes what lies on top; whether there was anything.
    pub fn close(&mut self) -> bool {
        if self.palette.take().is_some()
            || std::mem::take(&mut self.help)
            || self.tour.take().is_some()
        {
            return true;
        }
        self.messages.pop().is_some()
    }

    /// Whether keys belong to the palette.
    pub fn takes_keys(&self) -> bool {
        self.palette.is_some()
    }

    /// Shows all of it.
    pub fn ui(&mut self, ctx: &Context, state: &mut State) {
        self.palette(ctx, state);
        self.help(ctx);
        self.tour(ctx, state);
        self.messages(ctx, state);
    }

    fn palette(&mut self, ctx: &Context, state: &mut State) {
        let Some(mut text) = self.palette.take() else {
            return;
        };
        let mut found: Vec<_> = commands::all(state.time.width * 1e-9)
            .into_iter()
            .filter_map(|c| Some((commands::score(&c.name, &text)?, c)))
            .collect();
        found.sort_by_key(|(score, _)| *score);
        let mut done = false;
        let response = Modal::new(Id::unique("palette")).show(ctx, |ui| {
            ui.set_width(460.0);
            let edit = TextEdit::singleline(&mut text)
                .hint_text("type a command")
                .desired_width(f32::INFINITY);
            let edit = ui.add(edit).accessible_name("Command");
            edit.request_focus();
            if edit.changed() {
                self.chosen = 0;
            }
            let pressed = |key| ui.input(|i| i.key_pressed(key));
            let last = found.len().saturating_sub(1);
            if pressed(Key::ArrowDown) {
                self.chosen = (self.chosen + 1).min(last);
            }
            if pressed(Key::ArrowUp) {
                self.chosen = self.chosen.saturating_sub(1);
            }
            if pressed(Key::Enter)
                && let Some((_, c)) = found.get(self.chosen)
            {
                state.ask(c.action.clone());
                done = true;
            }
            ScrollArea::vertical().max_height(320.0).show(ui, |ui| {
                for (i, (_, c)) in found.iter().enumerate().take(60) {
                    let label = if c.key.is_empty() {
                        c.name.clone()
                    } else {
                        format!("{}   [{}]", c.name, c.key)
                    };
                    if ui.selectable_label(i == self.chosen, label).clicked() {
                        state.ask(c.action.clone());
                        done = true;
                    }
                }
            });
        });
        if !done && !response.should_close() {
            self.palette = Some(text);
        }
    }

    fn help(&mut self, ctx: &Context) {
        if !self.help {
            return;
        }
        let response = Modal::new(Id::unique("help")).show(ctx, |ui| {
            ui.set_width(520.0);
            ui.heading("Keys");
            egui::Grid::new("keys").num_columns(4).spacing([24.0, 3.0]).show(ui, |ui| {
                for pair in KEYS.chunks(2) {
                    for (_, key, name) in pair {
                        ui.strong(*key);
                        ui.label(*name);
                    }
                    ui.end_row();
                }
                ui.strong("Ctrl+P");
                ui.label("All commands");
                ui.strong("Ctrl+Z");
                ui.label("Undo");
                ui.end_row();
                ui.strong("Ctrl+O");
                ui.label("Open file");
                ui.strong("Ctrl + -");
                ui.label("Everything larger, smaller");
                ui.end_row();
            });
            ui.add_space(8.0);
            ui.heading("Panes");
            for (i, kind) in PaneKind::ALL.iter().enumerate() {
                let key = if i < 10 { ((i + 1) % 10).to_string() } else { "-".to_owned() };
                ui.label(format!("{key}  {}: {}", kind.title(), kind.help()));
            }
            ui.add_space(8.0);
            ui.label("Drag a tab to dock its pane elsewhere. Right click on a chart to save it as SVG, PNG or CSV.");
            ui.button("Close").clicked()
        });
        if response.inner || response.should_close() {
            self.help = false;
        }
    }

    fn tour(&mut self, ctx: &Context, state: &mut State) {
        let Some(at) = self.tour else {
            return;
        };
        let (kind, text) = TOUR[at.min(TOUR.len() - 1)];
        let mut next = None;
        egui::Window::new(format!(
            "Tour: {} ({} of {})",
            kind.title(),
            at + 1,
            TOUR.len()
        ))
        .anchor(Align2::RIGHT_BOTTOM, vec2(-16.0, -16.0))
        .collapsible(false)
        .resizable(false)
        .default_width(360.0)
        .show(ctx, |ui| {
            ui.label(text);
            ui.horizontal(|ui| {
                let label = if at + 1 < TOUR.len() {
                    "Next stop"
                } else {
                    "Done"
                };
                if ui.button(label).clicked() {
                    next = Some(at + 1);
                }
                if ui.button("End tour").clicked() {
                    next = Some(TOUR.len());
                }
            });
        });
        if let Some(n) = next {
            self.tour = (n < TOUR.len()).then_some(n);
            if let Some((kind, _)) = TOUR.get(n) {
                state.ask(Action::Show(*kind));
            }
        }
    }

    fn messages(&mut self, ctx: &Context, state: &mut State) {
        if self.messages.is_empty() {
            return;
        }
        let mut gone = None;
        egui::Window::new("Messages")
            .title_bar(false)
            .anchor(Align2::CENTER_TOP, vec2(0.0, 40.0))
            .resizable(false)
            .default_width(560.0)
            .show(ctx, |ui| {
                for (i, text) in self.messages.iter().enumerate() {
                    if message(ui, state, text) {
                        gone = Some(i);
                    }
                }
            });
        if let Some(i) = gone {
            self.messages.remove(i);
        }
    }
}

/// A message; whether it was dismissed.
fn message(ui: &mut Ui, state: &mut State, text: &str) -> bool {
    let short: String = text.chars().take(900).collect();
    ui.label(RichText::new(short).color(theme::note(ui.visuals())));
    ui.horizontal(|ui| {
        if ui.button("Copy").clicked() {
            state.ask(Action::Copy(text.to_owned()));
        }
        ui.button("Dismiss").clicked()
    })
    .inner
}
