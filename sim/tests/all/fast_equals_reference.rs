//! The fast path and the reference path give the same record.

use crate::common::{Case, fast_case};
use proptest::prelude::*;
use sim::simulation::Path;

fn same(case: &Case) {
    let slow = case.run(Path::Reference, false);
    let fast = case.run(Path::Fast, true);
    assert_eq!(slow.counts, fast.counts);
    assert_eq!(slow.request_rows, fast.request_rows);
    let (a, b) = (slow.step_rows.as_ref(), fast.step_rows.as_ref());
    for (x, y) in a
        .iter()
        .flat_map(|r| r.iter())
        .zip(b.iter().flat_map(|r| r.iter()))
    {
        assert_eq!(x, y);
    }
    assert_eq!(slow.latencies, fast.latencies);
    // Everything, the configuration and the fingerprint included.
    assert_eq!(format!("{slow:?}"), format!("{fast:?}"));
}

proptest! {
    #[test]
    fn both_paths_give_the_same_record(case in fast_case()) {
        same(&case);
    }
}

#[test]
fn the_random_cases_reach_preemption_time_outs_refusals_and_cuts() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut preempted, mut timed_out, mut rejected, mut in_flight, mut finished) = (0, 0, 0, 0, 0);
    for _ in 0..200 {
        let case = fast_case().new_tree(&mut runner).unwrap().current();
        let record = case.run(Path::Auto, false);
        preempted += record.preemptions;
        timed_out += record.counts.timed_out;
        rejected += record.counts.rejected;
        in_flight += record.counts.in_flight;
        finished += record.counts.finished;
    }
    let reached = [preempted, timed_out, rejected, in_flight, finished];
    assert!(reached.iter().all(|&n| n > 100), "{reached:?}");
}
