//! Arguments that say how an endpoint is reached.

use std::path::PathBuf;
use std::time::Duration;

use bench::endpoint::{ApiKind, Endpoint, TlsOptions};
use bench::session::Preparation;
use clap::ValueEnum;

use crate::bad_input::BadInput;

/// The API on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// OpenAI /v1/completions.
    #[default]
    Completions,
    /// OpenAI /v1/chat/completions.
    Chat,
    /// Text Generation Inference, /generate_stream.
    Tgi,
    /// Triton with TensorRT-LLM, /v2/models/MODEL/generate_stream.
    Triton,
}

/// Which certificates of an https endpoint are accepted.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArgs {
    /// PEM file of certificate authorities to trust besides the built-in ones of Mozilla.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Accept any certificate of the endpoint. For test set-ups only.
    #[arg(long)]
    insecure: bool,
}

impl TlsArgs {
    /// As the client takes them.
    pub fn options(&self) -> TlsOptions {
        TlsOptions {
            ca_file: self.ca.clone(),
            insecure: self.insecure,
        }
    }
}

/// How to reach an endpoint; shared by every command that talks to one.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Endpoint")]
pub struct EndpointArgs {
    /// API that it speaks.
    #[arg(long, value_enum, default_value = "completions")]
    pub api: Api,
    /// Model name; default: the first that it lists.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Sent as a bearer token.
    #[arg(
        long,
        value_name = "KEY",
        env = "SERVETWIN_API_KEY",
        hide_env_values = true
    )]
    pub api_key: Option<String>,
    /// A further header, 'Name: value'. Repeatable.
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Give up on a request after this long [s].
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    pub timeout: f64,
    /// Give up on a connection after this long [s].
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub connect_timeout: f64,
    /// A new connection for each request.
    #[arg(long)]
    pub no_keep_alive: bool,
    /// The model's tokenizer.json (or its folder), for text prompts of exact length.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Prompts as text even where the endpoint takes token ids.
    #[arg(long)]
    pub text_prompts: bool,
}

impl EndpointArgs {
    /// The endpoint at `url`.
    ///
    /// # Errors
    /// [`BadInput`] for an address, header or time that is none.
    pub fn endpoint(&self, url: &str) -> anyhow::Result<Endpoint> {
        let mut endpoint = Endpoint::new(url).map_err(|e| BadInput(e.to_string()))?;
        endpoint.api = match self.api {
            Api::Completions => ApiKind::Completions,
            Api::Chat => ApiKind::Chat,
            Api::Tgi => ApiKind::Tgi,
            Api::Triton => ApiKind::Triton,
        };
        endpoint.model = self.model.clone();
        endpoint.api_key = self.api_key.clone();
        for header in &self.header {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| BadInput(format!("--header '{header}': write 'Name: value'")))?;
            endpoint
                .headers
                .push((name.trim().into(), value.trim().into()));
        }
        endpoint.tls = self.tls.options();
        endpoint.timeout = seconds("--timeout", self.timeout)?;
        endpoint.connect_timeout = seconds("--connect-timeout", self.connect_timeout)?;
        endpoint.keep_alive = !self.no_keep_alive;
        Ok(endpoint)
    }

    /// How it is to be prepared.
    pub fn preparation(&self, token_ids: bool) -> Preparation {
        Preparation {
            tokenizer: self.tokenizer.clone(),
            as_text: self.text_prompts,
            token_ids,
            prompt_salt: None,
        }
    }
}

/// A time of the command line, above zero.
pub(super) fn seconds(name: &str, s: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(s)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or_else(|| BadInput(format!("{name}: must be above 0 s, got {s}")).into())
}
