//! Events set for later: first in, first out among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::requests::{Requests, Slot};
use crate::kernel::time::SimTime;

/// What happens, in the order of classes of [`crate::cluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A response reaches its client.
    Deliver,
    /// A client gives up.
    TimeOut,
    /// A request reaches its engine.
    Enter,
}

/// A thing to happen to the request in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// When.
    pub at: SimTime,
    /// What.
    pub class: Class,
    sequence: u64,
    /// To which request.
    pub slot: Slot,
    /// In which use of its slot.
    pub generation: u32,
}

/// The events to come.
#[derive(Debug, Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<Event>>,
    sequence: u64,
}

impl Events {
    /// Sets an event.
    pub fn push(&mut self, at: SimTime, class: Class, slot: Slot, generation: u32) {
        self.sequence += 1;
        self.heap.push(Reverse(Event {
            at,
            class,
            sequence: self.sequence,
            slot,
            generation,
        }));
    }

    /// When the next one happens that still concerns its request. Events of requests that have ended (the time-out of one that
    /// was answered) are dropped here, so that they never move the clock.
    #[inline]
    pub fn next(&mut self, requests: &Requests) -> SimTime {
        while let Some(Reverse(e)) = self.heap.peek() {
            if requests.is(e.slot, e.generation) {
                return e.at;
            }
            self.heap.pop();
        }
        SimTime::NEVER
    }

    /// Takes the next event if it happens at `now` and its class is at most `class`.
    #[inline]
    pub fn pop(&mut self, now: SimTime, class: Class) -> Option<Event> {
        let e = self.heap.peek()?.0;
        if e.at > now || e.class > class {
            return None;
        }
        self.heap.pop();
        Some(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestSpec;

    #[test]
    fn equal_instants_come_by_class_then_in_the_order_they_were_set() {
        let mut e = Events::default();
        let t = SimTime(5);
        e.push(t, Class::Enter, 1, 0);
        e.push(t, Class::TimeOut, 2, 0);
        e.push(t, Class::TimeOut, 3, 0);
        e.push(t, Class::Deliver, 4, 0);
        assert_eq!(e.pop(SimTime(4), Class::Enter), None);
        let order: Vec<Slot> = std::iter::from_fn(|| e.pop(t, Class::Enter))
            .map(|e| e.slot)
            .collect();
        assert_eq!(order, [4, 2, 3, 1]);
    }

    #[test]
    fn events_of_requests_that_have_ended_are_dropped() {
        let mut requests = Requests::default();
        let answered = requests.open(0, &RequestSpec::default(), 0);
        let under_way = requests.open(1, &RequestSpec::default(), 0);
        let mut e = Events::default();
        for (at, slot) in [(5, answered), (7, under_way), (9, answered)] {
            e.push(SimTime(at), Class::TimeOut, slot, 0);
        }
        requests.close(answered);
        assert_eq!(e.next(&requests), SimTime(7));
        requests.close(under_way);
        assert_eq!(e.next(&requests), SimTime::NEVER);
    }
}
