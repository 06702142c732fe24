//! Tests of import and export from outside, a file for each subject.
//!
//! They are one program, since each program of tests takes long to link.

mod imports;
mod pools;
mod properties;
mod schemas;
mod shapes;
