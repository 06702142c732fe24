//! A scripted server for tests: answers each request with the bytes that the script says, in pieces, and closes or keeps
//! connections as it says. With TLS it shows `cert.pem`, made for these tests by
//! `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 36500
//! -subj "/CN=servetwin test" -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" -addext "basicConstraints=critical,CA:FALSE"` and
//! `openssl pkcs8 -topk8 -nocrypt -in key.pem -outform DER -out key.der`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Index of the connection it came on.
    pub connection: usize,
    /// First line and headers.
    pub head: String,
    /// Body as text.
    pub body: String,
}

/// What to answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    /// Pieces of the body, each after a pause.
    pub pieces: Vec<(Duration, String)>,
    /// Close the connection after it.
    pub close: bool,
    /// Close before the body's end is written.
    pub cut: bool,
    /// Close without any answer.
    pub silent: bool,
}

impl Answer {
    /// A stream of events, one HTTP chunk each.
    pub fn events(events: &[&str]) -> Answer {
        Answer {
            status: "200 OK",
            content_type: "text/event-stream",
            pieces: events
                .iter()
                .map(|e| (Duration::ZERO, format!("data: {e}\n\n")))
                .collect(),
            close: false,
            cut: false,
            silent: false,
        }
    }

    /// One JSON body.
    pub fn json(status: &'static str, body: &str) -> Answer {
        Answer {
            status,
            content_type: "application/json",
            pieces: vec![(Duration::ZERO, body.to_string())],
            ..Answer::events(&[])
        }
    }

    pub fn spaced(mut self, pause: Duration) -> Answer {
        for p in &mut self.pieces {
            p.0 = pause;
        }
        self
    }
}

type Script = Arc<dyn Fn(usize, &Seen) -> Answer + Send + Sync>;

/// A running server; stops when the test's runtime does.
pub struct Server {
    pub url: String,
    pub seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts it; `script` gets the index of the request and the request.
    pub async fn start(script: impl Fn(usize, &Seen) -> Answer + Send + Sync + 'static) -> Server {
        Server::listen(None, Arc::new(script)).await
    }

    /// As [`Server::start`], over TLS.
    pub async fn start_tls(
        script: impl Fn(usize, &Seen) -> Answer + Send + Sync + 'static,
    ) -> Server {
        let cert = CertificateDer::from_pem_slice(include_bytes!("cert.pem")).unwrap();
        let key = PrivateKeyDer::Pkcs8(include_bytes!("key.der").as_slice().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        Server::listen(Some(TlsAcceptor::from(Arc::new(config))), Arc::new(script)).await
    }

    async fn listen(tls: Option<TlsAcceptor>, script: Script) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let (log, script, tls) = (Arc::clone(&log), Arc::clone(&script), tls.clone());
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    // A client that goes away is part of some tests.
                    let _ = match tls {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, connection, &log, &script).await,
                            Err(e) => Err(e),
                        },
                        None => serve(stream, connection, &log, &script).await,
                    };
                });
            }
        });
        Server { url, seen }
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: usize,
    log: &Mutex<Vec<Seen>>,
    script: &Script,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
        let length: usize = head
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(k, _)| k.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, v)| v.trim().parse().unwrap());
        while buffer.len() < head_end + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let body = String::from_utf8_lossy(&buffer[head_end..head_end + length]).into_owned();
        buffer.drain(..head_end + length);
        let seen = Seen {
            connection,
            head,
            body,
        };
        let index = {
            let mut log = log.lock().unwrap();
            log.push(seen.clone());
            log.len() - 1
        };
        let answer = script(index, &seen);
        if answer.silent {
            return Ok(());
        }
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nKeep-Alive: timeout=5, max=100\r\nTransfer-Encoding: chunked\r\n\r\n",
            answer.status, answer.content_type
        );
        stream.write_all(head.as_bytes()).await?;
        for (pause, piece) in &answer.pieces {
            if !pause.is_zero() {
                tokio::time::sleep(*pause).await;
            }
            stream
                .write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes())
                .await?;
        }
        if answer.cut {
            return Ok(());
        }
        stream.write_all(b"0\r\n\r\n").await?;
        if answer.close {
            return Ok(());
        }
    }
}
