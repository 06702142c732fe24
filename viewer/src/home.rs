//! The first screen: the shipped scenarios, and how to open your own.

use egui::{RichText, ScrollArea, Sense, Stroke, StrokeKind, TextEdit, Ui, vec2};

use crate::gallery::{Card, SHELVES, SHIPPED, cards};
use crate::recent::Recent;
use crate::state::{Action, State};
use crate::theme;
use crate::thumb::Thumb;
use crate::views;

/// The first screen.
pub struct Home {
    cards: Vec<Card>,
    find: String,
    path: String,
    /// Files that were opened before.
    pub recent: Recent,
    /// Pictures of the shipped scenarios, by index.
    pub thumbs: Vec<Option<Thumb>>,
}

impl Default for Home {
    fn default() -> Self {
        Home {
            thumbs: vec![None; SHIPPED.len()],
            cards: cards(),
            find: String::new(),
            path: String::new(),
            recent: Recent::default(),
        }
    }
}

impl Home {
    /// The scenario whose picture is to be made next, in the order of the screen.
    pub fn next_thumb(&self) -> Option<usize> {
        let mut all = self.cards.iter().map(|c| c.index);
        all.find(|i| self.thumbs[*i].is_none())
    }

    /// Shows it.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        ScrollArea::vertical().id_salt("home").auto_shrink(false).show(ui, |ui| {
            ui.add_space(8.0);
            ui.heading("See why a deployment behaves as it does");
            ui.label("Click a scenario: it runs here and opens as a picture. Or drop a scenario, a record, the result of a plan or a sweep, or a measured benchmark on this window.");
            ui.add_space(6.0);
            self.open(ui, state);
            ui.add_space(4.0);
            let edit = TextEdit::singleline(&mut self.find).hint_text("find: model, machine, engine").desired_width(320.0);
            ui.horizontal_wrapped(|ui| {
                ui.add(edit).accessible_name("Find a scenario");
                let about = RichText::new("pictures: what the time of steps goes to").small();
                ui.label(about.color(theme::faint(ui.visuals())));
                for (color, name) in theme::CAUSES.into_iter().zip(theme::CAUSE_NAMES) {
                    views::legend_entry(ui, color, name);
                }
            });
            let wanted = self.find.trim().to_lowercase();
            for shelf in SHELVES {
                let on_it: Vec<&Card> = self
                    .cards
                    .iter()
                    .filter(|c| c.shelf == shelf && matches(c, &wanted))
                    .collect();
                if on_it.is_empty() {
                    continue;
                }
                ui.add_space(10.0);
                ui.strong(shelf);
                let columns = ((ui.available_width() / 330.0) as usize).max(1);
                let width = ui.available_width() / columns as f32 - 8.0;
                for row in on_it.chunks(columns) {
                    ui.horizontal(|ui| {
                        for card in row {
                            tile(ui, state, card, self.thumbs[card.index].as_ref(), width);
                        }
                    });
                }
            }
        });
    }

    fn open(&mut self, ui: &mut Ui, state: &mut State) {
        ui.horizontal_wrapped(|ui| {
            if !cfg!(target_arch = "wasm32") {
                self.by_path(ui, state);
            }
            if ui.button("Open file ...").clicked() {
                state.ask(Action::Pick);
            }
            if ui.button("Tour of a minute").clicked() {
                if state.doc.is_none() {
                    state.ask(Action::RunShipped(self.cards[0].index));
                }
                state.ask(Action::Tour);
            }
        });
        if !self.recent.names.is_empty() {
            ui.horizontal_wrapped(|ui| {
                ui.label("Recent:");
                for path in &self.recent.names {
                    if ui.link(path).clicked() {
                        state.ask(Action::Open(path.clone()));
                    }
                }
            });
        }
    }
}

impl Home {
    /// A path to open. A page cannot read one.
    fn by_path(&mut self, ui: &mut Ui, state: &mut State) {
        let edit = TextEdit::singleline(&mut self.path)
            .hint_text("path of a file, or of a folder of bench --csv")
            .desired_width(320.0);
        let entered = ui.add(edit).accessible_name("Path to open").lost_focus()
            && ui.input(|i| i.key_pressed(egui::Key::Enter));
        if (ui.button("Open").clicked() || entered) && !self.path.trim().is_empty() {
            state.ask(Action::Open(self.path.trim().to_owned()));
        }
    }
}

fn matches(card: &Card, wanted: &str) -> bool {
    wanted.split_whitespace().all(|w| {
        card.name.contains(w)
            || card.description.to_lowercase().contains(w)
            || card.tags.iter().any(|t| t.to_lowercase().contains(w))
    })
}

/// Width of a picture on a card [points].
const THUMB_W: f32 = 84.0;

fn tile(ui: &mut Ui, state: &mut State, card: &Card, thumb: Option<&Thumb>, width: f32) {
    let (rect, response) = ui.allocate_exact_size(vec2(width, 92.0), Sense::click());
    response.widget_info(|| {
        egui::WidgetInfo::labeled(egui::Role::Button, true, format!("Run {}", card.name))
    });
    if ui.is_rect_visible(rect) {
        let visuals = ui.visuals();
        let (fill, edge) = if response.hovered() {
            (visuals.widgets.hovered.weak_bg_fill, theme::SKY)
        } else {
            (visuals.faint_bg_color, theme::grid(visuals))
        };
        ui.painter()
            .rect(rect, 6.0, fill, Stroke::new(1.0, edge), StrokeKind::Inside);
        let mut words = rect;
        if let Some(thumb) = thumb {
            words.max.x -= THUMB_W + 4.0;
            let at = egui::pos2(rect.right() - THUMB_W - 8.0, rect.top() + 10.0);
            let size = vec2(THUMB_W, rect.height() - 20.0);
            thumb.paint(ui.painter(), egui::Rect::from_min_size(at, size));
        }
        let mut inside = ui.new_child(
            egui::UiBuilder::new()
                .layout(egui::Layout::top_down(egui::Align::Min))
                .max_rect(words.shrink2(vec2(10.0, 7.0))),
        );
        inside.set_clip_rect(words.shrink(4.0).intersect(ui.clip_rect()));
        inside.spacing_mut().item_spacing.y = 2.0;
        inside.add(
            egui::Label::new(RichText::new(card.name).strong())
                .truncate()
                .selectable(false),
        );
        let faint = theme::faint(inside.visuals());
        inside.add(
            egui::Label::new(
                RichText::new(card.tags.join(" · "))
                    .small()
                    .color(theme::SKY),
            )
            .truncate()
            .selectable(false),
        );
        let description: String = card.description.chars().take(150).collect();
        let dots = if card.description.chars().count() > 150 {
            "..."
        } else {
            ""
        };
        inside.add(
            egui::Label::new(RichText::new(description + dots).small().color(faint))
                .wrap()
                .selectable(false),
        );
    }
    if response.on_hover_text(&card.description).clicked() {
        state.ask(Action::RunShipped(card.index));
    }
}
