//! The deployments as a picture of letters: the first objective's value over the price.

use std::fmt::Write as _;

use sim::report::text::figure;

use super::report::PlanReport;
use crate::conditions::Condition;

/// Columns and rows of the picture, without its axes.
const WIDTH: usize = 64;
const HEIGHT: usize = 10;
/// Fewest deployments that make a picture.
const LEAST: usize = 3;

impl PlanReport {
    /// The picture; nothing where there are too few deployments.
    pub(super) fn scatter(&self, out: &mut String) -> std::fmt::Result {
        let points: Vec<(f64, f64, char)> = (self.choices().enumerate())
            .filter_map(|(i, c)| {
                let value = (*c.standing.values_ms.first()?)?;
                let mark = match i {
                    0 => '1',
                    _ if self.pareto.contains(&(i as u64)) => '*',
                    _ => 'o',
                };
                Some((c.usd_per_hour?, value, mark))
            })
            .collect();
        if points.len() < LEAST {
            return Ok(());
        }
        let (left, right) = ends(points.iter().map(|p| p.0));
        let (low, high) = ends(points.iter().map(|p| p.1));
        let mut cells = vec![[' '; WIDTH]; HEIGHT];
        // The winner last, then the front: what decides lies on top.
        let order = |mark: char| ['o', '*', '1'].iter().position(|m| *m == mark);
        let mut sorted = points;
        sorted.sort_by_key(|p| order(p.2));
        for (usd, value, mark) in sorted {
            let x = place(usd, (left, right), WIDTH);
            let y = place(value, (low, high), HEIGHT);
            cells[HEIGHT - 1 - y][x] = mark;
        }
        let label = self.slo.first().map_or(String::new(), |text| {
            Condition::parse(text).map_or_else(|_| text.clone(), |c| c.label())
        });
        writeln!(
            out,
            "\n  {label} [ms] over USD/h: 1 the winner, * no other is cheaper and faster, o the others"
        )?;
        for (row, line) in cells.iter().enumerate() {
            let tick = match row {
                0 => figure(high),
                r if r == HEIGHT - 1 => figure(low),
                _ => String::new(),
            };
            let line: String = line.iter().collect();
            writeln!(out, "  {tick:>8} |{}", line.trim_end())?;
        }
        writeln!(out, "  {:>8} +{}", "", "-".repeat(WIDTH))?;
        let (left, right) = (figure(left), figure(right));
        let gap = WIDTH.saturating_sub(left.len());
        writeln!(out, "  {:>8}  {left}{right:>gap$}", "")
    }
}

/// The smallest and the largest of `values`.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), v| {
        (low.min(v), f64::max(high, v))
    })
}

/// The cell of `value` among `n` between the ends, by ratio: prices and latencies differ by factors.
fn place(value: f64, (low, high): (f64, f64), n: usize) -> usize {
    let (low, high) = (low.max(1e-9), high.max(1e-9));
    let share = (value.max(1e-9) / low).ln() / (high / low).ln().max(1e-9);
    ((share * (n - 1) as f64).round() as usize).min(n - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_by_ratio_and_stay_inside() {
        assert_eq!(place(1.0, (1.0, 100.0), 11), 0);
        assert_eq!(place(10.0, (1.0, 100.0), 11), 5);
        assert_eq!(place(100.0, (1.0, 100.0), 11), 10);
        assert_eq!(place(5.0, (5.0, 5.0), 11), 0);
        assert_eq!(place(0.0, (0.0, 0.0), 11), 0);
    }
}
