//! JSON schemas to grammar nodes.
//!
//! As vLLM's default backend has it: properties are written in the schema's order, and an object whose schema does not
//! speak of `additionalProperties` has none. A schema that asks for what a grammar cannot promise is refused by the keyword.

use std::collections::HashMap;

use super::json::Json;
use super::{Builder, Node, NodeId, regex};

/// Schemas within schemas (vLLM's limit too).
const MAX_DEPTH: usize = 64;
/// Digits of a number that a double holds exactly.
const MAX_INTEGER: i64 = 999_999_999_999_999;
/// Most spaces at the beginning of a line.
const MAX_INDENT: u32 = 20;

/// A character of a JSON string.
const CHARACTER: &str =
    r#"[^"\\\x00-\x1f]|\\(["\\/bfnrt]|u([0-9A-Ca-cEeFf][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}))"#;
/// A number.
const NUMBER: &str = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?";

/// Keywords that no grammar here keeps to.
const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "multipleOf",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "$dynamicRef",
    "additionalItems",
];

/// Formats of strings that are kept to.
const FORMATS: [(&str, &str); 6] = [
    ("date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    (
        "time",
        r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "date-time",
        r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "uuid",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    (
        "ipv4",
        r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    ),
    (
        "email",
        r"[a-zA-Z0-9_+-]{1,32}(\.[a-zA-Z0-9_+-]{1,32}){0,3}@([a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?\.){1,3}[a-zA-Z]{2,12}",
    ),
];

/// Any JSON object.
pub(super) fn any_object(b: &mut Builder, whitespace: bool) -> Result<NodeId, String> {
    let schema = Json::Bool(true);
    let mut c = Compiler::new(b, &schema, whitespace)?;
    c.any()?;
    Ok(c.any_object)
}

/// JSON that `schema` describes.
pub(super) fn compile(b: &mut Builder, schema: &Json, whitespace: bool) -> Result<NodeId, String> {
    let mut c = Compiler::new(b, schema, whitespace)?;
    let top = c.reference("#", "#")?;
    Ok(top)
}

struct Compiler<'a, 'b> {
    b: &'b mut Builder,
    root: &'a Json,
    /// What each reference stands for, also while that is being compiled.
    references: HashMap<String, NodeId>,
    depth: usize,
    character: NodeId,
    characters: NodeId,
    space: NodeId,
    comma: NodeId,
    colon: NodeId,
    /// Any value; none before it is needed.
    any: Option<NodeId>,
    any_object: NodeId,
}

type Compiled = Result<NodeId, String>;

impl<'a, 'b> Compiler<'a, 'b> {
    fn new(
        b: &'b mut Builder,
        root: &'a Json,
        whitespace: bool,
    ) -> Result<Compiler<'a, 'b>, String> {
        let character = regex::whole(b, CHARACTER)?;
        let characters = b.add(Node::Repeat {
            of: character,
            min: 0,
            max: None,
        });
        let (space, colon) = if whitespace {
            let blank = b.text(" ");
            let indent = b.add(Node::Repeat {
                of: blank,
                min: 0,
                max: Some(MAX_INDENT),
            });
            let newline = b.text("\n");
            let line = b.add(Node::Seq(vec![newline, indent]));
            let way = b.add(Node::Alt(vec![blank, line]));
            let colon = b.text(":");
            let blank = b.optional(blank);
            (b.optional(way), b.add(Node::Seq(vec![colon, blank])))
        } else {
            (b.empty(), b.text(":"))
        };
        let comma = b.text(",");
        let comma = b.add(Node::Seq(vec![comma, space]));
        let any_object = b.empty();
        Ok(Compiler {
            b,
            root,
            references: HashMap::new(),
            depth: 0,
            character,
            characters,
            space,
            comma,
            colon,
            any: None,
            any_object,
        })
    }

    fn seq(&mut self, of: Vec<NodeId>) -> NodeId {
        self.b.add(Node::Seq(of))
    }

    fn alt(&mut self, of: Vec<NodeId>) -> NodeId {
        self.b.add(Node::Alt(of))
    }

    fn repeat(&mut self, of: NodeId, min: u32, max: Option<u32>) -> NodeId {
        self.b.add(Node::Repeat { of, min, max })
    }

    /// A node that may be named before it is known.
    fn later(&mut self) -> NodeId {
        self.alt(Vec::new())
    }

    fn set(&mut self, later: NodeId, node: NodeId) {
        self.b.nodes[later as usize] = Node::Seq(vec![node]);
    }

    /// `inside` between quotes.
    fn quoted(&mut self, inside: NodeId) -> NodeId {
        let (open, close) = (self.b.text("\""), self.b.text("\""));
        self.seq(vec![open, inside, close])
    }

    /// `inside` between brackets or braces.
    fn enclosed(&mut self, open: &str, inside: NodeId, close: &str) -> NodeId {
        let (open, close) = (self.b.text(open), self.b.text(close));
        let space = self.space;
        self.seq(vec![open, space, inside, space, close])
    }

    /// From `min` to `max` times `of`, with commas between.
    fn listed(&mut self, of: NodeId, min: u32, max: Option<u32>) -> NodeId {
        if max == Some(0) {
            return self.b.empty();
        }
        let comma = self.comma;
        let more = self.seq(vec![comma, of]);
        let more = self.repeat(more, min.saturating_sub(1), max.map(|m| m - 1));
        let some = self.seq(vec![of, more]);
        if min == 0 {
            self.b.optional(some)
        } else {
            some
        }
    }

    /// Any value.
    fn any(&mut self) -> Compiled {
        if let Some(any) = self.any {
            return Ok(any);
        }
        let any = self.later();
        self.any = Some(any);
        let characters = self.characters;
        let string = self.quoted(characters);
        let number = regex::whole(self.b, NUMBER)?;
        let words = ["true", "false", "null"].map(|w| self.b.text(w));
        let elements = self.listed(any, 0, None);
        let array = self.enclosed("[", elements, "]");
        let object = self.pairs(any);
        self.any_object = object;
        let mut ways = vec![string, number, array, object];
        ways.extend(words);
        let ways = self.alt(ways);
        self.set(any, ways);
        Ok(any)
    }

    /// An object with any names and these values.
    fn pairs(&mut self, value: NodeId) -> NodeId {
        let pair = self.any_pair(value);
        let pairs = self.listed(pair, 0, None);
        self.enclosed("{", pairs, "}")
    }

    fn any_pair(&mut self, value: NodeId) -> NodeId {
        let (characters, colon) = (self.characters, self.colon);
        let name = self.quoted(characters);
        self.seq(vec![name, colon, value])
    }

    /// What `schema`, found at `at`, describes.
    fn schema(&mut self, schema: &'a Json, at: &str) -> Compiled {
        self.b.check()?;
        if self.depth == MAX_DEPTH {
            return Err(format!("{at}: schemas nest at most {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let node = match schema {
            Json::Bool(true) => self.any(),
            Json::Object(members) => self.keywords(schema, members, at),
            _ => Err(format!("{at}: must be an object or `true`")),
        };
        self.depth -= 1;
        node
    }

    fn keywords(&mut self, schema: &'a Json, members: &'a [(String, Json)], at: &str) -> Compiled {
        if let Some((name, _)) = members
            .iter()
            .find(|(k, v)| UNSUPPORTED.contains(&k.as_str()) && *v != Json::Bool(false))
        {
            return Err(format!("{at}: `{name}` is not supported"));
        }
        let has = |name: &str| schema.get(name).is_some();
        let whole = ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"];
        if let Some(name) = whole.into_iter().find(|n| has(n)) {
            let beside = [
                "$ref",
                "const",
                "anyOf",
                "oneOf",
                "allOf",
                "enum",
                "properties",
                "items",
                "pattern",
                "required",
                "minimum",
                "maximum",
                "minLength",
                "maxLength",
            ];
            if let Some(other) = beside.into_iter().find(|&o| o != name && has(o)) {
                return Err(format!("{at}: `{other}` beside `{name}` is not supported"));
            }
            return self.whole(name, schema, at);
        }
        let any_of = |names: &[&str]| names.iter().any(|n| has(n));
        match schema.get("type") {
            Some(Json::Text(name)) => self.typed(name, schema, at),
            Some(Json::List(names)) => {
                let ways = names
                    .iter()
                    .map(|n| match n {
                        Json::Text(n) => self.typed(n, schema, at),
                        _ => Err(format!("{at}: `type` must hold names of types")),
                    })
                    .collect::<Result<_, _>>()?;
                Ok(self.alt(ways))
            }
            Some(_) => Err(format!("{at}: `type` must be a name or a list of names")),
            None if any_of(&["properties", "required", "additionalProperties"]) => {
                self.typed("object", schema, at)
            }
            None if any_of(&["items", "prefixItems", "minItems", "maxItems"]) => {
                self.typed("array", schema, at)
            }
            None if any_of(&["pattern", "minLength", "maxLength", "format"]) => {
                self.typed("string", schema, at)
            }
            None if any_of(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]) => {
                self.typed("number", schema, at)
            }
            None => self.any(),
        }
    }

    /// Keywords that say all of a value.
    fn whole(&mut self, name: &str, schema: &'a Json, at: &str) -> Compiled {
        let value = schema.get(name).unwrap_or(&Json::Null);
        let list = value.as_list().filter(|l| !l.is_empty());
        match name {
            "$ref" => {
                let to = value
                    .as_str()
                    .ok_or_else(|| format!("{at}: `$ref` must be a string"))?;
                self.reference(to, at)
            }
            "const" => Ok(self.b.text(&value.text())),
            "enum" => {
                let list = list.ok_or_else(|| format!("{at}: `enum` must be a list of values"))?;
                let ways = list.iter().map(|v| self.b.text(&v.text())).collect();
                Ok(self.alt(ways))
            }
            _ => {
                let list =
                    list.ok_or_else(|| format!("{at}: `{name}` must be a list of schemas"))?;
                if name == "allOf" && list.len() > 1 {
                    return Err(format!("{at}: `allOf` of several schemas is not supported"));
                }
                let ways = list
                    .iter()
                    .enumerate()
                    .map(|(i, s)| self.schema(s, &format!("{at}/{name}/{i}")))
                    .collect::<Result<_, _>>()?;
                Ok(self.alt(ways))
            }
        }
    }

    /// The schema at `to`, a pointer within the whole one such as `#/$defs/item`.
    fn reference(&mut self, to: &str, at: &str) -> Compiled {
        if let Some(&node) = self.references.get(to) {
            return Ok(node);
        }
        let missing = || format!("{at}: `$ref`: there is no `{to}` in the schema");
        let path = to.strip_prefix('#').ok_or_else(missing)?;
        let mut found = self.root;
        for step in path.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let next = match found {
                Json::List(l) => step.parse().ok().and_then(|i: usize| l.get(i)),
                object => object.get(&step),
            };
            found = next.ok_or_else(missing)?;
        }
        let later = self.later();
        self.references.insert(to.into(), later);
        let node = self.schema(found, to)?;
        self.set(later, node);
        Ok(later)
    }

    fn typed(&mut self, name: &str, schema: &'a Json, at: &str) -> Compiled {
        match name {
            "null" => Ok(self.b.text("null")),
            "boolean" => {
                let ways = ["true", "false"].map(|w| self.b.text(w)).to_vec();
                Ok(self.alt(ways))
            }
            "integer" => self.integer(schema, at),
            "number" => {
                let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
                if let Some(bound) = bounds.iter().find(|b| schema.get(b).is_some()) {
                    return Err(format!("{at}: `{bound}` is supported for integers only"));
                }
                regex::whole(self.b, NUMBER)
            }
            "string" => self.string(schema, at),
            "array" => self.array(schema, at),
            "object" => self.object(schema, at),
            _ => Err(format!("{at}: there is no type `{name}`")),
        }
    }

    /// A count that a keyword gives.
    fn count(&self, schema: &Json, name: &str, at: &str) -> Result<Option<u32>, String> {
        match schema.get(name) {
            None => Ok(None),
            Some(Json::Number(n)) if n.as_u64().is_some_and(|n| n <= u64::from(u32::MAX)) => {
                Ok(n.as_u64().map(|n| n as u32))
            }
            Some(v) => Err(format!("{at}: `{name}` must be a count, got {}", v.text())),
        }
    }

    fn integer(&mut self, schema: &Json, at: &str) -> Compiled {
        let bound = |name: &str| match schema.get(name) {
            None => Ok(None),
            Some(Json::Number(n)) => Ok(n.as_f64()),
            Some(v) => Err(format!("{at}: `{name}` must be a number, got {}", v.text())),
        };
        // Within 15 digits doubles hold integers exactly.
        let limit = MAX_INTEGER as f64;
        let mut low = bound("minimum")?.map_or(-limit, f64::ceil);
        let mut high = bound("maximum")?.map_or(limit, f64::floor);
        if let Some(x) = bound("exclusiveMinimum")? {
            low = low.max(x.floor() + 1.0);
        }
        if let Some(x) = bound("exclusiveMaximum")? {
            high = high.min(x.ceil() - 1.0);
        }
        let (low, high) = (low.max(-limit) as i64, high.min(limit) as i64);
        if low > high {
            return Err(format!("{at}: no integer is within its bounds"));
        }
        let mut ways = Vec::new();
        if low < 0 {
            let minus = self.b.text("-");
            let digits = self.digits(if high < 0 { -high } else { 1 }, -low);
            ways.push(self.seq(vec![minus, digits]));
        }
        if high >= 0 {
            ways.push(self.digits(low.max(0), high));
        }
        Ok(self.alt(ways))
    }

    /// Decimal digits of an integer from `low` to `high`, both at least 0.
    fn digits(&mut self, low: i64, high: i64) -> NodeId {
        let (shortest, longest) = (low.to_string().len(), high.to_string().len());
        let ways = (shortest..=longest)
            .map(|len| {
                let nines = "9".repeat(len);
                let first = if len == 1 {
                    0
                } else {
                    10_i64.pow(len as u32 - 1)
                };
                let a = low.max(first).to_string();
                let b = if len == longest {
                    high.to_string()
                } else {
                    nines
                };
                self.between(a.as_bytes(), b.as_bytes())
            })
            .collect();
        self.alt(ways)
    }

    /// Digits from `a` to `b`, which are of equal length.
    fn between(&mut self, a: &[u8], b: &[u8]) -> NodeId {
        let (Some((&first, from)), Some((&last, to))) = (a.split_first(), b.split_first()) else {
            return self.b.empty();
        };
        let n = from.len();
        let all = |digits: &[u8], d: u8| digits.iter().all(|&x| x == d);
        if all(from, b'0') && all(to, b'9') {
            let digit = self.b.add(Node::Byte(vec![(first, last)]));
            let any = self.b.add(Node::Byte(vec![(b'0', b'9')]));
            let rest = self.repeat(any, n as u32, Some(n as u32));
            return self.seq(vec![digit, rest]);
        }
        if first == last {
            let digit = self.b.add(Node::Byte(vec![(first, first)]));
            let rest = self.between(from, to);
            return self.seq(vec![digit, rest]);
        }
        let (zeros, nines) = (vec![b'0'; n], vec![b'9'; n]);
        let mut ways = Vec::new();
        let (mut low, mut high) = (first, last);
        if !all(from, b'0') {
            let digit = self.b.add(Node::Byte(vec![(first, first)]));
            let rest = self.between(from, &nines);
            ways.push(self.seq(vec![digit, rest]));
            low += 1;
        }
        if !all(to, b'9') {
            let digit = self.b.add(Node::Byte(vec![(last, last)]));
            let rest = self.between(&zeros, to);
            ways.push(self.seq(vec![digit, rest]));
            high -= 1;
        }
        if low <= high {
            let digit = self.b.add(Node::Byte(vec![(low, high)]));
            let rest = self.between(&zeros, &nines);
            ways.push(self.seq(vec![digit, rest]));
        }
        self.alt(ways)
    }

    fn string(&mut self, schema: &Json, at: &str) -> Compiled {
        let (min, max) = (
            self.count(schema, "minLength", at)?,
            self.count(schema, "maxLength", at)?,
        );
        let text = |name: &str| match schema.get(name) {
            None => Ok(None),
            Some(Json::Text(s)) => Ok(Some(s.as_str())),
            Some(_) => Err(format!("{at}: `{name}` must be a string")),
        };
        let (pattern, format) = (text("pattern")?, text("format")?);
        let limited = min.is_some() || max.is_some();
        if [pattern.is_some(), format.is_some(), limited]
            .iter()
            .filter(|&&x| x)
            .count()
            > 1
        {
            return Err(format!(
                "{at}: only one of `pattern`, `format` and a length is supported"
            ));
        }
        let inside = if let Some(pattern) = pattern {
            let characters = self.characters;
            regex::within_string(self.b, pattern, characters)
                .map_err(|e| format!("{at}: `pattern`: {e}"))?
        } else if let Some(format) = format {
            let Some((_, pattern)) = FORMATS.iter().find(|f| f.0 == format) else {
                let names: Vec<&str> = FORMATS.iter().map(|f| f.0).collect();
                return Err(format!(
                    "{at}: the format `{format}` is not supported; these are: {}",
                    names.join(", ")
                ));
            };
            regex::whole(self.b, pattern)?
        } else if limited {
            let min = min.unwrap_or(0);
            if max.is_some_and(|m| m < min) {
                return Err(format!("{at}: `maxLength` is below `minLength`"));
            }
            let character = self.character;
            self.repeat(character, min, max)
        } else {
            self.characters
        };
        Ok(self.quoted(inside))
    }

    fn array(&mut self, schema: &'a Json, at: &str) -> Compiled {
        let min = self.count(schema, "minItems", at)?.unwrap_or(0);
        let max = self.count(schema, "maxItems", at)?;
        let prefix = match schema.get("prefixItems") {
            None => &[],
            Some(Json::List(l)) => l.as_slice(),
            Some(_) => return Err(format!("{at}: `prefixItems` must be a list of schemas")),
        };
        let fixed = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
        if max.is_some_and(|m| m < min.max(fixed)) {
            return Err(format!(
                "{at}: `maxItems` is below `minItems` or the number of `prefixItems`"
            ));
        }
        let item = match schema.get("items") {
            Some(Json::Bool(false)) => None,
            Some(s) => Some(self.schema(s, &format!("{at}/items"))?),
            None if fixed > 0 => None,
            None => Some(self.any()?),
        };
        if fixed == 0 {
            let elements = match item {
                Some(item) => self.listed(item, min, max),
                None if min == 0 => self.b.empty(),
                None => {
                    return Err(format!(
                        "{at}: `minItems` asks for items that are not allowed"
                    ));
                }
            };
            return Ok(self.enclosed("[", elements, "]"));
        }
        let mut elements = Vec::new();
        for (i, s) in prefix.iter().enumerate() {
            elements.extend((i > 0).then_some(self.comma));
            elements.push(self.schema(s, &format!("{at}/prefixItems/{i}"))?);
        }
        if let Some(item) = item {
            let comma = self.comma;
            let more = self.seq(vec![comma, item]);
            elements.push(self.repeat(more, min.saturating_sub(fixed), max.map(|m| m - fixed)));
        } else if min > fixed {
            return Err(format!(
                "{at}: `minItems` asks for items that are not allowed"
            ));
        }
        let elements = self.seq(elements);
        Ok(self.enclosed("[", elements, "]"))
    }

    fn object(&mut self, schema: &'a Json, at: &str) -> Compiled {
        let properties = match schema.get("properties") {
            None => &[],
            Some(Json::Object(p)) => p.as_slice(),
            Some(_) => return Err(format!("{at}: `properties` must be an object of schemas")),
        };
        let required = match schema.get("required") {
            None => &[],
            Some(Json::List(l)) => l.as_slice(),
            Some(_) => return Err(format!("{at}: `required` must be a list of names")),
        };
        for name in required {
            let known = |(k, _): &(String, Json)| Some(k.as_str()) == name.as_str();
            if !properties.iter().any(known) {
                return Err(format!(
                    "{at}: `required` names {}, which `properties` does not have",
                    name.text()
                ));
            }
        }
        let further = match schema.get("additionalProperties") {
            None if properties.is_empty() => Some(self.any()?),
            None | Some(Json::Bool(false)) => None,
            Some(s) => Some(self.schema(s, &format!("{at}/additionalProperties"))?),
        };
        let (comma, colon) = (self.comma, self.colon);
        // What may follow, from the last property on: before the first that is written, and after it.
        let (mut fresh, mut begun) = match further {
            None => (self.b.empty(), self.b.empty()),
            Some(value) => {
                let pair = self.any_pair(value);
                let next = self.seq(vec![comma, pair]);
                (self.listed(pair, 0, None), self.repeat(next, 0, None))
            }
        };
        for (name, s) in properties.iter().rev() {
            let value = self.schema(s, &format!("{at}/properties/{name}"))?;
            let quoted = self.b.text(&Json::Text(name.clone()).text());
            let pair = self.seq(vec![quoted, colon, value]);
            let first = self.seq(vec![pair, begun]);
            let next = self.seq(vec![comma, pair, begun]);
            (fresh, begun) = if required.iter().any(|r| r.as_str() == Some(name)) {
                (first, next)
            } else {
                (self.alt(vec![first, fresh]), self.alt(vec![next, begun]))
            };
        }
        Ok(self.enclosed("{", fresh, "}"))
    }
}
