//! What kind of file a text is, by its content.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::text::dotenv::{self, Variable};
use crate::text::nginx::{self, Directive};
use crate::text::prototext::{self, Field};
use crate::text::shell::{self, Command};
use crate::text::yaml::{self, Node};
use crate::text::{MAX_BYTES, Wrong};

use super::accesslog::{self, Log};
use super::configs::is_variable;
use super::program;
use super::python;

/// Gives the kinds with their names and titles.
macro_rules! kinds {
    ($($variant:ident: $name:literal, $title:literal;)*) => {
        /// A kind of file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $title] $variant,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$variant => $name,)*
                }
            }

            /// What it is.
            pub fn title(self) -> &'static str {
                match self {
                    $(Kind::$variant => $title,)*
                }
            }
        }
    };
}

kinds! {
    Commands: "commands", "a shell script or command line that starts an engine or a load generator";
    Manifests: "kubernetes", "Kubernetes manifests";
    Compose: "compose", "a docker compose file";
    Env: "env", "a file of environment variables for TGI";
    Nginx: "nginx", "an nginx configuration with an upstream";
    TritonValues: "triton-values", "Helm values of the multi-node Triton TensorRT-LLM chart";
    ProductionStack: "production-stack", "Helm values of vLLM production-stack";
    LlmD: "llm-d", "Helm values of llm-d's model service";
    TritonConfig: "triton-config", "Triton's config.pbtxt";
    TrtllmOptions: "trtllm-options", "options of TensorRT-LLM's LLM API";
    RayServe: "ray-serve", "Ray Serve's LLM applications";
    SkyPilot: "skypilot", "a SkyPilot task or service";
    Python: "python", "a Python file of Modal or BentoML that starts vLLM or SGLang";
    SageMaker: "sagemaker", "SageMaker's environment or requests as JSON";
    Prometheus: "prometheus", "the answer to a range query of Prometheus for a rate of requests";
    AccessLog: "access-log", "an access log: nginx's combined format, or JSON lines";
    HfConfig: "hf-config", "a model's Hugging Face config.json";
}

/// A file's content by its kind.
pub enum Content {
    /// Commands of a script.
    Commands(Vec<Command>),
    /// Documents of a kind of YAML or JSON.
    Manifests(Vec<Rc<Node>>),
    /// As above.
    Compose(Vec<Rc<Node>>),
    /// As above.
    TritonValues(Vec<Rc<Node>>),
    /// As above.
    ProductionStack(Vec<Rc<Node>>),
    /// As above.
    LlmD(Vec<Rc<Node>>),
    /// As above.
    TrtllmOptions(Vec<Rc<Node>>),
    /// As above.
    RayServe(Vec<Rc<Node>>),
    /// As above.
    SkyPilot(Vec<Rc<Node>>),
    /// A Python file.
    Python(String),
    /// As above.
    SageMaker(Vec<Rc<Node>>),
    /// As above.
    Prometheus(Vec<Rc<Node>>),
    /// Requests of a log.
    AccessLog(Log),
    /// A model's shape.
    HfConfig(Rc<Node>),
    /// Variables.
    Env(Vec<Variable>),
    /// Directives.
    Nginx(Vec<Directive>),
    /// Fields.
    TritonConfig(Vec<Field>),
}

impl Content {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Content::Commands(_) => Kind::Commands,
            Content::Manifests(_) => Kind::Manifests,
            Content::Compose(_) => Kind::Compose,
            Content::TritonValues(_) => Kind::TritonValues,
            Content::ProductionStack(_) => Kind::ProductionStack,
            Content::LlmD(_) => Kind::LlmD,
            Content::TrtllmOptions(_) => Kind::TrtllmOptions,
            Content::RayServe(_) => Kind::RayServe,
            Content::SkyPilot(_) => Kind::SkyPilot,
            Content::Python(_) => Kind::Python,
            Content::SageMaker(_) => Kind::SageMaker,
            Content::Prometheus(_) => Kind::Prometheus,
            Content::AccessLog(_) => Kind::AccessLog,
            Content::HfConfig(_) => Kind::HfConfig,
            Content::Env(_) => Kind::Env,
            Content::Nginx(_) => Kind::Nginx,
            Content::TritonConfig(_) => Kind::TritonConfig,
        }
    }
}

/// Reads a text as the kind it is, or as the one it is said to be.
///
/// # Errors
/// What is wrong with it, or that its kind cannot be told.
pub fn content(name: &str, text: &str, kind: Option<Kind>) -> Result<Content, Wrong> {
    if text.len() > MAX_BYTES {
        return Err(Wrong::new(
            1,
            format!(
                "the file has {} bytes; at most {MAX_BYTES} are read",
                text.len()
            ),
        ));
    }
    if text.trim().is_empty() {
        return Err(Wrong::new(1, "is empty"));
    }
    if let Some(kind) = kind {
        return as_kind(text, kind);
    }
    if let Some(log) = accesslog::read(text) {
        return Ok(Content::AccessLog(log?));
    }
    if python::is_one(text) {
        return Ok(Content::Python(text.to_owned()));
    }
    if let Some(line) = template(text) {
        return Err(Wrong::new(
            line,
            "is a template of a Helm chart, which its values fill in: import the chart's folder where helm is installed, or what `helm template FOLDER --values FILE` writes",
        ));
    }
    let documents = yaml::documents(text);
    if let Ok(docs) = &documents
        && let Some(kind) = docs.first().and_then(|d| kind_of(d))
    {
        return Ok(of_documents(docs.clone(), kind));
    }
    let is_command = |commands: &[Command]| {
        commands.iter().any(|c| {
            let first = c.words.first().map_or("", |w| w.text.as_str());
            program::program(&c.words).is_some()
                || matches!(first, "docker" | "podman" | "nerdctl" | "sh" | "bash")
        })
    };
    if let Ok(commands) = shell::commands(text, 1, &BTreeMap::new())
        && is_command(&commands)
    {
        return Ok(Content::Commands(commands));
    }
    if let Ok(variables) = dotenv::variables(text)
        && !variables.is_empty()
    {
        return Ok(Content::Env(variables));
    }
    let pbtxt = ["backend:", "max_batch_size", "parameters"]
        .iter()
        .any(|w| text.contains(w));
    if pbtxt && let Ok(fields) = prototext::fields(text) {
        return Ok(Content::TritonConfig(fields));
    }
    if text.contains("upstream")
        && let Ok(directives) = nginx::directives(text)
    {
        return Ok(Content::Nginx(directives));
    }
    // The ending tells what was meant by what is broken.
    let ending = name.rsplit('.').next().unwrap_or("").to_ascii_lowercase();
    match ending.as_str() {
        "yaml" | "yml" | "json" => Err(documents.err().unwrap_or_else(unknown)),
        "sh" | "bash" => Err(shell::commands(text, 1, &BTreeMap::new())
            .err()
            .unwrap_or_else(unknown)),
        "env" => Err(dotenv::variables(text).err().unwrap_or_else(unknown)),
        "pbtxt" => Err(prototext::fields(text).err().unwrap_or_else(unknown)),
        "conf" => Err(nginx::directives(text).err().unwrap_or_else(unknown)),
        _ => Err(unknown()),
    }
}

/// The line on which a text first has an action of Helm's templates.
fn template(text: &str) -> Option<u32> {
    // What other languages put into such brackets is text: chat templates, KServe's {{.Name}}.
    let words = [
        ".Values", ".Release", ".Chart", "include ", "toYaml ", "define ",
    ];
    let is_action = |row: &str| {
        row.split("{{").skip(1).any(|rest| {
            let inner = rest.split("}}").next().unwrap_or(rest);
            words.iter().any(|w| inner.contains(w))
        })
    };
    let at = text.lines().position(is_action)?;
    u32::try_from(at + 1).ok()
}

fn unknown() -> Wrong {
    let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
    Wrong::new(
        1,
        format!(
            "its kind cannot be told by its content; say it with --kind, one of {}",
            names.join(", ")
        ),
    )
}

fn as_kind(text: &str, kind: Kind) -> Result<Content, Wrong> {
    Ok(match kind {
        Kind::Commands => Content::Commands(shell::commands(text, 1, &BTreeMap::new())?),
        Kind::Env => Content::Env(dotenv::variables(text)?),
        Kind::Nginx => Content::Nginx(nginx::directives(text)?),
        Kind::TritonConfig => Content::TritonConfig(prototext::fields(text)?),
        Kind::Python => Content::Python(text.to_owned()),
        Kind::AccessLog => {
            let none = "is no access log: a line of nginx's combined format, or several JSON objects with a time, one on each line, was expected";
            let log = accesslog::read(text).ok_or_else(|| Wrong::new(1, none))?;
            Content::AccessLog(log?)
        }
        _ => {
            let docs = yaml::documents(text)?;
            if docs.is_empty() || !docs.iter().all(|d| d.is_map()) {
                let line = docs.first().map_or(1, |d| d.line);
                return Err(Wrong::new(
                    line,
                    format!("is no {}: a mapping of keys was expected", kind.title()),
                ));
            }
            of_documents(docs, kind)
        }
    })
}

fn of_documents(docs: Vec<Rc<Node>>, kind: Kind) -> Content {
    match kind {
        Kind::Compose => Content::Compose(docs),
        Kind::TritonValues => Content::TritonValues(docs),
        Kind::ProductionStack => Content::ProductionStack(docs),
        Kind::LlmD => Content::LlmD(docs),
        Kind::TrtllmOptions => Content::TrtllmOptions(docs),
        Kind::RayServe => Content::RayServe(docs),
        Kind::SkyPilot => Content::SkyPilot(docs),
        Kind::SageMaker => Content::SageMaker(docs),
        Kind::Prometheus => Content::Prometheus(docs),
        Kind::HfConfig => match docs.into_iter().next() {
            Some(doc) => Content::HfConfig(doc),
            None => Content::Manifests(Vec::new()),
        },
        _ => Content::Manifests(docs),
    }
}

/// The kind of a document by its keys.
fn kind_of(doc: &Node) -> Option<Kind> {
    let has = |key: &str| doc.entry(key).is_some();
    let any = |keys: &[&str]| keys.iter().any(|k| has(k));
    if has("apiVersion") && has("kind") {
        return Some(Kind::Manifests);
    }
    if doc.get("services").is_some_and(|s| s.is_map()) {
        return Some(Kind::Compose);
    }
    if doc
        .get("applications")
        .is_some_and(|a| !a.items().is_empty())
    {
        return Some(Kind::RayServe);
    }
    if has("run") && any(&["resources", "setup", "envs", "service", "num_nodes"]) {
        return Some(Kind::SkyPilot);
    }
    if has("resources")
        && any(&[
            "patches",
            "components",
            "namePrefix",
            "images",
            "replicas",
            "namespace",
            "patchesStrategicMerge",
            "labels",
        ])
        || has("kind") && doc.get("kind").and_then(|k| k.text()) == Some("Kustomization")
    {
        return Some(Kind::Manifests);
    }
    if doc.at(&["data", "resultType"]).is_some() {
        return Some(Kind::Prometheus);
    }
    if has("tensorrtLLM") || (has("gpuPerNode") && has("triton")) {
        return Some(Kind::TritonValues);
    }
    if has("servingEngineSpec") {
        return Some(Kind::ProductionStack);
    }
    if has("modelArtifacts") {
        return Some(Kind::LlmD);
    }
    if has("model_type")
        && any(&[
            "hidden_size",
            "num_hidden_layers",
            "n_layer",
            "text_config",
            "num_attention_heads",
        ])
    {
        return Some(Kind::HfConfig);
    }
    if any(&["PrimaryContainer", "ProductionVariants", "InstanceType"]) {
        return Some(Kind::SageMaker);
    }
    if any(&[
        "kv_cache_config",
        "cuda_graph_config",
        "disable_overlap_scheduler",
        "enable_attention_dp",
        "enable_chunked_prefill",
        "moe_config",
    ]) {
        return Some(Kind::TrtllmOptions);
    }
    let scalars = !doc.entries().is_empty() && doc.entries().iter().all(|e| is_variable(&e.key));
    scalars.then_some(Kind::SageMaker)
}
