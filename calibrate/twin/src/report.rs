//! What the twin says about a window: as a table, as a JSON line, and as Prometheus text.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use bench::printable::printable;
use serde::Serialize;

use super::compare::{Comparison, Figure};
use super::drift::Verdict;
use super::observe::ObserverTroubles;
use super::tap::Counters;

/// Counts of the proxy at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Requests that came in.
    pub requests: u64,
    /// Requests under way.
    pub active: u64,
    /// Requests that the upstream did not answer.
    pub unreachable: u64,
    /// Events dropped because the observer did not keep up.
    pub dropped_events: u64,
    /// What went wrong in observing.
    pub observer: ObserverTroubles,
}

impl Traffic {
    /// Reads the counters.
    pub fn now(counters: &Counters, observer: ObserverTroubles) -> Traffic {
        let read = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        Traffic {
            requests: read(&counters.requests),
            active: read(&counters.active),
            unreachable: read(&counters.unreachable),
            dropped_events: read(&counters.dropped_events),
            observer,
        }
    }
}

/// One look at a deployment: a line of `--jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The deployment.
    pub endpoint: String,
    /// Measured against predicted; none before there was anything to compare.
    pub comparison: Option<Comparison>,
    /// Where each judged figure stands.
    pub verdicts: Vec<Verdict>,
    /// Whether drift is raised.
    pub drift: bool,
    /// What passed through the proxy.
    pub traffic: Traffic,
    /// Why there is no comparison, where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A number with three to four digits that count.
fn number(v: Option<f64>) -> String {
    match v {
        None => "-".into(),
        Some(v) if !v.is_finite() => "-".into(),
        Some(v) if v.abs() >= 1000.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.3}"),
    }
}

fn percent(v: Option<f64>) -> String {
    match v.filter(|v| v.is_finite()) {
        None => "-".into(),
        Some(v) => format!("{:+.1} %", v * 100.0),
    }
}

/// The figures as a table: what, measured, predicted, error, how much of the error may be chance, and of judged figures the interval
/// around the usual error that this one was expected in.
pub fn figures_table(figures: &[Figure], verdicts: &[Verdict]) -> String {
    let mut out = format!(
        "{:<22} {:>12} {:>12} {:>10} {:>10}  {}\n",
        "figure", "measured", "predicted", "error", "noise +-", "interval"
    );
    for f in figures {
        let name = match f.unit.as_str() {
            "" => f.name.clone(),
            unit => format!("{} [{unit}]", f.name),
        };
        let verdict = verdicts.iter().find(|v| v.figure == f.name);
        let judged = verdict.map_or(String::new(), |v| {
            let state = match (v.drift, v.streak) {
                (true, _) => "  DRIFT".into(),
                (false, 0) => String::new(),
                (false, n) => format!("  outside for {} window(s)", n.unsigned_abs()),
            };
            format!(
                "{:+.1} +-{:.1} %{state}",
                v.usual_ratio * 100.0,
                v.limit_ratio * 100.0
            )
        });
        let noise = f
            .noise_ratio
            .filter(|n| n.is_finite())
            .map_or("-".into(), |n| format!("{:.1} %", n * 100.0));
        let line = format!(
            "{:<22} {:>12} {:>12} {:>10} {:>10}  {judged}",
            name,
            number(f.measured),
            number(f.predicted),
            percent(f.error_ratio),
            noise,
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

impl Report {
    /// As a table for people.
    pub fn render(&self) -> String {
        let mut out = self.endpoint.clone();
        let t = &self.traffic;
        if t.requests > 0 {
            let _ = write!(
                out,
                "   {} requests passed, {} under way",
                t.requests, t.active
            );
        }
        out.push('\n');
        match &self.comparison {
            None => {
                let why = self.problem.as_deref().unwrap_or("nothing recorded yet");
                let _ = writeln!(out, "no comparison: {}", printable(why));
            }
            Some(c) => {
                let _ = writeln!(
                    out,
                    "window {:.0} s: {} requests, {} compared, {} refused, {} cancelled, {} in flight",
                    c.window_s, c.requests, c.compared, c.refused, c.cancelled, c.in_flight
                );
                out += &figures_table(&c.figures, &self.verdicts);
                for note in &c.notes {
                    let _ = writeln!(out, "note: {note}");
                }
                if let Some(problem) = &self.problem {
                    let _ = writeln!(out, "note: {}", printable(problem));
                }
                if self.drift {
                    out += "DRIFT: the deployment no longer behaves as its profile says; see `servetwin twin refit`\n";
                }
            }
        }
        if t.unreachable > 0 {
            let _ = writeln!(
                out,
                "note: {} request(s) got no answer from the endpoint",
                t.unreachable
            );
        }
        let o = t.observer;
        let missed = t.dropped_events + o.unread_requests + o.lossy_requests + o.panics;
        if missed > 0 {
            let _ = writeln!(
                out,
                "note: observing missed {} event(s) and could not read {} request(s); traffic was not touched",
                t.dropped_events, o.unread_requests
            );
        }
        out
    }

    /// As Prometheus text (exposition format 0.0.4): seconds, ratios, counts.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let mut gauge = |name: &str, help: &str, rows: &[(String, f64)]| {
            let rows: Vec<_> = rows.iter().filter(|(_, v)| v.is_finite()).collect();
            if !rows.is_empty() {
                let _ = writeln!(
                    out,
                    "# HELP servetwin_twin_{name} {help}\n# TYPE servetwin_twin_{name} gauge"
                );
                for (labels, v) in rows {
                    let _ = writeln!(out, "servetwin_twin_{name}{labels} {v}");
                }
            }
        };
        if let Some(c) = &self.comparison {
            of_window(c, &mut gauge);
        }
        let verdicts = |pick: fn(&Verdict) -> f64| -> Vec<(String, f64)> {
            let of = |v: &Verdict| (format!("{{figure=\"{}\"}}", v.figure), pick(v));
            self.verdicts.iter().map(of).collect()
        };
        gauge(
            "error_limit_ratio",
            "Half width of the interval around the usual error that the error is expected in.",
            &verdicts(|v| v.limit_ratio),
        );
        gauge(
            "usual_error_ratio",
            "The error that is usual, by the windows before.",
            &verdicts(|v| v.usual_ratio),
        );
        gauge(
            "drift_score_ratio",
            "What the sequential test has summed up, over what raises drift.",
            &verdicts(|v| v.score_ratio),
        );
        gauge(
            "drift",
            "1 while drift is raised.",
            &verdicts(|v| f64::from(u8::from(v.drift))),
        );
        let t = &self.traffic;
        gauge(
            "proxy_active_requests",
            "Requests under way.",
            &[(String::new(), t.active as f64)],
        );
        counters(&mut out, t);
        out
    }
}

/// Figures of the last window.
fn of_window(c: &Comparison, gauge: &mut impl FnMut(&str, &str, &[(String, f64)])) {
    for f in &c.figures {
        let (suffix, factor) = match f.unit.as_str() {
            "ms" => ("_seconds", 1e-3),
            "ratio" => ("_ratio", 1.0),
            _ => ("", 1.0),
        };
        let name = f.name.replace("_per_s", "_per_second");
        for (side, v) in [("measured", f.measured), ("predicted", f.predicted)] {
            let v = v.map_or(f64::NAN, |v| v * factor);
            let help = format!("{name} of the last window, {side}.");
            gauge(
                &format!("{side}_{name}{suffix}"),
                &help,
                &[(String::new(), v)],
            );
        }
    }
    let labelled = |pick: fn(&Figure) -> Option<f64>| -> Vec<(String, f64)> {
        let of = |f: &Figure| {
            (
                format!("{{figure=\"{}\"}}", f.name),
                pick(f).unwrap_or(f64::NAN),
            )
        };
        c.figures.iter().map(of).collect()
    };
    gauge(
        "error_ratio",
        "Predicted over measured, less one.",
        &labelled(|f| f.error_ratio),
    );
    gauge(
        "noise_ratio",
        "Standard deviation that the error has by chance.",
        &labelled(|f| f.noise_ratio),
    );
    gauge(
        "window_requests",
        "Requests that arrived in the last window.",
        &[(String::new(), c.requests as f64)],
    );
    gauge(
        "window_compared_requests",
        "Requests of the last window that were compared.",
        &[(String::new(), c.compared as f64)],
    );
    gauge(
        "window_end_timestamp_seconds",
        "End of the last window.",
        &[(String::new(), c.at_unix_s)],
    );
}

/// What the proxy and the observer have counted.
fn counters(out: &mut String, t: &Traffic) {
    for (name, help, v) in [
        ("proxy_requests", "Requests that came in.", t.requests),
        (
            "proxy_unreachable",
            "Requests that the upstream did not answer.",
            t.unreachable,
        ),
        (
            "observer_dropped_events",
            "Events dropped because the observer did not keep up.",
            t.dropped_events,
        ),
        (
            "observer_unread_requests",
            "Requests whose body could not be read.",
            t.observer.unread_requests,
        ),
        (
            "observer_lossy_requests",
            "Requests of which events were lost.",
            t.observer.lossy_requests,
        ),
        (
            "observer_panics",
            "Panics of the observer.",
            t.observer.panics,
        ),
    ] {
        let _ = writeln!(
            out,
            "# HELP servetwin_twin_{name}_total {help}\n# TYPE servetwin_twin_{name}_total counter\nservetwin_twin_{name}_total {v}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            endpoint: "http://h:1".into(),
            comparison: Some(Comparison {
                at_unix_s: 5.0,
                window_s: 60.0,
                requests: 10,
                compared: 9,
                refused: 1,
                cancelled: 0,
                in_flight: 0,
                figures: vec![
                    Figure {
                        name: "ttft_p50".into(),
                        unit: "ms".into(),
                        measured: Some(20.0),
                        predicted: Some(15.0),
                        error_ratio: Some(-0.25),
                        noise_ratio: Some(0.02),
                    },
                    Figure {
                        name: "output_tokens_per_s".into(),
                        unit: "/s".into(),
                        measured: Some(0.0),
                        predicted: Some(2.0),
                        error_ratio: None,
                        noise_ratio: None,
                    },
                ],
                notes: vec!["something".into()],
            }),
            verdicts: vec![Verdict {
                figure: "ttft_p50".into(),
                error_ratio: -0.25,
                usual_ratio: -0.012,
                limit_ratio: 0.08,
                score_ratio: 1.5,
                streak: -3,
                drift: true,
            }],
            drift: true,
            traffic: Traffic::default(),
            problem: None,
        }
    }

    #[test]
    fn the_table_shows_error_noise_interval_and_drift() {
        let text = report().render();
        for words in [
            "ttft_p50 [ms]",
            "-25.0 %",
            "2.0 %",
            "-1.2 +-8.0 %  DRIFT",
            "note: something",
            "1 refused",
        ] {
            assert!(text.contains(words), "`{words}` not in\n{text}");
        }
    }

    #[test]
    fn metrics_are_in_base_units_and_leave_out_what_was_not_measured() {
        let text = report().prometheus();
        for line in [
            "servetwin_twin_measured_ttft_p50_seconds 0.02",
            "servetwin_twin_predicted_ttft_p50_seconds 0.015",
            "servetwin_twin_error_ratio{figure=\"ttft_p50\"} -0.25",
            "servetwin_twin_measured_output_tokens_per_second 0",
            "servetwin_twin_drift{figure=\"ttft_p50\"} 1",
            "servetwin_twin_proxy_requests_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "`{line}` not in\n{text}");
        }
        assert!(!text.contains("NaN"));
    }
}
