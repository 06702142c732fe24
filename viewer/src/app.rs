//! The application: state, jobs, panes, and what becomes of what was asked for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use egui::{Context, Ui};
use egui_tiles::{Behavior, LinearDir, Tile, TileId, Tiles, Tree, UiResponse};

use crate::candidates;
use crate::commands;
use crate::export;
use crate::gallery;
use crate::home::Home;
use crate::jobs::{Doc, Done, Job, Purpose, Source, Task};
use crate::knobs;
use crate::live::Client;
use crate::overlay::Overlay;
use crate::recent::Recent;
use crate::state::{Action, Export, PaneKind, State};
use crate::theme;
use crate::thumb::Thumb;
use crate::time_view::TimeView;
use crate::views::distributions::Distributions;
use crate::views::requests::Requests;
use crate::views::roofline::Roofline;
use crate::views::series::Series;
use crate::views::timeline::Timeline;
use crate::views::what_if::WhatIf;
use crate::views::{cluster, compare, knee, live, pareto, summary};

/// Selections and windows that can be taken back.
const MOST_UNDO: usize = 50;

/// Runs that are kept open.
const MOST_DOCS: usize = 8;

/// A what-if is let go on for so long when the next is asked for; then the next takes its place [s].
const PATIENCE: f64 = 0.3;

/// A file that was chosen or read elsewhere, to be opened.
pub enum Arrived {
    /// Its bytes, and its name.
    Bytes(String, Vec<u8>),
    /// Where it is.
    Path(PathBuf),
}

/// Files that come from elsewhere; or why they do not.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Result<Arrived, String>>>>);

impl Inbox {
    /// Puts one in; whoever does wakes the application.
    pub fn put(&self, file: Result<Arrived, String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(file);
    }

    fn take(&self) -> Vec<Result<Arrived, String>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Requests of the runs that pictures of the first screen are of.
const THUMB_REQUESTS: u32 = 150;

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
    /// When the what-if under way was started [s], and the one that is wanted after it.
    asked_at: f64,
    wanted: Option<Vec<String>>,
    inbox: Inbox,
    undo: Vec<(TimeView, Option<u32>)>,
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
        // A plan or a twin is there without a run.
        let alone = matches!(kind, PaneKind::Pareto | PaneKind::Live);
        self.at_home = self.at_home && self.state.doc.is_none() && !alone;
        self.tree
            .make_active(|_, tile| matches!(tile, Tile::Pane(k) if *k == kind));
    }

    /// Whether something is under way.
    pub fn busy(&self) -> bool {
        self.jobs.iter().any(|j| j.purpose != Purpose::Thumb)
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
        if !self.jobs.is_empty() {
            ctx.request_repaint_after_secs(0.1);
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
            if self.at_home && self.state.doc.is_none() && ui.button("Live twin").clicked() {
                self.state.ask(Action::Show(PaneKind::Live));
            }
            for job in self.jobs.iter().filter(|j| j.purpose != Purpose::Thumb) {
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
            #[cfg(not(target_arch = "wasm32"))]
            self.open(ctx, file.path());
            #[cfg(target_arch = "wasm32")]
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
            Action::Pick => self.pick(ctx),
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
            Action::OpenCandidate(i) => self.open_candidate(ctx, i),
            Action::Connect(address) => self.connect(ctx, &address),
            Action::Disconnect => {
                self.twin = None;
                self.state.looks = None;
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

    /// Lets a file be chosen.
    fn pick(&mut self, ctx: &Context) {
        #[cfg(target_arch = "wasm32")]
        if let Err(e) = crate::page::pick(ctx, &self.inbox) {
            self.overlay
                .say(format!("the browser shows no files: {e:?}"));
        }
        #[cfg(all(not(target_arch = "wasm32"), feature = "window"))]
        {
            let (ctx, inbox) = (ctx.clone(), self.inbox.clone());
            // The dialog is another program's; this one goes on.
            std::thread::spawn(move || {
                let dialog = rfd::FileDialog::new()
                    .set_title("Open a scenario, a record, a result or a benchmark")
                    .add_filter("servetwin", &["servetwin", "toml", "json", "jsonl", "csv"])
                    .add_filter("all files", &["*"]);
                if let Some(path) = dialog.pick_file() {
                    inbox.put(Ok(Arrived::Path(path)));
                    ctx.request_repaint();
                }
            });
        }
        #[cfg(all(not(target_arch = "wasm32"), not(feature = "window")))]
        {
            let _ = ctx;
            self.overlay.say("there is no window to choose a file in");
        }
    }

    /// Runs a candidate of a plan or a sweep, and shows it.
    fn open_candidate(&mut self, ctx: &Context, i: usize) {
        let Some(all) = self.state.candidates.clone() else {
            return;
        };
        let Some(row) = all.rows.get(i) else {
            return;
        };
        let path = self.state.candidate_base.trim();
        let base = if path.is_empty() {
            self.state.doc.as_ref().map(|d| d.source.clone())
        } else {
            match Source::read(Path::new(path)) {
                Ok(source) => Some(source),
                Err(e) => return self.overlay.say(e),
            }
        };
        let Some(mut source) = base else {
            self.overlay.say(
                "name the scenario of the plan or sweep in the field below the chart (plan --scenario FILE writes one), or open it first",
            );
            return;
        };
        let text = match source.scenario() {
            Ok(scenario) => scenario.show(),
            Err(e) => return self.overlay.say(e),
        };
        let sets = candidates::sets_for(&row.sets, &text);
        source.overrides.extend(sets);
        self.start(ctx, Task::Run(source), Purpose::Show, row.label.clone());
    }

    fn connect(&mut self, ctx: &Context, address: &str) {
        let wake = ctx.clone();
        self.twin = Some(Client::connect(address, move || wake.request_repaint()));
        self.show_pane(PaneKind::Live);
    }

    fn run_shipped(&mut self, ctx: &Context, i: usize) {
        let Some((name, _)) = gallery::SHIPPED.get(i) else {
            return;
        };
        let task = Task::Run(gallery::source(i));
        self.start(ctx, task, Purpose::Show, *name);
    }

    fn what_if(&mut self, ctx: &Context, sets: Vec<String>) {
        let Some(doc) = self.state.base.as_ref().or(self.state.doc.as_ref()) else {
            return;
        };
        let now = ctx.input(|i| i.time);
        // A slider that moves asks in each frame: what is nearly done is let go on, or nothing would ever be seen.
        let under_way = self.jobs.iter().any(|j| j.purpose == Purpose::WhatIf);
        if under_way && now - self.asked_at < PATIENCE {
            self.wanted = Some(sets);
            return;
        }
        let mut source = doc.source.clone();
        source.overrides.extend(sets);
        self.state.stale = true;
        self.asked_at = now;
        self.start(ctx, Task::Run(source), Purpose::WhatIf, "what if");
    }

    fn drop_what_if(&mut self) {
        for job in self.jobs.iter().filter(|j| j.purpose == Purpose::WhatIf) {
            job.cancel();
        }
        self.jobs.retain(|j| j.purpose != Purpose::WhatIf);
        self.wanted = None;
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
        self.wanted = None;
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
    let top = tabs(&[P::Timeline, P::Cluster, P::Pareto, P::Live]);
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
                PaneKind::Pareto => pareto::ui(ui, state),
                PaneKind::Live => live::ui(ui, state),
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
