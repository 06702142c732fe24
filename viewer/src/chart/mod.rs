//! Charts: what is drawn as plain data, laid out as items, painted on the screen or written as SVG and CSV.
//!
//! Quantities that are held until they change are drawn as steps, and axes can be logarithmic. The same items go to the screen and
//! into files, so that an exported picture shows what was seen.

pub mod axis;
mod layout;
mod paint;
mod svg;

pub use axis::{Axis, Kind, Scale};
pub(crate) use layout::within;
pub use layout::{Anchor, Item, Plot, layout, thin};
pub use paint::{Shown, show};
pub use svg::svg;

use egui::Color32;

/// How the points of a line are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// Straight.
    #[default]
    Straight,
    /// Held until the next point: queue lengths, KV blocks, shares.
    Steps,
    /// Not at all.
    Dots,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub color: Color32,
    /// Points in ascending x.
    pub points: Vec<[f64; 2]>,
    /// How they are joined.
    pub join: Join,
    /// Drawn thin and faint: what is compared against.
    pub faint: bool,
    /// Filled down to zero, or to the line before it where that is filled too.
    pub fill: bool,
}

impl Line {
    /// A line of straight pieces.
    pub fn new(name: impl Into<String>, color: Color32, points: Vec<[f64; 2]>) -> Line {
        Line {
            name: name.into(),
            color,
            points,
            join: Join::Straight,
            faint: false,
            fill: false,
        }
    }

    /// Joined another way.
    pub fn join(mut self, join: Join) -> Line {
        self.join = join;
        self
    }

    /// Thin and faint.
    pub fn faint(mut self) -> Line {
        self.faint = true;
        self
    }

    /// Filled.
    pub fn fill(mut self) -> Line {
        self.fill = true;
        self
    }
}

/// What lies between two lines: a range in which something is expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub color: Color32,
    /// Pairs of points, one of either edge, in order along the edges.
    pub pairs: Vec<[[f64; 2]; 2]>,
}

/// A line across the chart with a name: a limit, an event, the operating point.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Where on its axis.
    pub at: f64,
    /// Whether it stands at an x (else at a y).
    pub vertical: bool,
    /// Its name.
    pub name: String,
    /// Its colour.
    pub color: Color32,
}

/// A chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// Ranges, painted below the lines.
    pub bands: Vec<Band>,
    /// Its lines, painted in this order.
    pub lines: Vec<Line>,
    /// Lines across it.
    pub marks: Vec<Mark>,
}

impl Chart {
    /// Every point of every line as a table: `line,x,y`, with the axes' names in the head.
    pub fn csv(&self) -> String {
        let name = |axis: &Axis, fallback: &str| {
            let label = axis.label.replace([',', '"', '\n'], " ");
            if label.is_empty() {
                fallback.to_owned()
            } else {
                label
            }
        };
        let mut out = format!("line,{},{}\n", name(&self.x, "x"), name(&self.y, "y"));
        let mut rows = |name: &str, points: &mut dyn Iterator<Item = [f64; 2]>| {
            let label = name.replace('"', "\"\"");
            for [x, y] in points {
                out += &format!("\"{label}\",{x},{y}\n");
            }
        };
        for band in &self.bands {
            for (edge, words) in ["from", "to"].iter().enumerate() {
                let name = format!("{}, {words}", band.name);
                rows(&name, &mut band.pairs.iter().map(|p| p[edge]));
            }
        }
        for line in &self.lines {
            rows(&line.name, &mut line.points.iter().copied());
        }
        out
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|l| l.points.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_point_and_no_loose_quotes() {
        let chart = Chart {
            x: Axis::new("time [s]"),
            lines: vec![Line::new(
                "a \"b\"",
                Color32::RED,
                vec![[1.0, 2.0], [3.0, 4.5]],
            )],
            ..Chart::default()
        };
        assert_eq!(
            chart.csv(),
            "line,time [s],y\n\"a \"\"b\"\"\",1,2\n\"a \"\"b\"\"\",3,4.5\n"
        );
    }
}
