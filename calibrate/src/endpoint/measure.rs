//! The probe plan: which loads tell step times, limits and host overhead apart, within the budget, and loads that are only predicted.
//!
//! Each load gets a slice of the time and tokens that are left; what a slice does not use goes to those after it. Later loads depend
//! on earlier ones: the ladder ends where throughput stops growing, and rates are shares of the throughput it found.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bench::endpoint::Client;
use bench::probe::{Probe, scrape};
use hwmodels::EngineKind;
use rand::RngExt;

use super::budget::{Budget, Ledger, Spent};
use super::drive::{Lengths, MeasureError, Planned, Prompts, Senders, Stand};
use super::facts::{self, Facts};
use super::load::{Load, Role};
use super::server::{Known, Source};

/// What a measurement gives.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The loads, in the order in which they were measured.
    pub loads: Vec<Load>,
    /// What the endpoint said of itself, and what probes showed directly.
    pub facts: Facts,
    /// What was spent.
    pub spent: Spent,
}

/// How a measurement is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What it may spend.
    pub budget: Budget,
    /// Longest prompt that is sent [tokens]; the endpoint's own limit counts where it is lower.
    pub longest_prompt: u32,
    /// Seed of prompts and arrivals. Must differ between runs on an endpoint that caches prompts.
    pub seed: u64,
}

/// Suffix of a load that repeats another, to show how far two runs of the same differ.
pub const AGAIN: &str = ", again";

/// Shares of the time that is spent on loads, in order: prompts, ladder, mixed, near saturation, its repeat, two held out.
const SLICES: [f64; 7] = [0.14, 0.30, 0.13, 0.14, 0.09, 0.10, 0.10];
/// Share of the time after which no load is begun: what is under way then must end within the rest.
const USABLE: f64 = 0.9;
/// Tokens of the questions that [`Probe::run`] asks, at most [tokens].
const PROBED: u64 = 64;
/// Most requests of one load.
const MOST: usize = 4000;
/// Growth of throughput from one rung to the next below which the ladder ends.
const GROWTH: f64 = 1.04;

struct Campaign<'p> {
    stand: Arc<Stand>,
    options: Options,
    longest: u32,
    rng: sim::kernel::rng::Stream,
    loads: Vec<Load>,
    progress: &'p (dyn Fn(&str, u64) + Sync),
    /// Share of the usable time that is not given out yet.
    rest: f64,
}

/// Probes the endpoint behind `client`, measures loads within the budget and says what was found. `progress` is told the load under
/// way and the requests sent.
///
/// # Errors
/// The endpoint fails, or the budget ends before there is enough for a fit.
pub async fn measure(
    client: Client,
    probe: &Probe,
    options: Options,
    progress: &(dyn Fn(&str, u64) + Sync),
) -> Result<Measured, MeasureError> {
    let mut facts = facts::read(&client, probe).await;
    let ledger = Ledger::new(Budget {
        max_tokens: options.budget.max_tokens.saturating_sub(PROBED),
        ..options.budget
    });
    let stand = Stand::new(
        client,
        ledger,
        Prompts::new(probe.token_prompts, options.seed),
    );
    if !probe.token_prompts {
        stand.learn_words().await;
    }
    let limit = match facts.server.max_model_len.source {
        Source::Read => facts.server.max_model_len.value,
        _ => 2048,
    };
    let mut c = Campaign {
        longest: options.longest_prompt.min(limit.saturating_sub(80)).max(16),
        rng: sim::kernel::rng::stream(options.seed, "lengths of probes"),
        stand,
        options,
        loads: Vec::new(),
        progress,
        rest: 1.0,
    };
    c.prefix_cache(&mut facts).await?;
    c.prompts().await?;
    c.ladder(&mut facts).await?;
    let capacity = c.mixed().await?;
    c.rates(capacity).await?;
    let spent = c.stand.ledger.spent();
    let fit = c.loads.iter().filter(|l| l.role == Role::Fit).count();
    let held = c.loads.len() - fit;
    if fit < 3 || held == 0 {
        let lacking = if fit < 3 {
            "prompts of several lengths, and decodes alone and together"
        } else {
            "a load that is held out"
        };
        return Err(MeasureError::Budget {
            spent: format!("{} requests, {} tokens", spent.requests, spent.tokens),
            missing: lacking.into(),
        });
    }
    Ok(Measured {
        loads: c.loads,
        facts,
        spent,
    })
}

impl Campaign<'_> {
    /// Time and tokens of a load that is due `share` of the whole.
    fn slice(&mut self, share: f64) -> (Duration, u64) {
        let whole = self.options.budget.time;
        let left = self
            .stand
            .ledger
            .time_left()
            .saturating_sub(whole.mul_f64(1.0 - USABLE));
        let part = (share / self.rest.max(share)).min(1.0);
        let tokens = (self.stand.ledger.tokens_left() as f64 * part) as u64;
        self.rest = (self.rest - share).max(0.0);
        (left.mul_f64(part), tokens)
    }

    /// As many of `kinds`, over and over, as `tokens` pay for.
    fn repeated(kinds: &[Lengths], tokens: u64) -> Vec<Lengths> {
        let mut left = tokens;
        let mut out = Vec::new();
        for l in kinds.iter().cycle().take(MOST) {
            let cost = u64::from(l.prompt + l.output + l.prompt / 16 + 4);
            if cost > left {
                break;
            }
            left -= cost;
            out.push(*l);
        }
        out
    }

    /// Requests with lengths drawn evenly from the ranges, as many as `tokens` pay for.
    fn drawn(&mut self, prompt: [u32; 2], output: [u32; 2], tokens: u64) -> Vec<Lengths> {
        let mut left = tokens;
        let mut out = Vec::new();
        while out.len() < MOST {
            let l = Lengths {
                prompt: self.rng.random_range(prompt[0]..=prompt[1].max(prompt[0])),
                output: self.rng.random_range(output[0]..=output[1].max(output[0])),
            };
            let cost = u64::from(l.prompt + l.output + l.prompt / 16 + 4);
            if cost > left {
                break;
            }
            left -= cost;
            out.push(l);
        }
        out
    }

    async fn run(&mut self, planned: Planned) -> Result<Option<usize>, MeasureError> {
        let progress = |n: u64| (self.progress)(&planned.name, n);
        progress(self.stand.ledger.spent().requests);
        let load = self.stand.measure(&planned, &progress).await?;
        Ok(load.map(|l| {
            self.loads.push(l);
            self.loads.len() - 1
        }))
    }

    /// Whether a prompt that comes again is computed again.
    async fn prefix_cache(&mut self, facts: &mut Facts) -> Result<(), MeasureError> {
        let tokens = (self.longest / 2).clamp(16, 512);
        let mut ratios = Vec::new();
        let mut said = None;
        for _ in 0..3 {
            let prompt = self.stand.prompt(tokens).await;
            let mut times = Vec::new();
            for _ in 0..2 {
                let most = tokens + tokens / 16 + 4;
                let Some(t) = self.stand.send_prompt(prompt.clone(), most, 1).await else {
                    return Ok(());
                };
                if let Some(e) = self.stand.failure() {
                    return Err(e);
                }
                if let Some(ns) = t.first_token_ns() {
                    times.push(ns as f64);
                }
                said = t.usage.and_then(|u| u.cached_tokens).or(said);
            }
            if let [first, second] = times[..] {
                ratios.push(second / first);
            }
        }
        ratios.sort_by(f64::total_cmp);
        let (on, how, source) = match (said, ratios.get(ratios.len() / 2)) {
            (Some(n), _) if n >= tokens / 2 => {
                (true, "by its own count of cached tokens", Source::Read)
            }
            (_, Some(r)) if *r < 0.6 => (
                true,
                "a repeated prompt is answered sooner",
                Source::Inferred,
            ),
            (Some(_), _) => (false, "by its own count of cached tokens", Source::Read),
            (None, Some(r)) if *r > 0.85 => {
                (false, "a repeated prompt takes as long", Source::Inferred)
            }
            _ => return Ok(()),
        };
        facts.server.prefix_caching = Known { value: on, source };
        let word = if on { "on" } else { "off" };
        facts.notes.push(format!("prefix caching {word}: {how}"));
        Ok(())
    }

    /// Single requests: prompts of several lengths and a few outputs.
    async fn prompts(&mut self) -> Result<(), MeasureError> {
        let (time, tokens) = self.slice(SLICES[0]);
        let mut kinds = Vec::new();
        let mut n = 16;
        while n < self.longest {
            kinds.push(n);
            n *= 3;
        }
        kinds.push(self.longest);
        // Every other length first, so that a slice that ends early has short and long ones.
        let kinds: Vec<Lengths> = kinds
            .iter()
            .step_by(2)
            .chain(kinds.iter().skip(1).step_by(2))
            .copied()
            .flat_map(|prompt| [3, 12].map(|output| Lengths { prompt, output }))
            .collect();
        let planned = Planned {
            name: "prompts one by one".into(),
            role: Role::Fit,
            senders: Senders::Users(1),
            requests: Campaign::repeated(&kinds, tokens),
            time,
            least: 4,
        };
        self.run(planned).await?;
        Ok(())
    }

    /// More and more users, at two contexts, until throughput no longer grows.
    async fn ladder(&mut self, facts: &mut Facts) -> Result<(), MeasureError> {
        let most = self.options.budget.max_concurrency;
        let mut rungs: Vec<u32> = std::iter::successors(Some(1u32), |n| Some(n * 2))
            .take_while(|n| *n < most)
            .collect();
        rungs.push(most);
        let contexts = [24.min(self.longest), (self.longest / 2).min(600)];
        let each = SLICES[1] / (rungs.len() * 2) as f64;
        let mut best = 0.0_f64;
        let mut flat = 0;
        let (mut running, mut waited) = (0.0_f64, false);
        for users in rungs {
            for (k, prompt) in contexts.into_iter().enumerate() {
                // The second context matters where many run; at few it is what `prompts` measured.
                if k == 1 && users > 1 && users % 4 != 0 {
                    continue;
                }
                let (time, tokens) = self.slice(each);
                let outputs: Vec<Lengths> = [40, 56, 48, 64]
                    .map(|output| Lengths { prompt, output })
                    .to_vec();
                let planned = Planned {
                    name: format!("{users} users, {prompt} prompt tokens"),
                    role: Role::Fit,
                    senders: Senders::Users(users),
                    requests: Campaign::repeated(&outputs, tokens),
                    time,
                    least: users as usize,
                };
                let stand = Arc::clone(&self.stand);
                let seen = Mutex::new((0.0_f64, false));
                let index = tokio::select! {
                    done = self.run(planned) => done?,
                    () = watch(&stand, &seen) => None,
                };
                let seen = seen.into_inner().unwrap_or_else(|e| e.into_inner());
                running = running.max(seen.0);
                waited |= seen.1;
                if let Some(i) = index
                    && k == 0
                {
                    let now = self.loads[i].throughput();
                    flat = if now < best * GROWTH { flat + 1 } else { 0 };
                    best = best.max(now);
                }
            }
            // One rung beyond the first without gain: where seats are scarce, somebody must have waited.
            if flat >= 2 {
                break;
            }
        }
        if waited
            && running >= 1.0
            && facts.server.max_num_seqs.source != Source::Read
            && facts.server.kind.value != EngineKind::LlamaCpp
        {
            facts.notes.push(format!(
                "/metrics showed requests waiting while {running} ran: seats or KV bound them"
            ));
        }
        // What the ladder left goes to the others.
        Ok(())
    }

    /// Lengths of the mixed loads: prompts and outputs.
    fn mixed_lengths(&self) -> ([u32; 2], [u32; 2]) {
        ([16, (self.longest / 2).clamp(16, 512)], [8, 72])
    }

    /// Users with mixed lengths: what a mixed batch costs, and how many such requests the endpoint can take [req/s].
    async fn mixed(&mut self) -> Result<f64, MeasureError> {
        let (time, tokens) = self.slice(SLICES[2]);
        let (prompt, output) = self.mixed_lengths();
        let users = self.options.budget.max_concurrency.min(16);
        let planned = Planned {
            name: format!("{users} users, mixed lengths"),
            role: Role::Fit,
            senders: Senders::Users(users),
            requests: self.drawn(prompt, output, tokens),
            time,
            least: users as usize,
        };
        let load = self.run(planned).await?;
        Ok(load.map_or(0.0, |i| {
            let l = &self.loads[i];
            l.requests.len() as f64 / l.span().max(1e-3)
        }))
    }

    /// Requests at a rate: near saturation, twice for the noise; and what is held out.
    async fn rates(&mut self, capacity: f64) -> Result<(), MeasureError> {
        let (prompt, output) = self.mixed_lengths();
        let most = self.options.budget.max_rate;
        let near = (0.85 * capacity).min(most);
        if near > 0.0 {
            let (time, tokens) = self.slice(SLICES[3]);
            let requests = self.drawn(prompt, output, tokens);
            let name = format!("{near:.2} req/s, mixed lengths");
            let seed = self.options.seed;
            let planned = |name: String, role, requests: Vec<Lengths>, time| Planned {
                name,
                role,
                senders: Senders::Rate(near, seed),
                requests,
                time,
                least: 8,
            };
            self.run(planned(name.clone(), Role::Fit, requests.clone(), time))
                .await?;
            let (time, tokens) = self.slice(SLICES[4]);
            let mut left = tokens;
            let again: Vec<Lengths> = requests
                .into_iter()
                .take_while(|l| {
                    let cost = u64::from(l.prompt + l.prompt / 16 + 4 + l.output);
                    left = left.saturating_sub(cost);
                    left > 0
                })
                .collect();
            self.run(planned(
                format!("{name}{AGAIN}"),
                Role::HoldOut,
                again,
                time,
            ))
            .await?;
        }
        let (time, tokens) = self.slice(SLICES[5]);
        let users = (self.options.budget.max_concurrency.min(16) * 2 / 3).max(1);
        let planned = Planned {
            name: format!("{users} users, longer outputs"),
            role: Role::HoldOut,
            senders: Senders::Users(users),
            requests: self.drawn([32, (self.longest / 3).clamp(32, 384)], [40, 120], tokens),
            time,
            least: users as usize,
        };
        self.run(planned).await?;
        let slow = (0.5 * capacity).min(most);
        if slow > 0.0 {
            let (time, tokens) = self.slice(SLICES[6]);
            let planned = Planned {
                name: format!("{slow:.2} req/s, longer prompts"),
                role: Role::HoldOut,
                senders: Senders::Rate(slow, self.options.seed ^ 0x5eed),
                requests: self.drawn([64, (self.longest * 2 / 3).clamp(64, 700)], [8, 48], tokens),
                time,
                least: 6,
            };
            self.run(planned).await?;
        }
        Ok(())
    }
}

/// How often `/metrics` is read during the ladder.
const WATCH: Duration = Duration::from_millis(250);

/// Reads `/metrics` until dropped: most requests running while others waited, and whether any did. Never ends.
async fn watch(stand: &Stand, seen: &Mutex<(f64, bool)>) {
    loop {
        tokio::time::sleep(WATCH).await;
        let Some(m) = scrape(&stand.client).await else {
            return std::future::pending().await;
        };
        if m.waiting.unwrap_or(0.0) >= 1.0 {
            let mut seen = seen.lock().unwrap_or_else(|e| e.into_inner());
            *seen = (seen.0.max(m.running.unwrap_or(0.0)), true);
        }
    }
}
