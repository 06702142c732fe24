//! What is known and cannot be imported.

use std::sync::Arc;

use super::draft::Draft;
use crate::place::{Fault, Place};
use crate::text::shell::Word;

/// SGLang's server.
pub fn sglang(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let line = words.first().map_or(1, |w| w.line);
    draft.fault(Fault::new(
        Place::new(file, line),
        "sglang",
        "SGLang's scheduler is not modelled (radix cache, prefill before decode, its own memory plan), and another engine's in its place would answer another question; \
         engines that are: vLLM, TGI, TensorRT-LLM, llama.cpp's server",
    ));
}
