//! GuideLLM's commands, by vllm-project/guidellm `docs/getting-started/benchmark.md` and `docs/guides/datasets.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Table as Keys;

use super::args;
use super::draft::Draft;
use super::load::{FILE, Load, lengths, rate, table};
use crate::keys::Read::{Number, Text, Whole};
use crate::keys::{Table, not_modelled, not_modelled_flag, says};
use crate::place::shown;
use crate::report::Fate;
use crate::text::shell::Word;

/// GuideLLM.
pub const GUIDELLM: Table = Table {
    kind: "guidellm",
    title: "`guidellm benchmark ...`",
    keys: &[
        says(
            "--profile --rate-type",
            "`arrival.kind`: synchronous and concurrent are closed loops, throughput a burst, constant and poisson open loops",
            Text,
        ),
        says("--rate", "`arrival.rate` or `arrival.concurrency`", Text),
        says(
            "--data",
            "`prompt` and `output`: prompt_tokens, prompt_tokens_stdev, prompt_tokens_min, prompt_tokens_max and the same of output_tokens",
            Text,
        ),
        says("--max-seconds", "`run.duration`", Number),
        says("--max-requests", "`requests`", Whole),
        not_modelled("--rampup", "the load starts at once"),
        not_modelled("--warmup --warmup-percent", "set run.warmup"),
        not_modelled(
            "--cooldown --cooldown-percent",
            "the end of the run is part of it",
        ),
        not_modelled("--images-per-request", "prompts are tokens"),
        not_modelled("--over-saturation", "the run goes on to its end"),
        not_modelled("--max-errors", "the run goes on to its end"),
        not_modelled("--max-error-rate", "the run goes on to its end"),
        not_modelled("--max-global-error-rate", "the run goes on to its end"),
        not_modelled_flag(
            "--detect-saturation --default-over-saturation",
            "the run goes on to its end",
        ),
        not_modelled(
            "--per-constraints",
            "a sweep's runs are imported one by one",
        ),
    ],
    idle: &[
        "--target",
        "--model",
        "--backend",
        "--backend-type",
        "--backend-args",
        "--backend-kwargs",
        "--processor",
        "--processor-args",
        "--random-seed",
        "--output-dir",
        "--output-path",
        "--outputs",
        "--output-extras",
        "--data-args",
        "--data-sampler",
        "--request-type",
        "--request-format",
        "--data-column-mapper",
        "--sample-requests",
        "--data-samples",
        "--data-num-workers",
        "--dataloader-kwargs",
        "--request-formatter-kwargs",
        "--output-sampling",
        "--scenario",
        "-c",
    ],
    idle_flags: &[
        "--disable-progress",
        "--disable-console-outputs",
        "--disable-console",
        "--disable-console-interactive",
        "--display-scheduler-stats",
    ],
};

/// Reads the words behind `guidellm benchmark`.
pub fn guidellm(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let args = args::read(&GUIDELLM, words, file, draft);
    let mut load = Load::new(&args, words, file, "guidellm benchmark", draft);
    let requests = load.whole("--max-requests", "workload.requests");
    let arrival = arrival_of_guidellm(&mut load, requests.unwrap_or(1000));
    load.put("arrival", arrival);
    if let Some(n) = requests {
        load.put("requests", n);
    }
    match args.get("--data") {
        Some(g) => synthetic(g, &mut load),
        None => {
            let fault = load.start.fault("no --data: prompts and outputs have no lengths; add e.g. --data prompt_tokens=256,output_tokens=128");
            load.draft.fault(fault);
        }
    }
    if let Some((n, origin)) = args::number(args.get("--max-seconds"), load.draft) {
        load.draft.set("run.duration", format!("{n} s"), &origin);
    }
    load.finish();
}

fn arrival_of_guidellm(load: &mut Load<'_>, requests: i64) -> Keys {
    let profile = load.args.get("--profile").cloned();
    let kind = profile
        .as_ref()
        .map_or("sweep", |g| g.value.as_str())
        .to_owned();
    let first = load.args.get("--rate").cloned().map(|g| {
        let mut all = g.value.trim_matches(['[', ']']).split(',');
        let first = all.next().unwrap_or("").trim().to_owned();
        if all.next().is_some() {
            load.draft.warn(format!(
                "{}: several rates: the first is imported; servetwin curve tries others",
                g.origin.place
            ));
        }
        (first, g.origin)
    });
    let number = |load: &mut Load<'_>| match &first {
        Some((text, origin)) => match crate::keys::number(text) {
            Ok(n) => {
                load.draft.used(origin, "workload.arrival");
                n
            }
            Err(why) => {
                load.draft.fault(origin.fault(why));
                1.0
            }
        },
        None => {
            let fault = load
                .start
                .fault(format!("the profile {} needs --rate", shown(&kind)));
            load.draft.fault(fault);
            1.0
        }
    };
    if let Some(g) = &profile {
        load.draft.used(&g.origin, "workload.arrival.kind");
    }
    match kind.as_str() {
        "synchronous" => table([("kind", "closed".into()), ("concurrency", 1.into())]),
        "concurrent" => {
            let n = number(load) as i64;
            table([("kind", "closed".into()), ("concurrency", n.into())])
        }
        "throughput" => {
            let most = if first.is_some() {
                number(load) as i64
            } else {
                128
            };
            table([
                ("kind", "burst".into()),
                ("requests", requests.into()),
                ("max_in_flight", most.into()),
            ])
        }
        "constant" | "async" => {
            let n = number(load);
            table([("kind", "constant".into()), ("rate", rate(n))])
        }
        "poisson" => {
            let n = number(load);
            table([("kind", "poisson".into()), ("rate", rate(n))])
        }
        "sweep" => {
            load.assumed("arrival", "closed, 1 user", "a sweep is many loads: its first, one request at a time, is imported; servetwin curve makes the sweep");
            if let Some((_, origin)) = &first {
                load.draft.used(origin, "the number of the sweep's loads");
            }
            table([("kind", "closed".into()), ("concurrency", 1.into())])
        }
        _ => {
            let place = profile.as_ref().map_or(&load.start, |g| &g.origin);
            let fault = place.fault(format!(
                "must be synchronous, concurrent, throughput, constant, poisson or sweep, got `{}`",
                shown(&kind)
            ));
            load.draft.fault(fault);
            Keys::new()
        }
    }
}

/// `prompt_tokens=256,output_tokens=128`, or the same as a JSON object.
fn synthetic(given: &args::Given, load: &mut Load<'_>) {
    let mut keys: BTreeMap<String, i64> = BTreeMap::new();
    let text = given.value.trim();
    let pairs: Option<Vec<(String, String)>> = match serde_json::from_str::<serde_json::Value>(text)
    {
        Ok(serde_json::Value::Object(map)) => {
            Some(map.into_iter().map(|(k, v)| (k, v.to_string())).collect())
        }
        _ => text
            .split(',')
            .map(|p| {
                p.split_once('=')
                    .map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
            })
            .collect(),
    };
    let Some(pairs) = pairs else {
        load.draft.fate(&given.origin, Fate::NotModelled, FILE);
        let fault = given.origin.fault(format!(
            "`{}` is a data set, whose lengths are not read; write prompt_tokens=...,output_tokens=... of its means",
            shown(text)
        ));
        load.draft.fault(fault);
        return;
    };
    for (key, value) in pairs {
        match crate::keys::whole(&value) {
            Ok(n) => {
                keys.insert(key, n);
            }
            Err(_) if key == "source" || key == "type" => {}
            Err(why) => load
                .draft
                .fault(given.origin.fault(format!("{}: {why}", shown(&key)))),
        }
    }
    for (start, key) in [("prompt_tokens", "prompt"), ("output_tokens", "output")] {
        let mut take = |end: &str| keys.remove(&format!("{start}{end}"));
        let (mean, std, min, max) = (take(""), take("_stdev"), take("_min"), take("_max"));
        match mean {
            Some(mean) => load.put(key, lengths(mean, std.unwrap_or(0) as f64, min, max)),
            None => load
                .draft
                .fault(given.origin.fault(format!("has no {start}"))),
        }
    }
    if let Some(tokens) = keys.remove("prefix_tokens").filter(|n| *n > 0) {
        let groups = keys.remove("prefix_count").unwrap_or(1);
        load.put(
            "prefix",
            table([("tokens", tokens.into()), ("groups", groups.into())]),
        );
    }
    load.draft
        .used(&given.origin, "workload.prompt, workload.output");
    keys.remove("samples");
    keys.remove("turns");
    if !keys.is_empty() {
        let rest: Vec<&str> = keys.keys().map(String::as_str).collect();
        load.draft
            .fate(&given.origin, Fate::NotUnderstood, shown(&rest.join(", ")));
    }
}
