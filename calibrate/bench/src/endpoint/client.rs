//! One request from connection to last byte.

use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response};

use super::connection::{Connection, ConnectionCounts, Connector};
use super::sse::EventSplitter;
use super::trace::UsageFault;
use super::trace::{ErrorKind, RawChunk, RequestError, RequestTrace, count};
use super::usage;
use super::wire::{self, Optional, Refused};
use super::{ApiKind, Endpoint, EndpointError, GenerateRequest};

/// Longest answer that is kept where it is not a stream [bytes].
const MAX_BODY_BYTES: usize = 64 << 20;
/// Of a refusal, this much is read for its message [bytes].
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Sends requests to one endpoint. Cheap to share; every method takes `&self`.
pub struct Client {
    endpoint: Endpoint,
    connector: Connector,
    headers: HeaderMap,
    path: String,
    /// Optional fields that the server has refused, as bits.
    refused: AtomicU32,
    notes: Mutex<Vec<String>>,
}

/// An answer read as a whole.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Media type, empty where none is given.
    pub content_type: String,
    /// Body.
    pub body: Bytes,
}

impl Client {
    /// A client without connections.
    ///
    /// # Errors
    /// When a header or the TLS options are wrong.
    pub fn new(endpoint: Endpoint) -> Result<Client, EndpointError> {
        let mut headers = HeaderMap::new();
        let bad = |name: &str, e: &dyn std::fmt::Display| EndpointError::Header {
            name: name.to_string(),
            problem: e.to_string(),
        };
        let authority = endpoint.url.authority().map_or("", |a| a.as_str());
        headers.insert(
            HOST,
            HeaderValue::from_str(authority).map_err(|e| bad("Host", &e))?,
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        if let Some(key) = &endpoint.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
                bad(
                    "Authorization",
                    &"the API key has characters that a header cannot hold",
                )
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        for (name, value) in &endpoint.headers {
            let key = HeaderName::try_from(name.as_str()).map_err(|e| bad(name, &e))?;
            headers.insert(
                key,
                HeaderValue::from_str(value).map_err(|e| bad(name, &e))?,
            );
        }
        Ok(Client {
            connector: Connector::new(&endpoint)?,
            path: endpoint.generate_path(),
            headers,
            refused: AtomicU32::new(0),
            notes: Mutex::new(Vec::new()),
            endpoint,
        })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What became of connections so far.
    pub fn connections(&self) -> ConnectionCounts {
        self.connector.counts()
    }

    /// What the server made this client do differently, in words for a report.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Fields that the server has refused so far.
    pub fn refused(&self) -> Refused {
        Refused(self.refused.load(Ordering::Relaxed))
    }

    /// Takes over what `other` has learnt of the same server. Connections stay where they are.
    pub fn adopt(&self, other: &Client) {
        self.refused.fetch_or(other.refused().0, Ordering::Relaxed);
        // What is not asked for need not be spoken of.
        let idle =
            |note: &String| !self.endpoint.token_ids && note.contains(Optional::TokenIds.name());
        let mut notes = other.notes();
        notes.retain(|n| !idle(n));
        *self.notes.lock().unwrap_or_else(|e| e.into_inner()) = notes;
    }

    /// Sends a request and reads its stream to the end. Failures are in the trace.
    pub async fn send(&self, request: &GenerateRequest) -> RequestTrace {
        self.send_until(request, std::future::pending()).await
    }

    /// As [`Client::send`], but stops waiting when `stop` is there: the connection is dropped, which tells the server to
    /// cancel, and the trace holds what came until then.
    pub async fn send_until(
        &self,
        request: &GenerateRequest,
        stop: impl Future<Output = ()>,
    ) -> RequestTrace {
        let mut trace = RequestTrace::new(Instant::now());
        let limit = request.timeout.unwrap_or(self.endpoint.timeout);
        let mut reading = Reading::new(request);
        let work = self.exchange(request, &mut trace, &mut reading);
        let result = tokio::select! {
            biased;
            result = tokio::time::timeout(limit, work) => result.unwrap_or_else(|_| {
                Err(RequestError::new(ErrorKind::Timeout, format!("not answered in full within {limit:?}")))
            }),
            () = stop => Err(RequestError::new(ErrorKind::Cancelled, "given up by the caller")),
        };
        reading.close(request, &mut trace);
        trace.end_ns = nanos(trace.start);
        match result {
            Ok(()) => trace.short = request.exact && trace.output_tokens() < request.max_tokens,
            Err(error) => trace.error = Some(error),
        }
        trace
    }

    /// Asks for `path` (below the endpoint's own) and reads the answer as a whole.
    ///
    /// # Errors
    /// When no answer comes; any status is an answer.
    pub async fn get(&self, path: &str) -> Result<Answer, RequestError> {
        self.plain(Method::GET, path, Bytes::new()).await
    }

    /// Sends JSON to `path` (below the endpoint's own) and reads the answer as a whole.
    ///
    /// # Errors
    /// When no answer comes; any status is an answer.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Result<Answer, RequestError> {
        self.plain(Method::POST, path, Bytes::from(body.to_string()))
            .await
    }

    async fn plain(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, RequestError> {
        let limit = self.endpoint.timeout;
        let work = async {
            // A connection of its own: these few questions must not meet one that the server is about to close.
            let mut connection = self.connector.open().await?;
            let request = self.request(method, &self.endpoint.path(path), body)?;
            let sent = connection.sender.send_request(request);
            let response = connection.drive(sent).await.map_err(|e| broken(&e))?;
            let status = response.status().as_u16();
            let content_type = response
                .headers()
                .get(CONTENT_TYPE)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("")
                .to_string();
            let (body, _) = read_all(&mut connection, response, MAX_BODY_BYTES).await?;
            Ok(Answer {
                status,
                content_type,
                body,
            })
        };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            Err(RequestError::new(
                ErrorKind::Timeout,
                format!("{path} was not answered within {limit:?}"),
            ))
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, RequestError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .body(Full::new(body))
            .map_err(|e| RequestError::new(ErrorKind::Request, e.to_string()))?;
        request.headers_mut().clone_from(&self.headers);
        Ok(request)
    }

    /// Sends, and sends again where the server's ways demand it, then reads the stream.
    async fn exchange(
        &self,
        request: &GenerateRequest,
        trace: &mut RequestTrace,
        reading: &mut Reading,
    ) -> Result<(), RequestError> {
        loop {
            let refused = self.refused();
            let body: Bytes = wire::body(&self.endpoint, request, refused)
                .map_err(|e| RequestError::new(ErrorKind::Request, e))?
                .into();
            let (mut connection, response) = self.head(&body, trace).await?;
            let status = response.status().as_u16();
            trace.status = Some(status);
            if !response.status().is_success() {
                let (text, whole) = read_all(&mut connection, response, MAX_ERROR_BYTES)
                    .await
                    .unwrap_or_default();
                if whole {
                    self.connector.keep(connection);
                }
                let message = error_text(&text);
                if matches!(status, 400 | 422)
                    && let Some(field) =
                        wire::refused_field(&self.endpoint, &body, &message, refused)
                {
                    self.refuse(field, status);
                    trace.resent += 1;
                    continue;
                }
                return Err(RequestError::new(
                    ErrorKind::Status(status),
                    format!("status {status}: {message}"),
                ));
            }
            trace.headers_ns = Some(nanos(trace.start));
            self.read(&mut connection, response, trace, reading).await?;
            self.connector.keep(connection);
            return Ok(());
        }
    }

    /// Sends the request and waits for the head of the answer.
    async fn head(
        &self,
        body: &Bytes,
        trace: &mut RequestTrace,
    ) -> Result<(Connection, Response<Incoming>), RequestError> {
        if let Some(mut connection) = self.connector.kept() {
            trace.connected_ns = Some(nanos(trace.start));
            trace.reused = true;
            let request = self.request(Method::POST, &self.path, body.clone())?;
            let sent = connection.sender.send_request(request);
            match connection.drive(sent).await {
                Ok(response) => return Ok((connection, response)),
                Err(e) if e.is_timeout() => return Err(broken(&e)),
                // The server closed it while the request was on its way: once more on a fresh one.
                Err(_) => {
                    self.connector.count_stale();
                    trace.stale_retry = true;
                    trace.reused = false;
                }
            }
        }
        let mut connection = self.connector.open().await?;
        trace.connected_ns = Some(nanos(trace.start));
        let request = self.request(Method::POST, &self.path, body.clone())?;
        let sent = connection.sender.send_request(request);
        let response = connection.drive(sent).await.map_err(|e| broken(&e))?;
        Ok((connection, response))
    }

    async fn read(
        &self,
        connection: &mut Connection,
        response: Response<Incoming>,
        trace: &mut RequestTrace,
        reading: &mut Reading,
    ) -> Result<(), RequestError> {
        let mut body = response.into_body();
        let mut splitter = EventSplitter::default();
        let too_long =
            |e: super::sse::EventTooLong| RequestError::new(ErrorKind::BadStream, e.to_string());
        while let Some(frame) = connection.drive(body.frame()).await {
            let at_ns = nanos(trace.start);
            let frame = frame.map_err(|e| broken(&e))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            splitter
                .push(&data, |event| {
                    reading.event(self.endpoint.api, event, at_ns, trace)
                })
                .map_err(too_long)?;
            if let Some(error) = reading.failure.take() {
                return Err(error);
            }
        }
        let at_ns = nanos(trace.start);
        splitter
            .finish(|event| reading.event(self.endpoint.api, event, at_ns, trace))
            .map_err(too_long)?;
        if let Some(error) = reading.failure.take() {
            return Err(error);
        }
        if reading.complete(self.endpoint.api) {
            Ok(())
        } else {
            Err(RequestError::new(
                ErrorKind::BadStream,
                format!(
                    "the stream ended after {} chunks without a finish reason or [DONE]",
                    reading.raw.len()
                ),
            ))
        }
    }

    fn refuse(&self, field: Optional, status: u16) {
        let before = self.refused.fetch_or(field.bit(), Ordering::Relaxed);
        if before & field.bit() == 0 {
            self.notes
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .push(format!(
                    "the server refused `{}` with status {status}: it is not sent, so {}",
                    field.name(),
                    field.consequence()
                ));
        }
    }
}

/// A stream while it is read.
struct Reading {
    raw: Vec<RawChunk>,
    text: Option<String>,
    token_ids: Vec<u32>,
    all_ids: bool,
    generated: Option<u32>,
    finished: bool,
    done: bool,
    failure: Option<RequestError>,
}

impl Reading {
    fn new(request: &GenerateRequest) -> Reading {
        Reading {
            raw: Vec::with_capacity(request.max_tokens.min(4096) as usize + 2),
            text: request.keep_output.then(String::new),
            token_ids: Vec::new(),
            all_ids: true,
            generated: None,
            finished: false,
            done: false,
            failure: None,
        }
    }

    fn event(&mut self, api: ApiKind, data: &[u8], at_ns: u64, trace: &mut RequestTrace) {
        if self.failure.is_some() {
            return;
        }
        let event = match wire::event(api, data) {
            Ok(event) => event,
            Err(message) => {
                self.failure = Some(RequestError::new(ErrorKind::BadStream, message));
                return;
            }
        };
        if let Some(message) = event.error {
            self.failure = Some(RequestError::new(ErrorKind::Server, message));
            return;
        }
        self.done |= event.done;
        if let Some(usage) = event.usage {
            trace.usage = Some(usage);
        }
        if event.no_count {
            disbelieve(trace, UsageFault::NotACount);
        }
        trace.timings = event.timings.or(trace.timings);
        self.generated = event.generated_tokens.or(self.generated);
        if event.choice {
            self.raw.push(RawChunk {
                at_ns,
                text_bytes: event.text.len() as u32,
                tokens: event
                    .tokens
                    .or(event.token_ids.as_ref().map(|ids| ids.len() as u32)),
                so_far: if event.tokens.is_some() {
                    None
                } else {
                    event.usage.and_then(|u| u.completion_tokens)
                },
                role: event.role,
                last: event.finish.is_some(),
            });
            if let Some(text) = &mut self.text {
                text.push_str(&event.text);
                match event.token_ids {
                    Some(ids) => self.token_ids.extend(ids),
                    // A chunk of text without ids: the ids are not complete.
                    None if !event.text.is_empty() => self.all_ids = false,
                    None => {}
                }
            }
        }
        if let Some(reason) = event.finish {
            self.finished = true;
            trace.finish_reason = Some(reason);
        }
    }

    /// Whether the stream came to its end, and not merely to an end. Triton's has no mark.
    fn complete(&self, api: ApiKind) -> bool {
        self.finished || self.done || (api == ApiKind::Triton && !self.raw.is_empty())
    }

    /// Output tokens of the whole answer as the server counts them [tokens].
    fn total(&self, trace: &RequestTrace) -> Option<u32> {
        self.generated
            .or(trace.usage.and_then(|u| u.completion_tokens))
            .filter(|_| self.finished || self.done)
    }

    /// Forgets what the server's counts say that cannot be true.
    fn check_usage(&mut self, request: &GenerateRequest, trace: &mut RequestTrace) {
        let running = self.raw.iter().filter_map(|r| r.so_far).max();
        let fault = [self.total(trace), running]
            .into_iter()
            .flatten()
            .find_map(|said| usage::output_fault(said, request.max_tokens, &self.raw));
        let cached = trace.timings.and_then(|t| t.cached_tokens);
        let mut prompt_fault = None;
        if let Some(u) = &mut trace.usage {
            u.cached_tokens = u.cached_tokens.or(cached);
            prompt_fault = usage::check_prompt(u, &request.prompt);
            if fault.is_some() {
                u.completion_tokens = None;
            }
        }
        if fault.is_some() {
            self.generated = None;
            self.raw.iter_mut().for_each(|r| r.so_far = None);
        }
        for fault in fault.into_iter().chain(prompt_fault) {
            disbelieve(trace, fault);
        }
    }

    fn close(&mut self, request: &GenerateRequest, trace: &mut RequestTrace) {
        self.check_usage(request, trace);
        let total = self.total(trace);
        (trace.chunks, trace.counted) = count(&self.raw, total);
        if request.keep_output {
            trace.text = self.text.take();
            if self.all_ids && !self.token_ids.is_empty() {
                trace.token_ids = Some(std::mem::take(&mut self.token_ids));
            }
        }
    }
}

/// Notes once that a count is not believed.
fn disbelieve(trace: &mut RequestTrace, fault: UsageFault) {
    if !trace.usage_faults.contains(&fault) {
        trace.usage_faults.push(fault);
    }
}

/// Reads `most` bytes of a body, and says whether that was all of it.
async fn read_all(
    connection: &mut Connection,
    response: Response<Incoming>,
    most: usize,
) -> Result<(Bytes, bool), RequestError> {
    let mut body = response.into_body();
    let mut all = Vec::new();
    while let Some(frame) = connection.drive(body.frame()).await {
        let frame = frame.map_err(|e| broken(&e))?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > most {
                all.extend_from_slice(&data[..most - all.len()]);
                return Ok((all.into(), false));
            }
            all.extend_from_slice(&data);
        }
    }
    Ok((all.into(), true))
}

/// A connection that broke, with all that is known of why.
fn broken(e: &hyper::Error) -> RequestError {
    let mut message = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(inner) = source {
        message += &format!(": {inner}");
        source = inner.source();
    }
    let kind = if e.is_parse() {
        ErrorKind::BadStream
    } else {
        ErrorKind::Disconnected
    };
    RequestError::new(kind, message)
}

/// The words of a refusal.
fn error_text(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(value) => wire::message(value),
        Err(_) => String::from_utf8_lossy(body).trim().to_string(),
    };
    if text.is_empty() {
        "no message".into()
    } else {
        text
    }
}

fn nanos(since: Instant) -> u64 {
    let elapsed: Duration = since.elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
