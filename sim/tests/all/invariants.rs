//! What must always hold (docs/invariants.md), on random scenarios.

use crate::common::{Case, any_case, fast_case};
use proptest::prelude::*;
use sim::kernel::time::{SimDuration, SimTime};
use sim::record::{RequestRow, RunRecord};
use sim::request::Outcome;
use sim::simulation::Path;

fn rows(record: &RunRecord) -> &[RequestRow] {
    record.request_rows.as_deref().unwrap_or_default()
}

/// Requests, KV blocks and scheduler state are checked at every instant by `check` while the run goes on.
fn run(case: &Case) -> RunRecord {
    case.run(Path::Reference, true)
}

/// Tokens that ended up in the pooled gaps plus the first ones are the tokens that engines made.
fn tokens_add_up(record: &RunRecord) {
    let first = rows(record).iter().filter(|r| r.output_tokens > 0).count() as u64;
    let made: u64 = rows(record)
        .iter()
        .map(|r| u64::from(r.output_tokens))
        .sum();
    let gaps = record.latencies.itl.count();
    assert_eq!(first + gaps, made, "a token was lost or made twice");
}

fn instants_of_a_request_are_in_order(record: &RunRecord) {
    for r in rows(record) {
        assert!(r.arrival <= r.end && r.end <= record.end, "{r:?}");
        if r.first_scheduled != SimTime::NEVER {
            assert!(r.arrival <= r.first_scheduled, "{r:?}");
        }
        if r.first_token != SimTime::NEVER {
            assert!(
                r.first_scheduled < r.first_token,
                "no token before the prefill: {r:?}"
            );
            assert!(r.first_token <= r.end, "{r:?}");
        }
        if r.outcome == Outcome::Finished {
            assert!(
                r.output_tokens > 0 && r.first_token != SimTime::NEVER,
                "{r:?}"
            );
            assert_eq!(
                r.output_tokens == 1,
                r.first_token == r.end,
                "tokens come one by one: {r:?}"
            );
        }
    }
}

fn utilisation_is_a_share(case: &Case, record: &RunRecord) {
    for (i, r) in record.replicas.iter().enumerate() {
        assert!(r.busy <= SimDuration(record.end.0), "replica {i}");
        let blocks = case.params.num_gpu_blocks - 1;
        assert!(r.kv_peak_blocks <= blocks);
        assert!(r.kv_block_ns <= u128::from(blocks) * u128::from(r.busy.0));
        assert!(r.running_ns <= u128::from(case.params.max_num_seqs) * u128::from(r.busy.0));
        if case.params.depth() == 1 {
            // Parts are rounded to picoseconds, steps to nanoseconds.
            let parts: u64 = r.parts_ps.iter().sum();
            assert!(
                parts / 1000 <= r.busy.0 + r.steps,
                "replica {i}: parts add up to busy time"
            );
        }
    }
}

fn steps_do_not_go_back(record: &RunRecord) {
    let mut last = vec![(SimTime::ZERO, SimTime::ZERO); record.replicas.len()];
    for s in record.step_rows.iter().flatten() {
        let (start, end) = &mut last[s.replica as usize];
        assert!(
            s.start <= s.end && *start <= s.start && *end <= s.end,
            "{s:?}"
        );
        (*start, *end) = (s.start, s.end);
    }
}

fn limits_hold(case: &Case, record: &RunRecord) {
    for s in record.step_rows.iter().flatten() {
        assert!(s.stats.tokens() <= case.params.budget(), "{s:?}");
        assert!(s.running <= case.params.max_num_seqs, "{s:?}");
        assert!(s.stats.decode_seqs + s.stats.prefill_seqs > 0, "{s:?}");
    }
}

proptest! {
    #[test]
    fn everything_holds_on_any_vllm_v1_run(case in any_case()) {
        let record = run(&case);
        prop_assert!(record.counts.conserved());
        prop_assert_eq!(record.counts.offered, rows(&record).len() as u64);
        if case.until.is_none() {
            prop_assert_eq!(record.counts.offered, case.load.requests);
            prop_assert_eq!(record.counts.in_flight, 0);
        }
        instants_of_a_request_are_in_order(&record);
        utilisation_is_a_share(&case, &record);
        steps_do_not_go_back(&record);
        limits_hold(&case, &record);
        if !case.delays {
            tokens_add_up(&record);
        }
    }

    #[test]
    fn same_seed_same_bytes_on_any_number_of_threads(case in any_case()) {
        let here = format!("{:?}", case.run(Path::Auto, false));
        let there: Vec<String> = std::thread::scope(|s| {
            let runs: Vec<_> = (0..3)
                .map(|_| s.spawn(|| format!("{:?}", case.run(Path::Auto, false))))
                .collect();
            runs.into_iter().map(|r| r.join().unwrap()).collect()
        });
        for record in there {
            prop_assert_eq!(&record, &here);
        }
    }

    #[test]
    fn naming_blocks_and_counting_them_give_the_same_record(case in fast_case()) {
        // Prefixes that nobody shares: as many contents as one can draw.
        let mut named = case.clone();
        named.load.prefixes = 0;
        let counted = named.run(Path::Reference, false);
        let record = crate::common::run_with_unique_content(&named);
        prop_assert_eq!(format!("{counted:?}"), format!("{record:?}"));
    }

    #[test]
    fn littles_law_holds_for_requests_in_the_engine(mut case in any_case()) {
        // L = lambda W over the whole run, as sums: the time integral of waiting plus running is the sum of sojourn times,
        // however a request ended.
        case.delays = false;
        let record = run(&case);
        let sojourn: u128 = rows(&record)
            .iter()
            .map(|r| u128::from(r.end.since(r.arrival).0))
            .sum();
        let held: u128 = record
            .replicas
            .iter()
            .map(|r| r.running_ns + r.waiting_ns)
            .sum();
        prop_assert_eq!(held, sojourn);
        // The series is the same integral, in bins.
        let series: f64 = record
            .series
            .points(record.end)
            .map(|p| (p.running + p.waiting) * p.width.0 as f64)
            .sum();
        prop_assert!((series - held as f64).abs() <= 1e-9 * series.max(1.0), "{} {}", series, held);
    }
}
