//! Time of single operators.

pub mod collective;
