//! A load from a command, and `vllm bench serve`, by vllm-project/vllm `vllm/benchmarks/{serve,datasets}.py`.

use std::sync::Arc;

use toml::{Table as Keys, Value};

use super::args::{self, Args};
use super::draft::{Draft, Origin, Stream};
use crate::keys::Read::{Number, Text, Whole};
use crate::keys::{Key, Table, Takes, not_modelled, not_modelled_flag, says};
use crate::place::{Place, shown};
use crate::report::Fate;
use crate::text::shell::Word;

pub(super) const FILE: &str = "a data set's own lengths are not read: convert it to a trace (servetwin trace), or name its lengths";

/// `vllm bench serve`.
pub const VLLM_BENCH: Table = Table {
    kind: "vllm-bench",
    title: "`vllm bench serve ...`, `python benchmark_serving.py ...`",
    keys: &[
        says("--request-rate", "`arrival.rate`; inf is a burst", Text),
        says("--burstiness", "`arrival.cv` = 1/sqrt(burstiness)", Number),
        says(
            "--max-concurrency",
            "`arrival.max_in_flight` of a burst",
            Whole,
        ),
        says("--num-prompts", "`requests`", Whole),
        says("--dataset-name", "which of the lengths count", Text),
        says("--random-input-len --input-len", "`prompt`", Whole),
        says("--random-output-len --output-len", "`output`", Whole),
        says(
            "--random-range-ratio",
            "`prompt` and `output` uniform around their lengths",
            Number,
        ),
        says("--random-prefix-len", "`prefix.tokens`", Whole),
        says("--ramp-up-start-rps", "`arrival.from` of a ramp", Number),
        says("--ramp-up-end-rps", "`arrival.to` of a ramp", Number),
        Key {
            takes: Takes::Values,
            ..says(
                "--goodput",
                "`[slo]`: ttft, tpot, e2el in milliseconds",
                Text,
            )
        },
        not_modelled("--dataset-path", FILE),
        not_modelled("--sharegpt-output-len", FILE),
        not_modelled("--sonnet-input-len", FILE),
        not_modelled("--sonnet-output-len", FILE),
        not_modelled("--prefix-repetition-prefix-len", "set prefix.tokens"),
        says(
            "--ramp-up-strategy",
            "`arrival.kind` = ramp where it is linear",
            Text,
        ),
        not_modelled(
            "--probe-request-rate",
            "write a [[workload]] of its own for probes",
        ),
        not_modelled_flag(
            "--self-timed",
            "name the file as a trace: arrival = { kind = \"trace\", file = ... }",
        ),
        Key {
            takes: Takes::Values,
            ..not_modelled("--lora-modules", "LoRA adapters are not simulated")
        },
        not_modelled("--lora-assignment", "LoRA adapters are not simulated"),
    ],
    idle: &[
        "--backend",
        "--endpoint-type",
        "--base-url",
        "--host",
        "--port",
        "--endpoint",
        "--model",
        "--tokenizer",
        "--served-model-name",
        "--seed",
        "--label",
        "--metadata",
        "--result-dir",
        "--result-filename",
        "--percentile-metrics",
        "--metric-percentiles",
        "--tokenizer-mode",
        "--request-id-prefix",
        "--num-warmups",
        "--logprobs",
        "--temperature",
        "--top-p",
        "--top-k",
        "--min-p",
        "--extra-body",
        "--header",
        "--ready-check-timeout-sec",
        "--repetition-penalty",
        "--best-of",
        "--frequency-penalty",
        "--presence-penalty",
        "--chat-template-kwargs",
        "--timeline-itl-thresholds",
    ],
    idle_flags: &[
        "--save-result",
        "--save-detailed",
        "--append-result",
        "--ignore-eos",
        "--trust-remote-code",
        "--disable-tqdm",
        "--profile",
        "--disable-shuffle",
        "--no-stream",
        "--use-beam-search",
        "--no-oversample",
        "--insecure",
        "--skip-chat-template",
        "--skip-tokenizer-init",
        "--enable-multimodal-chat",
        "--plot-timeline",
        "--plot-dataset-stats",
    ],
};

pub(super) fn table(pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Keys {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

pub(super) fn rate(per_s: f64) -> Value {
    format!("{per_s} req/s").into()
}

/// Lengths around a mean: fixed, or a bell curve.
pub(super) fn lengths(mean: i64, std: f64, min: Option<i64>, max: Option<i64>) -> Value {
    if std == 0.0 && min.is_none() && max.is_none() {
        return mean.into();
    }
    let mut keys = table([
        ("kind", "normal".into()),
        ("mean", (mean as f64).into()),
        ("std", std.into()),
    ]);
    keys.extend(min.map(|n| ("min".to_owned(), n.into())));
    keys.extend(max.map(|n| ("max".to_owned(), n.into())));
    keys.into()
}

/// One load from a command, and what remains to be said of it.
pub(super) struct Load<'a> {
    pub(super) draft: &'a mut Draft,
    pub(super) args: &'a Args,
    pub(super) keys: Keys,
    pub(super) start: Origin,
}

impl<'a> Load<'a> {
    pub(super) fn new(
        args: &'a Args,
        words: &[Word],
        file: &Arc<str>,
        program: &str,
        draft: &'a mut Draft,
    ) -> Load<'a> {
        let line = words.first().map_or(1, |w| w.line);
        Load {
            draft,
            args,
            keys: Keys::new(),
            start: Origin::new(Place::new(file, line), program, ""),
        }
    }

    /// A whole number of an option, reported as a part of the workload.
    pub(super) fn whole(&mut self, name: &str, what: &str) -> Option<i64> {
        let (n, origin) = args::whole(self.args.get(name), self.draft)?;
        self.draft.used(&origin, what);
        Some(n)
    }

    /// A number of an option, reported as a part of the workload.
    pub(super) fn number(&mut self, name: &str, what: &str) -> Option<f64> {
        let (n, origin) = args::number(self.args.get(name), self.draft)?;
        self.draft.used(&origin, what);
        Some(n)
    }

    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.insert(key.to_owned(), value.into());
    }

    /// An assumption about the load, for the report.
    pub(super) fn assumed(&mut self, key: &str, value: impl std::fmt::Display, why: &str) {
        self.draft.report.defaults.push(crate::report::Default {
            key: format!("workload.{key}"),
            value: value.to_string(),
            note: why.to_owned(),
        });
    }

    pub(super) fn finish(self) {
        let from = format!("{} {}", self.start.place, self.start.key);
        let keys = self.keys;
        self.draft.stream(Stream { keys, from });
    }
}

/// Reads the words behind `vllm bench serve`.
pub fn vllm_bench(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let args = args::read(&VLLM_BENCH, words, file, draft);
    let mut load = Load::new(&args, words, file, "vllm bench serve", draft);
    let requests = load
        .whole("--num-prompts", "workload.requests")
        .unwrap_or_else(|| {
            load.assumed("requests", 1000, "the command's default of --num-prompts");
            1000
        });
    arrival_of_bench(&mut load, requests);
    load.put("requests", requests);
    let dataset = args.text("--dataset-name").unwrap_or("random");
    if let Some(g) = args.get("--dataset-name") {
        let fate = if dataset == "random" {
            Fate::Used
        } else {
            Fate::NotModelled
        };
        load.draft.fate(
            &g.origin,
            fate,
            if dataset == "random" {
                "lengths of the options"
            } else {
                FILE
            },
        );
    }
    let ratio = load
        .number("--random-range-ratio", "workload.prompt, workload.output")
        .unwrap_or(0.0);
    for (name, key, default) in [
        ("--random-input-len", "prompt", 1024),
        ("--random-output-len", "output", 128),
    ] {
        let mean = load
            .whole(name, &format!("workload.{key}"))
            .unwrap_or_else(|| {
                load.assumed(key, default, "the command's default");
                default
            });
        let spread = |factor: f64| ((mean as f64 * factor).round() as i64).max(1);
        let value = match ratio > 0.0 {
            true => table([
                ("kind", "uniform".into()),
                ("min", spread(1.0 - ratio.min(1.0)).into()),
                ("max", spread(1.0 + ratio).into()),
            ])
            .into(),
            false => Value::from(mean),
        };
        load.put(key, value);
    }
    if let Some(tokens) = load
        .whole("--random-prefix-len", "workload.prefix.tokens")
        .filter(|n| *n > 0)
    {
        load.put("prefix", table([("tokens", tokens.into())]));
    }
    if let Some(g) = args.get("--goodput") {
        targets(
            g,
            &[("ttft", "ttft"), ("tpot", "tpot"), ("e2el", "e2e")],
            load.draft,
        );
    }
    load.finish();
}

fn arrival_of_bench(load: &mut Load<'_>, requests: i64) {
    if let Some(g) = load.args.get("--ramp-up-strategy") {
        match g.value.as_str() {
            "linear" => load.draft.used(&g.origin, "workload.arrival.kind = ramp"),
            _ => load
                .draft
                .fate(&g.origin, Fate::NotModelled, "a linear ramp is meant"),
        }
    }
    let ramp = (
        load.number("--ramp-up-start-rps", "workload.arrival.from"),
        load.number("--ramp-up-end-rps", "workload.arrival.to"),
    );
    let per_s = match load.args.get("--request-rate") {
        Some(g) if g.value != "inf" => {
            let read = crate::keys::number(&g.value);
            match read {
                Ok(n) => {
                    load.draft
                        .used(&g.origin, format!("workload.arrival.rate = {n} req/s"));
                    Some(n)
                }
                Err(why) => {
                    load.draft.fault(g.origin.fault(format!("{why}, or inf")));
                    Some(1.0)
                }
            }
        }
        Some(g) => {
            load.draft.used(&g.origin, "all at once");
            None
        }
        None => {
            load.assumed(
                "arrival.kind",
                "burst",
                "the command's default of --request-rate is inf",
            );
            None
        }
    };
    let most = args::whole(load.args.get("--max-concurrency"), load.draft);
    let burstiness = load
        .number("--burstiness", "workload.arrival.cv")
        .unwrap_or(1.0);
    let arrival = if let (Some(from), Some(to)) = ramp {
        // The rate grows over all of the requests: their number over the mean rate.
        let over = requests as f64 / ((from + to) / 2.0).max(1e-9);
        table([
            ("kind", "ramp".into()),
            ("from", rate(from)),
            ("to", rate(to)),
            ("over", format!("{over} s").into()),
        ])
    } else if let Some(n) = per_s {
        if let Some((n, origin)) = &most {
            let why = format!(
                "at most {n} requests under way: an open loop is sent without such a limit"
            );
            load.draft.fate(origin, Fate::NotModelled, why);
        }
        match burstiness == 1.0 {
            true => table([("kind", "poisson".into()), ("rate", rate(n))]),
            false => table([
                ("kind", "gamma".into()),
                ("rate", rate(n)),
                ("cv", (1.0 / burstiness.max(1e-6).sqrt()).into()),
            ]),
        }
    } else {
        let mut keys = table([("kind", "burst".into()), ("requests", requests.into())]);
        if let Some((n, origin)) = &most {
            load.draft
                .used(origin, format!("workload.arrival.max_in_flight = {n}"));
            keys.insert("max_in_flight".into(), (*n).into());
        }
        keys
    };
    load.put("arrival", arrival);
}

/// `ttft:500 tpot:50`, in milliseconds.
pub(super) fn targets(given: &args::Given, names: &[(&str, &str)], draft: &mut Draft) {
    for part in given.value.split([',', ' ']).filter(|p| !p.is_empty()) {
        let found = part.split_once(':').and_then(|(name, ms)| {
            let key = names.iter().find(|(n, _)| *n == name)?.1;
            Some((key, ms.parse::<f64>().ok().filter(|n| n.is_finite())?))
        });
        match found {
            Some((key, ms)) => draft.set(&format!("slo.{key}"), format!("{ms} ms"), &given.origin),
            None => {
                let known: Vec<&str> = names.iter().map(|(n, _)| *n).collect();
                let message = format!(
                    "must be NAME:MILLISECONDS with {}, got `{}`",
                    known.join(", "),
                    shown(part)
                );
                draft.fault(given.origin.fault(message));
            }
        }
    }
}

/// Lengths that are assumed where a file gives rates alone [tokens].
const LENGTHS: [(&str, i64); 2] = [("prompt", 512), ("output", 128)];

/// A stream of stretches of rate [req/s] and their lengths [ms]; lengths of requests are assumed, as `why` says.
pub(super) fn stretches(steps: &[(f64, i64)], draft: &mut Draft, why: &str) -> Keys {
    let step = |(rate, ms): &(f64, i64)| -> Value {
        let mut step = Keys::new();
        step.insert("rate".into(), format!("{rate} req/s").into());
        step.insert("duration".into(), format!("{ms} ms").into());
        step.into()
    };
    let mut arrival = Keys::new();
    arrival.insert("kind".into(), "steps".into());
    arrival.insert(
        "steps".into(),
        Value::Array(steps.iter().map(step).collect()),
    );
    let mut keys = Keys::new();
    keys.insert("arrival".into(), arrival.into());
    for (key, tokens) in LENGTHS {
        draft.report.defaults.push(crate::report::Default {
            key: format!("workload.{key}"),
            value: tokens.to_string(),
            note: why.into(),
        });
        keys.insert(key.into(), tokens.into());
    }
    keys
}
