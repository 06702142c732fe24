//! What an endpoint is, and what it takes: a few questions before a load is put on it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::endpoint::{
    ApiKind, Client, Endpoint, ErrorKind, GenerateRequest, Prompt, RequestError,
};
use crate::prometheus::{EngineMetrics, Exporter, Page};

/// Which server it is, as far as it can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// vLLM, or an engine that answers as it does.
    Vllm,
    /// llama.cpp's server.
    LlamaServer,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// Triton Inference Server.
    Triton,
    /// The bundled engine (`servetwin serve`).
    Servetwin,
    /// None of these.
    #[default]
    Unknown,
}

/// What was found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Which server.
    pub server: ServerKind,
    /// Model names that it serves.
    pub models: Vec<String>,
    /// Longest sequence that it takes [tokens].
    pub max_model_len: Option<u32>,
    /// Whether `/health` (Triton: `/v2/health/ready`) answers that all is well.
    pub healthy: bool,
    /// Whose metrics it has.
    pub metrics: Option<Exporter>,
    /// Whether it counts tokens of a text; with the chat API, of a message with the template around it.
    pub tokenize: bool,
    /// Whether it takes prompts as token ids.
    pub token_prompts: bool,
    /// Whether it says how many tokens were generated.
    pub usage: bool,
    /// Whether it says so with each chunk.
    pub continuous_usage: bool,
    /// Whether it gives the ids of generated tokens.
    pub token_ids: bool,
    /// Whether it produces as many tokens as asked (`ignore_eos`).
    pub exact_lengths: bool,
    /// Whether it gives its own times with each answer.
    pub timings: bool,
    /// What did not go as expected, in words.
    pub notes: Vec<String>,
}

/// Longest wait for one of the questions.
const PATIENCE: Duration = Duration::from_secs(60);

impl Probe {
    /// Asks the endpoint what it is. Sends at most three short requests for text.
    ///
    /// # Errors
    /// When it cannot be reached at all, or does not answer a plain request.
    pub async fn run(endpoint: &Endpoint) -> Result<Probe, ProbeError> {
        Probe::meet(endpoint).await.map(|(probe, _)| probe)
    }

    /// As [`Probe::run`], and gives the client that has learnt what the server refuses.
    ///
    /// # Errors
    /// As [`Probe::run`].
    pub async fn meet(endpoint: &Endpoint) -> Result<(Probe, Client), ProbeError> {
        let client = Client::new(Endpoint {
            timeout: endpoint.timeout.min(PATIENCE),
            token_ids: endpoint.api == ApiKind::Completions,
            ..endpoint.clone()
        })?;
        let mut probe = Probe::default();
        // Whether anybody is there at all is decided by the first question.
        probe.health(&client).await?;
        probe.names(&client).await;
        probe.metrics(&client).await;
        let text = "one two three";
        probe.tokenize = count_tokens(&client, text).await.is_some();
        let endpoint = Endpoint {
            model: client
                .endpoint()
                .model
                .clone()
                .or_else(|| probe.models.first().cloned()),
            ..client.endpoint().clone()
        };
        let client = Client::new(endpoint)?;
        probe.generate(&client, text).await?;
        probe.notes.extend(client.notes());
        Ok((probe, client))
    }

    async fn health(&mut self, client: &Client) -> Result<(), RequestError> {
        let path = match client.endpoint().api {
            ApiKind::Triton => "/v2/health/ready",
            _ => "/health",
        };
        self.healthy = client.get(path).await?.status == 200;
        Ok(())
    }

    async fn names(&mut self, client: &Client) {
        if client.endpoint().api == ApiKind::Triton {
            self.server = ServerKind::Triton;
            return;
        }
        if let Ok(answer) = client.get("/v1/models").await {
            if answer.status == 200 {
                let list: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                for model in list["data"].as_array().into_iter().flatten() {
                    self.models.extend(model["id"].as_str().map(String::from));
                    let length = model["max_model_len"].as_u64();
                    self.max_model_len = self
                        .max_model_len
                        .or(length.and_then(|n| u32::try_from(n).ok()));
                    match model["owned_by"].as_str() {
                        Some("vllm") => self.server = ServerKind::Vllm,
                        Some("llamacpp") => self.server = ServerKind::LlamaServer,
                        Some("sglang") => self.server = ServerKind::Sglang,
                        Some("servetwin") => self.server = ServerKind::Servetwin,
                        _ => {}
                    }
                }
            } else if client.endpoint().api != ApiKind::Tgi {
                self.notes.push(format!(
                    "/v1/models answers {}: the model's name must be given",
                    answer.status
                ));
            }
        }
        if client.endpoint().api == ApiKind::Tgi
            && let Ok(answer) = client.get("/info").await
            && answer.status == 200
        {
            let info: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            self.server = ServerKind::Tgi;
            self.models
                .extend(info["model_id"].as_str().map(String::from));
            self.max_model_len = info["max_total_tokens"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok());
        }
    }

    async fn metrics(&mut self, client: &Client) {
        let Some(metrics) = scrape(client).await else {
            return;
        };
        self.metrics = metrics.exporter;
        if self.server == ServerKind::Unknown {
            self.server = match metrics.exporter {
                Some(Exporter::Vllm) => ServerKind::Vllm,
                Some(Exporter::Tgi) => ServerKind::Tgi,
                Some(Exporter::TrtLlm) => ServerKind::Triton,
                Some(Exporter::LlamaServer) => ServerKind::LlamaServer,
                Some(Exporter::Sglang) => ServerKind::Sglang,
                None => ServerKind::Unknown,
            };
        }
    }

    async fn generate(&mut self, client: &Client, text: &str) -> Result<(), RequestError> {
        let request = GenerateRequest {
            keep_output: true,
            ..GenerateRequest::new(Prompt::Text(text.into()), 4)
        };
        let trace = client.send(&request).await;
        if let Some(error) = trace.error {
            return Err(error);
        }
        let usage = trace.usage.and_then(|u| u.completion_tokens);
        self.usage = usage.is_some();
        self.continuous_usage =
            trace.counted == crate::endpoint::CountSource::PerChunk && trace.token_ids.is_none();
        self.token_ids = trace.token_ids.is_some();
        self.timings = trace.timings.is_some();
        self.exact_lengths = !trace.short;
        if trace.short {
            self.notes.push(format!(
                "4 tokens were asked for and {} came: outputs end by themselves",
                trace.output_tokens()
            ));
        }
        if client.endpoint().api == ApiKind::Completions {
            let request = GenerateRequest::new(Prompt::Tokens((32..48).collect()), 1);
            let trace = client.send(&request).await;
            let counted = trace.usage.and_then(|u| u.prompt_tokens);
            // A server that takes the list for something else would count it otherwise (one more: its own first token).
            self.token_prompts = trace.ok() && counted.is_none_or(|n| n == 16 || n == 17);
        }
        Ok(())
    }
}

/// Why an endpoint could not be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The endpoint's description is wrong.
    #[error(transparent)]
    Endpoint(#[from] crate::endpoint::EndpointError),
    /// It does not answer, or not as it should.
    #[error("{told}{0}{advice}", told = told(.0), advice = advice(.0))]
    Request(RequestError),
}

fn told(e: &RequestError) -> &'static str {
    match e.kind {
        ErrorKind::Connect | ErrorKind::Timeout | ErrorKind::Disconnected => {
            "the endpoint does not answer: "
        }
        _ => "the endpoint did not answer a test request of 4 tokens as it should: ",
    }
}

/// What to try, where the status tells.
fn advice(e: &RequestError) -> &'static str {
    match e.kind {
        ErrorKind::Status(401 | 403) => " (--api-key or --header gives it a key)",
        ErrorKind::Status(404 | 405) => {
            " (is the address that of the server, --api the API that it speaks, and --model a model that it has?)"
        }
        _ => "",
    }
}

// Its text is part of this one's, so it is no source: chains would print it twice.
impl From<RequestError> for ProbeError {
    fn from(e: RequestError) -> ProbeError {
        ProbeError::Request(e)
    }
}

/// Reads `/metrics`; `None` where there is nothing that can be read.
pub async fn scrape(client: &Client) -> Option<EngineMetrics> {
    let answer = client
        .get("/metrics")
        .await
        .ok()
        .filter(|a| a.status == 200)?;
    let page = Page::parse(&String::from_utf8_lossy(&answer.body)).ok()?;
    Some(EngineMetrics::from_page(&page))
}

/// Tokens of `text` by the endpoint's own `/tokenize` (vLLM, llama-server, TGI), special tokens included [tokens]. With the chat API those of
/// a message of the user with the template around it (vLLM); `None` where the endpoint does not apply the template there.
pub async fn count_tokens(client: &Client, text: &str) -> Option<u32> {
    let mut body = match client.endpoint().api {
        ApiKind::Tgi => json!({ "inputs": text }),
        ApiKind::Chat => {
            json!({ "messages": [{ "role": "user", "content": text }], "add_generation_prompt": true })
        }
        // vLLM reads `prompt` and `add_special_tokens`, llama-server `content` and `add_special`.
        _ => {
            json!({ "prompt": text, "content": text, "add_special_tokens": true, "add_special": true })
        }
    };
    if let Some(model) = &client.endpoint().model {
        body["model"] = model.as_str().into();
    }
    let answer = client
        .post("/tokenize", &body)
        .await
        .ok()
        .filter(|a| a.status == 200)?;
    let value: Value = serde_json::from_slice(&answer.body).ok()?;
    let n = match &value {
        Value::Array(tokens) => tokens.len() as u64,
        value => value["count"]
            .as_u64()
            .or_else(|| value["tokens"].as_array().map(|t| t.len() as u64))?,
    };
    // A server that does not look at `messages` counts nothing.
    u32::try_from(n).ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Server};

    #[tokio::test]
    async fn a_vllm_like_server_is_recognised_with_what_it_takes() {
        let server = Server::start(|_, seen| {
            let path = seen.head.split(' ').nth(1).unwrap_or("");
            match path {
                "/health" => Answer::json("200 OK", ""),
                "/v1/models" => Answer::json(
                    "200 OK",
                    r#"{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm","max_model_len":2048}]}"#,
                ),
                "/metrics" => Answer::json("200 OK", "vllm:num_requests_running 0\n"),
                "/tokenize" => Answer::json("200 OK", r#"{"count":4,"max_model_len":2048,"tokens":[1,2,3,4]}"#),
                _ if seen.body.contains("[32,33") => Answer::events(&[
                    r#"{"choices":[{"text":"x","token_ids":[5],"finish_reason":"length"}],"usage":{"prompt_tokens":16,"completion_tokens":1}}"#,
                    "[DONE]",
                ]),
                _ => Answer::events(&[
                    r#"{"choices":[{"text":"ab","token_ids":[5,6],"finish_reason":null}],"usage":{"prompt_tokens":4,"completion_tokens":2}}"#,
                    r#"{"choices":[{"text":"cd","token_ids":[7,8],"finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":4}}"#,
                    "[DONE]",
                ]),
            }
        })
        .await;
        let probe = Probe::run(&Endpoint::new(&server.url).unwrap())
            .await
            .unwrap();
        assert_eq!(probe.server, ServerKind::Vllm);
        assert_eq!(probe.models, ["tiny"]);
        assert_eq!(probe.max_model_len, Some(2048));
        assert!(
            probe.healthy
                && probe.tokenize
                && probe.token_prompts
                && probe.usage
                && probe.token_ids
                && probe.exact_lengths
        );
        assert_eq!(probe.metrics, Some(Exporter::Vllm));
        assert!(!probe.timings);
        // The model's name found is the one that requests carry.
        let last = server.requests().last().unwrap().body.clone();
        assert!(last.contains(r#""model":"tiny""#), "{last}");
    }

    #[tokio::test]
    async fn a_server_that_knows_only_completions_is_still_described() {
        let server = Server::start(|_, seen| {
            if !seen.head.starts_with("POST /v1/completions") {
                return Answer::json("404 Not Found", "{}");
            }
            if seen.body.contains("[32,33") {
                return Answer::json(
                    "422 Unprocessable Entity",
                    r#"{"detail":"prompt must be a string"}"#,
                );
            }
            Answer::events(&[
                r#"{"choices":[{"text":"a","finish_reason":"stop"}]}"#,
                "[DONE]",
            ])
        })
        .await;
        let probe = Probe::run(&Endpoint::new(&server.url).unwrap())
            .await
            .unwrap();
        assert_eq!(probe.server, ServerKind::Unknown);
        assert!(
            !probe.healthy
                && !probe.tokenize
                && !probe.token_prompts
                && !probe.usage
                && !probe.exact_lengths
        );
        assert_eq!(probe.notes.len(), 2, "{:?}", probe.notes);
    }

    #[tokio::test]
    async fn an_answer_that_is_a_refusal_is_told_as_one_with_what_to_try() {
        for (status, advice) in [
            ("401 Unauthorized", "--api-key"),
            ("404 Not Found", "--model"),
            ("500 Internal Server Error", "no room"),
        ] {
            let server = Server::start(move |_, _| {
                Answer::json(status, r#"{"error":{"message":"no room"}}"#)
            })
            .await;
            let error = Probe::run(&Endpoint::new(&server.url).unwrap()).await;
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("did not answer a test request") && error.contains(advice),
                "{error}"
            );
        }
    }
}
