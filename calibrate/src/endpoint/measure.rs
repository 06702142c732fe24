//! The measurement: the loads that tell step times, limits and host overhead apart, within the budget, and loads that are only predicted.
//!
//! The first requests show how fast the endpoint is, and with that which loads fit ([`super::plan`]). Each load then gets its least and a share of
//! what is left; what it does not use goes to those after it. Later loads depend on earlier ones: the ladder ends where
//! throughput stops growing, and rates are shares of the throughput it found.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bench::endpoint::Client;
use bench::probe::{Probe, scrape};
use hwmodels::EngineKind;
use rand::RngExt;

use super::budget::{Budget, Ledger, Spent};
use super::drive::{Lengths, MeasureError, Planned, Prompts, Senders, Stand};
use super::facts::{self, Facts};
use super::load::{Load, Pacing, Role};
use super::names::{AGAIN, LONGER_OUTPUTS, LONGER_PROMPTS, MIXED, PROMPTS, kind_of};
use super::plan::{
    Cost, LEAST_NEAR, LEAST_PROMPTS, LEAST_SLOW, NEAR, Needed, Plan, SLOW, Shape, Speed, Stage,
    budget_of, words,
};
use super::server::{Known, Source};
use super::survey::{crowding, survey};

/// What a measurement gives.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The loads: those that were there already, then the others in the order in which they were measured.
    pub loads: Vec<Load>,
    /// What the endpoint said of itself, and what probes showed directly.
    pub facts: Facts,
    /// What was spent.
    pub spent: Spent,
}

/// What an earlier measurement left.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Its loads. Those that this one would measure too are taken as they are.
    pub loads: Vec<Load>,
    /// What it learnt of the endpoint.
    pub facts: Option<Facts>,
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

/// Where a measurement stands.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is measured.
    pub load: &'a str,
    /// The part that it is, from 1, and of how many.
    pub part: [usize; 2],
    /// Requests sent.
    pub requests: u64,
    /// About how much longer it will take.
    pub left: Duration,
}

/// Whoever follows a measurement.
pub trait Watch: Sync {
    /// Something that the user should know, e.g. what the plan will take.
    fn say(&self, text: &str) {
        let _ = text;
    }

    /// Where it stands.
    fn at(&self, progress: Progress<'_>) {
        let _ = progress;
    }

    /// A load was measured, the `number`-th of all, with what is known of the endpoint by now.
    ///
    /// # Errors
    /// It cannot be kept, in words.
    fn keep(&self, number: usize, load: &Load, facts: &Facts) -> Result<(), String> {
        let _ = (number, load, facts);
        Ok(())
    }
}

/// Follows nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// Share of the time after which no load is begun: what is under way then must end within the rest.
const USABLE: f64 = 0.9;
/// Tokens of the questions that [`Probe::run`] asks, at most [tokens].
const PROBED: u64 = 64;
/// Most requests of one load.
const MOST: usize = 4000;
/// Growth of throughput from one rung to the next below which the ladder ends.
const GROWTH: f64 = 1.04;
/// A load sends for so long at least, however late it is: its first requests.
const AT_LEAST: Duration = Duration::from_millis(50);

struct Campaign<'p> {
    stand: Arc<Stand>,
    options: Options,
    rng: sim::kernel::rng::Stream,
    loads: Vec<Load>,
    facts: Facts,
    watch: &'p dyn Watch,
    plan: Plan,
    speed: Speed,
    /// The stage that is measured, an index of the plan's.
    now: usize,
    ladder: Ladder,
    /// Requests per second that users with mixed lengths reached [req/s].
    capacity: f64,
    /// Loads that were there before.
    before: usize,
}

/// What the ladder has shown so far.
#[derive(Clone, Copy, Debug, Default)]
struct Ladder {
    /// Highest throughput [tokens/s], and rungs in a row without a gain.
    best: f64,
    flat: u32,
    /// Most requests that ran while others waited.
    running: f64,
    waited: bool,
}

/// Probes the endpoint behind `client`, measures loads within the budget and says what was found. `before` is what an earlier
/// measurement left; `watch` is told of the plan, of every load, and where the measurement stands.
///
/// # Errors
/// The endpoint fails; the budget is too small for a fit, which is said after the first requests; a load cannot be kept.
pub async fn measure(
    client: Client,
    probe: &Probe,
    options: Options,
    before: Before,
    watch: &dyn Watch,
) -> Result<Measured, MeasureError> {
    let facts = match before.facts {
        Some(facts) => facts,
        None => facts::read(&client, probe).await,
    };
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
    let shape = Shape {
        users: options.budget.max_concurrency.max(1),
        longest: options.longest_prompt.min(limit.saturating_sub(80)).max(16),
        outputs: 1.0,
    };
    let speed = survey(&stand, &shape).await?;
    let mut c = Campaign {
        rng: sim::kernel::rng::stream(options.seed, "lengths of probes"),
        stand,
        options,
        before: before.loads.len(),
        loads: before.loads,
        facts,
        watch,
        plan: Plan::whole(shape),
        speed,
        now: 0,
        ladder: Ladder::default(),
        capacity: 0.0,
    };
    c.learn_speed();
    c.settle_plan(shape)?;
    while let Some(stage) = c.plan.stages.get(c.now).copied() {
        c.stage(stage).await?;
        c.now += 1;
        c.revise();
    }
    c.finish()
}

impl Campaign<'_> {
    /// Time and tokens that loads may still take.
    fn usable(&self) -> Cost {
        let spare = self.options.budget.time.mul_f64(1.0 - USABLE);
        let left = self.stand.ledger.time_left().saturating_sub(spare);
        Cost {
            seconds: left.as_secs_f64(),
            tokens: self.stand.ledger.tokens_left(),
        }
    }

    /// Whether an earlier measurement left `stage`.
    fn left_by_another(&self, stage: Stage) -> bool {
        self.earlier(stage).is_some()
            || stage == Stage::PrefixCache
                && self.facts.server.prefix_caching.source != Source::Default
    }

    /// The load of `stage` that an earlier measurement left.
    fn earlier(&self, stage: Stage) -> Option<usize> {
        let known = &self.loads[..self.before];
        known.iter().position(|l| kind_of(l) == Some(stage))
    }

    /// Finds what fits into the budget, and says so.
    fn settle_plan(&mut self, shape: Shape) -> Result<(), MeasureError> {
        let most = self.usable();
        let done = |s: Stage| self.left_by_another(s);
        let found = Plan::fitting(shape, &self.speed, &most, &done);
        let pace = format!(
            "a short prompt with {} output tokens takes {} here",
            12,
            seconds(self.speed.turn(1, 16.0, 12))
        );
        let plan = match found {
            Ok(plan) => plan,
            Err(needed) => return Err(self.too_small(&needed, &pace)),
        };
        let least = plan.least(&self.speed, &done);
        let whole = Plan::whole(shape).least(&self.speed, &done);
        let of = |seconds: f64| budget_of(seconds / USABLE);
        let mut text = format!(
            "{pace}: {} parts are measured, in {} at least and {} at most",
            plan.stages.len(),
            words(least.seconds),
            words(self.stand.ledger.time_left().as_secs_f64())
        );
        if plan.shrunk() || plan.shape != shape {
            text += &format!(
                "; the whole plan of {} parts does not fit: it needs --budget {} and {} tokens",
                plan.of,
                of(whole.seconds),
                whole.tokens
            );
            if plan.shape != shape {
                text += &format!(
                    "; up to {} users, {} prompt tokens and {} output tokens are sent",
                    plan.shape.users,
                    plan.shape.longest,
                    plan.shape.longer_outputs().1[1][1]
                );
            }
        }
        let there = plan.stages.iter().filter(|s| done(**s)).count();
        if there > 0 {
            text += &format!("; {there} of the parts are there already");
        }
        self.watch.say(&text);
        self.plan = plan;
        Ok(())
    }

    fn too_small(&self, needed: &Needed, pace: &str) -> MeasureError {
        let spent =
            self.options.budget.time.as_secs_f64() - self.stand.ledger.time_left().as_secs_f64();
        let time = |c: &Cost| budget_of((c.seconds + spent) / USABLE);
        let tokens = |c: &Cost| c.tokens + self.stand.ledger.spent().tokens + PROBED;
        MeasureError::Budget {
            missing: pace.to_owned(),
            needed: format!(
                "the smallest plan that makes a profile needs --budget {} and --max-tokens {}, the whole one --budget {} and --max-tokens {}",
                time(&needed.least),
                tokens(&needed.least),
                time(&needed.whole),
                tokens(&needed.whole)
            ),
        }
    }

    /// Takes in what the loads so far say of the speed.
    fn learn_speed(&mut self) {
        let alone = self.loads.iter().filter(|l| l.most_in_flight() == 1);
        if let Some(tpot) = median_tpot(alone) {
            self.speed.output_token_s = tpot;
        }
        let users = |l: &&Load| l.pacing == Pacing::Users && l.most_in_flight() > 1;
        let crowd = self.loads.iter().filter(users);
        if let Some(last) = crowd.max_by_key(|l| l.most_in_flight())
            && let Some(tpot) = median_tpot(std::iter::once(last))
            && self.speed.output_token_s > 0.0
        {
            let ratio = tpot / self.speed.output_token_s;
            self.speed.crowding = crowding(ratio, f64::from(last.most_in_flight()));
        }
    }

    /// Drops parts for which there is no time any more, by what the loads so far say of the speed.
    fn revise(&mut self) {
        self.learn_speed();
        let mut plan = self.plan.clone();
        if self.ladder.flat >= 2 {
            // One rung beyond the first without gain: where seats are scarce, somebody must have waited.
            let past = plan.stages.split_off(self.now);
            let more = past
                .into_iter()
                .filter(|s| !matches!(s, Stage::Rung { .. }));
            plan.stages.extend(more);
        }
        let done = |s: Stage| self.left_by_another(s);
        let dropped = plan.shorten(self.now, &self.speed, &self.usable(), &done);
        if dropped > 0 {
            self.watch.say(&format!(
                "loads take longer than the first requests showed: {dropped} of the parts that are left do not fit and are left out"
            ));
        }
        self.plan = plan;
    }

    /// Time in which the present stage may send, and its tokens: its least and its share of what is left beyond the leasts.
    fn slice(&self) -> (Duration, u64) {
        let usable = self.usable();
        let rest = &self.plan.stages[self.now..];
        let open = || rest.iter().filter(|s| !self.left_by_another(**s));
        let least = Cost::sum(open().map(|s| s.least(&self.plan.shape, &self.speed)));
        let stage = rest[0];
        let own = stage.least(&self.plan.shape, &self.speed);
        let shares: f64 = open().map(|s| s.share()).sum();
        let share = (stage.share() / shares.max(1e-9)).min(1.0);
        let beyond = (usable.seconds - least.seconds).max(0.0) * share;
        // What is sent last is still answered.
        let turn = stage.turn(&self.plan.shape, &self.speed);
        let sending = (own.seconds + beyond - turn).clamp(0.0, usable.seconds);
        let tokens = usable.tokens.saturating_sub(least.tokens) as f64 * share;
        let time = Duration::from_secs_f64(sending).max(AT_LEAST);
        (time, own.tokens.max(1) + tokens as u64)
    }

    async fn stage(&mut self, stage: Stage) -> Result<(), MeasureError> {
        match stage {
            Stage::PrefixCache if self.left_by_another(stage) => Ok(()),
            Stage::PrefixCache => self.prefix_cache().await,
            Stage::Prompts => self.prompts().await,
            Stage::Rung { users, long } => self.rung(users, long).await,
            Stage::Mixed => self.mixed().await,
            Stage::Near => self.near(Role::Fit).await,
            Stage::Again => self.near(Role::HoldOut).await,
            Stage::LongerOutputs => self.longer_outputs().await,
            Stage::LongerPrompts => self.longer_prompts().await,
        }
    }

    fn finish(mut self) -> Result<Measured, MeasureError> {
        let spent = self.stand.ledger.spent();
        let fit = self.loads.iter().filter(|l| l.role == Role::Fit).count();
        let held = self.loads.len() - fit;
        if fit < 3 || held == 0 {
            let lacking = if fit < 3 {
                "prompts of several lengths, and decodes alone and together"
            } else {
                "a load that is held out"
            };
            let none = |_: Stage| false;
            let least = self.plan.least(&self.speed, &none);
            return Err(MeasureError::Budget {
                missing: format!(
                    "after {} requests and {} tokens there is not yet what a fit needs: {lacking}",
                    spent.requests, spent.tokens
                ),
                needed: format!(
                    "by what was measured, all loads of the plan need --budget {}",
                    budget_of(1.2 * least.seconds / USABLE)
                ),
            });
        }
        let Ladder {
            running, waited, ..
        } = self.ladder;
        if waited
            && running >= 1.0
            && self.facts.server.max_num_seqs.source != Source::Read
            && self.facts.server.kind.value != EngineKind::LlamaCpp
        {
            self.facts.notes.push(format!(
                "/metrics showed requests waiting while {running} ran: seats or KV bound them"
            ));
        }
        Ok(Measured {
            loads: self.loads,
            facts: self.facts,
            spent,
        })
    }

    fn progress(&self, load: &str) {
        self.watch.at(Progress {
            load,
            part: [self.now + 1, self.plan.stages.len()],
            requests: self.stand.ledger.spent().requests,
            left: self.stand.ledger.time_left().mul_f64(USABLE),
        });
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

    /// Measures `planned`, or takes what an earlier measurement left of it. Its index; none if too little of it was answered.
    async fn run(&mut self, planned: Planned) -> Result<Option<usize>, MeasureError> {
        let known = self
            .plan
            .stages
            .get(self.now)
            .and_then(|s| self.earlier(*s));
        if known.is_some() {
            return Ok(known);
        }
        self.progress(&planned.name);
        let progress = |_: u64| self.progress(&planned.name);
        let Some(load) = self.stand.measure(&planned, &progress).await? else {
            return Ok(None);
        };
        let kept = self.watch.keep(self.loads.len(), &load, &self.facts);
        kept.map_err(MeasureError::Keep)?;
        self.loads.push(load);
        Ok(Some(self.loads.len() - 1))
    }

    /// Whether a prompt that comes again is computed again.
    async fn prefix_cache(&mut self) -> Result<(), MeasureError> {
        self.progress("prompts sent twice");
        let tokens = self.plan.shape.repeated_prompt();
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
        self.facts.server.prefix_caching = Known { value: on, source };
        let word = if on { "on" } else { "off" };
        self.facts
            .notes
            .push(format!("prefix caching {word}: {how}"));
        Ok(())
    }

    /// Single requests: prompts of several lengths and a few outputs.
    async fn prompts(&mut self) -> Result<(), MeasureError> {
        let (time, tokens) = self.slice();
        let planned = Planned {
            name: PROMPTS.into(),
            role: Role::Fit,
            senders: Senders::Users(1),
            requests: Campaign::repeated(&self.plan.shape.prompts(), tokens),
            time,
            least: LEAST_PROMPTS,
        };
        self.run(planned).await?;
        Ok(())
    }

    /// So many users at one context.
    async fn rung(&mut self, users: u32, long: bool) -> Result<(), MeasureError> {
        let (time, tokens) = self.slice();
        let kinds = self.plan.shape.rung(long);
        let planned = Planned {
            name: format!("{users} users, {} prompt tokens", kinds[0].prompt),
            role: Role::Fit,
            senders: Senders::Users(users),
            requests: Campaign::repeated(&kinds, tokens),
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
        let ladder = &mut self.ladder;
        ladder.running = ladder.running.max(seen.0);
        ladder.waited |= seen.1;
        if let Some(i) = index
            && !long
        {
            let now = self.loads[i].throughput();
            let flat = now < ladder.best * GROWTH;
            ladder.flat = if flat { ladder.flat + 1 } else { 0 };
            ladder.best = ladder.best.max(now);
        }
        Ok(())
    }

    /// Users with mixed lengths: what a mixed batch costs, and how many such requests the endpoint can take.
    async fn mixed(&mut self) -> Result<(), MeasureError> {
        let (time, tokens) = self.slice();
        let [prompt, output] = self.plan.shape.mixed();
        let users = self.plan.shape.mixed_users();
        let planned = Planned {
            name: format!("{users} users, {MIXED}"),
            role: Role::Fit,
            senders: Senders::Users(users),
            requests: self.drawn(prompt, output, tokens),
            time,
            least: users as usize,
        };
        if let Some(i) = self.run(planned).await? {
            let l = &self.loads[i];
            self.capacity = l.requests.len() as f64 / l.span().max(1e-3);
        }
        Ok(())
    }

    /// Requests at a rate near saturation; held out, the same ones again, for the noise.
    async fn near(&mut self, role: Role) -> Result<(), MeasureError> {
        let near = (NEAR * self.capacity).min(self.options.budget.max_rate);
        if near <= 0.0 {
            return Ok(());
        }
        let (time, tokens) = self.slice();
        let [prompt, output] = self.plan.shape.mixed();
        // Both draw from a stream of their own, so that the repeat gets the same lengths.
        let own = sim::kernel::rng::stream(self.options.seed, "lengths near saturation");
        let others = std::mem::replace(&mut self.rng, own);
        let requests = self.drawn(prompt, output, tokens);
        self.rng = others;
        let again = if role == Role::HoldOut { AGAIN } else { "" };
        let planned = Planned {
            name: format!("{near:.2} req/s, {MIXED}{again}"),
            role,
            senders: Senders::Rate(near, self.options.seed),
            requests,
            time,
            least: LEAST_NEAR,
        };
        self.run(planned).await?;
        Ok(())
    }

    /// Users with longer outputs, held out.
    async fn longer_outputs(&mut self) -> Result<(), MeasureError> {
        let (time, tokens) = self.slice();
        let (users, [prompt, output]) = self.plan.shape.longer_outputs();
        let planned = Planned {
            name: format!("{users} users, {LONGER_OUTPUTS}"),
            role: Role::HoldOut,
            senders: Senders::Users(users),
            requests: self.drawn(prompt, output, tokens),
            time,
            least: users as usize,
        };
        self.run(planned).await?;
        Ok(())
    }

    /// Half the rate with longer prompts, held out.
    async fn longer_prompts(&mut self) -> Result<(), MeasureError> {
        let slow = (SLOW * self.capacity).min(self.options.budget.max_rate);
        if slow <= 0.0 {
            return Ok(());
        }
        let (time, tokens) = self.slice();
        let [prompt, output] = self.plan.shape.longer_prompts();
        let planned = Planned {
            name: format!("{slow:.2} req/s, {LONGER_PROMPTS}"),
            role: Role::HoldOut,
            senders: Senders::Rate(slow, self.options.seed ^ 0x5eed),
            requests: self.drawn(prompt, output, tokens),
            time,
            least: LEAST_SLOW,
        };
        self.run(planned).await?;
        Ok(())
    }
}

/// Median time per output token of the requests of `loads` [s].
fn median_tpot<'a>(loads: impl Iterator<Item = &'a Load>) -> Option<f64> {
    let all = loads.flat_map(|l| l.requests.iter().filter_map(super::load::Request::tpot));
    crate::statistics::median(all.collect())
}

/// A time with two digits that count [s].
fn seconds(s: f64) -> String {
    if s < 10.0 {
        format!("{s:.2} s")
    } else {
        words(s)
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
