//! Sequences by the number of the step that gives their last token: a hashed timing wheel of intrusive lists.

/// No entry.
const NIL: u32 = u32::MAX;
/// Lists; entries further ahead share one and are passed over once per turn of the wheel.
const SPOKES: u64 = 512;

#[derive(Clone, Copy, Debug)]
struct Link {
    step: u64,
    prev: u32,
    next: u32,
}

/// Which sequences (small dense ids) are due at which step.
#[derive(Debug)]
pub struct Wheel {
    heads: Vec<u32>,
    links: Vec<Link>,
}

impl Wheel {
    /// An empty wheel.
    pub fn new() -> Wheel {
        Wheel {
            heads: vec![NIL; SPOKES as usize],
            links: Vec::new(),
        }
    }

    /// Makes `id`, which is not in the wheel, due at `step`.
    #[inline]
    pub fn insert(&mut self, id: u32, step: u64) {
        let i = id as usize;
        if i >= self.links.len() {
            let free = Link {
                step: 0,
                prev: NIL,
                next: NIL,
            };
            self.links.resize(i + 1, free);
        }
        let spoke = (step % SPOKES) as usize;
        let next = self.heads[spoke];
        self.links[i] = Link {
            step,
            prev: NIL,
            next,
        };
        if next != NIL {
            self.links[next as usize].prev = id;
        }
        self.heads[spoke] = id;
    }

    /// Takes `id` out.
    #[inline]
    pub fn remove(&mut self, id: u32) {
        let Link { step, prev, next } = self.links[id as usize];
        if prev == NIL {
            self.heads[(step % SPOKES) as usize] = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
    }

    /// Writes those due at `step` to `out`, in no particular order, without taking them out.
    #[inline]
    pub fn due(&self, step: u64, out: &mut Vec<u32>) {
        let mut at = self.heads[(step % SPOKES) as usize];
        while at != NIL {
            let link = self.links[at as usize];
            if link.step == step {
                out.push(at);
            }
            at = link.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_due_at_its_step_and_not_a_turn_earlier_or_later() {
        let mut w = Wheel::new();
        let steps = [5, 5 + SPOKES, 5, 6, 5 + 2 * SPOKES];
        for (id, &s) in steps.iter().enumerate() {
            w.insert(id as u32, s);
        }
        w.remove(2);
        for step in 0..3 * SPOKES {
            let mut due = Vec::new();
            w.due(step, &mut due);
            let expected: Vec<u32> = [0u32, 1, 3, 4]
                .into_iter()
                .filter(|&i| steps[i as usize] == step)
                .collect();
            assert_eq!(due, expected);
        }
    }
}
