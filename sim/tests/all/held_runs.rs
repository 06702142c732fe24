//! A run that is held: advanced piece by piece, watched, changed while it goes on, cancelled. Whatever is done, the record is the one
//! of a run to its end, and requests are conserved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Case, Random, any_case};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sim::cluster::replica::Lifecycle;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::SimTime;
use sim::observer::{FleetEvent, Observer};
use sim::record::{RequestRow, RunInfo, RunRecord, StepRow};
use sim::request::Outcome;
use sim::run::{Change, Pace, Path, Run, RunError, Status};

fn held(case: &Case, check: bool) -> Run<'static> {
    let options = case.options(Path::Auto, check);
    Run::new(
        &case.simulation(),
        Box::new(Random::new(case.load)),
        &options,
    )
    .unwrap()
}

fn finish(run: Run) -> RunRecord {
    run.finish(RunInfo::default()).unwrap()
}

/// Counts what it is told.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    steps: u64,
    requests: Vec<RequestRow>,
    fleet: Vec<(u32, FleetEvent)>,
}

impl Observer for Counter {
    fn step(&mut self, _: &StepRow) {
        self.0.lock().unwrap().steps += 1;
    }
    fn request(&mut self, row: &RequestRow) {
        self.0.lock().unwrap().requests.push(*row);
    }
    fn fleet(&mut self, _: SimTime, replica: u32, event: FleetEvent) {
        self.0.lock().unwrap().fleet.push((replica, event));
    }
}

/// A case without a closed loop, so that replicas can be advanced on their own.
fn open_case() -> impl Strategy<Value = Case> {
    any_case().prop_map(|mut case| {
        case.load.users = 0;
        case
    })
}

proptest! {
    #[test]
    fn the_pace_leaves_no_trace_in_the_record(case in open_case()) {
        let own = format!("{:?}", case.run(Path::Auto, true));
        // Somebody who watches has all replicas advanced instant by instant.
        let counter = Counter::default();
        let options = case.options(Path::Auto, true);
        let mut watched = Run::watched(
            &case.simulation(),
            Box::new(Random::new(case.load)),
            &options,
            Box::new(counter.clone()),
        )
        .unwrap();
        prop_assert_eq!(watched.pace(), Pace::Instants);
        watched.run_to_end().unwrap();
        let record = finish(watched);
        let told = counter.0.lock().unwrap();
        prop_assert_eq!(told.steps, record.steps);
        prop_assert_eq!(told.requests.len() as u64, record.counts.offered);
        prop_assert_eq!(format!("{record:?}"), own);
    }

    #[test]
    fn a_run_in_pieces_is_the_run_in_one(case in any_case(), pieces in prop::collection::vec(0u64..3_000_000, 0..8)) {
        let own = format!("{:?}", case.run(Path::Auto, false));
        let mut run = held(&case, true);
        let mut at = 0;
        let mut ended = 0;
        for piece in pieces {
            at += piece;
            run.step_until(SimTime(at)).unwrap();
            let seen = run.snapshot();
            prop_assert!(seen.now <= SimTime(at) && seen.ended >= ended && seen.ended <= seen.offered);
            let outstanding: usize = seen.replicas.iter().map(|r| r.outstanding).sum();
            prop_assert_eq!(seen.offered, seen.ended + outstanding as u64);
            ended = seen.ended;
        }
        run.run_to_end().unwrap();
        prop_assert_eq!(run.step_until(SimTime(u64::MAX - 1)).unwrap(), Status::Over);
        prop_assert_eq!(format!("{:?}", finish(run)), own);
    }

    #[test]
    fn replicas_come_and_go_and_no_request_is_lost(
        case in any_case(),
        changes in prop::collection::vec((0u64..4_000_000, 0u32..6, 0u8..4), 0..12),
    ) {
        let mut run = held(&case, true);
        let spare = case.simulation().replicas.remove(0);
        let mut killed = 0;
        for (at, replica, what) in changes {
            let n = run.snapshot().replicas.len() as u32;
            let change = match what {
                0 => Change::Add(Box::new(spare.clone())),
                1 => Change::Drain(replica % n),
                2 => Change::Ready(run.add(&spare).unwrap()),
                _ => {
                    killed += 1;
                    Change::Kill(replica % n)
                }
            };
            run.plan(SimTime(at), change);
        }
        run.run_to_end().unwrap();
        let seen = run.snapshot();
        let record = finish(run);
        prop_assert!(record.counts.conserved());
        if killed == 0 {
            prop_assert_eq!(record.counts.failed, 0, "draining loses nothing");
        }
        let idle = |r: &sim::run::ReplicaView| r.lifecycle != Lifecycle::Draining || r.outstanding > 0;
        prop_assert!(seen.replicas.iter().all(idle), "a drained replica is gone");
        // Whoever is left waits for a replica that never came.
        if case.until.is_none() {
            let never_routed = record.request_rows.iter().flatten()
                .filter(|r| r.outcome == Outcome::InFlight)
                .all(|r| r.first_scheduled == SimTime::NEVER);
            prop_assert!(never_routed);
        }
    }
}

#[test]
fn the_record_is_the_same_on_any_number_of_threads() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut parallel = 0;
    for _ in 0..40 {
        let mut case = open_case().new_tree(&mut runner).unwrap().current();
        case.replicas = 2 + case.load.seed as usize % 30;
        case.router = RouterConfig::RoundRobin;
        parallel += usize::from(held(&case, false).pace() == Pace::Ahead);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| format!("{:?}", case.run(Path::Auto, false)))
        };
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(4));
    }
    assert_eq!(parallel, 40, "these run on all cores");
}

#[test]
fn a_cancelled_run_stops_and_says_where() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..20 {
        let case = any_case().new_tree(&mut runner).unwrap().current();
        let cancel = Arc::new(AtomicBool::new(false));
        let options = sim::run::RunOptions {
            cancel: Some(cancel.clone()),
            ..case.options(Path::Auto, false)
        };
        let load = Box::new(Random::new(case.load));
        let mut run = Run::new(&case.simulation(), load, &options).unwrap();
        run.step_until(SimTime(10_000)).unwrap();
        cancel.store(true, Ordering::Relaxed);
        let before = run.snapshot();
        assert_eq!(run.step_until(SimTime(20_000)).unwrap(), Status::Cancelled);
        assert!(matches!(run.run_to_end(), Err(RunError::Cancelled { .. })));
        assert_eq!(run.snapshot().ended, before.ended);
        // What was done until then is a record all the same.
        assert!(finish(run).counts.conserved());
    }
}
