//! Tests that drive the whole viewer, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod interaction;
mod pictures;
