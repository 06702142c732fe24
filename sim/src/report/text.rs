//! The report on the terminal.

use std::fmt::Write as _;

use crate::metrics::definition::Metric;
use crate::report::summary::{LatencySummary, RunReport, Throughput};

/// The report of one run, ready to print; lines end in `\n`.
pub fn render(r: &RunReport) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, r);
    out
}

fn write(out: &mut String, r: &RunReport) -> std::fmt::Result {
    writeln!(out, "{}", r.name)?;
    if !r.description.is_empty() {
        wrapped(out, "  ", &r.description)?;
    }
    writeln!(out)?;
    field(out, "deployment", &r.deployment)?;
    field(out, "load", &r.load)?;
    let q = &r.requests;
    let mut outcome = format!("{} offered, {} finished", q.offered, q.finished);
    for (n, what) in [
        (q.rejected, "rejected"),
        (q.timed_out, "timed out"),
        (q.failed, "failed"),
        (q.in_flight, "in flight at the end"),
    ] {
        if n > 0 {
            let _ = write!(outcome, ", {n} {what}");
        }
    }
    let warmup = if r.warmup_s > 0.0 {
        format!(" (the first {} left out)", secs(r.warmup_s))
    } else {
        String::new()
    };
    field(
        out,
        "requests",
        &format!("{outcome} in {}{warmup}", secs(r.duration_s)),
    )?;
    writeln!(out)?;

    writeln!(out, "{LATENCY_HEAD}")?;
    for (metric, label) in [
        (Metric::Ttft, "TTFT"),
        (Metric::Itl, "ITL (pooled)"),
        (Metric::Tpot, "TPOT"),
        (Metric::E2e, "E2E"),
        (Metric::Queue, "queue"),
        (Metric::Normalised, "E2E per token"),
    ] {
        latency_line(out, label, r.latency(metric))?;
    }
    for s in &r.streams {
        writeln!(
            out,
            "\n  stream {}: {} offered, {} finished{}",
            s.name,
            s.requests.offered,
            s.requests.finished,
            s.attainment_ratio.map_or(String::new(), |a| format!(
                ", {:.1} % within the objective",
                100.0 * a
            ))
        )?;
        latency_line(out, "TTFT", &s.ttft_ms)?;
        latency_line(out, "TPOT", &s.tpot_ms)?;
        latency_line(out, "E2E", &s.e2e_ms)?;
    }
    writeln!(out)?;

    let t = &r.throughput;
    throughput_line(out, t)?;
    if let Some(ratio) = r.slo.attainment_ratio {
        let limits: Vec<String> = [
            ("TTFT", r.slo.ttft_ms),
            ("TPOT", r.slo.tpot_ms),
            ("E2E", r.slo.e2e_ms),
        ]
        .into_iter()
        .filter_map(|(name, limit)| limit.map(|l| format!("{name} <= {l} ms")))
        .collect();
        field(
            out,
            "goodput",
            &format!(
                "{} req/s; {:.1} % of finished requests meet {}",
                figure(t.goodput_per_s),
                100.0 * ratio,
                limits.join(" and ")
            ),
        )?;
    }
    let kv = &r.kv;
    if kv.blocks > 0 {
        field(
            out,
            "KV cache",
            &format!(
                "{} tokens in {} blocks; mean use {:.1} %, peak {:.1} %",
                kv.capacity_tokens,
                kv.blocks,
                100.0 * kv.mean_ratio,
                100.0 * kv.peak_ratio
            ),
        )?;
    }
    if r.tokens.cached > 0 || r.tokens.preemptions > 0 {
        field(
            out,
            "prefix cache",
            &format!(
                "{:.1} % of prompt tokens hit; {} preemptions",
                100.0 * r.tokens.cached as f64 / r.tokens.prompt.max(1) as f64,
                r.tokens.preemptions
            ),
        )?;
    }
    let p = &r.replicas;
    let busiest = if p.count > 1 {
        format!(" (busiest {:.1} %)", 100.0 * p.busiest_ratio)
    } else {
        String::new()
    };
    field(
        out,
        "utilisation",
        &format!(
            "{} replica{} on {} device{}, busy {:.1} %{busiest}, {} running requests per busy replica",
            p.count,
            plural(p.count),
            p.devices,
            plural(p.devices),
            100.0 * p.busy_ratio,
            figure(p.mean_running)
        ),
    )?;
    if let Some(usd) = r.cost.usd_per_hour {
        let per_million = r
            .cost
            .usd_per_million_output_tokens
            .map_or(String::new(), |usd| {
                format!(", {usd:.2} USD per million output tokens")
            });
        field(out, "cost", &format!("{usd:.3} USD per hour{per_million}"))?;
    }
    writeln!(out)?;

    let b = &r.bound_by;
    field(
        out,
        "bound by",
        &shares(&[
            ("weights", b.weights),
            ("KV", b.kv),
            ("compute", b.compute),
            ("communication", b.communication),
            ("host", b.host),
            ("bubble", b.bubble),
            ("idle", b.idle),
        ]),
    )?;
    let w = &r.blocked_by;
    let waited = shares(&[
        ("KV full", w.kv_full),
        ("sequence limit", w.max_seqs),
        ("token budget", w.token_budget),
    ]);
    if !waited.is_empty() {
        field(out, "waiting for", &waited)?;
    }
    field(out, "diagnosis", &r.diagnosis.text)?;
    if r.profiles.is_empty() {
        field(
            out,
            "step times",
            "analytic, from the catalog alone: no profile",
        )?;
    }
    for p in &r.profiles {
        let trust = if p.trusted { "trusted" } else { "UNTRUSTED" };
        field(out, "profile", &format!("{} ({trust}): {}", p.name, p.note))?;
    }
    for warning in &r.warnings {
        field(out, "warning", warning)?;
    }
    writeln!(out)?;
    field(
        out,
        "reproduce",
        &format!(
            "servetwin {}, seed {}, fingerprint {}",
            r.version, r.seed, r.fingerprint
        ),
    )
}

/// How the run itself went, in one line.
pub fn render_stats(r: &RunReport) -> String {
    let s = &r.stats;
    format!(
        "simulated {} requests in {} steps in {}: {} requests per second of wall time\n",
        r.requests.offered,
        s.steps,
        secs(s.wall_s),
        figure(s.requests_per_wall_s)
    )
}

/// Heads the columns of [`latency_line`].
pub const LATENCY_HEAD: &str =
    "  latency [ms]          mean        p50        p90        p95        p99          n";

/// The line of a report on how much was served.
///
/// # Errors
/// Those of `out`.
pub fn throughput_line(out: &mut String, t: &Throughput) -> std::fmt::Result {
    field(
        out,
        "throughput",
        &format!(
            "{} req/s ({} offered), {} output tokens/s, {} tokens/s in all",
            figure(t.requests_per_s),
            figure(t.offered_per_s),
            figure(t.output_tokens_per_s),
            figure(t.total_tokens_per_s)
        ),
    )
}

/// One metric in a row.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn latency_line(out: &mut String, label: &str, s: &LatencySummary) -> std::fmt::Result {
    write!(out, "  {label:<16}")?;
    for value in [s.mean, s.p50, s.p90, s.p95, s.p99] {
        write!(out, " {:>10}", value.map_or("-".into(), figure))?;
    }
    writeln!(out, " {:>10}", s.n)
}

/// Width of the terminal that long values are wrapped to.
const WIDTH: usize = 110;
const LABEL: usize = 14;

/// A labelled value, wrapped below itself.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn field(out: &mut String, label: &str, value: &str) -> std::fmt::Result {
    wrapped(out, &format!("  {label:<LABEL$}"), value)
}

/// `head` and the words of `value` behind it; further lines are indented by the length of `head`.
fn wrapped(out: &mut String, head: &str, value: &str) -> std::fmt::Result {
    let indent = head.chars().count();
    let mut column = indent;
    out.push_str(head);
    for (i, word) in value.split(' ').enumerate() {
        if i > 0 && column + 1 + word.chars().count() > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.chars().count();
    }
    writeln!(out)
}

fn shares(parts: &[(&str, f64)]) -> String {
    parts
        .iter()
        .filter(|(_, share)| *share >= 0.0005)
        .map(|(name, share)| format!("{name} {:.1} %", 100.0 * share))
        .collect::<Vec<_>>()
        .join(", ")
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Three to four significant digits without an exponent.
pub fn figure(v: f64) -> String {
    match v.abs() {
        a if a == 0.0 || a >= 1000.0 => format!("{v:.0}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 10.0 => format!("{v:.2}"),
        a if a >= 0.01 => format!("{v:.3}"),
        _ => format!("{v:.2e}"),
    }
}

/// A time in the unit that suits it.
pub fn secs(s: f64) -> String {
    match s {
        s if s >= 7200.0 => format!("{} h", figure(s / 3600.0)),
        s if s >= 1.0 => format!("{} s", figure(s)),
        s => format!("{} ms", figure(s * 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_nothing_prints_no_number_it_does_not_have() {
        let text = render(&RunReport::empty());
        assert!(text.contains("TTFT                      -"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("0 offered, 0 finished"), "{text}");
    }

    #[test]
    fn figures_keep_three_to_four_significant_digits() {
        let shown = [0.0, 0.004_56, 0.1234, 12.345, 123.45, 12_345.6].map(figure);
        assert_eq!(shown, ["0", "4.56e-3", "0.123", "12.35", "123.5", "12346"]);
    }

    #[test]
    fn long_values_wrap_below_their_label() {
        let mut out = String::new();
        field(&mut out, "label", &"word ".repeat(40)).unwrap();
        assert!(out.lines().count() > 1);
        assert!(
            out.lines()
                .skip(1)
                .all(|l| l.starts_with("                word")),
            "{out}"
        );
        assert!(out.lines().all(|l| l.len() <= WIDTH + 1), "{out}");
    }
}
