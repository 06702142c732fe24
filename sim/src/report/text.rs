//! The report on the terminal.

use std::fmt::Write as _;

use crate::metrics::definition::Metric;
pub use crate::report::figures::{against_limit, field, figure, secs, wrapped};
use crate::report::headline;
pub use crate::report::latency_line::{LATENCY_HEAD, latency_line};
use crate::report::pools_text;
use crate::report::summary::{RunReport, Throughput};

/// How much of a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// What decides, latencies, rates, cost.
    #[default]
    Brief,
    /// Where the profiles come from as well.
    Verbose,
}

/// The report of one run, ready to print; lines end in `\n`.
pub fn render(r: &RunReport, detail: Detail) -> String {
    let mut out = headline::alarm(r);
    // Writing to a String cannot fail.
    let _ = write(&mut out, r, detail);
    out
}

fn write(out: &mut String, r: &RunReport, detail: Detail) -> std::fmt::Result {
    writeln!(out, "{}", r.name)?;
    if !r.description.is_empty() {
        wrapped(out, "  ", &r.description)?;
    }
    writeln!(out)?;
    field(out, "deployment", &r.deployment)?;
    field(out, "load", &r.load)?;
    let warmup = if r.warmup_s > 0.0 {
        format!(" (the first {} left out)", secs(r.warmup_s))
    } else {
        String::new()
    };
    let outcome = r.requests.in_words();
    field(
        out,
        "requests",
        &format!("{outcome} in {}{warmup}", secs(r.duration_s)),
    )?;
    writeln!(out)?;
    headline::write(out, r)?;
    writeln!(out)?;
    latencies(out, r)?;
    writeln!(out)?;
    use_and_cost(out, r)?;
    writeln!(out)?;
    shares_of_time(out, r)?;
    profiles(out, r, detail)?;
    if let Some(c) = &r.cluster {
        writeln!(out)?;
        crate::report::cluster::write(out, c)?;
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

fn latencies(out: &mut String, r: &RunReport) -> std::fmt::Result {
    writeln!(out, "{LATENCY_HEAD}")?;
    for (metric, label) in [
        (Metric::Ttft, "TTFT"),
        (Metric::Itl, "ITL (pooled)"),
        (Metric::Tpot, "TPOT"),
        (Metric::E2e, "E2E"),
        (Metric::Queue, "queue"),
        (Metric::Normalised, NORMALISED),
    ] {
        latency_line(out, label, r.latency(metric))?;
    }
    for s in &r.streams {
        writeln!(
            out,
            "\n  stream {}: {}{}",
            s.name,
            s.requests.in_words(),
            s.attainment_ratio.map_or(String::new(), |a| format!(
                "; {:.1} % of the finished within the SLO",
                100.0 * a
            ))
        )?;
        latency_line(out, "TTFT", &s.ttft_ms)?;
        latency_line(out, "TPOT", &s.tpot_ms)?;
        latency_line(out, "E2E", &s.e2e_ms)?;
    }
    pools_text::write_latencies(out, r)
}

fn use_and_cost(out: &mut String, r: &RunReport) -> std::fmt::Result {
    let t = &r.throughput;
    throughput_line(out, t)?;
    if let Some(ratio) = r.slo.attainment_ratio {
        field(
            out,
            "goodput",
            &format!(
                "{} req/s; {:.1} % of the finished requests met the SLO",
                figure(t.goodput_per_s),
                100.0 * ratio
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
        format!(" (on the busiest {:.1} %)", 100.0 * p.busiest_ratio)
    } else {
        String::new()
    };
    let fleet = match &r.cluster {
        // Each start of a replica is one more; they were not all there at once.
        Some(c) => format!(
            "{} start{} of replicas, at most {} ready at once",
            p.count,
            plural(p.count),
            c.replicas.most_ready
        ),
        None => format!(
            "{} replica{} on {} device{}",
            p.count,
            plural(p.count),
            p.devices,
            plural(p.devices)
        ),
    };
    field(
        out,
        "utilisation",
        &format!(
            "{fleet}; a step under way {:.1} % of the time{busiest}, with {} requests in it",
            100.0 * p.busy_ratio,
            figure(p.mean_running)
        ),
    )?;
    pools_text::write_use(out, r)?;
    if let Some(usd) = r.cost.usd_per_hour {
        let per_million = r
            .cost
            .usd_per_million_output_tokens
            .map_or(String::new(), |usd| {
                format!(", {usd:.2} USD per million output tokens")
            });
        field(out, "cost", &format!("{usd:.3} USD per hour{per_million}"))?;
    }
    Ok(())
}

fn shares_of_time(out: &mut String, r: &RunReport) -> std::fmt::Result {
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
    Ok(())
}

/// Which profiles the step times come from; with [`Detail::Verbose`] also what those were fitted on.
fn profiles(out: &mut String, r: &RunReport, detail: Detail) -> std::fmt::Result {
    if r.profiles.is_empty() {
        return field(out, "step times", "from no profile");
    }
    if detail == Detail::Brief {
        let names: Vec<String> = r
            .profiles
            .iter()
            .map(|p| {
                let trust = if p.trusted { "" } else { " (UNTRUSTED)" };
                format!("{}{trust}", p.name)
            })
            .collect();
        let names = names.join(", ");
        return field(
            out,
            "profiles",
            &format!("{names}; --verbose says what they were fitted on"),
        );
    }
    for p in &r.profiles {
        let trust = if p.trusted { "trusted" } else { "UNTRUSTED" };
        field(out, "profile", &format!("{} ({trust}): {}", p.name, p.note))?;
    }
    Ok(())
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

/// What E2E latency per output token is called, in reports as in `docs/metrics.md`.
pub const NORMALISED: &str = "normalised";

/// The line of a report on how much was served.
///
/// # Errors
/// Those of `out`.
pub fn throughput_line(out: &mut String, t: &Throughput) -> std::fmt::Result {
    let (served, offered) = (figure(t.requests_per_s), figure(t.offered_per_s));
    let earlier = if t.requests_per_s > t.offered_per_s && served != offered {
        "; some of those that finished were sent in the warm-up"
    } else {
        ""
    };
    field(
        out,
        "throughput",
        &format!(
            "{served} req/s ({offered} offered{earlier}), {} output tokens/s, {} tokens/s in all",
            figure(t.output_tokens_per_s),
            figure(t.total_tokens_per_s)
        ),
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::WIDTH;
    use crate::report::summary::ProfileReport;

    #[test]
    fn more_served_than_offered_is_explained() {
        let line = |requests_per_s| {
            let mut r = RunReport::empty();
            r.throughput.requests_per_s = requests_per_s;
            r.throughput.offered_per_s = 1.048;
            let mut out = String::new();
            throughput_line(&mut out, &r.throughput).unwrap();
            out
        };
        assert!(
            line(1.055).contains("sent in the warm-up"),
            "{}",
            line(1.055)
        );
        for kept in [1.048, 1.04, 1.048_000_1] {
            assert!(!line(kept).contains("warm-up"), "{}", line(kept));
        }
    }

    #[test]
    fn the_report_of_nothing_prints_no_number_it_does_not_have() {
        let text = render(&RunReport::empty(), Detail::Brief);
        assert!(text.contains("TTFT                      -"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("0 offered, 0 finished"), "{text}");
    }

    #[test]
    fn what_decides_comes_before_the_latencies_and_provenance_on_demand() {
        let mut r = RunReport::empty();
        r.profiles = vec![ProfileReport {
            name: "a10g".into(),
            trusted: true,
            note: "where it comes from".into(),
        }];
        r.warnings = vec!["look at this".into()];
        let text = render(&r, Detail::Brief);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}:\n{text}"));
        let order = [
            "NOTHING FINISHED",
            "SLO",
            "knee",
            "how sure",
            "look at this",
            "latency [ms]",
        ];
        assert!(order.map(at).is_sorted(), "{text}");
        assert!(!text.contains("where it comes from"), "{text}");
        assert!(render(&r, Detail::Verbose).contains("where it comes from"));
        assert!(text.contains("  normalised "), "{text}");
    }

    #[test]
    fn times_are_printed_without_the_noise_of_their_last_bits() {
        assert_eq!(secs(30.000000000000004), "30 s");
        assert_eq!(secs(0.2), "200 ms");
        assert_eq!(secs(9000.0), "2.5 h");
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
