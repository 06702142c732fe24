//! Tests of fits and validation from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod common;
mod neuron;
mod operators;
mod validate;
