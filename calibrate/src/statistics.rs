//! Order statistics of measured values.

use sim::metrics::distribution::quantile_of_sorted_f64;

/// The `p` quantile (0 to 1) of `values` in any order, interpolated as numpy does; none when there are none.
pub fn quantile(mut values: Vec<f64>, p: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile_of_sorted_f64(&values, p)
}

/// The middle of `values`; none when there are none.
pub fn median(values: Vec<f64>) -> Option<f64> {
    quantile(values, 0.5)
}
