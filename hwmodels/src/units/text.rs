//! Reading and printing a number with its unit.

use thiserror::Error;

/// Why a text is no value of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// A number without its unit.
    #[error("{what} needs a unit: write \"{number} {unit}\" instead of {number}")]
    NoUnit {
        /// What was wanted, e.g. `a duration`.
        what: &'static str,
        /// The number as written.
        number: String,
        /// A unit that would do.
        unit: &'static str,
    },
    /// A unit of another kind, or none at all.
    #[error("{what} cannot be given in `{unit}`; known units: {known} (e.g. \"{example}\")")]
    UnknownUnit {
        /// What was wanted.
        what: &'static str,
        /// The unit as written.
        unit: String,
        /// The units that exist.
        known: String,
        /// A right form.
        example: &'static str,
    },
    /// No number at the start.
    #[error("{what} expected, got \"{text}\"; write it like \"{example}\"")]
    NoNumber {
        /// What was wanted.
        what: &'static str,
        /// The text as written.
        text: String,
        /// A right form.
        example: &'static str,
    },
    /// NaN, infinite, negative, or too large.
    #[error("{what} must be {range}, got {text}")]
    OutOfRange {
        /// What was wanted.
        what: &'static str,
        /// The allowed range in words.
        range: &'static str,
        /// The text as written.
        text: String,
    },
}

/// One unit: its name and its size as a fraction `num / den` of the base unit, so that decimal
/// fractions are rounded once (250 ms is exactly what `0.25` is).
pub(super) struct Unit {
    name: &'static str,
    num: f64,
    den: f64,
}

pub(super) const fn unit(name: &'static str, num: f64, den: f64) -> Unit {
    Unit { name, num, den }
}

/// One kind of quantity: what it is called and which units it knows, those for printing first.
pub(super) struct Kind {
    pub(super) what: &'static str,
    pub(super) example: &'static str,
    pub(super) default_unit: &'static str,
    /// Whether a number without a unit is one in `default_unit`: only where no other unit is in use.
    pub(super) bare: bool,
    /// Units tried in this order when printing; the base unit (1/1) must be among them.
    pub(super) printed: &'static [Unit],
    /// Units that are only read.
    pub(super) read: &'static [Unit],
    /// Units of rounded figures: each from this base value on, largest first.
    pub(super) shown: &'static [(&'static str, f64)],
}

pub(super) const KIB: f64 = 1024.0;
pub(super) const MIB: f64 = KIB * 1024.0;
pub(super) const GIB: f64 = MIB * 1024.0;
pub(super) const TIB: f64 = GIB * 1024.0;

pub(super) static BYTE_SIZE: Kind = Kind {
    what: "a size in bytes",
    example: "80 GiB",
    default_unit: "GiB",
    bare: false,
    printed: &[
        unit("TiB", TIB, 1.0),
        unit("GiB", GIB, 1.0),
        unit("TB", 1e12, 1.0),
        unit("GB", 1e9, 1.0),
        unit("MiB", MIB, 1.0),
        unit("MB", 1e6, 1.0),
        unit("KiB", KIB, 1.0),
        unit("kB", 1e3, 1.0),
        unit("B", 1.0, 1.0),
    ],
    read: &[unit("KB", 1e3, 1.0), unit("bytes", 1.0, 1.0)],
    shown: &[
        ("TiB", TIB),
        ("GiB", GIB),
        ("MiB", MIB),
        ("KiB", KIB),
        ("B", 0.0),
    ],
};

pub(super) static DURATION: Kind = Kind {
    what: "a duration",
    example: "250 ms",
    default_unit: "s",
    bare: false,
    printed: &[
        unit("d", 86_400.0, 1.0),
        unit("h", 3_600.0, 1.0),
        unit("min", 60.0, 1.0),
        unit("s", 1.0, 1.0),
        unit("ms", 1.0, 1e3),
        unit("us", 1.0, 1e6),
        unit("ns", 1.0, 1e9),
    ],
    read: &[
        unit("sec", 1.0, 1.0),
        unit("µs", 1.0, 1e6),
        unit("μs", 1.0, 1e6),
        unit("m", 60.0, 1.0),
        unit("hours", 3_600.0, 1.0),
        unit("days", 86_400.0, 1.0),
    ],
    shown: &[
        ("h", 7_200.0),
        ("s", 1.0),
        ("ms", 1e-3),
        ("us", 1e-6),
        ("ns", 0.0),
    ],
};

pub(super) static RATE: Kind = Kind {
    what: "a request rate",
    example: "2.5 req/s",
    default_unit: "req/s",
    bare: true,
    printed: &[
        unit("req/s", 1.0, 1.0),
        unit("req/min", 1.0, 60.0),
        unit("req/h", 1.0, 3_600.0),
    ],
    read: &[
        unit("/s", 1.0, 1.0),
        unit("1/s", 1.0, 1.0),
        unit("rps", 1.0, 1.0),
        unit("/min", 1.0, 60.0),
        unit("/h", 1.0, 3_600.0),
        unit("req/d", 1.0, 86_400.0),
    ],
    shown: &[("req/s", 0.1), ("req/min", 0.1 / 60.0), ("req/h", 0.0)],
};

pub(super) static BANDWIDTH: Kind = Kind {
    what: "a bandwidth",
    example: "600 GB/s",
    default_unit: "GB/s",
    bare: false,
    printed: &[
        unit("TB/s", 1e12, 1.0),
        unit("GB/s", 1e9, 1.0),
        unit("MB/s", 1e6, 1.0),
        unit("kB/s", 1e3, 1.0),
        unit("B/s", 1.0, 1.0),
    ],
    read: &[
        unit("TiB/s", TIB, 1.0),
        unit("GiB/s", GIB, 1.0),
        unit("MiB/s", MIB, 1.0),
        unit("KiB/s", KIB, 1.0),
        unit("Tb/s", 1e12, 8.0),
        unit("Gb/s", 1e9, 8.0),
        unit("Mb/s", 1e6, 8.0),
        unit("Gbit/s", 1e9, 8.0),
        unit("Mbit/s", 1e6, 8.0),
        unit("Gbps", 1e9, 8.0),
        unit("Mbps", 1e6, 8.0),
    ],
    shown: &[
        ("TB/s", 1e12),
        ("GB/s", 1e9),
        ("MB/s", 1e6),
        ("kB/s", 1e3),
        ("B/s", 0.0),
    ],
};

pub(super) static FLOPS: Kind = Kind {
    what: "an arithmetic rate",
    example: "989 TFLOP/s",
    default_unit: "TFLOP/s",
    bare: false,
    printed: &[
        unit("PFLOP/s", 1e15, 1.0),
        unit("TFLOP/s", 1e12, 1.0),
        unit("GFLOP/s", 1e9, 1.0),
        unit("FLOP/s", 1.0, 1.0),
    ],
    read: &[
        unit("PFLOPS", 1e15, 1.0),
        unit("TFLOPS", 1e12, 1.0),
        unit("GFLOPS", 1e9, 1.0),
        unit("TOP/s", 1e12, 1.0),
        unit("TOPS", 1e12, 1.0),
    ],
    shown: &[
        ("PFLOP/s", 1e15),
        ("TFLOP/s", 1e12),
        ("GFLOP/s", 1e9),
        ("FLOP/s", 0.0),
    ],
};

pub(super) static PRICE: Kind = Kind {
    what: "a price per hour",
    example: "1.212 USD/h",
    default_unit: "USD/h",
    bare: false,
    printed: &[unit("USD/h", 1.0, 1.0)],
    read: &[
        unit("$/h", 1.0, 1.0),
        unit("USD/hour", 1.0, 1.0),
        unit("USD/d", 1.0, 24.0),
    ],
    shown: &[("USD/h", 0.0)],
};

pub(super) static MONEY: Kind = Kind {
    what: "an amount of money",
    example: "0.60 USD",
    default_unit: "USD",
    bare: false,
    printed: &[unit("USD", 1.0, 1.0)],
    read: &[unit("$", 1.0, 1.0)],
    shown: &[("USD", 0.0)],
};

impl Kind {
    pub(super) fn units(&self) -> impl Iterator<Item = &'static Unit> + use<> {
        self.printed.iter().chain(self.read.iter())
    }

    /// Reads `text` into the base unit.
    pub(super) fn parse(&self, text: &str) -> Result<f64, UnitError> {
        let trimmed = text.trim();
        // "$1.21" and "$1.21/h" carry their unit in front.
        let reordered;
        let trimmed = match trimmed.strip_prefix('$') {
            Some(rest) => {
                let cut = rest.find('/').unwrap_or(rest.len());
                reordered = format!("{} ${}", &rest[..cut], &rest[cut..]);
                reordered.trim()
            }
            None => trimmed,
        };
        let (number, name) = split_number(trimmed);
        let value = parse_number(number).ok_or_else(|| UnitError::NoNumber {
            what: self.what,
            text: shorten(text),
            example: self.example,
        })?;
        let name = if name.is_empty() && self.bare {
            self.default_unit
        } else {
            name
        };
        if name.is_empty() {
            return Err(UnitError::NoUnit {
                what: self.what,
                number: shorten(number),
                unit: self.default_unit,
            });
        }
        let unit = self.units().find(|u| u.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.units().map(|u| u.name).collect();
            UnitError::UnknownUnit {
                what: self.what,
                unit: shorten(name),
                known: known.join(", "),
                example: self.example,
            }
        })?;
        let base = value * unit.num / unit.den;
        if base.is_finite() && base >= 0.0 && !number.starts_with('-') {
            Ok(base)
        } else {
            Err(UnitError::OutOfRange {
                what: self.what,
                range: "finite and not negative",
                text: shorten(text),
            })
        }
    }

    /// Prints a base value in the unit that gives the shortest text that reads back exactly. A value that is long in
    /// every unit keeps the base unit: 2.491632521082522 req/s, not 8969.87707589708 req/h.
    pub(super) fn print(&self, base: f64) -> String {
        if base == 0.0 {
            return format!("0 {}", self.default_unit);
        }
        let mut best: Option<(usize, String)> = None;
        for u in self.printed {
            let number = base * u.den / u.num;
            let number_text = plain(number);
            let text = format!("{number_text} {}", u.name);
            // Digits decide; the list's order breaks ties. Below 1 only the base unit is natural.
            let natural = number == 0.0 || (1.0..100_000.0).contains(&number);
            let length = number_text.len() + if natural { 0 } else { 8 };
            if self.parse(&text) == Ok(base) && best.as_ref().is_none_or(|(l, _)| length < *l) {
                best = Some((length, text));
            }
        }
        // The base unit always reads back, since it is printed with all its digits.
        let in_base = || {
            let unit = self.printed.iter().find(|u| u.num == u.den);
            format!(
                "{} {}",
                plain(base),
                unit.map_or(self.default_unit, |u| u.name)
            )
        };
        match best {
            Some((_, text)) if number_length(&text) <= CLEAN_DIGITS => text,
            Some((_, text)) if number_length(&text) + WORTH_A_UNIT < number_length(&in_base()) => {
                text
            }
            _ => in_base(),
        }
    }

    /// Prints a base value for people: as it would be written where that is short, else rounded to four significant
    /// digits. Need not read back to the same value.
    pub(super) fn human(&self, base: f64) -> String {
        let exact = self.print(base);
        if number_length(&exact) <= SHORT_DIGITS {
            return exact;
        }
        let unit = self
            .shown
            .iter()
            .find(|(_, from)| base >= *from)
            .and_then(|(name, _)| self.units().find(|u| u.name == *name));
        match unit {
            Some(u) => format!("{} {}", significant(base * u.den / u.num), u.name),
            None => exact,
        }
    }

    pub(super) fn schema(&self) -> schemars::Schema {
        schemars::json_schema!({
            "type": if self.bare { serde_json::json!(["string", "number"]) } else { "string".into() },
            "description": format!("{} with its unit, e.g. \"{}\"", self.what, self.example),
            "pattern": r"^\s*(\$\s*)?[0-9][0-9_]*(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*\S*\s*$",
            "examples": [self.example],
        })
    }
}

/// Characters of a number that somebody may have written: longer ones are the outcome of a calculation.
const CLEAN_DIGITS: usize = 10;

/// Characters that another unit must save over the base unit where a number is long in both.
const WORTH_A_UNIT: usize = 3;

/// Characters of a number that people read at a glance; longer ones are rounded for them.
const SHORT_DIGITS: usize = 6;

/// Characters of the number at the start of a printed value.
fn number_length(text: &str) -> usize {
    split_number(text).0.len()
}

/// `value` with four significant digits, or all digits before the point; no exponent, no trailing zeros.
///
/// ```
/// use hwmodels::units::significant;
/// assert_eq!(significant(30.000000000000004), "30");
/// assert_eq!(significant(0.0123456), "0.01235");
/// assert_eq!(significant(123456.7), "123457");
/// ```
pub fn significant(value: f64) -> String {
    const DIGITS: i32 = 4;
    /// Decimals of the smallest values that are printed without an exponent.
    const MOST_DECIMALS: i32 = 12;
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (DIGITS - 1 - magnitude).clamp(0, MOST_DECIMALS);
    let text = format!("{value:.0$}", decimals as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Splits `"2.5 req/s"` into number and unit, both trimmed.
pub(super) fn split_number(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let c = bytes[end];
        let exponent = (c == b'e' || c == b'E')
            && end > 0
            && match bytes.get(end + 1) {
                Some(b'+' | b'-') => bytes.get(end + 2).is_some_and(u8::is_ascii_digit),
                Some(d) => d.is_ascii_digit(),
                None => false,
            };
        let sign = (c == b'+' || c == b'-')
            && (end == 0 || bytes[end - 1] == b'e' || bytes[end - 1] == b'E');
        if !(c.is_ascii_digit() || c == b'.' || c == b'_' || exponent || sign) {
            break;
        }
        end += 1;
    }
    // "3 1/s" would read as a unit; "1/s" alone has no number.
    (text[..end].trim(), text[end..].trim())
}

/// Reads a decimal number; `_` may group digits.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    if !text.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// A number that reads back exactly, in powers of ten where all its digits would be many: `2.5`, `1e300`.
pub fn plain(x: f64) -> String {
    if x == 0.0 || !x.is_finite() || (1e-7..1e16).contains(&x.abs()) {
        x.to_string()
    } else {
        format!("{x:e}")
    }
}

/// Keeps hostile input out of messages.
pub(super) fn shorten(text: &str) -> String {
    const MAX: usize = 60;
    if text.chars().count() <= MAX {
        return text.to_owned();
    }
    let head: String = text.chars().take(MAX).collect();
    format!("{head}...")
}
