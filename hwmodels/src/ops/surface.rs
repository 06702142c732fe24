//! What measured kernels take over what the formulas say: a smooth surface over a few quantities of the shape.
//!
//! A [`Surface`] holds the logarithm of measured over predicted time at the knots of a grid; between knots it is linear in the logarithms of
//! the quantities, beyond the outermost knots it stays what it is there. So a shape far outside the tables is predicted by the formula times the
//! ratio of the nearest shapes that were measured, never by a continued slope. `calibrate/kernels/fit.py` makes them
//! (docs/operators.md, "Surfaces").

use serde::{Deserialize, Serialize};

/// Largest factor between measured time and formula that a surface may hold, either way: a formula that is further off is no basis.
pub const MOST: f64 = 20.0;

/// A surface as a profile holds it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Surface {
    /// Knots of each axis in ascending order, as logarithms to base 2 of its quantity.
    pub axes: Vec<Vec<f64>>,
    /// 1000 ln(measured / formula) at each knot, the last axis fastest: whole numbers separated by blanks.
    pub values: String,
    /// Median absolute error on shapes that were held out of the fit [%].
    pub held_out_median: f64,
    /// 90th percentile of the same [%].
    pub held_out_p90: f64,
    /// Rows held out.
    pub held_out_rows: u64,
    /// The engine whose kernels were measured, where it is another than the profile's: it runs kernels of its own, whose times are not known.
    pub kernels_of: Option<String>,
}

/// A surface that is ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    axes: Vec<Vec<f64>>,
    values: Vec<f64>,
}

impl Surface {
    /// The grid.
    ///
    /// # Errors
    /// In words: an axis without knots or not ascending, values that do not fill the grid, or that exceed [`MOST`].
    pub fn grid(&self) -> Result<Grid, String> {
        if self.axes.is_empty() || self.axes.len() > 4 {
            return Err(format!("1 to 4 axes, got {}", self.axes.len()));
        }
        for axis in &self.axes {
            let ascending = axis.windows(2).all(|w| w[0] < w[1]);
            if axis.is_empty() || !ascending || !axis.iter().all(|x| x.is_finite()) {
                return Err("the knots of an axis must be finite and ascending".into());
            }
        }
        let values = (self.values.split_whitespace())
            .map(|v| v.parse::<i32>().map(|v| f64::from(v) / 1000.0))
            .collect::<Result<Vec<f64>, _>>()
            .map_err(|e| format!("values: {e}"))?;
        let cells: usize = self.axes.iter().map(Vec::len).product();
        if values.len() != cells {
            return Err(format!("{} values for {cells} knots", values.len()));
        }
        if values.iter().any(|v| v.abs() > MOST.ln()) {
            return Err(format!("a factor beyond {MOST}"));
        }
        Ok(Grid {
            axes: self.axes.clone(),
            values,
        })
    }
}

impl Grid {
    /// Whether `quantities` lie within the knots.
    pub fn covers(&self, quantities: &[f64]) -> bool {
        quantities.iter().zip(&self.axes).all(|(q, axis)| {
            let x = q.log2();
            axis[0] <= x && x <= axis[axis.len() - 1]
        })
    }

    /// Measured over predicted time at `quantities`, one for each axis; quantities below 1 count as they are, those at or below 0 as the smallest.
    #[inline]
    pub fn ratio(&self, quantities: &[f64]) -> f64 {
        debug_assert_eq!(quantities.len(), self.axes.len());
        // Cells around the point: offset of the lower corner, step to the upper one, share of the upper one.
        let mut base = 0;
        let mut corners = [(0usize, 0.0f64); 4];
        for (i, axis) in self.axes.iter().enumerate() {
            let x = quantities.get(i).copied().unwrap_or(1.0).log2();
            let last = axis.len() - 1;
            let (lower, share) = if x.is_nan() || x <= axis[0] {
                (0, 0.0)
            } else if x >= axis[last] {
                (last, 0.0)
            } else {
                let upper = axis.partition_point(|k| *k <= x);
                let (a, b) = (axis[upper - 1], axis[upper]);
                (upper - 1, (x - a) / (b - a))
            };
            let stride: usize = self.axes[i + 1..].iter().map(Vec::len).product();
            base += lower * stride;
            corners[i] = (stride, share);
        }
        let mut sum = 0.0;
        let n = self.axes.len();
        for corner in 0..1usize << n {
            let mut weight = 1.0;
            let mut at = base;
            for (bit, (stride, share)) in corners.iter().enumerate().take(n) {
                if corner >> bit & 1 == 1 {
                    weight *= share;
                    at += stride;
                } else {
                    weight *= 1.0 - share;
                }
            }
            if weight > 0.0 {
                sum += weight * self.values[at];
            }
        }
        sum.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surface(values: &str) -> Surface {
        Surface {
            axes: vec![vec![0.0, 2.0], vec![1.0, 3.0, 5.0]],
            values: values.into(),
            held_out_median: 0.0,
            held_out_p90: 0.0,
            held_out_rows: 0,
            kernels_of: None,
        }
    }

    #[test]
    fn a_surface_is_linear_between_its_knots_and_flat_beyond_them() {
        let g = surface("0 100 200  300 400 500").grid().unwrap();
        let ln = |a: f64, b: f64| (g.ratio(&[a.exp2(), b.exp2()]).ln() * 1e9).round() / 1e9;
        assert_eq!(ln(0.0, 1.0), 0.0);
        assert_eq!(ln(2.0, 5.0), 0.5);
        assert_eq!(ln(1.0, 2.0), 0.2);
        assert_eq!(ln(-9.0, -9.0), 0.0);
        assert_eq!(ln(9.0, 30.0), 0.5);
        assert_eq!(ln(9.0, 2.0), 0.35);
        assert_eq!(g.ratio(&[0.0, 0.0]), 1.0);
        assert!(g.covers(&[2.0, 8.0]) && !g.covers(&[2.0, 1.0]) && !g.covers(&[5.0, 8.0]));
    }

    #[test]
    fn a_malformed_surface_is_refused() {
        for values in ["0 1 2", "0 1 2 3 4 x", "0 1 2 3 4 9999"] {
            assert!(surface(values).grid().is_err(), "{values}");
        }
        let mut s = surface("0 1 2 3 4 5");
        s.axes[0] = vec![2.0, 0.0];
        assert!(s.grid().is_err());
        s.axes.clear();
        assert!(s.grid().is_err());
    }
}
