//! The catalog: accelerators, links, instance types and models, looked up by name or alias.
//!
//! The built-in files are embedded in the binary; a folder of a user's own adds to them or overrides
//! entries of the same name. See docs/catalog.md for the file format.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::accelerator::{Accelerator, AcceleratorEntry};
use crate::error::{Error, nearest};
use crate::hf_config;
use crate::instance::{Instance, InstanceEntry};
use crate::link::{Link, LinkEntry};
use crate::model::ModelArch;

/// The embedded files, as (name, text).
const BUILTIN: &[(&str, &str)] = &[
    (
        "accelerators.toml",
        include_str!("../data/accelerators.toml"),
    ),
    ("links.toml", include_str!("../data/links.toml")),
    ("instances.toml", include_str!("../data/instances.toml")),
    (
        "models/bloom.toml",
        include_str!("../data/models/bloom.toml"),
    ),
    (
        "models/deepseek.toml",
        include_str!("../data/models/deepseek.toml"),
    ),
    (
        "models/falcon.toml",
        include_str!("../data/models/falcon.toml"),
    ),
    (
        "models/gemma.toml",
        include_str!("../data/models/gemma.toml"),
    ),
    (
        "models/gpt-neox.toml",
        include_str!("../data/models/gpt-neox.toml"),
    ),
    (
        "models/gpt-oss.toml",
        include_str!("../data/models/gpt-oss.toml"),
    ),
    (
        "models/granite.toml",
        include_str!("../data/models/granite.toml"),
    ),
    (
        "models/llama.toml",
        include_str!("../data/models/llama.toml"),
    ),
    (
        "models/mistral.toml",
        include_str!("../data/models/mistral.toml"),
    ),
    ("models/phi.toml", include_str!("../data/models/phi.toml")),
    ("models/qwen.toml", include_str!("../data/models/qwen.toml")),
];

/// Largest catalog file that is read [bytes].
const MAX_FILE_BYTES: u64 = 16 << 20;

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
    entries: BTreeMap<String, T>,
    /// Lower-case name or alias -> canonical name.
    names: BTreeMap<String, String>,
}

impl<T> Table<T> {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            entries: BTreeMap::new(),
            names: BTreeMap::new(),
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
            self.entries.remove(&old);
            self.names.retain(|_, canonical| *canonical != old);
        }
        for n in std::iter::once(name).chain(aliases.iter().map(String::as_str)) {
            match self.names.insert(n.to_lowercase(), name.to_owned()) {
                Some(other) if other != name => {
                    return Err(format!(
                        "{} `{name}`: `{n}` already means `{other}`",
                        self.kind
                    ));
                }
                _ => {}
            }
        }
        self.entries.insert(name.to_owned(), entry);
        Ok(())
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
}

impl Catalog {
    /// The embedded catalog, parsed once per process.
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
        };
        for (name, text) in BUILTIN {
            catalog.add_toml(&format!("built-in {name}"), text)?;
        }
        catalog.check_references("built-in catalog")?;
        Ok(catalog)
    }

    /// The embedded catalog plus the files of `dir` and of its folder `models`: `*.toml` as described in
    /// docs/catalog.md, and in `models` also `*.json`, Hugging Face configurations named by their file.
    ///
    /// # Errors
    /// Unreadable files, syntax errors and impossible values, with file, line and field; references to names
    /// that do not exist.
    pub fn with_dir(dir: &Path) -> Result<Self, Error> {
        let mut catalog = Self::builtin();
        catalog.add_dir(dir)?;
        Ok(catalog)
    }

    /// Adds the files of a folder; see [`Catalog::with_dir`].
    ///
    /// # Errors
    /// As [`Catalog::with_dir`].
    pub fn add_dir(&mut self, dir: &Path) -> Result<(), Error> {
        let models = dir.join("models");
        let mut files = list(dir)?;
        if models.is_dir() {
            files.extend(list(&models)?);
        }
        for path in files {
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
            let shown = path.display().to_string();
            match extension {
                "toml" => self.add_toml(&shown, &read_text(&path)?)?,
                "json" if path.parent() == Some(models.as_path()) => {
                    let name = path
                        .file_stem()
                        .map_or_else(String::new, |s| s.to_string_lossy().into_owned());
                    self.add_hf_config(&name, &read_text(&path)?, &shown)?;
                }
                _ => {}
            }
        }
        self.check_references(&dir.display().to_string())
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
        let parsed: CatalogFile =
            toml::from_str(text).map_err(|e| at(e.to_string().trim_end().to_owned()))?;
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
            let i = entry.resolve().map_err(&at)?;
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

    /// Every name that an entry refers to must exist.
    fn check_references(&self, file: &str) -> Result<(), Error> {
        let at = |owner: String, e: Error| Error::File {
            file: file.to_owned(),
            message: format!("{owner}: {e}"),
        };
        let wrong = |owner: String, link: &str, place: &str| Error::File {
            file: file.to_owned(),
            message: format!("{owner}: link `{link}` does not run {place}, by its kind"),
        };
        for a in self.accelerators() {
            if let Some(link) = &a.scale_up_link {
                self.link(link)
                    .map_err(|e| at(format!("accelerator `{}`", a.name), e))?;
            }
            if let Some(relative) = &a.same_chip_as {
                self.accelerator(relative)
                    .map_err(|e| at(format!("accelerator `{}`: same_chip_as", a.name), e))?;
            }
        }
        for i in self.instances() {
            let owner = || format!("instance `{}`", i.name);
            self.accelerator(&i.accelerator)
                .map_err(|e| at(owner(), e))?;
            let network = self.link(&i.network_link).map_err(|e| at(owner(), e))?;
            if network.kind.network_class().is_none() {
                return Err(wrong(owner(), &i.network_link, "between nodes"));
            }
            if let Some(name) = &i.intra_link {
                let link = self.link(name).map_err(|e| at(owner(), e))?;
                if link.kind.class().is_none() {
                    return Err(wrong(owner(), name, "inside a node"));
                }
            }
        }
        Ok(())
    }

    /// An accelerator by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn accelerator(&self, name: &str) -> Result<&Accelerator, Error> {
        self.accelerators.get(name)
    }

    /// A link by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn link(&self, name: &str) -> Result<&Link, Error> {
        self.links.get(name)
    }

    /// An instance type by name or alias, ignoring case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn instance(&self, name: &str) -> Result<&Instance, Error> {
        self.instances.get(name)
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
        self.models.get(name)
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

/// Files of a folder in the order of their names.
fn list(dir: &Path) -> Result<Vec<std::path::PathBuf>, Error> {
    let io = |e: std::io::Error| Error::Io {
        path: dir.to_owned(),
        message: e.to_string(),
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_text(path: &Path) -> Result<String, Error> {
    let io = |message: String| Error::Io {
        path: path.to_owned(),
        message,
    };
    let size = fs::metadata(path).map_err(|e| io(e.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(io(format!(
            "{size} bytes are more than a catalog file may have ({MAX_FILE_BYTES})"
        )));
    }
    fs::read_to_string(path).map_err(|e| io(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::layout::Layout;

    fn error(text: &str) -> String {
        Catalog::builtin()
            .add_toml("my.toml", text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn computed_parameters_are_within_one_percent_of_the_published_ones() {
        for m in Catalog::builtin().models() {
            let published = m
                .published_parameters
                .expect("every built-in model states its size");
            let ratio = m.arch.parameters() as f64 / published;
            assert!((ratio - 1.0).abs() < 0.01, "{}: {ratio}", m.arch.name);
            if let Some(active) = m.published_active_parameters {
                let ratio = m.arch.active_parameters() as f64 / active;
                assert!(
                    (ratio - 1.0).abs() < 0.01,
                    "{} active: {ratio}",
                    m.arch.name
                );
            } else {
                assert!(m.arch.moe.is_none(), "{} has no active count", m.arch.name);
            }
        }
    }

    #[test]
    fn parameters_are_those_of_the_model_cards() {
        // Counts that do not come from the catalog files: model cards and papers.
        let catalog = Catalog::builtin();
        for (name, total, active) in [
            ("llama-2-7b", 6.738e9, 6.738e9),
            ("llama-2-70b", 68.98e9, 68.98e9),
            ("llama-3.1-405b", 405.9e9, 405.9e9),
            ("mixtral-8x7b", 46.7e9, 12.9e9),
            ("falcon-40b", 41.3e9, 41.3e9),
            ("qwen3-32b", 32.8e9, 32.8e9),
            ("qwen3-235b-a22b", 235e9, 22.2e9),
            ("deepseek-v3", 671e9, 37.6e9),
            ("bloom-176b", 176.25e9, 176.25e9),
        ] {
            let m = catalog.model(name).unwrap();
            let (p, a) = (m.parameters() as f64, m.active_parameters() as f64);
            assert!((p / total - 1.0).abs() < 0.01, "{name}: {p}");
            assert!((a / active - 1.0).abs() < 0.01, "{name}: {a} active");
        }
        // The card of gpt-oss leaves the embedding out of its 5.13e9 active parameters.
        let oss = catalog.model("gpt-oss-120b").unwrap();
        let active = (oss.active_parameters() - oss.embedding_parameters()) as f64;
        assert!((active / 5.13e9 - 1.0).abs() < 0.01, "{active}");
    }

    #[test]
    fn kv_bytes_per_token_follow_the_attention_kind() {
        let catalog = Catalog::builtin();
        let kv = |name: &str| catalog.model(name).unwrap().kv_bytes_per_token(Dtype::Bf16);
        assert_eq!(kv("llama-2-7b"), 524_288.0);
        assert_eq!(kv("llama-3.1-8b"), 131_072.0);
        assert_eq!(kv("falcon-7b"), 8_192.0);
        assert_eq!(kv("deepseek-v3"), 61.0 * 576.0 * 2.0);
        let deepseek = catalog.model("deepseek-v3").unwrap();
        assert_eq!(deepseek.kv_bytes_per_token_layer(Dtype::Fp8, 8), 656.0);
        assert_eq!(
            deepseek.kv_bytes_per_token_layer(Dtype::Bf16, 8),
            deepseek.kv_bytes_per_token_layer(Dtype::Bf16, 1),
            "the latent is on every rank"
        );
        let llama = catalog.model("llama-3.1-8b").unwrap();
        assert_eq!(llama.kv_bytes_per_token_layer(Dtype::Bf16, 8), 512.0);
        assert_eq!(
            llama.kv_bytes_per_token_layer(Dtype::Bf16, 16),
            512.0,
            "one head per rank is the least"
        );
        let mistral = catalog.model("mistral-7b-v0.1").unwrap();
        assert_eq!(
            mistral.kv_bytes_for_context(16_384, Dtype::Bf16),
            mistral.kv_bytes_for_context(4_096, Dtype::Bf16)
        );
        let oss = catalog.model("gpt-oss-120b").unwrap();
        let (long, all) = (100_000_u64, oss.kv_bytes_per_token(Dtype::Bf16));
        let share = oss.kv_bytes_for_context(long, Dtype::Bf16) / (all * long as f64);
        assert!(
            (share - 0.5).abs() < 0.01,
            "half of the layers see a window: {share}"
        );
    }

    #[test]
    fn weight_bytes_keep_embedding_and_head_in_16_bits() {
        let catalog = Catalog::builtin();
        let m = catalog.model("llama-3.1-70b").unwrap();
        let tables = 2.0 * m.embedding_parameters() as f64;
        let rest = m.parameters() as f64 - tables;
        let fp8 = m.weight_bytes(Dtype::Fp8);
        assert!((fp8 / (rest + 2.0 * tables) - 1.0).abs() < 1e-3);
        assert_eq!(m.weight_bytes(Dtype::Bf16), 2.0 * m.parameters() as f64);
        // Ranks of a layout together hold the model once, but for what is replicated.
        let layout = Layout {
            tp: 4,
            pp: 2,
            dp: 1,
            ep: 1,
        };
        let sum = 4.0
            * (m.stage_weight_bytes(layout, 0..40, Dtype::Bf16)
                + m.stage_weight_bytes(layout, 40..80, Dtype::Bf16));
        let ratio = sum / m.weight_bytes(Dtype::Bf16);
        assert!((1.0..1.001).contains(&ratio), "{ratio}");
    }

    #[test]
    fn moe_layers_are_where_the_configuration_says() {
        let catalog = Catalog::builtin();
        let v3 = catalog.model("deepseek-v3").unwrap();
        assert_eq!(v3.moe_layers_in(0..61), 58);
        assert!(!v3.is_moe_layer(2) && v3.is_moe_layer(3));
        let maverick = catalog.model("llama-4-maverick").unwrap();
        assert_eq!(maverick.moe_layers_in(0..48), 24);
        let dense = catalog.model("llama-2-7b").unwrap();
        assert_eq!(dense.moe_layers_in(0..32), 0);
    }

    #[test]
    fn names_and_aliases_are_found_whatever_their_case() {
        let c = Catalog::builtin();
        assert_eq!(c.accelerator("H100").unwrap().name, "H100-SXM5-80GB");
        assert_eq!(c.instance("ml.G5.2xlarge").unwrap().name, "g5.2xlarge");
        assert_eq!(
            c.model("meta-llama/llama-2-7b-HF").unwrap().name,
            "llama-2-7b"
        );
        assert_eq!(c.model("llama-3.3-70b").unwrap().name, "llama-3.1-70b");
        assert_eq!(c.link("nvlink4").unwrap().bandwidth, 450e9);
    }

    #[test]
    fn unknown_names_get_the_nearest_and_the_command_that_lists_them() {
        let e = Catalog::builtin()
            .model("lama-2-7b")
            .unwrap_err()
            .to_string();
        assert!(e.contains("did you mean `llama-2-7b`"), "{e}");
        assert!(e.contains("servetwin catalog list"), "{e}");
        let e = Catalog::builtin()
            .instance("zzzzqqqq")
            .unwrap_err()
            .to_string();
        assert!(!e.contains("did you mean"), "{e}");
    }

    #[test]
    fn every_figure_has_a_source_and_instances_name_existing_parts() {
        let c = Catalog::builtin();
        assert!(c.accelerators().all(|a| !a.source.is_empty()));
        assert!(c.links().all(|l| !l.source.is_empty()));
        assert!(c.models().all(|m| m.source.starts_with("https://")));
        for i in c.instances() {
            assert!(!i.source.is_empty(), "{}", i.name);
            let a = c.accelerator(&i.accelerator).unwrap();
            assert!(i.ranks(a) >= i.devices);
        }
        let inf2 = c.instance("inf2.48xlarge").unwrap();
        assert_eq!(inf2.ranks(c.accelerator("inferentia2").unwrap()), 24);
    }

    #[test]
    fn prices_carry_their_date() {
        let c = Catalog::builtin();
        let p4d = c.instance("p4d.24xlarge").unwrap();
        assert_eq!(p4d.price().unwrap().usd.usd_per_hour(), 21.957642);
        assert_eq!(
            p4d.price_on("2024-06-01").unwrap().usd.usd_per_hour(),
            32.7726
        );
        assert_eq!(p4d.price_on("2020-01-01"), None);
        assert_eq!(c.instance("p5e.48xlarge").unwrap().price(), None);
    }

    #[test]
    fn a_user_folder_extends_and_overrides() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("mine.toml"),
            r#"
            [[accelerator]]
            name = "h100-sxm5-80gb"
            aliases = ["h100"]
            vendor = "NVIDIA"
            memory = "80 GiB"
            memory_bandwidth = "3 TB/s"
            bf16 = "900 TFLOP/s"
            units = 132
            on_chip = "50 MiB"
            host_bandwidth = "64 GB/s"
            source = "measured here"
            "#,
        )
        .unwrap();
        fs::create_dir(dir.path().join("models")).unwrap();
        fs::write(
            dir.path().join("models/tiny.json"),
            r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
                "intermediate_size":128,"vocab_size":1000,"max_position_embeddings":512}"#,
        )
        .unwrap();
        let c = Catalog::with_dir(dir.path()).unwrap();
        assert_eq!(c.accelerator("h100").unwrap().memory_bandwidth, 3e12);
        let count = c
            .accelerators()
            .filter(|a| a.name.to_lowercase().starts_with("h100-sxm"))
            .count();
        assert_eq!(count, 1);
        assert_eq!(c.model("tiny").unwrap().layers, 2);
        assert!(c.model("llama-2-7b").is_ok());
        assert!(c.instance("p5.48xlarge").is_ok());
    }

    #[test]
    fn every_embedded_file_of_the_data_folder_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
        let mut files: Vec<String> = list(&folder)
            .unwrap()
            .into_iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        for p in list(&folder.join("models")).unwrap() {
            files.push(format!(
                "models/{}",
                p.file_name().unwrap().to_string_lossy()
            ));
        }
        for f in files.iter().filter(|f| f.ends_with(".toml")) {
            assert!(
                BUILTIN.iter().any(|(name, _)| name == f),
                "{f} is not embedded"
            );
        }
    }

    #[test]
    fn errors_in_user_files_name_file_line_and_field() {
        let e = error("[[link]]\nname = \"x\"\nkind = \"nvlink4\"\nbandwidth = 3\n");
        assert!(
            e.contains("my.toml") && e.contains("line 4") && e.contains("GB/s"),
            "{e}"
        );
        let e = error("[[link]]\nname = \"x\"\nbandwith = \"3 GB/s\"\n");
        assert!(
            e.contains("line 3") && e.contains("bandwith") && e.contains("`bandwidth`"),
            "{e}"
        );
        let e = error("[[model]]\nname = \"m\"\nsource = \"me\"\nconfig = { hidden_size = 1 }\n");
        assert!(
            e.contains("my.toml") && e.contains("num_hidden_layers"),
            "{e}"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("i.toml");
        fs::write(
            &file,
            "[[instance]]\nname = \"n\"\naccelerator = \"h1000\"\ndevices = 1\nnetwork_link = \"ena\"\n\
             network = \"1 Gb/s\"\nvcpus = 1\nram = \"1 GiB\"\nsource = \"me\"\n",
        )
        .unwrap();
        let e = Catalog::with_dir(dir.path()).unwrap_err().to_string();
        assert!(e.contains("instance `n`") && e.contains("h1000"), "{e}");
        fs::write(
            &file,
            "[[accelerator]]\nname = \"a\"\nvendor = \"v\"\nsame_chip_as = \"h1000\"\nmemory = \"80 GiB\"\n\
             memory_bandwidth = \"3 TB/s\"\nbf16 = \"900 TFLOP/s\"\nunits = 132\non_chip = \"50 MiB\"\n\
             host_bandwidth = \"64 GB/s\"\nsource = \"me\"\n",
        )
        .unwrap();
        let e = Catalog::with_dir(dir.path()).unwrap_err().to_string();
        assert!(e.contains("same_chip_as") && e.contains("h1000"), "{e}");
        assert!(Catalog::with_dir(&dir.path().join("absent")).is_err());
        fs::write(&file, b"\xff\xfe").unwrap();
        let e = Catalog::with_dir(dir.path()).unwrap_err().to_string();
        assert!(e.contains("i.toml"), "{e}");
    }
}
