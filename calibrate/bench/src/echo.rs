//! A server that streams made-up tokens on a schedule, to measure the harness itself.
//!
//! It speaks as much of OpenAI's completions API as the client needs. The text of each token is the instant at which the server
//! wrote it, so what the client makes of it can be held against the truth and not against a timer's best effort.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep_until;

/// Longest request that is taken [bytes].
const MAX_REQUEST: usize = 16 << 20;
/// Most tokens of an answer [tokens].
const MAX_TOKENS: u64 = 100_000;

/// When tokens are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// From the request to its first token.
    pub first: Duration,
    /// From one token to the next.
    pub gap: Duration,
}

/// A running server; stops when dropped.
pub struct EchoServer {
    address: SocketAddr,
    /// The clock's zero of the instants in token texts.
    pub epoch: Instant,
    served: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl EchoServer {
    /// Starts it on the loopback interface, on a port of the system's choice and a thread of its own.
    ///
    /// # Errors
    /// When no port or thread can be had.
    pub fn start(schedule: Schedule) -> io::Result<EchoServer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let epoch = Instant::now();
        let served = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&served);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("echo".into())
            .spawn(move || {
                let tasks = tokio::task::LocalSet::new();
                tasks.block_on(&runtime, async {
                    tokio::select! {
                        () = accept(listener, schedule, epoch, count) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(EchoServer {
            address,
            epoch,
            served,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests answered in full.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, schedule: Schedule, epoch: Instant, served: Arc<AtomicU64>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: those under way will free some.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let served = Arc::clone(&served);
        tokio::task::spawn_local(async move {
            // A client that goes away ends its connection, nothing else.
            let _ = connection(stream, schedule, epoch, &served).await;
        });
    }
}

async fn connection(
    mut stream: TcpStream,
    schedule: Schedule,
    epoch: Instant,
    served: &AtomicU64,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer: Vec<u8> = Vec::with_capacity(4096);
    let mut out = String::with_capacity(256);
    loop {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > MAX_REQUEST || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
        let length = head
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(k, _)| k.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, v)| v.trim().parse::<usize>().ok())
            .unwrap_or(0);
        if length > MAX_REQUEST {
            return Ok(());
        }
        while buffer.len() < head_end + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let arrived = tokio::time::Instant::now();
        let body: serde_json::Value =
            serde_json::from_slice(&buffer[head_end..head_end + length]).unwrap_or_default();
        buffer.drain(..head_end + length);
        if !head.starts_with("POST ") {
            stream
                .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
                .await?;
            continue;
        }
        let tokens = body["max_tokens"]
            .as_u64()
            .unwrap_or(1)
            .clamp(1, MAX_TOKENS);
        let prompt = match &body["prompt"] {
            serde_json::Value::Array(ids) => ids.len(),
            other => other.as_str().map_or(0, |t| t.split_whitespace().count()),
        };
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await?;
        for i in 0..tokens {
            sleep_until(
                arrived + schedule.first + schedule.gap * u32::try_from(i).unwrap_or(u32::MAX),
            )
            .await;
            let finish = if i + 1 == tokens {
                "\"length\""
            } else {
                "null"
            };
            let event = format!(
                "data: {{\"choices\":[{{\"index\":0,\"text\":\" {}\",\"finish_reason\":{finish}}}]}}\n\n",
                epoch.elapsed().as_nanos()
            );
            chunk(&mut out, &event);
            stream.write_all(out.as_bytes()).await?;
        }
        let last = format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
        );
        chunk(&mut out, &last);
        out.push_str("0\r\n\r\n");
        stream.write_all(out.as_bytes()).await?;
        served.fetch_add(1, Ordering::Relaxed);
    }
}

fn chunk(out: &mut String, data: &str) {
    use std::fmt::Write as _;
    out.clear();
    // Writing to a String cannot fail.
    let _ = write!(out, "{:x}\r\n{data}\r\n", data.len());
}
