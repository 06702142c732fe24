//! Tests of the hardware models from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod measured_kv;
mod operators;
mod states;
mod surfaces;
