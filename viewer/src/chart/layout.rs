//! From a chart to items: where everything lies, in points from the upper left corner.

use egui::{Color32, Pos2, Rect, Vec2, pos2, vec2};

use super::{Chart, Join, Line, Mark, Scale};

/// Where a text stands at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// To its right.
    Left,
    /// Around it.
    Middle,
    /// To its left.
    Right,
}

/// Something to paint.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A line of the grid, or across the plot.
    Rule {
        /// Its ends.
        ends: [Pos2; 2],
        /// Its colour; none: that of the grid.
        color: Option<Color32>,
    },
    /// A line of the data, clipped to the frame.
    Curve {
        /// Its points.
        points: Vec<Pos2>,
        /// Its colour.
        color: Color32,
        /// Its width.
        width: f32,
    },
    /// What is below a line, as columns, clipped to the frame.
    Area {
        /// The columns.
        columns: Vec<Rect>,
        /// Its colour.
        color: Color32,
    },
    /// What lies between two edges, clipped to the frame.
    Band {
        /// Pairs of points, one of either edge.
        pairs: Vec<[Pos2; 2]>,
        /// Its colour, which what lies below shines through.
        color: Color32,
    },
    /// A point of the data.
    Dot {
        /// Where.
        at: Pos2,
        /// Its colour.
        color: Color32,
        /// Its radius.
        radius: f32,
    },
    /// A text, vertically centred on its position.
    Text {
        /// Where.
        at: Pos2,
        /// On which side of that.
        anchor: Anchor,
        /// The text.
        text: String,
        /// Its colour; none: that of faint text.
        color: Option<Color32>,
    },
}

/// A chart that was laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// All of it.
    pub size: Vec2,
    /// Where the data are.
    pub frame: Rect,
    /// Range of x.
    pub x: (f64, f64),
    /// Range of y.
    pub y: (f64, f64),
    /// What to paint, in order.
    pub items: Vec<Item>,
}

const LEFT: f32 = 58.0;
const RIGHT: f32 = 14.0;
const TOP: f32 = 24.0;
const BOTTOM: f32 = 36.0;
/// How much of a band's colour is seen.
const BAND: f32 = 0.28;
/// The y axis goes to so many times the largest value of the lines for the sake of a band.
const BAND_ROOM: f64 = 1.6;
/// Width of a letter, about [points].
const LETTER: f32 = 6.2;

/// Lays out `chart` in `size` points.
pub fn layout(chart: &Chart, size: Vec2) -> Plot {
    let size = size.max(vec2(120.0, 80.0));
    let bottom = if chart.x.label.is_empty() {
        BOTTOM - 14.0
    } else {
        BOTTOM
    };
    let frame = Rect::from_min_max(pos2(LEFT, TOP), pos2(size.x - RIGHT, size.y - bottom));
    let all = || {
        let lines = chart.lines.iter().flat_map(|l| l.points.iter());
        lines.chain(chart.bands.iter().flat_map(|b| b.pairs.iter().flatten()))
    };
    let x = chart.x.span(
        all()
            .map(|p| p[0])
            .chain(chart.marks.iter().filter(|m| m.vertical).map(|m| m.at)),
    );
    // The y axis fits what is seen.
    let inside = |p: &&[f64; 2]| p[0] >= x.0 && p[0] <= x.1;
    let lines = chart.lines.iter().flat_map(|l| l.points.iter());
    let seen = lines.filter(inside).map(|p| p[1]);
    // A band that goes far beyond the lines would leave them no room.
    let most = BAND_ROOM * seen.clone().fold(f64::NEG_INFINITY, f64::max);
    let bands = chart.bands.iter().flat_map(|b| b.pairs.iter().flatten());
    let bands = bands.filter(inside).map(|p| match most > 0.0 {
        true => p[1].min(most),
        false => p[1],
    });
    let seen = seen.chain(bands);
    let marked = chart.marks.iter().filter(|m| !m.vertical).map(|m| m.at);
    let y = chart.y.span(seen.chain(marked));
    let mut plot = Plot {
        size,
        frame,
        x,
        y,
        items: Vec::new(),
    };
    plot.axes(chart);
    for band in &chart.bands {
        let pairs = band
            .pairs
            .iter()
            .map(|pair| pair.map(|p| plot.at(chart, p)));
        plot.items.push(Item::Band {
            pairs: pairs.collect(),
            color: band.color.gamma_multiply(BAND),
        });
    }
    for (i, line) in chart.lines.iter().enumerate() {
        let below = i.checked_sub(1).map(|i| &chart.lines[i]);
        plot.line(chart, line, below.filter(|b| b.fill && line.fill));
    }
    plot.marks(chart);
    plot.head(chart);
    plot
}

impl Plot {
    /// Where a value lies.
    pub fn at(&self, chart: &Chart, p: [f64; 2]) -> Pos2 {
        let x = chart.x.position(p[0], self.x);
        let y = chart.y.position(p[1], self.y);
        pos2(
            self.frame.left() + (x * f64::from(self.frame.width())) as f32,
            self.frame.bottom() - (y * f64::from(self.frame.height())) as f32,
        )
    }

    /// The x at a position.
    pub fn x_at(&self, chart: &Chart, x: f32) -> f64 {
        let share = f64::from((x - self.frame.left()) / self.frame.width());
        chart.x.value(share, self.x)
    }

    fn axes(&mut self, chart: &Chart) {
        let frame = self.frame;
        // Round values lie unevenly on a logarithmic axis: more of them are asked for.
        let letters = if chart.x.scale == Scale::Log {
            52.0
        } else {
            85.0
        };
        let apart = if chart.y.scale == Scale::Log {
            16.0
        } else {
            34.0
        };
        let ticks = chart.y.ticks(self.y, (frame.height() / apart) as usize);
        for (v, text) in ticks.iter().zip(chart.y.tick_words(&ticks)) {
            let v = *v;
            let y = self.at(chart, [self.x.0, v]).y;
            self.items.push(Item::Rule {
                ends: [pos2(frame.left(), y), pos2(frame.right(), y)],
                color: None,
            });
            self.items.push(Item::Text {
                at: pos2(frame.left() - 5.0, y),
                anchor: Anchor::Right,
                text,
                color: None,
            });
        }
        let ticks = chart.x.ticks(self.x, (frame.width() / letters) as usize);
        for (v, text) in ticks.iter().zip(chart.x.tick_words(&ticks)) {
            let v = *v;
            let x = self.at(chart, [v, self.y.0]).x;
            self.items.push(Item::Rule {
                ends: [pos2(x, frame.top()), pos2(x, frame.bottom())],
                color: None,
            });
            let (x, anchor) = within(x, &text, frame.left() - 2.0..=self.size.x - 2.0);
            self.items.push(Item::Text {
                at: pos2(x, frame.bottom() + 11.0),
                anchor,
                text,
                color: None,
            });
        }
        self.items.push(Item::Text {
            at: pos2(frame.right(), frame.bottom() + 26.0),
            anchor: Anchor::Right,
            text: chart.x.label.clone(),
            color: None,
        });
    }

    fn line(&mut self, chart: &Chart, line: &Line, below: Option<&Line>) {
        let columns = (self.frame.width() as usize).max(16);
        let points = thin(&line.points, self.x, columns, chart.x.scale == Scale::Log);
        if line.join == Join::Dots {
            let radius = if line.points.len() > 400 { 1.5 } else { 3.0 };
            for p in points {
                let at = self.at(chart, p);
                if self.frame.expand(2.0).contains(at) {
                    let color = line.color;
                    self.items.push(Item::Dot { at, color, radius });
                }
            }
            return;
        }
        if line.fill {
            let columns = self.area(chart, line, below);
            self.items.push(Item::Area {
                columns,
                color: line.color,
            });
            return;
        }
        let mut path: Vec<Pos2> = Vec::with_capacity(2 * points.len());
        for p in points {
            let at = self.at(chart, p);
            if let (Join::Steps, Some(last)) = (line.join, path.last()) {
                path.push(pos2(at.x, last.y));
            }
            path.push(at);
        }
        if line.join == Join::Steps
            && let Some(last) = path.last().copied()
            && last.x < self.frame.right()
        {
            let end = line.points.last().map_or(last.x, |p| self.at(chart, *p).x);
            path.push(pos2(
                end.clamp(last.x, self.frame.right().max(last.x)),
                last.y,
            ));
        }
        self.items.push(Item::Curve {
            points: path,
            color: line.color,
            width: if line.faint { 1.0 } else { 1.8 },
        });
    }

    /// The area of a filled line of steps: a column from each point to the next.
    fn area(&self, chart: &Chart, line: &Line, below: Option<&Line>) -> Vec<Rect> {
        let floor = self.at(chart, [self.x.0, self.y.0.max(0.0)]).y;
        let mut columns = Vec::with_capacity(line.points.len());
        for (i, p) in line.points.iter().enumerate() {
            let Some(next) = line.points.get(i + 1) else {
                break;
            };
            let (a, b) = (self.at(chart, *p), self.at(chart, [next[0], p[1]]));
            let bottom = below
                .and_then(|l| l.points.get(i))
                .map_or(floor, |q| self.at(chart, *q).y);
            let column = Rect::from_min_max(a.min(pos2(a.x, bottom)), pos2(b.x, bottom.max(a.y)));
            let column = column.intersect(self.frame);
            if column.is_positive() {
                columns.push(column);
            }
        }
        columns
    }

    fn marks(&mut self, chart: &Chart) {
        let frame = self.frame;
        // Those across first: what is written beside the others keeps off them.
        let (upright, across): (Vec<&Mark>, Vec<&Mark>) =
            chart.marks.iter().partition(|m| m.vertical);
        for mark in across.into_iter().chain(upright) {
            let at = self.at(chart, [mark.at, mark.at]);
            let (ends, text, anchor) = if mark.vertical {
                if at.x < frame.left() - 0.5 || at.x > frame.right() + 0.5 {
                    continue;
                }
                let right = at.x + 4.0 + mark.name.len() as f32 * LETTER < frame.right();
                let (x, anchor) = if right {
                    (at.x + 4.0, Anchor::Left)
                } else {
                    (at.x - 4.0, Anchor::Right)
                };
                let ends = [pos2(at.x, frame.top()), pos2(at.x, frame.bottom())];
                let width = mark.name.chars().count() as f32 * LETTER;
                let from = if right { x } else { x - width };
                let room = |y: f32| {
                    let place = Rect::from_min_size(pos2(from, y - 7.0), vec2(width, 14.0));
                    !self.is_crossed(place)
                };
                // Where the curves leave room for it: above, else below.
                let (above, below) = (frame.top() + 8.0, frame.bottom() - 9.0);
                let y = if room(above) || !room(below) {
                    above
                } else {
                    below
                };
                (ends, pos2(x, y), anchor)
            } else {
                if at.y < frame.top() - 0.5 || at.y > frame.bottom() + 0.5 {
                    continue;
                }
                let ends = [pos2(frame.left(), at.y), pos2(frame.right(), at.y)];
                (ends, pos2(frame.right() - 4.0, at.y - 8.0), Anchor::Right)
            };
            let color = Some(mark.color);
            self.items.push(Item::Rule { ends, color });
            self.items.push(Item::Text {
                at: text,
                anchor,
                text: mark.name.clone(),
                color,
            });
        }
    }

    /// Whether a curve goes through `place`.
    fn is_crossed(&self, place: Rect) -> bool {
        let crosses = |ends: &[Pos2]| {
            let [a, b] = [ends[0], ends[1]];
            let box_ = Rect::from_two_pos(a, b);
            // Long pieces are looked at in short ones.
            let n = (1.0 + box_.size().max_elem() / 6.0).min(400.0) as usize;
            box_.intersects(place)
                && (0..=n).any(|i| place.contains(a.lerp(b, i as f32 / n as f32)))
        };
        self.items.iter().any(|item| match item {
            Item::Curve { points, .. } => points.windows(2).any(crosses),
            Item::Rule { ends, color } if color.is_some() => crosses(ends),
            Item::Dot { at, radius, .. } => place.expand(*radius).contains(*at),
            _ => false,
        })
    }

    /// Title and legend above the frame.
    fn head(&mut self, chart: &Chart) {
        let y = TOP / 2.0;
        let mut x = 6.0;
        if !chart.title.is_empty() {
            self.items.push(Item::Text {
                at: pos2(x, y),
                anchor: Anchor::Left,
                text: chart.title.clone(),
                color: None,
            });
            x += (chart.title.chars().count() as f32 + 2.0) * LETTER;
        }
        let lines = chart.lines.iter().map(|l| {
            let width = if l.faint { 1.0 } else { 3.0 };
            (&l.name, l.color, width)
        });
        let bands = chart.bands.iter();
        let bands = bands.map(|b| (&b.name, b.color.gamma_multiply(2.0 * BAND), 8.0));
        for (name, color, thick) in lines.chain(bands).filter(|(name, ..)| !name.is_empty()) {
            let width = 16.0 + name.chars().count() as f32 * LETTER;
            if x + width > self.size.x {
                break;
            }
            self.items.push(Item::Curve {
                points: vec![pos2(x, y), pos2(x + 10.0, y)],
                color,
                width: thick,
            });
            self.items.push(Item::Text {
                at: pos2(x + 14.0, y),
                anchor: Anchor::Left,
                text: name.clone(),
                color: None,
            });
            x += width + 10.0;
        }
    }
}

/// Where a text around `x` stands so that it stays `inside`: beside the edge where it is too near to it.
pub(crate) fn within(x: f32, text: &str, inside: std::ops::RangeInclusive<f32>) -> (f32, Anchor) {
    let half = 0.5 * LETTER * text.chars().count() as f32;
    if x - half < *inside.start() {
        (*inside.start(), Anchor::Left)
    } else if x + half > *inside.end() {
        (*inside.end(), Anchor::Right)
    } else {
        (x, Anchor::Middle)
    }
}

/// The points of a line within `range`, and one on either side; of more than four in a column of the screen, the first, the least, the most
/// and the last.
pub fn thin(points: &[[f64; 2]], range: (f64, f64), columns: usize, log: bool) -> Vec<[f64; 2]> {
    let from = points.partition_point(|p| p[0] < range.0).saturating_sub(1);
    let to = (points.partition_point(|p| p[0] <= range.1) + 1).min(points.len());
    let seen = &points[from.min(to)..to];
    if seen.len() <= 4 * columns {
        return seen.to_vec();
    }
    let map = |x: f64| if log { x.max(1e-300).ln() } else { x };
    let (low, high) = (map(range.0), map(range.1));
    let column = |p: &[f64; 2]| ((map(p[0]) - low) / (high - low) * columns as f64).floor() as i64;
    let mut out = Vec::with_capacity(4 * columns);
    for group in seen.chunk_by(|a, b| column(a) == column(b)) {
        let by_y = |a: &&[f64; 2], b: &&[f64; 2]| a[1].total_cmp(&b[1]);
        let mut few: Vec<[f64; 2]> = [
            group.first(),
            group.iter().min_by(by_y),
            group.iter().max_by(by_y),
            group.last(),
        ]
        .into_iter()
        .flatten()
        .copied()
        .collect();
        few.sort_by(|a, b| a[0].total_cmp(&b[0]));
        few.dedup();
        out.extend(few);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Axis;

    fn chart(join: Join) -> Chart {
        let points = vec![[0.0, 0.0], [5.0, 10.0], [10.0, 5.0]];
        Chart {
            title: "t".into(),
            x: Axis::new("x").over(0.0, 10.0),
            y: Axis::new("y").over(0.0, 10.0),
            lines: vec![Line::new("a", Color32::RED, points).join(join)],
            ..Chart::default()
        }
    }

    fn curve(plot: &Plot) -> &Vec<Pos2> {
        let curves = plot.items.iter().filter_map(|i| match i {
            Item::Curve { points, .. } => Some(points),
            _ => None,
        });
        curves.into_iter().next().unwrap()
    }

    #[test]
    fn values_lie_where_the_axes_say() {
        let chart = chart(Join::Straight);
        let plot = layout(&chart, vec2(400.0, 200.0));
        let at = plot.at(&chart, [10.0, 0.0]);
        assert_eq!(at, plot.frame.right_bottom());
        assert_eq!(curve(&plot).len(), 3);
        assert!((plot.x_at(&chart, plot.frame.center().x) - 5.0).abs() < 1e-3);
    }

    #[test]
    fn steps_hold_their_value_until_the_next_point() {
        let plot = layout(&chart(Join::Steps), vec2(400.0, 200.0));
        let points = curve(&plot);
        assert_eq!(points.len(), 5);
        for pair in points.windows(2) {
            let (d, e) = (pair[1].x - pair[0].x, pair[1].y - pair[0].y);
            assert!(d == 0.0 || e == 0.0, "{pair:?} slants");
        }
    }

    #[test]
    fn thinning_keeps_ends_and_extremes() {
        let mut points: Vec<[f64; 2]> = (0..100_000).map(|i| [f64::from(i), 0.0]).collect();
        points[51_234][1] = 7.0;
        points[77_777][1] = -3.0;
        let thinned = thin(&points, (0.0, 99_999.0), 300, false);
        assert!(thinned.len() <= 1300, "{}", thinned.len());
        assert!(thinned.contains(&[51_234.0, 7.0]) && thinned.contains(&[77_777.0, -3.0]));
        assert_eq!(thinned.first(), Some(&[0.0, 0.0]));
        assert_eq!(thinned.last(), Some(&[99_999.0, 0.0]));
        let window = thin(&points, (500.0, 510.0), 300, false);
        assert_eq!(window.len(), 13);
    }

    #[test]
    fn words_of_ticks_and_marks_stay_inside_and_off_the_curve() {
        let points: Vec<[f64; 2]> = (0..=100)
            .map(|i| [f64::from(i) * 30e9, f64::from(i).sqrt()])
            .collect();
        let chart = Chart {
            x: Axis::new("").duration().over(0.0, 3000e9),
            y: Axis::new("y").over(0.0, 10.0),
            lines: vec![Line::new("a", Color32::RED, points)],
            marks: vec![super::super::Mark {
                at: 2900e9,
                vertical: true,
                name: "a limit with a long name".into(),
                color: Color32::BLUE,
            }],
            ..Chart::default()
        };
        let plot = layout(&chart, vec2(400.0, 200.0));
        for item in &plot.items {
            if let Item::Text {
                at, anchor, text, ..
            } = item
            {
                let width = text.chars().count() as f32 * LETTER;
                let right = match anchor {
                    Anchor::Left => at.x + width,
                    Anchor::Middle => at.x + 0.5 * width,
                    Anchor::Right => at.x,
                };
                assert!(right <= 400.0, "{text} ends at {right}");
            }
        }
        let mark = plot.items.iter().find_map(|i| match i {
            Item::Text { at, text, .. } if text.contains("limit") => Some(at.y),
            _ => None,
        });
        assert!(mark.unwrap() > plot.frame.center().y, "the curve is above");
    }

    #[test]
    fn a_band_lies_between_its_edges_and_counts_for_the_range() {
        let mut chart = chart(Join::Straight);
        chart.y = Axis::new("y");
        chart.bands = vec![super::super::Band {
            name: "expected".into(),
            color: Color32::BLUE,
            pairs: vec![[[0.0, 5.0], [0.0, 40.0]], [[10.0, 6.0], [10.0, 50.0]]],
        }];
        let plot = layout(&chart, vec2(400.0, 200.0));
        assert!((16.0..17.0).contains(&plot.y.1), "{:?}", plot.y);
        let bands = plot.items.iter().filter_map(|i| match i {
            Item::Band { pairs, .. } => Some(pairs.len()),
            _ => None,
        });
        assert_eq!(bands.collect::<Vec<_>>(), [2]);
        assert!(chart.csv().contains("\"expected, to\",10,50"));
    }

    #[test]
    fn marks_outside_are_left_out() {
        let mut chart = chart(Join::Straight);
        let mark = |at| super::super::Mark {
            at,
            vertical: true,
            name: "limit".into(),
            color: Color32::RED,
        };
        chart.marks = vec![mark(5.0), mark(50.0)];
        let plot = layout(&chart, vec2(400.0, 200.0));
        let named = |i: &&Item| matches!(i, Item::Text { text, .. } if text == "limit");
        assert_eq!(plot.items.iter().filter(named).count(), 1);
    }
}
