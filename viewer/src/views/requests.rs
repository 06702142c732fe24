//! The slowest requests, and one request's life in words and numbers.

use std::ops::Range;
use std::sync::Arc;

use egui::{RichText, Ui, vec2};
use sim::metrics::Metric;
use sim::record::RequestRow;
use sim::request::Outcome;
use store::StepSpan;

use crate::chart::{Axis, Chart, Join, Line};
use crate::format;
use crate::life::{self, Life};
use crate::run_data::{RunData, metric_name, parts, transfer};
use crate::state::{Action, State};
use crate::theme;

/// Rows of the list.
const SLOWEST: usize = 200;

/// Longest gaps of a request that are told.
const LONGEST: usize = 5;

/// What the view keeps for itself.
#[derive(Default)]
pub struct Requests {
    key: Option<(*const RunData, Range<u64>, Metric)>,
    /// The window of the frame before.
    last: Option<Range<u64>>,
    slowest: Vec<(u32, u64)>,
    find: String,
}

impl Requests {
    /// Shows the list and the selected request.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        ui.horizontal_wrapped(|ui| {
            ui.label("Slowest requests by");
            super::distributions::metrics(ui, &mut state.metric);
            let edit = egui::TextEdit::singleline(&mut self.find)
                .hint_text("request number")
                .desired_width(130.0);
            let edit = ui.add(edit).accessible_name("Request number");
            if edit.lost_focus()
                && let Ok(id) = self.find.trim().parse()
            {
                match run.request(id) {
                    Some(_) => state.ask(Action::Select(Some(id))),
                    None => state.ask(Action::Say(format!(
                        "there is no request {id} in this record"
                    ))),
                }
            }
        });
        let key = (Arc::as_ptr(&run), state.time.range(), state.metric);
        // While the window moves, the list waits: it looks at every request.
        let moved = self.last.replace(state.time.range()) != Some(state.time.range());
        let same_run = self
            .key
            .as_ref()
            .is_some_and(|k| k.0 == key.0 && k.2 == key.2);
        if self.key.as_ref() != Some(&key) && !(moved && same_run) {
            self.slowest = run.slowest(state.metric, state.time.range(), SLOWEST);
            self.key = Some(key);
        } else if moved {
            ui.ctx().request_repaint();
        }
        if let Some(r) = state.request.and_then(|id| run.request(id)) {
            let height = 0.62 * ui.available_height();
            egui::ScrollArea::vertical()
                .id_salt("life")
                .max_height(height)
                .auto_shrink([false, true])
                .show(ui, |ui| life(ui, state, &run, &r));
            ui.separator();
        } else {
            ui.label(
                RichText::new("Click a request here or in the timeline.")
                    .color(theme::faint(ui.visuals())),
            );
        }
        self.table(ui, state, &run);
    }

    fn table(&self, ui: &mut Ui, state: &mut State, run: &RunData) {
        let titles = [
            "request",
            metric_name(state.metric),
            "prompt",
            "output",
            "sent at",
            "replica",
        ];
        let height = ui.spacing().interact_size.y;
        let area = egui::ScrollArea::both()
            .id_salt("slowest")
            .auto_shrink(false);
        area.show_rows(ui, height, self.slowest.len() + 1, |ui, rows| {
            let grid = egui::Grid::new("slowest")
                .striped(true)
                .min_col_width(58.0)
                .num_columns(titles.len());
            grid.start_row(rows.start).show(ui, |ui| {
                for row in rows {
                    match row.checked_sub(1).and_then(|i| self.slowest.get(i)) {
                        None => titles.iter().for_each(|t| {
                            ui.strong(*t);
                        }),
                        Some((id, value)) => slow(ui, state, run, *id, *value),
                    }
                    ui.end_row();
                }
            });
        });
    }
}

/// A row of the list.
fn slow(ui: &mut Ui, state: &mut State, run: &RunData, id: u32, value: u64) {
    let Some(r) = run.request(id) else {
        return;
    };
    let link = ui.selectable_label(state.request == Some(id), format!("#{id}"));
    if link.clicked() {
        state.ask(Action::Select(Some(id)));
    }
    let replica = run.record.info.replicas.get(r.replica as usize);
    for text in [
        format::duration(value as f64),
        r.prompt_tokens.to_string(),
        r.output_tokens.to_string(),
        format::instant(r.arrival.0),
        replica.map_or("-".to_owned(), |r| r.name.clone()),
    ] {
        ui.label(text);
    }
}

fn life(ui: &mut Ui, state: &mut State, run: &RunData, r: &RequestRow) {
    ui.horizontal(|ui| {
        ui.heading(format!("Request {}", r.id));
        if ui.button("Show in timeline").clicked() {
            state.ask(Action::Fit);
        }
        if ui.button("Previous").on_hover_text("Key ,").clicked() {
            state.ask(Action::Neighbour(false));
        }
        if ui.button("Next").on_hover_text("Key .").clicked() {
            state.ask(Action::Neighbour(true));
        }
    });
    for line in words(run, r) {
        ui.label(line);
    }
    let Some(life) = life::of(run, r) else {
        return;
    };
    egui::CollapsingHeader::new("Step by step")
        .default_open(true)
        .show(ui, |ui| steps(ui, state, &life));
}

/// The steps of the prefill, and the gap before each token.
fn steps(ui: &mut Ui, state: &mut State, life: &Life) {
    for line in life::prefill(life) {
        ui.label(line);
    }
    let Some(words) = life::decode(life) else {
        return;
    };
    ui.label(words);
    let size = vec2(ui.available_width(), 120.0);
    super::chart(ui, state, &gaps(life), size, None);
    egui::Grid::new("gaps")
        .striped(true)
        .num_columns(4)
        .show(ui, |ui| {
            for title in ["longest gaps", "token", "at", "what it went to"] {
                ui.strong(title);
            }
            ui.end_row();
            for gap in life.longest(LONGEST) {
                ui.label(format::duration(gap.gap as f64));
                ui.label(gap.token.to_string());
                ui.label(format::instant(gap.at));
                ui.label(life::because(&gap));
                ui.end_row();
            }
        });
}

/// The gap before each token, coloured by what it went to.
fn gaps(life: &Life) -> Chart {
    let of = |cause: usize| {
        let of = life.gaps.iter().filter(|g| g.cause == Some(cause));
        let points = of.map(|g| [f64::from(g.token), g.gap as f64]).collect();
        Line::new(theme::CAUSE_NAMES[cause], theme::CAUSES[cause], points).join(Join::Dots)
    };
    let lines = (0..theme::CAUSES.len()).map(of);
    Chart {
        title: "Gap before each token".to_owned(),
        x: Axis::new("token"),
        y: Axis::new("").duration().from_zero(),
        lines: lines.filter(|l| !l.points.is_empty()).collect(),
        ..Chart::default()
    }
}

/// A request's life, a sentence each.
pub fn words(run: &RunData, r: &RequestRow) -> Vec<String> {
    let end = run.end();
    let [queue, prefill, moved, decode, _] = parts(&run.record, r);
    let d = |ns: u64| format::duration(ns as f64);
    let replica = run.record.info.replicas.get(r.replica as usize);
    let place = replica.map_or("no replica".to_owned(), |r| r.name.clone());
    let name = |i: u32| {
        let replica = run.record.info.replicas.get(i as usize);
        replica.map_or("-", |r| r.name.as_str())
    };
    let mut out = vec![format!(
        "Sent at {} with {} prompt tokens; it went to {place}.",
        format::instant(r.arrival.0),
        r.prompt_tokens
    )];
    if r.first_scheduled.0 <= end {
        let why = waited_for(run, r).map_or(String::new(), |w| format!(", while {w}"));
        out.push(if queue == 0 {
            "It was scheduled at once.".to_owned()
        } else {
            format!("It waited {} until it was first scheduled{why}.", d(queue))
        });
        if r.cached_tokens > 0 {
            out.push(format!(
                "{} of its prompt tokens ({}) were in the prefix cache.",
                r.cached_tokens,
                format::percent(f64::from(r.cached_tokens) / f64::from(r.prompt_tokens.max(1)))
            ));
        }
    }
    if r.first_token.0 <= end {
        out.push(format!(
            "Its prefill took {}; the client saw the first token {} after sending (TTFT).",
            d(prefill),
            d(r.first_token.0 - r.arrival.0)
        ));
        if let Some(t) = transfer(&run.record, r.id) {
            out.push(format!(
                "The KV of {} tokens went from {} to {} within {}, of which it waited {} for room there.",
                format::count(t.tokens.into()),
                name(t.from),
                name(t.to),
                d(moved),
                d(t.began.saturating_sub(t.prefilled))
            ));
        }
        let gaps = u64::from(r.output_tokens.saturating_sub(1));
        let after = r.end.0.min(end).saturating_sub(r.first_token.0);
        if let Some(tpot) = after.checked_div(gaps) {
            out.push(format!(
                "{} further tokens followed in {}, one every {} on average (TPOT).",
                gaps,
                d(after),
                d(tpot)
            ));
        }
    }
    if r.preemptions > 0 {
        let when = full(run, r).map_or(String::new(), |(from, to)| {
            let (from, to) = (format::instant(from), format::instant(to));
            format!(" Its replica had no KV blocks left between {from} and {to}.")
        });
        out.push(format!(
            "It lost its KV {} time{} (preemption) and was recomputed.{when}",
            r.preemptions,
            if r.preemptions == 1 { "" } else { "s" }
        ));
    }
    let total = d(queue + prefill + moved + decode);
    out.push(match r.outcome {
        Outcome::Finished => format!("It finished after {total}; {}.", objective(run, r)),
        Outcome::TimedOut => format!(
            "Its client gave up after {}.",
            d(r.end.0.min(end) - r.arrival.0)
        ),
        Outcome::Failed => "It was accepted and could not be served.".to_owned(),
        Outcome::InFlight => "It was under way when the run ended.".to_owned(),
        Outcome::Rejected(reason) => format!("It was refused with HTTP {}.", reason.http_status()),
    });
    out
}

fn objective(run: &RunData, r: &RequestRow) -> &'static str {
    let slo = run.record.info.slo.slo();
    if slo.is_empty() {
        "the scenario sets no objective"
    } else if slo.met_by(r) {
        "it met the objective"
    } else {
        "it missed the objective"
    }
}

/// From when to when the replica of `r` had steps without a free KV block, while it was there [ns].
fn full(run: &RunData, r: &RequestRow) -> Option<(u64, u64)> {
    let level = run.record.steps.first()?;
    let blocks = run.record.info.replicas.get(r.replica as usize)?.kv_blocks;
    let steps = level.within(r.replica as usize, r.first_scheduled.0..r.end.0);
    // A request is put out when the next token of another needs a block: one in a hundred is none.
    let is = |s: &StepSpan| s.blocked[0] > 0 || u64::from(s.kv_blocks.max) * 100 >= blocks * 99;
    let mut without = steps.iter().filter(is);
    let first = without.next()?;
    Some((first.start, without.next_back().unwrap_or(first).end))
}

/// What kept requests waiting most at the replica of `r` while it waited.
fn waited_for(run: &RunData, r: &RequestRow) -> Option<&'static str> {
    let window = r.arrival.0..r.first_scheduled.0;
    let level = run.record.steps.first()?;
    let mut blocked = [0u64; 3];
    let mut busy = 0;
    for s in level.within(r.replica as usize, window) {
        busy += s.busy;
        for (sum, b) in blocked.iter_mut().zip(s.blocked) {
            *sum += b;
        }
    }
    let most = (0..3).max_by_key(|i| blocked[*i])?;
    if blocked[most] > 0 {
        return Some(
            [
                "KV blocks were full",
                "as many sequences ran as the engine allows",
                "the token budget of steps was spent",
            ][most],
        );
    }
    (busy > 0).then_some("the step before was under way")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn a_life_in_words_names_every_part() {
        let run = small();
        let (id, _) = run.slowest(Metric::Queue, 0..u64::MAX, 1)[0];
        let text = words(&run, &run.request(id).unwrap()).join(" ");
        for part in [
            "Sent at",
            "It waited",
            "while",
            "(TTFT)",
            "(TPOT)",
            "It finished",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.contains("objective"), "{text}");
    }

    #[test]
    fn lives_that_ended_early_can_be_told() {
        let run = small();
        let mut r = run.request(3).unwrap();
        r.first_scheduled = sim::kernel::time::SimTime::NEVER;
        r.first_token = sim::kernel::time::SimTime::NEVER;
        for outcome in [Outcome::TimedOut, Outcome::InFlight, Outcome::Failed] {
            r.outcome = outcome;
            assert!(words(&run, &r).len() >= 2);
        }
        r.outcome = Outcome::Rejected(sim::request::RejectReason::QueueFull);
        assert!(words(&run, &r).join(" ").contains("503"));
    }
}
