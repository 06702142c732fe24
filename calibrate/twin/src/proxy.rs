//! A transparent streaming proxy: every method, path, header and body goes through as it came.
//!
//! Nothing is buffered: each frame of a body is passed on when it arrives, in both directions, trailers included. When
//! the client goes away its upstream request is dropped, and when the upstream breaks off, so does the response. Of the
//! headers, those that RFC 9110 7.6.1 calls connection-specific stay on their connection, and requests get a `Via` as
//! 7.6.3 demands of a gateway. An upgraded connection (WebSocket) becomes a tunnel. Informational responses pass
//! ([`super::door`]), and the body of a request that expects `100 Continue` waits for the upstream's ([`super::passing`]).
//!
//! How long a body is says one header only (RFC 9112 6.3): `Transfer-Encoding` beside `Content-Length` wins, and the connection
//! that brought both is not used again.
//!
//! The observer gets copies (`super::tap`); whatever happens to them, the traffic does not notice.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bench::endpoint::connection::tls_config;
use bench::endpoint::{EndpointError, TlsOptions};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::door::{Bell, Door};
use super::observe::observed_path;
use super::passing::{Gate, Side, TapBody, Unsent};
use super::tap::{End, RequestTap, Tap, What};

/// How long an idle connection to the upstream is kept: less than the 5 s after which uvicorn (vLLM) and llama.cpp's
/// server close theirs, so that a request does not meet a closing connection.
const POOL_IDLE: Duration = Duration::from_secs(3);

/// How long a client may keep a connection without sending a request: longer than any server that the proxy stands in
/// front of, so that it is the server's habit that clients see.
const CLIENT_IDLE: Duration = Duration::from_secs(600);

/// Most headers of a message.
const MAX_HEADERS: usize = 256;

/// Informational responses of one request that wait to be passed on at most; more are left out.
const MAX_EARLY: usize = 16;

/// How the proxy reaches its upstream.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Scheme, host, port and, where the upstream has one, a path in front of every path.
    pub upstream: Uri,
    /// Send the upstream's name as `Host`, in place of the one the client sent.
    pub rewrite_host: bool,
    /// How the certificate of an `https://` upstream is checked.
    pub tls: TlsOptions,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a body that waits for the upstream's `100 Continue` waits.
    pub continue_timeout: Duration,
    /// How long the requests under way may take to finish once the proxy is told to stop.
    pub drain: Duration,
}

impl ProxyConfig {
    /// The usual settings in front of `endpoint`, whose `/v1` at the end is left to the clients. An upstream behind TLS is
    /// called by its own name: its certificate is, and who shares an address with others has to be.
    ///
    /// # Errors
    /// When `endpoint` is no `http://` or `https://` address.
    pub fn new(endpoint: &str) -> Result<ProxyConfig, ProxyError> {
        let bad = |problem: &str| ProxyError::Endpoint {
            endpoint: endpoint.to_owned(),
            problem: problem.to_owned(),
        };
        // Clients send the /v1 that base addresses of OpenAI's API end in.
        let base = endpoint.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let upstream: Uri = base.parse().map_err(|_| bad("is no URL"))?;
        match upstream.scheme_str() {
            Some("http" | "https") => {}
            _ => return Err(bad("has no http:// or https:// in front")),
        }
        if upstream.query().is_some() {
            return Err(bad("has a query"));
        }
        Ok(ProxyConfig {
            rewrite_host: upstream.scheme_str() == Some("https"),
            tls: TlsOptions::default(),
            upstream,
            connect_timeout: Duration::from_secs(5),
            continue_timeout: Duration::from_secs(1),
            drain: Duration::from_secs(30),
        })
    }
}

/// Why a proxy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The upstream's address is not one.
    #[error("endpoint `{endpoint}` {problem}; write e.g. http://127.0.0.1:8000")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Its certificates cannot be checked as asked.
    #[error(transparent)]
    Tls(#[from] EndpointError),
}

type Upstream = Client<HttpsConnector<HttpConnector>, TapBody>;
type ProxyBody = Either<TapBody, Either<Full<Bytes>, Unsent>>;

struct Shared {
    client: Upstream,
    config: ProxyConfig,
    tap: Tap,
}

/// What makes connections to the upstream.
fn connector(config: &ProxyConfig) -> Result<HttpsConnector<HttpConnector>, ProxyError> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(config.connect_timeout));
    tcp.enforce_http(false);
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls_config(&config.tls)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp))
}

/// Serves on `listener` until `stop` turns true, then lets the requests under way finish.
///
/// # Errors
/// Those of TLS that cannot be set up as asked, and of accepting connections that are not of one connection only.
pub async fn serve(
    listener: TcpListener,
    config: ProxyConfig,
    tap: Tap,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let connector = connector(&config).map_err(std::io::Error::other)?;
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .http1_preserve_header_case(true)
        .http1_max_headers(MAX_HEADERS)
        .build(connector);
    let drain = config.drain;
    let shared = Arc::new(Shared {
        client,
        config,
        tap,
    });
    let mut connections = JoinSet::new();
    let stopped = stop.clone();
    loop {
        tokio::select! {
            biased;
            () = told(&mut stop) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&shared), stopped.clone()));
                }
                // Out of file descriptors, or a client that left at once: the next accept may succeed.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(drain, all).await;
    Ok(())
}

/// Waits until the word to stop has come, or nobody is left to give it.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|s| *s).await;
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let (door, bell) = Door::new(stream);
    let service = service_fn(move |request| forward(Arc::clone(&shared), bell.clone(), request));
    let connection = hyper::server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS)
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_IDLE)
        .serve_connection(TokioIo::new(door), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    // An error ends this connection only: the client left, or the upstream broke off.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = told(&mut stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn forward(
    shared: Arc<Shared>,
    bell: Bell,
    mut request: Request<Incoming>,
) -> Result<Response<ProxyBody>, Infallible> {
    let observe = request.method() == Method::POST && observed_path(request.uri().path());
    let tap = shared.tap.open(request.uri().path(), observe);
    let uri = match upstream_uri(&shared.config.upstream, request.uri(), request.method()) {
        Ok(uri) => uri,
        Err(problem) => {
            tap.end(End::UpstreamFailed);
            return Ok(own_answer(StatusCode::BAD_REQUEST, problem));
        }
    };
    let upgrade = upgrade_wanted(request.headers());
    let client_side = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let head = request.method() == Method::HEAD;
    let gate = expects_continue(&request).then(|| Gate::new(shared.config.continue_timeout));
    let gate = gate.map(Arc::new);
    let speaks_1_1 = request.version() == Version::HTTP_11;
    let request = outgoing(&shared.config, request, uri, upgrade.as_ref());
    let request = request.map(|b| TapBody::new(b, tap.clone(), Side::Request, gate.clone()));
    let early = speaks_1_1.then_some(&bell);
    let (answer, connection) = exchange(&shared.client, request, gate.as_deref(), early).await;
    let mut response = match answer {
        Ok(response) => response,
        Err(e) => {
            tap.end(End::UpstreamFailed);
            tap.unreachable();
            return Ok(own_answer(
                StatusCode::BAD_GATEWAY,
                &format!(
                    "servetwin's proxy got no answer from {}: {}",
                    shared.config.upstream,
                    causes(&e)
                ),
            ));
        }
    };
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client_side)) = (upgraded, client_side) {
        let upstream_side = hyper::upgrade::on(&mut response);
        tokio::spawn(tunnel(client_side, upstream_side));
    }
    let (mut parts, body) = response.into_parts();
    if parts.headers.contains_key(header::TRANSFER_ENCODING)
        && parts.headers.remove(header::CONTENT_LENGTH).is_some()
    {
        // Whoever sends both may mean another length than the one that was read.
        if let Some(connection) = connection.connection_metadata().as_ref() {
            connection.poison();
        }
    }
    strip_connection_headers(&mut parts.headers, upgrade.as_ref().filter(|_| upgraded));
    let length = one_length(&mut parts.headers);
    let refused = gate.as_ref().is_some_and(|g| g.answered());
    if refused {
        // The client may send the body or not: only a new connection tells the next request from it.
        let close = HeaderValue::from_static("close");
        parts.headers.insert(header::CONNECTION, close);
    }
    // Each connection speaks its own version (RFC 9110 2.5); hyper sets that of the client's.
    parts.version = Version::HTTP_11;
    tell_head(&tap, &parts);
    let bodiless = parts.status == StatusCode::NOT_MODIFIED && !head;
    let body = TapBody::new(body, tap, Side::Response, gate);
    Ok(match length.filter(|_| bodiless) {
        Some(n) => Response::from_parts(parts, Either::Right(Either::Right(Unsent(n)))),
        None => Response::from_parts(parts, Either::Left(body)),
    })
}

/// The request as it goes to the upstream.
fn outgoing(
    config: &ProxyConfig,
    request: Request<Incoming>,
    uri: Uri,
    upgrade: Option<&HeaderValue>,
) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    strip_connection_headers(&mut parts.headers, upgrade);
    if config.rewrite_host {
        parts.headers.remove(header::HOST);
    }
    if body.size_hint().exact().is_none() {
        // It came in chunks and goes on in chunks, whatever its method (RFC 9112 6.3); hyper would send none with a GET.
        parts.headers.remove(header::CONTENT_LENGTH);
        let chunked = HeaderValue::from_static("chunked");
        parts.headers.insert(header::TRANSFER_ENCODING, chunked);
    }
    let via = match parts.version {
        Version::HTTP_10 => "1.0 servetwin",
        _ => "1.1 servetwin",
    };
    parts
        .headers
        .append(header::VIA, HeaderValue::from_static(via));
    parts.uri = uri;
    // The connection to the upstream is one of its own, whatever the client speaks.
    parts.version = Version::HTTP_11;
    Request::from_parts(parts, body)
}

type Answer = Result<Response<Incoming>, hyper_util::client::legacy::Error>;

/// Sends `request` and waits for its answer. Informational responses go to `early` as they come; `100 Continue` opens the
/// `gate` of a request that waits for it, whose client then gets its own.
async fn exchange(
    client: &Upstream,
    mut request: Request<TapBody>,
    gate: Option<&Gate>,
    early: Option<&Bell>,
) -> (Answer, CaptureConnection) {
    let connection = capture_connection(&mut request);
    let (tx, mut rx) = mpsc::channel(MAX_EARLY);
    hyper::ext::on_informational(&mut request, move |r| {
        let _ = tx.try_send((r.status(), r.headers().clone()));
    });
    let pass = |(status, headers): (StatusCode, HeaderMap)| match (gate, early) {
        (Some(gate), _) if status == StatusCode::CONTINUE => gate.open(),
        (_, Some(bell)) => bell.push(&informational(status, headers)),
        // RFC 9110 15.2: none to a client of HTTP/1.0.
        (_, None) => {}
    };
    let mut answer = std::pin::pin!(client.request(request));
    let answer = loop {
        tokio::select! {
            biased;
            Some(head) = rx.recv() => pass(head),
            answer = &mut answer => break answer,
        }
    };
    while let Ok(head) = rx.try_recv() {
        pass(head);
    }
    if let Some(bell) = early {
        bell.passed().await;
    }
    (answer, connection)
}

/// An informational response as it goes to the client.
fn informational(status: StatusCode, mut headers: HeaderMap) -> Vec<u8> {
    strip_connection_headers(&mut headers, None);
    headers.remove(header::CONTENT_LENGTH);
    let reason = status.canonical_reason().unwrap_or("");
    let mut out = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in &headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Whether the client holds back the body until it is asked for.
fn expects_continue(request: &Request<Incoming>) -> bool {
    let expect = request.headers().get(header::EXPECT);
    expect.is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"))
        && request.version() == Version::HTTP_11
        && !request.body().is_end_stream()
}

/// The length that `headers` say, which is then said once; fields that contradict each other are removed. hyper refuses them where a
/// body follows.
fn one_length(headers: &mut HeaderMap) -> Option<u64> {
    let mut length = None;
    let mut agree = true;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for one in value.to_str().unwrap_or("?").split(',') {
            let one = one.trim();
            let digits = !one.is_empty() && one.bytes().all(|b| b.is_ascii_digit());
            let n: Option<u64> = one.parse().ok().filter(|_| digits);
            agree &= n.is_some() && (length.is_none() || length == n);
            length = n;
        }
    }
    let length = length.filter(|_| agree);
    headers.remove(header::CONTENT_LENGTH);
    if let Some(n) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(n));
    }
    length
}

/// Tells the observer of an answer's head.
fn tell_head(tap: &RequestTap, parts: &hyper::http::response::Parts) {
    let is = |name: HeaderName, what: &str| {
        let value = parts.headers.get(&name).and_then(|v| v.to_str().ok());
        value.is_some_and(|v| v.to_ascii_lowercase().starts_with(what))
    };
    tap.send(What::Response {
        status: parts.status.as_u16(),
        sse: is(header::CONTENT_TYPE, "text/event-stream"),
        encoded: parts.headers.contains_key(header::CONTENT_ENCODING)
            && !is(header::CONTENT_ENCODING, "identity"),
    });
}

/// Bytes both ways until one side closes.
async fn tunnel(client: hyper::upgrade::OnUpgrade, upstream: hyper::upgrade::OnUpgrade) {
    let (Ok(client), Ok(upstream)) = (client.await, upstream.await) else {
        return;
    };
    let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
}

/// Where a request goes: the upstream's address with the request's own path and query.
fn upstream_uri(upstream: &Uri, asked: &Uri, method: &Method) -> Result<Uri, &'static str> {
    if method == Method::CONNECT {
        return Err("servetwin's proxy stands in front of one endpoint and makes no tunnels");
    }
    let path = asked.path_and_query().map_or("/", |p| p.as_str());
    if !path.starts_with('/') {
        return Err("servetwin's proxy needs a path that starts with /");
    }
    let prefix = upstream.path().trim_end_matches('/');
    let mut parts = upstream.clone().into_parts();
    let joined = if prefix.is_empty() {
        path.parse()
    } else {
        format!("{prefix}{path}").parse()
    };
    parts.path_and_query = Some(joined.map_err(|_| "the path is not valid")?);
    Uri::from_parts(parts).map_err(|_| "the path is not valid")
}

/// The protocol that the message wants to change to, if it says so properly.
fn upgrade_wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = connection_options(headers)
        .iter()
        .any(|o| o == header::UPGRADE.as_str());
    named.then(|| headers.get(header::UPGRADE).cloned())?
}

/// What the `Connection` fields name, in lower case.
fn connection_options(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|o| o.trim().to_ascii_lowercase())
        .filter(|o| !o.is_empty())
        .collect()
}

/// Removes what belongs to one connection only (RFC 9110 7.6.1), but for an upgrade that is passed on.
fn strip_connection_headers(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    for option in connection_options(headers) {
        if let Ok(name) = HeaderName::try_from(option) {
            headers.remove(name);
        }
    }
    // TE names what this hop may send; trailers are passed on, so that wish is, too.
    let trailers = headers.get_all(header::TE).iter().any(|v| {
        v.to_str().is_ok_and(|v| {
            v.split(',')
                .any(|t| t.trim().eq_ignore_ascii_case("trailers"))
        })
    });
    for name in [
        header::CONNECTION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// An answer of the proxy itself, in the shape of OpenAI's errors.
fn own_answer(status: StatusCode, message: &str) -> Response<ProxyBody> {
    let body = serde_json::json!({
        "error": {
            "message": message,
            "type": "servetwin_proxy",
            "code": status.as_u16(),
        }
    });
    let body = Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(Either::Right(Either::Left(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// An error with what caused it.
fn causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}
