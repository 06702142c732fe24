//! What loads are called, by which a later measurement knows them again.

use super::load::Load;
use super::plan::Stage;

/// Suffix of a load that repeats another, to show how far two runs of the same differ.
pub const AGAIN: &str = ", again";

pub(super) const PROMPTS: &str = "prompts one by one";
pub(super) const MIXED: &str = "mixed lengths";
pub(super) const LONGER_OUTPUTS: &str = "longer outputs";
pub(super) const LONGER_PROMPTS: &str = "longer prompts";

/// The stage that a load of an earlier measurement is of, by its name.
pub(super) fn kind_of(load: &Load) -> Option<Stage> {
    let name = load.name.as_str();
    if name == PROMPTS {
        return Some(Stage::Prompts);
    }
    let (who, what) = name.split_once(", ")?;
    let users: Option<u32> = who.strip_suffix(" users").and_then(|n| n.parse().ok());
    let rate = who.ends_with(" req/s");
    match (users, what) {
        (Some(_), MIXED) => Some(Stage::Mixed),
        (Some(_), LONGER_OUTPUTS) => Some(Stage::LongerOutputs),
        (Some(users), _) => {
            let prompt: u32 = what.strip_suffix(" prompt tokens")?.parse().ok()?;
            let long = prompt > 24;
            Some(Stage::Rung { users, long })
        }
        (None, LONGER_PROMPTS) if rate => Some(Stage::LongerPrompts),
        (None, MIXED) if rate => Some(Stage::Near),
        (None, _) if rate && what.strip_suffix(AGAIN) == Some(MIXED) => Some(Stage::Again),
        _ => None,
    }
}
