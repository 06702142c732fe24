//! A record with what views need to find things in it quickly. Each part is made when it is first asked for, so that opening is quick.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;
use std::sync::OnceLock;

use sim::metrics::Metric;
use sim::record::RequestRow;
use sim::request::Outcome;
use store::{FAN_OUT, Packable, Packed, Packer, Record, Transfer};

use crate::spread::Spread;

/// Metrics that each request has, in the order of views.
pub const METRICS: [Metric; 4] = [Metric::Ttft, Metric::Tpot, Metric::E2e, Metric::Queue];

/// Most rows of requests in a replica's lane; more at once share the last.
const MAX_ROWS: usize = 512;

/// Of so many requests it is remembered that they are the slowest of the run.
const MOST_SLOW: usize = 256;

/// What a metric is called on screen.
pub fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Ttft => "TTFT",
        Metric::Itl => "ITL",
        Metric::Tpot => "TPOT",
        Metric::E2e => "E2E latency",
        Metric::Queue => "Queue time",
        Metric::Normalised => "Latency per token",
    }
}

/// Several neighbouring requests of a row as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// First arrival [ns].
    pub start: u64,
    /// Last end [ns].
    pub end: u64,
    /// Position of the first in its row.
    pub first: u32,
    /// How many they are.
    pub count: u32,
    /// Their parts, as [`parts`] has them [ns].
    pub parts: [f32; PARTS],
}

impl Packable for Group {
    type Numbers = [u64; 9];

    fn numbers(&self) -> [u64; 9] {
        let [a, b, c, d, e] = self.parts.map(|p| u64::from(p.to_bits()));
        let length = self.end.wrapping_sub(self.start);
        let (first, count) = (self.first.into(), self.count.into());
        [self.start, length, first, count, a, b, c, d, e]
    }

    fn of(numbers: &[u64; 9]) -> Group {
        let [start, length, first, count, parts @ ..] = *numbers;
        Group {
            start,
            end: start.wrapping_add(length),
            first: first as u32,
            count: count as u32,
            parts: parts.map(|p| f32::from_bits(p as u32)),
        }
    }
}

/// Requests of a replica that follow each other without overlap.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Their indices in the record, by arrival.
    pub requests: Packed<u32>,
    /// Coarser and coarser: each level has groups of eight of the level before.
    pub levels: Vec<Packed<Group>>,
}

impl Row {
    /// Index in the record of request `i` of the row.
    ///
    /// # Panics
    /// There is no such request.
    pub fn index(&self, i: usize) -> usize {
        self.requests.row(i) as usize
    }
}

/// A record, indexed.
#[derive(Clone, Debug)]
pub struct RunData {
    /// The record.
    pub record: Record,
    /// By replica: rows of its requests.
    rows: Vec<OnceLock<Vec<Row>>>,
    /// Indices of the requests by id.
    by_id: OnceLock<Packed<u32>>,
    /// How [`METRICS`] are spread over the requests in the measurement window.
    spreads: [OnceLock<Spread>; 4],
    /// The same of the gaps between tokens.
    gaps: OnceLock<Spread>,
    /// By metric: the slowest of all requests.
    slow: [OnceLock<Vec<(u32, u64)>>; 4],
}

/// When a request left its last state, clamped to the end of the run [ns].
fn end_of(r: &RequestRow, end: u64) -> u64 {
    r.end.0.min(end).max(r.arrival.0)
}

/// Parts of a request's life.
pub const PARTS: usize = 5;

/// Time in the queue, in prefill, until its KV was where it was decoded, in decode, and what did not finish [ns].
pub fn parts(record: &Record, r: &RequestRow) -> [u64; PARTS] {
    let end = end_of(r, record.info.end);
    if r.outcome != Outcome::Finished && r.first_scheduled.0 > end {
        return [0, 0, 0, 0, end - r.arrival.0];
    }
    let scheduled = r.first_scheduled.0.clamp(r.arrival.0, end);
    let (prefilled, there) = match transfer(record, r.id) {
        Some(t) => (t.prefilled, t.ended),
        None => (r.first_token.0, r.first_token.0),
    };
    let prefilled = prefilled.clamp(scheduled, end);
    let there = there.clamp(prefilled, end);
    [
        scheduled - r.arrival.0,
        prefilled - scheduled,
        there - prefilled,
        end - there,
        0,
    ]
}

/// How the KV of a request went from where it was prefilled to where it was decoded; the last time, where that was repeated.
pub fn transfer(record: &Record, id: u32) -> Option<Transfer> {
    record.transfers.of_request(id)
}

impl RunData {
    /// Of `record`.
    pub fn new(record: Record) -> RunData {
        let rows = vec![OnceLock::new(); record.info.replicas.len()];
        RunData {
            record,
            rows,
            by_id: OnceLock::new(),
            spreads: Default::default(),
            gaps: OnceLock::new(),
            slow: Default::default(),
        }
    }

    /// Makes now what takes long to make: views then need not wait for it.
    pub fn prepare(&self) {
        // One place for all that is sorted: what comes and goes in large pieces may stay with the process.
        let mut place = Vec::with_capacity(self.record.requests.len());
        for metric in METRICS {
            self.spread_in(metric, &mut place);
            self.slowest(metric, 0..u64::MAX, 1);
        }
        self.by_id_in(&mut place);
        drop(place);
        let of = by_replica(&self.record, self.by_id());
        for (rows, of) in self.rows.iter().zip(&of) {
            rows.get_or_init(|| rows_of(&self.record, of.iter().collect()));
        }
    }

    /// Rows of the requests of a replica.
    pub fn rows(&self, replica: usize) -> &[Row] {
        let Some(rows) = self.rows.get(replica) else {
            return &[];
        };
        rows.get_or_init(|| {
            let served = |i: &u32| self.record.requests.replica(*i as usize) as usize == replica;
            rows_of(&self.record, self.by_id().iter().filter(served).collect())
        })
    }

    fn by_id(&self) -> &Packed<u32> {
        self.by_id_in(&mut Vec::new())
    }

    /// The same, sorted in `place`.
    fn by_id_in(&self, place: &mut Vec<u64>) -> &Packed<u32> {
        self.by_id.get_or_init(|| {
            let requests = &self.record.requests;
            let with_id = |i: usize| u64::from(requests.id(i)) << 32 | i as u64;
            place.clear();
            place.extend((0..requests.len()).map(with_id));
            place.sort_unstable();
            place.iter().map(|both| *both as u32).collect()
        })
    }

    /// The request of this place in the order of ids.
    fn id_at(&self, place: usize) -> u32 {
        self.record.requests.id(self.by_id().row(place) as usize)
    }

    /// How many requests have smaller ids.
    fn before_id(&self, id: u32) -> usize {
        let all = self.by_id().all();
        all.partition_point(|place| self.id_at(place) < id)
    }

    /// Name of the scenario.
    pub fn name(&self) -> &str {
        &self.record.report.name
    }

    /// End of the run [ns].
    pub fn end(&self) -> u64 {
        self.record.info.end
    }

    /// Replicas.
    pub fn replicas(&self) -> usize {
        self.record.info.replicas.len()
    }

    /// The request with this id.
    pub fn request(&self, id: u32) -> Option<RequestRow> {
        let i = self.by_id().get(self.before_id(id))?;
        let found = self.record.requests.get(i as usize);
        found.filter(|r| r.id == id)
    }

    /// The id of the request that follows `id`, or comes before it.
    pub fn neighbour(&self, id: u32, forward: bool) -> Option<u32> {
        let i = self.before_id(id);
        let i = if forward { i + 1 } else { i.checked_sub(1)? };
        (i < self.by_id().len()).then(|| self.id_at(i))
    }

    /// How a metric is spread over the measured requests; of those that no request has, nothing.
    pub fn spread(&self, metric: Metric) -> Spread {
        self.spread_in(metric, &mut Vec::new())
    }

    /// The same, sorted in `place`.
    fn spread_in(&self, metric: Metric, place: &mut Vec<u64>) -> Spread {
        let made = || {
            self.values_in(metric, place);
            Spread::of(place, self.limit(metric))
        };
        match METRICS.iter().position(|m| *m == metric) {
            Some(i) => self.spreads[i].get_or_init(made).clone(),
            None if metric == Metric::Itl => {
                let of = || Spread::of(&self.record.info.itl[..], None);
                self.gaps.get_or_init(of).clone()
            }
            None => Spread::default(),
        }
    }

    /// The values of a metric over the measured requests, ascending [ns].
    pub fn values(&self, metric: Metric) -> Vec<u64> {
        let mut values = Vec::new();
        self.values_in(metric, &mut values);
        values
    }

    fn values_in(&self, metric: Metric, place: &mut Vec<u64>) {
        let all = self.record.requests.iter();
        let measured = all.filter(|r| r.arrival.0 >= self.record.info.warmup);
        place.clear();
        place.extend(measured.filter_map(|r| Some(metric.of(&r)?.0)));
        place.sort_unstable();
    }

    /// The limit of the objective on a metric [ns].
    pub fn limit(&self, metric: Metric) -> Option<u64> {
        let slo = &self.record.info.slo;
        match metric {
            Metric::Ttft => slo.ttft,
            Metric::Tpot => slo.tpot,
            Metric::E2e => slo.e2e,
            _ => None,
        }
    }

    /// The `n` requests with the largest values of a metric, largest first, among those that are under way in `window` [ns].
    pub fn slowest(&self, metric: Metric, window: Range<u64>, n: usize) -> Vec<(u32, u64)> {
        let known = METRICS.iter().position(|m| *m == metric);
        let whole = window.start == 0 && window.end >= self.end() && n <= MOST_SLOW;
        let Some(i) = known.filter(|_| whole) else {
            return self.slowest_in(metric, window, n);
        };
        let all = || self.slowest_in(metric, 0..u64::MAX, MOST_SLOW);
        let slow = self.slow[i].get_or_init(all);
        slow[..n.min(slow.len())].to_vec()
    }

    fn slowest_in(&self, metric: Metric, window: Range<u64>, n: usize) -> Vec<(u32, u64)> {
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::with_capacity(n + 1);
        let rows = &self.record.requests;
        // They are in the order of their ends.
        let ended = |i| rows.end_by(i, u64::MAX) < window.start;
        for i in rows.all().partition_point(ended)..rows.len() {
            if rows.arrival(i) >= window.end {
                continue;
            }
            let r = rows.row(i);
            if let Some(v) = metric.of(&r) {
                heap.push(Reverse((v.0, r.id)));
                if heap.len() > n {
                    heap.pop();
                }
            }
        }
        let mut found: Vec<(u64, u32)> = heap.into_iter().map(|Reverse(x)| x).collect();
        found.sort_unstable_by_key(|(v, id)| (Reverse(*v), *id));
        found.into_iter().map(|(v, id)| (id, v)).collect()
    }
}

/// Indices of the requests of each replica, by id as `by_id` has them.
fn by_replica(record: &Record, by_id: &Packed<u32>) -> Vec<Packed<u32>> {
    let mut all: Vec<Packer<u32>> = Vec::new();
    all.resize_with(record.info.replicas.len(), Packer::default);
    for i in by_id {
        if let Some(list) = all.get_mut(record.requests.replica(i as usize) as usize) {
            list.push(i);
        }
    }
    all.into_iter().map(Packer::finish).collect()
}

/// Rows of the requests `list` of a replica, by id: each goes into the lowest row that is free when it arrives.
fn rows_of(record: &Record, mut list: Vec<u32>) -> Vec<Row> {
    let (end, all) = (record.info.end, &record.requests);
    let sent = |i: &u32| all.arrival(*i as usize);
    // Ids count in the order of arrival, but for tables from elsewhere.
    if !list.is_sorted_by_key(sent) {
        list.sort_by_cached_key(sent);
    }
    let mut rows: Vec<Packer<u32>> = Vec::new();
    let mut busy: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut free: BTreeSet<usize> = BTreeSet::new();
    for i in list {
        let arrival = all.arrival(i as usize);
        while busy.peek().is_some_and(|Reverse((end, _))| *end <= arrival) {
            if let Some(Reverse((_, r))) = busy.pop() {
                free.insert(r);
            }
        }
        let at = free.pop_first().unwrap_or_else(|| {
            if rows.len() < MAX_ROWS {
                rows.push(Packer::default());
            }
            rows.len() - 1
        });
        rows[at].push(i);
        busy.push(Reverse((all.end_by(i as usize, end).max(arrival), at)));
    }
    let row = |requests: Packed<u32>| Row {
        levels: levels_of(&requests, record),
        requests,
    };
    rows.into_iter().map(|r| row(r.finish())).collect()
}

/// Every [`FAN_OUT`] neighbours as one.
fn merged(mut groups: impl Iterator<Item = Group>) -> Packed<Group> {
    let merge = |mut all: Group, g: Group| {
        all.end = all.end.max(g.end);
        all.count += g.count;
        for (mine, theirs) in all.parts.iter_mut().zip(g.parts) {
            *mine += theirs;
        }
        all
    };
    let next = || {
        let first = groups.next()?;
        Some(groups.by_ref().take(FAN_OUT - 1).fold(first, merge))
    };
    std::iter::from_fn(next).collect()
}

fn levels_of(requests: &Packed<u32>, record: &Record) -> Vec<Packed<Group>> {
    let end = record.info.end;
    let single = |(at, i): (usize, u32)| {
        let r = record.requests.row(i as usize);
        Group {
            start: r.arrival.0,
            end: end_of(&r, end),
            first: at as u32,
            count: 1,
            parts: parts(record, &r).map(|p| p as f32),
        }
    };
    if requests.len() <= FAN_OUT {
        return Vec::new();
    }
    let mut levels = vec![merged(requests.iter().enumerate().map(single))];
    while let Some(last) = levels.last().filter(|l| l.len() > 2 * FAN_OUT) {
        let next = merged(last.iter());
        levels.push(next);
    }
    levels
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sim::scenario::Scenario;
    use sim::simulation::RunOptions;
    use store::Limits;

    /// A run of two small replicas, for tests.
    pub fn small() -> RunData {
        let text = "name = \"small\"\n[layout]\nreplicas = 2\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 400\n\
            max_num_seqs = 8\n[step]\nbase = \"5 ms\"\nper_token = \"20 us\"\n[[workload]]\nprompt = 200\n\
            output = { kind = \"uniform\", min = 10, max = 60 }\narrival = { kind = \"poisson\", rate = \"40 req/s\" }\n\
            [run]\nrequests = 300\n[slo]\nttft = \"200 ms\"\n";
        let scenario = Scenario::parse(text, "small.toml", &[]).unwrap();
        let built = scenario.build().unwrap();
        let (_, record) =
            store::run(built, &RunOptions::default(), Limits::default(), || 0.1).unwrap();
        RunData::new(record)
    }

    #[test]
    fn every_request_is_in_one_row_and_those_of_a_row_do_not_overlap() {
        let run = small();
        let mut seen = vec![0; run.record.requests.len()];
        for row in (0..run.replicas()).flat_map(|r| run.rows(r)) {
            for i in &row.requests {
                seen[i as usize] += 1;
            }
            let requests = row.requests.iter();
            let ends = requests.map(|i| run.record.requests.row(i as usize));
            let pairs = ends.clone().zip(ends.skip(1));
            assert!(pairs.into_iter().all(|(a, b)| a.end <= b.arrival));
            for level in &row.levels {
                let n: u32 = level.iter().map(|g| g.count).sum();
                assert_eq!(n as usize, row.requests.len());
            }
        }
        assert!(seen.iter().all(|n| *n == 1));
    }

    #[test]
    fn requests_are_found_by_id_and_by_slowness() {
        let run = small();
        assert_eq!(run.request(17).unwrap().id, 17);
        assert!(run.request(300).is_none());
        assert_eq!(run.neighbour(17, true), Some(18));
        assert_eq!(run.neighbour(0, false), None);
        assert_eq!(run.neighbour(299, true), None);
        let slow = run.slowest(Metric::Ttft, 0..u64::MAX, 5);
        assert_eq!(slow.len(), 5);
        assert_eq!(Some(&slow[0].1), run.values(Metric::Ttft).last());
        assert!(slow.is_sorted_by_key(|(_, v)| Reverse(*v)));
        assert!(run.slowest(Metric::Ttft, 0..1, 5).len() <= 1);
        // The same where all of them are looked at, and where those are asked that are remembered.
        let looked = run.slowest_in(Metric::Ttft, 0..run.end(), 5);
        assert_eq!(run.slowest(Metric::Ttft, 0..run.end(), 5), looked);
    }

    #[test]
    fn the_parts_of_a_request_add_up() {
        let run = small();
        for r in &run.record.requests {
            let sum: u64 = parts(&run.record, &r).iter().sum();
            assert_eq!(sum, r.end.0 - r.arrival.0);
        }
    }

    #[test]
    fn a_transfer_stands_between_prefill_and_decode() {
        let mut record = small().record;
        let r = record.requests.row(7);
        let at = |ns: u64| r.first_token.0 + ns;
        let it = |request, ended| Transfer {
            request,
            prefilled: at(0),
            began: at(5),
            ended: at(ended),
            ..Transfer::default()
        };
        let three = [it(r.id, 90), it(r.id, 1000), it(r.id + 1, 7)];
        record.transfers = three.into_iter().collect();
        let [queue, prefill, transfer, decode, lost] = parts(&record, &r);
        assert_eq!((transfer, lost), (1000, 0), "the last counts");
        assert_eq!(queue + prefill, r.first_token.0 - r.arrival.0);
        assert_eq!(decode, r.end.0 - at(1000));
        assert!(super::transfer(&record, r.id + 2).is_none());
    }
}
