//! What becomes of what was asked for by a button, a key or a view.

use std::path::Path;
use std::sync::Arc;

use egui::Context;

use super::{App, Past};
use crate::candidates;
use crate::export;
use crate::gallery;
#[cfg(all(not(target_arch = "wasm32"), feature = "window"))]
use crate::inbox::Arrived;
use crate::jobs::{Doc, Purpose, Task};
use crate::knobs;
use crate::live::Client;
use crate::picture;
use crate::source::Source;
use crate::state::{Action, Export, PaneKind};

/// Selections and windows that can be taken back.
const MOST_UNDO: usize = 50;

/// Size of a chart's picture [points].
const CHART: egui::Vec2 = egui::vec2(720.0, 360.0);

/// Changes that follow each other sooner are taken back together [s].
const ONE_CHANGE: f64 = 0.7;

/// A what-if is let go on for so long when the next is asked for; then the next takes its place [s].
const PATIENCE: f64 = 0.3;

impl App {
    fn remember(&mut self, past: Past) {
        self.undo.push(past);
        if self.undo.len() > MOST_UNDO {
            self.undo.remove(0);
        }
    }

    /// Does what was asked for.
    pub(super) fn act(&mut self, ctx: &Context, action: Action) {
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
            Action::WhatIf(sets) => {
                // A slider that moves is one change.
                let now = ctx.input(|i| i.time);
                if self.sets.is_empty() || now - self.asked_at > ONE_CHANGE {
                    self.remember(Past::Sets(self.sets.clone()));
                }
                self.what_if(ctx, sets);
            }
            Action::DropWhatIf => {
                self.remember(Past::Sets(self.sets.clone()));
                self.drop_what_if();
            }
            Action::DropComparison => {
                self.drop_what_if();
                self.hold_only(Vec::new());
            }
            Action::Undo => self.take_back(ctx),
            Action::Sweep => self.sweep(ctx),
            Action::CompareWith(i) => {
                self.hold_only(self.state.docs.get(i).cloned().into_iter().collect())
            }
            Action::CompareAlso(i) => self.compare_also(i),
            Action::OpenAll(paths) => self.open_all(ctx, paths),
            Action::OpenCandidate(i) => self.open_candidate(ctx, i),
            Action::Connect(address) => self.connect(ctx, &address),
            Action::Disconnect => {
                self.twin = None;
                self.state.looks = None;
            }
            Action::Cancel => self.cancel(),
            Action::Export(export) => self.export(ctx, export),
            Action::Copy(text) => self.copy(ctx, text),
            Action::CopyReport => {
                if let Some(source) = self.state.source() {
                    let text = knobs::report_command(&source.origin, &source.overrides);
                    self.copy(ctx, text);
                }
            }
            Action::Say(text) => self.overlay.say(text),
            other => self.navigate(other),
        }
        ctx.request_repaint();
    }

    /// What changes the window, the selection or the playhead.
    fn navigate(&mut self, action: Action) {
        if !matches!(action, Action::Play | Action::Step(_)) {
            self.remember(Past::Look(self.state.time, self.state.request));
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

    fn copy(&mut self, ctx: &Context, text: String) {
        ctx.copy_text(text.clone());
        self.overlay.say(format!("copied: {text}"));
        self.copied = Some(text);
    }

    /// Takes the last change back.
    fn take_back(&mut self, ctx: &Context) {
        match self.undo.pop() {
            None => {}
            Some(Past::Look(time, request)) => {
                self.state.time = time;
                self.state.request = request;
            }
            Some(Past::Sets(sets)) => {
                if sets.is_empty() {
                    self.drop_what_if();
                } else {
                    self.views.what_if.put(&sets);
                    self.what_if(ctx, sets);
                }
            }
        }
    }

    /// Holds the run against the `i`-th of those that are open too, or no more.
    fn compare_also(&mut self, i: usize) {
        let Some(doc) = self.state.docs.get(i).cloned() else {
            return;
        };
        let mut others = self.state.others();
        let before = others.len();
        others.retain(|d| !Arc::ptr_eq(d, &doc));
        if others.len() == before {
            others.push(doc);
        }
        self.hold_only(others);
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

    /// Runs the scenario with `sets` in place of what it says.
    pub(super) fn what_if(&mut self, ctx: &Context, sets: Vec<String>) {
        let original = self.state.varied.as_ref().or(self.state.doc.as_ref());
        let Some(doc) = original else {
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
        self.sets.clone_from(&sets);
        source.overrides.extend(sets);
        self.state.stale = true;
        self.asked_at = now;
        self.start(ctx, Task::Run(source), Purpose::WhatIf, "what if");
    }

    /// Shows the run again that was varied.
    fn drop_what_if(&mut self) {
        for job in self.jobs.iter().filter(|j| j.purpose == Purpose::WhatIf) {
            job.cancel();
        }
        self.jobs.retain(|j| j.purpose != Purpose::WhatIf);
        self.wanted = None;
        self.sets.clear();
        self.state.stale = false;
        if let Some(original) = self.state.varied.take() {
            let mut others = self.state.others();
            others.retain(|d| !Arc::ptr_eq(d, &original));
            self.hold_only(others);
            self.replace(original);
        }
        self.views.what_if.reset();
    }

    /// Holds the run that is shown against `others`.
    fn hold_only(&mut self, others: Vec<Arc<Doc>>) {
        let mut others = others.into_iter();
        self.state.base = others.next();
        self.state.more = others.collect();
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
        self.pending.clear();
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
            Export::Chart { name, chart } => picture::chart(&chart, CHART, 2.0, self.dark)
                .and_then(|bytes| export::bytes(&dir, &name, &bytes)),
            Export::Perfetto => {
                if let Some(doc) = &self.state.doc {
                    let task = Task::Perfetto(doc.source.clone());
                    self.start(ctx, task, Purpose::Export, "trace for Perfetto");
                }
                return;
            }
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
