//! Connections to one endpoint: TCP, TLS, and which of them are used again.
//!
//! A server may close a connection after a streamed answer although it promised to keep it (llama-server does). So a kept
//! connection is looked at before it is used, and a request that a kept connection swallowed without a byte of answer is
//! sent once more on a fresh one; both are counted.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::trace::{ErrorKind, RequestError};
use super::{Endpoint, EndpointError, TlsOptions};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Io = TokioIo<Box<dyn Stream>>;

/// An HTTP/1.1 connection. It makes progress only while someone polls it, which is who waits for its answer.
pub struct Connection {
    /// Takes requests.
    pub sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<Io, Full<Bytes>>,
    done: bool,
}

impl Connection {
    /// Waits for `future`, which depends on this connection's progress.
    pub async fn drive<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = future.as_mut().poll(cx) {
                return Poll::Ready(out);
            }
            self.poll(cx);
            // What the connection has just read is handed over in the same turn, without another trip through
            // the runtime's queue.
            future.as_mut().poll(cx)
        })
        .await
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if !self.done && Pin::new(&mut self.driver).poll(cx).is_ready() {
            self.done = true;
        }
    }

    /// Whether the server has left it open, as far as is known here.
    fn is_open(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()));
        !self.done && self.sender.is_ready()
    }
}

/// What became of connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConnectionCounts {
    /// Opened.
    pub opened: u64,
    /// Requests that went over a connection used before.
    pub reused: u64,
    /// Kept connections that the server had closed by the time they were wanted.
    pub closed_by_server: u64,
    /// Requests sent once more because a kept connection broke before a byte of answer.
    pub stale_retries: u64,
}

#[derive(Debug, Default)]
struct Counters {
    opened: AtomicU64,
    reused: AtomicU64,
    closed_by_server: AtomicU64,
    stale_retries: AtomicU64,
}

/// Opens and keeps connections to one endpoint.
pub struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    keep: bool,
    timeout: std::time::Duration,
    idle: Mutex<Vec<Connection>>,
    counters: Counters,
}

impl Connector {
    /// A connector without connections.
    ///
    /// # Errors
    /// When TLS cannot be set up as asked.
    pub fn new(endpoint: &Endpoint) -> Result<Connector, EndpointError> {
        let host = endpoint.host().to_string();
        let tls = if endpoint.is_tls() {
            let name = ServerName::try_from(host.clone())
                .map_err(|e| EndpointError::Tls(format!("{host}: {e}")))?;
            Some((
                TlsConnector::from(Arc::new(tls_config(&endpoint.tls)?)),
                name,
            ))
        } else {
            None
        };
        Ok(Connector {
            host,
            port: endpoint.port(),
            tls,
            keep: endpoint.keep_alive,
            timeout: endpoint.connect_timeout,
            idle: Mutex::new(Vec::new()),
            counters: Counters::default(),
        })
    }

    /// A connection that was used before and is still open, if there is one.
    pub fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(|e| e.into_inner());
        while let Some(mut connection) = idle.pop() {
            if connection.is_open() {
                self.counters.reused.fetch_add(1, Ordering::Relaxed);
                return Some(connection);
            }
            self.counters
                .closed_by_server
                .fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// A new connection.
    ///
    /// # Errors
    /// Kind `Connect`, or `Timeout` after the connect time-out.
    pub async fn open(&self) -> Result<Connection, RequestError> {
        match tokio::time::timeout(self.timeout, self.connect()).await {
            Ok(result) => result,
            Err(_) => Err(RequestError::new(
                ErrorKind::Connect,
                format!(
                    "no connection to {}:{} within {:?}",
                    self.host, self.port, self.timeout
                ),
            )),
        }
    }

    async fn connect(&self) -> Result<Connection, RequestError> {
        let fail = |e: &dyn std::fmt::Display| {
            RequestError::new(
                ErrorKind::Connect,
                format!("cannot connect to {}:{}: {e}", self.host, self.port),
            )
        };
        let tcp = match loopback(&self.host, self.port) {
            Some(addresses) => TcpStream::connect(&addresses[..]).await,
            None => TcpStream::connect((self.host.as_str(), self.port)).await,
        };
        let tcp = tcp.map_err(|e| fail(&e))?;
        tcp.set_nodelay(true).map_err(|e| fail(&e))?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some((tls, name)) => Box::new(
                tls.connect(name.clone(), tcp)
                    .await
                    .map_err(|e| fail(&format!("TLS: {e}")))?,
            ),
            None => Box::new(tcp),
        };
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| fail(&e))?;
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Connection {
            sender,
            driver,
            done: false,
        })
    }

    /// Takes back a connection whose answer was read to its end.
    pub fn keep(&self, mut connection: Connection) {
        if self.keep && connection.is_open() {
            self.idle
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .push(connection);
        }
    }

    /// A request is sent again because its kept connection broke.
    pub fn count_stale(&self) {
        self.counters.stale_retries.fetch_add(1, Ordering::Relaxed);
    }

    /// What became of connections so far.
    pub fn counts(&self) -> ConnectionCounts {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        ConnectionCounts {
            opened: get(&self.counters.opened),
            reused: get(&self.counters.reused),
            closed_by_server: get(&self.counters.closed_by_server),
            stale_retries: get(&self.counters.stale_retries),
        }
    }
}

/// Addresses of `localhost` and of names that end in `.localhost`: this machine, whatever a resolver says or does not say (RFC 6761
/// 6.3). `None` for other names.
pub(super) fn loopback(host: &str, port: u16) -> Option<[SocketAddr; 2]> {
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    (name == "localhost" || name.ends_with(".localhost")).then(|| {
        [
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(Ipv4Addr::LOCALHOST),
        ]
        .map(|ip| SocketAddr::new(ip, port))
    })
}

/// How certificates are checked, for rustls.
///
/// # Errors
/// When the file of authorities cannot be read or holds none.
pub fn tls_config(options: &TlsOptions) -> Result<ClientConfig, EndpointError> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| EndpointError::Tls(e.to_string()))?;
    if options.insecure {
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny(algorithms)))
            .with_no_client_auth());
    }
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(file) = &options.ca_file {
        let fail = |problem: String| EndpointError::CaFile {
            file: file.clone(),
            problem,
        };
        let certificates = CertificateDer::pem_file_iter(file).map_err(|e| fail(e.to_string()))?;
        let mut added = 0;
        for certificate in certificates {
            let certificate = certificate.map_err(|e| fail(e.to_string()))?;
            roots.add(certificate).map_err(|e| fail(e.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(fail("it holds no certificate".into()));
        }
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Accepts whatever certificate the server shows; its signatures are still checked.
#[derive(Debug)]
struct AcceptAny(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
