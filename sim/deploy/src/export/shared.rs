//! What every target writes in the same way: names, the machine, the router, and what is left unsaid.

use hwmodels::Dtype;
use hwmodels::catalog::Catalog;
use sim::scenario::{ModelChoice, ModelSource, RouterPolicy, Scenario};

use crate::text::shell::quoted;

/// A file to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
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
    /// Adds a file.
    pub(super) fn file(&mut self, name: &str, text: String) {
        let name = name.to_owned();
        self.files.push(File { name, text });
    }

    /// Says what the target cannot say.
    pub(super) fn cannot(&mut self, what: impl Into<String>) {
        self.not_said.push(what.into());
    }

    /// Adds the files of the pool `name`, which begin with `start`.
    pub(super) fn pool(&mut self, (name, start): (&str, &str), own: Exported) {
        for file in own.files {
            self.file(&format!("{start}-{}", file.name), file.text);
        }
        let not_said = (own.not_said.into_iter()).map(|what| format!("pool {name}: {what}"));
        self.not_said.extend(not_said);
    }
}

/// Where the pods go.
pub fn selector(s: &Scenario, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let Some(h) = &s.hardware else {
        return String::new();
    };
    match &h.machine {
        None => format!(
            "{pad}nodeSelector:\n{pad}  node.kubernetes.io/instance-type: {}\n",
            yaml(&h.instance)
        ),
        Some(m) => format!(
            "{pad}nodeSelector:\n{pad}  nvidia.com/gpu.product: {}\n",
            yaml(&m.accelerator)
        ),
    }
}

/// The router that stands before a Service's pods is its own.
pub fn router(s: &Scenario, out: &mut Exported) {
    if s.router.policy != RouterPolicy::RoundRobin {
        out.cannot("router.policy: a Service knows no such policy; put a gateway before it");
    }
    if s.router.timeout.is_some() {
        out.cannot("router.timeout: it is the gateway's");
    }
}

/// A machine of one's own says its accelerator by a label, and its devices by a pod's.
pub fn own_machine(s: &Scenario, out: &mut Exported) {
    if let Some(m) = s.hardware.as_ref().and_then(|h| h.machine.as_ref())
        && m.count != ranks(s)
    {
        out.cannot(format!(
            "hardware.count: import with --instance {}x{}",
            m.count, m.accelerator
        ));
    }
}

/// The machine, which a command cannot say.
pub fn machine(s: &Scenario, out: &mut Exported) {
    if let Some(h) = &s.hardware {
        let name = match &h.machine {
            Some(m) => format!("{}x{}", m.count, m.accelerator),
            None => h.instance.clone(),
        };
        out.cannot(format!("hardware: import with --instance {name}"));
    }
}

/// Longest name of an object: Services take 63 characters, and what is made of them adds some.
const LABEL_CHARS: usize = 50;

/// The scenario's name as Kubernetes takes one.
pub fn label(s: &Scenario) -> String {
    label_of(&s.name)
}

/// A name as Kubernetes takes one: lower case letters, digits and dashes. What is longer than may be ends in six digits of its hash, so that names stay
/// distinct.
pub fn label_of(name: &str) -> String {
    let mut out = String::new();
    for c in name.to_ascii_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    let out = out.trim_matches('-');
    let out = match out.chars().next() {
        Some('a'..='z') => out.to_owned(),
        Some(_) => format!("llm-{out}"),
        None => "llm".to_owned(),
    };
    if out.len() <= LABEL_CHARS {
        return out;
    }
    // FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let start = out[..LABEL_CHARS - 7].trim_end_matches('-');
    format!("{start}-{:06x}", hash & 0xff_ffff)
}

/// Devices of a replica.
pub fn ranks(s: &Scenario) -> u32 {
    s.layout
        .tp
        .saturating_mul(s.layout.pp)
        .saturating_mul(s.layout.dp)
}

/// Devices of a node: the instance type's, or the machine's.
pub fn devices_of_node(s: &Scenario) -> u32 {
    let Some(h) = &s.hardware else { return 1 };
    match &h.machine {
        Some(machine) => machine.count.max(1),
        None => Catalog::builtin()
            .instance(&h.instance)
            .map_or(1, |i| i.devices.max(1)),
    }
}

/// The accelerator's name in the catalog.
pub fn accelerator(s: &Scenario) -> String {
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
pub fn yaml(text: &str) -> String {
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

/// Writes the words of a command behind `text`, each option on a line of its own.
pub fn continued(text: &mut String, words: &[String]) {
    for word in words {
        // Sizes of a list stand behind their option.
        let next = if word.starts_with('-') {
            " \\\n  "
        } else {
            " "
        };
        text.push_str(next);
        text.push_str(&quoted(word));
    }
}

/// The options that vLLM and SGLang have in common for the format of the weights; `int8` is what eight-bit integers are called, where there is a name.
pub fn weights(m: &ModelChoice, int8: Option<&str>, words: &mut Vec<String>, out: &mut Exported) {
    let native = match &m.source {
        ModelSource::Catalog(name) => Catalog::builtin().model(name).ok().map(|a| a.native_dtype),
        ModelSource::Config(_) => None,
    };
    let name = match m.weights {
        None => return,
        Some(Dtype::Fp32) => return words.push("--dtype=float32".to_owned()),
        Some(Dtype::Fp8) => Some("fp8"),
        Some(Dtype::Int4) => Some("awq_marlin"),
        Some(Dtype::Mxfp4) => Some("mxfp4"),
        Some(Dtype::Int8) => int8,
        Some(_) => None,
    };
    match name {
        Some(name) => words.push(format!("--quantization={name}")),
        None if native == m.weights => {}
        None => out.cannot("model.weights: the checkpoint says it; name one in that format"),
    }
}
