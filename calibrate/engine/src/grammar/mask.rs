//! Tokens that may come next: the vocabulary walked through a grammar, tokens with the same beginning together.

/// The bytes so far can be read in more ways than a [`Matcher`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooAmbiguous;

/// A vocabulary in the order of its tokens' bytes.
#[derive(Debug)]
pub struct Vocabulary {
    /// Tokens that stand for text.
    order: Vec<u32>,
    /// Bytes that each of them has in common with the one before [bytes].
    shared: Vec<u32>,
    bytes: Vec<Box<[u8]>>,
    size: usize,
}

/// A set of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    words: Vec<u64>,
    /// Whether the output may end here.
    pub complete: bool,
    /// Whether any token may come next.
    pub any: bool,
}

impl Mask {
    /// Whether token `id` may come next.
    pub fn has(&self, id: u32) -> bool {
        self.words
            .get(id as usize / 64)
            .is_some_and(|w| w >> (id % 64) & 1 == 1)
    }
}

impl Vocabulary {
    /// A vocabulary of `size` tokens, of which `texts` says the ids that stand for text, and their bytes.
    pub fn new<'a>(size: usize, texts: impl Iterator<Item = (u32, &'a [u8])>) -> Vocabulary {
        let mut texts: Vec<(u32, &[u8])> = texts.collect();
        texts.sort_by(|a, b| a.1.cmp(b.1));
        let order = texts.iter().map(|&(id, _)| id).collect();
        let bytes: Vec<Box<[u8]>> = texts.iter().map(|&(_, text)| text.into()).collect();
        let common = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let shared = (0..bytes.len())
            .map(|i| i.checked_sub(1).map_or(0, |p| common(&bytes[p], &bytes[i])) as u32)
            .collect();
        Vocabulary {
            order,
            shared,
            bytes,
            size,
        }
    }

    /// The tokens whose bytes `step` takes from state `from` on.
    pub(super) fn mask(
        &self,
        complete: bool,
        from: u32,
        step: &mut dyn FnMut(u32, u8) -> Result<Option<u32>, TooAmbiguous>,
    ) -> Result<Mask, TooAmbiguous> {
        let mut words = vec![0u64; self.size.div_ceil(64)];
        let mut any = false;
        // States after each byte of the token at hand, and the byte that did not fit.
        let mut path = vec![from];
        let mut misfit = usize::MAX;
        for ((&id, &shared), bytes) in self.order.iter().zip(&self.shared).zip(&self.bytes) {
            let shared = shared as usize;
            if shared > misfit {
                continue;
            }
            misfit = usize::MAX;
            path.truncate(shared + 1);
            for (at, &b) in bytes.iter().enumerate().skip(shared) {
                match step(path[at], b)? {
                    Some(s) => path.push(s),
                    None => {
                        misfit = at;
                        break;
                    }
                }
            }
            if misfit == usize::MAX {
                words[id as usize / 64] |= 1 << (id % 64);
                any = true;
            }
        }
        Ok(Mask {
            words,
            complete,
            any,
        })
    }
}
