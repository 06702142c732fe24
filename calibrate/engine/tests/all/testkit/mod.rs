//! A forward pass that costs nothing and forgives nothing: its next token depends on every token that the KV cache holds
//! under a sequence's block table, so a wrong table, a stale block or a lost token changes the output.

pub mod server;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::engine::{Engine, EngineSpec};
use engine::executor::{Executor, ExecutorError, SeqInput, StepOutput, StepTimes};
use engine::policy::Policy;
use engine::request::{Event, Failure, Finish, GenerateRequest, Sampling};
use engine::step_log::LogFacts;
use engine::text::Text;
use hwmodels::EngineKind;
use sim::cluster::router::RouterConfig;
use sim::engines::EngineParams;
use sim::kv::chain;

/// 256 bytes, and an end of text.
pub const VOCAB: usize = 257;
/// The end of text.
pub const EOS: u32 = 256;

/// The toy's cache and its steps in flight.
pub struct Toy {
    block_size: usize,
    /// Token stored in each cell, with its position.
    cells: Vec<Option<(u32, u32)>>,
    depth: usize,
    steps: VecDeque<Vec<SeqInput>>,
    /// How long a step takes.
    pub delay: Duration,
    /// Steps until one fails (then every so many).
    pub fail_every: u64,
    collected: u64,
    /// Most sequences that a step has held.
    pub largest: Arc<AtomicU64>,
}

impl Toy {
    /// A toy with the cache that `policy` needs.
    pub fn new(policy: &Policy, depth: usize) -> Toy {
        Toy {
            block_size: policy.block_size as usize,
            cells: vec![None; policy.cache_blocks as usize * policy.block_size as usize],
            depth,
            steps: VecDeque::new(),
            delay: Duration::ZERO,
            fail_every: 0,
            collected: 0,
            largest: Arc::default(),
        }
    }
}

/// The token that follows `tokens`.
pub fn next_token(tokens: impl IntoIterator<Item = u32>) -> u32 {
    let hash = tokens.into_iter().fold(7, |h, t| chain(h, u64::from(t)));
    // Printable characters mostly, now and then a byte that is no character alone.
    match hash % 20 {
        0 => 128 + (hash >> 8) as u32 % 128,
        _ => 32 + (hash >> 8) as u32 % 95,
    }
}

/// What the toy answers to `prompt`.
pub fn expected(prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        all.push(next_token(all.iter().copied()));
    }
    all.split_off(prompt.len())
}

impl Executor for Toy {
    fn submit(&mut self, step: Vec<SeqInput>) -> Result<(), ExecutorError> {
        assert!(self.steps.len() < self.depth, "more steps than stages");
        self.largest.fetch_max(step.len() as u64, Ordering::Relaxed);
        self.steps.push_back(step);
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, ExecutorError> {
        std::thread::sleep(self.delay);
        let step = self.steps.pop_front().expect("a step in flight");
        self.collected += 1;
        if self.fail_every > 0 && self.collected.is_multiple_of(self.fail_every) {
            return Err(ExecutorError::Input("asked to fail".into()));
        }
        let mut logits = Vec::new();
        for s in &step {
            let cell = |p: usize| {
                s.blocks[p / self.block_size] as usize * self.block_size + p % self.block_size
            };
            let context = s.context as usize;
            for (i, &t) in s.tokens.iter().enumerate() {
                self.cells[cell(context + i)] = Some((t, (context + i) as u32));
            }
            let held = (0..context + s.tokens.len()).map(|p| {
                let (token, at) = self.cells[cell(p)].expect("KV that was never computed");
                assert_eq!(at as usize, p, "KV of another position");
                token
            });
            let next = next_token(held);
            if s.sample {
                let from = logits.len();
                logits.resize(from + VOCAB, 0.0);
                logits[from + next as usize] = 10.0;
            }
        }
        Ok(StepOutput {
            logits,
            times: StepTimes::default(),
        })
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn vocab(&self) -> usize {
        VOCAB
    }
}

/// A tokenizer with a token for each byte.
pub fn text() -> Arc<Text> {
    let mut shifted = 255;
    let vocab: serde_json::Map<String, serde_json::Value> = (0..256u32)
        .map(|b| {
            let printable = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let c = if printable {
                b
            } else {
                shifted += 1;
                shifted
            };
            (char::from_u32(c).unwrap().to_string(), b.into())
        })
        .collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": EOS, "content": "<|end|>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    });
    let tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    Arc::new(Text::new(tokenizer, VOCAB))
}

/// A policy with `keys` (TOML) on `blocks` KV blocks.
pub fn policy(kind: EngineKind, keys: &str, blocks: u64, pp: u32) -> Policy {
    let keys: toml::Table = toml::from_str(keys).unwrap();
    let params = EngineParams::read(kind, keys).unwrap();
    Policy::start(&params, blocks, 4096, pp).unwrap()
}

/// What to start an engine of `policy` with.
pub fn spec(policy: Policy) -> EngineSpec {
    EngineSpec {
        facts: LogFacts {
            model: "toy".into(),
            tp: 1,
            ..LogFacts::default()
        },
        policy,
        router: RouterConfig::RoundRobin,
        router_name: "round_robin".into(),
        queue_limit: 100_000,
        text: text(),
        eos: vec![EOS],
        step_log: None,
        elastic: false,
    }
}

/// An engine of one toy.
pub fn engine(policy: Policy, depth: usize) -> Arc<Engine> {
    let toy = Toy::new(&policy, depth);
    Engine::start(spec(policy), vec![Box::new(toy)]).unwrap()
}

/// A greedy request.
pub fn request(prompt: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        skip_special_tokens: true,
        sampling: Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        ..GenerateRequest::default()
    }
}

/// What came of a request.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Prompt tokens found in the cache.
    pub cached: u32,
    /// How it ended.
    pub finish: Option<Finish>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

/// Sends a request and waits for all of its answer.
pub async fn ask(engine: &Arc<Engine>, request: GenerateRequest) -> Answer {
    let mut ticket = engine.submit(request).expect("taken in");
    let mut a = Answer::default();
    while a.finish.is_none() && a.failure.is_none() {
        match ticket.next().await.expect("the engine runs") {
            Event::Output {
                token,
                text,
                cached_tokens,
                ended,
            } => {
                a.tokens.push(token.id);
                a.text.push_str(&text);
                a.cached = cached_tokens;
                a.finish = ended.map(|e| e.finish);
            }
            Event::Failed(f) => a.failure = Some(f),
        }
    }
    a
}

/// Waits until every request taken in has ended and is counted, and asserts that the engine holds nothing.
pub async fn assert_empty(engine: &Arc<Engine>) {
    let empty = || {
        engine.under_way() + engine.uncounted() == 0
            && engine
                .loads()
                .iter()
                .all(|l| l.running + l.waiting == 0 && l.kv_used_blocks == 0)
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(
        waited.await.is_ok(),
        "something is left: {} with a client, {} not counted, {:?}",
        engine.under_way(),
        engine.uncounted(),
        engine.loads()
    );
}
