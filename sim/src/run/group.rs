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
    /// Replicas that may have something to do, by their place here; all others wait to be touched.
    pub awake: Vec<u32>,
    /// Whether each is among them.
    pub is_awake: Vec<bool>,
}

impl Group {
    /// Does all that happens here before `until`, replica by replica. `sent`: when clients have sent requests that the books do not know
    /// of yet.
    pub fn advance(&mut self, until: SimTime, sent: &[SimTime]) {
        for &at in sent {
            self.books.recorder.sent(at);
        }
        // Rows are written in the order of the replicas.
        self.awake.sort_unstable();
        let (replicas, books, is_awake) = (&mut self.replicas, &mut self.books, &mut self.is_awake);
        self.awake.retain(|i| {
            let i = *i as usize;
            replicas[i].advance(until, books);
            is_awake[i] = replicas[i].next_at() != SimTime::NEVER;
            is_awake[i]
        });
    }

    /// The replica at `place`, with the books that it writes to; whoever asks may give it something to do.
    #[inline]
    fn touch(&mut self, place: usize) -> (&mut Replica, &mut Books) {
        if !self.is_awake[place] {
            self.is_awake[place] = true;
            self.awake.push(place as u32);
        }
        (&mut self.replicas[place], &mut self.books)
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
        let group = &mut self.groups[self.len as usize % groups];
        group.replicas.push(replica);
        group.is_awake.push(false);
        self.len += 1;
    }

    /// Replica `i`, with the books it writes to.
    #[inline]
    pub fn get(&mut self, i: u32) -> (&mut Replica, &mut Books) {
        let n = self.groups.len();
        if n == 1 {
            return self.groups[0].touch(i as usize);
        }
        self.groups[i as usize % n].touch(i as usize / n)
    }

    /// Replicas at which something happens by `now`, ascending, into `due`.
    pub fn due(&mut self, now: SimTime, due: &mut Vec<u32>) {
        let n = self.groups.len() as u32;
        for (g, group) in self.groups.iter_mut().enumerate() {
            for &i in &group.awake {
                if group.replicas[i as usize].next_at() <= now {
                    due.push(i * n + g as u32);
                }
            }
        }
        due.sort_unstable();
    }

    /// Replicas that may have something to do.
    pub fn awake(&self) -> usize {
        self.groups.iter().map(|g| g.awake.len()).sum()
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
