//! Residuals of a fitted step model as SVG files: what a plot shows and a number hides.

use anyhow::anyhow;
use calibrate::steps::Outcome;
use calibrate::steps::errors::Residual;
use plotters::prelude::*;

/// Most points of a plot: beyond, evenly spaced ones are shown.
const MOST_POINTS: usize = 4000;
/// Residuals beyond this are drawn at the edge [%].
const EDGE: f64 = 60.0;

/// An abscissa: name of the file, label, and a residual's place on it.
type Axis = (&'static str, &'static str, fn(&Residual) -> f64);

const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];

/// File names and SVG texts: measured over predicted against tokens, context and time.
///
/// # Errors
/// When there is nothing to plot.
pub fn all(outcome: &Outcome) -> anyhow::Result<Vec<(&'static str, String)>> {
    if outcome.residuals.len() < 2 {
        return Err(anyhow!("too few steps to plot"));
    }
    let axes: [Axis; 3] = [
        ("residual-tokens.svg", "tokens in the step", |r| {
            f64::from(r.tokens)
        }),
        (
            "residual-context.svg",
            "mean context of the step's decodes [tokens]",
            |r| r.context,
        ),
        ("residual-time.svg", "time since the log began [s]", |r| {
            r.start
        }),
    ];
    axes.into_iter()
        .map(|(file, label, x)| {
            let mut svg = String::new();
            draw(outcome, label, x, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
            Ok((file, svg))
        })
        .collect()
}

fn draw(
    outcome: &Outcome,
    label: &str,
    x: fn(&Residual) -> f64,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = &outcome.residuals;
    let most = points.iter().map(x).fold(0.0, f64::max).max(1e-9) * 1.03;
    let root = SVGBackend::with_string(svg, (900, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            format!("{}: measured step over predicted", outcome.profile.name),
            ("sans-serif", 24),
        )
        .margin(14)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..most, -EDGE..EDGE)?;
    chart
        .configure_mesh()
        .x_desc(label)
        .y_desc("measured - predicted [%]")
        .axis_desc_style(("sans-serif", 18))
        .label_style(("sans-serif", 15))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    chart.draw_series(LineSeries::new([(0.0, 0.0), (most, 0.0)], BLACK.mix(0.5)))?;
    let every = points.len().div_ceil(MOST_POINTS);
    for (i, name) in outcome.logs.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let of_log = points.iter().filter(|r| r.log == i).step_by(every);
        let short = std::path::Path::new(name)
            .file_name()
            .map_or_else(|| name.clone(), |n| n.to_string_lossy().into_owned());
        chart
            .draw_series(of_log.map(|r| {
                let off = 100.0 * (r.measured / r.predicted.max(1e-12) - 1.0);
                Circle::new((x(r), off.clamp(-EDGE, EDGE)), 2, color.mix(0.5).filled())
            }))?
            .label(short)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
    }
    crate::plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 15)?;
    root.present()?;
    Ok(())
}
