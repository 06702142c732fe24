//! The threads of one rank, and buffers that they fill together.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// How many threads a rank's loops run on. Loops of more than one thread must run inside the rank's rayon pool.
#[derive(Clone, Copy, Debug)]
pub struct Threads(pub usize);

impl Threads {
    /// Runs `work(0..tasks)`, in parallel where that pays. Tasks may run in any order.
    pub fn each(self, tasks: usize, work: impl Fn(usize) + Sync + Send) {
        if self.0 == 1 || tasks < 2 {
            (0..tasks).for_each(work);
        } else {
            (0..tasks).into_par_iter().with_max_len(1).for_each(work);
        }
    }
}

/// A buffer whose parts are written by several threads at once, each its own part.
pub struct Parts<'a> {
    start: *mut f32,
    len: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is to a buffer borrowed mutably for 'a, and `part` requires that no two parts overlap.
#[allow(unsafe_code)]
unsafe impl Sync for Parts<'_> {}

impl<'a> Parts<'a> {
    /// Shares a buffer out.
    pub fn new(buffer: &'a mut [f32]) -> Parts<'a> {
        Parts {
            start: buffer.as_mut_ptr(),
            len: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// The values in `range`.
    ///
    /// # Safety
    /// No two parts that exist at the same time may overlap.
    ///
    /// # Panics
    /// The range does not lie in the buffer.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range was checked, the buffer is borrowed for 'a, and the caller keeps parts apart.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start)
        }
    }
}
