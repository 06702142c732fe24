//! Numbers as people read them: three figures, with a unit.

/// A duration of `ns` nanoseconds: `1.25 ms`, `3.4 s`, `12 min 5 s`.
pub fn duration(ns: f64) -> String {
    let abs = ns.abs();
    if !ns.is_finite() {
        return "-".to_owned();
    }
    match abs {
        0.0 => "0 s".to_owned(),
        a if a < 1e3 => format!("{ns:.0} ns"),
        a if a < 1e6 => format!("{} µs", figures(ns / 1e3)),
        a if a < 1e9 => format!("{} ms", figures(ns / 1e6)),
        a if a < 120e9 => format!("{} s", figures(ns / 1e9)),
        a if a < 7200e9 => {
            let s = (ns / 1e9).round() as i64;
            match s % 60 {
                0 => format!("{} min", s / 60),
                rest => format!("{} min {rest} s", s / 60),
            }
        }
        _ => {
            let m = (ns / 60e9).round() as i64;
            match m % 60 {
                0 => format!("{} h", m / 60),
                rest => format!("{} h {rest} min", m / 60),
            }
        }
    }
}

/// An instant of a run at `ns` nanoseconds, to the millisecond: `1.500 s`, `20 min 5.250 s`.
pub fn instant(ns: u64) -> String {
    let ms = (ns + 500_000) / 1_000_000;
    let (s, ms) = (ms / 1000, ms % 1000);
    match s {
        0..1000 => format!("{s}.{ms:03} s"),
        1000..7200 => format!("{} min {}.{ms:03} s", s / 60, s % 60),
        _ => format!("{} h {} min {}.{ms:03} s", s / 3600, s / 60 % 60, s % 60),
    }
}

/// Milliseconds that may not be known.
pub fn ms(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |v| duration(v * 1e6))
}

/// Three significant figures, with thousands as k and millions as M from 10 000 on.
pub fn figures(v: f64) -> String {
    let abs = v.abs();
    if !v.is_finite() {
        return "-".to_owned();
    }
    match abs {
        0.0 => "0".to_owned(),
        a if a >= 9.995e9 => format!("{:.2e}", v),
        a if a >= 9.995e6 => format!("{} M", three(v / 1e6)),
        a if a >= 9.995e3 => format!("{} k", three(v / 1e3)),
        a if a < 1e-3 => format!("{v:.1e}"),
        _ => three(v),
    }
}

fn three(v: f64) -> String {
    let digits = match v.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        a if a >= 0.9995 => 2,
        a if a >= 0.09995 => 3,
        _ => 4,
    };
    let text = format!("{v:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A whole number with spaces between thousands: `1 234 567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// A share as a percentage: `12.3 %`.
pub fn percent(share: f64) -> String {
    if share != 0.0 && share.abs() < 5e-4 {
        "< 0.1 %".to_owned()
    } else if share.is_finite() {
        format!("{} %", three(100.0 * share))
    } else {
        "-".to_owned()
    }
}

/// A difference relative to `before`: `+12.3 %`; `new` where there was nothing.
pub fn change(before: f64, after: f64) -> String {
    if (after - before).abs() <= 5e-5 * before.abs() {
        "=".to_owned()
    } else if before == 0.0 {
        "new".to_owned()
    } else {
        let share = 100.0 * (after - before) / before.abs();
        let sign = if share > 0.0 { "+" } else { "" };
        format!("{sign}{} %", three(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_figures_and_a_unit() {
        let cases = [
            (0.0, "0 s"),
            (512.0, "512 ns"),
            (1_250_000.0, "1.25 ms"),
            (15_000.0, "15 µs"),
            (3.4e9, "3.4 s"),
            (119.96e9, "120 s"),
            (725e9, "12 min 5 s"),
            (600e9, "10 min"),
            (7200e9, "2 h"),
            (7260e9, "2 h 1 min"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(instant(1_499_600_000), "1.500 s");
        assert_eq!(instant(725_250_000_000), "725.250 s");
        assert_eq!(instant(1_205_250_000_000), "20 min 5.250 s");
        assert_eq!(instant(7_261_000_000_000), "2 h 1 min 1.000 s");
        assert_eq!(ms(None), "-");
        assert_eq!(ms(Some(123.456)), "123 ms");
    }

    #[test]
    fn figures_are_short() {
        let cases = [
            (0.0, "0"),
            (0.1234, "0.123"),
            (1.0, "1"),
            (99.96, "100"),
            (1234.0, "1234"),
            (12_345.0, "12.3 k"),
            (4_200_000.0, "4200 k"),
            (42_000_000.0, "42 M"),
            (1e-6, "1.0e-6"),
            (f64::NAN, "-"),
        ];
        for (v, text) in cases {
            assert_eq!(figures(v), text);
        }
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(12), "12");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(percent(3e-6), "< 0.1 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(change(1.0, 0.999_999), "=");
        assert_eq!(change(100.0, 112.34), "+12.3 %");
        assert_eq!(change(100.0, 100.0), "=");
        assert_eq!(change(0.0, 1.0), "new");
    }
}
