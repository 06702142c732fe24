//! Figures and labelled lines, for people.

use std::fmt::Write as _;

use hwmodels::units::Secs;

/// Width of the terminal that long values are wrapped to.
pub(super) const WIDTH: usize = 110;
const LABEL: usize = 14;

/// A labelled value, wrapped below itself.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn field(out: &mut String, label: &str, value: &str) -> std::fmt::Result {
    wrapped(out, &format!("  {label:<LABEL$}"), value)
}

/// `head` and the words of `value` behind it; further lines are indented by the length of `head`.
pub(super) fn wrapped(out: &mut String, head: &str, value: &str) -> std::fmt::Result {
    let indent = head.chars().count();
    let mut column = indent;
    out.push_str(head);
    for (i, word) in value.split(' ').enumerate() {
        if i > 0 && column + 1 + word.chars().count() > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.chars().count();
    }
    writeln!(out)
}

/// Three to four significant digits without an exponent.
pub fn figure(v: f64) -> String {
    // A sum of nothing is -0.
    let v = v + 0.0;
    match v.abs() {
        a if a == 0.0 || a >= 1000.0 => format!("{v:.0}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 10.0 => format!("{v:.2}"),
        a if a >= 0.01 => format!("{v:.3}"),
        _ => format!("{v:.2e}"),
    }
}

/// A time of `s` seconds in the unit that suits it: `30 s`, `81.23 ms`, `2.5 h`.
pub fn secs(s: f64) -> String {
    Secs::new(s).map_or_else(|_| format!("{s} s"), Secs::human)
}
