//! Latency against load: where a deployment stops keeping up.

use egui::{Ui, vec2};

use crate::chart::{Axis, Chart, Join, Line, Mark};
use crate::jobs::KneePoint;
use crate::state::{Action, State};
use crate::theme;

/// Shows the sweep, or how to make one.
pub fn ui(ui: &mut Ui, state: &mut State) {
    let Some(doc) = state.doc.clone() else {
        return super::empty(ui, "Open a run first.");
    };
    ui.horizontal(|ui| {
        let text = "Sweep the load";
        let tip = "Runs the scenario at 0.25 to 1.6 times its request rate";
        if ui.button(text).on_hover_text(tip).clicked() {
            state.ask(Action::Sweep);
        }
    });
    let Some(points) = state.knee.take() else {
        return super::empty(
            ui,
            "Sweep the load to see latency against throughput, with this run on the curve.",
        );
    };
    let charts = charts(&points, doc.data.record.info.slo.ttft);
    state.knee = Some(points);
    let columns = super::columns(ui, charts.len(), 150.0, 250.0);
    let rows = charts.len().div_ceil(columns) as f32;
    let height = ((ui.available_height() - 10.0) / rows - 6.0).clamp(130.0, 420.0);
    let width = ui.available_width() / columns as f32 - 8.0;
    for row in charts.chunks(columns) {
        ui.horizontal(|ui| {
            for chart in row {
                super::chart(ui, state, chart, vec2(width, height), None);
            }
        });
    }
}

/// TTFT and TPOT against what is served.
pub fn charts(points: &[KneePoint], ttft_limit: Option<u64>) -> Vec<Chart> {
    let line = |name: &str, color, of: fn(&KneePoint) -> Option<f64>| {
        let mut xy: Vec<[f64; 2]> = points
            .iter()
            .filter_map(|p| Some([p.report.throughput.offered_per_s, of(p)? * 1e6]))
            .collect();
        xy.sort_by(|a, b| a[0].total_cmp(&b[0]));
        Line::new(name, color, xy)
    };
    let here = points.iter().find(|p| p.factor == 1.0).map(|p| Mark {
        at: p.report.throughput.offered_per_s,
        vertical: true,
        name: "this run".to_owned(),
        color: theme::GREEN,
    });
    let limit = ttft_limit.map(|l| Mark {
        at: l as f64,
        vertical: false,
        name: "limit".to_owned(),
        color: theme::LIMIT,
    });
    let chart = |title: &str, lines, limit: Option<Mark>| Chart {
        title: title.to_owned(),
        x: Axis::new("offered [req/s]").from_zero(),
        y: Axis::new("").duration().log(),
        lines,
        marks: here.iter().cloned().chain(limit).collect(),
        ..Chart::default()
    };
    let served = points
        .iter()
        .map(|p| {
            [
                p.report.throughput.offered_per_s,
                p.report.throughput.requests_per_s,
            ]
        })
        .collect();
    let goodput = points
        .iter()
        .map(|p| {
            [
                p.report.throughput.offered_per_s,
                p.report.throughput.goodput_per_s,
            ]
        })
        .collect();
    vec![
        chart(
            "TTFT against load",
            vec![
                line("p50", theme::SKY, |p| p.report.ttft_ms.p50),
                line("p99", theme::ORANGE, |p| p.report.ttft_ms.p99),
            ],
            limit,
        ),
        chart(
            "TPOT against load",
            vec![
                line("p50", theme::SKY, |p| p.report.tpot_ms.p50),
                line("p99", theme::ORANGE, |p| p.report.tpot_ms.p99),
            ],
            None,
        ),
        Chart {
            title: "Served".to_owned(),
            x: Axis::new("offered [req/s]").from_zero(),
            y: Axis::new("req/s").from_zero(),
            lines: vec![
                Line::new("finished", theme::SKY, served).join(Join::Straight),
                Line::new("goodput", theme::GREEN, goodput),
            ],
            marks: here.into_iter().collect(),
            ..Chart::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn curves_rise_along_the_load_and_this_run_is_marked() {
        let report = small().record.report;
        let points: Vec<KneePoint> = [1.3, 0.5, 1.0]
            .into_iter()
            .map(|factor| {
                let mut report = report.clone();
                report.throughput.offered_per_s *= factor;
                KneePoint { factor, report }
            })
            .collect();
        let charts = charts(&points, Some(200_000_000));
        assert!(charts[0].lines[0].points.is_sorted_by(|a, b| a[0] < b[0]));
        assert_eq!(charts[0].marks.len(), 2);
        assert_eq!(charts[0].marks[0].at, report.throughput.offered_per_s);
    }
}
