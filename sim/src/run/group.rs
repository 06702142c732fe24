//! Replicas that one core advances, with the books they write to.

use crate::cluster::replica::{Books, Replica};
use crate::kernel::time::SimTime;

/// Groups at most: enough for any number of cores to be kept busy, few enough that their books cost nothing.
pub const MOST_GROUPS: usize = 16;

/// A group of replicas.
pub struct Group {
    /// Replica `i` of the run is at `i / groups` of group `i % groups`.
    pub replicas: Vec<Replica>,
    /// What they write to.
    pub books: Books,
}

impl Group {
    /// Does all that happens here before `until`, replica by replica. `sent`: when clients have sent requests that the books do not know
    /// of yet.
    pub fn advance(&mut self, until: SimTime, sent: &[SimTime]) {
        for &at in sent {
            self.books.recorder.sent(at);
        }
        for replica in &mut self.replicas {
            replica.advance(until, &mut self.books);
        }
    }
}

/// All replicas of a run, by their index.
pub struct Fleet {
    /// The groups, at least one.
    pub groups: Vec<Group>,
    len: u32,
}

impl Fleet {
    /// No replica yet.
    pub fn new(groups: Vec<Group>) -> Fleet {
        Fleet { groups, len: 0 }
    }

    /// Replicas there are or were.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Adds the replica whose index is [`Fleet::len`].
    pub fn push(&mut self, replica: Replica) {
        let groups = self.groups.len();
        self.groups[self.len as usize % groups]
            .replicas
            .push(replica);
        self.len += 1;
    }

    /// Replica `i`, with the books it writes to.
    #[inline]
    pub fn get(&mut self, i: u32) -> (&mut Replica, &mut Books) {
        let n = self.groups.len();
        if n == 1 {
            let group = &mut self.groups[0];
            return (&mut group.replicas[i as usize], &mut group.books);
        }
        let group = &mut self.groups[i as usize % n];
        (&mut group.replicas[i as usize / n], &mut group.books)
    }

    /// Replica `i`.
    #[inline]
    pub fn peek(&self, i: u32) -> &Replica {
        let n = self.groups.len();
        &self.groups[i as usize % n].replicas[i as usize / n]
    }

    /// All of them, in the order of their index.
    pub fn iter(&self) -> impl Iterator<Item = &Replica> {
        (0..self.len).map(|i| self.peek(i))
    }
}
