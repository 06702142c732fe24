//! Values that a cluster's sections are written in: durations with their distributions, Kubernetes quantities.

use std::fmt;

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A duration, or a distribution of durations.
#[derive(Clone, Debug, PartialEq)]
pub enum DelayFile {
    /// Always the same.
    Fixed(Secs),
    /// A distribution.
    Table(DelayTable),
}

/// A distribution of durations. Which of the keys apply depends on `kind`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DelayTable {
    /// The distribution.
    pub kind: DelayKind,
    /// Shortest (uniform).
    pub min: Option<Secs>,
    /// Longest (uniform).
    pub max: Option<Secs>,
    /// Mean (normal, exponential).
    pub mean: Option<Secs>,
    /// Standard deviation (normal).
    pub std: Option<Secs>,
    /// Median (lognormal).
    pub median: Option<Secs>,
    /// Standard deviation of the logarithm (lognormal).
    pub sigma: Option<f64>,
    /// 63 % are shorter (weibull).
    pub scale: Option<Secs>,
    /// Below 1: fails early, above 1: wears out (weibull).
    pub shape: Option<f64>,
}

/// Distributions of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DelayKind {
    /// Every duration from min to max alike. Keys: min, max.
    Uniform,
    /// Bell curve, cut at zero. Keys: mean, std.
    Normal,
    /// Skewed to the right. Keys: median, sigma.
    #[default]
    Lognormal,
    /// Memoryless. Keys: mean.
    Exponential,
    /// Times between failures. Keys: scale, shape.
    Weibull,
}

impl Serialize for DelayFile {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            DelayFile::Fixed(secs) => secs.serialize(s),
            DelayFile::Table(table) => table.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for DelayFile {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct DelayVisitor;
        impl<'de> Visitor<'de> for DelayVisitor {
            type Value = DelayFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"90 s\", or a table such as { kind = \"lognormal\", median = \"90 s\", sigma = 0.3 }")
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<DelayFile, E> {
                v.parse().map(DelayFile::Fixed).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DelayFile, A::Error> {
                DelayTable::deserialize(MapAccessDeserializer::new(map)).map(DelayFile::Table)
            }
        }
        d.deserialize_any(DelayVisitor)
    }
}

impl JsonSchema for DelayFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Delay".into()
    }

    fn json_schema(g: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let (secs, table) = (g.subschema_for::<Secs>(), g.subschema_for::<DelayTable>());
        schemars::json_schema!({
            "description": "a duration, or a distribution of durations",
            "anyOf": [secs, table],
        })
    }
}

/// A Kubernetes quantity: a number, or text such as "500m".
#[derive(Clone, Debug, PartialEq)]
pub struct QuantityFile {
    /// As it was written.
    pub text: String,
    /// Milli-units.
    pub milli: i64,
}

impl QuantityFile {
    fn parse<E: de::Error>(text: String) -> Result<QuantityFile, E> {
        let milli = crate::control::quantity::parse_milli(&text).map_err(E::custom)?;
        Ok(QuantityFile { text, milli })
    }
}

impl Serialize for QuantityFile {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for QuantityFile {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl Visitor<'_> for QuantityVisitor {
            type Value = QuantityFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 5, 0.5 or \"500m\"")
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<QuantityFile, E> {
                QuantityFile::parse(v.to_string())
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<QuantityFile, E> {
                QuantityFile::parse(v.to_string())
            }

            fn visit_f64<E: de::Error>(self, v: f64) -> Result<QuantityFile, E> {
                QuantityFile::parse(hwmodels::units::plain(v))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<QuantityFile, E> {
                QuantityFile::parse(v.to_owned())
            }
        }
        d.deserialize_any(QuantityVisitor)
    }
}

impl JsonSchema for QuantityFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "a Kubernetes quantity",
            "examples": ["500m"],
            "anyOf": [{ "type": "number" }, { "type": "string" }],
        })
    }
}

/// A function of a recording rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleFile {
    /// Growth a second.
    Rate,
    /// Mean of the samples.
    AvgOverTime,
    /// Largest sample.
    MaxOverTime,
}
