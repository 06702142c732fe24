//! A scenario as files to apply: commands, manifests, Helm values.
//!
//! Options of an engine are written by the same tables that importers read ([`crate::keys`]), so that what is exported is imported as it was. What a target
//! cannot say is listed, and nothing is written for it.

mod autoscalers;
mod compose;
mod kubernetes;
mod load;
mod options;
mod triton;
mod vllm;

use hwmodels::EngineKind;
use hwmodels::catalog::Catalog;
use sim::scenario::{ModelSource, Scenario};

use crate::place::{Error, Fault, Place};

/// Gives the targets with their names and titles.
macro_rules! targets {
    ($($variant:ident: $name:literal, $title:literal;)*) => {
        /// What a scenario is exported to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Target {
            $(#[doc = $title] $variant,)*
        }

        impl Target {
            /// Every target.
            pub const ALL: &'static [Target] = &[$(Target::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Target::$variant => $name,)*
                }
            }

            /// What it is.
            pub fn title(self) -> &'static str {
                match self {
                    $(Target::$variant => $title,)*
                }
            }
        }
    };
}

targets! {
    Vllm: "vllm", "a `vllm serve` command";
    Kubernetes: "k8s", "a Kubernetes Deployment with a Service (vLLM, TGI)";
    LeaderWorkerSet: "lws", "a LeaderWorkerSet, a replica over several nodes (vLLM, TensorRT-LLM)";
    TgiCompose: "tgi-compose", "docker compose with TGI's environment, nginx in front";
    TritonHelm: "triton-helm", "values of the multi-node Triton TensorRT-LLM chart, the engine's build and `config.pbtxt`";
    TrtLlm: "trtllm", "the commands that build a TensorRT-LLM engine, and Triton's `config.pbtxt`";
    Dynamo: "dynamo", "an NVIDIA Dynamo graph deployment (vLLM)";
}

/// A file to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

/// A scenario as files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// The files.
    pub files: Vec<File>,
    /// Keys of the scenario that the target cannot say, with why or where else to say them.
    pub not_said: Vec<String>,
}

impl Exported {
    fn file(&mut self, name: &'static str, text: String) {
        self.files.push(File { name, text });
    }

    fn cannot(&mut self, what: impl Into<String>) {
        self.not_said.push(what.into());
    }
}

/// Writes the scenario as files of the target.
///
/// # Errors
/// A scenario whose engine the target does not run, or that is no deployment (constant step times, a fitted profile).
pub fn export(scenario: &Scenario, target: Target) -> Result<Exported, Error> {
    let kind = scenario.engine.params.kind();
    let runs: &[EngineKind] = match target {
        Target::Vllm | Target::Dynamo => &[EngineKind::VllmV1],
        Target::Kubernetes => &[EngineKind::VllmV1, EngineKind::Tgi],
        Target::LeaderWorkerSet => &[EngineKind::VllmV1, EngineKind::TrtLlm],
        Target::TgiCompose => &[EngineKind::Tgi],
        Target::TritonHelm | Target::TrtLlm => &[EngineKind::TrtLlm],
    };
    let fault = |message: String| Error::from(Fault::new(Place::option("export"), "", message));
    if !runs.contains(&kind) {
        let able: Vec<&str> = runs.iter().map(|k| k.name()).collect();
        return Err(fault(format!(
            "the target {} runs {}, the scenario {}; choose another with --to",
            target.name(),
            able.join(" or "),
            kind.name()
        )));
    }
    let (Some(_), Some(_)) = (&scenario.model, &scenario.hardware) else {
        return Err(fault("the scenario has no model on hardware ([step], a fitted profile), so there is nothing to deploy".to_owned()));
    };
    let mut out = Exported::default();
    match target {
        Target::Vllm => vllm::script(scenario, &mut out),
        Target::Kubernetes => kubernetes::deployment(scenario, &mut out),
        Target::LeaderWorkerSet => kubernetes::leader_worker_set(scenario, &mut out),
        Target::TgiCompose => compose::files(scenario, &mut out),
        Target::TritonHelm => triton::helm(scenario, &mut out),
        Target::TrtLlm => triton::build(scenario, &mut out),
        Target::Dynamo => kubernetes::dynamo(scenario, &mut out),
    }
    if !matches!(target, Target::Kubernetes | Target::LeaderWorkerSet) {
        autoscalers::none(scenario, &mut out);
    }
    general(scenario, &mut out);
    load::files(scenario, &mut out);
    Ok(out)
}

/// What no target says.
fn general(s: &Scenario, out: &mut Exported) {
    if let Some(h) = &s.hardware {
        for (said, key) in [
            (h.profile != "auto", "hardware.profile"),
            (!h.params.is_empty(), "hardware.params"),
            (h.price.is_some(), "hardware.price"),
            (h.price_date.is_some(), "hardware.price_date"),
            (h.catalog.is_some(), "hardware.catalog"),
        ] {
            if said {
                out.cannot(format!("{key}: it is the simulation's"));
            }
        }
    }
    if let Some(m) = &s.model {
        if m.expert_skew != 0.0 {
            out.cannot("model.expert_skew: it is the load's on the experts");
        }
        if matches!(m.source, ModelSource::Config(_)) {
            out.cannot("model.config: import the config.json beside the files");
        }
    }
    if s.router.overhead.secs() != 0.0 {
        out.cannot("router.overhead: it is the network's");
    }
}

/// The model's name on the Hugging Face hub where the catalog knows it.
fn model_id(s: &Scenario) -> String {
    match s.model.as_ref().map(|m| &m.source) {
        Some(ModelSource::Catalog(name)) => {
            let catalog = Catalog::builtin();
            let arch = catalog.model(name).ok();
            let hub = arch.and_then(|a| a.aliases.iter().find(|alias| alias.contains('/')));
            hub.unwrap_or(name).clone()
        }
        Some(ModelSource::Config(path)) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
            folder.map_or_else(|| "./model".to_owned(), |p| p.display().to_string())
        }
        None => String::new(),
    }
}

/// The scenario's name as Kubernetes takes one: lower case letters, digits and dashes.
fn label(s: &Scenario) -> String {
    let mut out = String::new();
    for c in s.name.to_ascii_lowercase().chars().take(50) {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    let out = out.trim_matches('-').to_owned();
    match out.chars().next() {
        Some('a'..='z') => out,
        Some(_) => format!("llm-{out}"),
        None => "llm".to_owned(),
    }
}

/// Devices of a replica.
fn ranks(s: &Scenario) -> u32 {
    s.layout
        .tp
        .saturating_mul(s.layout.pp)
        .saturating_mul(s.layout.dp)
}

/// Devices of a node: the instance type's, or the machine's.
fn devices_of_node(s: &Scenario) -> u32 {
    let Some(h) = &s.hardware else { return 1 };
    match &h.machine {
        Some(machine) => machine.count.max(1),
        None => Catalog::builtin()
            .instance(&h.instance)
            .map_or(1, |i| i.devices.max(1)),
    }
}

/// The accelerator's name in the catalog.
fn accelerator(s: &Scenario) -> String {
    let Some(h) = &s.hardware else {
        return String::new();
    };
    match &h.machine {
        Some(machine) => machine.accelerator.clone(),
        None => Catalog::builtin()
            .instance(&h.instance)
            .map_or_else(|_| String::new(), |i| i.accelerator.clone()),
    }
}

/// Text as YAML takes it.
fn yaml(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let starts = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "null" | "y" | "n"
    );
    match starts && !word && text.chars().all(plain) {
        true => text.to_owned(),
        // A JSON string is a YAML string.
        false => serde_json::Value::from(text).to_string(),
    }
}
