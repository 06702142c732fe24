//! A model that no catalog knows: the nearest in family and size by its name, as a marked guess.

use hwmodels::catalog::Catalog;

/// Farthest that a guess may be from the name's count of parameters.
const FARTHEST: f64 = 1.35;
/// What another family costs, as a factor between sizes.
const STRANGE: f64 = 1.12;

/// Context of a model of today [tokens].
const LONG: u32 = 16_384;

/// Words by which names tell a family, and how the catalog's names of it begin; the first that fits.
const FAMILIES: [(&str, &str); 20] = [
    ("llama", "llama-3"),
    ("vicuna", "llama-2"),
    ("hermes", "llama-3"),
    ("nemotron", "llama-3"),
    ("mixtral", "mixtral"),
    ("mistral", "mistral"),
    ("ministral", "mistral"),
    ("zephyr", "mistral"),
    ("qwen3", "qwen3"),
    ("qwen", "qwen2.5"),
    ("qwq", "qwen2.5"),
    ("gemma", "gemma"),
    ("phi", "phi"),
    ("falcon", "falcon"),
    ("deepseek", "deepseek"),
    ("glm", "glm"),
    ("granite", "granite"),
    ("yi-", "yi"),
    ("gpt-oss", "gpt-oss"),
    ("olmo", "llama-3"),
];

/// A guess.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// The catalog's name.
    pub name: String,
    /// Parameters that the id names.
    pub billions: f64,
    /// Whether the family is the id's own.
    pub is_family: bool,
}

/// The model of the catalog that is nearest to `id` in family and in the parameters that its name counts; none where it counts none, or where nothing is near.
pub fn nearest(id: &str, catalog: &Catalog) -> Option<Guess> {
    let base = id
        .trim_end_matches('/')
        .rsplit('/')
        .next()?
        .to_ascii_lowercase();
    let (billions, active) = sizes(&base)?;
    let family = FAMILIES
        .iter()
        .find(|(word, _)| base.contains(word))
        .map(|(_, start)| *start);
    let far = |a: f64, b: f64| (a / b).max(b / a);
    let found = catalog.models().filter_map(|m| {
        let size = m.arch.parameters() as f64 / 1e9;
        let has_experts = m.arch.moe.is_some();
        if has_experts != active.is_some() || far(size, billions) > FARTHEST {
            return None;
        }
        let of_active = active.map_or(1.0, |a| far(m.arch.active_parameters() as f64 / 1e9, a));
        let is_family = family.is_some_and(|start| m.arch.name.starts_with(start));
        // Without a family a plain decoder of today is as good a guess as any.
        let plain = family.is_none() && m.arch.name.starts_with("llama-3");
        let strange = if is_family || plain { 1.0 } else { STRANGE };
        // Models of today take long prompts; the context of an old one would refuse what its stand-in is asked for.
        let short = if m.arch.max_positions >= LONG || is_family {
            1.0
        } else {
            STRANGE
        };
        let strange = strange * short;
        Some((
            far(size, billions) * of_active.sqrt() * strange,
            is_family,
            m.arch.name.clone(),
        ))
    });
    let (_, is_family, name) =
        found.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.2.cmp(&b.2)))?;
    Some(Guess {
        name,
        billions,
        is_family,
    })
}

/// Billions of parameters that a name counts, and of a mixture of experts those at work: `70b`, `30b-a3b`, `8x7b`.
fn sizes(name: &str) -> Option<(f64, Option<f64>)> {
    let words: Vec<&str> = name.split(['-', '_', ' ', ':', '/']).collect();
    let mut total = None;
    let mut active = None;
    for word in words {
        let of = |text: &str| -> Option<f64> {
            let unit = text.chars().last()?;
            let digits = &text[..text.len() - unit.len_utf8()];
            let n: f64 = digits
                .parse()
                .ok()
                .filter(|n: &f64| n.is_finite() && *n > 0.0)?;
            match unit {
                'b' => Some(n),
                'm' => Some(n / 1e3),
                _ => None,
            }
        };
        if let Some((experts, each)) = word.split_once('x')
            && let (Ok(experts), Some(each)) = (experts.parse::<f64>(), of(each))
            && total.is_none()
        {
            // Experts share attention: of 8 x 7 B 47 B are there and 13 B at work.
            total = Some(experts * each * 0.83);
            active = Some(each * 1.85);
        } else if let Some(n) = word.strip_prefix('a').and_then(of) {
            active = active.or(Some(n));
        } else if let Some(n) = of(word) {
            total = total.or(Some(n));
        }
    }
    total.map(|n| (n, active))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_their_parameters() {
        for (name, expected) in [
            ("zebra-9b", Some((9.0, None))),
            ("acme-30b-a3b-thinking", Some((30.0, Some(3.0)))),
            ("tiny-350m", Some((0.35, None))),
            ("model-v2", None),
            ("b", None),
            ("9\u{431}-9\u{20ac}", None),
        ] {
            assert_eq!(sizes(name), expected, "{name}");
        }
    }

    #[test]
    fn guesses_are_of_the_family_and_near_in_size() {
        let catalog = Catalog::builtin();
        for (id, name) in [
            ("acme/Llama-3-Acme-8B-chat", "llama-3.1-8b"),
            ("acme/Qwen3-Acme-31B", "qwen3-32b"),
            ("acme/Qwen3-Tuned-30B-A3B", "qwen3-30b-a3b"),
            ("acme/Zebra-70B", "llama-3.1-70b"),
        ] {
            let guess = nearest(id, &catalog).unwrap_or_else(|| panic!("{id}"));
            let size = |name: &str| catalog.model(name).unwrap().parameters();
            assert_eq!(size(&guess.name), size(name), "{id}: {guess:?}");
        }
        for id in ["acme/no-count", "acme/Zebra-5000B", "acme/Zebra-2B-A1000B"] {
            assert_eq!(nearest(id, &catalog).map(|g| g.name), None, "{id}");
        }
    }
}
