//! The catalog: accelerators, links, instance types and models, looked up by name or alias.
//!
//! The built-in files are embedded in the binary; a folder of a user's own adds to them or overrides
//! entries of the same name. See docs/catalog.md for the file format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::accelerator::{Accelerator, AcceleratorEntry};
use crate::error::{Error, nearest};
use crate::files::Files;
use crate::hf_config;
use crate::instance::{Instance, InstanceEntry};
use crate::link::{Link, LinkEntry};
use crate::mig::Part;
use crate::model::ModelArch;
use crate::ops::collective::HostPath;
use crate::packed;

#[path = "catalog_folder.rs"]
mod folder;

/// The embedded files.
const BUILTIN: [&str; 20] = [
    "accelerators.toml",
    "links.toml",
    "instances.toml",
    "instances-azure.toml",
    "instances-gcp.toml",
    "instances-neoclouds.toml",
    "models/bloom.toml",
    "models/deepseek.toml",
    "models/falcon.toml",
    "models/gemma.toml",
    "models/gpt-neox.toml",
    "models/gpt-oss.toml",
    "models/granite.toml",
    "models/llama.toml",
    "models/mistral.toml",
    "models/moe.toml",
    "models/opt.toml",
    "models/phi.toml",
    "models/qwen.toml",
    "models/states.toml",
];

/// A model with what its maker states about it.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Model {
    /// The architecture.
    pub arch: ModelArch,
    /// Parameters as published, where the entry gives them.
    pub published_parameters: Option<f64>,
    /// Parameters per token as published, embeddings included, where the entry gives them.
    pub published_active_parameters: Option<f64>,
    /// Assumptions made when reading the configuration.
    pub warnings: Vec<String>,
    /// Where the facts come from.
    pub source: String,
}

/// A model as catalog files write it.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelEntry {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    published_parameters: Option<f64>,
    published_active_parameters: Option<f64>,
    /// Parameters outside the decoder that are loaded with it (a vision tower).
    #[serde(default)]
    other_parameters: u64,
    source: String,
    /// The facts of the Hugging Face config.json.
    config: serde_json::Value,
}

/// One catalog file.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct CatalogFile {
    /// Who rents out the file's instance types, e.g. `AWS`.
    provider: Option<String>,
    /// Region that their prices are of, e.g. `us-east-1`.
    region: Option<String>,
    #[serde(default)]
    accelerator: Vec<AcceleratorEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
    #[serde(default)]
    instance: Vec<InstanceEntry>,
    #[serde(default)]
    model: Vec<ModelEntry>,
}

/// The JSON schema of a catalog file, for editors.
pub fn file_schema() -> schemars::Schema {
    schemars::schema_for!(CatalogFile)
}

/// Entries of one kind by canonical name, with every name they answer to.
#[derive(Clone, Debug, PartialEq)]
struct Table<T> {
    kind: &'static str,
    // Shared until a user's files change them: every scenario that is built has a catalog of its own.
    entries: Arc<BTreeMap<String, T>>,
    /// Lower-case name or alias -> canonical name.
    names: Arc<BTreeMap<String, String>>,
}

impl<T: Clone> Table<T> {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            entries: Arc::default(),
            names: Arc::default(),
        }
    }

    /// Adds an entry or replaces the one of the same name.
    fn insert(&mut self, name: &str, aliases: &[String], entry: T) -> Result<(), String> {
        if name.trim().is_empty() {
            return Err(format!("{}: name must not be empty", self.kind));
        }
        if let Some(old) = self.names.get(&name.to_lowercase())
            && !old.eq_ignore_ascii_case(name)
        {
            return Err(format!(
                "{} `{name}`: the name is an alias of `{old}`",
                self.kind
            ));
        }
        // An override may change the spelling and drops the aliases that it does not repeat.
        if let Some(old) = self.names.get(&name.to_lowercase()).cloned() {
            self.remove(&old);
        }
        let names = Arc::make_mut(&mut self.names);
        for n in std::iter::once(name).chain(aliases.iter().map(String::as_str)) {
            match names.insert(n.to_lowercase(), name.to_owned()) {
                Some(other) if other != name => {
                    return Err(format!(
                        "{} `{name}`: `{n}` already means `{other}`",
                        self.kind
                    ));
                }
                _ => {}
            }
        }
        Arc::make_mut(&mut self.entries).insert(name.to_owned(), entry);
        Ok(())
    }

    /// Takes an entry out, with every name it answers to.
    fn remove(&mut self, name: &str) {
        Arc::make_mut(&mut self.entries).remove(name);
        Arc::make_mut(&mut self.names).retain(|_, canonical| canonical != name);
    }

    fn get(&self, name: &str) -> Result<&T, Error> {
        self.names
            .get(&name.trim().to_lowercase())
            .and_then(|canonical| self.entries.get(canonical))
            .ok_or_else(|| Error::Unknown {
                kind: self.kind,
                name: name.chars().take(100).collect(),
                nearest: nearest(name, self.names.keys().map(String::as_str)),
            })
    }
}

/// Everything that is known by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    accelerators: Table<Accelerator>,
    links: Table<Link>,
    instances: Table<Instance>,
    models: Table<Model>,
    left_out: Vec<LeftOut>,
}

/// A file of a user's folder, or an entry in it, that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// The file and what is wrong with it.
    pub error: Error,
    /// Lower-case names that it would have defined.
    names: BTreeSet<String>,
}

impl Catalog {
    /// The embedded catalog, parsed once per process and shared by all that start from it.
    ///
    /// # Panics
    /// Never in a released build: tests read every embedded file.
    pub fn builtin() -> Self {
        static PARSED: OnceLock<Catalog> = OnceLock::new();
        PARSED
            .get_or_init(|| {
                Self::parse_builtin().unwrap_or_else(|e| panic!("embedded catalog: {e}"))
            })
            .clone()
    }

    fn parse_builtin() -> Result<Self, Error> {
        let mut catalog = Self {
            accelerators: Table::new("accelerator"),
            links: Table::new("link"),
            instances: Table::new("instance"),
            models: Table::new("model"),
            left_out: Vec::new(),
        };
        for name in BUILTIN {
            catalog.add(&format!("built-in {name}"), packed::find(name).read())?;
        }
        match catalog.dangling("built-in catalog").pop() {
            Some((_, _, error)) => Err(error),
            None => Ok(catalog),
        }
    }

    /// The embedded catalog plus the files of `dir` and of its folder `models`: `*.toml` as described in
    /// docs/catalog.md, and in `models` also `*.json`, Hugging Face configurations named by their file.
    /// A file that cannot be used is left out, which [`Catalog::left_out`] says; looking up a name that it would have
    /// defined is an error.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn with_dir(files: &dyn Files, dir: &Path) -> Result<Self, Error> {
        let mut catalog = Self::builtin();
        catalog.add_dir(files, dir)?;
        Ok(catalog)
    }

    /// Adds `of` again under `name`, as an accelerator that is known by its data sheet alone: no profile names it, nor is it
    /// said to be the same chip as another.
    ///
    /// # Errors
    /// An unknown accelerator, or a name that is taken.
    pub fn add_unmeasured(&mut self, of: &str, name: &str) -> Result<(), Error> {
        let copy = Accelerator {
            name: name.to_owned(),
            aliases: Vec::new(),
            same_chip_as: None,
            ..self.accelerator(of)?.clone()
        };
        self.accelerators
            .insert(name, &[], copy)
            .map_err(|message| Error::File {
                file: "accelerator".to_owned(),
                message,
            })
    }

    /// Adds a machine of `count` accelerators under `name`: joined by the accelerator's own link, else over PCIe through
    /// the host, which stages by `host_path` where that is known; nothing is known of its processors, its network and its price.
    ///
    /// # Errors
    /// An unknown accelerator.
    pub fn add_machine(
        &mut self,
        name: &str,
        accelerator: &str,
        count: u32,
        host_path: Option<HostPath>,
    ) -> Result<(), Error> {
        let chip = self.accelerator(accelerator)?;
        let host_link = match chip.host_bandwidth {
            b if b > 48e9 => "pcie5-host",
            b if b > 24e9 => "pcie4-host",
            _ => "pcie3-host",
        };
        let link = chip.scale_up_link.as_deref().unwrap_or(host_link);
        let machine = Instance {
            name: name.to_owned(),
            aliases: Vec::new(),
            accelerator: chip.name.clone(),
            devices: count,
            intra_link: (count > 1).then(|| link.to_owned()),
            host_path,
            // Servers hold four devices to a socket.
            sockets: count.div_ceil(4).max(1),
            network_link: "ena".to_owned(),
            network_bandwidth: 0.0,
            efa_devices: 0,
            vcpus: 0,
            ram_bytes: 0,
            cpu_vendor: String::new(),
            ebs_bandwidth: None,
            local_nvme_bytes: None,
            max_pods: None,
            allocatable_cpu_millis: None,
            allocatable_memory_bytes: None,
            topology: format!("{count} x {}", chip.name),
            provider: None,
            region: None,
            prices: Vec::new(),
            source: "a machine of the user's own".to_owned(),
        };
        self.instances
            .insert(name, &[], machine)
            .map_err(|message| Error::File {
                file: "machine".to_owned(),
                message,
            })
    }

    /// Cuts the accelerators of `instance` into parts of the MIG profile `profile`: each counts as a device.
    ///
    /// # Errors
    /// An unknown instance, or a profile that its accelerators do not have.
    pub fn partition(&mut self, instance: &str, profile: &str) -> Result<(), Error> {
        let at = |file: &str| {
            let file = file.to_owned();
            move |message: String| Error::File { file, message }
        };
        let whole = self.instance(instance)?.clone();
        let part = Part::of(self.accelerator(&whole.accelerator)?, profile).map_err(at("mig"))?;
        let cut = Instance {
            accelerator: part.accelerator.name.clone(),
            devices: whole.devices * part.per_device,
            intra_link: None,
            ..whole
        };
        let (name, aliases) = (cut.name.clone(), cut.aliases.clone());
        let chip = part.accelerator.name.clone();
        (self.accelerators.insert(&chip, &[], part.accelerator)).map_err(at("accelerator"))?;
        self.instances
            .insert(&name, &aliases, cut)
            .map_err(at("instance"))
    }

    /// Adds the entries of one TOML text; `file` names it in errors.
    ///
    /// # Errors
    /// Syntax errors and impossible values.
    pub fn add_toml(&mut self, file: &str, text: &str) -> Result<(), Error> {
        let at = |message: String| Error::File {
            file: file.to_owned(),
            message,
        };
        let parsed = toml::from_str(text).map_err(|e| at(e.to_string().trim_end().to_owned()))?;
        self.add(file, parsed)
    }

    /// Adds the entries of a file; `file` names it in errors.
    fn add(&mut self, file: &str, parsed: CatalogFile) -> Result<(), Error> {
        let at = |message: String| Error::File {
            file: file.to_owned(),
            message,
        };
        for entry in parsed.accelerator {
            let a = entry.resolve().map_err(&at)?;
            self.accelerators
                .insert(&a.name.clone(), &a.aliases.clone(), a)
                .map_err(&at)?;
        }
        for entry in parsed.link {
            let l = entry.resolve().map_err(&at)?;
            self.links
                .insert(&l.name.clone(), &l.aliases.clone(), l)
                .map_err(&at)?;
        }
        for entry in parsed.instance {
            let i = entry
                .resolve(parsed.provider.as_deref(), parsed.region.as_deref())
                .map_err(&at)?;
            self.instances
                .insert(&i.name.clone(), &i.aliases.clone(), i)
                .map_err(&at)?;
        }
        for entry in parsed.model {
            let read =
                hf_config::from_value(&entry.name, &entry.config).map_err(|e| at(e.to_string()))?;
            let mut arch = read.arch;
            arch.aliases = entry.aliases.clone();
            arch.other_parameters = entry.other_parameters;
            let model = Model {
                arch,
                published_parameters: entry.published_parameters,
                published_active_parameters: entry.published_active_parameters,
                warnings: read.warnings,
                source: entry.source,
            };
            self.models
                .insert(&entry.name, &entry.aliases, model)
                .map_err(&at)?;
        }
        Ok(())
    }

    /// Adds a model from the text of a Hugging Face `config.json`; `source` says where it is from.
    /// Returns what the reader should know.
    ///
    /// # Errors
    /// As [`hf_config::from_json`], or a name that is already an alias of another model.
    pub fn add_hf_config(
        &mut self,
        name: &str,
        text: &str,
        source: &str,
    ) -> Result<Vec<String>, Error> {
        let read = hf_config::from_json(name, text).map_err(|e| Error::File {
            file: source.to_owned(),
            message: e.to_string(),
        })?;
        let warnings = read.warnings.clone();
        let model = Model {
            arch: read.arch,
            published_parameters: None,
            published_active_parameters: None,
            warnings: read.warnings,
            source: source.to_owned(),
        };
        self.models
            .insert(name, &[], model)
            .map_err(|message| Error::File {
                file: source.to_owned(),
                message,
            })?;
        Ok(warnings)
    }

    /// Entries that refer to what does not exist: kind, name and what is wrong.
    fn dangling(&self, file: &str) -> Vec<(&'static str, String, Error)> {
        let mut out = Vec::new();
        for a in self.accelerators() {
            let parts = [
                (a.scale_up_link.as_ref()).and_then(|l| self.links.get(l).err()),
                (a.same_chip_as.as_ref())
                    .and_then(|r| self.accelerators.get(r).err())
                    .map(|e| Error::File {
                        file: "same_chip_as".to_owned(),
                        message: e.to_string(),
                    }),
            ];
            if let Some(e) = parts.into_iter().flatten().next() {
                let error = Error::File {
                    file: file.to_owned(),
                    message: format!("accelerator `{}`: {e}", a.name),
                };
                out.push(("accelerator", a.name.clone(), error));
            }
        }
        for i in self.instances() {
            if let Err(message) = self.parts_exist(i) {
                let error = Error::File {
                    file: file.to_owned(),
                    message: format!("instance `{}`: {message}", i.name),
                };
                out.push(("instance", i.name.clone(), error));
            }
        }
        out
    }

    /// Whether accelerator and links of an instance exist, and run where it has them.
    fn parts_exist(&self, i: &Instance) -> Result<(), String> {
        let wrong = |link: &str, place: &str| {
            Err(format!("link `{link}` does not run {place}, by its kind"))
        };
        let unknown = |e: Error| e.to_string();
        self.accelerators.get(&i.accelerator).map_err(unknown)?;
        let network = self.links.get(&i.network_link).map_err(unknown)?;
        if network.kind.network_class().is_none() {
            return wrong(&i.network_link, "between nodes");
        }
        if let Some(name) = &i.intra_link {
            let link = self.links.get(name).map_err(unknown)?;
            if link.kind.class().is_none() {
                return wrong(name, "inside a node");
            }
        }
        Ok(())
    }

    /// An accelerator by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn accelerator(&self, name: &str) -> Result<&Accelerator, Error> {
        self.intact(name, self.accelerators.get(name))
    }

    /// A link by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn link(&self, name: &str) -> Result<&Link, Error> {
        self.intact(name, self.links.get(name))
    }

    /// An instance type by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn instance(&self, name: &str) -> Result<&Instance, Error> {
        self.intact(name, self.instances.get(name))
    }

    /// A model's architecture by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn model(&self, name: &str) -> Result<&ModelArch, Error> {
        self.model_entry(name).map(|m| &m.arch)
    }

    /// A model with its published figures, by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn model_entry(&self, name: &str) -> Result<&Model, Error> {
        self.intact(name, self.models.get(name))
    }

    /// All accelerators by name.
    pub fn accelerators(&self) -> impl Iterator<Item = &Accelerator> {
        self.accelerators.entries.values()
    }

    /// All links by name.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.entries.values()
    }

    /// All instance types by name.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.entries.values()
    }

    /// All models by name.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.entries.values()
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
