//! Commands of AIPerf and GenAI-Perf, by ai-dynamo/aiperf `docs/cli-options.md` and triton-inference-server/perf_analyzer `genai-perf/genai_perf/parser.py`.

use std::sync::Arc;

use toml::Table as Keys;

use super::args;
use super::draft::Draft;
use super::load::{FILE, Load, lengths, rate, table, targets};
use crate::keys::Read::{Number, Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::shown;
use crate::report::Fate;
use crate::text::shell::Word;

/// AIPerf and GenAI-Perf, which share most options.
pub const AIPERF: Table = Table {
    kind: "aiperf",
    title: "`aiperf profile ...`, `genai-perf profile ...`",
    keys: &[
        says(
            "--concurrency",
            "`arrival.concurrency` of a closed loop",
            Whole,
        ),
        says("--request-rate", "`arrival.rate`", Number),
        says(
            "--arrival-pattern --request-rate-mode",
            "`arrival.kind`: poisson, constant or gamma",
            Text,
        ),
        says(
            "--arrival-smoothness --vllm-burstiness",
            "`arrival.cv` = 1/sqrt(smoothness) of gamma",
            Number,
        ),
        says("--request-count --num-requests", "`requests`", Whole),
        says("--benchmark-duration", "`run.duration`", Number),
        says(
            "--synthetic-input-tokens-mean --isl --prompt-input-tokens-mean",
            "`prompt.mean`",
            Whole,
        ),
        says(
            "--synthetic-input-tokens-stddev --isl-stddev --prompt-input-tokens-stddev",
            "`prompt.std`",
            Number,
        ),
        says(
            "--output-tokens-mean --osl --prompt-output-tokens-mean",
            "`output.mean`",
            Whole,
        ),
        says(
            "--output-tokens-stddev --osl-stddev --prompt-output-tokens-stddev",
            "`output.std`",
            Number,
        ),
        says(
            "--prefix-prompt-length --prompt-prefix-length",
            "`prefix.tokens`",
            Whole,
        ),
        says(
            "--num-prefix-prompts --prompt-prefix-pool-size",
            "`prefix.groups`",
            Whole,
        ),
        says(
            "--shared-system-prompt-length",
            "`prefix.tokens`, one for all",
            Whole,
        ),
        says(
            "--goodput",
            "`[slo]`: time_to_first_token, inter_token_latency, request_latency in milliseconds",
            Text,
        ),
        not_modelled("--input-file", FILE),
        not_modelled("--public-dataset", FILE),
        not_modelled("--custom-dataset-type", FILE),
        not_modelled(
            "--fixed-schedule",
            "name the file as a trace: arrival = { kind = \"trace\", file = ... }",
        ),
        not_modelled("--user-centric-rate", "set arrival.think"),
        not_modelled("--num-users", "set arrival.think"),
        not_modelled("--session-concurrency", "set workload.sessions"),
        not_modelled(
            "--num-sessions --num-conversations --conversation-num",
            "set workload.sessions",
        ),
        not_modelled(
            "--session-turns-mean --conversation-turn-mean",
            "set workload.sessions",
        ),
        not_modelled(
            "--session-turns-stddev --conversation-turn-stddev",
            "set workload.sessions",
        ),
        not_modelled(
            "--session-turn-delay-mean --conversation-turn-delay-mean",
            "set workload.sessions",
        ),
        not_modelled(
            "--session-turn-delay-stddev --conversation-turn-delay-stddev",
            "set workload.sessions",
        ),
        not_modelled(
            "--session-delay-ratio --conversation-turn-delay-ratio",
            "set workload.sessions",
        ),
        not_modelled(
            "--user-context-prompt-length",
            "content of a session's own: set workload.sessions",
        ),
        not_modelled(
            "--seq-dist --sequence-distribution",
            "write a [[workload]] of each pair of lengths",
        ),
        not_modelled(
            "--prefill-concurrency",
            "an open loop is sent without such a limit",
        ),
        not_modelled(
            "--request-rate-ramp-duration",
            "set arrival.kind = \"ramp\"",
        ),
        not_modelled("--concurrency-ramp-duration", "the load starts at once"),
        not_modelled(
            "--image-batch-size --batch-size-image",
            "prompts are tokens",
        ),
        not_modelled(
            "--audio-batch-size --batch-size-audio",
            "prompts are tokens",
        ),
        not_modelled(
            "--video-batch-size --batch-size-video",
            "prompts are tokens",
        ),
        not_modelled("--request-cancellation-rate", "set workload.cancel"),
        not_modelled("--request-cancellation-delay", "set workload.cancel"),
        not_modelled(
            "--warmup-request-count --num-warmup-requests",
            "set run.warmup",
        ),
        not_modelled("--warmup-duration", "set run.warmup"),
        not_modelled("--num-warmup-sessions", "set run.warmup"),
        not_modelled("--warmup-concurrency", "set run.warmup"),
        not_modelled("--warmup-request-rate", "set run.warmup"),
        not_modelled(
            "--measurement-interval",
            "the run is as long as its requests",
        ),
        not_modelled(
            "--stability-percentage",
            "the run is as long as its requests",
        ),
    ],
    idle: &[
        "--model",
        "-m",
        "--model-names",
        "--url",
        "-u",
        "--tokenizer",
        "--tokenizer-revision",
        "--endpoint",
        "--endpoint-type",
        "--service-kind",
        "--backend",
        "--random-seed",
        "--extra-inputs",
        "--header",
        "-H",
        "--artifact-dir",
        "--output-artifact-dir",
        "--profile-export-file",
        "--num-dataset-entries",
        "--num-prompts",
        "--output-tokens-mean-deterministic",
        "--workers-max",
        "--request-timeout-seconds",
        "--api-key",
        "--log-level",
        "--ui",
        "--ui-type",
        "--server-metrics-url",
        "--gpu-telemetry",
        "--slice-duration",
        "--custom-endpoint",
        "--model-selection-strategy",
        "--url-strategy",
        "--transport",
        "--transport-type",
        "--connection-reuse-strategy",
        "--dataset-sampling-strategy",
        "--profile-export-prefix",
        "--export-level",
        "--profile-export-level",
        "--benchmark-grace-period",
        "--warmup-grace-period",
        "--num-profile-runs",
        "--profile-run-cooldown-seconds",
        "--confidence-level",
        "--server-metrics",
        "--server-metrics-formats",
        "--record-processors",
    ],
    idle_flags: &[
        "--streaming",
        "--verbose",
        "-v",
        "--generate-plots",
        "--tokenizer-trust-remote-code",
        "--enable-checkpointing",
        "--use-server-token-count",
        "--use-legacy-max-tokens",
        "--export-http-trace",
        "--show-trace-timing",
        "--no-gpu-telemetry",
        "--no-server-metrics",
        "--set-consistent-seed",
        "--profile-run-disable-warmup-after-first",
    ],
};

/// Reads the words behind `aiperf profile`.
pub fn aiperf(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    perf(words, file, "aiperf profile", "poisson", draft);
}

/// Reads the words behind `genai-perf profile`.
pub fn genai_perf(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    perf(words, file, "genai-perf profile", "constant", draft);
}

fn perf(words: &[Word], file: &Arc<str>, program: &str, pattern: &str, draft: &mut Draft) {
    // What stands behind `--` is perf_analyzer's.
    let end = words
        .iter()
        .position(|w| w.text == "--")
        .unwrap_or(words.len());
    let args = args::read(&AIPERF, &words[..end], file, draft);
    let mut load = Load::new(&args, words, file, program, draft);
    let arrival = arrival_of_perf(&mut load, pattern);
    load.put("arrival", arrival);
    let requests = load.whole("--request-count", "workload.requests");
    if let Some(n) = requests {
        load.put("requests", n);
    }
    for (mean, std, key, default) in [
        (
            "--synthetic-input-tokens-mean",
            "--synthetic-input-tokens-stddev",
            "prompt",
            550,
        ),
        (
            "--output-tokens-mean",
            "--output-tokens-stddev",
            "output",
            128,
        ),
    ] {
        let std = load
            .number(std, &format!("workload.{key}.std"))
            .unwrap_or(0.0);
        let mean = load
            .whole(mean, &format!("workload.{key}"))
            .unwrap_or_else(|| {
                let why = match key {
                    "prompt" => "the command's default",
                    _ => "the command leaves it to the model: write what it answers",
                };
                load.assumed(key, default, why);
                default
            });
        load.put(key, lengths(mean, std, None, None));
    }
    if let Some(tokens) = load
        .whole("--prefix-prompt-length", "workload.prefix.tokens")
        .filter(|n| *n > 0)
    {
        let groups = load
            .whole("--num-prefix-prompts", "workload.prefix.groups")
            .unwrap_or(1)
            .max(1);
        load.put(
            "prefix",
            table([("tokens", tokens.into()), ("groups", groups.into())]),
        );
    } else if let Some(tokens) = load
        .whole("--shared-system-prompt-length", "workload.prefix.tokens")
        .filter(|n| *n > 0)
    {
        load.put(
            "prefix",
            table([("tokens", tokens.into()), ("groups", 1.into())]),
        );
    }
    if let Some(g) = args.get("--goodput") {
        let names = [
            ("time_to_first_token", "ttft"),
            ("inter_token_latency", "tpot"),
            ("request_latency", "e2e"),
        ];
        targets(g, &names, load.draft);
    }
    if let Some((n, origin)) = args::number(args.get("--benchmark-duration"), load.draft) {
        load.draft.set("run.duration", format!("{n} s"), &origin);
    }
    load.finish();
}

fn arrival_of_perf(load: &mut Load<'_>, pattern: &str) -> Keys {
    let concurrency = args::whole(load.args.get("--concurrency"), load.draft);
    let Some(per_s) = load.number("--request-rate", "workload.arrival.rate") else {
        let n = match concurrency {
            Some((n, origin)) => {
                load.draft
                    .used(&origin, format!("workload.arrival.concurrency = {n}"));
                n
            }
            None => {
                load.assumed("arrival", "closed, 1 user", "the command's default");
                1
            }
        };
        return table([("kind", "closed".into()), ("concurrency", n.into())]);
    };
    if let Some((n, origin)) = concurrency {
        let why =
            format!("at most {n} requests under way: an open loop is sent without such a limit");
        load.draft.fate(&origin, Fate::NotModelled, why);
    }
    let given = load.args.get("--arrival-pattern").cloned();
    let smoothness = load.number("--arrival-smoothness", "workload.arrival.cv");
    let kind = given.as_ref().map_or(pattern, |g| g.value.as_str());
    if let Some(g) = &given {
        load.draft.used(&g.origin, "workload.arrival.kind");
    }
    match kind {
        "poisson" => table([("kind", "poisson".into()), ("rate", rate(per_s))]),
        "constant" => table([("kind", "constant".into()), ("rate", rate(per_s))]),
        "gamma" => {
            let cv = 1.0 / smoothness.unwrap_or(1.0).max(1e-6).sqrt();
            table([
                ("kind", "gamma".into()),
                ("rate", rate(per_s)),
                ("cv", cv.into()),
            ])
        }
        other => {
            if let Some(g) = &given {
                let fault = g.origin.fault(format!(
                    "must be poisson, constant or gamma, got `{}`",
                    shown(other)
                ));
                load.draft.fault(fault);
            }
            Keys::new()
        }
    }
}
