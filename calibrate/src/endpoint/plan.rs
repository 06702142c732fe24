//! What a measurement will take, before it is made: which loads fit into the budget, by how fast the endpoint answered its first requests.
//!
//! Each load has a least: the time and tokens of the fewest requests that are worth keeping. A plan fits if the leasts of its loads do; what is
//! left beyond them is shared out. Where the whole plan does not fit, loads are left out, the least important first, then users,
//! prompts and outputs are halved until the loads fit that a fit cannot do without.

use serde::Serialize;

use super::drive::Lengths;

/// How fast the endpoint is, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Time to the first token of a short prompt that is alone [s].
    pub first_s: f64,
    /// What each further prompt token adds to it [s/token].
    pub prompt_token_s: f64,
    /// Time per output token of a request that is alone [s/token].
    pub output_token_s: f64,
    /// What each further request that is answered at the same time adds to the time per output token, over that of one alone [ratio].
    pub crowding: f64,
    /// Most requests sent per second [req/s].
    pub max_rate: f64,
}

/// Before any load of several users was measured: between an accelerator, which hardly notices, and a processor that computes one after the
/// other.
pub const CROWDING: f64 = 0.5;

impl Speed {
    /// Until `users` requests have been answered that are sent at once, of `prompt` and at most `output` tokens each [s].
    pub fn turn(&self, users: u32, prompt: f64, output: u32) -> f64 {
        let n = f64::from(users.max(1));
        self.first_s
            + n * (prompt * self.prompt_token_s + 1.0 / self.max_rate)
            + f64::from(output) * self.output_token_s * (1.0 + self.crowding * (n - 1.0))
    }
}

/// How large the loads are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Most users at once.
    pub users: u32,
    /// Longest prompt [tokens].
    pub longest: u32,
    /// Outputs are so much of what they are in the whole plan [ratio].
    pub outputs: f64,
}

/// Smallest shape that a plan shrinks to.
const LEAST_USERS: u32 = 2;
const LEAST_PROMPT: u32 = 64;
const LEAST_OUTPUTS: f64 = 0.25;
/// Requests of a load at a rate that are worth keeping, near saturation and at half of it.
pub const LEAST_NEAR: usize = 8;
/// See [`LEAST_NEAR`].
pub const LEAST_SLOW: usize = 6;
/// Requests one by one that are worth keeping.
pub const LEAST_PROMPTS: usize = 4;
/// Share of the highest rate that a load near saturation has [ratio].
pub const NEAR: f64 = 0.85;
/// The same of the slow one.
pub const SLOW: f64 = 0.5;

impl Shape {
    fn scaled(&self, output: u32) -> u32 {
        ((f64::from(output) * self.outputs).round() as u32).max(3)
    }

    /// Lengths of the requests one by one: every other prompt length first, so that a load that ends early has short and long ones.
    pub fn prompts(&self) -> Vec<Lengths> {
        let mut lengths = Vec::new();
        let mut n = 16;
        while n < self.longest {
            lengths.push(n);
            n *= 3;
        }
        lengths.push(self.longest);
        lengths
            .iter()
            .step_by(2)
            .chain(lengths.iter().skip(1).step_by(2))
            .flat_map(|&prompt| [3, 12].map(|output| Lengths { prompt, output }))
            .collect()
    }

    /// Requests of a rung of the ladder, over and over.
    pub fn rung(&self, long: bool) -> [Lengths; 4] {
        let short = 24.min(self.longest);
        let prompt = if long {
            (self.longest / 2).min(600)
        } else {
            short
        };
        [40, 56, 48, 64].map(|output| Lengths {
            prompt,
            output: self.scaled(output),
        })
    }

    /// Users of the load of mixed lengths.
    pub fn mixed_users(&self) -> u32 {
        self.users.min(16)
    }

    /// Ranges of the mixed lengths: prompts and outputs.
    pub fn mixed(&self) -> [[u32; 2]; 2] {
        let prompt = [16, (self.longest / 2).clamp(16, 512)];
        [prompt, [self.scaled(8), self.scaled(72)]]
    }

    /// Users of the load of longer outputs, and its ranges.
    pub fn longer_outputs(&self) -> (u32, [[u32; 2]; 2]) {
        let users = (self.users.min(16) * 2 / 3).max(1);
        let prompt = [32, (self.longest / 3).clamp(32, 384)];
        (users, [prompt, [self.scaled(40), self.scaled(120)]])
    }

    /// Ranges of the load of longer prompts.
    pub fn longer_prompts(&self) -> [[u32; 2]; 2] {
        let prompt = [64, (self.longest * 2 / 3).clamp(64, 700)];
        [prompt, [self.scaled(8), self.scaled(48)]]
    }

    /// Prompt that is sent twice, to see whether prefixes are cached [tokens].
    pub fn repeated_prompt(&self) -> u32 {
        (self.longest / 2).clamp(16, 512)
    }
}

/// A part of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Stage {
    /// Whether a prompt that comes again is computed again.
    PrefixCache,
    /// Single requests of several lengths.
    Prompts,
    /// So many users, with short prompts or long ones.
    Rung {
        /// Users.
        users: u32,
        /// Whether prompts are long.
        long: bool,
    },
    /// Users with mixed lengths.
    Mixed,
    /// A rate near saturation.
    Near,
    /// The same once more, held out.
    Again,
    /// Users with longer outputs, held out.
    LongerOutputs,
    /// Half the rate with longer prompts, held out.
    LongerPrompts,
}

/// Without these there is no profile: three loads to fit and one to hold out.
const ESSENTIAL: [Stage; 4] = [
    Stage::Prompts,
    Stage::Rung {
        users: 1,
        long: false,
    },
    Stage::Mixed,
    Stage::LongerOutputs,
];

/// Time and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Time [s].
    pub seconds: f64,
    /// Prompt and output tokens [tokens].
    pub tokens: u64,
}

impl Cost {
    fn within(&self, most: &Cost) -> bool {
        self.seconds <= most.seconds && self.tokens <= most.tokens
    }

    /// Both summed.
    pub fn sum(all: impl Iterator<Item = Cost>) -> Cost {
        all.fold(Cost::default(), |a, b| Cost {
            seconds: a.seconds + b.seconds,
            tokens: a.tokens + b.tokens,
        })
    }
}

/// Tokens that a request of `lengths` may take at most: prompts may come out longer than wanted [tokens].
pub fn tokens_of(lengths: Lengths) -> u64 {
    u64::from(lengths.prompt + lengths.prompt / 16 + 4 + lengths.output)
}

fn mean(range: [u32; 2]) -> f64 {
    f64::from(range[0] + range[1].max(range[0])) / 2.0
}

impl Stage {
    /// Its share of what is left beyond the leasts [ratio].
    pub fn share(self) -> f64 {
        match self {
            Stage::PrefixCache => 0.0,
            Stage::Prompts | Stage::Near => 0.14,
            // Six rungs of two contexts have 0.3 together.
            Stage::Rung { .. } => 0.025,
            Stage::Mixed => 0.13,
            Stage::Again => 0.09,
            Stage::LongerOutputs | Stage::LongerPrompts => 0.10,
        }
    }

    /// Until its requests have been answered that are sent at once [s].
    pub fn turn(self, shape: &Shape, speed: &Speed) -> f64 {
        let of = |users: u32, [prompt, output]: [[u32; 2]; 2]| {
            speed.turn(users, mean(prompt), output[1])
        };
        match self {
            Stage::PrefixCache => speed.turn(1, f64::from(shape.repeated_prompt()), 1),
            Stage::Prompts => speed.turn(1, f64::from(shape.longest), 12),
            Stage::Rung { users, long } => {
                let kinds = shape.rung(long);
                let output = kinds.iter().take(users as usize).map(|l| l.output).max();
                speed.turn(users, f64::from(kinds[0].prompt), output.unwrap_or(1))
            }
            Stage::Mixed | Stage::Near | Stage::Again => of(shape.mixed_users(), shape.mixed()),
            Stage::LongerOutputs => {
                let (users, ranges) = shape.longer_outputs();
                of(users, ranges)
            }
            Stage::LongerPrompts => of(1, shape.longer_prompts()),
        }
    }

    /// What the fewest requests cost that are worth keeping.
    pub fn least(self, shape: &Shape, speed: &Speed) -> Cost {
        let turn = self.turn(shape, speed);
        let drawn = |n: usize, [prompt, output]: [[u32; 2]; 2]| {
            let longest = Lengths {
                prompt: mean(prompt).ceil() as u32,
                output: mean(output).ceil() as u32,
            };
            n as u64 * tokens_of(longest)
        };
        let at_rate = |n: usize, share: f64, ranges: [[u32; 2]; 2]| {
            let users = shape.mixed_users();
            let [prompt, output] = shape.mixed();
            let whole = speed.turn(users, mean(prompt), mean(output).ceil() as u32);
            let rate = (share * f64::from(users) / whole).min(speed.max_rate);
            // A Poisson process sends fewer than on average every other time.
            Cost {
                seconds: 1.5 * n as f64 / rate + turn,
                tokens: 2 * drawn(n, ranges),
            }
        };
        match self {
            Stage::PrefixCache => Cost {
                seconds: 6.0 * turn,
                tokens: 6 * tokens_of(Lengths {
                    prompt: shape.repeated_prompt(),
                    output: 1,
                }),
            },
            Stage::Prompts => Cost::sum(shape.prompts().into_iter().map(|l| Cost {
                seconds: speed.turn(1, f64::from(l.prompt), l.output),
                tokens: tokens_of(l),
            })),
            Stage::Rung { users, long } => Cost {
                seconds: turn,
                tokens: (shape.rung(long).into_iter().cycle())
                    .take(users as usize)
                    .map(tokens_of)
                    .sum(),
            },
            Stage::Mixed => Cost {
                seconds: turn,
                tokens: drawn(shape.mixed_users() as usize, shape.mixed()),
            },
            Stage::Near | Stage::Again => at_rate(LEAST_NEAR, NEAR, shape.mixed()),
            Stage::LongerOutputs => {
                let (users, ranges) = shape.longer_outputs();
                Cost {
                    seconds: turn,
                    tokens: drawn(users as usize, ranges),
                }
            }
            Stage::LongerPrompts => at_rate(LEAST_SLOW, SLOW, shape.longer_prompts()),
        }
    }
}

/// The rungs of the ladder up to `users`.
fn rungs(users: u32) -> Vec<u32> {
    let mut rungs: Vec<u32> = std::iter::successors(Some(1u32), |n| n.checked_mul(2))
        .take_while(|n| *n < users)
        .collect();
    rungs.push(users);
    rungs
}

/// All stages of a shape, the most important first.
fn stages(shape: &Shape) -> Vec<Stage> {
    let rung = |users, long| Stage::Rung { users, long };
    let rungs = rungs(shape.users);
    let mut all = ESSENTIAL.to_vec();
    all.extend([
        Stage::PrefixCache,
        rung(shape.users, false),
        Stage::Near,
        Stage::Again,
        rung(rungs[rungs.len() / 2], false),
        Stage::LongerPrompts,
    ]);
    all.extend(rungs.iter().map(|&users| rung(users, false)));
    // The second context matters where many run; at few it is what single prompts measured.
    let many = rungs.iter().filter(|&&n| n == 1 || n % 4 == 0);
    all.extend(many.map(|&users| rung(users, true)));
    let mut seen = Vec::with_capacity(all.len());
    all.retain(|s| {
        let new = !seen.contains(s);
        seen.push(*s);
        new
    });
    all
}

/// What will be measured, in that order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// How large its loads are.
    pub shape: Shape,
    /// Its stages.
    pub stages: Vec<Stage>,
    /// Stages of the whole plan.
    pub of: usize,
}

/// What would have been needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Needed {
    /// For the smallest plan that makes a profile.
    pub least: Cost,
    /// For the whole plan.
    pub whole: Cost,
}

impl Plan {
    /// The whole plan, whatever it takes.
    pub fn whole(shape: Shape) -> Plan {
        let mut stages = stages(&shape);
        stages.sort_unstable();
        Plan {
            shape,
            of: stages.len(),
            stages,
        }
    }

    /// The fewest requests of all stages that are not `done`.
    pub fn least(&self, speed: &Speed, done: &dyn Fn(Stage) -> bool) -> Cost {
        let open = self.stages.iter().filter(|s| !done(**s));
        Cost::sum(open.map(|s| s.least(&self.shape, speed)))
    }

    /// The largest plan of at most `shape` that fits into `most`. Stages that are `done` cost nothing.
    ///
    /// # Errors
    /// Not even the smallest does.
    pub fn fitting(
        shape: Shape,
        speed: &Speed,
        most: &Cost,
        done: &dyn Fn(Stage) -> bool,
    ) -> Result<Plan, Needed> {
        let whole = Plan::whole(shape);
        let mut least = Cost::default();
        for shape in shrinking(shape) {
            let cost = |s: &Stage| match done(*s) {
                true => Cost::default(),
                false => s.least(&shape, speed),
            };
            let mut spent = Cost::sum(ESSENTIAL.iter().map(cost));
            least = spent;
            if !spent.within(most) {
                continue;
            }
            let mut kept = ESSENTIAL.to_vec();
            for stage in stages(&shape).into_iter().skip(ESSENTIAL.len()) {
                let with = Cost::sum([spent, cost(&stage)].into_iter());
                if with.within(most) {
                    spent = with;
                    kept.push(stage);
                }
            }
            kept.sort_unstable();
            return Ok(Plan {
                shape,
                stages: kept,
                of: whole.stages.len(),
            });
        }
        Err(Needed {
            least,
            whole: whole.least(speed, done),
        })
    }

    /// Leaves out stages after the first `from` that no longer fit into `most`, the least important first; never those that a fit
    /// cannot do without. How many were left out.
    pub fn shorten(
        &mut self,
        from: usize,
        speed: &Speed,
        most: &Cost,
        done: &dyn Fn(Stage) -> bool,
    ) -> usize {
        let before = self.stages.len();
        let order = stages(&self.shape);
        loop {
            let rest = &self.stages[from.min(self.stages.len())..];
            let open = rest.iter().filter(|s| !done(**s));
            let cost = Cost::sum(open.clone().map(|s| s.least(&self.shape, speed)));
            let last = open
                .filter(|s| !ESSENTIAL.contains(s))
                .max_by_key(|s| order.iter().position(|o| o == *s))
                .copied();
            match last {
                Some(stage) if !cost.within(most) => self.stages.retain(|s| *s != stage),
                _ => return before - self.stages.len(),
            }
        }
    }

    /// Whether it is less than the whole plan.
    pub fn shrunk(&self) -> bool {
        self.stages.len() < self.of
    }
}

/// `shape`, and smaller and smaller ones: users, prompts and outputs halved in turns.
fn shrinking(shape: Shape) -> Vec<Shape> {
    let halves = |n: u32, least: u32| -> Vec<u32> {
        std::iter::successors(Some(n), |n| Some(n / 2))
            .take_while(|&m| m == n || m >= least)
            .collect()
    };
    let users = halves(shape.users, LEAST_USERS);
    let prompts = halves(shape.longest, LEAST_PROMPT);
    let outputs = [1.0, 0.5, LEAST_OUTPUTS];
    let mut all = Vec::new();
    for (i, &users) in users.iter().enumerate() {
        for (j, &longest) in prompts.iter().enumerate() {
            for (k, &scale) in outputs.iter().enumerate() {
                let smaller = Shape {
                    users,
                    longest,
                    outputs: shape.outputs * scale,
                };
                all.push((i + j + k, smaller));
            }
        }
    }
    all.sort_by_key(|(steps, _)| *steps);
    all.into_iter().map(|(_, shape)| shape).collect()
}

/// A time in words, e.g. `2 min 30 s`.
pub fn words(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match (s / 60, s % 60) {
        (0, s) => format!("{s} s"),
        (min, _) if min >= 10 => format!("{} min", (seconds / 60.0).round()),
        (min, 0) => format!("{min} min"),
        (min, s) => format!("{min} min {s} s"),
    }
}

/// A budget of at least `seconds`, as `--budget` takes it: full tens of seconds, from 5 min on full minutes.
pub fn budget_of(seconds: f64) -> String {
    if seconds < 300.0 {
        format!("{:.0}s", (seconds / 10.0).ceil() * 10.0)
    } else {
        format!("{:.0}min", (seconds / 60.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        users: 32,
        longest: 1500,
        outputs: 1.0,
    };

    /// An endpoint that answers a token in `output_token_s`.
    fn speed(output_token_s: f64) -> Speed {
        Speed {
            first_s: 2.0 * output_token_s,
            prompt_token_s: 0.05 * output_token_s,
            output_token_s,
            crowding: CROWDING,
            max_rate: 100.0,
        }
    }

    fn most(seconds: f64) -> Cost {
        Cost {
            seconds,
            tokens: 2_000_000,
        }
    }

    fn none(_: Stage) -> bool {
        false
    }

    #[test]
    fn a_fast_endpoint_gets_the_whole_plan_and_a_slower_one_less_and_less_of_it() {
        let mut before = usize::MAX;
        let whole = Plan::whole(SHAPE).stages.len() * SHAPE.users as usize;
        for token in [0.002, 0.01, 0.03, 0.1, 0.5] {
            let plan = Plan::fitting(SHAPE, &speed(token), &most(270.0), &none).unwrap();
            if token < 0.01 {
                assert_eq!(plan, Plan::whole(SHAPE));
            }
            let cost = plan.least(&speed(token), &none);
            assert!(cost.seconds <= 270.0, "{token}: {cost:?}");
            for stage in ESSENTIAL {
                assert!(plan.stages.contains(&stage), "{token}: {plan:?}");
            }
            let size = plan.stages.len() * plan.shape.users as usize;
            assert!(size <= before, "{token}: {plan:?}");
            before = size;
        }
        assert!(before < whole, "{before} of {whole}");
    }

    #[test]
    fn an_endpoint_that_is_too_slow_is_told_what_it_needs_and_gets_a_plan_with_it() {
        let slow = speed(1.0);
        let nothing = Plan::fitting(SHAPE, &slow, &most(0.0), &none).unwrap_err();
        let half = most(0.5 * nothing.least.seconds);
        let needed = Plan::fitting(SHAPE, &slow, &half, &none).unwrap_err();
        assert_eq!(needed.least.seconds, nothing.least.seconds);
        assert!(needed.whole.seconds > 10.0 * needed.least.seconds);
        let plan = Plan::fitting(SHAPE, &slow, &most(needed.least.seconds), &none).unwrap();
        assert_eq!(plan.stages, ESSENTIAL);
        let tokens = Cost {
            seconds: 1e9,
            tokens: 60,
        };
        let needed = Plan::fitting(SHAPE, &slow, &tokens, &none).unwrap_err();
        assert!(needed.least.tokens > 60);
    }

    #[test]
    fn what_was_measured_before_costs_nothing() {
        let slow = speed(1.0);
        let needed = Plan::fitting(SHAPE, &slow, &most(0.0), &none).unwrap_err();
        let rest = |s: Stage| s == Stage::Prompts || s == Stage::Mixed;
        let less = Plan::fitting(SHAPE, &slow, &most(0.0), &rest).unwrap_err();
        assert!(less.least.seconds < needed.least.seconds);
        let all = Plan::fitting(SHAPE, &slow, &most(0.0), &|_| true).unwrap();
        assert_eq!(all, Plan::whole(SHAPE));
    }

    #[test]
    fn a_plan_that_runs_late_drops_what_matters_least_and_keeps_what_a_fit_needs() {
        let mut plan = Plan::whole(SHAPE);
        assert_eq!(plan.shorten(0, &speed(0.001), &most(270.0), &none), 0);
        let late = speed(0.2);
        let dropped = plan.shorten(0, &late, &most(270.0), &none);
        assert!(dropped > 0 && plan.shrunk());
        assert!(!plan.stages.contains(&Stage::Rung {
            users: 32,
            long: true
        }));
        plan.shorten(0, &late, &most(0.0), &none);
        assert_eq!(plan.stages, ESSENTIAL);
    }

    #[test]
    fn times_read_well_and_budgets_can_be_given_back() {
        for (seconds, text, budget) in [
            (4.4, "4 s", "10s"),
            (150.0, "2 min 30 s", "150s"),
            (240.0, "4 min", "240s"),
            (1234.0, "21 min", "21min"),
        ] {
            assert_eq!(
                (words(seconds).as_str(), budget_of(seconds).as_str()),
                (text, budget)
            );
        }
    }
}
