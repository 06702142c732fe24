//! A client for streaming text-generation endpoints that times every chunk.
//!
//! - [`Endpoint`] says where requests go and how; [`Client::send`] sends one and returns its [`RequestTrace`]
//! - [`connection`] TCP, TLS, and which connections are used again
//! - [`sse`] cuts a response into events
//! - [`wire`] what each API wants and answers
//! - [`trace`] when each token came, and how many tokens a chunk holds
//! - [`usage`] whether the server's own counts can be true
//! - [`client`] one request from connection to last byte
//!
//! It speaks HTTP/1.1, which is what the known servers speak for streams, and runs on whatever tokio runtime it is called on.

pub mod client;
pub mod connection;
#[cfg(test)]
mod distrust_tests;
pub mod sse;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod usage;
pub mod wire;

use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;

pub use client::Client;
pub use trace::UsageFault;
pub use trace::{Chunk, CountSource, ErrorKind, RequestError, RequestTrace, ServerTimings, Usage};

/// The API that an endpoint speaks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ApiKind {
    /// OpenAI `/v1/completions`.
    #[default]
    Completions,
    /// OpenAI `/v1/chat/completions`.
    Chat,
    /// Text Generation Inference's `/generate_stream`.
    Tgi,
    /// Triton's generate extension with the TensorRT-LLM ensemble: `/v2/models/MODEL/generate_stream`.
    Triton,
}

impl ApiKind {
    /// Its name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            ApiKind::Completions => "completions",
            ApiKind::Chat => "chat",
            ApiKind::Tgi => "tgi",
            ApiKind::Triton => "triton",
        }
    }
}

/// How the server's certificate is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file of certificate authorities to trust besides the built-in ones of Mozilla.
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate. For test set-ups only: whoever sits in between reads and answers.
    pub insecure: bool,
}

/// Where requests go, and how.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Scheme, host, port and path prefix; the API's own path is appended. `/v1` at its end is understood.
    pub url: Uri,
    /// The API.
    pub api: ApiKind,
    /// `model` of the calls; Triton's model name in the path.
    pub model: Option<String>,
    /// Sent as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// TLS.
    pub tls: TlsOptions,
    /// A connection must stand after this long.
    pub connect_timeout: Duration,
    /// A request must be answered in full after this long, unless it says otherwise itself.
    pub timeout: Duration,
    /// Use connections again. False: one for each request, as clients without a pool do.
    pub keep_alive: bool,
    /// Ask for token counts with each chunk (`continuous_usage_stats`, a vLLM extension that others ignore).
    pub continuous_usage: bool,
    /// Ask for the generated token ids (`return_token_ids`, a vLLM extension).
    pub token_ids: bool,
}

/// An endpoint that cannot be used as described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The address is none.
    #[error("`{url}` is no address of an endpoint: {problem}; write e.g. http://127.0.0.1:8000")]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A header cannot be sent.
    #[error("header `{name}`: {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The certificate authorities cannot be read.
    #[error(
        "certificate file {file}: {problem}; a PEM file with at least one CERTIFICATE is needed"
    )]
    CaFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
}

impl Endpoint {
    /// An endpoint at `url` with the defaults: OpenAI completions, 10 s to connect, 600 s to answer, connections
    /// used again, usage with each chunk.
    ///
    /// # Errors
    /// When `url` is no absolute http or https address.
    pub fn new(url: &str) -> Result<Endpoint, EndpointError> {
        let fail = |problem: &str| EndpointError::Url {
            url: url.to_string(),
            problem: problem.to_string(),
        };
        let with_scheme = if url.contains("://") {
            url.to_string()
        } else {
            format!("http://{url}")
        };
        let uri: Uri = with_scheme.parse().map_err(|e| fail(&format!("{e}")))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            _ => return Err(fail("the scheme must be http or https")),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(fail("it names no host"));
        }
        if let Some((_, host)) = uri.authority().and_then(|a| a.as_str().rsplit_once('@')) {
            return Err(EndpointError::Url {
                url: format!("***@{host}"),
                problem:
                    "user and password in an address are not sent; use an API key or a header \
                          `Authorization: Basic ...`"
                        .into(),
            });
        }
        if uri.query().is_some() {
            return Err(fail("it must not have a query"));
        }
        Ok(Endpoint {
            url: uri,
            api: ApiKind::default(),
            model: None,
            api_key: None,
            headers: Vec::new(),
            tls: TlsOptions::default(),
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(600),
            keep_alive: true,
            continuous_usage: true,
            token_ids: false,
        })
    }

    /// Whether it is reached over TLS.
    pub fn is_tls(&self) -> bool {
        self.url.scheme_str() == Some("https")
    }

    /// Host as written, without port and brackets.
    pub fn host(&self) -> &str {
        let host = self.url.host().unwrap_or("");
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Port, that of the scheme where none is written.
    pub fn port(&self) -> u16 {
        self.url
            .port_u16()
            .unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// Path of `tail` (which begins with `/`) behind the address's own path, whose `/v1` is not repeated.
    pub fn path(&self, tail: &str) -> String {
        let base = self.url.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        format!("{base}{tail}")
    }

    /// Path that requests are sent to.
    pub fn generate_path(&self) -> String {
        match self.api {
            ApiKind::Completions => self.path("/v1/completions"),
            ApiKind::Chat => self.path("/v1/chat/completions"),
            ApiKind::Tgi => self.path("/generate_stream"),
            ApiKind::Triton => {
                let model = self.model.as_deref().unwrap_or("ensemble");
                self.path(&format!("/v2/models/{model}/generate_stream"))
            }
        }
    }
}

/// What is asked of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text; with the chat API the one message of the user.
    Text(String),
    /// Token ids, where the endpoint takes them (vLLM, llama-server, the bundled engine: completions only).
    Tokens(Vec<u32>),
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens asked for [tokens].
    pub max_tokens: u32,
    /// Produce exactly `max_tokens`: `ignore_eos` and `min_tokens`, as far as the endpoint has such fields.
    pub exact: bool,
    /// vLLM's `priority`; not sent when `None`.
    pub priority: Option<i32>,
    /// The client gives up after this long instead of the endpoint's time-out.
    pub timeout: Option<Duration>,
    /// Keep the generated text and ids in the trace.
    pub keep_output: bool,
    /// Further fields of the body, over those that are written by default (e.g. `temperature`).
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl GenerateRequest {
    /// A request for exactly `max_tokens` tokens.
    pub fn new(prompt: Prompt, max_tokens: u32) -> GenerateRequest {
        GenerateRequest {
            prompt,
            max_tokens,
            exact: true,
            priority: None,
            timeout: None,
            keep_output: false,
            extra: serde_json::Map::new(),
        }
    }
}
