//! The application: state, jobs, panes, and what becomes of what was asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use egui::{Context, Ui};
use egui_tiles::{Behavior, LinearDir, Tile, TileId, Tiles, Tree, UiResponse};

use crate::commands;
use crate::export;
use crate::gallery;
use crate::home::Home;
use crate::jobs::{Doc, Done, Job, Purpose, Source, Task};
use crate::knobs;
use crate::overlay::Overlay;
use crate::state::{Action, Export, PaneKind, State};
use crate::theme;
use crate::time_view::TimeView;
use crate::views::distributions::Distributions;
use crate::views::requests::Requests;
use crate::views::roofline::Roofline;
use crate::views::series::Series;
use crate::views::timeline::Timeline;
use crate::views::what_if::WhatIf;
use crate::views::{cluster, compare, knee, summary};

/// Selections and windows that can be taken back.
const MOST_UNDO: usize = 50;

/// Runs that are kept open.
const MOST_DOCS: usize = 8;

/// What each view keeps for itself.
#[derive(Default)]
struct Views {
    timeline: Timeline,
    series: Series,
    distributions: Distributions,
    requests: Requests,
    what_if: WhatIf,
    roofline: Roofline,
    compare_path: String,
}

/// The application.
pub struct App {
    /// What views share.
    pub state: State,
    views: Views,
    tree: Tree<PaneKind>,
    home: Home,
    at_home: bool,
    overlay: Overlay,
    jobs: Vec<Job>,
    undo: Vec<(TimeView, Option<u32>)>,
    dark: bool,
    styled: bool,
    /// Folder that exports go to.
    pub out_dir: PathBuf,
    /// What was copied last, for tests.
    pub copied: Option<String>,
}

impl Default for App {
    fn default() -> Self {
        App::new(PathBuf::from("."))
    }
}

impl App {
    /// An application that shows the first screen, and writes its exports into `out_dir`.
    pub fn new(out_dir: PathBuf) -> App {
        App {
            state: State::default(),
            views: Views::default(),
            tree: layout(),
            home: Home::default(),
            at_home: true,
            overlay: Overlay::default(),
            jobs: Vec::new(),
            undo: Vec::new(),
            dark: true,
            styled: false,
            out_dir,
            copied: None,
        }
    }

    /// Opens a scenario or a record.
    pub fn open(&mut self, ctx: &Context, path: &Path) {
        let name = path.display().to_string();
        self.home.opened(&name);
        self.start(ctx, Task::Open(path.to_owned()), Purpose::Show, name);
    }

    /// Shows a run that is there already.
    pub fn show(&mut self, doc: Doc) {
        let doc = Arc::new(doc);
        self.state.docs.push(doc.clone());
        if self.state.docs.len() > MOST_DOCS {
            self.state.docs.remove(0);
        }
        self.state.time = TimeView::all(doc.data.end());
        self.state.request = None;
        self.state.replica = None;
        self.state.playhead = 0.0;
        self.state.base = None;
        self.state.knee = None;
        self.state.stale = false;
        self.state.doc = Some(doc);
        self.undo.clear();
        self.views.timeline.reset();
        self.views.what_if.reset();
        self.at_home = false;
    }

    /// Dark or light.
    pub fn set_dark(&mut self, dark: bool) {
        self.dark = dark;
        self.styled = false;
    }

    /// Brings a pane to the front.
    pub fn show_pane(&mut self, kind: PaneKind) {
        self.at_home = self.at_home && self.state.doc.is_none();
        self.tree
            .make_active(|_, tile| matches!(tile, Tile::Pane(k) if *k == kind));
    }

    /// Whether something is under way.
    pub fn busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// One frame.
    pub fn ui(&mut self, ui: &mut Ui) {
        let ctx = ui.ctx().clone();
        if !self.styled {
            theme::apply(&ctx, self.dark);
            self.styled = true;
        }
        self.state.hover = None;
        self.dropped(&ctx);
        self.keys(&ctx);
        self.finished(&ctx);
        self.play(&ctx);
        egui::Panel::top("bar").show(ui, |ui| self.bar(ui));
        egui::CentralPanel::default().show(ui, |ui| {
            if self.at_home {
                self.home.ui(ui, &mut self.state);
            } else {
                let mut behavior = Panes {
                    state: &mut self.state,
                    views: &mut self.views,
                };
                self.tree.ui(&mut behavior, ui);
            }
        });
        self.overlay.ui(&ctx, &mut self.state);
        for action in std::mem::take(&mut self.state.actions) {
            self.act(&ctx, action);
        }
    }

    fn start(&mut self, ctx: &Context, task: Task, purpose: Purpose, label: impl Into<String>) {
        // The latest of a kind is what is wanted.
        for old in self.jobs.iter().filter(|j| j.purpose == purpose) {
            old.cancel();
        }
        self.jobs.retain(|j| j.purpose != purpose);
        let wake = ctx.clone();
        let job = Job::start(task, purpose, label, move || wake.request_repaint());
        self.jobs.push(job);
    }

    fn finished(&mut self, ctx: &Context) {
        let mut still = Vec::new();
        for job in std::mem::take(&mut self.jobs) {
            match job.take() {
                None => still.push(job),
                Some(done) => self.done(job.purpose, done),
            }
        }
        self.jobs = still;
        if self.busy() {
            ctx.request_repaint_after_secs(0.1);
        }
    }

    fn done(&mut self, purpose: Purpose, done: Done) {
        self.state.stale &= purpose != Purpose::WhatIf;
        match (purpose, done) {
            (Purpose::WhatIf, Done::Doc(doc)) => {
                if self.state.base.is_none() {
                    self.state.base.clone_from(&self.state.doc);
                }
                self.replace(Arc::new(*doc));
            }
            (Purpose::Compare, Done::Doc(doc)) => {
                let doc = Arc::new(*doc);
                self.state.docs.push(doc.clone());
                self.state.base = Some(doc);
                self.views.what_if.reset();
            }
            (_, Done::Doc(doc)) => self.show(*doc),
            (_, Done::Knee(points)) => self.state.knee = Some(points),
            (_, Done::Failed(text)) => self.overlay.say(text),
            (_, Done::Cancelled) => {}
        }
    }

    /// Shows another run of the same deployment; window and selection stay.
    fn replace(&mut self, doc: Arc<Doc>) {
        let whole = self.state.time.is_all();
        let (start, width) = (self.state.time.start, self.state.time.width);
        self.state.time = TimeView::all(doc.data.end());
        if !whole {
            self.state.time.set(start, start + width);
        }
        let replicas = doc.data.replicas();
        self.state.replica = self.state.replica.filter(|r| *r < replicas);
        self.views.timeline.reset();
        self.state.doc = Some(doc);
    }

    fn bar(&mut self, ui: &mut Ui) {
        ui.horizontal_wrapped(|ui| {
            if ui
                .button("Scenarios")
                .on_hover_text("Key H: the first screen")
                .clicked()
            {
                self.state.ask(Action::Home);
            }
            if let Some(doc) = &self.state.doc {
                if self.at_home && ui.button("Back to the run").clicked() {
                    self.at_home = false;
                }
                ui.strong(&doc.title);
                if self.state.base.is_some() {
                    ui.label("(compared)");
                    if ui.button("Drop comparison").clicked() {
                        self.state.ask(Action::DropWhatIf);
                    }
                }
            } else {
                ui.strong("servetwin viewer");
            }
            for job in &self.jobs {
                ui.separator();
                ui.spinner();
                let text = match job.progress() {
                    Some(p) => format!("{}: {:.0} %", job.label, 100.0 * p),
                    None => format!("{}: {} requests", job.label, job.ended()),
                };
                ui.label(text);
                if ui.button("Cancel").clicked() {
                    self.state.actions.push(Action::Cancel);
                }
            }
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                if ui.button("?").on_hover_text("Keys").clicked() {
                    self.state.ask(Action::Help);
                }
                if ui.button("Commands").on_hover_text("Ctrl+P").clicked() {
                    self.state.ask(Action::Palette);
                }
                let theme = if self.dark { "Light" } else { "Dark" };
                if ui.button(theme).on_hover_text("Key L").clicked() {
                    self.state.ask(Action::Theme);
                }
            });
        });
    }

    fn dropped(&mut self, ctx: &Context) {
        let files = ctx.input(|i| i.raw.dropped_files.clone());
        for file in files {
            self.open(ctx, file.path());
        }
    }

    fn keys(&mut self, ctx: &Context) {
        if self.overlay.takes_keys() {
            return;
        }
        let typing = ctx.text_edit_focused();
        let pressed: Vec<(egui::Key, egui::Modifiers)> = ctx.input(|i| {
            let of = |e: &egui::Event| match e {
                egui::Event::Key {
                    key,
                    pressed: true,
                    modifiers,
                    ..
                } => Some((*key, *modifiers)),
                _ => None,
            };
            i.events.iter().filter_map(of).collect()
        });
        for (key, modifiers) in pressed {
            if key == egui::Key::Escape {
                if !self.overlay.close() {
                    self.state.ask(Action::Select(None));
                }
                continue;
            }
            if typing && !modifiers.command {
                continue;
            }
            let window_s = self.state.time.width * 1e-9;
            if let Some(action) = commands::of_key(key, modifiers, window_s) {
                // A button or a slider that has the focus takes these for itself.
                let own = [
                    egui::Key::Space,
                    egui::Key::ArrowLeft,
                    egui::Key::ArrowRight,
                ];
                if own.contains(&key) && ctx.memory(|m| m.focused()).is_some() {
                    continue;
                }
                self.state.ask(action);
            }
        }
    }

    fn play(&mut self, ctx: &Context) {
        if !self.state.playing {
            return;
        }
        let dt = f64::from(ctx.input(|i| i.stable_dt).min(0.1));
        self.state.playhead += dt * self.state.speed * 1e9;
        if self.state.playhead >= self.state.time.end {
            self.state.playhead = self.state.time.end;
            self.state.playing = false;
        }
        self.state.time.follow(self.state.playhead);
        ctx.request_repaint();
    }

    fn remember(&mut self) {
        self.undo.push((self.state.time, self.state.request));
        if self.undo.len() > MOST_UNDO {
            self.undo.remove(0);
        }
    }

    fn act(&mut self, ctx: &Context, action: Action) {
        match action {
            Action::RunShipped(i) => self.run_shipped(ctx, i),
            Action::Open(path) => self.open(ctx, Path::new(&path)),
            Action::OpenCompare(path) => {
                self.start(ctx, Task::Open(path.clone().into()), Purpose::Compare, path);
            }
            Action::Home => self.at_home = true,
            Action::Show(kind) => self.show_pane(kind),
            Action::Theme => self.set_dark(!self.dark),
            Action::Help => self.overlay.toggle_help(),
            Action::Palette => self.overlay.toggle_palette(),
            Action::Tour => self.overlay.start_tour(),
            Action::WhatIf(sets) => self.what_if(ctx, sets),
            Action::DropWhatIf => self.drop_what_if(),
            Action::Sweep => self.sweep(ctx),
            Action::CompareWith(i) => {
                self.state.base = self.state.docs.get(i).cloned();
                self.views.what_if.reset();
            }
            Action::Cancel => self.cancel(),
            Action::Export(export) => self.export(ctx, export),
            Action::Copy(text) => {
                ctx.copy_text(text.clone());
                self.copied = Some(text);
            }
            Action::Say(text) => self.overlay.say(text),
            other => self.navigate(other),
        }
        ctx.request_repaint();
    }

    /// What changes the window, the selection or the playhead.
    fn navigate(&mut self, action: Action) {
        if !matches!(action, Action::Undo | Action::Play | Action::Step(_)) {
            self.remember();
        }
        let state = &mut self.state;
        match action {
            Action::Zoom(factor) => {
                let at = state
                    .hover
                    .unwrap_or(state.time.start + 0.5 * state.time.width);
                state.time.zoom(factor, at);
            }
            Action::Pan(share) => state.time.pan(share),
            Action::ShowAll => state.time.reset(),
            Action::Select(id) => {
                state.request = id;
                if id.is_some() {
                    self.show_pane(PaneKind::Requests);
                }
            }
            Action::Neighbour(forward) => {
                let run = state.run();
                let next = state
                    .request
                    .zip(run)
                    .and_then(|(id, r)| r.neighbour(id, forward));
                state.request = next.or(state.request);
            }
            Action::Fit => {
                let found = state.run().zip(state.request);
                if let Some((run, id)) = found
                    && let Some(r) = run.request(id)
                {
                    let (a, b) = (r.arrival.0 as f64, r.end.0.min(run.end()) as f64);
                    let room = 0.15 * (b - a).max(1e6);
                    state.time.set(a - room, b + room);
                    self.show_pane(PaneKind::Timeline);
                }
            }
            Action::Undo => {
                if let Some((time, request)) = self.undo.pop() {
                    state.time = time;
                    state.request = request;
                }
            }
            Action::Play => {
                state.playing = !state.playing && state.doc.is_some();
                if state.playing && state.playhead >= state.time.end {
                    state.playhead = 0.0;
                }
            }
            Action::Step(seconds) => {
                state.playing = false;
                state.playhead = (state.playhead + seconds * 1e9).clamp(0.0, state.time.end);
            }
            _ => {}
        }
    }

    fn run_shipped(&mut self, ctx: &Context, i: usize) {
        let Some((name, text)) = gallery::SHIPPED.get(i) else {
            return;
        };
        let source = Source {
            origin: gallery::origin(i),
            text: (*text).to_owned(),
            files: gallery::bundle(),
            overrides: Vec::new(),
        };
        self.start(ctx, Task::Run(source), Purpose::Show, *name);
    }

    fn what_if(&mut self, ctx: &Context, sets: Vec<String>) {
        let Some(doc) = self.state.base.as_ref().or(self.state.doc.as_ref()) else {
            return;
        };
        let mut source = doc.source.clone();
        source.overrides.extend(sets);
        self.state.stale = true;
        self.start(ctx, Task::Run(source), Purpose::WhatIf, "what if");
    }

    fn drop_what_if(&mut self) {
        for job in self.jobs.iter().filter(|j| j.purpose == Purpose::WhatIf) {
            job.cancel();
        }
        self.jobs.retain(|j| j.purpose != Purpose::WhatIf);
        self.state.stale = false;
        if let Some(base) = self.state.base.take() {
            // A comparison keeps the run that is shown; a variation gives way to what it varied.
            if self
                .state
                .doc
                .as_ref()
                .is_some_and(|d| d.source.overrides.len() > base.source.overrides.len())
            {
                self.replace(base);
            }
        }
        self.views.what_if.reset();
    }

    fn sweep(&mut self, ctx: &Context) {
        let Some(doc) = self.state.doc.clone() else {
            return;
        };
        let keys = knobs::rates(&doc.data.record.info.scenario);
        if keys.is_empty() {
            self.overlay.say("this scenario has no request rate to sweep: its load is a trace, a burst or a number of users");
            return;
        }
        let task = Task::Knee {
            source: doc.source.clone(),
            keys,
        };
        self.start(ctx, task, Purpose::Knee, "load sweep");
    }

    fn cancel(&mut self) {
        for job in &self.jobs {
            job.cancel();
        }
        self.jobs.clear();
        self.state.stale = false;
    }

    fn export(&mut self, ctx: &Context, export: Export) {
        let dir = self.out_dir.clone();
        let said = match export {
            Export::Text { name, text } => export::text(&dir, &name, &text),
            Export::Record => match &self.state.doc {
                Some(doc) => export::record(&dir, &doc.title, &doc.data.record),
                None => return,
            },
            Export::Png => {
                export::png(ctx, &dir.join("servetwin.png"));
                Ok(format!(
                    "the picture goes to {}",
                    dir.join("servetwin.png").display()
                ))
            }
        };
        self.overlay.say(said.unwrap_or_else(|e| e));
    }
}

/// The timeline on top with its series below, everything else beside them.
fn layout() -> Tree<PaneKind> {
    use PaneKind as P;
    let mut tiles = Tiles::default();
    let mut tabs = |kinds: &[PaneKind]| -> TileId {
        let panes = kinds.iter().map(|k| tiles.insert_pane(*k)).collect();
        tiles.insert_tab_tile(panes)
    };
    let top = tabs(&[P::Timeline, P::Cluster]);
    let below = tabs(&[P::Series, P::Distributions, P::Knee, P::Roofline]);
    let right = tabs(&[P::Summary, P::WhatIf, P::Requests, P::Compare]);
    let left = tiles.insert_vertical_tile(vec![top, below]);
    let root = tiles.insert_horizontal_tile(vec![left, right]);
    if let Some(Tile::Container(egui_tiles::Container::Linear(linear))) = tiles.get_mut(root) {
        debug_assert_eq!(linear.dir, LinearDir::Horizontal);
        linear.shares.set_share(left, 0.64);
        linear.shares.set_share(right, 0.36);
    }
    Tree::new(egui::Id::unique("panes"), root, tiles)
}

struct Panes<'a> {
    state: &'a mut State,
    views: &'a mut Views,
}

impl Behavior<PaneKind> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _tile: TileId, pane: &mut PaneKind) -> UiResponse {
        let (state, views) = (&mut *self.state, &mut *self.views);
        egui::Frame::default()
            .inner_margin(6)
            .show(ui, |ui| match pane {
                PaneKind::Summary => summary::ui(ui, state),
                PaneKind::Timeline => views.timeline.ui(ui, state),
                PaneKind::Series => views.series.ui(ui, state),
                PaneKind::Distributions => views.distributions.ui(ui, state),
                PaneKind::Requests => views.requests.ui(ui, state),
                PaneKind::WhatIf => views.what_if.ui(ui, state),
                PaneKind::Compare => compare::ui(ui, state, &mut views.compare_path),
                PaneKind::Knee => knee::ui(ui, state),
                PaneKind::Roofline => views.roofline.ui(ui, state),
                PaneKind::Cluster => cluster::ui(ui, state),
            });
        UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &PaneKind) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> egui_tiles::SimplificationOptions {
        egui_tiles::SimplificationOptions {
            all_panes_must_have_tabs: true,
            ..Default::default()
        }
    }
}
