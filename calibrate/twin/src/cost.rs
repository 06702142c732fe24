//! What the proxy adds: the same streams with and without it, from a server that sends on schedule.
//!
//! Server, proxy, observer and clients share one process and its processors, so the figures err on the high side. Each
//! token carries the instant at which it was sent, so what is compared is the way from server to client, free of the
//! server's own jitter. Requests with and without the proxy take turns, so that both see the same machine.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use sim::metrics::distribution::quantile_of_sorted_f64;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::observe::{Observer, ObserverConfig};
use super::prefix::Salt;
use super::proxy::{ProxyConfig, ProxyError, serve};
use super::tap::{Clock, DEFAULT_CAPACITY, channel};

/// What to drive.
#[derive(Clone, Copy, Debug)]
pub struct CostLoad {
    /// Streams at once.
    pub concurrency: usize,
    /// Requests of each kind, with and without the proxy.
    pub requests: usize,
    /// Tokens of each answer.
    pub tokens: usize,
    /// Pause between tokens; zero sends as fast as it goes.
    pub interval: Duration,
}

/// The 50th and 99th percentile [us].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median [us].
    pub p50_us: f64,
    /// 99th percentile [us].
    pub p99_us: f64,
}

/// One side of the comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// From sending the request until the first token is there.
    pub ttft: Quantiles,
    /// From the server's sending of a token until it is there.
    pub way: Quantiles,
    /// Gaps between tokens.
    pub itl: Quantiles,
    /// Tokens received per second of the time in which this side was driven.
    pub tokens_per_s: f64,
}

/// With and without the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Straight to the server.
    pub direct: Side,
    /// Through the proxy, observed.
    pub proxied: Side,
    /// Events that the observer missed.
    pub dropped_events: u64,
    /// Requests of each side.
    pub requests: usize,
    /// Tokens of each side.
    pub tokens: usize,
}

/// Why the cost could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// No port, no thread.
    #[error("cannot set up the measurement: {0}")]
    Io(#[from] std::io::Error),
    /// The proxy refuses its upstream.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// A request failed.
    #[error("a request of the measurement failed: {0}")]
    Request(String),
}

/// Measures what the proxy adds under `load`.
///
/// # Errors
/// See [`CostError`].
pub async fn measure(load: CostLoad) -> Result<Cost, CostError> {
    let origin = Instant::now();
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let direct = server.local_addr()?;
    let serving = tokio::spawn(echo(server, origin, load.tokens, load.interval));
    let clock = Clock::start();
    let (tap, feed) = channel(DEFAULT_CAPACITY, clock);
    let counters = std::sync::Arc::clone(tap.counters());
    let observer = Observer::new(
        ObserverConfig {
            endpoint: "echo".into(),
            retention: Duration::from_secs(60),
            tokenizer: None,
            salt: Salt::random(),
        },
        clock,
    );
    observer.spawn(feed)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxied = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let config = ProxyConfig::new(&format!("http://{direct}"))?;
    let proxying = tokio::spawn(serve(listener, config, tap, stopped));
    let result = drive(load, origin, [direct, proxied]).await;
    let _ = stop.send(true);
    let _ = proxying.await;
    serving.abort();
    let [direct, proxied] = result?;
    Ok(Cost {
        direct,
        proxied,
        dropped_events: counters
            .dropped_events
            .load(std::sync::atomic::Ordering::Relaxed),
        requests: load.requests,
        tokens: load.requests * load.tokens,
    })
}

/// Times of one side [us].
#[derive(Default)]
struct Times {
    ttft: Vec<f64>,
    way: Vec<f64>,
    itl: Vec<f64>,
    busy: Duration,
    tokens: usize,
}

/// Batches of `concurrency` streams, one side after the other in turns.
async fn drive(
    load: CostLoad,
    origin: Instant,
    addresses: [SocketAddr; 2],
) -> Result<[Side; 2], CostError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(connector);
    let mut times = [Times::default(), Times::default()];
    let batches = load.requests.div_ceil(load.concurrency.max(1)).max(1);
    // The first round opens connections and warms up; it does not count.
    for batch in 0..=batches {
        for side in [batch % 2, 1 - batch % 2] {
            let start = Instant::now();
            let mut streams = JoinSet::new();
            for _ in 0..load.concurrency.max(1) {
                let (client, address) = (client.clone(), addresses[side]);
                streams.spawn(async move { stream(&client, address, origin).await });
            }
            let mut round = Times::default();
            while let Some(done) = streams.join_next().await {
                let done = done.map_err(|e| CostError::Request(e.to_string()))??;
                round.tokens += done.way.len();
                round.ttft.extend(done.ttft);
                round.way.extend(done.way);
                round.itl.extend(done.itl);
            }
            if batch > 0 {
                let all = &mut times[side];
                all.busy += start.elapsed();
                all.tokens += round.tokens;
                all.ttft.extend(round.ttft);
                all.way.extend(round.way);
                all.itl.extend(round.itl);
            }
        }
    }
    Ok(times.map(|t| Side {
        ttft: quantiles(t.ttft),
        way: quantiles(t.way),
        itl: quantiles(t.itl),
        tokens_per_s: t.tokens as f64 / t.busy.as_secs_f64().max(1e-9),
    }))
}

/// One request, its tokens timed as they arrive.
async fn stream(
    client: &Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    origin: Instant,
) -> Result<Times, CostError> {
    let failed = |e: &dyn std::fmt::Display| CostError::Request(e.to_string());
    let body = r#"{"prompt":"servetwin proxy cost","max_tokens":64,"stream":true}"#;
    let request = Request::post(format!("http://{address}/v1/completions"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .map_err(|e| failed(&e))?;
    let sent = Instant::now();
    let mut response = client.request(request).await.map_err(|e| failed(&e))?;
    if !response.status().is_success() {
        return Err(failed(&response.status()));
    }
    let mut times = Times::default();
    let mut last: Option<Instant> = None;
    let mut reader = super::api::SseReader::default();
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|e| failed(&e))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let now = Instant::now();
        let at_us = now.duration_since(origin).as_secs_f64() * 1e6;
        reader.feed(data, |event| {
            let Some(token) = sent_us(event) else { return };
            times.way.push(at_us - token);
            match last {
                None => times
                    .ttft
                    .push(now.duration_since(sent).as_secs_f64() * 1e6),
                Some(l) => times.itl.push(now.duration_since(l).as_secs_f64() * 1e6),
            }
            last = Some(now);
        });
    }
    Ok(times)
}

/// The instant at which the server sent this token [us since the origin].
fn sent_us(event: &[u8]) -> Option<f64> {
    let json: serde_json::Value = serde_json::from_slice(event).ok()?;
    json["choices"][0]["text"].as_str()?.trim().parse().ok()
}

fn quantiles(mut values: Vec<f64>) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let at = |p: f64| quantile_of_sorted_f64(&values, p).unwrap_or(f64::NAN);
    Quantiles {
        p50_us: at(0.5),
        p99_us: at(0.99),
    }
}

/// A server that answers every request with `tokens` tokens, `interval` apart, the first at once.
async fn echo(listener: TcpListener, origin: Instant, tokens: usize, interval: Duration) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request: Request<hyper::body::Incoming>| async move {
            let _ = request.into_body().collect().await;
            let (tx, mut rx) = mpsc::channel::<Bytes>(1);
            tokio::spawn(send_tokens(tx, origin, tokens, interval));
            let frames = futures_util::stream::poll_fn(move |cx| {
                rx.poll_recv(cx)
                    .map(|b| b.map(|b| Ok::<_, Infallible>(Frame::data(b))))
            });
            let body: Either<_, Full<Bytes>> = Either::Left(StreamBody::new(frames));
            let mut response = Response::new(body);
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                header::HeaderValue::from_static("text/event-stream"),
            );
            Ok::<_, Infallible>(response)
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

async fn send_tokens(tx: mpsc::Sender<Bytes>, origin: Instant, tokens: usize, interval: Duration) {
    for i in 0..tokens {
        if i > 0 && interval > Duration::ZERO {
            tokio::time::sleep(interval).await;
        }
        let Ok(place) = tx.reserve().await else {
            return;
        };
        let us = origin.elapsed().as_secs_f64() * 1e6;
        let event = format!("data: {{\"choices\":[{{\"text\":\"{us:.3} \"}}]}}\n\n");
        place.send(Bytes::from(event));
    }
    let _ = tx.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_token_arrives_on_both_sides_and_none_is_missed() {
        let load = CostLoad {
            concurrency: 4,
            requests: 8,
            tokens: 16,
            interval: Duration::from_millis(1),
        };
        let cost = measure(load).await.expect("measured");
        assert_eq!(cost.dropped_events, 0);
        for side in [cost.direct, cost.proxied] {
            assert!(side.ttft.p50_us > 0.0 && side.way.p50_us > 0.0, "{side:?}");
            assert!(
                side.itl.p50_us > 500.0 && side.tokens_per_s > 0.0,
                "{side:?}"
            );
        }
    }
}
