//! A digital twin beside a live deployment: what `servetwin twin` measures and predicts, look by look.
//!
//! The twin is asked for its `/metrics` every two seconds; one that does not answer is asked again until it does. The lines that it writes with
//! `--jsonl` give the same looks, from their first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

/// Time between two questions [s].
pub const EVERY_S: f64 = 2.0;

/// Most looks that are kept; the oldest go.
const MAX_LOOKS: usize = 20_000;

/// A figure in a look, in seconds, shares or counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Measured.
    pub measured: Option<f64>,
    /// Predicted.
    pub predicted: Option<f64>,
    /// The error that is usual, predicted over measured less one [ratio].
    pub usual: Option<f64>,
    /// Half width of the interval around it that the error is expected in [ratio].
    pub limit: Option<f64>,
    /// Whether drift is raised.
    pub drift: bool,
}

impl Figure {
    /// Where the measured value is expected by the prediction and its usual error: from, to.
    pub fn expected(&self) -> Option<(f64, f64)> {
        let (predicted, usual, limit) = (self.predicted?, self.usual?, self.limit?);
        let at = |error: f64| (1.0 + error > 0.0).then(|| predicted / (1.0 + error));
        Some((at(usual + limit)?, at(usual - limit)?))
    }
}

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A number.
    #[default]
    Number,
    /// Seconds.
    Seconds,
    /// A share.
    Ratio,
}

/// A window of the twin, measured against predicted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// End of the window [s since 1970].
    pub at_unix_s: f64,
    /// Requests that were compared.
    pub compared: Option<f64>,
    /// The figures by name.
    pub figures: BTreeMap<String, (Unit, Figure)>,
}

impl Look {
    /// Whether drift is raised for any figure.
    pub fn drift(&self) -> bool {
        self.figures.values().any(|(_, f)| f.drift)
    }
}

/// The looks of a twin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Looks {
    /// Where they come from.
    pub from: String,
    /// In the order of time.
    pub all: Vec<Look>,
    /// How it stands with the twin, in words.
    pub status: String,
    /// Whether it answers.
    pub answers: bool,
}

impl Looks {
    /// Takes in an answer.
    fn answered(&mut self, text: &str) {
        self.answers = true;
        match of_metrics(text) {
            Ok(Some(look)) => {
                self.status = format!("{} answers", self.from);
                if self.all.last().is_none_or(|l| l.at_unix_s < look.at_unix_s) {
                    self.all.push(look);
                }
                if self.all.len() > MAX_LOOKS {
                    self.all.remove(0);
                }
            }
            Ok(None) => {
                self.status = format!(
                    "{} answers, and has compared nothing yet: it needs requests for a whole window",
                    self.from
                );
            }
            Err(why) => self.status = format!("{} answers, but {why}", self.from),
        }
    }

    fn failed(&mut self, why: &str) {
        self.answers = false;
        self.status = format!(
            "nothing answers at {}: {why}; it is asked again every {EVERY_S} s. Start the twin with: servetwin twin ... --metrics ADDRESS",
            self.from
        );
    }
}

/// Names that say what a metric's labels are about.
fn labelled<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(prefix)?;
    rest.strip_prefix("{figure=\"")?.strip_suffix("\"}")
}

/// The look in the twin's metrics (Prometheus text format 0.0.4); none where nothing was compared yet.
///
/// # Errors
/// In words: what it is instead.
pub fn of_metrics(text: &str) -> Result<Option<Look>, String> {
    let mut look = Look::default();
    let mut ours = false;
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let mut verdicts: Vec<(&str, &str, f64)> = Vec::new();
    for line in lines {
        let Some((name, value)) = line.trim().rsplit_once(' ') else {
            continue;
        };
        let (Some(name), Ok(value)) = (name.strip_prefix("servetwin_twin_"), value.parse::<f64>())
        else {
            continue;
        };
        ours = true;
        match name {
            "window_end_timestamp_seconds" => look.at_unix_s = value,
            "window_compared_requests" => look.compared = Some(value),
            _ => {}
        }
        for kind in ["usual_error_ratio", "error_limit_ratio", "drift"] {
            verdicts.extend(labelled(name, kind).map(|figure| (kind, figure, value)));
        }
        let side = |prefix: &str| name.strip_prefix(prefix);
        if let Some(figure) = side("measured_") {
            entry(&mut look, figure).measured = Some(value);
        } else if let Some(figure) = side("predicted_") {
            entry(&mut look, figure).predicted = Some(value);
        }
    }
    if !ours {
        return Err(
            "what it says is not a twin's: name the address of `servetwin twin --metrics ADDRESS`"
                .to_owned(),
        );
    }
    for (kind, figure, value) in verdicts {
        // Labels have the twin's own names, metrics those of Prometheus.
        let figure = figure.replace("_per_s", "_per_second");
        if let Some((_, f)) = look.figures.get_mut(&figure) {
            match kind {
                "usual_error_ratio" => f.usual = Some(value),
                "error_limit_ratio" => f.limit = Some(value),
                _ => f.drift = value > 0.0,
            }
        }
    }
    Ok((look.at_unix_s > 0.0).then_some(look))
}

/// The figure of a metric's name, whose end is its unit.
fn entry<'a>(look: &'a mut Look, name: &str) -> &'a mut Figure {
    let (name, unit) = match (name.strip_suffix("_seconds"), name.strip_suffix("_ratio")) {
        (Some(name), _) => (name, Unit::Seconds),
        (_, Some(name)) => (name, Unit::Ratio),
        _ => (name, Unit::Number),
    };
    let entry = look.figures.entry(name.to_owned());
    &mut entry.or_insert((unit, Figure::default())).1
}

#[derive(Deserialize)]
struct Line {
    endpoint: String,
    comparison: Option<Comparison>,
    #[serde(default)]
    verdicts: Vec<Verdict>,
}

#[derive(Deserialize)]
struct Comparison {
    at_unix_s: f64,
    compared: f64,
    figures: Vec<LineFigure>,
}

#[derive(Deserialize)]
struct LineFigure {
    name: String,
    unit: String,
    measured: Option<f64>,
    predicted: Option<f64>,
}

#[derive(Deserialize)]
struct Verdict {
    figure: String,
    usual_ratio: f64,
    limit_ratio: f64,
    drift: bool,
}

/// The looks in the lines of `servetwin twin --jsonl`; none where it is no such file. A last line that is cut off is left out.
pub fn of_lines(name: &str, text: &str) -> Option<Result<Looks, String>> {
    let mut looks = Looks {
        from: name.to_owned(),
        ..Looks::default()
    };
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    for (i, text) in lines.iter().enumerate() {
        match serde_json::from_str::<Line>(text) {
            Ok(line) => {
                looks.from = line.endpoint;
                looks
                    .all
                    .extend(line.comparison.map(|c| of_line(c, &line.verdicts)));
            }
            Err(_) if i == 0 => return None,
            Err(_) if i + 1 == lines.len() => {}
            Err(e) => return Some(Err(format!("{name}: line {}: {e}", i + 1))),
        }
    }
    if lines.is_empty() {
        return None;
    }
    let file = std::path::Path::new(name)
        .file_name()
        .map(|n| n.to_string_lossy());
    let file = file.unwrap_or_default();
    looks.status = format!("{} looks, from {file}", looks.all.len());
    let over = looks.all.len().saturating_sub(MAX_LOOKS);
    looks.all.drain(..over);
    Some(Ok(looks))
}

fn of_line(c: Comparison, verdicts: &[Verdict]) -> Look {
    let figure = |f: LineFigure| {
        let (unit, factor) = match f.unit.as_str() {
            "ms" => (Unit::Seconds, 1e-3),
            "ratio" => (Unit::Ratio, 1.0),
            _ => (Unit::Number, 1.0),
        };
        let verdict = verdicts.iter().find(|v| v.figure == f.name);
        let figure = Figure {
            measured: f.measured.map(|v| v * factor),
            predicted: f.predicted.map(|v| v * factor),
            usual: verdict.map(|v| v.usual_ratio),
            limit: verdict.map(|v| v.limit_ratio),
            drift: verdict.is_some_and(|v| v.drift),
        };
        (f.name.replace("_per_s", "_per_second"), (unit, figure))
    };
    Look {
        at_unix_s: c.at_unix_s,
        compared: Some(c.compared),
        figures: c.figures.into_iter().map(figure).collect(),
    }
}

/// Where the metrics are, of what somebody typed: `127.0.0.1:9100`.
fn url(address: &str) -> String {
    let address = address.trim().trim_end_matches('/');
    let with_scheme = if address.contains("://") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    if with_scheme.ends_with("/metrics") {
        with_scheme
    } else {
        format!("{with_scheme}/metrics")
    }
}

/// A connection to a twin: it asks on and on until it is dropped.
pub struct Client {
    looks: Arc<Mutex<Looks>>,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Asks the twin at `address`; `wake` is called when there is something new.
    pub fn connect(address: &str, wake: impl Fn() + Send + 'static) -> Client {
        let url = url(address);
        let looks = Looks {
            status: format!("asking {url}"),
            from: url.clone(),
            ..Looks::default()
        };
        let client = Client {
            looks: Arc::new(Mutex::new(looks)),
            stop: Arc::default(),
        };
        let (looks, stop) = (client.looks.clone(), client.stop.clone());
        let take = move |answer: Result<String, String>| {
            let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(text) => looks.answered(&text),
                Err(why) => looks.failed(&why),
            }
            drop(looks);
            wake();
        };
        ask::on(url, stop, take);
        client
    }

    /// What it has heard.
    pub fn looks(&self) -> Looks {
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod ask {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// Most that an answer may be [bytes].
    const MAX_ANSWER: u64 = 4 << 20;

    /// Asks on a thread of its own.
    pub fn on(
        url: String,
        stop: Arc<AtomicBool>,
        take: impl Fn(Result<String, String>) + Send + 'static,
    ) {
        std::thread::spawn(move || {
            let config = ureq::Agent::config_builder()
                .timeout_global(Some(Duration::from_secs(5)))
                .build();
            let agent = ureq::Agent::new_with_config(config);
            while !stop.load(Ordering::Relaxed) {
                let answer = agent.get(&url).call().and_then(|mut response| {
                    let body = response.body_mut().with_config().limit(MAX_ANSWER);
                    body.read_to_string()
                });
                take(answer.map_err(|e| e.to_string()));
                // In short pieces, so that it ends soon after it is not wanted.
                let pieces = (super::EVERY_S * 10.0) as u32;
                for _ in 0..pieces {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
    }
}

#[cfg(target_arch = "wasm32")]
mod ask {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Asks between frames; a browser lets a page ask only where it comes from, or who allows it.
    pub fn on(url: String, stop: Arc<AtomicBool>, take: impl Fn(Result<String, String>) + 'static) {
        js_sys::futures::spawn_local(async move {
            while !stop.load(Ordering::Relaxed) {
                take(crate::page::text(&url).await);
                crate::page::sleep(super::EVERY_S).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    const METRICS: &str = "# HELP servetwin_twin_measured_ttft_p50_seconds x\n\
        # TYPE servetwin_twin_measured_ttft_p50_seconds gauge\n\
        servetwin_twin_measured_ttft_p50_seconds 0.05\nservetwin_twin_predicted_ttft_p50_seconds 0.04\n\
        servetwin_twin_measured_output_tokens_per_second 100\n\
        servetwin_twin_usual_error_ratio{figure=\"ttft_p50\"} -0.02\nservetwin_twin_error_limit_ratio{figure=\"ttft_p50\"} 0.08\n\
        servetwin_twin_drift{figure=\"ttft_p50\"} 1\nservetwin_twin_drift{figure=\"output_tokens_per_s\"} 1\n\
        servetwin_twin_window_compared_requests 20\nservetwin_twin_window_end_timestamp_seconds 1700000000\n";

    #[test]
    fn metrics_become_a_look() {
        let look = of_metrics(METRICS).unwrap().unwrap();
        assert_eq!(look.at_unix_s, 1.7e9);
        let (unit, ttft) = look.figures["ttft_p50"];
        assert_eq!(unit, Unit::Seconds);
        assert_eq!((ttft.measured, ttft.predicted), (Some(0.05), Some(0.04)));
        assert!(ttft.drift && look.drift());
        let (from, to) = ttft.expected().unwrap();
        assert!((from - 0.04 / 1.06).abs() < 1e-12 && (to - 0.04 / 0.9).abs() < 1e-12);
        assert!(look.figures["output_tokens_per_second"].1.drift);
        assert_eq!(
            of_metrics("servetwin_twin_proxy_requests_total 0\n"),
            Ok(None)
        );
        assert!(
            of_metrics("go_threads 5\n")
                .unwrap_err()
                .contains("not a twin")
        );
    }

    #[test]
    fn lines_of_a_twin_give_its_looks() {
        let line = r#"{"endpoint":"http://h:1","comparison":{"at_unix_s":5.0,"window_s":60,"requests":3,"compared":2,"refused":0,"cancelled":0,
            "in_flight":0,"figures":[{"name":"ttft_p50","unit":"ms","measured":50.0,"predicted":40.0,"error_ratio":-0.2,"noise_ratio":null}],
            "notes":[]},"verdicts":[{"figure":"ttft_p50","error_ratio":-0.2,"usual_ratio":0.0,"limit_ratio":0.1,"score_ratio":2.0,"streak":-2,
            "drift":true}],"drift":true,"traffic":{}}"#
            .replace('\n', " ");
        let none = r#"{"endpoint":"http://h:1","comparison":null,"verdicts":[],"drift":false,"traffic":{}}"#;
        let text = format!("{none}\n{line}\n{{\"endpo");
        let looks = of_lines("t.jsonl", &text).unwrap().unwrap();
        assert_eq!((looks.from.as_str(), looks.all.len()), ("http://h:1", 1));
        assert_eq!(looks.all[0].figures["ttft_p50"].1.measured, Some(0.05));
        assert!(looks.all[0].drift());
        assert!(of_lines("x", "{\"a\": 1}\n").is_none() && of_lines("x", "").is_none());
        let broken = format!("{none}\n{{}}\n{none}\n");
        assert!(
            of_lines("x", &broken)
                .unwrap()
                .unwrap_err()
                .contains("line 2")
        );
    }

    fn wait(client: &Client, what: &str, is: impl Fn(&Looks) -> bool) -> Looks {
        let start = Instant::now();
        loop {
            let looks = client.looks();
            if is(&looks) {
                return looks;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: {}",
                looks.status
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Answers `n` questions at `listener`, then closes it.
    fn serve(listener: TcpListener, n: usize) {
        for stream in listener.incoming().take(n) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                METRICS.len()
            );
            stream.write_all((head + METRICS).as_bytes()).unwrap();
        }
    }

    #[test]
    fn a_twin_that_comes_and_goes_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::connect(&address.to_string(), || {});
        let looks = wait(&client, "nobody is there", |l| {
            l.status.contains("nothing answers")
        });
        assert!(looks.status.contains("servetwin twin"), "{}", looks.status);
        let listener = TcpListener::bind(address).unwrap();
        let server = std::thread::spawn(move || serve(listener, 1));
        let looks = wait(&client, "the twin is there", |l| l.answers);
        assert_eq!(looks.all.len(), 1);
        server.join().unwrap();
        let looks = wait(&client, "the twin is gone", |l| !l.answers);
        assert_eq!(looks.all.len(), 1, "what was heard stays");
    }

    #[test]
    fn addresses_may_be_short() {
        assert_eq!(url("127.0.0.1:9100"), "http://127.0.0.1:9100/metrics");
        assert_eq!(url("http://h:1/metrics"), "http://h:1/metrics");
    }
}
