//! The large tables of a record in numbers that take few bits: what stays, and differences from what is near.

use sim::kernel::time::SimTime;
use sim::record::RequestRow;

use crate::columns::OUTCOMES;
use crate::packed::{Packable, Packed};
use crate::{Stat, StepSpan, Transfer};

/// Which number of a request says when it was sent, when it ended, and which it is.
const ARRIVAL: usize = 8;
const END: usize = 9;
const ID: usize = 0;

/// Which number of a step says where it is and when it began.
const REPLICA: usize = 0;
const START: usize = 2;

/// Instants that a request did not reach are told in bits above those of its outcome.
const OUTCOME: u64 = 15;
const NEVER_SCHEDULED: u64 = 16;
const NEVER_ANSWERED: u64 = 32;
const NEVER_ENDED: u64 = 64;

impl Packable for RequestRow {
    type Numbers = [u64; 12];

    fn numbers(&self) -> [u64; 12] {
        let outcome = OUTCOMES.iter().position(|o| *o == self.outcome);
        let mut outcome = outcome.unwrap_or(3) as u64;
        // What was not reached is as if it had been at once.
        let mut reached = |at: SimTime, since: SimTime, never: u64| {
            if at == SimTime::NEVER {
                outcome |= never;
                return since;
            }
            at
        };
        let arrival = self.arrival;
        let scheduled = reached(self.first_scheduled, arrival, NEVER_SCHEDULED);
        let answered = reached(self.first_token, scheduled, NEVER_ANSWERED);
        let end = reached(self.end, arrival, NEVER_ENDED);
        [
            self.id.into(),
            self.stream.into(),
            self.replica.into(),
            outcome,
            self.prompt_tokens.into(),
            self.cached_tokens.into(),
            self.output_tokens.into(),
            self.preemptions.into(),
            arrival.0,
            end.0,
            scheduled.0.wrapping_sub(arrival.0),
            answered.0.wrapping_sub(scheduled.0),
        ]
    }

    fn of(numbers: &[u64; 12]) -> RequestRow {
        let [
            id,
            stream,
            replica,
            outcome,
            prompt,
            cached,
            output,
            preemptions,
            ..,
        ] = *numbers;
        let [.., arrival, end, scheduled, answered] = *numbers;
        let scheduled = arrival.wrapping_add(scheduled);
        let answered = scheduled.wrapping_add(answered);
        let at = |instant: u64, never: u64| match outcome & never {
            0 => SimTime(instant),
            _ => SimTime::NEVER,
        };
        RequestRow {
            id: id as u32,
            stream: stream as u16,
            replica: replica as u32,
            prompt_tokens: prompt as u32,
            cached_tokens: cached as u32,
            output_tokens: output as u32,
            preemptions: preemptions as u32,
            arrival: SimTime(arrival),
            first_scheduled: at(scheduled, NEVER_SCHEDULED),
            first_token: at(answered, NEVER_ANSWERED),
            end: at(end, NEVER_ENDED),
            outcome: OUTCOMES[(outcome & OUTCOME) as usize % OUTCOMES.len()],
        }
    }
}

impl Packed<RequestRow> {
    /// Id of request `i` of the table.
    ///
    /// # Panics
    /// There is no such row; so with the others.
    #[inline]
    pub fn id(&self, i: usize) -> u32 {
        self.number(i, ID) as u32
    }

    /// Replica that served it.
    #[inline]
    pub fn replica(&self, i: usize) -> u32 {
        self.number(i, 2) as u32
    }

    /// When it was sent [ns].
    #[inline]
    pub fn arrival(&self, i: usize) -> u64 {
        self.number(i, ARRIVAL)
    }

    /// When it ended, `end` at the latest [ns].
    #[inline]
    pub fn end_by(&self, i: usize, end: u64) -> u64 {
        match self.number(i, 3) & NEVER_ENDED {
            0 => self.number(i, END).min(end),
            _ => end,
        }
    }
}

/// A number as one that is small where it is near zero, above or below.
fn folded(n: u64) -> u64 {
    let n = n as i64;
    (n << 1 ^ n >> 63) as u64
}

/// The number that [`folded`] was made of.
fn unfolded(n: u64) -> u64 {
    n >> 1 ^ (n & 1).wrapping_neg()
}

/// Exchanges `common`, which is often there and large, for 1; twice gives what it was.
fn exchanged(n: u64, common: u64) -> u64 {
    match n {
        n if n == common => 1,
        1 => common,
        n => n,
    }
}

fn stat(s: Stat) -> [u64; 3] {
    let even = (s.min as f32).to_bits();
    let above = s.max.wrapping_sub(s.min);
    // The mean of what did not change is what it was.
    [
        s.min.into(),
        above.into(),
        u64::from(s.mean.to_bits() ^ even),
    ]
}

fn of_stat([min, above, mean]: [u64; 3]) -> Stat {
    let min = min as u32;
    Stat {
        min,
        mean: f32::from_bits(mean as u32 ^ (min as f32).to_bits()),
        max: min.wrapping_add(above as u32),
    }
}

impl Packable for StepSpan {
    type Numbers = [u64; 28];

    fn numbers(&self) -> [u64; 28] {
        let length = self.end.wrapping_sub(self.start);
        let [p0, p1, p2, p3, p4, p5] = self.parts.map(|p| u64::from(p.to_bits()));
        let [b0, b1, b2] = self.blocked.map(|b| exchanged(b, self.busy));
        let [r0, r1, r2] = stat(self.running);
        let [w0, w1, w2] = stat(self.waiting);
        let [k0, k1, k2] = stat(self.kv_blocks);
        [
            self.replica.into(),
            self.steps.into(),
            self.start,
            length,
            folded(self.busy.wrapping_sub(length)),
            p0,
            p1,
            p2,
            p3,
            p4,
            p5,
            self.prefill_tokens,
            self.prefill_seqs,
            self.decode_tokens,
            self.decode_ctx,
            self.prefill_pairs,
            r0,
            r1,
            r2,
            w0,
            w1,
            w2,
            k0,
            k1,
            k2,
            b0,
            b1,
            b2,
        ]
    }

    fn of(n: &[u64; 28]) -> StepSpan {
        let (start, length) = (n[START], n[3]);
        let busy = length.wrapping_add(unfolded(n[4]));
        let three = |from: usize| [n[from], n[from + 1], n[from + 2]];
        StepSpan {
            replica: n[REPLICA] as u32,
            steps: n[1] as u32,
            start,
            end: start.wrapping_add(length),
            busy,
            parts: std::array::from_fn(|i| f32::from_bits(n[5 + i] as u32)),
            prefill_tokens: n[11],
            prefill_seqs: n[12],
            decode_tokens: n[13],
            decode_ctx: n[14],
            prefill_pairs: n[15],
            running: of_stat(three(16)),
            waiting: of_stat(three(19)),
            kv_blocks: of_stat(three(22)),
            blocked: three(25).map(|b| exchanged(b, busy)),
        }
    }
}

impl Packable for Transfer {
    type Numbers = [u64; 7];

    fn numbers(&self) -> [u64; 7] {
        let after = |at: u64| folded(at.wrapping_sub(self.prefilled));
        [
            self.request.into(),
            self.from.into(),
            self.to.into(),
            self.tokens.into(),
            self.prefilled,
            after(self.began),
            after(self.ended),
        ]
    }

    fn of(numbers: &[u64; 7]) -> Transfer {
        let [request, from, to, tokens, prefilled, began, ended] = *numbers;
        let after = |n: u64| prefilled.wrapping_add(unfolded(n));
        Transfer {
            request: request as u32,
            from: from as u32,
            to: to as u32,
            tokens: tokens as u32,
            prefilled,
            began: after(began),
            ended: after(ended),
        }
    }
}

impl Packed<Transfer> {
    /// The last transfer of the request with this id, where it had one.
    pub fn of_request(&self, id: u32) -> Option<Transfer> {
        let up_to = |i| self.number(i, 0) <= u64::from(id);
        let after = self.all().partition_point(up_to);
        let last = self.get(after.checked_sub(1)?);
        last.filter(|t| t.request == id)
    }
}

impl Packed<StepSpan> {
    /// Replica of row `i`.
    ///
    /// # Panics
    /// There is no such row; so with the other.
    #[inline]
    pub(crate) fn replica(&self, i: usize) -> u32 {
        self.number(i, REPLICA) as u32
    }
}

impl crate::Rows<'_, StepSpan> {
    /// When step `i` of them began [ns].
    ///
    /// # Panics
    /// There is no such row.
    #[inline]
    pub fn start(&self, i: usize) -> u64 {
        self.number(i, START)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instant() -> impl Strategy<Value = u64> {
        prop_oneof![Just(u64::MAX), Just(0), 0u64..1 << 45, any::<u64>()]
    }

    proptest! {
        #[test]
        fn requests_come_out_as_they_went_in(
            small in any::<[u32; 6]>(),
            times in [instant(), instant(), instant(), instant()],
            outcome in 0..OUTCOMES.len(),
            stream: u16,
        ) {
            let row = RequestRow {
                id: small[0],
                stream,
                replica: small[1],
                prompt_tokens: small[2],
                cached_tokens: small[3],
                output_tokens: small[4],
                preemptions: small[5],
                arrival: SimTime(times[0]),
                first_scheduled: SimTime(times[1]),
                first_token: SimTime(times[2]),
                end: SimTime(times[3]),
                outcome: OUTCOMES[outcome],
            };
            prop_assert_eq!(RequestRow::of(&row.numbers()), row);
            let table: Packed<RequestRow> = [row, row].into_iter().collect();
            prop_assert_eq!((table.id(1), table.replica(1), table.arrival(1)), (row.id, row.replica, times[0]));
            prop_assert_eq!(table.end_by(1, 1 << 40), times[3].min(1 << 40));
        }

        #[test]
        fn transfers_come_out_as_they_went_in(
            small in any::<[u32; 4]>(),
            times in [instant(), instant(), instant()],
        ) {
            let row = Transfer {
                request: small[0],
                from: small[1],
                to: small[2],
                tokens: small[3],
                prefilled: times[0],
                began: times[1],
                ended: times[2],
            };
            prop_assert_eq!(Transfer::of(&row.numbers()), row);
        }

        #[test]
        fn steps_come_out_as_they_went_in(
            large in any::<[u64; 8]>(),
            small in any::<[u32; 8]>(),
            parts in any::<[f32; 6]>(),
            means in any::<[f32; 3]>(),
            blocked in [instant(), instant(), instant()],
        ) {
            let stat = |i: usize, mean| Stat { min: small[2 * i], mean, max: small[2 * i + 1] };
            let row = StepSpan {
                replica: small[6],
                steps: small[7],
                start: large[0],
                end: large[1],
                busy: large[2],
                parts,
                prefill_tokens: large[3],
                prefill_seqs: large[4],
                decode_tokens: large[5],
                decode_ctx: large[6],
                prefill_pairs: large[7],
                running: stat(0, means[0]),
                waiting: stat(1, means[1]),
                kv_blocks: stat(2, means[2]),
                blocked,
            };
            let all = [row, StepSpan { blocked: [row.busy, 1, 0], ..row }];
            for row in all {
                prop_assert_eq!(format!("{:?}", StepSpan::of(&row.numbers())), format!("{row:?}"));
            }
        }
    }
}
