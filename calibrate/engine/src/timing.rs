//! Steps timed without a server: the forward pass alone, over prompts and decodes of given sizes, as benchmarks of
//! operators and collectives do it. Rounds over all sizes take turns, so that a machine whose speed drifts
//! disturbs each size alike.

use std::path::Path;
use std::time::Instant;

use hwmodels::BatchStats;
use sim::kernel::time::SimTime;
use sim::record::StepRow;

use crate::executor::{Executor, ExecutorError, SeqInput, StepTimes};
use crate::model::ModelOptions;
use crate::step_log::{LogEntry, LogFacts, LogStep, LogTimes, StepLog, engine_file};

/// Tokens per KV block.
const BLOCK: u32 = 16;

/// What is timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimingOptions {
    /// Lengths of prompts that make a step alone [tokens].
    pub prompts: Vec<u32>,
    /// Numbers of sequences that decode together.
    pub batches: Vec<u32>,
    /// KV that each of those has when it begins to decode [tokens].
    pub context: u32,
    /// Rounds: steps of each size that count. One more, before them, warms up.
    pub rounds: u32,
}

impl Default for TimingOptions {
    /// Sizes up to 512 tokens and 16 sequences.
    fn default() -> Self {
        TimingOptions {
            prompts: vec![16, 32, 64, 128, 256, 512],
            batches: vec![1, 2, 4, 8, 16],
            context: 128,
            rounds: 30,
        }
    }
}

impl TimingOptions {
    /// Blocks that a sequence may need.
    fn room(&self) -> u32 {
        let longest = self.prompts.iter().copied().max().unwrap_or(0);
        longest.max(self.context + self.rounds + 1).div_ceil(BLOCK)
    }

    /// `options` with the KV cache that the steps need.
    pub fn sized(&self, options: ModelOptions) -> ModelOptions {
        let sequences = self.batches.iter().copied().max().unwrap_or(0).max(1);
        ModelOptions {
            block_size: BLOCK,
            num_blocks: sequences * self.room(),
            ..options
        }
    }

    fn input(&self, sequence: u32, from: u32, tokens: u32) -> SeqInput {
        let first = sequence * self.room();
        SeqInput {
            tokens: (from..from + tokens)
                .map(|p| (p * 31 + sequence * 7) % 256)
                .collect(),
            context: from,
            blocks: (first..first + (from + tokens).div_ceil(BLOCK)).collect(),
            sample: true,
        }
    }
}

/// What a timed step held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One whole prompt; the size is its tokens.
    Prefill,
    /// Sequences that decode a token each; the size is their number.
    Decode,
}

/// One step.
#[derive(Clone, Debug)]
pub struct TimedStep {
    /// What it held.
    pub kind: Kind,
    /// How much of it.
    pub size: u32,
    /// When it was submitted [s since the first].
    pub start: f64,
    /// From its submission until its logits were there [s].
    pub seconds: f64,
    /// Where that went.
    pub times: StepTimes,
    inputs: Vec<(u32, u32)>,
}

impl TimedStep {
    fn stats(&self) -> BatchStats {
        let mut stats = BatchStats::default();
        for &(tokens, context) in &self.inputs {
            match self.kind {
                Kind::Decode => stats.add_decode(context + 1),
                Kind::Prefill => stats.add_prefill(tokens, context, true),
            }
        }
        stats
    }
}

/// Times steps on `model`, whose options were [`TimingOptions::sized`]; `progress` gets the share that is done.
///
/// # Errors
/// When the model cannot compute a step.
pub fn time(
    model: &mut dyn Executor,
    options: &TimingOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Vec<TimedStep>, ExecutorError> {
    let begin = Instant::now();
    let mut run = |kind, size, inputs: Vec<SeqInput>| {
        let held = inputs
            .iter()
            .map(|i| (i.tokens.len() as u32, i.context))
            .collect();
        let start = begin.elapsed().as_secs_f64();
        model.submit(inputs)?;
        let times = model.collect()?.times;
        Ok(TimedStep {
            kind,
            size,
            start,
            seconds: begin.elapsed().as_secs_f64() - start,
            times,
            inputs: held,
        })
    };
    let mut steps = Vec::new();
    for round in 0..=options.rounds {
        for &tokens in &options.prompts {
            let step = run(Kind::Prefill, tokens, vec![options.input(0, 0, tokens)])?;
            steps.extend((round > 0).then_some(step));
        }
        for &batch in &options.batches {
            // The prompts above wrote over what the first sequence has; what KV holds does not change a step's time.
            if round == 0 {
                for s in 0..batch {
                    run(Kind::Prefill, 1, vec![options.input(s, 0, options.context)])?;
                }
            }
            let inputs = (0..batch)
                .map(|s| options.input(s, options.context + round, 1))
                .collect();
            let step = run(Kind::Decode, batch, inputs)?;
            steps.extend((round > 0).then_some(step));
        }
        progress(f64::from(round + 1) / f64::from(options.rounds + 1));
    }
    Ok(steps)
}

/// Writes `steps` as a step log; `facts` go into the file beside it.
///
/// # Errors
/// When it cannot be written.
pub fn write_log(path: &Path, facts: &LogFacts, steps: &[TimedStep]) -> std::io::Result<()> {
    let (log, writer) = StepLog::create(path, &engine_file(facts))?;
    for s in steps {
        let times = LogTimes::new(&s.times, 0.0, s.seconds - s.times.named());
        let at = |seconds: f64| SimTime((seconds * 1e9) as u64);
        let entry = |(id, &(tokens, context)): (usize, &(u32, u32))| LogEntry {
            id: id as u64,
            tokens,
            context,
        };
        writer.step(LogStep {
            row: StepRow {
                replica: 0,
                start: at(s.start),
                end: at(s.start + s.seconds),
                stats: s.stats(),
                parts: hwmodels::Parts::default(),
                running: s.inputs.len() as u32,
                waiting: 0,
                kv_used_blocks: 0,
                blocked: sim::policy::Blocked::Nothing,
            },
            times,
            preempted: Vec::new(),
            entries: s.inputs.iter().enumerate().map(entry).collect(),
        });
    }
    drop(writer);
    log.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::load;

    #[test]
    fn every_size_is_timed_in_every_round_and_the_log_has_a_row_each() {
        let options = TimingOptions {
            prompts: vec![5, 40],
            batches: vec![1, 3],
            context: 20,
            rounds: 4,
        };
        let loaded = load(None, &options.sized(ModelOptions::default())).unwrap();
        let mut model = loaded.executor;
        let mut done = 0.0;
        let steps = time(model.as_mut(), &options, &mut |share| done = share).unwrap();
        assert_eq!(done, 1.0);
        assert_eq!(steps.len(), 4 * 4);
        for s in &steps {
            assert!(s.seconds >= s.times.total && s.times.total > 0.0, "{s:?}");
        }
        let decodes: Vec<u64> = steps
            .iter()
            .filter(|s| s.kind == Kind::Decode && s.size == 3)
            .map(|s| s.stats().decode_ctx_sum)
            .collect();
        assert_eq!(decodes, [3 * 22, 3 * 23, 3 * 24, 3 * 25]);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.csv");
        let facts = LogFacts::here(&loaded.facts, 1);
        write_log(&path, &facts, &steps).unwrap();
        let beside = std::fs::read_to_string(dir.path().join("steps.engine.toml")).unwrap();
        let beside: toml::Table = toml::from_str(&beside).unwrap();
        assert_eq!(
            beside["hidden"].as_integer(),
            Some(loaded.facts.config.hidden as i64)
        );
        assert_eq!(beside["layout"]["threads"].as_integer(), Some(1));
        assert!(beside["layout"]["cores"].as_integer() > Some(0));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1 + steps.len());
    }
}
