//! Tests of the planner from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod answer;
mod candidates;
mod decisions;
mod judge;
mod plan;
mod schemas;
mod sweep;

/// This computer's files, and runs of at most 16 384 requests: what would stand clear of its limit only in longer ones is taken as it was seen.
fn short_runs() -> planner::World {
    let mut world = planner::World::default();
    world.most_requests = 1 << 14;
    world
}
