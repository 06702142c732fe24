//! Messages to a prompt: the model's chat template (Jinja, as in `tokenizer_config.json`).

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, context};
use serde_json::{Map, Value as Json};

use crate::http::error::ApiError;

/// A compiled chat template with the model's special tokens.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of the tokens that begin and end a text.
    ///
    /// # Errors
    /// What is wrong with the template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, String> {
        let mut environment = Environment::new();
        // As Hugging Face compiles them.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.set_unknown_method_callback(python_method);
        environment
            .add_template_owned("chat", source.to_string())
            .map_err(|e| format!("{e:#}"))?;
        Ok(ChatTemplate {
            environment,
            bos: bos.to_string(),
            eos: eos.to_string(),
        })
    }

    /// The prompt of `messages`.
    ///
    /// # Errors
    /// 400 when a message is malformed or the template refuses the dialogue.
    pub fn render(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<String, ApiError> {
        if messages.is_empty() {
            return Err(ApiError::bad("messages", "`messages` must not be empty"));
        }
        let messages = messages
            .iter()
            .enumerate()
            .map(|(i, m)| plain(i, m))
            .collect::<Result<Vec<_>, _>>()?;
        let template = self.environment.get_template("chat");
        template
            .and_then(|t| {
                t.render(context! {
                    messages => messages,
                    add_generation_prompt => add_generation_prompt,
                    bos_token => self.bos,
                    eos_token => self.eos,
                    ..Value::from_serialize(extra)
                })
            })
            .map_err(|e| {
                ApiError::bad(
                    "messages",
                    format!("the chat template cannot render these messages: {e}"),
                )
            })
    }
}

/// A message whose content is text: parts of type `text` are joined, others refused.
fn plain(index: usize, message: &Json) -> Result<Json, ApiError> {
    let wrong = |what: &str| ApiError::bad("messages", format!("`messages[{index}]`: {what}"));
    let Json::Object(m) = message else {
        return Err(wrong("must be an object with `role` and `content`"));
    };
    if !m.get("role").is_some_and(Json::is_string) {
        return Err(wrong("`role` must be a string"));
    }
    let mut m = m.clone();
    let content = match m.get("content") {
        None | Some(Json::Null) => String::new(),
        Some(Json::String(s)) => s.clone(),
        Some(Json::Array(parts)) => {
            let mut texts = Vec::new();
            for p in parts {
                match (p.get("type").and_then(Json::as_str), p.get("text")) {
                    (Some("text"), Some(Json::String(t))) => texts.push(t.as_str()),
                    _ => return Err(wrong("this model reads parts of type `text` only")),
                }
            }
            texts.join("\n")
        }
        Some(_) => return Err(wrong("`content` must be a string or a list of parts")),
    };
    m.insert("content".into(), content.into());
    Ok(Json::Object(m))
}

/// The methods of Python's strings and dictionaries that chat templates use.
fn python_method(
    _state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let unknown = || Error::new(ErrorKind::UnknownMethod, format!("no method `{method}`"));
    let arg = |i: usize| args.get(i).and_then(|a| a.as_str().map(str::to_string));
    if let Some(s) = value.as_str() {
        let set = arg(0);
        let strips = |c: char| match &set {
            Some(set) => set.contains(c),
            None => c.is_whitespace(),
        };
        return Ok(match method {
            "strip" => s.trim_matches(strips).into(),
            "lstrip" => s.trim_start_matches(strips).into(),
            "rstrip" => s.trim_end_matches(strips).into(),
            "lower" => s.to_lowercase().into(),
            "upper" => s.to_uppercase().into(),
            "capitalize" | "title" => {
                let mut c = s.chars();
                let first: String = c.next().into_iter().flat_map(char::to_uppercase).collect();
                format!("{first}{}", c.as_str().to_lowercase()).into()
            }
            "startswith" => s.starts_with(&arg(0).ok_or_else(unknown)?).into(),
            "endswith" => s.ends_with(&arg(0).ok_or_else(unknown)?).into(),
            "replace" => s
                .replace(&arg(0).ok_or_else(unknown)?, &arg(1).ok_or_else(unknown)?)
                .into(),
            "split" => match arg(0) {
                Some(by) if !by.is_empty() => s.split(&by).map(Value::from).collect(),
                _ => s.split_whitespace().map(Value::from).collect(),
            },
            _ => return Err(unknown()),
        });
    }
    if value.kind() == ValueKind::Map {
        return match method {
            "get" => {
                let found = args.first().map(|k| value.get_item(k)).transpose()?;
                Ok(found
                    .filter(|v| !v.is_undefined())
                    .or_else(|| args.get(1).cloned())
                    .unwrap_or_default())
            }
            "keys" => Ok(value.try_iter()?.collect()),
            "values" => value.try_iter()?.map(|k| value.get_item(&k)).collect(),
            "items" => value
                .try_iter()?
                .map(|k| Ok(Value::from(vec![k.clone(), value.get_item(&k)?])))
                .collect(),
            _ => Err(unknown()),
        };
    }
    Err(unknown())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(template: &str, messages: Json) -> Result<String, ApiError> {
        let t = ChatTemplate::new(template, "<s>", "</s>").unwrap();
        t.render(messages.as_array().unwrap(), true, &Map::new())
    }

    #[test]
    fn a_template_in_the_form_of_llama_2_renders() {
        let template = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'].strip() }} [/INST]{% elif m.role == 'assistant' %} {{ m['content'] }} {{ eos_token }}{% else %}{{ raise_exception('no ' + m['role']) }}{% endif %}{% endfor %}";
        let text = render(
            template,
            json!([
                {"role": "user", "content": " hi "},
                {"role": "assistant", "content": "yo"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ]),
        );
        assert_eq!(
            text.unwrap(),
            "<s>[INST] hi [/INST] yo </s>[INST] a\nb [/INST]"
        );
        let e = render(template, json!([{"role": "system", "content": "x"}])).unwrap_err();
        assert!(e.message.contains("no system"), "{e:?}");
    }

    #[test]
    fn malformed_messages_are_refused_by_their_index() {
        for messages in [
            json!([{"role": "user", "content": "a"}, 5]),
            json!([{"role": "user", "content": "a"}, {"content": "b"}]),
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": 7}]),
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url"}]}]),
        ] {
            let e = render("x", messages).unwrap_err();
            assert!(e.message.contains("messages[1]"), "{e:?}");
        }
        assert!(render("x", json!([])).is_err());
    }
}
