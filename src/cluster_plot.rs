//! A run in a cluster as an SVG file: demand above, capacity below, on one axis of time, so that the lag between them is seen.

use anyhow::anyhow;
use plotters::prelude::*;
use sim::kernel::time::SimTime;
use sim::kube::record::{ClusterRecord, DeploymentSample};

/// Most points of a line: beyond, evenly spaced ones are shown.
const MOST_POINTS: usize = 2000;

const WANTED: RGBColor = RGBColor(214, 39, 40);
const READY: RGBColor = RGBColor(44, 160, 44);
const NODES: RGBColor = RGBColor(127, 127, 127);
const IN_ENGINES: RGBColor = RGBColor(31, 119, 180);
const WAITING: RGBColor = RGBColor(255, 127, 14);

/// Colors of wanted and ready replicas of each of several deployments, in turn.
const OF_DEPLOYMENTS: [(RGBColor, RGBColor); 4] = [
    (WANTED, READY),
    (RGBColor(148, 103, 189), RGBColor(23, 190, 207)),
    (RGBColor(227, 119, 194), RGBColor(188, 189, 34)),
    (RGBColor(140, 86, 75), IN_ENGINES),
];

/// A line: its label, its color, and its height from each instant on [s].
struct Line {
    label: String,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// One of `samples`, of which there may be many.
    fn of<S>(
        label: impl Into<String>,
        color: RGBColor,
        samples: &[S],
        point: impl Fn(&S) -> (SimTime, f64),
    ) -> Line {
        let every = samples.len().div_ceil(MOST_POINTS).max(1);
        let points = samples.iter().step_by(every).map(point);
        Line {
            label: label.into(),
            color,
            points: points.map(|(at, height)| (at.as_secs(), height)).collect(),
        }
    }
}

/// Replicas wanted and ready, of each deployment where there are several, and nodes.
fn capacity(cluster: &ClusterRecord) -> Vec<Line> {
    let samples = &cluster.samples;
    let mut lines = Vec::new();
    if cluster.deployments.len() > 1 {
        let colors = OF_DEPLOYMENTS.iter().cycle();
        for (d, (wanted, ready)) in cluster.deployments.iter().zip(colors) {
            let line = |what, color, of: fn(&DeploymentSample) -> u32| {
                let label = format!("{} {what}", d.name);
                Line::of(label, color, &d.samples, |s| (s.at, f64::from(of(s))))
            };
            lines.push(line("wanted", *wanted, |s| s.desired));
            lines.push(line("ready", *ready, |s| s.ready));
        }
    } else {
        lines.push(Line::of("replicas wanted", WANTED, samples, |s| {
            (s.at, f64::from(s.desired))
        }));
        lines.push(Line::of("replicas ready", READY, samples, |s| {
            (s.at, f64::from(s.ready))
        }));
    }
    lines.push(Line::of("nodes Ready or booting", NODES, samples, |s| {
        (s.at, f64::from(s.nodes + s.booting_nodes))
    }));
    lines
}

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
    let samples = &cluster.samples;
    let demand = [
        Line::of(
            "requests in the engines' batches",
            IN_ENGINES,
            samples,
            |s| (s.at, s.running as f64),
        ),
        Line::of(
            "requests that wait, in engines and at the gateway",
            WAITING,
            samples,
            |s| (s.at, (s.waiting + s.held) as f64),
        ),
    ];
    let capacity = capacity(cluster);
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
    let end = cluster.end.as_secs().max(1.0);
    // Hours are read in minutes, days in hours.
    let (scale, label) = match end {
        e if e > 6.0 * 3600.0 => (3600.0, "time [h]"),
        e if e > 600.0 => (60.0, "time [min]"),
        _ => (1.0, "time [s]"),
    };
    let most = (lines.iter())
        .flat_map(|line| line.points.iter().map(|p| p.1))
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
    for line in lines {
        let color = line.color;
        // Sizes hold until the next sample.
        let mut points = Vec::new();
        for (at, height) in &line.points {
            let x = at / scale;
            if let Some((_, last)) = points.last().copied() {
                points.push((x, last));
            }
            points.push((x, *height));
        }
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(line.label.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    crate::plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 14)?;
    Ok(())
}
