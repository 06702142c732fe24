use super::*;
use proptest::prelude::*;
use rand::RngExt;
use serde_json::Value;

fn matcher(schema: &str) -> Matcher {
    let schema = json::Json::parse(schema.as_bytes()).unwrap();
    let whitespace = false;
    Constraint::Schema { schema, whitespace }.matcher().unwrap()
}

fn refused(schema: &str) -> String {
    let schema = json::Json::parse(schema.as_bytes()).unwrap();
    let whitespace = true;
    let constraint = Constraint::Schema { schema, whitespace };
    let error = constraint.matcher().err();
    error.unwrap_or_else(|| panic!("{constraint:?} is taken"))
}

/// Whether `text` is described as a whole.
fn takes(m: &Matcher, text: &str) -> bool {
    let mut m = m.clone();
    m.accept(text.as_bytes()).unwrap() && m.is_complete()
}

fn check(m: &Matcher, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(takes(m, text), "{text} is described");
    }
    for text in bad {
        assert!(!takes(m, text), "{text} is not described");
    }
}

#[test]
fn types_take_their_values_and_no_others() {
    for (schema, good, bad) in [
        (r#"{"type": "null"}"#, &["null"][..], &["nul", "0", ""][..]),
        (r#"{"type": "boolean"}"#, &["true", "false"], &["True", "1"]),
        (
            r#"{"type": "integer"}"#,
            &["0", "-1", "12", "999999999999999"],
            &["01", "-0", "1.0", "1000000000000000", "+1"],
        ),
        (
            r#"{"type": "number"}"#,
            &["0", "-0.5", "1e9", "1.25E-3"],
            &[".5", "1.", "00", "1e", "NaN"],
        ),
        (
            r#"{"type": "string"}"#,
            &[r#""""#, r#""aé€🦀""#, r#""\n\"\\é""#, "\"\u{7f}\""],
            &["\"\n\"", r#""\x""#, r#"""""#, r#""\ud800""#, "a"],
        ),
        (
            r#"{"type": ["string", "null"]}"#,
            &["null", r#""a""#],
            &["1"],
        ),
        (
            r#"{"enum": ["a", 1, null, {"b": [2]}]}"#,
            &[r#""a""#, "1", "null", r#"{"b":[2]}"#],
            &["a", "2", r#"{"b": [2]}"#],
        ),
        (r#"{"const": "x\"y"}"#, &[r#""x\"y""#], &[r#""x"y""#]),
        (
            r#"{"anyOf": [{"type": "integer"}, {"type": "null"}]}"#,
            &["3", "null"],
            &["true"],
        ),
        (
            r#"{"minLength": 2, "maxLength": 3}"#,
            &[r#""ab""#, r#""é€🦀""#, r#""\n\\""#],
            &[r#""a""#, r#""abcd""#],
        ),
        (
            r#"{"pattern": "^[A-Z]{2}\"?$"}"#,
            &[r#""AB""#, r#""AB\"""#],
            &[r#""ABC""#, r#""ab""#, r#""AB"""#],
        ),
        (
            r#"{"pattern": "b+"}"#,
            &[r#""b""#, r#""abbc""#],
            &[r#""ac""#, r#""""#],
        ),
        (
            r#"{"format": "date"}"#,
            &[r#""2026-11-22""#],
            &[r#""2026-13-22""#, r#""x""#],
        ),
        (
            r#"{"format": "uuid"}"#,
            &[r#""123e4567-e89b-12d3-a456-426614174000""#],
            &[r#""123e4567""#],
        ),
    ] {
        println!("{schema}");
        check(&matcher(schema), good, bad);
    }
}

#[test]
fn objects_have_their_properties_in_order_and_arrays_their_lengths() {
    for (schema, good, bad) in [
        (
            r#"{"properties": {"b": {"type": "integer"}, "a": {"const": 1}, "c": {"type": "null"}}, "required": ["a"]}"#,
            &[
                r#"{"b":2,"a":1,"c":null}"#,
                r#"{"a":1}"#,
                r#"{"b":2,"a":1}"#,
                r#"{"a":1,"c":null}"#,
            ][..],
            &[
                "{}",
                r#"{"b":2}"#,
                r#"{"a":1,"b":2}"#,
                r#"{"a":1,}"#,
                r#"{"a":1,"x":1}"#,
            ][..],
        ),
        (
            r#"{"properties": {"a": {"const": 1}}, "additionalProperties": {"type": "integer"}}"#,
            &["{}", r#"{"a":1}"#, r#"{"x":2}"#, r#"{"a":1,"x":2,"y":3}"#],
            &[r#"{"x":"2"}"#, r#"{"x":2,}"#],
        ),
        (
            r#"{"type": "object"}"#,
            &["{}", r#"{"x":[{"y":null},"z"]}"#],
            &["[]", "{x:1}"],
        ),
        (
            r#"{"items": {"type": "integer"}, "minItems": 1, "maxItems": 3}"#,
            &["[1]", "[1,2,3]"],
            &["[]", "[1,2,3,4]", "[1,]", "[,1]"],
        ),
        (
            r#"{"prefixItems": [{"type": "string"}, {"type": "integer"}]}"#,
            &[r#"["a",1]"#],
            &[r#"["a"]"#, r#"["a",1,2]"#, r#"[1,"a"]"#],
        ),
        (r#"{"maxItems": 0}"#, &["[]"], &["[1]"]),
        (
            r##"{"$ref": "#/$defs/list", "$defs": {"list": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["next"]}}}"##,
            &[r#"{"next":null}"#, r#"{"next":{"next":{"next":null}}}"#],
            &["{}", r#"{"next":{}}"#],
        ),
        (
            r##"{"type": "array", "items": {"$ref": "#"}}"##,
            &["[]", "[[],[[]]]"],
            &["[1]", "[[]"],
        ),
    ] {
        println!("{schema}");
        check(&matcher(schema), good, bad);
    }
}

#[test]
fn whitespace_may_stand_between_the_parts_of_json_and_nowhere_else() {
    let m = Constraint::Object { whitespace: true }.matcher().unwrap();
    check(
        &m,
        &[
            "{}",
            r#"{"a": 1, "b":2}"#,
            "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
        ],
        &[" {}", "{} ", "[1]", "{\"a\"  : 1}"],
    );
}

#[test]
fn what_no_grammar_promises_is_refused_by_its_keyword_and_place() {
    for (schema, words) in [
        (r#"{"not": {}}"#, "#: `not`"),
        (
            r#"{"properties": {"a": {"multipleOf": 2}}}"#,
            "#/properties/a: `multipleOf`",
        ),
        (
            r#"{"items": {"type": "number", "minimum": 0}}"#,
            "#/items: `minimum`",
        ),
        (r#"{"allOf": [{}, {}]}"#, "`allOf` of several"),
        (r#"{"enum": []}"#, "`enum` must be"),
        (
            r#"{"type": "integer", "minimum": 3, "maximum": 2}"#,
            "no integer",
        ),
        (r#"{"type": "text"}"#, "no type `text`"),
        (r#"{"required": ["a"]}"#, "`required` names \"a\""),
        (r#"{"format": "duration"}"#, "`duration`"),
        (r##"{"$ref": "#/$defs/x"}"##, "no `#/$defs/x`"),
        (r##"{"$ref": "#"}"##, "no text"),
        (r#"{"pattern": "(?=a)b"}"#, "`pattern`"),
        (r#"{"pattern": "a^b"}"#, "only `^` at its beginning"),
        (
            r#"{"anyOf": [{}], "properties": {}}"#,
            "`properties` beside `anyOf`",
        ),
    ] {
        let message = refused(schema);
        assert!(message.contains(words), "{schema}: {message}");
    }
    let deep = format!("{}{}{}", r#"{"items": "#.repeat(70), "{}", "}".repeat(70));
    assert!(refused(&deep).contains("64 deep"));
    // Little that asks for much.
    let wide = Constraint::Regex(r"\w".repeat(5000)).matcher();
    assert!(wide.err().unwrap().contains("grammar nodes"));
    let ambiguous = Constraint::Regex("(a?){0,100000}".into()).matcher();
    assert!(ambiguous.err().unwrap().contains("too many ways"));
}

#[test]
fn a_pattern_with_too_many_readings_ends_in_an_error_and_not_in_a_stall() {
    let pattern = "(.{0,9000}a){0,9000}.{0,9000}";
    let mut m = Constraint::Regex(pattern.into()).matcher().unwrap();
    let result = (0..9000).find_map(|_| m.accept(b"a").err());
    assert_eq!(result, Some(TooAmbiguous));
}

#[test]
fn choices_and_expressions_are_taken_as_a_whole() {
    let m = Constraint::Choice(vec!["yes".into(), "yes, but".into(), "no".into()]);
    check(
        &m.matcher().unwrap(),
        &["yes", "yes, but", "no"],
        &["y", "yes,", "yesno", "maybe"],
    );
    let m = Constraint::Regex(r"^(\d{3}-)?[a-cé]+|x{2,}$".into());
    check(
        &m.matcher().unwrap(),
        &["123-abc", "é", "xx", "xxxx"],
        &["12-abc", "x", "", "123-", "ab1"],
    );
}

#[test]
fn a_matcher_that_has_forgotten_its_states_goes_on_where_it_was() {
    let mut m = matcher(r#"{"items": {"type": "object"}}"#);
    assert!(m.accept(br#"[{"a":[[{"b":"#).unwrap());
    let mut same = m.clone();
    same.shrink().unwrap();
    assert_eq!(same.states.len(), 1);
    let rest = br#"1}]]}]"#;
    assert!(m.accept(rest).unwrap() && m.is_complete());
    assert!(same.accept(rest).unwrap() && same.is_complete());
    assert!(!same.accept(b",").unwrap());
}

proptest! {
    #[test]
    fn integers_within_bounds_are_taken_and_others_are_not(
        a in -3000i64..3000, b in -3000i64..3000, x in -4000i64..4000, far in any::<i64>(),
    ) {
        let (low, high) = (a.min(b), a.max(b));
        let m = matcher(&format!(r#"{{"type": "integer", "minimum": {low}, "maximum": {high}}}"#));
        for x in [x, low, high, low - 1, high + 1, far] {
            prop_assert_eq!(takes(&m, &x.to_string()), (low..=high).contains(&x), "{}", x);
        }
        let open = matcher(&format!(r#"{{"type": "integer", "exclusiveMinimum": {low}}}"#));
        prop_assert_eq!(takes(&open, &x.to_string()), x > low);
    }

    /// What a model without sense writes under a schema is JSON that the schema describes.
    #[test]
    fn random_walks_over_allowed_bytes_make_valid_json(seed in any::<u64>()) {
        let schema = r##"{"properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4}, "boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["name", "age"]}"##;
        let schema = json::Json::parse(schema.as_bytes()).unwrap();
        let mut m = Constraint::Schema { schema, whitespace: true }.matcher().unwrap();
        let mut draws = sim::kernel::rng::stream(seed, "walk");
        let mut text = Vec::new();
        for _ in 0..20_000 {
            let current = m.current;
            let bytes: Vec<u8> = (0..=255)
                .filter(|&b| m.step(current, b).unwrap().is_some())
                .collect();
            if bytes.is_empty() {
                break;
            }
            let b = bytes[draws.random_range(0..bytes.len())];
            prop_assert!(m.accept(&[b]).unwrap());
            text.push(b);
        }
        prop_assert!(m.is_complete());
        let v: Value = serde_json::from_slice(&text).unwrap();
        let mut person = &v;
        loop {
            prop_assert!(person["name"].as_str().unwrap().chars().count() <= 8);
            prop_assert!(person["age"].as_u64().unwrap() <= 150);
            if let Some(tags) = person.get("tags") {
                prop_assert!(tags.as_array().unwrap().iter().all(|t| t == "a" || t == "b"));
            }
            match person.get("boss") {
                Some(boss) if !boss.is_null() => person = boss,
                _ => break,
            }
        }
    }
}
