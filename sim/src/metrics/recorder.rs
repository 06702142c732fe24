//! Takes in what a run does, event by event, and closes it into a [`RunRecord`].
//!
//! Every sum is an integer, and the fingerprint is a sum too, so replicas may report in any order among each other
//! (within a replica: steps in the order of their starts) and the record is the same.

use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::course::Course;
use crate::metrics::definition::{self, Slo};
use crate::metrics::fingerprint::Fingerprint;
use crate::metrics::flow::Flow;
use crate::metrics::series::Series;
use crate::observer::Observer;
use crate::policy::{Blocked, Load};
use crate::record::{
    Counts, Latencies, RecordError, ReplicaUse, RequestRow, RunInfo, RunRecord, StepRow,
    TokenTotals, TransferRecord, TransferRow, Window,
};
use crate::request::Outcome;

/// What to keep of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// Request rows are kept while there are at most this many; a longer run keeps distributions only,
    /// in constant memory.
    pub max_request_rows: usize,
    /// The same for step rows; 0 keeps none.
    pub max_step_rows: usize,
    /// Bins of the time series; 0 keeps none.
    pub series_bins: usize,
    /// Time at the start that latencies, throughput and shares leave out.
    pub warmup: SimDuration,
    /// Objective that goodput counts against.
    pub slo: Slo,
}

impl Default for RecordOptions {
    fn default() -> Self {
        RecordOptions {
            max_request_rows: 2_000_000,
            max_step_rows: 0,
            series_bins: 1024,
            warmup: SimDuration::ZERO,
            slo: Slo::default(),
        }
    }
}

/// Accumulates a run, or the part of it that some of its replicas are.
pub struct Recorder {
    observer: Option<Box<dyn Observer>>,
    options: RecordOptions,
    window_start: SimTime,
    fingerprint: Fingerprint,
    counts: Counts,
    preemptions: u64,
    tokens: TokenTotals,
    window: Window,
    flow: Flow,
    latencies: Latencies,
    replicas: Vec<ReplicaUse>,
    last_end: Vec<SimTime>,
    series: Series,
    course: Option<Course>,
    transfers: Option<TransferRecord>,
    request_rows: Option<Vec<RequestRow>>,
    step_rows: Option<Vec<StepRow>>,
}

impl Recorder {
    /// A recorder that has seen nothing.
    pub fn new(options: &RecordOptions) -> Recorder {
        Recorder {
            observer: None,
            window_start: SimTime::ZERO + options.warmup,
            fingerprint: Fingerprint::default(),
            counts: Counts::default(),
            preemptions: 0,
            tokens: TokenTotals::default(),
            window: Window::default(),
            flow: Flow::default(),
            latencies: Latencies::default(),
            replicas: Vec::new(),
            last_end: Vec::new(),
            series: Series::new(options.series_bins),
            course: None,
            transfers: None,
            request_rows: (options.max_request_rows > 0).then(Vec::new),
            step_rows: (options.max_step_rows > 0).then(Vec::new),
            options: options.clone(),
        }
    }

    /// Keeps how requests fare over time, however many there are.
    pub fn keep_course(&mut self) {
        self.course.get_or_insert_default();
    }

    /// Tells `observer` of every step and request from now on.
    pub fn watch(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Who watches, if anybody does.
    pub fn observer(&mut self) -> Option<&mut (dyn Observer + 'static)> {
        self.observer.as_deref_mut()
    }

    /// A client sent a request. Calls come in the order of time, and before those of [`Recorder::request`] for anything that ended later.
    #[inline]
    pub fn offered(&mut self, now: SimTime) {
        self.counts.offered += 1;
        if now >= self.window_start {
            self.window.offered += 1;
        }
        self.sent(now);
    }

    /// A client sent a request that another recorder of the same run counts: rates of what ends here are over the time of sending.
    #[inline]
    pub fn sent(&mut self, now: SimTime) {
        self.flow.sent(now);
        if now >= self.window_start {
            self.window.sending = now.since(self.window_start);
            self.window.while_sending = self.window.served();
        }
    }

    /// A request ended, or the run did while it was under way. Once per offered request.
    pub fn request(&mut self, row: &RequestRow) {
        if let Some(observer) = &mut self.observer {
            observer.request(row);
        }
        match row.outcome {
            Outcome::Finished => self.counts.finished += 1,
            Outcome::Rejected(_) => self.counts.rejected += 1,
            Outcome::TimedOut => self.counts.timed_out += 1,
            Outcome::Failed => self.counts.failed += 1,
            Outcome::InFlight => self.counts.in_flight += 1,
        }
        self.fingerprint.add(
            [
                u64::from(row.id) << 32 | u64::from(row.replica),
                u64::from(row.stream) << 48
                    | u64::from(row.preemptions) << 16
                    | outcome_code(row.outcome),
                u64::from(row.prompt_tokens) << 32 | u64::from(row.cached_tokens),
                u64::from(row.output_tokens),
                row.arrival.0,
                row.first_scheduled.0,
                row.first_token.0,
                row.end.0,
            ],
            1,
        );
        self.flow.ended(row);
        if let Some(course) = &mut self.course {
            course.add(row, &self.options.slo);
        }
        self.preemptions += u64::from(row.preemptions);
        if row.outcome == Outcome::Finished {
            self.tokens.add(row);
            if row.end >= self.window_start {
                let good = self.options.slo.met_by(row);
                self.window.finished += 1;
                self.window.good += u64::from(good);
                self.window.tokens.add(row);
                if row.end <= self.window_start + self.window.sending {
                    self.window.while_sending.add(row, good);
                }
            }
        }
        if row.arrival >= self.window_start {
            let l = &mut self.latencies;
            for (distribution, value) in [
                (&mut l.ttft, definition::ttft(row)),
                (&mut l.tpot, definition::tpot(row)),
                (&mut l.e2e, definition::e2e(row)),
                (&mut l.queue, definition::queue(row)),
                (&mut l.normalised, definition::normalised(row)),
            ] {
                if let Some(value) = value {
                    distribution.add(value, 1);
                }
            }
        }
        push_bounded(&mut self.request_rows, self.options.max_request_rows, row);
    }

    /// Where KV that goes from replica to replica is noted: from the first call on the record says what became of it.
    pub fn transfers(&mut self) -> &mut TransferRecord {
        let rows = self.options.max_request_rows > 0;
        self.transfers
            .get_or_insert_with(|| TransferRecord::new(rows))
    }

    /// KV has gone from one replica to another.
    pub fn transfer(&mut self, row: &TransferRow) {
        let (start, limit) = (self.window_start, self.options.max_request_rows);
        self.transfers().add(row, start, limit);
    }

    /// At `now`, `n` sequences each got a token `gap` after their previous one.
    #[inline]
    pub fn gaps(&mut self, now: SimTime, gap: SimDuration, n: u32) {
        if now >= self.window_start {
            self.latencies.itl.add(gap, u64::from(n));
        }
        self.fingerprint.add([now.0, gap.0], u64::from(n));
    }

    /// A replica made a step. Steps of one replica come in the order of their starts.
    #[inline]
    pub fn step(&mut self, row: &StepRow) {
        let r = row.replica as usize;
        if r >= self.replicas.len() {
            self.grow(r);
        }
        if let Some(observer) = &mut self.observer {
            observer.step(row);
        }
        let s = &row.stats;
        self.fingerprint.add(
            [
                row.start.0,
                row.end.0,
                u64::from(row.replica) << 32 | u64::from(row.running),
                u64::from(row.waiting) << 32
                    | u64::from(s.prefill_seqs) << 2
                    | blocked_code(row.blocked),
                u64::from(s.decode_seqs) << 32 | u64::from(s.decode_tokens),
                u64::from(s.prefill_tokens) << 32 | u64::from(s.sampled_seqs),
                s.decode_ctx_sum,
                s.decode_ctx_sq_sum,
                s.prefill_ctx_sum,
                s.prefill_pairs,
                row.kv_used_blocks,
            ],
            1,
        );
        let replica = &mut self.replicas[r];
        replica.steps += 1;
        replica.kv_peak_blocks = replica.kv_peak_blocks.max(row.kv_used_blocks);
        // Steps of a pipeline overlap; each instant counts once.
        let from = row.start.max(self.last_end[r]);
        self.last_end[r] = self.last_end[r].max(row.end);
        if row.start >= self.window_start {
            let parts = row.parts.as_array();
            for (sum, part) in replica.parts_ps.iter_mut().zip(parts) {
                *sum += (part * 1e12 + 0.5) as u64;
            }
        }
        let ns = row.end.since(from.max(self.window_start)).0;
        replica.busy = replica.busy + SimDuration(ns);
        if let Some(cause) = (blocked_code(row.blocked) as usize).checked_sub(1) {
            replica.blocked_ns[cause] += ns;
        }
        if self.step_rows.is_some() {
            push_bounded(&mut self.step_rows, self.options.max_step_rows, row);
        }
    }

    /// From `from` to `to` a replica held what `load` says, whether a step was under way or not.
    #[inline]
    pub fn held(&mut self, replica: u32, from: SimTime, to: SimTime, load: &Load) {
        if to <= from || (load.running == 0 && load.waiting == 0 && load.kv_used_blocks == 0) {
            return;
        }
        let r = replica as usize;
        if r >= self.replicas.len() {
            self.grow(r);
        }
        self.series
            .add(from, to, load.running, load.waiting, load.kv_used_blocks);
        let ns = u128::from(to.since(from.max(self.window_start)).0);
        let replica = &mut self.replicas[r];
        replica.running_ns += ns * u128::from(load.running);
        replica.waiting_ns += ns * u128::from(load.waiting);
        replica.kv_block_ns += ns * u128::from(load.kv_used_blocks);
    }

    #[cold]
    fn grow(&mut self, replica: usize) {
        self.replicas.resize(replica + 1, ReplicaUse::default());
        self.last_end.resize(replica + 1, SimTime::ZERO);
    }

    /// Request rows kept so far; none where there were too many.
    pub fn rows_kept(&self) -> Option<usize> {
        self.request_rows.as_ref().map(Vec::len)
    }

    /// Takes in what `other` has seen of other replicas of the same run.
    pub fn merge(&mut self, other: Recorder) {
        self.fingerprint.merge(other.fingerprint);
        let (c, o) = (&mut self.counts, other.counts);
        c.offered += o.offered;
        c.finished += o.finished;
        c.rejected += o.rejected;
        c.timed_out += o.timed_out;
        c.failed += o.failed;
        c.in_flight += o.in_flight;
        self.preemptions += other.preemptions;
        self.tokens.merge(other.tokens);
        self.window.merge(other.window);
        self.flow.merge(&other.flow);
        self.latencies.merge(&other.latencies);
        if other.replicas.len() > self.replicas.len() {
            self.grow(other.replicas.len() - 1);
        }
        for (mine, theirs) in self.replicas.iter_mut().zip(other.replicas) {
            // Each replica reported to one of them.
            if theirs != ReplicaUse::default() {
                *mine = theirs;
            }
        }
        self.series.merge(other.series);
        if let (Some(mine), Some(theirs)) = (&mut self.course, other.course) {
            mine.merge(theirs);
        }
        debug_assert!(
            other.transfers.is_none(),
            "transfers are noted by one recorder"
        );
        let options = &self.options;
        merge_bounded(
            &mut self.request_rows,
            other.request_rows,
            options.max_request_rows,
        );
        merge_bounded(&mut self.step_rows, other.step_rows, options.max_step_rows);
    }

    /// Drops the rows of requests, of which the run as a whole has too many.
    pub fn drop_rows(&mut self) {
        self.request_rows = None;
    }

    /// Closes the record at `end`, after the last event. Rows of requests come in the order of their ends, those of steps in that in
    /// which they ended; equal ones by request and by replica.
    ///
    /// # Errors
    /// When offered requests and outcomes do not add up: a defect of whoever drove the recorder.
    pub fn finish(mut self, end: SimTime, info: RunInfo) -> Result<RunRecord, RecordError> {
        let c = self.counts;
        if !c.conserved() {
            return Err(RecordError::NotConserved {
                offered: c.offered,
                finished: c.finished,
                rejected: c.rejected,
                timed_out: c.timed_out,
                failed: c.failed,
                in_flight: c.in_flight,
            });
        }
        if info.replicas.len() > self.replicas.len() {
            self.grow(info.replicas.len() - 1);
        }
        if let Some(rows) = &mut self.request_rows {
            rows.sort_by_key(|r| (r.end, r.id));
        }
        if let Some(rows) = &mut self.step_rows {
            rows.sort_by_key(|r| (r.end, r.replica));
        }
        self.window.length = end.since(self.window_start);
        self.fingerprint.add([end.0, c.offered], 1);
        Ok(RunRecord {
            info,
            version: env!("CARGO_PKG_VERSION"),
            fingerprint: self.fingerprint.value(),
            end,
            warmup: self.options.warmup,
            slo: self.options.slo,
            counts: c,
            preemptions: self.preemptions,
            tokens: self.tokens,
            window: self.window,
            flow: self.flow,
            latencies: self.latencies,
            steps: self.replicas.iter().map(|r| r.steps).sum(),
            replicas: self.replicas,
            gateway: None,
            transfers: self.transfers,
            cluster: None,
            series: self.series,
            course: self.course,
            request_rows: self.request_rows,
            step_rows: self.step_rows,
        })
    }
}

/// Appends `other` to `rows`, or drops both when there are more than `limit`.
fn merge_bounded<T>(rows: &mut Option<Vec<T>>, other: Option<Vec<T>>, limit: usize) {
    match (rows.as_mut(), other) {
        (Some(mine), Some(mut theirs)) if mine.len() + theirs.len() <= limit => {
            mine.append(&mut theirs);
        }
        _ => *rows = None,
    }
}

/// Keeps `row` unless that would exceed `limit`; then every row goes, and no more come.
fn push_bounded<T: Copy>(rows: &mut Option<Vec<T>>, limit: usize, row: &T) {
    if let Some(kept) = rows {
        if kept.len() < limit {
            kept.push(*row);
        } else {
            *rows = None;
        }
    }
}

fn outcome_code(outcome: Outcome) -> u64 {
    use crate::request::RejectReason as R;
    match outcome {
        Outcome::Finished => 0,
        Outcome::TimedOut => 1,
        Outcome::Failed => 2,
        Outcome::InFlight => 3,
        Outcome::Rejected(R::Overloaded) => 4,
        Outcome::Rejected(R::QueueFull) => 5,
        Outcome::Rejected(R::TooLong) => 6,
        Outcome::Rejected(R::NeverFits) => 7,
        Outcome::Rejected(R::NoEndpoint) => 8,
    }
}

#[inline]
fn blocked_code(blocked: Blocked) -> u64 {
    match blocked {
        Blocked::Nothing => 0,
        Blocked::KvFull => 1,
        Blocked::MaxSeqs => 2,
        Blocked::TokenBudget => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RejectReason;
    use hwmodels::{BatchStats, Parts};

    fn request(id: u32, arrival: u64, outcome: Outcome) -> RequestRow {
        RequestRow {
            id,
            stream: 0,
            replica: 0,
            prompt_tokens: 10,
            cached_tokens: 4,
            output_tokens: 3,
            preemptions: 1,
            arrival: SimTime(arrival),
            first_scheduled: SimTime(arrival + 10),
            first_token: SimTime(arrival + 100),
            end: SimTime(arrival + 300),
            outcome,
        }
    }

    fn step(replica: u32, start: u64, end: u64) -> StepRow {
        let mut stats = BatchStats::default();
        stats.add_decode(17);
        StepRow {
            replica,
            start: SimTime(start),
            end: SimTime(end),
            stats,
            parts: Parts {
                weights: (end - start) as f64 * 1e-9,
                ..Parts::default()
            },
            running: 2,
            waiting: 1,
            kv_used_blocks: 5,
            blocked: Blocked::KvFull,
        }
    }

    fn close(recorder: Recorder) -> RunRecord {
        recorder
            .finish(SimTime(10_000), RunInfo::default())
            .unwrap()
    }

    #[test]
    fn a_lost_request_is_an_error() {
        let mut r = Recorder::new(&RecordOptions::default());
        r.offered(SimTime(0));
        r.offered(SimTime(1));
        r.request(&request(0, 0, Outcome::Finished));
        let error = r.finish(SimTime(400), RunInfo::default()).unwrap_err();
        assert!(
            error.to_string().contains("2 offered, but 1 finished"),
            "{error}"
        );
    }

    #[test]
    fn outcomes_are_counted_apart_and_only_finished_requests_have_latencies() {
        let mut r = Recorder::new(&RecordOptions::default());
        let outcomes = [
            Outcome::Finished,
            Outcome::Rejected(RejectReason::QueueFull),
            Outcome::TimedOut,
            Outcome::Failed,
            Outcome::InFlight,
        ];
        for (i, outcome) in outcomes.into_iter().enumerate() {
            r.offered(SimTime(0));
            r.request(&request(i as u32, 0, outcome));
        }
        let record = close(r);
        let c = record.counts;
        assert_eq!((c.offered, c.finished, c.rejected), (5, 1, 1));
        assert_eq!((c.timed_out, c.failed, c.in_flight), (1, 1, 1));
        assert_eq!(record.latencies.e2e.count(), 1);
        assert_eq!(record.latencies.tpot.max(), Some(SimDuration(100)));
        assert_eq!(record.preemptions, 5);
        assert_eq!(record.tokens.output, 3);
    }

    #[test]
    fn the_warm_up_is_left_out_of_everything_but_the_counts() {
        let mut r = Recorder::new(&RecordOptions {
            warmup: SimDuration(1_000),
            ..RecordOptions::default()
        });
        for (id, arrival) in [(0, 100), (1, 900), (2, 1_000)] {
            r.offered(SimTime(arrival));
            r.request(&request(id, arrival, Outcome::Finished));
        }
        r.gaps(SimTime(999), SimDuration(7), 3);
        r.gaps(SimTime(1_000), SimDuration(9), 2);
        r.step(&step(0, 500, 1_500));
        r.step(&step(0, 1_500, 2_000));
        let record = close(r);
        assert_eq!(record.counts.finished, 3);
        assert_eq!(record.latencies.ttft.count(), 1);
        assert_eq!(record.latencies.itl.count(), 2);
        assert_eq!(record.window.offered, 1);
        // The second request ends at 1200, inside the window.
        assert_eq!(record.window.finished, 2);
        assert_eq!(record.window.length, SimDuration(9_000));
        assert_eq!(record.window.sending, SimDuration::ZERO);
        assert_eq!(record.replicas[0].busy, SimDuration(1_000));
        assert_eq!(record.replicas[0].parts_ps[0], 500_000);
    }

    #[test]
    fn overlapping_pipeline_steps_count_each_instant_once() {
        let mut r = Recorder::new(&RecordOptions::default());
        r.step(&step(0, 0, 100));
        r.step(&step(0, 50, 150));
        r.step(&step(0, 300, 400));
        let load = Load {
            running: 2,
            waiting: 1,
            kv_used_blocks: 5,
            ..Load::default()
        };
        // What is held counts whether a step is under way or not.
        for (from, to) in [(0, 50), (50, 150), (300, 400)] {
            r.held(0, SimTime(from), SimTime(to), &load);
        }
        let use_ = close(r).replicas[0];
        assert_eq!(use_.busy, SimDuration(250));
        assert_eq!(use_.running_ns, 500);
        assert_eq!(use_.waiting_ns, 250);
        assert_eq!(use_.kv_block_ns, 1_250);
        assert_eq!(use_.blocked_ns, [250, 0, 0]);
        assert_eq!(use_.kv_peak_blocks, 5);
    }

    #[test]
    fn the_order_of_replicas_and_the_grouping_of_gaps_leave_no_trace() {
        let mut a = Recorder::new(&RecordOptions::default());
        let mut b = Recorder::new(&RecordOptions::default());
        a.step(&step(0, 0, 100));
        a.step(&step(1, 20, 90));
        a.gaps(SimTime(100), SimDuration(30), 3);
        b.step(&step(1, 20, 90));
        b.gaps(SimTime(100), SimDuration(30), 1);
        b.gaps(SimTime(100), SimDuration(30), 2);
        b.step(&step(0, 0, 100));
        let (a, b) = (close(a), close(b));
        assert_eq!(a.fingerprint, b.fingerprint);
        assert_eq!(a.replicas, b.replicas);
        assert_eq!(a.series, b.series);
        assert_eq!(a.latencies, b.latencies);
    }

    #[test]
    fn any_change_of_a_row_changes_the_fingerprint() {
        let of = |row: RequestRow| {
            let mut r = Recorder::new(&RecordOptions::default());
            r.offered(SimTime(0));
            r.request(&row);
            close(r).fingerprint
        };
        let base = request(3, 50, Outcome::Finished);
        let changed = [
            RequestRow { id: 4, ..base },
            RequestRow {
                cached_tokens: 5,
                ..base
            },
            RequestRow {
                first_token: SimTime(151),
                ..base
            },
            RequestRow {
                outcome: Outcome::TimedOut,
                ..base
            },
            RequestRow {
                preemptions: 0,
                ..base
            },
        ];
        for row in changed {
            assert_ne!(of(row), of(base), "{row:?}");
        }
        assert_eq!(of(base), of(base));
    }

    #[test]
    fn beyond_the_limit_rows_go_and_distributions_stay() {
        let mut r = Recorder::new(&RecordOptions {
            max_request_rows: 3,
            ..RecordOptions::default()
        });
        for i in 0..4 {
            r.offered(SimTime(0));
            r.request(&request(i, 0, Outcome::Finished));
        }
        let record = close(r);
        assert!(record.request_rows.is_none());
        assert_eq!(record.latencies.ttft.count(), 4);
    }
}
