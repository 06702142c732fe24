//! The one judge of whether a deployment keeps its objectives: in steady state, whatever the length of the run that was asked for.
//!
//! **Time before requests.** At every multiple of a load that goes on (rates that do not change) a run takes as long as the scenario's own does at its own load,
//! and then has as many more requests; it also has at least [`LEAST_REQUESTS`], lasts ten times the largest limit on TTFT or E2E (a queue that grows by
//! a tenth of the load then shows in the latency itself), and three times the longest E2E in it. The first third is left out, by when all are gone that
//! found the deployment empty.
//!
//! **It goes on until the answer stands.** A run is doubled until every objective's value stands clear of its limit by its interval
//! ([`crate::interval`]) and E2E latencies do not rise in it any more, or until it has [`MOST_EXTENDED`] requests; that the objectives hold must show twice. Lengths double from the same numbers of
//! requests whatever was asked for, so that a question and the same with ten times the requests end with runs of the same requests.
//!
//! **A miss shows early.** A deployment starts empty, so its latencies are at first lower than later (unless prompts share content, which caches
//! have still to learn): what misses clearly in an eighth of the run misses, and the rest is not run.
//!
//! **What changes by itself** (traces, ramps, days) is run once, as it is; at a multiple a curve of rates takes as long and has more requests, a trace
//! is played faster.

use hwmodels::units::Secs;
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{Metric, RecordOptions};
use sim::record::RunRecord;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;
use sim::workload::Arrival;

use crate::conditions::{Condition, Standing};
use crate::fleet::{Extent, Fleet};
use crate::interval::{in_order, rises};
use crate::requests::{Requests, steady_rate};
use crate::{Error, World};

/// Requests of a run that goes on at least.
pub const LEAST_REQUESTS: u64 = 1_000;
/// Requests up to which a run is doubled to tell whether an objective holds.
pub const MOST_EXTENDED: u64 = crate::requests::MOST_EXTENDED as u64;
/// Requests after the warm-up that a run of a load that ends by itself must have.
pub const FEW: u64 = 30;
/// Share of a run that is left out.
pub const LEFT_OUT: f64 = 1.0 / 3.0;
/// Times the largest limit on TTFT or E2E that a run lasts.
const LIMITS: f64 = 10.0;
/// The part of a run in which a miss is looked for first.
const FIRST_LOOK: u64 = 8;
/// Part of the asked time that the most requests must fill for an answer.
const LEAST_SHARE: f64 = 0.1;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Requests that are sent.
    pub requests: u64,
    /// Time at the start that is left out [s].
    pub warmup_s: f64,
}

impl Length {
    /// Makes a run of `scenario`, whose load goes on, as long.
    ///
    /// # Errors
    /// A warm-up that is no time.
    pub fn lay_over(&self, scenario: &mut Scenario) -> Result<(), Error> {
        scenario.limits.requests = Some(self.requests);
        scenario.limits.duration = None;
        scenario.drain = true;
        scenario.warmup = Secs::new(self.warmup_s).map_err(|e| Error::Failed(e.to_string()))?;
        for stream in &mut scenario.workload {
            stream.requests = None;
        }
        Ok(())
    }
}

/// The lengths that runs of a load that goes on may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Requests per second.
    pub per_s: f64,
    /// Requests of a run whose answer may be that the objectives hold.
    pub horizon: u64,
    /// Requests up to which it is doubled.
    pub most: u64,
    /// Warm-up that was asked for [s].
    pub warmup_s: f64,
}

impl Span {
    /// Runs at `per_s` requests per second that take at least `own_s` with a warm-up of `warmup_s`, for `conditions`, of at most `most` requests.
    ///
    /// # Errors
    /// Why so few requests can say nothing, in words.
    pub fn new(
        per_s: f64,
        (own_s, warmup_s): (f64, f64),
        conditions: &[Condition],
        most: u64,
    ) -> Result<Span, String> {
        let slow = conditions.iter().filter(|c| c.bounds_ttft());
        let limit_s = slow.map(|c| c.limit.limit_ms / 1e3).fold(0.0, f64::max);
        let asked = own_s.max(warmup_s / LEFT_OUT) * per_s;
        if asked * LEAST_SHARE > most as f64 {
            return Err(format!(
                "{} s of it at {} req/s are {asked:.0} requests, and at most {most} are simulated: ask for a shorter run or a smaller load",
                sim::report::text::figure(asked / per_s),
                sim::report::text::figure(per_s),
            ));
        }
        // An objective alone makes no run longer than one that is doubled.
        let for_limits = (LIMITS * limit_s * per_s).min(MOST_EXTENDED as f64);
        let least = asked.max(for_limits).max(LEAST_REQUESTS as f64);
        let horizon = grid(least).min(most);
        Ok(Span {
            per_s,
            horizon,
            most: MOST_EXTENDED.max(horizon.saturating_mul(2)).min(most),
            warmup_s,
        })
    }

    /// A run of `requests`.
    pub fn length(&self, requests: u64) -> Length {
        let sent_s = requests as f64 / self.per_s;
        Length {
            requests,
            warmup_s: (self.warmup_s.min(sent_s / 2.0)).max(sent_s * LEFT_OUT),
        }
    }
}

/// The smallest length of those that double from [`LEAST_REQUESTS`] on with at least `requests`.
fn grid(requests: f64) -> u64 {
    let mut n = LEAST_REQUESTS;
    while (n as f64) < requests && n < 1 << 62 {
        n *= 2;
    }
    n
}

/// What a look at a run says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A longer run would say the same.
    Stands,
    /// A longer run may say something else.
    Open,
}

/// Doubles the run of `span` until `look` says that it stands, or it may not be longer; gives the last run, its length, and whether it stands. With
/// `is_early` a look is taken at an eighth of it, which ends it where that stands.
///
/// # Errors
/// Those of `run` and `look`.
pub fn lengthen<T, E>(
    span: &Span,
    is_early: bool,
    mut run: impl FnMut(Length) -> Result<T, E>,
    mut look: impl FnMut(&T, Length) -> Result<Look, E>,
) -> Result<(T, Length, Look), E> {
    let early = span.horizon / FIRST_LOOK;
    let mut requests = if is_early && early >= LEAST_REQUESTS {
        early
    } else {
        span.horizon
    };
    loop {
        let length = span.length(requests);
        let done = run(length)?;
        let seen = look(&done, length)?;
        let next = requests.saturating_mul(2).max(span.horizon);
        if seen == Look::Stands || (requests >= span.horizon && next > span.most) {
            return Ok((done, length, seen));
        }
        requests = next;
    }
}

/// Judges deployments under one load.
pub struct Judge<'a> {
    conditions: &'a [Condition],
    requests: Requests,
    factor: f64,
    extent: Extent,
    /// Of a load that goes on.
    span: Option<Span>,
}

/// A deployment that was judged.
pub struct Judged {
    /// How it stands.
    pub standing: Standing,
    /// The run that says so.
    pub record: RunRecord,
    /// How long that run is; none of a load that ends or changes by itself.
    pub length: Option<Length>,
}

impl<'a> Judge<'a> {
    /// A judge by `conditions` of deployments under `factor` times the load of `requests`, in runs of at most `most` requests.
    ///
    /// # Errors
    /// Why no run can say anything: a load that ends within its warm-up or after a few requests, more requests than may be simulated.
    pub fn new(
        conditions: &'a [Condition],
        requests: &Requests,
        factor: f64,
        most: u64,
    ) -> Result<Judge<'a>, Error> {
        let (requests, factor) = match requests.anew(factor)? {
            Some(anew) => (anew, 1.0),
            None => (requests.clone(), factor),
        };
        let extent = Extent::of(requests.scenario(), factor);
        let per_s = requests.per_s().filter(|_| requests.goes_on());
        let span = match per_s {
            Some(per_s) => {
                let own_s = requests.len() as f64 / per_s;
                // The warm-up takes as long at any load.
                let warmup_s = requests.scenario().warmup.secs();
                let span = Span::new(per_s * factor, (own_s, warmup_s), conditions, most);
                Some(span.map_err(|why| Error::input(format!("the load is too large: {why}")))?)
            }
            None if requests.is_closed() => None,
            None => {
                let warm = SimTime::ZERO + extent.warmup;
                let left = requests.sent_after(warm, factor);
                if left < FEW {
                    return Err(Error::input(format!(
                        "the load sends {left} requests after its warm-up of {} s; a run says nothing of fewer than {FEW}",
                        extent.warmup.as_secs()
                    )));
                }
                None
            }
        };
        Ok(Judge {
            conditions,
            requests,
            factor,
            extent,
            span,
        })
    }

    /// How long runs are; none of a load that ends or changes by itself.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Runs `counts` replicas of each kind of `fleet`, as long as `length` says; none: a load that ends or changes by itself, as it is.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn run(
        &self,
        fleet: &Fleet,
        counts: &[u32],
        length: Option<Length>,
    ) -> Result<RunRecord, Error> {
        let Some(length) = length else {
            return fleet.run(counts, self.requests.all(self.factor), self.extent);
        };
        if self.requests.is_closed() {
            // What is left out is the time in which the users come.
            let n = length.requests - self.requests.while_coming(self.factor).min(length.requests);
            let load = self.requests.stretch(n as usize, self.factor);
            return fleet.run(counts, load, Extent::default());
        }
        let load = self.requests.first(length.requests as usize, self.factor)?;
        let extent = Extent {
            warmup: SimDuration::from_secs(length.warmup_s),
            until: None,
        };
        fleet.run(counts, load, extent)
    }

    /// How `counts` replicas stand under users who each send when their last answer has come: runs are doubled as [`lengthen`] does, but nobody knows
    /// beforehand how long they take.
    fn closed(&self, fleet: &Fleet, counts: &[u32]) -> Result<Judged, Error> {
        let mut requests = grid(self.requests.len() as f64).min(MOST_EXTENDED);
        let mut looks = Looks::default();
        loop {
            let length = Length {
                requests: requests + self.requests.while_coming(self.factor),
                warmup_s: self.requests.scenario().warmup.secs(),
            };
            let record = self.run(fleet, counts, Some(length))?;
            let mut standing = Standing::of(&record, self.conditions, false);
            let seen = looks.see(&record, &standing, true);
            requests *= 2;
            if seen == Look::Stands || requests > MOST_EXTENDED {
                settle(&record, &mut standing, seen);
                return Ok(Judged {
                    standing,
                    record,
                    length: Some(length),
                });
            }
        }
    }

    /// How `counts` replicas of each kind of `fleet` stand.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn stands(&self, fleet: &Fleet, counts: &[u32]) -> Result<Judged, Error> {
        if self.requests.is_closed() {
            return self.closed(fleet, counts);
        }
        let run = |length: Option<Length>| -> Result<(RunRecord, Standing), Error> {
            let record = self.run(fleet, counts, length)?;
            let standing = Standing::of(&record, self.conditions, self.span.is_some());
            Ok((record, standing))
        };
        let Some(span) = &self.span else {
            let (record, mut standing) = run(None)?;
            standing.sure &= !is_short(&record);
            return Ok(Judged {
                standing,
                record,
                length: None,
            });
        };
        let is_early = !self.requests.shares();
        let mut looks = Looks::default();
        let ((record, mut standing), length, seen) = lengthen(
            span,
            is_early,
            |length| run(Some(length)),
            |(record, standing), length| {
                Ok(looks.see(record, standing, length.requests >= span.horizon))
            },
        )?;
        settle(&record, &mut standing, seen);
        Ok(Judged {
            standing,
            record,
            length: Some(length),
        })
    }
}

/// Judges `scenario` as it stands by `conditions`. A load that goes on, be it of users in a loop, is run as long as it takes; a scenario with a cluster,
/// a trace or rates that change is run as it is.
///
/// # Errors
/// A scenario that cannot be built; a run of a few requests; more requests than may be simulated; the simulator's own errors.
pub fn scenario(
    world: &World,
    scenario: &Scenario,
    conditions: &[Condition],
) -> Result<Judged, Error> {
    let run = |length: Option<Length>| -> Result<RunRecord, Error> {
        let mut scenario = scenario.clone();
        if let Some(length) = length {
            length.lay_over(&mut scenario)?;
        }
        let options = RunOptions {
            cancel: world.cancel.clone(),
            record: RecordOptions {
                series_bins: 0,
                ..RecordOptions::default()
            },
            ..RunOptions::default()
        };
        Ok(scenario.run(&options)?)
    };
    let goes_on = |a: &Arrival| {
        matches!(
            a,
            Arrival::Poisson { .. }
                | Arrival::Gamma { .. }
                | Arrival::Constant { .. }
                | Arrival::Closed { .. }
        )
    };
    let steady =
        scenario.cluster.is_none() && scenario.workload.iter().all(|s| goes_on(&s.arrival));
    if !steady {
        let record = run(None)?;
        if let Some(why) = too_few(&record) {
            return Err(Error::input(why));
        }
        let mut standing = Standing::of(&record, conditions, false);
        standing.sure &= !is_short(&record);
        return Ok(Judged {
            standing,
            record,
            length: None,
        });
    }
    let span = span_of(world, scenario, conditions, run)?;
    let mut looks = Looks::default();
    let ((record, mut standing), length, seen) = lengthen(
        &span,
        false,
        |length| {
            let record = run(Some(length))?;
            let standing = Standing::of(&record, conditions, true);
            Ok::<_, Error>((record, standing))
        },
        |(record, standing), _| Ok(looks.see(record, standing, true)),
    )?;
    settle(&record, &mut standing, seen);
    Ok(Judged {
        standing,
        record,
        length: Some(length),
    })
}

/// The lengths of runs of a scenario whose load goes on; what its rate is where users wait for answers, `run` tells.
fn span_of(
    world: &World,
    scenario: &Scenario,
    conditions: &[Condition],
    run: impl Fn(Option<Length>) -> Result<RunRecord, Error>,
) -> Result<Span, Error> {
    let dialogues = scenario.workload.iter().any(|s| s.sessions.is_some());
    let own = scenario.limits.requests;
    let known = steady_rate(scenario).filter(|_| !dialogues);
    let per_s = match known {
        Some(per_s) => per_s,
        None => {
            let record = run(Some(Length {
                requests: own.unwrap_or(0).clamp(LEAST_REQUESTS, MOST_EXTENDED),
                warmup_s: 0.0,
            }))?;
            record.counts.offered as f64 / record.window.sending.as_secs().max(1e-9)
        }
    };
    let by_requests = own.map(|n| n as f64 / per_s);
    let by_time = scenario.limits.duration.map(Secs::secs);
    let own_s = [by_requests, by_time].into_iter().flatten();
    let own_s = own_s.min_by(f64::total_cmp).unwrap_or(0.0);
    let span = Span::new(
        per_s,
        (own_s, scenario.warmup.secs()),
        conditions,
        world.most_requests,
    );
    span.map_err(|why| Error::input(format!("the load is too large: {why}")))
}

/// What has been seen of runs of one deployment, each longer than the one before.
#[derive(Default)]
struct Looks {
    /// The last that was long enough to hold, and held.
    held: Option<Standing>,
}

impl Looks {
    /// Whether `standing`, which `record` has, would be the same in a longer run. One that is not `whole` can only show a miss; that the objectives
    /// hold must show in two runs, the second of twice the length, whose values are not above the intervals of the first: in a run that is short beside the
    /// time in which a busy queue forgets, neighbouring batches look alike, and the interval is too narrow.
    fn see(&mut self, record: &RunRecord, standing: &Standing, whole: bool) -> Look {
        if standing.sure && !standing.holds {
            return Look::Stands;
        }
        if !(whole && standing.sure) || is_short(record) || is_rising(record) {
            self.held = None;
            return Look::Open;
        }
        let confirms = |before: &Standing| {
            let highs = before.intervals_ms.iter().map(|r| r.and_then(|r| r.high));
            let mut each = highs.zip(&standing.values_ms);
            each.all(|(high, v)| high.zip(*v).is_none_or(|(high, v)| v <= high))
        };
        let confirmed = self.held.as_ref().is_some_and(confirms);
        self.held = Some(standing.clone());
        if confirmed { Look::Stands } else { Look::Open }
    }
}

/// The last word on a run that was `seen` as long as it may be: what still rises has no steady state that could hold.
fn settle(record: &RunRecord, standing: &mut Standing, seen: Look) {
    if seen == Look::Stands {
        return;
    }
    standing.sure = false;
    // What is said of a run that may not be longer: it was seen once, or stands too near to a limit.
    if is_short(record) || is_rising(record) {
        standing.growing = true;
        standing.holds = false;
    }
}

/// Whether the longest request takes more than the part of the run that is left out: those that found the deployment empty are in its figures.
fn is_short(record: &RunRecord) -> bool {
    let longest = record.latencies.e2e.max().map_or(0.0, SimDuration::as_secs);
    let sent = record.warmup.as_secs() + record.window.sending.as_secs();
    longest > sent * LEFT_OUT
}

/// Whether E2E latencies rise over the run.
fn is_rising(record: &RunRecord) -> bool {
    rises(&in_order(record, |r| Metric::E2e.of(r).map(|d| d.0 as f64)))
}

/// Why a run of a load that ends or changes by itself says nothing, if it does not.
pub fn too_few(record: &RunRecord) -> Option<String> {
    let (n, all) = (record.window.offered, record.counts.offered);
    (n < FEW).then(|| {
        format!(
            "the run sends {n} of its {all} requests after the warm-up of {} s; it says nothing of fewer than {FEW}: make it longer, or its warm-up shorter",
            record.warmup.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::MOST_REQUESTS;

    fn conditions(text: &str) -> Vec<Condition> {
        vec![Condition::parse(text).unwrap()]
    }

    #[test]
    fn a_run_takes_as_long_at_any_rate() {
        let c = conditions("ttft.p99 < 1 s");
        let at = |per_s: f64| Span::new(per_s, (180.0, 30.0), &c, MOST_REQUESTS);
        for per_s in [0.01, 1.0, 20.0, 160.0, 2_000.0] {
            let span = at(per_s).unwrap();
            assert!(span.horizon as f64 >= 180.0 * per_s, "{span:?}");
            assert!(span.horizon >= LEAST_REQUESTS && span.most >= MOST_EXTENDED);
            let length = span.length(span.horizon);
            assert!(length.warmup_s >= 30.0 || per_s < 1.0, "{length:?}");
        }
        let why = at(1e6).unwrap_err();
        assert!(
            why.contains("180000000 requests") && why.contains("1048576"),
            "{why}"
        );
        // An objective of minutes makes the run longer, within the limits.
        let slow = conditions("e2e.p99 < 2 min");
        assert!(
            Span::new(1.0, (10.0, 0.0), &slow, MOST_REQUESTS)
                .unwrap()
                .horizon
                >= 1_200
        );
        let lax = conditions("e2e.p99 < 60000 min");
        let span = Span::new(100.0, (10.0, 0.0), &lax, MOST_REQUESTS).unwrap();
        assert!(span.horizon <= 2 * MOST_EXTENDED, "{span:?}");
    }

    #[test]
    fn runs_are_doubled_until_they_stand_and_no_longer_than_they_may_be() {
        let span = Span {
            per_s: 10.0,
            horizon: 16_000,
            most: 64_000,
            warmup_s: 0.0,
        };
        let lengths = |is_early, stands: u64| {
            let mut seen = Vec::new();
            let run = |l: Length| Ok::<_, Error>(l.requests);
            let found = lengthen(&span, is_early, run, |n, _| {
                seen.push(*n);
                Ok(if *n == stands {
                    Look::Stands
                } else {
                    Look::Open
                })
            });
            let (n, length, _) = found.unwrap();
            assert_eq!((n, length.requests), (*seen.last().unwrap(), n));
            seen
        };
        assert_eq!(lengths(true, 2_000), [2_000]);
        assert_eq!(lengths(true, 16_000), [2_000, 16_000]);
        assert_eq!(lengths(false, 32_000), [16_000, 32_000]);
        assert_eq!(lengths(true, 0), [2_000, 16_000, 32_000, 64_000]);
    }

    /// A server of 10 ms per request and its limit on TTFT at p95, under Poisson arrivals.
    fn judged(per_s: f64, limit: &str, requests: u32) -> Judged {
        let text = format!(
            "[step]\nbase = \"10 ms\"\n[engine]\nkind = \"static\"\nmax_batch_size = 1\nkv_blocks = 1000\n[[workload]]\narrival = {{ kind = \"poisson\", rate \
             = \"{per_s} req/s\" }}\nprompt = 1\noutput = 1\n[run]\nrequests = {requests}\n"
        );
        let scenario = Scenario::parse(&text, "q.toml", &[]).unwrap();
        let requests = Requests::draw(&scenario, 1).unwrap();
        let fleet = Fleet::start(scenario).unwrap();
        let c = conditions(&format!("ttft.p95 < {limit}"));
        let judge = Judge::new(&c, &requests, 1.0, MOST_REQUESTS).unwrap();
        judge.stands(&fleet, &[1]).unwrap()
    }

    #[test]
    fn the_answer_hangs_on_the_queue_and_not_on_the_length_that_was_asked_for() {
        // M/D/1 at 0.95 of its capacity: TTFT p95 is about 0.3 s. 50 requests alone would show a third of that.
        for requests in [50, 500, 5_000, 50_000] {
            let low = judged(95.0, "150 ms", requests).standing;
            let high = judged(95.0, "1 s", requests).standing;
            assert!(low.sure && !low.holds, "{requests}: {low:?}");
            assert!(high.sure && high.holds, "{requests}: {high:?}");
            let range = high.intervals_ms[0].unwrap();
            let value = high.values_ms[0].unwrap();
            assert!(range.low <= value && range.high.is_none_or(|h| value <= h));
        }
    }

    #[test]
    fn a_load_just_above_the_capacity_never_holds() {
        for requests in [50, 5_000] {
            let s = judged(102.0, "10 s", requests).standing;
            assert!(!s.holds, "{requests}: {s:?}");
        }
        // Far above it a part of the run is enough.
        let far = judged(300.0, "1 s", 20_000);
        assert!(far.length.unwrap().requests < 20_000 && !far.standing.holds);
    }

    #[test]
    fn a_load_that_ends_within_its_warm_up_is_refused() {
        let text = "[step]\nbase = \"10 ms\"\n[engine]\nkind = \"static\"\nmax_batch_size = 1\nkv_blocks = 1000\n[[workload]]\narrival = { kind = \"steps\", steps = \
                    [{ rate = \"10 req/s\", duration = \"10 s\" }] }\nprompt = 1\noutput = 1\n[run]\nduration = \"10 s\"\nwarmup = \"9 s\"\n";
        let scenario = Scenario::parse(text, "q.toml", &[]).unwrap();
        let requests = Requests::draw(&scenario, 1).unwrap();
        let c = conditions("ttft.p95 < 1 s");
        let why = Judge::new(&c, &requests, 1.0, MOST_REQUESTS).err().unwrap();
        assert!(
            why.to_string().contains("after its warm-up of 9 s"),
            "{why}"
        );
    }
}
