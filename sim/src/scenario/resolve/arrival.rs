//! When requests come.

use std::path::PathBuf;

use hwmodels::units::{PerSec, Secs};

use super::super::document::join;
use super::super::file::{ArrivalFile, ArrivalKind};
use super::{Checker, Result};
use crate::workload::spec::Arrival;

/// What a kind is called, and which keys it has.
fn keys(kind: ArrivalKind) -> (&'static str, &'static [&'static str]) {
    match kind {
        ArrivalKind::Poisson => ("poisson", &["rate"]),
        ArrivalKind::Gamma => ("gamma", &["rate", "cv"]),
        ArrivalKind::Constant => ("constant", &["rate"]),
        ArrivalKind::Steps => ("steps", &["steps", "cv", "repeat"]),
        ArrivalKind::Ramp => ("ramp", &["from", "to", "over", "cv"]),
        ArrivalKind::RateTable => (
            "rate_table",
            &[
                "file",
                "time_column",
                "rate_column",
                "scale",
                "cv",
                "repeat",
            ],
        ),
        ArrivalKind::Closed => (
            "closed",
            &[
                "concurrency",
                "stagger",
                "think",
                "think_cv",
                "refused_pause",
            ],
        ),
        ArrivalKind::Burst => ("burst", &["requests", "max_in_flight", "refused_pause"]),
        ArrivalKind::Trace => ("trace", &["file", "format", "columns", "time_scale"]),
    }
}

impl Checker<'_, '_> {
    pub(super) fn arrival(&self, a: &ArrivalFile, path: &str) -> Result<Arrival> {
        let at = |key: &str| join(path, key);
        let (kind, keys) = keys(a.kind);
        self.only(a, kind, keys, path)?;
        let rate = || -> Result<PerSec> {
            let rate = self.need(&a.rate, path, "rate", "\"2.5 req/s\"")?;
            self.rate(rate, false, &at("rate"))
        };
        let cv = |default: f64| self.number(a.cv.unwrap_or(default), 0.0, 100.0, &at("cv"));
        let file = |example: &str| -> Result<PathBuf> {
            self.path(&self.need(&a.file, path, "file", example)?, &at("file"))
        };
        let scale =
            |value: Option<f64>, key: &str| self.number(value.unwrap_or(1.0), 1e-6, 1e6, &at(key));
        Ok(match a.kind {
            ArrivalKind::Poisson => Arrival::Poisson { rate: rate()? },
            ArrivalKind::Constant => Arrival::Constant { rate: rate()? },
            ArrivalKind::Gamma => {
                self.need(&a.cv, path, "cv", "2.0")?;
                Arrival::Gamma {
                    rate: rate()?,
                    cv: cv(1.0)?,
                }
            }
            ArrivalKind::Steps => Arrival::Steps {
                steps: self.steps(a, path)?,
                cv: cv(1.0)?,
                repeat: a.repeat.unwrap_or(false),
            },
            ArrivalKind::Ramp => Arrival::Ramp {
                from: self.rate(
                    self.need(&a.from, path, "from", "\"1 req/s\"")?,
                    true,
                    &at("from"),
                )?,
                to: self.rate(
                    self.need(&a.to, path, "to", "\"20 req/s\"")?,
                    false,
                    &at("to"),
                )?,
                over: self
                    .positive_secs(self.need(&a.over, path, "over", "\"10 min\"")?, &at("over"))?,
                cv: cv(1.0)?,
            },
            ArrivalKind::RateTable => Arrival::RateTable {
                file: file("\"day.csv\"")?,
                time_column: a.time_column.clone().unwrap_or("t_s".into()),
                rate_column: a.rate_column.clone().unwrap_or("rate_rps".into()),
                scale: scale(a.scale, "scale")?,
                cv: cv(1.0)?,
                repeat: a.repeat.unwrap_or(false),
            },
            ArrivalKind::Closed => self.closed(a, path)?,
            ArrivalKind::Burst => self.burst(a, path)?,
            ArrivalKind::Trace => Arrival::Trace {
                file: file("\"trace.csv\"")?,
                format: match (a.format, &a.columns) {
                    (Some(_), Some(_)) => {
                        return self.fail(
                            &at("columns"),
                            "stands in place of format; give one of them",
                        );
                    }
                    (format, _) => format.unwrap_or_default(),
                },
                columns: a.columns.clone(),
                time_scale: scale(a.time_scale, "time_scale")?,
            },
        })
    }

    fn closed(&self, a: &ArrivalFile, path: &str) -> Result<Arrival> {
        let at = |key: &str| join(path, key);
        Ok(Arrival::Closed {
            concurrency: self.whole(
                self.need(&a.concurrency, path, "concurrency", "16")?,
                1,
                10_000_000,
                &at("concurrency"),
            )?,
            stagger: self.secs_or(a.stagger, 0.0, &at("stagger"))?,
            think: self.secs_or(a.think, 0.0, &at("think"))?,
            think_cv: self.number(a.think_cv.unwrap_or(0.0), 0.0, 100.0, &at("think_cv"))?,
            refused_pause: self.refused_pause(a, path)?,
        })
    }

    fn burst(&self, a: &ArrivalFile, path: &str) -> Result<Arrival> {
        let at = |key: &str| join(path, key);
        Ok(Arrival::Burst {
            requests: self.count(
                self.need(&a.requests, path, "requests", "1000")?,
                &at("requests"),
            )?,
            max_in_flight: a
                .max_in_flight
                .map(|n| self.whole(n, 1, 10_000_000, &at("max_in_flight")))
                .transpose()?,
            refused_pause: self.refused_pause(a, path)?,
        })
    }

    /// Pause of a user who was refused.
    fn refused_pause(&self, a: &ArrivalFile, path: &str) -> Result<Secs> {
        let at = |key: &str| join(path, key);
        let pause = self.secs_or(a.refused_pause, 0.1, &at("refused_pause"))?;
        if pause.secs() < 1e-6 {
            return self.fail(
                &at("refused_pause"),
                "must be at least 1 us: a user refused at once would send for ever at one instant",
            );
        }
        Ok(pause)
    }

    /// Rates, each with how long it holds.
    fn steps(&self, a: &ArrivalFile, path: &str) -> Result<Vec<(PerSec, Secs)>> {
        let at = |key: &str| join(path, key);
        let steps = self.need(
            &a.steps,
            path,
            "steps",
            "[{ rate = \"2 req/s\", duration = \"5 min\" }]",
        )?;
        let mut out = Vec::with_capacity(steps.len());
        for (i, s) in steps.iter().enumerate() {
            let p = format!("{}[{i}]", at("steps"));
            out.push((
                self.rate(s.rate, true, &join(&p, "rate"))?,
                self.positive_secs(s.duration, &join(&p, "duration"))?,
            ));
        }
        let expected: f64 = out.iter().map(|(r, d)| r.per_sec() * d.secs()).sum();
        if expected <= 0.0 {
            return self.fail(
                &at("steps"),
                "all rates are zero, so no request would ever be sent",
            );
        }
        Ok(out)
    }
}
