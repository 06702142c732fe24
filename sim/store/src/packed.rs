//! Rows in as few bits as their numbers take, any of which is read in place.
//!
//! ```text
//!  256 rows at a time     by number: the least, and the bits of what is above it     rows
//!  end 7_003, prompt 500
//!  end 7_010, prompt 500  -->  end: 7_003 and 3 bits; prompt: 500 and none     -->   000 111 ...
//! ```
//!
//! Nothing is rounded: what goes in comes out. A row of requests takes a quarter of its plain size, a step a fifth.

use std::marker::PhantomData;
use std::ops::Range;

use crate::{StoreError, cursor};

/// Rows of a block, which share the least of each number and the bits above it.
const BLOCK: usize = 256;

/// A row that can be told in numbers, which take few bits where they differ little from row to row.
pub trait Packable: Copy {
    /// As many numbers as a row has: an array.
    type Numbers: AsRef<[u64]> + AsMut<[u64]> + Default + Copy;

    /// The row in numbers.
    fn numbers(&self) -> Self::Numbers;

    /// The row of such numbers.
    fn of(numbers: &Self::Numbers) -> Self;
}

impl Packable for u32 {
    type Numbers = [u64; 1];

    fn numbers(&self) -> [u64; 1] {
        [u64::from(*self)]
    }

    fn of(numbers: &[u64; 1]) -> u32 {
        numbers[0] as u32
    }
}

/// Rows, packed.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed<T> {
    rows: usize,
    /// The bits of the rows, block by block; a block begins with a word.
    words: Vec<u64>,
    /// By block: the word that it begins with.
    begins: Vec<u32>,
    /// By block and number: the least.
    least: Vec<u64>,
    /// By block and number: the bit in a row where the number begins; then the bits of a row.
    bits: Vec<u16>,
    of: PhantomData<T>,
}

impl<T> Default for Packed<T> {
    fn default() -> Packed<T> {
        Packed {
            rows: 0,
            words: Vec::new(),
            begins: Vec::new(),
            least: Vec::new(),
            bits: Vec::new(),
            of: PhantomData,
        }
    }
}

/// `n` bits of `words` from bit `at` on.
#[inline]
fn cut(words: &[u64], at: usize, n: u32) -> u64 {
    if n == 0 {
        return 0;
    }
    let (word, shift) = (at / 64, (at % 64) as u32);
    let mut value = words[word] >> shift;
    if shift + n > 64 {
        value |= words[word + 1] << (64 - shift);
    }
    value & (u64::MAX >> (64 - n))
}

impl<T: Packable> Packed<T> {
    /// Rows that there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Memory that it takes [bytes].
    pub fn bytes(&self) -> usize {
        8 * (self.words.capacity() + self.least.capacity())
            + 4 * self.begins.capacity()
            + 2 * self.bits.capacity()
    }

    /// Row `i`.
    ///
    /// # Panics
    /// There is no such row.
    #[inline]
    pub fn row(&self, i: usize) -> T {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let mut numbers = T::Numbers::default();
        let all = numbers.as_mut();
        let n = all.len();
        let block = i / BLOCK;
        let least = &self.least[block * n..][..n];
        let bits = &self.bits[block * (n + 1)..][..n + 1];
        let begin = self.begins[block] as usize * 64 + i % BLOCK * usize::from(bits[n]);
        for c in 0..n {
            let width = u32::from(bits[c + 1] - bits[c]);
            let above = cut(&self.words, begin + usize::from(bits[c]), width);
            all[c] = least[c].wrapping_add(above);
        }
        T::of(&numbers)
    }

    /// Number `c` of row `i` alone.
    ///
    /// # Panics
    /// There is no such row or number.
    #[inline]
    pub fn number(&self, i: usize, c: usize) -> u64 {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let n = T::Numbers::default().as_ref().len();
        let block = i / BLOCK;
        let bits = &self.bits[block * (n + 1)..][..n + 1];
        let begin = self.begins[block] as usize * 64 + i % BLOCK * usize::from(bits[n]);
        let width = u32::from(bits[c + 1] - bits[c]);
        let above = cut(&self.words, begin + usize::from(bits[c]), width);
        self.least[block * n + c].wrapping_add(above)
    }

    /// Appends it to `out` as it lies in memory.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let lengths = [
            self.rows,
            self.words.len(),
            self.begins.len(),
            self.least.len(),
            self.bits.len(),
        ];
        out.reserve(8 * lengths.len() + self.bytes());
        let lengths = lengths.map(|n| n as u64);
        for n in lengths.iter().chain(&self.words).chain(&self.least) {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in &self.begins {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in &self.bits {
            out.extend_from_slice(&n.to_le_bytes());
        }
    }

    /// What [`Packed::put`] wrote, from the start of `rest`.
    pub(crate) fn taken(rest: &mut &[u8]) -> Result<Packed<T>, StoreError> {
        let [rows, words, begins, least, bits] = cursor::words(rest)?;
        let longs = |bytes: &[u8]| -> Vec<u64> {
            let chunks = bytes.as_chunks().0;
            chunks.iter().map(|c| u64::from_le_bytes(*c)).collect()
        };
        let words = longs(cursor::cut(rest, words.saturating_mul(8))?);
        let least = longs(cursor::cut(rest, least.saturating_mul(8))?);
        let begins = cursor::cut(rest, begins.saturating_mul(4))?.as_chunks().0;
        let bits = cursor::cut(rest, bits.saturating_mul(2))?.as_chunks().0;
        let table = Packed {
            rows: usize::try_from(rows).map_err(|_| cursor::wrong())?,
            words,
            begins: begins.iter().map(|c| u32::from_le_bytes(*c)).collect(),
            least,
            bits: bits.iter().map(|c| u16::from_le_bytes(*c)).collect(),
            of: PhantomData,
        };
        table.fits().then_some(table).ok_or_else(cursor::wrong)
    }

    /// Whether every row lies within what is there.
    fn fits(&self) -> bool {
        let n = T::Numbers::default().as_ref().len();
        let blocks = self.rows.div_ceil(BLOCK);
        let lengths = (self.begins.len(), self.least.len(), self.bits.len());
        if lengths != (blocks, blocks * n, blocks * (n + 1)) {
            return false;
        }
        let blocks = self.begins.iter().zip(self.bits.chunks(n + 1));
        blocks.enumerate().all(|(b, (begin, bits))| {
            let rows = BLOCK.min(self.rows - b * BLOCK);
            let words = (rows * usize::from(bits[n])).div_ceil(64);
            bits[0] == 0
                && bits.windows(2).all(|w| w[0] <= w[1] && w[1] - w[0] <= 64)
                && *begin as usize + words <= self.words.len()
        })
    }

    /// Row `i`, where it is there.
    pub fn get(&self, i: usize) -> Option<T> {
        (i < self.rows).then(|| self.row(i))
    }

    /// All rows.
    pub fn all(&self) -> Rows<'_, T> {
        Rows {
            table: self,
            from: 0,
            to: self.rows,
        }
    }

    /// The rows in a range.
    ///
    /// # Panics
    /// It reaches beyond the last row.
    pub fn slice(&self, range: Range<usize>) -> Rows<'_, T> {
        self.all().slice(range)
    }

    /// All rows, one after the other.
    pub fn iter(&self) -> Iter<'_, T> {
        self.all().into_iter()
    }
}

impl<T: Packable> FromIterator<T> for Packed<T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Packed<T> {
        let mut packer = Packer::default();
        for row in rows {
            packer.push(row);
        }
        packer.finish()
    }
}

impl<'a, T: Packable> IntoIterator for &'a Packed<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Packs rows that come one after the other.
pub struct Packer<T: Packable> {
    packed: Packed<T>,
    open: Vec<T::Numbers>,
}

impl<T: Packable> Default for Packer<T> {
    fn default() -> Packer<T> {
        Packer {
            packed: Packed::default(),
            open: Vec::with_capacity(BLOCK),
        }
    }
}

impl<T: Packable> Packer<T> {
    /// For about so many rows. What is known of them is set aside at once: what grows later would lie between what is freed meanwhile, and
    /// keep that from the system.
    pub fn for_rows(rows: usize) -> Packer<T> {
        let mut packer = Packer::default();
        let (blocks, n) = (rows.div_ceil(BLOCK), T::Numbers::default().as_ref().len());
        packer.packed.begins.reserve_exact(blocks);
        packer.packed.least.reserve_exact(blocks * n);
        packer.packed.bits.reserve_exact(blocks * (n + 1));
        packer
    }

    /// Takes in the next row.
    pub fn push(&mut self, row: T) {
        self.open.push(row.numbers());
        if self.open.len() == BLOCK {
            self.close();
        }
    }

    /// All of them.
    pub fn finish(mut self) -> Packed<T> {
        self.close();
        let packed = &mut self.packed;
        packed.words.shrink_to_fit();
        packed.begins.shrink_to_fit();
        packed.least.shrink_to_fit();
        packed.bits.shrink_to_fit();
        self.packed
    }

    fn close(&mut self) {
        let (open, packed) = (&self.open, &mut self.packed);
        let Some(first) = open.first() else {
            return;
        };
        let (mut least, mut most) = (*first, *first);
        for row in open {
            let bounds = least.as_mut().iter_mut().zip(most.as_mut());
            for ((low, high), v) in bounds.zip(row.as_ref()) {
                *low = (*low).min(*v);
                *high = (*high).max(*v);
            }
        }
        packed.begins.push(packed.words.len() as u32);
        let mut bit = 0;
        packed.bits.push(0);
        let first_width = packed.bits.len();
        for (low, high) in least.as_ref().iter().zip(most.as_ref()) {
            bit += 64 - (high - low).leading_zeros() as u16;
            packed.bits.push(bit);
        }
        packed.least.extend_from_slice(least.as_ref());
        let ends = &packed.bits[first_width..];
        let (mut word, mut used) = (0u64, 0u32);
        for row in open {
            let mut from = 0;
            for ((v, low), end) in row.as_ref().iter().zip(least.as_ref()).zip(ends) {
                let width = u32::from(end - from);
                from = *end;
                if width == 0 {
                    continue;
                }
                let above = v - low;
                word |= above << used;
                used += width;
                if used >= 64 {
                    packed.words.push(word);
                    used -= 64;
                    word = if used == 0 {
                        0
                    } else {
                        above >> (width - used)
                    };
                }
            }
        }
        if used > 0 {
            packed.words.push(word);
        }
        packed.rows += open.len();
        self.open.clear();
    }
}

/// Neighbouring rows of a table.
#[derive(Debug)]
pub struct Rows<'a, T> {
    table: &'a Packed<T>,
    from: usize,
    to: usize,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<'a, T: Packable> Rows<'a, T> {
    /// How many they are.
    pub fn len(&self) -> usize {
        self.to - self.from
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.to == self.from
    }

    /// Where the first one is in its table.
    pub fn first_row(&self) -> usize {
        self.from
    }

    /// Row `i` of them, where it is there.
    pub fn get(&self, i: usize) -> Option<T> {
        (i < self.len()).then(|| self.table.row(self.from + i))
    }

    /// Number `c` of row `i` of them alone.
    ///
    /// # Panics
    /// There is no such row or number.
    pub fn number(&self, i: usize, c: usize) -> u64 {
        self.table.number(self.from + i, c)
    }

    /// Those in a range.
    ///
    /// # Panics
    /// It reaches beyond the last one.
    pub fn slice(&self, range: Range<usize>) -> Rows<'a, T> {
        assert!(range.start <= range.end && range.end <= self.len());
        Rows {
            table: self.table,
            from: self.from + range.start,
            to: self.from + range.end,
        }
    }

    /// How many come before the first one of which `before` is not true; it is true of those first, and then of none.
    pub fn partition_point(&self, mut before: impl FnMut(usize) -> bool) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if before(middle) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// One after the other.
    pub fn iter(&self) -> Iter<'a, T> {
        Iter(*self)
    }
}

impl<'a, T: Packable> IntoIterator for Rows<'a, T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        Iter(self)
    }
}

/// Hands out rows one after the other, from either end.
#[derive(Debug)]
pub struct Iter<'a, T>(Rows<'a, T>);

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Iter(self.0)
    }
}

impl<T: Packable> Iterator for Iter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.nth(0)
    }

    #[inline]
    fn nth(&mut self, n: usize) -> Option<T> {
        let Rows { table, from, to } = &mut self.0;
        let at = from.saturating_add(n).min(*to);
        *from = (at + 1).min(*to);
        (at < *to).then(|| table.row(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl<T: Packable> DoubleEndedIterator for Iter<'_, T> {
    fn next_back(&mut self) -> Option<T> {
        let Rows { table, from, to } = &mut self.0;
        (*from < *to).then(|| {
            *to -= 1;
            table.row(*to)
        })
    }
}

impl<T: Packable> ExactSizeIterator for Iter<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A row of numbers that stay, wander and jump.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Three([u64; 3]);

    impl Packable for Three {
        type Numbers = [u64; 3];

        fn numbers(&self) -> [u64; 3] {
            self.0
        }

        fn of(numbers: &[u64; 3]) -> Three {
            Three(*numbers)
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            jumps in proptest::collection::vec(any::<u64>(), 0..700),
            bits in 0u32..64,
        ) {
            let row = |(i, v): (usize, &u64)| Three([7, i as u64 * 3 + (v >> bits), *v]);
            let rows: Vec<Three> = jumps.iter().enumerate().map(row).collect();
            let packed: Packed<Three> = rows.iter().copied().collect();
            prop_assert_eq!(packed.len(), rows.len());
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), rows.clone());
            prop_assert!(packed.iter().rev().eq(rows.iter().rev().copied()));
            for (i, row) in rows.iter().enumerate() {
                prop_assert_eq!(packed.get(i), Some(*row));
                prop_assert_eq!([0, 1, 2].map(|c| packed.number(i, c)), row.0);
            }
            prop_assert_eq!(packed.get(rows.len()), None);
            let mut bytes = Vec::new();
            packed.put(&mut bytes);
            prop_assert_eq!(&Packed::taken(&mut &bytes[..]).unwrap(), &packed);
        }
    }

    #[test]
    fn numbers_take_the_bits_that_they_differ_by() {
        let rows = (0..1_000_000u64).map(|i| Three([500, 3_600_000 * i, i % 8]));
        let packed: Packed<Three> = rows.collect();
        // 30 bits for instants in a second, 3 for eight values, none for what stays.
        let plain = 1_000_000 * (30 + 3) / 8;
        assert!(packed.bytes() < plain + plain / 10, "{}", packed.bytes());
    }

    #[test]
    fn bytes_that_are_wrong_are_refused_and_never_read_beyond() {
        let packed: Packed<Three> = (0..300).map(|i| Three([i, i * i, 7])).collect();
        let mut bytes = Vec::new();
        packed.put(&mut bytes);
        for i in 0..bytes.len() {
            assert!(
                Packed::<Three>::taken(&mut &bytes[..i]).is_err(),
                "cut at {i}"
            );
            let mut other = bytes.clone();
            other[i] ^= 0x81;
            if let Ok(table) = Packed::<Three>::taken(&mut &other[..]) {
                assert_eq!(table.iter().count(), table.len());
            }
        }
    }

    #[test]
    fn parts_of_a_table_are_rows_too() {
        let packed: Packed<u32> = (0..1000).collect();
        let some = packed.slice(250..270);
        assert_eq!((some.len(), some.first_row()), (20, 250));
        assert_eq!(some.get(6), Some(256));
        assert_eq!(some.get(20), None);
        assert_eq!(some.slice(19..20).iter().collect::<Vec<_>>(), [269]);
        assert_eq!(some.iter().step_by(7).collect::<Vec<_>>(), [250, 257, 264]);
        assert_eq!(some.partition_point(|i| some.number(i, 0) < 260), 10);
        assert_eq!(some.iter().len(), 20);
        assert!(Packed::<u32>::default().all().is_empty());
    }
}
