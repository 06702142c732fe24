//! A report as one page that opens without a server or network: figures, charts, the scenario, how to repeat it.
//!
//! Charts are drawn by uPlot (MIT), which is in the page.

use std::fmt::Write as _;

use serde::Serialize;
use sim::metrics::Metric;
use sim::report::RunReport;
use sim::report::expect::Numbers;
use sim::report::replications::FIGURES;
use sim::report::text::{self, Detail, figure};
use store::Record;
use store::resample::{self, Column};

const PAGE: &str = include_str!("page.html");
const JS: &str = include_str!("uPlot-1.6.32.iife.min.js");
const CSS: &str = include_str!("uPlot-1.6.32.min.css");
const LICENSE: &str = include_str!("uPlot-LICENSE");

/// Columns of a series.
const COLUMNS: usize = 300;

/// Points of a curve.
const POINTS: usize = 300;

/// Colours that colour-blind people can tell apart (Okabe and Ito, 2008).
const COLORS: [&str; 6] = [
    "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2",
];

#[derive(Serialize)]
struct Line {
    name: &'static str,
    color: &'static str,
    values: Vec<f64>,
}

#[derive(Serialize)]
struct Mark {
    at: f64,
    name: String,
}

#[derive(Serialize)]
struct Chart {
    title: String,
    x: &'static str,
    y: &'static str,
    log: bool,
    steps: bool,
    at: Vec<f64>,
    lines: Vec<Line>,
    marks: Vec<Mark>,
}

#[derive(Serialize)]
struct Data {
    distributions: Vec<Chart>,
    series: Vec<Chart>,
}

/// The page of `record`.
///
/// # Errors
/// When a figure is no number that JSON has: a defect of the record.
pub fn page(record: &Record) -> anyhow::Result<String> {
    let r = &record.report;
    let data = Data {
        distributions: distributions(record),
        series: series(record),
    };
    // In a script, `</script>` and `<!--` would end or hide it.
    let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
    let parts = [
        ("title", escaped(&format!("{} - servetwin", r.name))),
        ("css", CSS.to_owned()),
        ("name", escaped(&r.name)),
        ("description", escaped(&r.description)),
        ("deployment", escaped(&r.deployment)),
        ("load", escaped(&r.load)),
        ("diagnosis", escaped(&r.diagnosis.text)),
        ("warnings", warnings(record)),
        ("latencies", latencies(r)),
        ("figures", figures(r)),
        ("causes", causes(r)),
        ("version", escaped(&r.version)),
        ("seed", r.seed.to_string()),
        ("fingerprint", escaped(&r.fingerprint)),
        ("evidence", evidence(r)),
        ("scenario", escaped(&record.info.scenario)),
        ("text", escaped(&text::render(r, Detail::Verbose))),
        ("js", format!("/*{}*/{JS}", LICENSE.replace("*/", ""))),
        ("data", data),
    ];
    Ok(filled(PAGE, &parts))
}

/// The template with its `{{names}}` replaced; what is put in is not looked at again.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(template.len() + 200_000);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out += before;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        let part = parts.iter().find(|(n, _)| *n == name);
        out += part.map_or("", |(_, text)| text);
        rest = after;
    }
    out + rest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn warnings(record: &Record) -> String {
    let thinned = record.info.thinned().map(|t| format!("the record {t}"));
    let all = record.report.warnings.iter().cloned().chain(thinned);
    all.map(|w| format!("<p class=\"warn\">{}</p>", escaped(&w)))
        .collect()
}

fn latencies(r: &RunReport) -> String {
    let mut out = "<table><tr><th>[ms]</th><th>mean</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>n</th></tr>".to_owned();
    for m in Metric::ALL {
        let s = r.latency(m);
        let cells: String = [s.mean, s.p50, s.p90, s.p95, s.p99]
            .iter()
            .map(|v| format!("<td>{}</td>", v.map_or("-".to_owned(), figure)))
            .collect();
        // Writing to a String cannot fail.
        let _ = write!(out, "<tr><td>{}</td>{cells}<td>{}</td></tr>", m.name(), s.n);
    }
    out + "</table>"
}

fn figures(r: &RunReport) -> String {
    let numbers = Numbers::of(r);
    let rows = FIGURES
        .iter()
        .filter(|f| !f.path.contains("_ms."))
        .filter_map(|f| {
            let value = figure(numbers.at(f.path)?);
            Some(format!(
                "<tr><td>{}</td><td>{value}</td></tr>",
                escaped(f.label.trim())
            ))
        });
    format!("<table>{}</table>", rows.collect::<String>())
}

fn causes(r: &RunReport) -> String {
    let b = &r.bound_by;
    let shares = [
        ("weights", b.weights),
        ("KV", b.kv),
        ("arithmetic", b.compute),
        ("communication", b.communication),
        ("host", b.host),
        ("bubble", b.bubble),
    ];
    let mut bar = String::new();
    let mut words = Vec::new();
    for ((name, share), color) in shares.into_iter().zip(COLORS) {
        if share >= 0.0005 {
            let percent = 100.0 * share;
            let _ = write!(
                bar,
                "<span style=\"width:{percent:.2}%;background:{color}\" title=\"{name}\"></span>"
            );
            words.push(format!(
                "<span style=\"color:{color}\">&#9632;</span> {name} {percent:.1} %"
            ));
        }
    }
    words.push(format!("idle {:.1} %", 100.0 * b.idle));
    format!(
        "<div class=\"bar\">{bar}</div><p>{}</p>",
        words.join(" &nbsp; ")
    )
}

fn evidence(r: &RunReport) -> String {
    let profiles = r.profiles.iter().map(|p| {
        let trust = if p.trusted {
            "validated"
        } else {
            "not validated"
        };
        format!(
            "<p>Profile {} ({trust}): {}</p>",
            escaped(&p.name),
            escaped(&p.note)
        )
    });
    let accuracy = r.accuracy.iter().map(|a| {
        format!(
            "<p>Median error {}</p>",
            escaped(&sim::report::headline::in_words(a))
        )
    });
    profiles.chain(accuracy).collect()
}

fn distributions(record: &Record) -> Vec<Chart> {
    let slo = record.info.slo;
    [
        (Metric::Ttft, "TTFT", slo.ttft),
        (Metric::Itl, "ITL", None),
        (Metric::Tpot, "TPOT", slo.tpot),
        (Metric::E2e, "E2E latency", slo.e2e),
        (Metric::Queue, "Queue time", None),
    ]
    .into_iter()
    .filter_map(|(m, title, limit)| {
        let values = if m == Metric::Itl {
            record.info.itl.clone()
        } else {
            values(record, m)
        };
        let points: Vec<[f64; 2]> = resample::cumulative(values.iter().copied(), POINTS)
            .into_iter()
            .filter(|p| p[0] > 0.0)
            .collect();
        let [first, .., last] = points.as_slice() else {
            return None;
        };
        Some(Chart {
            title: title.to_owned(),
            x: "ms",
            y: "share of requests",
            log: last[0] > first[0],
            steps: false,
            at: points.iter().map(|p| p[0] / 1e6).collect(),
            lines: vec![Line {
                name: title,
                color: COLORS[0],
                values: points.iter().map(|p| p[1]).collect(),
            }],
            marks: limit
                .map(|l| Mark {
                    at: l as f64 / 1e6,
                    name: format!("limit {} ms", l as f64 / 1e6),
                })
                .into_iter()
                .collect(),
        })
    })
    .collect()
}

/// The values of a metric over the measured requests, ascending [ns], each with weight 1.
fn values(record: &Record, metric: Metric) -> Vec<(u64, u64)> {
    let measured = record
        .requests
        .iter()
        .filter(|r| r.arrival.0 >= record.info.warmup);
    let mut values: Vec<(u64, u64)> = measured
        .filter_map(|r| metric.of(&r))
        .map(|d| (d.0, 1))
        .collect();
    values.sort_unstable();
    values
}

fn series(record: &Record) -> Vec<Chart> {
    let end = record.info.end.max(1);
    let columns = resample::columns(&record.steps, 0..end, COLUMNS, None);
    let width = end as f64 / COLUMNS as f64 * 1e-9;
    let at: Vec<f64> = (0..columns.len()).map(|i| i as f64 * width).collect();
    let line = |i: usize, name, of: &dyn Fn(&Column) -> f64| Line {
        name,
        color: COLORS[i],
        values: columns.iter().map(of).collect(),
    };
    let blocks: u64 = record.info.replicas.iter().map(|r| r.kv_blocks).sum();
    let mut all = vec![
        rates(record),
        chart(
            "Requests in engines",
            "requests",
            at.clone(),
            vec![
                line(0, "running", &|c| c.running),
                line(1, "waiting", &|c| c.waiting),
            ],
        ),
        chart(
            "Tokens per second",
            "tokens/s",
            at.clone(),
            vec![
                line(1, "prefill", &|c| c.tokens[0]),
                line(0, "decode", &|c| c.tokens[1]),
            ],
        ),
    ];
    if blocks > 0 {
        let used = line(2, "in use", &|c| 100.0 * c.kv_blocks / blocks as f64);
        all.push(chart("KV cache use", "%", at, vec![used]));
    }
    all
}

/// Steps over time [s].
fn chart(title: &str, y: &'static str, at: Vec<f64>, lines: Vec<Line>) -> Chart {
    Chart {
        title: title.to_owned(),
        x: "s",
        y,
        log: false,
        steps: true,
        at,
        lines,
        marks: Vec::new(),
    }
}

fn rates(record: &Record) -> Chart {
    let rates = &record.rates;
    let every = rates.bins.len().div_ceil(120).max(1);
    let seconds = (every as f64) * rates.width as f64 * 1e-9;
    let line = |i, name, of: fn(&store::Bin) -> u64| Line {
        name,
        color: COLORS[i],
        values: (rates.bins.chunks(every))
            .map(|c| c.iter().map(of).sum::<u64>() as f64 / seconds)
            .collect(),
    };
    let at = (0..rates.bins.len().div_ceil(every))
        .map(|i| i as f64 * seconds)
        .collect();
    let lines = vec![
        line(1, "sent", |b| b.sent),
        line(0, "finished", |b| b.finished),
        line(4, "lost", |b| b.lost),
    ];
    chart("Requests per second", "req/s", at, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_not_looked_at_again() {
        let parts = [("a", "{{b}}".to_owned()), ("b", "x".to_owned())];
        assert_eq!(
            filled("1 {{a}} 2 {{b}} 3 {{c}} 4", &parts),
            "1 {{b}} 2 x 3  4"
        );
    }
}
