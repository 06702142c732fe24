//! Tables that are filled on first use.

use std::sync::OnceLock;

use super::device::Device;

/// Entries of a table that are made together, as room for them.
const CHUNK: usize = 512;

/// A table that is filled on first use, entry by entry: a run asks for few of the sizes that a step could have.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) last: u32,
    pub(super) chunks: Vec<OnceLock<Box<[OnceLock<Device>]>>>,
}

impl Table {
    /// An empty table with entries for 0 to `last`, which is at least 1.
    pub(super) fn up_to(last: u32) -> Table {
        Table {
            last,
            chunks: vec![OnceLock::new(); last as usize / CHUNK + 1],
        }
    }

    /// Entry `n`, which is `make(n)`; beyond the table, in proportion to its last entry.
    #[inline]
    pub(super) fn get(&self, n: u32, make: impl Fn(u32) -> Device) -> Device {
        if n > self.last {
            let mut d = Device::default();
            let factor = f64::from(n) / f64::from(self.last);
            d.add_scaled(&self.get(self.last, make), factor);
            return d;
        }
        let chunk = self.chunks[n as usize / CHUNK]
            .get_or_init(|| vec![OnceLock::new(); CHUNK].into_boxed_slice());
        *chunk[n as usize % CHUNK].get_or_init(|| make(n))
    }
}
