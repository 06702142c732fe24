//! The latency-throughput curve, and the errors of the demo, as SVG files.

use anyhow::anyhow;
use calibrate::demo::Table;
use calibrate::demo::table::COLUMNS;
use plotters::prelude::*;
use sim::report::RunReport;
use sim::report::curve::Curve;

/// A latency over the throughput [req/s], in ms.
struct Line {
    label: &'static str,
    color: RGBColor,
    /// Loads within the capacity, in the order of loads and of throughput: joined by a line.
    served: Vec<(f64, f64)>,
    /// Loads beyond it: their latencies are those of the run's length, and their throughput no longer grows.
    beyond: Vec<(f64, f64)>,
    /// What the objective allows [ms].
    limit: Option<f64>,
}

const COLORS: [RGBColor; 4] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
];

/// The curve as SVG text: latencies over achieved throughput, loads beyond the capacity hollow, the knee and the objective marked.
///
/// # Errors
/// When fewer than two points have latencies.
pub fn curve_svg(curve: &Curve) -> anyhow::Result<String> {
    let lines = lines(curve);
    let all: Vec<(f64, f64)> = lines
        .iter()
        .flat_map(|l| l.served.iter().chain(&l.beyond).copied())
        .collect();
    if all.len() < 2 {
        return Err(anyhow!("too few points with latencies to plot"));
    }
    let max_x = all.iter().map(|p| p.0).fold(0.0, f64::max) * 1.05;
    let heights = || {
        all.iter()
            .map(|p| p.1)
            .chain(lines.iter().filter_map(|l| l.limit))
    };
    let low = heights().fold(f64::INFINITY, f64::min) / 1.5;
    let high = heights().fold(0.0, f64::max) * 1.5;
    let mut svg = String::new();
    draw(curve, &lines, max_x, low..high, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
}

fn lines(curve: &Curve) -> Vec<Line> {
    // A load whose queue grows, or that serves no more than a lower one, lies beyond the capacity. Joined in the order of loads, such points would
    // fold the line back over itself.
    let mut most = 0.0;
    let within: Vec<bool> = curve
        .points
        .iter()
        .map(|p| {
            let served = p.report.throughput.requests_per_s;
            let grows = !p.report.stationarity.growing() && served > most;
            most = f64::max(most, served);
            grows
        })
        .collect();
    let slo = curve
        .points
        .first()
        .map(|p| p.report.slo.clone())
        .unwrap_or_default();
    let line = |label, color, limit: Option<f64>, value: fn(&RunReport) -> Option<f64>| {
        let points = |inside: bool| {
            let some = curve
                .points
                .iter()
                .zip(&within)
                .filter(|(_, w)| **w == inside);
            some.filter_map(|(p, _)| {
                let y = value(&p.report).filter(|y| *y > 0.0)?;
                Some((p.report.throughput.requests_per_s, y))
            })
            .collect()
        };
        Line {
            label,
            color,
            served: points(true),
            beyond: points(false),
            limit: limit.filter(|l| *l > 0.0),
        }
    };
    vec![
        line("TTFT p50", COLORS[0], slo.ttft_ms, |r| r.ttft_ms.p50),
        line("TTFT p99", COLORS[1], None, |r| r.ttft_ms.p99),
        line("TPOT p50", COLORS[2], slo.tpot_ms, |r| r.tpot_ms.p50),
        line("E2E p50", COLORS[3], slo.e2e_ms, |r| r.e2e_ms.p50),
    ]
}

/// The throughput at `load`, between the two points beside it [req/s]; none outside of the points.
fn throughput_at(curve: &Curve, load: f64) -> Option<f64> {
    let served = |i: usize| curve.points[i].report.throughput.requests_per_s;
    let above = curve.points.iter().position(|p| p.load >= load)?;
    let at = |i: usize| curve.points[i].load;
    if at(above) == load {
        return Some(served(above));
    }
    let below = above.checked_sub(1)?;
    let share = (load - at(below)) / (at(above) - at(below));
    Some(served(below) + share * (served(above) - served(below)))
}

fn draw(
    curve: &Curve,
    lines: &[Line],
    max_x: f64,
    y: std::ops::Range<f64>,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (900, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&curve.name, ("sans-serif", 26))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..max_x, y.clone().log_scale())?;
    chart
        .configure_mesh()
        .x_desc("throughput [req/s]; hollow: beyond capacity, latency grows with the run")
        .y_desc("latency [ms]")
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 17))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let marks = [
        ("knee", curve.knee_load, BLACK.mix(0.4)),
        ("objective met", curve.slo_load, COLORS[2].mix(0.6)),
    ];
    for (label, load, style) in marks {
        if let Some(x) = load.and_then(|load| throughput_at(curve, load)) {
            chart
                .draw_series(LineSeries::new([(x, y.start), (x, y.end)], style))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
    }
    for l in lines {
        let color = l.color;
        chart
            .draw_series(LineSeries::new(
                l.served.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(l.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(l.served.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
        chart.draw_series(
            l.beyond
                .iter()
                .map(|p| Circle::new(*p, 3, color.stroke_width(1))),
        )?;
        if let Some(limit) = l.limit {
            let ends = [(0.0, limit), (max_x, limit)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 5, color.mix(0.7).into()))?;
            let name = l.label.split(' ').next().unwrap_or_default();
            let style = ("sans-serif", 15).into_font().color(&color);
            let text = format!("SLO {name} {limit} ms");
            chart.draw_series([Text::new(text, (max_x * 0.8, limit * 1.02), style)])?;
        }
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft, 17)?;
    root.present()?;
    Ok(())
}

/// The labels of the series, in a box at `position`.
pub fn legend<'a, DB, CT>(
    chart: &mut ChartContext<'a, DB, CT>,
    position: SeriesLabelPosition,
    size: i32,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB: DrawingBackend + 'a,
    DB::ErrorType: 'static,
    CT: plotters::coord::CoordTranslate,
{
    chart
        .configure_series_labels()
        .label_font(("sans-serif", size))
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Predicted over measured, one colour per figure, fitted loads hollow, with the lines of no error and of 10 % either way.
///
/// # Errors
/// When there is no load.
pub fn demo_svg(table: &Table) -> anyhow::Result<String> {
    let mut svg = String::new();
    let points: Vec<(usize, bool, f64, f64)> = table
        .loads
        .iter()
        .flat_map(|load| {
            let measured = load.measured();
            COLUMNS
                .iter()
                .enumerate()
                .map(move |(i, c)| (i, load.fitted, (c.of)(&measured), (c.of)(&load.predicted)))
        })
        .filter(|(_, _, x, y)| *x > 0.0 && *y > 0.0)
        .collect();
    let all = || points.iter().flat_map(|p| [p.2, p.3]);
    if points.is_empty() {
        return Err(anyhow!("no load to plot"));
    }
    let low = all().fold(f64::INFINITY, f64::min) / 1.4;
    let high = all().fold(0.0, f64::max) * 1.4;
    scatter(&points, low..high, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
}

/// The ends within `range` of the line on which predictions are `factor` times what was measured. Ends beyond it would be moved onto its
/// border, each axis by itself, and bend the line.
fn band(range: &std::ops::Range<f64>, factor: f64) -> [(f64, f64); 2] {
    let (first, last) = (range.start / factor.min(1.0), range.end / factor.max(1.0));
    [(first, first * factor), (last, last * factor)]
}

fn scatter(
    points: &[(usize, bool, f64, f64)],
    range: std::ops::Range<f64>,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (760, 720)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("predicted against measured", ("sans-serif", 26))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(80)
        .build_cartesian_2d(range.clone().log_scale(), range.clone().log_scale())?;
    chart
        .configure_mesh()
        .x_desc("measured [ms, tokens/s]; open circles: fitted; grey: 10 % off")
        .y_desc("predicted [ms, tokens/s]")
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 17))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for (factor, alpha) in [(0.9, 0.25), (1.0, 0.6), (1.1, 0.25)] {
        chart.draw_series(LineSeries::new(band(&range, factor), BLACK.mix(alpha)))?;
    }
    for (i, column) in COLUMNS.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let of = |fitted: bool| points.iter().filter(move |p| p.0 == i && p.1 == fitted);
        chart
            .draw_series(of(false).map(|p| Circle::new((p.2, p.3), 4, color.filled())))?
            .label(column.label)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
        chart.draw_series(of(true).map(|p| Circle::new((p.2, p.3), 4, color.stroke_width(1))))?;
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft, 17)?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use sim::report::curve::{Curve, CurvePoint, Findings, LoadAxis};
    use sim::report::stationarity::Verdict;

    use super::{band, lines, throughput_at};

    #[test]
    fn loads_beyond_the_capacity_are_not_joined_to_the_line() {
        let point = |load: f64, throughput: f64, growing: bool| {
            let mut report = sim::report::RunReport::empty();
            report.throughput.requests_per_s = throughput;
            report.ttft_ms.p50 = Some(10.0 * load);
            report.slo.ttft_ms = Some(25.0);
            if growing {
                report.stationarity.verdict = Verdict::Growing;
            }
            CurvePoint {
                load,
                throughput_change_ratio: None,
                e2e_change_ratio: None,
                attainment_interval: None,
                report,
            }
        };
        // Refusals hide the queue of 4: its throughput falls all the same.
        let points = [
            (1.0, 1.0, false),
            (2.0, 1.9, false),
            (3.0, 2.0, true),
            (4.0, 1.5, false),
        ];
        let points = points.map(|(l, t, g)| point(l, t, g)).to_vec();
        let curve = Curve::new(LoadAxis::Rate, points, Findings::default());
        let ttft = &lines(&curve)[0];
        assert_eq!(ttft.served, [(1.0, 10.0), (1.9, 20.0)]);
        assert_eq!(ttft.beyond, [(2.0, 30.0), (1.5, 40.0)]);
        assert_eq!(ttft.limit, Some(25.0));
        assert_eq!(throughput_at(&curve, 1.5), Some(1.45));
        assert_eq!(throughput_at(&curve, 9.0), None);
    }

    #[test]
    fn the_lines_beside_the_diagonal_keep_their_distance_and_stay_within_the_plot() {
        for factor in [0.9, 1.0, 1.1] {
            for (x, y) in band(&(2.0..5000.0), factor) {
                assert!((y / x - factor).abs() < 1e-12);
                let inside = 2.0 - 1e-9..=5000.0 + 1e-9;
                assert!(inside.contains(&x) && inside.contains(&y), "{x} {y}");
            }
        }
    }
}
