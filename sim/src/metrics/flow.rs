//! Requests that came, left the queue and ended, between marks set at every so many arrivals: what a queue's growth is told from.
//!
//! There are at most 512 marks, whatever the length of the run: when they run out, every second one goes. Counts are
//! integers, and each event is counted by its instant, so the number of threads leaves no trace.

use crate::kernel::time::SimTime;
use crate::record::rows::RequestRow;
use crate::request::Outcome;

/// Most marks.
const MAX_MARKS: usize = 512;

/// A stretch of arrivals: from the mark before it (or the start of the run) to its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// When its last request was sent.
    pub until: SimTime,
    /// Requests that left the queue in it: first scheduled, or ended unscheduled.
    pub dequeued: u64,
    /// Requests that ended in it, however.
    pub ended: u64,
}

/// The flow of requests through a run, by stretches of equally many arrivals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Arrivals per stretch.
    arrivals: u64,
    /// Arrivals since the last mark.
    since_mark: u64,
    stretches: Vec<Stretch>,
    /// What came after the last mark.
    open: Stretch,
    scheduled_known: bool,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            arrivals: 1,
            since_mark: 0,
            stretches: Vec::new(),
            open: Stretch::default(),
            scheduled_known: false,
        }
    }
}

impl Flow {
    /// A client sent a request. Calls come in the order of time.
    #[inline]
    pub fn sent(&mut self, now: SimTime) {
        self.since_mark += 1;
        if self.since_mark == self.arrivals {
            self.mark(now);
        }
    }

    fn mark(&mut self, now: SimTime) {
        self.since_mark = 0;
        self.stretches.push(Stretch {
            until: now,
            ..self.open
        });
        self.open = Stretch::default();
        if self.stretches.len() == MAX_MARKS {
            for i in 0..MAX_MARKS / 2 {
                let (a, b) = (self.stretches[2 * i], self.stretches[2 * i + 1]);
                self.stretches[i] = Stretch {
                    until: b.until,
                    dequeued: a.dequeued + b.dequeued,
                    ended: a.ended + b.ended,
                };
            }
            self.stretches.truncate(MAX_MARKS / 2);
            self.arrivals *= 2;
        }
    }

    /// A request ended, or the run did while it was under way. What ended at `t` is known before anything later is sent, or
    /// everything was sent before.
    #[inline]
    pub fn ended(&mut self, row: &RequestRow) {
        let scheduled = row.first_scheduled != SimTime::NEVER;
        self.scheduled_known |= scheduled;
        let ended = row.outcome != Outcome::InFlight;
        if scheduled {
            self.stretch(row.first_scheduled).dequeued += 1;
        } else if ended {
            self.stretch(row.end).dequeued += 1;
        }
        if ended {
            self.stretch(row.end).ended += 1;
        }
    }

    /// The stretch that `at` falls in; an instant on a mark is in the stretch that ends there.
    fn stretch(&mut self, at: SimTime) -> &mut Stretch {
        if self.stretches.last().is_none_or(|s| s.until < at) {
            return &mut self.open;
        }
        let i = self.stretches.partition_point(|s| s.until < at);
        &mut self.stretches[i]
    }

    /// Takes in what ended elsewhere in the same run: all that was sent was told to both.
    pub fn merge(&mut self, other: &Flow) {
        debug_assert_eq!(
            (self.arrivals, self.since_mark, self.stretches.len()),
            (other.arrivals, other.since_mark, other.stretches.len())
        );
        self.scheduled_known |= other.scheduled_known;
        let mine = self.stretches.iter_mut().chain([&mut self.open]);
        for (mine, theirs) in mine.zip(other.stretches.iter().chain([&other.open])) {
            mine.dequeued += theirs.dequeued;
            mine.ended += theirs.ended;
        }
    }

    /// The stretches of [`Flow::arrivals`] requests each, in order.
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// Arrivals per stretch.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Whether it is known when requests left the queue: measured runs see only the client's side.
    pub fn scheduled_known(&self) -> bool {
        self.scheduled_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(arrival: u64, scheduled: u64, end: u64) -> RequestRow {
        RequestRow {
            id: 0,
            stream: 0,
            replica: 0,
            prompt_tokens: 1,
            cached_tokens: 0,
            output_tokens: 1,
            preemptions: 0,
            arrival: SimTime(arrival),
            first_scheduled: SimTime(scheduled),
            first_token: SimTime(end),
            end: SimTime(end),
            outcome: Outcome::Finished,
        }
    }

    #[test]
    fn memory_is_bounded_and_every_event_is_counted_where_it_fell() {
        let n = 10_000u64;
        // A request every 10 ns, scheduled 5 ns later, ended 15 ns after it came.
        let mut flow = Flow::default();
        for i in 0..n {
            if i >= 2 {
                flow.ended(&row((i - 2) * 10, (i - 2) * 10 + 5, (i - 2) * 10 + 15));
            }
            flow.sent(SimTime(i * 10));
        }
        let stretches = flow.stretches();
        assert!(stretches.len() < MAX_MARKS);
        assert_eq!(flow.arrivals(), 32);
        for (i, s) in stretches.iter().enumerate() {
            assert_eq!(s.until, SimTime(((i as u64 + 1) * 32 - 1) * 10));
            // Those that came just before the first mark end after it.
            let expected = if i == 0 { (31, 30) } else { (32, 32) };
            assert_eq!((s.dequeued, s.ended), expected, "stretch {i}");
        }
    }

    #[test]
    fn all_sent_first_or_in_the_order_of_time_is_the_same() {
        let rows: Vec<RequestRow> = (0..3000)
            .map(|i| row(i * 7, i * 9 + 3, i * 11 + 20))
            .collect();
        let mut together = Flow::default();
        rows.iter().for_each(|r| together.sent(r.arrival));
        rows.iter().for_each(|r| together.ended(r));
        let mut events: Vec<(u64, bool, &RequestRow)> = rows
            .iter()
            .flat_map(|r| [(r.end.0, false, r), (r.arrival.0, true, r)])
            .collect();
        events.sort_by_key(|(at, sent, _)| (*at, *sent));
        let mut in_turn = Flow::default();
        for (_, sent, r) in events {
            if sent {
                in_turn.sent(r.arrival);
            } else {
                in_turn.ended(r);
            }
        }
        assert_eq!(together.stretches(), in_turn.stretches());
    }
}
