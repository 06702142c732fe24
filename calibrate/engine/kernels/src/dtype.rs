//! Number formats of weights and KV cache, and conversion between them.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// Number format of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDtype {
    /// IEEE single.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half.
    F16,
}

impl WeightDtype {
    /// Size of a value [bytes].
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            WeightDtype::F32 => 4,
            WeightDtype::Bf16 | WeightDtype::F16 => 2,
        }
    }

    /// Name as on the command line: f32, bf16, f16.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WeightDtype::F32 => "f32",
            WeightDtype::Bf16 => "bf16",
            WeightDtype::F16 => "f16",
        }
    }
}

impl std::fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for WeightDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<WeightDtype, String> {
        match text {
            "f32" | "float32" => Ok(WeightDtype::F32),
            "bf16" | "bfloat16" => Ok(WeightDtype::Bf16),
            "f16" | "float16" | "half" => Ok(WeightDtype::F16),
            _ => Err(format!("`{text}` is not one of f32, bf16, f16")),
        }
    }
}

/// Values in one of the formats.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Singles.
    F32(Vec<f32>),
    /// Bits of bf16.
    Bf16(Vec<u16>),
    /// Bits of f16.
    F16(Vec<u16>),
}

impl Values {
    /// Converts to singles in `out`, from the value at `start` on; exact.
    pub fn read(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Values::F32(v) => out.copy_from_slice(&v[range]),
            Values::Bf16(v) => v[range]
                .reinterpret_cast::<bf16>()
                .convert_to_f32_slice(out),
            Values::F16(v) => v[range].reinterpret_cast::<f16>().convert_to_f32_slice(out),
        }
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Values::F32(v) => v.len(),
            Values::Bf16(v) | Values::F16(v) => v.len(),
        }
    }

    /// Their format.
    #[must_use]
    pub fn dtype(&self) -> WeightDtype {
        match self {
            Values::F32(_) => WeightDtype::F32,
            Values::Bf16(_) => WeightDtype::Bf16,
            Values::F16(_) => WeightDtype::F16,
        }
    }
}

/// Converts little-endian stored values to singles; exact.
#[must_use]
pub fn to_f32(dtype: WeightDtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        WeightDtype::F32 => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect(),
        WeightDtype::Bf16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| bf16::from_le_bytes(*b).to_f32())
            .collect(),
        WeightDtype::F16 => {
            let bits: Vec<u16> = bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| u16::from_le_bytes(*b))
                .collect();
            let mut out = vec![0.0; bits.len()];
            bits.reinterpret_cast::<f16>()
                .convert_to_f32_slice(&mut out);
            out
        }
    }
}

/// Appends stored values to `out`, rounding to nearest even where its format is narrower.
pub fn append(out: &mut Values, dtype: WeightDtype, bytes: &[u8]) {
    let bits = |out: &mut Vec<u16>| {
        out.extend(
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| u16::from_le_bytes(*b)),
        );
    };
    match (out, dtype) {
        (Values::Bf16(out), WeightDtype::Bf16) | (Values::F16(out), WeightDtype::F16) => bits(out),
        (Values::F32(out), _) => out.append(&mut to_f32(dtype, bytes)),
        (Values::Bf16(out), _) => {
            let values = to_f32(dtype, bytes);
            out.extend(values.iter().map(|x| bf16::from_f32(*x).to_bits()));
        }
        (Values::F16(out), _) => {
            let values = to_f32(dtype, bytes);
            let start = out.len();
            out.resize(start + values.len(), 0);
            out[start..]
                .reinterpret_cast_mut::<f16>()
                .convert_from_f32_slice(&values);
        }
    }
}

/// No values yet, with room for `capacity`.
#[must_use]
pub fn empty(dtype: WeightDtype, capacity: usize) -> Values {
    match dtype {
        WeightDtype::F32 => Values::F32(Vec::with_capacity(capacity)),
        WeightDtype::Bf16 => Values::Bf16(Vec::with_capacity(capacity)),
        WeightDtype::F16 => Values::F16(Vec::with_capacity(capacity)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_values_survive_a_round_trip_and_singles_round_to_nearest() {
        let singles = [1.0_f32, -2.5, 3.0e-3, 65_000.0, 1.003_906_3];
        let bytes: Vec<u8> = singles.iter().flat_map(|x| x.to_le_bytes()).collect();
        for dtype in [WeightDtype::Bf16, WeightDtype::F16] {
            let mut narrow = empty(dtype, 5);
            append(&mut narrow, WeightDtype::F32, &bytes);
            let mut wide = vec![0.0; 5];
            narrow.read(0, &mut wide);
            for (a, b) in singles.iter().zip(&wide) {
                assert!((a - b).abs() <= a.abs() / 256.0, "{dtype}: {a} became {b}");
            }
            let bits = match &narrow {
                Values::Bf16(v) | Values::F16(v) => v.clone(),
                Values::F32(_) => unreachable!(),
            };
            let stored: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            assert_eq!(to_f32(dtype, &stored), wide);
            let mut again = empty(dtype, 5);
            append(&mut again, dtype, &stored);
            assert_eq!(again, narrow);
        }
    }
}
