//! Connections: accepting them, and ending them in good order.
//!
//! Shutting down: new jobs get 503, those that wait are cancelled, and those that run may end within the time to drain; their results can be read
//! meanwhile. Then what still runs is cancelled, and connections are closed after the answer that they are sending.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::Limits;
use crate::jobs::Jobs;
use crate::routes::routes;

/// Longest time that a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time that answers may take to leave at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections at once. Who comes then is served all the same: another connection is closed for it.
const CONNECTIONS: usize = 256;
/// How long to wait after an accept that failed, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A service on its address.
pub struct Server {
    listener: TcpListener,
    jobs: Arc<Jobs>,
}

impl Server {
    /// Binds `address`; port 0 takes a free one. Must be called on a runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(address: SocketAddr, limits: Limits) -> std::io::Result<Server> {
        Ok(Server {
            listener: TcpListener::bind(address).await?,
            jobs: Jobs::new(limits, Handle::current()),
        })
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then lets jobs end for at most `drain`, or until `hurry` is done. Gives how many were cut off.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        hurry: impl Future<Output = ()>,
        drain: Duration,
    ) -> std::io::Result<usize> {
        let app = routes(self.jobs.clone(), self.address()?.ip().is_loopback());
        let (close, closed) = watch::channel(false);
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut accept = Box::pin(accept(self.listener, app, closed, alive));
        tokio::select! {
            () = &mut accept => {}
            () = stop => {}
        }
        self.jobs.stop();
        tokio::select! {
            () = &mut accept => {}
            () = self.jobs.idle() => {}
            () = tokio::time::sleep(drain) => {}
            () = hurry => {}
        }
        let cut = self.jobs.counts().running;
        self.jobs.cancel_all();
        drop(accept);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.jobs.idle()).await;
        // Every connection sees this at its next chance, and `ended` yields when the last one is gone.
        close.send_replace(true);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, ended.recv()).await;
        Ok(cut)
    }
}

/// Accepts connections for as long as it is polled; each holds a clone of `alive`.
async fn accept(
    listener: TcpListener,
    app: axum::Router,
    closed: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) {
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|o| !o.task.is_finished());
                if open.len() >= CONNECTIONS {
                    close_one(&mut open);
                }
                let app = TowerToHyperService::new(app.clone());
                let (closed, alive) = (closed.clone(), alive.clone());
                let has_asked = Arc::new(AtomicBool::new(false));
                let asked = has_asked.clone();
                let task = tokio::spawn(async move {
                    serve(stream, app, closed, asked).await;
                    drop(alive);
                });
                let task = task.abort_handle();
                open.push_back(Open { task, has_asked });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A connection that is served.
struct Open {
    task: AbortHandle,
    /// Whether a request of it has come whose answer has not begun.
    has_asked: Arc<AtomicBool>,
}

/// Closes the oldest connection that has asked nothing, or else the oldest.
fn close_one(open: &mut VecDeque<Open>) {
    let silent = open
        .iter()
        .position(|o| !o.has_asked.load(Ordering::Relaxed));
    if let Some(one) = open.remove(silent.unwrap_or(0)) {
        one.task.abort();
    }
}

async fn serve(
    stream: TcpStream,
    app: TowerToHyperService<axum::Router>,
    mut closed: watch::Receiver<bool>,
    has_asked: Arc<AtomicBool>,
) {
    let answered = service_fn(|request| {
        has_asked.store(true, Ordering::Relaxed);
        let answer = app.call(request);
        let has_asked = has_asked.clone();
        async move {
            let answer = answer.await;
            has_asked.store(false, Ordering::Relaxed);
            answer
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), answered);
    tokio::pin!(connection);
    // An error here is the client's end of the connection.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closed.wait_for(|c| *c) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
