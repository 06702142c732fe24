//! Lanes of the timeline: from rows of a record to boxes on the screen, at most one per four pixels.

use store::resample::level_for;
use store::{Packed, Record, StepLevel, StepSpan};

use crate::run_data::{Group, PARTS, Row, RunData, parts};
use crate::time_view::TimeMap;

/// Boxes narrower than this are merged with their neighbours [points].
pub const MIN_PX: f32 = 4.0;

/// A box on a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Left edge [points from the start of the view].
    pub x0: f32,
    /// Right edge.
    pub x1: f32,
    /// Index of its colour.
    pub color: u8,
    /// How much of it is filled [0, 1].
    pub fill: f32,
    /// Steps or requests that it stands for.
    pub count: u32,
    /// Index of the first of them in what it was made of.
    pub first: u32,
}

/// What is being merged.
#[derive(Clone, Copy, Debug)]
struct Open<const N: usize> {
    x0: f32,
    x1: f32,
    /// Pixels that are covered.
    covered: f32,
    weights: [f32; N],
    count: u32,
    first: u32,
}

/// A box before merging.
#[derive(Clone, Copy, Debug)]
struct Piece<const N: usize> {
    x0: f32,
    x1: f32,
    /// Share of it that is covered.
    share: f32,
    /// What its colour is decided by.
    weights: [f32; N],
    count: u32,
    first: u32,
}

fn heaviest<const N: usize>(weights: &[f32; N]) -> u8 {
    let mut best = 0;
    for (i, w) in weights.iter().enumerate() {
        if *w > weights[best] {
            best = i;
        }
    }
    best as u8
}

fn close<const N: usize>(open: Open<N>, out: &mut Vec<Item>) {
    let width = (open.x1 - open.x0).max(0.5);
    out.push(Item {
        x0: open.x0,
        x1: open.x0 + width.max(1.0),
        color: heaviest(&open.weights),
        fill: (open.covered / width).clamp(0.0, 1.0),
        count: open.count,
        first: open.first,
    });
}

/// Merges neighbours until each box is at least [`MIN_PX`] wide, or stands alone with room on both sides.
fn merge<const N: usize>(pieces: impl Iterator<Item = Piece<N>>, out: &mut Vec<Item>) {
    let mut open: Option<Open<N>> = None;
    for p in pieces {
        let covered = (p.x1 - p.x0).max(0.0) * p.share;
        match &mut open {
            Some(o)
                if (o.x1 - o.x0 < MIN_PX || p.x1 - p.x0 < MIN_PX)
                    && p.x0 - o.x1 < 0.5 * MIN_PX
                    && p.x1 - o.x0 < 2.0 * MIN_PX =>
            {
                o.x1 = o.x1.max(p.x1);
                o.covered += covered;
                o.count += p.count;
                for (mine, theirs) in o.weights.iter_mut().zip(p.weights) {
                    *mine += theirs;
                }
            }
            _ => {
                if let Some(o) = open.take() {
                    close(o, out);
                }
                open = Some(Open {
                    x0: p.x0,
                    x1: p.x1,
                    covered,
                    weights: p.weights,
                    count: p.count,
                    first: p.first,
                });
            }
        }
    }
    if let Some(o) = open {
        close(o, out);
    }
}

/// What colours of steps mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepColors {
    /// What bound them, in the order of `hwmodels::Parts::NAMES`.
    #[default]
    Cause,
    /// What they held: prefill, decode, both.
    Phase,
}

fn step_weights(s: &StepSpan, colors: StepColors) -> [f32; 6] {
    match colors {
        StepColors::Cause => s.parts,
        StepColors::Phase => {
            let busy = s.busy as f32;
            let at = match (s.prefill_tokens > 0, s.decode_tokens > 0) {
                (true, true) => 2,
                (true, false) => 0,
                _ => 1,
            };
            let mut weights = [0.0; 6];
            weights[at] = busy;
            weights
        }
    }
}

/// A stage of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which one.
    pub index: u32,
    /// Of how many.
    pub of: u32,
}

impl Stage {
    /// When it is busy with a step: from, to [ns], and the share of that in which it is. A record has the start and the end of a step, not
    /// those of its stages, so each is drawn with an equal share of it.
    fn stretch(self, s: &StepSpan) -> (u64, u64, f32) {
        let length = (s.end - s.start).max(1);
        let of = self.of.max(1);
        if s.steps == 1 {
            let at = |i: u32| s.start + (length as f64 * f64::from(i) / f64::from(of)) as u64;
            (at(self.index), at(self.index + 1), 1.0)
        } else {
            let share = s.busy as f32 / (of as f32 * length as f32);
            (s.start, s.end, share.min(1.0))
        }
    }
}

/// The steps of a replica, or of a stage of its pipeline, in the window of `map`, which is `width` points wide. `first` counts within the replica's rows of the level that is returned too.
pub fn steps(
    levels: &[StepLevel],
    replica: usize,
    map: &TimeMap,
    width: f32,
    colors: StepColors,
    stage: Option<Stage>,
) -> (usize, Vec<Item>) {
    let window = map.ns(0.0).max(0.0) as u64..map.ns(width).ceil().max(0.0) as u64;
    let most = (2.0 * width / MIN_PX) as usize;
    let at = level_for(levels, replica, window.clone(), most);
    let Some(level) = levels.get(at) else {
        return (0, Vec::new());
    };
    let all = level.of(replica);
    let rows = level.within(replica, window);
    let offset = rows.first_row() - all.first_row();
    let mut out = Vec::new();
    merge(
        rows.iter().enumerate().map(|(i, s)| {
            let whole = || {
                let length = (s.end - s.start).max(1) as f32;
                (s.start, s.end, (s.busy as f32 / length).min(1.0))
            };
            let (from, to, share) = stage.map_or_else(whole, |stage| stage.stretch(&s));
            Piece {
                x0: map.x(from).max(-1.0),
                x1: map.x(to).min(width + 1.0),
                share,
                weights: step_weights(&s, colors),
                count: s.steps,
                first: (offset + i) as u32,
            }
        }),
        &mut out,
    );
    (at, out)
}

fn group_of(record: &Record, at: usize, i: u32) -> Group {
    let r = record.requests.row(i as usize);
    let p = parts(record, &r);
    Group {
        start: r.arrival.0,
        end: r.arrival.0 + p.iter().sum::<u64>(),
        first: at as u32,
        count: 1,
        parts: p.map(|p| p as f32),
    }
}

/// The requests of a row: those that are wide enough in their parts (`theme::REQUEST_NAMES`), the others merged. `first` is the
/// position in the row.
pub fn requests(run: &RunData, row: &Row, map: &TimeMap, width: f32, out: &mut Vec<Item>) {
    out.clear();
    let window = map.ns(0.0).max(0.0) as u64..map.ns(width).ceil().max(0.0) as u64;
    let all = &run.record.requests;
    let end = run.end();
    let most = (2.0 * width / MIN_PX) as usize;
    let list = row.requests.all();
    let from = list.partition_point(|i| all.end_by(row.index(i), end) <= window.start);
    let to = list.partition_point(|i| all.arrival(row.index(i)) < window.end);
    if to.saturating_sub(from) <= most || row.levels.is_empty() {
        let (from, to) = (from.min(to), to);
        let some = list.slice(from..to).iter().enumerate();
        let groups = some.map(|(n, i)| group_of(&run.record, from + n, i));
        merge_groups(groups, map, width, out);
        return;
    }
    let inside = |level: &Packed<Group>| {
        let a = level
            .all()
            .partition_point(|i| level.row(i).end <= window.start);
        let b = level
            .all()
            .partition_point(|i| level.row(i).start < window.end);
        a.min(b)..b
    };
    let level = row
        .levels
        .iter()
        .find(|l| inside(l).len() <= most)
        .or(row.levels.last());
    if let Some(level) = level {
        merge_groups(level.slice(inside(level)).iter(), map, width, out);
    }
}

/// Wide single requests become one box per part; the others are merged.
fn merge_groups(
    groups: impl Iterator<Item = Group>,
    map: &TimeMap,
    width: f32,
    out: &mut Vec<Item>,
) {
    let scale = map.scale() as f32;
    let pieces = groups.flat_map(|g| {
        let (x0, x1) = (map.x(g.start), map.x(g.end));
        let whole = Piece {
            x0: x0.max(-1.0),
            x1: x1.min(width + 1.0),
            share: (g.parts.iter().sum::<f32>() / (g.end - g.start).max(1) as f32).min(1.0),
            weights: g.parts,
            count: g.count,
            first: g.first,
        };
        let split = g.count == 1 && x1 - x0 >= 2.0 * MIN_PX;
        let mut from = x0;
        let in_parts = g.parts.into_iter().enumerate().filter_map(move |(i, ns)| {
            let (a, b) = (from, from + ns * scale);
            from = b;
            let mut weights = [0.0; PARTS];
            weights[i] = ns;
            (b > a && b > -1.0 && a < width + 1.0).then_some(Piece {
                x0: a.max(-1.0),
                x1: b.min(width + 1.0),
                share: 1.0,
                weights,
                count: 1,
                first: g.first,
            })
        });
        let one = (!split).then_some(whole);
        one.into_iter().chain(in_parts.filter(move |_| split))
    });
    merge(pieces, out);
}

/// The box under a position.
pub fn at(items: &[Item], x: f32) -> Option<&Item> {
    let i = items.partition_point(|i| i.x1 < x - 1.0);
    items[i..]
        .iter()
        .take(3)
        .find(|i| x >= i.x0 - 1.0 && x <= i.x1 + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;
    use crate::time_view::TimeView;

    #[test]
    fn boxes_are_bounded_by_pixels_and_stand_for_every_step() {
        let run = small();
        let levels = &run.record.steps;
        let mut view = TimeView::all(run.end());
        let width = 600.0;
        let (_, items) = steps(levels, 0, &view.map(width), width, StepColors::Cause, None);
        assert!(!items.is_empty() && items.len() as f32 <= width / 2.0);
        let count: u32 = items.iter().map(|i| i.count).sum();
        assert_eq!(count as usize, levels[0].of(0).len());
        assert!(items.windows(2).all(|w| w[1].x0 >= w[0].x0));
        // Zoomed in on a stretch, single steps show.
        let some = levels[0].of(0).get(100).unwrap();
        view.set(some.start as f64 - 1e7, some.end as f64 + 1e7);
        let (level, items) = steps(levels, 0, &view.map(width), width, StepColors::Phase, None);
        assert_eq!(level, 0);
        assert!(
            items.iter().any(|i| i.count == 1 && i.first == 100),
            "{items:?}"
        );
        assert!(items.iter().all(|i| i.x1 > -2.0 && i.x0 < width + 2.0));
    }

    #[test]
    fn the_stages_of_a_pipeline_take_turns() {
        let step = StepSpan {
            steps: 1,
            start: 1000,
            end: 5000,
            busy: 4000,
            ..StepSpan::default()
        };
        let of = |index, s: &StepSpan| Stage { index, of: 4 }.stretch(s);
        assert_eq!(of(0, &step), (1000, 2000, 1.0));
        assert_eq!(of(3, &step), (4000, 5000, 1.0));
        // Two steps that overlap: each stage is busy half of the time.
        let two = StepSpan {
            steps: 2,
            busy: 8000,
            ..step
        };
        assert_eq!(of(2, &two), (1000, 5000, 0.5));
    }

    #[test]
    fn requests_show_their_parts_when_there_is_room() {
        let run = small();
        let row = &run.rows(0)[0];
        let r = run.record.requests.row(row.index(3));
        let mut view = TimeView::all(run.end());
        view.set(r.arrival.0 as f64 - 1e6, r.end.0 as f64 + 1e6);
        let mut items = Vec::new();
        requests(&run, row, &view.map(800.0), 800.0, &mut items);
        let of: Vec<u8> = items
            .iter()
            .filter(|i| i.first == 3)
            .map(|i| i.color)
            .collect();
        assert!(of.contains(&3), "decode shows: {items:?}");
        view.reset();
        requests(&run, row, &view.map(60.0), 60.0, &mut items);
        assert!(items.len() <= 30, "{}", items.len());
    }

    #[test]
    fn the_box_under_the_pointer_is_found() {
        let item = |x0, x1, first| Item {
            x0,
            x1,
            color: 0,
            fill: 1.0,
            count: 1,
            first,
        };
        let items = [item(0.0, 10.0, 0), item(20.0, 30.0, 1)];
        assert_eq!(at(&items, 25.0).unwrap().first, 1);
        assert_eq!(at(&items, 10.5).unwrap().first, 0);
        assert!(at(&items, 15.0).is_none() && at(&items, 99.0).is_none());
    }
}
