//! How long prompts and outputs are.

use super::super::document::join;
use super::super::file::{LengthFile, LengthKind, LengthTable};
use super::{Checker, Result};
use crate::workload::spec::{DEFAULT_MAX_TOKENS, Length, MAX_TOKENS};

/// What a kind is called, and which keys it has.
fn keys(kind: LengthKind) -> (&'static str, &'static [&'static str]) {
    match kind {
        LengthKind::Fixed => ("fixed", &["tokens"]),
        LengthKind::Uniform => ("uniform", &["min", "max"]),
        LengthKind::Normal => ("normal", &["mean", "std", "min", "max"]),
        LengthKind::Lognormal => (
            "lognormal",
            &["mean", "std", "median", "sigma", "min", "max"],
        ),
        LengthKind::Exponential => ("exponential", &["mean", "min", "max"]),
        LengthKind::Quantiles => ("quantiles", &["points"]),
        LengthKind::Empirical => ("empirical", &["file", "column", "order"]),
    }
}

impl Checker<'_, '_> {
    pub(super) fn length(&self, file: &LengthFile, path: &str) -> Result<Length> {
        let l = &file.0;
        let at = |key: &str| join(path, key);
        let (kind, keys) = keys(l.kind);
        self.only(l, kind, keys, path)?;
        let limits = || -> Result<(u32, u32)> {
            let min = self.whole(l.min.unwrap_or(1), 1, MAX_TOKENS, &at("min"))?;
            let max = l.max.unwrap_or(DEFAULT_MAX_TOKENS.max(min));
            let max = self.whole(max, 1, MAX_TOKENS, &at("max"))?;
            if min > max {
                return self.fail(
                    &at("min"),
                    format!("must be at most max ({max}), got {min}"),
                );
            }
            Ok((min, max))
        };
        let most = f64::from(MAX_TOKENS);
        let mean = || -> Result<f64> {
            self.number(
                self.need(&l.mean, path, "mean", "512")?,
                1e-3,
                most,
                &at("mean"),
            )
        };
        let std = || -> Result<f64> {
            self.number(self.need(&l.std, path, "std", "64")?, 0.0, most, &at("std"))
        };
        Ok(match l.kind {
            LengthKind::Fixed => Length::Fixed(self.whole(
                self.need(&l.tokens, path, "tokens", "256")?,
                1,
                MAX_TOKENS,
                &self.tokens_path(path),
            )?),
            LengthKind::Uniform => {
                self.need(&l.min, path, "min", "128")?;
                self.need(&l.max, path, "max", "512")?;
                let (min, max) = limits()?;
                Length::Uniform { min, max }
            }
            LengthKind::Normal => {
                let (min, max) = limits()?;
                Length::Normal {
                    mean: mean()?,
                    std: std()?,
                    min,
                    max,
                }
            }
            LengthKind::Lognormal => self.lognormal(l, limits()?, path)?,
            LengthKind::Exponential => {
                let (min, max) = limits()?;
                Length::Exponential {
                    mean: mean()?,
                    min,
                    max,
                }
            }
            LengthKind::Quantiles => {
                let points =
                    self.need(&l.points, path, "points", "[[0, 4], [0.5, 120], [1, 4000]]")?;
                self.quantiles(&points, &at("points"))?;
                Length::Quantiles(points)
            }
            LengthKind::Empirical => Length::Empirical {
                file: self.path(
                    &self.need(&l.file, path, "file", "\"lengths.csv\"")?,
                    &at("file"),
                )?,
                column: self.need(&l.column, path, "column", "\"input_tokens\"")?,
                order: l.order.unwrap_or_default(),
            },
        })
    }

    /// Where a fixed length was written: as a number, or in a table.
    fn tokens_path(&self, path: &str) -> String {
        let inner = join(path, "tokens");
        if self.document.has(&inner) {
            inner
        } else {
            path.to_string()
        }
    }

    fn quantiles(&self, points: &[[f64; 2]], path: &str) -> Result<()> {
        if points.len() < 2 || points.len() > 10_000 {
            return self.fail(
                path,
                format!("must be 2 to 10000 points, got {}", points.len()),
            );
        }
        for (i, [share, tokens]) in points.iter().enumerate() {
            let p = format!("{path}[{i}]");
            self.number(*share, 0.0, 1.0, &p)?;
            self.number(*tokens, 1.0, f64::from(MAX_TOKENS), &p)?;
            if i > 0 && (*share < points[i - 1][0] || *tokens < points[i - 1][1]) {
                return self.fail(&p, "shares and tokens must rise from point to point");
            }
        }
        if points[0][0] != 0.0 || points[points.len() - 1][0] != 1.0 {
            return self.fail(path, "must start at share 0 and end at share 1");
        }
        Ok(())
    }

    /// By mean and standard deviation, or by median and sigma.
    fn lognormal(&self, l: &LengthTable, (min, max): (u32, u32), path: &str) -> Result<Length> {
        let at = |key: &str| join(path, key);
        let most = f64::from(MAX_TOKENS);
        Ok(match (l.mean, l.std, l.median, l.sigma) {
            (Some(mean), Some(std), None, None) => Length::Lognormal {
                mean: self.number(mean, 1e-3, most, &at("mean"))?,
                std: self.number(std, 0.0, most, &at("std"))?,
                min,
                max,
            },
            (None, None, Some(median), Some(sigma)) => Length::LognormalMedian {
                median: self.number(median, 1e-3, most, &at("median"))?,
                sigma: self.number(sigma, 0.0, 10.0, &at("sigma"))?,
                min,
                max,
            },
            _ => {
                return self.fail(
                    path,
                    "lognormal needs `mean` and `std`, or `median` and `sigma`",
                );
            }
        })
    }
}
