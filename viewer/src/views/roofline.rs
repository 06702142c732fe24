//! Where the steps of a run lie between bandwidth and arithmetic.
//!
//! A step must read the weights whatever it holds, so with few tokens its speed rises with their number; with many, arithmetic is what
//! takes the time, and speed stays. Both limits are read from the run's own steps: the weights' time, and the arithmetic per token of those
//! that arithmetic bound.

use std::sync::Arc;

use egui::{Ui, vec2};
use store::StepSpan;

use crate::chart::{Axis, Chart, Join, Line};
use crate::run_data::RunData;
use crate::state::State;
use crate::theme;

/// Most points.
const MOST: usize = 3000;

/// What the view keeps for itself.
#[derive(Default)]
pub struct Roofline {
    key: Option<*const RunData>,
    chart: Chart,
}

impl Roofline {
    /// Shows the steps.
    pub fn ui(&mut self, ui: &mut Ui, state: &mut State) {
        let Some(run) = state.run() else {
            return super::empty(ui, "Open a run first.");
        };
        if self.key != Some(Arc::as_ptr(&run)) {
            self.chart = chart(&run);
            self.key = Some(Arc::as_ptr(&run));
        }
        ui.small("Each point is a step, coloured by what bound it. Left: weights are read for few tokens. Right: arithmetic.");
        let size = vec2(
            ui.available_width(),
            (ui.available_height() - 8.0).max(160.0),
        );
        super::chart(ui, state, &self.chart.clone(), size, None);
    }
}

fn tokens(s: &StepSpan) -> f64 {
    (s.prefill_tokens + s.decode_tokens) as f64 / f64::from(s.steps.max(1))
}

/// Tokens per step against tokens per second, with both limits.
pub fn chart(run: &RunData) -> Chart {
    let level = run.record.steps.first();
    let every = level.map_or(0, |l| l.rows().len()).div_ceil(MOST).max(1);
    let rows = level
        .into_iter()
        .flat_map(|l| l.rows().iter().step_by(every));
    let chosen: Vec<StepSpan> = rows
        .filter(|s| s.busy > 0 && s.prefill_tokens + s.decode_tokens > 0)
        .collect();
    let point = |s: &StepSpan| {
        let seconds = s.busy as f64 * 1e-9 / f64::from(s.steps.max(1));
        [tokens(s), tokens(s) / seconds]
    };
    let mut lines = Vec::new();
    for (i, (name, color)) in theme::CAUSE_NAMES.iter().zip(theme::CAUSES).enumerate() {
        let bound = |s: &&StepSpan| {
            let most = s.parts.iter().copied().fold(0.0, f32::max);
            most > 0.0 && s.parts.iter().position(|p| *p == most) == Some(i)
        };
        let mut points: Vec<[f64; 2]> = chosen.iter().filter(bound).map(point).collect();
        if !points.is_empty() {
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            lines.push(Line::new(*name, color, points).join(Join::Dots));
        }
    }
    let most = chosen.iter().map(tokens).fold(1.0, f64::max);
    if let Some(seconds) = weights_seconds(&chosen) {
        let at = |n: f64| [n, n / seconds];
        lines.insert(
            0,
            Line::new("bandwidth", theme::GREY, vec![at(1.0), at(most)]).faint(),
        );
    }
    if let Some(per_second) = arithmetic(&chosen) {
        let roof = vec![[1.0, per_second], [most, per_second]];
        lines.insert(
            0,
            Line::new("arithmetic limit", theme::VERMILLION, roof).faint(),
        );
    }
    Chart {
        title: "Steps: tokens per second".to_owned(),
        x: Axis::new("tokens per step").log(),
        y: Axis::new("tokens/s").log(),
        lines,
        ..Chart::default()
    }
}

/// The median time in which a step reads the weights [s].
fn weights_seconds(steps: &[StepSpan]) -> Option<f64> {
    let mut times: Vec<f64> = steps
        .iter()
        .map(|s| f64::from(s.parts[0]) / f64::from(s.steps.max(1)))
        .filter(|t| *t > 0.0)
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Tokens per second where nothing but arithmetic took time, of the steps that it took most of; their median.
fn arithmetic(steps: &[StepSpan]) -> Option<f64> {
    let mut rates: Vec<f64> = steps
        .iter()
        .filter(|s| {
            let total: f32 = s.parts.iter().sum();
            s.parts[2] > 0.5 * total && s.parts[2] > 0.0
        })
        .map(|s| tokens(s) * f64::from(s.steps.max(1)) / f64::from(s.parts[2]))
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn limits_are_read_from_the_steps() {
        let step = |tokens: u64, weights: f32, compute: f32| StepSpan {
            steps: 1,
            busy: 10_000_000,
            decode_tokens: tokens,
            parts: [weights, 0.0, compute, 0.0, 0.0, 0.0],
            ..StepSpan::default()
        };
        let steps = [step(8, 0.01, 0.001), step(1000, 0.01, 0.02)];
        let all = steps.to_vec();
        assert!((weights_seconds(&all).unwrap() - 0.01).abs() < 1e-6);
        assert!((arithmetic(&all).unwrap() - 50_000.0).abs() < 1.0);
        assert!(arithmetic(&all[..1]).is_none() && weights_seconds(&[]).is_none());
    }

    #[test]
    fn every_step_is_a_point() {
        let run = small();
        let chart = chart(&run);
        let dots = chart.lines.iter().filter(|l| l.join == Join::Dots);
        let n: usize = dots.map(|l| l.points.len()).sum();
        assert!(n > 100 && n <= run.record.steps[0].rows().len());
    }
}
