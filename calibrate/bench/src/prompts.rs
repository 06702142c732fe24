//! Prompts of exact length whose tokens are shared exactly as a workload says.
//!
//! A workload names prompt content by number; here each number becomes tokens, the same ones whenever it comes up under one
//! salt and others under another, so that a server's prefix cache knows nothing of an earlier run. They are drawn from an
//! alphabet of pieces of which each is one token, whatever stands before it, so the length of a prompt is the
//! number of its pieces plus a constant (a first token, a chat template). That is checked before the load starts: with the
//! model's `tokenizer.json`, the endpoint's `/tokenize`, or the usage that it reports.

use std::collections::HashMap;
use std::path::Path;

use sim::kv::chain;
use sim::request::{ReqId, RequestSpec};

use crate::endpoint::{ApiKind, Client, GenerateRequest, Prompt, RequestError, RequestTrace};
use crate::probe::{self, Probe};
use crate::tokenizer::TokenCounter;

/// Short words that are one token with the space before them in the vocabularies of most models.
const WORDS: &str = "the of and to in is for on that with as it at by from are this be or an was have not but all they you \
    his one has had we will their can more who time about out other which when her there been what some people into year \
    could now than only him two first new like so after also over most way many these know me even work day back our any \
    well just good use man long say year life down still may such here take need high part must too house see same does \
    us old off great why place come both own through right while during against world city home hand end state between \
    small next never under last left set group side might number few again public water point name face among";

/// Letters, for vocabularies whose tokens are single bytes.
const LETTERS: &str = "a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z";

/// Token ids that any vocabulary has: single bytes or short pieces in all that are known. Beginning and end of text lie outside
/// in most; in a prompt they would do no harm.
pub const SAFE_IDS: (u32, u32) = (32, 224);

/// How prompts are written.
#[derive(Clone, Debug, PartialEq)]
pub enum Writing {
    /// As token ids from this range, its end not included.
    Ids(u32, u32),
    /// As text.
    Text {
        /// Pieces of one token each.
        pieces: Vec<String>,
        /// Tokens that the server adds [tokens].
        overhead: u32,
        /// Tokens per piece: 1 where lengths are exact.
        tokens_per_piece: f64,
    },
}

/// How the writing of prompts was found and whether lengths are exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompts {
    writing: Writing,
    /// How lengths were made sure of, in words.
    pub method: String,
    /// Whether prompts have exactly the asked number of tokens.
    pub exact: bool,
    /// Answers that later turns send back, by content.
    answers: HashMap<u64, Vec<u32>>,
    salt: u64,
    /// Answers that had to be replaced by other text of the same length.
    pub replaced_answers: u64,
}

/// Why prompts cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The tokenizer cannot be read.
    #[error("tokenizer {file}: {problem}; a Hugging Face tokenizer.json is needed")]
    Tokenizer {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// The tokenizer has too few pieces.
    #[error(
        "tokenizer {0}: no 16 short words or letters are one token each, so prompts of exact length cannot be written as text"
    )]
    Alphabet(String),
    /// The endpoint does not answer.
    #[error("prompt lengths could not be measured: {0}")]
    Request(RequestError),
}

// Its text is part of this one's, so it is no source: chains would print it twice.
impl From<RequestError> for PromptError {
    fn from(e: RequestError) -> PromptError {
        PromptError::Request(e)
    }
}

impl Prompts {
    /// Prompts written in this way.
    pub fn new(writing: Writing, method: impl Into<String>, exact: bool) -> Prompts {
        Prompts {
            writing,
            method: method.into(),
            exact,
            answers: HashMap::new(),
            salt: 0,
            replaced_answers: 0,
        }
    }

    /// Finds out how to write prompts for an endpoint: with the tokenizer where one is given, as token ids where the endpoint
    /// takes them, else by measuring with `/tokenize` or with usage.
    ///
    /// # Errors
    /// When the tokenizer cannot be used, or the endpoint does not answer.
    pub async fn find(
        client: &Client,
        probe: &Probe,
        tokenizer: Option<&Path>,
    ) -> Result<Prompts, PromptError> {
        let chat = client.endpoint().api == ApiKind::Chat;
        if let Some(file) = tokenizer {
            let mut prompts = Prompts::from_tokenizer(file)?;
            if chat {
                prompts.measure_template(client, probe).await?;
            }
            return Ok(prompts);
        }
        if probe.token_prompts {
            return Ok(Prompts::new(
                Writing::Ids(SAFE_IDS.0, SAFE_IDS.1),
                "token ids",
                true,
            ));
        }
        if probe.tokenize {
            let method = if chat {
                "checked with /tokenize, chat template included"
            } else {
                "checked with /tokenize"
            };
            for pieces in alphabets() {
                if let Some(overhead) = by_tokenize(client, &pieces).await {
                    return Ok(Prompts::new(text(pieces, overhead), method, true));
                }
            }
        }
        if probe.usage {
            let mut rough = None;
            for pieces in alphabets() {
                let (per_piece, overhead) = by_usage(client, &pieces).await?;
                if per_piece == 1.0 {
                    return Ok(Prompts::new(
                        text(pieces, overhead),
                        "checked with the reported usage",
                        true,
                    ));
                }
                rough.get_or_insert((pieces, per_piece, overhead));
            }
            if let Some((pieces, per_piece, overhead)) = rough.filter(|r| r.1 > 0.0) {
                let writing = Writing::Text {
                    pieces,
                    overhead,
                    tokens_per_piece: per_piece,
                };
                let method = format!("words, {per_piece:.2} tokens each by the reported usage");
                return Ok(Prompts::new(writing, method, false));
            }
        }
        let pieces = alphabets().remove(0);
        Ok(Prompts::new(
            text(pieces, 0),
            "words, taken as one token each: nothing confirms it",
            false,
        ))
    }

    /// Prompts of pieces that the tokenizer in `file` takes as one token each.
    ///
    /// # Errors
    /// When it cannot be read, or has no such pieces.
    pub fn from_tokenizer(file: &Path) -> Result<Prompts, PromptError> {
        let name = file.display().to_string();
        let fail = |problem: String| PromptError::Tokenizer {
            file: name.clone(),
            problem,
        };
        let tokenizer = TokenCounter::from_file(file).map_err(fail)?;
        let count = |text: &str| tokenizer.count(text).map_err(fail);
        for candidates in alphabets() {
            // A piece is one token when a second one of it adds one.
            let mut pieces = Vec::new();
            for piece in candidates {
                let (one, three) = (count(&piece)?, count(&piece.repeat(3))?);
                if three == one + 2 && count(&format!(" x{piece}"))? == count(" x")? + 1 {
                    pieces.push(piece);
                }
            }
            if pieces.len() < 16 {
                continue;
            }
            let all = pieces.concat();
            let (n, whole) = (pieces.len(), count(&all)?);
            let twice = count(&all.repeat(2))?;
            if twice == whole + n && whole >= n {
                return Ok(Prompts::new(
                    text(pieces, (whole - n) as u32),
                    "checked with the tokenizer",
                    true,
                ));
            }
        }
        Err(PromptError::Alphabet(name))
    }

    /// Tokens that a chat template adds, by `/tokenize` where the endpoint applies the template there, else by the usage of one request.
    async fn measure_template(
        &mut self,
        client: &Client,
        probe: &Probe,
    ) -> Result<(), PromptError> {
        let Writing::Text {
            pieces, overhead, ..
        } = &mut self.writing
        else {
            return Ok(());
        };
        let counted = if probe.tokenize {
            probe::count_tokens(client, &sample(pieces, 64)).await
        } else {
            None
        };
        let counted = match counted.filter(|n| *n >= 64) {
            Some(n) => Some(n),
            None => usage_of(client, pieces, 64).await?,
        };
        match counted {
            Some(tokens) => *overhead = tokens.saturating_sub(64),
            None => {
                self.exact = false;
                self.method +=
                    ", without the chat template's tokens: the endpoint reports no usage";
            }
        }
        Ok(())
    }

    /// Salt of all content: prompts of one salt are the same in every run, those of two share nothing.
    pub fn salt(&mut self, salt: u64) {
        self.salt = chain(salt, 0x7e87);
    }

    /// Tokens that the server adds to each prompt [tokens].
    pub fn overhead(&self) -> u32 {
        match &self.writing {
            Writing::Ids(..) => 0,
            Writing::Text { overhead, .. } => *overhead,
        }
    }

    /// Whether prompts go out as token ids.
    pub fn as_ids(&self) -> bool {
        matches!(self.writing, Writing::Ids(..))
    }

    /// Shortest prompt that can be written [tokens].
    pub fn shortest(&self) -> u32 {
        self.overhead() + 1
    }

    /// The prompt of request `id`.
    pub fn write(&mut self, id: ReqId, spec: &RequestSpec) -> Prompt {
        let salt = self.salt;
        let unique = chain(0x0151, u64::from(id));
        match &self.writing {
            Writing::Ids(low, high) => {
                let width = u64::from(high.saturating_sub(*low).max(1));
                let mut ids = Vec::with_capacity(spec.prompt_tokens as usize);
                let answers = &self.answers;
                for_each_piece(
                    spec,
                    unique,
                    spec.prompt_tokens,
                    |content, offset, tokens| {
                        let answer = answers.get(&content);
                        let content = chain(salt, content);
                        ids.extend((offset..offset + tokens).map(|i| {
                            match answer.and_then(|a| a.get(i as usize)) {
                                Some(id) => *id,
                                None => low + (chain(content, u64::from(i)) % width) as u32,
                            }
                        }));
                    },
                );
                Prompt::Tokens(ids)
            }
            Writing::Text {
                pieces,
                overhead,
                tokens_per_piece,
            } => {
                let wanted =
                    f64::from(spec.prompt_tokens.saturating_sub(*overhead)) / tokens_per_piece;
                let n = (wanted.round() as u32).max(1);
                let mut prompt = String::with_capacity(n as usize * 6);
                for_each_piece(spec, unique, n, |content, offset, tokens| {
                    let content = chain(salt, content);
                    for i in offset..offset + tokens {
                        let at = chain(content, u64::from(i)) % pieces.len() as u64;
                        prompt.push_str(&pieces[at as usize]);
                    }
                });
                Prompt::Text(prompt)
            }
        }
    }

    /// Keeps the answer to a request whose content a later turn sends back.
    pub fn answered(&mut self, content: u64, trace: &RequestTrace) {
        if content == 0 || !trace.ok() {
            return;
        }
        match &trace.token_ids {
            Some(ids) if self.as_ids() => {
                self.answers.insert(content, ids.clone());
            }
            _ => self.replaced_answers += 1,
        }
    }
}

/// Calls `piece(content, offset, tokens)` for each stretch of the first `n` tokens.
fn for_each_piece(spec: &RequestSpec, unique: u64, n: u32, mut piece: impl FnMut(u64, u32, u32)) {
    let mut left = n;
    for s in &spec.segments {
        let tokens = s.tokens.min(left);
        if tokens > 0 {
            piece(s.content, 0, tokens);
        }
        left -= tokens;
    }
    if left > 0 {
        piece(unique, 0, left);
    }
}

fn text(pieces: Vec<String>, overhead: u32) -> Writing {
    Writing::Text {
        pieces,
        overhead,
        tokens_per_piece: 1.0,
    }
}

/// Candidates for an alphabet, the likeliest first.
fn alphabets() -> Vec<Vec<String>> {
    let mut words: Vec<String> = WORDS.split_whitespace().map(|w| format!(" {w}")).collect();
    words.sort();
    words.dedup();
    let letters = LETTERS.split_whitespace().map(String::from).collect();
    vec![words, letters]
}

/// `n` pieces in an order that does not repeat itself early.
fn sample(pieces: &[String], n: u32) -> String {
    (0..u64::from(n))
        .map(|i| pieces[(chain(7, i) % pieces.len() as u64) as usize].as_str())
        .collect()
}

/// Tokens that the server adds, if every piece is one token by its own count.
async fn by_tokenize(client: &Client, pieces: &[String]) -> Option<u32> {
    let all = pieces.concat();
    let n = pieces.len() as u32;
    let once = probe::count_tokens(client, &all).await?;
    let twice = probe::count_tokens(client, &all.repeat(2)).await?;
    let mixed = probe::count_tokens(client, &sample(pieces, 2 * n)).await?;
    let overhead = once.checked_sub(n)?;
    (twice == once + n && mixed == twice).then_some(overhead)
}

/// Tokens per piece and tokens added, by the usage of two requests.
async fn by_usage(client: &Client, pieces: &[String]) -> Result<(f64, u32), PromptError> {
    let (few, many) = (32u32, 96u32);
    let a = usage_of(client, pieces, few).await?;
    let b = usage_of(client, pieces, many).await?;
    Ok(match (a, b) {
        (Some(a), Some(b)) if b > a => {
            let per_piece = f64::from(b - a) / f64::from(many - few);
            let overhead = f64::from(a) - per_piece * f64::from(few);
            (per_piece, overhead.round().max(0.0) as u32)
        }
        _ => (0.0, 0),
    })
}

/// Prompt tokens of `n` pieces as the endpoint reports them.
async fn usage_of(client: &Client, pieces: &[String], n: u32) -> Result<Option<u32>, PromptError> {
    let request = GenerateRequest::new(Prompt::Text(sample(pieces, n)), 1);
    let trace = client.send(&request).await;
    match trace.error {
        Some(error) => Err(error.into()),
        None => Ok(trace.usage.and_then(|u| u.prompt_tokens)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::testing::{Answer, Server};
    use sim::request::Segment;

    fn spec(segments: &[(u64, u32)], prompt_tokens: u32) -> RequestSpec {
        RequestSpec {
            prompt_tokens,
            segments: segments
                .iter()
                .map(|(content, tokens)| Segment {
                    content: *content,
                    tokens: *tokens,
                })
                .collect(),
            ..RequestSpec::default()
        }
    }

    fn ids(p: &mut Prompts, id: ReqId, s: &RequestSpec) -> Vec<u32> {
        match p.write(id, s) {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(t) => panic!("{t}"),
        }
    }

    #[test]
    fn prompts_share_a_prefix_exactly_as_far_as_their_segments_agree() {
        let mut p = Prompts::new(Writing::Ids(10, 200), "", true);
        p.salt(1);
        let a = ids(&mut p, 0, &spec(&[(5, 40), (6, 20)], 100));
        let b = ids(&mut p, 1, &spec(&[(5, 40), (7, 20)], 100));
        assert_eq!((a.len(), b.len()), (100, 100));
        assert_eq!(a[..40], b[..40]);
        assert_ne!(a[40..60], b[40..60]);
        assert_ne!(a[60..], b[60..], "what is left is unique to a request");
        assert_eq!(
            a,
            ids(&mut p, 0, &spec(&[(5, 40), (6, 20)], 100)),
            "and always the same"
        );
        assert!(a.iter().all(|id| (10..200).contains(id)));
        // Under another salt nothing is the same, shared content neither.
        p.salt(2);
        let other = ids(&mut p, 0, &spec(&[(5, 40), (6, 20)], 100));
        for part in [0..8, 40..48, 60..68] {
            assert_ne!(a[part.clone()], other[part]);
        }
    }

    #[test]
    fn text_has_a_piece_for_each_token_beyond_those_that_the_server_adds() {
        let mut p = Prompts::new(text(vec![" a".into(), " b".into()], 3), "", true);
        let Prompt::Text(t) = p.write(0, &spec(&[], 20)) else {
            panic!()
        };
        assert_eq!(t.split(' ').count() - 1, 17);
        assert_eq!(p.shortest(), 4);
    }

    #[test]
    fn answers_are_sent_back_token_by_token_where_their_ids_are_known() {
        let mut p = Prompts::new(Writing::Ids(10, 200), "", true);
        let mut trace = RequestTrace::new(std::time::Instant::now());
        trace.token_ids = Some(vec![900, 901, 902]);
        p.answered(77, &trace);
        let sent = ids(&mut p, 3, &spec(&[(5, 4), (77, 3)], 9));
        assert_eq!(sent[4..7], [900, 901, 902]);
        trace.token_ids = None;
        p.answered(78, &trace);
        assert_eq!(p.replaced_answers, 1);
        assert_eq!(ids(&mut p, 3, &spec(&[(78, 3)], 9)).len(), 9);
    }

    /// A server with a chat template of nine tokens whose words are one token each; `usage` counts otherwise, so that it shows which
    /// was asked.
    async fn chat_prompts(tokenize: &'static str) -> (Prompts, usize) {
        let server = Server::start(move |_, seen| {
            let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap_or_default();
            let words = |v: &serde_json::Value| v.as_str().unwrap_or("").split_whitespace().count();
            let said = words(&body["messages"][0]["content"]);
            if seen.head.starts_with("POST /tokenize") {
                return match tokenize {
                    "vllm" if body["add_generation_prompt"] == true => {
                        Answer::json("200 OK", &format!(r#"{{"count":{},"max_model_len":2048,"tokens":[]}}"#, said + 9))
                    }
                    "llama" => Answer::json("200 OK", r#"{"tokens":[]}"#),
                    _ => Answer::json("404 Not Found", "{}"),
                };
            }
            if !seen.head.starts_with("POST /v1/chat/completions") {
                return Answer::json("404 Not Found", "{}");
            }
            let event = format!(
                r#"{{"choices":[{{"delta":{{"content":"a b c d"}},"finish_reason":"length"}}],"usage":{{"prompt_tokens":{},"completion_tokens":4}}}}"#,
                said + 11
            );
            Answer::events(&[&event, "[DONE]"])
        })
        .await;
        let endpoint = Endpoint {
            api: ApiKind::Chat,
            ..Endpoint::new(&server.url).unwrap()
        };
        let (probe, client) = Probe::meet(&endpoint).await.unwrap();
        let before = server.requests().len();
        let prompts = Prompts::find(&client, &probe, None).await.unwrap();
        let asked = server.requests().split_off(before);
        let generated = asked.iter().filter(|r| r.head.contains("/chat/")).count();
        (prompts, generated)
    }

    #[tokio::test]
    async fn the_length_of_chat_prompts_is_asked_of_tokenize_with_the_template() {
        let (mut prompts, generated) = chat_prompts("vllm").await;
        assert!(prompts.exact);
        assert_eq!(
            (prompts.overhead(), generated),
            (9, 0),
            "{}",
            prompts.method
        );
        assert!(prompts.method.contains("/tokenize"), "{}", prompts.method);
        let Prompt::Text(text) = prompts.write(0, &spec(&[], 50)) else {
            panic!()
        };
        assert_eq!(text.split_whitespace().count(), 41);
        // Endpoints that have no /tokenize, or one that does not know messages, are measured by usage.
        for other in ["none", "llama"] {
            let (prompts, generated) = chat_prompts(other).await;
            assert_eq!(prompts.overhead(), 11, "{other}");
            assert!(generated > 0, "{other}");
        }
    }

    /// A tokenizer whose tokens are the letters, and one whose tokens are words.
    #[test]
    fn a_tokenizer_decides_which_alphabet_gives_exact_lengths() {
        let dir = tempfile::tempdir().unwrap();
        let letters: serde_json::Map<String, serde_json::Value> = LETTERS
            .split_whitespace()
            .chain([" ", "[UNK]"])
            .enumerate()
            .map(|(i, c)| (c.to_string(), i.into()))
            .collect();
        let file = dir.path().join("tokenizer.json");
        let write = |vocab: &serde_json::Map<String, serde_json::Value>| {
            let json = serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": null, "post_processor": null, "decoder": null,
                "model": {"type": "BPE", "dropout": null, "unk_token": "[UNK]", "continuing_subword_prefix": null,
                    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
            });
            std::fs::write(&file, json.to_string()).unwrap();
        };
        write(&letters);
        let mut p = Prompts::from_tokenizer(&file).unwrap();
        assert!(p.exact);
        let Prompt::Text(t) = p.write(0, &spec(&[], 50)) else {
            panic!()
        };
        let tokenizer = TokenCounter::from_file(&file).unwrap();
        assert_eq!(tokenizer.count(&t).unwrap(), 50);
        // Nothing but an unknown token: no alphabet.
        let mut empty = serde_json::Map::new();
        empty.insert("[UNK]".into(), 0.into());
        write(&empty);
        assert!(Prompts::from_tokenizer(&dir.path().join("none.json")).is_err());
    }
}
