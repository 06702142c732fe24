//! Connections: accepting them, and ending them in good order.
//!
//! Shutting down: `/health` and new requests get 503 while requests under way finish, for `drain_timeout` at most. Then
//! what still runs is cancelled, its clients are told, and connections are closed after the answer that they are sending.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

use super::{Service, routes};

/// Longest time that a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that answers may take to leave once the engine is idle.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that may wait to be accepted; the system's own default is overrun, and then resets, when a thousand clients
/// connect at once.
const BACKLOG: u32 = 4096;
/// How long to wait after an accept that failed, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What became of the requests that were under way when a server was told to stop; each choice of a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// They ended by themselves.
    pub finished: u64,
    /// They were cut off.
    pub cut: u64,
}

/// A server on its address.
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
}

impl Server {
    /// Binds `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(address: SocketAddr, service: Arc<Service>) -> std::io::Result<Server> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Server {
            listener: socket.listen(BACKLOG)?,
            service,
        })
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then drains for at most `drain_timeout`, or until `hurry` is done.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        hurry: impl Future<Output = ()>,
        drain_timeout: Duration,
    ) -> Drained {
        let app = routes(self.service.clone());
        let (close, closed) = watch::channel(false);
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut accept = Box::pin(accept(self.listener, app, closed, alive));
        let engine = &self.service.engine;
        tokio::select! {
            () = &mut accept => {}
            () = stop => {}
        }
        engine.begin_drain();
        let under_way = engine.under_way();
        tokio::select! {
            () = &mut accept => {}
            () = engine.drained() => {}
            () = tokio::time::sleep(drain_timeout) => {}
            () = hurry => {}
        }
        let cut = engine.under_way();
        if cut > 0 {
            // Their clients are told, within the time to flush.
            engine.begin_stop();
        }
        // Every connection sees this at its next chance, and `ended` yields when the last one is gone.
        drop(accept);
        close.send_replace(true);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, ended.recv()).await;
        Drained {
            finished: under_way.saturating_sub(cut),
            cut,
        }
    }
}

/// Accepts connections for as long as it is polled; each holds a clone of `alive`.
async fn accept(
    listener: TcpListener,
    app: axum::Router,
    closed: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let app = TowerToHyperService::new(app.clone());
                let (closed, alive) = (closed.clone(), alive.clone());
                tokio::spawn(async move {
                    serve(stream, app, closed).await;
                    drop(alive);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(
    stream: TcpStream,
    app: TowerToHyperService<axum::Router>,
    mut closed: watch::Receiver<bool>,
) {
    // Tokens leave at once instead of waiting for company.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), app);
    tokio::pin!(connection);
    // An error here is the client's end of the connection: its requests have been dropped, and so cancelled.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closed.wait_for(|c| *c) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
