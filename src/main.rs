//! The `servetwin` command line.
fn main() {}
