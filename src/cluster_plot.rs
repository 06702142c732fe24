//! A run in a cluster as an SVG file: load, requests, service and capacity one below the other on one axis of time, with what broke and what was changed, so that
//! the lag between them is seen.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use sim::kernel::time::SimTime;
use sim::kube::record::{ClusterRecord, Controller, DecisionRow, DeploymentSample, SampleRow};
use sim::report::cluster::Stretch;

/// Most points of a line: beyond, evenly spaced ones are shown.
const MOST_POINTS: usize = 2000;
/// Most stretches of time that rates are shown of.
const STRETCHES: usize = 100;
/// Width of the picture, of the legends beside the panels, and height of a panel [px].
const WIDTH: u32 = 1120;
const LEGEND: u32 = 230;
const PANEL: u32 = 230;

const WANTED: RGBColor = RGBColor(214, 39, 40);
const READY: RGBColor = RGBColor(44, 160, 44);
const NODES: RGBColor = RGBColor(127, 127, 127);
const IN_ENGINES: RGBColor = RGBColor(31, 119, 180);
const WAITING: RGBColor = RGBColor(255, 127, 14);
const THERE: RGBColor = RGBColor(148, 103, 189);
const PENDING: RGBColor = RGBColor(140, 86, 75);

/// Colors of wanted and ready replicas of each of several deployments, in turn.
const OF_DEPLOYMENTS: [(RGBColor, RGBColor); 4] = [
    (WANTED, READY),
    (RGBColor(148, 103, 189), RGBColor(23, 190, 207)),
    (RGBColor(227, 119, 194), RGBColor(188, 189, 34)),
    (RGBColor(140, 86, 75), IN_ENGINES),
];

/// A line: its label, its color, whether it is dashed and so seen above others, and its height from each instant on [s].
struct Line {
    label: String,
    color: RGBColor,
    is_dashed: bool,
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
            is_dashed: false,
            points: points.map(|(at, height)| (at.as_secs(), height)).collect(),
        }
    }

    fn dashed(self) -> Line {
        Line {
            is_dashed: true,
            ..self
        }
    }
}

/// A panel: its caption, what its height is in, its lines in the order in which they are drawn.
struct Panel {
    caption: String,
    unit: &'static str,
    lines: Vec<Line>,
}

/// Something that broke or was changed: when [s], in a few words, and its color.
#[derive(Clone, Debug, PartialEq)]
struct Mark {
    at: f64,
    label: String,
    color: RGBColor,
}

/// What broke and what operators changed, one mark for what happened within a second.
fn marks(decisions: &[DecisionRow]) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    for d in decisions {
        let (label, color) = match d.controller {
            Controller::Operator => ("change", IN_ENGINES),
            Controller::Fault if d.why.contains("is reclaimed") => ("spot notice", WAITING),
            Controller::Fault if d.why.ends_with("is lost") => ("node lost", WANTED),
            Controller::Fault if d.why.contains("no capacity") => ("no capacity", PENDING),
            Controller::Fault => ("fault", WANTED),
            _ => continue,
        };
        let at = d.at.as_secs();
        match marks.last_mut().filter(|m| at - m.at < 1.0) {
            Some(m) if m.label.contains(label) => {}
            Some(m) => m.label = format!("{}, {label}", m.label),
            None => marks.push(Mark {
                at,
                label: label.to_owned(),
                color,
            }),
        }
    }
    marks
}

/// Requests sent a second, from how many had been sent at each sample.
fn offered(samples: &[SampleRow]) -> Line {
    let every = samples.len().div_ceil(STRETCHES).max(1);
    let some: Vec<&SampleRow> = samples
        .iter()
        .step_by(every)
        .chain(samples.last())
        .collect();
    let rate = |pair: &[&SampleRow]| {
        let took = pair[1].at.since(pair[0].at).as_secs();
        let rate = (pair[1].offered - pair[0].offered) as f64 / took;
        (pair[0].at.as_secs(), rate)
    };
    Line {
        label: "offered".into(),
        color: IN_ENGINES,
        is_dashed: false,
        points: some
            .windows(2)
            .filter(|p| p[1].at > p[0].at)
            .map(rate)
            .collect(),
    }
}

/// Time to first token, where requests had one, and attainment, where there is an objective.
fn service(course: &[Stretch]) -> [Option<Panel>; 2] {
    let line = |label: &str, color, of: fn(&Stretch) -> Option<f64>| {
        let points = course.iter().filter_map(|s| Some((s.from_s, of(s)?)));
        let points: Vec<(f64, f64)> = points.collect();
        (!points.is_empty()).then(|| Line {
            label: label.into(),
            color,
            is_dashed: false,
            points,
        })
    };
    let panel = |caption: &str, unit, line: Option<Line>| {
        line.map(|line| Panel {
            caption: caption.into(),
            unit,
            lines: vec![line],
        })
    };
    let ttft = line("TTFT p50, by when sent", WAITING, |s| {
        s.ttft_p50_ms.map(|ms| ms / 1e3)
    });
    let share = line("within the objective, of those sent", READY, |s| {
        s.attainment_ratio.map(|share| 100.0 * share)
    });
    [
        panel("time to first token", "s", ttft),
        panel("attainment", "%", share),
    ]
}

/// Replicas wanted and ready, of each deployment where there are several, what comes or goes beside them, and nodes.
fn capacity(cluster: &ClusterRecord) -> Vec<Line> {
    let samples = &cluster.samples;
    let line = |label: &str, color, of: fn(&SampleRow) -> u32| {
        Line::of(label, color, samples, |s| (s.at, f64::from(of(s))))
    };
    let mut lines = vec![line("nodes Ready or booting", NODES, |s| {
        s.nodes + s.booting_nodes
    })];
    if samples.iter().any(|s| s.replicas != s.ready) {
        lines.push(line("replicas there, surge included", THERE, |s| {
            s.replicas
        }));
    }
    if cluster.deployments.len() > 1 {
        let colors = OF_DEPLOYMENTS.iter().cycle();
        for (d, (wanted, ready)) in cluster.deployments.iter().zip(colors) {
            let line = |what, color, of: fn(&DeploymentSample) -> u32| {
                let label = format!("{} {what}", d.name);
                Line::of(label, color, &d.samples, |s| (s.at, f64::from(of(s))))
            };
            lines.push(line("ready", *ready, |s| s.ready));
            lines.push(line("wanted", *wanted, |s| s.desired).dashed());
        }
    } else {
        lines.push(line("replicas ready", READY, |s| s.ready));
        lines.push(line("replicas wanted", WANTED, |s| s.desired).dashed());
    }
    if samples.iter().any(|s| s.pending_pods > 0) {
        lines.push(line("pods Pending", PENDING, |s| s.pending_pods));
    }
    lines
}

/// The run as panels over time; `course` tells how requests fared, where that is known.
///
/// # Errors
/// When there are fewer than two samples.
pub fn svg(name: &str, cluster: &ClusterRecord, course: &[Stretch]) -> anyhow::Result<String> {
    if cluster.samples.len() < 2 {
        return Err(anyhow!(
            "too few samples of the cluster to plot; lower cluster.sample"
        ));
    }
    let samples = &cluster.samples;
    let requests = vec![
        Line::of("in the engines' batches", IN_ENGINES, samples, |s| {
            (s.at, s.running as f64)
        }),
        Line::of(
            "waiting in engines or at the gateway",
            WAITING,
            samples,
            |s| (s.at, (s.waiting + s.held) as f64),
        ),
    ];
    let panel = |caption: &str, unit, lines| Panel {
        caption: caption.into(),
        unit,
        lines,
    };
    let mut panels = vec![
        panel(&format!("{name}: load"), "req/s", vec![offered(samples)]),
        panel("requests in the system", "requests", requests),
    ];
    panels.extend(service(course).into_iter().flatten());
    panels.push(panel("capacity", "replicas, nodes", capacity(cluster)));
    let mut svg = String::new();
    draw(&panels, cluster, &mut svg).map_err(|e| anyhow!("cannot plot: {e}"))?;
    Ok(svg)
}

fn draw(
    panels: &[Panel],
    cluster: &ClusterRecord,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let size = (WIDTH, PANEL * panels.len() as u32);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let end = cluster.end.as_secs().max(1.0);
    let marks = marks(&cluster.decisions);
    let areas = root.split_evenly((panels.len(), 1));
    for (i, (area, panel)) in areas.iter().zip(panels).enumerate() {
        let (chart, legend) = area.split_horizontally(WIDTH - LEGEND);
        draw_panel(&chart, panel, end, &marks, i == 0)?;
        draw_legend(&legend, panel)?;
    }
    root.present()?;
    Ok(())
}

/// A number without digits that say nothing: 1600, 0.25.
fn figure(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The corners of a line that holds its height until the next point.
fn steps(points: &[(f64, f64)], end: f64, scale: f64) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for (at, height) in points {
        if let Some((_, last)) = corners.last().copied() {
            corners.push((at / scale, last));
        }
        corners.push((at / scale, *height));
    }
    if let Some((_, last)) = corners.last().copied() {
        corners.push((end / scale, last));
    }
    corners
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    end: f64,
    marks: &[Mark],
    is_first: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    // Hours are read in minutes, days in hours.
    let (scale, label) = match end {
        e if e > 6.0 * 3600.0 => (3600.0, "time [h]"),
        e if e > 600.0 => (60.0, "time [min]"),
        _ => (1.0, "time [s]"),
    };
    let heights = (panel.lines.iter()).flat_map(|line| line.points.iter().map(|p| p.1));
    let most = heights.fold(0.0, f64::max);
    let top = 1.25 * if most > 0.0 { most } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.caption, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end / scale, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(label)
        .y_desc(panel.unit)
        .y_labels(6)
        .x_label_formatter(&|x| figure(*x))
        .y_label_formatter(&|y| figure(*y))
        .axis_desc_style(("sans-serif", 15))
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let mut free = 0.0;
    for mark in marks {
        let x = mark.at / scale;
        let style = mark.color.mix(0.55);
        chart.draw_series(DashedLineSeries::new(
            [(x, 0.0), (x, top)],
            3,
            3,
            style.into(),
        ))?;
        // A label where there is room for it.
        if is_first && x >= free {
            let text = ("sans-serif", 12).into_font().color(&mark.color);
            chart.draw_series([Text::new(mark.label.clone(), (x, 0.98 * top), text)])?;
            free = x + 0.008 * mark.label.len() as f64 * end / scale;
        }
    }
    for line in &panel.lines {
        let corners = steps(&line.points, end, scale);
        let style = line.color.stroke_width(2);
        if line.is_dashed {
            chart.draw_series(DashedLineSeries::new(corners, 6, 4, style))?;
        } else {
            chart.draw_series(LineSeries::new(corners, style))?;
        }
    }
    Ok(())
}

/// The labels of a panel's lines, beside it.
fn draw_legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
) -> Result<(), Box<dyn std::error::Error>> {
    for (i, line) in panel.lines.iter().enumerate() {
        let y = 44 + 20 * i as i32;
        let style = line.color.stroke_width(3);
        let ends = match line.is_dashed {
            true => vec![[(0, y), (7, y)], [(12, y), (19, y)]],
            false => vec![[(0, y), (19, y)]],
        };
        for part in ends {
            area.draw(&PathElement::new(part, style))?;
        }
        let text = ("sans-serif", 13).into_font();
        area.draw(&Text::new(line.label.as_str(), (24, y - 6), text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sim::kube::record::ClusterRecord;
    use sim::report::RunReport;
    use sim::scenario::Scenario;
    use sim::simulation::RunOptions;

    use super::{figure, svg};

    const SCENARIO: &str = r#"
[step]
base = "100 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
max_num_seqs = 4
max_model_len = 4096
[[workload]]
arrival = { kind = "constant", rate = "2 req/s" }
prompt = 16
output = 10
[run]
duration = "20 min"
[slo]
ttft = "2 s"
[cluster]
replicas = 2
node_group = [{ name = "gpu", max = 3, spot = true, boot = "50 s", device_plugin = "10 s" }]
pod = { image_pull = "20 s", weights_load = "30 s", engine_init = "5 s", maxSurge = "1" }
[[fault]]
kind = "spot"
at = "5 min"
target = 0
[[change]]
at = "12 min"
restart = true
"#;

    #[test]
    fn a_plot_shows_service_marks_and_every_line() {
        let s = Scenario::parse(SCENARIO, "x.toml", &[]).unwrap();
        let record = s.run(&RunOptions::default()).unwrap();
        let report = RunReport::new(&record, 0.0);
        let cluster: &ClusterRecord = record.cluster.as_ref().unwrap();
        let course = &report.cluster.as_ref().unwrap().course;
        let text = svg("x", cluster, course).unwrap();
        for word in [
            "offered",
            "TTFT p50",
            "attainment",
            "replicas wanted",
            "replicas there, surge included",
            "pods Pending",
            "spot notice",
            "change",
        ] {
            assert!(text.contains(word), "{word} is missing");
        }
        assert!(!text.contains(".0\n</text>"), "labels without a point");
        let ready = text.find("replicas ready").unwrap();
        assert!(
            ready < text.find("replicas wanted").unwrap(),
            "wanted is drawn above"
        );
        // Without a course the rest is shown.
        let text = svg("x", cluster, &[]).unwrap();
        assert!(!text.contains("TTFT") && text.contains("offered"));
    }

    #[test]
    fn figures_have_no_digits_that_say_nothing() {
        let told = [1600.0, 0.25, 0.0, 12.5, 1e6].map(figure);
        assert_eq!(told, ["1600", "0.25", "0", "12.5", "1000000"]);
    }
}
