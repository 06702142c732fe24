//! From what clients saw to a record: the same recorder that a simulated run feeds.

use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{RecordOptions, Recorder};
use sim::record::{RecordError, RequestRow, RunInfo, RunRecord};
use sim::request::Outcome;

use super::{RawRun, Sample};

/// A measured request: its row, and the gaps between its tokens as `(instant, gap, how many) [ns]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The row.
    pub row: RequestRow,
    /// The gaps.
    pub gaps: Vec<(u64, u64, u32)>,
}

/// Closes measured requests into a record. They may come in any order; of `options`, `warmup` and `slo` matter. Rates count from the
/// first request, or from the end of the warm-up where that is later: before, nothing could finish.
///
/// # Errors
/// Never for requests that have an outcome: the books balance by construction.
pub fn record(
    requests: &[Measured],
    end: SimTime,
    options: &RecordOptions,
    info: RunInfo,
) -> Result<RunRecord, RecordError> {
    let mut recorder = Recorder::new(options);
    let mut order: Vec<&Measured> = requests.iter().collect();
    order.sort_by_key(|m| (m.row.arrival, m.row.id));
    for m in &order {
        recorder.offered(m.row.arrival);
    }
    for m in &order {
        for (at, gap, n) in &m.gaps {
            recorder.gaps(SimTime(*at), SimDuration(*gap), *n);
        }
    }
    order.sort_by_key(|m| (m.row.end, m.row.id));
    for m in &order {
        recorder.request(&m.row);
    }
    let mut record = recorder.finish(end, info)?;
    let arrivals = || requests.iter().map(|m| m.row.arrival);
    if let (Some(first), Some(last)) = (arrivals().min(), arrivals().max())
        && first > SimTime::ZERO + options.warmup
    {
        let w = &mut record.window;
        w.length = end.since(first);
        // n requests have n - 1 gaps: the last of them stands for the one before the first.
        let gaps = w.offered.saturating_sub(1).max(1) as f64;
        w.sending = SimDuration::from_secs(last.since(first).as_secs() * w.offered as f64 / gaps);
    }
    Ok(record)
}

/// The requests of a run. Instants count from its start; a request arrives when it is sent, and ends with its last token.
pub fn measured(run: &RawRun) -> Vec<Measured> {
    run.samples
        .iter()
        .enumerate()
        .map(|(i, s)| one(i, s))
        .collect()
}

fn one(index: usize, s: &Sample) -> Measured {
    let t = &s.trace;
    let outcome = s.outcome();
    let at = |ns: u64| SimTime(s.sent_ns.saturating_add(ns));
    let end = match (outcome, t.last_token_ns()) {
        (Outcome::InFlight, _) => SimTime::NEVER,
        // Usage and the end mark come after the last token, and nobody waits for them.
        (Outcome::Finished, Some(last)) => at(last),
        _ => at(t.end_ns),
    };
    let row = RequestRow {
        id: u32::try_from(index).unwrap_or(u32::MAX),
        stream: s.spec.stream,
        replica: 0,
        prompt_tokens: t
            .usage
            .and_then(|u| u.prompt_tokens)
            .unwrap_or(s.spec.prompt_tokens),
        cached_tokens: t.usage.and_then(|u| u.cached_tokens).unwrap_or(0),
        output_tokens: t.output_tokens(),
        preemptions: 0,
        arrival: SimTime(s.sent_ns),
        first_scheduled: SimTime::NEVER,
        first_token: t.first_token_ns().map_or(SimTime::NEVER, at),
        end,
        outcome,
    };
    // Gaps of requests that did not finish are gaps all the same, as in the simulator's ITL.
    let gaps = t
        .gaps()
        .map(|(when, gap, n)| (at(when).0, gap, n))
        .collect();
    Measured { row, gaps }
}
