//! Tables as columns, and back.

use sim::kernel::time::SimTime;
use sim::record::RequestRow;
use sim::request::{Outcome, RejectReason};

use crate::npy::Values;
use crate::{Bin, Stat, StepSpan, StoreError, Transfer};

/// Names of `requests/`.
pub const REQUESTS: [&str; 12] = [
    "id",
    "stream",
    "replica",
    "outcome",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "arrival_ns",
    "first_scheduled_ns",
    "first_token_ns",
    "end_ns",
];

/// Names of `steps/`.
pub const STEPS: [&str; 28] = [
    "replica",
    "steps",
    "start_ns",
    "end_ns",
    "busy_ns",
    "weights_s",
    "kv_s",
    "compute_s",
    "communication_s",
    "host_s",
    "bubble_s",
    "prefill_tokens",
    "prefill_seqs",
    "decode_tokens",
    "decode_ctx_tokens",
    "prefill_pairs",
    "running_min",
    "running_mean",
    "running_max",
    "waiting_min",
    "waiting_mean",
    "waiting_max",
    "kv_blocks_min",
    "kv_blocks_mean",
    "kv_blocks_max",
    "kv_full_ns",
    "max_seqs_ns",
    "token_budget_ns",
];

/// Names of `transfers/`.
pub const TRANSFERS: [&str; 7] = [
    "request",
    "from",
    "to",
    "tokens",
    "prefilled_ns",
    "began_ns",
    "ended_ns",
];

/// Names of `rates/`.
pub const RATES: [&str; 5] = ["sent", "finished", "lost", "prompt_tokens", "output_tokens"];

/// The outcomes by their number in files.
pub const OUTCOMES: [Outcome; 9] = [
    Outcome::Finished,
    Outcome::TimedOut,
    Outcome::Failed,
    Outcome::InFlight,
    Outcome::Rejected(RejectReason::Overloaded),
    Outcome::Rejected(RejectReason::QueueFull),
    Outcome::Rejected(RejectReason::TooLong),
    Outcome::Rejected(RejectReason::NeverFits),
    Outcome::Rejected(RejectReason::NoEndpoint),
];

/// A row that lies in columns.
pub trait Row: Sized {
    /// The names of its columns.
    const NAMES: &'static [&'static str];
    /// The columns of `rows`, in that order.
    fn columns(rows: &[Self]) -> Vec<Values>;
    /// Hands the rows of such columns to `take`, one after the other.
    fn rows(columns: Vec<Values>, take: impl FnMut(Self)) -> Result<(), Wrong>;
}

/// What is wrong with columns.
pub struct Wrong {
    /// Which column.
    pub column: &'static str,
    /// Why.
    pub why: String,
}

impl Wrong {
    fn at(column: &'static str, why: impl Into<String>) -> Wrong {
        Wrong {
            column,
            why: why.into(),
        }
    }

    pub fn within(self, place: &str) -> StoreError {
        StoreError::damaged(format!("{place}/{}", self.column), self.why)
    }
}

/// Hands out columns one after the other, each of the type it must have.
struct Columns {
    names: std::slice::Iter<'static, &'static str>,
    values: std::vec::IntoIter<Values>,
}

macro_rules! take {
    ($name:ident, $variant:ident, $type:ty) => {
        fn $name(&mut self) -> Result<Vec<$type>, Wrong> {
            let name = self.names.next().copied().unwrap_or("");
            match self.values.next() {
                Some(Values::$variant(v)) => Ok(v),
                _ => Err(Wrong::at(
                    name,
                    concat!("its numbers are not of type ", stringify!($type)),
                )),
            }
        }
    };
}

impl Columns {
    fn new<R: Row>(values: Vec<Values>) -> Columns {
        Columns {
            names: R::NAMES.iter(),
            values: values.into_iter(),
        }
    }

    take!(u8, U8, u8);
    take!(u16, U16, u16);
    take!(u32, U32, u32);
    take!(u64, U64, u64);

    /// Numbers that are finite and not negative.
    fn f32(&mut self) -> Result<Vec<f32>, Wrong> {
        let name = self.names.as_slice().first().copied().unwrap_or("");
        self.names.next();
        match self.values.next() {
            Some(Values::F32(v)) => match v.iter().position(|x| !(x.is_finite() && *x >= 0.0)) {
                None => Ok(v),
                Some(i) => Err(Wrong::at(name, format!("row {i}: {} is no amount", v[i]))),
            },
            _ => Err(Wrong::at(name, "its numbers are not of type f32")),
        }
    }

    fn stat(&mut self) -> Result<Vec<Stat>, Wrong> {
        let (min, mean, max) = (self.u32()?, self.f32()?, self.u32()?);
        let stats = min.into_iter().zip(mean).zip(max);
        Ok(stats
            .map(|((min, mean), max)| Stat { min, mean, max })
            .collect())
    }
}

impl Row for RequestRow {
    const NAMES: &'static [&'static str] = &REQUESTS;

    fn columns(rows: &[RequestRow]) -> Vec<Values> {
        let u32s = |of: fn(&RequestRow) -> u32| Values::U32(rows.iter().map(of).collect());
        let times =
            |of: fn(&RequestRow) -> SimTime| Values::U64(rows.iter().map(|r| of(r).0).collect());
        let code =
            |r: &RequestRow| OUTCOMES.iter().position(|o| *o == r.outcome).unwrap_or(3) as u8;
        vec![
            u32s(|r| r.id),
            Values::U16(rows.iter().map(|r| r.stream).collect()),
            u32s(|r| r.replica),
            Values::U8(rows.iter().map(code).collect()),
            u32s(|r| r.prompt_tokens),
            u32s(|r| r.cached_tokens),
            u32s(|r| r.output_tokens),
            u32s(|r| r.preemptions),
            times(|r| r.arrival),
            times(|r| r.first_scheduled),
            times(|r| r.first_token),
            times(|r| r.end),
        ]
    }

    fn rows(columns: Vec<Values>, mut take: impl FnMut(RequestRow)) -> Result<(), Wrong> {
        let mut c = Columns::new::<RequestRow>(columns);
        let (id, stream, replica, outcome) = (c.u32()?, c.u16()?, c.u32()?, c.u8()?);
        let (prompt, cached, output) = (c.u32()?, c.u32()?, c.u32()?);
        let preemptions = c.u32()?;
        let (arrival, scheduled, first, end) = (c.u64()?, c.u64()?, c.u64()?, c.u64()?);
        for i in 0..id.len() {
            let outcome = *OUTCOMES.get(usize::from(outcome[i])).ok_or_else(|| {
                Wrong::at("outcome", format!("row {i}: {} is no outcome", outcome[i]))
            })?;
            let before = [scheduled[i], first[i], end[i]]
                .iter()
                .any(|t| *t < arrival[i]);
            if arrival[i] == u64::MAX || before {
                return Err(Wrong::at(
                    "arrival_ns",
                    format!("row {i}: the request is served or ends before it is sent"),
                ));
            }
            take(RequestRow {
                id: id[i],
                stream: stream[i],
                replica: replica[i],
                prompt_tokens: prompt[i],
                cached_tokens: cached[i],
                output_tokens: output[i],
                preemptions: preemptions[i],
                arrival: SimTime(arrival[i]),
                first_scheduled: SimTime(scheduled[i]),
                first_token: SimTime(first[i]),
                end: SimTime(end[i]),
                outcome,
            });
        }
        Ok(())
    }
}

impl Row for StepSpan {
    const NAMES: &'static [&'static str] = &STEPS;

    fn columns(rows: &[StepSpan]) -> Vec<Values> {
        let u32s = |of: fn(&StepSpan) -> u32| Values::U32(rows.iter().map(of).collect());
        let u64s = |of: fn(&StepSpan) -> u64| Values::U64(rows.iter().map(of).collect());
        let part = |i: usize| Values::F32(rows.iter().map(|r| r.parts[i]).collect());
        let blocked = |i: usize| Values::U64(rows.iter().map(|r| r.blocked[i]).collect());
        let stat = |of: fn(&StepSpan) -> Stat| {
            [
                Values::U32(rows.iter().map(|r| of(r).min).collect()),
                Values::F32(rows.iter().map(|r| of(r).mean).collect()),
                Values::U32(rows.iter().map(|r| of(r).max).collect()),
            ]
        };
        let mut all = vec![
            u32s(|r| r.replica),
            u32s(|r| r.steps),
            u64s(|r| r.start),
            u64s(|r| r.end),
            u64s(|r| r.busy),
        ];
        all.extend((0..6).map(part));
        all.extend([
            u64s(|r| r.prefill_tokens),
            u64s(|r| r.prefill_seqs),
            u64s(|r| r.decode_tokens),
            u64s(|r| r.decode_ctx),
            u64s(|r| r.prefill_pairs),
        ]);
        all.extend(stat(|r| r.running));
        all.extend(stat(|r| r.waiting));
        all.extend(stat(|r| r.kv_blocks));
        all.extend((0..3).map(blocked));
        all
    }

    fn rows(columns: Vec<Values>, mut take: impl FnMut(StepSpan)) -> Result<(), Wrong> {
        let mut c = Columns::new::<StepSpan>(columns);
        let (replica, steps) = (c.u32()?, c.u32()?);
        let (start, end, busy) = (c.u64()?, c.u64()?, c.u64()?);
        let parts = [c.f32()?, c.f32()?, c.f32()?, c.f32()?, c.f32()?, c.f32()?];
        let (prefill, seqs, decode) = (c.u64()?, c.u64()?, c.u64()?);
        let (ctx, pairs) = (c.u64()?, c.u64()?);
        let (running, waiting, kv) = (c.stat()?, c.stat()?, c.stat()?);
        let blocked = [c.u64()?, c.u64()?, c.u64()?];
        for i in 0..replica.len() {
            if end[i] < start[i] || end[i] == u64::MAX {
                return Err(Wrong::at(
                    "end_ns",
                    format!("row {i}: the step ends before it starts"),
                ));
            }
            take(StepSpan {
                replica: replica[i],
                steps: steps[i],
                start: start[i],
                end: end[i],
                busy: busy[i],
                parts: std::array::from_fn(|p| parts[p][i]),
                prefill_tokens: prefill[i],
                prefill_seqs: seqs[i],
                decode_tokens: decode[i],
                decode_ctx: ctx[i],
                prefill_pairs: pairs[i],
                running: running[i],
                waiting: waiting[i],
                kv_blocks: kv[i],
                blocked: std::array::from_fn(|p| blocked[p][i]),
            });
        }
        Ok(())
    }
}

impl Row for Transfer {
    const NAMES: &'static [&'static str] = &TRANSFERS;

    fn columns(rows: &[Transfer]) -> Vec<Values> {
        let u32s = |of: fn(&Transfer) -> u32| Values::U32(rows.iter().map(of).collect());
        let u64s = |of: fn(&Transfer) -> u64| Values::U64(rows.iter().map(of).collect());
        vec![
            u32s(|t| t.request),
            u32s(|t| t.from),
            u32s(|t| t.to),
            u32s(|t| t.tokens),
            u64s(|t| t.prefilled),
            u64s(|t| t.began),
            u64s(|t| t.ended),
        ]
    }

    fn rows(columns: Vec<Values>, mut take: impl FnMut(Transfer)) -> Result<(), Wrong> {
        let mut c = Columns::new::<Transfer>(columns);
        let (request, from, to, tokens) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
        let (prefilled, began, ended) = (c.u64()?, c.u64()?, c.u64()?);
        for i in 0..request.len() {
            if ended[i] < prefilled[i] || ended[i] < began[i] || ended[i] == u64::MAX {
                return Err(Wrong::at(
                    "ended_ns",
                    format!("row {i}: the transfer ends before it begins"),
                ));
            }
            take(Transfer {
                request: request[i],
                from: from[i],
                to: to[i],
                tokens: tokens[i],
                prefilled: prefilled[i],
                began: began[i],
                ended: ended[i],
            });
        }
        Ok(())
    }
}

impl Row for Bin {
    const NAMES: &'static [&'static str] = &RATES;

    fn columns(rows: &[Bin]) -> Vec<Values> {
        let of = |of: fn(&Bin) -> u64| Values::U64(rows.iter().map(of).collect());
        vec![
            of(|b| b.sent),
            of(|b| b.finished),
            of(|b| b.lost),
            of(|b| b.prompt_tokens),
            of(|b| b.output_tokens),
        ]
    }

    fn rows(columns: Vec<Values>, mut take: impl FnMut(Bin)) -> Result<(), Wrong> {
        let mut c = Columns::new::<Bin>(columns);
        let (sent, finished, lost) = (c.u64()?, c.u64()?, c.u64()?);
        let (prompt, output) = (c.u64()?, c.u64()?);
        for i in 0..sent.len() {
            take(Bin {
                sent: sent[i],
                finished: finished[i],
                lost: lost[i],
                prompt_tokens: prompt[i],
                output_tokens: output[i],
            });
        }
        Ok(())
    }
}
