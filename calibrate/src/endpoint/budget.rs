//! What a measurement may spend: time, rate, concurrency and tokens. Every request passes through the [`Ledger`] before it is sent.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{Semaphore, SemaphorePermit};

/// What a measurement may spend, all of it set by the user.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// Time from the first request to the end of the last.
    pub time: Duration,
    /// Requests sent per second at most [req/s].
    pub max_rate: f64,
    /// Requests under way at most.
    pub max_concurrency: u32,
    /// Prompt and output tokens of all requests together at most [tokens].
    pub max_tokens: u64,
    /// Share of requests that may fail before the measurement stops [ratio].
    pub max_errors: f64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            time: Duration::from_secs(300),
            max_rate: 100.0,
            max_concurrency: 32,
            max_tokens: 2_000_000,
            max_errors: 0.1,
        }
    }
}

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens, those reserved for requests under way included [tokens].
    pub tokens: u64,
    /// Most requests under way at once.
    pub most_under_way: u32,
}

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The tokens are spent.
    Tokens,
    /// The time is up.
    Time,
}

/// Failed requests up to which one more is waited for before the share counts.
const FEW: u64 = 3;

#[derive(Debug)]
struct Books {
    spent: Spent,
    under_way: u32,
    /// When the next request may be sent.
    next: Instant,
}

/// Keeps the books of a measurement.
#[derive(Debug)]
pub struct Ledger {
    budget: Budget,
    start: Instant,
    seats: Semaphore,
    books: Mutex<Books>,
}

/// Leave to send one request; gives its seat back when dropped.
#[derive(Debug)]
pub struct Leave<'l> {
    ledger: &'l Ledger,
    reserved: u64,
    _seat: SemaphorePermit<'l>,
}

impl Ledger {
    /// Empty books; time runs from now.
    pub fn new(budget: Budget) -> Ledger {
        let start = Instant::now();
        Ledger {
            seats: Semaphore::new(budget.max_concurrency.max(1) as usize),
            books: Mutex::new(Books {
                spent: Spent::default(),
                under_way: 0,
                next: start,
            }),
            budget,
            start,
        }
    }

    /// What may be spent.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What was spent so far.
    pub fn spent(&self) -> Spent {
        self.books().spent
    }

    /// When everything must be over.
    pub fn deadline(&self) -> Instant {
        self.start + self.budget.time
    }

    /// Time left.
    pub fn time_left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Tokens left [tokens].
    pub fn tokens_left(&self) -> u64 {
        self.budget.max_tokens.saturating_sub(self.spent().tokens)
    }

    /// Waits until a request of `tokens` tokens at most may be sent.
    ///
    /// # Errors
    /// It never may.
    pub async fn leave(&self, tokens: u64) -> Result<Leave<'_>, Refusal> {
        let wait = tokio::time::timeout(self.time_left(), self.seats.acquire());
        let seat = match wait.await {
            Ok(Ok(seat)) => seat,
            _ => return Err(Refusal::Time),
        };
        let at = {
            let mut books = self.books();
            if books.spent.tokens.saturating_add(tokens) > self.budget.max_tokens {
                return Err(Refusal::Tokens);
            }
            let at = books.next.max(Instant::now());
            if at >= self.deadline() {
                return Err(Refusal::Time);
            }
            books.spent.tokens += tokens;
            books.next = at + Duration::from_secs_f64(1.0 / self.budget.max_rate.max(1e-6));
            books.spent.requests += 1;
            books.under_way += 1;
            books.spent.most_under_way = books.spent.most_under_way.max(books.under_way);
            at
        };
        let leave = Leave {
            ledger: self,
            reserved: tokens,
            _seat: seat,
        };
        tokio::time::sleep_until(at.into()).await;
        Ok(leave)
    }

    /// Whether too many requests have failed to go on.
    pub fn too_many_errors(&self) -> bool {
        let s = self.books().spent;
        s.failed > FEW.min(s.requests)
            && s.failed as f64 > self.budget.max_errors * s.requests as f64
    }
}

impl Leave<'_> {
    /// The request has ended: it took `used` tokens where that is known, and `ok` says whether it was answered in full.
    pub fn settle(self, used: Option<u64>, ok: bool) {
        let mut books = self.ledger.books();
        books.spent.failed += u64::from(!ok);
        // A failed request may have been computed all the same: it stays on the books as it was reserved.
        if let Some(used) = used.filter(|_| ok) {
            books.spent.tokens = books.spent.tokens - self.reserved + used;
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.ledger.books().under_way -= 1;
    }
}
