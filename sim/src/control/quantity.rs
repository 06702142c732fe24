//! Kubernetes quantities as the controllers see them: integers of a thousandth, here "milli-units".
//!
//! Source: apimachinery `pkg/api/resource/quantity.go` (`MilliValue` rounds away from zero), prometheus-adapter
//! `pkg/custom-provider/provider.go` and KEDA `pkg/scalers/scaler.go` (a float becomes milli-units by truncation).

/// Milli-units of a float as metric adapters make them: `value * 1000`, cut towards zero, saturating; NaN is 0.
///
/// ```
/// use sim::control::quantity::milli_from_f64;
/// assert_eq!(milli_from_f64(1.0719), 1071);
/// ```
pub fn milli_from_f64(value: f64) -> i64 {
    (value * 1000.0) as i64
}

/// A finite f64 rounded up to a count of replicas, saturating at the ends of 32 bits; NaN is 0.
pub(crate) fn ceil_i32(value: f64) -> i32 {
    value.ceil() as i32
}

/// `value` limited to 64 bits.
pub(crate) fn saturate_i64(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// `value` limited to 32 bits.
pub(crate) fn saturate_i32(value: i128) -> i32 {
    value.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// Milli-units of a quantity as manifests write it: `250m`, `1`, `1.5`, `2k`, `512Mi`, `1e3`.
/// What is finer than a thousandth is rounded away from zero, as `MilliValue` does.
///
/// # Errors
/// Says what is wrong and shows a right one.
///
/// ```
/// use sim::control::quantity::parse_milli;
/// assert_eq!(parse_milli("250m"), Ok(250));
/// assert_eq!(parse_milli("1.5"), Ok(1500));
/// assert_eq!(parse_milli("1u"), Ok(1));
/// ```
pub fn parse_milli(text: &str) -> Result<i64, String> {
    let wrong = || {
        format!(
            "`{text}` is no quantity; write a number with an optional suffix, as 250m, 1.5, 2k or 512Mi"
        )
    };
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, digits) = match number.as_bytes().first() {
        Some(b'-') => (true, &number[1..]),
        Some(b'+') => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || all.len() > 24 || !all.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let mantissa: i128 = all.parse().map_err(|_| wrong())?;
    let (binary, decimal) = scale_of(suffix).ok_or_else(wrong)?;
    let exponent = decimal + 3 - fraction.len() as i32;
    let raised = mantissa
        .checked_mul(1 << binary)
        .and_then(|m| m.checked_mul(10i128.checked_pow(exponent.max(0).cast_unsigned())?));
    let milli = match raised {
        None => i128::MAX,
        Some(m) if exponent >= 0 => m,
        Some(m) => match 10i128.checked_pow(exponent.unsigned_abs()) {
            Some(divisor) => m / divisor + i128::from(m % divisor != 0),
            None => i128::from(m != 0),
        },
    };
    Ok(saturate_i64(if negative { -milli } else { milli }))
}

/// Powers of two and of ten that a suffix stands for.
fn scale_of(suffix: &str) -> Option<(u32, i32)> {
    let scale = match suffix {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let power: i32 = digits.parse().ok()?;
            (0, (-60..=60).contains(&power).then_some(power)?)
        }
    };
    Some(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_become_milli_units() {
        let cases = [
            ("0", 0),
            ("100m", 100),
            ("2", 2000),
            (".5", 500),
            ("1.", 1000),
            ("-1.5", -1500),
            ("2k", 2_000_000),
            ("1Ki", 1_024_000),
            ("512Mi", 536_870_912_000),
            ("1e3", 1_000_000),
            ("1E-1", 100),
            ("0.0001", 1),
            ("-0.0001", -1),
            ("1n", 1),
            ("9E", i64::MAX),
        ];
        for (text, milli) in cases {
            assert_eq!(parse_milli(text), Ok(milli), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "m", "1.2.3", "1x", "1-", "--1", "1e", "1e999", "١", "1 m",
        ] {
            assert!(parse_milli(text).is_err(), "{text}");
        }
    }

    #[test]
    fn floats_are_cut_to_milli_units() {
        assert_eq!(milli_from_f64(0.9999), 999);
        assert_eq!(milli_from_f64(-0.9999), -999);
        assert_eq!(milli_from_f64(f64::NAN), 0);
        assert_eq!(milli_from_f64(1e300), i64::MAX);
    }
}
