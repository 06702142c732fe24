//! The requests of a load, drawn once and played to every candidate: common random numbers.
//!
//! A load that goes on as it is (Poisson, gamma, constant) has no end: further requests are drawn from the same streams, and the first of them are always
//! the same. At a multiple of its rate the same requests come at shorter gaps, and more of them in the same time. A curve of rates is drawn anew at the
//! multiple of its rates, over the same time. A trace has the requests that it has: at a multiple it is played faster, from its first to its last.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use hwmodels::units::Secs;
use sim::kernel::time::{SimDuration, SimTime};
use sim::request::{Outcome, ReqId, RequestSpec};
use sim::scenario::Scenario;
use sim::workload::{Arrival, Mix, RequestEnd, StreamSpec, Workload};

use crate::Error;
use crate::hash::fnv1a;
use crate::loads::at_scale;

/// Most requests of a load as the scenario has it; a longer one is cut there.
pub const MOST_REQUESTS: usize = 200_000;
/// Requests up to which runs of a load that goes on are extended.
pub const MOST_EXTENDED: usize = 1 << 17;
/// Most requests that are drawn to find enough with certain prompts.
const MOST_DRAWN: usize = 1 << 23;

/// The requests of a load: those of an open loop in the order in which they are sent, or a closed loop and a sample of its requests.
#[derive(Clone)]
pub struct Requests {
    list: Arc<[RequestSpec]>,
    /// The load itself, where requests are sent when answers come: each deployment plays it for itself, with the same random streams.
    users: Option<Arc<Users>>,
    shares: bool,
    /// Whether the load has more requests than these.
    pub cut: bool,
    source: Arc<Source>,
}

/// Where requests come from.
struct Source {
    scenario: Scenario,
    /// Requests per second of all streams; none where they change or end by themselves.
    per_s: Option<f64>,
    /// Prompts that are taken [tokens].
    prompts: RangeInclusive<u32>,
    /// What has been drawn of a load that goes on, longer than the scenario has it.
    drawn: Mutex<Arc<[RequestSpec]>>,
}

/// What of a load bounds need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Requests per second: of a load that goes on that of its streams, of others the mean over the time in which they are sent; none of a load whose
    /// requests come all at once.
    pub per_s: Option<f64>,
    /// Mean prompt [tokens].
    pub prompt: f64,
    /// Mean output [tokens].
    pub output: f64,
    /// Mean context of a decode step: over all output tokens of all requests [tokens].
    pub context: f64,
    /// Query-key pairs per prompt token of a prefill.
    pub pairs_per_token: f64,
    /// Prompt lengths, ascending [tokens].
    pub prompts: Vec<u32>,
    /// Longest prompt and output together, of all requests that a run of it may have [tokens].
    pub longest: u32,
    /// Whether requests share prompt content: less may be computed than is sent.
    pub shares: bool,
    /// Users of a closed loop; none: requests come when they come.
    pub users: Option<f64>,
    /// Mean pause of such a user between an answer and the next request [s].
    pub think_s: Option<f64>,
}

/// Users who each send when their last answer has come.
struct Users {
    /// A scenario with their load, and no more than that of it matters.
    scenario: Scenario,
    /// Requests that its run sends.
    requests: usize,
}

/// Requests of a closed loop that are drawn to know its lengths.
const SAMPLE: usize = 1 << 15;

impl Users {
    /// Users of `scenario` times `factor`, who pause as long divided by `haste`. `n`: requests after the users have come; none: those of the scenario.
    fn play(&self, n: Option<usize>, factor: f64, haste: f64) -> Option<Mix> {
        let mut scenario = at_scale(&self.scenario, factor).ok()?;
        let own = self.scenario.workload.iter();
        let mut users = 0;
        for (stream, own) in scenario.workload.iter_mut().zip(own) {
            if let (
                Arrival::Closed {
                    concurrency,
                    stagger,
                    think,
                    ..
                },
                Arrival::Closed { concurrency: n, .. },
            ) = (&mut stream.arrival, &own.arrival)
            {
                // More users come in the same time.
                let share = f64::from(*concurrency) / f64::from(*n);
                *stagger = Secs::new(stagger.secs() / share).ok()?;
                *think = Secs::new(think.secs() / haste).ok()?;
                users += u64::from(*concurrency);
            }
            if n.is_some() {
                stream.requests = None;
            }
        }
        if let Some(n) = n {
            // While they come, each sends about twice.
            scenario.limits.requests = Some(n as u64 + 2 * users);
            scenario.limits.duration = None;
        }
        // Its files were read before.
        scenario.mix().ok()
    }
}

/// Requests per second of a scenario whose rates neither change nor end by themselves; none of others.
pub fn steady_rate(scenario: &Scenario) -> Option<f64> {
    let rate = |a: &Arrival| match a {
        Arrival::Poisson { rate } | Arrival::Gamma { rate, .. } | Arrival::Constant { rate } => {
            Some(rate.per_sec())
        }
        _ => None,
    };
    scenario.workload.iter().map(|s| rate(&s.arrival)).sum()
}

/// The first `n` requests of `scenario` as its limits are; whether they share content, and whether there are more.
fn drawn(scenario: &Scenario, n: usize) -> Result<(Vec<RequestSpec>, bool, bool), Error> {
    let mut mix = scenario.mix()?;
    if mix.reacts() {
        return Err(Error::input(
            "workload: a closed loop, sessions or retries send when answers come, so their load depends on the deployment; a plan needs an \
             open loop (poisson, gamma, constant, steps, ramp, rate_table) or a trace",
        ));
    }
    let mut list = Vec::new();
    while mix.peek().is_some() && list.len() < n {
        let mut spec = RequestSpec::default();
        mix.pop(list.len() as ReqId, &mut spec);
        list.push(spec);
    }
    let cut = mix.peek().is_some();
    Ok((list, mix.shares_content(), cut))
}

impl Requests {
    /// The requests of `scenario` with `seed`: [`Requests::draw`], or the users of a closed loop.
    ///
    /// # Errors
    /// As [`Requests::draw`], but for closed loops; those whose run has no number of requests.
    pub fn of(scenario: &Scenario, seed: u64) -> Result<Requests, Error> {
        let closed = |s: &StreamSpec| matches!(s.arrival, Arrival::Closed { .. });
        if !scenario.workload.iter().all(closed) {
            return Requests::draw(scenario, seed);
        }
        let mut scenario = scenario.clone();
        scenario.seed = seed;
        let Some(requests) = scenario.limits.requests else {
            let why = "run.requests: a plan of a closed loop takes a number of requests; how many a duration holds depends on the deployment";
            return Err(Error::input(why));
        };
        let mut mix = scenario.mix()?;
        let shares = mix.shares_content();
        let mut list = Vec::new();
        // Answers that take no time: what is asked does not depend on them, but for when.
        while mix.peek().is_some() && list.len() < SAMPLE {
            let mut spec = RequestSpec::default();
            mix.pop(list.len() as ReqId, &mut spec);
            mix.on_end(&RequestEnd {
                id: list.len() as ReqId,
                tag: spec.tag,
                stream: spec.stream,
                session: spec.session,
                outcome: Outcome::Finished,
                at: spec.arrival,
                output_tokens: spec.output_tokens,
            });
            list.push(spec);
        }
        if list.is_empty() {
            return Err(Error::input("workload: no request is sent"));
        }
        Ok(Requests {
            source: Arc::new(Source {
                per_s: None,
                scenario: scenario.clone(),
                prompts: 0..=u32::MAX,
                drawn: Mutex::default(),
            }),
            list: list.into(),
            shares,
            cut: false,
            users: Some(Arc::new(Users {
                requests: usize::try_from(requests).unwrap_or(usize::MAX),
                scenario,
            })),
        })
    }

    /// Requests that the users of a closed loop, `factor` times as many, send while they come; 0 of another load.
    pub fn while_coming(&self, factor: f64) -> u64 {
        let scaled = self
            .users
            .as_ref()
            .and_then(|u| at_scale(&u.scenario, factor).ok());
        let streams = scaled.iter().flat_map(|s| &s.workload);
        let users = streams.map(|s| match s.arrival {
            Arrival::Closed { concurrency, .. } => u64::from(concurrency),
            _ => 0,
        });
        // Each sends about twice.
        2 * users.sum::<u64>()
    }

    /// Whether they are sent when answers come.
    pub fn is_closed(&self) -> bool {
        self.users.is_some()
    }

    /// Draws the requests of `scenario` with `seed`.
    ///
    /// # Errors
    /// Files that cannot be read; a load that depends on its answers (closed loops, sessions, retries), or has no requests.
    pub fn draw(scenario: &Scenario, seed: u64) -> Result<Requests, Error> {
        let mut scenario = scenario.clone();
        scenario.seed = seed;
        let (list, shares, cut) = drawn(&scenario, MOST_REQUESTS)?;
        if list.is_empty() {
            return Err(Error::input(
                "workload: no request is sent; raise the rate or the run's length",
            ));
        }
        let list: Arc<[RequestSpec]> = list.into();
        // A stream with an end of its own would go on in a longer run.
        let is_first = scenario.workload.iter().all(|s| s.requests.is_none());
        let first = if is_first {
            list.clone()
        } else {
            Arc::from(Vec::new())
        };
        Ok(Requests {
            source: Arc::new(Source {
                per_s: steady_rate(&scenario),
                scenario,
                prompts: 0..=u32::MAX,
                drawn: Mutex::new(first),
            }),
            list,
            users: None,
            shares,
            cut,
        })
    }

    /// Whether a longer run is more of the same: no rate changes, and nothing ends by itself.
    pub fn goes_on(&self) -> bool {
        self.source.per_s.is_some()
    }

    /// Whether requests share prompt content.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// The scenario that they are drawn from.
    pub fn scenario(&self) -> &Scenario {
        &self.source.scenario
    }

    /// The load at `factor` times its rates where these change by themselves, to be played as it is; none for a load that goes on and for a trace: of
    /// these the same requests come faster.
    ///
    /// # Errors
    /// Rates that no arrival process can have.
    pub fn anew(&self, factor: f64) -> Result<Option<Requests>, Error> {
        let scenario = &self.source.scenario;
        let is_trace = |a: &Arrival| matches!(a, Arrival::Trace { .. });
        if factor == 1.0 || self.goes_on() || scenario.workload.iter().any(|s| is_trace(&s.arrival))
        {
            return Ok(None);
        }
        let whole = Requests::draw(&at_scale(scenario, factor)?, scenario.seed)?;
        Ok(Some(whole.only(self.source.prompts.clone())))
    }

    /// The first `n` of a load that goes on, of another as many as there are, at `factor` times their rate.
    ///
    /// # Errors
    /// Files that cannot be read any more.
    pub fn first(&self, n: usize, factor: f64) -> Result<Playback, Error> {
        let list = if self.goes_on() {
            self.at_least(n)?
        } else {
            self.list.clone()
        };
        Ok(played(list, (0, n, 1), factor, self.shares))
    }

    fn at_least(&self, n: usize) -> Result<Arc<[RequestSpec]>, Error> {
        let source = &self.source;
        let mut held = source.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = n.next_power_of_two();
        while held.len() < n {
            let mut scenario = source.scenario.clone();
            scenario.limits.requests = Some(total as u64);
            scenario.limits.duration = None;
            for stream in &mut scenario.workload {
                stream.requests = None;
            }
            let (mut list, _, _) = drawn(&scenario, total)?;
            list.retain(|r| source.prompts.contains(&r.prompt_tokens));
            *held = list.into();
            if total >= MOST_DRAWN {
                break;
            }
            total *= 2;
        }
        Ok(held.clone())
    }

    /// What tells these requests from others: 16 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let mut bytes = Vec::with_capacity(24 * self.list.len());
        for r in self.list.iter() {
            bytes.extend(r.arrival.0.to_le_bytes());
            for n in [r.prompt_tokens, r.output_tokens, r.max_tokens] {
                bytes.extend(n.to_le_bytes());
            }
        }
        format!("{:016x}", fnv1a(&bytes))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.users.as_ref().map_or(self.list.len(), |u| u.requests)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// From the first until the last is sent [s].
    pub fn span_s(&self) -> f64 {
        self.between(0, self.list.len())
    }

    /// From request `from` until the one before `to` [s].
    fn between(&self, from: usize, to: usize) -> f64 {
        let at = |i: usize| self.list[i].arrival;
        at(to - 1).since(at(from)).as_secs()
    }

    /// Requests per second, as [`Moments::per_s`].
    pub fn per_s(&self) -> Option<f64> {
        if self.is_closed() {
            return None;
        }
        let span = self.span_s();
        let measured = (span > 0.0).then(|| (self.list.len() - 1) as f64 / span);
        let is_whole = self.source.prompts == (0..=u32::MAX);
        (self.source.per_s).filter(|_| is_whole).or(measured)
    }

    /// Requests that are sent at `at` or later, at `factor` times the load.
    pub fn sent_after(&self, at: SimTime, factor: f64) -> u64 {
        let first = (self.list).partition_point(|r| r.arrival.as_secs() / factor < at.as_secs());
        (self.list.len() - first) as u64
    }

    /// The moments of the load.
    pub fn moments(&self) -> Moments {
        let n = self.list.len() as f64;
        let (mut prompt, mut output, mut context, mut pairs) = (0.0, 0.0, 0.0, 0.0);
        for r in self.list.iter() {
            let (p, o) = (f64::from(r.prompt_tokens), f64::from(r.output_tokens));
            prompt += p;
            output += o;
            context += p * o + 0.5 * o * o;
            pairs += 0.5 * p * p;
        }
        let mut prompts: Vec<u32> = self.list.iter().map(|r| r.prompt_tokens).collect();
        prompts.sort_unstable();
        let longest = |r: &RequestSpec| r.prompt_tokens.saturating_add(r.max_tokens);
        // A longer run has longer requests, and an engine must take them all.
        let all = match self.goes_on() {
            true => (self.at_least(MOST_EXTENDED)).unwrap_or_else(|_| self.list.clone()),
            false => self.list.clone(),
        };
        let own = self.users.as_ref().map(|u| &u.scenario.workload);
        let closed = own.into_iter().flatten().filter_map(|s| match s.arrival {
            Arrival::Closed {
                concurrency, think, ..
            } => Some((f64::from(concurrency), think.secs())),
            _ => None,
        });
        let (users, pauses) = closed.fold((0.0, 0.0), |(n, z), (users, think)| {
            (n + users, z + users * think)
        });
        Moments {
            users: (users > 0.0).then_some(users),
            think_s: (users > 0.0).then(|| pauses / users),
            per_s: self.per_s(),
            prompt: prompt / n,
            output: output / n,
            context: context / output.max(1.0),
            pairs_per_token: pairs / prompt.max(1.0),
            prompts,
            longest: all.iter().map(longest).max().unwrap_or(0),
            shares: self.shares,
        }
    }

    /// All of them, at `factor` times their rate, or of `factor` times as many users.
    pub fn all(&self, factor: f64) -> Playback {
        if let Some(users) = &self.users {
            return self.live(users, users.play(None, factor, 1.0));
        }
        self.play(0, self.list.len(), 1, factor)
    }

    /// A stretch of `n`, whose rate is the median of such stretches, at `factor` times its rate, or of `factor` times as many users.
    pub fn stretch(&self, n: usize, factor: f64) -> Playback {
        if let Some(users) = &self.users {
            return self.live(users, users.play(Some(n), factor, 1.0));
        }
        let n = n.clamp(1, self.list.len());
        self.play(self.median_start(n), n, 1, factor)
    }

    /// A stretch of `n` as it is to a deployment that is `factor` times as slow, in that deployment's own time: requests come, or users come back, as much
    /// faster.
    pub fn slowed(&self, n: usize, factor: f64) -> Playback {
        match &self.users {
            Some(users) => self.live(users, users.play(Some(n), 1.0, factor)),
            None => self.stretch(n, factor),
        }
    }

    /// The stretch of `n` whose rate is the highest.
    pub fn busiest(&self, n: usize) -> Playback {
        if self.users.is_some() {
            return self.stretch(n, 1.0);
        }
        let n = n.clamp(1, self.list.len());
        let starts = (0..self.list.len() / n).map(|i| i * n);
        let at = starts.min_by(|a, b| self.between(*a, a + n).total_cmp(&self.between(*b, b + n)));
        self.play(at.unwrap_or(0), n, 1, 1.0)
    }

    /// Those with such `prompts` [tokens], at the times at which they are sent.
    pub fn only(&self, prompts: RangeInclusive<u32>) -> Requests {
        let list = (self.list.iter()).filter(|r| prompts.contains(&r.prompt_tokens));
        Requests {
            list: list.cloned().collect(),
            users: None,
            shares: self.shares,
            cut: self.cut,
            source: Arc::new(Source {
                scenario: self.source.scenario.clone(),
                per_s: self.source.per_s,
                prompts,
                drawn: Mutex::new(Arc::from(Vec::new())),
            }),
        }
    }

    /// What one of `replicas` gets of a stretch: each in turn, `n` requests or as many as there are; or its share of the users.
    pub fn share(&self, replicas: u32, n: usize) -> Playback {
        if let Some(users) = &self.users {
            let share = 1.0 / f64::from(replicas.max(1));
            return self.live(users, users.play(Some(n), share, 1.0));
        }
        let stride = replicas.max(1) as usize;
        let taken = n.saturating_mul(stride).clamp(1, self.list.len());
        self.play(self.median_start(taken), taken, stride, 1.0)
    }

    /// Where the stretch of `n` starts whose length in time is the median.
    fn median_start(&self, n: usize) -> usize {
        let mut spans: Vec<(f64, usize)> = (0..self.list.len() / n)
            .map(|i| (self.between(i * n, (i + 1) * n), i * n))
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        spans.get(spans.len() / 2).map_or(0, |s| s.1)
    }

    fn live(&self, users: &Users, mix: Option<Mix>) -> Playback {
        Playback {
            users: mix.map(|mix| (mix, SimDuration::from_secs(users.scenario.warmup.secs()))),
            ..self.play(0, 0, 1, 1.0)
        }
    }

    fn play(&self, from: usize, n: usize, stride: usize, factor: f64) -> Playback {
        played(self.list.clone(), (from, n, stride), factor, self.shares)
    }
}

/// `n` of `list` from the place `from` on, each `stride`-th, at `factor` times their rate.
fn played(
    list: Arc<[RequestSpec]>,
    (from, n, stride): (usize, usize, usize),
    factor: f64,
    shares: bool,
) -> Playback {
    Playback {
        users: None,
        origin: if from == 0 {
            SimTime::ZERO
        } else {
            list[from].arrival
        },
        at: from,
        end: from.saturating_add(n).min(list.len()),
        list,
        stride,
        scale: 1.0 / factor,
        shares,
    }
}

/// Requests that are played to a deployment.
pub struct Playback {
    /// Users in place of the list, and how long they take to come.
    users: Option<(Mix, SimDuration)>,
    list: Arc<[RequestSpec]>,
    at: usize,
    end: usize,
    stride: usize,
    origin: SimTime,
    /// Factor on the times.
    scale: f64,
    shares: bool,
}

impl Playback {
    fn time(&self, at: SimTime) -> SimTime {
        let since = at.since(self.origin);
        if self.scale == 1.0 {
            return SimTime::ZERO + since;
        }
        SimTime::ZERO + SimDuration((since.0 as f64 * self.scale).round() as u64)
    }

    /// What is left out of any run of it: users come one after another.
    pub fn warmup(&self) -> SimDuration {
        self.users.as_ref().map_or(SimDuration::ZERO, |u| u.1)
    }

    /// From the start until the last is sent [s].
    pub fn span_s(&self) -> f64 {
        match self.end.checked_sub(1) {
            Some(last) if last >= self.at => self.time(self.list[last].arrival).as_secs(),
            _ => 0.0,
        }
    }
}

impl Workload for Playback {
    fn peek(&self) -> Option<SimTime> {
        if let Some((mix, _)) = &self.users {
            return mix.peek();
        }
        (self.at < self.end).then(|| self.time(self.list[self.at].arrival))
    }

    fn pop(&mut self, id: ReqId, out: &mut RequestSpec) {
        if let Some((mix, _)) = &mut self.users {
            return mix.pop(id, out);
        }
        if self.at >= self.end {
            return;
        }
        let from = &self.list[self.at];
        let mut segments = std::mem::take(&mut out.segments);
        segments.clear();
        segments.extend_from_slice(&from.segments);
        *out = RequestSpec {
            arrival: self.time(from.arrival),
            prompt_tokens: from.prompt_tokens,
            output_tokens: from.output_tokens,
            max_tokens: from.max_tokens,
            stream: from.stream,
            priority: from.priority,
            session: from.session,
            segments,
            output_content: from.output_content,
            timeout: from.timeout,
            tag: from.tag,
        };
        self.at += self.stride;
    }

    fn on_end(&mut self, end: &RequestEnd) {
        if let Some((mix, _)) = &mut self.users {
            mix.on_end(end);
        }
    }

    fn reacts(&self) -> bool {
        self.users.is_some()
    }

    fn shares_content(&self) -> bool {
        self.shares
    }

    fn len_hint(&self) -> Option<u64> {
        if let Some((mix, _)) = &self.users {
            return mix.len_hint();
        }
        Some((self.end.saturating_sub(self.at)).div_ceil(self.stride) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poisson(rate: f64, n: u64) -> Requests {
        let text = format!(
            "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 100\n[[workload]]\narrival = {{ kind = \"poisson\", rate = \
             \"{rate} req/s\" }}\nprompt = 100\noutput = 10\n[run]\nrequests = {n}\n"
        );
        Requests::draw(&Scenario::parse(&text, "x.toml", &[]).unwrap(), 1).unwrap()
    }

    fn times(mut p: Playback) -> Vec<SimTime> {
        let mut out = Vec::new();
        while let Some(t) = p.peek() {
            let mut spec = RequestSpec::default();
            p.pop(0, &mut spec);
            assert_eq!(spec.arrival, t);
            out.push(t);
        }
        out
    }

    #[test]
    fn shares_of_replicas_add_up_to_the_load() {
        let r = poisson(10.0, 1000);
        let m = r.moments();
        assert!((m.per_s.unwrap() - 10.0).abs() < 1.5, "{m:?}");
        assert_eq!((m.prompt, m.output, m.context), (100.0, 10.0, 105.0));
        assert_eq!(times(r.share(4, 10_000)).len(), 250);
        assert_eq!(times(r.share(4, 20)).len(), 20);
        assert_eq!(times(r.all(1.0)).len(), 1000);
    }

    #[test]
    fn a_load_that_goes_on_has_no_end_and_begins_the_same() {
        let r = poisson(10.0, 100);
        let (own, more) = (times(r.all(1.0)), times(r.first(1000, 1.0).unwrap()));
        assert_eq!((own.len(), more.len()), (100, 1000));
        assert_eq!(own, more[..100]);
        assert_eq!(times(r.first(30, 1.0).unwrap()), own[..30]);
        // At twice the rate as much time has twice the requests.
        let end = |t: &[SimTime]| t[t.len() - 1].as_secs();
        let twice = times(r.first(2000, 2.0).unwrap());
        assert!((end(&twice) / end(&more) - 1.0).abs() < 0.1);
        assert_eq!(r.moments().per_s, Some(10.0));
    }

    #[test]
    fn a_curve_of_rates_takes_as_long_at_a_multiple_and_a_trace_has_as_many() {
        let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 100\n[[workload]]\narrival = { kind = \"ramp\", from = \"1 \
                    req/s\", to = \"20 req/s\", over = \"60 s\" }\nprompt = 10\noutput = 10\n[run]\nduration = \"60 s\"\n";
        let r = Requests::draw(&Scenario::parse(text, "x.toml", &[]).unwrap(), 1).unwrap();
        assert!(!r.goes_on() && r.anew(1.0).unwrap().is_none());
        let three = r.anew(3.0).unwrap().unwrap();
        assert!((three.span_s() / r.span_s() - 1.0).abs() < 0.05);
        assert!((three.len() as f64 / r.len() as f64 / 3.0 - 1.0).abs() < 0.2);
        assert!(poisson(10.0, 100).anew(3.0).unwrap().is_none());
    }

    #[test]
    fn a_factor_moves_times_only() {
        let r = poisson(10.0, 100);
        let (one, two) = (times(r.all(1.0)), times(r.all(2.0)));
        for (a, b) in one.iter().zip(&two) {
            assert!(a.0.abs_diff(2 * b.0) <= 1, "{a:?} {b:?}");
        }
    }

    #[test]
    fn parts_by_prompt_are_the_whole() {
        let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 100\n[[workload]]\narrival = { kind = \"poisson\", rate = \"10 req/s\" \
                    }\nprompt = { kind = \"uniform\", min = 1, max = 100 }\noutput = 10\n[run]\nrequests = 500\n";
        let r = Requests::draw(&Scenario::parse(text, "x.toml", &[]).unwrap(), 1).unwrap();
        let (short, long) = (r.only(0..=50), r.only(51..=100));
        assert_eq!(short.len() + long.len(), 500);
        assert!(short.moments().prompts.last() <= Some(&50) && long.moments().prompts[0] > 50);
        let mut both = times(short.all(1.0));
        both.extend(times(long.all(1.0)));
        both.sort();
        assert_eq!(both, times(r.all(1.0)));
        let span = |p: Playback| p.span_s();
        assert!(span(r.busiest(50)) <= span(r.stretch(50, 1.0)));
    }

    #[test]
    fn a_stretch_starts_at_zero_time() {
        let r = poisson(10.0, 1000);
        let t = times(r.stretch(100, 1.0));
        assert_eq!(t.len(), 100);
        assert!(t[0].as_secs() < 1.0, "{:?}", t[0]);
    }

    #[test]
    fn a_closed_loop_is_refused() {
        let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 100\n[[workload]]\narrival = { kind = \"closed\", \
                    concurrency = 4 }\nprompt = 100\noutput = 10\n[run]\nrequests = 10\n";
        let e = Requests::draw(&Scenario::parse(text, "x.toml", &[]).unwrap(), 1).err();
        assert!(e.unwrap().to_string().contains("open loop"));
    }
}
