//! The load as a command of AIPerf, where it can say it.

use std::fmt::Write as _;

use sim::scenario::Scenario;
use sim::workload::{Arrival, Length, Lengths, StreamSpec};

use super::serving::{chats, model_id};
use super::shared::Exported;
use crate::text::shell::quoted;

/// `bench.sh`, and what it cannot say.
pub fn files(s: &Scenario, out: &mut Exported) {
    let [stream] = s.workload.as_slice() else {
        out.cannot("workload: several streams at once are no one command");
        return;
    };
    let Some(words) = command(s, stream, out) else {
        return;
    };
    let id = model_id(s);
    let kind = if chats(&id) { "chat" } else { "completions" };
    let mut text = format!(
        "#!/bin/sh\naiperf profile --model {} --url http://localhost:8000 --endpoint-type {kind} --streaming",
        quoted(&id)
    );
    for word in words {
        let _ = write!(text, " \\\n  {word}");
    }
    text.push_str(" \\\n  --extra-inputs ignore_eos:true\n");
    out.file("bench.sh", text);
}

fn command(s: &Scenario, stream: &StreamSpec, out: &mut Exported) -> Option<Vec<String>> {
    let mut words = match &stream.arrival {
        Arrival::Closed { concurrency, .. } => vec![format!("--concurrency {concurrency}")],
        Arrival::Poisson { rate } => vec![
            format!("--request-rate {}", rate.per_sec()),
            "--arrival-pattern poisson".to_owned(),
        ],
        Arrival::Constant { rate } => vec![
            format!("--request-rate {}", rate.per_sec()),
            "--arrival-pattern constant".to_owned(),
        ],
        _ => {
            out.cannot("workload.arrival: AIPerf has closed loops, Poisson and constant rates");
            return None;
        }
    };
    let Lengths::Separate { prompt, output } = &stream.lengths else {
        out.cannot("workload.lengths: lengths of a file are the file's");
        return None;
    };
    for (length, mean, std, name) in [
        (prompt, "--isl", "--isl-stddev", "prompt"),
        (output, "--osl", "--osl-stddev", "output"),
    ] {
        match length {
            Length::Fixed(n) => words.push(format!("{mean} {n}")),
            Length::Normal {
                mean: m, std: d, ..
            } => {
                words.push(format!("{mean} {}", m.round()));
                words.push(format!("{std} {d}"));
            }
            _ => {
                out.cannot(format!(
                    "workload.{name}: AIPerf's synthetic lengths are fixed or normal"
                ));
                return None;
            }
        }
    }
    let requests = stream.requests.or(s.limits.requests);
    if let Some(n) = requests {
        words.push(format!("--request-count {n}"));
    }
    if let Some(d) = s.limits.duration {
        words.push(format!("--benchmark-duration {}", d.secs()));
    }
    let mut slo = Vec::new();
    for (target, name) in [
        (s.slo.ttft, "time_to_first_token"),
        (s.slo.tpot, "inter_token_latency"),
        (s.slo.e2e, "request_latency"),
    ] {
        if let Some(t) = target {
            slo.push(format!("{name}:{}", t.secs() * 1e3));
        }
    }
    if !slo.is_empty() {
        words.push(format!("--goodput {}", quoted(&slo.join(" "))));
    }
    rest(s, stream, out);
    Some(words)
}

/// What the command leaves out.
fn rest(s: &Scenario, stream: &StreamSpec, out: &mut Exported) {
    for (said, key) in [
        (stream.max_tokens.is_some(), "workload.max_tokens"),
        (stream.prefix.is_some(), "workload.prefix"),
        (stream.sessions.is_some(), "workload.sessions"),
        (stream.timeout.is_some(), "workload.timeout"),
        (stream.cancel.is_some(), "workload.cancel"),
        (stream.retries.is_some(), "workload.retries"),
        (stream.priority != 0, "workload.priority"),
        (s.warmup.secs() != 0.0, "run.warmup"),
        (!s.drain, "run.drain"),
    ] {
        if said {
            out.cannot(format!("{key}: not in bench.sh"));
        }
    }
}
