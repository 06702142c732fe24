//! JSON whose objects keep their order, as schemas need it: properties are written in the order in which the schema names them.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, its members in their order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads JSON text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Json, String> {
        serde_json::from_slice(text).map_err(|e| e.to_string())
    }

    /// The member called `name`; the last of several, as everywhere.
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().rev().find(|m| m.0 == name).map(|m| &m.1),
            _ => None,
        }
    }

    /// A string's text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(s) => Some(s),
            _ => None,
        }
    }

    /// An array's elements.
    pub fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(l) => Some(l),
            _ => None,
        }
    }

    /// The value as JSON text without whitespace.
    pub fn text(&self) -> String {
        let string = |s: &str| serde_json::Value::from(s).to_string();
        match self {
            Json::Null => "null".into(),
            Json::Bool(b) => b.to_string(),
            Json::Number(n) => n.to_string(),
            Json::Text(s) => string(s),
            Json::List(l) => {
                let parts: Vec<String> = l.iter().map(Json::text).collect();
                format!("[{}]", parts.join(","))
            }
            Json::Object(o) => {
                let member = |(k, v): &(String, Json)| format!("{}:{}", string(k), v.text());
                let parts: Vec<String> = o.iter().map(member).collect();
                format!("{{{}}}", parts.join(","))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Json, E> {
        Ok(Json::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Json, E> {
        Ok(Json::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Json, E> {
        Ok(Json::Number(v.into()))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Json, E> {
        Number::from_f64(v)
            .map(Json::Number)
            .ok_or_else(|| E::custom("a number beyond what a double holds"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Json, E> {
        Ok(Json::Text(v.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(v) = seq.next_element()? {
            list.push(v);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(m) = map.next_entry()? {
            members.push(m);
        }
        Ok(Json::Object(members))
    }
}
