//! The latency-throughput curve, and the errors of the demo, as SVG files.

use anyhow::anyhow;
use calibrate::demo::Table;
use calibrate::demo::table::COLUMNS;
use plotters::prelude::*;
use sim::report::curve::Curve;

/// A line of the plot: label, colour, and points (throughput [req/s], latency [ms]).
type Line = (&'static str, RGBColor, Vec<(f64, f64)>);

const COLORS: [RGBColor; 4] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
];

/// The curve as SVG text: latencies over achieved throughput, the knee marked.
///
/// # Errors
/// When fewer than two points have latencies.
pub fn curve_svg(curve: &Curve) -> anyhow::Result<String> {
    let line = |label, color, value: fn(&sim::report::RunReport) -> Option<f64>| {
        let points: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter_map(|p| {
                let y = value(&p.report).filter(|y| *y > 0.0)?;
                Some((p.report.throughput.requests_per_s, y))
            })
            .collect();
        (label, color, points)
    };
    let lines: Vec<Line> = vec![
        line("TTFT p50", COLORS[0], |r| r.ttft_ms.p50),
        line("TTFT p99", COLORS[1], |r| r.ttft_ms.p99),
        line("TPOT p50", COLORS[2], |r| r.tpot_ms.p50),
        line("E2E p50", COLORS[3], |r| r.e2e_ms.p50),
    ];
    let all: Vec<(f64, f64)> = lines.iter().flat_map(|l| l.2.iter().copied()).collect();
    if all.len() < 2 {
        return Err(anyhow!("too few points with latencies to plot"));
    }
    let max_x = all.iter().map(|p| p.0).fold(0.0, f64::max) * 1.05;
    let low = all.iter().map(|p| p.1).fold(f64::INFINITY, f64::min) / 1.5;
    let high = all.iter().map(|p| p.1).fold(0.0, f64::max) * 1.5;
    let mut svg = String::new();
    draw(curve, &lines, max_x, low..high, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
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
        .x_desc("throughput [req/s]")
        .y_desc("latency [ms]")
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 17))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let knee = curve
        .points
        .iter()
        .find(|p| Some(p.load) == curve.knee_load)
        .map(|p| p.report.throughput.requests_per_s);
    if let Some(x) = knee {
        chart
            .draw_series(LineSeries::new([(x, y.start), (x, y.end)], BLACK.mix(0.4)))?
            .label("knee")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.mix(0.4)));
    }
    for (label, color, points) in lines {
        let color = *color;
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(*label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
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
    use super::band;

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
