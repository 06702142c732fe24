//! A run in a cluster as an SVG file: demand above, capacity below, on one axis of time, so that the lag between them is seen.

use anyhow::anyhow;
use plotters::prelude::*;
use sim::kube::record::{ClusterRecord, SampleRow};

/// Most points of a line: beyond, evenly spaced ones are shown.
const MOST_POINTS: usize = 2000;

const WANTED: RGBColor = RGBColor(214, 39, 40);
const READY: RGBColor = RGBColor(44, 160, 44);
const NODES: RGBColor = RGBColor(127, 127, 127);
const IN_ENGINES: RGBColor = RGBColor(31, 119, 180);
const WAITING: RGBColor = RGBColor(255, 127, 14);

/// A line: its label, its color, and its height at a sample.
type Line = (&'static str, RGBColor, fn(&SampleRow) -> f64);

/// Requests in the system over time, and replicas wanted and ready and nodes over time.
///
/// # Errors
/// When there are fewer than two samples.
pub fn svg(name: &str, cluster: &ClusterRecord) -> anyhow::Result<String> {
    if cluster.samples.len() < 2 {
        return Err(anyhow!(
            "too few samples of the cluster to plot; lower cluster.sample"
        ));
    }
    let mut svg = String::new();
    draw(name, cluster, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
}

fn draw(
    name: &str,
    cluster: &ClusterRecord,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (1000, 720)).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(360);
    let demand: [Line; 2] = [
        ("requests in the engines' batches", IN_ENGINES, |s| {
            s.running as f64
        }),
        (
            "requests that wait, in engines and at the gateway",
            WAITING,
            |s| (s.waiting + s.held) as f64,
        ),
    ];
    let capacity: [Line; 3] = [
        ("replicas wanted", WANTED, |s| f64::from(s.desired)),
        ("replicas ready", READY, |s| f64::from(s.ready)),
        ("nodes Ready or booting", NODES, |s| {
            f64::from(s.nodes + s.booting_nodes)
        }),
    ];
    panel(
        &above,
        &format!("{name}: demand"),
        "requests",
        cluster,
        &demand,
    )?;
    panel(&below, "capacity", "replicas, nodes", cluster, &capacity)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    unit: &str,
    cluster: &ClusterRecord,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let samples = &cluster.samples;
    let end = cluster.end.as_secs().max(1.0);
    // Hours are read in minutes, days in hours.
    let (scale, label) = match end {
        e if e > 6.0 * 3600.0 => (3600.0, "time [h]"),
        e if e > 600.0 => (60.0, "time [min]"),
        _ => (1.0, "time [s]"),
    };
    let most = (lines.iter())
        .flat_map(|(_, _, of)| samples.iter().map(of))
        .fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end / scale, 0.0..most * 1.15)?;
    chart
        .configure_mesh()
        .x_desc(label)
        .y_desc(unit)
        .axis_desc_style(("sans-serif", 16))
        .label_style(("sans-serif", 14))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let every = samples.len().div_ceil(MOST_POINTS).max(1);
    for (name, color, of) in lines {
        let color = *color;
        // Sizes hold until the next sample.
        let mut points = Vec::new();
        for s in samples.iter().step_by(every) {
            let x = s.at.as_secs() / scale;
            if let Some((_, last)) = points.last().copied() {
                points.push((x, last));
            }
            points.push((x, of(s)));
        }
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    crate::plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 14)?;
    Ok(())
}
