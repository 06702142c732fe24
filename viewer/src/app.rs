//! The application: state, jobs, panes, and what becomes of what was asked for.

mod act;
mod panes;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use egui::{Context, Ui};
use egui_tiles::{Tile, Tree};
use panes::{Panes, Views, layout};

use crate::commands;
use crate::gallery;
use crate::home::Home;
use crate::inbox::{Arrived, Inbox};
use crate::jobs::{Doc, Done, Job, Purpose, Task};
use crate::live::Client;
use crate::overlay::Overlay;
use crate::recent::Recent;
use crate::state::{Action, PaneKind, State};
use crate::theme;
use crate::thumb::Thumb;
use crate::time_view::TimeView;

/// Runs that are kept open.
const MOST_DOCS: usize = 8;

/// Requests of the runs that pictures of the first screen are of.
const THUMB_REQUESTS: u32 = 150;

/// A picture of before is dimmed when the new one is not there after this [s].
const DIM_AFTER: f64 = 0.15;

/// What can be taken back.
enum Past {
    /// The window and the request that was selected.
    Look(TimeView, Option<u32>),
    /// What a variation set.
    Sets(Vec<String>),
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
    /// When the what-if under way was started [s], and the one that is wanted after it.
    asked_at: f64,
    wanted: Option<Vec<String>>,
    /// What the variation that is shown, or under way, sets.
    sets: Vec<String>,
    /// Files that are held against the first one when that is open.
    pending: VecDeque<String>,
    inbox: Inbox,
    undo: Vec<Past>,
    dark: bool,
    styled: bool,
    /// Folder that exports go to.
    pub out_dir: PathBuf,
    /// What was copied last, for tests.
    pub copied: Option<String>,
    /// Whether the first screen makes pictures of the scenarios.
    pub thumbnails: bool,
    /// The scenario whose picture is being made.
    thumb: usize,
    twin: Option<Client>,
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
            asked_at: 0.0,
            wanted: None,
            sets: Vec::new(),
            pending: VecDeque::new(),
            inbox: Inbox::default(),
            undo: Vec::new(),
            dark: true,
            styled: false,
            out_dir,
            copied: None,
            thumbnails: false,
            thumb: 0,
            twin: None,
        }
    }

    /// Opens a scenario or a record.
    pub fn open(&mut self, ctx: &Context, path: &Path) {
        let name = path.display().to_string();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.home.recent.opened(&absolute.display().to_string());
        self.start(ctx, Task::Open(path.to_owned()), Purpose::Show, name);
    }

    /// Opens the first of several files; the others are held against it.
    pub fn open_all(&mut self, ctx: &Context, paths: impl IntoIterator<Item = String>) {
        let mut paths = paths.into_iter();
        if let Some(first) = paths.next() {
            self.open(ctx, Path::new(&first));
            self.pending = paths.collect();
        }
    }

    /// Opens the bytes of a file of this name.
    pub fn open_bytes(&mut self, ctx: &Context, name: String, bytes: Vec<u8>) {
        let task = Task::Bytes(name.clone(), bytes);
        self.start(ctx, task, Purpose::Show, name);
    }

    /// Remembers in `file` what was opened, also for the next time.
    pub fn keep_recent(&mut self, file: PathBuf) {
        self.home.recent = Recent::kept_in(file);
    }

    /// Where files are put that were read elsewhere.
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
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
        self.state.varied = None;
        self.state.more.clear();
        self.state.knee = None;
        self.state.stale = false;
        self.state.doc = Some(doc);
        self.undo.clear();
        self.sets.clear();
        self.views.timeline.begin();
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
        // A plan or a twin is there without a run.
        let alone = matches!(kind, PaneKind::Pareto | PaneKind::Live);
        self.at_home = self.at_home && self.state.doc.is_none() && !alone;
        self.tree
            .make_active(|_, tile| matches!(tile, Tile::Pane(k) if *k == kind));
    }

    /// Whether something is under way.
    pub fn busy(&self) -> bool {
        !self.pending.is_empty() || self.jobs.iter().any(|j| j.purpose != Purpose::Thumb)
    }

    /// Pictures on the first screen.
    pub fn thumbs(&self) -> usize {
        self.home.thumbs.iter().flatten().count()
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
        let now = ctx.input(|i| i.time);
        self.state.dim = self.state.stale && now - self.asked_at > DIM_AFTER;
        self.play(&ctx);
        self.thumbnail(&ctx);
        if let Some(twin) = &self.twin {
            self.state.looks = Some(twin.looks());
        }
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
        for file in self.inbox.take() {
            match file {
                Ok(Arrived::Bytes(name, bytes)) => self.open_bytes(ctx, name, bytes),
                Ok(Arrived::Path(path)) => self.open(ctx, &path),
                Err(why) => self.overlay.say(why),
            }
        }
        let mut still = Vec::new();
        for job in std::mem::take(&mut self.jobs) {
            match job.take() {
                None => still.push(job),
                Some(done) => {
                    if job.purpose == Purpose::WhatIf {
                        let now = ctx.input(|i| i.time);
                        self.state.answered_s = Some(now - self.asked_at);
                    }
                    self.done(job.purpose, done);
                }
            }
        }
        self.jobs = still;
        if let Some(sets) = self.wanted.take() {
            self.what_if(ctx, sets);
        }
        let opens = |j: &Job| matches!(j.purpose, Purpose::Show | Purpose::Compare);
        if !self.jobs.iter().any(opens)
            && let Some(path) = self.pending.pop_front()
        {
            self.start(ctx, Task::Open(path.clone().into()), Purpose::Compare, path);
        }
        if !self.jobs.is_empty() {
            ctx.request_repaint_after_secs(DIM_AFTER as f32);
        }
    }

    /// Makes the next picture of the first screen while nothing else is to be done.
    fn thumbnail(&mut self, ctx: &Context) {
        if !self.thumbnails || !self.at_home || !self.jobs.is_empty() {
            return;
        }
        if let Some(i) = self.home.next_thumb() {
            self.thumb = i;
            let mut source = gallery::source(i);
            source
                .overrides
                .push(format!("run.requests={THUMB_REQUESTS}"));
            self.start(
                ctx,
                Task::Run(source),
                Purpose::Thumb,
                gallery::SHIPPED[i].0,
            );
        }
    }

    fn done(&mut self, purpose: Purpose, done: Done) {
        if purpose == Purpose::Thumb {
            let thumb = match done {
                Done::Doc(doc) => Thumb::of(&doc.data.record),
                // A scenario without a picture is still a scenario.
                _ => Thumb::default(),
            };
            self.home.thumbs[self.thumb] = Some(thumb);
            return;
        }
        self.state.stale &= purpose != Purpose::WhatIf;
        match (purpose, done) {
            (Purpose::WhatIf, Done::Doc(doc)) => {
                if self.state.varied.is_none() {
                    self.state.varied.clone_from(&self.state.doc);
                    let others = self.state.others();
                    self.state.base.clone_from(&self.state.doc);
                    self.state.more = others;
                }
                self.replace(Arc::new(*doc));
            }
            (Purpose::Compare, Done::Doc(doc)) if self.state.doc.is_some() => {
                self.hold_against(*doc)
            }
            (_, Done::File(name, bytes)) => {
                let said = crate::export::bytes(&self.out_dir, &name, &bytes);
                self.overlay.say(said.unwrap_or_else(|e| e));
            }
            (_, Done::Doc(doc)) => self.show(*doc),
            (_, Done::Knee(points)) => self.state.knee = Some(points),
            (_, Done::Candidates(all)) => {
                self.state.candidates = Some(Arc::new(*all));
                self.state.candidate_axes = None;
                self.at_home = false;
                self.show_pane(PaneKind::Pareto);
            }
            (_, Done::Looks(looks)) => {
                self.twin = None;
                self.state.looks = Some(*looks);
                self.at_home = false;
                self.show_pane(PaneKind::Live);
            }
            (_, Done::Failed(text)) => self.overlay.say(text),
            (_, Done::Cancelled) => {}
        }
    }

    /// Holds the run that is shown against `doc` too.
    fn hold_against(&mut self, doc: Doc) {
        let doc = Arc::new(doc);
        self.state.docs.push(doc.clone());
        if self.state.docs.len() > MOST_DOCS {
            self.state.docs.remove(0);
        }
        if self.state.base.is_some() {
            self.state.more.push(doc);
        } else {
            self.state.base = Some(doc);
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
                        self.state.ask(Action::DropComparison);
                    }
                }
            } else {
                ui.strong("servetwin viewer");
            }
            if self.at_home && self.state.doc.is_none() && ui.button("Live twin").clicked() {
                self.state.ask(Action::Show(PaneKind::Live));
            }
            // What is there at once needs no word, and a spinner is painted over and over: that would take its time from the run.
            let told = |j: &&Job| match j.purpose {
                Purpose::Thumb => false,
                Purpose::WhatIf => self.state.dim,
                _ => true,
            };
            for job in self.jobs.iter().filter(told) {
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
        #[cfg(not(target_arch = "wasm32"))]
        self.open_all(ctx, files.iter().map(|f| f.path().display().to_string()));
        #[cfg(target_arch = "wasm32")]
        for file in files {
            crate::page::dropped(ctx, &self.inbox, file);
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
}
