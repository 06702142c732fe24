//! Weights from storage to the accelerators, alone and beside others.
//!
//! Fitted: one stream on EBS gp3 (safetensors, streamer); Tensorizer on gp3 with 4 and 8 streams; from S3 the streamer with 4 and 16 streams and
//! Tensorizer with 8 and 64; starts of vLLM 0.5.5 on gp3; of the shared disks, the download that was alone and two image pulls. Only predicted: the rest,
//! io2 whole among it.

use hwmodels::catalog::Catalog;
use hwmodels::instance::Instance;
use hwmodels::startup::defaults::Defaults;
use hwmodels::startup::share::FairShare;
use hwmodels::startup::weights::{LoadPath, NodeRead};
use serde::Deserialize;

use super::super::case::Source;
use super::super::error::SetError;
use super::super::row::Row;
use super::row::row;

/// Name of the set.
pub const SET: &str = "weights_load";
/// Its file.
pub const FILE: &str = "weights_load_times.csv";
/// Where rows of shared loads are.
pub const SHARED_FILE: &str = "cluster/node_and_pod.csv";

/// One load.
#[derive(Clone, Debug, Deserialize)]
pub struct Load {
    weights_gb: f64,
    hardware: String,
    storage: String,
    loader: String,
    /// Reads at a time.
    pub loader_concurrency: Option<u32>,
    metric: String,
    /// What it took [s].
    pub seconds: f64,
}

impl Load {
    /// Name of the storage in `startup.toml`.
    pub fn storage(&self) -> Option<&'static str> {
        [
            ("gp3", "ebs_gp3"),
            ("io2", "ebs_io2"),
            ("S3", "s3"),
            ("EFS", "efs"),
            ("FSx", "fsx_lustre"),
            ("NVMe", "nvme"),
            ("page cache", "page_cache"),
        ]
        .into_iter()
        .find(|(part, _)| self.storage.contains(part))
        .map(|(_, name)| name)
    }

    /// Name of the loader in `startup.toml`.
    pub fn loader(&self) -> &str {
        match self.loader.split_whitespace().next() {
            Some(name) => name,
            None => &self.loader,
        }
    }

    /// What the volume gives, as its description says [bytes/s].
    fn capacity(&self) -> Option<f64> {
        let (before, _) = self.storage.split_once(" MiB/s")?;
        let number = before.rsplit(' ').next()?;
        Some(number.parse::<f64>().ok()? * f64::from(1 << 20))
    }

    /// Whether it is a whole start and not only the load.
    pub fn is_start(&self) -> bool {
        self.metric.contains("start to ready")
    }

    /// Whether figures were fitted on it.
    pub fn fitted(&self) -> bool {
        let (storage, n) = (self.storage().unwrap_or(""), self.loader_concurrency);
        if self.is_start() {
            return storage == "ebs_gp3";
        }
        match (self.loader(), storage) {
            ("safetensors" | "runai-streamer", "ebs_gp3") => n == Some(1),
            ("tensorizer", "ebs_gp3") => matches!(n, Some(4 | 8)),
            ("runai-streamer", "s3") => matches!(n, Some(4 | 16)),
            ("tensorizer", "s3") => matches!(n, Some(8 | 64)),
            _ => false,
        }
    }

    /// Bytes read.
    pub fn bytes(&self) -> f64 {
        self.weights_gb * 1e9
    }

    /// The way of its weights.
    pub fn path(&self, defaults: &Defaults) -> Result<LoadPath, String> {
        let catalog = Catalog::builtin();
        let words = self.hardware.split([' ', ',']);
        let instance = words
            .filter_map(|w| catalog.instance(w).ok())
            .next()
            .ok_or_else(|| format!("no instance type in `{}`", self.hardware))?;
        let storage = self
            .storage()
            .ok_or_else(|| format!("no known storage in `{}`", self.storage))?;
        let read = NodeRead {
            bytes: self.bytes(),
            ranks: 1,
            storage,
            loader: self.loader(),
            // Single reads of safetensors are the loader's own.
            streams: self.loader_concurrency,
            capacity: self.capacity(),
        };
        way(defaults, instance, &read)
    }
}

fn way(defaults: &Defaults, instance: &Instance, read: &NodeRead<'_>) -> Result<LoadPath, String> {
    let told = |e: hwmodels::startup::StartupError| e.to_string();
    let platform = defaults.platform(&instance.name).map_err(told)?;
    let host = defaults.host_of(&instance.accelerator).map_err(told)?;
    LoadPath::new(defaults, instance, platform, host, read).map_err(told)
}

/// Reads the file of single loads.
///
/// # Errors
/// It is missing or malformed.
pub fn loads(source: &Source) -> Result<Vec<Load>, SetError> {
    source.read(FILE)
}

/// The rows of the set.
///
/// # Errors
/// A file is malformed.
pub fn rows(source: &Source, defaults: &Defaults) -> Result<Vec<Row>, SetError> {
    let mut out = Vec::new();
    for l in loads(source)? {
        let streams = l
            .loader_concurrency
            .map_or(String::new(), |n| format!(" x{n}"));
        let case = format!(
            "{} {}{streams}",
            l.storage().unwrap_or(&l.storage),
            l.loader()
        );
        let load = l.path(defaults).map(|p| p.alone_s());
        let (metric, predicted) = match l.is_start() {
            true => ("start_to_ready_s", load.map(|s| s + READY_S)),
            false => ("load_s", load),
        };
        out.push(row(SET, &case, metric, l.seconds, predicted, l.fitted()));
    }
    match steps(source) {
        Ok(steps) => out.extend(shared(&steps, defaults)),
        Err(e) if e.missing => {}
        Err(e) => return Err(e),
    }
    Ok(out)
}

/// Start of vLLM 0.5.5 without its weights: the mean over its fitted starts, as `servetwin startup --fit` prints it [s].
pub const READY_S: f64 = 19.46;

/// A step of a node or pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    instance: String,
    step: String,
    seconds: f64,
}

/// Reads the file of nodes and pods.
///
/// # Errors
/// It is missing or malformed.
pub fn steps(source: &Source) -> Result<Vec<Step>, SetError> {
    source.read(SHARED_FILE)
}

/// Starts on SageMaker: an image that is pulled while the model is downloaded to the same disk.
pub struct Pull {
    /// Node type.
    pub instance: &'static str,
    /// Image, compressed [1e9 bytes].
    pub image_gb: f64,
    /// Model [1e9 bytes].
    pub model_gb: f64,
}

/// Of the same post: sizes as its text gives them; Qwen3-8B in 16 bits.
pub const PULLS: [Pull; 4] = [
    Pull {
        instance: "ml.g6.2xlarge",
        image_gb: 17.7,
        model_gb: 16.38,
    },
    Pull {
        instance: "ml.g4dn.xlarge",
        image_gb: 15.7,
        model_gb: 0.0,
    },
    Pull {
        instance: "ml.g5.2xlarge",
        image_gb: 17.5,
        model_gb: 5.8,
    },
    Pull {
        instance: "ml.g5.xlarge",
        image_gb: 10.6,
        model_gb: 6.5,
    },
];

impl Pull {
    /// Ends of the download and of the pull that begin at once [s], with a disk and a pull of these rates [bytes/s].
    pub fn ends(&self, disk: f64, pull: f64, unpack_ratio: f64) -> (f64, f64) {
        let mut links = FairShare::new([disk]);
        let model = links.join(0.0, self.model_gb * 1e9, f64::INFINITY, [0]);
        links.join(0.0, self.image_gb * 1e9 * unpack_ratio, pull, [0]);
        let ends = links.drain();
        let of = |is_model: bool| {
            ends.iter()
                .find(|e| (e.0 == model) == is_model)
                .map_or(0.0, |e| e.1)
        };
        (of(true), of(false))
    }

    /// What a cached image saves: both against the download alone [s].
    pub fn saved(&self, disk: f64, pull: f64, unpack_ratio: f64) -> f64 {
        let (model, image) = self.ends(disk, pull, unpack_ratio);
        model.max(image) - self.model_gb * 1e9 / disk
    }
}

/// What a step took [s].
pub fn seconds(steps: &[Step], instance: &str, step: &str) -> Option<f64> {
    steps
        .iter()
        .find(|s| s.instance.contains(instance) && s.step.contains(step))
        .map(|s| s.seconds)
}

/// The rows of loads that share.
fn shared(steps: &[Step], defaults: &Defaults) -> Vec<Row> {
    let mut out = Vec::new();
    let image = &defaults.image;
    let pull_rate = image.pull.rate.bytes_per_sec();
    let mut push = |case: String, metric, measured: Option<f64>, predicted, fitted| {
        out.extend(measured.map(|m| row(SET, &case, metric, m, predicted, fitted)));
    };
    for p in &PULLS {
        let Ok(platform) = defaults.platform(p.instance.trim_start_matches("ml.")) else {
            continue;
        };
        let disk = platform.disk_write.bytes_per_sec();
        let (model, pull) = p.ends(disk, pull_rate, image.unpack_ratio);
        let of = |step| seconds(steps, p.instance, step);
        let case = |what: &str| format!("{} {what}", p.instance);
        let alone = p.model_gb * 1e9 / disk;
        push(
            case("download alone"),
            "shared_s",
            of("model download from S3, image cached"),
            Ok(alone),
            true,
        );
        push(
            case("download during pull"),
            "shared_s",
            of("model download from S3, no cache"),
            Ok(model),
            false,
        );
        push(
            case("pull during download"),
            "shared_s",
            of("image pull, no cache"),
            Ok(pull),
            false,
        );
        if let (Some(without), Some(with)) = (of("P50, no cache"), of("P50, image cached")) {
            let fitted = matches!(p.instance, "ml.g4dn.xlarge" | "ml.g5.xlarge");
            let saved = p.saved(disk, pull_rate, image.unpack_ratio);
            push(
                case("image cached"),
                "shared_s",
                Some(without - with),
                Ok(saved),
                fitted,
            );
        }
    }
    // Eight ranks copy out of one page cache: Llama-70B in FP8.
    let catalog = Catalog::builtin();
    let predicted = catalog
        .instance("p5.48xlarge")
        .map_err(|e| e.to_string())
        .and_then(|i| {
            let read = NodeRead {
                bytes: 70.6e9,
                ranks: 8,
                storage: "page_cache",
                loader: "safetensors",
                streams: None,
                capacity: None,
            };
            way(defaults, i, &read).map(|p| p.alone_s())
        });
    let measured = seconds(steps, "TP8, Llama-70B FP8", "load weights, page cache hot");
    push(
        "Llama-70B FP8 tp8 page cache".to_owned(),
        "shared_s",
        measured,
        predicted,
        false,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_and_a_pull_share_the_disk() {
        let p = Pull {
            instance: "x",
            image_gb: 10.0,
            model_gb: 10.0,
        };
        // Twenty GB unpacked; half the disk each until the model is there at 20 s, then the pull at its own rate.
        assert_eq!(p.ends(1e9, 0.8e9, 2.0), (20.0, 32.5));
        assert_eq!(p.saved(1e9, 0.8e9, 2.0), 22.5);
        let none = Pull { model_gb: 0.0, ..p };
        assert_eq!(none.ends(1e9, 0.8e9, 2.0).1, 25.0);
    }

    #[test]
    fn rows_name_their_storage_loader_and_limit() {
        let load = Load {
            weights_gb: 15.0,
            hardware: "AWS g5.12xlarge, 1 of 4 A10G used".to_owned(),
            storage: "EBS io2 500 GB, 100000 IOPS, up to 4000 MiB/s".to_owned(),
            loader: "runai-streamer 0.6.0".to_owned(),
            loader_concurrency: Some(8),
            metric: "load to GPU".to_owned(),
            seconds: 7.5,
        };
        assert_eq!(
            (load.storage(), load.loader()),
            (Some("ebs_io2"), "runai-streamer")
        );
        assert_eq!(load.capacity(), Some(4000.0 * 1048576.0));
        assert!(!load.fitted());
        let path = load.path(&Defaults::builtin()).unwrap();
        assert_eq!(path.limit, "link to block storage of g5.12xlarge");
        let unknown = Load {
            storage: "a tape".to_owned(),
            ..load
        };
        assert!(
            unknown
                .path(&Defaults::builtin())
                .unwrap_err()
                .contains("a tape")
        );
    }
}
