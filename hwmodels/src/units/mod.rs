//! Values with units, as users write them: `"80 GiB"`, `"250 ms"`, `"2.5 req/s"`, `"600 GB/s"`.
//!
//! Each type is a number in one base unit. It is read from a string with a unit and printed as one
//! that reads back to the same number. A number without its unit is refused with a message that
//! shows a right form; so are NaN, infinite and negative values and what does not fit. Prefixes are
//! decimal (k, M, G, T) or binary (Ki, Mi, Gi, Ti); `b` is a bit and `B` a byte.
//!
//! ```
//! use hwmodels::units::{ByteSize, Secs};
//! assert_eq!("80 GiB".parse::<ByteSize>().unwrap().bytes(), 80 << 30);
//! assert_eq!("250 ms".parse::<Secs>().unwrap().secs(), 0.25);
//! assert!("250".parse::<Secs>().is_err());
//! ```

mod quantities;
#[cfg(test)]
mod tests;
mod text;

pub use quantities::{ByteSize, BytesPerSec, FlopsPerSec, PerSec, Ratio, Secs, Usd, UsdPerHour};
pub use text::{UnitError, plain, significant};
