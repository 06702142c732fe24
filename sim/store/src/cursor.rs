//! Numbers and stretches read from bytes in memory.

use crate::StoreError;

/// What is wrong with bytes that are no record of ours.
pub(crate) fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::damaged("a record in memory", what)
}

/// The first `n` bytes of `rest`, which then begins after them.
pub(crate) fn cut<'a>(rest: &mut &'a [u8], n: u64) -> Result<&'a [u8], StoreError> {
    let split = usize::try_from(n)
        .ok()
        .and_then(|n| rest.split_at_checked(n));
    let (first, after) = split.ok_or_else(|| damaged("it is cut off"))?;
    *rest = after;
    Ok(first)
}

/// The next `N` numbers.
pub(crate) fn words<const N: usize>(rest: &mut &[u8]) -> Result<[u64; N], StoreError> {
    let mut numbers = [0; N];
    for (number, bytes) in numbers
        .iter_mut()
        .zip(cut(rest, 8 * N as u64)?.as_chunks().0)
    {
        *number = u64::from_le_bytes(*bytes);
    }
    Ok(numbers)
}

/// What is wrong with a table.
pub(crate) fn wrong() -> StoreError {
    damaged("its tables do not fit together")
}
