//! Tests of the twin from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod beside;
mod proxy;
mod proxy_framing;
mod replay;
