//! The ranking of a plan as a picture: latency over price.

use anyhow::anyhow;
use planner::plan::PlanReport;
use planner::plan::report::Choice;
use plotters::prelude::*;

use crate::plot::legend;

/// The ranking as SVG text: the first objective's latency over the price, by instance type; the Pareto front joined, the limit dashed.
///
/// # Errors
/// When nothing holds.
pub fn plan_svg(report: &PlanReport) -> anyhow::Result<String> {
    let points: Vec<(f64, f64, &Choice)> = report
        .choices()
        .filter_map(|c| Some((across(report, c), (*c.standing.values_ms.first()?)?, c)))
        .collect();
    if points.is_empty() {
        return Err(anyhow!("no deployment holds, so there is nothing to plot"));
    }
    let mut svg = String::new();
    draw(report, &points, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
}

fn draw(
    report: &PlanReport,
    points: &[(f64, f64, &Choice)],
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let highest = |of: fn(&(f64, f64, &Choice)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let limit = limit_ms(report);
    let right = highest(|p| p.0) * 1.1;
    let top = highest(|p| p.1).max(limit.unwrap_or(0.0)) * 1.15;
    let root = SVGBackend::with_string(svg, (900, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&report.name, ("sans-serif", 26))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let objective = report.slo.first().map_or("", String::as_str);
    chart
        .configure_mesh()
        .x_desc(match is_priced(report) {
            true => "price [USD/h]; joined: no other is cheaper and faster in every objective",
            false => "accelerators; joined: no other takes fewer and is faster in every objective",
        })
        .y_desc(format!("{objective} [ms]"))
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 17))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    if let Some(limit) = limit {
        chart.draw_series(DashedLineSeries::new(
            [(0.0, limit), (right, limit)],
            6,
            5,
            BLACK.mix(0.6).into(),
        ))?;
    }
    let mut front: Vec<(f64, f64)> = report
        .pareto
        .iter()
        .filter_map(|i| report.choices().nth(usize::try_from(*i).ok()?))
        .filter_map(|c| Some((across(report, c), (*c.standing.values_ms.first()?)?)))
        .collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    chart.draw_series(LineSeries::new(front, BLACK.mix(0.3)))?;
    let mut types: Vec<&str> = points.iter().map(|p| p.2.instance.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    for (i, name) in types.into_iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let own = points.iter().filter(|p| p.2.instance == name);
        chart
            .draw_series(own.map(|p| Circle::new((p.0, p.1), 5, color.filled())))?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
    }
    let style = ("sans-serif", 14).into_font();
    chart.draw_series(points.iter().take(8).map(|p| {
        let text = format!("{} x {}, {}", p.2.instances, p.2.instance, p.2.layout);
        Text::new(text, (p.0, p.1 + top * 0.02), style.clone())
    }))?;
    legend(&mut chart, SeriesLabelPosition::UpperRight, 17)?;
    root.present()?;
    Ok(())
}

/// Whether all have a price.
fn is_priced(report: &PlanReport) -> bool {
    report.choices().all(|c| c.usd_per_hour.is_some())
}

/// Where a choice lies: its price [USD/h], or its accelerators where a price is missing.
fn across(report: &PlanReport, c: &Choice) -> f64 {
    let price = c.usd_per_hour.filter(|_| is_priced(report));
    price.unwrap_or(f64::from(c.devices))
}

/// The first objective's limit [ms].
fn limit_ms(report: &PlanReport) -> Option<f64> {
    let text = report.slo.first()?;
    planner::conditions::Condition::parse(text)
        .ok()
        .map(|c| c.limit.limit_ms)
}
