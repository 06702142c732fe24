//! Bodies on their way through the proxy.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::tap::{End, RequestTap, What};

/// Why a body ends before its end.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// Which body of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Request,
    /// The upstream's.
    Response,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The upstream has not said yet that it wants the body.
    #[default]
    Waiting,
    /// It wants it, or has had its time.
    Open,
    /// It has answered without it; the answer is under way.
    Refused,
    /// The answer has ended.
    Over,
}

/// What holds back the body of a request with `Expect: 100-continue` (RFC 9110 10.1.1) until the upstream asks for it.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<(Phase, Option<Waker>)>,
    patience: Duration,
}

impl Gate {
    /// Closed, for `patience` at most: servers that do not know of it never ask.
    pub fn new(patience: Duration) -> Gate {
        Gate {
            state: Mutex::default(),
            patience,
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Phase, Option<Waker>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        let mut state = self.lock();
        if state.0 != from {
            return false;
        }
        state.0 = to;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
        true
    }

    /// The upstream wants the body.
    pub fn open(&self) {
        self.change(Phase::Waiting, Phase::Open);
    }

    /// The upstream has answered; whether it did so without the body, which then is not sent.
    pub fn answered(&self) -> bool {
        self.change(Phase::Waiting, Phase::Refused)
    }

    /// The phase, and a wake-up when it changes.
    fn poll(&self, cx: &mut Context<'_>) -> Phase {
        let mut state = self.lock();
        state.1 = Some(cx.waker().clone());
        state.0
    }
}

/// A body that passes its frames on as they come and sends copies of its data to the observer.
pub struct TapBody {
    /// None once it is known that nobody wants it.
    inner: Option<Incoming>,
    tap: RequestTap,
    side: Side,
    over: bool,
    gate: Option<Arc<Gate>>,
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl TapBody {
    /// The body `inner`. A request's is held back by `gate`, a response's ends that of a request that was never sent.
    pub fn new(inner: Incoming, tap: RequestTap, side: Side, gate: Option<Arc<Gate>>) -> TapBody {
        let holding = gate.as_ref().filter(|_| side == Side::Request);
        let patience = holding.map(|g| Box::pin(tokio::time::sleep(g.patience)));
        TapBody {
            inner: Some(inner),
            tap,
            side,
            over: false,
            gate,
            patience,
        }
    }

    fn complete(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        match self.side {
            Side::Request => self.tap.send(What::RequestEnd),
            Side::Response => self.tap.end(End::Complete),
        }
    }

    fn ended(&self) -> bool {
        self.inner.as_ref().is_some_and(Body::is_end_stream)
    }

    /// Whether the request's body may be read.
    fn poll_gate(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let (Some(gate), Some(patience)) = (&self.gate, &mut self.patience) else {
            return Poll::Ready(Ok(()));
        };
        match gate.poll(cx) {
            Phase::Waiting => {
                if patience.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                gate.open();
            }
            Phase::Open => {}
            Phase::Refused => {
                // The client's connection can end now; the upstream's goes on until its answer has ended.
                self.inner = None;
                return Poll::Pending;
            }
            Phase::Over => {
                return Poll::Ready(Err("the upstream answered without the body".into()));
            }
        }
        self.patience = None;
        Poll::Ready(Ok(()))
    }
}

impl Body for TapBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.poll_gate(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(e)) => return Poll::Ready(Some(Err(e))),
            Poll::Pending => return Poll::Pending,
        }
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.tap.send(match self.side {
                        Side::Request => What::RequestData(data.clone()),
                        Side::Response => What::ResponseData(data.clone()),
                    });
                }
            }
            Poll::Ready(Some(Err(_))) => self.tap.end(match self.side {
                Side::Request => End::ClientGone,
                Side::Response => End::UpstreamFailed,
            }),
            Poll::Ready(None) => self.complete(),
            Poll::Pending => {}
        }
        if self.ended() {
            // Whoever knows the length does not ask again after the last byte.
            self.complete();
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.ended()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.as_ref();
        inner.map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for TapBody {
    /// An empty body is dropped without being asked at all.
    fn drop(&mut self) {
        if self.ended() {
            self.complete();
        }
        if let Some(gate) = self.gate.as_ref().filter(|_| self.side == Side::Response) {
            gate.change(Phase::Refused, Phase::Over);
        }
    }
}

/// The body of a 304 that says how long the body would have been (RFC 9110 8.6): a length, and nothing of it.
#[derive(Clone, Copy, Debug)]
pub struct Unsent(pub u64);

impl Body for Unsent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}
