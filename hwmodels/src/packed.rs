//! The files of `data/` as the binary carries them: packed by `build.rs`, unpacked when they are asked for.

use std::io::Read as _;

use flate2::read::DeflateDecoder;
use serde::de::DeserializeOwned;

use crate::engine::EngineKind;

include!(concat!(env!("OUT_DIR"), "/packed.rs"));

/// A packed file. What a profile applies to stands beside it; that of other files is empty.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Its path in `data/`.
    pub file: &'static str,
    /// Name of the profile.
    pub name: &'static str,
    /// Accelerators that it holds for (catalog names, separated by commas), or `*`.
    accelerator: &'static str,
    /// Names of the engines whose kernels it is about; none: any.
    engines: &'static [&'static str],
    /// Names of the engines that it has numbers of.
    numbers_of: &'static [&'static str],
    /// Whether it has surfaces.
    pub has_surfaces: bool,
    /// MessagePack, deflated.
    bytes: &'static [u8],
}

/// The file at this path in `data/`.
///
/// # Panics
/// There is none: a mistake of the program, not of its input.
pub(crate) fn find(file: &str) -> &'static Packed {
    let found = FILES.iter().find(|p| p.file == file);
    found.unwrap_or_else(|| panic!("data/{file} is not packed"))
}

impl Packed {
    /// What is in it.
    ///
    /// # Panics
    /// Never in a build whose tests pass: a test unpacks every file.
    pub fn read<T: DeserializeOwned>(&self) -> T {
        let mut bytes = Vec::new();
        let unpacked = DeflateDecoder::new(self.bytes).read_to_end(&mut bytes);
        unpacked.unwrap_or_else(|e| panic!("embedded {}: {e}", self.file));
        rmp_serde::from_slice(&bytes).unwrap_or_else(|e| panic!("embedded {}: {e}", self.file))
    }

    /// Whether the profile says anything about this accelerator and engine.
    pub fn applies(&self, accelerator: &str, engine: EngineKind) -> bool {
        let named = |name: &str| name == "*" || name == accelerator;
        // One with numbers of engines applies only if they are this engine's.
        let about = |engines: &[&str]| engines.is_empty() || engines.contains(&engine.name());
        self.accelerator.split(',').any(|n| named(n.trim()))
            && about(self.engines)
            && about(self.numbers_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_what_the_texts_say() {
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
        let mut texts = 0;
        for packed in FILES {
            let text = std::fs::read_to_string(data.join(packed.file)).unwrap();
            let read: toml::Table = toml::from_str(&text).unwrap();
            assert!(packed.read::<toml::Table>() == read, "{}", packed.file);
            texts += text.len();
        }
        let bytes: usize = FILES.iter().map(|p| p.bytes.len()).sum();
        assert!(2 * bytes < texts, "{bytes} bytes of {texts}");
    }
}
