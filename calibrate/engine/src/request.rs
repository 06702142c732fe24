//! What is asked of the engine, and what it tells back while it works on it.

use std::sync::Arc;

use sim::request::RejectReason;

/// How the next token is drawn from the logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0: the likeliest token, whatever the other fields say.
    pub temperature: f32,
    /// Only the `top_k` likeliest tokens; 0: all.
    pub top_k: u32,
    /// Only the likeliest tokens whose probabilities reach this sum; 1: all.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as likely as the likeliest; 0: all.
    pub min_p: f32,
    /// Taken from the logits of tokens that the output holds already.
    pub presence_penalty: f32,
    /// The same, times how often the output holds them.
    pub frequency_penalty: f32,
    /// Logits of tokens in prompt or output are divided by it where positive, multiplied where negative; 1: none.
    pub repetition_penalty: f32,
    /// Seed of the draws; none: one that no other request of this server has.
    pub seed: Option<u64>,
    /// Only these tokens, in ascending order; none: all.
    pub allowed_token_ids: Option<Arc<[u32]>>,
    /// Sequences of tokens whose last one is not chosen after the others.
    pub bad_words: Arc<[Vec<u32>]>,
}

impl Default for Sampling {
    /// vLLM's defaults: temperature 1 over all tokens.
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            allowed_token_ids: None,
            bad_words: Arc::default(),
        }
    }
}

/// One request for one completion.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// Prompt tokens, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to make [tokens], at least 1.
    pub max_tokens: u32,
    /// Tokens before which nothing but `max_tokens` ends the output [tokens].
    pub min_tokens: u32,
    /// Whether the model's end tokens are tokens like others.
    pub ignore_eos: bool,
    /// Strings that end the output.
    pub stop: Vec<String>,
    /// Tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// Whether the text keeps the stop string that ended it.
    pub include_stop_str_in_output: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Log probabilities wanted with each token: that of the token, and of so many likeliest ones.
    pub logprobs: Option<u32>,
    /// Prompts are found in the prefix cache only by requests with the same salt; 0: none.
    pub cache_salt: u64,
    /// Priority, lower is more urgent.
    pub priority: i32,
    /// Session, for routers that keep one on its replica.
    pub session: Option<u64>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finish {
    /// An end token, a stop token or a stop string.
    Stop,
    /// `max_tokens`.
    Length,
}

impl Finish {
    /// The `finish_reason` of OpenAI's interface.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// What stopped an output, beyond the model's own end token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A stop string.
    Text(String),
    /// A stop token.
    Token(u32),
}

/// Log probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Log probability of the chosen token.
    pub chosen: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// One token, as the engine made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Log probabilities, when asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// The end of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub finish: Finish,
    /// What stopped it, when not the model's end token.
    pub stop_reason: Option<StopReason>,
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The policy refused it.
    Rejected(RejectReason),
    /// The policy took it in and dropped it: it can never run.
    NeverRuns,
    /// The forward pass failed.
    Executor(String),
    /// `allowed_token_ids` and `bad_words` together leave no token to choose.
    NoToken,
    /// The engine is shutting down.
    ShuttingDown,
}

/// What the engine tells about a request, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A step made a token.
    Output {
        /// The token.
        token: Token,
        /// Text that is certain now: nothing of an incomplete character, nor what may become a stop string.
        text: String,
        /// Prompt tokens that the prefix cache held [tokens].
        cached_tokens: u32,
        /// Set with the last token.
        ended: Option<Ended>,
    },
    /// It will not go on.
    Failed(Failure),
}
