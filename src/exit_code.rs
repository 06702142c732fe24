//! What the process tells its caller when it ends.

/// Everything asked for was done.
pub const OK: u8 = 0;
/// Something failed that is not the caller's input: a file could not be written, a defect.
pub const FAILURE: u8 = 1;
/// The command line, a scenario or another input file is wrong (clap's own code for usage errors too).
pub const BAD_INPUT: u8 = 2;
/// The run succeeded, but an `--expect` was not met.
pub const EXPECTATION_NOT_MET: u8 = 3;
/// The command ended with its report, but a part of what was asked for failed; the report names it and says why.
pub const INCOMPLETE: u8 = 4;
/// A simulated run in which no request finished: it has no latencies to judge by. The report is printed all the same.
pub const NOTHING_FINISHED: u8 = 5;
