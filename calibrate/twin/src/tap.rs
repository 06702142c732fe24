//! What the observer gets to see: copies of the traffic, through a bounded channel that drops and counts.
//!
//! The proxy never waits here. Bodies are reference-counted ([`Bytes`]), so a copy costs no more than a counter; when
//! the channel is full, or holds more bytes than [`MAX_HELD_BYTES`], the copy is dropped, counted, and its request is
//! marked as not fully seen. Traffic is never touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

/// Events that wait for the observer at most: two seconds of 500 streams of 50 tokens a second.
pub const DEFAULT_CAPACITY: usize = 65_536;

/// Bytes of copied bodies that wait for the observer at most [bytes].
pub const MAX_HELD_BYTES: u64 = 64 << 20;

/// One clock for everything that a twin sees: nanoseconds since it started, and when that was.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    unix_origin_s: f64,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Clock {
            origin: Instant::now(),
            unix_origin_s: since.as_secs_f64(),
        }
    }

    /// Time since the start [ns].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When it started [s since 1970].
    pub fn unix_origin_s(&self) -> f64 {
        self.unix_origin_s
    }
}

/// What happened to a request. `at_ns` of an [`Event`] says when.
#[derive(Debug)]
pub enum What {
    /// Its head came in.
    Start {
        /// Path, without the query.
        path: String,
        /// Raised when the proxy is done with it, so that a lost [`What::End`] is noticed.
        closed: Arc<AtomicBool>,
    },
    /// A piece of its body.
    RequestData(Bytes),
    /// Its body is complete.
    RequestEnd,
    /// The head of its response.
    Response {
        /// HTTP status.
        status: u16,
        /// Whether the body is a stream of server-sent events.
        sse: bool,
        /// Whether the body is compressed, so that it cannot be read.
        encoded: bool,
    },
    /// A piece of the response's body.
    ResponseData(Bytes),
    /// Nothing more will come.
    End(End),
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The whole response was passed on.
    Complete,
    /// The client went away first.
    ClientGone,
    /// The upstream broke off, or never answered.
    UpstreamFailed,
}

/// One event of one request.
#[derive(Debug)]
pub struct Event {
    /// The request, counted from 0.
    pub id: u64,
    /// When it happened, on the twin's [`Clock`] [ns].
    pub at_ns: u64,
    /// Whether an earlier event of this request was dropped.
    pub lossy: bool,
    /// What happened.
    pub what: What,
}

/// Counts of what passed through the proxy and of what the observer missed.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests that came in, observed or not.
    pub requests: AtomicU64,
    /// Requests under way.
    pub active: AtomicU64,
    /// Events dropped because the observer did not keep up.
    pub dropped_events: AtomicU64,
    /// Requests answered by the proxy itself, since the upstream could not be reached.
    pub unreachable: AtomicU64,
    held_bytes: AtomicU64,
}

/// The proxy's end of the channel.
#[derive(Clone, Debug)]
pub struct Tap {
    tx: SyncSender<Event>,
    counters: Arc<Counters>,
    clock: Clock,
}

/// The observer's end of the channel.
#[derive(Debug)]
pub struct Feed {
    rx: Receiver<Event>,
    counters: Arc<Counters>,
}

/// A channel of `capacity` events.
pub fn channel(capacity: usize, clock: Clock) -> (Tap, Feed) {
    let (tx, rx) = sync_channel(capacity);
    let counters = Arc::new(Counters::default());
    (
        Tap {
            tx,
            counters: Arc::clone(&counters),
            clock,
        },
        Feed { rx, counters },
    )
}

impl Tap {
    /// What was counted so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Opens a request; `observe` says whether copies of it are wanted.
    pub fn open(&self, path: &str, observe: bool) -> RequestTap {
        let id = self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.active.fetch_add(1, Ordering::Relaxed);
        let closed = Arc::new(AtomicBool::new(false));
        let tap = RequestTap {
            shared: Arc::new(Shared {
                tap: self.clone(),
                id,
                observe,
                lossy: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                closed: Arc::clone(&closed),
            }),
        };
        if observe {
            tap.send(What::Start {
                path: path.to_owned(),
                closed,
            });
        }
        tap
    }
}

#[derive(Debug)]
struct Shared {
    tap: Tap,
    id: u64,
    observe: bool,
    lossy: AtomicBool,
    ended: AtomicBool,
    closed: Arc<AtomicBool>,
}

impl Drop for Shared {
    /// Whoever held the request last let go of it without saying how it ended: its client went away.
    fn drop(&mut self) {
        self.end(End::ClientGone);
        self.closed.store(true, Ordering::Release);
        self.tap.counters.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn send(&self, what: What) {
        if !self.observe {
            return;
        }
        let bytes = body_bytes(&what);
        let counters = &self.tap.counters;
        let held = counters.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let event = Event {
            id: self.id,
            at_ns: self.tap.clock.now_ns(),
            lossy: self.lossy.load(Ordering::Relaxed),
            what,
        };
        let room = bytes == 0 || held.saturating_add(bytes) <= MAX_HELD_BYTES;
        if !room || self.tap.tx.try_send(event).is_err() {
            counters.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            counters.dropped_events.fetch_add(1, Ordering::Relaxed);
            self.lossy.store(true, Ordering::Relaxed);
        }
    }

    fn end(&self, end: End) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.send(What::End(end));
        }
    }
}

/// What the proxy tells about one request. Clones belong to the same request.
#[derive(Clone, Debug)]
pub struct RequestTap {
    shared: Arc<Shared>,
}

impl RequestTap {
    /// Passes on a copy, if there is room for it.
    pub fn send(&self, what: What) {
        self.shared.send(what);
    }

    /// Says how the exchange ended; the first word counts.
    pub fn end(&self, end: End) {
        self.shared.end(end);
    }

    /// Counts a request that the proxy had to answer itself.
    pub fn unreachable(&self) {
        let counters = &self.shared.tap.counters;
        counters.unreachable.fetch_add(1, Ordering::Relaxed);
    }
}

impl Feed {
    /// The next event; `None` after `wait` without one. `Err` when the proxy is gone and all events are taken.
    #[expect(
        clippy::result_unit_err,
        reason = "there is nothing to say but that it is over"
    )]
    pub fn next(&self, wait: Duration) -> Result<Option<Event>, ()> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.rx.recv_timeout(wait) {
            Ok(event) => {
                let bytes = body_bytes(&event.what);
                self.counters.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
                Ok(Some(event))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}

fn body_bytes(what: &What) -> u64 {
    match what {
        What::RequestData(b) | What::ResponseData(b) => b.len() as u64,
        _ => 0,
    }
}
