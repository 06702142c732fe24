//! Making a stream ready: its files are opened and checked, its distributions prepared.

use std::collections::BinaryHeap;

use hwmodels::files::Files;
use hwmodels::units::plain;

use super::super::arrival::{OpenArrivals, RateCurve, Tail, UnitDraw};
use super::super::input::read_columns;
use super::super::lengths::{LengthDraw, PairDraw, Pause};
use super::super::spec::{Arrival, Lengths, MAX_RATE, Prefix, StreamSpec, WorkloadError};
use super::super::tokens::whole_tokens;
use super::super::trace::{self, TraceReader, TraceRow};
use super::{Clock, CutCounts, Draws, FailureCell, SessionPlan, Slab, StreamSource, TraceClock};
use crate::kernel::rng::stream as rng;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kv::chain;

impl StreamSource {
    /// Prepares stream `index` of a run with `seed`: opens and checks its files.
    pub fn new(
        spec: &StreamSpec,
        files: &dyn Files,
        index: u16,
        seed: u64,
        failure: FailureCell,
        cut: CutCounts,
    ) -> Result<StreamSource, WorkloadError> {
        let named = |purpose: &str| rng(seed, &format!("workload.{}.{purpose}", spec.name));
        let mut hint = None;
        let mut shares = spec.prefix.is_some() || spec.sessions.is_some();
        let mut left = spec.requests.unwrap_or(u64::MAX);
        let mut closed = None;
        let clock = match &spec.arrival {
            Arrival::Closed { .. } | Arrival::Burst { .. } => {
                let (users, pauses) = users(&spec.arrival, &mut left)?;
                closed = Some(pauses);
                users
            }
            Arrival::Trace {
                file,
                format,
                columns,
                time_scale,
            } => {
                let fault = |m: String| WorkloadError::new("arrival.file", m);
                let open = || TraceReader::open(files, file, *format, columns.as_ref());
                let summary = open().and_then(trace::check_reader).map_err(fault)?;
                hint = Some(summary.rows);
                shares |= summary.shares_content;
                Clock::Trace(Box::new(TraceClock {
                    reader: open().map_err(fault)?,
                    row: TraceRow::default(),
                    time_scale: *time_scale,
                }))
            }
            open => {
                let (curve, cv) = rate_curve(open, files)?;
                let gaps = UnitDraw::new(cv).ok_or_else(|| bad_cv("arrival.cv", cv))?;
                Clock::Open(OpenArrivals::new(curve, gaps, named("arrival")))
            }
        };
        if left != u64::MAX {
            hint = Some(hint.map_or(left, |h: u64| h.min(left)));
        }
        let lengths = lengths(&spec.lengths, files)?;
        let sessions = match &spec.sessions {
            Some(s) => Some(SessionPlan {
                turns: LengthDraw::new(&s.turns, files, "sessions.turns")?,
                think: pause(s.think.secs(), s.think_cv, "sessions.think_cv")?,
                max_context: s.max_context,
            }),
            None => None,
        };
        let mut source = StreamSource {
            index,
            salt: spec.name.bytes().fold(0x57, |h, b| chain(h, u64::from(b))),
            seed,
            priority: spec.priority,
            max_tokens: spec.max_tokens,
            timeout: spec.timeout.map(|t| SimDuration::from_secs(t.secs())),
            lengths,
            prefix: spec.prefix.map(|p| (p, zipf_shares(&p))),
            cancel: spec.cancel,
            retries: spec.retries,
            sessions,
            closed,
            clock,
            fresh: None,
            pending: BinaryHeap::new(),
            order: 0,
            awaited: Slab::new(),
            live_sessions: Slab::new(),
            sessions_started: 0,
            left,
            hint,
            shares,
            draws: Draws {
                prompt: named("prompt"),
                output: named("output"),
                prefix: named("prefix"),
                cancel: named("cancel"),
                retry: named("retry"),
                think: named("think"),
            },
            failure,
            cut,
        };
        source.advance();
        Ok(source)
    }
}

/// A closed loop's users, or those of a burst, and their pauses after an answer and after a refusal.
fn users(
    arrival: &Arrival,
    left: &mut u64,
) -> Result<(Clock, (Pause, SimDuration)), WorkloadError> {
    let clock = |unsent, stagger| Clock::Users {
        unsent,
        stagger,
        next: SimTime::ZERO,
    };
    match arrival {
        Arrival::Closed {
            concurrency,
            stagger,
            think,
            think_cv,
            refused_pause,
        } => {
            let stagger = SimDuration::from_secs(stagger.secs());
            let think = pause(think.secs(), *think_cv, "arrival.think_cv")?;
            Ok((
                clock(u64::from(*concurrency), stagger),
                (think, SimDuration::from_secs(refused_pause.secs())),
            ))
        }
        Arrival::Burst {
            requests,
            max_in_flight,
            refused_pause,
        } => {
            *left = (*left).min(*requests);
            let users = max_in_flight.map_or(*requests, u64::from).min(*requests);
            Ok((
                clock(users, SimDuration::ZERO),
                (
                    pause(0.0, 0.0, "arrival")?,
                    SimDuration::from_secs(refused_pause.secs()),
                ),
            ))
        }
        _ => Err(WorkloadError::new("arrival.kind", "has no users")),
    }
}

/// What lengths are drawn from; `None`: they stand in the trace.
fn lengths(lengths: &Lengths, files: &dyn Files) -> Result<Option<PairDraw>, WorkloadError> {
    Ok(match lengths {
        Lengths::Separate { prompt, output } => Some(PairDraw::Separate(
            LengthDraw::new(prompt, files, "prompt")?,
            LengthDraw::new(output, files, "output")?,
        )),
        Lengths::Pairs {
            file,
            prompt_column,
            output_column,
        } => {
            let mut rows = Vec::new();
            read_columns(
                files,
                file,
                [prompt_column.as_str(), output_column.as_str()],
                |[p, o]| {
                    rows.push((
                        whole_tokens(p, prompt_column)?,
                        whole_tokens(o, output_column)?,
                    ));
                    Ok(())
                },
            )
            .map_err(|m| WorkloadError::new("lengths.file", m))?;
            Some(PairDraw::Rows(rows))
        }
        Lengths::OfTrace => None,
    })
}

fn pause(mean: f64, cv: f64, path: &str) -> Result<Pause, WorkloadError> {
    Pause::new(mean, cv).ok_or_else(|| bad_cv(path, cv))
}

/// Cumulative shares of the groups' popularity; the last is 1.
fn zipf_shares(prefix: &Prefix) -> Vec<f64> {
    if prefix.groups <= 1 {
        return vec![1.0];
    }
    let mut total = 0.0;
    let mut sums: Vec<f64> = (1..=prefix.groups)
        .map(|k| {
            total += f64::from(k).powf(-prefix.zipf);
            total
        })
        .collect();
    for s in &mut sums {
        *s /= total;
    }
    sums
}

fn bad_cv(path: &str, cv: f64) -> WorkloadError {
    WorkloadError::new(path, format!("must be from 0 to 100, got {cv}"))
}

/// The rate curve of an open-loop arrival, and the cv of its gaps.
fn rate_curve(arrival: &Arrival, files: &dyn Files) -> Result<(RateCurve, f64), WorkloadError> {
    let tail = |repeat: bool| if repeat { Tail::Repeat } else { Tail::End };
    Ok(match arrival {
        Arrival::Poisson { rate } => (RateCurve::constant(rate.per_sec()), 1.0),
        Arrival::Gamma { rate, cv } => (RateCurve::constant(rate.per_sec()), *cv),
        Arrival::Constant { rate } => (RateCurve::constant(rate.per_sec()), 0.0),
        Arrival::Steps { steps, cv, repeat } => {
            let parts: Vec<_> = steps
                .iter()
                .map(|(r, d)| (d.secs(), r.per_sec(), r.per_sec()))
                .collect();
            (RateCurve::pieces(&parts, tail(*repeat)), *cv)
        }
        Arrival::Ramp { from, to, over, cv } => {
            let part = (over.secs(), from.per_sec(), to.per_sec());
            (RateCurve::pieces(&[part], Tail::Hold(to.per_sec())), *cv)
        }
        Arrival::RateTable {
            file,
            time_column,
            rate_column,
            scale,
            cv,
            repeat,
        } => {
            let fault = |m: String| WorkloadError::new("arrival.file", m);
            let mut points: Vec<(f64, f64)> = Vec::new();
            read_columns(
                files,
                file,
                [time_column.as_str(), rate_column.as_str()],
                |[t, r]| {
                    if let Some((last, _)) = points.last()
                        && t <= *last
                    {
                        return Err(format!(
                            "column `{time_column}`: times must rise, got {} after {}",
                            plain(t),
                            plain(*last)
                        ));
                    }
                    if r < 0.0 || r * scale > MAX_RATE {
                        return Err(format!(
                            "column `{rate_column}`: must be from 0 to {MAX_RATE:e} req/s, got {}",
                            plain(r)
                        ));
                    }
                    points.push((t, r * scale));
                    Ok(())
                },
            )
            .map_err(fault)?;
            if points.len() < 2 {
                return Err(fault("a rate curve needs at least two points".into()));
            }
            let parts: Vec<_> = points
                .windows(2)
                .map(|w| (w[1].0 - w[0].0, w[0].1, w[1].1))
                .collect();
            let curve = RateCurve::pieces(&parts, tail(*repeat));
            if curve.expected() <= 0.0 {
                return Err(fault(
                    "all rates are zero, so no request would ever be sent".into(),
                ));
            }
            (curve, *cv)
        }
        Arrival::Closed { .. } | Arrival::Burst { .. } | Arrival::Trace { .. } => {
            return Err(WorkloadError::new("arrival.kind", "has no rate"));
        }
    })
}
