//! Tensors of a model by name: memory-mapped safetensors files (one, or several with an index), or values in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::error::ModelError;
use kernels::dtype::WeightDtype;

/// One tensor as stored: little-endian values, row by row.
pub struct Stored<'a> {
    /// Type of the values.
    pub dtype: WeightDtype,
    /// Lengths of its dimensions.
    pub shape: Vec<usize>,
    /// The values.
    pub bytes: Cow<'a, [u8]>,
}

/// Where tensors come from.
pub trait TensorSource {
    /// The tensor called `name`.
    ///
    /// # Errors
    /// There is none, or its type is not a floating-point type that the engine reads.
    fn tensor(&self, name: &str) -> Result<Stored<'_>, ModelError>;

    /// Whether there is a tensor called `name`.
    fn has(&self, name: &str) -> bool;
}

struct Place {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// Safetensors files of one model, memory-mapped.
pub struct SafetensorsFiles {
    dir: PathBuf,
    maps: Vec<Mmap>,
    places: BTreeMap<String, Place>,
}

fn weights_error(path: &Path, message: impl ToString) -> ModelError {
    ModelError::Weights {
        path: path.to_owned(),
        message: message.to_string(),
    }
}

/// Maps a file for reading.
#[allow(unsafe_code)]
fn map(path: &Path) -> Result<Mmap, ModelError> {
    let file = File::open(path).map_err(|source| ModelError::Io {
        path: path.to_owned(),
        source,
    })?;
    // SAFETY: the map is private and only read. As with every memory-mapped model loader, a file that another
    // process truncates while it is read ends this one; weights are copied out while loading, so that window is short.
    unsafe { Mmap::map(&file) }.map_err(|source| ModelError::Io {
        path: path.to_owned(),
        source,
    })
}

impl SafetensorsFiles {
    /// Maps `model.safetensors`, or the files that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// Neither is there, or a file is damaged.
    pub fn open(dir: &Path) -> Result<SafetensorsFiles, ModelError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let names = if single.is_file() {
            vec![single]
        } else if index.is_file() {
            shard_names(&index)?
                .into_iter()
                .map(|n| dir.join(n))
                .collect()
        } else {
            return Err(weights_error(
                dir,
                "there is neither model.safetensors nor model.safetensors.index.json",
            ));
        };
        let mut maps = Vec::new();
        let mut places = BTreeMap::new();
        for (file, path) in names.iter().enumerate() {
            let data = map(path)?;
            let tensors = SafeTensors::deserialize(&data)
                .map_err(|e| weights_error(path, format!("no valid safetensors file: {e}")))?;
            let base = data.as_ptr() as usize;
            for (name, view) in tensors.iter() {
                let start = view.data().as_ptr() as usize - base;
                places.insert(
                    name.to_owned(),
                    Place {
                        file,
                        dtype: view.dtype(),
                        shape: view.shape().to_vec(),
                        start,
                        end: start + view.data().len(),
                    },
                );
            }
            maps.push(data);
        }
        Ok(SafetensorsFiles {
            dir: dir.to_owned(),
            maps,
            places,
        })
    }
}

/// File names in the index, each once, in order. Names that lead out of the folder are refused.
fn shard_names(index: &Path) -> Result<Vec<String>, ModelError> {
    let text = std::fs::read_to_string(index).map_err(|source| ModelError::Io {
        path: index.to_owned(),
        source,
    })?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| weights_error(index, e))?;
    let map = value
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .ok_or_else(|| weights_error(index, "`weight_map` is missing"))?;
    let mut names = std::collections::BTreeSet::new();
    for (tensor, file) in map {
        let name = file
            .as_str()
            .filter(|n| !n.is_empty() && !n.contains(['/', '\\']) && *n != "..")
            .ok_or_else(|| {
                weights_error(
                    index,
                    format!(
                        "weight_map.{tensor} must be a file name in the same folder, got {file}"
                    ),
                )
            })?;
        names.insert(name.to_owned());
    }
    Ok(names.into_iter().collect())
}

impl TensorSource for SafetensorsFiles {
    fn tensor(&self, name: &str) -> Result<Stored<'_>, ModelError> {
        let place = self
            .places
            .get(name)
            .ok_or_else(|| weights_error(&self.dir, format!("tensor `{name}` is missing")))?;
        let dtype = match place.dtype {
            Dtype::F32 => WeightDtype::F32,
            Dtype::F16 => WeightDtype::F16,
            Dtype::BF16 => WeightDtype::Bf16,
            other => {
                return Err(weights_error(
                    &self.dir,
                    format!("tensor `{name}` has type {other:?}: F32, F16 and BF16 are read"),
                ));
            }
        };
        Ok(Stored {
            dtype,
            shape: place.shape.clone(),
            bytes: Cow::Borrowed(&self.maps[place.file][place.start..place.end]),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }
}
