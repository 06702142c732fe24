//! Shapes of experts that were measured themselves: each has a curve of its own over the tokens of a step.
//!
//! Experts are tuned shape by shape (vLLM's Triton kernels look their configuration up by the number of experts and their width; TensorRT-LLM's try
//! their tactics when the engine starts), so a neighbour's time says little. A shape that the tables hold takes what was measured for it; all others
//! take the surface ([`super::surface`]), and where there is none the formula. `calibrate/kernels/fit.py` makes both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::surface::MOST;

/// Curves of one operator and format as a profile holds them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownShapes {
    /// Knots in ascending order: logarithms to base 2 of the tokens of a step, of all ranks that share the experts.
    pub tokens: Vec<f64>,
    /// One shape a line: `hidden inner experts ep top_k: c c ...`. `inner` is an expert's inner size on a rank, `experts` those of all `ep` ranks, and
    /// each c is 100 ln(measured / formula) at one knot.
    pub curves: String,
    /// Median absolute error of the curves on the rows that they were fitted on [%].
    pub fitted_median: f64,
    /// 90th percentile of the same [%].
    pub fitted_p90: f64,
}

/// What tells a shape from all others: hidden size, inner size on a rank, experts, ranks they are spread over, experts of a token.
pub type Key = [u32; 5];

/// Curves that are ready to be asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    tokens: Vec<f64>,
    of: BTreeMap<Key, Vec<f64>>,
}

impl KnownShapes {
    /// The curves.
    ///
    /// # Errors
    /// In words: knots that do not ascend, a line that is no shape with a value for each knot, a value beyond [`MOST`], or a shape that comes twice.
    pub fn curves(&self) -> Result<Curves, String> {
        let finite = self.tokens.iter().all(|x| x.is_finite());
        if self.tokens.is_empty() || !finite || !self.tokens.windows(2).all(|w| w[0] < w[1]) {
            return Err("tokens: the knots must be finite and ascending".to_owned());
        }
        let mut of = BTreeMap::new();
        for line in self.curves.lines().filter(|l| !l.trim().is_empty()) {
            let (key, values) = parse(line).ok_or_else(|| {
                format!(
                    "`{line}` is not `hidden inner experts ep top_k: value ...` in whole numbers"
                )
            })?;
            if values.len() != self.tokens.len() {
                return Err(format!(
                    "`{line}` has {} values for {} knots",
                    values.len(),
                    self.tokens.len()
                ));
            }
            // Values are rounded to whole hundredths.
            if values.iter().any(|v| v.abs() > MOST.ln() + 0.005) {
                return Err(format!("`{line}` holds a factor beyond {MOST}"));
            }
            if of.insert(key, values).is_some() {
                return Err(format!("`{line}` is there twice"));
            }
        }
        Ok(Curves {
            tokens: self.tokens.clone(),
            of,
        })
    }
}

fn parse(line: &str) -> Option<(Key, Vec<f64>)> {
    let (shape, values) = line.split_once(':')?;
    let shape: Vec<u32> = (shape.split_whitespace().map(str::parse))
        .collect::<Result<_, _>>()
        .ok()?;
    let values = (values.split_whitespace())
        .map(|v| v.parse::<i32>().map(|v| f64::from(v) / 100.0))
        .collect::<Result<_, _>>()
        .ok()?;
    Some((shape.try_into().ok()?, values))
}

impl Curves {
    /// Measured over predicted time of `shape` with `tokens` tokens; `None` where the shape is not known. Beyond the outermost knots it stays what it
    /// is there.
    pub fn ratio(&self, shape: &Key, tokens: f64) -> Option<f64> {
        let curve = self.of.get(shape)?;
        let x = tokens.max(1.0).log2();
        let upper = self.tokens.partition_point(|k| *k <= x);
        let value = match (upper.checked_sub(1), self.tokens.get(upper)) {
            (None, _) => curve[0],
            (Some(lower), None) => curve[lower],
            (Some(lower), Some(next)) => {
                let share = (x - self.tokens[lower]) / (next - self.tokens[lower]);
                curve[lower] * (1.0 - share) + curve[upper] * share
            }
        };
        Some(value.exp())
    }

    /// Whether no shape has one.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether `shape` has a curve.
    pub fn knows(&self, shape: &Key) -> bool {
        self.of.contains_key(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(curves: &str) -> KnownShapes {
        KnownShapes {
            tokens: vec![0.0, 4.0, 6.0],
            curves: curves.to_owned(),
            fitted_median: 0.0,
            fitted_p90: 0.0,
        }
    }

    /// Mixtral's experts over two ranks: halves of each.
    const MIXTRAL: Key = [4096, 7168, 8, 1, 2];

    #[test]
    fn a_known_shape_takes_its_own_curve_and_no_other_shape_does() {
        let curves = shapes("4096 7168 8 1 2: 0 -40 20\n4096 14336 8 2 2: 90 90 90\n")
            .curves()
            .unwrap();
        let ln = |tokens: f64| {
            let ratio = curves.ratio(&MIXTRAL, tokens);
            ratio.map(|r| (r.ln() * 1e9).round() / 1e9)
        };
        assert_eq!(ln(1.0), Some(0.0));
        assert_eq!(ln(4.0), Some(-0.2));
        assert_eq!(ln(16.0), Some(-0.4));
        assert_eq!(ln(32.0), Some(-0.1));
        assert_eq!(ln(1e6), Some(0.2));
        assert_eq!(ln(0.0), Some(0.0));
        // Four ranks have quarters of each expert.
        let quarters = [4096, 3584, 8, 1, 2];
        assert_eq!(curves.ratio(&quarters, 16.0), None);
        assert!(curves.knows(&MIXTRAL) && !curves.knows(&quarters));
    }

    #[test]
    fn malformed_curves_are_refused() {
        for (curves, why) in [
            ("4096 7168 8 1: 0 0 0", "is not `hidden"),
            ("4096 7168 8 1 2 0 0 0", "is not `hidden"),
            ("4096 7168 8 1 2: 0 0", "2 values for 3 knots"),
            ("4096 7168 8 1 2: 0 0 x", "is not `hidden"),
            ("4096 7168 8 1 2: 0 0 400", "beyond 20"),
            ("1 1 1 1 1: 0 0 0\n1 1 1 1 1: 1 1 1", "twice"),
        ] {
            let e = shapes(curves).curves().unwrap_err();
            assert!(e.contains(why), "{curves}: {e}");
        }
        let mut s = shapes("");
        s.tokens = vec![4.0, 0.0];
        assert!(s.curves().unwrap_err().contains("ascending"));
    }
}
