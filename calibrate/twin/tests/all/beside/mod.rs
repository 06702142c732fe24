//! A proxy in front of an upstream that plays raw exchanges.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use twin::observe::{Observer, ObserverConfig};
use twin::prefix::Salt;
use twin::proxy::{ProxyConfig, serve};
use twin::tap::{Clock, Counters, channel};

/// Nothing here should take this long, on however busy a machine.
pub const LONG: Duration = Duration::from_secs(30);

pub struct Twin {
    pub address: std::net::SocketAddr,
    pub observer: Observer,
    pub counters: Arc<Counters>,
    pub stop: watch::Sender<bool>,
}

/// A proxy in front of `upstream`, with an observer that reads or does not.
pub async fn twin(upstream: std::net::SocketAddr, capacity: usize, observing: bool) -> Twin {
    let config = ProxyConfig::new(&format!("http://{upstream}")).expect("an endpoint");
    twin_with(config, capacity, observing).await
}

pub async fn twin_with(config: ProxyConfig, capacity: usize, observing: bool) -> Twin {
    let clock = Clock::start();
    let (tap, feed) = channel(capacity, clock);
    let counters = Arc::clone(tap.counters());
    let observer = Observer::new(
        ObserverConfig {
            endpoint: "test".into(),
            retention: Duration::from_secs(600),
            tokenizer: None,
            salt: Salt::fixed(1),
        },
        clock,
    );
    if observing {
        observer.spawn(feed).expect("a thread");
    } else {
        // The feed stays open, unread.
        std::mem::forget(feed);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(serve(listener, config, tap, stopped));
    Twin {
        address,
        observer,
        counters,
        stop,
    }
}

/// An upstream that plays one raw exchange per connection: hands out each connection as it comes.
pub async fn upstream() -> (std::net::SocketAddr, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tx, rx) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if tx.send(stream).await.is_err() {
                break;
            }
        }
    });
    (address, rx)
}

pub async fn within<F: Future>(what: &str, f: F) -> F::Output {
    match tokio::time::timeout(LONG, f).await {
        Ok(v) => v,
        Err(_) => panic!("{what}: nothing happened"),
    }
}

/// Reads until `end` has come, and returns everything.
pub async fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    within("reading", async {
        while !all.windows(end.len()).any(|w| w == end) {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(n) => all.extend_from_slice(&buffer[..n]),
            }
        }
    })
    .await;
    all
}

/// Reads until the other side closes.
pub async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = within("reading to the end", stream.read_to_end(&mut all)).await;
    all
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn split(message: &[u8]) -> (String, &[u8]) {
    let i = message
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no head in {:?}", text(message)));
    (text(&message[..i]), &message[i + 4..])
}
