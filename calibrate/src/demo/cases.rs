//! The loads of the closed loop, each a scenario that both the harness and the simulator read.

use sim::record::RunRecord;
use sim::request::Outcome;

/// Length of the first part of every run that stays out of the statistics [s].
pub const WARMUP_S: f64 = 1.0;

/// How requests arrive in a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Users that each have one request under way.
    Users(u32),
    /// Poisson arrivals at this share of the rate that 16 users reach on the default engine.
    Share(f64),
}

/// One load on one engine.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Short name; also that of its files.
    pub name: &'static str,
    /// What is other than in the fitted loads.
    pub shows: &'static str,
    /// Whether the step model is fitted on it.
    pub fitted: bool,
    /// How requests arrive.
    pub pace: Pace,
    /// `prompt`, `output` and further keys of the workload (TOML).
    pub workload: &'static str,
    /// Keys of `[engine]` (TOML) and the same as flags of `servetwin serve`.
    pub engine: [&'static str; 2],
    /// Tensor-parallel ranks, pipeline stages, replicas.
    pub layout: [u32; 3],
}

/// Lengths of the fitted loads.
const MIXED: &str = "prompt = { kind = \"uniform\", min = 16, max = 192 }\noutput = { kind = \"uniform\", min = 8, max = 64 }";

const DEFAULT: Case = Case {
    name: "",
    shows: "",
    fitted: false,
    pace: Pace::Users(1),
    workload: MIXED,
    engine: ["", ""],
    layout: [1, 1, 1],
};

/// The load that sets the rates of the open ones.
pub const BUSY: &str = "users-16";

/// The loads, those that are fitted first.
pub const CASES: [Case; 14] = [
    Case {
        name: "one-user",
        shows: "one request at a time",
        fitted: true,
        ..DEFAULT
    },
    Case {
        name: BUSY,
        shows: "16 users, each with one request under way",
        fitted: true,
        pace: Pace::Users(16),
        ..DEFAULT
    },
    Case {
        name: "poisson-50",
        shows: "Poisson at half the rate of 16 users",
        fitted: true,
        pace: Pace::Share(0.5),
        ..DEFAULT
    },
    Case {
        name: "poisson-25",
        shows: "half the fitted rate",
        pace: Pace::Share(0.25),
        ..DEFAULT
    },
    Case {
        name: "poisson-75",
        shows: "half as much again",
        pace: Pace::Share(0.75),
        ..DEFAULT
    },
    Case {
        name: "users-6",
        shows: "6 users",
        pace: Pace::Users(6),
        ..DEFAULT
    },
    Case {
        name: "users-32",
        shows: "32 users, beyond the fitted batch",
        pace: Pace::Users(32),
        ..DEFAULT
    },
    Case {
        name: "long-prompts",
        shows: "prompts of 256 to 448 tokens, short answers",
        pace: Pace::Users(4),
        workload: "prompt = { kind = \"uniform\", min = 256, max = 448 }\noutput = { kind = \"uniform\", min = 4, max = 16 }",
        ..DEFAULT
    },
    Case {
        name: "long-answers",
        shows: "answers of 128 to 256 tokens, short prompts",
        pace: Pace::Users(8),
        workload: "prompt = { kind = \"uniform\", min = 8, max = 32 }\noutput = { kind = \"uniform\", min = 128, max = 256 }",
        ..DEFAULT
    },
    Case {
        name: "max-seqs-4",
        shows: "12 users on an engine that runs 4 at once",
        pace: Pace::Users(12),
        engine: ["max_num_seqs = 4", "--max-num-seqs 4"],
        ..DEFAULT
    },
    Case {
        name: "shared-prefix",
        shows: "8 users whose prompts share their first 128 tokens",
        pace: Pace::Users(8),
        workload: "prompt = { kind = \"uniform\", min = 16, max = 96 }\noutput = { kind = \"uniform\", min = 8, max = 64 }\n\
                   prefix = { tokens = 128, groups = 2 }",
        ..DEFAULT
    },
    Case {
        name: "tp-2",
        shows: "two tensor-parallel ranks",
        pace: Pace::Users(8),
        layout: [2, 1, 1],
        ..DEFAULT
    },
    Case {
        name: "pp-2",
        shows: "two pipeline stages",
        pace: Pace::Users(8),
        layout: [1, 2, 1],
        ..DEFAULT
    },
    Case {
        name: "replicas-2",
        shows: "two replicas behind a round-robin router",
        pace: Pace::Users(16),
        layout: [1, 1, 2],
        ..DEFAULT
    },
];

/// The order in which `cases` are measured in a round: the fitted ones, [`BUSY`] first, evenly among the others, and every other
/// round backwards. So the speed of a machine that drifts steadily is the same for all of them on the mean of two rounds, and no
/// round fits on another hour than it predicts.
pub fn order(cases: &[&Case], round: usize) -> Vec<usize> {
    let (mut fitted, held_out): (Vec<usize>, Vec<usize>) =
        (0..cases.len()).partition(|&i| cases[i].fitted);
    if let Some(busy) = fitted.iter().position(|&i| cases[i].name == BUSY) {
        fitted.rotate_left(busy);
    }
    let each = held_out.len().div_ceil(fitted.len().max(1)).max(1);
    let mut between = held_out.chunks(each);
    let mut order: Vec<usize> = Vec::with_capacity(cases.len());
    for i in fitted {
        order.push(i);
        order.extend(between.next().unwrap_or_default());
    }
    order.extend(between.flatten());
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// What the rates of the open loads are shares of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paces {
    /// Rate at which the default engine finishes requests of 16 users [req/s]; infinite until it is known.
    pub busy_per_s: f64,
    /// How long each load sends [s]; longer where a slow machine needs it ([`Case::seconds`]).
    pub seconds: f64,
}

impl Paces {
    /// From the record of the load with 16 users; none if nothing finished.
    pub fn of(record: &RunRecord, seconds: f64) -> Option<Paces> {
        let finished = record
            .request_rows
            .as_ref()?
            .iter()
            .filter(|r| r.outcome == Outcome::Finished)
            .count();
        let busy_per_s = finished as f64 / record.end.as_secs();
        (busy_per_s > 0.0).then_some(Paces {
            busy_per_s,
            seconds,
        })
    }
}

/// Requests that an open load sends after the warm-up at least, on average.
const LEAST_REQUESTS: f64 = 12.0;

impl Case {
    /// How long it sends [s]: so long that every user sends again after the warm-up, and that an open load sends some requests, also
    /// where the default engine is slow.
    pub fn seconds(&self, paces: &Paces) -> f64 {
        let needed = match self.pace {
            Pace::Users(n) => 2.0 * f64::from(n) / paces.busy_per_s,
            Pace::Share(share) => LEAST_REQUESTS / (share * paces.busy_per_s),
        };
        paces.seconds.max((WARMUP_S + needed).ceil())
    }

    /// Whether it can be sent: open loads need the rate of the busy one.
    pub fn paced(&self, paces: &Paces) -> bool {
        matches!(self.pace, Pace::Users(_)) || paces.busy_per_s.is_finite()
    }

    /// Its scenario file. `model` is the path of the model's `config.json` and `profile` that of the fitted step model, both
    /// as the scenario's folder sees them; `kv_blocks` is what each replica of the engine has.
    pub fn scenario(
        &self,
        model: &str,
        profile: &str,
        kv_blocks: u64,
        paces: &Paces,
        seed: u64,
    ) -> String {
        let [tp, pp, replicas] = self.layout;
        let arrival = match self.pace {
            Pace::Users(n) => format!("{{ kind = \"closed\", concurrency = {n} }}"),
            Pace::Share(share) => format!(
                "{{ kind = \"poisson\", rate = \"{:.3} req/s\" }}",
                share * paces.busy_per_s
            ),
        };
        format!(
            "name = \"{}\"\ndescription = \"{}\"\nseed = {seed}\n\n[model]\nconfig = {}\nkv_cache = \"fp32\"\n\n\
             [hardware]\nstep_profile = {}\n\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = {kv_blocks}\nasync_scheduling = false\n{}\n\n\
             [layout]\ntp = {tp}\npp = {pp}\nreplicas = {replicas}\n\n\
             [[workload]]\nname = \"load\"\narrival = {arrival}\n{}\n\n\
             [run]\nduration = \"{} s\"\nwarmup = \"{WARMUP_S} s\"\n",
            self.name,
            self.shows,
            toml::Value::from(model),
            toml::Value::from(profile),
            self.engine[0],
            self.workload,
            self.seconds(paces),
        )
    }

    /// Flags of `servetwin serve` for the engine of this case.
    pub fn flags(&self) -> Vec<String> {
        let [tp, pp, replicas] = self.layout;
        let mut flags: Vec<String> = self.engine[1]
            .split_whitespace()
            .map(String::from)
            .collect();
        for (flag, n) in [("--tp", tp), ("--pp", pp), ("--replicas", replicas)] {
            if n > 1 {
                flags.extend([flag.to_string(), n.to_string()]);
            }
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_loads_are_fitted_and_more_than_six_are_not() {
        let fitted = CASES.iter().filter(|c| c.fitted).count();
        assert_eq!(fitted, 3);
        assert!(CASES.len() - fitted >= 6);
    }

    #[test]
    fn a_round_begins_with_the_load_that_sets_the_rates_and_spreads_the_fitted_ones() {
        let all: Vec<&Case> = CASES.iter().collect();
        let names = |round| -> Vec<&str> {
            let order = order(&all, round);
            order.into_iter().map(|i| all[i].name).collect()
        };
        let first = names(0);
        assert_eq!(first[0], BUSY);
        assert!(matches!(
            CASES[1],
            Case {
                name: BUSY,
                pace: Pace::Users(16),
                ..
            }
        ));
        let at: Vec<usize> = (0..first.len())
            .filter(|&k| all.iter().any(|c| c.fitted && c.name == first[k]))
            .collect();
        assert_eq!(at, [0, 5, 10]);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), CASES.len(), "each once");
        let backwards: Vec<&str> = names(1).into_iter().rev().collect();
        assert_eq!(backwards, first);
        assert_eq!(names(2), first);
    }

    #[test]
    fn any_choice_of_held_out_loads_is_measured_once_a_round() {
        for n in 3..CASES.len() {
            let some: Vec<&Case> = CASES.iter().take(n).collect();
            let mut found = order(&some, 0);
            found.sort_unstable();
            assert_eq!(found, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn names_are_those_of_files_and_unlike() {
        let mut names: Vec<_> = CASES.iter().map(|c| c.name).collect();
        assert!(
            names
                .iter()
                .all(|n| n.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }

    #[test]
    fn flags_are_those_of_the_layout_and_the_limits() {
        let case = |name: &str| CASES.iter().find(|c| c.name == name).unwrap();
        assert_eq!(case("tp-2").flags(), ["--tp", "2"]);
        assert_eq!(case("max-seqs-4").flags(), ["--max-num-seqs", "4"]);
        assert!(case("one-user").flags().is_empty());
    }

    #[test]
    fn a_slow_engine_gets_the_time_to_serve_every_user_twice() {
        let case = |n| Case {
            pace: Pace::Users(n),
            ..DEFAULT
        };
        let paces = |busy_per_s| Paces {
            busy_per_s,
            seconds: 3.0,
        };
        assert_eq!(case(32).seconds(&paces(f64::INFINITY)), 3.0);
        assert_eq!(case(32).seconds(&paces(100.0)), 3.0);
        assert_eq!(case(32).seconds(&paces(10.0)), 8.0);
        assert_eq!(case(4).seconds(&paces(10.0)), 3.0);
        let open = Case {
            pace: Pace::Share(0.25),
            ..DEFAULT
        };
        // 0.5 req/s, where three seconds would see one request or none after the warm-up.
        assert_eq!(open.seconds(&paces(2.0)), 25.0);
        assert_eq!(open.seconds(&paces(100.0)), 3.0);
        assert!(!open.paced(&paces(f64::INFINITY)) && case(4).paced(&paces(f64::INFINITY)));
    }
}
