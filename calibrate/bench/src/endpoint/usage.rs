//! Whether a server's token counts can be true.
//!
//! A count that cannot be is not believed: what it would say is left empty, and tokens are counted from what came.

use super::Prompt;
use super::trace::{RawChunk, Usage, UsageFault};

/// Tokens that a server may put around a prompt (a chat template, instructions of a gateway) before its count is taken for
/// wrong [tokens].
const MOST_ADDED_TOKENS: usize = 4096;

/// What is wrong with a count of `said` output tokens of a request for `asked`, of which these chunks came.
pub(super) fn output_fault(said: u32, asked: u32, raw: &[RawChunk]) -> Option<UsageFault> {
    let with_text = raw.iter().filter(|r| r.text_bytes > 0).count();
    // A server that takes no notice of max_tokens shows it by its chunks.
    let most = with_text.max(asked as usize);
    if said as usize > most {
        Some(UsageFault::AboveMaxTokens)
    } else if (said as usize) < with_text {
        Some(UsageFault::BelowChunks)
    } else {
        None
    }
}

/// Empties what `usage` says of `prompt` where it cannot be true, and says why.
pub(super) fn check_prompt(usage: &mut Usage, prompt: &Prompt) -> Option<UsageFault> {
    // A token has at least one byte.
    let longest = MOST_ADDED_TOKENS
        + match prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(ids) => ids.len(),
        };
    let said = usage.prompt_tokens?;
    if said == 0 || said as usize > longest {
        usage.prompt_tokens = None;
        usage.cached_tokens = None;
        return Some(UsageFault::PromptTokens);
    }
    if usage.cached_tokens.is_some_and(|cached| cached > said) {
        usage.cached_tokens = None;
        return Some(UsageFault::CachedTokens);
    }
    None
}
