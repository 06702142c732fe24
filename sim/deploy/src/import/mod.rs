//! Deployment files to a scenario.
//!
//! The way of a file: `detect` tells its kind by its content; a parser of [`crate::text`] reads it; the kind's importer walks it by its table of
//! [`crate::keys`] and tells the `draft::Draft` what it says; `finish` makes a scenario of what all files say together.

mod accesslog;
mod apart;
mod args;
mod autoscalers;
mod compose;
mod configs;
mod detect;
mod draft;
mod dynamo;
mod env;
mod finish;
mod guess;
mod guidellm;
mod helm;
mod kserve;
mod kubeai;
mod kustomize;
mod load;
mod manifests;
mod names;
mod nodes;
mod perf;
mod pod;
mod pools;
mod program;
mod prometheus;
mod promql;
mod python;
mod rayserve;
mod resource;
mod scaling;
mod sglang;
mod skypilot;
mod tgi;
mod tree;
mod trtllm;
mod vllm;
mod workload;

use std::rc::Rc;
use std::sync::Arc;

pub use detect::Kind;
pub use finish::{Imported, Options};

use crate::keys::Table;
use crate::place::{Error, Fault, Place, printable};
use crate::report::FileKind;
use crate::text::yaml::Node;
use detect::Content;
use draft::{Draft, Origin};

/// Most files of one import.
const MAX_FILES: usize = 64;

/// A file to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
    /// How the scenario would name it: a path relative to the scenario.
    pub reference: String,
}

impl Source {
    /// A file that the scenario would name as messages do.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        let name = name.into();
        Source {
            reference: name.clone(),
            name,
            text: text.into(),
        }
    }
}

/// The tables of all kinds, in the order of the documentation.
pub fn tables() -> Vec<&'static Table> {
    vec![
        &vllm::TABLE,
        &sglang::TABLE,
        &tgi::TABLE,
        &trtllm::SERVE,
        &trtllm::BUILD,
        &trtllm::CONVERT,
        &configs::OPTIONS,
        &configs::PBTXT,
        &trtllm::LAUNCHER,
        &workload::WORKLOAD,
        &pod::POD,
        &autoscalers::HPA,
        &autoscalers::KEDA,
        &autoscalers::AIBRIX,
        &nodes::NODE_POOL,
        &kserve::INFERENCE_SERVICE,
        &kserve::LLM_INFERENCE_SERVICE,
        &dynamo::DYNAMO,
        &dynamo::COMPONENT,
        &kubeai::MODEL,
        &kubeai::NIM,
        &rayserve::APPLICATIONS,
        &skypilot::TABLE,
        &compose::TABLE,
        &compose::NGINX,
        &helm::TRITON,
        &helm::STACK,
        &helm::STACK_ROUTER,
        &helm::LLM_D,
        &configs::SAGEMAKER,
        &env::TABLE,
        &load::VLLM_BENCH,
        &guidellm::GUIDELLM,
        &perf::AIPERF,
        &prometheus::TABLE,
        &accesslog::TABLE,
    ]
}

/// Makes one scenario of the files.
///
/// # Errors
/// All that is wrong with the files, each with file and line; what no file says and no option either.
pub fn import(sources: &[Source], options: &Options) -> Result<Imported, Error> {
    if sources.is_empty() || sources.len() > MAX_FILES {
        let message = format!("give 1 to {MAX_FILES} files, got {}", sources.len());
        return Err(Fault::new(Place::option("import"), "", message).into());
    }
    let mut draft = Draft::default();
    let mut read: Vec<(Arc<str>, &Source, Content)> = Vec::new();
    for source in sources {
        let file: Arc<str> = source.name.as_str().into();
        match detect::content(&source.name, &source.text, options.kind) {
            Ok(content) => {
                draft.report.files.push(FileKind {
                    file: printable(&source.name),
                    kind: content.kind().name().to_owned(),
                });
                read.push((file, source, content));
            }
            Err(wrong) => draft.fault(Fault::new(Place::new(&file, wrong.line), "", wrong.message)),
        }
    }
    kustomize::merge(&mut read, &mut draft);
    if draft.has_faults() {
        return finish::finish(draft, options);
    }
    match all(&read, &mut draft) {
        Some(pools) => finish::pools(draft, pools, options),
        None => finish::finish(draft, options),
    }
}

/// Imports all files; the deployments where there are several.
fn all(read: &[(Arc<str>, &Source, Content)], draft: &mut Draft) -> Option<Vec<pools::Pool>> {
    let mut maps = workload::ConfigMaps::new();
    let mut env_files = compose::EnvFiles::new();
    let mut used: Vec<String> = Vec::new();
    for (file, _, content) in read {
        match content {
            Content::Manifests(docs) => workload::config_maps(docs, file, &mut maps),
            Content::Env(variables) => {
                let origins = variables.iter().map(|v| {
                    let origin =
                        Origin::new(Place::new(file, v.line), v.name.clone(), v.value.clone());
                    (v.name.clone(), origin)
                });
                env_files.insert(file.to_string(), origins.collect());
            }
            _ => {}
        }
    }
    let has_compose = read
        .iter()
        .any(|(_, _, c)| matches!(c, Content::Compose(_)));
    let manifests = (read.iter()).filter_map(|(file, _, content)| match content {
        Content::Manifests(docs) => Some((file, docs.as_slice())),
        _ => None,
    });
    let mut pools = pools::Pools::find(manifests, &maps, draft);
    let stacks = (read.iter()).any(|(_, _, c)| matches!(c, Content::ProductionStack(docs) if docs.iter().any(|d| helm::is_several(d))));
    if stacks {
        pools.get_or_insert_default();
    }
    for (file, source, content) in read {
        if let (Some(pools), Content::ProductionStack(docs)) = (&mut pools, content) {
            for doc in docs {
                helm::production_stack_pools(doc, file, pools, draft);
            }
        } else if let (Some(pools), Content::Manifests(docs)) = (&mut pools, content) {
            for doc in docs {
                pools.import(doc, file, &maps, draft);
            }
        } else {
            one(file, source, content, &maps, &env_files, &mut used, draft);
        }
    }
    // A file of variables that no service names is TGI's own, or for `${NAME}` of a compose file.
    for (name, variables) in &env_files {
        if !used.contains(name) && !has_compose {
            let file: Arc<str> = name.as_str().into();
            tgi::import(&[], variables, &file, None, draft);
        }
    }
    pools.map(pools::Pools::into_list)
}

fn one(
    file: &Arc<str>,
    source: &Source,
    content: &Content,
    maps: &workload::ConfigMaps,
    env_files: &compose::EnvFiles,
    used: &mut Vec<String>,
    draft: &mut Draft,
) {
    let each = |docs: &[Rc<Node>], draft: &mut Draft, f: fn(&Rc<Node>, &Arc<str>, &mut Draft)| {
        for doc in docs {
            f(doc, file, draft);
        }
    };
    match content {
        Content::Commands(commands) => {
            if program::script_of(commands, file, draft) == 0 {
                draft.fault(Fault::new(
                    Place::new(file, 1),
                    "",
                    "none of its commands is known: vllm serve, sglang.launch_server, text-generation-launcher, trtllm-serve, trtllm-build, vllm bench serve, guidellm, aiperf, genai-perf",
                ));
            }
        }
        Content::Manifests(docs) => {
            for doc in docs {
                manifests::import(doc, file, maps, draft);
            }
        }
        Content::Compose(docs) => {
            for doc in docs {
                compose::import(doc, file, env_files, used, draft);
            }
        }
        Content::TritonValues(docs) => each(docs, draft, helm::triton),
        Content::ProductionStack(docs) => each(docs, draft, helm::production_stack),
        Content::LlmD(docs) => each(docs, draft, helm::llm_d),
        Content::TrtllmOptions(docs) => each(docs, draft, configs::options),
        Content::RayServe(docs) => each(docs, draft, rayserve::applications),
        Content::SkyPilot(docs) => each(docs, draft, skypilot::import),
        Content::Python(text) => python::import(text, file, draft),
        Content::SageMaker(docs) => each(docs, draft, configs::sagemaker),
        Content::Prometheus(docs) => each(docs, draft, prometheus::import),
        Content::AccessLog(log) => accesslog::import(log, file, &source.reference, draft),
        Content::TritonConfig(fields) => configs::pbtxt(fields, file, draft),
        Content::Nginx(directives) => compose::nginx(directives, file, draft),
        Content::HfConfig(doc) => {
            let line = doc.entry("model_type").map_or(1, |e| e.line);
            let origin = Origin::new(Place::new(file, line), "config.json", "");
            draft.facts.config = Some((source.reference.clone(), origin));
        }
        Content::Env(_) => {}
    }
}

/// The files on which a file of `text` builds, by their paths from its folder: of a kustomization its resources, components and patches.
pub fn references(text: &str) -> Vec<String> {
    kustomize::references(text)
}

/// vLLM's arguments, for exporters.
pub(crate) fn vllm_table() -> &'static Table {
    &vllm::TABLE
}

/// SGLang's arguments, for exporters.
pub(crate) fn sglang_table() -> &'static Table {
    &sglang::TABLE
}

/// TGI's arguments and variables, for exporters.
pub(crate) fn tgi_table() -> &'static Table {
    &tgi::TABLE
}

/// Arguments of `convert_checkpoint.py`, for exporters.
pub(crate) fn trtllm_convert_table() -> &'static Table {
    &trtllm::CONVERT
}

/// Arguments of `trtllm-build`, for exporters.
pub(crate) fn trtllm_build_table() -> &'static Table {
    &trtllm::BUILD
}

/// Parameters of `config.pbtxt`, for exporters.
pub(crate) fn pbtxt_table() -> &'static Table {
    &configs::PBTXT
}
