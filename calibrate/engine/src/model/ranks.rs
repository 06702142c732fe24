//! Worker threads: one per rank. Pipeline stages hand a step's residual stream on through channels, rank by rank; the
//! ranks of a stage sum their parts in a [`Group`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::executor::{Executor, ExecutorError, SeqInput, StepOutput, StepTimes};
use kernels::Isa;
use kernels::attention::{KvShape, PagedKv};
use kernels::elementwise::RotaryTable;
use kernels::linear::Linear;
use kernels::pool::Threads;

use super::collective::{Group, Member};
use super::config::Config;
use super::forward::{Buffers, Head, Rank, Step};
use super::layer::{Loader, share};
use super::weights::TensorSource;
use super::{ModelError, ModelOptions};
use kernels::dtype::WeightDtype;

/// The table of token embeddings.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// A step on its way through the stages.
struct Work {
    step: Arc<Step>,
    /// The residual stream; empty before the first stage.
    x: Vec<f32>,
    times: StepTimes,
    /// When the first stage began.
    started: Option<Instant>,
    /// When the stage before finished.
    sent: Instant,
}

/// Where a rank's results go.
enum Next {
    Stage(Sender<Work>),
    Out(Sender<StepOutput>),
    /// The last stage's ranks but the first.
    Nowhere,
}

/// The ranks of one replica.
struct Ranks {
    first: Vec<Sender<Work>>,
    results: Receiver<StepOutput>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    stages: usize,
    limits: Limits,
}

/// What a step must keep to.
struct Limits {
    vocab: usize,
    max_position: usize,
    block_size: usize,
    num_blocks: u32,
    /// Query and KV heads of one rank.
    heads: usize,
    kv_heads: usize,
}

/// Loads the weights of every rank and starts its thread.
pub fn start(
    c: &Config,
    source: &dyn TensorSource,
    dtype: WeightDtype,
    options: &ModelOptions,
) -> Result<Box<dyn Executor>, ModelError> {
    check(c, options)?;
    let (tp, pp) = (options.tp, options.pp);
    let loader = Loader { source, dtype };
    let table = [c.vocab, c.hidden];
    let embedding = Arc::new(loader.rows(EMBEDDING, table, 0..c.vocab)?);

    // Receivers of every rank, and the senders that reach them: `[stage][rank]`.
    let mut inboxes = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..pp {
        let (s, r): (Vec<_>, Vec<_>) = (0..tp).map(|_| channel::<Work>()).unzip();
        senders.push(s);
        inboxes.push(r);
    }
    let (out, results) = channel();
    let mut threads = Vec::new();
    for (stage, inboxes) in inboxes.into_iter().enumerate() {
        let group = Arc::new(Group::new(tp));
        for (rank, inbox) in inboxes.into_iter().enumerate() {
            let layers = share(c.layers, stage, pp);
            let shape = KvShape {
                blocks: options.num_blocks as usize,
                block_size: options.block_size as usize,
                heads: c.kv_heads / tp,
                head_dim: c.head_dim,
            };
            let head = if stage + 1 < pp {
                None
            } else {
                // Tied models have the table twice: by rows to look up in, and packed to multiply with.
                let name = if c.tied { EMBEDDING } else { "lm_head.weight" };
                let rows = share(c.vocab, rank, tp);
                let values = loader.rows(name, table, rows.clone())?;
                Some(Head {
                    norm: loader.vector("model.norm.weight", c.hidden)?,
                    matrix: Linear::new(rows.len(), c.hidden, &values, None),
                    vocab: c.vocab,
                })
            };
            let worker = Rank {
                isa: Isa::detect(),
                threads: Threads(options.threads),
                hidden: c.hidden,
                heads: c.heads / tp,
                kv_heads: c.kv_heads / tp,
                head_dim: c.head_dim,
                eps: c.rms_eps,
                block_size: shape.block_size,
                embedding: (stage == 0).then(|| Arc::clone(&embedding)),
                layers: layers
                    .clone()
                    .map(|l| loader.layer(c, l, rank, tp))
                    .collect::<Result<_, _>>()?,
                caches: layers.map(|_| PagedKv::new(dtype, shape)).collect(),
                rotary: RotaryTable::new(c.inverse_frequencies()),
                head,
                member: Member::new(Arc::clone(&group), rank),
                buffers: Buffers::default(),
            };
            let next = match senders.get(stage + 1) {
                Some(next) => Next::Stage(next[rank].clone()),
                None if rank == 0 => Next::Out(out.clone()),
                None => Next::Nowhere,
            };
            threads.push(spawn(
                format!("stage {stage} rank {rank}"),
                worker,
                inbox,
                next,
            )?);
        }
    }
    Ok(Box::new(Ranks {
        first: senders.swap_remove(0),
        results,
        threads,
        in_flight: 0,
        stages: pp,
        limits: Limits {
            vocab: c.vocab,
            max_position: c.max_position,
            block_size: options.block_size as usize,
            num_blocks: options.num_blocks,
            heads: c.heads / tp,
            kv_heads: c.kv_heads / tp,
        },
    }))
}

fn check(c: &Config, o: &ModelOptions) -> Result<(), ModelError> {
    let refuse = |message: String| Err(ModelError::Options(message));
    if !(1..=256).contains(&o.threads) {
        return refuse(format!("threads must be from 1 to 256, got {}", o.threads));
    }
    if o.tp == 0 || !c.kv_heads.is_multiple_of(o.tp) {
        return refuse(format!(
            "tp must divide the model's {} KV heads, got {}",
            c.kv_heads, o.tp
        ));
    }
    if o.pp == 0 || o.pp > c.layers {
        return refuse(format!(
            "pp must be from 1 to the model's {} layers, got {}",
            c.layers, o.pp
        ));
    }
    if o.block_size == 0 || o.num_blocks == 0 {
        return refuse("block_size and num_blocks must be at least 1".to_owned());
    }
    let values = (o.block_size as usize)
        .checked_mul(o.num_blocks as usize)
        .and_then(|n| n.checked_mul(c.kv_heads * c.head_dim * 4));
    if values.is_none_or(|n| n > isize::MAX as usize / 2) {
        return refuse(format!(
            "{} KV blocks of {} tokens are more than can be addressed",
            o.num_blocks, o.block_size
        ));
    }
    Ok(())
}

/// Runs a rank on a thread of its own, or on a pool of its own if it has several.
fn spawn(
    name: String,
    rank: Rank,
    inbox: Receiver<Work>,
    next: Next,
) -> Result<JoinHandle<()>, ModelError> {
    let count = rank.threads.0;
    let pool = if count > 1 {
        let label = name.clone();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(move |i| format!("{label} thread {i}"))
            .build()
            .map_err(|e| ModelError::Thread(e.to_string()))?;
        Some(pool)
    } else {
        None
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(move || match pool {
            Some(pool) => pool.install(move || work(rank, inbox, next)),
            None => work(rank, inbox, next),
        })
        .map_err(|e| ModelError::Thread(e.to_string()))
}

/// Until the senders are gone, or another rank is.
fn work(mut rank: Rank, inbox: Receiver<Work>, next: Next) {
    while let Ok(mut work) = inbox.recv() {
        let begin = Instant::now();
        let started = *work.started.get_or_insert_with(|| {
            // Waiting for the first stage is the queue before the step, not part of it.
            work.sent = begin;
            begin
        });
        let times = &mut work.times;
        times.communication += (begin - work.sent).as_secs_f64();
        if rank.embedding.is_some() {
            work.x = rank.embed(&work.step, times);
        }
        if rank.layers(&work.step, &mut work.x, times).is_err() {
            return;
        }
        if rank.head.is_none() {
            work.sent = Instant::now();
            if let Next::Stage(next) = &next
                && next.send(work).is_err()
            {
                return;
            }
            continue;
        }
        let Ok(logits) = rank.logits(&work.step, &work.x, times) else {
            return;
        };
        times.total = started.elapsed().as_secs_f64();
        if let Next::Out(out) = &next {
            let times = work.times;
            let output = StepOutput { logits, times };
            if out.send(output).is_err() {
                return;
            }
        }
    }
}

impl Ranks {
    fn check(&self, step: &[SeqInput]) -> Result<(), ExecutorError> {
        let l = &self.limits;
        let refuse = |i: usize, what: String| {
            Err(ExecutorError::Input(format!(
                "sequence {i} of the step: {what}"
            )))
        };
        for (i, s) in step.iter().enumerate() {
            let end = s.context as usize + s.tokens.len();
            if s.tokens.is_empty() {
                return refuse(i, "no new tokens".to_owned());
            }
            if let Some(token) = s.tokens.iter().find(|t| **t as usize >= l.vocab) {
                return refuse(i, format!("token {token} with a vocabulary of {}", l.vocab));
            }
            if end > l.max_position {
                return refuse(
                    i,
                    format!("{end} positions with a model for {}", l.max_position),
                );
            }
            if s.blocks.len() < end.div_ceil(l.block_size) {
                return refuse(
                    i,
                    format!(
                        "{} blocks of {} tokens for {end} positions",
                        s.blocks.len(),
                        l.block_size
                    ),
                );
            }
            if let Some(block) = s.blocks.iter().find(|b| **b >= l.num_blocks) {
                return refuse(i, format!("block {block} with {} blocks", l.num_blocks));
            }
        }
        Ok(())
    }

    fn lost() -> ExecutorError {
        ExecutorError::Worker("it panicked; what it said is on standard error".to_owned())
    }
}

impl Executor for Ranks {
    fn submit(&mut self, step: Vec<SeqInput>) -> Result<(), ExecutorError> {
        if self.in_flight == self.stages {
            return Err(ExecutorError::Input(format!(
                "{} steps are in flight already",
                self.stages
            )));
        }
        self.check(&step)?;
        let step = Arc::new(Step::new(step, self.limits.heads, self.limits.kv_heads));
        let sent = Instant::now();
        for first in &self.first {
            first
                .send(Work {
                    step: Arc::clone(&step),
                    x: Vec::new(),
                    times: StepTimes::default(),
                    started: None,
                    sent,
                })
                .map_err(|_| Self::lost())?;
        }
        self.in_flight += 1;
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, ExecutorError> {
        if self.in_flight == 0 {
            return Err(ExecutorError::Input("no step is in flight".to_owned()));
        }
        self.in_flight -= 1;
        self.results.recv().map_err(|_| Self::lost())
    }

    fn depth(&self) -> usize {
        self.stages
    }

    fn vocab(&self) -> usize {
        self.limits.vocab
    }
}

/// Closing the first stage's channels ends the stages one after the other.
impl Drop for Ranks {
    fn drop(&mut self) {
        self.first.clear();
        for thread in self.threads.drain(..) {
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}
