//! Draws of token counts and of pauses.

use hwmodels::files::Files;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, Exp1, LogNormal, Normal};

use super::arrival::UnitDraw;
use super::input::read_columns;
use super::spec::{Length, RowOrder, WorkloadError};
use super::tokens::{MAX_TOKENS, whole_tokens};
use crate::kernel::rng::Stream;
use crate::kernel::time::SimDuration;

/// A ready distribution of token counts.
#[derive(Clone, Debug)]
pub enum LengthDraw {
    /// Always the same.
    Fixed(u32),
    /// Between two limits.
    Uniform(u32, u32),
    /// Normal with limits.
    Normal(Normal<f64>, u32, u32),
    /// Lognormal with limits.
    LogNormal(LogNormal<f64>, u32, u32),
    /// Exponential of this mean, with limits.
    Exponential(f64, u32, u32),
    /// Inverse distribution.
    Quantiles(Vec<[f64; 2]>),
    /// Rows of a table, never empty.
    Rows(Vec<u32>),
    /// Rows of a table, never empty, each before any comes again.
    InTurn {
        /// The rows.
        rows: Vec<u32>,
        /// Place of the next.
        next: usize,
        /// In a new order each time.
        shuffled: bool,
    },
}

impl LengthDraw {
    /// Prepares a distribution; reads its file where it has one. `path` is its key, for messages.
    pub fn new(
        length: &Length,
        files: &dyn Files,
        path: &str,
    ) -> Result<LengthDraw, WorkloadError> {
        let no_distribution =
            |e: String| WorkloadError::new(path, format!("is no distribution: {e}"));
        Ok(match *length {
            Length::Fixed(n) => LengthDraw::Fixed(n),
            Length::Uniform { min, max } => LengthDraw::Uniform(min, max),
            Length::Normal {
                mean,
                std,
                min,
                max,
            } => LengthDraw::Normal(
                Normal::new(mean, std).map_err(|e| no_distribution(e.to_string()))?,
                min,
                max,
            ),
            Length::Lognormal {
                mean,
                std,
                min,
                max,
            } => LengthDraw::LogNormal(
                LogNormal::from_mean_cv(mean, std / mean)
                    .map_err(|e| no_distribution(e.to_string()))?,
                min,
                max,
            ),
            Length::LognormalMedian {
                median,
                sigma,
                min,
                max,
            } => LengthDraw::LogNormal(
                LogNormal::new(median.ln(), sigma).map_err(|e| no_distribution(e.to_string()))?,
                min,
                max,
            ),
            Length::Exponential { mean, min, max } => LengthDraw::Exponential(mean, min, max),
            Length::Quantiles(ref points) => LengthDraw::Quantiles(points.clone()),
            Length::Empirical {
                ref file,
                ref column,
                order,
            } => {
                let mut rows = Vec::new();
                read_columns(files, file, [column.as_str()], |[x]| {
                    rows.push(whole_tokens(x, column)?);
                    Ok(())
                })
                .map_err(|m| WorkloadError::new(format!("{path}.file"), m))?;
                match order {
                    RowOrder::Drawn => LengthDraw::Rows(rows),
                    _ => LengthDraw::InTurn {
                        rows,
                        next: 0,
                        shuffled: order == RowOrder::Shuffled,
                    },
                }
            }
        })
    }

    /// One length, 1 to [`MAX_TOKENS`] [tokens].
    pub fn draw(&mut self, rng: &mut Stream) -> u32 {
        match self {
            LengthDraw::Fixed(n) => *n,
            LengthDraw::Uniform(min, max) => rng.random_range(*min..=*max),
            LengthDraw::Normal(d, min, max) => clamp(d.sample(rng), *min, *max),
            LengthDraw::LogNormal(d, min, max) => clamp(d.sample(rng), *min, *max),
            LengthDraw::Exponential(mean, min, max) => {
                let x: f64 = Exp1.sample(rng);
                clamp(x * *mean, *min, *max)
            }
            LengthDraw::Quantiles(points) => {
                let u: f64 = rng.random();
                clamp(interpolate(points, u), 1, MAX_TOKENS)
            }
            LengthDraw::Rows(rows) => rows[rng.random_range(0..rows.len())],
            LengthDraw::InTurn {
                rows,
                next,
                shuffled,
            } => {
                if *shuffled && *next == 0 {
                    rows.shuffle(rng);
                }
                let row = rows[*next];
                *next = (*next + 1) % rows.len();
                row
            }
        }
    }
}

/// Rounds to whole tokens within the limits.
fn clamp(x: f64, min: u32, max: u32) -> u32 {
    // `as` saturates and maps NaN to 0, so nothing gets past the limits.
    (x.round() as u32).clamp(min, max)
}

/// The value at share `u` of an inverse distribution.
pub fn interpolate(points: &[[f64; 2]], u: f64) -> f64 {
    let after = points.partition_point(|p| p[0] < u);
    match (after.checked_sub(1).map(|i| points[i]), points.get(after)) {
        (Some([a, x]), Some([b, y])) if b > &a => x + (y - x) * (u - a) / (b - a),
        (_, Some([_, y])) => *y,
        (Some([_, x]), None) => x,
        (None, None) => 1.0,
    }
}

/// Prompt and output lengths of one request.
#[derive(Clone, Debug)]
pub enum PairDraw {
    /// Drawn apart, each from its own stream.
    Separate(LengthDraw, LengthDraw),
    /// Rows of a file, never empty.
    Rows(Vec<(u32, u32)>),
}

impl PairDraw {
    /// One pair [tokens]; prompts come from `prompt`, outputs from `output`, rows from `prompt`.
    pub fn draw(&mut self, prompt: &mut Stream, output: &mut Stream) -> (u32, u32) {
        match self {
            PairDraw::Separate(p, o) => (p.draw(prompt), o.draw(output)),
            PairDraw::Rows(rows) => rows[prompt.random_range(0..rows.len())],
        }
    }
}

/// Draws of pauses with a given mean and coefficient of variation.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    mean: f64,
    unit: UnitDraw,
}

impl Pause {
    /// A pause of `mean` seconds; `None` where `cv` is out of range.
    pub fn new(mean: f64, cv: f64) -> Option<Pause> {
        Some(Pause {
            mean,
            unit: UnitDraw::new(cv)?,
        })
    }

    /// One pause.
    pub fn draw(&self, rng: &mut Stream) -> SimDuration {
        if self.mean == 0.0 {
            return SimDuration::ZERO;
        }
        SimDuration::from_secs(self.mean * self.unit.draw(rng))
    }
}

#[cfg(test)]
mod tests {
    use hwmodels::files::Disk;

    use super::*;
    use crate::kernel::rng::stream;

    fn mean_of(length: Length) -> f64 {
        let mut d = LengthDraw::new(&length, &Disk, "prompt").unwrap();
        let mut rng = stream(3, "test.lengths");
        let n = 40_000;
        (0..n).map(|_| f64::from(d.draw(&mut rng))).sum::<f64>() / f64::from(n)
    }

    #[test]
    fn rows_come_in_turn_or_each_once_before_any_comes_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lengths.csv");
        std::fs::write(&file, "n\n5\n7\n7\n9\n20\n").unwrap();
        let take = |order, count| -> Vec<u32> {
            let (file, column) = (file.clone(), "n".to_owned());
            let length = Length::Empirical {
                file,
                column,
                order,
            };
            let mut d = LengthDraw::new(&length, &Disk, "prompt").unwrap();
            let mut rng = stream(3, "test.rows");
            (0..count).map(|_| d.draw(&mut rng)).collect()
        };
        assert_eq!(take(RowOrder::InTurn, 7), [5, 7, 7, 9, 20, 5, 7]);
        let shuffled = take(RowOrder::Shuffled, 50);
        assert_ne!(shuffled[..5], shuffled[5..10]);
        for round in shuffled.chunks(5) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, [5, 7, 7, 9, 20]);
        }
    }

    #[test]
    fn draws_have_the_asked_mean() {
        let (min, max) = (1, 1_000_000);
        // Tolerance: four standard errors, std / sqrt(40 000) = std / 200.
        for (length, mean, std) in [
            (Length::Fixed(256), 256.0, 0.0),
            (Length::Uniform { min: 1, max: 999 }, 500.0, 288.0),
            (
                Length::Normal {
                    mean: 512.0,
                    std: 64.0,
                    min,
                    max,
                },
                512.0,
                64.0,
            ),
            (
                Length::Lognormal {
                    mean: 512.0,
                    std: 256.0,
                    min,
                    max,
                },
                512.0,
                256.0,
            ),
            (
                Length::Exponential {
                    mean: 400.0,
                    min,
                    max,
                },
                400.0,
                400.0,
            ),
            (
                Length::Quantiles(vec![[0.0, 100.0], [0.5, 200.0], [1.0, 600.0]]),
                (150.0 + 400.0) / 2.0,
                150.0,
            ),
        ] {
            let got = mean_of(length.clone());
            assert!(
                (got - mean).abs() <= 4.0 * std / 200.0 + 0.51,
                "{length:?}: {got}"
            );
        }
    }

    #[test]
    fn the_median_of_a_lognormal_is_what_was_asked() {
        let mut d = LengthDraw::new(
            &Length::LognormalMedian {
                median: 300.0,
                sigma: 1.2,
                min: 1,
                max: 1_000_000,
            },
            &Disk,
            "prompt",
        )
        .unwrap();
        let mut rng = stream(3, "test.lengths");
        let n = 40_000;
        let below = (0..n).filter(|_| d.draw(&mut rng) <= 300).count() as f64 / f64::from(n);
        assert!((below - 0.5).abs() < 4.0 * 0.5 / 200.0, "{below}");
    }

    #[test]
    fn limits_hold_whatever_the_distribution_says() {
        for length in [
            Length::Normal {
                mean: -1e9,
                std: 1e12,
                min: 5,
                max: 50,
            },
            Length::Lognormal {
                mean: 1e6,
                std: 1e9,
                min: 5,
                max: 50,
            },
            Length::LognormalMedian {
                median: 1e-300,
                sigma: 700.0,
                min: 5,
                max: 50,
            },
            Length::Exponential {
                mean: 1e300,
                min: 5,
                max: 50,
            },
        ] {
            let mut d = LengthDraw::new(&length, &Disk, "prompt").unwrap();
            let mut rng = stream(1, "x");
            for _ in 0..2000 {
                assert!((5..=50).contains(&d.draw(&mut rng)), "{length:?}");
            }
        }
    }

    #[test]
    fn quantiles_are_met_at_their_points() {
        let points = [[0.0, 10.0], [0.25, 20.0], [1.0, 80.0]];
        assert_eq!(interpolate(&points, 0.0), 10.0);
        assert_eq!(interpolate(&points, 0.25), 20.0);
        assert_eq!(interpolate(&points, 0.625), 50.0);
        assert_eq!(interpolate(&points, 1.0), 80.0);
        assert_eq!(interpolate(&[[0.0, 7.0], [0.0, 9.0], [1.0, 9.0]], 0.0), 7.0);
    }

    #[test]
    fn fractions_negative_numbers_and_giants_are_no_token_counts() {
        assert_eq!(whole_tokens(0.0, "x"), Ok(1));
        assert_eq!(whole_tokens(17.0, "x"), Ok(17));
        for bad in [0.5, -1.0, 1e10, f64::NAN, f64::INFINITY] {
            assert!(whole_tokens(bad, "x").is_err());
        }
    }
}
