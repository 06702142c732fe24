//! A chart as an SVG file.

use std::fmt::Write as _;

use egui::{Color32, Vec2};

use super::{Anchor, Chart, Item, layout};

fn rgb(c: Color32) -> String {
    format!("#{:02x}{:02x}{:02x}", c.r(), c.g(), c.b())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// `chart` in `size` points on white.
pub fn svg(chart: &Chart, size: Vec2) -> String {
    let plot = layout(chart, size);
    let (w, h) = (plot.size.x, plot.size.y);
    let f = plot.frame;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <clipPath id=\"frame\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n",
        f.left(),
        f.top(),
        f.width(),
        f.height()
    );
    for item in &plot.items {
        // Writing to a String cannot fail.
        let _ = write_item(&mut out, item, f.top());
    }
    out += "</svg>\n";
    out
}

fn write_item(out: &mut String, item: &Item, top: f32) -> std::fmt::Result {
    match item {
        Item::Rule {
            ends: [a, b],
            color,
        } => writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\"/>",
            a.x,
            a.y,
            b.x,
            b.y,
            color.map_or("#ddd".to_owned(), rgb)
        ),
        Item::Curve {
            points,
            color,
            width,
        } => {
            let clip = if points.first().is_some_and(|p| p.y < top) {
                ""
            } else {
                " clip-path=\"url(#frame)\""
            };
            write!(
                out,
                "<polyline{clip} fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" points=\"",
                rgb(*color)
            )?;
            for p in points {
                write!(out, "{:.1},{:.1} ", p.x, p.y)?;
            }
            writeln!(out, "\"/>")
        }
        Item::Area { columns, color } => {
            write!(out, "<path fill=\"{}\" d=\"", rgb(*color))?;
            for c in columns {
                write!(
                    out,
                    "M{:.1} {:.1}H{:.1}V{:.1}H{:.1}Z",
                    c.left(),
                    c.top(),
                    c.right(),
                    c.bottom(),
                    c.left()
                )?;
            }
            writeln!(out, "\"/>")
        }
        Item::Band { pairs, color } => {
            let [r, g, b, a] = color.to_srgba_unmultiplied();
            write!(
                out,
                "<path clip-path=\"url(#frame)\" fill=\"#{r:02x}{g:02x}{b:02x}\" fill-opacity=\"{:.2}\" d=\"",
                f32::from(a) / 255.0
            )?;
            let back = pairs.iter().rev().map(|p| p[1]);
            for (i, p) in pairs.iter().map(|p| p[0]).chain(back).enumerate() {
                write!(
                    out,
                    "{}{:.1} {:.1}",
                    if i == 0 { "M" } else { "L" },
                    p.x,
                    p.y
                )?;
            }
            writeln!(out, "Z\"/>")
        }
        Item::Dot { at, color, radius } => writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{}\"/>",
            at.x,
            at.y,
            rgb(*color)
        ),
        Item::Text {
            at,
            anchor,
            text,
            color,
        } => writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\" fill=\"{}\">{}</text>",
            at.x,
            at.y + 4.0,
            match anchor {
                Anchor::Left => "start",
                Anchor::Middle => "middle",
                Anchor::Right => "end",
            },
            color.map_or("#333".to_owned(), rgb),
            escaped(text)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Line;
    use egui::vec2;

    #[test]
    fn texts_are_escaped_and_every_line_is_there() {
        let chart = Chart {
            title: "a < b & c".into(),
            lines: vec![Line::new("x", Color32::RED, vec![[0.0, 1.0], [1.0, 2.0]])],
            ..Chart::default()
        };
        let svg = svg(&chart, vec2(300.0, 200.0));
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
        assert_eq!(svg.matches("stroke=\"#ff0000\"").count(), 2);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
