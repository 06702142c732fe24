//! NumPy's array files (.npy, version 1.0), as far as records need them: one dimension, little-endian numbers.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use std::io::{self, Read, Write};

use crate::StoreError;

const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";

/// Longest header that is read [bytes]; ours have 118.
const MAX_HEADER: usize = 1024;

/// A column of numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    F32(Vec<f32>),
}

impl Values {
    pub fn len(&self) -> usize {
        match self {
            Values::U8(v) => v.len(),
            Values::U16(v) => v.len(),
            Values::U32(v) => v.len(),
            Values::U64(v) => v.len(),
            Values::F32(v) => v.len(),
        }
    }

    fn descr(&self) -> &'static str {
        match self {
            Values::U8(_) => "|u1",
            Values::U16(_) => "<u2",
            Values::U32(_) => "<u4",
            Values::U64(_) => "<u8",
            Values::F32(_) => "<f4",
        }
    }

    /// Writes them as an array file.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut header = format!(
            "{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
            self.descr(),
            self.len()
        );
        // The data begins at a multiple of 64 bytes.
        let unpadded = MAGIC.len() + 2 + header.len() + 1;
        header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
        header.push('\n');
        out.write_all(MAGIC)?;
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        let bytes: Vec<u8> = match self {
            Values::U8(v) => v.clone(),
            Values::U16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::U32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::U64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        out.write_all(&bytes)
    }

    /// Reads an array file of exactly `rows` numbers; nothing is set aside for more.
    pub fn read(input: &mut impl Read, rows: usize, place: &str) -> Result<Values, StoreError> {
        let damaged = |why: &str| StoreError::damaged(place, why);
        let mut start = [0; 10];
        input
            .read_exact(&mut start)
            .map_err(|_| damaged("it is no array"))?;
        if &start[..8] != MAGIC {
            return Err(damaged("it is no array of NumPy's format 1.0"));
        }
        let length = usize::from(u16::from_le_bytes([start[8], start[9]]));
        if length > MAX_HEADER {
            return Err(damaged("its header is too long"));
        }
        let mut header = vec![0; length];
        input
            .read_exact(&mut header)
            .map_err(|_| damaged("its header is cut off"))?;
        let header = String::from_utf8(header).map_err(|_| damaged("its header is no text"))?;
        let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start());
        let descr = after("'descr':")
            .and_then(|t| t.strip_prefix('\''))
            .and_then(|t| t.split_once('\''))
            .map(|(d, _)| d.to_owned())
            .ok_or_else(|| damaged("its header names no type"))?;
        let shape: usize = after("'shape':")
            .and_then(|t| t.strip_prefix('('))
            .and_then(|t| t.split_once(','))
            .and_then(|(n, _)| n.trim().parse().ok())
            .ok_or_else(|| damaged("its header has no length"))?;
        if shape != rows {
            return Err(damaged(&format!("it has {shape} rows, not {rows}")));
        }
        let width = match descr.as_str() {
            "|u1" => 1,
            "<u2" => 2,
            "<u4" | "<f4" => 4,
            "<u8" => 8,
            other => return Err(damaged(&format!("numbers of type `{other}` are not known"))),
        };
        let mut bytes = vec![0; rows * width];
        input
            .read_exact(&mut bytes)
            .map_err(|e| damaged(&format!("its data cannot be read: {e}")))?;
        // Reading to the end checks the checksum; more than the header says is damage too.
        let mut rest = [0; 1];
        match input.read(&mut rest) {
            Ok(0) => {}
            Ok(_) => return Err(damaged("it is longer than it says")),
            Err(e) => return Err(damaged(&format!("its data cannot be read: {e}"))),
        }
        Ok(match descr.as_str() {
            "|u1" => Values::U8(bytes),
            "<u2" => Values::U16(of(&bytes, u16::from_le_bytes)),
            "<u4" => Values::U32(of(&bytes, u32::from_le_bytes)),
            "<f4" => Values::F32(of(&bytes, f32::from_le_bytes)),
            _ => Values::U64(of(&bytes, u64::from_le_bytes)),
        })
    }
}

fn of<const N: usize, T>(bytes: &[u8], make: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| make(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_back_and_lie_at_multiples_of_64() {
        for values in [
            Values::U8(vec![1, 2, 255]),
            Values::U16(vec![1, 65_535]),
            Values::U32(vec![0, u32::MAX, 7]),
            Values::U64(vec![u64::MAX]),
            Values::F32(vec![0.5, -1e30]),
            Values::F32(vec![]),
        ] {
            let mut bytes = Vec::new();
            values.write(&mut bytes).unwrap();
            let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
            assert_eq!((10 + header) % 64, 0);
            let n = values.len();
            let read = Values::read(&mut bytes.as_slice(), n, "x").unwrap();
            assert_eq!(read, values);
            assert!(Values::read(&mut bytes.as_slice(), n + 1, "x").is_err());
            bytes.push(0);
            assert!(Values::read(&mut bytes.as_slice(), n, "x").is_err());
        }
    }
}
