//! Numbers of tokens: their limit, and how files give them.

use hwmodels::units::plain;

/// Longest prompt, output or context that is taken [tokens].
pub const MAX_TOKENS: u32 = 10_000_000;

/// A table's number as a token count. Zero, which some traces hold, becomes 1.
pub fn whole_tokens(x: f64, what: &str) -> Result<u32, String> {
    if x.fract() != 0.0 || !(0.0..=f64::from(MAX_TOKENS)).contains(&x) {
        return Err(format!(
            "column `{what}`: must be a whole number of tokens from 0 to {MAX_TOKENS}, got {}",
            plain(x)
        ));
    }
    Ok((x as u32).max(1))
}
