//! The types: one for each kind of quantity.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::{
    BANDWIDTH, BYTE_SIZE, DURATION, FLOPS, GIB, KIB, Kind, MIB, MONEY, PRICE, RATE, TIB, UnitError,
    parse_number, plain, shorten, split_number,
};

/// Serde visitor that takes strings and refuses bare numbers with advice.
struct UnitVisitor<T> {
    kind: &'static Kind,
    parse: fn(&str) -> Result<T, UnitError>,
}

impl<T> UnitVisitor<T> {
    /// A number without a unit: refused with advice, but where the kind takes it.
    fn bare<E: de::Error>(&self, number: &str) -> Result<T, E> {
        (self.parse)(number).map_err(E::custom)
    }
}

impl<T> Visitor<'_> for UnitVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} with its unit, e.g. \"{}\"",
            self.kind.what, self.kind.example
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<T, E> {
        self.bare(&v.to_string())
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<T, E> {
        self.bare(&v.to_string())
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<T, E> {
        self.bare(&plain(v))
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty), $kind:ident, $getter:ident, $getter_doc:literal, $from:expr, $to:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name($inner);

        impl $name {
            #[doc = $getter_doc]
            pub const fn $getter(self) -> $inner {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = UnitError;

            fn from_str(text: &str) -> Result<Self, UnitError> {
                let base = $kind.parse(text)?;
                let convert: fn(f64) -> Option<$inner> = $from;
                convert(base).map(Self).ok_or_else(|| UnitError::OutOfRange {
                    what: $kind.what,
                    range: "within what can be counted",
                    text: shorten(text),
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let convert: fn(&$inner) -> String = $to;
                f.pad(&convert(&self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_any(UnitVisitor {
                    kind: &$kind,
                    parse: |t| t.parse(),
                })
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $kind.schema()
            }
        }
    };
}

macro_rules! float_quantity {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $getter:ident, $getter_doc:literal) => {
        quantity!($(#[$doc])* $name(f64), $kind, $getter, $getter_doc, Some, |v| $kind.print(*v));

        impl $name {
            /// For people, with its unit: four significant digits where it is not short by itself. Need not read back
            /// to the same value; [`Display`](fmt::Display) does.
            pub fn human(self) -> String {
                $kind.human(self.0)
            }

            /// Wraps a value in the base unit.
            ///
            /// # Errors
            /// NaN, infinite and negative values.
            pub fn new(value: f64) -> Result<Self, UnitError> {
                if value.is_finite() && value >= 0.0 {
                    // Adding zero turns -0 into +0.
                    Ok(Self(value + 0.0))
                } else {
                    Err(UnitError::OutOfRange {
                        what: $kind.what,
                        range: "finite and not negative",
                        text: plain(value),
                    })
                }
            }
        }
    };
}

quantity!(
    /// A size in memory or on disk [bytes], at most 2^53 so that it is exact.
    #[derive(Eq, Ord, Hash)]
    ByteSize(u64),
    BYTE_SIZE,
    bytes,
    "The size [bytes].",
    |base| (base <= MAX_BYTES).then(|| base.round() as u64),
    |bytes| BYTE_SIZE.print(*bytes as f64)
);

/// Largest size that is read: 8 PiB, above which an f64 skips integers.
const MAX_BYTES: f64 = 9_007_199_254_740_992.0;

impl ByteSize {
    /// Wraps a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Wraps a number of mebibytes.
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// Wraps a number of gibibytes.
    pub const fn gib(gib: u64) -> Self {
        Self(gib << 30)
    }

    /// The size [GiB].
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / GIB
    }

    /// Rounded to two digits in the unit people read best, e.g. `12.55 GiB`; does not read back exactly.
    pub fn human(self) -> String {
        let b = self.0 as f64;
        let (div, name) = if b >= TIB {
            (TIB, "TiB")
        } else if b >= GIB {
            (GIB, "GiB")
        } else if b >= MIB {
            (MIB, "MiB")
        } else if b >= KIB {
            (KIB, "KiB")
        } else {
            return format!("{} B", self.0);
        };
        format!("{:.2} {name}", b / div)
    }
}

float_quantity!(
    /// A duration [s].
    Secs,
    DURATION,
    secs,
    "The duration [s]."
);

float_quantity!(
    /// A rate of requests [1/s].
    PerSec,
    RATE,
    per_sec,
    "The rate [1/s]."
);

float_quantity!(
    /// A bandwidth [bytes/s].
    BytesPerSec,
    BANDWIDTH,
    bytes_per_sec,
    "The bandwidth [bytes/s]."
);

float_quantity!(
    /// An arithmetic rate [FLOP/s or OP/s].
    FlopsPerSec,
    FLOPS,
    per_sec,
    "The rate [FLOP/s or OP/s]."
);

float_quantity!(
    /// A price per hour [USD/h].
    UsdPerHour,
    PRICE,
    usd_per_hour,
    "The price [USD/h]."
);

float_quantity!(
    /// An amount of money [USD].
    Usd,
    MONEY,
    usd,
    "The amount [USD]."
);

/// A share in [0, 1], written `0.9` or `"90 %"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    const WHAT: &'static str = "a ratio";

    /// Wraps a share.
    ///
    /// # Errors
    /// NaN and values outside [0, 1].
    pub fn new(value: f64) -> Result<Self, UnitError> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value + 0.0))
        } else {
            Err(UnitError::OutOfRange {
                what: Self::WHAT,
                range: "from 0 to 1 (or from \"0 %\" to \"100 %\")",
                text: plain(value),
            })
        }
    }

    /// The share, 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_number(text.trim());
        let value = parse_number(number).ok_or_else(|| UnitError::NoNumber {
            what: Self::WHAT,
            text: shorten(text),
            example: "90 %",
        })?;
        match unit {
            "" => Self::new(value),
            "%" => Self::new(value / 100.0),
            other => Err(UnitError::UnknownUnit {
                what: Self::WHAT,
                unit: shorten(other),
                known: "%, or a plain number".to_owned(),
                example: "90 %",
            }),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = format!("{} %", self.0 * 100.0);
        if percent.len() <= 7 && percent.parse() == Ok(*self) {
            f.pad(&percent)
        } else {
            f.pad(&self.0.to_string())
        }
    }
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct RatioVisitor;
        impl Visitor<'_> for RatioVisitor {
            type Value = Ratio;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a ratio from 0 to 1, e.g. 0.9 or \"90 %\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ratio, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Ratio, E> {
                Ratio::new(v as f64).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Ratio, E> {
                Ratio::new(v as f64).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Ratio, E> {
                Ratio::new(v).map_err(E::custom)
            }
        }
        d.deserialize_any(RatioVisitor)
    }
}

impl schemars::JsonSchema for Ratio {
    fn schema_name() -> Cow<'static, str> {
        "Ratio".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "a share from 0 to 1, e.g. 0.9 or \"90 %\"",
            "anyOf": [
                { "type": "number", "minimum": 0, "maximum": 1 },
                { "type": "string", "pattern": r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*%?\s*$" },
            ],
        })
    }
}
