//! Turns the proxy's copies into rows: one thread that reads events and never talks back.
//!
//! Whatever it stumbles over (bodies it cannot read, lost events, its own panics) costs it a row or a field of one, and
//! is counted. Prompts are read for their length and for the hashes of their blocks, and then forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::api::{Api, SseReader, Usage, read_piece, read_request};
use super::prefix::Salt;
use super::tap::{Clock, End, Event, Feed, What};
use super::window::{Counted, FORMAT, Meta, Row, Seen, Window};

/// Longest request or unstreamed answer that is read [bytes].
const MAX_BODY_BYTES: usize = 16 << 20;

/// Most rows that are kept; the oldest go first.
const MAX_ROWS: usize = 500_000;

/// Most gaps between chunks that are kept over all rows.
const MAX_GAPS: usize = 20_000_000;

/// How long after the proxy let go of a request its lost end is waited for.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// Counts the tokens of a prompt's text.
pub type CountTokens = Arc<dyn Fn(&str) -> Option<u32> + Send + Sync>;

/// Whether requests for `path` are observed.
pub fn observed_path(path: &str) -> bool {
    Api::of_path(path).is_some()
}

/// How to observe.
#[derive(Clone)]
pub struct ObserverConfig {
    /// Name of the deployment in windows.
    pub endpoint: String,
    /// How far back rows are kept.
    pub retention: Duration,
    /// Counts tokens where the server does not say them.
    pub tokenizer: Option<CountTokens>,
    /// Where chains of hashes start.
    pub salt: Salt,
}

/// What went wrong in observing; traffic was not touched by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ObserverTroubles {
    /// Requests whose body could not be read.
    pub unread_requests: u64,
    /// Requests of which events were lost.
    pub lossy_requests: u64,
    /// Panics of the observer.
    pub panics: u64,
}

/// What the observer knows so far. Clones share it.
#[derive(Clone)]
pub struct Observer {
    state: Arc<Mutex<State>>,
    config: Arc<ObserverConfig>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Open>,
    done: VecDeque<Row>,
    gaps: usize,
    troubles: ObserverTroubles,
    latest_ns: u64,
}

struct Open {
    row: Row,
    path: String,
    body: Vec<u8>,
    body_too_long: bool,
    read: bool,
    sse: Option<SseReader>,
    encoded: bool,
    answer: Vec<u8>,
    usage: Usage,
    counted: u32,
    last_output_ns: Option<u64>,
    finished_word: bool,
    error: bool,
    latest_ns: u64,
    closed: Arc<AtomicBool>,
}

impl Observer {
    /// An observer on `clock` that has seen nothing.
    pub fn new(config: ObserverConfig, clock: Clock) -> Observer {
        Observer {
            state: Arc::new(Mutex::new(State::default())),
            config: Arc::new(config),
            clock,
        }
    }

    /// Reads `feed` until the proxy is gone, on a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(&self, feed: Feed) -> std::io::Result<std::thread::JoinHandle<()>> {
        let this = self.clone();
        std::thread::Builder::new()
            .name("twin-observer".into())
            .spawn(move || this.run(&feed))
    }

    /// Reads `feed` until the proxy is gone.
    pub fn run(&self, feed: &Feed) {
        let mut swept_ns = 0;
        while let Ok(event) = feed.next(Duration::from_millis(500)) {
            if let Some(event) = event {
                self.take(event);
            }
            let now = self.clock.now_ns();
            if now.saturating_sub(swept_ns) > 1_000_000_000 {
                swept_ns = now;
                self.lock().sweep(now, self.config.retention);
            }
        }
    }

    /// Takes in one event. A panic costs the request it was about.
    pub fn take(&self, event: Event) {
        let id = event.id;
        let taken = catch_unwind(AssertUnwindSafe(|| self.lock().take(event, &self.config)));
        if taken.is_err() {
            let mut state = self.lock();
            state.open.remove(&id);
            state.troubles.panics += 1;
        }
    }

    /// What went wrong so far.
    pub fn troubles(&self) -> ObserverTroubles {
        self.lock().troubles
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.lock().open.len()
    }

    /// The last `window`, with at least `lead` before it, up to now.
    pub fn window(&self, window: Duration, lead: Duration) -> Window {
        let end_ns = self.clock.now_ns().max(1);
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let start_ns = end_ns.saturating_sub(nanos(window)).min(end_ns - 1);
        let from_ns = start_ns.saturating_sub(nanos(lead));
        let state = self.lock();
        let mut rows: Vec<Row> = state
            .done
            .iter()
            .filter(|r| r.end_ns.is_none_or(|end| end >= from_ns))
            .cloned()
            .chain(state.open.values().map(Open::in_flight))
            .filter(|r| r.arrival_ns < end_ns)
            .collect();
        drop(state);
        // Events of the last instant may have come after the clock was read.
        for row in &mut rows {
            row.first_ns = row.first_ns.map(|t| t.max(row.arrival_ns));
            row.end_ns = row.end_ns.map(|t| t.max(row.arrival_ns));
        }
        rows.sort_by_key(|r| (r.arrival_ns, r.id));
        let mut window = Window {
            meta: Meta {
                servetwin_window: FORMAT,
                endpoint: self.config.endpoint.clone(),
                unix_origin_s: self.clock.unix_origin_s(),
                start_ns,
                end_ns,
                from_ns,
                server: None,
                notes: Vec::new(),
            },
            rows,
        };
        window.estimate_prompts();
        window
    }

    /// A panic while the state was locked has cost at most one request's row.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, event: Event, config: &ObserverConfig) {
        let Event {
            id,
            at_ns,
            lossy,
            what,
        } = event;
        self.latest_ns = self.latest_ns.max(at_ns);
        if let What::Start { path, closed } = what {
            if let Some(api) = Api::of_path(&path) {
                self.open
                    .insert(id, Open::new(id, api, path, at_ns, closed));
            }
            return;
        }
        // The start itself may have been lost.
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.latest_ns = at_ns;
        open.row.lossy |= lossy;
        match what {
            What::Start { .. } => {}
            What::RequestData(data) => {
                if open.body.len() + data.len() <= MAX_BODY_BYTES {
                    open.body.extend_from_slice(&data);
                } else {
                    open.body_too_long = true;
                }
            }
            What::RequestEnd => {
                let read = open.read_body(config);
                self.troubles.unread_requests += u64::from(!read);
            }
            What::Response {
                status,
                sse,
                encoded,
            } => {
                open.row.status = status;
                open.encoded = encoded;
                open.sse = (sse && !encoded).then(SseReader::default);
            }
            What::ResponseData(data) => {
                let room = MAX_GAPS.saturating_sub(self.gaps);
                self.gaps += open.answer_data(&data, at_ns, room);
            }
            What::End(end) => {
                if let Some(open) = self.open.remove(&id) {
                    self.close(open, end, at_ns);
                }
            }
        }
    }

    fn close(&mut self, mut open: Open, end: End, at_ns: u64) {
        open.close(end, at_ns);
        self.troubles.lossy_requests += u64::from(open.row.lossy);
        self.done.push_back(open.row);
        if self.done.len() > MAX_ROWS {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(row) = self.done.pop_front() {
            self.gaps = self.gaps.saturating_sub(row.gaps_us.len());
        }
    }

    /// Forgets what is older than anyone asks for, and closes requests whose end was lost.
    fn sweep(&mut self, now_ns: u64, retention: Duration) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let oldest = now_ns.saturating_sub(nanos(retention));
        while self
            .done
            .front()
            .is_some_and(|r| r.end_ns.is_some_and(|end| end < oldest))
        {
            self.forget_oldest();
        }
        let lost: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, o)| {
                o.closed.load(Ordering::Acquire)
                    && now_ns.saturating_sub(o.latest_ns) > nanos(LOST_AFTER)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            if let Some(mut open) = self.open.remove(&id) {
                open.row.lossy = true;
                let at = open.latest_ns;
                self.close(open, End::ClientGone, at);
            }
        }
    }
}

impl Open {
    fn new(id: u64, api: Api, path: String, at_ns: u64, closed: Arc<AtomicBool>) -> Open {
        Open {
            row: Row {
                id,
                api,
                stream: false,
                arrival_ns: at_ns,
                first_ns: None,
                end_ns: None,
                status: 0,
                outcome: Seen::InFlight,
                prompt_tokens: 1,
                prompt_counted: Counted::Estimate,
                prompt_bytes: 0,
                cached_tokens: None,
                output_tokens: 0,
                output_counted: Counted::Chunks,
                max_tokens: None,
                chunks: 0,
                sequences: 1,
                lossy: false,
                blocks: Vec::new(),
                gaps_us: Vec::new(),
            },
            path,
            body: Vec::new(),
            body_too_long: false,
            read: false,
            sse: None,
            encoded: false,
            answer: Vec::new(),
            usage: Usage::default(),
            counted: 0,
            last_output_ns: None,
            finished_word: false,
            error: false,
            latest_ns: at_ns,
            closed,
        }
    }

    /// Reads the request's body and forgets it. False: it cannot be read.
    fn read_body(&mut self, config: &ObserverConfig) -> bool {
        self.read = true;
        let body = std::mem::take(&mut self.body);
        let keep_text = config.tokenizer.is_some();
        let whole = !self.body_too_long && !self.row.lossy;
        let asked = whole
            .then(|| read_request(self.row.api, &self.path, &body, config.salt, keep_text))
            .flatten();
        let Some(asked) = asked else {
            self.row.prompt_bytes = body.len() as u64;
            return false;
        };
        let row = &mut self.row;
        row.stream = asked.stream;
        row.max_tokens = asked.max_tokens;
        row.sequences = asked.sequences;
        row.prompt_bytes = asked.text_bytes;
        row.blocks = asked.blocks;
        let count = |text: &str| config.tokenizer.as_ref().and_then(|t| t(text));
        if let Some(n) = asked.prompt_ids {
            row.prompt_tokens = n.max(1);
            row.prompt_counted = Counted::Ids;
        } else if let Some(n) = asked.text.as_deref().and_then(count) {
            row.prompt_tokens = n.max(1);
            row.prompt_counted = Counted::Tokenizer;
        }
        true
    }

    /// Takes in a piece of the answer; the number of gaps that it added, at most `room`.
    fn answer_data(&mut self, data: &[u8], at_ns: u64, room: usize) -> usize {
        let Some(mut sse) = self.sse.take() else {
            if !self.encoded && self.answer.len() + data.len() <= MAX_BODY_BYTES {
                self.answer.extend_from_slice(data);
            }
            return 0;
        };
        let before = self.row.gaps_us.len();
        sse.feed(data, |event| self.event(event, at_ns, before + room));
        self.sse = Some(sse);
        self.row.gaps_us.len() - before
    }

    fn event(&mut self, data: &[u8], at_ns: u64, max_gaps: usize) {
        let Some(piece) = read_piece(self.row.api, data) else {
            self.finished_word |= data.trim_ascii() == b"[DONE]";
            return;
        };
        self.usage.update(piece.usage);
        self.error |= piece.error;
        if !piece.output {
            return;
        }
        if let Some(last) = self.last_output_ns {
            let gap = at_ns.saturating_sub(last) / 1_000;
            if self.row.gaps_us.len() < max_gaps {
                self.row
                    .gaps_us
                    .push(u32::try_from(gap).unwrap_or(u32::MAX));
            }
        } else {
            self.row.first_ns = Some(at_ns);
        }
        self.last_output_ns = Some(at_ns);
        self.row.chunks += 1;
        self.counted = self.counted.saturating_add(piece.tokens.unwrap_or(1));
    }

    /// Lays what the server said over what was counted.
    fn settle(&mut self) {
        let row = &mut self.row;
        if let Some(n) = self.usage.prompt {
            row.prompt_tokens = n.max(1);
            row.prompt_counted = Counted::Usage;
        }
        row.cached_tokens = self.usage.cached;
        (row.output_tokens, row.output_counted) = match self.usage.output {
            Some(n) => (n, Counted::Usage),
            None => (self.counted, Counted::Chunks),
        };
    }

    fn close(&mut self, end: End, at_ns: u64) {
        if self.sse.is_none()
            && let Some(piece) = read_piece(self.row.api, &self.answer)
        {
            self.usage.update(piece.usage);
            self.error |= piece.error;
            self.counted = piece.tokens.unwrap_or(u32::from(piece.output));
        }
        self.settle();
        // A client may leave once it has read the last event, before the body's formal end.
        let whole = end == End::Complete || (end == End::ClientGone && self.finished_word);
        self.row.outcome = match end {
            _ if self.row.status >= 400 => Seen::Refused,
            _ if self.error => Seen::Failed,
            _ if whole => Seen::Finished,
            End::UpstreamFailed => Seen::Failed,
            _ => Seen::Cancelled,
        };
        let finished = self.row.outcome == Seen::Finished;
        self.row.end_ns = Some(match self.last_output_ns {
            Some(last) if finished => last,
            _ => at_ns,
        });
        if finished && self.row.output_tokens == 0 {
            // An answer without a token, or one that could not be read.
            self.row.output_tokens = self.row.max_tokens.unwrap_or(1).max(1);
            self.row.output_counted = Counted::Estimate;
            self.row.lossy = true;
        }
    }

    /// The row as it stands.
    fn in_flight(&self) -> Row {
        let mut row = self.row.clone();
        row.output_tokens = self.counted;
        if let Some(n) = self.usage.prompt {
            row.prompt_tokens = n.max(1);
            row.prompt_counted = Counted::Usage;
        }
        if !self.read {
            row.prompt_bytes = self.body.len() as u64;
        }
        row
    }
}
