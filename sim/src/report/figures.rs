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
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn wrapped(out: &mut String, head: &str, value: &str) -> std::fmt::Result {
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

/// A time beside its limit, both in milliseconds: `1.2 s, limit 1 s (20 % above)`, `590 s, limit 1 s (590x)`.
pub fn against_limit(value_ms: f64, limit_ms: f64) -> String {
    let ratio = value_ms / limit_ms;
    let by = match ratio {
        r if r >= 10.0 => format!("{r:.0}x"),
        r if r >= 2.0 => format!("{r:.1}x"),
        r if r > 1.0 => format!("{:.0} % above", 100.0 * (r - 1.0)),
        r => format!("{:.0} % below", 100.0 * (1.0 - r)),
    };
    format!(
        "{}, limit {} ({by})",
        secs(value_ms / 1e3),
        secs(limit_ms / 1e3)
    )
}

/// A time of `s` seconds in the unit that suits it: `30 s`, `81.23 ms`, `2.5 h`.
pub fn secs(s: f64) -> String {
    Secs::new(s).map_or_else(|_| format!("{s} s"), Secs::human)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_far_above_its_limit_is_a_multiple_of_it() {
        assert_eq!(
            against_limit(589_810.0, 1000.0),
            "589.81 s, limit 1 s (590x)"
        );
        assert_eq!(against_limit(2500.0, 1000.0), "2.5 s, limit 1 s (2.5x)");
        assert_eq!(
            against_limit(1205.0, 1000.0),
            "1205 ms, limit 1 s (21 % above)"
        );
        assert_eq!(
            against_limit(51.5, 60.0),
            "51.5 ms, limit 60 ms (14 % below)"
        );
    }
}
