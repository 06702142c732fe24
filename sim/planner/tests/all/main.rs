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
