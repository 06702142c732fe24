//! What the user is told beside the results, on standard error.
//!
//! The one place that writes there: a closed standard error ends nothing, and `--quiet` silences all but errors.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Says nothing but errors from here on.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether nothing but errors is to be said.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Tells what failed, quiet or not.
pub fn error(text: Arguments) {
    // Who closed standard error does not want to know.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Tells what the user should know.
pub fn note(text: Arguments) {
    if !is_quiet() {
        error(text);
    }
}

/// Tells what the user should know; written like `eprintln!`.
macro_rules! note {
    ($($text:tt)*) => {
        $crate::message::note(format_args!($($text)*))
    };
}

/// Tells what failed; written like `eprintln!`.
macro_rules! complain {
    ($($text:tt)*) => {
        $crate::message::error(format_args!($($text)*))
    };
}
