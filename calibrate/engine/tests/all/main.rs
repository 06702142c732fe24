//! Tests of the engine from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod engine_loop;
mod fleet;
mod forward;
mod golden;
mod http;
mod http_choices;
mod replay;
mod soak;
mod testkit;
